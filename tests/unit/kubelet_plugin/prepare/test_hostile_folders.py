"""What others do to our folders while the plugin runs: removed, replaced, obstructed, unreadable. What can be
done is done for every other claim, nothing is given out that is not certain, and what was in the way says
so."""

from __future__ import annotations

import errno
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from koordra.errors import CDIError, CheckpointError, KoordraError, PrepareError
from koordra.kubelet_plugin.cdi.claim_spec import file_name
from tests.fakes.disks import StepDisk
from tests.fakes.node_claims import claim, gpu, uid
from tests.unit.kubelet_plugin.conftest import PluginNode, prepare, ref_of

FIRST = claim(1, gpu("gpu", "gpu-0000-0f-00-0"))
SECOND = claim(2, gpu("gpu", "gpu-0000-2d-00-0"))
THIRD = claim(3, gpu("gpu", "gpu-0000-44-00-0"))


class FaultyDisk(StepDisk):
    """Reading or listing `path` fails with `error`."""

    def __init__(self, path: Path, error: int) -> None:
        super().__init__()
        self.path: Path | None = path
        self.error = error

    def _fail(self, path: Path) -> None:
        if path == self.path:
            raise OSError(self.error, os.strerror(self.error), str(path))

    def read(self, path: Path) -> bytes | None:
        self._fail(path)
        return super().read(path)

    def names(self, directory: Path) -> list[str]:
        self._fail(directory)
        return super().names(directory)

    def identity(self, path: Path) -> tuple[int, ...] | None:
        self._fail(path.parent)
        return super().identity(path)


@pytest.fixture
def prepared(node: PluginNode) -> PluginNode:
    prepare(node, FIRST)
    prepare(node, SECOND)
    node.claims.put(THIRD)
    return node


def test_the_cdi_folder_is_removed_while_claims_are_prepared(prepared: PluginNode) -> None:
    """The files come back by themselves, and neither Prepare nor Unprepare misses them meanwhile."""
    plugin = prepared.plugin()
    shutil.rmtree(prepared.paths.cdi)
    plugin.unprepare(ref_of(SECOND))
    assert plugin.prepare(ref_of(THIRD))
    assert not prepared.paths.cdi_file(uid(1)).exists()
    plugin.restore_files()
    assert {path.name for path in prepared.paths.cdi.iterdir()} == {file_name(uid(1)), file_name(uid(3))}
    assert prepared.holders() == {uid(1), uid(3)}


def overwrite(path: Path) -> None:
    path.write_bytes(path.read_bytes().replace(b"gpu", b"gup"))


def empty(path: Path) -> None:
    path.write_bytes(b"")


def same_size_and_time(path: Path) -> None:
    before = path.stat()
    overwrite(path)
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


def open_to_all(path: Path) -> None:
    path.chmod(0o666)


def link(path: Path) -> None:
    """To a file with the very content."""
    path.rename(path.with_suffix(".moved"))
    path.symlink_to(path.with_suffix(".moved"))


def hide(path: Path) -> None:
    path.chmod(0)


def replace_by_folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


def obstruct_too(path: Path) -> None:
    """The name under which the file is written before it is renamed."""
    path.unlink()
    path.with_name(f"{path.name}.tmp").mkdir()


