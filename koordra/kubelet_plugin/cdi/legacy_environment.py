"""Variables that other stacks' device plugins set, for applications that read them. Pure.

The claim's label koordra.io/dialect says for which stack its pod was written. The values are those of the
allocation: the request's share of each of its cards, in the units of that stack.

    hami, volcano-vgpu   CUDA_DEVICE_MEMORY_LIMIT_<i>=<MiB>m for each limited card in order; CUDA_DEVICE_SM_LIMIT=<percent of the first>
    koordinator          CUDA_DEVICE_MEMORY_LIMIT=<bytes of the first>, CUDA_DEVICE_SM_LIMIT=<percent of the first>, where it is a share
    aliyun               ALIYUN_COM_GPU_MEM_IDX=<minor>, _POD=<units of the pod>, _CONTAINER=<units of the container>, _DEV=<units of the card>
    volcano-gpu          VOLCANO_GPU_ALLOCATED=<MiB>, VOLCANO_GPU_MEMORY_TOTAL=<MiB of the card>
    alnair               ALNAIR_VGPU_COMPUTE_PERCENTILE=<percent>

They are informational: the isolation backend enforces the share and reads none of them, so a user who sets
the label or the variables gains nothing. MIG instances get none, since their limit is in hardware.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from koordra.api import names
from koordra.kubelet_plugin.claims.claim_record import ClaimRecord, DeviceRecord
from koordra.kubelet_plugin.claims.container_edits import NO_EDITS, ContainerEdits
from koordra.kubelet_plugin.publish.inventory import Inventory
from koordra.quantity import parse

DIALECT: Final = names.DOMAIN + "dialect"
UNIT: Final = names.DOMAIN + "memory-unit"
_MIB: Final = 1 << 20
_GIB: Final = 1 << 30

Variables = tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class _Card:
    """A card of one request: `memory` of `total` bytes."""

    minor: int
    memory: int
    total: int

    @property
    def is_share(self) -> bool:
        return self.memory < self.total


def legacy_edits(
    record: ClaimRecord, *, labels: Mapping[str, str], annotations: Mapping[str, str], inventory: Inventory
) -> tuple[ContainerEdits, ...]:
    """The edits of each device of the claim; empty for a claim without a dialect."""
    render = _DIALECTS.get(labels.get(DIALECT, ""))
    if render is None:
        return (NO_EDITS,) * len(record.devices)
    cards: dict[str, list[_Card]] = {}
    for device in record.devices:
        found = _card(device, inventory)
        if found is not None:
            cards.setdefault(_request(device), []).append(found)
    unit = _unit(annotations)
    pod = [card for listed in cards.values() for card in listed]
    variables = {request: ContainerEdits(env=render(listed, pod, unit)) for request, listed in cards.items()}
    return tuple(
        variables.get(_request(device), NO_EDITS) if device.type == names.TYPE_GPU else NO_EDITS
        for device in record.devices
    )


def _request(device: DeviceRecord) -> str:
    return device.request.partition("/")[0]


def _card(device: DeviceRecord, inventory: Inventory) -> _Card | None:
    published = inventory.published.get(device.device)
    if device.type != names.TYPE_GPU or device.admin_access or published is None:
        return None
    capacity = published.capacity.get(names.CAPACITY_MEMORY)
    total = int(capacity.value) if capacity else 0
    consumed = dict(device.consumed) if device.share_id else {}
    memory = int(parse(consumed[names.CAPACITY_MEMORY])) if names.CAPACITY_MEMORY in consumed else total
    minor = inventory.attributes(device.device).get(names.ATTR_MINOR)
    return _Card(
        minor=minor if isinstance(minor, int) else -1,
        memory=memory,
        total=total,
    )


def _unit(annotations: Mapping[str, str]) -> int:
    said = annotations.get(UNIT, "")
    return int(said) if said in (str(_MIB), str(_GIB)) else _GIB


def _vgpu(cards: Sequence[_Card], _pod: Sequence[_Card], _unit: int) -> Variables:
    return tuple(
        (f"CUDA_DEVICE_MEMORY_LIMIT_{index}", f"{card.memory // _MIB}m")
        for index, card in enumerate(cards)
        if card.is_share
    )


def _koordinator(cards: Sequence[_Card], _pod: Sequence[_Card], _unit: int) -> Variables:
    first = cards[0]
    return (("CUDA_DEVICE_MEMORY_LIMIT", str(first.memory)),) if first.is_share else ()


def _aliyun(cards: Sequence[_Card], pod: Sequence[_Card], unit: int) -> Variables:
    return (
        ("ALIYUN_COM_GPU_MEM_IDX", str(cards[0].minor)),
        ("ALIYUN_COM_GPU_MEM_POD", str(sum(card.memory for card in pod) // unit)),
        ("ALIYUN_COM_GPU_MEM_CONTAINER", str(sum(card.memory for card in cards) // unit)),
        ("ALIYUN_COM_GPU_MEM_DEV", str(cards[0].total // unit)),
    )


def _volcano(cards: Sequence[_Card], _pod: Sequence[_Card], _unit: int) -> Variables:
    if not cards[0].is_share:
        return ()
    return (
        ("VOLCANO_GPU_ALLOCATED", str(cards[0].memory // _MIB)),
        ("VOLCANO_GPU_MEMORY_TOTAL", str(cards[0].total // _MIB)),
    )


_DIALECTS: Final[Mapping[str, Callable[[Sequence[_Card], Sequence[_Card], int], Variables]]] = {
    "hami": _vgpu,
    "volcano-vgpu": _vgpu,
    "koordinator": _koordinator,
    "aliyun": _aliyun,
    "volcano-gpu": _volcano,
}
