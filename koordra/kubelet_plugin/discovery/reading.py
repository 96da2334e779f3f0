"""One reading of a machine: GPUs, RDMA NICs and their places.

Everything is read below a root path, so that a captured or made-up machine is read by the same code as the
real one:

1. sysfs: the PCI tree, NUMA nodes and sockets (``pci_tree``);
2. NVML, or a recording of it, or /proc/driver/nvidia: the GPUs' identities and MIG instances (``nvml_gpus``,
   ``gpus``);
3. /sys/class/infiniband: RDMA devices of any vendor; /sys/bus/auxiliary: sub-functions of NICs
   (``rdma_devices``);
4. /dev: device nodes and their numbers (``machine_root``).

``watcher`` reads again when something changes.

Discovery never raises for what it finds: what is certain is in the machine, what is not becomes a
:class:`Problem`. Devices with problems stay in the machine, since their nodes must be guarded, but are not
``publishable``.

Two corrections follow a reading: the operator's topology overlay (topology/overlay.py) fills in what virtual
machines and some boards hide of switches and NUMA nodes and never overrides what the machine reports; a NIC
that has moved into a pod's network namespace, which the host then does not see, nor, where RDMA devices
belong to namespaces, its RDMA device, stays as it was last seen until its pod returns it.

``probe`` is a cheap fingerprint of everything that can change without an event: states of InfiniBand ports,
MIG instances (created by an ioctl), device nodes (created by udev or nvidia-modprobe) and a reloaded driver.
It takes some milliseconds on a machine with 16 NICs and 128 virtual functions, so it can be taken every few
seconds.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Final

from koordra.kubelet_plugin.discovery.gpus import (
    gpu_management_nodes,
    gpu_node,
    gpu_optional_nodes,
    gpus,
    imex_nodes,
    is_gpu,
    kernel_majors,
    proc_driver_version,
    proc_gpus,
)
from koordra.kubelet_plugin.discovery.host_network import default_route_interfaces, rdma_exclusive
from koordra.kubelet_plugin.discovery.machine_root import MachineRoot
from koordra.kubelet_plugin.discovery.nvml_gpus import nvml_facts
from koordra.kubelet_plugin.discovery.nvml_query import GpuFactsSource, NvmlFacts
from koordra.kubelet_plugin.discovery.nvml_recording import FILE, recorded_facts
from koordra.kubelet_plugin.discovery.pci_tree import PCI_DEVICES, PciTree
from koordra.kubelet_plugin.discovery.rdma_devices import (
    AUXILIARY,
    RDMA_CLASS,
    RDMA_CONTROL,
    character_devices,
    rdma_nics,
    sub_functions,
)
from koordra.kubelet_plugin.nvidia_driver.homes import HomeSource
from koordra.kubelet_plugin.nvidia_driver.node_numbers import GPU_CONTROL
from koordra.kubelet_plugin.nvidia_driver.nvml_session import NvmlLibrary
from koordra.topology.fabrics import cliques
from koordra.topology.location import DeviceNode, bus_order
from koordra.topology.machine import Gpu, Machine, Nic, in_bus_order
from koordra.topology.problems import Discovery

BOOT_ID = "proc/sys/kernel/random/boot_id"


def boot_id(root: Path) -> str:
    """Empty where the machine has none."""
    return MachineRoot(root).line(BOOT_ID)


def discover(
    root: Path,
    *,
    nvml: GpuFactsSource | None = None,
    library: GpuFactsSource = nvml_facts,
    dev: Sequence[Path] = (),
) -> Discovery:
    """Read the machine below ``root`` (``Path("/")`` is this one).

    ``nvml`` replaces the source of GPU facts; by default it is NVML's ``library`` on the real machine and
    ``nvml.json`` on a picture of one. The library is asked only where the PCI tree shows an NVIDIA GPU.
    ``dev`` are the folders of its device nodes, by default the root's.
    """
    tree = PciTree(root, dev)
    if not tree.names(PCI_DEVICES):
        tree.problem(
            "machine", PCI_DEVICES, "it is missing or empty", "check that the root path holds a mounted sysfs"
        )
    proc = proc_gpus(tree)
    cards = {one.bus_id for one in tree.functions.values() if is_gpu(tree, one)} | proc.keys()
    if nvml is None and not cards.isdisjoint(tree.functions):
        nvml = library if tree.is_real else partial(recorded_facts, tree)
    facts = nvml() if nvml else NvmlFacts()
    cards.update(gpu.location.bus_id for gpu in facts.gpus)
    functions = [one for one in tree.functions.values() if one.bus_id in cards]
    kernel = kernel_majors(tree)
    control = tuple(node for path in GPU_CONTROL if (node := gpu_node(tree, path, kernel)))
    found = _without_uvm(gpus(tree, functions, nvml=facts.gpus, proc=proc), control)
    owned = character_devices(tree)
    nics, parts = rdma_nics(tree, owned), sub_functions(tree, owned)
    machine = Machine(
        numa_nodes=tree.numa_nodes,
        bridges=tuple(sorted(tree.bridges.values(), key=lambda bridge: bus_order(bridge.bus_id))),
        gpus=found,
        nics=tuple(nic for nic in nics if nic.parent is None),
        vfs=tuple(nic for nic in nics if nic.parent is not None),
        driver_version=facts.driver_version or proc_driver_version(tree),
        cuda_version=facts.cuda_version,
        gpu_control=control,
        rdma_control=tree.device_nodes(RDMA_CONTROL),
        boot_id=tree.line(BOOT_ID) or None,
        gpu_management=gpu_management_nodes(tree, found),
        gpu_optional=gpu_optional_nodes(tree) if found else (),
        sub_functions=parts,
        rdma_exclusive=rdma_exclusive(tree),
        imex=imex_nodes(tree) if any(gpu.fabric for gpu in found) else None,
    )
    _report_missing_control_nodes(tree, machine)
    _report_several_cliques(tree, machine)
    return Discovery(machine, tuple(sorted({*facts.problems, *tree.problems})))


UVM: Final = "/dev/nvidia-uvm"


def discover_with_driver(
    root: Path, homes: HomeSource, *, library: GpuFactsSource | None = None
) -> Discovery:
    """Read the machine with the device nodes and, unless another ``library`` is given, the NVML of its GPU
    driver's home. What is wrong with the home is among the problems."""
    home = homes.now()
    found = discover(
        root,
        library=library or partial(nvml_facts, NvmlLibrary(homes.nvml)),
        dev=homes.dev_folders(home),
    )
    return replace(found, problems=tuple(sorted({*found.problems, *home.problems})))


