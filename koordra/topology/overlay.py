"""What an operator knows about a machine and sysfs does not show: a file laid over what was discovered.

Virtual machines hide switches and NUMA nodes: Azure gives every device a PCI domain of its own, AWS and plain QEMU put
all of them on one flat bus. Cloud providers therefore ship NCCL topology files, and this module reads those as they are:

    <system><cpu numaid="0"><pci busid="ffff:ff:01.0" class="0x060400"> <pci busid="0001:00:00.0" class="0x0302.."/> ...

A ``pci`` that holds others is a switch, named by its (often invented) bus id; one that holds none is a device. The same
can be said in YAML::

    schema: koordra.io/overlay/v1
    groups:
      - {numa: 0, switch: "ffff:ff:01.0", devices: ["0001:00:00.0", "0101:00:00.0"]}

The file fills gaps, it never overrules: a NUMA node that sysfs gives, or a switch that it shows, stays, and where the
file says otherwise that is a :class:`Contradiction` for people to read. Everything taken from the file is marked in
``inferred`` ("numaNode", "pcieSwitch", "pcieRoot"), and so in every picture.

The host bridge follows. Devices below one switch of the file share one, or "same root" would be narrower than "same
switch": where sysfs shows several, that of the first counts for all. And a bus that carries devices of several NUMA nodes
is no host bridge but the emulator's: its devices count as below one host bridge per NUMA node (``pciffff:00``, ...).
Either is marked "pcieRoot".
"""

from __future__ import annotations

import xml.etree.ElementTree as ET
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

from koordra.errors import InvalidManifest
from koordra.topology.machine import (
    BUS_ID,
    Device,
    Gpu,
    Location,
    Machine,
    Nic,
    bus_order,
    with_switches,
)

SCHEMA = "koordra.io/overlay/v1"
_INVENTED_ROOT = "pciffff:"
_MOST_BYTES = 1 << 20
_DeviceT = TypeVar("_DeviceT", Gpu, Nic)


@dataclass(frozen=True, slots=True)
class Place:
    """Where the file puts a device. ``switches`` are bus ids, topmost first."""

    numa: int | None = None
    switches: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, order=True)
class Contradiction:
    """The file and the machine disagree about ``field`` of a device; the machine is believed."""

    device: str
    field: str
    machine: str
    overlay: str

    def __str__(self) -> str:
        return f"{self.device}: {self.field}: the machine says {self.machine}, the overlay {self.overlay}"


def load(path: Path) -> dict[str, Place]:
    """Bus id -> place, from an NCCL topology file or one in koordra's form. Raises InvalidManifest naming the file."""
    subject = f"overlay {path.name}"
    try:
        if path.stat().st_size > _MOST_BYTES:
            raise InvalidManifest(
                "is larger than 1 MiB", object=subject, remedy="check that it is the right file"
            )
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidManifest(f"cannot be read: {error}", object=subject) from error
    return _of_xml(text, subject) if text.lstrip().startswith("<") else _of_yaml(text, subject)


def apply(machine: Machine, places: Mapping[str, Place]) -> tuple[Machine, tuple[Contradiction, ...]]:
    """The machine with its gaps filled, and what the file says against it. Devices that the file does not know stay."""
    contradictions: list[Contradiction] = []
    roots = _roots(machine, places)

    def placed(device: _DeviceT) -> _DeviceT:
        bus_id = device.location.bus_id
        if bus_id not in places:
            return device
        contradictions.extend(_contradictions(machine, device, places[bus_id]))
        location, inferred = _located(machine, device.location, places[bus_id], roots[bus_id])
        return replace(device, location=location, inferred=device.inferred | inferred)

    gpus, nics, vfs = (
        tuple(map(placed, machine.gpus)),
        tuple(map(placed, machine.nics)),
        tuple(map(placed, machine.vfs)),
    )
    bridges = with_switches(machine.bridges, (*gpus, *nics, *vfs))
    overlaid = replace(machine, gpus=gpus, nics=nics, vfs=vfs, bridges=bridges)
    return overlaid, tuple(sorted(contradictions))


