"""What is shipped for the hook: least privilege, and arguments that the program knows."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click
import yaml

from koordra.cli.processes.nri import command
from koordra.nri.hook.koordinator import admission_policy

FOLDER = Path(__file__).resolve().parents[3] / "deploy" / "kustomize" / "nri"


def documents(name: str) -> list[Any]:
    return list(yaml.safe_load_all((FOLDER / name).read_text()))


def pod_spec() -> dict[str, Any]:
    (daemonset,) = documents("daemonset.yaml")
    spec: dict[str, Any] = daemonset["spec"]["template"]["spec"]
    return spec


def test_every_argument_is_one_of_the_program() -> None:
    (container,) = pod_spec()["containers"]
    assert container["args"][0] == "nri"
    added = [
        change["value"]
        for name in ("validate", "evict", "koordinator", "../pod-network", "refuse-privileged")
        for patch in documents(f"{name}/kustomization.yaml")[0]["patches"]
        if patch["target"]["name"] == "koordra-nri"
        for change in yaml.safe_load(patch["patch"])
        if change["path"].endswith("/args/-")
    ]
    arguments = [*container["args"][1:], *added]
    context = click.Context(command)
    command.parse_args(context, [*arguments, "--node-name", "n"])
    assert context.params["api"]
    assert context.params["validating"]
    assert context.params["koordinator"]
    assert context.params["on_drift"] == "evict"
    assert context.params["pod_network"]
    assert context.params["privileged"] == "refuse"


def test_the_hook_knows_its_own_namespace() -> None:
    (container,) = pod_spec()["containers"]
    fields = {each["name"]: each["valueFrom"]["fieldRef"]["fieldPath"] for each in container["env"]}
    assert fields == {"NODE_NAME": "spec.nodeName", "POD_NAMESPACE": "metadata.namespace"}


def test_the_pod_has_no_power_that_it_does_not_need() -> None:
    spec = pod_spec()
    (container,) = spec["containers"]
    security = container["securityContext"]
    assert not security["privileged"]
    assert not security["allowPrivilegeEscalation"]
    assert security["capabilities"] == {"drop": ["ALL"]}
    assert security["readOnlyRootFilesystem"]
    assert not any(spec.get(name) for name in ("hostPID", "hostIPC", "hostNetwork"))
    written = {mount["name"] for mount in container["volumeMounts"] if not mount.get("readOnly")}
    assert written == {"state", "tmp"}


def test_the_role_is_what_the_hook_calls() -> None:
    rules = [rule for name in ("rbac.yaml", "koordinator/rbac.yaml") for rule in _rules(name)]
    verbs = {(resource, verb) for rule in rules for resource in rule["resources"] for verb in rule["verbs"]}
    assert verbs == {
        ("events", "create"),
        ("resourceclaims", "get"),
        ("resourceclaims/status", "patch"),
        ("resourceclaims/driver", "associated-node:patch"),
        ("pods", "get"),
        ("namespaces", "list"),
        ("namespaces", "watch"),
        ("validatingadmissionpolicies", "get"),
        ("validatingadmissionpolicybindings", "get"),
    }
    (policies,) = _rules("koordinator/rbac.yaml")
    assert policies["resourceNames"] == [admission_policy.NAME]


def _rules(name: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = documents(name)[0]["rules"]
    return found
