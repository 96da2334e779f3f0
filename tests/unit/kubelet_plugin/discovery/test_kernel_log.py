"""Xids from the kernel's log: whose records count, what they say, and that each is reported once."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import secrets
from collections import deque
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from koordra.kubelet_plugin.discovery.events import DriverLoaded, Event, HardwareChanged, XidReported
from koordra.kubelet_plugin.discovery.kernel_log import (
    FILE,
    KMSG,
    TWINS_WITHIN,
    FirstReports,
    KernelLog,
    KernelRecord,
    LogCursorFile,
    kernel_record,
    xid_of,
)
from koordra.node_state.disk import Disk
from tests.fakes.disks import FailingDisk

BUS_ID = "0000:3b:00.0"
BOOT = "0b8c5e4e-6b1e-4a8e-9d3b-1f1f2f3f4f5f"
LOADED = "NVRM: loading NVIDIA UNIX Open Kernel Module for x86_64  580.65.06  Release Build"


def xid(number: int, *, bus_id: str = BUS_ID) -> XidReported:
    return XidReported(bus_id, number, from_log=True)


def line(number: int) -> str:
    return (
        f"NVRM: Xid (PCI:0000:3b:00): {number}, pid='<unknown>', name=<unknown>, GPU has fallen off the bus."
    )


class Log:
    """The kernel's log as a descriptor gives it: a record a read, errors where they are put in."""

    def __init__(self, *texts: str | int) -> None:
        self.records: deque[bytes | OSError] = deque()
        self.sequence = 100
        self.say(*texts)

    def say(self, *texts: str | int, priority: int = 4) -> None:
        for text in texts:
            if isinstance(text, int):
                self.records.append(OSError(text, os.strerror(text)))
                continue
            self.sequence += 1
            self.records.append(f"{priority},{self.sequence},98134276,-;{text}\n SUBSYSTEM=pci\n".encode())

    def read(self, _descriptor: int, _most: int) -> bytes:
        if not self.records:
            raise BlockingIOError
        found = self.records.popleft()
        if isinstance(found, OSError):
            raise found
        return found

    def source(self, folder: Path, *, boot_id: str = BOOT, disk: Disk | None = None) -> KernelLog:
        """A plugin that starts: it opens the log at its beginning."""
        return KernelLog(
            os.open(os.devnull, os.O_RDONLY),
            boot_id=boot_id,
            cursor=LogCursorFile(folder, disk or Disk()),
            read=self.read,
        )


def taken(source: KernelLog) -> list[Event]:
    with contextlib.closing(source):
        return list(source.take())


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("NVRM: Xid (PCI:0000:3b:00): 79, pid=1234, name=python, GPU has fallen off the bus.", xid(79)),
        ("NVRM: Xid (PCI:0000:3b:00): 79, GPU has fallen off the bus.", xid(79)),
        ("NVRM: Xid (0000:3b:00): 31, Ch 00000005, engmask 00000111", xid(31)),
        ("NVRM: Xid (PCI:0000:3B:00 GPU-I:05): 94, Contained: SM (0x1). RST: No, D-RST: No", xid(94)),
        ("NVRM: Xid (PCI:0009:01:00): 145, RLW_REMAP Nonfatal", xid(145, bus_id="0009:01:00.0")),
        ("NVRM: Xid (PCI:00010002:01:00): 62, 32260b5e", xid(62, bus_id="10002:01:00.0")),
        ("NVRM: GPU at PCI:0000:3b:00: GPU-efbdfde9-5798-a6e7-4c46-12518fa15375", None),
        ("NVRM: Xid (PCI:0000:3b): 79", None),
        ("nvidia-nvswitch0: SXid (PCI:0000:c2:00.0): 20034, Fatal, Link 32 LTSSM Fault Up", None),
        ("someone says NVRM: Xid (PCI:0000:3b:00): 79", None),
    ],
)
def test_lines_of_the_driver_are_read(text: str, expected: XidReported | None) -> None:
    assert xid_of(text) == expected


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (b"4,1203,98134276,-;NVRM: x\n SUBSYSTEM=pci\n", KernelRecord(1203, "NVRM: x")),
        (b"6,339,5140900,-,caller=T1;NVRM: y\n", KernelRecord(339, "NVRM: y")),
        (b"12,1203,98134276,-;NVRM: x\n", None),  # facility 1: a process wrote it
        (b"30,1203,98134276,-;NVRM: x\n", None),
        (b"garbage", None),
        (b"", None),
    ],
)
def test_only_records_of_the_kernel_count(data: bytes, expected: KernelRecord | None) -> None:
    assert kernel_record(data) == expected


