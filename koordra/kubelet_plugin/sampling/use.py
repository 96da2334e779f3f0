"""A sample of a node, and what it says of cards, containers and ports. Pure.

Who is on a card: processes of a container that was granted it, or a MIG instance of it (`granted`); of a
container that was not (`stranger`); of the host (`host`); and of containers of a node where no hook writes
down who was granted what (`unknown`).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from koordra.kubelet_plugin.publish.devices import mig_devices
from koordra.kubelet_plugin.sampling.host_processes import Process
from koordra.kubelet_plugin.sampling.nic_counters import Port
from koordra.kubelet_plugin.sampling.nvml_cards import CardProcesses, CardState
from koordra.node_state.granted_claims import ContainerName, GrantedContainer
from koordra.topology.machine import Machine

WHOSE: Final = ("granted", "stranger", "host", "unknown")
NOBODY: Final = ContainerName("", "", "")

Granted = Mapping[str, GrantedContainer]
"""By the runtime's number of a container."""


@dataclass(frozen=True, slots=True)
class Sample:
    """The node at `at` (seconds of CLOCK_MONOTONIC). `cards` and `processes` by UUID, of a MIG instance too;
    `owners` by pid; `device_ns`: how long kernels of a container ran on a card since counting began, by the
    container's number (empty: of no container) and the card; `ports`: what they have counted."""

    at: float = 0.0
    cards: Mapping[str, CardState] = field(default_factory=dict)
    processes: Mapping[str, CardProcesses] = field(default_factory=dict)
    owners: Mapping[int, Process] = field(default_factory=dict)
    device_ns: Mapping[tuple[str, str], int] = field(default_factory=dict)
    ports: Mapping[Port, Mapping[str, int]] = field(default_factory=dict)


class OnCard(NamedTuple):
    """Processes of one kind of owner on a card; bytes without those that the driver does not report."""

    processes: int = 0
    memory: int = 0


def device_names(machine: Machine) -> dict[str, frozenset[str]]:
    """By UUID of what programs compute on: the names of the devices that go with it. A card in MIG mode is
    computed on through its instances alone."""
    found: dict[str, frozenset[str]] = {}
    for gpu in machine.gpus:
        instances = {each.instance.uuid: each.name for each in mig_devices(gpu)}
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
    sample: Sample, names: Mapping[str, frozenset[str]], granted: Granted
) -> dict[tuple[str, str], OnCard]:
    """By UUID and WHOSE."""
    found = {(uuid, each): OnCard() for uuid in sample.processes for each in WHOSE}
    for uuid, card in sample.processes.items():
        for pid, used in card.used.items():
            row = uuid, whose(sample.owners.get(pid), names.get(uuid, frozenset()), granted)
            found[row] = OnCard(found[row].processes + 1, found[row].memory + (used or 0))
    return found


def of_containers(sample: Sample, granted: Granted) -> dict[tuple[ContainerName, str], OnCard]:
    """By container and UUID, of containers whose names the hook wrote down."""
    found = defaultdict[tuple[ContainerName, str], OnCard](OnCard)
    for uuid, card in sample.processes.items():
        for pid, used in card.used.items():
            process = sample.owners.get(pid)
            held = granted.get(process.container) if process else None
            if held is not None:
                before = found[held.name, uuid]
                found[held.name, uuid] = OnCard(before.processes + 1, before.memory + (used or 0))
    return dict(found)


def device_seconds(sample: Sample, granted: Granted) -> dict[tuple[ContainerName, str], float]:
    """By container and UUID; what no container that the hook knows has had is NOBODY's."""
    found = defaultdict[tuple[ContainerName, str], float](float)
    for (container, uuid), ns in sample.device_ns.items():
        held = granted.get(container)
        found[held.name if held else NOBODY, uuid] += ns / 1e9
    return dict(found)


class PortOf(NamedTuple):
    """A port as metrics name it: the device as it is published, the port's number, and the container that has
    it alone, NOBODY where none or several do."""

    device: str
    port: int
    holder: ContainerName


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
