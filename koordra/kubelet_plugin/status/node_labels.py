"""Node labels that removed GPU stacks used to publish, so that nodeSelectors of unchanged pods keep matching.

    machine ──> labels_of: the labels of GPU feature discovery and of the dialects (koordra.compat) (pure)
    node    ──> change: what of them is to be written (pure) ──> one patch, conditional on the Node's version

Only cards that koordra offers count. A value that differs between the cards of a node is left out, except the
number of cards. Labels that start or configure programs of those stacks (`gpu=on`, `gpushare=true`,
`nvidia.com/gpu.present`, `koordinator.sh/gpu-isolation-provider`, ...) are never written.

Labels of others are never overwritten or removed. The annotation koordra.io/legacy-node-labels on the Node
lists koordra's labels with their values: a label that is not in it, or has another value by now, is owned by
others.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from koordra.api import kinds, names, objects
from koordra.api.objects import Object
from koordra.compat.dialect.allocation import NodeCards
from koordra.compat.dialects import DIALECTS
from koordra.errors import Conflict
from koordra.kube.client import KubeClient
from koordra.kubelet_plugin.publish.node_slices import label_value
from koordra.logs import get_logger
from koordra.process.wakeable import Pause, Wakeable
from koordra.topology.fabrics import clique
from koordra.topology.machine import Machine

log = get_logger(__name__)

OURS: Final = names.DOMAIN + "legacy-node-labels"
"""Annotation on the Node: JSON, the labels that koordra wrote and their values."""
MIB: Final = 1 << 20
INTERVAL: Final = 1800.0
"""Seconds without an event; every change of the Node is one."""


@dataclass(frozen=True, slots=True)
class LabelChange:
    """`set` and `remove` are labels; `ours` what the annotation says afterwards; `foreign`: wanted, but owned
    by others."""

    set: Mapping[str, str]
    remove: tuple[str, ...]
    ours: Mapping[str, str]
    foreign: tuple[str, ...]


def labels_of(machine: Machine) -> dict[str, str]:
    found = _values(machine)
    return {key: label for key, value in found.items() if (label := label_value(value))}


def _values(machine: Machine) -> dict[str, str]:
    """Every label that may be written, with an empty value for what is not known; all are empty for a node
    without cards."""
    cards = [gpu for gpu in machine.gpus if gpu.certain]
    product = _same(gpu.product_name for gpu in cards)
    memory = _same(gpu.memory_bytes and gpu.memory_bytes // MIB for gpu in cards)
    compute_major, _, compute_minor = _same(gpu.compute_capability for gpu in cards).partition(".")
    driver, cuda = machine.driver_version or "", machine.cuda_version or 0
    major, minor, revision, *_ = *driver.split("."), "", ""
    # NVML's number: 12040 is CUDA 12.4.
    runtime = (str(cuda // 1000), str(cuda % 1000 // 10)) if cuda else ("", "")
    summary = NodeCards(len(cards), product, memory, driver)
    found = {
        "nvidia.com/gpu.product": product,
        "nvidia.com/gpu.count": str(len(cards)),
        "nvidia.com/gpu.memory": memory,
        "nvidia.com/gpu.family": _same(gpu.architecture for gpu in cards).lower(),
        "nvidia.com/gpu.compute.major": compute_major,
        "nvidia.com/gpu.compute.minor": compute_minor or ("0" if compute_major else ""),
        "nvidia.com/gpu.clique": clique(machine) or "",
        "nvidia.com/mig.capable": str(any(gpu.mig_enabled is not None for gpu in cards)).lower(),
        "nvidia.com/cuda.driver.major": major,
        "nvidia.com/cuda.driver.minor": minor,
        "nvidia.com/cuda.driver.rev": revision,
        "nvidia.com/cuda.driver-version.major": major,
        "nvidia.com/cuda.driver-version.minor": minor,
        "nvidia.com/cuda.driver-version.revision": revision,
        "nvidia.com/cuda.driver-version.full": driver,
        "nvidia.com/cuda.runtime.major": runtime[0],
        "nvidia.com/cuda.runtime.minor": runtime[1],
        "nvidia.com/cuda.runtime-version.major": runtime[0],
        "nvidia.com/cuda.runtime-version.minor": runtime[1],
        "nvidia.com/cuda.runtime-version.full": ".".join(filter(None, runtime)),
        **{label: value(summary) for dialect in DIALECTS for label, value in dialect.node_labels.items()},
    }
    return found if cards else dict.fromkeys(found, "")


def change(node: Object, wanted: Mapping[str, str]) -> LabelChange:
    """The change that gives the Node the wanted labels, except those owned by others."""
    there, recorded = objects.labels_of(node), recorded_on(node)
    mine = {key: value for key, value in recorded.items() if there.get(key) == value}
    foreign = tuple(
        key for key, value in wanted.items() if key in there and key not in mine and there[key] != value
    )
    setting = {
        key: value
        for key, value in wanted.items()
        if (key in mine or key not in there) and there.get(key) != value
    }
    return LabelChange(
        setting,
        tuple(key for key in mine if key not in wanted),
        {key: value for key, value in wanted.items() if key in mine or key in setting},
        foreign,
    )


def recorded_on(node: Object) -> dict[str, str]:
    """The labels in the annotation; an unreadable one counts as empty, and keys that koordra never writes are
    ignored."""
    try:
        found = json.loads(objects.annotations_of(node).get(OURS) or "{}")
    except ValueError:
        return {}
    if not isinstance(found, dict):
        return {}
    return {key: str(value) for key, value in found.items() if key in KEYS}


class NodeLabels(Wakeable):
    def __init__(
        self,
        client: KubeClient,
        *,
        node: str,
        machine: Callable[[], Machine],
    ) -> None:
        super().__init__()
        self._client = client
        self._node = node
        self._machine = machine
        self._foreign: tuple[str, ...] = ()

    gather = 0.05

    failed = "node_labels_not_written"

    def step(self) -> Pause | None:
        try:
            self.sync()
        except Conflict:
            return None
        return Pause(0.0, INTERVAL)

    def sync(self) -> bool:
        """Whether something was written. Raises ApiError."""
        node = self._client.get(kinds.NODES, self._node)
        found = change(node, labels_of(self._machine()))
        if found.foreign != self._foreign:
            self._foreign = found.foreign
            if found.foreign:
                log.warning(
                    "node_labels_owned_by_others",
                    node=self._node,
                    labels=", ".join(found.foreign),
                    remedy="stop what writes them, and delete them; koordra does not overwrite labels of others",
                )
        if not found.set and not found.remove and found.ours == recorded_on(node):
            return False
        record = json.dumps(found.ours, sort_keys=True, separators=(",", ":")) if found.ours else None
        metadata = {
            "uid": objects.uid(node),
            "resourceVersion": objects.resource_version(node),
            "labels": {**found.set, **dict.fromkeys(found.remove)},
            "annotations": {OURS: record},
        }
        self._client.patch(kinds.NODES, self._node, {"metadata": metadata})
        log.info("node_labels_written", node=self._node, labels=len(found.ours))
        return True


def _same(values: Iterable[object]) -> str:
    """The value that all cards share; empty if they differ or one is unknown."""
    found = {str(value) if value else "" for value in values}
    return found.pop() if len(found) == 1 else ""


KEYS: Final = tuple(_values(Machine()))
"""Every label that may be written; the admission policy koordra-own-node-labels has the same list."""
