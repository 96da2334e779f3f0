"""How far the driver is released, step by step, on a clock of its own."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from koordra.api.objects import Object
from koordra.errors import CheckpointError
from koordra.kubelet_plugin.nvidia_driver.device_holders import DriverUsers, Holder
from koordra.kubelet_plugin.nvidia_driver.release import (
    CONFIRM_WITHIN,
    LET_GO_WITHIN,
    REPORT_FILE,
    REQUEST_FILE,
    USERS_AGAIN,
    USERS_EVERY,
    DriverRelease,
    Phase,
    ReleaseReport,
    read_report,
)
from koordra.kubelet_plugin.nvidia_driver.release_wanted import STATE_LABEL
from koordra.node_state.disk import Disk
from tests.fakes.clock import Clock
from tests.fakes.disks import FailingDisk, Killed, StepDisk, UnreadableDisk

CLAIM = "ResourceClaim team-a/train"
OTHER = Holder(4711, "nvidia-persistenced", ("/dev/nvidiactl",))


class Nvml:
    def __init__(self) -> None:
        self.open = True
        self.hangs = False
        self.calls: list[str] = []
        self.waited: list[float] = []

    def let_go(self, *, within: float) -> bool:
        self.open = self.hangs
        self.calls.append("let go")
        self.waited.append(within)
        return not self.hangs

    def take_up(self) -> None:
        self.open = True
        self.calls.append("take up")


class Node:
    """A node whose claims, processes, labels and clock a test moves."""

    def __init__(self, folder: Path, disk: Disk | None = None) -> None:
        self.folder = folder
        self.disk = disk or Disk()
        self.clock = Clock(1000.0)
        self.claims: list[str] = []
        self.users = DriverUsers()
        self.looks = 0
        self.told: list[ReleaseReport] = []
        self.start()

    def start(self) -> None:
        """A plugin that starts."""
        self.nvml = Nvml()
        self.release = DriverRelease(
            self.folder,
            self.folder / "root",
            nvml=self.nvml,
            claims=lambda: self.claims,
            users=self._users,
            changed=self.told.append,
            disk=self.disk,
            clock=self.clock.monotonic,
        )

    def _users(self, _root: Path) -> DriverUsers:
        self.looks += 1
        return self.users

    def label(self, state: str | None = None, *, paused: bool = False, unschedulable: bool = False) -> None:
        labels = {STATE_LABEL: state} if state else {}
        if paused:
            labels["nvidia.com/gpu.deploy.client"] = "paused-for-driver-upgrade"
        node: Object = {"metadata": {"name": "n", "labels": labels}, "spec": {"unschedulable": unschedulable}}
        self.release.see_node(node)

    def ask(self, token: str = "token") -> None:
        (self.folder / REQUEST_FILE).write_text(token)

    def step(self, after: float = 0.5) -> ReleaseReport:
        self.clock.now += after
        self.release.attempt()
        return self.release.report


@pytest.fixture
def node(tmp_path: Path) -> Node:
    return Node(tmp_path)


def test_nothing_happens_while_nobody_asks(node: Node) -> None:
    node.label()

    assert node.step() == ReleaseReport()
    assert not node.nvml.calls
    assert not node.looks
    assert not node.told


def test_a_request_closes_nvml_at_once_and_is_fulfilled_when_the_claims_are_gone(node: Node) -> None:
    node.claims = [CLAIM]
    node.ask()

    report = node.step()
    assert (report.phase, report.nvml_closed, report.claims) == (Phase.EVICTING, True, (CLAIM,))
    assert not node.nvml.open
    assert "release-driver" in report.withheld
    assert report.taint == "Evicting"

    node.claims = []
    report = node.step()
    assert (report.phase, report.request, report.users) == (Phase.RELEASED, "token", ())
    assert report.may_unload
    assert [each.phase for each in node.told] == [Phase.EVICTING, Phase.RELEASED]


def test_a_request_that_is_taken_back_takes_nvml_up_again(node: Node) -> None:
    node.ask()
    node.step()
    (node.folder / REQUEST_FILE).unlink()

    assert node.step() == ReleaseReport()
    assert node.nvml.calls == ["let go", "take up"]
    assert not node.release.report.withheld


def test_an_upgrade_by_policy_from_its_first_word_to_its_last(node: Node) -> None:
    node.claims = [CLAIM]
    seen = []
    for state in ("cordon-required", "wait-for-jobs-required", "pod-deletion-required"):
        node.label(state)
        report = node.step()
        seen.append((report.phase, node.nvml.open, bool(report.withheld)))
    assert seen == [
        (Phase.CLOSING, True, False),
        (Phase.CLOSING, True, False),
        (Phase.EVICTING, True, True),
    ]

    node.claims = []
    assert node.step().phase is Phase.RELEASED
    assert not node.nvml.open
    node.label("pod-restart-required", paused=True)
    assert node.step().phase is Phase.RELEASED
    node.label("validation-required")
    assert node.step().phase is Phase.CLOSING
    assert node.nvml.open
    node.label("upgrade-done")
    assert node.step() == ReleaseReport()


def test_a_paused_node_keeps_its_pods_and_nvml_is_let_go(node: Node) -> None:
    node.claims = [CLAIM]
    node.label(paused=True)

    report = node.step()

    assert (report.phase, report.nvml_closed, report.may_unload) == (Phase.CLOSING, True, True)
    assert report.withheld


def test_a_paused_node_that_is_cordoned_is_emptied_and_stays_so_between_attempts(node: Node) -> None:
    node.claims = [CLAIM]
    node.label(paused=True, unschedulable=True)
    assert node.step().phase is Phase.EVICTING
    node.label()
    assert node.step().phase is Phase.EVICTING
    node.claims = []
    assert node.step().phase is Phase.RELEASED

    assert node.step(after=600.0) == ReleaseReport()


def test_a_cordon_that_is_over_before_the_next_step_counts(node: Node) -> None:
    """driver-manager finds no pod that it knows, cannot unload the driver, and takes it back at once."""
    node.label(paused=True)
    node.label(paused=True, unschedulable=True)
    node.label()

    assert node.step().phase is Phase.EVICTING


def test_who_else_holds_the_driver_is_waited_for_a_while_and_then_named(node: Node) -> None:
    node.users = DriverUsers((OTHER,))
    node.ask()
    node.step()

    assert node.step().phase is Phase.EVICTING
    assert node.step(after=CONFIRM_WITHIN - 1).phase is Phase.EVICTING
    report = node.step(after=2.0)

    assert report.phase is Phase.RELEASED
    assert report.users == ("nvidia-persistenced (pid 4711, no pod) holds /dev/nvidiactl",)


def test_who_comes_once_it_is_released_does_not_take_that_back(node: Node) -> None:
    """nvidia-smi of an administrator, an exporter's look."""
    node.ask()
    node.step()
    assert node.step().phase is Phase.RELEASED
    node.users = DriverUsers((OTHER,))

    report = node.step(after=USERS_AGAIN)
    assert (report.phase, len(report.users)) == (Phase.RELEASED, 1)


