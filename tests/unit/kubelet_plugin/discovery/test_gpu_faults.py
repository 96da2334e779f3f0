"""The ledger of Xids outlives the plugin, and forgets with the boot or the driver."""

from __future__ import annotations

import errno
import os
from dataclasses import replace
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from koordra.kubelet_plugin.discovery.gpu_faults import (
    FILE,
    Fault,
    FaultFile,
    after_reading,
    with_driver_reloaded,
    with_xid,
)
from koordra.node_state.disk import Disk
from koordra.topology.problems import Discovery
from tests.machines import catalogue

GPU0, GPU1 = "0000:0f:00.0", "0000:2d:00.0"
FOUND = Discovery(machine=catalogue.load("hgx-h100").machine(serial="x"), problems=())


def ledger(folder: Path, boot: str = "boot-1", disk: Disk | None = None) -> FaultFile:
    return FaultFile(folder, disk or Disk(), boot_id=boot)


def test_a_fault_is_known_to_the_next_plugin_of_the_boot(tmp_path: Path) -> None:
    faults = with_xid(with_xid({}, GPU0, 79, now=812.5), GPU1, 48, now=900.0)
    ledger(tmp_path).save(faults)
    assert ledger(tmp_path).load() == faults == {GPU0: Fault(79, 812.5), GPU1: Fault(48, 900.0)}
    assert (tmp_path / FILE).stat().st_mode & 0o777 == 0o600


def test_it_is_not_known_in_the_next_boot(tmp_path: Path) -> None:
    ledger(tmp_path).save(with_xid({}, GPU0, 79, now=812.5))
    after = ledger(tmp_path, "boot-2")
    assert after.load() == {}
    after.save({})
    assert ledger(tmp_path).load() == {GPU0: Fault(79, 812.5)}  # nothing to say, nothing written


def test_one_that_is_over_is_gone_from_the_disk(tmp_path: Path) -> None:
    file = ledger(tmp_path)
    file.save(with_xid({}, GPU0, 79, now=812.5))
    file.save({})
    assert ledger(tmp_path).load() == {}


@pytest.mark.parametrize(
    "content", [b"", b"{", b"[]", b'{"bootID": "boot-1", "faults": {"0000:0f:00.0": 79}}', b"\xff", b"null"]
)
def test_a_ledger_that_is_none_is_empty(tmp_path: Path, content: bytes) -> None:
    (tmp_path / FILE).write_bytes(content)
    file = ledger(tmp_path)
    assert file.load() == {}
    file.save(with_xid({}, GPU0, 79, now=1.0))
    assert ledger(tmp_path).load() == {GPU0: Fault(79, 1.0)}


def test_a_full_disk_costs_the_memory_and_nothing_else(tmp_path: Path) -> None:
    class Full(Disk):
        def write(self, path: Path, data: bytes, mode: int, *, durable: bool = True) -> None:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with capture_logs() as lines:
        ledger(tmp_path, disk=Full()).save(with_xid({}, GPU0, 79, now=1.0))
    assert [line["event"] for line in lines] == ["gpu_faults_not_saved"]


def test_a_driver_that_is_loaded_anew_has_forgotten_what_its_cards_had() -> None:
    """The card has to be whole, which it may not be yet."""
    faults = with_driver_reloaded(with_xid({}, GPU0, 48, now=0.0))
    gpus = FOUND.machine.gpus
    broken = replace(FOUND, machine=replace(FOUND.machine, gpus=(replace(gpus[0], uuid=None), *gpus[1:])))
    assert after_reading(faults, broken, now=1.0)
    assert not after_reading(faults, FOUND, now=1.0)
