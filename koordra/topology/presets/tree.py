"""Writes a machine as a directory that stands for ``/``: what the kernel and NVML would show of it.

    sys/bus/pci/devices/<bus id>  ->  ../../../devices/pci0000:07/.../<bus id>
    sys/devices/pci...            one directory for each bridge and function, with the files that discovery
                                  reads
    sys/devices/system/{node,cpu} NUMA nodes, sockets
    sys/class/{infiniband,infiniband_verbs,infiniband_mad,net,misc}
    proc/driver/nvidia, proc/devices, proc/sys/kernel/random/boot_id
    dev/                          character devices where mknod is allowed, otherwise files with
                                  "c MAJOR:MINOR"
    nvml.json                     what NVML would answer

Discovery reads the result with the code that reads a real node, and must find the machine that was written.
"""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Iterable, Iterator
from dataclasses import fields
from functools import partial
from pathlib import Path
from typing import Any

from koordra.api.reader import camel_case
from koordra.errors import DiscoveryError
from koordra.topology.cpu_lists import cpu_numbers
from koordra.topology.location import DeviceNode
from koordra.topology.machine import BridgeKind, Gpu, Machine, Nic

_CAPABILITY_AT = 0x40
_PORT_TYPE = {BridgeKind.ROOT_PORT: 4, BridgeKind.UPSTREAM: 5, BridgeKind.DOWNSTREAM: 6, BridgeKind.OTHER: 7}


