"""Nodes on which somebody else gives out the same GPUs: nothing is placed there, and it is said why. Pure but for a memory.

    ForeignPlugin   status.allocatable has GPUs of another device plugin (koordra.api.foreign_plugins)
    TwoDrivers      another driver publishes a GPU with the same PCI address or UUID (guards.contests)

Such a node is left out for claims that may take GPUs, with the reason ForeignDriver; claims for NICs alone go there. What is
allocated already stays. It is over as soon as the other one is gone, and the claims that wait are planned again.
On native nodes kube-scheduler allocates; there the kubelet plugin taints the cards (koordra.io/foreign-plugin).

Events are gone after an hour. So the Node says why too, in the annotation koordra.io/no-gpus, for as long as it holds.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from koordra.allocator.reasons import Cause, Reason
from koordra.api import names, objects
from koordra.api.foreign_plugins import offered_by_others, publishers
from koordra.api.objects import Object
from koordra.controller import claims as claims_of
from koordra.controller.guards import FOREIGN_PLUGIN, Alarm, contests, publishes_gpus
from koordra.controller.snapshot import Cluster, Group

NO_GPUS: Final = names.DOMAIN + "no-gpus"
"""Annotation on a Node: why none of its GPUs are given out, and what to do."""
_OF_NICS = frozenset({names.CLASS_NIC, names.CLASS_VF})


class Foreign:
    """Not thread-safe. `look` is cheap where nothing changed."""

    def __init__(self) -> None:
        self._slices: Sequence[Object] = ()
        self._ours: frozenset[str] = frozenset()
        self._contested: dict[str, str] = {}
        self._nodes: dict[str, tuple[Object, tuple[str, ...]]] = {}
        self._noted: dict[str, str] = {}
        self._offering: dict[str, tuple[Object, tuple[str, ...]]] = {}

    def look(self, cluster: Cluster) -> None:
        """Nodes and slices as they are now."""
        if not _alike(cluster.slices, self._slices):
            self._slices = cluster.slices
            self._ours = publishes_gpus(cluster.slices)
            found: dict[str, list[str]] = {}
            for one in contests(cluster.slices):
                if one.is_gpu:
                    found.setdefault(one.node, []).append(one.text)
            self._contested = {node: "; ".join(sorted(texts)) for node, texts in found.items()}
        nodes: dict[str, tuple[Object, tuple[str, ...]]] = {}
        noted: dict[str, str] = {}
        for node in cluster.nodes:
            name = objects.name(node)
            before = self._nodes.get(name)
            if before is not None and before[0] is node:
                nodes[name] = before
                if name in self._noted:
                    noted[name] = self._noted[name]
            else:
                nodes[name] = (node, offered_by_others(node))
                if said := objects.annotations_of(node).get(NO_GPUS):
                    noted[name] = said
        self._nodes, self._noted = nodes, noted
        self._offering = {name: entry for name, entry in nodes.items() if entry[1] and name in self._ours}

    def kept_off(self, group: Group) -> dict[str, Reason]:
        """Node -> why no GPU of it is given out."""
        if not self._offering and not self._contested:
            return {}
        named = {name for claim in group.pending for name in claims_of.class_names(claim)}
        if named and named <= _OF_NICS:
            return {}
        cause = Cause.FOREIGN_DRIVER.value
        found = {name: Reason(name, None, None, cause, text) for name, text in self._contested.items()}
        for name, (_, resources) in self._offering.items():
            found.setdefault(name, Reason(name, None, None, cause, _text(name, resources)))
        return found

    def alarms(self) -> list[Alarm]:
        """To be told on the nodes; those of other drivers are among the guards'."""
        return [
            Alarm(FOREIGN_PLUGIN, name, (node,), f"node {name}: {_text(name, resources)}")
            for name, (node, resources) in sorted(self._offering.items())
        ]

    def notes(self) -> list[tuple[Object, str | None]]:
        """(node, what its annotation is to say; None for nothing) of nodes that say something else."""
        wanted = {name: text for name, text in self._contested.items() if name in self._nodes}
        for name, (_, resources) in self._offering.items():
            wanted.setdefault(name, _text(name, resources))
        return [
            (self._nodes[name][0], wanted.get(name))
            for name in sorted(wanted.keys() | self._noted.keys())
            if wanted.get(name) != self._noted.get(name)
        ]

    @property
    def refused(self) -> int:
        """How many nodes are left out."""
        return len(self._offering.keys() | self._contested.keys())


def _text(node: str, resources: tuple[str, ...]) -> str:
    return (
        f"{publishers(resources)} gives out the same cards ({', '.join(resources)} in status.allocatable of node {node}); "
        "koordra gives none of them out. Take its DaemonSet off the node; amounts that stay behind although it is gone are "
        "removed from the Node's status"
    )


def _alike(one: Sequence[Object], other: Sequence[Object]) -> bool:
    return len(one) == len(other) and all(mine is theirs for mine, theirs in zip(one, other, strict=True))
