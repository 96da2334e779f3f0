"""A node as files: a healthy one, with GPUs and NICs below PCIe switches, containerd, kubelet and koordra, to
which a test does what goes wrong."""

from __future__ import annotations

import json
import os
import shutil
import stat
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from koordra.kubelet_plugin.node_check.check_node import check_node
from koordra.kubelet_plugin.node_check.readings.container_runtime.cri_client import RuntimeAnswer
from koordra.kubelet_plugin.node_check.readings.live_node import LiveNode, no_node
from koordra.kubelet_plugin.node_check.readings.node import read_node
from koordra.kubelet_plugin.node_check.result import CheckResult
from koordra.topology.presets.facts import preset
from koordra.topology.presets.tree import MachineWriter

DRIVER: Final = "580.65.06"
GPUS: Final = ("0000:13:00.0", "0000:15:00.0")
NICS: Final = ("0000:14:00.0", "0000:24:00.0")
_SWITCH: Final = "pci0000:10/10:01.0/11:00.0"
MACHINE: Final = preset(
    {
        "schema": "koordra.io/machine/v1",
        "driver": {"version": DRIVER, "cuda": 13000},
        "numa": [
            {"id": n, "socket": n, "cpus": f"{4 * n}-{4 * n + 3}", "distances": [10, 21]} for n in range(2)
        ],
        "gpu": {
            "product": "NVIDIA H100 80GB HBM3",
            "memory_mib": 81559,
            "architecture": "Hopper",
            "mig": False,
        },
        "nic": {"vendor": "15b3", "device": "1021", "link_layer": "Ethernet", "rate": 400, "vfs": 0},
        "gpus": [
            {"path": f"{_SWITCH}/12:00.0/13:00.0", "numa": 0},
            {"path": f"{_SWITCH}/12:02.0/15:00.0", "numa": 0},
        ],
        "nics": [
            {"path": f"{_SWITCH}/12:01.0/14:00.0", "numa": 0, "ib": "mlx5_0", "netdev": "eth0"},
            {
                "path": "pci0000:20/20:01.0/21:00.0/22:01.0/24:00.0",
                "numa": 1,
                "ib": "mlx5_1",
                "netdev": "eth1",
            },
        ],
    },
    name="node",
).machine(serial="node")
OPENED: Final = "/dev/null"
"""What processes have open: a device that there is everywhere, whose number is the driver's on this node."""
SWITCH_PORTS: Final = ("0000:12:00.0", "0000:12:01.0", "0000:12:02.0")
CONTAINERD: Final = "etc/containerd/config.toml"
CONTAINERD_PID: Final = 700
HOOK: Final = "var/lib/koordra/hook/koordra-cdi-hook-0123456789abcdef"
KUBELET: Final = "var/lib/kubelet"
_STATE: Final = f"{KUBELET}/plugins/koordra.io"
_ACS_AT: Final = 0x148
_UNIT: Final = "usr/lib/systemd/system/containerd.service"
CONTAINERD_CONFIG: Final = """\
version = 3
imports = ["/etc/containerd/conf.d/*.toml"]

[plugins.'io.containerd.cri.v1.runtime']
  enable_cdi = true
  cdi_spec_dirs = ['/etc/cdi', '/var/run/cdi']
  [plugins.'io.containerd.cri.v1.runtime'.containerd]
    default_runtime_name = 'runc'
    [plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.runc.options]
      SystemdCgroup = true
"""


