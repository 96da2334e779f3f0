"""Variables of other stacks' plugins: the values are those of the allocation."""

from __future__ import annotations

import json
from typing import Any

import pytest

from koordra.api.objects import Object
from tests.fakes.node_claims import GPU_0, GPU_1, claim, gpu, uid
from tests.unit.kubelet_plugin.conftest import PluginNode, prepare


def told(node: PluginNode, *results: Any, dialect: str, unit: str = "") -> list[dict[str, str]]:
    """What each device adds to its container, of these stacks' names."""
    obj: Object = claim(1, *results)
    obj["metadata"]["labels"] = {"koordra.io/dialect": dialect}
    if unit:
        obj["metadata"]["annotations"] = {"koordra.io/memory-unit": unit}
    prepare(node, obj)
    written = json.loads(node.paths.cdi_file(uid(1)).read_text())
    found = []
    for device in written["devices"]:
        env = dict(entry.split("=", 1) for entry in device["containerEdits"]["env"])
        words = ("CUDA_DEVICE_", "ALIYUN_", "VOLCANO_", "ALNAIR_")
        found.append({name: value for name, value in env.items() if name.startswith(words)})
    return found


@pytest.mark.parametrize("dialect", ["hami", "volcano-vgpu"])
def test_vgpus_are_told_card_by_card(node: PluginNode, dialect: str) -> None:
    limits = {
        "CUDA_DEVICE_MEMORY_LIMIT_0": "20480m",
        "CUDA_DEVICE_MEMORY_LIMIT_1": "10240m",
    }
    cards = (gpu("main", GPU_0, "20Gi", cores="25"), gpu("main", GPU_1, "10Gi", cores="25"))
    assert told(node, *cards, dialect=dialect) == [limits, limits]


def test_what_is_not_limited_is_not_told(node: PluginNode) -> None:
    assert told(node, gpu("main", GPU_0), dialect="hami") == [{}]
    assert told(node, gpu("main", GPU_0), dialect="koordinator") == [{}]


def test_koordinator_is_told_bytes(node: PluginNode) -> None:
    assert told(node, gpu("gpu", GPU_0, "20Gi", cores="50"), dialect="koordinator") == [
        {"CUDA_DEVICE_MEMORY_LIMIT": str(20 << 30)}
    ]


def test_aliyun_is_told_card_pod_and_container(node: PluginNode) -> None:
    one, other = told(node, gpu("a", GPU_0, "4Gi"), gpu("b", GPU_0, "6Gi"), dialect="aliyun")
    assert one == {
        "ALIYUN_COM_GPU_MEM_IDX": "0",
        "ALIYUN_COM_GPU_MEM_POD": "10",
        "ALIYUN_COM_GPU_MEM_CONTAINER": "4",
        "ALIYUN_COM_GPU_MEM_DEV": "79",
    }
    assert other["ALIYUN_COM_GPU_MEM_CONTAINER"] == "6"


def test_aliyun_in_mib(node: PluginNode) -> None:
    (found,) = told(node, gpu("a", GPU_0, "4Gi"), dialect="aliyun", unit=str(1 << 20))
    assert found["ALIYUN_COM_GPU_MEM_POD"] == "4096"


def test_volcano_is_told_mib(node: PluginNode) -> None:
    (found,) = told(node, gpu("a", GPU_0, "4Gi"), dialect="volcano-gpu")
    assert found["VOLCANO_GPU_ALLOCATED"] == "4096"
    assert int(found["VOLCANO_GPU_MEMORY_TOTAL"]) > 80_000


@pytest.mark.parametrize("dialect", ["hami", "volcano-vgpu", "koordinator", "alnair"])
def test_nobody_is_told_a_limit_of_compute_that_nothing_enforces(node: PluginNode, dialect: str) -> None:
    (found,) = told(node, gpu("a", GPU_0, "4Gi", cores="30"), dialect=dialect)
    assert not [name for name in found if "SM_LIMIT" in name or "PERCENTILE" in name]


@pytest.mark.parametrize("dialect", ["", "tke", "plain", "nobody"])
def test_others_are_told_nothing(node: PluginNode, dialect: str) -> None:
    assert told(node, gpu("a", GPU_0, "4Gi"), dialect=dialect) == [{}]
