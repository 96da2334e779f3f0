"""The shape of a machine as its hardware has it, to which what is published of it is held."""

from __future__ import annotations

from koordra.topology.machine import Device, Machine, nvlinks_between, pcie_level
from koordra.topology.machine_shape import MachineShape, _classes, _partitions


def shape_of_machine(machine: Machine, *, virtual_functions: bool = False) -> MachineShape:
    """The shape of all GPUs and NICs (or virtual functions instead of NICs) of a machine, in its order."""
    gpus, nics = machine.gpus, machine.vfs if virtual_functions else machine.nics
    devices: list[Device] = [*gpus, *nics]
    links = tuple(tuple(0 if a is b else nvlinks_between(a, b) for b in gpus) for a in gpus)
    levels = [[pcie_level(a, b) for b in devices[:at]] for at, a in enumerate(devices)]
    kinds = [(gpu.architecture, gpu.minor) for gpu in gpus]
    return MachineShape(len(gpus), len(nics), _classes(len(gpus), levels), links, _partitions(links, kinds))
