"""Machines whose cards in MIG mode publish an instance at every free placement, as a node does that makes
instances on demand."""

from __future__ import annotations

from dataclasses import replace

from koordra.topology.location import DeviceNode
from koordra.topology.machine import Gpu, Machine
from koordra.topology.partitions import MigInstance


def with_every_placement(machine: Machine) -> Machine:
    """Besides its instances, one at each legal placement that none of them overlaps. Counters keep two of
    them from one claim."""
    return replace(machine, gpus=tuple(map(_cut, machine.gpus)))


def _cut(gpu: Gpu) -> Gpu:
    taken = {place for each in gpu.mig_instances for place in range(each.start, each.start + each.size)}
    nodes = tuple(DeviceNode(f"/dev/nvidia-caps/nvidia-cap{minor}", 237, minor) for minor in (1, 2))
    possible = tuple(
        MigInstance(100 + start, 0, profile.id, start, size, f"MIG-{gpu.uuid}-{profile.id}-{start}", nodes)
        for profile in gpu.mig_profiles
        for start, size in profile.placements
        if taken.isdisjoint(range(start, start + size))
    )
    return replace(gpu, mig_instances=(*gpu.mig_instances, *possible))
