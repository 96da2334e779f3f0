"""Node labels that removed GPU stacks used to publish, so that nodeSelectors of unchanged pods keep matching.

    machine ──> labels_of: the labels of GPU feature discovery and of the dialects (koordra.compat) (pure)
    node    ──> change: what of them is to be written (pure)         ──> one patch, conditional on the Node's version

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
from koordra.errors import ApiError, Conflict
from koordra.kube import KubeClient
from koordra.kubelet_plugin.publish.node_slices import label_value
from koordra.kubelet_plugin.wakeable import Pause, Wakeable
from koordra.logs import get_logger
from koordra.topology.machine import Machine

log = get_logger(__name__)

OURS: Final = names.DOMAIN + "legacy-node-labels"
"""Annotation on the Node: JSON, the labels that koordra wrote and their values."""
MIB: Final = 1 << 20
INTERVAL: Final = 300.0

KEYS: Final = (
    "nvidia.com/gpu.product",
    "nvidia.com/gpu.count",
    "nvidia.com/gpu.memory",
    "nvidia.com/gpu.family",
    "nvidia.com/gpu.compute.major",
    "nvidia.com/gpu.compute.minor",
    "nvidia.com/mig.capable",
    "nvidia.com/cuda.driver.major",
    "nvidia.com/cuda.driver.minor",
    "nvidia.com/cuda.driver.rev",
    "nvidia.com/cuda.driver-version.major",
    "nvidia.com/cuda.driver-version.minor",
    "nvidia.com/cuda.driver-version.revision",
    "nvidia.com/cuda.driver-version.full",
    "nvidia.com/cuda.runtime.major",
    "nvidia.com/cuda.runtime.minor",
    "nvidia.com/cuda.runtime-version.major",
    "nvidia.com/cuda.runtime-version.minor",
    "nvidia.com/cuda.runtime-version.full",
    *(label for dialect in DIALECTS for label in dialect.node_labels),
)
"""Every label that may be written; the admission policy koordra-own-node-labels has the same list."""


@dataclass(frozen=True, slots=True)
class Change:
    """`set` and `remove` are labels; `ours` what the annotation says afterwards; `foreign`: wanted, but owned
    by others."""

    set: Mapping[str, str]
    remove: tuple[str, ...]
    ours: Mapping[str, str]
    foreign: tuple[str, ...]


def labels_of(machine: Machine) -> dict[str, str]:
    cards = [gpu for gpu in machine.gpus if gpu.certain]
    if not cards:
        return {}
    product = _same(gpu.product_name for gpu in cards)
    memory = _same(gpu.memory_bytes and gpu.memory_bytes // MIB for gpu in cards)
    family = _same(gpu.architecture for gpu in cards)
    compute = _same(gpu.compute_capability for gpu in cards)
    driver, count = machine.driver_version or "", str(len(cards))
    capable = any(gpu.mig_enabled is not None for gpu in cards)
    major, _, minor = compute.partition(".")
    found = {
        "nvidia.com/gpu.count": count,
        "nvidia.com/mig.capable": str(capable).lower(),
        "nvidia.com/gpu.product": product,
        "nvidia.com/gpu.memory": memory,
        "nvidia.com/gpu.family": family.lower(),
        "nvidia.com/gpu.compute.major": major,
        "nvidia.com/gpu.compute.minor": minor or ("0" if major else ""),
    }
    summary = NodeCards(len(cards), product, memory, driver)
    found |= {
        label: value_of(summary) for dialect in DIALECTS for label, value_of in dialect.node_labels.items()
    }
    found |= _driver(driver) | _runtime(machine.cuda_version)
    return {key: value for key in KEYS if (value := label_value(found.get(key, "")))}


def change(node: Object, wanted: Mapping[str, str]) -> Change:
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
    return Change(
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
        retry: float = 5.0,
    ) -> None:
        super().__init__()
        self._client = client
        self._node = node
        self._machine = machine
        self._retry = retry
        self._foreign: tuple[str, ...] = ()

    gather = 0.05

    def step(self) -> Pause:
        try:
            self.sync()
        except Conflict:
            return Pause(0.0, 0.5)
        except ApiError as error:
            log.warning("node_labels_not_written", node=self._node, error=str(error))
            return Pause(0.0, self._retry)
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


def _driver(version: str) -> dict[str, str]:
    if not version:
        return {}
    found = {"nvidia.com/cuda.driver-version.full": version}
    words = ("major", "major"), ("minor", "minor"), ("rev", "revision")
    for (old, new), part in zip(words, [*version.split("."), "", ""], strict=False):
        found |= {f"nvidia.com/cuda.driver.{old}": part, f"nvidia.com/cuda.driver-version.{new}": part}
    return found


def _runtime(number: int | None) -> dict[str, str]:
    """NVML's number: 12040 is CUDA 12.4."""
    if not number:
        return {}
    major, minor = str(number // 1000), str(number % 1000 // 10)
    found = {"nvidia.com/cuda.runtime-version.full": f"{major}.{minor}"}
    for kind in ("runtime", "runtime-version"):
        found |= {f"nvidia.com/cuda.{kind}.major": major, f"nvidia.com/cuda.{kind}.minor": minor}
    return found