def _without_uvm(found: tuple[Gpu, ...], control: tuple[DeviceNode, ...]) -> tuple[Gpu, ...]:
    """The cards, faulty where no program could make a CUDA context on them: without nvidia-uvm cuInit fails
    with 999 (unknown error)."""
    if any(node.path == UVM for node in control):
        return found
    return tuple(replace(gpu, faults=(*gpu.faults, "UvmMissing")) for gpu in found)


def _report_missing_control_nodes(tree: MachineRoot, machine: Machine) -> None:
    present = {node.path for node in machine.gpu_control}
    for path in ("/dev/nvidiactl", UVM):
        if machine.gpus and path not in present:
            tree.problem("machine", path, "it does not exist", "run nvidia-modprobe -c 0 -u; CUDA needs it")
    if machine.nics and not machine.rdma_control:
        tree.problem("machine", *RDMA_CONTROL, "it does not exist", "load rdma_ucm; RDMA-CM needs it")


def _report_several_cliques(tree: MachineRoot, machine: Machine) -> None:
    found = cliques(machine)
    if len(found) > 1:
        tree.problem(
            "machine",
            "NVLink clique",
            f"its GPUs are in several: {', '.join(found)}; none is published",
            "have the partitions of the NVLink fabric put right (NMX), and look into the log of nvidia-fabricmanager",
        )


def with_moved(now: Machine, before: Machine | None, moved: Collection[str]) -> Machine:
    """`now` with the NICs named in `moved` as `before` had them, as far as `now` does not show them."""
    if before is None or not moved:
        return now
    return replace(
        now, nics=_still_known(now.nics, before.nics, moved), vfs=_still_known(now.vfs, before.vfs, moved)
    )


def _still_known(now: tuple[Nic, ...], before: tuple[Nic, ...], moved: Collection[str]) -> tuple[Nic, ...]:
    known = {nic.name: nic for nic in before if nic.name in moved}
    seen = {nic.name for nic in now}
    found = [
        replace(nic, netdev=nic.netdev or known[nic.name].netdev) if nic.name in known else nic for nic in now
    ]
    found += [nic for name, nic in known.items() if name not in seen]
    return tuple(sorted(found, key=in_bus_order))


_CAPABILITIES = "proc/driver/nvidia/capabilities"


def probe(directory: Path, dev: Sequence[Path] = ()) -> Hashable:
    """The fingerprint of the machine below ``directory``; equal for machines that read alike."""
    root = MachineRoot(directory, dev)
    recording = root.status(FILE)
    return (
        tuple(root.names(PCI_DEVICES)),
        tuple(root.names(AUXILIARY)),
        tuple(_ports(root)),
        tuple(_device_nodes(root)),
        root.text("proc/driver/nvidia/version"),
        tuple(sorted(each for each in kernel_majors(root).items() if each[0].startswith("nvidia"))),
        tuple(root.names("proc/driver/nvidia/gpus")),
        tuple((card, tuple(root.names(f"{_CAPABILITIES}/{card}/mig"))) for card in root.names(_CAPABILITIES)),
        default_route_interfaces(root),
        rdma_exclusive(root),
        (recording.st_mtime_ns, recording.st_size) if recording else None,
    )


def _ports(root: MachineRoot) -> list[tuple[str, str]]:
    found = []
    for name in root.names(RDMA_CLASS):
        # The link, too: the same name on another function is another NIC.
        found.append((name, "/".join(root.link(f"{RDMA_CLASS}/{name}"))))
        interfaces = f"{RDMA_CLASS}/{name}/device/net"
        found += [
            (interface, root.line(f"{interfaces}/{interface}/carrier_down_count"))
            for interface in root.names(interfaces)
        ]
        ports = f"{RDMA_CLASS}/{name}/ports"
        for port in root.names(ports):
            # A link that is up again went down all the same.
            downed = root.line(f"{ports}/{port}/counters/link_downed")
            found.append((port, root.line(f"{ports}/{port}/state") + downed))
    return found


def _device_nodes(root: MachineRoot) -> list[tuple[str, int, int]]:
    paths = [f"dev/{name}" for name in root.names("dev") if name.startswith("nvidia")]
    paths += [
        f"dev/{folder}/{name}"
        for folder in ("nvidia-caps", "infiniband")
        for name in root.names(f"dev/{folder}")
    ]
    # A stand-in of a captured machine has its numbers in its text, so its time shows a change.
    return [
        (path, status.st_rdev, 0 if status.st_rdev else status.st_mtime_ns)
        for path in paths
        if (status := root.status(path))
    ]
