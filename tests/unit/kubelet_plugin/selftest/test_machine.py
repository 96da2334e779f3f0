"""The machine of a self test: a folder to work in, a driver that hangs, a nvidia-smi that does."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import ClassVar

import pytest
from click.testing import CliRunner

from koordra.cli.machine.machine_view import of_kind
from koordra.cli.node.selftest import selftest
from koordra.errors import NodeError
from koordra.kubelet_plugin.nvidia_driver.driver_root import DriverRoot, Home
from koordra.kubelet_plugin.nvidia_driver.homes import FoundHome
from koordra.kubelet_plugin.selftest import course
from koordra.kubelet_plugin.selftest.machine import nvidia_smi
from koordra.kubelet_plugin.selftest.machine.aside import aside
from koordra.kubelet_plugin.selftest.machine.nvidia_smi import NvidiaSmi
from koordra.kubelet_plugin.selftest.machine.scratch import scratch
from koordra.kubelet_plugin.selftest.program_runs import Stopwatch
from koordra.kubelet_plugin.selftest.report import Report
from tests.fakes.descriptors import more_than_select_takes
from tests.fakes.driver_homes import libraries
from tests.patience import PATIENCE


def test_what_is_done_aside_is_returned_or_said(tmp_path: Path) -> None:
    assert aside(os.getpid, deadline=PATIENCE) != os.getpid()
    with pytest.raises(NodeError, match="ValueError: no such card"):
        aside(partial(_raise, ValueError("no such card")), deadline=PATIENCE)
    with pytest.raises(NodeError, match="ended the process"):
        aside(partial(os._exit, 3), deadline=PATIENCE)
    with pytest.raises(NodeError, match=r"PicklingError|AttributeError"):
        aside(_local, deadline=PATIENCE)


def test_it_is_heard_among_a_thousand_open_files() -> None:
    with more_than_select_takes():
        assert aside(partial(str, "said"), deadline=PATIENCE) == "said"


def test_nothing_is_imported_from_where_root_stands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Somebody else may write there."""
    (tmp_path / "pickle.py").write_text("raise SystemExit('run as root')")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend("")
    assert aside(partial(str, "said"), deadline=PATIENCE) == "said"


def test_what_the_driver_prints_is_no_answer() -> None:
    assert aside(partial(os.system, "echo a library speaks"), deadline=PATIENCE) == 0


def test_no_lock_of_another_thread_is_in_its_way() -> None:
    with _held:
        assert aside(_locked, deadline=PATIENCE) is False


_held = threading.Lock()


def _locked() -> bool:
    return _held.locked()


def _local() -> Callable[[], int]:
    return lambda: 1


def _raise(error: Exception) -> None:
    raise error


def test_a_driver_that_hangs_is_left_alone() -> None:
    with pytest.raises(NodeError, match="no answer within 0 s: the driver hangs"):
        aside(partial(time.sleep, 600), deadline=0.1)


def test_a_folder_where_programs_can_run_is_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    noexec, usable = tmp_path / "noexec", tmp_path / "usable"
    noexec.mkdir()
    usable.mkdir()
    flags = os.statvfs(usable)

    def statvfs(path: Path) -> os.statvfs_result:
        return os.statvfs_result((*flags[:8], os.ST_NOEXEC if path == noexec else 0, flags[9]))

    monkeypatch.setattr(os, "statvfs", statvfs)
    with scratch([tmp_path / "missing", noexec, usable]) as folder:
        assert folder.parent == usable
        assert folder.stat().st_mode & 0o777 == 0o755
    assert not folder.exists()
    with (
        pytest.raises(NodeError, match=r"noexec is mounted noexec.*name one with TMPDIR"),
        scratch([tmp_path / "missing" / "x", noexec]),
    ):
        pass


def program(folder: Path, text: str) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "nvidia-smi").write_text(f"#!/bin/sh\n{text}\n")
    (folder / "nvidia-smi").chmod(0o755)


def test_one_that_hangs_is_not_asked_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program(tmp_path / "bin", f"echo >> {tmp_path / 'asked'}\nsleep 600 & sleep 600")
    monkeypatch.setattr(nvidia_smi, "_SECONDS", 2.0)
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:{os.environ['PATH']}")
    smi = NvidiaSmi(FoundHome(), tmp_path)
    with pytest.raises(NodeError, match="did not end within 2 s and was killed"):
        smi.ask("-q")
    with pytest.raises(NodeError, match="hangs"):
        smi.ask()
    assert (tmp_path / "asked").read_text() == "\n"


