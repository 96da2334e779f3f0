"""Clusters that nobody has yet: nodes of machines that come with koordra, or are described in a file."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from koordra.allocator.predicates import HOSTNAME
from koordra.api.objects import Fields, Object
from koordra.cli.machine.machine_view import of_kind
from koordra.errors import InvalidInput
from koordra.kubelet_plugin.publish.resource_slices import build_slices

MOST_NODES: Final = 20_000


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


def _nodes(name: str, count: int, called: str) -> Iterator[Object]:
    slices = build_slices(of_kind(name).machine, node_name="node", node_uid=None, mode="joint", generation=1)
    for number in range(count):
        node = f"{called}-{number:04}"
        yield {
            "apiVersion": "v1",
            "kind": "Node",
            "metadata": {"name": node, "uid": f"Node/{node}", "labels": {HOSTNAME: node}},
            "status": {"conditions": [{"type": "Ready", "status": "True"}]},
        }
        for at, one in enumerate(slices):
            pool = {**one["spec"]["pool"], "name": node}
            metadata = {"name": f"{node}-{at}", "uid": f"ResourceSlice/{node}-{at}"}
            yield {**one, "metadata": metadata, "spec": {**one["spec"], "nodeName": node, "pool": pool}}
