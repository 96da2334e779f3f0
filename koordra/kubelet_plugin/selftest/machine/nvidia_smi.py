"""What nvidia-smi says of the machine, and where koordra's discovery differs from it.

nvidia-smi is an independent reader of the same driver: the identity and size of every card have to agree,
and so has the matrix of `nvidia-smi topo -m`, whose words (NV#, PIX, PXB, PHB, NODE, SYS) koordra's levels
use. Cards are matched by UUID, NICs by the name of their RDMA device, which the matrix gives in a legend
below it.

Memory: koordra publishes what programs can use. Some drivers report what they keep for themselves as a part
of the total (`memory.reserved`), so koordra's figure lies between the total without that and the total."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from koordra.errors import NodeError
from koordra.kubelet_plugin.discovery.nvml_query import normal_bus_id
from koordra.kubelet_plugin.nvidia_driver.homes import FoundHome
from koordra.kubelet_plugin.selftest.container import Command
from koordra.kubelet_plugin.selftest.program_runs import ended
from koordra.topology.levels import Level
from koordra.topology.machine import Gpu, Machine, Nic, level

MIB: Final = 1 << 20
_FIELDS: Final = (
    *("index", "uuid", "name", "pci.bus_id", "memory.total", "memory.reserved", "memory.used"),
    *("mig.mode.current", "driver_version"),
)
QUERY: Final = (
    f"--query-gpu={','.join(_FIELDS)}",
    "--format=csv,noheader,nounits",
)
TOPOLOGY: Final = ("topo", "-m")
_SECONDS: Final = 30.0
"""It starts the driver where nothing holds it, which takes seconds for each card."""
_KEPT: Final = 1 << 20
_STYLE: Final = re.compile(r"\x1b\[[0-9;]*m")
_NIC: Final = re.compile(r"\s*(NIC[0-9]+): (\S+)\s*")


class NvidiaSmi:
    """The program of the machine; `folder` is the self test's own. One that has hung is not asked again."""

    def __init__(self, home: FoundHome, folder: Path) -> None:
        self._folder = folder
        self._program, self._environment = _program(home)
        self._hung = False

    @property
    def installed(self) -> bool:
        return self._program is not None

    def ask(self, *arguments: str) -> str:
        """What it prints. Raises NodeError where it fails, hangs, or is not there."""
        if self._program is None:
            raise NodeError("there is no nvidia-smi")
        if self._hung:
            raise NodeError("nvidia-smi hangs")
        command = Command((self._program, *arguments), self._environment)
        try:
            end = ended(command, folder=self._folder, deadline=_SECONDS, kept=_KEPT)
        except OSError as error:
            raise NodeError(f"nvidia-smi cannot be started: {error}") from error
        self._hung = end.code is None
        if self._hung:
            raise NodeError(f"nvidia-smi did not end within {_SECONDS:.0f} s and was killed")
        if end.code != 0:
            said = (end.output + end.errors).strip()[-300:]
            raise NodeError(f"nvidia-smi {arguments[0] if arguments else ''} ends with {end.code}: {said}")
        return end.output


def _program(home: FoundHome) -> tuple[str | None, dict[str, str]]:
    """The nvidia-smi of the PATH, else the one of the driver's home with that home's library; and its
    environment."""
    on_path = shutil.which("nvidia-smi")
    if on_path or home.driver is None or home.nvml is None:
        return on_path, dict(os.environ)
    folders = (*home.driver.binary_folders, "/usr/bin", "/bin")
    found = (home.driver.here(f"{folder}/nvidia-smi") for folder in folders)
    program = next((str(path) for path in found if path.is_file()), None)
    return program, os.environ | {"LD_LIBRARY_PATH": str(home.nvml.parent)}


@dataclass(frozen=True, slots=True)
class Card:
    """A line of the query. Reserved and used memory are 0 where the driver does not say; `mig` is None where
    the card has none."""

    index: int
    uuid: str
    name: str
    bus_id: str | None
    memory_mib: int
    reserved_mib: int
    used_mib: int
    mig: bool | None
    driver: str


