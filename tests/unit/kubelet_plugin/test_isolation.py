"""Isolation backends: found by name, also third parties'; started, stopped and rolled back with the claim."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import pytest

from koordra.api.opaque.isolation import IsolationPolicy
from koordra.api.opaque.parameters import GpuConfig
from koordra.errors import PrepareError
from koordra.kubelet_plugin.claims.claim_record import ClaimRecord
from koordra.kubelet_plugin.isolation import packages
from koordra.kubelet_plugin.isolation.backend import Keep, Realised, Share
from koordra.kubelet_plugin.isolation.none import NoIsolation
from koordra.kubelet_plugin.isolation.packages import backends
from koordra.kubelet_plugin.prepare.device_state import DeviceState
from koordra.kubelet_plugin.publish.offering import Offering
from koordra.kubelet_plugin.publish.resource_slices import build_devices
from koordra.topology.machine import Gpu
from tests.fakes.disks import StepDisk
from tests.fakes.isolation import RecordingBackend
from tests.fakes.node_claims import (
    GPU_0,
    GPU_1,
    NIC_0,
    NODE,
    WHOLE,
    claim,
    gpu,
    nic,
    parameters,
    result,
    uid,
)
from tests.unit.kubelet_plugin.conftest import PluginNode, prepare, ref_of, refusal


def plugin(node: PluginNode, backend: RecordingBackend) -> DeviceState:
    return DeviceState(
        node=NODE,
        paths=node.paths,
        claims=node.claims,
        inventory=lambda: node.inventory,
        backends={**backends(), backend.name: backend},
        disk=StepDisk(),
    )


OBJECT = claim(
    1,
    gpu("gpu", GPU_0, "10Gi", cores="30"),
    nic("nic", NIC_0),
    config=[parameters("GpuConfig", isolation="limiter", priority=7)],
)


def test_a_backend_lives_as_long_as_the_claim(node: PluginNode) -> None:
    backend = RecordingBackend()
    state = plugin(node, backend)
    node.claims.put(OBJECT)
    state.prepare(ref_of(OBJECT))
    state.prepare(ref_of(OBJECT))
    assert backend.running == [(uid(1), GPU_0)]
    assert (backend.shares[0].memory_bytes, backend.shares[0].cores) == (10 << 30, 30)
    assert node.record(uid(1))["devices"][0]["env"]["LIMIT_0"] == f"{10 << 30} 7"
    state.unprepare(ref_of(OBJECT))
    assert backend.running == []


@pytest.mark.parametrize(
    ("consumed", "memory"),
    [
        ({"memory": WHOLE, "cores": "30", "slots": "1"}, None),
        ({"memory": "10Gi", "cores": "0", "slots": "1"}, 10 << 30),
        ({"cores": "30", "slots": "1"}, None),
    ],
)
def test_a_share_without_a_limit_of_memory_has_all_of_the_card(
    node: PluginNode, consumed: dict[str, str], memory: int | None
) -> None:
    """Also where an allocator names no memory: it counts as all of it, for the neighbours too."""
    backend = RecordingBackend()
    limiter = [parameters("GpuConfig", isolation="limiter")]
    node.claims.put(claim(1, result("gpu", GPU_0, consumed=consumed), config=limiter))
    plugin(node, backend).prepare(ref_of(claim(1)))
    assert {share.memory_bytes for share in backend.shares} == {memory}
    if memory is None:
        node.claims.put(claim(2, gpu("gpu", GPU_0, "1Gi", share="s2")))
        with pytest.raises(PrepareError, match="InsufficientCapacity"):
            plugin(node, backend).prepare(ref_of(claim(2)))


def test_a_backend_that_cannot_start_leaves_nothing(node: PluginNode) -> None:
    backend = RecordingBackend(refuse="no MPS daemon")
    state = plugin(node, backend)
    node.claims.put(OBJECT)
    with pytest.raises(PrepareError, match="no MPS daemon"):
        state.prepare(ref_of(OBJECT))
    assert node.files() == set()
    assert node.holders() == set()
    backend.refuse = ""
    state.prepare(ref_of(OBJECT))
    assert node.holders() == {uid(1)}


def test_unprepare_stops_the_backend_also_when_nobody_knows_what_the_claim_had(node: PluginNode) -> None:
    backend = RecordingBackend()
    node.claims.put(OBJECT)
    plugin(node, backend).prepare(ref_of(OBJECT))
    assert backend.running == [(uid(1), GPU_0)]
    node.paths.checkpoint.unlink()
    node.paths.prepared_file(uid(1)).write_text("{")
    plugin(node, backend).unprepare(ref_of(OBJECT))
    assert backend.running == []
    assert node.files() == set()


def limited(node: PluginNode, *allowed: str) -> PluginNode:
    """The node with an operator's policy, a backend `limiter` and one `mps`."""
    offering = Offering(isolation=IsolationPolicy(allowed))
    node.inventory = replace(node.inventory, offering=offering)
    known = {name: RecordingBackend(name) for name in ("limiter", "mps")}
    node.backends = {**backends(), **known}
    return node


