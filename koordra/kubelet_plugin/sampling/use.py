"""What a reading of a node says of cards, containers and ports: the rows of a sample. Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from koordra.kubelet_plugin.publish.devices import mig_devices
from koordra.kubelet_plugin.sampling.cgroups import CgroupUse, ContainerCgroups
from koordra.kubelet_plugin.sampling.host_processes import Process
from koordra.kubelet_plugin.sampling.nic_counters import Port
from koordra.kubelet_plugin.sampling.nvml_cards import CardProcesses
from koordra.kubelet_plugin.sampling.sample import NOBODY, WHOSE, OnCard, PortOf
from koordra.node_state.granted_claims import ContainerName, GrantedContainer
from koordra.topology.machine import Machine

Granted = Mapping[str, GrantedContainer]
"""By the runtime's number of a container."""


@dataclass(frozen=True, slots=True)
class Listed:
    """`processes` by UUID, of a MIG instance too; `owners` by pid."""

    processes: Mapping[str, CardProcesses] = field(default_factory=dict)
    owners: Mapping[int, Process] = field(default_factory=dict)


def device_names(machine: Machine) -> dict[str, frozenset[str]]:
    """By UUID of what programs compute on: the names of the devices that go with it. A card in MIG mode is
    computed on through its instances alone."""
    found: dict[str, frozenset[str]] = {}
    for gpu in machine.gpus:
        instances = {each.instance.uuid: each.name for each in mig_devices(gpu) if each.instance}
        if gpu.uuid and not gpu.mig_enabled:
            found[gpu.uuid] = frozenset((gpu.name,))
        found |= {uuid: frozenset((gpu.name, name)) for uuid, name in instances.items() if uuid}
    return found


def whose(process: Process | None, devices: frozenset[str], granted: Granted) -> str:
    """One of WHOSE. `process` None: it has ended since it was listed."""
    if process is None or process.claims:
        return "granted" if process else "unknown"
    if not process.container:
        return "host"
    if not granted:
        return "unknown"
    held = granted.get(process.container)
    return "granted" if held and held.devices & devices else "stranger"


def on_cards(
    listed: Listed, names: Mapping[str, frozenset[str]], *, granted: Granted
) -> dict[tuple[str, str], OnCard]:
    """By UUID and WHOSE."""
    found = {(uuid, each): OnCard() for uuid in listed.processes for each in WHOSE}
    for uuid, card in listed.processes.items():
        for pid, used in card.used.items():
            row = uuid, whose(listed.owners.get(pid), names.get(uuid, frozenset()), granted)
            found[row] = OnCard(found[row].processes + 1, found[row].memory + (used or 0))
    return found


def of_containers(
    listed: Listed, names: Mapping[str, frozenset[str]], *, granted: Granted
) -> dict[tuple[ContainerName, str], OnCard]:
    """By container and UUID, of containers whose names the hook wrote down; one that holds a card that was
    looked at is there, whether it uses it or not."""
    found = defaultdict[tuple[ContainerName, str], OnCard](OnCard)
    found |= dict.fromkeys(_holdings(listed.processes, names, granted), OnCard())
    for uuid, card in listed.processes.items():
        for pid, used in card.used.items():
            process = listed.owners.get(pid)
            held = granted.get(process.container) if process else None
            if held is not None:
                before = found[held.name, uuid]
                found[held.name, uuid] = OnCard(before.processes + 1, before.memory + (used or 0))
    return dict(found)


def _holdings(
    uuids: Iterable[str], names: Mapping[str, frozenset[str]], granted: Granted
) -> Iterator[tuple[ContainerName, str]]:
    for uuid in uuids:
        for container in granted.values():
            if container.devices & names.get(uuid, frozenset()):
                yield container.name, uuid


def device_seconds(
    device_ns: Mapping[tuple[str, str], int], names: Mapping[str, frozenset[str]], *, granted: Granted
) -> dict[tuple[ContainerName, str], float]:
    """By container and UUID; what no container that the hook knows has had is NOBODY's. `names`: of cards of
    which the driver tells time, and whose holders are there from the start, therefore."""
    found = defaultdict[tuple[ContainerName, str], float](float)
    found |= dict.fromkeys(_holdings(names, names, granted), 0.0)
    for (container, uuid), ns in device_ns.items():
        held = granted.get(container)
        found[held.name if held else NOBODY, uuid] += ns / 1e9
    return dict(found)


def cgroup_use(read: Mapping[str, ContainerCgroups], granted: Granted) -> dict[ContainerName, CgroupUse]:
    """By container, and of its pod by the name without a container. Of two of one name, one of which ends,
    both count."""
    found = dict[ContainerName, CgroupUse]()
    for number, cgroups in read.items():
        name = granted[number].name
        if name == NOBODY:
            continue
        found[name] = _together(found.get(name), cgroups.own)
        if cgroups.pod is not None:
            found[name._replace(container="")] = cgroups.pod
    return found


def _together(one: CgroupUse | None, other: CgroupUse) -> CgroupUse:
    if one is None:
        return other
    seconds = [each for each in (one.cpu_seconds, other.cpu_seconds) if each is not None]
    memory = [each for each in (one.memory, other.memory) if each is not None]
    return CgroupUse(sum(seconds) if seconds else None, sum(memory) if memory else None)


def ports_of(machine: Machine, granted: Granted) -> dict[Port, PortOf]:
    holders = defaultdict[str, set[ContainerName]](set)
    for container in granted.values():
        for device in container.devices:
            holders[device].add(container.name)
    found: dict[Port, PortOf] = {}
    for nic in (*machine.nics, *machine.vfs):
        names = holders.get(nic.name, set())
        holder = next(iter(names)) if len(names) == 1 else NOBODY
        found |= {(nic.ib_device, port.number): PortOf(nic.name, port.number, holder) for port in nic.ports}
    return found


def kept(
    device_ns: Mapping[tuple[str, str], int], granted: Iterable[str]
) -> Iterator[tuple[tuple[str, str], int]]:
    """Without containers that are gone: what they have had goes to nobody."""
    there = frozenset(granted)
    gone = defaultdict[str, int](int)
    for (container, uuid), ns in device_ns.items():
        if container in there:
            yield (container, uuid), ns
        else:
            gone[uuid] += ns
    yield from ((("", uuid), ns) for uuid, ns in gone.items())