class MachineWriter:
    """Writes below one directory, which must not hold a machine yet."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def write(self, machine: Machine, *, other_functions: Iterable[tuple[str, ...]] = ()) -> None:
        """Everything of ``machine``; ``other_functions`` are further PCI functions (NVSwitches), by path."""
        try:
            self.root.mkdir(parents=True, exist_ok=True)
            self._numa(machine)
            self._bridges(machine, other_functions)
            for gpu in machine.gpus:
                self._gpu(machine, gpu)
            for nic in (*machine.nics, *machine.vfs):
                self._nic(machine, nic)
            self._host_network(machine)
            self._driver(machine)
            for node in machine.rdma_control:
                self._file(f"sys/class/misc/{Path(node.path).name}/dev", f"{node.major}:{node.minor}")
            for node in nodes(machine):
                self._device_node(node)
            if machine.boot_id:
                self._file("proc/sys/kernel/random/boot_id", machine.boot_id)
        except OSError as error:
            raise DiscoveryError(f"machine cannot be written to {self.root}: {error}") from error

    def _numa(self, machine: Machine) -> None:
        for node in machine.numa_nodes:
            base = f"sys/devices/system/node/node{node.id}"
            self._file(f"{base}/cpulist", node.cpus)
            self._file(f"{base}/distance", " ".join(map(str, node.distances)))
            for cpu in cpu_numbers(node.cpus):
                self._file(
                    f"sys/devices/system/cpu/cpu{cpu}/topology/physical_package_id",
                    str(-1 if node.socket is None else node.socket),
                )

    def _bridges(self, machine: Machine, other_functions: Iterable[tuple[str, ...]]) -> None:
        bridge = partial(self._function, class_code=0x060400, vendor="1000", device="c030")
        for one in machine.bridges:
            (self.root / bridge(one.path) / "config").write_bytes(_bridge_config(one.kind))
        for path in other_functions:
            for depth in range(2, len(path)):
                if not (self.root / _directory(path[:depth])).exists():
                    bridge(path[:depth])
            self._function(path, class_code=0x068000, vendor="10de", device="22a3")

    def _function(
        self,
        path: tuple[str, ...],
        *,
        class_code: int,
        vendor: str | None,
        device: str | None,
        numa: int | None = None,
    ) -> str:
        directory = _directory(path)
        self._file(f"{directory}/class", f"{class_code:#08x}")
        for name, number in (("vendor", vendor), ("device", device)):
            if number:
                self._file(f"{directory}/{name}", f"0x{number}")
        self._file(f"{directory}/numa_node", str(-1 if numa is None else numa))
        self._link(f"sys/bus/pci/devices/{path[-1]}", f"../../../{directory.removeprefix('sys/')}")
        return directory

    def _gpu(self, machine: Machine, gpu: Gpu) -> None:
        self._function(
            gpu.location.path,
            class_code=0x030200,
            vendor="10de",
            device=gpu.device_id,
            numa=None if "numaNode" in gpu.location.inferred else gpu.location.numa,
        )
        lines = {
            "Model": gpu.product_name,
            "IRQ": 18,
            "GPU UUID": gpu.uuid,
            "Bus Type": "PCIe",
            "Bus Location": gpu.location.bus_id,
            "Device Minor": gpu.minor,
            "GPU Firmware": machine.driver_version,
            "GPU Excluded": "No",
        }
        text = "".join(f"{key}: \t {value}\n" for key, value in lines.items() if value is not None)
        self._file(f"proc/driver/nvidia/gpus/{gpu.location.bus_id}/information", text)

    def _nic(self, machine: Machine, nic: Nic) -> None:
        first = nic.ports[0]
        directory = self._function(
            nic.location.path,
            class_code=0x020700 if first.link_layer == "InfiniBand" else 0x020000,
            vendor=nic.vendor,
            device=nic.device_id,
            numa=None if "numaNode" in nic.location.inferred else nic.location.numa,
        )
        if nic.sriov_total:
            self._file(f"{directory}/sriov_totalvfs", str(nic.sriov_total))
            self._file(f"{directory}/sriov_numvfs", str(nic.sriov_active))
        if nic.parent:
            self._link(f"{directory}/physfn", f"../{nic.parent}")
            if nic.vf_index is not None:
                above = f"{directory.rpartition('/')[0]}/{nic.parent}"
                self._link(f"{above}/virtfn{nic.vf_index}", f"../{nic.location.bus_id}")
        base = f"{directory}/infiniband/{nic.ib_device}"
        self._file(f"{base}/node_guid", nic.guid or "")
        for port in nic.ports:
            at = f"{base}/ports/{port.number}"
            self._file(f"{at}/link_layer", port.link_layer or "")
            self._file(f"{at}/state", "4: ACTIVE" if port.active else "1: DOWN")
            self._file(f"{at}/phys_state", "5: LinkUp" if port.active else "3: Disabled")
            self._file(f"{at}/rate", f"{port.rate_gbps or 10} Gb/sec (4X HDR)")
            self._file(f"{at}/gids/0", port.gid or "")
            for place, key in enumerate((*port.pkeys, 0) if port.pkeys else ()):
                self._file(f"{at}/pkeys/{place}", f"{key:#06x}")
        if nic.netdev:
            self._file(f"{base}/ports/{first.number}/gid_attrs/ndevs/0", nic.netdev)
            # With RoCE LAG the port's interface is the bond, and the function's own another one.
            own = f"p{nic.ib_device}"[:15] if nic.upper == nic.netdev else nic.netdev
            self._file(f"{directory}/net/{own}/dev_port", "0")
            self._link(f"sys/class/net/{own}", f"../../{directory.removeprefix('sys/')}/net/{own}")
            if nic.upper:
                self._link(f"{directory}/net/{own}/master", f"../../../../../virtual/net/{nic.upper}")
        self._link(f"sys/class/infiniband/{nic.ib_device}", f"../../{base.removeprefix('sys/')}")
        for node in filter(None, (nic.verbs, *nic.management_nodes)):
            at = f"sys/class/infiniband_{'verbs' if node is nic.verbs else 'mad'}/{Path(node.path).name}"
            self._file(f"{at}/ibdev", nic.ib_device)
            self._file(f"{at}/dev", f"{node.major}:{node.minor}")

    def _host_network(self, machine: Machine) -> None:
        ways = [nic.netdev for nic in machine.nics if nic.needed]
        routes = "".join(f"{way} 00000000 0101A8C0 0003 0 0 100 00000000 0 0 0\n" for way in ways)
        self._file("proc/1/net/route", f"Iface Destination Gateway Flags RefCnt Use Metric Mask\n{routes}")
        self._file("sys/module/ib_core/parameters/netns_mode", "N" if machine.rdma_exclusive else "Y")

    def _driver(self, machine: Machine) -> None:
        majors = {
            (node.major, "nvidia-uvm" if "uvm" in node.path else "nvidia-frontend")
            for node in machine.gpu_control
        }
        majors |= {(nic.verbs.major, "infiniband_verbs") for nic in machine.nics if nic.verbs}
        majors |= {(machine.imex.major, "nvidia-caps-imex-channels")} if machine.imex else set()
        capabilities = list(_capabilities(machine))
        majors |= {(node.major, "nvidia-caps") for _, node in capabilities}
        if capabilities:
            lines = "".join(f"{path} {node.minor}\n" for path, node in capabilities)
            self._file("proc/driver/nvidia-caps/mig-minors", f"config 1\nmonitor 2\n{lines}")
        listed = "".join(f"{major:3} {name}\n" for major, name in sorted(majors))
        self._file("proc/devices", f"Character devices:\n{listed}\nBlock devices:\n")
        if machine.gpus:
            version = f"NVIDIA UNIX x86_64 Kernel Module  {machine.driver_version}  Release Build"
            self._file("proc/driver/nvidia/version", f"NVRM version: {version}")
            self._file("nvml.json", json.dumps(_nvml(machine), indent=1))

    def _device_node(self, node: DeviceNode) -> None:
        path = self.root / node.path.lstrip("/")
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            os.mknod(path, stat.S_IFCHR | 0o666, os.makedev(node.major, node.minor))
            path.chmod(0o666)  # the umask does not count
        except PermissionError:
            path.write_text(f"c {node.major}:{node.minor}\n", encoding="ascii")

    def _file(self, path: str, text: str) -> None:
        file = self.root / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text if text.endswith("\n") else f"{text}\n", encoding="ascii")

    def _link(self, path: str, target: str) -> None:
        link = self.root / path
        link.parent.mkdir(parents=True, exist_ok=True)
        link.symlink_to(target)


def nodes(machine: Machine) -> Iterator[DeviceNode]:
    """Every device node of the machine."""
    for gpu in machine.gpus:
        yield from filter(None, (gpu.node, *(node for one in gpu.mig_instances for node in one.nodes)))
    for nic in (*machine.nics, *machine.vfs):
        yield from filter(None, (nic.verbs, *nic.management_nodes))
    yield from (*machine.gpu_control, *machine.rdma_control)


def _capabilities(machine: Machine) -> Iterator[tuple[str, DeviceNode]]:
    """The driver's name of each MIG capability, and its node."""
    for gpu in machine.gpus:
        for instance in gpu.mig_instances:
            here = f"gpu{gpu.minor}/gi{instance.gpu_instance}"
            paths = f"{here}/access", f"{here}/ci{instance.compute_instance}/access"
            yield from zip(paths, instance.nodes, strict=False)


