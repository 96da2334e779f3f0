"""Limits that change while programs run: what is written, when, and who is said to act by it."""

from __future__ import annotations

import fcntl
import struct
from collections.abc import Iterator
from dataclasses import dataclass, replace
from decimal import Decimal
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from koordra.api.objects import Object
from koordra.api.opaque.share_limits import ALWAYS, ShareLimits, resized_claim
from koordra.kubelet_plugin.claims.claim_record import ClaimRecord
from koordra.kubelet_plugin.isolation.limiter import region, usage
from koordra.kubelet_plugin.isolation.limiter.open_region import OpenRegion
from koordra.kubelet_plugin.isolation.limiter.overuse import OveruseSamples, over_limit
from koordra.kubelet_plugin.isolation.limiter.region import TimeShare
from koordra.kubelet_plugin.isolation.limiter.report import LimiterVerdict, overused
from koordra.kubelet_plugin.isolation.limiter.resize import (
    BRISK,
    BRISK_FOR,
    SLOW,
    ResizeState,
    ShareResizer,
    with_limits,
)
from tests.unit.limiter.test_condition import GPU, RECORD, UID, UUID

GIB = 1 << 30
SHARE = replace(GPU, consumed=(("cores", "30"), ("memory", "16Gi"), ("slots", "1")))
CLAIM = replace(RECORD, devices=(SHARE,))
TIME = TimeShare(3000, elastic=False, priority=100)


def hold(
    *, memory: int = 16, cores: int = 30, held: tuple[int, int] = (0, 0), revision: int = 1, **said: Any
) -> Object:
    """What the controller writes: limits in GiB and percent, and what is held beyond the allocation."""
    amounts = {"memory": Decimal(memory * GIB), "cores": Decimal(cores)}
    limits = ShareLimits(GPU.device, "s1", amounts, said.get("policy", "Hard"), said.get("priority"))
    device = {
        "driver": "koordra.io",
        "pool": "n1",
        "device": GPU.device,
        "shareID": "s1",
        "consumedCapacity": {"memory": str(held[0] * GIB), "cores": str(held[1])},
    }
    seat = {
        "node": "n1",
        "claims": [{"name": "c", "uid": UID}],
        "devices": [device] if any(held) else [],
        "until": ALWAYS,
        "limits": [limits.to_dict()],
        "revision": revision,
        "refused": said.get("refused", ""),
    }
    return {"metadata": {"name": "h"}, "spec": {"owner": "claim team-a/c", "seats": [seat]}}


@dataclass
class Process:
    """One process of the claim, in slot 0: what it has written, and its lock."""

    folder: Path
    lock: Any

    def write(self, *, held: int, pending: int = 0, acknowledged: int | None = None) -> None:
        with (self.folder / "usage").open("r+b") as file:
            file.seek(region.BITMAP)
            file.write(b"\x01")
            file.seek(region.ACCOUNTS)
            file.write(struct.pack("=QQ", pending, held))
            if acknowledged is not None:
                file.seek(region.SLOTS + 72 - 8)
                file.write(struct.pack("=Q", acknowledged))
            file.seek(region.SLOTS + 8)
            file.write(struct.pack("=II", 2, 77))


@dataclass
class Node:
    claims: Path
    holds: list[Object] | None
    resizer: ShareResizer
    process: Process

    def step(self) -> ResizeState | None:
        self.resizer.step()
        return self.resizer.state(UID, 0)

    @property
    def card(self) -> usage.CardUse:
        return usage.read(self.claims / UID).devices[0]

    @property
    def change(self) -> int:
        return usage.read(self.claims / UID).change


def locked(folder: Path) -> Any:
    """The lock of the owner of slot 0, as long as it is open."""
    lock = (folder / "alive.0").open("rb")
    fcntl.fcntl(lock, 37, struct.pack("=hh4xqqi4x", fcntl.F_RDLCK, 0, 0, 1, 0))  # F_OFD_SETLK
    return lock


