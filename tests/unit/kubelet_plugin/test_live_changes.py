"""The machine changes while the plugin runs: slices, taints, guarded nodes and Prepare follow, and come
back."""

from __future__ import annotations

import json
import socket
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from koordra.api.objects import Object
from koordra.kubelet_plugin.discovery.events import Event, XidReported
from koordra.kubelet_plugin.discovery.reading import discover, probe
from koordra.kubelet_plugin.discovery.watcher import MachineWatcher, WatchTiming
from koordra.kubelet_plugin.publish.node_inventory import InventorySource
from koordra.kubelet_plugin.publish.publisher import Publisher
from koordra.topology.presets import write_machine
from tests.fakes import driver_homes
from tests.fakes.disks import FailingDisk
from tests.fakes.node_claims import GPU_0, NIC_0, NODE
from tests.unit.kubelet_plugin.running_plugin import RunningPlugin, wait_for

QUICK = WatchTiming(
    settle=0.02,
    settle_limit=0.2,
    probe=0.05,
    between_probes=0.02,
    between_readings=0.0,
    recheck=0.05,
    stop_within=0.05,
)
BUS_ID = "0000:0f:00.0"


class Xids:
    """An event source that tests speak through."""

    def __init__(self) -> None:
        self._mouth, self._ear = socket.socketpair()
        self._events: list[Event] = []

    def say(self, number: int) -> None:
        self._events.append(XidReported(BUS_ID, number))
        self._mouth.send(b"!")

    def fileno(self) -> int:
        return self._ear.fileno()

    def take(self) -> Sequence[Event]:
        self._ear.recv(4096)
        found, self._events = self._events, []
        return found

    def close(self) -> None:
        self._mouth.close()
        self._ear.close()


class LiveNode:
    """A machine on disk and the plugin that runs on it."""

    def __init__(self, root: Path, plugin: RunningPlugin, disk: FailingDisk, xids: Xids) -> None:
        self.root = root
        self.plugin = plugin
        self.api = plugin.api
        self.disk = disk
        self.xids = xids

    @property
    def generation(self) -> int:
        (generation,) = self.api.generations()
        return generation

    def taints(self, device: str) -> list[str]:
        """Values of its health taints."""
        found = self.api.devices()[device].get("taints", ())
        return [taint["value"] for taint in found if taint["key"] == "koordra.io/unhealthy"]

    def guarded(self) -> dict[str, list[str]]:
        """Paths of the guarded nodes, by device."""
        entries = self.plugin.guarded()["devices"]
        return {entry["name"]: [node["path"] for node in entry["nodes"]] for entry in entries}

    def unplug(self) -> Callable[[], None]:
        """Takes the first card from the PCI tree; what is returned puts it back."""
        return unplugged(self.root)

    def link_state(self, state: str) -> None:
        next((self.root / "sys/devices").rglob("infiniband/mlx5_0/ports/1/state")).write_text(f"{state}\n")

    def nvml(self, change: Callable[[dict[str, Any]], None]) -> None:
        """Change what NVML says about the first card, at once."""
        file = self.root / "nvml.json"
        document = json.loads(file.read_text())
        change(document["gpus"][0])
        fresh = file.with_name("nvml.new")
        fresh.write_text(json.dumps(document))
        fresh.rename(file)


def unplugged(root: Path) -> Callable[[], None]:
    link = root / "sys/bus/pci/devices" / BUS_ID
    target = link.readlink()
    link.unlink()
    return lambda: link.symlink_to(target)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    write_machine("hgx-h100", tmp_path, serial=NODE)
    return tmp_path


