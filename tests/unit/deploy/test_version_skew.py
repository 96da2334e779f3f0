"""Manifests and kinds of one release beside programs of another: what was shipped once is understood ever
after.

The golden files record fields of koordra's kinds and options of the shipped manifests. `--regen` adds what is
new; to take a line out is to break who has upgraded halfway.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from koordra.api import names
from koordra.cli.main import cli
from koordra.controller.run import LEASE_NAME
from koordra.controller.webhook.cert_rotation import SECRET_NAME
from koordra.kubelet_plugin.status.node_labels import OURS
from tests.fakes.kustomized import ROOT

RECORDED = Path(__file__).parents[2] / "golden" / "deploy"
CRDS = [
    obj
    for path in sorted(ROOT.rglob("*.yaml"))
    for obj in yaml.safe_load_all(path.read_text())
    if obj and obj.get("kind") == "CustomResourceDefinition"
]
OPTIONAL = "optional"


def fields(schema: dict[str, Any], path: str) -> Iterator[str]:
    """Each with its type, and whether an object needs it."""
    required = schema.get("required") or ()
    for name, of in (schema.get("properties") or {}).items():
        kind = of.get("type") or ("int-or-string" if of.get("x-kubernetes-int-or-string") else "any")
        yield f"{path}.{name} {kind} {'required' if name in required else OPTIONAL}"
        yield from fields(of, f"{path}.{name}")
    for inner in (schema.get("items"), schema.get("additionalProperties")):
        if isinstance(inner, dict):
            yield from fields(inner, f"{path}[]")


def of_kinds() -> set[str]:
    return {
        line
        for crd in CRDS
        for version in crd["spec"]["versions"]
        for line in fields(
            version["schema"]["openAPIV3Schema"], f"{crd['spec']['names']['kind']}/{version['name']}"
        )
    }


def of_manifests() -> set[str]:
    """`controller --log-json` and so on, of every manifest and patch."""
    found = set()
    for path in sorted(ROOT.rglob("*.yaml")):
        for obj in yaml.safe_load_all(path.read_text()):
            text = obj or {}
            if text.get("kind") in ("Deployment", "DaemonSet"):
                for container in text["spec"]["template"]["spec"]["containers"]:
                    program, *flags = container["args"]
                    found |= {
                        f"{program} {flag.partition('=')[0]}" for flag in flags if flag.startswith("--")
                    }
            for patch in text.get("patches") or ():
                program = (patch.get("target") or {}).get("name", "").removeprefix("koordra-")
                for step in yaml.safe_load(patch["patch"]):
                    if str(step.get("path")).endswith("/args/-"):
                        found.add(f"{program} {step['value'].partition('=')[0]}")
    return found


def recorded(name: str, now: set[str], *, regen: bool) -> set[str]:
    path = RECORDED / name
    before = set(path.read_text().splitlines()) if path.exists() else set()
    if regen:
        path.parent.mkdir(exist_ok=True, parents=True)
        path.write_text("".join(f"{line}\n" for line in sorted(before | now)))
    return before


def test_objects_of_an_older_release_are_whole_and_those_of_a_newer_one_understood(
    request: pytest.FixtureRequest,
) -> None:
    now, regen = of_kinds(), request.config.getoption("--regen")
    before = recorded("fields-of-kinds.txt", now, regen=regen)
    assert not before - now, "fields that objects in clusters have"
    new = {line for line in now - before if not line.endswith(OPTIONAL)}
    assert regen or not [line for line in new if not _is_below_something_new(line, before)], (
        "an older object lacks them, and could not be written again"
    )
    assert regen or now == before, "record them: pytest --regen"


def _is_below_something_new(line: str, before: set[str]) -> bool:
    above = line.split(maxsplit=1)[0].rpartition(".")[0].removesuffix("[]")
    return "." in above and not any(entry.split()[0] == above for entry in before)


def test_options_of_older_manifests_are_understood(request: pytest.FixtureRequest) -> None:
    now = of_manifests()
    before = recorded("options-of-manifests.txt", now, regen=request.config.getoption("--regen"))
    context = cli.make_context("koordra", ["--help"], resilient_parsing=True)
    for line in sorted(before | now):
        program, _, flag = line.partition(" ")
        command = cli.get_command(context, program)
        assert command is not None, program
        assert flag in {option for each in command.params for option in (*each.opts, *each.secondary_opts)}, (
            line
        )
    assert before >= now or request.config.getoption("--regen"), "record them: pytest --regen"


@pytest.mark.parametrize("crd", CRDS, ids=lambda crd: str(crd["metadata"]["name"]))
def test_versions_of_a_kind_differ_in_name_alone(crd: dict[str, Any]) -> None:
    """So the API server's own conversion, which writes the other name, loses nothing."""
    first, *others = crd["spec"]["versions"]
    assert [version["storage"] for version in crd["spec"]["versions"]].count(True) == 1
    assert all(version["served"] for version in crd["spec"]["versions"])
    assert crd["spec"].get("conversion", {"strategy": "None"}) == {"strategy": "None"}
    for other in others:
        assert other["schema"] == first["schema"]
        assert other.get("subresources") == first.get("subresources")


def test_the_page_names_what_is_left_and_what_could_hang() -> None:
    text = (ROOT.parents[1] / "docs" / "upgrade.md").read_text()
    kinds = {str(crd["metadata"]["name"]) for crd in CRDS}
    listed = (ROOT.parents[1] / "docs" / "reference" / "names.md").read_text()
    marks = set(
        re.findall(r"^\| `([\w.]+/[\w-]*)` \| (?:Node annotation|Node label|Finalizer)", listed, re.MULTILINE)
    )
    assert {names.QUARANTINE_SEEN, names.NO_GPUS, names.RETAIN_FINALIZER} < marks
    left = {LEASE_NAME, SECRET_NAME, OURS, *kinds}
    left |= {name if name.startswith(names.DOMAIN) else f"{name.partition('/')[0]}/" for name in marks}
    left |= {
        f"/var/lib/kubelet/plugins/{names.DRIVER}",
        "/var/lib/koordra",
        "/var/run/cdi/koordra.io-",
    }
    assert not [word for word in left if word not in text]
    mounted = yaml.safe_load((ROOT / "kubelet-plugin" / "daemonset.yaml").read_text())["spec"]["template"][
        "spec"
    ]
    written = {
        each["hostPath"]["path"]
        for each in mounted["volumes"]
        if each.get("hostPath", {}).get("type") == "DirectoryOrCreate"
    }
    assert all(path in text for path in written - {"/var/lib/kubelet/plugins_registry"})
