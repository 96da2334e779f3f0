"""What a claim's container finds in its environment, by CDI and the hook, read as programs read it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from koordra.compat.dialects import DIALECTS
from koordra.kubelet_plugin.discovery.reading import discover
from koordra.kubelet_plugin.prepare.device_guard import guard_of
from koordra.kubelet_plugin.publish.node_inventory import inventory_of
from koordra.kubelet_plugin.publish.offering import Offering
from koordra.node_state import prepared_claim
from koordra.nri.hook.adjust import NodeFacts, decide
from koordra.nri.hook.oci import Container, DeviceRule
from koordra.topology.location import DeviceNode
from koordra.topology.presets.tree import MachineWriter
from tests.fakes import vllm_devices
from tests.fakes.node_claims import ANY_ISOLATION, NODE, claim, gpu, result, uid
from tests.machines import catalogue
from tests.unit.kubelet_plugin.conftest import PluginNode, prepare

GPU_0, GPU_1 = "gpu-0000-0f-00-0", "gpu-0000-2d-00-0"
INSTANCE = "gpu-0000-1a-00-0-mig-3g20gb-0"
Env = tuple[tuple[str, str], ...]
IMAGE: Env = (("PATH", "/usr/bin:/bin"), ("NVIDIA_VISIBLE_DEVICES", "all"))


def environment(node: PluginNode, *results: Any, dialect: str = "", own: Env = IMAGE) -> dict[str, str]:
    """Of a container with all devices of a claim: `own` is the image's and the pod's, then CDI, then the
    hook."""
    obj = claim(1, *results)
    obj["metadata"]["labels"] = {"koordra.io/dialect": dialect} if dialect else {}
    prepare(node, obj)
    spec = node.spec(uid(1))
    edits = [*(device["containerEdits"] for device in spec["devices"]), spec["containerEdits"]]
    env = [tuple(entry.split("=", 1)) for edit in edits for entry in edit.get("env", ())]
    nodes = tuple(
        DeviceNode(each["path"], each["major"], each["minor"], each["type"])
        for edit in edits
        for each in edit.get("deviceNodes", ())
    )
    known = prepared_claim.decode(node.paths.prepared_file(uid(1)).read_bytes())
    container = Container(
        namespace="team-a",
        pod="serving",
        name="main",
        env=(*own, *((name, value) for name, value in env)),
        devices=nodes,
        rules=tuple(DeviceRule(True, each.type, each.major, each.minor) for each in nodes),
    )
    guarded = guard_of(node.inventory.machine, node_name=NODE)
    adjustment, _ = decide(container, NodeFacts(claims={known.marker: known}, guarded=guarded))
    return {**dict(container.env), **dict(adjustment.env)}


def numbers(env: dict[str, str], *, cards: int) -> list[int]:
    """What vLLM's way of reading makes of it."""
    command = [sys.executable, vllm_devices.__file__, str(cards)]
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return [int(each) for each in done.stdout.strip().split(",")]


@pytest.fixture
def mig_node(tmp_path: Path) -> PluginNode:
    folder = tmp_path / "machine"
    MachineWriter(folder).write(catalogue.load("mig-a100").machine(serial=NODE))
    offering = Offering(mig=True, isolation=ANY_ISOLATION)
    return PluginNode(tmp_path / "mig", inventory_of(discover(folder), offering=offering))


def test_vllm_finds_the_cards_of_a_claim(node: PluginNode) -> None:
    assert numbers(environment(node, gpu("gpu", GPU_0, "20Gi", cores="25")), cards=1) == [0]


def test_vllm_finds_two_cards(node: PluginNode) -> None:
    assert numbers(environment(node, gpu("gpu", GPU_1), gpu("gpu", GPU_0)), cards=2) == [0, 1]


def test_vllm_finds_a_mig_instance(mig_node: PluginNode) -> None:
    assert numbers(environment(mig_node, result("gpu", INSTANCE, share=None)), cards=1) == [0]


@pytest.mark.parametrize("dialect", [dialect.name for dialect in DIALECTS])
def test_vllm_finds_the_share_of_each_dialect(node: PluginNode, dialect: str) -> None:
    env = environment(node, gpu("gpu", GPU_0, "20Gi", cores="25"), dialect=dialect)
    assert numbers(env, cards=1) == [0]


@pytest.mark.parametrize("dialect", ["", *(dialect.name for dialect in DIALECTS)])
def test_nothing_says_which_devices_are_visible_but_void(node: PluginNode, dialect: str) -> None:
    env = environment(node, gpu("gpu", GPU_0, "20Gi", cores="25"), dialect=dialect)
    visible = {name: value for name, value in env.items() if "VISIBLE_DEVICES" in name}
    assert visible == {"NVIDIA_VISIBLE_DEVICES": "void"}


def test_the_pods_own_numbers_stay(node: PluginNode) -> None:
    env = environment(node, gpu("gpu", GPU_1), gpu("gpu", GPU_0), own=(("CUDA_VISIBLE_DEVICES", "1,0"),))
    assert env["CUDA_VISIBLE_DEVICES"] == "1,0"
    assert numbers(env, cards=2) == [1, 0]