@pytest.fixture
def start(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[Path], LiveNode]]:
    monkeypatch.setattr(Publisher, "settle", 0.05)
    with ExitStack() as stack:

        def started(root: Path) -> LiveNode:
            xids, disk = Xids(), FailingDisk()

            def watcher(below: Path, *_: object) -> MachineWatcher:
                return MachineWatcher(
                    read=lambda: discover(below), probe=lambda: probe(below), sources=[xids], timing=QUICK
                )

            # Short, for the sockets.
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="k")))
            plugin = RunningPlugin(folder, root, watcher=watcher, disk=disk)
            stack.enter_context(plugin.serving())
            assert wait_for(lambda: plugin.api.generations() == {1})
            return LiveNode(root, plugin, disk, xids)

        yield started


@pytest.fixture
def node(root: Path, start: Callable[[Path], LiveNode]) -> LiveNode:
    return start(root)


def test_a_card_that_is_unplugged_and_plugged_in_again(node: LiveNode) -> None:
    plug_in = node.unplug()
    assert wait_for(lambda: GPU_0 not in node.api.devices())
    assert (node.generation, len(node.api.devices())) == (2, 23)
    error = node.plugin.prepare().error
    assert error.endswith(f"DeviceUnhealthy: {GPU_0} is gone from this node; the claim needs another device")
    # Nobody removes its node, so nobody is let at it while it is away.
    assert node.guarded()[GPU_0] == ["/dev/nvidia0"]
    plug_in()
    assert wait_for(lambda: GPU_0 in node.api.devices())
    assert node.generation == 3
    assert node.plugin.prepare().error == ""


def test_a_card_that_nvml_has_lost_is_refused_in_its_words(node: LiveNode) -> None:
    node.nvml(lambda card: card.update(errors={"memory": "GPU is lost"}))
    assert wait_for(lambda: GPU_0 not in node.api.devices())
    error = node.plugin.prepare().error
    assert f"{GPU_0} cannot be given out: GPU {BUS_ID}: memory" in error
    assert "NVML answers GPU is lost" in error
    node.nvml(lambda card: card.pop("errors"))
    assert wait_for(lambda: GPU_0 in node.api.devices())
    assert node.taints(GPU_0) == []
    assert node.plugin.prepare().error == ""


def test_a_link_goes_down_and_up(node: LiveNode) -> None:
    node.link_state("1: DOWN")
    assert wait_for(lambda: node.taints(NIC_0) == ["LinkDown"])
    down = node.generation
    node.link_state("4: ACTIVE")
    assert wait_for(lambda: node.taints(NIC_0) == [])
    assert node.generation == down + 1
    assert len(node.api.devices()) == 24


def test_an_xid_taints_until_the_card_was_away_and_is_whole_again(node: LiveNode) -> None:
    node.xids.say(79)
    assert wait_for(lambda: node.taints(GPU_0) == ["Xid79"])
    plug_in = node.unplug()
    assert wait_for(lambda: GPU_0 not in node.api.devices())
    plug_in()
    assert wait_for(lambda: GPU_0 in node.api.devices())
    assert node.taints(GPU_0) == []


def test_a_fault_that_nvml_reports(node: LiveNode) -> None:
    node.nvml(lambda card: card.update(faults=["Xid48"]))
    assert wait_for(lambda: node.taints(GPU_0) == ["Xid48"])
    node.nvml(lambda card: card.pop("faults"))
    assert wait_for(lambda: node.taints(GPU_0) == [])
    assert node.generation == 3


def test_what_changes_nothing_writes_nothing(node: LiveNode) -> None:
    """A reading that differs in what no slice says: another boot id, a rewritten recording."""
    writes = node.api.writes
    boot_id = "0b9e8a56-0000-4000-8000-000000000000"
    (node.root / "proc/sys/kernel/random/boot_id").write_text(f"{boot_id}\n")
    node.nvml(lambda card: card.update(comment="nothing"))
    assert wait_for(lambda: node.plugin.driver._inventory.current().boot_id == boot_id)
    time.sleep(0.3)
    assert node.api.writes == writes
    assert node.generation == 1


