"""What a pod was given, as dialects write it: in variables of a container, in annotations of the pod."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from koordra.api import names
from koordra.compat.normalized_request import GIB, MIB

DIALECT_LABEL: Final = names.DOMAIN + "dialect"
"""Label on a template and on the claims made from it, annotation on a rewritten pod: the dialect. The node
reads the label, and gives containers the variables that the dialect's plugin used to set."""
UNIT: Final = names.DOMAIN + "memory-unit"
"""Annotation on such claims: the bytes of one unit of the dialect's memory, where that is a setting."""
_LONGEST_UNIT: Final = 18
"""Digits."""
NANOSECONDS: Final = 1_000_000_000
Variables = tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class Card:
    """A card of one request, as a container sees it: `memory` of `total` bytes."""

    minor: int
    memory: int
    total: int

    @property
    def is_share(self) -> bool:
        return self.memory < self.total


@dataclass(frozen=True, slots=True)
class Granted:
    """The cards of one request, which has some, and those of the whole pod; `unit`: bytes of a unit of the
    dialect's memory."""

    cards: Sequence[Card]
    pod: Sequence[Card]
    unit: int


@dataclass(frozen=True, slots=True)
class NodeCards:
    """A node's cards, for its labels; `product` and `memory` (MiB) are empty where the cards differ."""

    count: int
    product: str
    memory: str
    driver_version: str


@dataclass(frozen=True, slots=True)
class Device:
    """A published device as the annotations speak of it: `total` is its memory in bytes. `containers` of the
    pod have `memory` of it in bytes, `cores` in percent (0: not reserved), `share` of a NIC in percent."""

    kind: str
    uuid: str
    minor: int
    bus_id: str
    parent_bus_id: str
    parent_minor: int
    total: int
    containers: tuple[str, ...] = ()
    memory: int = 0
    cores: int = 0
    share: int = 100


@dataclass(frozen=True, slots=True)
class Allocated:
    """`containers`: all of the pod, init containers first; `app` the others alone; `at`: Unix time of the
    allocation."""

    node: str
    containers: tuple[str, ...]
    app: tuple[str, ...]
    held: tuple[Device, ...]
    at: int
    unit: int = GIB

    def gpus(self, container: str | None = None) -> list[Device]:
        """Cards and MIG instances, of one container or of all."""
        return [
            held
            for held in self.held
            if held.kind in (names.TYPE_GPU, names.TYPE_MIG)
            and (container is None or container in held.containers)
        ]

    def minors(self, container: str | None = None) -> str:
        """`0,3`"""
        return ",".join(map(str, sorted({held.minor for held in self.gpus(container)})))

    def vgpus(self, container: str) -> str:
        """`UUID,NVIDIA,MiB,cores:` for each card, as HAMi and Volcano write it."""
        return "".join(
            f"{held.uuid},NVIDIA,{held.memory // MIB},{held.cores}:" for held in self.gpus(container)
        )


def unit_of(annotations: Mapping[str, str]) -> int:
    """Bytes of one unit of memory; 0 where a claim says nothing that can be read."""
    text = annotations.get(UNIT, "")
    return int(text) if text.isascii() and text.isdigit() and len(text) <= _LONGEST_UNIT else 0


def memory_limits(granted: Granted) -> Variables:
    """The variable of the library that HAMi and Volcano have in common, for each limited card in order."""
    return tuple(
        (f"CUDA_DEVICE_MEMORY_LIMIT_{index}", f"{card.memory // MIB}m")
        for index, card in enumerate(granted.cards)
        if card.is_share
    )
