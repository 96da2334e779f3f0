"""Containers' cgroups: hierarchies as kubelets and runtimes make them, and the kernel's own."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from koordra.kubelet_plugin.sampling import cgroups
from koordra.kubelet_plugin.sampling.cgroups import AGAIN_AFTER, CgroupReader, CgroupUse, ContainerCgroups
from tests.patience import PATIENCE

UID = "8d0c3a52-5b0e-4b57-9d2b-4a3f6f1d2c11"
ONE, OTHER, SANDBOX = "ab" * 32, "cd" * 32, "ef" * 32
SYSTEMD = f"kubepods.slice/kubepods-besteffort.slice/kubepods-besteffort-pod{UID.replace('-', '_')}.slice"
KERNEL = Path("/sys/fs/cgroup")


def version_2(root: Path, folder: str, *, seconds: int, memory: int, idle: int = 0) -> None:
    here = root / "sys/fs/cgroup" / folder
    here.mkdir(parents=True, exist_ok=True)
    (root / "sys/fs/cgroup/cgroup.controllers").write_text("cpu memory\n")
    (here / "cpu.stat").write_text(f"usage_usec {seconds * 1_000_000}\nuser_usec 1\nnr_periods 0\n")
    (here / "memory.current").write_text(f"{memory}\n")
    (here / "memory.stat").write_text(f"anon 5\ninactive_file {idle}\nactive_file 9\n")


def version_1(root: Path, folder: str, *, seconds: int, memory: int, idle: int = 0) -> None:
    top = root / "sys/fs/cgroup"
    for controller in ("cpu,cpuacct", "memory", "unified"):
        (top / controller / folder).mkdir(parents=True, exist_ok=True)
    (top / "unified/cgroup.controllers").write_text("")
    (top / "cpu,cpuacct" / folder / "cpuacct.usage").write_text(f"{seconds * 10**9}\n")
    (top / "memory" / folder / "memory.usage_in_bytes").write_text(f"{memory}\n")
    (top / "memory" / folder / "memory.stat").write_text(f"inactive_file 1\ntotal_inactive_file {idle}\n")


@pytest.mark.parametrize("write", [version_2, version_1])
@pytest.mark.parametrize(
    ("pod", "container"),
    [
        (SYSTEMD, f"cri-containerd-{ONE}.scope"),
        (SYSTEMD, f"crio-{ONE}.scope"),
        (f"kubepods/burstable/pod{UID}", ONE),
        (f"kubelet.slice/kubelet-{SYSTEMD}", f"docker-{ONE}.scope"),
    ],
)
def test_a_container_and_its_pod(tmp_path: Path, write: object, pod: str, container: str) -> None:
    assert callable(write)
    write(tmp_path, pod, seconds=30, memory=900, idle=100)
    write(tmp_path, f"{pod}/crio-conmon-{ONE}.scope", seconds=99, memory=99)
    write(tmp_path, f"{pod}/{SANDBOX}", seconds=1, memory=1)
    write(tmp_path, f"{pod}/{container}", seconds=20, memory=700, idle=50)
    write(tmp_path, f"{pod}/{container}/made/cri-containerd-{OTHER}.scope", seconds=77, memory=77)
    found = CgroupReader(tmp_path).read({ONE, OTHER})
    assert found == {ONE: ContainerCgroups(CgroupUse(20, 650), CgroupUse(30, 800))}, (
        "what a container has made is nobody else's, and the monitor is not the container"
    )


def test_a_container_without_a_pods_cgroup_has_none(tmp_path: Path) -> None:
    version_2(tmp_path, f"k8s.io/{ONE}", seconds=2, memory=7)
    assert CgroupReader(tmp_path).read({ONE}) == {ONE: ContainerCgroups(CgroupUse(2, 7), None)}


def test_what_the_kernel_does_not_tell_is_not_known(tmp_path: Path) -> None:
    assert CgroupReader(tmp_path).read({ONE}) == {}
    version_2(tmp_path, f"kubepods/pod{UID}/{ONE}", seconds=2, memory=7)
    here = tmp_path / f"sys/fs/cgroup/kubepods/pod{UID}/{ONE}"
    (here / "memory.current").unlink()
    (here / "cpu.stat").write_text("usage_usec many\n")
    assert CgroupReader(tmp_path).read({ONE})[ONE].own == CgroupUse(None, None)


def test_what_is_known_is_not_looked_for_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now, looked = [100.0], list[Path]()
    listed = cgroups._folders_in

    def list_folder(folder: Path) -> list[str]:
        looked.append(folder)
        return listed(folder)

    def looks(reader: CgroupReader, *wanted: str) -> tuple[int, set[str]]:
        before = len(looked)
        found = set(reader.read(wanted))
        return len(looked) - before, found

    monkeypatch.setattr(cgroups, "_folders_in", list_folder)
    pod = f"kubepods/pod{UID}"
    version_2(tmp_path, f"{pod}/{ONE}", seconds=2, memory=7)
    reader = CgroupReader(tmp_path, clock=lambda: now[0])
    assert looks(reader, ONE) == (3, {ONE})
    assert looks(reader, ONE) == (0, {ONE})
    assert looks(reader, ONE, OTHER) == (3, {ONE})
    now[0] += AGAIN_AFTER / 2
    version_2(tmp_path, f"{pod}/{OTHER}", seconds=2, memory=7)
    assert looks(reader, ONE, OTHER) == (0, {ONE}), "it was just not there"
    now[0] += AGAIN_AFTER
    assert looks(reader, ONE, OTHER) == (3, {ONE, OTHER})
    shutil.rmtree(tmp_path / "sys/fs/cgroup" / pod / ONE)
    assert looks(reader, ONE, OTHER) == (3, {OTHER})
    assert looks(reader, OTHER) == (0, {OTHER})
    assert looks(reader) == (0, set())


def test_a_host_of_endless_cgroups_is_not_walked_to_its_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    version_2(tmp_path, f"z/y/x/{ONE}", seconds=1, memory=1)
    for number in range(50):
        (tmp_path / f"sys/fs/cgroup/a{number}").mkdir()
    assert set(CgroupReader(tmp_path).read({ONE})) == {ONE}
    monkeypatch.setattr(cgroups, "MOST_FOLDERS", 50)
    assert set(CgroupReader(tmp_path).read({ONE})) == set()


@pytest.fixture
def own_cgroup() -> Iterator[list[Path]]:
    """A container's of the kernel's, in each hierarchy that koordra reads."""
    hierarchies = (
        [KERNEL]
        if (KERNEL / "cgroup.controllers").exists()
        else [each for each in map(KERNEL.joinpath, ("cpuacct", "memory")) if each.exists()]
    )
    number = f"{os.getpid():064x}"
    made = [each / "koordra-test" / f"pod{UID}" / number for each in hierarchies]
    try:
        for each in made:
            each.mkdir(parents=True)
    except OSError as error:
        pytest.skip(f"no cgroup can be made here: {error}")
    yield made
    for each in made:
        for folder in (each, each.parent, each.parent.parent):
            if not any(one.is_dir() for one in folder.iterdir()):
                folder.rmdir()


WORK = """
import sys
for folder in sys.argv[1:]: open(folder + "/cgroup.procs", "w").write("0")
kept = bytearray(32 << 20)
for at in range(0, len(kept), 4096): kept[at] = 1
print("has", flush=True)
while True: pass
"""


def test_the_kernels_own(own_cgroup: list[Path]) -> None:
    if not own_cgroup:
        pytest.skip("no cgroups are mounted")

    number, reader = own_cgroup[0].name, CgroupReader(Path("/"))
    command = [sys.executable, "-IS", "-c", WORK, *map(str, own_cgroup)]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == b"has\n"
            before = reader.read({number})[number]
            assert before.own.cpu_seconds is not None
            until, after = time.monotonic() + PATIENCE, before
            while not (after.own.cpu_seconds or 0) > before.own.cpu_seconds:
                assert time.monotonic() < until
                after = reader.read({number})[number]
            if (
                "memory" in {each.parents[2].name for each in own_cgroup}
                or own_cgroup[0].joinpath("memory.current").exists()
            ):
                assert 32 << 20 <= (after.own.memory or 0) < 1 << 30
                assert (after.pod or CgroupUse()).memory is not None
        finally:
            process.kill()
