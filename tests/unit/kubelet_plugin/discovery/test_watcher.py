"""The watcher tells what changed, once, soon, and when it is over."""

from __future__ import annotations

import json
import os
import shutil
import socket
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from koordra.errors import NodeError
from koordra.kubelet_plugin.discovery import watcher
from koordra.kubelet_plugin.discovery.events import (
    DriverLoaded,
    Event,
    HardwareChanged,
    PortsMayHaveChanged,
    XidReported,
)
from koordra.kubelet_plugin.discovery.gpu_faults import Ledger, LedgerFile
from koordra.kubelet_plugin.discovery.reading import boot_id, discover, probe
from koordra.kubelet_plugin.discovery.watcher import ONE_REPORT_IN, MachineWatcher, WatchTiming
from koordra.kubelet_plugin.nvidia_driver.homes import HomeSource
from koordra.kubelet_plugin.nvidia_driver.nvml_session import NvmlLibrary
from koordra.kubelet_plugin.publish.resource_slices import build_slices
from koordra.kubelet_plugin.publish.slice_content import same_content
from koordra.node_state.disk import Disk
from koordra.topology.presets.facts import preset
from koordra.topology.presets.tree import MachineWriter
from koordra.topology.problems import Discovery
from tests.fakes.clock import Clock
from tests.fakes.effort import calls
from tests.machines import catalogue
from tests.patience import PATIENCE

QUICK = WatchTiming(
    settle=0.02,
    settle_limit=0.2,
    probe=0.05,
    between_probes=0.02,
    between_readings=0.0,
    recheck=0.05,
    stop_within=0.05,
)
DEAF = replace(QUICK, probe=600.0, recheck=600.0)
GPU0, NIC0 = "0000:0f:00.0", "0000:0c:00.0"


class Announcer:
    """An event source that tests speak through."""

    def __init__(self) -> None:
        self._mouth, self._ear = socket.socketpair()
        self._events: list[Event] = []
        self.closed = False
        self.taken = 0

    def say(self, *events: Event) -> None:
        self._events.extend(events)
        self._mouth.send(b"!")

    def fileno(self) -> int:
        return self._ear.fileno()

    def take(self) -> Sequence[Event]:
        self._ear.recv(4096)
        found, self._events = self._events, []
        self.taken += len(found)
        return found

    def close(self) -> None:
        self._mouth.close()
        self._ear.close()
        self.closed = True


class Watch:
    """A watcher of a made-up machine in a thread, and everything that it told."""

    def __init__(self, root: Path, timing: WatchTiming, clock: Callable[[], float]) -> None:
        self.root = root
        self.source = Announcer()
        self.told: list[Discovery] = []
        self.readings = 0
        self.refusals = 0
        self.stop = threading.Event()
        self.watcher = MachineWatcher(
            read=self._read, probe=lambda: probe(root), sources=[self.source], timing=timing, clock=clock
        )
        self.thread = threading.Thread(target=lambda: self.watcher.run(self.stop, self._hear))
        self.thread.start()

    def _read(self) -> Discovery:
        self.readings += 1
        return discover(self.root)

    def _hear(self, found: Discovery) -> None:
        if self.refusals:
            self.refusals -= 1
            raise NodeError("the disk is full")
        self.told.append(found)

    def until(self, condition: Callable[[Discovery], object]) -> Discovery:
        """The first reading told that meets the condition."""
        deadline = time.monotonic() + PATIENCE
        while time.monotonic() < deadline:
            met = next((found for found in self.told if condition(found)), None)
            if met is not None:
                return met
            time.sleep(0.005)
        raise AssertionError(f"never told; {len(self.told)} were, from {self.readings} readings")

    def next(self, condition: Callable[[Discovery], object]) -> Discovery:
        """Likewise, forgetting what was told before."""
        found = self.until(condition)
        self.told = self.told[self.told.index(found) :]
        return found


@pytest.fixture
def root(tmp_path: Path) -> Path:
    MachineWriter(tmp_path).write(catalogue.load("hgx-h100").machine(serial="node-a"))
    return tmp_path


@pytest.fixture
def watching() -> Iterator[Callable[..., Watch]]:
    started: list[Watch] = []

    def start(root: Path, timing: WatchTiming = QUICK, clock: Callable[[], float] = time.monotonic) -> Watch:
        made = Watch(root, timing, clock)
        started.append(made)
        made.until(lambda _: True)
        return made

    yield start
    for each in started:
        each.stop.set()
        each.thread.join(PATIENCE)
        assert not each.thread.is_alive()
        assert each.source.closed


def eventually(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.005)


