"""Who holds the driver's device nodes, from a made-up /proc and from the real one."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from koordra.kubelet_plugin.nvidia_driver.device_holders import (
    DriverUsers,
    Holder,
    driver_majors,
    driver_users,
)

UID = "11112222-3333-4444-5555-666677778888"
DEVICES = """\
Character devices:
  1 mem
195 nvidia
195 nvidia-modeset
195 nvidiactl
507 nvidia-uvm
508 nvidia-caps
509 nvidia-caps-imex-channels

Block devices:
259 blkext
"""


class Proc:
    """A machine with a driver of the numbers of /dev/null, which every process may open."""

    def __init__(self, root: Path) -> None:
        self.root = root
        (root / "proc").mkdir()
        (root / "proc/devices").write_text("Character devices:\n  1 nvidia\n")

    def process(self, pid: int, *links: str, cgroup: str = "0::/init.scope", comm: str = "python") -> None:
        folder = self.root / "proc" / str(pid)
        (folder / "fd").mkdir(parents=True)
        (folder / "comm").write_text(f"{comm}\n")
        (folder / "cgroup").write_text(f"{cgroup}\n")
        for number, link in enumerate(links):
            (folder / "fd" / str(number)).symlink_to(link)

    def module(self, name: str, count: int, *dependants: str) -> None:
        folder = self.root / "sys/module" / name
        (folder / "holders").mkdir(parents=True)
        (folder / "refcnt").write_text(f"{count}\n")
        for dependant in dependants:
            (folder / "holders" / dependant).mkdir()


@pytest.fixture
def proc(tmp_path: Path) -> Proc:
    return Proc(tmp_path)


def test_the_drivers_majors_are_those_the_kernel_names(tmp_path: Path) -> None:
    (tmp_path / "proc").mkdir()
    (tmp_path / "proc/devices").write_text(DEVICES)

    assert driver_majors(tmp_path) == {195, 507, 508, 509}


@pytest.mark.parametrize(
    "cgroup",
    [
        f"0::/kubepods/burstable/pod{UID}/abc",
        f"0::/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod{UID.replace('-', '_')}.slice/x",
        f"12:devices:/kubepods/besteffort/pod{UID}/abc\n1:name=systemd:/kubepods/besteffort/pod{UID}/abc",
    ],
)
def test_a_holder_is_named_with_its_pod(proc: Proc, cgroup: str) -> None:
    proc.process(41, "/dev/null", "/dev/null", "/dev/zero", cgroup=cgroup)

    found = driver_users(proc.root)

    assert found == DriverUsers((Holder(41, "python", ("/dev/null", "/dev/zero"), UID),))
    assert found.lines({UID: "team-a/train-0"}) == [
        "python (pid 41, pod team-a/train-0) holds /dev/null, /dev/zero"
    ]


def test_what_is_no_device_of_the_driver_does_not_count(proc: Proc, tmp_path: Path) -> None:
    (tmp_path / "nvidia-log").write_text("a file")
    proc.process(41, str(tmp_path / "nvidia-log"), "/dev/gone", "socket:[4711]", "/dev/pts/ptmx")

    assert driver_users(proc.root).nobody


def test_what_no_process_shows_is_seen_in_the_modules(proc: Proc) -> None:
    proc.module("nvidia", 7, "nvidia_uvm", "nvidia_modeset")
    proc.module("nvidia_uvm", 4)
    proc.module("nvidia_modeset", 0)

    found = driver_users(proc.root)

    assert found.uncounted == (("nvidia", 5), ("nvidia_uvm", 4))
    assert not found.nobody
    assert found.lines() == [
        "module nvidia is used 5 times by what no process shows",
        "module nvidia_uvm is used 4 times by what no process shows",
    ]


def test_a_name_that_a_process_chose_cannot_speak_to_the_operators_terminal(
    proc: Proc, tmp_path: Path
) -> None:
    (tmp_path / "nvidia\x1b[2J").symlink_to("/dev/null")
    proc.process(41, str(tmp_path / "nvidia\x1b[2J"), comm="\x1b]0;x\nkoordra")

    (line,) = driver_users(proc.root).lines()
    assert line.isprintable()
    assert line.startswith("?]0;x?koordra (pid 41, no pod)")


def test_where_the_kernel_counts_nobody_no_process_is_looked_at(proc: Proc) -> None:
    proc.process(41, "/dev/null")
    proc.module("nvidia", 1)
    assert not driver_users(proc.root).nobody

    (proc.root / "sys/module/nvidia/refcnt").write_text("0\n")
    (proc.root / "proc/41").rename(proc.root / "proc/42")
    assert driver_users(proc.root).nobody


def test_modules_that_only_use_each_other_are_free(proc: Proc) -> None:
    proc.module("nvidia", 2, "nvidia_uvm", "nvidia_modeset")
    proc.module("nvidia_uvm", 0)

    assert driver_users(proc.root).nobody


def test_a_machine_without_the_driver_has_no_holders(tmp_path: Path) -> None:
    assert driver_users(tmp_path).nobody


def test_processes_of_this_machine_are_found(tmp_path: Path) -> None:
    """The real /proc, with the numbers of /dev/null in the driver's place."""
    (tmp_path / "proc").mkdir()
    for entry in Path("/proc").iterdir():
        if entry.name == str(os.getpid()):
            (tmp_path / "proc" / entry.name).symlink_to(entry)
    (tmp_path / "proc/devices").write_text("  1 nvidia\n")
    with Path("/dev/zero").open("rb"):
        holders = driver_users(tmp_path).holders

    assert [holder.pid for holder in holders] == [os.getpid()]
    assert "/dev/zero" in holders[0].devices
