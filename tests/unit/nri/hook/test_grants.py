"""What a container really holds: markers, what they open, and what its environment must say."""

from __future__ import annotations

import pytest

from koordra.nri.hook.grants import MOST_CLAIMS, claim_markers
from tests.unit.nri.node_state import (
    DRM0,
    GPU0,
    GPU1,
    GPU_CLAIM,
    JOINT_CLAIM,
    MARKER,
    NONCE,
    NVIDIACTL,
    OTHER_MARKER,
    OTHER_NONCE,
    RDMA_CM,
    UMAD0,
    VERBS0,
    adjusted,
    claim,
    container,
    facts,
    gpu_json,
    markers,
    nic_json,
    privileged,
    refused,
)

# ----------------------------------------------------------------------------------------------------- held


def test_a_held_gpu_stays_its_markers_are_blinded_and_its_variables_pinned() -> None:
    env = (*markers(0), ("KOORDRA_MEMORY_LIMIT_0", "10Gi"))
    answer = adjusted(container(GPU0, NVIDIACTL, env=env), facts(claims={MARKER: GPU_CLAIM}))
    assert dict(answer.env) == {
        MARKER: "granted",
        f"{MARKER}_0": "granted",
        "KOORDRA_MEMORY_LIMIT_0": "10Gi",
        "NVIDIA_VISIBLE_DEVICES": "void",
    }
    assert (answer.deny, answer.rlimits) == ((), ())
    assert NONCE not in str(answer)


def test_a_marker_in_a_prepared_claims_environment_never_reaches_the_container() -> None:
    """Its nonce is what makes a forged marker worthless."""
    known = claim(gpu_json(**{MARKER: NONCE, "KOORDRA_CLAIM_OTHER": NONCE}))
    answer = adjusted(container(GPU0, NVIDIACTL, env=markers(0)), facts(claims={MARKER: known}))
    assert dict(answer.env)[MARKER] == "granted"
    assert "KOORDRA_CLAIM_OTHER" not in dict(answer.env)
    assert NONCE not in str(answer)


def test_a_neighbours_gpu_is_refused_to_the_holder_of_another() -> None:
    known = facts(claims={MARKER: GPU_CLAIM})
    assert "/dev/nvidia1" in str(refused(container(GPU0, GPU1, env=markers(0)), known))
    assert "renderD128" in str(refused(container(GPU0, DRM0, env=markers(0)), known))
    assert "rdma_cm" in str(refused(container(GPU0, RDMA_CM, env=markers(0)), known))


def test_a_privileged_holder_keeps_its_own() -> None:
    answer = adjusted(privileged(GPU0, GPU1, env=markers(0)), facts(claims={MARKER: GPU_CLAIM}))
    denied = {(rule.type, rule.major, rule.minor) for rule in answer.deny}
    assert denied == {node.number for node in (GPU1, DRM0, VERBS0, UMAD0, RDMA_CM)}


def test_only_the_devices_whose_markers_are_there_are_held() -> None:
    known = facts(claims={MARKER: JOINT_CLAIM})
    assert refused(container(GPU0, VERBS0, env=markers(1)), known).rule == "UngrantedDevice"
    answer = adjusted(container(VERBS0, RDMA_CM, env=markers(1)), known)
    assert dict(answer.env)["NCCL_IB_HCA"] == "=mlx5_0"


def test_memlock_is_lifted_for_rdma_only_and_never_twice() -> None:
    known = facts(claims={MARKER: JOINT_CLAIM})
    assert adjusted(container(VERBS0, env=markers(1)), known).rlimits == ("RLIMIT_MEMLOCK",)
    assert adjusted(container(GPU0, env=markers(0)), known).rlimits == ()
    assert adjusted(container(VERBS0, env=markers(1), rlimits=("RLIMIT_MEMLOCK",)), known).rlimits == ()
    no = facts(claims={MARKER: claim(nic_json())})
    assert adjusted(container(VERBS0, env=markers(0)), no).rlimits == ()


def test_devices_that_contradict_each_other_are_refused() -> None:
    clash = claim(gpu_json(LIMIT="1"), gpu_json(1, LIMIT="2"))
    refusal = refused(container(GPU0, GPU1, env=markers(0, 1)), facts(claims={MARKER: clash}))
    assert refusal.rule == "ConflictingEnv"
    assert "LIMIT both to '1' and to '2'" in str(refusal)


# ------------------------------------------------------------------------------------------------ forgeries


@pytest.mark.parametrize(
    ("env", "rule"),
    [
        (markers(0, nonce="granted"), "ForgedMarker"),
        (markers(0, nonce=""), "ForgedMarker"),
        (markers(0, nonce=OTHER_NONCE), "ForgedMarker"),
        ((*markers(), (f"{MARKER}_0", "granted")), "ForgedMarker"),
        ((*markers(0), (MARKER, "granted")), "ForgedMarker"),
        (markers(1), "ForgedMarker"),
        (markers(99999), "UnknownClaim"),
        (markers(0, marker=OTHER_MARKER), "UnknownClaim"),
        (((f"{MARKER}_0", NONCE),), "UnknownClaim"),
        ((("KOORDRA_CLAIM_", NONCE),), "UnknownClaim"),
        (((f"{MARKER}_X", NONCE), *markers()), "UnknownClaim"),
        (((f"{MARKER}_¹", NONCE), *markers()), "UnknownClaim"),
    ],
)
@pytest.mark.parametrize("exempt", [False, True])
def test_a_marker_that_the_node_did_not_set_is_refused(
    env: tuple[tuple[str, str], ...], rule: str, exempt: bool
) -> None:
    refusal = refused(container(GPU0, env=env), facts(claims={MARKER: GPU_CLAIM}), exempt=exempt)
    assert refusal.rule == rule
    assert NONCE not in str(refusal)


def test_a_marker_of_a_claim_of_another_namespace_is_refused() -> None:
    """Whoever got hold of a nonce cannot use it elsewhere: claims and their pods share a namespace."""
    thief = container(GPU0, env=markers(0), namespace="evil")
    refusal = refused(thief, facts(claims={MARKER: GPU_CLAIM}))
    assert refusal.rule == "ForgedMarker"
    assert "another namespace" in str(refusal)


def test_markers_without_the_device_nodes_that_come_with_them_are_copies() -> None:
    refusal = refused(container(env=markers(0)), facts(claims={MARKER: GPU_CLAIM}))
    assert refusal.rule == "ForgedMarker"
    assert "/dev/nvidia0" in str(refusal)
    assert "did not come with it" in str(refusal)


def test_of_markers_by_the_ten_thousand_some_are_looked_up_and_the_container_is_refused() -> None:
    forged = tuple((f"KOORDRA_CLAIM_{number:X}", "x") for number in range(50_000))
    held = container(GPU0, NVIDIACTL, env=(*markers(0), *forged))
    assert len(claim_markers(held)) == MOST_CLAIMS
    assert refused(held, facts(claims={MARKER: GPU_CLAIM})).rule == "UnknownClaim"