def nic_names(found: Discovery) -> list[str]:
    return [nic.ib_device for nic in found.machine.nics]


def taints(found: Discovery, name: str) -> list[str]:
    slices = build_slices(found.machine, node_name="n", node_uid=None, mode="native", generation=1)
    devices = {device["name"]: device for one in slices for device in one["spec"]["devices"]}
    return [taint["value"] for taint in devices[name].get("taints", ())]


def rewrite_nvml(root: Path, change: Callable[[dict[str, Any]], None]) -> None:
    file = root / "nvml.json"
    document = json.loads(file.read_text())
    change(document)
    (root / "nvml.new").write_text(json.dumps(document))
    (root / "nvml.new").rename(file)


def test_the_first_reading_is_told_and_nothing_after_it(root: Path, watching: Callable[..., Watch]) -> None:
    watch = watching(root)
    assert watch.told == [discover(root)]
    watch.source.say(HardwareChanged("nothing of importance"), PortsMayHaveChanged())
    eventually(lambda: watch.readings >= 2)
    time.sleep(0.1)
    assert len(watch.told) == 1


def test_a_burst_is_one_reading(root: Path, watching: Callable[..., Watch]) -> None:
    clock = Clock()
    watch = watching(root, replace(DEAF, settle=0.3, settle_limit=5.0), clock.monotonic)
    for number in range(20):
        watch.source.say(HardwareChanged(f"vf {number}"))
    eventually(lambda: watch.source.taken == 20)
    assert watch.readings == 1
    for _ in range(2):
        clock.now += 0.3
        eventually(lambda: watch.readings == 2)
        time.sleep(0.1)
    assert watch.readings == 2


def test_a_storm_does_not_put_a_reading_off_for_ever(root: Path, watching: Callable[..., Watch]) -> None:
    clock = Clock()
    watch = watching(root, replace(DEAF, settle=0.2, settle_limit=0.3), clock.monotonic)
    for number in range(3):
        watch.source.say(HardwareChanged("storm"))
        eventually(lambda number=number: watch.source.taken > number)  # type: ignore[misc]
        assert watch.readings == 1
        clock.now += 0.1
    eventually(lambda: watch.readings == 2)  # 0.1 s after the last of them


def test_a_nic_that_is_unplugged_and_comes_back(root: Path, watching: Callable[..., Watch]) -> None:
    watch = watching(root, DEAF)
    name = root / "sys/class/infiniband/mlx5_0"
    target = name.readlink()
    name.unlink()
    watch.source.say(HardwareChanged("infiniband remove"))
    watch.next(lambda found: "mlx5_0" not in nic_names(found))
    name.symlink_to(target)
    watch.source.say(HardwareChanged("infiniband add"))
    assert watch.next(lambda found: "mlx5_0" in nic_names(found)) == discover(root)


def test_a_link_goes_down_and_up_without_any_event(root: Path, watching: Callable[..., Watch]) -> None:
    watch = watching(root)
    state = next((root / "sys/devices").rglob("infiniband/mlx5_0/ports/1/state"))
    state.write_text("1: DOWN\n")
    down = watch.next(lambda found: taints(found, "nic-0000-0c-00-0"))
    assert taints(down, "nic-0000-0c-00-0") == ["LinkDown"]
    state.write_text("4: ACTIVE\n")
    watch.next(lambda found: not taints(found, "nic-0000-0c-00-0"))


def test_virtual_functions_appear(root: Path, watching: Callable[..., Watch]) -> None:
    watch = watching(root)
    function = next((root / "sys/devices").rglob(NIC0))
    vf = function.with_name("0000:0c:00.2")
    shutil.copytree(function, vf, symlinks=True)
    (vf / "infiniband/mlx5_0").rename(vf / "infiniband/mlx5_50")
    (vf / "physfn").symlink_to("../0000:0c:00.0")
    (function / "virtfn0").symlink_to("../0000:0c:00.2")
    place = str(vf.relative_to(root / "sys"))
    (root / "sys/class/infiniband/mlx5_50").symlink_to(f"../../{place}/infiniband/mlx5_50")
    (root / "sys/bus/pci/devices/0000:0c:00.2").symlink_to(f"../../../{place}")
    told = watch.next(lambda found: found.machine.vfs)
    assert [each.name for each in told.machine.vfs] == ["nic-0000-0c-00-0-vf-0"]