def node_of(tmp_path: Path, *, cores: bool = True, record: ClaimRecord = CLAIM) -> Node:
    folder = tmp_path / UID
    region.allow(folder, claim=UID, uuid=UUID, limit=16 * GIB, cores=30, time=TIME if cores else None)
    node = Node(tmp_path, [], None, Process(folder, locked(folder)))  # type: ignore[arg-type]
    node.resizer = ShareResizer(tmp_path, records=lambda: [record], holds=lambda: node.holds, cores=cores)
    return node


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    found = node_of(tmp_path)
    yield found
    found.process.lock.close()


def test_a_grown_share_has_its_limits_at_once_and_says_who_acts_by_them(node: Node) -> None:
    node.process.write(held=GIB, pending=512, acknowledged=node.change)
    node.holds = [hold(memory=20, cores=40, held=(4, 10), revision=3)]
    state = node.step()
    assert (node.card.limit, node.card.rate) == (20 * GIB, 4000)
    assert state is not None
    assert (state.revision, state.done, state.reason) == (3, False, "NotYetTaken")
    assert state.message.endswith("not taken yet by process (pid 77)")
    node.process.write(held=GIB, pending=512, acknowledged=node.change)
    state = node.step()
    assert state is not None
    assert state.done
    assert state.message == (
        "memory 20Gi (allocated 16Gi), cores 40% (allocated 30%), Hard: all 1 processes act by it"
    )


def test_a_process_that_makes_no_call_holds_nobody_up(node: Node) -> None:
    node.process.write(held=GIB)
    node.holds = [hold(memory=8)]
    state = node.step()
    assert state is not None
    assert state.done
    assert state.message.endswith("act by it, 1 of them from their next call on")


def test_memory_in_use_is_not_taken_away(node: Node) -> None:
    node.process.write(held=12 * GIB, acknowledged=99)
    node.holds = [hold(memory=10, cores=20)]
    state = node.step()
    assert state is not None
    assert (state.done, state.reason, node.card.limit) == (False, "InUse", 16 * GIB)
    assert "12Gi are now" in state.message
    assert node.card.rate == 2000, "device time is nobody's to keep"
    node.process.write(held=10 * GIB, acknowledged=99)
    state = node.step()
    assert state is not None
    assert (state.done, node.card.limit) == (True, 10 * GIB)


def test_what_is_about_to_be_taken_counts_as_in_use(node: Node) -> None:
    node.process.write(held=9 * GIB, pending=2 * GIB, acknowledged=99)
    node.holds = [hold(memory=10)]
    state = node.step()
    assert state is not None
    assert (state.done, node.card.limit) == (False, 16 * GIB)


@pytest.mark.parametrize(
    ("said", "held"), list(product([(99, 99), (20, 35), (1, 1)], [(0, 0), (2, 3), (100, 100)]))
)
def test_limits_are_never_above_what_is_held(
    node: Node, said: tuple[int, int], held: tuple[int, int]
) -> None:
    node.holds = [hold(memory=said[0], cores=said[1], held=held)]
    node.step()
    assert node.card.limit == min(said[0], 16 + held[0]) * GIB
    assert node.card.rate == min(said[1], 30 + held[1]) * 100


def test_without_its_hold_a_share_is_back_at_its_allocation(node: Node) -> None:
    """Also where more is in use: it is nobody's to keep, but the limit does not go below what it has."""
    node.holds = [hold(memory=20, cores=40, held=(4, 10), policy="Elastic", priority=5)]
    node.step()
    node.process.write(held=18 * GIB)
    node.holds = []
    assert node.step() is None
    assert (node.card.limit, node.card.rate) == (16 * GIB, 3000)


def test_nothing_is_changed_while_the_holds_are_not_known(node: Node) -> None:
    node.holds = [hold(memory=20, held=(4, 0))]
    node.step()
    node.holds = None
    node.step()
    assert node.card.limit == 20 * GIB


