"""Nodes on which somebody else gives out the same GPUs: nothing is placed there, and the reason is reported.

    ForeignPlugin   status.allocatable has GPUs of another device plugin (koordra.compat.foreign_names)
    TwoDrivers      another driver publishes a GPU with the same PCI address or UUID (conflict_rules.contests)

Such a node is left out for claims that may take GPUs, with the reason ForeignDriver; claims for NICs alone go there. What is
allocated already stays. It is over as soon as the other one is gone, and the claims that wait are planned again.
On native nodes kube-scheduler allocates; there the kubelet plugin taints the cards (koordra.io/foreign-plugin).

Events are gone after an hour. So the Node has the reason too, in the annotation koordra.io/no-gpus, for as long as it holds.
"""

from __future__ import annotations

from typing import Final

from koordra.allocator.reasons import Cause, Reason
from koordra.api import names, objects
from koordra.api.kinds import NODES, RESOURCE_SLICES
from koordra.api.objects import Object
from koordra.compat.foreign_names import offered_by_others, publishers
from koordra.controller import claims as claims_of
from koordra.controller.cache.cluster_cache import ClusterCache
from koordra.controller.cache.groups import Group
from koordra.controller.conflicts.conflict_rules import DeviceConflict, contests, publishes_gpus, set_or_drop
from koordra.controller.reporting.claim_events import FOREIGN_PLUGIN

NO_GPUS: Final = names.DOMAIN + "no-gpus"
"""Annotation on a Node: why none of its GPUs are given out, and what to do."""
_OF_NICS = frozenset({names.CLASS_NIC, names.CLASS_VF})


class ForeignDrivers:
    """Follows a cache. Not thread-safe. `version` goes up whenever other nodes are left out, or for other reasons."""

    def __init__(self, cache: ClusterCache) -> None:
        self.version = 0
        self._cache = cache
        self._contested: dict[str, str] = {}
        self._offering: dict[str, tuple[str, ...]] = {}
        self._annotated: dict[str, str] = {}
        self._stale: set[str] = cache.follow(NODES)
        self._stale |= {str(objects.spec_of(entry).get("nodeName")) for entry in cache.slices.values()}
        cache.listen(RESOURCE_SLICES, self._on_slice)

    def _on_slice(self, _key: str, before: Object | None, now: Object | None) -> None:
        self._stale |= {
            str(objects.spec_of(entry).get("nodeName")) for entry in (before, now) if entry is not None
        }

    def sync(self) -> None:
        """Judge again the nodes that have changed."""
        for name in self._stale:
            node, slices = self._cache.nodes.get(name), self._cache.slice_index.published(name)
            texts = sorted(one.text for one in contests(slices) if one.is_gpu)
            set_or_drop(
                self._annotated,
                name,
                objects.annotations_of(node).get(NO_GPUS, "") if node is not None else "",
            )
            before = self._contested.get(name), self._offering.get(name)
            set_or_drop(self._contested, name, "; ".join(texts))
            offered = offered_by_others(node) if node is not None else ()
            set_or_drop(self._offering, name, offered if offered and publishes_gpus(slices) else ())
            self.version += before != (self._contested.get(name), self._offering.get(name))
        self._stale.clear()

    def excluded(self, group: Group) -> dict[str, Reason]:
        """Node -> why no GPU of it is given out."""
        if not self._offering and not self._contested:
            return {}
        named = {name for claim in group.pending for name in claims_of.class_names(claim)}
        if named and named <= _OF_NICS:
            return {}
        cause = Cause.FOREIGN_DRIVER.value
        found = {name: Reason(name, None, None, cause, text) for name, text in self._contested.items()}
        for name, resources in self._offering.items():
            found.setdefault(name, Reason(name, None, None, cause, _text(name, resources)))
        return found

    def conflicts(self) -> list[DeviceConflict]:
        """To be reported on the nodes; those of other drivers are among the slice conflicts."""
        return [
            DeviceConflict(
                FOREIGN_PLUGIN, name, (self._cache.nodes[name],), f"node {name}: {_text(name, resources)}"
            )
            for name, resources in sorted(self._offering.items())
        ]

    def annotations(self) -> list[tuple[Object, str | None]]:
        """(node, what its annotation is to say; None for nothing) of nodes that say something else."""
        nodes = self._cache.nodes
        wanted = {name: text for name, text in self._contested.items() if name in nodes}
        for name, resources in self._offering.items():
            wanted.setdefault(name, _text(name, resources))
        return [
            (nodes[name], wanted.get(name))
            for name in sorted(wanted.keys() | self._annotated.keys())
            if wanted.get(name) != self._annotated.get(name)
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
