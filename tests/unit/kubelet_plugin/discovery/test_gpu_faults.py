"""The ledger of Xids outlives the plugin, and forgets with the boot, the driver or the card."""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from koordra.kubelet_plugin.discovery.events.kernel_log import KernelLog
from koordra.kubelet_plugin.discovery.gpu_faults import FILE, NO_FAULT, Fault, Ledger, LedgerFile
from koordra.node_state.disk import Disk
from koordra.topology.problems import Discovery
from tests.fakes.disks import DyingDisk, FailingDisk, Killed, StepDisk, UnreadableDisk
from tests.machines import catalogue

GPU0, GPU1 = "0000:0f:00.0", "0000:2d:00.0"
FOUND = Discovery(machine=catalogue.load("hgx-h100").machine(serial="x"), problems=())
UUID = FOUND.machine.gpus[0].uuid


def file_in(folder: Path, boot: str = "boot-1", disk: Disk | None = None) -> LedgerFile:
    return LedgerFile(folder, disk or Disk(), boot_id=boot)


def ledger(*xids: int, now: float = 0.0) -> Ledger:
    """With Xids of the first card."""
    made = Ledger()
    for number in xids:
        made = made.with_xid(GPU0, number, now=now)
    return made


def found(**changes: Any) -> Discovery:
    """The first card differs."""
    first, *others = FOUND.machine.gpus
    return replace(FOUND, machine=replace(FOUND.machine, gpus=(replace(first, **changes), *others)))


# ------------------------------------------------------------------------------------------------ judgement


def test_a_fault_stays_while_nothing_speaks_against_it() -> None:
    after = ledger(48).after_reading(FOUND, now=1e6)
    assert after.faults == {GPU0: Fault((48,), 0.0, UUID or "")}
    assert after.judge(FOUND).machine.gpus[0].faults == ("Xid48",)


def test_what_follows_does_not_hide_what_came_first() -> None:
    """After an Xid 79 the driver reports 154 and others; `--drain-on Xid79` means that card."""
    assert ledger(79, 48, 79, 154).judge(FOUND).machine.gpus[0].faults == ("Xid79", "Xid48")


@pytest.mark.parametrize("number", sorted(NO_FAULT))
def test_what_a_program_can_cause_says_nothing_about_the_card(number: int) -> None:
    assert ledger(number) == Ledger()


def test_the_documentation_lists_them() -> None:
    text = (Path(__file__).resolve().parents[4] / "docs/health.md").read_text()
    (listed,) = re.findall(r"restart of the program: ([-0-9,\s]+)\.", text)
    numbers: set[int] = set()
    for entry in listed.split(","):
        first, _, last = entry.strip().partition("-")
        numbers |= set(range(int(first), int(last or first) + 1))
    assert numbers == NO_FAULT


@pytest.mark.parametrize("number", [46, 48, 62, 64, 74, 79, 95, 110, 119, 120, 136, 140, 143, 145, 155, 158])
def test_what_needs_a_reset_or_more_does(number: int) -> None:
    assert ledger(number).faults


def test_the_drivers_word_counts_after_a_while() -> None:
    told = ledger(48, now=100.0)
    assert told.after_reading(found(recovered=True), now=101.0).faults
    assert not told.after_reading(found(recovered=True), now=106.0).faults
    assert told.after_reading(found(recovered=False), now=1e6).faults
    assert told.with_xid(GPU0, 48, now=105.0).after_reading(found(recovered=True), now=106.0).faults


def test_a_card_that_was_away_and_is_whole_again_is_well() -> None:
    after = ledger(79).after_reading(found(uuid=None), now=1.0)
    assert after.faults[GPU0].away
    assert not after.after_reading(FOUND, now=2.0).faults


def test_a_card_that_left_the_tree_was_away() -> None:
    gone = replace(FOUND, machine=replace(FOUND.machine, gpus=FOUND.machine.gpus[1:]))
    after = ledger(79).after_reading(gone, now=1.0)
    assert after.judge(gone) == gone
    assert not after.after_reading(FOUND, now=2.0).faults


def test_another_card_in_its_place_is_well(tmp_path: Path) -> None:
    """It was exchanged while the plugin was away; the driver is too old to say what the card needs."""
    file_in(tmp_path).save(ledger(79).after_reading(FOUND, now=1.0))
    after = file_in(tmp_path).load()
    assert not after.after_reading(found(uuid="GPU-00000000-0000-0000-0000-000000000000"), now=2.0).faults
    assert after.after_reading(FOUND, now=2.0).faults


def test_a_driver_that_is_loaded_anew_has_forgotten_what_its_cards_had() -> None:
    """The card has to be whole, which it may not be yet."""
    after = ledger(48).with_driver_reloaded()
    assert after.after_reading(found(uuid=None), now=1.0).faults
    assert not after.after_reading(FOUND, now=1.0).faults


# ----------------------------------------------------------------------------------------------- on the disk


def test_a_fault_is_known_to_the_next_plugin_of_the_boot(tmp_path: Path) -> None:
    told = ledger(79, now=812.5).with_xid(GPU1, 48, now=900.0).read_until(1203)
    file_in(tmp_path).save(told)
    assert file_in(tmp_path).load() == told
    assert told == Ledger({GPU0: Fault((79,), 812.5), GPU1: Fault((48,), 900.0)}, following=1204)
    assert (tmp_path / FILE).stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize("boots", [("boot-1", "boot-2"), ("", "")])
