"""The hook on a node whose GPUs, or NICs, another stack gives out: what is that stack's is left alone, the
rest is guarded as ever."""

from __future__ import annotations

from dataclasses import replace

import pytest

from koordra.node_state.prepared_claim import decode_guard, encode_guard
from koordra.nri.hook.oci import Adjustment, Mount
from koordra.topology.location import DeviceNode
from tests.unit.nri.node_state import (
    GPU0,
    GUARDED,
    NVIDIACTL,
    VERBS0,
    adjust,
    container,
    facts,
    refused,
    rules_for,
)

WITHOUT_GPUS = replace(
    GUARDED,
    devices=tuple(device for device in GUARDED.devices if device.type != "gpu"),
    control=tuple(node for node in GUARDED.control if node != NVIDIACTL),
    left=("gpu",),
)
WITHOUT_NICS = replace(
    GUARDED,
    devices=tuple(device for device in GUARDED.devices if device.type != "nic"),
    control=(NVIDIACTL,),
    left=("nic",),
)
THEIRS = (("NVIDIA_VISIBLE_DEVICES", "GPU-1"),)
TOOLKIT = Mount("/dev/null", "/var/run/nvidia-container-devices/GPU-1", bind=True)
CARD = Mount("/dev/nvidia0", "/dev/nvidia0", bind=True)
VERBS = Mount("/dev/infiniband/uverbs0", "/dev/infiniband/uverbs0", bind=True)


def test_another_stacks_container_is_left_alone() -> None:
    theirs = container(
        GPU0,
        NVIDIACTL,
        env=THEIRS,
        mounts=(TOOLKIT, CARD),
        annotations={"cdi.k8s.io/plugin": "nvidia.com/gpu=GPU-1"},
    )
    found = adjust(theirs, facts(guarded=WITHOUT_GPUS))
    assert isinstance(found, Adjustment)
    assert "NVIDIA_VISIBLE_DEVICES" not in dict(found.env)
    assert not found.deny
    refused(theirs, facts())


@pytest.mark.parametrize(("nodes", "mounts"), [((VERBS0,), ()), ((), (VERBS,))], ids=["device", "mount"])
def test_nics_are_guarded_where_only_gpus_are_left(
    nodes: tuple[DeviceNode, ...], mounts: tuple[Mount, ...]
) -> None:
    refused(container(*nodes, mounts=mounts), facts(guarded=WITHOUT_GPUS))
    found = adjust(container(*nodes, mounts=mounts), facts(guarded=WITHOUT_NICS))
    assert isinstance(found, Adjustment)


def test_gpus_are_guarded_where_only_nics_are_left() -> None:
    refused(container(GPU0), facts(guarded=WITHOUT_NICS))
    found = adjust(container(env=THEIRS), facts(guarded=WITHOUT_NICS))
    assert isinstance(found, Adjustment)
    assert dict(found.env)["NVIDIA_VISIBLE_DEVICES"] == "void"


def test_a_rule_that_opens_a_nic_is_refused() -> None:
    found = adjust(
        container(rules=(*rules_for(), *rules_for(GPU0, VERBS0)[-2:])), facts(guarded=WITHOUT_GPUS)
    )
    assert not isinstance(found, Adjustment), "a rule opens a NIC"


def test_koordras_state_stays_private() -> None:
    state = Mount("/var/lib/kubelet/plugins/koordra.io", "/x", bind=True)
    refused(container(mounts=(state,)), facts(guarded=WITHOUT_GPUS))


def test_the_guard_says_what_is_left_and_earlier_ones_left_nothing() -> None:
    assert decode_guard(encode_guard(WITHOUT_GPUS)) == WITHOUT_GPUS
    assert b"left" not in encode_guard(GUARDED)
    assert decode_guard(encode_guard(GUARDED)).left == ()
