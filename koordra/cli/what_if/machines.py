"""Machines that nobody has here: those that come with koordra or are described in a file; nodes of them."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from koordra.api.objects import Fields, Object
from koordra.controller.autoscale.node_groups import NodeGroup, node_with_slices
from koordra.errors import InvalidInput
from koordra.kubelet_plugin.discovery.reading import discover
from koordra.kubelet_plugin.publish.devices import Mode
from koordra.kubelet_plugin.publish.resource_slices import build_slices
from koordra.topology import overlay, presets
from koordra.topology.problems import Discovery

MOST_NODES: Final = 20_000


def discovered(name: str) -> tuple[presets.Preset, Discovery]:
    """A machine of a described kind, written out and read back by the code that reads real ones. Raises
    InvalidInput, listing those that there are."""
    kind = _kind(name)
    with tempfile.TemporaryDirectory(prefix="koordra-") as directory:
        presets.write_machine(kind, Path(directory), serial="shown")
        found = discover(Path(directory))
    return kind, overlay.load(kind.overlay).apply(found) if kind.overlay else found


def machine_nodes(wanted: Sequence[str]) -> list[Fields]:
    """Nodes of `NAME[:COUNT]`, each with its ResourceSlices, in joint mode. They are called `NAME-0000`; CPU
    and memory are not bounded. Raises InvalidInput for a machine that nobody knows, and too many nodes."""
    found: list[Fields] = []
    for number, (name, count) in enumerate(map(_counted, wanted)):
        again = [_counted(one)[0] for one in wanted[:number]].count(name)
        found += _nodes(name, count, f"{_label(name)}-{again + 1}" if again else _label(name))
    return found


def _counted(text: str) -> tuple[str, int]:
    name, colon, number = text.rpartition(":")
    if not (colon and number.isascii() and number.isdecimal()):
        return text, 1
    if int(number[:9]) > MOST_NODES or len(number) > 9:
        raise InvalidInput(
            f"{number} nodes are more than {MOST_NODES:,}",
            object=text,
            field="--machine",
            remedy="ask for fewer",
        )
    return name, int(number)


def _label(name: str) -> str:
    """What a node may be called after the machine's name, or its file's."""
    return "-".join(filter(None, name.lower().removesuffix(".yaml").replace(".", "-").split("/")))


def machine_slices(name: str, is_native: bool = False) -> list[Object]:
    """The ResourceSlices of a node that is this machine, whatever it is called. Raises InvalidInput."""
    machine = discovered(name)[1].machine
    mode: Mode = "native" if is_native else "joint"
    return build_slices(machine, node_name="node", node_uid=None, mode=mode, generation=1)


def _nodes(name: str, count: int, called: str) -> Iterator[Object]:
    group = NodeGroup(called, name, machine_slices(name), most=count)
    for number in range(count):
        yield from node_with_slices(f"{called}-{number:04}", group)


def _kind(name: str) -> presets.Preset:
    """By the name of a preset, or by path."""
    path = Path(name)
    if path.is_file():
        return presets.load_file(path, name=path.parent.name if path.stem == "machine" else path.stem)
    if name in presets.names():
        return presets.load(name)
    raise InvalidInput(
        f"there is no machine {name!r}",
        field="--machine",
        remedy=f"give the path of a machine.yaml, or one of {', '.join(presets.names())}",
    )