class NodeFiles:
    """The node below `root`, and what it answers when it is asked: `runtime_version` of containerd, `oci` of
    runc, `running` the configuration that containerd reports, `mps` the version of its protocol."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.runtime_version = "2.1.4"
        self.oci = "1.3.3"
        self.running: dict[str, Any] = {}
        self.exclusive: bool | None = None
        self.answering: bool | None = True
        self.mps: str | None = "2"

    def write(self, path: str, text: str | bytes) -> None:
        file = self.root / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(text if isinstance(text, bytes) else text.encode())

    def edit(self, path: str, old: str, new: str) -> None:
        text = (self.root / path).read_text()
        assert old in text
        self.write(path, text.replace(old, new))

    def remove(self, path: str) -> None:
        target = self.root / path
        if target.is_dir() and not target.is_symlink():
            shutil.rmtree(target)
        else:
            target.unlink()

    def socket(self, path: str) -> None:
        """A socket's file: nothing listens on it."""
        (self.root / path).parent.mkdir(parents=True, exist_ok=True)
        os.mknod(self.root / path, stat.S_IFSOCK | 0o600)

    def link(self, path: str, target: str) -> None:
        (self.root / path).parent.mkdir(parents=True, exist_ok=True)
        (self.root / path).symlink_to(target)

    def library(self, name: str, version: str, *, root: str = "") -> None:
        """A library of the driver, as packages install it."""
        self.write(f"{root}usr/lib64/lib{name}.so.{version}", b"\x7fELF\x02")
        self.link(f"{root}usr/lib64/lib{name}.so.1", f"lib{name}.so.{version}")

    def process(self, pid: int, *arguments: str, cgroup: str = "0::/system.slice/x.service") -> None:
        self.write(f"proc/{pid}/comm", f"{arguments[0].rpartition('/')[2][:15]}\n")
        self.write(f"proc/{pid}/cmdline", "\0".join(arguments) + "\0")
        self.write(f"proc/{pid}/cgroup", f"{cgroup}\n")

    def nvml(self, change: Mapping[str, Any], *, gpu: int = 0) -> None:
        """Fields of one card in what NVML answers."""
        document = json.loads((self.root / "nvml.json").read_text())
        document["gpus"][gpu].update(change)
        self.write("nvml.json", json.dumps(document))

    def live(self) -> LiveNode:
        return replace(
            no_node(),
            runtime=lambda _: RuntimeAnswer("containerd", self.runtime_version, self.running),
            program_version=lambda _, path: (
                self.oci if path.endswith(("runc", "crun")) else self.runtime_version
            ),
            mps_protocol=lambda _: self.mps,
            rdma_exclusive=lambda: self.exclusive,
            answers=lambda _: self.answering,
        )

    def checked(self) -> dict[str, CheckResult]:
        return {result.name: result for result in check_node(read_node(self.root, live=self.live()))}


def healthy(root: Path) -> NodeFiles:
    node = NodeFiles(root)
    MachineWriter(root).write(MACHINE)
    _driver(node)
    _pcie(node)
    _rdma(node)
    _runtime(node)
    node.link("var/run", "/run")
    _koordra(node)
    node.write("sys/fs/cgroup/cgroup.controllers", "cpuset cpu io memory pids rdma\n")
    node.write("sys/module/apparmor/parameters/enabled", "Y\n")
    node.write("proc/1/mountinfo", "1 0 8:1 / / rw - ext4 /dev/sda1 rw\n2 1 0:9 / /run rw - tmpfs tmpfs rw\n")
    return node


def _driver(node: NodeFiles) -> None:
    version = f"NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  {DRIVER}  Release Build  (dvs)\n"
    node.write("proc/driver/nvidia/version", version)
    node.write("sys/module/nvidia/version", f"{DRIVER}\n")
    node.write("sys/module/nvidia/refcnt", "4\n")
    node.write("proc/driver/nvidia/params", "ModifyDeviceFiles: 1\nDeviceFileMode: 438\n")
    for name in ("cuda", "nvidia-ml"):
        node.library(name, DRIVER)
    for name in ("nvidia-cuda-mps-control", "nvidia-smi"):
        node.write(f"usr/bin/{name}", "")
    node.write("etc/ld.so.cache", "")
    for path in (node.root / "dev").glob("nvidia*"):
        path.chmod(0o666)
    for one in (*MACHINE.gpu_control, *(gpu.node for gpu in MACHINE.gpus if gpu.node)):
        node.link(f"dev/char/{one.major}:{one.minor}", f"..{one.path.removeprefix('/dev')}")
    for index in range(len(GPUS)):
        node.nvml({"rowsPending": False, "rowsFailed": False, "migPending": False}, gpu=index)
    node.write("proc/sys/kernel/osrelease", "6.8.0-45-generic\n")
    node.process(600, "nvidia-persistenced")
    node.edit("proc/devices", "Block devices", "  1 nvidia-null\n\nBlock devices")
    node.link("proc/600/fd/5", OPENED)


def acs_config(control: int) -> bytes:
    """A downstream port's whole configuration space, with that ACS control register."""
    config = bytearray(4096)
    config[0x06], config[0x34], config[0x40], config[0x42] = 0x10, 0x40, 0x10, 6 << 4 | 2
    config[0x100:0x104] = (0x0001 | 1 << 16 | _ACS_AT << 20).to_bytes(4, "little")
    config[_ACS_AT : _ACS_AT + 4] = (0x000D | 1 << 16).to_bytes(4, "little")
    config[_ACS_AT + 6 : _ACS_AT + 8] = control.to_bytes(2, "little")
    return bytes(config)


