"""One reading of a machine: GPUs, RDMA NICs and their places.

Everything is read below a root path, so that a captured or made-up machine is read by the same code as the
real one:

1. sysfs: the PCI tree, NUMA nodes and sockets (``sysfs/``);
2. NVML, or a recording of it, or /proc/driver/nvidia: the GPUs' identities and MIG instances (``nvml/``,
   ``gpu/``);
3. /sys/class/infiniband: RDMA devices of any vendor; /sys/bus/auxiliary: sub-functions of NICs (``rdma/``);
4. /dev: device nodes and their numbers (``sysfs/device_nodes``).

``watch/watcher`` reads again when something changes.

Discovery never raises for what it finds: what is certain is in the machine, what is not becomes a
:class:`Problem`. Devices with problems stay in the machine, since their nodes must be guarded, but are not
``publishable``.
"""

from __future__ import annotations

from pathlib import Path

from koordra.kubelet_plugin.discovery.gpu.gpus import gpus, is_gpu
from koordra.kubelet_plugin.discovery.gpu.mig_nodes import gpu_management_nodes
from koordra.kubelet_plugin.discovery.gpu.proc_driver import proc_driver_version, proc_gpus
from koordra.kubelet_plugin.discovery.nvml.gpu_facts import GpuFactsSource, NvmlFacts
from koordra.kubelet_plugin.discovery.nvml.library import NvmlLibrary
from koordra.kubelet_plugin.discovery.nvml.recorded import RecordedNvml
from koordra.kubelet_plugin.discovery.rdma.rdma_devices import (
    rdma_control_nodes,
    rdma_names,
    rdma_nics,
    verbs_and_mad,
)
from koordra.kubelet_plugin.discovery.rdma.subfunctions import parents, sub_functions
from koordra.kubelet_plugin.discovery.result import Discovery, Problem
from koordra.kubelet_plugin.discovery.sysfs.device_nodes import gpu_control_nodes
from koordra.kubelet_plugin.discovery.sysfs.machine_root import MachineRoot
from koordra.kubelet_plugin.discovery.sysfs.pci_tree import (
    PCI_DEVICES,
    bridges,
    locate,
    numa_nodes,
    pci_functions,
)
from koordra.topology.machine import Location, Machine, NumaNode, bus_order


def discover(root: Path, *, nvml: GpuFactsSource | None = None) -> Discovery:
    """Read the machine below ``root`` (``Path("/")`` is this one).

    ``nvml`` replaces the source of GPU facts; by default it is the library on the real machine and
    ``nvml.json`` on a picture of one. The library is asked only where the PCI tree shows an NVIDIA GPU.
    """
    tree = MachineRoot(root)
    functions, problems = pci_functions(tree)
    nodes, numa_problems = numa_nodes(tree)
    problems += numa_problems
    if not tree.names(PCI_DEVICES):
        problems.append(
            Problem(
                "machine",
                PCI_DEVICES,
                "it is missing or empty",
                "check that the root path holds a mounted sysfs",
            )
        )
    proc = proc_gpus(tree)
    cards = [function for function in functions if is_gpu(tree, function) or function.bus_id in proc]
    facts = _gpu_facts(tree, nvml) if cards or nvml else NvmlFacts()
    known = {gpu.bus_id for gpu in facts.gpus}
    cards += [function for function in functions if function.bus_id in known and function not in cards]
    cards.sort(key=lambda function: bus_order(function.bus_id))

    rdma = {*rdma_names(tree).values(), *parents(tree).values()}
    nics = [function for function in functions if function.bus_id in rdma and function not in cards]
    of_interest = cards + nics
    above = bridges(tree, of_interest)
    locations = {
        function.bus_id: locate(tree, function, bridges=above, numa_nodes=nodes) for function in of_interest
    }
    problems += _unplaced(locations, nodes)
    found_gpus, gpu_problems = gpus(tree, functions=cards, locations=locations, nvml=facts, proc=proc)
    nodes_of = verbs_and_mad(tree)
    found_nics, nic_problems = rdma_nics(
        tree,
        functions={function.bus_id: function for function in functions},
        locations=locations,
        nodes=nodes_of,
    )
    found_nics.sort(key=lambda nic: (bus_order(nic.location.bus_id), nic.ib_device))
    machine = Machine(
        numa_nodes=nodes,
        bridges=tuple(above.values()),
        gpus=tuple(found_gpus),
        nics=tuple(nic for nic in found_nics if nic.parent is None),
        vfs=tuple(nic for nic in found_nics if nic.parent is not None),
        driver_version=facts.driver_version or proc_driver_version(tree),
        cuda_version=facts.cuda_version,
        gpu_control=gpu_control_nodes(tree),
        rdma_control=rdma_control_nodes(tree),
        boot_id=tree.line("proc/sys/kernel/random/boot_id"),
        gpu_management=gpu_management_nodes(tree, found_gpus),
        sub_functions=sub_functions(tree, locations=locations, nodes=nodes_of),
    )
    problems += [*facts.problems, *gpu_problems, *nic_problems, *_control_problems(machine)]
    return Discovery(machine=machine, problems=tuple(sorted(set(problems))))


def _gpu_facts(tree: MachineRoot, nvml: GpuFactsSource | None) -> NvmlFacts:
    if nvml is not None:
        return nvml.read()
    if tree.is_real:
        return NvmlLibrary().read()
    recorded = RecordedNvml(tree)
    return recorded.read() if recorded.exists else NvmlFacts()


def _unplaced(
    locations: dict[str, tuple[Location, frozenset[str]]], nodes: tuple[NumaNode, ...]
) -> list[Problem]:
    """Devices whose NUMA node is unknown, on a machine with several."""
    return [
        Problem(
            f"PCI device {bus_id}",
            "numaNode",
            f"its NUMA node is not known, of the {len(nodes)} that the machine shows",
            "enable NUMA (ACPI SRAT) in the firmware or the VM; the device counts as near to none",
        )
        for bus_id, (location, _) in locations.items()
        if location.numa is None
    ]


def _control_problems(machine: Machine) -> list[Problem]:
    present = {node.path for node in machine.gpu_control}
    problems = [
        Problem("machine", path, "it does not exist", "run nvidia-modprobe -c 0 -u; CUDA needs it")
        for path in ("/dev/nvidiactl", "/dev/nvidia-uvm")
        if machine.gpus and path not in present
    ]
    if machine.nics and not machine.rdma_control:
        problems.append(
            Problem(
                "machine", "/dev/infiniband/rdma_cm", "it does not exist", "load rdma_ucm; RDMA-CM needs it"
            )
        )
    return problems
