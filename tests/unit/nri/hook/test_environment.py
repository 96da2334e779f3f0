"""The environment: what the devices bring, what the author wrote about devices, and variables set twice."""

from __future__ import annotations

import pytest

from koordra.node_state.prepared_claim import PreparedClaim
from koordra.nri.hook.environment import LONGEST_LIST, counted_cards
from koordra.nri.hook.oci import Adjustment, adjustment_message
from tests.unit.nri.node_state import (
    GPU0,
    GPU1,
    GPU_CLAIM,
    MARKER,
    OTHER_CLAIM,
    OTHER_MARKER,
    OTHER_NONCE,
    VERBS0,
    VOID,
    adjusted,
    claim,
    container,
    facts,
    gpu_json,
    markers,
    nic_json,
    refused,
)

CUDA, NCCL, UCX = "CUDA_VISIBLE_DEVICES", "NCCL_IB_HCA", "UCX_NET_DEVICES"
ALL = ("NVIDIA_VISIBLE_DEVICES", "all")
TWO_NICS = claim(
    nic_json(NCCL_IB_HCA="=mlx5_0:1", UCX_NET_DEVICES="mlx5_0:1"),
    {**nic_json(NCCL_IB_HCA="=mlx5_10:1", UCX_NET_DEVICES="mlx5_10:1"), "ibDevice": "mlx5_10"},
)


def env_with(value: str, *, of: str = NCCL, known: PreparedClaim = TWO_NICS) -> dict[str, str]:
    """What the hook sets in a container that has set the variable itself."""
    nodes = [node for device in known.devices for node in device.nodes]
    held = container(*nodes, env=((of, value), *markers(*range(len(known.devices)))))
    return dict(adjusted(held, facts(claims={MARKER: known})).env)


def why_not(value: str, *, of: str = NCCL, known: PreparedClaim = TWO_NICS) -> str:
    nodes = [node for device in known.devices for node in device.nodes]
    held = container(*nodes, env=((of, value), *markers(*range(len(known.devices)))))
    refusal = refused(held, facts(claims={MARKER: known}))
    assert refusal.rule == "ForeignDeviceNamed"
    return str(refusal)


# -------------------------------------------------------------------------------------- what devices bring


def test_lists_are_joined_over_requests_and_claims_in_their_order() -> None:
    first = claim(
        gpu_json(0, request="a"),
        nic_json(NCCL_IB_HCA="=mlx5_0", UCX_NET_DEVICES="mlx5_0:1"),
        nic_json(NCCL_IB_HCA="=mlx5_1", UCX_NET_DEVICES="mlx5_1:1"),
    )
    env = (*markers(0, marker=OTHER_MARKER, nonce=OTHER_NONCE), *reversed(markers(0, 1, 2)))
    held = container(GPU0, GPU1, VERBS0, env=env)
    answer = dict(adjusted(held, facts(claims={MARKER: first, OTHER_MARKER: OTHER_CLAIM})).env)
    assert answer[NCCL] == "=mlx5_0,mlx5_1"
    assert answer[UCX] == "mlx5_0:1,mlx5_1:1"
    assert CUDA not in answer


def test_uuids_of_a_claim_that_an_earlier_version_prepared_are_left_to_its_cdi_file() -> None:
    """Two such claims in one container contradict each other no more than before."""
    old = claim(gpu_json(CUDA_VISIBLE_DEVICES="GPU-0"), gpu_json(1, CUDA_VISIBLE_DEVICES="GPU-1"))
    answer = adjusted(container(GPU0, GPU1, env=markers(0, 1)), facts(claims={MARKER: old}))
    assert CUDA not in dict(answer.env)


# ------------------------------------------------------------------------------------ what the author wrote


@pytest.mark.parametrize("value", ["0,1", "1", "0", "", "-1", "none", "GPU-0", "GPU-", " GPU-0 , 3"])
def test_cards_that_the_container_holds_or_counts_stay_as_written(value: str) -> None:
    assert CUDA not in env_with(value, of=CUDA, known=GPU_CLAIM)


@pytest.mark.parametrize("value", ["GPU-1", "GPU-0,GPU-1", "0,GPU-1", "MIG-0", "MIG-GPU-0/1/0", "GPU-00"])
def test_a_uuid_that_the_container_does_not_hold_is_refused(value: str) -> None:
    assert "CUDA_VISIBLE_DEVICES names" in why_not(value, of=CUDA, known=GPU_CLAIM)


@pytest.mark.parametrize(
    "value", ["=mlx5_0", "=mlx5_0:1", "mlx5", "mlx5_1", "^mlx5_7", "^=mlx5_7", "=mlx5_10:1"]
)
def test_nics_that_the_container_holds_stay_as_written(value: str) -> None:
    answer = env_with(value)
    assert NCCL not in answer
    assert answer[UCX] == "mlx5_0:1,mlx5_10:1"


@pytest.mark.parametrize("value", ["=mlx5_7", "mlx5_7", "=mlx5_1", "mlx5_0,mlx5_7:1", "bnxt"])
def test_a_nic_that_the_container_does_not_hold_is_refused(value: str) -> None:
    assert "NCCL_IB_HCA names" in why_not(value)


@pytest.mark.parametrize("value", ["mlx5_0:1", "mlx5_*:1", "all", "eth0,lo", "^mlx5_7:1", "eth0,mlx5_10:1"])
def test_ucx_may_name_held_nics_and_interfaces(value: str) -> None:
    assert UCX not in env_with(value, of=UCX)


