"""Durable files: the order of the steps is what makes them so."""

from __future__ import annotations

import os
import stat
import threading
from pathlib import Path

import pytest

from koordra.errors import CheckpointError
from koordra.node_state.disk import Disk, NotAFile, read_file
from koordra.node_state.locks import StateLock
from tests.fakes.descriptors import open_descriptors
from tests.fakes.in_place_of_files import IN_PLACE_OF_A_FILE
from tests.patience import PATIENCE


class TracedDisk(Disk):
    """Writes down what is synced, and when names change."""

    def __init__(self) -> None:
        self.trace: list[str] = []

    def sync(self, descriptor: int) -> None:
        path = Path(f"/proc/self/fd/{descriptor}").readlink()
        size = "" if path.is_dir() else f" with {os.fstat(descriptor).st_size} bytes"
        self.trace.append(f"fsync {path.name}{size}")
        super().sync(descriptor)

    def rename(self, source: Path, target: Path) -> None:
        self.trace.append(f"rename {source.name} {target.name}")
        super().rename(source, target)

    def unlink(self, path: Path) -> None:
        self.trace.append(f"unlink {path.name}")
        super().unlink(path)


def test_data_is_synced_before_the_name_and_the_name_before_the_end(tmp_path: Path) -> None:
    disk = TracedDisk()
    disk.replace(tmp_path / "state" / "a.json", b"12345", mode=0o644)
    assert disk.trace == ["fsync a.json.tmp with 5 bytes", "rename a.json.tmp a.json", "fsync state"]
    disk.trace.clear()
    assert disk.remove(tmp_path / "state" / "a.json")
    assert disk.trace == ["unlink a.json", "fsync state"]
    assert not disk.remove(tmp_path / "state" / "a.json")


def test_mode_is_independent_of_the_umask(tmp_path: Path) -> None:
    before = os.umask(0o077)
    try:
        Disk().replace(tmp_path / "a.json", b"", mode=0o644)
    finally:
        os.umask(before)
    assert (tmp_path / "a.json").stat().st_mode & 0o777 == 0o644


def test_a_planted_link_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "victim").write_text("precious")
    (tmp_path / "a.json.tmp").symlink_to(tmp_path / "victim")
    with pytest.raises(OSError, match="symbolic links"):
        Disk().replace(tmp_path / "a.json", b"{}", mode=0o600)
    assert (tmp_path / "victim").read_text() == "precious"


@pytest.mark.parametrize("what", IN_PLACE_OF_A_FILE)
def test_what_is_no_file_of_ours_is_not_read_and_holds_nobody_up(tmp_path: Path, what: str) -> None:
    path = tmp_path / "a.json"
    IN_PLACE_OF_A_FILE[what](path)
    descriptors = open_descriptors()
    with pytest.raises(NotAFile):
        Disk().read(path)
    assert open_descriptors() == descriptors
    Disk().replace(path, b"{}", mode=0o600)
    assert Disk().read(path) == b"{}", "the next write puts it right"


@pytest.mark.parametrize("said", [None, 0, 1, 100_000])
def test_a_file_is_read_whole_whatever_its_size_is_said_to_be(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, said: int | None
) -> None:
    """Files of /proc say 0, and others may have grown since."""
    path, data = tmp_path / "a.json", os.urandom(200_000)
    path.write_bytes(data)
    truth = os.fstat

    def fstat(descriptor: int) -> os.stat_result:
        found = list(truth(descriptor))
        found[stat.ST_SIZE] = len(data) if said is None else said
        return os.stat_result(found)

    monkeypatch.setattr(os, "fstat", fstat)
    assert read_file(path)[0] == data
    if said is not None:
        assert read_file(path, largest=150_000)[0] == data[:150_000]


def test_what_is_not_there_is_empty(tmp_path: Path) -> None:
    assert Disk().read(tmp_path / "none") is None
    assert Disk().names(tmp_path / "none") == []


def test_one_holder_at_a_time(tmp_path: Path) -> None:
    first, second = StateLock(tmp_path / "lock"), StateLock(tmp_path / "lock", timeout=0.05)
    with (
        first.held(),
        pytest.raises(CheckpointError, match=r"held for 0\.05 s by another instance"),
        second.held(),
    ):
        pytest.fail("two holders")
    with second.held():
        pass


def test_a_waiting_holder_gets_the_lock(tmp_path: Path) -> None:
    lock, order = StateLock(tmp_path / "lock"), []
    other = StateLock(tmp_path / "lock")

    def wait() -> None:
        with other.held():
            order.append("second")

    with lock.held():
        thread = threading.Thread(target=wait)
        thread.start()
        order.append("first")
    thread.join(PATIENCE)
    assert order == ["first", "second"]