def _directory(path: tuple[str, ...]) -> str:
    return "/".join(("sys/devices", *path))


def _bridge_config(kind: BridgeKind) -> bytes:
    """256 bytes of configuration space: a type 1 header and a PCIe capability that tells the port type."""
    config = bytearray(256)
    config[0x00:0x04] = b"\x00\x10\x30\xc0"
    config[0x06] = 0x10  # status: capability list present
    config[0x0E] = 0x01  # header type 1: bridge
    config[0x34] = _CAPABILITY_AT
    config[_CAPABILITY_AT] = 0x10
    config[_CAPABILITY_AT + 2] = _PORT_TYPE[kind] << 4 | 2
    return bytes(config)


def _nvml(machine: Machine) -> dict[str, object]:
    return {
        "schema": "koordra.io/nvml/v1",
        "driverVersion": machine.driver_version,
        "cudaDriverVersion": machine.cuda_version,
        "gpus": [
            {
                # NVML's own spelling: eight digits of domain, upper case.
                "busId": gpu.location.bus_id.upper().rjust(len("00000000:00:00.0"), "0"),
                "uuid": gpu.uuid,
                "minor": gpu.minor,
                "name": gpu.product_name,
                "memoryBytes": gpu.memory_bytes,
                "architecture": gpu.architecture,
                "computeCapability": gpu.compute_capability,
                "migEnabled": gpu.mig_enabled,
                "nvlinks": [_fields(link) for link in gpu.nvlinks],
                **{field: values for field, values in _rare(gpu).items() if values is not None},
            }
            for gpu in machine.gpus
        ],
    }


def _rare(gpu: Gpu) -> dict[str, object]:
    """What only some cards have."""
    return {
        "multiprocessors": gpu.multiprocessors,
        "fabric": gpu.fabric and _fields(gpu.fabric),
        "faults": gpu.faults or None,
        "migProfiles": [_fields(one) for one in gpu.mig_profiles] or None,
        "migInstances": [_fields(one, leave_out="nodes") for one in gpu.mig_instances] or None,
    }


def _fields(value: Any, *, leave_out: str = "") -> dict[str, Any]:
    """The fields of a dataclass, named as in JSON: ``compute_slices`` is ``computeSlices``."""
    names = (field.name for field in fields(value) if field.name != leave_out)
    return {camel_case(name): getattr(value, name) for name in names}
