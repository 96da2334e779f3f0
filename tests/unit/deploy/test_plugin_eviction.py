"""The component `kubelet-plugin-evict`: the plugin evicts, with the one right that this takes besides."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click
import yaml

from koordra.api import kinds
from koordra.cli.processes.kubelet_plugin import command
from tests.unit.kubelet_plugin.status.test_overuse_report import Reported

ROOT = Path(__file__).resolve().parents[3] / "deploy" / "kustomize"
Right = tuple[str, str, str]
"""API group, resource, verb."""


def documents(path: str) -> list[dict[str, Any]]:
    return list(yaml.safe_load_all((ROOT / path).read_text()))


def granted(path: str) -> set[Right]:
    return {
        (group, resource, verb)
        for rule in documents(path)[0]["rules"]
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    }


def used(*, evict: bool) -> set[Right]:
    """What the plugin asks of the API for a pod that is over its share."""
    reported = Reported(evict=evict)
    asked: set[Right] = set()
    get, create = reported.api.get, reported.api.create

    def note(verb: str, kind: kinds.Kind, subresource: str = "") -> None:
        asked.add((kind.group, f"{kind.plural}/{subresource}".rstrip("/"), verb))

    def noted_get(kind: kinds.Kind, name: str, **where: str) -> Any:
        note("get", kind)
        return get(kind, name, **where)

    def noted_create(kind: kinds.Kind, body: Any, **where: str) -> Any:
        note("create", kind, where.get("subresource", ""))
        return create(kind, body, **where)

    reported.api.get, reported.api.create = noted_get, noted_create  # type: ignore[method-assign]
    reported.overuse(0)
    reported.reporter.attempt()
    return asked


OWN = "kubelet-plugin/rbac.yaml"
ADDED = "kubelet-plugin-evict/rbac.yaml"


def test_it_grants_what_eviction_takes_and_no_more() -> None:
    assert used(evict=False) <= granted(OWN)
    assert used(evict=True) - granted(OWN) == granted(ADDED) == {("", "pods/eviction", "create")}


def test_it_grants_that_to_the_plugin() -> None:
    (_, own), (role, added) = documents(OWN), documents(ADDED)
    assert added["subjects"] == own["subjects"]
    assert added["roleRef"]["name"] == role["metadata"]["name"]
    (account,) = added["subjects"]
    (daemon_set,) = documents("kubelet-plugin/daemonset.yaml")
    assert daemon_set["metadata"]["namespace"] == account["namespace"]
    assert daemon_set["spec"]["template"]["spec"]["serviceAccountName"] == account["name"]


def test_it_turns_eviction_on_which_is_off_without_it() -> None:
    (component,) = documents("kubelet-plugin-evict/kustomization.yaml")
    assert (component["kind"], component["resources"]) == ("Component", ["rbac.yaml"])
    (patch,) = component["patches"]
    (daemon_set,) = documents("kubelet-plugin/daemonset.yaml")
    assert patch["target"] == {"kind": "DaemonSet", "name": daemon_set["metadata"]["name"]}
    (change,) = yaml.safe_load(patch["patch"])
    assert (change["op"], change["path"]) == ("add", "/spec/template/spec/containers/0/args/-")
    _, *shipped = daemon_set["spec"]["template"]["spec"]["containers"][0]["args"]
    for arguments, expected in ((shipped, "report"), ([*shipped, change["value"]], "evict")):
        context = click.Context(command)
        command.parse_args(context, [*arguments, "--node-name", "n"])
        assert context.params["on_overuse"] == expected


def test_an_operator_finds_it_where_components_are_listed() -> None:
    docs = ROOT.parents[1] / "docs"
    for page in ("install.md", "isolation.md"):
        assert "kubelet-plugin-evict" in (docs / page).read_text(), page