def elf(*, interpreter: bool) -> bytes:
    """The start of a program with two program headers."""
    program = bytearray(0x40 + 2 * 0x38)
    program[:5], program[0x20], program[0x36], program[0x38] = b"\x7fELF\x02", 0x40, 0x38, 2
    program[0x40], program[0x78] = 1, 3 if interpreter else 1
    return bytes(program)


def _pcie(node: NodeFiles) -> None:
    for bus_id in (*GPUS, *NICS):
        for which in ("current", "max"):
            node.write(f"sys/bus/pci/devices/{bus_id}/{which}_link_width", "16\n")
            node.write(f"sys/bus/pci/devices/{bus_id}/{which}_link_speed", "32.0 GT/s PCIe\n")
        node.link(
            f"sys/bus/pci/devices/{bus_id}/iommu_group", f"../../../../kernel/iommu_groups/{bus_id[5:7]}"
        )
        node.write(f"sys/kernel/iommu_groups/{bus_id[5:7]}/type", "identity\n")
    for port in SWITCH_PORTS:
        node.write(f"sys/bus/pci/devices/{port}/config", acs_config(0x11))
    node.write("proc/cmdline", "BOOT_IMAGE=/vmlinuz ro intel_iommu=on iommu=pt\n")


def _rdma(node: NodeFiles) -> None:
    for module in ("ib_core", "ib_uverbs", "rdma_cm", "rdma_ucm", "mlx5_ib"):
        (node.root / "sys/module" / module).mkdir(parents=True, exist_ok=True)
    node.write("sys/module/ib_core/parameters/netns_mode", "Y\n")
    for device in ("mlx5_0", "mlx5_1"):
        port = f"sys/class/infiniband/{device}/ports/1"
        node.write(f"{port}/gids/1", "0000:0000:0000:0000:0000:ffff:0a00:0001\n")
        node.write(f"{port}/gid_attrs/types/1", "RoCE v2\n")
        node.write(f"sys/class/net/eth{device[-1]}/mtu", "9000\n")


def _runtime(node: NodeFiles) -> None:
    node.write(CONTAINERD, CONTAINERD_CONFIG)
    node.process(CONTAINERD_PID, "/usr/bin/containerd", cgroup="0::/system.slice/containerd.service")
    node.write(
        f"proc/{CONTAINERD_PID}/limits",
        "Max locked memory         unlimited            unlimited            bytes\n",
    )
    node.write(
        _UNIT, "[Unit]\nDescription=containerd\n[Service]\nLimitNOFILE=1048576\nLimitMEMLOCK=infinity\n"
    )
    node.write("usr/sbin/runc", "")
    for path in ("run/containerd/containerd.sock", "run/nri/nri.sock"):
        node.socket(path)
    node.process(800, "/usr/bin/kubelet", "--config=/var/lib/kubelet/config.yaml", "--v", "2")
    node.write(f"{KUBELET}/config.yaml", "kind: KubeletConfiguration\ncgroupDriver: systemd\n")


def _koordra(node: NodeFiles) -> None:
    node.socket(f"{KUBELET}/plugins_registry/koordra.io-reg.sock")
    held = []
    for name, pid in (("nri.lock", 900), ("koordra.io-reg.sock.lock", 901)):
        node.write(f"{_STATE}/{name}", "")
        held.append(
            f"1: FLOCK  ADVISORY  WRITE {pid} fd:01:{(node.root / _STATE / name).stat().st_ino} 0 EOF\n"
        )
    node.write("proc/locks", "".join(held))
    node.write(HOOK, elf(interpreter=False))
    (node.root / HOOK).chmod(0o755)
    for folder in (node.root / HOOK).relative_to(node.root).parents:
        (node.root / folder).chmod(0o755)
    hooks = [{"hookName": "createContainer", "path": f"/{HOOK}"}]
    spec = {"containerEdits": {"hooks": hooks}, "devices": [{"name": "a", "containerEdits": {}}]}
    node.write("run/cdi/koordra.io-claim_a.json", json.dumps(spec))
    node.process(
        901, "/opt/koordra/bin/python", "/opt/koordra/bin/koordra", "kubelet-plugin", "--pod-network"
    )
