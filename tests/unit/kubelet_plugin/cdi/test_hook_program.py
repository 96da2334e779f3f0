"""The CDI hook on the node: where it is written, and what is said where it cannot be."""

from __future__ import annotations

import ctypes
import os
import subprocess
from pathlib import Path

import pytest

from koordra.errors import PrepareError
from koordra.kubelet_plugin.cdi.hook_program import NAME, HookProgram, folders_for
from koordra.kubelet_plugin.prepare.device_state import DeviceState
from koordra.node_state.disk import Disk
from tests.fakes.native import BUILT, ROOT, make
from tests.fakes.node_claims import GPU_0, NODE, claim, gpu
from tests.unit.kubelet_plugin.conftest import PluginNode, ref_of


@pytest.fixture(scope="module")
def built() -> Path:
    make(ROOT / "native", str(BUILT / "cdi-hook" / NAME), out=BUILT)
    return BUILT / "cdi-hook"


def test_the_program_is_on_the_node_under_the_name_of_its_content(built: Path, tmp_path: Path) -> None:
    folder = tmp_path / "a" / "hook"
    path = Path(HookProgram([folder], installed=[built]).path() or "")
    assert path.parent == folder
    assert path.name.startswith(f"{NAME}-")
    assert path.stat().st_mode & 0o777 == 0o755
    assert [each.name for each in folder.iterdir()] == [path.name]
    assert HookProgram([folder], installed=[built]).path() == str(path)


def test_a_program_that_somebody_removed_or_damaged_is_written_again(built: Path, tmp_path: Path) -> None:
    program = HookProgram([tmp_path], installed=[built])
    path = Path(program.path() or "")
    path.unlink()
    assert program.path() == str(path)
    assert path.exists()
    for damage in (
        lambda: path.write_bytes(b""),
        lambda: path.chmod(0o600),
        lambda: path.rename(tmp_path / "x"),
    ):
        for found in (program, HookProgram([tmp_path], installed=[built])):
            damage()
            assert found.path() == str(path)
            assert path.read_bytes() == (built / NAME).read_bytes()
            assert path.stat().st_mode & 0o777 == 0o755


def test_running_pods_get_it_back_without_another_prepare(
    built: Path, tmp_path: Path, node: PluginNode
) -> None:
    """A container of theirs that starts again names it in its CDI file."""
    program = HookProgram([tmp_path / "hook"], installed=[built])
    state = DeviceState(
        node=NODE,
        paths=node.paths,
        claims=node.claims,
        inventory=lambda: node.inventory,
        backends=node.backends,
        disk=Disk(),
        hook_program=program.path,
    )
    state.restore_files()
    assert not (tmp_path / "hook").exists()
    obj = claim(1, gpu("gpu", GPU_0))
    node.claims.put(obj)
    state.prepare(ref_of(obj))
    Path(program.path() or "").unlink()
    state.restore_files()
    assert [each.name for each in (tmp_path / "hook").iterdir()] == [Path(program.path() or "").name]


def test_the_first_folder_counts_where_it_can_be_started(built: Path, tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.touch()
    assert HookProgram([file / "below", tmp_path / "good"], installed=[built]).path() == str(
        next((tmp_path / "good").iterdir())
    )


@pytest.mark.skipif(os.geteuid() != 0, reason="mounts")
def test_a_folder_that_is_mounted_noexec_is_passed_by(built: Path, tmp_path: Path) -> None:
    barred = tmp_path / "barred"
    barred.mkdir()
    libc = ctypes.CDLL(None, use_errno=True)
    noexec = 8
    if libc.mount(b"none", os.fsencode(barred), b"tmpfs", noexec, None) != 0:
        pytest.skip("nothing can be mounted here")
    try:
        assert (HookProgram([barred, tmp_path / "good"], installed=[built]).path() or "").startswith(
            str(tmp_path / "good")
        )
        with pytest.raises(PrepareError, match=r"--hook-dir: .*barred: is mounted noexec"):
            HookProgram([barred], installed=[built]).path()
    finally:
        libc.umount2(os.fsencode(barred), 2)


def test_a_program_of_another_machine_is_said(tmp_path: Path) -> None:
    (tmp_path / "built").mkdir()
    (tmp_path / "built" / NAME).write_text("#!/bin/sh\nexit 3\n")
    with pytest.raises(PrepareError, match="does not run here: exit status 3"):
        HookProgram([tmp_path / "hook"], installed=[tmp_path / "built"]).path()


def test_a_koordra_that_was_built_without_it_has_none(tmp_path: Path) -> None:
    assert HookProgram([tmp_path], installed=[tmp_path / "none"]).path() is None


def test_below_another_root_nothing_is_written_on_this_machine(tmp_path: Path) -> None:
    state = tmp_path / "state"
    assert folders_for(chosen=None, root=tmp_path, state=state) == (state / "hook",)
    on_node = folders_for(chosen=None, root=Path("/"), state=state)
    assert on_node[-1] == state / "hook"
    assert Path("/var/lib/koordra/hook") in on_node
    assert folders_for(chosen=tmp_path, root=Path("/"), state=state) == (tmp_path,)


def test_it_is_static(built: Path) -> None:
    headers = subprocess.run(
        ["readelf", "--wide", "--segments", str(built / NAME)], capture_output=True, text=True, check=False
    )
    if headers.returncode != 0:
        pytest.skip("no readelf")
    assert "INTERP" not in headers.stdout