def _of_xml(text: str, subject: str) -> dict[str, Place]:
    if "<!DOCTYPE" in text or "<!ENTITY" in text:
        raise InvalidManifest("defines entities", object=subject, remedy="NCCL writes none; remove them")
    try:
        system = ET.fromstring(text)
    except ET.ParseError as error:
        raise InvalidManifest(f"is not XML: {error}", object=subject) from error
    places: dict[str, Place] = {}

    def visit(node: ET.Element, numa: int | None, switches: tuple[str, ...]) -> None:
        for child in node.iterfind("pci"):
            bus_id = _bus_id(child.get("busid"), subject)
            if child.find("pci") is None:
                places[bus_id] = Place(numa, switches)
            visit(child, numa, (*switches, bus_id))

    for cpu in system.iter("cpu"):
        number = cpu.get("numaid", "")
        visit(cpu, int(number) if number.isdecimal() else None, ())
    return places


def _of_yaml(text: str, subject: str) -> dict[str, Place]:
    import yaml

    try:
        document = yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise InvalidManifest(f"is not YAML: {error}", object=subject) from error
    if not isinstance(document, dict) or document.get("schema") != SCHEMA:
        raise InvalidManifest(
            "is no overlay", object=subject, field="schema", remedy=f"write schema: {SCHEMA}"
        )
    places: dict[str, Place] = {}
    groups = document.get("groups")
    for group in groups if isinstance(groups, list) else [None]:
        if not isinstance(group, dict) or not isinstance(group.get("devices"), list):
            needed = "needs a list of {numa, switch, devices}"
            raise InvalidManifest(needed, object=subject, field="groups", remedy="see the example")
        numa, switch = group.get("numa"), group.get("switch")
        if numa is not None and (not isinstance(numa, int) or isinstance(numa, bool)):
            raise InvalidManifest(f"{numa!r} is no NUMA node", object=subject, field="groups.numa")
        place = Place(numa, () if switch is None else (_bus_id(switch, subject),))
        places |= {_bus_id(device, subject): place for device in group["devices"]}
    return places


def _bus_id(value: Any, subject: str) -> str:
    text = str(value).lower()
    if not BUS_ID.fullmatch(text):
        raise InvalidManifest(
            f"{value!r} is no PCI address", object=subject, field="busid", remedy="write 0000:1b:00.0"
        )
    return text


def _roots(machine: Machine, places: Mapping[str, Place]) -> dict[str, str]:
    """Bus id of a placed device -> the host bridge that it counts as being under."""
    placed = [
        (device.location, places[device.location.bus_id])
        for device in sorted(machine.devices(), key=lambda device: bus_order(device.location.bus_id))
        if device.location.bus_id in places
    ]
    numbers: dict[str, set[int]] = {}
    for seen, place in placed:
        if place.numa is not None:
            numbers.setdefault(seen.root, set()).add(place.numa)
    roots: dict[str, str] = {}
    of_switch: dict[str, str] = {}
    for seen, place in placed:
        root = seen.root
        if place.numa is not None and seen.numa is None and len(numbers[root]) > 1:
            root = f"{_INVENTED_ROOT}{place.numa:02x}"
        if place.switches and not seen.switches:
            root = of_switch.setdefault(place.switches[0], root)
        roots[seen.bus_id] = root
    return roots


def _located(machine: Machine, seen: Location, place: Place, root: str) -> tuple[Location, frozenset[str]]:
    inferred: set[str] = set()
    location = seen
    node = machine.numa(place.numa)
    if seen.numa is None and node is not None:
        location = replace(location, numa=node.id, socket=node.socket)
        inferred.add("numaNode")
    if root != seen.root:
        location = replace(location, path=(root, *location.path[1:]))
        inferred.add("pcieRoot")
    if place.switches and not seen.switches:
        location = replace(location, path=(root, *place.switches, seen.bus_id), switches=place.switches)
        inferred.add("pcieSwitch")
    return location, frozenset(inferred)


def _contradictions(machine: Machine, device: Device, place: Place) -> Iterator[Contradiction]:
    seen = device.location
    if place.numa is not None and seen.numa is not None and seen.numa != place.numa:
        yield Contradiction(device.name, "numaNode", str(seen.numa), str(place.numa))
    if place.numa is not None and machine.numa(place.numa) is None:
        yield Contradiction(device.name, "numaNode", "there is no such node", str(place.numa))
    if place.switches and seen.switches:
        # Ids need not agree (NCCL names the secondary side); it is enough that the file names no other switch of the machine.
        others = {bridge.bus_id for bridge in machine.bridges}.difference(seen.path)
        if place.switches[0] in others:
            yield Contradiction(device.name, "pcieSwitch", seen.switches[0], place.switches[0])