def test_a_claim_that_was_just_being_prepared_is_waited_for(node: Node) -> None:
    """Prepare refuses from the first step on, so only what is read after it is believed to be all."""
    node.ask()
    node.step()
    assert [(each.phase, bool(each.withheld)) for each in node.told] == [(Phase.EVICTING, True)]
    node.claims = [CLAIM]

    assert node.step().phase is Phase.EVICTING


def test_an_nvml_that_hangs_is_not_said_to_be_closed(node: Node) -> None:
    node.nvml.hangs = True
    node.ask()
    node.step()
    report = node.step(after=2 * CONFIRM_WITHIN)
    assert (report.phase, report.nvml_closed, report.may_unload) == (Phase.EVICTING, False, False)
    assert node.nvml.waited[0] == LET_GO_WITHIN
    assert not any(node.nvml.waited[1:])  # nobody else waits for it

    node.nvml.hangs = False
    report = node.step()
    assert (report.phase, report.nvml_closed, report.may_unload) == (Phase.RELEASED, True, True)


def test_who_ends_in_time_is_not_named(node: Node) -> None:
    node.users = DriverUsers((OTHER,))
    node.ask()
    node.step()
    node.step()
    node.users = DriverUsers()

    report = node.step(after=USERS_EVERY)

    assert (report.phase, report.users) == (Phase.RELEASED, ())


def test_processes_are_looked_for_only_now_and_then(node: Node) -> None:
    node.claims = [CLAIM]
    node.users = DriverUsers((OTHER,))
    node.ask()
    node.step()
    assert not node.looks  # it is known who holds it

    node.claims = []
    for _ in range(8):
        node.step(after=USERS_EVERY / 4)
    assert node.looks == 2


def test_a_plugin_that_starts_goes_on_where_the_last_one_ended(node: Node) -> None:
    node.label("drain-required")
    node.step()
    assert node.step().phase is Phase.RELEASED
    node.start()

    assert not node.nvml.open
    assert node.step().phase is Phase.RELEASED  # the Node was not seen yet
    node.label("upgrade-done")
    assert node.step().phase is Phase.IN_USE
    assert node.nvml.open


def test_a_request_holds_over_a_restart_without_the_api(node: Node) -> None:
    node.ask()
    node.step()
    node.start()
    node.claims = [CLAIM]

    assert node.step().phase is Phase.EVICTING
    assert not node.nvml.open


