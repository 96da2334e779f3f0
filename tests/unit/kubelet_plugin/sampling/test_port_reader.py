"""Ports on the host and in pods' namespaces, each a folder that stands for what the kernel shows there; that
it shows a namespace's own is tested with a real one (network/test_roce_gid.py)."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from koordra.errors import CheckpointError, NodeError
from koordra.kubelet_plugin.sampling.nic_counters import RECEIVED, Port, PortCounters
from koordra.kubelet_plugin.sampling.port_reader import MOST, PortReader
from koordra.node_state.claim_network import AttachedDevice, AttachedNetwork


def write(root: Path, device: str, words: int) -> None:
    folder = root / "sys/class/infiniband" / device / "ports/1/counters"
    folder.mkdir(parents=True)
    (folder / "port_rcv_data").write_text(f"{words}\n")


def network(number: int, *, moved: bool = True) -> AttachedNetwork:
    device = AttachedDevice(f"nic-vf-{number}", "rail0", rdma_moved=moved)
    return AttachedNetwork(f"uid-{number}", "pod", netns=f"/var/run/netns/{number:03}", devices=(device,))


def port(number: int) -> Port:
    return f"mlx5_{number}", 1


class Pods:
    """`looked`: the namespaces that were looked into."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.looked: list[str] = []

    def __call__(
        self, netns: str, task: Callable[[Path], dict[Port, PortCounters]]
    ) -> dict[Port, PortCounters]:
        self.looked.append(netns)
        root = self.folder / netns.rpartition("/")[2]
        if not root.exists():
            raise NodeError(f"network namespace {netns}: gone")
        return task(root / "sys")


def test_a_device_in_a_pod_is_read_there(tmp_path: Path) -> None:
    pods = Pods(tmp_path)
    write(tmp_path / "host", "mlx5_0", 1)
    write(tmp_path / "001", "mlx5_1", 2)
    write(tmp_path / "001", "mlx5_9", 9)
    attached = (network(1), network(2), network(0, moved=False))
    reader = PortReader(tmp_path / "host", attached=lambda: attached, in_sysfs=pods)
    ports = {port(number): f"nic-vf-{number}" for number in range(4)}
    found = reader.read(ports)
    assert found == {port(0): PortCounters({RECEIVED: 1}), port(1): PortCounters({RECEIVED: 2})}
    assert pods.looked == ["/var/run/netns/001", "/var/run/netns/002"], "one that ends keeps no other"


def test_many_pods_have_their_turns(tmp_path: Path) -> None:
    pods, count = Pods(tmp_path), 3 * MOST + 1
    for number in range(count):
        write(tmp_path / f"{number:03}", f"mlx5_{number}", number)
    attached = [network(number) for number in range(count)]
    reader = PortReader(tmp_path / "host", attached=lambda: attached, in_sysfs=pods)
    ports = {port(number): f"nic-vf-{number}" for number in range(count)}
    seen: dict[Port, PortCounters] = {}
    for _ in range(4):
        found = reader.read(ports)
        assert len(found) == MOST
        seen |= found
    assert len(seen) == count
    assert seen[port(count - 1)] == PortCounters({RECEIVED: count - 1})


def test_a_disk_that_is_not_readable_leaves_the_hosts_ports(tmp_path: Path) -> None:
    def broken() -> tuple[AttachedNetwork, ...]:
        raise CheckpointError("attached cannot be read")

    write(tmp_path, "mlx5_0", 1)
    reader = PortReader(tmp_path, attached=broken, in_sysfs=Pods(tmp_path))
    assert set(reader.read({port(0): "nic-vf-0"})) == {port(0)}
