"""Every check on a healthy node, on an empty one, and with each thing that goes wrong."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from koordra.kubelet_plugin.node_check import check_node
from koordra.kubelet_plugin.node_check.check_node import CHECKS
from koordra.kubelet_plugin.node_check.checks import gpu_devices
from koordra.kubelet_plugin.node_check.readings.live_node import no_node
from koordra.kubelet_plugin.node_check.readings.node import NodeReadings, read_node
from koordra.kubelet_plugin.node_check.result import Outcome
from tests.fakes import node_files
from tests.fakes.hami_core import install
from tests.fakes.node_files import CONTAINERD, CONTAINERD_PID, DRIVER, GPUS, KUBELET, NICS, NodeFiles

Change = Callable[[NodeFiles], object]
_PCI = "sys/bus/pci/devices"
_PORT = "sys/class/infiniband/mlx5_0/ports/1"
_STATE = f"{KUBELET}/plugins/koordra.io"
_CPU_STATE = f"{KUBELET}/cpu_manager_state"
_COMPLETE = {
    "state": 3,
    "status": 0,
    "cluster": "00112233-4455-6677-8899-aabbccddeeff",
    "clique": 1,
    "healthMask": 0xAA,
}


def changes(*steps: Change) -> Change:
    def all_of_them(node: NodeFiles) -> None:
        for step in steps:
            step(node)

    return all_of_them


def write(path: str, text: str | bytes) -> Change:
    return lambda node: node.write(path, text)


def plugin(*options: str) -> Change:
    """The running plugin has these."""
    return write("proc/901/cmdline", "\0".join(("koordra", "kubelet-plugin", *options, "")))


def edit(path: str, old: str, new: str) -> Change:
    return lambda node: node.edit(path, old, new)


def remove(*paths: str) -> Change:
    return changes(*(lambda node, path=path: node.remove(path) for path in paths))


def nvml(gpu: int = 0, **fields: object) -> Change:
    return lambda node: node.nvml(fields, gpu=gpu)


def cri_table(line: str) -> Change:
    """A line more in containerd's table of the CRI plugin's runtime."""
    table = "[plugins.'io.containerd.cri.v1.runtime']\n"
    return edit(CONTAINERD, table, f"{table}  {line}\n")


def nri_table(line: str) -> Change:
    return write(
        "etc/containerd/conf.d/nri.toml", f"version = 3\n[plugins.'io.containerd.nri.v1.nri']\n{line}\n"
    )


def containerd(version: str) -> Change:
    return lambda node: setattr(node, "runtime_version", version)


def fabric(**fields: object) -> Change:
    return changes(*(nvml(gpu, fabric={**_COMPLETE, **fields}) for gpu in range(len(GPUS))))


def nvswitch(node: NodeFiles) -> None:
    node.write(f"{_PCI}/0000:30:00.0/class", "0x068000\n")
    node.write(f"{_PCI}/0000:30:00.0/vendor", "0x10de\n")


def no_driver(node: NodeFiles) -> None:
    node.remove("proc/driver/nvidia")
    node.remove("sys/module/nvidia")


def in_driver_container(library: str) -> Change:
    return lambda node: node.library(library, DRIVER, root="run/nvidia/driver/")


def registered(resource: str, *devices: str) -> Change:
    document = {"Data": {"PodDeviceEntries": None, "RegisteredDevices": {resource: devices}}, "Checksum": 1}
    return write(f"{KUBELET}/device-plugins/kubelet_internal_checkpoint", json.dumps(document))


def hook(program: bytes) -> Change:
    def change(node: NodeFiles) -> None:
        node.write(node_files.HOOK, program)
        (node.root / node_files.HOOK).chmod(0o755)

    return change


def stranger(pid: int) -> Change:
    def change(node: NodeFiles) -> None:
        node.process(pid, "python3", "train.py", cgroup="0::/user.slice")
        node.link(f"proc/{pid}/fd/3", node_files.OPENED)

    return change


def koordras_imex(node: NodeFiles) -> None:
    """GPUs of a fabric over several nodes, and `koordra imex` on the node."""
    changes(
        fabric(), edit("proc/devices", "Block devices", "511 nvidia-caps-imex-channels\n\nBlock devices")
    )(node)
    node.write(f"{_STATE}/imex.lock", "")
    inode = (node.root / _STATE / "imex.lock").stat().st_ino
    before = (node.root / "proc/locks").read_text()
    node.write("proc/locks", f"{before}1: FLOCK  ADVISORY  WRITE 902 fd:01:{inode} 0 EOF\n")
    node.process(902, "nvidia-imex", "nvidia-imex", cgroup="0::/kubepods.slice/pod1")


def hosts_imex(node: NodeFiles) -> None:
    node.process(1500, "nvidia-imex", "nvidia-imex", cgroup="0::/system.slice/nvidia-imex.service")


def imex_at_boot(node: NodeFiles) -> None:
    node.link("etc/systemd/system/multi-user.target.wants/nvidia-imex.service", "/lib/systemd/system/x")


def wants_numa(node: NodeFiles) -> None:
    node.write(f"{_STATE}/prepared/a.json", '{"devices": [{"env": [["KOORDRA_NUMA_AFFINITY", "true"]]}]}')


def kubelet_says(*lines: str) -> Change:
    return edit(
        f"{KUBELET}/config.yaml", "cgroupDriver: systemd\n", "cgroupDriver: systemd\n" + "\n".join(lines)
    )


PROBLEMS: list[tuple[str, Change, str, str]] = [
    ("driver", no_driver, "2 GPUs, and module nvidia is not loaded", "modprobe nvidia"),
    (
        "driver",
        changes(no_driver, remove("usr/lib64"), write("sys/module/nouveau/x", "")),
        "nouveau is",
        "blacklist nouveau",
    ),
    (
        "driver",
        write("sys/module/nvidia/version", "580.99\n"),
        f"is {DRIVER}, module nvidia is 580.99",
        "reboot",
    ),
    (
        "driver",
        changes(
            write("sys/module/nvidia/version", "450.80.02\n"),
            edit("proc/driver/nvidia/version", DRIVER, "450.80.02"),
        ),
        "driver 450.80.02 is older than 470",
        "upgrade the driver",
    ),
    ("driver", remove("usr/lib64"), "is loaded, no driver below /", "--driver-root"),
    (
        "driver",
        changes(remove("usr/lib64"), lambda node: node.library("nvidia-ml", "570.1.2")),
        f"module {DRIVER} is loaded, the libraries are 570.1.2: host below /",
        "finish the upgrade",
    ),
    ("driver", remove("usr/lib64/libcuda.so.1"), f"no libcuda of {DRIVER} below /: none", "compute part"),
    (
        "driver",
        changes(remove("usr/lib64/libcuda.so.1"), lambda node: node.library("cuda", "570.1.2")),
        f"no libcuda of {DRIVER} below /: 570.1.2",
        "compute part",
    ),
    ("platform", write("dev/dxg", ""), "WSL", "Linux node"),
    ("platform", write("etc/nv_tegra_release", ""), "Tegra", "PCIe GPUs"),
    (
        "nvml",
        write("nvml.json", '{"schema": "koordra.io/nvml/v1", "error": "Driver/library version mismatch"}'),
        "Driver/library version mismatch",
        "nvidia-smi",
    ),
    ("nvml", write("nvml.json", "{"), "garbled", "nvidia-smi"),
    (
        "nvml",
        lambda node: node.write(
            "nvml.json", (node.root / "nvml.json").read_text().replace("0000:15", "0000:99")
        ),
        "the driver has 2 GPUs, NVML shows 2: not 0000:15:00.0",
        "Xid",
    ),
    (
        "nvml",
        changes(
            write(f"{_PCI}/0000:77:00.0/class", "0x030200\n"),
            write(f"{_PCI}/0000:77:00.0/vendor", "0x10de\n"),
        ),
        "1 GPU on the PCI bus without the driver: 0000:77:00.0",
        "vfio-pci",
    ),
    ("device-nodes", remove("dev/nvidia1"), "/dev/nvidia1 does not exist", "nvidia-modprobe"),
    ("device-nodes", remove("dev/nvidia-uvm"), "/dev/nvidia-uvm does not exist", "nvidia-modprobe -c 0 -u"),
    (
        "device-nodes",
        changes(remove("dev/nvidia1"), write("dev/nvidia1", "c 195:7\n")),
        "/dev/nvidia1 is 195:7, the driver's is 195:1",
        "stale",
    ),
    (
        "device-nodes",
        write(f"proc/driver/nvidia/gpus/{GPUS[0]}/information", "Model: x\n"),
        f"minor number of {GPUS[0]}",
        "dmesg",
    ),
    (
        "device-permissions",
        lambda node: (node.root / "dev/nvidia0").chmod(0o600),
        "/dev/nvidia0 0600",
        "NVreg_DeviceFileMode",
    ),
    ("dev-char", remove("dev/char"), "daemon-reload", "create-dev-char-symlinks"),
    ("gpu-memory", nvml(rowsPending=True), f"{GPUS[0]} waits for a reset", "nvidia-smi -r"),
    ("gpu-memory", nvml(rowsFailed=True), f"{GPUS[0]} could not be remapped", "RMA"),
    ("mig", nvml(migPending=True), f"{GPUS[0]} is off, and on after a reset", "nvidia-smi -r"),
    ("fabricmanager", nvswitch, "1 NVSwitches, and no fabricmanager runs", "nvidia-fabricmanager"),
    (
        "fabricmanager",
        fabric(state=2),
        "has not joined the fabric: in progress",
        "log of nvidia-fabricmanager",
    ),
    ("fabricmanager", fabric(status=999), "NVML status 999", "reset"),
    ("fabricmanager", fabric(healthMask=0x1), "bandwidth is degraded", "cables"),
    ("fabricmanager", fabric(healthMask=0x600), "configured wrongly", "driver version"),
    (
        "fabricmanager",
        changes(nvml(0, fabric=_COMPLETE), nvml(1, fabric={**_COMPLETE, "clique": 2})),
        "several cliques",
        "partitions of the NVLink fabric",
    ),
    ("imex", fabric(), "no nvidia-caps-imex-channels", "driver"),
    (
        "imex",
        changes(koordras_imex, hosts_imex),
        "the host runs an nvidia-imex of its own (pid 1500); so koordra gives out no channels",
        "systemctl disable --now nvidia-imex.service",
    ),
    ("imex", changes(koordras_imex, imex_at_boot), "would start at the next boot", "systemctl disable"),
    ("holders", stranger(1234), "python3 (pid 1234: /dev/null)", "pod with a claim"),
    ("runtime", containerd("1.6.8"), "containerd 1.6.8 has no CDI", "1.7"),
    ("runtime", write(CONTAINERD, "version = \n"), f"/{CONTAINERD}", "mend the file"),
    (
        "cdi",
        edit(CONTAINERD, "enable_cdi = true", "enable_cdi = false"),
        f"off: /{CONTAINERD}:5",
        "enable_cdi = true",
    ),
    (
        "cdi",
        changes(edit(CONTAINERD, "  enable_cdi = true\n", ""), containerd("1.7.24")),
        "off: the default of containerd 1.7.24",
        "io.containerd.grpc.v1.cri",
    ),
    (
        "cdi",
        edit(CONTAINERD, "['/etc/cdi', '/var/run/cdi']", "['/etc/cdi']"),
        f"reads /etc/cdi (/{CONTAINERD}:6), not /var/run/cdi",
        "cdi_spec_dirs",
    ),
    (
        "cdi",
        lambda node: node.running.update(enableCDI=False),
        "the running containerd reports that it is off",
        "restart containerd",
    ),
    (
        "nri",
        nri_table("disable = true"),
        "off: /etc/containerd/conf.d/nri.toml:3",
        "disable = false",
    ),
    (
        "cdi-folder",
        write("proc/1/mountinfo", "1 0 8:1 / / ro - ext4 /dev/sda1 rw\n2 1 0:9 / /proc rw - proc proc rw\n"),
        "mounted read-only",
        "--cdi-dir",
    ),
    (
        "cdi-folder",
        write(
            "proc/1/mountinfo", "1 0 8:1 / / rw - ext4 a rw\n2 1 0:9 / /run rw shared:3 - tmpfs tmpfs ro\n"
        ),
        "mounted read-only",
        "--cdi-dir",
    ),
    ("nri", containerd("1.7.24"), "off: the default of containerd 1.7.24", "disable = false"),
    (
        "nri",
        nri_table("disable_connections = true"),
        "closed to plugins that connect",
        "disables connections",
    ),
    ("nri", remove("run/nri/nri.sock"), "no socket /var/run/nri/nri.sock", "restart"),
    (
        "default-runtime",
        edit(CONTAINERD, "default_runtime_name = 'runc'", "default_runtime_name = 'nvidia'"),
        f"nvidia is the default runtime (/{CONTAINERD}:8)",
        "make runc the default",
    ),
    ("oci-runtime", lambda node: setattr(node, "oci", "1.0.3"), "is 1.0.3", "upgrade runc"),
    (
        "cgroup",
        changes(
            remove("sys/fs/cgroup/cgroup.controllers"),
            write("sys/fs/cgroup/unified/cgroup.controllers", "hugetlb\n"),
        ),
        "hybrid, with hugetlb on v2",
        "unified_cgroup_hierarchy",
    ),
    (
        "cgroup",
        changes(
            remove("sys/fs/cgroup/cgroup.controllers"),
            write("sys/fs/cgroup/devices/x", ""),
            kubelet_says("failCgroupV1: true"),
        ),
        "the kubelet does not start (/var/lib/kubelet/config.yaml:3)",
        "unified_cgroup_hierarchy",
    ),
    (
        "cgroup-driver",
        edit(CONTAINERD, "SystemdCgroup = true", "SystemdCgroup = false"),
        f"systemd (/var/lib/kubelet/config.yaml:2), the runtime cgroupfs (/{CONTAINERD}:10)",
        "SystemdCgroup = true",
    ),
    (
        "memlock",
        changes(
            remove(f"{_STATE}/nri.lock"),
            write(f"proc/{CONTAINERD_PID}/limits", "Max locked memory         65536     65536    bytes\n"),
            write("etc/systemd/system/containerd.service.d/limits.conf", "[Service]\nLimitMEMLOCK=64K\n"),
        ),
        "65536 bytes (64K at /etc/systemd/system/containerd.service.d/limits.conf:2)",
        "LimitMEMLOCK=infinity",
    ),
    (
        "access-control",
        changes(write("sys/fs/selinux/enforce", "1"), cri_table("enable_selinux = true")),
        "may not use devices",
        "container_use_devices",
    ),
    (
        "access-control",
        changes(
            write("sys/fs/selinux/enforce", "1"),
            write("sys/fs/selinux/booleans/container_use_devices", "1 1"),
            cri_table("enable_selinux = true"),
            write(
                "var/log/audit/audit.log",
                "x\n" * 40000
                + 'type=AVC msg=audit(1): avc:  denied  { read } for pid=7 comm="a" name="nvidia0" dev=\n',
            ),
        ),
        "denied nvidia0 lately",
        "ausearch",
    ),
    ("rdma", remove("dev/infiniband/rdma_cm"), "rdma_cm does not exist", "rdma_ucm"),
    ("rdma", remove("dev/infiniband/uverbs0"), "has no /dev/infiniband/uverbs node", "ib_uverbs"),
    (
        "rdma",
        changes(
            write(f"{_PCI}/0000:44:00.0/class", "0x020000\n"),
            write(f"{_PCI}/0000:44:00.0/vendor", "0x15b3\n"),
        ),
        "NIC 0000:44:00.0 has no RDMA device",
        "mlx5_ib",
    ),
    (
        "rdma-mode",
        changes(
            lambda node: setattr(node, "exclusive", True),
            write("proc/901/cmdline", "/opt/koordra/bin/koordra\0kubelet-plugin\0"),
        ),
        "does not move NICs into pods",
        "--pod-network",
    ),
    ("rdma-ports", write(f"{_PORT}/state", "1: DOWN\n"), "mlx5_0 port 1 is DOWN", "ip link set eth0 up"),
    ("rdma-ports", remove(f"{_PORT}/gid_attrs/types"), "no RoCE v2 GID", "v2"),
    (
        "rdma-ports",
        write(f"{_PORT}/gids/1", "fe80:0000:0000:0000:0000:ffff:0a00:0001\n"),
        "link-local addresses only",
        "give eth0 an address",
    ),
    ("gpudirect", write("proc/sys/kernel/osrelease", "5.4.0\n"), "no nvidia_peermem", "nvidia-peermem"),
    ("pcie-links", write(f"{_PCI}/{GPUS[0]}/current_link_width", "8\n"), "8 of 16 lanes", "reseat"),
    (
        "pcie-links",
        write(f"{_PCI}/{NICS[0]}/current_link_speed", "16.0 GT/s PCIe\n"),
        "runs at 16 of 32 GT/s",
        "reseat",
    ),
    (
        "acs",
        write(f"{_PCI}/{node_files.SWITCH_PORTS[0]}/config", node_files.acs_config(0x1D)),
        f"redirect transfers: {node_files.SWITCH_PORTS[0]}",
        "ECAP_ACS",
    ),
    (
        "iommu",
        write("sys/kernel/iommu_groups/13/type", "DMA-FQ\n"),
        "DMA-FQ (intel_iommu=on iommu=pt)",
        "iommu=pt",
    ),
    ("kubelet", write(f"{KUBELET}/config.yaml", "a: [\n"), "not YAML: /var/lib/kubelet/config.yaml", "mend"),
    (
        "cpu-manager",
        changes(kubelet_says("cpuManagerPolicy: static"), write(_CPU_STATE, '{"policyName": "none"}')),
        "written with none",
        "cpu_manager_state",
    ),
    (
        "cpu-manager",
        changes(kubelet_says("cpuManagerPolicy: static"), wants_numa),
        "without regard to GPUs",
        "topologyManagerPolicy",
    ),
    (
        "memory-manager",
        changes(kubelet_says("memoryManagerPolicy: Static"), wants_numa),
        "chooses memory without regard to GPUs",
        "topologyManagerPolicy",
    ),
    (
        "topology-manager",
        changes(
            kubelet_says("cpuManagerPolicy: static", "topologyManagerPolicy: single-numa-node"), wants_numa
        ),
        "it does not know of claims",
        "best-effort",
    ),
    (
        "device-plugins",
        registered("nvidia.com/gpu", "GPU-1"),
        "nvidia.com/gpu is given out by",
        "devicePlugin",
    ),
    ("device-plugins", registered("nvidia.com/mig-1g.10gb", "a"), "nvidia.com/mig-1g.10gb", "devicePlugin"),
    (
        "device-plugins",
        lambda node: node.socket(f"{KUBELET}/plugins_registry/gpu.nvidia.com-reg.sock"),
        "DRA driver gpu.nvidia.com-reg.sock",
        "NVIDIA's DRA driver",
    ),
    (
        "hami-core",
        write("usr/local/vgpu/libvgpu.so", "an upload that was cut off"),
        "libvgpu.so is no library for",
        "HAMi's DaemonSet",
    ),
    (
        "mps",
        changes(plugin("--allowed-isolation", "mps"), remove("usr/bin/nvidia-cuda-mps-control")),
        "the driver has no nvidia-cuda-mps-control, which isolation mps needs",
        "take mps from the plugin's --allowed-isolation",
    ),
    (
        "mps",
        changes(plugin("--allowed-isolation=mig,mps"), lambda node: setattr(node, "mps", None)),
        "nvidia-cuda-mps-control does not say",
        "install the programs",
    ),
    (
        "hami-core",
        changes(
            lambda node: install(node.root / "usr/local/vgpu"),
            plugin("--hami-core=/opt/vgpu"),
        ),
        "/opt/vgpu/libvgpu.so is not on this node",
        "HAMi's DaemonSet",
    ),
    (
        "koordra-plugin",
        remove(f"{KUBELET}/plugins_registry/koordra.io-reg.sock"),
        "no socket of koordra.io",
        "--kubelet-root",
    ),
    ("koordra-plugin", lambda node: setattr(node, "answering", False), "nobody answers", "log"),
    (
        "koordra-cdi-hook",
        remove(node_files.HOOK),
        "its containers do not start",
        "restart the kubelet plugin",
    ),
    (
        "koordra-cdi-hook",
        lambda node: (node.root / node_files.HOOK).chmod(0o744),
        "may not be executed by everybody",
        "chmod 0755",
    ),
    ("koordra-cdi-hook", hook(node_files.elf(interpreter=True)), "no static program", "remove it"),
    ("koordra-cdi-hook", hook(b"#!/bin/sh"), "no static program", "remove it"),
    (
        "koordra-cdi-hook",
        write("proc/1/mountinfo", "1 0 8:1 / / rw - ext4 a rw\n2 1 8:2 / /var rw,noexec - ext4 b rw\n"),
        "mounted noexec",
        "--hook-dir",
    ),
    (
        "koordra-cdi-hook",
        lambda node: (node.root / "var/lib/koordra").chmod(0o700),
        "/var/lib/koordra keeps pods with hostUsers: false",
        "chmod o+x",
    ),
    ("koordra-nri", write("proc/locks", ""), "no hook holds the node's lock", "koordra nri"),
]

FINE: list[tuple[str, Change, str]] = [
    ("hami-core", lambda node: install(node.root / "usr/local/vgpu"), "/usr/local/vgpu"),
    (
        "hami-core",
        changes(
            lambda node: install(node.root / "opt/vgpu"),
            plugin("--hami-core", "/opt/vgpu"),
        ),
        "/opt/vgpu/libvgpu.so",
    ),
    ("mps", lambda _: None, f"driver {DRIVER} has MPS v2: limits are those of the largest share"),
    (
        "mps",
        lambda node: setattr(node, "mps", "3"),
        f"driver {DRIVER} has MPS v3: each claim has limits of its own",
    ),
    (
        "cdi-folder",
        write(
            "proc/1/mountinfo", "1 0 8:1 / / ro - ext4 a ro\n2 1 0:9 / /run rw shared:3 - tmpfs tmpfs rw\n"
        ),
        "/var/run/cdi can be written",
    ),
    (
        "driver",
        edit("proc/driver/nvidia/version", "Open Kernel Module for x86_64", "x86_64 Kernel Module"),
        "closed",
    ),
    (
        "driver",
        changes(remove("usr/lib64"), *(in_driver_container(name) for name in ("cuda", "nvidia-ml"))),
        "driver container below /run/nvidia/driver, device nodes in /dev",
    ),
    ("nvml", nvml(persistence=False), "persistence is off for 1"),
    ("device-permissions", lambda _: None, "everybody may open them; the driver makes them 0666"),
    ("dev-char", lambda _: None, "links in /dev/char"),
    (
        "fabricmanager",
        changes(fabric(), nvswitch),
        "2 cards in a fabric, clique 00112233-4455-6677-8899-aabbccddeeff.1, 1 NVSwitches",
    ),
    (
        "imex",
        changes(
            fabric(), edit("proc/devices", "Block devices", "511 nvidia-caps-imex-channels\n\nBlock devices")
        ),
        "major 511",
    ),
    ("imex", koordras_imex, "koordra runs nvidia-imex for the gangs of claims"),
    (
        "imex",
        changes(
            fabric(),
            edit("proc/devices", "Block devices", "511 nvidia-caps-imex-channels\n\nBlock devices"),
            hosts_imex,
        ),
        "nvidia-imex runs",
    ),
    ("holders", lambda _: None, "nvidia-persiste (pid 600)"),
    ("holders", remove("proc/600", "sys/module/nvidia/refcnt"), "nobody has a card open"),
    ("holders", remove("proc/600"), "module nvidia is used 4 times by what no process shows"),
    (
        "holders",
        lambda node: (
            node.process(
                77,
                "python3",
                cgroup=f"0::/kubepods.slice/kubepods-pod{'0' * 32}.slice/cri-containerd-1.scope",
            ),
            node.link("proc/77/fd/1", node_files.OPENED),
        ),
        "python3 (pid 77)",
    ),
    ("cdi", edit(CONTAINERD, "  enable_cdi = true\n", ""), "on: the default of containerd 2.1.4"),
    (
        "nri",
        nri_table("plugin_request_timeout = '5s'"),
        "requests may take 5s (/etc/containerd/conf.d/nri.toml:3)",
    ),
    (
        "memlock",
        changes(
            write(f"proc/{CONTAINERD_PID}/limits", "Max locked memory         65536     65536    bytes\n"),
        ),
        "koordra's hook lifts it",
    ),
    ("rdma-mode", lambda node: setattr(node, "exclusive", True), "which the plugin's --pod-network serves"),
    (
        "gpudirect",
        changes(
            edit("proc/driver/nvidia/version", "Open Kernel Module for x86_64", "x86_64 Kernel Module"),
            write("sys/module/nvidia_peermem/x", ""),
        ),
        "nvidia_peermem is loaded",
    ),
    ("rdma-ports", lambda _: None, "mlx5_0 Ethernet ACTIVE 400 Gb/sec, MTU 9000"),
    ("iommu", remove(*(f"{_PCI}/{one}/iommu_group" for one in (*GPUS, *NICS))), "off"),
    ("cpu-manager", kubelet_says("cpuManagerPolicy: static"), "static (/var/lib/kubelet/config.yaml:3)"),
    (
        "access-control",
        changes(
            write("sys/fs/selinux/enforce", "1"),
            write("sys/fs/selinux/booleans/container_use_devices", "1 1"),
        ),
        "does not confine containers by it",
    ),
    (
        "access-control",
        changes(
            write("sys/fs/selinux/enforce", "1"),
            write("sys/fs/selinux/booleans/container_use_devices", "1 1"),
            cri_table("enable_selinux = true"),
        ),
        "container_use_devices on",
    ),
    (
        "cgroup",
        changes(remove("sys/fs/cgroup/cgroup.controllers"), write("sys/fs/cgroup/devices/x", "")),
        "v1; Kubernetes 1.35",
    ),
    (
        "device-plugins",
        changes(
            lambda node: node.socket(f"{KUBELET}/device-plugins/openshift.io_mlnx.sock"),
            registered("openshift.io/mlnx", "0000:14:00.2"),
        ),
        "beside koordra: openshift.io_mlnx.sock",
    ),
    (
        "device-plugins",
        changes(
            lambda node: node.socket(f"{KUBELET}/device-plugins/nvidia-gpu.sock"),
            registered("nvidia.com/gpu"),
            lambda node: setattr(node, "answering", False),
        ),
        "none",
    ),
    ("device-plugins", write("etc/cdi/nvidia.yaml", "x"), "beside koordra: /etc/cdi/nvidia.yaml"),
]
SELDOM = {"fabricmanager", "imex", "hami-core"}
"""Checks that a node without NVSwitches, and without HAMi's library, has no use for."""


