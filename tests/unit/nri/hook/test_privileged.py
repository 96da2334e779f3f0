"""Privileged containers that hold devices, on a runtime that cannot deny them the others."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from koordra.node_state.prepared_claim import PreparedClaim
from koordra.nri.hook.adjust import NodeFacts, NodeShape
from koordra.nri.hook.node_devices import NodeDevices
from koordra.nri.hook.privileged import PrivilegedPolicy
from tests.unit.nri.node_state import (
    GPU0,
    GPU1,
    GPU_CLAIM,
    GUARDED,
    MARKER,
    VERBS0,
    adjusted,
    claim,
    facts,
    gpu_json,
    markers,
    nic_json,
    privileged,
    refused,
)

CUDA = "CUDA_VISIBLE_DEVICES"
REFUSING = NodeShape(privileged=PrivilegedPolicy.REFUSE)
BOTH = claim(gpu_json(0), gpu_json(1))
SECOND = claim(gpu_json(1))
INSTANCE = claim({**gpu_json(0), "type": "mig", "uuid": "MIG-7"})


def old(known: PreparedClaim, **more: Any) -> NodeFacts:
    """Of a node with an old runtime, on whose bus card 1 comes before card 0."""
    return facts(**{"claims": {MARKER: known}, "rules_apply": False, "minors": (1, 0), **more})


def test_a_holder_of_some_cards_starts_and_cuda_keeps_to_them() -> None:
    answer = adjusted(privileged(GPU0, env=markers(0)), old(GPU_CLAIM))
    env = dict(answer.env)
    assert (env["CUDA_DEVICE_ORDER"], env[CUDA]) == ("PCI_BUS_ID", "1")
    assert (answer.confined, answer.deny) == (False, ())
    assert dict(adjusted(privileged(GPU1, env=markers(0)), old(SECOND)).env)[CUDA] == "0"


def test_numbers_that_the_pod_wrote_would_mean_other_pods_cards() -> None:
    held = privileged(GPU0, env=((CUDA, "0"), *markers(0)))
    assert dict(adjusted(held, old(GPU_CLAIM)).env)[CUDA] == "1"


@pytest.mark.parametrize(("known", "minors"), [(INSTANCE, (1, 0)), (GPU_CLAIM, (1,)), (GPU_CLAIM, ())])
def test_what_no_number_names_is_named_by_uuid(known: PreparedClaim, minors: tuple[int, ...]) -> None:
    env = dict(adjusted(privileged(GPU0, env=markers(0)), old(known, minors=minors)).env)
    assert env[CUDA] == known.devices[0].uuid
    assert "CUDA_DEVICE_ORDER" not in env


def test_a_holder_of_a_nic_alone_is_told_nothing_of_cards() -> None:
    answer = adjusted(privileged(VERBS0, env=markers(0)), old(claim(nic_json())))
    assert CUDA not in dict(answer.env)
    assert not answer.confined


def test_the_operator_may_refuse_a_holder_of_some() -> None:
    refusal = refused(privileged(GPU0, env=markers(0)), old(GPU_CLAIM, shape=REFUSING))
    assert refusal.rule == "CannotDeny"
    assert "claim every GPU of the node" in str(refusal)


def test_a_holder_of_the_whole_node_always_starts() -> None:
    held = privileged(GPU0, GPU1, env=markers(0, 1))
    assert adjusted(held, old(BOTH, shape=REFUSING)).deny == ()
    assert CUDA not in dict(adjusted(held, old(BOTH)).env)
    counts = privileged(GPU0, GPU1, env=((CUDA, "1"), *markers(0, 1)))
    assert CUDA not in dict(adjusted(counts, old(BOTH)).env), "what the pod wrote stays as written"


def test_an_instance_of_the_only_card_is_not_the_whole_node() -> None:
    one = GUARDED.devices[0]
    guarded = type(GUARDED)(node=GUARDED.node, devices=(one,), control=GUARDED.control)
    held = privileged(GPU0, env=markers(0))
    assert refused(held, old(INSTANCE, guarded=guarded, shape=REFUSING)).rule == "CannotDeny"
    adjusted(held, old(GPU_CLAIM, guarded=guarded, shape=REFUSING))


def test_where_the_runtime_denies_a_holder_is_confined() -> None:
    answer = adjusted(privileged(GPU0, env=markers(0)), facts(claims={MARKER: GPU_CLAIM}, minors=(1, 0)))
    assert (answer.confined, CUDA in dict(answer.env)) == (True, False)
    assert answer.deny


@pytest.mark.parametrize("policy", list(PrivilegedPolicy))
def test_a_tenant_without_a_claim_is_refused(policy: PrivilegedPolicy) -> None:
    shape = NodeShape(privileged=policy)
    assert refused(privileged(), facts(rules_apply=False, shape=shape)).rule == "CannotDeny"


def test_cards_are_numbered_in_the_order_of_the_bus(tmp_path: Path) -> None:
    """The driver's folders are named by the address, with domains of four or eight digits."""
    for address, minor in (
        ("0000:d5:00.0", 2),
        ("0000:0f:00.0", 5),
        ("00010000:01:00.0", 0),
        ("0000:2d:00.0", 7),
    ):
        folder = tmp_path / "proc/driver/nvidia/gpus" / address
        folder.mkdir(parents=True)
        (folder / "information").write_text(
            f"Model: \t H100\nGPU UUID: \t GPU-{minor}\nDevice Minor: \t {minor}\n"
        )
    devices = NodeDevices(tmp_path)
    assert devices.minors() == (5, 7, 2, 0)
    assert devices.minor_of("GPU-7") == 7
    assert NodeDevices(tmp_path / "none").minors() == ()


def test_nothing_of_the_kind_is_set_in_an_exempt_namespace() -> None:
    """There a container keeps what it asks for."""
    answer = adjusted(privileged(GPU0, env=markers(0)), old(GPU_CLAIM), exempt=True)
    assert CUDA not in dict(answer.env)
    assert answer.confined