class DyingNode(Node):
    """Whose plugin is killed at the step number `at`: at whatever it asks of others, and as it writes."""

    def __init__(self, folder: Path, at: int) -> None:
        self.left = at
        node = self

        class Dying(StepDisk):
            def at_step(self, step: str, path: Path) -> None:
                node.tick()

        super().__init__(folder, disk=Dying())
        for name in ("_claims", "_users", "_changed"):
            setattr(self.release, name, self._ticking(getattr(self.release, name)))
        self.nvml.let_go = self._ticking(self.nvml.let_go)  # type: ignore[method-assign]
        self.nvml.take_up = self._ticking(self.nvml.take_up)  # type: ignore[method-assign]

    def tick(self) -> None:
        self.left -= 1
        if self.left < 0:
            raise Killed

    def _ticking(self, call: Callable[..., Any]) -> Callable[..., Any]:
        def ticking(*given: Any, **named: Any) -> Any:
            self.tick()
            found = call(*given, **named)
            self.tick()
            return found

        return ticking


@pytest.mark.parametrize("resumes", [False, True])
def test_killed_between_any_two_steps_it_goes_on(tmp_path: Path, resumes: bool) -> None:
    """And what the file says of NVML is so at every moment: driver-manager goes by it."""
    for at in itertools.count():
        folder = tmp_path / str(at)
        folder.mkdir()
        node = DyingNode(folder, at)
        try:
            node.claims = [CLAIM]
            node.ask()
            node.step()
            node.claims = []
            node.step()
            if resumes:
                (folder / REQUEST_FILE).unlink()
                node.step()
        except Killed:
            told = read_report(folder, Disk())
            assert told is None or not told.may_unload or not node.nvml.open
        node.disk, node.claims = Disk(), []
        node.start()
        if resumes:
            (folder / REQUEST_FILE).unlink(missing_ok=True)
        node.label()
        node.step()
        assert node.step().phase is (Phase.IN_USE if resumes else Phase.RELEASED)
        assert node.nvml.open is resumes
        if node.left >= 0 or at > 200:
            break
    assert 20 < at < 200


def test_unknown_claims_keep_the_phase(tmp_path: Path) -> None:
    node = Node(tmp_path)
    node.ask()

    def unreadable() -> list[str]:
        raise CheckpointError("it is damaged")

    node.release._claims = unreadable
    assert node.step().phase is Phase.IN_USE
    assert not node.nvml.open  # whoever has claims: NVML is nobody's


def test_a_full_disk_does_not_keep_the_taint_away(tmp_path: Path) -> None:
    node = Node(tmp_path, disk=FailingDisk(full=True))
    node.claims = [CLAIM]
    node.label("drain-required")

    assert node.step().taint == "Evicting"
    assert read_report(tmp_path, Disk()) is None
    node.disk.full = False  # type: ignore[attr-defined]
    node.step()
    assert read_report(tmp_path, Disk()) == node.release.report


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b'{"phase": "Else"}'])
def test_a_damaged_report_is_none(tmp_path: Path, content: bytes) -> None:
    (tmp_path / REPORT_FILE).write_bytes(content)

    assert read_report(tmp_path, Disk()) is None
    assert Node(tmp_path).release.report == ReleaseReport()


@pytest.mark.parametrize(("asked", "phase"), [("drain-required", Phase.RELEASED), (None, Phase.IN_USE)])
def test_from_a_report_that_the_disk_does_not_give_nvml_stays_closed_until_the_node_is_seen(
    node: Node, asked: str | None, phase: Phase
) -> None:
    """Or a plugin that restarts while the driver is exchanged would open it."""
    node.label(asked)
    node.step()
    node.step()
    node.disk = UnreadableDisk(0)
    node.start()
    assert not node.nvml.open
    assert "cannot be read" in node.release.report.withheld
    assert node.step().phase is Phase.CLOSING, "not written over"
    node.label(asked)
    node.step()
    assert node.step().phase is phase
    assert node.nvml.open == (phase is Phase.IN_USE)
    assert read_report(node.folder, Disk()) == node.release.report


def test_a_request_that_the_disk_does_not_give_changes_nothing(node: Node) -> None:
    node.ask()
    node.step()
    before = node.step()
    assert before.phase is Phase.RELEASED
    assert isinstance(node.release, DriverRelease)
    node.release._disk = UnreadableDisk(0)
    assert node.step() == before
    assert not node.nvml.open
    assert node.step() == before
    (node.folder / REQUEST_FILE).unlink()
    assert node.step(100.0).phase is Phase.IN_USE


def test_the_report_is_the_plugins_own(node: Node) -> None:
    node.ask()
    node.step()

    assert (node.folder / REPORT_FILE).stat().st_mode & 0o777 == 0o600
