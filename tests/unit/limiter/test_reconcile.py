"""The node's second look, over real regions with real processes in them; NVML's lists are a table that the
test changes."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path

import pytest

from koordra.errors import NodeError
from koordra.kubelet_plugin.isolation.limiter import region
from koordra.kubelet_plugin.isolation.limiter import region as layout
from koordra.kubelet_plugin.isolation.limiter import usage as limiter_usage
from koordra.kubelet_plugin.isolation.limiter.reconcile import Reconciler
from koordra.kubelet_plugin.isolation.limiter.report import enforces
from koordra.kubelet_plugin.isolation.limiter.unaccounted_memory import USUAL, Contexts
from koordra.kubelet_plugin.sampling.host_processes import HostProcesses, start_time
from koordra.kubelet_plugin.sampling.nvml_cards import CardProcesses
from koordra.metrics import Metrics
from koordra.topology.machine import Machine
from koordra.topology.presets import write_machine
from tests.fakes.metric_samples import sample
from tests.unit.limiter.native_build import environment

GIB = 1 << 30
MIB = 1 << 20
UID = "8d0c3a52-5b0e-4b57-9d2b-4a3f6f1d2c11"


@dataclass
class Lists:
    """What NVML would say: bytes by pid, of the one card. `broken`: it does not answer."""

    uuid: str
    used: dict[int, int | None] = field(default_factory=dict)
    computing: set[int] = field(default_factory=set)
    broken: bool = False
    through_mps: bool = False
    asked: int = 0

    def __call__(self, uuids: Iterable[str]) -> Mapping[str, CardProcesses]:
        self.asked += 1
        assert self.uuid in set(uuids)
        if self.broken:
            raise NodeError("NVML cannot be asked for processes: driver not loaded")
        return {
            self.uuid: CardProcesses(
                dict(self.used), frozenset(self.computing or self.used), self.through_mps
            )
        }


@dataclass
class Node:
    claims: Path
    lists: Lists
    contexts: Contexts
    metrics: Metrics
    told: dict[int, str]
    changes: list[str]
    reconciler: Reconciler

    @property
    def share(self) -> limiter_usage.CardUse:
        return limiter_usage.read(self.claims / UID).devices[0]


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return write_machine("hgx-h100", tmp_path / "root", serial="reconcile")


@pytest.fixture
def node(tmp_path: Path, machine: Machine, monkeypatch: pytest.MonkeyPatch) -> Node:
    monkeypatch.setattr(HostProcesses, "all_seen", True)
    uuid = str(machine.gpus[0].uuid)
    claims = tmp_path / "claims"
    lists, metrics = Lists(uuid), Metrics()
    contexts = Contexts(tmp_path / "contexts.json", machine=lambda: machine)
    told: dict[int, str] = {}
    changes: list[str] = []
    region.allow(
        claims / UID,
        claim=UID,
        uuid=uuid,
        limit=4 * GIB,
        context_bytes=contexts.bytes_for(uuid),
    )
    reconciler = Reconciler(
        claims,
        contexts=contexts,
        metrics=metrics,
        processes=HostProcesses(claims, claim_of=lambda pid, started: told.get(pid) if started else None),
        lists=lists,
        changed=lambda: changes.append("changed"),
        clock=count().__next__,
    )
    return Node(claims, lists, contexts, metrics, told, changes, reconciler)


@pytest.fixture
def tenant(built: Path, node: Node, tmp_path: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A process of the claim that holds its context's reserve and 2 GiB."""
    program = str(built / "test" / "tenant")
    subprocess.run([program, "--world", str(tmp_path), node.lists.uuid, str(80 * GIB)], check=True)
    with subprocess.Popen(
        [program, str(GIB), "stay"],
        env=environment(built, regions=node.claims, world=tmp_path),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as process:
        assert process.stdout is not None
        assert json.loads(process.stdout.readline())["within"] == 0
        node.told[process.pid] = UID
        try:
            yield process
        finally:
            process.kill()


def test_contexts_and_modules_are_counted_by_reconciliation(
    node: Node, tenant: subprocess.Popen[bytes]
) -> None:
    held = node.share.used
    assert held > GIB + USUAL["Hopper"], "the first context is reserved before NVML was ever asked"
    node.lists.used[tenant.pid] = held + 300 * MIB
    node.reconciler.once()
    assert node.share.unseen == 300 * MIB
    assert node.share.used == held + 300 * MIB
    figures = {"namespace": "", "claim": UID, "pod": "", "container": "", "UUID": node.lists.uuid}
    assert sample(node.metrics, "koordra_limiter_unseen_bytes", figures) == 300 * MIB
    assert sample(node.metrics, "koordra_limiter_used_bytes", figures) == held + 300 * MIB
    asked = node.lists.asked
    node.reconciler.once()
    assert node.lists.asked == asked + 1, "nothing has changed, so one look is enough"


def test_unseen_bytes_make_the_limiter_refuse(
    node: Node, tenant: subprocess.Popen[bytes], built: Path, tmp_path: Path
) -> None:
    node.lists.used[tenant.pid] = node.share.used + 600 * MIB
    node.reconciler.once()
    left = 4 * GIB - node.share.used - USUAL["Hopper"]
    assert 0 < left < GIB
    second = subprocess.run(
        [str(built / "test" / "tenant"), str(left)],
        env=environment(built, regions=node.claims, world=tmp_path),
        capture_output=True,
        check=True,
    )
    said = json.loads(second.stdout)
    assert (said["past"], said["within"], said["free"]) == (2, 0, 0)


def test_a_process_that_vanished_takes_its_unseen_bytes_along(
    node: Node, tenant: subprocess.Popen[bytes]
) -> None:
    node.lists.used[tenant.pid] = 6 * GIB
    node.reconciler.once()
    assert node.share.unseen > 0
    tenant.kill()
    tenant.wait()
    node.reconciler.once()  # the driver's list is older than the process's end
    assert node.share.unseen == 0
    node.lists.used.clear()
    node.reconciler.once()
    assert (node.share.unseen, node.share.used) == (0, 0)


def test_while_nvml_does_not_answer_figures_stay(node: Node, tenant: subprocess.Popen[bytes]) -> None:
    node.lists.used[tenant.pid] = node.share.used + 300 * MIB
    node.reconciler.once()
    node.lists.broken = True
    node.reconciler.once()
    assert node.share.unseen == 300 * MIB
    assert sample(node.metrics, "koordra_limiter_looks_total", {"result": "failed"}) == 1
    node.lists.broken = False
    node.lists.used[tenant.pid] = None
    node.reconciler.once()
    assert node.share.unseen == 300 * MIB, "the driver lists the process and does not tell its bytes"


def test_who_computes_without_the_limiter_is_found_at_the_second_look(
    node: Node, tenant: subprocess.Popen[bytes]
) -> None:
    node.lists.used[tenant.pid] = node.share.used
    with subprocess.Popen(["sleep", "600"]) as stranger:
        node.told[stranger.pid] = UID
        node.lists.used[stranger.pid] = 700 * MIB
        node.reconciler.once()
        assert node.share.unseen == 700 * MIB, "its bytes count at once"
        assert enforces(node.claims, UID) is True
        node.reconciler.once()
        assert enforces(node.claims, UID) is False
        assert sample(node.metrics, "koordra_limiter_outside_processes") == 1
        assert sample(node.metrics, "koordra_limiter_claims", {"state": "bypassed"}) == 1
        stranger.kill()
    node.reconciler.once()
    assert enforces(node.claims, UID) is True
    assert node.share.unseen == 0


def test_a_restart_of_the_plugin_does_not_take_back_what_was_told(
    node: Node, tenant: subprocess.Popen[bytes]
) -> None:
    with subprocess.Popen(["sleep", "600"]) as stranger:
        node.told[stranger.pid] = UID
        node.lists.used[stranger.pid] = MIB
        node.reconciler.once()
        node.reconciler.once()
        assert enforces(node.claims, UID) is False
        again = Reconciler(
            node.claims,
            contexts=node.contexts,
            metrics=Metrics(),
            processes=HostProcesses(node.claims, claim_of=lambda pid, _started: node.told.get(pid)),
            lists=node.lists,
        )
        again.once()
        assert enforces(node.claims, UID) is False
        node.lists.used.clear()
        again.once()
        assert enforces(node.claims, UID) is True
        stranger.kill()


def test_a_process_that_ends_slowly_is_not_outside(node: Node, tenant: subprocess.Popen[bytes]) -> None:
    """Between the end of its memory, with which its slot goes, and the end of its descriptors the driver
    lists it still."""
    held = node.share.used
    node.lists.used[tenant.pid] = held
    node.reconciler.once()
    tenant.kill()
    os.waitid(os.P_PID, tenant.pid, os.WEXITED | os.WNOWAIT)
    for _ in range(3):
        node.reconciler.once()
        assert enforces(node.claims, UID) is True
        assert node.share.unseen == 0, "the limiter counts its slot until somebody gives it back"


def test_a_process_of_nobody_is_no_claims(node: Node, tenant: subprocess.Popen[bytes]) -> None:
    node.lists.used = {tenant.pid: node.share.used, 1: 5 * GIB}
    node.reconciler.once()
    assert node.share.unseen == 0


def test_a_context_is_learned_from_what_nvml_says_and_kept_for_the_next(
    node: Node, tenant: subprocess.Popen[bytes]
) -> None:
    node.lists.used[tenant.pid] = (
        node.share.used - USUAL["Hopper"] + 420 * MIB
    )  # the context and its modules take 420 MiB
    node.reconciler.once()
    assert node.share.context_bytes == USUAL["Hopper"], "it may not be complete at the first look"
    node.reconciler.once()
    node.reconciler.once()
    assert node.share.context_bytes == node.contexts.bytes_for(node.lists.uuid) == 420 * MIB


def test_a_change_of_the_handshake_is_told_once(node: Node, tenant: subprocess.Popen[bytes]) -> None:
    node.reconciler.once()
    assert node.changes == ["changed"]
    node.reconciler.once()
    assert node.changes == ["changed"]
    with (node.claims / UID / "usage").open("r+b") as usage:
        usage.seek(8)
        usage.write(b"\xff")
    node.reconciler.once()
    assert node.changes == ["changed"] * 2
    assert enforces(node.claims, UID) is False
    assert sample(node.metrics, "koordra_limiter_claims", {"state": "damaged"}) == 1


def test_a_region_that_a_tenant_made_longer_is_cut_back(node: Node) -> None:
    usage = node.claims / UID / "usage"
    with usage.open("ab") as file:
        file.write(b"x" * 10_000_000)
    node.reconciler.once()
    assert usage.stat().st_size == layout.USAGE_BYTES
    assert sample(node.metrics, "koordra_limiter_cut_back_total") == 1


def test_who_writes_over_the_ledger_is_counted_and_told(node: Node, tenant: subprocess.Popen[bytes]) -> None:
    """What it held is beyond the ledger then, and it has no slot any more."""
    held = node.share.used
    node.lists.used[tenant.pid] = held
    node.reconciler.once()
    assert (node.share.unseen, enforces(node.claims, UID)) == (0, True)
    with (node.claims / UID / "usage").open("r+b") as usage:
        usage.seek(192)
        usage.write(bytes(layout.USAGE_BYTES - 192))
    node.reconciler.once()
    assert node.share.unseen == held
    node.reconciler.once()
    assert enforces(node.claims, UID) is False
    assert sample(node.metrics, "koordra_limiter_outside_processes") == 1


def test_a_look_says_whether_anything_has_happened(node: Node, tenant: subprocess.Popen[bytes]) -> None:
    assert node.reconciler.once() is True
    node.lists.used[tenant.pid] = node.share.used
    assert node.reconciler.once() is False
    node.lists.used[tenant.pid] = node.share.used + MIB
    assert node.reconciler.once() is True
    assert node.reconciler.once() is False
    tenant.kill()
    tenant.wait()
    assert node.reconciler.once() is True


def test_without_limited_claims_nvml_is_left_alone(node: Node) -> None:
    for name in ("policy", "usage"):
        (node.claims / UID / name).unlink()
    node.reconciler.once()
    assert node.lists.asked == 0
    assert start_time(1) is not None


def test_bytes_past_the_limiter_are_reported_as_over_the_limit_until_they_are_gone(
    node: Node, tenant: subprocess.Popen[bytes]
) -> None:
    """As of a driver that was loaded behind the limiter: NVML has more for the process than its share."""
    node.lists.used[tenant.pid] = 4 * GIB + USUAL["Hopper"] + MIB
    node.reconciler.once()
    assert node.reconciler.overused == {}, "one reading is none"
    for _ in range(5):
        node.reconciler.once()
    found = node.reconciler.verdict(UID)
    assert found is not None
    assert (found.enforced, found.reason) == (False, "OverLimit")
    assert "5" in found.message
    assert sample(node.metrics, "koordra_limiter_claims", {"state": "overused"}) == 1
    assert node.changes
    node.lists.used[tenant.pid] = 3 * GIB
    node.reconciler.once()
    found = node.reconciler.verdict(UID)
    assert found is not None
    assert found.reason == "Enforcing"


@pytest.mark.parametrize("damage", ["cut", "written over", "gone"])
def test_who_damages_the_region_is_over_the_limit_all_the_same(
    node: Node, tenant: subprocess.Popen[bytes], damage: str
) -> None:
    """Share and context are the node's own figures, and the bytes are the driver's."""
    usage = node.claims / UID / "usage"
    if damage == "cut":
        os.truncate(usage, 0)
    elif damage == "written over":
        with usage.open("r+b") as file:
            file.write(os.urandom(64))
    else:
        usage.unlink()
    node.reconciler.once()
    found = node.reconciler.verdict(UID)
    assert found is not None
    assert (found.enforced, found.reason) == (False, "RegionDamaged")
    node.lists.used[tenant.pid] = 4 * GIB + USUAL["Hopper"] + MIB
    for _ in range(6):
        node.reconciler.once()
    found = node.reconciler.verdict(UID)
    assert found is not None
    assert found.reason == "OverLimit"
    assert list(node.reconciler.overused) == [UID]


def test_what_nvml_charges_an_mps_server_is_nobodys_overuse(
    node: Node, tenant: subprocess.Popen[bytes]
) -> None:
    node.lists.used[tenant.pid] = 40 * GIB
    node.lists.through_mps = True
    for _ in range(10):
        node.reconciler.once()
    assert node.reconciler.overused == {}