def make_a_pipe_of_it(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


def link_to_nothing(path: Path) -> None:
    path.unlink()
    path.symlink_to("nowhere")


ALTERATIONS = [
    overwrite,
    empty,
    same_size_and_time,
    open_to_all,
    hide,
    link,
    link_to_nothing,
    Path.unlink,
    replace_by_folder,
    obstruct_too,
    make_a_pipe_of_it,
]


@pytest.mark.parametrize("alter", ALTERATIONS, ids=lambda alter: alter.__name__)
@pytest.mark.parametrize("what", ["cdi_file", "prepared_file", "metadata"])
def test_a_file_that_somebody_changed_is_put_right(
    prepared: PluginNode, what: str, alter: Callable[[Path], None]
) -> None:
    plugin = prepared.plugin()
    plugin.restore_files()  # from now on only what looks changed is read
    paths = prepared.paths
    folder = paths.claim_folder(uid(1))
    path = folder / "gpu.metadata.json" if what == "metadata" else getattr(paths, what)(uid(1))
    before, mode = path.read_bytes(), path.stat().st_mode
    alter(path)
    with capture_logs() as lines:
        plugin.restore_files()
        plugin.restore_files()
    assert (path.read_bytes(), path.lstat().st_mode) == (before, mode)
    restored = [line for line in lines if line["event"] == "claim_files_restored"]
    assert [(line["uid"], line["files"]) for line in restored] == [(uid(1), [path.name])]


def test_a_file_that_is_changed_right_after_it_was_written_is_put_right(prepared: PluginNode) -> None:
    """What stands there afterwards is not taken for what was written."""

    class Meddled(StepDisk):
        def rename(self, source: Path, target: Path) -> None:
            super().rename(source, target)
            if target == prepared.paths.cdi_file(uid(1)) and not meddled:
                meddled.append(target)
                overwrite(target)

    meddled: list[Path] = []
    before = prepared.paths.cdi_file(uid(1)).read_bytes()
    plugin = prepared.unrepaired(Meddled())
    plugin.repair()
    assert prepared.paths.cdi_file(uid(1)).read_bytes() != before
    plugin.restore_files()
    assert prepared.paths.cdi_file(uid(1)).read_bytes() == before


def test_a_pipe_under_the_name_that_is_written_first_holds_nobody_up(prepared: PluginNode) -> None:
    plugin = prepared.plugin()
    file = prepared.paths.cdi_file(uid(1))
    file.unlink()
    os.mkfifo(file.with_name(f"{file.name}.tmp"))
    with pytest.raises(CDIError, match=uid(1)):
        plugin.restore_files()
    plugin.restore_files()
    assert file.is_file()


def test_files_that_nobody_touched_are_not_read(prepared: PluginNode) -> None:
    """Nor are they after another instance has written the same."""
    read: list[Path] = []

    class Reading(StepDisk):
        def read(self, path: Path) -> bytes | None:
            read.append(path)
            return super().read(path)

    plugin = prepared.unrepaired(Reading())
    plugin.repair()
    prepared.plugin()
    with capture_logs() as lines:
        plugin.restore_files()
        assert paths_of(prepared) <= set(read)
        read.clear()
        plugin.restore_files()
    assert not paths_of(prepared) & set(read)
    assert not [line for line in lines if line["event"] == "claim_files_restored"]


def paths_of(node: PluginNode) -> set[Path]:
    return {
        file(uid(number)) for number in (1, 2) for file in (node.paths.cdi_file, node.paths.prepared_file)
    }


def test_something_else_stands_where_the_cdi_folder_was(prepared: PluginNode) -> None:
    plugin = prepared.plugin()
    kept = prepared.paths.cdi.with_name("kept")
    prepared.paths.cdi.rename(kept)
    prepared.paths.cdi.write_text("not a folder")
    with pytest.raises(KoordraError, match="cdi"):
        plugin.prepare(ref_of(THIRD))
    assert uid(3) not in prepared.holders()
    prepared.plugin()  # a start gets through
    prepared.paths.cdi.unlink()
    plugin = prepared.plugin()
    assert prepared.paths.cdi_file(uid(1)).exists()
    plugin.unprepare(ref_of(SECOND))
    assert plugin.prepare(ref_of(THIRD))


def test_one_claim_that_cannot_be_restored_keeps_no_other_from_it(prepared: PluginNode) -> None:
    plugin = prepared.plugin()
    for number in (1, 2):
        prepared.paths.cdi_file(uid(number)).unlink()
    obstacle = prepared.paths.cdi_file(uid(1))
    (obstacle / "in-the-way").mkdir(parents=True)
    with pytest.raises(CDIError, match=uid(1)):
        plugin.restore_files()
    assert prepared.paths.cdi_file(uid(2)).is_file()
    shutil.rmtree(obstacle)
    plugin.restore_files()
    assert obstacle.is_file()


def test_one_stale_file_that_cannot_be_removed_keeps_no_other(prepared: PluginNode) -> None:
    """What is left of claims that nobody knows: the first of them is a folder."""
    stuck, stale = (prepared.paths.cdi / file_name(uid(number)) for number in (7, 8))
    (stuck / "in-the-way").mkdir(parents=True)
    stale.write_text("{}")
    half = prepared.paths.prepared / f"{uid(9)}.json.tmp"
    half.write_text("{")
    with capture_logs() as lines:
        prepared.plugin()
    assert not stale.exists()
    assert not half.exists()
    assert [line["event"] for line in lines if line["log_level"] == "error"] == ["stale_files_not_removed"]
    assert uid(7) in next(line["error"] for line in lines if line["log_level"] == "error")
    assert prepared.paths.cdi_file(uid(1)).is_file()


def test_a_broken_spec_of_somebody_else_is_neither_read_nor_touched(prepared: PluginNode) -> None:
    foreign = {
        "zzz.json": b"{ not JSON",
        "vendor.yaml": b"\xff\xfe",
        "koordra.io-claim_.json": b"",
        "koordra.io-claim_NOT-A-UID.json": b"{}",
        os.fsdecode(b"caf\xe9.json"): b"{}",
    }
    for name, content in foreign.items():
        (prepared.paths.cdi / name).write_bytes(content)
    plugin = prepared.plugin()
    plugin.prepare(ref_of(THIRD))
    plugin.unprepare(ref_of(FIRST))
    plugin.restore_files()
    assert {name: (prepared.paths.cdi / name).read_bytes() for name in foreign} == foreign
    json.loads(prepared.paths.cdi_file(uid(3)).read_text())


@pytest.mark.parametrize("what", ["checkpoint", "prepared", "cdi"])
def test_a_disk_that_cannot_be_read_gives_nothing_out(prepared: PluginNode, what: str) -> None:
    """EIO in the middle of life: refused in words, nothing forgotten, and over when the disk is well
    again."""
    disk = FaultyDisk(getattr(prepared.paths, what), errno.EIO)
    plugin = prepared.unrepaired(disk)
    plugin.repair()  # a start gets through
    if what == "checkpoint":
        with pytest.raises(CheckpointError, match="cannot be read"):
            plugin.prepare(ref_of(THIRD))
        with pytest.raises(CheckpointError):
            plugin.records()
    with pytest.raises(KoordraError, match="Input/output error"):
        plugin.restore_files()
    assert {uid(1), uid(2)} <= prepared.holders()
    disk.path = None
    plugin.restore_files()
    plugin.prepare(ref_of(THIRD))
    assert prepared.holders() == {uid(1), uid(2), uid(3)}


def test_a_checkpoint_that_is_damaged_between_two_calls(prepared: PluginNode) -> None:
    """One byte in the middle of both sections, under a running plugin: the records for the hook stand in, and
    the cards stay held."""
    plugin = prepared.plugin()
    data = prepared.paths.checkpoint.read_bytes()
    prepared.paths.checkpoint.write_bytes(data.replace(b'"pool":"', b'"pool":"x'))
    rival = claim(4, gpu("gpu", "gpu-0000-0f-00-0"))
    prepared.claims.put(rival)
    with pytest.raises(PrepareError, match="InsufficientCapacity"):
        plugin.prepare(ref_of(rival))
    assert plugin.prepare(ref_of(THIRD))
    assert list(prepared.paths.state.glob("checkpoint.json.unreadable-*"))
    plugin.unprepare(ref_of(FIRST))
    assert plugin.prepare(ref_of(rival))
