"""Xids from the kernel's log: whose records count, and what they say."""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
from collections import deque

import pytest
from hypothesis import given
from hypothesis import strategies as st

from koordra.kubelet_plugin.discovery.events import DriverLoaded, Event, HardwareChanged, XidReported
from koordra.kubelet_plugin.discovery.events.kernel_log import (
    KMSG,
    KernelLog,
    KernelRecord,
    kernel_record,
)

BUS_ID = "0000:3b:00.0"
FIRST = 101
"""Sequence number of the first record."""
LOADED = "NVRM: loading NVIDIA UNIX Open Kernel Module for x86_64  580.65.06  Release Build"


def xid(number: int, *, bus_id: str = BUS_ID, sequence: int = FIRST) -> XidReported:
    return XidReported(bus_id, number, sequence)


def line(number: int) -> str:
    return (
        f"NVRM: Xid (PCI:0000:3b:00): {number}, pid='<unknown>', name=<unknown>, GPU has fallen off the bus."
    )


class Log:
    """The kernel's log as a descriptor gives it: a record a read, errors where they are put in."""

    def __init__(self, *texts: str | int) -> None:
        self.records: deque[bytes | OSError] = deque()
        self.sequence = FIRST - 1
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

    def source(self, *, following: int = 0) -> KernelLog:
        """A plugin that starts: it opens the log at its beginning."""
        return KernelLog(os.open(os.devnull, os.O_RDONLY), following=following, read=self.read)


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
    assert KernelRecord(FIRST, text).event == expected


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
        assert record.event is None or record.event.sequence == record.sequence


def test_what_the_ledger_has_is_passed_over() -> None:
    history = "booting", line(79), "more", line(48)

    assert taken(Log(*history).source()) == [xid(79, sequence=102), xid(48, sequence=104)]
    assert taken(Log(*history, line(74)).source(following=105)) == [xid(74, sequence=105)]


def test_what_comes_while_the_plugin_runs_is_told_once() -> None:
    log = Log("booting")
    with contextlib.closing(log.source()) as source:
        assert not source.take()
        log.say(line(79))
        assert source.take() == [xid(79, sequence=102)]
        assert not source.take()


def test_errors_before_the_driver_was_loaded_anew_are_over() -> None:
    assert taken(Log(line(79), LOADED, line(48)).source()) == [DriverLoaded(102), xid(48, sequence=103)]
    assert taken(Log(line(79), line(48), LOADED).source()) == [DriverLoaded(103)]


def test_a_process_cannot_pretend_an_xid() -> None:
    log = Log()
    log.say(line(79), priority=12)

    assert not taken(log.source())


@pytest.mark.parametrize("name", ["NVRM: Xid (PCI:", "NVRM: Xid (0000", "NVRM: loading N"])
def test_nor_can_its_name_which_begins_some_of_the_kernels_own_lines(name: str) -> None:
    """At most 15 bytes of it (TASK_COMM_LEN)."""
    assert len(name) == 15
    for text in (
        f"{name}[4711]: segfault at 0 ip 0",
        f"{name}: page allocation failure",
        f"{name} (4711): x",
    ):
        assert KernelRecord(FIRST, text).event is None


def test_lost_records_are_told_and_the_rest_is_read() -> None:
    log = Log(errno.EPIPE, errno.EINVAL, line(79))

    assert taken(log.source()) == [HardwareChanged("records of the kernel's log were lost"), xid(79)]


def test_a_log_that_cannot_be_read_any_more_is_closed() -> None:
    source = Log(errno.EIO, line(79)).source()

    assert not source.take()
    assert source.fileno() < 0


@pytest.mark.skipif(not os.access(KMSG, os.R_OK | os.W_OK), reason="the kernel's log cannot be written here")
def test_the_real_log_is_read_and_what_a_process_writes_to_it_is_not_believed() -> None:
    marker = secrets.randbelow(90000) + 10000
    source = KernelLog.opened(KMSG)
    with contextlib.closing(source):
        before = source.take()
        KMSG.write_text(f"<4>{line(marker)}\n")
        written = os.read(source.fileno(), 8192)

        assert line(marker).encode() in written
        assert kernel_record(written) is None
        assert not [event for event in before if isinstance(event, XidReported) and event.number == marker]