def test_preparing_the_claim_again_leaves_its_limits(node: Node) -> None:
    node.holds = [hold(memory=20, cores=40, held=(4, 10))]
    node.step()
    region.allow(node.claims / UID, claim=UID, uuid=UUID, limit=16 * GIB, cores=30, time=TIME)
    assert (node.card.limit, node.card.rate) == (20 * GIB, 4000)


def test_a_process_that_was_killed_before_it_told_of_a_change_is_followed_by_one_that_does(
    node: Node,
) -> None:
    """Killed after the limit, before the number of the change: what is acknowledged is the one before."""
    node.holds = [hold(memory=20, held=(4, 0))]
    node.process.write(held=0, acknowledged=node.change)
    with (node.claims / UID / "policy").open("r+b") as file:
        file.seek(region.device_at(0) + region.LIMIT)
        file.write(struct.pack("=Q", 20 * GIB))
    before = node.change
    node.step()
    assert node.change == before + 1
    node.step()
    assert node.change == before + 1, "told once"


def test_policy_and_priority_change_too(node: Node) -> None:
    node.holds = [hold(policy="Elastic", priority=5)]
    state = node.step()
    raw = usage.read_policy(node.claims / UID)[0]
    assert (raw[5], raw[12]) == (5, 1)
    assert state is not None
    assert "Elastic of priority 5" in state.message
    OpenRegion(node.claims / UID).write_lent(0, lent=9000, until=1, neighbours=2)
    node.step()
    assert usage.read_policy(node.claims / UID)[0][7] == 9000, "it is the same share"
    node.holds = [hold(policy="Hard")]
    node.step()
    raw = usage.read_policy(node.claims / UID)[0]
    assert (raw[6], raw[7], raw[11], raw[12]) == (3000, 0, 2, 0), "what was lent to an elastic share ends"


def test_who_lends_is_woken_by_a_change_alone(node: Node) -> None:
    woken: list[int] = []
    node.resizer._written = lambda: woken.append(1)
    for holds, times in (([], 0), ([hold(cores=30, policy="Elastic", revision=2)], 1), ([], 2)):
        node.holds = list(holds)
        for _ in range(3):
            node.step()
        assert len(woken) == times


def test_device_time_is_limited_only_where_the_node_does_that(tmp_path: Path) -> None:
    node = node_of(tmp_path, cores=False)
    node.holds = [hold(memory=20, cores=40, held=(4, 10))]
    node.step()
    assert (node.card.limit, node.card.rate) == (20 * GIB, 0)
    node.process.lock.close()


def test_prepare_counts_what_a_claim_has_grown_to(node: Node) -> None:
    assert with_limits(node.claims, CLAIM) == CLAIM
    node.holds = [hold(memory=20, cores=40, held=(4, 10))]
    node.step()
    assert dict(with_limits(node.claims, CLAIM).devices[0].consumed) == {
        "cores": "40",
        "memory": "20Gi",
        "slots": "1",
    }
    node.holds = [hold(memory=8, cores=10)]
    node.step()
    assert with_limits(node.claims, CLAIM) == CLAIM, "an allocation stays what it is"


@pytest.mark.parametrize(
    "spec",
    [
        {},
        {"owner": "claim a/b"},
        {"owner": "claim a/b", "seats": [{}]},
        {"owner": "claim a/b", "seats": [7]},
        {"owner": "gang a/b", "seats": [{"claims": [{"uid": UID}]}]},
        {"owner": "claim a/b", "seats": [{"claims": [{"uid": UID}], "limits": [{"memory": "x"}]}]},
    ],
)
def test_what_koordra_did_not_write_grants_nothing(spec: Object) -> None:
    assert resized_claim({"spec": spec}) is None


