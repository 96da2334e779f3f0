"""`koordra claims`: the entry of each claim, and `koordra explain` without files."""

from __future__ import annotations

import json
import threading
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from koordra.api import names, objects
from koordra.api.kinds import DEVICE_CLASSES, EVENTS, NODES, PODS, RESOURCE_CLAIMS, RESOURCE_SLICES
from koordra.cli.claims import claim_rows
from koordra.cli.main import cli
from koordra.kube.kubeconfig import new_client
from koordra_devcluster.control_plane import ControlPlane
from tests.fakes.joint_cluster import claim, device_class, gpu_slice, node, pod


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
    assert [entry["name"] for entry in json.loads(listed.output)["claims"]] == ["large"]
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
    (entry,) = json.loads(explained.output)["claims"]
    assert entry["status"] == "DoesNotFit"
    assert "nearest miss" in entry["reasons"][0]["detail"]


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