def test_it_is_not_known_in_the_next_boot(tmp_path: Path, boots: tuple[str, str]) -> None:
    """Nor where boots cannot be told apart: the kernel's log is read again then."""
    before, after = boots
    file_in(tmp_path, before).save(ledger(79).read_until(7))
    again = file_in(tmp_path, after)
    assert again.load() == Ledger()
    again.save(Ledger())
    assert GPU0 in (tmp_path / FILE).read_text()  # nothing to say, nothing written


def test_one_that_is_over_is_gone_from_the_disk(tmp_path: Path) -> None:
    file = file_in(tmp_path)
    file.save(ledger(79))
    file.save(Ledger())
    assert file_in(tmp_path).load() == Ledger()


def test_an_error_that_comes_by_the_thousand_is_written_once(tmp_path: Path) -> None:
    disk = StepDisk()
    file = file_in(tmp_path, disk=disk)
    known = Ledger()
    for sequence in range(10_000):
        known = known.with_xid(GPU0, (48, 79, 95)[sequence % 3], now=float(sequence)).read_until(sequence)
        file.save(known)
    assert [step for step, _ in disk.steps].count("rename") == 3
    file.save(known, also_the_place=True)
    assert file_in(tmp_path).load() == known


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{",
        b"[]",
        b'{"bootID": "boot-1", "faults": {"0000:0f:00.0": 79}}',
        b'{"bootID": "boot-1", "faults": {"0000:0f:00.0": {"xids": [79], "at": 1, "uuid": "", "away": false}}}',
        b"\xff",
        b"null",
    ],
)
def test_a_ledger_that_is_none_is_empty(tmp_path: Path, content: bytes) -> None:
    (tmp_path / FILE).write_bytes(content)
    file = file_in(tmp_path)
    assert file.load() == Ledger()
    file.save(ledger(79))
    assert file_in(tmp_path).load() == ledger(79)


def test_a_full_disk_costs_the_memory_and_nothing_else(tmp_path: Path) -> None:
    class Full(Disk):
        full = True

        def write(self, path: Path, data: bytes, mode: int, *, durable: bool = True) -> None:
            if self.full:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            super().write(path, data, mode, durable=durable)

    disk = Full()
    file = file_in(tmp_path, disk=disk)
    with capture_logs() as lines:
        file.save(ledger(79))
    assert [line["event"] for line in lines] == ["gpu_faults_not_saved"]
    disk.full = False
    file.save(ledger(79))
    assert file_in(tmp_path).load() == ledger(79)


RECORD = b"4,1203,98134276,-;NVRM: Xid (PCI:0000:0f:00): 79, GPU has fallen off the bus.\n"


def plugin(folder: Path, disk: Disk, read: Callable[[int, int], bytes]) -> Ledger:
    """What a plugin that starts knows when it has read the kernel's log."""
    file = file_in(folder, disk=disk)
    known = file.load()
    source = KernelLog(os.open(os.devnull, os.O_RDONLY), following=known.following, read=read)
    try:
        for event in source.take():
            known = known.read_until(event.sequence).with_xid(event.bus_id, event.number, now=1.0)  # type: ignore[union-attr]
    finally:
        source.close()
    file.save(known)
    return known


def test_a_plugin_that_is_killed_anywhere_has_remembered_an_xid_or_reads_it_again(tmp_path: Path) -> None:
    def log() -> Callable[[int, int], bytes]:
        return iter_of([RECORD])

    for step in range(100):
        folder = tmp_path / str(step)
        disk = DyingDisk(step)
        try:
            plugin(folder, disk, log())
        except Killed:
            assert plugin(folder, Disk(), log()).faults.keys() == {GPU0}
            assert file_in(folder).load().faults.keys() == {GPU0}
        else:
            assert step > 3
            return
    raise AssertionError("it never got through")


@pytest.mark.parametrize("step", range(9))
def test_any_one_step_of_its_file_fails(tmp_path: Path, step: int) -> None:
    """The fault is known all the same, and written with the next look."""
    disk = FailingDisk(step)
    file = file_in(tmp_path, disk=disk)
    known = file.load().with_xid(GPU0, 79, now=1.0)
    file.save(known)
    file.save(known)
    assert file_in(tmp_path).load().faults.keys() == {GPU0}
    assert not list(tmp_path.glob("*.tmp"))


def test_while_the_disk_does_not_give_it_the_kernels_log_is_read_again_and_it_is_not_written_over(
    tmp_path: Path,
) -> None:
    file_in(tmp_path).save(Ledger(following=1300).with_xid(GPU0, 79, now=1.0))
    unread = file_in(tmp_path, disk=UnreadableDisk(0))
    found = unread.load()
    assert found == Ledger(), "from its beginning"
    unread.save(found)
    assert file_in(tmp_path).load().following == 1300
    again = plugin(tmp_path, UnreadableDisk(0), iter_of([RECORD]))
    assert again.faults.keys() == {GPU0}


def iter_of(records: list[bytes]) -> Callable[[int, int], bytes]:
    def read(_descriptor: int, _most: int) -> bytes:
        if not records:
            raise BlockingIOError
        return records.pop(0)

    return read