@pytest.fixture
def node(tmp_path: Path) -> NodeFiles:
    return node_files.healthy(tmp_path)


def test_a_healthy_node_has_no_problem(node: NodeFiles) -> None:
    results = node.checked()
    assert {name for name, one in results.items() if one.status == "not-applicable"} == SELDOM
    assert not [one for one in results.values() if one.status == "problem"]
    assert all(one.found and not one.remedy for one in results.values())


def test_on_an_empty_machine_nothing_applies(tmp_path: Path) -> None:
    assert {one.status for one in NodeFiles(tmp_path).checked().values()} == {"not-applicable"}


@pytest.mark.parametrize(("name", "change", "found", "remedy"), PROBLEMS)
def test_what_is_wrong_is_named_with_its_remedy(
    node: NodeFiles, name: str, change: Change, found: str, remedy: str
) -> None:
    change(node)
    result = node.checked()[name]
    assert result.status == "problem", result
    assert found in result.found
    assert remedy in result.remedy


@pytest.mark.parametrize(("name", "change", "found"), FINE)
def test_what_is_only_uncommon_is_fine(node: NodeFiles, name: str, change: Change, found: str) -> None:
    change(node)
    result = node.checked()[name]
    assert (result.status, result.remedy) == ("ok", "")
    assert found in result.found