def test_an_xid_is_told_from_the_last_reading(root: Path, watching: Callable[..., Watch]) -> None:
    watch = watching(root, replace(DEAF, settle=600.0, settle_limit=600.0))
    watch.source.say(XidReported(GPU0, 79))
    told = watch.next(lambda found: found.machine.gpus[0].faults)
    assert taints(told, "gpu-0000-0f-00-0") == ["Xid79"]
    assert watch.readings == 1
    assert not any(gpu.faults for gpu in told.machine.gpus[1:])


def test_a_program_that_makes_xids_does_not_keep_the_node_busy(
    root: Path, watching: Callable[..., Watch]
) -> None:
    """Nor does it put off what others have to say."""
    clock = Clock()
    watch = watching(root, replace(DEAF, recheck=30.0), clock.monotonic)

    def programs() -> None:
        before = watch.source.taken
        watch.source.say(*[XidReported(GPU0, number) for number in (13, 31, 32, 43) for _ in range(500)])
        eventually(lambda: watch.source.taken == before + 2000)

    for _ in range(5):
        programs()
        clock.now += 5.0
        time.sleep(0.05)
    assert watch.readings == 1
    watch.source.say(XidReported(GPU0, 79))
    watch.next(lambda found: found.machine.gpus[0].faults == ("Xid79",))
    programs()
    clock.now += DEAF.settle
    eventually(lambda: watch.readings == 2)


@pytest.mark.parametrize("number", [63, 94, 154])
def test_after_an_xid_that_is_no_fault_nvml_may_say_what_is_wrong(
    root: Path, watching: Callable[..., Watch], number: int
) -> None:
    """Rows that are to be remapped, another recovery action: nothing else announces them."""
    clock = Clock()
    watch = watching(root, replace(DEAF, recheck=30.0), clock.monotonic)
    clock.now += 31.0
    rewrite_nvml(root, lambda document: document["gpus"][0].update(faults=["RowRemapPending"]))
    watch.source.say(XidReported(GPU0, number))
    eventually(lambda: watch.source.taken == 1)
    clock.now += DEAF.settle
    watch.next(lambda found: found.machine.gpus[0].faults == ("RowRemapPending",))


def test_a_driver_that_is_loaded_anew_ends_what_was_wrong(root: Path, watching: Callable[..., Watch]) -> None:
    watch = watching(root, DEAF)
    watch.source.say(XidReported(GPU0, 48))
    watch.next(lambda found: found.machine.gpus[0].faults == ("Xid48",))
    watch.source.say(DriverLoaded(7))
    watch.next(lambda found: not found.machine.gpus[0].faults)


def test_what_nvml_and_the_kernels_log_both_tell_is_one_report(
    root: Path, watching: Callable[..., Watch]
) -> None:
    clock = Clock()
    watch = watching(root, replace(DEAF, settle=600.0, settle_limit=600.0), clock.monotonic)

    def reports(*events: Event) -> int:
        with capture_logs() as lines:
            before = watch.source.taken
            watch.source.say(*events)
            eventually(lambda: watch.source.taken == before + len(events))
        return [line["event"] for line in lines].count("gpu_xid_error")

    assert reports(XidReported(GPU0, 79), XidReported(GPU0, 79, sequence=7)) == 1
    assert reports(XidReported(GPU0, 48), XidReported("0000:2d:00.0", 48)) == 2
    clock.now += ONE_REPORT_IN
    assert reports(XidReported(GPU0, 79)) == 1


def test_a_link_that_flaps_does_not_keep_the_node_busy(root: Path, watching: Callable[..., Watch]) -> None:
    """A flap a second for a minute."""
    clock = Clock()
    watch = watching(root, WatchTiming(probe=600.0, recheck=600.0, stop_within=0.01), clock.monotonic)
    for number in range(60):
        watch.source.say(HardwareChanged("link"))
        eventually(lambda number=number: watch.source.taken > number)  # type: ignore[misc]
        clock.now += 1.0
        time.sleep(0.02)
    assert 1 < watch.readings <= 1 + 60 / WatchTiming().between_readings


def test_a_card_falls_off_the_bus_and_comes_back(root: Path, watching: Callable[..., Watch]) -> None:
    watch = watching(root)
    rewrite_nvml(root, lambda document: document["gpus"][0].update(errors={"memory": "GPU is lost"}))
    watch.source.say(XidReported(GPU0, 79))
    gone = watch.next(lambda found: not found.machine.gpus[0].publishable)
    assert any("GPU is lost" in str(problem) for problem in gone.problems)
    rewrite_nvml(root, lambda document: document["gpus"][0].pop("errors"))
    back = watch.next(lambda found: found.machine.gpus[0].publishable and not found.machine.gpus[0].faults)
    assert back == discover(root)


