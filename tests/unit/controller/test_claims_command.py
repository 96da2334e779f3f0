"""`koordra claims`: the entry of each claim, and `koordra explain` without files."""

from __future__ import annotations

import json
import threading
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from koordra.api import names, objects
from koordra.api.kinds import (
    DEVICE_CLASSES,
    EVENTS,
    NAMESPACES,
    NODES,
    PODS,
    RESOURCE_CLAIMS,
    RESOURCE_SLICES,
)
from koordra.cli.cluster.claims import claim_rows
from koordra.cli.cluster.cluster_objects import Source, followed
from koordra.cli.main import cli
from koordra.cli.output import show_rows
from koordra.kube.kubeconfig import new_client
from koordra_devcluster.control_plane import ControlPlane
from tests.fakes.joint_cluster import claim, device_class, gpu_slice, node, pod
from tests.fakes.kube_api import FakeKubeApi


def test_what_is_told_of_each_claim() -> None:
    waits, held = claim("waits", uid="1"), claim("held", uid="2")
    result = {"request": "gpu", "driver": names.DRIVER, "pool": "n0", "device": "gpu-0"}
    held["status"] = {"allocation": {"devices": {"results": [result]}}, "reservedFor": [{"uid": "p"}]}
    foreign = claim("tpu", device_class="tpu")
    said: dict[str, Any] = {"source": {"component": "koordra-controller"}, "involvedObject": {"uid": "1"}}
    events = [
        {**said, "reason": "Allocated", "message": "once", "lastTimestamp": "2026-11-21T00:00:00Z"},
        {**said, "reason": "InsufficientCapacity", "message": "now", "lastTimestamp": "2026-11-21T01:00:00Z"},
    ]
    classes = [device_class(names.CLASS_GPU, "gpu"), {"metadata": {"name": "tpu"}, "spec": {}}]
    rows = claim_rows([waits, held, foreign], [pod("p", ["held"])], classes, events)
    assert [(row["name"], row["state"], row["pods"], row["reason"]) for row in rows] == [
        ("held", "InUse", ["p"], None),
        ("waits", "Waiting", [], "InsufficientCapacity: now"),
    ]


@pytest.fixture
def kubeconfig(tmp_path: Path) -> Any:
    stop = threading.Event()
    plane = ControlPlane(tmp_path)
    plane.start(stop)
    client = new_client(str(plane.kubeconfig))
    client.create(DEVICE_CLASSES, device_class(names.CLASS_GPU, "gpu"))
    made = client.create(NODES, node("n0"))
    client.update(NODES, {**made, "status": node("n0")["status"]}, subresource="status")
    client.create(RESOURCE_SLICES, gpu_slice("n0", 1))
    client.create(RESOURCE_CLAIMS, claim("large", memory="120Gi"))
    client.create(PODS, pod("p", ["large"]))
    assert client.list(EVENTS)[0] is not None
    yield str(plane.kubeconfig)
    stop.set()
    plane.close()


def test_the_cluster_is_asked_where_no_file_is_given(kubeconfig: str) -> None:
    listed = CliRunner().invoke(cli, ["claims", "--kubeconfig", kubeconfig, "-o", "json"])
    assert [entry["name"] for entry in json.loads(listed.stdout)["claims"]] == ["large"]
    table = CliRunner().invoke(cli, ["claims", "--kubeconfig", kubeconfig, "-o", "wide"])
    assert table.output.split()[:8] == [
        "NAMESPACE",
        "NAME",
        "STATE",
        "NODE",
        "DEVICES",
        "PODS",
        "AGE",
        "REASON",
    ]
    explained = CliRunner().invoke(cli, ["explain", "large", "--kubeconfig", kubeconfig, "-o", "json"])
    (entry,) = json.loads(explained.stdout)["claims"]
    assert entry["status"] == "DoesNotFit"
    assert "none of 1 is suitable" in entry["reasons"][0]["detail"]


def test_explain_adds_what_the_controller_said_last(kubeconfig: str) -> None:
    """The controller knows of refusals and reservations that the objects do not show."""
    client = new_client(kubeconfig)
    about = client.get(RESOURCE_CLAIMS, "large", namespace="default")
    event = {
        "metadata": {"name": "large.1", "namespace": "default"},
        "involvedObject": {"kind": "ResourceClaim", "name": "large", "uid": objects.uid(about)},
        "source": {"component": "koordra-controller"},
        "reason": "NodeUnsuitable",
        "message": "the node is kept free",
        "lastTimestamp": "2026-11-21T01:00:00Z",
    }
    client.create(EVENTS, event)
    text = CliRunner().invoke(cli, ["explain", "large", "--kubeconfig", kubeconfig]).output
    assert text.splitlines()[-1] == "  the controller said last: NodeUnsuitable: the node is kept free"