def test_every_check_has_a_case_of_each_status() -> None:
    """That one is ok on a healthy node and not applicable on an empty one is held above."""
    assert {name for name, *_ in PROBLEMS} == set(CHECKS)
    assert {name for name, *_ in FINE} >= SELDOM


def test_a_node_without_shares_by_mps_needs_no_programs_for_it(node: NodeFiles) -> None:
    node.remove("usr/bin/nvidia-smi")
    found = node.checked()["mps"]
    assert (found.status, found.found) == (
        "not-applicable",
        "the driver has no nvidia-smi, which isolation mps needs",
    )
    node.write("usr/bin/nvidia-smi", "")
    node.mps = None
    assert node.checked()["mps"].status == "not-applicable"


def test_a_check_that_fails_itself_takes_no_other_with_it(
    node: NodeFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(_node: NodeReadings) -> Outcome:
        raise KeyError("eth0")

    monkeypatch.setattr(check_node, "CHECKS", CHECKS | {"rdma": fails})
    results = node.checked()
    assert list(results) == list(CHECKS)
    assert (results["rdma"].status, results["rdma"].remedy) == ("not-applicable", "")
    assert results["rdma"].found == "koordra's own check failed, report it: KeyError: 'eth0'"
    assert results["driver"].status == "ok"


def test_the_documented_names_are_there() -> None:
    assert set(CHECKS) >= {"driver", "nvml", "cdi", "nri", "cgroup", "memlock", "rdma", "runtime"}


def outcome(node: NodeReadings, name: str) -> Outcome:
    return CHECKS[name](node)


def test_device_nodes_of_a_group_are_passed_on(node: NodeFiles) -> None:
    readings = read_node(node.root, live=node.live())
    nodes = {name: replace(one, mode=0o660, gid=44) for name, one in readings.gpus.nodes.items()}
    found = gpu_devices.device_permissions(replace(readings, gpus=replace(readings.gpus, nodes=nodes)))
    assert found.status == "ok"
    assert "group 44" in found.found


def test_the_driver_container_s_own_device_nodes_are_looked_at(node: NodeFiles) -> None:
    """Before the GPU Operator's driver container makes them on the host, they are below its root alone."""
    node.remove("usr/lib64")
    for library in ("cuda", "nvidia-ml"):
        node.library(library, DRIVER, root="run/nvidia/driver/")
    (node.root / "dev").rename(node.root / "run/nvidia/driver/dev")
    assert node.checked()["device-nodes"].found.endswith("in /run/nvidia/driver/dev")


def test_a_machine_that_cannot_be_asked_says_so(node: NodeFiles) -> None:
    readings = read_node(node.root, live=no_node())
    assert "cannot be asked" in outcome(readings, "runtime").found
    assert outcome(readings, "nri").status == "not-applicable"
    assert outcome(readings, "cdi").status == "ok"  # a line says it
    assert outcome(readings, "rdma-mode") == Outcome("ok", "shared")  # by the module's parameter