@given(st.binary(max_size=200))
def test_no_record_raises(data: bytes) -> None:
    record = kernel_record(data)
    if record is not None:
        xid_of(record.text)


def test_what_happened_while_nobody_listened_is_reported_once(tmp_path: Path) -> None:
    history = Log("booting", line(79), "more", line(48))

    assert taken(history.source(tmp_path)) == [xid(79), xid(48)]

    again = Log("booting", line(79), "more", line(48), line(74))
    assert taken(again.source(tmp_path)) == [xid(74)]


def test_what_comes_while_the_plugin_runs_is_not_reported_to_its_successor(tmp_path: Path) -> None:
    log = Log("booting")
    with contextlib.closing(log.source(tmp_path)) as source:
        assert not source.take()
        log.say(line(79))
        assert source.take() == [xid(79)]
        assert not source.take()

    assert not taken(Log("booting", line(79)).source(tmp_path))


def test_the_log_of_another_boot_is_all_new(tmp_path: Path) -> None:
    taken(Log(line(79), line(48)).source(tmp_path))

    assert taken(Log(line(79)).source(tmp_path, boot_id="another")) == [xid(79)]


def test_errors_before_the_driver_was_loaded_anew_are_over(tmp_path: Path) -> None:
    assert taken(Log(line(79), LOADED, line(48)).source(tmp_path)) == [
        DriverLoaded(),
        xid(48),
    ]
    assert taken(Log(line(79), line(48), LOADED).source(tmp_path, boot_id="another")) == [DriverLoaded()]


def test_a_process_cannot_pretend_an_xid(tmp_path: Path) -> None:
    log = Log()
    log.say(line(79), priority=12)

    assert not taken(log.source(tmp_path))


def test_lost_records_are_told_and_the_rest_is_read(tmp_path: Path) -> None:
    log = Log(errno.EPIPE, errno.EINVAL, line(79))

    assert taken(log.source(tmp_path)) == [HardwareChanged("records of the kernel's log were lost"), xid(79)]


def test_a_log_that_cannot_be_read_any_more_is_closed(tmp_path: Path) -> None:
    log = Log(errno.EIO, line(79))
    source = log.source(tmp_path)

    assert not source.take()
    assert source.fileno() < 0


def test_a_cursor_that_cannot_be_kept_does_not_lose_an_xid(tmp_path: Path) -> None:
    full = FailingDisk(full=True)

    assert taken(Log(line(79)).source(tmp_path, disk=full)) == [xid(79)]
    assert taken(Log(line(79)).source(tmp_path)) == [xid(79)]


@pytest.mark.parametrize("content", ["", "{", "[]", '{"bootID": 1}', json.dumps({"bootID": BOOT})])
def test_a_damaged_cursor_is_none(tmp_path: Path, content: str) -> None:
    (tmp_path / FILE).write_text(content)

    assert taken(Log(line(79)).source(tmp_path)) == [xid(79)]


def test_of_two_reports_of_one_xid_the_first_counts() -> None:
    reports = FirstReports()
    nvml = XidReported(BUS_ID, 79)

    assert reports.is_first(nvml, now=1.0)
    assert not reports.is_first(xid(79), now=1.1)
    assert reports.is_first(xid(79), now=1.2)  # it happened again
    assert not reports.is_first(nvml, now=1.3)
    assert reports.is_first(xid(48), now=1.4)
    assert reports.is_first(xid(79, bus_id="0000:5e:00.0"), now=1.5)
    assert reports.is_first(nvml, now=2.0)
    assert reports.is_first(xid(79), now=2.0 + TWINS_WITHIN)


@pytest.mark.skipif(not os.access(KMSG, os.R_OK | os.W_OK), reason="the kernel's log cannot be written here")
def test_the_real_log_is_read_and_what_a_process_writes_to_it_is_not_believed(tmp_path: Path) -> None:
    marker = secrets.randbelow(90000) + 10000
    source = KernelLog.opened(KMSG, boot_id=BOOT, cursor=LogCursorFile(tmp_path, Disk()))
    with contextlib.closing(source):
        before = source.take()
        KMSG.write_text(f"<4>{line(marker)}\n")
        written = os.read(source.fileno(), 8192)

        assert line(marker).encode() in written
        assert kernel_record(written) is None
        assert not [event for event in before if isinstance(event, XidReported) and event.number == marker]