def test_two_shares_of_one_card_have_one_limit_together(tmp_path: Path) -> None:
    other = replace(SHARE, share_id="s2", request="other", consumed=(("cores", "10"), ("memory", "8Gi")))
    record = replace(CLAIM, devices=(SHARE, other))
    node = node_of(tmp_path, record=record)
    node.holds = []
    node.step()
    assert (node.card.limit, node.card.rate) == (24 * GIB, 4000), "as an earlier koordra did not say"
    assert with_limits(tmp_path, record) == record
    node.holds = [hold(memory=20, cores=40, held=(4, 10))]
    states = [node.step(), node.resizer.state(UID, 1)]
    assert (node.card.limit, node.card.rate) == (28 * GIB, 5000)
    assert states[0] == states[1]
    assert states[0] is not None
    assert "memory 28Gi (allocated 24Gi), cores 50% (allocated 40%)" in states[0].message
    grown, same = with_limits(tmp_path, record).devices
    assert dict(grown.consumed) == {"cores": "40", "memory": "20Gi", "slots": "1"}
    assert same == other
    node.process.write(held=26 * GIB)
    node.holds = [hold(memory=4, cores=30, revision=2)]
    node.step()
    assert node.card.limit == 24 * GIB, "no less than is held, no more than is allocated"
    node.process.write(held=GIB)
    node.step()
    assert node.card.limit == 12 * GIB
    node.process.lock.close()


def test_a_damaged_region_keeps_no_other_claim_waiting(tmp_path: Path) -> None:
    other = replace(CLAIM, ref=replace(CLAIM.ref, uid="0" + UID[1:]))
    node = node_of(tmp_path)
    node.resizer = ShareResizer(
        tmp_path, records=lambda: [other, CLAIM], holds=lambda: node.holds, cores=True
    )
    region.allow(tmp_path / other.ref.uid, claim="o", uuid=UUID, limit=GIB)
    (tmp_path / other.ref.uid / "policy").write_bytes(b"")
    node.holds = [hold(memory=20, held=(4, 0))]
    assert node.step() is not None
    assert node.card.limit == 20 * GIB
    node.process.lock.close()


def test_who_only_says_that_it_shrank_is_told_of(node: Node) -> None:
    """It acknowledges, and takes more past the limiter. `Limited: False` (OverLimit) says the driver."""
    node.holds = [hold(memory=8)]
    node.process.write(held=GIB, acknowledged=99)
    state = node.step()
    assert state is not None
    assert state.done, "the claim's own word"
    samples, uses = OveruseSamples(), {UID: usage.read(node.claims / UID)}
    over = over_limit(uses, {(UID, UUID): 12 * GIB})
    last = [samples.add(over, now=float(second)).get(UID) for second in range(10)][-1]
    assert last is not None
    verdict = overused(last, before=LimiterVerdict("enforcing", True, "Enforcing", ""))
    assert (verdict.enforced, verdict.reason) == (False, "OverLimit")
    assert "12" in verdict.message


def test_a_process_that_never_takes_a_change_costs_a_look_a_second(node: Node) -> None:
    clock = [100.0]
    node.resizer = ShareResizer(
        node.claims, records=lambda: [CLAIM], holds=lambda: node.holds, cores=True, clock=lambda: clock[0]
    )
    node.process.write(held=GIB, pending=512, acknowledged=0)
    node.holds = [hold(memory=20, held=(4, 0))]
    assert node.resizer.step().at_most == BRISK
    clock[0] += BRISK_FOR
    assert node.resizer.step().at_most == SLOW
    node.holds = [hold(memory=18, held=(4, 0), revision=2)]
    assert node.resizer.step().at_most == BRISK


def test_a_region_that_its_processes_have_damaged_still_has_its_limits(node: Node) -> None:
    node.holds = [hold(memory=20, held=(4, 0))]
    node.step()
    (node.claims / UID / "usage").write_bytes(b"")
    node.holds = [hold(memory=8, held=(4, 0), revision=2)]
    with capture_logs() as logs:
        assert node.step() is None
        assert node.step() is None
    assert usage.read_policy(node.claims / UID)[0][1] == 8 * GIB
    assert [one["event"] for one in logs] == ["share_not_resized"], "once"
