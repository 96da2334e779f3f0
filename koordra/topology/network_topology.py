"""Where a node stands in the network between nodes: zone, core, spine, block, NVLink domain; read from its labels.

A *level* is a kind of domain, with the labels that name the node's domain on it; the first label that is there counts. Levels
are ordered from wide to narrow, and a domain is a path: two blocks of one name under different spines are two blocks. The node
itself is the last level of every path.

    zone     the availability zone
    core     top-level switches, data hall, HPC island
    spine    the switches above the blocks
    block    the nodes below one set of leaf switches (a scalable unit, a rack)
    nvlink   one NVLink domain (the rack of GB200 and GB300 machines)

Without configuration these are the labels that koordra, NVIDIA topograph (both families), the GPU operator, AWS, GKE and OCI
write. AWS numbers its layers from the widest: layer 1 is farthest from the node. Azure writes none of its own; topograph does there.

Nodes without a label of some level are in one domain without a name there. That is no domain of a *required* level: what is not
known cannot be promised.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from koordra.errors import InvalidManifest

NODE: Final = "node"
NVLINK: Final = "nvlink"

_NVIDIA: Final = "network.topology.nvidia.com/"
_FABRIC: Final = "fabric.topograph.run/tier-"
_ACCELERATOR: Final = "accelerator.topograph.run/"
_AWS: Final = "topology.k8s.aws/network-node-layer-"
_OCI: Final = "oci.oraclecloud.com/rdma."
_GKE: Final = "cloud.google.com/gce-topology-"
_OWN: Final = "fabric.koordra.io/"


@dataclass(frozen=True, slots=True)
class NetworkLevel:
    name: str
    labels: tuple[str, ...]


DEFAULT_LEVELS: Final = (
    NetworkLevel("zone", (_OWN + "zone", "topology.kubernetes.io/zone")),
    NetworkLevel(
        "core",
        (
            _OWN + "core",
            _NVIDIA + "core",
            _NVIDIA + "datacenter",
            _FABRIC + "2",
            _AWS + "1",
            _OCI + "hpc_island_id",
        ),
    ),
    NetworkLevel(
        "spine",
        (
            _OWN + "spine",
            _NVIDIA + "spine",
            _FABRIC + "1",
            _AWS + "2",
            _OCI + "network_block_id",
            _GKE + "block",
        ),
    ),
    NetworkLevel(
        "block",
        (
            _OWN + "block",
            _NVIDIA + "leaf",
            _NVIDIA + "block",
            _FABRIC + "0",
            _AWS + "3",
            _OCI + "local_block_id",
            _GKE + "subblock",
        ),
    ),
    NetworkLevel(
        NVLINK,
        (
            _OWN + "nvlink",
            "nvidia.com/gpu.clique",
            _NVIDIA + "accelerator",
            _ACCELERATOR + "domain",
        ),
    ),
)


@dataclass(frozen=True, slots=True)
class NetworkLevels:
    """The levels, wide to narrow. `node` is always the last and is not in the list."""

    levels: tuple[NetworkLevel, ...] = DEFAULT_LEVELS

    @classmethod
    def of(cls, entries: Sequence[Mapping[str, Any]]) -> NetworkLevels:
        """From a configuration: `[{name: block, labels: [example.com/rack]}, ...]`, wide to narrow; a Kueue Topology's
        `spec.levels` (`[{nodeLabel: ...}, ...]`) is understood too. Raises InvalidManifest."""
        found = []
        for index, entry in enumerate(entries):
            labels = entry.get("labels") or [entry.get("nodeLabel")]
            if labels == [None] or not all(isinstance(label, str) and label for label in labels):
                raise InvalidManifest(
                    "names no label",
                    object="fabric levels",
                    field=f"levels[{index}]",
                    remedy="give labels: [...] or nodeLabel",
                )
            if labels == ["kubernetes.io/hostname"]:
                continue  # the node, which is always the last
            found.append(NetworkLevel(str(entry.get("name") or labels[0].rpartition("/")[2]), tuple(labels)))
        if len({level.name for level in found} | {NODE}) != len(found) + 1:
            raise InvalidManifest("name a level twice (node is always there)", object="fabric levels")
        return cls(tuple(found))

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(level.name for level in self.levels)

    def position(self, level: str) -> int | None:
        """Of a level by name or by one of its labels; `node` is the one past the last. None: there is no such level."""
        if level in (NODE, "kubernetes.io/hostname"):
            return len(self.levels)
        found = (at for at, known in enumerate(self.levels) if level in (known.name, *known.labels))
        return next(found, None)

    def place(self, labels: Mapping[str, str]) -> tuple[str, ...]:
        """The node's domain on each level, wide to narrow; "" where no label says."""
        return tuple(
            next((labels[label] for label in level.labels if labels.get(label)), "") for level in self.levels
        )


def trimmed(places: Mapping[str, tuple[str, ...]]) -> tuple[int, ...]:
    """Positions of the levels on which the nodes differ or which at least one node knows; the others say nothing."""
    columns = zip(*places.values(), strict=True)
    return tuple(at for at, domains in enumerate(columns) if any(domains))