def cards(text: str) -> tuple[Card, ...]:
    """The answer to QUERY; lines that are none are left out."""
    found = []
    for line in text.splitlines():
        fields = [field.strip() for field in line.split(",")]
        if len(fields) != len(_FIELDS) or not fields[0].isdecimal() or not fields[4].isdecimal():
            continue
        index, uuid, name, bus_id, memory, reserved, used, mig, driver = fields
        found.append(
            Card(
                index=int(index),
                uuid=uuid,
                name=name,
                bus_id=normal_bus_id(bus_id),
                memory_mib=int(memory),
                reserved_mib=_number(reserved),
                used_mib=_number(used),
                mig={"Enabled": True, "Disabled": False}.get(mig),
                driver=driver,
            )
        )
    return tuple(found)


def _number(text: str) -> int:
    return int(text) if text.isdecimal() else 0


def differences(machine: Machine, listed: Sequence[Card]) -> list[str]:
    """In words; empty where both say the same."""
    found = []
    ours = {gpu.uuid: gpu for gpu in machine.gpus if gpu.uuid}
    theirs = {card.uuid: card for card in listed}
    found += [f"nvidia-smi lists {uuid}, koordra does not" for uuid in theirs if uuid not in ours]
    found += [f"koordra finds {uuid}, nvidia-smi does not list it" for uuid in ours if uuid not in theirs]
    for uuid, gpu in ours.items():
        if uuid in theirs:
            found += [f"{uuid}: {each}" for each in _differences(gpu, theirs[uuid], machine)]
    return found


def _differences(gpu: Gpu, card: Card, machine: Machine) -> Iterator[str]:
    for field, our, their in (
        ("name", gpu.product_name, card.name),
        ("bus id", gpu.location.bus_id, card.bus_id),
        ("MIG mode", gpu.mig_enabled, card.mig),
        ("driver version", machine.driver_version, card.driver),
    ):
        if our != their:
            yield f"{field}: koordra {our}, nvidia-smi {their}"
    memory = (gpu.memory_bytes or 0) // MIB
    if not card.memory_mib - card.reserved_mib - 1 <= memory <= card.memory_mib + 1:
        yield (
            f"memory: koordra {memory} MiB, nvidia-smi {card.memory_mib} MiB"
            + (f", of which {card.reserved_mib} MiB are reserved" if card.reserved_mib else "")
        )


Matrix = Mapping[tuple[str, str], str]
"""By the names of the two devices (GPU0, mlx5_0): the word of the matrix."""


def matrix(text: str) -> Matrix:
    """The matrix of `nvidia-smi topo -m`, NICs by the names of their RDMA devices."""
    lines = [_STYLE.sub("", line) for line in text.splitlines()]
    legend = {match[1]: match[2] for line in lines if (match := _NIC.fullmatch(line))}
    header: list[str] = []
    found: dict[tuple[str, str], str] = {}
    for line in lines:
        words = line.split()
        if not header:
            header = [word for word in words if re.fullmatch(r"(GPU|NIC)[0-9]+|mlx\S+", word)]
        elif words and words[0] in header:
            for column, word in zip(header, words[1:], strict=False):
                found[legend.get(words[0], words[0]), legend.get(column, column)] = word
        elif not words:
            break
    return found


def topology_differences(machine: Machine, listed: Sequence[Card], seen: Matrix) -> list[str]:
    """Pairs for which the matrix has another word than koordra. Pairs that only one of them knows are
    none."""
    by_uuid = {gpu.uuid: gpu for gpu in machine.gpus}
    devices: dict[str, Gpu | Nic] = {
        f"GPU{card.index}": by_uuid[card.uuid] for card in listed if card.uuid in by_uuid
    }
    devices |= {nic.ib_device: nic for nic in machine.nics}
    found = []
    for (one, other), word in seen.items():
        if one < other and one in devices and other in devices:
            kind, links = level(devices[one], devices[other])
            ours = f"NV{links}" if kind is Level.NV else str(kind)
            if ours != word:
                found.append(f"{one} - {other}: koordra {ours}, nvidia-smi {word}")
    return found
