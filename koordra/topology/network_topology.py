"""Where a node stands in the network between nodes: zone, core, spine, block, NVLink domain; read from its
labels.

A *level* is a kind of domain, with the labels that name the node's domain on it; the first label that is
there counts. Levels are ordered from wide to narrow, and a domain is a path: two blocks of one name under
different spines are two blocks. The node itself is the last level of every path.

    zone     the availability zone
    core     top-level switches, data hall, HPC island
    spine    the switches above the blocks
    block    the nodes below one set of leaf switches (a scalable unit, a rack)
    nvlink   one NVLink domain (the rack of GB200 and GB300 machines)

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
from typing import Final

from koordra.api import names

NODE: Final = "node"
NVLINK: Final = "nvlink"


LEVELS: Final[Mapping[str, tuple[str, ...]]] = {
    "zone": ("fabric.koordra.io/zone", "topology.kubernetes.io/zone"),
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
}
"""Wide to narrow: the labels of each level. The node is always the last and is not among them."""


def position(level: str) -> int | None:
    """Of a level by name or by one of its labels; `node` is the one past the last. None: there is no such
    level."""
    if level in (NODE, "kubernetes.io/hostname"):
        return len(LEVELS)
    found = (at for at, (name, labels) in enumerate(LEVELS.items()) if level in (name, *labels))
    return next(found, None)


def domains_of(labels: Mapping[str, str]) -> tuple[str, ...]:
    """The node's domain on each level, wide to narrow; "" where no label says."""
    return tuple(
        next((labels[label] for label in known if labels.get(label)), "") for known in LEVELS.values()
    )


def trimmed(places: Mapping[str, tuple[str, ...]]) -> tuple[int, ...]:
    """Positions of the levels on which the nodes differ or which at least one node knows; the others say
    nothing."""
    columns = zip(*places.values(), strict=True)
    return tuple(at for at, domains in enumerate(columns) if any(domains))