def given(node: PluginNode, number: int = 1) -> str:
    """The backend of the claim's first device."""
    record = next(
        one for one in node.checkpoint().of_boot(node.inventory.boot_id) if one.ref.uid == uid(number)
    )
    return str(record.devices[0].isolation)


NONE = parameters("GpuConfig", isolation="none")


def test_a_share_is_limited_unless_the_operator_says_otherwise(node: PluginNode) -> None:
    share = gpu("gpu", GPU_0, "10Gi")
    why = refusal(limited(node, "limiter"), claim(1, share, config=[NONE]))
    assert f"BackendUnavailable: {GPU_0}: isolation: requested none, the node allows only limiter" in why
    prepare(node, claim(1, share))
    assert given(node) == "limiter"
    prepare(node, claim(2, gpu("gpu", GPU_1), config=[NONE]))
    assert given(node, 2) == "none", "a whole card is no share"


def test_the_operator_allows_shares_without_limits(node: PluginNode) -> None:
    prepare(limited(node, "none"), claim(1, gpu("gpu", GPU_0, "10Gi")))
    assert given(node) == "none"
    asks = claim(
        2, gpu("gpu", GPU_0, "10Gi", share="s2"), config=[parameters("GpuConfig", isolation="limiter")]
    )
    assert "isolation: requested limiter, the node allows only none" in refusal(node, asks)


def test_class_stands_above_claim_and_both_below_the_node(node: PluginNode) -> None:
    limited(node, "limiter", "mps")
    of_class = parameters("GpuConfig", source="FromClass", isolation="mps")
    prepare(node, claim(1, gpu("gpu", GPU_0, "10Gi"), config=[of_class, NONE]))
    assert given(node) == "mps"
    only = parameters("GpuConfig", source="FromClass", allowedIsolation=["mps"])
    why = refusal(
        node, claim(2, gpu("gpu", GPU_1, "10Gi"), config=[only, parameters("GpuConfig", isolation="limiter")])
    )
    assert "isolation: requested limiter, the class allows only mps" in why
    unlimited = parameters("GpuConfig", source="FromClass", allowedIsolation=["none"])
    why = refusal(node, claim(2, gpu("gpu", GPU_1, "10Gi"), config=[unlimited]))
    assert "isolation: requested none, the node allows only limiter, mps" in why


def test_a_claim_cannot_say_what_is_the_operators(node: PluginNode) -> None:
    asks = claim(1, gpu("gpu", GPU_0, "10Gi"), config=[parameters("GpuConfig", allowedIsolation=["none"])])
    assert "allowedIsolation: is for the operator to say" in refusal(limited(node, "limiter"), asks)


def test_a_claim_of_kube_schedulers_is_decided_like_any_other(node: PluginNode) -> None:
    """Made for a pod's extended resource: it says nothing itself, and its class stands in the allocation."""
    limited(node, "limiter")
    made = {"annotations": {"resource.kubernetes.io/extended-resource-claim": "true"}}
    plain = claim(1, gpu("container-0-request-0", GPU_0, "10Gi"))
    plain["metadata"] |= made
    prepare(node, plain)
    assert given(node) == "limiter"
    for fields, told in (
        ({"isolation": "none"}, "isolation: requested none, the node allows only limiter"),
        ({"allowedIsolation": ["none"]}, "isolation: requested none, the node allows only limiter"),
    ):
        of_class = parameters("GpuConfig", requests=["container-0-request-0"], source="FromClass", **fields)
        asks = claim(2, gpu("container-0-request-0", GPU_1, "10Gi"), config=[of_class])
        asks["metadata"] |= made
        assert told in refusal(node, asks)


