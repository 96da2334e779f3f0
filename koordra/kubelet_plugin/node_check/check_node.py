"""The table of the checks, in the order of the report."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from koordra.kubelet_plugin.node_check.checks import (
    cgroup,
    driver,
    gpu_devices,
    gpu_state,
    koordra_node,
    kubelet,
    pcie,
    rdma,
    runtime,
)
from koordra.kubelet_plugin.node_check.readings.node import NodeReadings
from koordra.kubelet_plugin.node_check.result import CheckResult, Outcome

_LONGEST: Final = 2000


@dataclass(frozen=True, slots=True)
class Check:
    """`what` and `good`: a line of the documentation, what is read and how it has to be."""

    name: str
    what: str
    good: str
    outcome: Callable[[NodeReadings], Outcome]


CHECKS: Final = (
    Check(
        "driver",
        "versions of the loaded driver, its module, libcuda and libnvidia-ml",
        "one driver, all of one version",
        driver.driver,
    ),
    Check("platform", "marks of WSL and Tegra", "neither", driver.platform),
    Check(
        "nvml",
        "NVML's start, its cards, those of /proc/driver/nvidia and of the PCI bus",
        "the same cards",
        driver.nvml,
    ),
    Check(
        "device-nodes",
        "/dev/nvidia*, /proc/devices, the cards' minor numbers",
        "all there, with the driver's numbers",
        gpu_devices.device_nodes,
    ),
    Check(
        "device-permissions",
        "mode and group of /dev/nvidia*",
        "open to everybody, or to a group other than root's",
        gpu_devices.device_permissions,
    ),
    Check(
        "dev-char",
        "links of the GPUs in /dev/char, where cgroups are systemd's",
        "all there",
        gpu_devices.char_links,
    ),
    Check(
        "gpu-memory",
        "remapped rows of the cards' memory",
        "none waits for a reset, none failed",
        gpu_state.memory,
    ),
    Check("mig", "current and pending MIG mode", "the same", gpu_state.mig),
    Check(
        "fabricmanager",
        "NVSwitches, nv-fabricmanager, NVML's fabric state and health",
        "completed and healthy",
        gpu_state.fabricmanager,
    ),
    Check("imex", "the IMEX channel device, where a fabric goes over several nodes", "there", gpu_state.imex),
    Check("holders", "processes that have GPUs open", "pods and NVIDIA's services only", gpu_devices.holders),
    Check(
        "runtime",
        "containerd or CRI-O: version, configuration and what it imports",
        "containerd 1.7, CRI-O 1.28 or newer",
        runtime.runtime,
    ),
    Check(
        "cdi",
        "whether CDI is on, since which line, which folders are read",
        "on, with the plugin's folder",
        runtime.cdi,
    ),
    Check("cdi-folder", "the folder of dynamic CDI specs", "can be written", runtime.cdi_folder),
    Check("nri", "whether NRI is on, since which line, takes connections, has its socket", "on", runtime.nri),
    Check("default-runtime", "default_runtime_name", "not NVIDIA's", runtime.default_runtime),
    Check("oci-runtime", "runc or crun, and its version", "runc 1.1 or newer", runtime.oci_runtime),
    Check("cgroup", "the cgroup hierarchy", "v2, or v1 alone", cgroup.cgroup),
    Check("cgroup-driver", "cgroup drivers of kubelet and runtime", "the same", cgroup.cgroup_driver),
    Check(
        "memlock",
        "LimitMEMLOCK of the runtime's service and its drop-ins, the limit it runs with",
        "unlimited, or lifted by the hook",
        runtime.memlock,
    ),
    Check("access-control", "SELinux, AppArmor", "containers may use devices", cgroup.access_control),
    Check("rdma", "RDMA devices of NICs, modules, nodes in /dev/infiniband", "all there", rdma.rdma),
    Check(
        "rdma-mode",
        "whether RDMA devices belong to network namespaces",
        "shared, or served by --pod-network",
        rdma.mode,
    ),
    Check(
        "rdma-ports",
        "state, link layer and GIDs of RDMA ports",
        "ACTIVE; RoCE with a v2 GID of an address",
        rdma.ports,
    ),
    Check(
        "gpudirect", "kernel, kind of modules, nvidia_peermem", "dma-buf or nvidia_peermem", rdma.gpudirect
    ),
    Check("pcie-links", "width and speed of the links of GPUs and NICs", "the maximum", pcie.links),
    Check("acs", "access control of switch ports above GPUs and NICs", "nothing redirected", pcie.acs),
    Check(
        "iommu",
        "IOMMU groups of GPUs and NICs, the kernel's command line",
        "off, or passing through",
        pcie.iommu,
    ),
    Check("kubelet", "the kubelet's folder and configuration", "found", kubelet.configuration),
    Check(
        "cpu-manager",
        "cpuManagerPolicy and its state, claims that ask for numaAffinity",
        "not in each other's way",
        kubelet.cpu_manager,
    ),
    Check(
        "memory-manager",
        "memoryManagerPolicy and its state, claims that ask for numaAffinity",
        "not in each other's way",
        kubelet.memory_manager,
    ),
    Check(
        "topology-manager",
        "topologyManagerPolicy",
        "leaves claims their processors",
        kubelet.topology_manager,
    ),
    Check(
        "device-plugins",
        "the kubelet's extended resources, other device plugins and DRA drivers, NVIDIA's CDI files",
        "none for the same cards",
        koordra_node.device_plugins,
    ),
    Check("koordra-plugin", "the plugin's registration socket", "there, and answering", koordra_node.plugin),
    Check(
        "koordra-cdi-hook",
        "the programs that claims' CDI files name as hooks",
        "there, static, executable for everybody",
        koordra_node.cdi_hook,
    ),
    Check("koordra-nri", "the lock of the NRI hook", "held", koordra_node.hook),
)


def check_node(node: NodeReadings) -> tuple[CheckResult, ...]:
    """What was found is one printable line: names of processes and values of files may be anything."""
    return tuple(
        CheckResult(check.name, outcome.status, _printable(outcome.found), _printable(outcome.remedy))
        for check in CHECKS
        for outcome in (check.outcome(node),)
    )


def _printable(text: str) -> str:
    """Bounded, without line ends and escape sequences."""
    shown = "".join(character if character.isprintable() else "?" for character in text)
    return shown if len(shown) <= _LONGEST else f"{shown[:_LONGEST]}..."