def test_a_fault_that_only_a_reading_shows_is_over_as_soon_as_a_reading_says_so(
    root: Path, watching: Callable[..., Watch]
) -> None:
    """No Xid was heard (it came before the start), and a reset announces nothing that a glance could see."""
    rewrite_nvml(root, lambda document: document["gpus"][0].update(faults=["NeedsReset"]))
    watch = watching(root, replace(DEAF, recheck=0.05))
    assert taints(watch.told[0], "gpu-0000-0f-00-0") == ["NeedsReset"]
    rewrite_nvml(root, lambda document: document["gpus"][0].pop("faults"))
    watch.next(lambda found: not taints(found, "gpu-0000-0f-00-0"))


def test_a_card_that_the_driver_has_and_that_does_not_answer_whole_is_asked_again(
    root: Path, watching: Callable[..., Watch]
) -> None:
    rewrite_nvml(root, lambda document: document["gpus"][0].update(errors={"memory": "Unknown Error"}))
    watch = watching(root, replace(DEAF, recheck=0.05))
    assert not watch.told[0].machine.gpus[0].publishable
    rewrite_nvml(root, lambda document: document["gpus"][0].pop("errors"))
    watch.next(lambda found: found.machine.gpus[0].publishable)


def test_numbers_that_change_at_reboot_are_not_news_for_the_slices(
    root: Path, watching: Callable[..., Watch]
) -> None:
    watch = watching(root)
    before = watch.told[0]
    for node in (root / "dev/nvidia-uvm", root / "dev/nvidia-uvm-tools"):
        minor = (
            os.minor(node.lstat().st_rdev)
            if node.lstat().st_rdev
            else int(node.read_text().partition(":")[2])
        )
        node.unlink()
        node.write_text(f"c 499:{minor}\n")
    (root / "proc/sys/kernel/random/boot_id").write_text("0b9e8a56-0000-4000-8000-000000000000\n")
    after = watch.next(lambda found: found.machine.gpu_control[1].major == 499)
    assert after.machine.boot_id != before.machine.boot_id
    old, new = (
        build_slices(found.machine, node_name="n", node_uid=None, mode="joint", generation=4)
        for found in (before, after)
    )
    assert same_content(old, new)


def without_uvm_in_kernel(root: Path) -> str:
    """The module is not loaded; returns how the kernel's list was."""
    listed = (root / "proc/devices").read_text()
    kept = (line for line in listed.splitlines(keepends=True) if "nvidia-uvm" not in line)
    (root / "proc/devices").write_text("".join(kept))
    return listed


def test_the_kernel_knowing_uvm_is_enough(root: Path, watching: Callable[..., Watch]) -> None:
    """Nobody has to have made the node."""
    listed = without_uvm_in_kernel(root)
    for name in ("nvidia-uvm", "nvidia-uvm-tools"):
        (root / "dev" / name).unlink()
    watch = watching(root)
    names = [gpu.name for gpu in watch.told[0].machine.gpus]
    assert all(taints(watch.told[0], name) == ["UvmMissing"] for name in names)
    (root / "proc/devices").write_text(listed)
    watch.next(lambda found: not any(taints(found, name) for name in names))


def test_a_card_without_uvm_is_faulty_until_the_node_is_there(
    root: Path, watching: Callable[..., Watch]
) -> None:
    without_uvm_in_kernel(root)
    node = root / "dev/nvidia-uvm"
    content = node.read_text() if not node.lstat().st_rdev else None
    number = node.lstat().st_rdev
    node.unlink()
    watch = watching(root)
    names = [gpu.name for gpu in watch.told[0].machine.gpus]
    assert all(taints(watch.told[0], name) == ["UvmMissing"] for name in names)
    if content is None:
        os.mknod(node, 0o600 | 0o020000, number)
    else:
        node.write_text(content)
    watch.next(lambda found: not any(taints(found, name) for name in names))


def test_an_xid_is_known_to_a_watcher_that_starts_again(tmp_path: Path, root: Path) -> None:
    LedgerFile(tmp_path, Disk(), boot_id="b").save(Ledger().with_xid(GPU0, 79, now=0.0))
    told: list[Discovery] = []
    stop = threading.Event()

    def take(found: Discovery) -> None:
        told.append(found)
        stop.set()

    again = LedgerFile(tmp_path, Disk(), boot_id="b")
    watcher = MachineWatcher(read=lambda: discover(root), probe=lambda: probe(root), remembered=again)
    watcher.run(stop, take)
    assert taints(told[0], "gpu-0000-0f-00-0") == ["Xid79"]


