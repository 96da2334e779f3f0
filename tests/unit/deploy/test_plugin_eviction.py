"""The components `kubelet-plugin-evict` and `nri/evict`: a node asks, under its own name, and the controller
evicts."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
import pytest
import yaml

from koordra.api.objects import Object
from koordra.cli.processes.kubelet_plugin import command as plugin
from koordra.cli.processes.nri import command as hook
from koordra.evictions import COMPONENTS, LONGEST_ENTRY, OF_HOOK, OF_PLUGIN
from tests.fakes.admission_policy import policies, refusal

ROOT = Path(__file__).resolve().parents[3] / "deploy" / "kustomize"
ACCOUNTS = {OF_PLUGIN: "koordra-kubelet-plugin", OF_HOOK: "koordra-nri"}


def documents(path: str) -> list[dict[str, Any]]:
    return list(yaml.safe_load_all((ROOT / path).read_text()))


def granted(name: str) -> dict[str, set[tuple[str, str, str]]]:
    """Account -> resource, its name, verb."""
    found: dict[str, set[tuple[str, str, str]]] = {}
    parts = {
        (part["kind"], part["metadata"]["name"]): part
        for part in documents(f"{COMPONENTS[name]}/requests.yaml")
    }
    for (kind, _), binding in parts.items():
        if kind in ("RoleBinding", "ClusterRoleBinding"):
            role = parts[binding["roleRef"]["kind"], binding["roleRef"]["name"]]
            (subject,) = binding["subjects"]
            found[subject["name"]] = {
                (resource, each, verb)
                for rule in role["rules"]
                for resource in rule["resources"]
                for each in rule.get("resourceNames", ("",))
                for verb in rule["verbs"]
            }
    return found


@pytest.mark.parametrize("name", COMPONENTS)
def test_a_node_may_write_one_config_map_and_the_controller_evicts(name: str) -> None:
    assert granted(name) == {
        ACCOUNTS[name]: {("configmaps", name, "patch")},
        "koordra-controller": {("pods/eviction", "", "create")},
    }


def test_no_account_of_a_node_may_evict() -> None:
    roles: dict[tuple[str, str], Object] = {}
    bindings: list[Object] = []
    for path in sorted(ROOT.rglob("*.yaml")):
        for found in yaml.safe_load_all(path.read_text()):
            if isinstance(found, dict) and str(found.get("kind")).endswith("Role"):
                roles[found["kind"], found["metadata"]["name"]] = found
            elif isinstance(found, dict) and str(found.get("kind")).endswith("RoleBinding"):
                bindings.append(found)
    evicting = {
        subject["name"]
        for binding in bindings
        for rule in roles[binding["roleRef"]["kind"], binding["roleRef"]["name"]]["rules"]
        if "pods/eviction" in rule["resources"]
        for subject in binding["subjects"]
    }
    assert evicting == {"koordra-controller"}


@pytest.mark.parametrize(
    ("name", "command", "workload", "option"),
    [
        (OF_PLUGIN, plugin, "kubelet-plugin", "on_overuse"),
        (OF_HOOK, hook, "nri", "on_drift"),
    ],
)
def test_the_component_turns_it_on_which_is_off_without_it(
    name: str, command: click.Command, workload: str, option: str
) -> None:
    (component,) = documents(f"{COMPONENTS[name]}/kustomization.yaml")
    assert (component["kind"], component["resources"]) == ("Component", ["requests.yaml"])
    (patch,) = component["patches"]
    (daemon_set,) = documents(f"{workload}/daemonset.yaml")
    assert patch["target"] == {"kind": "DaemonSet", "name": daemon_set["metadata"]["name"]}
    pod = daemon_set["spec"]["template"]["spec"]
    assert pod["serviceAccountName"] == ACCOUNTS[name]
    (change,) = yaml.safe_load(patch["patch"])
    assert (change["op"], change["path"]) == ("add", "/spec/template/spec/containers/0/args/-")
    _, *shipped = pod["containers"][0]["args"]
    for arguments, expected in ((shipped, "report"), ([*shipped, change["value"]], "evict")):
        context = click.Context(command)
        command.parse_args(context, [*arguments, "--node-name", "n"])
        assert context.params[option] == expected


@pytest.fixture(params=COMPONENTS)
def said(request: pytest.FixtureRequest) -> Callable[..., str]:
    name = request.param
    policy = policies(ROOT / "policies" / "evictions.yaml")["koordra-evictions"]
    (rule,) = policy["matchConstraints"]["resourceRules"]
    assert set(rule["resourceNames"]) == set(COMPONENTS)

    def named(obj: Object) -> Object:
        return {**obj, "metadata": {**obj["metadata"], "name": name}}

    def of(old: Object, new: Object, *, node: str | None = "node-a", account: str = ACCOUNTS[name]) -> str:
        return refusal(policy, named(old), named(new), account=account, node=node) or ""

    return of


def entries(**data: str) -> Object:
    return {"metadata": {"name": "x", "labels": {"app": "koordra"}}, "data": data}


def test_a_node_asks_under_its_own_name_only(said: Callable[..., str]) -> None:
    empty: Object = {"metadata": {"name": "x"}}
    own, others = {"node-a": "[]"}, {"node-b": "[1]"}
    assert said(empty, {**empty, "data": own}) == ""
    assert said({**empty, "data": own}, empty) == ""
    assert said(entries(**others), entries(**others, **own)) == ""
    assert said(entries(**others, **own), entries(**others)) == ""
    for old, new in (
        (entries(**others), entries()),
        (entries(**others), empty),
        (entries(**others), entries(**{"node-b": "[2]"})),
        (entries(**own), entries(**own, **others)),
    ):
        assert "node node-a asks under its own name only" in said(old, new)
        assert said(old, new, account="system:serviceaccount:team:admin") == ""
    assert "not bound to a node" in said(empty, {**empty, "data": own}, node=None)


def test_a_node_cannot_fill_the_config_map_nor_change_it_otherwise(said: Callable[..., str]) -> None:
    longest = "x" * LONGEST_ENTRY
    assert said(entries(), entries(**{"node-a": longest})) == ""
    assert "at most 8192 characters" in said(entries(), entries(**{"node-a": longest + "x"}))
    own = entries(**{"node-a": "[]"})
    for new in (
        {**own, "immutable": True},
        {**own, "binaryData": {"a": "eA=="}},
        {**own, "metadata": {"name": "x"}},
        *(
            {**own, "metadata": {**own["metadata"], part: value}}
            for part, value in (
                ("annotations", {"a": "b"}),
                ("finalizers", ["a/b"]),
                ("ownerReferences", [{"uid": "u"}]),
            )
        ),
    ):
        assert "its entry and nothing else" in said(entries(), new)


def test_an_operator_finds_it_where_components_are_listed() -> None:
    docs = ROOT.parents[1] / "docs"
    for page in ("install.md", "isolation.md"):
        assert "kubelet-plugin-evict" in (docs / page).read_text(), page
    for page in ("install.md", "nri.md"):
        assert "nri/evict" in (docs / page).read_text(), page