def test_a_device_is_guarded_before_it_is_published(root: Path, start: Callable[[Path], LiveNode]) -> None:
    plug_in = unplugged(root)
    node = start(root)
    assert GPU_0 not in node.guarded()
    early: list[str] = []

    def check(body: Object) -> None:
        names = [device["name"] for device in body["spec"]["devices"]]
        early.extend(name for name in names if not node.guarded().get(name))

    node.api.before_write = check
    plug_in()
    assert wait_for(lambda: GPU_0 in node.api.devices())
    assert early == []


def test_a_full_disk_keeps_a_new_device_back_and_lets_a_fault_out(
    root: Path, start: Callable[[Path], LiveNode]
) -> None:
    plug_in = unplugged(root)
    node = start(root)
    node.disk.full = True
    node.link_state("1: DOWN")
    assert wait_for(lambda: node.taints(NIC_0) == ["LinkDown"])
    reached = len(node.disk.steps)
    plug_in()
    assert wait_for(lambda: len(node.disk.steps) > reached)
    assert f"{GPU_0} is gone from this node" in node.plugin.prepare().error
    assert GPU_0 not in node.api.devices()
    node.disk.full = False
    assert wait_for(lambda: GPU_0 in node.api.devices())
    assert node.guarded()[GPU_0] == ["/dev/nvidia0"]


def test_each_problem_is_said_once_when_it_comes_and_when_it_goes(
    machine_root: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_machine("hgx-h100", tmp_path, serial=NODE)
    (tmp_path / "proc/devices").unlink()  # else the kernel's numbers do
    source = InventorySource(tmp_path)
    source.set(discover(tmp_path))
    assert "discovery_problem" not in capsys.readouterr().err
    (tmp_path / "dev/nvidia0").unlink()
    for _ in range(3):
        source.set(discover(tmp_path))
    said = capsys.readouterr().err
    assert said.count("discovery_problem") == said.count("/dev/nvidia0 does not exist") == 1
    source.set(discover(machine_root))
    (tmp_path / "dev/nvidia1").unlink()
    source.set(discover(tmp_path))
    said = capsys.readouterr().err
    assert said.count("/dev/nvidia0 does not exist") == said.count("/dev/nvidia1 does not exist") == 1


def test_libraries_that_come_later_than_the_driver_are_found(tmp_path: Path) -> None:
    machine = write_machine("hgx-h100", tmp_path, serial=NODE)
    now = [100.0]
    source = InventorySource(tmp_path, clock=lambda: now[0])
    source.set(discover(tmp_path))
    driver_homes.libraries(tmp_path / "usr/lib64", str(machine.driver_version))
    library = tmp_path / f"usr/lib64/libcuda.so.{machine.driver_version}"
    assert source.current().driver_files.files == ()
    now[0] += 5.0
    assert str(library) in {file.mount.host_path for file in source.current().driver_files.files}


def test_a_driver_that_comes_after_the_plugin(root: Path, start: Callable[[Path], LiveNode]) -> None:
    """Until then the node offers what else it has, and refuses claims of its GPUs in words."""
    places = [
        (root / name, root / f"later-{number}") for number, name in enumerate(("proc/driver", "nvml.json"))
    ]
    for place, later in places:
        place.rename(later)
    node = start(root)
    assert wait_for(lambda: NIC_0 in node.api.devices())
    assert GPU_0 not in node.api.devices()
    why = node.plugin.prepare().error
    assert GPU_0 in why
    assert "check that the NVIDIA driver is loaded for this card" in why

    for place, later in places:
        later.rename(place)
    assert wait_for(lambda: GPU_0 in node.api.devices())
    assert node.plugin.prepare().error == ""


def test_an_idle_node_asks_the_api_server_for_nothing(node: LiveNode) -> None:
    """After the first publication comes a look, since the watch tells of it; then there is quiet."""

    def quiet() -> bool:
        asked = node.api.asked
        time.sleep(0.7)
        return node.api.asked == asked

    assert wait_for(quiet)