def test_one_of_the_driver_s_home_is_asked_with_its_library(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = tmp_path / "usr/local/nvidia"
    program(home / "bin", 'echo "$LD_LIBRARY_PATH"')
    driver = DriverRoot(Home.USR_LOCAL_NVIDIA, home, home, home, home, binary_folders=("/bin",))
    (tmp_path / "empty").mkdir()
    monkeypatch.setenv("PATH", str(tmp_path / "empty"))
    smi = NvidiaSmi(FoundHome(driver, nvml=home / "lib64" / "libnvidia-ml.so.1"), tmp_path)
    assert smi.ask() == f"{home}/lib64\n"
    assert not NvidiaSmi(FoundHome(), tmp_path).installed


class Tried:
    """A course that tries nothing: what the command has made for it."""

    made: ClassVar[list[Tried]] = []

    def __init__(self, settings: course.Settings, report: Report, watch: Stopwatch) -> None:
        self.settings, self.report, self.watch = settings, report, watch
        self.made.append(self)

    def run(self) -> None:
        """Nothing."""


@pytest.fixture
def command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Tried]:
    monkeypatch.setattr(course, "Course", Tried)
    monkeypatch.setattr(signal, "signal", lambda *_: None)

    def run(*arguments: str) -> Tried:
        found = CliRunner().invoke(selftest, ["--root", str(tmp_path), *arguments], catch_exceptions=False)
        assert found.exit_code == 0, found.output
        return Tried.made.pop()

    return run


def test_the_driver_is_where_the_operator_says(command: Callable[..., Tried], tmp_path: Path) -> None:
    libraries(tmp_path / "driver/lib64")
    assert command().settings.homes.now().driver is None
    named = command("--driver-root", str(tmp_path / "driver")).settings.homes.now().driver
    assert named is not None
    assert named.root == tmp_path / "driver"


@pytest.mark.parametrize(
    ("option", "value", "read", "expected"),
    [
        ("--root", "{tmp}", lambda made: made.settings.root, "{tmp}"),
        ("--device", "gpu-3", lambda made: made.settings.device, "gpu-3"),
        ("--memory", "2Gi", lambda made: made.settings.memory, str(2 << 30)),
        ("--container", "process", lambda made: made.settings.container, "process"),
        ("--python", "{tmp}/python", lambda made: made.settings.python, "{tmp}/python"),
        ("--only", "share: torch*", lambda made: made.settings.only, "('share: torch*',)"),
        ("--fabric", "10.0.0.2", lambda made: made.settings.peer, "10.0.0.2"),
        ("--fabric-port", "2000", lambda made: made.settings.peer_port, "2000"),
        ("--fabric-own", "10.0.0.1", lambda made: made.settings.own_address, "10.0.0.1"),
        ("--native", "{tmp}", lambda made: made.settings.libraries[0], "{tmp}"),
        ("--budget", "7", lambda made: made.watch.budget, "7.0"),
        ("--report", "{tmp}/r.tar.gz", lambda made: made.report._bundle, "{tmp}/r.tar.gz"),
    ],
)
def test_every_option_comes_to_the_course(
    command: Callable[..., Tried],
    tmp_path: Path,
    option: str,
    value: str,
    read: Callable[[Tried], object],
    expected: str,
) -> None:
    """What each then does is tried where a machine is made up, and for some below."""
    (tmp_path / "python").touch()
    assert str(read(command(option, value.format(tmp=tmp_path)))) == expected.format(tmp=tmp_path)


@pytest.mark.parametrize("called", ["uuid", "name"])
def test_the_card_that_is_named_is_tried(tmp_path: Path, called: str) -> None:
    machine = of_kind("hgx-h100").machine
    wanted = machine.gpus[3]
    settings = course.Settings(Path("/"), tmp_path, (), device=getattr(wanted, called))
    tried = course.Course(settings, Report(version="1"), Stopwatch(1.0))
    assert tried._card(machine) is wanted


@pytest.mark.parametrize(("memory", "share"), [(None, 8 << 30), (2 << 30, 2 << 30)])
def test_the_share_is_as_large_as_is_asked(tmp_path: Path, memory: int | None, share: int) -> None:
    settings = course.Settings(Path("/"), tmp_path, (), memory=memory)
    tried = course.Course(settings, Report(version="1"), Stopwatch(1.0))
    assert tried._share_of(of_kind("hgx-h100").machine.gpus[0], 0) == share