@pytest.mark.parametrize(
    ("requests", "refused"),
    [((), True), (("gpu",), True), (("gpu/part",), True), (("gpu/whole", "nic"), False)],
)
def test_a_word_for_a_request_is_for_its_alternatives(
    node: PluginNode, requests: tuple[str, ...], refused: bool
) -> None:
    limited(node, "limiter")
    config = [parameters("GpuConfig", requests=requests, isolation="none")]
    asks = claim(1, gpu("gpu/part", GPU_0, "10Gi"), config=config)
    if refused:
        assert "isolation: requested none, the node allows only limiter" in refusal(node, asks)
    else:
        prepare(node, asks)
        assert given(node) == "limiter"


def test_a_share_on_another_card_is_no_neighbour(node: PluginNode) -> None:
    prepare(limited(node, "none"), claim(1, gpu("gpu", GPU_0, "10Gi")))
    limited(node, "limiter")
    prepare(node, claim(2, gpu("gpu", GPU_1, "10Gi")))
    assert (given(node), given(node, 2)) == ("none", "limiter")


@pytest.mark.parametrize(("cores", "told"), [("0", None), ("1", 1), ("99", 99), ("100", None)])
def test_a_backend_is_told_of_the_card_and_of_the_part_that_is_kept(
    node: PluginNode, cores: str, told: int | None
) -> None:
    backend = RecordingBackend()
    obj = claim(
        1, gpu("gpu", GPU_0, "10Gi", cores=cores), config=[parameters("GpuConfig", isolation="limiter")]
    )
    node.claims.put(obj)
    plugin(node, backend).prepare(ref_of(obj))
    card = node.inventory.machine.device(GPU_0)
    assert isinstance(card, Gpu)
    assert (backend.shares[0].cores, backend.shares[0].uuid) == (told, card.uuid)


def test_a_backend_is_started_for_all_that_a_claim_has_of_a_card(node: PluginNode) -> None:
    """And says in the container what each share is. A prepared one is started with the same again."""
    started: list[tuple[Share, GpuConfig]] = []

    class Started(RecordingBackend):
        def prepare(self, share: Share, config: GpuConfig, keep: Keep) -> Realised:
            started.append((share.kept, config))
            return super().prepare(share, config, keep)

    backend = Started()
    config = [
        parameters("GpuConfig", isolation="limiter"),
        parameters("GpuConfig", requests=["first"], coresPolicy="Hard", priority=3),
    ]
    shares = [gpu("first", GPU_0, "10Gi", cores="30"), gpu("second", GPU_0, "5Gi", cores="20", share="s2")]
    seen = gpu("seen", GPU_0, admin=True, share=None)
    obj = claim(1, *shares, gpu("third", GPU_1, "7Gi", cores="60"), seen, config=config)
    node.claims.put(obj)
    state = plugin(node, backend)
    state.prepare(ref_of(obj))
    own = [(each.memory_bytes, each.cores) for each in backend.shares]
    assert own == [(10 << 30, 30), (5 << 30, 20), (7 << 30, 60)]
    whole = [(each.memory_bytes, each.cores, said.priority) for each, said in started]
    assert whole == [(15 << 30, 50, 3), (15 << 30, 50, 3), (7 << 30, 60, None)]
    state.prepare(ref_of(obj))
    assert started[3:] == started[:3]


def test_with_admin_access_a_card_is_seen_and_nobody_is_refused_for_it(node: PluginNode) -> None:
    """The API server allows it in labelled namespaces alone; it counts as no share of the card."""
    limited(node, "limiter")
    prepare(node, claim(1, gpu("gpu", GPU_0, "10Gi", admin=True), config=[NONE]))
    assert given(node) == "None"
    prepare(node, claim(2, gpu("gpu", GPU_0, "10Gi", share="s2")))
    assert given(node, 2) == "limiter"


@pytest.mark.parametrize(
    "source", ["FromClaim", "fromclass", "FROMCLASS", " FromClass", "", None, ["FromClass"]]
)
def test_only_a_class_is_believed_what_is_the_operators(node: PluginNode, source: Any) -> None:
    """The API server knows two words; whatever else stands there is nobody's word of weight."""
    limited(node, "limiter")
    entry = parameters("GpuConfig", driverCapabilities=["imex"]) | {"source": source}
    asks = claim(1, gpu("gpu", GPU_0, "10Gi"), config=[entry])
    assert "is for the operator to say" in refusal(node, asks)


