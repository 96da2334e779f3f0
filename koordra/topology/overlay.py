"""What an operator knows about a machine and sysfs does not show: a file laid over what was discovered.

Virtual machines hide switches and NUMA nodes: Azure gives every device a PCI domain of its own, AWS and plain
QEMU put all of them on one flat bus. Cloud providers therefore ship NCCL topology files, and this module
reads those as they are:

    <system><cpu numaid="0"><pci busid="ffff:ff:01.0" class="0x060400">
        <pci busid="0001:00:00.0" class="0x0302.."/> ...

A ``pci`` that holds others is a switch, named by its (often invented) bus id; one that holds none is a
device. The same can be said in YAML::

    schema: koordra.io/overlay/v1
    groups:
      - {numa: 0, switch: "ffff:ff:01.0", devices: ["0001:00:00.0", "0101:00:00.0"]}

The file fills gaps, it never overrules: a NUMA node that sysfs gives, or a switch that it shows, stays, and
where the file says otherwise that is a :class:`Problem` for people to read. Everything taken from the file is
marked in ``inferred`` ("numaNode", "pcieSwitch", "pcieRoot"), and so in every picture.

The host bridge follows. Devices below one switch of the file share one, or "same root" would be narrower than
"same switch": where sysfs shows several, that of the first counts for all. And a bus that carries devices of
several NUMA nodes is no host bridge but the emulator's: its devices count as below one host bridge per NUMA
node (``pciffff:00``, ...). Either is marked "pcieRoot".
"""

from __future__ import annotations

import xml.etree.ElementTree as ET
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeVar

from koordra.api.reader import Reader
from koordra.errors import InvalidManifest
from koordra.topology.location import BUS_ID, Location, bus_order
from koordra.topology.machine import Gpu, Machine, Nic, with_switches
from koordra.topology.problems import Discovery, Problem
from koordra.yaml_text import read_document

SCHEMA = "koordra.io/overlay/v1"
_INVENTED_ROOT = "pciffff:"
_MOST_BYTES = 1 << 20
_DeviceT = TypeVar("_DeviceT", Gpu, Nic)


@dataclass(frozen=True, slots=True)
class Place:
    """Where the file puts a device. ``switches`` are bus ids, topmost first."""

    numa: int | None = None
    switches: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Overlay:
    """``file`` is its name, for people; ``places`` are by bus id."""

    file: str
    places: Mapping[str, Place]

    def apply(self, found: Discovery) -> Discovery:
        """The machine with its gaps filled. Problems that the file solves are gone; what it says against the
        machine is added. Devices that the file does not know stay as they are."""
        machine = found.machine
        roots = self._roots(machine)

        def placed(device: _DeviceT) -> _DeviceT:
            seen = device.location
            if seen.bus_id not in self.places:
                return device
            return replace(
                device, location=_located(machine, seen, self.places[seen.bus_id], roots[seen.bus_id])
            )

        laid_over = with_switches(
            replace(
                machine,
                gpus=tuple(map(placed, machine.gpus)),
                nics=tuple(map(placed, machine.nics)),
                vfs=tuple(map(placed, machine.vfs)),
            )
        )
        known = {
            f"PCI device {device.location.bus_id}"
            for device in laid_over.devices()
            if device.location.numa is not None
        }
        unsolved = {one for one in found.problems if one.field != "numaNode" or one.object not in known}
        return Discovery(laid_over, tuple(sorted(unsolved.union(self._contradictions(machine)))))

    def _roots(self, machine: Machine) -> dict[str, str]:
        """Bus id of a placed device -> the host bridge that it counts as being under."""
        locations = {device.location.bus_id: device.location for device in machine.devices()}
        placed = [
            (locations[bus_id], self.places[bus_id])
            for bus_id in sorted(locations.keys() & self.places, key=bus_order)
        ]
        numbers: defaultdict[str, set[int | None]] = defaultdict(set)
        for seen, place in placed:
            numbers[seen.root].add(place.numa)
        roots: dict[str, str] = {}
        of_switch: dict[str, str] = {}
        for seen, place in placed:
            root = seen.root
            if place.numa is not None and seen.numa is None and len(numbers[root] - {None}) > 1:
                root = f"{_INVENTED_ROOT}{place.numa:02x}"
            if place.switches and not seen.switches:
                root = of_switch.setdefault(place.switches[0], root)
            roots[seen.bus_id] = root
        return roots

    def _contradictions(self, machine: Machine) -> Iterator[Problem]:
        for device in machine.devices():
            seen, place = device.location, self.places.get(device.location.bus_id, Place())
            disagreements: list[tuple[str, object, object]] = []
            if place.numa is not None and seen.numa not in (None, place.numa):
                disagreements.append(("numaNode", seen.numa, place.numa))
            if place.numa is not None and machine.numa(place.numa) is None:
                disagreements.append(("numaNode", "there is no such node", place.numa))
            # Ids need not agree (NCCL names the secondary side); it is enough that the file names no other
            # switch of the machine.
            others = {bridge.bus_id for bridge in machine.bridges}.difference(seen.path)
            if seen.switches and others.intersection(place.switches[:1]):
                disagreements.append(("pcieSwitch", seen.switches[0], place.switches[0]))
            for field, says, file_says in disagreements:
                text = f"the machine says {says}, the overlay {file_says}"
                yield Problem(device.name, field, text, f"correct {self.file}; the machine is believed")


def _located(machine: Machine, seen: Location, place: Place, root: str) -> Location:
    node = machine.numa(place.numa) if seen.numa is None else None
    switches = () if seen.switches else place.switches
    laid_over = {"numaNode": node, "pcieRoot": root != seen.root, "pcieSwitch": switches}
    return replace(
        seen,
        path=(root, *switches, seen.bus_id) if switches else (root, *seen.path[1:]),
        switches=seen.switches or switches,
        numa=node.id if node else seen.numa,
        socket=node.socket if node else seen.socket,
        inferred=seen.inferred.union(field for field, changed in laid_over.items() if changed),
    )


def load(path: Path) -> Overlay:
    """An NCCL topology file or one in koordra's form. Raises InvalidManifest naming the file."""
    subject = f"overlay {path.name}"
    try:
        if path.stat().st_size > _MOST_BYTES:
            raise InvalidManifest(
                "is larger than 1 MiB", object=subject, remedy="check that it is the right file"
            )
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidManifest(f"cannot be read: {error}", object=subject) from error
    read = _of_xml if text.lstrip().startswith("<") else _of_yaml
    return Overlay(path.name, read(text, subject))


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
    read = Reader(read_document(text, source=subject), object=subject)
    if read.text("schema") != SCHEMA:
        raise read.wrong("is no overlay", f"write schema: {SCHEMA}", at="schema")
    if not read.sequence("groups"):
        raise read.wrong("needs a list of {numa, switch, devices}", "see the example", at="groups")
    places: dict[str, Place] = {}
    for group in read.each("groups"):
        devices, switch = group.texts("devices"), group.text("switch")
        if not devices:
            raise group.wrong("is missing or empty", "list PCI addresses", at="devices")
        place = Place(group.between("numa", 0), (_bus_id(switch, subject),) if switch else ())
        places |= {_bus_id(device, subject): place for device in devices}
    return places


def _bus_id(value: str | None, subject: str) -> str:
    text = str(value).lower()
    if not BUS_ID.fullmatch(text):
        raise InvalidManifest(
            f"{value!r} is no PCI address", object=subject, field="busid", remedy="write 0000:1b:00.0"
        )
    return text
