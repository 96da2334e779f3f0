"""Whose a process is, and what NVML says it uses: the real nvidia-ml-py against the fake library, and real
mounts."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from koordra.kubelet_plugin.sampling.host_processes import (
    REGIONS_FOLDER,
    HostProcesses,
    container_in,
    start_time,
)
from koordra.node_state.granted_claims import GrantedContainers
from koordra.nri.hook.ledger import Granted, GrantedDevice, Ledger
from koordra.topology.presets import write_machine
from tests.fakes import nvml_library
from tests.fakes.nvml_library import FakeNvml
from tests.machines import catalogue

UID = "8d0c3a52-5b0e-4b57-9d2b-4a3f6f1d2c11"
OTHER = "00000000-5b0e-4b57-9d2b-4a3f6f1d2c11"
ASK = """
import json, sys
from koordra.errors import NodeError
from koordra.kubelet_plugin.sampling.nvml_cards import NvmlCards
try:
    cards = NvmlCards().processes(sys.argv[1:])
    found = {uuid: [sorted(card.used.items()), sorted(card.computing)] for uuid, card in cards.items()}
    print(json.dumps(found | {"mps": [uuid for uuid, card in cards.items() if card.through_mps]}))
except NodeError as error:
    print(json.dumps(str(error)))
"""


@pytest.fixture
def nvml(tmp_path: Path) -> FakeNvml:
    return FakeNvml(tmp_path, nvml_library.build())


def test_the_lists_of_a_card_are_one(nvml: FakeNvml, tmp_path: Path) -> None:
    machine = write_machine("hgx-h100", tmp_path / "root", serial="processes")
    nvml.describe(machine)
    first, second, third = (str(gpu.uuid) for gpu in machine.gpus[:3])
    nvml.processes(
        (first, "compute", 41, 100),
        (first, "graphics", 41, 100),
        (first, "graphics", 42, 7),
        (first, "mps", 43, 9),
        (second, "compute", 44, None),
    )
    with nvml.control.open("a") as control:
        control.write(
            f"error nvmlDeviceGetComputeRunningProcesses_v3 15 {nvml_library.nvml_bus_id(machine.gpus[2].location.bus_id)}\n"
        )
        control.write("error nvmlDeviceGetMPSComputeRunningProcesses_v3 3\n")
    assert nvml.run(ASK, first, second, third) == {
        first: [[[41, 100], [42, 7]], [41]],
        second: [[[44, None]], [44]],
        "mps": [],
    }, "a lost card is left out; a driver without MPS has no list for it"


def test_a_mig_instance_has_processes_of_its_own(nvml: FakeNvml) -> None:
    machine = catalogue.machine("mig-a100")
    nvml.describe(machine)
    card = next(gpu for gpu in machine.gpus if len(gpu.mig_instances) > 1)
    one, other = (str(instance.uuid) for instance in card.mig_instances[:2])
    nvml.processes((one, "compute", 41, 100), (other, "compute", 42, 50))
    as_regions_have_it = "GPU-" + one.removeprefix("MIG-")
    assert nvml.run(ASK, as_regions_have_it, str(card.uuid)) == {
        as_regions_have_it: [[[41, 100]], [41]],
        str(card.uuid): [[[41, 100], [42, 50]], [41, 42]],
        "mps": [],
    }


def test_a_card_on_which_an_mps_server_computes_is_told(nvml: FakeNvml, tmp_path: Path) -> None:
    machine = write_machine("hgx-h100", tmp_path / "root", serial="mps")
    nvml.describe(machine)
    first, second = (str(gpu.uuid) for gpu in machine.gpus[:2])
    nvml.processes((first, "compute", 41, 100), (first, "mps", 43, 9), (second, "compute", 44, 5))
    assert nvml.run(ASK, first, second)["mps"] == [first]


def test_without_nvml_nothing_is_known(nvml: FakeNvml) -> None:
    assert "NVML cannot be asked" in nvml.run(ASK, "GPU-01020304-0506-0708-090a-0b0c0d0e0f10")


@contextmanager
def container(folder: Path, *, place: str) -> Iterator[int]:
    """A process in a mount namespace of its own, with the folder mounted at the place; its pid."""
    script = f"mount -t tmpfs none /run && mkdir -p {place} && mount --bind '{folder}' {place} && echo there && exec sleep 600"
    with subprocess.Popen(
        ["unshare", "--mount", "--propagation", "private", "sh", "-c", script],
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        try:
            if process.stdout.readline().strip() != "there":
                pytest.skip("mounts cannot be made here")
            yield process.pid
        finally:
            process.kill()


@pytest.mark.skipif(os.geteuid() != 0 or not shutil.which("unshare"), reason="mounts need root and unshare")
def test_a_process_is_known_by_the_region_that_is_mounted_for_it(tmp_path: Path) -> None:
    claims = tmp_path / "the state" / "claims"
    forged = tmp_path / "elsewhere" / "claims" / OTHER
    for folder in (claims / UID, claims / OTHER, forged):
        folder.mkdir(parents=True)
    processes = HostProcesses(claims)
    with container(claims / UID, place=f"{REGIONS_FOLDER}/{UID}") as pid:
        found = processes.find([pid, os.getpid(), 2**22 + 1])
        assert set(found) == {pid, os.getpid()}
        assert (found[pid].claims, found[os.getpid()].claims) == ((UID,), ())
        assert found[pid].started == start_time(pid)
        assert processes.find([pid]) == {pid: found[pid]}
    assert processes.find([pid]) == {}
    with container(forged, place=f"{REGIONS_FOLDER}/{OTHER}") as pid:
        assert processes.find([pid])[pid].claims == (), "a folder of that name of its own is not the region"


def test_a_pid_that_is_used_again_is_another_process(tmp_path: Path) -> None:
    """A proc of our own, in which pid 7 ends and is given out again."""
    (tmp_path / "claims" / UID).mkdir(parents=True)
    proc = tmp_path / "proc"
    (proc / "self").mkdir(parents=True)
    (proc / "self" / "mountinfo").write_text("20 1 8:1 / / rw - ext4 /dev/sda1 rw\n")

    def process(started: int, region: bool) -> None:
        folder = proc / "7"
        shutil.rmtree(folder, ignore_errors=True)
        (folder / "ns").mkdir(parents=True)
        (folder / "ns" / "pid").symlink_to("pid:[4026531999]")
        (folder / "stat").write_text(f"7 (a) b) S {' '.join(['0'] * 18)} {started} 0 0\n")
        (folder / "status").write_bytes(b"Name:\t\xff\xfe\nNSpid:\t7\t1\n")  # a name may be any bytes
        mount = f"30 20 8:1 {tmp_path}/claims/{UID} {REGIONS_FOLDER}/{UID} ro - ext4 /dev/sda1 rw\n"
        (folder / "mountinfo").write_text(mount if region else "")

    processes = HostProcesses(tmp_path / "claims", proc=proc)
    process(100, region=True)
    found = processes.find([7])[7]
    assert (found.claims, found.inner_pid, found.namespace) == ((UID,), 1, 4026531999)
    process(200, region=False)
    assert processes.find([7])[7].claims == ()


def test_a_process_under_another_root_is_known_by_its_container(tmp_path: Path) -> None:
    """Its mountinfo lists what is mounted below its root alone: nothing of ours after a chroot."""
    state, proc, container = tmp_path / "state", tmp_path / "proc", "e3" * 32
    claims = state / "limiter" / "claims"
    for uid in (UID, OTHER):
        (claims / uid).mkdir(parents=True)
    ledger = Ledger(state)
    device = GrantedDevice("team", "claim", UID, "gpu-0", "gpu", None)
    ledger.add(container, Granted("pod-uid", (), frozenset(), (device,)))
    folder = proc / "7"
    (folder / "ns").mkdir(parents=True)
    (folder / "ns" / "pid").symlink_to("pid:[4026531999]")
    (folder / "stat").write_text(f"7 (a) S {' '.join(['0'] * 18)} 100 4096 0\n")
    (folder / "status").write_text("Name:\ta\nNSpid:\t7\t1\n")
    (folder / "mountinfo").write_text("30 20 8:1 /x / rw - ext4 /dev/sda1 rw\n")
    (proc / "self").mkdir()
    (proc / "self" / "mountinfo").write_text("20 1 8:1 / / rw - ext4 /dev/sda1 rw\n")
    processes = HostProcesses(claims, proc=proc, held_by=GrantedContainers(state).claims_of)
    for path in (
        f"/kubepods/burstable/pod5/{container}",
        f"/kubepods.slice/cri-containerd-{container}.scope/inner",
    ):
        (folder / "cgroup").write_text(f"5:devices:{path}\n0::{path}\n")
        assert processes.find([7])[7].claims == (UID,)
    for path in ("/system.slice/x.service", f"/kubepods/burstable/pod5/{'00' * 32}"):
        (folder / "stat").write_text(f"7 (a) S {' '.join(['0'] * 18)} {len(path)} 4096 0\n")
        (folder / "cgroup").write_text(f"0::{path}\n")
        assert processes.find([7])[7].claims == ()


def test_a_process_without_memory_is_ending(tmp_path: Path) -> None:
    (tmp_path / UID).mkdir()
    processes = HostProcesses(tmp_path, claim_of=lambda _pid, _started: UID)
    with subprocess.Popen(["sleep", "600"]) as child:
        assert not processes.find([child.pid])[child.pid].ending
        child.kill()
        os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)  # a zombie from now on
        assert processes.find([child.pid])[child.pid].ending
    assert processes.find([child.pid]) == {}


def test_a_process_whose_first_thread_has_ended_is_known_and_not_ending(tmp_path: Path) -> None:
    (tmp_path / UID).mkdir()
    processes = HostProcesses(tmp_path, claim_of=lambda _pid, _started: UID)
    script = (
        "import ctypes, sys, threading\n"
        "threading.Thread(target=lambda: (print('there', flush=True), sys.stdin.read())).start()\n"
        "ctypes.CDLL(None).pthread_exit(None)\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as child:
        try:
            assert child.stdout is not None
            assert child.stdout.readline() == b"there\n"
            state = Path(f"/proc/{child.pid}/stat")
            for _ in range(3000):
                if ") Z " in state.read_text():
                    break
                time.sleep(0.01)
            found = processes.find([child.pid])[child.pid]
            assert (found.claims, found.inner_pid, found.ending) == ((UID,), child.pid, False)
            assert found.namespace > 0
        finally:
            child.kill()


def test_who_called_on_the_claims_socket_is_known_without_a_mount(tmp_path: Path) -> None:
    (tmp_path / UID).mkdir()
    me = os.getpid()
    told = {(me, start_time(me)): UID}
    processes = HostProcesses(tmp_path, claim_of=lambda pid, started: told.get((pid, started)))
    assert processes.find([me])[me].claims == (UID,)
    assert processes.find([me])[me].inner_pid > 0


ID, INNER = "ab" * 32, "cd" * 32
POD = "8d0c3a52_5b0e_4b57_9d2b_4a3f6f1d2c11"


@pytest.mark.parametrize(
    ("cgroup", "wanted"),
    [
        (
            f"0::/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod{POD}.slice/cri-containerd-{ID}.scope",
            ID,
        ),
        (f"0::/kubepods/besteffort/pod{POD.replace('_', '-')}/{ID}/{INNER}", ID),
        (f"0::/../../kubepods-pod{POD}.slice/crio-{ID}.scope/container", ID),
        (f"11:memory:/kubepods/pod{'0' * 32}/{ID}\n10:cpu,cpuacct:/kubepods/pod{'0' * 32}/{ID}\n0::/", ID),
        (f"0::/docker/{INNER}/kubelet.slice/kubepods-pod{POD}.slice/cri-containerd-{ID}.scope", ID),
        (f"0::/system.slice/docker-{ID}.scope/init", ID),
        (f"0::/system.slice/containerd.service/kubepods-burstable-pod{POD}.slice:cri-containerd:{ID}", ID),
        ("0::/system.slice/sshd.service", ""),
        ("0::/", ""),
        ("", ""),
        (f"{ID}", ""),
    ],
)
def test_the_container_of_a_cgroup(cgroup: str, wanted: str) -> None:
    assert container_in(cgroup) == wanted


@given(inside=st.text(max_size=200), more=st.booleans())
def test_what_a_container_calls_its_own_cgroups_changes_nothing(inside: str, more: bool) -> None:
    """It may have a hierarchy of its own below, with any name that the kernel takes; lines come with '\\n'
    escaped."""
    name = inside.replace("\n", "\\n").replace("\0", "")
    path = f"0::/kubepods.slice/kubepods-pod{POD}.slice/cri-containerd-{ID}.scope/{name}"
    assert container_in(path + (f"/cri-containerd-{INNER}.scope" if more else "")) == ID


def test_who_ended_between_two_looks_is_still_known(tmp_path: Path) -> None:
    (tmp_path / UID).mkdir()
    now = [0.0]
    processes = HostProcesses(
        tmp_path,
        claim_of=lambda _pid, _started: UID,
        last_caller=lambda pid: OTHER if pid == 4_000_000 else None,
        clock=lambda: now[0],
    )
    with subprocess.Popen(["sleep", "600"]) as child:
        found = processes.find([child.pid])[child.pid]
        child.kill()
    assert processes.find([child.pid], within=1.0) == {child.pid: found}, "as it was a moment ago"
    now[0] = 2.0
    assert processes.find([child.pid], within=1.0) == {}
    assert processes.ended(child.pid) == found
    assert processes.ended(4_000_001) is None
    short = processes.ended(4_000_000)
    assert short is not None
    assert short.claims == (OTHER,), "who was there for so short a time has called its claim's socket"
    now[0] = 100.0
    processes.find([])
    assert processes.ended(child.pid) is None, "nothing is kept for ever"