@pytest.mark.parametrize("value", ["mlx5_7:1", "eth0,mlx5_1:1", "bnxt_*:1"])
def test_ucx_may_not_name_others(value: str) -> None:
    assert "UCX_NET_DEVICES names" in why_not(value, of=UCX)


@pytest.mark.parametrize(
    ("name", "item", "known"),
    [
        (CUDA, "0,", GPU_CLAIM),
        (CUDA, "GPU-0,", GPU_CLAIM),
        (NCCL, "mlx5_0,", TWO_NICS),
        (UCX, "mlx5_*[0-9]?:1,", TWO_NICS),
        ("NVSHMEM_HCA_LIST", "mlx5_0:1,", TWO_NICS),
    ],
)
def test_a_list_is_compared_up_to_a_length_and_refused_beyond(
    name: str, item: str, known: PreparedClaim
) -> None:
    """Each item costs a comparison with each device, a pattern a compilation, while other containers wait."""
    fits = item * (LONGEST_LIST // len(item))
    assert name not in env_with(fits, of=name, known=known)
    assert f"a list of devices at most {LONGEST_LIST}" in why_not(fits + item, of=name, known=known)


def test_a_container_without_such_devices_says_what_it_likes() -> None:
    env = ((CUDA, "GPU-7"), (NCCL, "=mlx5_7"), (UCX, "mlx5_7:1"))
    assert adjusted(container(env=env), facts()).env == (VOID,)
    held = container(GPU0, env=(*env[1:], *markers(0)))
    assert NCCL not in dict(adjusted(held, facts(claims={MARKER: GPU_CLAIM})).env)


def test_the_last_value_counts() -> None:
    """The image's comes first, the pod's last."""
    held = container(GPU0, env=((CUDA, "GPU-1"), (CUDA, "GPU-0"), *markers(0)))
    assert CUDA not in dict(adjusted(held, facts(claims={MARKER: GPU_CLAIM})).env)


def test_which_lists_count_cards() -> None:
    assert counted_cards({CUDA: "2, 3"}) == ("2", "3")
    assert counted_cards({CUDA: "GPU-0,1"}) == counted_cards({CUDA: ""}) == counted_cards({}) == ()


# ----------------------------------------------------------------------------------------- set more than once


@pytest.mark.parametrize("env", [(VOID, ALL), (ALL, ALL), (ALL, ("NVIDIA_VISIBLE_DEVICES", "GPU-1"))])
def test_what_cannot_be_replaced_is_outvoted(env: tuple[tuple[str, str], ...]) -> None:
    """Of several values the runtimes replace the first, and the last one wins."""
    answer = adjusted(container(env=env), facts())
    assert answer == Adjustment(last_env=("NVIDIA_VISIBLE_DEVICES=void,=",))
    (entry,) = adjustment_message(answer).env
    assert f"{entry.key}={entry.value}" == "NVIDIA_VISIBLE_DEVICES=void,="
    assert entry.key not in dict(env)


def test_a_last_value_that_shows_nothing_needs_none() -> None:
    for last in ("void", "none"):
        answer = adjusted(container(env=(ALL, ("NVIDIA_VISIBLE_DEVICES", last))), facts())
        assert answer == Adjustment(env=(VOID,))


def test_nothing_is_outvoted_in_an_exempt_namespace() -> None:
    assert adjusted(container(env=(VOID, ALL)), facts(), exempt=True) == Adjustment()


def test_a_holders_is_outvoted_too() -> None:
    known = facts(claims={MARKER: GPU_CLAIM})
    answer = adjusted(container(GPU0, env=(ALL, ALL, *markers(0))), known)
    assert answer.last_env == ("NVIDIA_VISIBLE_DEVICES=void,=",)


def test_a_repeated_variable_of_a_held_device_is_refused_unless_the_last_is_its_own() -> None:
    known = facts(claims={MARKER: GPU_CLAIM})
    own, other = ("KOORDRA_MEMORY_LIMIT_0", "10Gi"), ("KOORDRA_MEMORY_LIMIT_0", "80Gi")
    adjusted(container(GPU0, env=(other, own, *markers(0))), known)
    assert refused(container(GPU0, env=(own, other, *markers(0))), known).rule == "RepeatedVariable"


# ------------------------------------------------------------------- files of what the NICs' network is like

FOLDER = "UCX_CONFIG_DIR"
TOLD = claim(nic_json(**{FOLDER: "/run/a"}), {**nic_json(**{FOLDER: "/run/b"}), "ibDevice": "mlx5_10"})


def test_ucx_is_told_of_one_folder_unless_the_image_names_its_own() -> None:
    assert env_with("anything", of="OTHER", known=TOLD)[FOLDER] == "/run/a"
    assert FOLDER not in env_with("/opt/ucx/etc", of=FOLDER, known=TOLD)


def test_nvshmem_is_told_the_nics_and_may_be_told_fewer_but_no_others() -> None:
    known = claim(nic_json(NVSHMEM_HCA_LIST="mlx5_0:1"))
    assert env_with("x", of="OTHER", known=known)["NVSHMEM_HCA_LIST"] == "mlx5_0:1"
    assert "NVSHMEM_HCA_LIST" not in env_with("mlx5_0:1", of="NVSHMEM_HCA_LIST", known=known)
    assert "mlx5_3:1" in why_not("mlx5_3:1", of="NVSHMEM_HCA_LIST", known=known)
