"""Everything that is read of a node."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from koordra.kubelet_plugin.node_check.host_imex import host_imex, is_enabled
from koordra.kubelet_plugin.node_check.readings.cdi import Cdi, read_cdi
from koordra.kubelet_plugin.node_check.readings.cgroup import (
    AccessControl,
    Cgroup,
    read_access_control,
    read_cgroup,
)
from koordra.kubelet_plugin.node_check.readings.container_runtime.runtime import Runtime, read_runtime
from koordra.kubelet_plugin.node_check.readings.driver import Driver, Mps, read_driver, read_mps
from koordra.kubelet_plugin.node_check.readings.gpu_devices import GpuDevices, read_gpu_devices
from koordra.kubelet_plugin.node_check.readings.host_files import HostFiles
from koordra.kubelet_plugin.node_check.readings.koordra_node import (
    HamiFolder,
    KoordraNode,
    Rivals,
    read_hami,
    read_koordra,
    read_rivals,
)
from koordra.kubelet_plugin.node_check.readings.kubelet import Kubelet, read_kubelet
from koordra.kubelet_plugin.node_check.readings.live_node import LiveNode, no_node, this_node
from koordra.kubelet_plugin.node_check.readings.nvml_answers import Nvml, read_nvml
from koordra.kubelet_plugin.node_check.readings.pcie import Pcie, read_pcie
from koordra.kubelet_plugin.node_check.readings.processes import Process, read_processes
from koordra.kubelet_plugin.node_check.readings.rdma import Rdma, read_rdma
from koordra.kubelet_plugin.nvidia_driver.device_holders import DriverUsers, driver_users

CDI_FOLDER: Final = "/var/run/cdi"
_RECORDED_NVML: Final = "nvml.json"
_MOST_RECORDED: Final = 4 << 20


@dataclass(frozen=True, slots=True)
class NodeReadings:
    """`nvml` is None where it was not asked: a machine without NVIDIA GPUs, or a captured one without a
    recording; `users`: who has the driver's devices open; `runtime` where none is found; `kernel`: the
    release, `6.8.0-45-generic`; `host_imex`: what there is of an IMEX daemon of the host's own;
    `mps`: the driver's programs for MPS; `hami_core`: HAMi's library, where it is looked for."""

    kernel: str
    processes: tuple[Process, ...]
    driver: Driver
    gpus: GpuDevices
    nvml: Nvml | None
    users: DriverUsers
    runtime: Runtime | None
    cdi: Cdi
    cgroup: Cgroup
    access_control: AccessControl
    rdma: Rdma
    pcie: Pcie
    kubelet: Kubelet
    koordra: KoordraNode
    rivals: Rivals
    host_imex: str = ""
    mps: Mps | None = None
    hami_core: HamiFolder = field(default_factory=HamiFolder)

    def running(self, *programs: str) -> bool:
        """Whether a process of one of these names runs. The kernel keeps 15 characters of a name."""
        return any(process.name in {program[:15] for program in programs} for process in self.processes)


def read_node(directory: Path, *, live: LiveNode | None = None, cdi_folder: str = CDI_FOLDER) -> NodeReadings:
    """The node whose `/` is that directory. `live` replaces what is asked of it, by default this machine
    where it is that node."""
    root = HostFiles(directory)
    live = live or (this_node() if root.is_live else no_node())
    processes = read_processes(root)
    driver = read_driver(root)
    kubelet = read_kubelet(root, processes)
    koordra = read_koordra(root, kubelet.root, live)
    return NodeReadings(
        kernel=root.line("proc/sys/kernel/osrelease"),
        processes=processes,
        driver=driver,
        gpus=read_gpu_devices(root, driver.dev),
        nvml=_nvml(root, driver, live),
        users=driver_users(directory),
        runtime=read_runtime(root, processes, live, endpoint=kubelet.runtime_endpoint),
        cdi=read_cdi(root, cdi_folder, kubelet_root=kubelet.root),
        cgroup=read_cgroup(root),
        access_control=read_access_control(root),
        rdma=read_rdma(root, live),
        pcie=read_pcie(root),
        kubelet=kubelet,
        koordra=koordra,
        rivals=read_rivals(root, kubelet.root, live),
        host_imex=host_imex(processes, enabled=is_enabled(root)),
        mps=read_mps(root, driver, live),
        hami_core=read_hami(root, koordra.hami_core),
    )


def _nvml(root: HostFiles, driver: Driver, live: LiveNode) -> Nvml | None:
    """The driver's own library is loaded, wherever it is. A captured machine may have a recording."""
    if not driver.cards and driver.module_version is None:
        return None
    document = live.nvml(driver.home.nvml)
    if document is None:
        recorded = root.data(_RECORDED_NVML, most=_MOST_RECORDED)
        if recorded is None:
            return Nvml(error="it does not answer") if root.is_live else None
        document = recorded.decode(errors="replace")
    return read_nvml(document) or Nvml(error="its answer is garbled")
