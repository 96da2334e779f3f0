"""Prepare and Unprepare of one node: what is given, what is refused, and that both can be repeated."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from koordra.api.objects import Object
from koordra.errors import ApiUnreachable, PrepareError
from koordra.kubelet_plugin.cdi import claim_spec
from koordra.kubelet_plugin.claims.claim_record import State
from koordra.node_state import prepared_claim
from tests.fakes.disks import StepDisk
from tests.fakes.node_claims import (
    GPU_0,
    GPU_1,
    GPU_2,
    NIC_0,
    NIC_0B,
    NIC_1,
    NIC_2,
    claim,
    gpu,
    nic,
    parameters,
    result,
    uid,
)
from tests.unit.kubelet_plugin.conftest import PluginNode, prepare, ref_of, refusal

JOINT = {"scope": "PCIeSwitch", "enforcement": "Required", "pairing": "PerDevice"}


def pair(number: int = 1) -> Object:
    """A quarter of a card and a NIC beside it."""
    return claim(
        number,
        gpu("gpu", GPU_0, "20Gi", cores="25"),
        nic("nic", NIC_0, "10", share="5c1f0000-0000-5000-8000-000000000002"),
        config=[parameters("JointAllocation", **JOINT)],
    )


def test_answer_names_request_pool_device_share_and_cdi_id(node: PluginNode) -> None:
    record = prepare(node, pair())
    ids = claim_spec.device_ids(record)
    assert [
        (device.request, record.pool, device.device, cdi_id, device.share_id)
        for device, cdi_id in zip(record.devices, ids, strict=True)
    ] == [
        (
            "gpu",
            "node-a",
            GPU_0,
            f"koordra.io/claim={uid(1)}-{GPU_0}-5c1f0000",
            "5c1f0000-0000-5000-8000-000000000001",
        ),
        (
            "nic",
            "node-a",
            NIC_0,
            f"koordra.io/claim={uid(1)}-{NIC_0}-5c1f0000",
            "5c1f0000-0000-5000-8000-000000000002",
        ),
    ]
    assert node.checkpoint().get(uid(1)).state is State.COMPLETED  # type: ignore[union-attr]


def test_cdi_spec_and_prepared_record(node: PluginNode, golden: Callable[[str, str], None]) -> None:
    prepare(node, pair())
    golden("kubelet_plugin/pair.cdi.json", node.shown(node.paths.cdi_file(uid(1))))
    golden("kubelet_plugin/pair.prepared.json", node.paths.prepared_file(uid(1)).read_text())
    assert node.paths.cdi_file(uid(1)).stat().st_mode & 0o777 == 0o644
    assert node.paths.prepared_file(uid(1)).stat().st_mode & 0o777 == 0o600


def test_the_hook_reads_what_was_prepared(node: PluginNode) -> None:
    prepare(node, pair())
    read = prepared_claim.decode(node.paths.prepared_file(uid(1)).read_bytes())
    assert [device.device for device in read.devices] == [GPU_0, NIC_0]
    assert read.memlock
    assert read.devices[0].uuid == node.inventory.attributes(GPU_0)["koordra.io/uuid"]


def test_lists_of_nics_are_for_the_hook_and_in_claim_order(node: PluginNode) -> None:
    """A CDI file that set them would overwrite what the pod says."""
    prepare(
        node,
        claim(
            1, gpu("gpu", GPU_1), gpu("gpu", GPU_0), nic("nic", NIC_1), nic("nic", NIC_0), gpu("other", GPU_2)
        ),
    )
    text = node.paths.cdi_file(uid(1)).read_text()
    assert "NCCL_IB_HCA" not in text
    assert "UCX_NET_DEVICES" not in text
    read = prepared_claim.decode(node.paths.prepared_file(uid(1)).read_bytes())
    env = [dict(device.env) for device in read.devices]
    first, second = (read.devices[index].ib_device for index in (2, 3))
    assert env[2]["UCX_NET_DEVICES"] == env[3]["UCX_NET_DEVICES"] == f"{first}:1,{second}:1"
    assert env[2]["NCCL_IB_HCA"] == env[3]["NCCL_IB_HCA"] == f"={first}:1,{second}:1"
    assert "NCCL_IB_HCA" not in env[0]
    assert "CUDA_VISIBLE_DEVICES" not in text + str(env)


def test_control_nodes_come_once_a_request_and_only_with_their_type(node: PluginNode) -> None:
    prepare(node, claim(1, gpu("gpu", GPU_1), gpu("gpu", GPU_0), nic("nic", NIC_0)))
    nodes = [
        [entry["path"] for entry in device["containerEdits"]["deviceNodes"]]
        for device in node.spec(uid(1))["devices"]
    ]
    assert nodes[0][1:] == [
        "/dev/nvidiactl",
        "/dev/nvidia-uvm",
        "/dev/nvidia-uvm-tools",
        "/dev/nvidia-modeset",
    ]
    assert nodes[1] == ["/dev/nvidia0"]
    assert nodes[2] == ["/dev/infiniband/uverbs0", "/dev/infiniband/rdma_cm"]


def test_a_share_has_its_limits_in_the_environment_and_a_whole_card_has_none(node: PluginNode) -> None:
    prepare(node, claim(1, gpu("gpu", GPU_0, "20Gi", cores="25"), gpu("gpu", GPU_1)))
    shares = [device["env"] for device in node.record(uid(1))["devices"]]
    place = f"{uid(1).upper().replace('-', '_')}_0"
    assert shares[0][f"KOORDRA_MEMORY_LIMIT_{place}"] == str(20 << 30)
    assert shares[0][f"KOORDRA_CORES_RESERVED_{place}"] == "25"
    assert not [name for name in shares[1] if "LIMIT" in name or "RESERVED" in name]


def test_repeated_prepare_gives_the_same_answer_and_writes_the_files_again(node: PluginNode) -> None:
    plugin = node.plugin()
    node.claims.put(pair())
    first = plugin.prepare(ref_of(pair()))
    before = node.paths.cdi_file(uid(1)).read_bytes()
    node.paths.cdi_file(uid(1)).unlink()
    node.paths.prepared_file(uid(1)).unlink()
    disk = StepDisk()
    assert node.unrepaired(disk).prepare(ref_of(pair())) == first
    assert node.paths.cdi_file(uid(1)).read_bytes() == before
    assert node.paths.prepared_file(uid(1)).exists()
    # Nothing has changed, so the checkpoint is left alone.
    assert not [name for _, name in disk.steps if name.startswith("checkpoint")]
    node.paths.cdi_file(uid(1)).unlink()
    node.plugin()
    assert node.paths.cdi_file(uid(1)).read_bytes() == before


def test_unprepare_leaves_nothing_and_can_be_repeated(node: PluginNode) -> None:
    plugin = node.plugin()
    node.claims.put(pair())
    plugin.prepare(ref_of(pair()))
    node.claims.claims.clear()
    plugin.unprepare(ref_of(pair()))
    plugin.unprepare(ref_of(pair()))
    assert node.files() == set()
    assert node.checkpoint().claims == ()


def test_unprepare_of_a_claim_nobody_knows_succeeds_and_touches_nothing(node: PluginNode) -> None:
    prepare(node, pair())
    before = node.files()
    node.plugin().unprepare(ref_of(claim(9)))
    node.plugin().unprepare(replace(ref_of(claim(9)), uid="../../etc/passwd"))
    assert node.files() == before


def test_two_claims_share_one_card(node: PluginNode) -> None:
    prepare(node, claim(1, gpu("gpu", GPU_0, "39Gi")))
    prepare(node, claim(2, gpu("gpu", GPU_0, "39Gi")))
    names = [device["name"] for number in (1, 2) for device in node.spec(uid(number))["devices"]]
    assert len(set(names)) == 2
    assert node.holders() == {uid(1), uid(2)}


@pytest.mark.parametrize(
    ("held", "wanted", "figures"),
    [
        (
            gpu("gpu", GPU_0, "70Gi"),
            gpu("gpu", GPU_0, "20Gi"),
            "81559Mi of memory, 70Gi in use by team-a/claim-1, 20Gi asked",
        ),
        (
            gpu("gpu", GPU_0, "1Gi", cores="60"),
            gpu("gpu", GPU_0, "1Gi", cores="50"),
            "100 of cores, 60 in use by team-a/claim-1, 50 asked",
        ),
        (
            result("gpu", GPU_0, consumed={"memory": "1Gi", "slots": "16"}),
            result("gpu", GPU_0, consumed={"memory": "1Gi"}),
            "16 of slots, 16 in use by team-a/claim-1, 1 asked",
        ),
        (
            nic("nic", NIC_0, "60"),
            nic("nic", NIC_0, "41"),
            "100 of share, 60 in use by team-a/claim-1, 41 asked",
        ),
        # Nothing said about memory means all of it.
        (gpu("gpu", GPU_0, "1Mi"), result("gpu", GPU_0), "1Mi in use by team-a/claim-1, 81559Mi asked"),
    ],
)
def test_overcommit_is_refused_with_both_figures(
    node: PluginNode, held: dict[str, Any], wanted: dict[str, Any], figures: str
) -> None:
    prepare(node, claim(1, held))
    text = refusal(node, claim(2, wanted))
    assert "InsufficientCapacity" in text
    assert figures in text
    assert node.holders() == {uid(1)}


@pytest.mark.parametrize("share", [None, "5c1f0000-0000-5000-8000-000000000009"])
def test_a_card_held_alone_is_held_alone(node: PluginNode, share: str | None) -> None:
    prepare(node, claim(1, gpu("gpu", GPU_0, "1Gi", share=None)))
    assert "AlreadyAllocated" in refusal(node, claim(2, gpu("gpu", GPU_0, "1Gi", share=share)))


def test_a_card_that_is_shared_is_not_had_alone(node: PluginNode) -> None:
    prepare(node, claim(1, gpu("gpu", GPU_0, "1Gi")))
    assert "wants it alone" in refusal(node, claim(2, gpu("gpu", GPU_0, "1Gi", share=None)))


def test_a_claim_cannot_overcommit_by_itself(node: PluginNode) -> None:
    other = "5d1f0000-0000-5000-8000-000000000001"
    text = refusal(node, claim(1, gpu("a", GPU_0, "50Gi"), gpu("b", GPU_0, "50Gi", share=other)))
    assert "81559Mi of memory, 0 in use, 100Gi asked" in text


def test_an_administrator_looks_on_and_uses_nothing(node: PluginNode) -> None:
    prepare(node, claim(1, gpu("gpu", GPU_0)))
    prepare(node, claim(2, result("look", GPU_0, share=None, admin=True)))
    prepare(node, claim(3, gpu("gpu", GPU_1)))
    assert node.holders() == {uid(1), uid(2), uid(3)}


def test_capacity_is_free_again_after_unprepare(node: PluginNode) -> None:
    prepare(node, claim(1, gpu("gpu", GPU_0)))
    assert "InsufficientCapacity" in refusal(node, claim(2, gpu("gpu", GPU_0)))
    node.plugin().unprepare(ref_of(claim(1)))
    prepare(node, claim(2, gpu("gpu", GPU_0)))
    assert node.holders() == {uid(2)}


def test_results_of_other_drivers_are_not_ours(node: PluginNode) -> None:
    record = prepare(
        node, claim(1, result("x", "gpu-9", driver="gpu.example.com", pool="elsewhere"), gpu("g", GPU_0))
    )
    assert [device.device for device in record.devices] == [GPU_0]
    assert prepare(node, claim(2, result("x", "gpu-9", driver="gpu.example.com"))).devices == ()
    assert uid(2) not in node.holders()


def test_claims_that_cannot_be_meant(node: PluginNode) -> None:
    assert "not allocated" in refusal(node, claim(1))
    assert "pool node-b" in refusal(node, claim(1, gpu("gpu", GPU_0, pool="node-b")))
    assert "is gone" in refusal(node, claim(1, gpu("gpu", "gpu-0000-ff-00-0")))
    node.claims.put(claim(2, gpu("gpu", GPU_0), name="claim-1"))
    with pytest.raises(PrepareError, match="another claim under this name"):
        node.plugin().prepare(ref_of(claim(1)))
    with pytest.raises(PrepareError, match="does not exist"):
        node.plugin().prepare(ref_of(claim(7)))
    node.claims.away = ApiUnreachable("connection refused")
    with pytest.raises(PrepareError, match="connection refused"):
        node.plugin().prepare(ref_of(claim(1)))
    assert node.holders() == set()


def test_misspelt_parameters_are_refused_by_name(node: PluginNode) -> None:
    text = refusal(node, claim(1, gpu("gpu", GPU_0), config=[parameters("GpuConfig", isolaton="none")]))
    assert "isolation" in text
    text = refusal(node, claim(1, gpu("gpu", GPU_0), config=[parameters("GpuConfig", isolation="mps")]))
    assert "'mps' is not available on this node; available: none" in text


def test_precedence_of_parameters(node: PluginNode) -> None:
    """Class before claim, all requests before the request's own: here the last word is the request's
    memlock."""
    config = [
        parameters("RdmaConfig", memlock=False, requests=["nic"]),
        parameters("RdmaConfig", memlock=True),
        parameters("RdmaConfig", memlock=True, source="FromClass", requests=["nic"]),
    ]
    prepare(node, claim(1, nic("nic", NIC_0), config=config))
    prepare(node, claim(2, nic("other", NIC_1), config=config))
    assert node.record(uid(1))["memlock"] is False
    assert node.record(uid(2))["memlock"] is True


@pytest.mark.parametrize(
    ("pairing", "scope", "devices", "expected"),
    [
        ("PerDevice", "PCIeSwitch", [GPU_0, NIC_0], None),
        ("PerDevice", "PCIeSwitch", [GPU_0, NIC_1], f"{GPU_0} has no NIC of the claim in its PCIeSwitch"),
        ("PerDevice", "PCIeSwitch", [GPU_0, GPU_1, NIC_1, NIC_0], None),
        ("PerDevice", "PCIeSwitch", [GPU_0, GPU_1, NIC_0, NIC_0B], f"{GPU_1} has no NIC of the claim"),
        ("PerGroup", "PCIeSwitch", [GPU_0, NIC_0, NIC_2], None),
        ("PerDevice", "NUMANode", [GPU_0, GPU_1, NIC_0], "has no NIC of its own in its NUMANode"),
        ("PerGroup", "NUMANode", [GPU_0, GPU_1, NIC_0], None),
        ("Together", "PCIeSwitch", [GPU_0, NIC_0, NIC_0B], None),
        ("Together", "PCIeSwitch", [GPU_0, NIC_0, NIC_1], "the devices are not in one PCIeSwitch"),
        ("Together", "Node", [GPU_0, NIC_0, NIC_2], None),
    ],
)
def test_required_scopes_are_checked_again(
    node: PluginNode, pairing: str, scope: str, devices: list[str], expected: str | None
) -> None:
    results = [gpu("gpu", name) if name.startswith("gpu") else nic("nic", name) for name in devices]
    joint = parameters("JointAllocation", scope=scope, pairing=pairing)
    obj = claim(1, *results, config=[joint])
    if expected is None:
        assert len(prepare(node, obj).devices) == len(devices)
        return
    text = refusal(node, obj)
    assert "TopologyScopeUnmet" in text
    assert expected in text
    joint["opaque"]["parameters"]["enforcement"] = "Preferred"
    assert len(prepare(node, obj).devices) == len(devices)
