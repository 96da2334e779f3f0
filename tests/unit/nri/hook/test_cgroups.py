"""cpusets near the GPUs, and limits of the RDMA controller."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from koordra.errors import InvalidInput
from koordra.node_state.prepared_claim import NUMA_AFFINITY
from koordra.nri.hook.adjust import NodeShape
from koordra.nri.hook.cgroups import RdmaLimit, cpuset, has_controller, near, numbers, unified
from koordra.nri.hook.grants import Grant, Grants
from koordra.nri.hook.oci import adjustment_message
from tests.unit.nri.node_state import (
    GPU0,
    JOINT_CLAIM,
    MARKER,
    VERBS0,
    adjusted,
    claim,
    container,
    facts,
    gpu_json,
    markers,
)

ASKING = claim(gpu_json(**{NUMA_AFFINITY: "true"}))
GRANTS = Grants(held=(Grant(ASKING, ASKING.devices[0]),))
ONLINE = frozenset(range(112))


@given(st.frozensets(st.integers(0, 300)))
def test_a_cpuset_says_its_numbers(values: frozenset[int]) -> None:
    assert numbers(cpuset(values)) == values


def test_the_shortest_form() -> None:
    assert cpuset([5, 1, 2, 3, 7, 8]) == "1-3,5,7-8"
    with pytest.raises(ValueError, match="x"):
        numbers("1-x")


@pytest.mark.parametrize(
    ("chosen", "online", "cpus"),
    [
        ("", ONLINE, "0-55"),
        ("50-60", ONLINE, "50-55"),
        ("60-70", ONLINE, ""),
        ("", frozenset({0, 1}), "0-1"),
        ("", frozenset(), ""),
    ],
)
def test_near_is_cut_to_what_there_is_and_what_the_kubelet_chose(
    chosen: str, online: frozenset[int], cpus: str
) -> None:
    assert near(GRANTS, chosen=chosen, online=online, nodes=frozenset({0, 1})) == (cpus, "0" if cpus else "")


def test_who_does_not_ask_keeps_all_processors() -> None:
    shape = NodeShape(online=ONLINE, memory_nodes=frozenset({0}))
    held = container(GPU0, VERBS0, env=markers(0, 1))
    assert adjusted(held, facts(claims={MARKER: JOINT_CLAIM}, shape=shape)).cpus == ""
    asking = container(GPU0, env=markers(0))
    message = adjustment_message(adjusted(asking, facts(claims={MARKER: ASKING}, shape=shape)))
    assert message.linux.resources.cpu.cpus == "0-55"
    assert message.linux.resources.cpu.mems == "0"


def test_rdma_limits_name_every_device() -> None:
    held = Grants(held=tuple(Grant(JOINT_CLAIM, device) for device in JOINT_CLAIM.devices))
    ((name, text),) = unified(held, devices=["mlx5_1", "mlx5_0"], limit=RdmaLimit.parse("64:16384"))
    assert name == "rdma.max"
    assert text == "mlx5_0 hca_handle=64 hca_object=16384\nmlx5_1 hca_handle=0 hca_object=0"
    assert unified(held, devices=["mlx5_0"], limit=None) == ()
    assert unified(GRANTS, devices=["mlx5_0"], limit=RdmaLimit(1, 1)) == ()


@pytest.mark.parametrize("text", ["", "64", "0:1", "a:b", "1:2:3"])
def test_a_limit_that_is_none(text: str) -> None:
    with pytest.raises(InvalidInput, match="HANDLES:OBJECTS"):
        RdmaLimit.parse(text)


def test_the_controller_is_looked_for(tmp_path: Path) -> None:
    assert not has_controller(tmp_path)
    (tmp_path / "cgroup.controllers").write_text("cpuset cpu io memory rdma pids\n")
    assert has_controller(tmp_path)