def names_of(*words: str) -> list[str]:
    shown = CliRunner().invoke(cli, [*words, "-o", "json"], catch_exceptions=False)
    return [f"{entry['namespace']}/{entry['name']}" for entry in json.loads(shown.stdout)["claims"]]


def test_only_those_that_wait_are_shown_where_only_they_are_asked_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    api, held = FakeKubeApi(), claim("held")
    result = {"request": "gpu", "driver": names.DRIVER, "pool": "n0", "device": "gpu-0"}
    held["status"] = {"allocation": {"devices": {"results": [result]}}}
    api.create(DEVICE_CLASSES, device_class(names.CLASS_GPU, "gpu"))
    for one in (held, claim("waits")):
        api.create(RESOURCE_CLAIMS, one)
    module = import_module("koordra.cli.cluster.claims")
    monkeypatch.setattr(module, "connect", lambda _access: api)
    monkeypatch.setattr(module, "namespace_of", lambda _access, _scope: "default")
    assert names_of("claims") == ["default/held", "default/waits"]
    assert names_of("claims", "--waiting") == ["default/waits"]


def test_namespaces_labels_and_contexts_are_kubectls(kubeconfig: str, tmp_path: Path) -> None:
    client = new_client(kubeconfig)
    client.create(NAMESPACES, {"metadata": {"name": "team"}})
    theirs = claim("theirs")
    theirs["metadata"] |= {"namespace": "team", "labels": {"tier": "batch"}}
    client.create(RESOURCE_CLAIMS, theirs, namespace="team")
    where = ["claims", "--kubeconfig", kubeconfig]
    assert names_of(*where) == ["default/large"]
    assert names_of(*where, "-n", "team") == ["team/theirs"]
    assert names_of(*where, "-A") == ["default/large", "team/theirs"]
    assert names_of(*where, "-A", "-l", "tier=batch") == ["team/theirs"]
    assert names_of(*where, "-A", "-l", "tier!=batch") == ["default/large"]

    config = json.loads(Path(kubeconfig).read_text())
    (current,) = config["contexts"]
    config["contexts"].append({"name": "team", "context": {**current["context"], "namespace": "team"}})
    path = tmp_path / "contexts"
    path.write_text(json.dumps(config))
    assert names_of("claims", "--kubeconfig", str(path), "--context", "team") == ["team/theirs"]
    assert names_of("claims", "--kubeconfig", str(path)) == ["default/large"]
    nobody = CliRunner().invoke(cli, ["claims", "--kubeconfig", str(path), "--context", "nobody"])
    assert "nobody" in str(nobody.exception)
    both = CliRunner().invoke(cli, [*where, "-A", "-n", "team"])
    assert "exclude each other" in str(both.exception)
    empty = CliRunner().invoke(cli, [*where, "-n", "kube-system"])
    assert empty.output == "no claim concerns koordra in namespace kube-system; -A shows those of all\n"


def test_watched_rows_follow_those_that_were_shown(
    kubeconfig: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each moment's rows that are new or other than before."""
    client = new_client(kubeconfig)
    client.negotiate()
    sources = (Source(RESOURCE_CLAIMS, "default"), Source(EVENTS, "default", optional=True))
    moments = followed(client, sources)
    assert [objects.name(one) for one in next(moments)[RESOURCE_CLAIMS]] == ["large"]
    assert len(next(moments)[RESOURCE_CLAIMS]) == 1
    client.create(RESOURCE_CLAIMS, claim("new"))
    seen = next(found for found in moments if len(found[RESOURCE_CLAIMS]) == 2)
    moments.close()
    assert [objects.name(one) for one in seen[RESOURCE_CLAIMS]] == ["large", "new"]
    for output, expected in (
        ("table", "NAME  STATE\na     1\nb     1\nb  2\n"),
        ("yaml", "rows:\n- name: a\n  s: 1\n- name: b\n  s: 1\n---\nrows:\n- name: b\n  s: 2\n"),
    ):
        one, two, three = ({"name": "a", "s": 1}, {"name": "b", "s": 1}, {"name": "b", "s": 2})
        show_rows(
            [[one, two], [one, two], [one, three]],
            name="rows",
            output=output,
            header=("NAME", "STATE"),
            cells=lambda row: (row["name"], str(row["s"])),
            empty="",
        )
        assert capsys.readouterr().out == expected
