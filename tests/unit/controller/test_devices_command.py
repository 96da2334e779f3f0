"""`koordra devices`: the entry of each device, and the table that a person gets."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from koordra.api import names
from koordra.api.kinds import NODES, RESOURCE_CLAIMS, RESOURCE_SLICES
from koordra.cli.cluster.devices import HEADER, _cells, device_rows
from koordra.cli.main import cli
from koordra.cli.output import render_table
from koordra.kube.kubeconfig import new_client
from koordra.kubelet_plugin.publish.offering import WITHOUT_POLICY
from koordra.kubelet_plugin.publish.resource_slices import build_slices
from koordra_devcluster.control_plane import ControlPlane
from tests.fakes.joint_cluster import claim, node
from tests.fakes.kube_api import FakeKubeApi
from tests.machines.catalogue import machine


def slices(name: str, of: str, mode: Any = names.MODE_JOINT) -> list[dict[str, Any]]:
    return build_slices(machine(of), node_name=name, node_uid=None, mode=mode, generation=1)


def uncut(name: str) -> list[dict[str, Any]]:
    """A card in MIG mode that is not cut yet: every place of every profile is offered."""
    made = machine("mig-a100")
    card = replace(made.gpus[0], mig_instances=())
    return build_slices(
        replace(made, gpus=(card,), nics=()),
        node_name=name,
        node_uid=None,
        mode=names.MODE_JOINT,
        generation=1,
        offering=replace(WITHOUT_POLICY, mig=True, mig_on_demand=True),
    )


def holds(name: str, pool: str, device: str, consumed: dict[str, str] | None = None) -> dict[str, Any]:
    result: dict[str, Any] = {"request": "r", "driver": names.DRIVER, "pool": pool, "device": device}
    if consumed is not None:
        result |= {"consumedCapacity": consumed, "shareID": f"00000000-0000-0000-0000-00000000000{name[-1]}"}
    held = {"kind": "ResourceClaim", **claim(name)}
    held["status"] = {"allocation": {"devices": {"results": [result]}}}
    return held


def first(manifests: list[dict[str, Any]], type_: str, at: int = 0) -> str:
    return [
        str(device["name"])
        for one in manifests
        for device in one["spec"].get("devices", ())
        if (device.get("attributes") or {}).get(names.ATTR_TYPE, {}).get("string") == type_
    ][at]


def cluster() -> list[dict[str, Any]]:
    """A node with shares and a native one, one with MIG placements, one whose pool is not whole."""
    shared, cut = slices("a", "t4x4-1nic"), uncut("cut")
    native = slices("b", "t4x4-1nic", names.MODE_NATIVE)
    broken = slices("c", "t4x4-1nic")
    broken[0]["spec"]["pool"]["resourceSliceCount"] += 1
    gpu, taken = first(shared, names.TYPE_GPU), first(shared, names.TYPE_GPU, 1)
    sick = next(
        device
        for device in shared[0]["spec"]["devices"]
        if device["name"] == first(shared, names.TYPE_GPU, 2)
    )
    sick["taints"] = [
        *sick.get("taints", ()),
        {"key": names.UNHEALTHY_TAINT, "value": "xid-79", "effect": "NoSchedule"},
    ]
    return [
        *({"kind": "Node", **node(name)} for name in ("cut", "c", "b", "a")),
        *shared,
        *native,
        *broken,
        *cut,
        holds("c1", "a", gpu, {"memory": "4Gi", "cores": "25", "slots": "1"}),
        holds("c2", "a", gpu, {"memory": "4Gi", "cores": "25", "slots": "1"}),
        holds("c3", "a", taken),
        holds("c4", "cut", first(cut, names.TYPE_MIG, 2)),
    ]


def test_the_entry_of_each_device(golden: Callable[[str, str], None]) -> None:
    rows = device_rows(cluster())
    golden("devices/rows.json", json.dumps(rows, indent=1) + "\n")
    of_node = {name: [row["state"] for row in rows if row["node"] == name] for name in ("a", "b", "c", "cut")}
    assert of_node["a"][:3] == ["Shared", "Taken", "Tainted"]
    assert set(of_node["b"]) == {"Free"}
    assert of_node["c"] == ["Unusable"]
    # Instances on the same memory slices as the one in use cannot be had, others can.
    assert {"Taken", "Blocked", "Free"} <= set(of_node["cut"])


@pytest.fixture
def kubeconfig(tmp_path: Path) -> Any:
    stop = threading.Event()
    plane = ControlPlane(tmp_path)
    plane.start(stop)
    client = new_client(str(plane.kubeconfig))
    made = client.create(NODES, node("a"))
    client.update(NODES, {**made, "status": node("a")["status"]}, subresource="status")
    for one in slices("a", "t4x4-1nic"):
        client.create(RESOURCE_SLICES, one)
    client.create(RESOURCE_CLAIMS, claim("waits"))
    yield str(plane.kubeconfig)
    stop.set()
    plane.close()


def test_the_picture(kubeconfig: str, golden: Callable[[str, str], None]) -> None:
    shown = CliRunner().invoke(cli, ["devices", "--kubeconfig", kubeconfig, "-o", "wide"])
    assert shown.exit_code == 0, shown.output
    golden("devices/wide.txt", shown.output)
    only = CliRunner().invoke(
        cli, ["devices", "--kubeconfig", kubeconfig, "--type", "nic", "--free", "--node", "a", "-o", "json"]
    )
    assert [row["type"] for row in json.loads(only.output)["devices"]] == ["nic"]
    none = CliRunner().invoke(cli, ["devices", "--kubeconfig", kubeconfig, "--node", "x"])
    assert none.output == "no device of koordra's\n"


def test_only_what_can_still_be_had_is_shown_where_only_that_is_asked_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    module, api = import_module("koordra.cli.cluster.devices"), FakeKubeApi()
    api.create(NODES, node("a"))
    published = slices("a", "t4x4-1nic")
    for one in published:
        api.create(RESOURCE_SLICES, one)
    api.create(RESOURCE_CLAIMS, holds("c", "a", first(published, names.TYPE_GPU)))
    monkeypatch.setattr(module, "connect", lambda _access: api)

    def states(*more: str) -> set[str]:
        shown = CliRunner().invoke(cli, ["devices", "-o", "json", *more], catch_exceptions=False)
        return {row["state"] for row in json.loads(shown.stdout)["devices"]}

    assert states() == {"Free", "Taken"}
    assert states("--free") == {"Free"}


def test_a_device_is_one_line_of_a_terminal() -> None:
    published = slices("node-0", "hgx-h100")
    share, part = {"memory": "4Gi", "cores": "25", "slots": "1"}, {"share": "25", "bandwidth": "50G"}
    held = [
        holds("c1", "node-0", first(published, names.TYPE_GPU), share),
        holds("c2", "node-0", first(published, names.TYPE_NIC), part),
    ]
    rows = list(device_rows([{"kind": "Node", **node("node-0")}, *published, *held]))
    table = render_table(HEADER, [_cells(row, wide=False) for row in rows], width=80)
    lines = table.splitlines()
    assert len(lines) == 1 + len(rows)
    assert max(map(len, lines)) <= 80
    assert "cores 75, memory 75.6Gi" in table
    assert "share 75, 150 Gb/s" in table
