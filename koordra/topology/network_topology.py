"""Where a node stands in the network between nodes: zone, core, spine, block, NVLink domain; read from its
labels.

A *level* is a kind of domain, with the labels that name the node's domain on it; the first label that is
there counts. Levels are ordered from wide to narrow, and a domain is a path: two blocks of one name under
different spines are two blocks. The node itself is the last level of every path.

Which levels there are is the cluster's own matter (`Levels` is a value). Where nobody says, they are these:

    zone              the availability zone
    super-core        the switches above the core, where there are such
    core              top-level switches, data hall, HPC island
    spine             the switches above the blocks
    block             the nodes below one set of leaf switches (a scalable unit, a rack)
    nvlink            one NVLink domain (the rack of GB200 and GB300 machines)
    nvlink-partition  a part of it, where it is divided

The NVLink domain needs no label: nodes publish the clique that NVML reads with their GPUs, and it counts as a
label `koordra.io/clique` of the node.

The others are the labels that koordra, NVIDIA topograph (both families), the GPU operator, AWS, GKE and OCI
write. AWS numbers its layers from the widest: layer 1 is farthest from the node. Azure writes none of its
own; topograph does there.

Nodes without a label of some level are in one domain without a name there. That is no domain of a *required*
level: what is not known cannot be promised.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from koordra.api import names

NODE: Final = "node"
NVLINK: Final = "nvlink"


LEVELS: Final[Mapping[str, tuple[str, ...]]] = {
    "zone": ("fabric.koordra.io/zone", "topology.kubernetes.io/zone"),
    "super-core": ("fabric.koordra.io/super-core", "fabric.topograph.run/tier-3"),
    "core": (
        "fabric.koordra.io/core",
        "network.topology.nvidia.com/core",
        "network.topology.nvidia.com/datacenter",
        "fabric.topograph.run/tier-2",
        "topology.k8s.aws/network-node-layer-1",
        "oci.oraclecloud.com/rdma.hpc_island_id",
    ),
    "spine": (
        "fabric.koordra.io/spine",
        "network.topology.nvidia.com/spine",
        "fabric.topograph.run/tier-1",
        "topology.k8s.aws/network-node-layer-2",
        "oci.oraclecloud.com/rdma.network_block_id",
        "cloud.google.com/gce-topology-block",
    ),
    "block": (
        "fabric.koordra.io/block",
        "network.topology.nvidia.com/leaf",
        "network.topology.nvidia.com/block",
        "fabric.topograph.run/tier-0",
        "topology.k8s.aws/network-node-layer-3",
        "oci.oraclecloud.com/rdma.local_block_id",
        "cloud.google.com/gce-topology-subblock",
    ),
    NVLINK: (
        "fabric.koordra.io/nvlink",
        names.ATTR_CLIQUE,
        "nvidia.com/gpu.clique",
        "network.topology.nvidia.com/accelerator",
        "accelerator.topograph.run/domain",
    ),
    "nvlink-partition": ("fabric.koordra.io/nvlink-partition", "accelerator.topograph.run/sub-domain"),
}
"""Wide to narrow: the labels of each level, as they are found where nobody says what the levels are. The node
is always the last and is not among them."""

NODE_WORDS: Final = frozenset({NODE, "kubernetes.io/hostname"})


@dataclass(frozen=True, slots=True)
class Level:
    """`labels` name a node's domain, the first that is there counts. `nodes`: domains by node, where labels
    do not say it. `is_spared`: domains that nobody uses are better not begun where another way is as good."""

    name: str
    labels: tuple[str, ...] = ()
    nodes: Mapping[str, str] = field(default_factory=dict)
    is_spared: bool = False

    @property
    def words(self) -> tuple[str, ...]:
        """By which it is asked for."""
        return self.name, *self.labels


@dataclass(frozen=True, slots=True)
class Levels:
    """The levels of a cluster, wide to narrow. `source` says for people who ordered them so; `node_words`:
    what the node itself is called as a level."""

    levels: tuple[Level, ...]
    source: str = ""
    node_words: frozenset[str] = NODE_WORDS

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(level.name for level in self.levels)

    def position(self, word: str) -> int | None:
        """Of a level by name or by one of its labels; the node is the one past the last. None: there is no
        such level."""
        if word in self.node_words:
            return len(self.levels)
        return next((at for at, level in enumerate(self.levels) if word in level.words), None)

    def paths(self, nodes: Mapping[str, Mapping[str, str]]) -> dict[str, tuple[str, ...]]:
        """Every node's domain on each level; "" where nothing says. `nodes`: labels by node."""
        present = set[str]().union(*nodes.values())
        columns = []
        for level in self.levels:
            labels = [label for label in level.labels if label in present]
            if level.nodes:
                columns.append([level.nodes.get(name, "") for name in nodes])
            elif len(labels) == 1:
                columns.append([own.get(labels[0], "") for own in nodes.values()])
            else:
                columns.append(
                    [next((own[label] for label in labels if own.get(label)), "") for own in nodes.values()]
                )
        return dict(zip(nodes, zip(*columns, strict=True) if columns else [()] * len(nodes), strict=True))


_SPARED: Final = ("block", NVLINK, "nvlink-partition")
DISCOVERED: Final = Levels(
    tuple(Level(name, labels, is_spared=name in _SPARED) for name, labels in LEVELS.items())
)
"""What koordra finds by itself."""


def trimmed(places: Mapping[str, tuple[str, ...]]) -> tuple[int, ...]:
    """Positions of the levels that at least one node knows; the others say nothing."""
    columns = zip(*places.values(), strict=True)
    return tuple(at for at, domains in enumerate(columns) if any(domains))
