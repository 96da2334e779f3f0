"""The machine as it is seen from here, where "here" may be a container or a sandbox.

The plugin reads a host: every card of the PCI tree is the node's. A self test is also run in a container
that was given some of a host's cards: the PCI tree shows all of them, NVML and /dev only the given ones; the
others are set aside and not reported as broken. And it is run in sandboxes that have no PCI tree at all,
where NVML alone knows the cards: no node of a cluster, but programs can be tried on them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from koordra.kubelet_plugin.discovery.gpus import gpu_node, kernel_majors
from koordra.kubelet_plugin.discovery.machine_root import MachineRoot
from koordra.kubelet_plugin.discovery.nvml_gpus import nvml_facts
from koordra.kubelet_plugin.discovery.reading import discover_with_driver
from koordra.kubelet_plugin.nvidia_driver.homes import HomeSource
from koordra.kubelet_plugin.nvidia_driver.nvml_session import NvmlLibrary
from koordra.topology.location import Location
from koordra.topology.machine import Gpu
from koordra.topology.problems import Discovery


@dataclass(frozen=True, slots=True)
class SeenMachine:
    """`found` is without the cards that were not given to this container, whose bus ids are `elsewhere`.
    `by_nvml`: the cards are NVML's alone, for there is no PCI tree."""

    found: Discovery
    elsewhere: tuple[str, ...] = ()
    by_nvml: bool = False


def see(root: Path, homes: HomeSource) -> SeenMachine:
    """Loads NVML into this process."""
    library = NvmlLibrary(homes.nvml)
    found = discover_with_driver(root, homes, library=lambda: nvml_facts(library))
    dev = MachineRoot(root, homes.dev_folders(homes.now()))
    if not found.machine.gpus:
        facts = nvml_facts(library)
        gpus = tuple(gpu for card in facts.gpus if (gpu := _with_node(card, dev)))
        machine = replace(found.machine, gpus=gpus, driver_version=facts.driver_version)
        return SeenMachine(replace(found, machine=machine), by_nvml=bool(gpus))
    return without_others(found, dev)


def _with_node(gpu: Gpu, dev: MachineRoot) -> Gpu | None:
    """At a host bridge of its own bus's name."""
    node = gpu_node(dev, f"/dev/nvidia{gpu.minor}", kernel_majors(dev))
    bus_id = gpu.location.bus_id
    place = Location(bus_id, (f"pci{bus_id.rpartition(':')[0]}", bus_id))
    return replace(gpu, node=node, location=place) if node else None


def without_others(found: Discovery, dev: MachineRoot) -> SeenMachine:
    """Set aside what NVML does not know and /dev does not have, if there is a card that they do."""
    gpus = found.machine.gpus
    there = tuple(gpu for gpu in gpus if gpu.memory_bytes is not None or dev.status(f"dev/nvidia{gpu.minor}"))
    if not there or len(there) == len(gpus):
        return SeenMachine(found)
    elsewhere = tuple(gpu.location.bus_id for gpu in gpus if gpu not in there)
    theirs = {f"GPU {bus_id}" for bus_id in elsewhere}
    problems = tuple(problem for problem in found.problems if problem.object not in theirs)
    return SeenMachine(Discovery(replace(found.machine, gpus=there), problems), elsewhere)