def test_where_one_share_of_a_card_is_limited_all_are(node: PluginNode) -> None:
    """A share from before the operator's word; its containers go on, and are prepared again as they were."""
    old = claim(1, gpu("gpu", GPU_0, "10Gi"))
    prepare(limited(node, "none"), old)
    limited(node, "limiter")
    new = claim(2, gpu("gpu", GPU_0, "10Gi", share="s2"))
    why = refusal(node, new)
    assert "requested limiter, and ResourceClaim team-a/claim-1 has a share with none" in why
    prepare(node, old)
    assert given(node) == "none"
    node.plugin().unprepare(ref_of(old))
    prepare(node, new)
    assert given(node, 2) == "limiter"


def test_a_node_without_the_limiter_says_so(node: PluginNode) -> None:
    node.inventory = replace(
        node.inventory,
        offering=Offering(isolation=IsolationPolicy(("limiter",)).among(backends())),
    )
    why = refusal(node, claim(1, gpu("gpu", GPU_0, "10Gi")))
    assert "the node allows no share at all" in why


def test_slices_say_what_the_node_allows(node: PluginNode) -> None:
    machine = node.inventory.machine
    for policy, told in (
        (
            IsolationPolicy(("limiter", "mps")),
            {"isolationNone": False, "isolationLimiter": True, "isolationMps": True},
        ),
        (IsolationPolicy(("none",)), {"isolationNone": True}),
        (IsolationPolicy(()), {"isolationNone": False}),
    ):
        for device in build_devices(machine, mode="joint", offering=Offering(isolation=policy)):
            found = {
                name.partition("/")[2]: entry["bool"]
                for name, entry in device["attributes"].items()
                if "isolation" in name
            }
            assert found == (told if device["name"].startswith("gpu-") else {})


def broken() -> RecordingBackend:
    raise ImportError("no libvendor.so")


def test_third_parties_register_by_entry_point(monkeypatch: pytest.MonkeyPatch) -> None:
    """What cannot be loaded, or has another name than its entry point, costs only its own shares."""

    class Entry:
        value = "vendor_package:Backend"

        def __init__(self, name: str, make: Callable[[], RecordingBackend]) -> None:
            self.name = name
            self.load = lambda: make

    entries = [
        Entry("vendor", partial(RecordingBackend, "vendor")),
        Entry("none", partial(RecordingBackend, "none")),
        Entry("renamed", partial(RecordingBackend, "vendor")),
        Entry("broken", broken),
    ]
    monkeypatch.setattr(packages, "entry_points", lambda group: entries)
    found = backends()
    vendor = found["vendor"]
    assert isinstance(vendor, packages.ForeignBackend)
    assert isinstance(vendor.backend, RecordingBackend)
    assert isinstance(found["none"], NoIsolation)
    assert sorted(found) == ["none", "vendor"]


def test_what_a_running_claim_has_beyond_its_allocation_is_nobody_elses(node: PluginNode) -> None:
    """Also where its object is gone, and with it what was held for it."""
    backend = RecordingBackend()

    def grown(record: ClaimRecord) -> ClaimRecord:
        devices = [
            replace(one, consumed=tuple(sorted({**dict(one.consumed), "memory": "60Gi"}.items())))
            for one in record.devices
        ]
        return replace(record, devices=tuple(devices))

    state = DeviceState(
        node=NODE,
        paths=node.paths,
        claims=node.claims,
        inventory=lambda: node.inventory,
        backends={**backends(), backend.name: backend},
        disk=StepDisk(),
        enlarged=grown,
    )
    limiter = [parameters("GpuConfig", isolation="limiter")]
    for number, memory in ((1, "10Gi"), (2, "30Gi")):
        node.claims.put(claim(number, gpu("gpu", GPU_0, memory), config=limiter))
    state.prepare(ref_of(claim(1)))
    with pytest.raises(PrepareError, match=r"InsufficientCapacity|memory"):
        state.prepare(ref_of(claim(2)))
    assert plugin(node, backend).prepare(ref_of(claim(2))), "without it there is room"
