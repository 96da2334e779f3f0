"""The condition `Limited` of a claim's GPUs: what the handshake says, within the time of one look."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from koordra.api import kinds
from koordra.api.kinds import Kind
from koordra.api.objects import Object
from koordra.errors import NodeError
from koordra.kubelet_plugin.claims.claim_record import ClaimRecord, DeviceRecord, State
from koordra.kubelet_plugin.isolation.limiter import region as limiter_region
from koordra.kubelet_plugin.isolation.limiter import usage
from koordra.kubelet_plugin.isolation.limiter.overtime import OverTime
from koordra.kubelet_plugin.isolation.limiter.overuse import Overuse
from koordra.kubelet_plugin.isolation.limiter.report import LimiterVerdict, overused, verdict
from koordra.kubelet_plugin.isolation.limiter.usage import ClaimUse
from koordra.kubelet_plugin.publish.node_inventory import inventory_of
from koordra.kubelet_plugin.status.claim_status import PAUSE, ClaimStatusWriter, device_statuses, merged
from koordra.node_state.claim_ref import ClaimRef
from koordra.topology.location import DeviceNode, Location
from koordra.topology.machine import Gpu, Machine
from koordra.topology.problems import Discovery
from tests.unit.limiter.test_report import ENFORCING_AT, REFUSED_AT, counted, refused

UUID = "GPU-01020304-0506-0708-090a-0b0c0d0e0f10"
UID = "8d0c3a52-5b0e-4b57-9d2b-4a3f6f1d2c11"
GPU = DeviceRecord(
    request="gpu",
    device="gpu-0000-1f-00-0",
    type="gpu",
    identity=UUID,
    share_id="s1",
    isolation="limiter",
    uuid=UUID,
)
RECORD = ClaimRecord(
    ref=ClaimRef("team-a", "c", UID),
    pool="n1",
    nonce="0" * 32,
    boot_id="b",
    state=State.COMPLETED,
    devices=(GPU,),
)
CARD = Gpu(
    location=Location("0000:1f:00.0", path=("pci0000:00", "0000:1f:00.0")),
    uuid=UUID,
    memory_bytes=80 << 30,
    node=DeviceNode("/dev/nvidia0", 195, 0),
)
INVENTORY = inventory_of(Discovery(machine=Machine(gpus=(CARD,), boot_id="b"), problems=()))
"""A node with the card."""


class Api:
    """One claim; its status as it was patched."""

    def __init__(self) -> None:
        results = [{"driver": "koordra.io", "pool": "n1", "device": GPU.device, "shareID": "s1"}]
        self.claim: dict[str, Any] = {
            "metadata": {"uid": UID, "resourceVersion": "1"},
            "status": {"allocation": {"devices": {"results": results}}},
        }
        self.patches = 0

    def get(self, kind: Kind, name: str, *, namespace: str | None = None) -> Object:
        assert (kind, name, namespace) == (kinds.RESOURCE_CLAIMS, "c", "team-a")
        return self.claim

    def patch(self, kind: Kind, name: str, body: Any, **more: Any) -> Object:
        assert more["subresource"] == "status"
        self.patches += 1
        self.claim["status"]["devices"] = body["status"]["devices"]
        return self.claim

    @property
    def condition(self) -> Mapping[str, str]:
        (entry,) = self.claim["status"]["devices"]
        assert (entry["device"], entry["shareID"]) == (GPU.device, "s1")
        (condition,) = entry["conditions"]
        assert isinstance(condition, dict)
        return condition


def test_the_condition_follows_the_handshake(tmp_path: Path) -> None:
    region = tmp_path / UID
    api = Api()
    writer = ClaimStatusWriter(
        api,
        records=lambda: [RECORD],
        attached=list,
        inventory=lambda: INVENTORY,
        limited=lambda uid: verdict(tmp_path, uid),
        clock=lambda: datetime(2026, 1, 2, tzinfo=UTC),
    )
    assert writer.sync()
    assert api.patches == 0, "no region yet, nothing to say"
    limiter_region.allow(region, claim=UID, uuid=UUID, limit=1 << 30)
    steps: list[tuple[Callable[[], object], str, str]] = [
        (lambda: None, "Unknown", "NoProcessYet"),
        (lambda: counted(region, ENFORCING_AT, 1), "True", "Enforcing"),
        (lambda: refused(region), "False", "ProcessRefused"),
        (lambda: counted(region, REFUSED_AT, 1), "True", "Enforcing"),  # long ago
        (lambda: limiter_region.write_outside(region, 2), "False", "OutsideLimiter"),
        (lambda: counted(region, 8, 7), "False", "RegionDamaged"),
    ]
    for number, (happens, status, reason) in enumerate(steps, start=1):
        happens()
        assert writer.sync()
        assert writer.sync()
        assert api.patches == number, "written once for each change"
        assert (api.condition["type"], api.condition["status"], api.condition["reason"]) == (
            "Limited",
            status,
            reason,
        )


@pytest.mark.parametrize("when", ["made", "taken away"])
def test_a_region_that_comes_or_goes_meanwhile_is_not_damaged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, when: str
) -> None:
    """Prepare and Unprepare run beside whoever reads, in threads of their own."""
    policy = tmp_path / UID / "policy"
    if when == "taken away":
        limiter_region.allow(tmp_path / UID, claim=UID, uuid=UUID, limit=1 << 30)

    def meanwhile(folder: Path) -> ClaimUse:
        if when == "made":
            limiter_region.allow(folder, claim=UID, uuid=UUID, limit=1 << 30)
        else:
            policy.unlink()
        raise NodeError(f"{folder}: no region of a claim")

    monkeypatch.setattr(usage, "read", meanwhile)
    assert verdict(tmp_path, UID) is None


@pytest.mark.parametrize("isolation", [None, "none", "mps"])
def test_a_gpu_without_the_limiter_has_no_entry(tmp_path: Path, isolation: str | None) -> None:
    limiter_region.allow(tmp_path / UID, claim=UID, uuid=UUID, limit=1 << 30)
    record = replace(RECORD, devices=(replace(GPU, isolation=isolation),))
    said = verdict(tmp_path, UID)
    assert said is not None
    assert device_statuses(record, inventory=INVENTORY, attached={}, limited=said) == []


@pytest.mark.parametrize(("cores", "told"), [("30", "accounting only (30% reserved"), ("0", "")])
def test_where_cores_are_reserved_the_condition_says_that_only_memory_is_limited(
    tmp_path: Path, cores: str, told: str
) -> None:
    limiter_region.allow(tmp_path / UID, claim=UID, uuid=UUID, limit=1 << 30)
    record = replace(RECORD, devices=(replace(GPU, consumed=(("cores", cores),)),))
    (entry,) = device_statuses(record, inventory=INVENTORY, attached={}, limited=verdict(tmp_path, UID))
    (condition,) = entry["conditions"]
    assert told in condition["message"]
    assert ("cores" in condition["message"]) is bool(told)


MORE_MEMORY = Overuse(UID, UUID, 5 << 30, 4 << 30, 1 << 29)
MORE_TIME = OverTime(UID, UUID, 62.0, 20.0, 30.0)


@pytest.mark.parametrize(
    ("over", "reason", "told"),
    [
        (None, "NoProcessYet", "no process of the claim has used CUDA yet"),
        (
            MORE_MEMORY,
            "OverLimit",
            f"its processes have 5120Mi of {UUID}, the share is 4096Mi and a context takes 512Mi",
        ),
        (MORE_TIME, "OverTime", f"the driver saw its kernels on {UUID} for 62% of 20 s, the share is 30%"),
    ],
)
def test_where_device_time_is_limited_the_condition_says_so(
    tmp_path: Path, over: Overuse | OverTime | None, reason: str, told: str
) -> None:
    time = limiter_region.TimeShare(3000)
    limiter_region.allow(tmp_path / UID, claim=UID, uuid=UUID, limit=1 << 30, cores=30, time=time)
    said = verdict(tmp_path, UID)
    assert said is not None
    record = replace(RECORD, devices=(replace(GPU, consumed=(("cores", "30"),)),))
    limited = overused(over, before=replace(said, enforced=True)) if over else said
    (entry,) = device_statuses(record, inventory=INVENTORY, attached={}, limited=limited)
    (condition,) = entry["conditions"]
    assert condition["message"] == f"{told}; cores: launches are held to 30% of the GPU's time"
    assert (condition["status"], condition["reason"]) == ("False" if over else "Unknown", reason)


@pytest.mark.parametrize("enforced", [None, False])
def test_of_a_claim_that_is_not_limited_that_is_what_is_said(enforced: bool | None) -> None:
    """Of a process outside of the limiter, that it is, and not that it has had more time."""
    before = LimiterVerdict("bypassed", enforced, "OutsideLimiter", "")
    assert overused(MORE_TIME, before=before) is before
    assert overused(MORE_MEMORY, before=before).reason == "OverLimit"


@pytest.mark.parametrize(("limit", "context", "told"), [(256, 640, True), (640, 640, False), (256, 0, False)])
def test_a_share_without_room_for_a_context_is_told_before_a_program_is(
    tmp_path: Path, limit: int, context: int, told: bool
) -> None:
    limiter_region.allow(tmp_path / UID, claim=UID, uuid=UUID, limit=limit << 20, context_bytes=context << 20)
    said = verdict(tmp_path, UID)
    assert said is not None
    text = f"; {limit}Mi of {UUID} are less than a context takes there (about {context}Mi): ask for more"
    assert said.message == "no process of the claim has used CUDA yet" + (text if told else "")
    counted(tmp_path / UID, ENFORCING_AT, 1)
    said = verdict(tmp_path, UID)
    assert said is not None
    assert told is False or "context" not in said.message, "where one began, there was room"


def test_other_peoples_conditions_on_our_gpus_stay() -> None:
    isolated = {
        "type": "Isolated",
        "status": "False",
        "reason": "x",
        "message": "",
        "lastTransitionTime": "t",
    }
    ours = {
        "type": "Limited",
        "status": "True",
        "reason": "Enforcing",
        "message": "",
        "lastTransitionTime": "t",
    }
    key = {"driver": "koordra.io", "pool": "n1", "device": "gpu-0"}
    before = [{**key, "conditions": [isolated, ours]}, {**key, "device": "nic-0", "conditions": [ours]}]
    assert merged(before, [], pools={"n1"}, now="now") == [{**key, "conditions": [isolated]}]


class CountedStop(threading.Event):
    """`stop`, which is set after so many waits; how long each was to be."""

    def __init__(self, waits: int) -> None:
        super().__init__()
        self.left = waits
        self.waited: list[float | None] = []

    def wait(self, timeout: float | None = None) -> bool:
        self.waited.append(timeout)
        self.left -= 1
        if self.left == 0:
            self.set()
        return self.is_set()


def test_a_condition_that_changes_all_the_time_is_written_once_in_a_while(tmp_path: Path) -> None:
    """What a program writes into its region becomes a request to the API server: at no pace of the program's
    choice."""
    region = tmp_path / UID
    limiter_region.allow(region, claim=UID, uuid=UUID, limit=1 << 30)
    api = Api()
    told = [0]

    def changes(uid: str) -> LimiterVerdict | None:
        told[0] += 1
        assert told[0] < 50, "never a pause"
        limiter_region.write_outside(region, told[0] % 2)
        writer.wake()  # as the node's next look would
        return verdict(tmp_path, uid)

    writer = ClaimStatusWriter(
        api, records=lambda: [RECORD], attached=list, inventory=lambda: INVENTORY, limited=changes
    )
    stop = CountedStop(waits=5)
    writer.wake()
    writer.run(stop)
    assert (api.patches, stop.waited) == (5, [PAUSE] * 5)