def test_on_a_node_xids_come_from_the_kernels_log_and_stay_over_a_restart(
    tmp_path: Path, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With all that `of` gives a watcher of this machine; the log is a pipe, which keeps records apart."""
    state = tmp_path / "state"

    def remembered() -> Ledger:
        return LedgerFile(state, Disk(), boot_id=boot_id(Path("/"))).load()

    def following(*records: str) -> list[Discovery]:
        """Of a plugin that starts, up to its second change."""
        reading, writing = os.pipe2(os.O_DIRECT | os.O_NONBLOCK)
        monkeypatch.setattr(watcher, "KMSG", Path(f"/proc/self/fd/{reading}"))
        for record in records:
            os.write(writing, record.encode())
        homes = HomeSource.of(root)
        made = MachineWatcher.of(Path("/"), homes, NvmlLibrary(homes.nvml), state=state)
        made.read, made.probe, made.timing = lambda: discover(root), lambda: None, QUICK
        told: list[Discovery] = []
        stop = threading.Event()

        def take(found: Discovery) -> None:
            told.append(found)
            if found.machine.gpus[0].faults:
                assert remembered().faults  # a plugin that is killed now has it
                stop.set()

        try:
            made.run(stop, take)
        finally:
            os.close(reading)
            os.close(writing)
        return told

    log = [f"4,{41 + n},1,-;NVRM: Xid (PCI:0000:0f:00): {xid}, x\n" for n, xid in enumerate((79, 48, 62))]
    assert taints(following(*log[:1])[-1], "gpu-0000-0f-00-0") == ["Xid79"]
    assert taints(following(*log[:2])[0], "gpu-0000-0f-00-0") == ["Xid79"]
    assert remembered().following == 43
    LedgerFile(state, Disk(), boot_id=boot_id(Path("/"))).save(Ledger(following=43), also_the_place=True)
    assert taints(following(*log)[-1], "gpu-0000-0f-00-0") == ["Xid62"]  # those that are over stay over


def test_a_link_that_goes_down_between_two_probes_counts(root: Path, watching: Callable[..., Watch]) -> None:
    port = next((root / "sys/devices").rglob("infiniband/mlx5_0/ports/1"))
    (port / "link_layer").write_text("InfiniBand\n")
    counters = port / "counters"
    counters.mkdir(exist_ok=True)
    (counters / "link_downed").write_text("4\n")
    watch = watching(root)
    assert watch.told[0].machine.device("nic-0000-0c-00-0").downs == 4  # type: ignore[union-attr]
    (counters / "link_downed").write_text("7\n")
    watch.next(lambda found: taints(found, "nic-0000-0c-00-0") == ["LinkFlapping"])


def test_what_is_refused_is_told_again(root: Path, watching: Callable[..., Watch]) -> None:
    watch = watching(root)
    watch.refusals = 3
    next((root / "sys/devices").rglob("infiniband/mlx5_0/ports/1/state")).write_text("1: DOWN\n")
    watch.next(lambda found: taints(found, "nic-0000-0c-00-0"))
    assert watch.refusals == 0


def test_a_glance_at_a_large_machine_costs_a_fifth_of_a_reading_at_most(tmp_path: Path) -> None:
    """It is less; every probe is a glance, and a reading follows only where something has changed."""
    MachineWriter(tmp_path).write(large())
    assert calls(lambda: probe(tmp_path)) * 5 < calls(lambda: discover(tmp_path))


def large() -> Any:
    """16 GPUs, 16 NICs, 128 virtual functions."""
    nics: list[dict[str, Any]] = []
    for n in range(16):
        above = f"pci00{n:02x}:00/00:01.0/01:00.0/02:01.0"
        nics.append({"path": f"{above}/04:00.0", "numa": 0, "ib": f"mlx5_{n}", "vfs": 8})
        nics += [
            {"path": f"{above}/04:00.{vf + 1}" if vf < 7 else f"{above}/04:01.0", "numa": 0}
            | {"ib": f"mlx5_{16 + 8 * n + vf}", "parent": f"{above}/04:00.0", "mad": False}
            for vf in range(8)
        ]
    return preset(
        {
            "schema": "koordra.io/machine/v1",
            "numa": [{"id": 0, "socket": 0, "cpus": "0-95"}],
            "gpu": {"product": "NVIDIA H200", "memory_mib": 143771},
            "nic": {"link_layer": "InfiniBand", "rate": 400},
            "gpus": [
                {"path": f"pci00{n:02x}:00/00:01.0/01:00.0/02:00.0/03:00.0", "numa": 0} for n in range(16)
            ],
            "nics": nics,
        },
        name="large",
    ).machine(serial="large")
