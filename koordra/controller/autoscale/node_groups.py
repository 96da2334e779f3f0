"""Groups of nodes that an autoscaler, or a person, can add to: as the operator describes them. Pure.

A new node of a group is a copy of its machine with the group's labels and taints. All of them carry the same
labels: where a label names a block, a rack or a zone, all new nodes are in that one, and a group that spans
several is described as several groups, one for each. Without such a label a new node is in no domain, and is
of no use to a gang that wants one.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from koordra.allocator.predicates import HOSTNAME
from koordra.api import objects
from koordra.api.kinds import NODES, RESOURCE_SLICES
from koordra.api.objects import Fields, Object
from koordra.controller.cache.changes import Tables

_UNSAID: Final = {"cpu": "1M", "memory": "1Pi", "ephemeral-storage": "1Pi", "pods": "110"}
"""What a node has where its group names other resources: no bound, and as many pods as a kubelet takes that
nobody told otherwise."""


@dataclass(frozen=True, slots=True)
class NodeGroup:
    """`machine`: what a node of it is, in a word; `slices`: the ResourceSlices of one, whatever their node is
    called. At most `most` nodes, with those that are there already: they are known by the group's `labels`,
    and without labels nobody is. `resources`: what a new node has for pods; CPU, memory and ephemeral storage
    that are not named are not bounded. `namespace_most`: nodes of the group that the claims of one namespace
    may have, None for all."""

    name: str
    machine: str
    slices: Sequence[Fields]
    most: int
    labels: Mapping[str, str] = field(default_factory=dict)
    taints: Sequence[Fields] = ()
    resources: Mapping[str, str] = field(default_factory=dict)
    namespace_most: int | None = None

    def there(self, cluster: Tables) -> list[str]:
        """Its nodes, by name."""
        if not self.labels:
            return []
        return [
            name
            for name, node in cluster[NODES].items()
            if self.labels.items() <= objects.labels_of(node).items()
        ]

    def called(self, number: int) -> str:
        """A new node."""
        return f"{self.name}-new-{number:04}"


def new_nodes(groups: Sequence[NodeGroup], counts: Mapping[str, int]) -> Tables:
    """So many of each, by the groups' names, with their slices."""
    nodes, slices = dict[str, Object](), dict[str, Object]()
    for group in groups:
        for number in range(counts.get(group.name, 0)):
            node, *own = node_with_slices(group.called(number), group)
            nodes[objects.name(node)] = node
            slices.update({objects.name(one): one for one in own})
    return {NODES: nodes, RESOURCE_SLICES: slices}


def node_with_slices(name: str, group: NodeGroup) -> Iterator[Object]:
    """A node of the group that is ready, and its ResourceSlices."""
    node: Object = {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": name, "uid": f"Node/{name}", "labels": {**group.labels, HOSTNAME: name}},
        "status": {"conditions": [{"type": "Ready", "status": "True"}]},
    }
    if group.taints:
        node["spec"] = {"taints": [dict(taint) for taint in group.taints]}
    if group.resources:
        node["status"]["allocatable"] = {**_UNSAID, **group.resources}
    yield node
    for at, one in enumerate(group.slices):
        pool = {**one["spec"]["pool"], "name": name}
        metadata = {"name": f"{name}-{at}", "uid": f"ResourceSlice/{name}-{at}"}
        yield {**one, "metadata": metadata, "spec": {**one["spec"], "nodeName": name, "pool": pool}}
