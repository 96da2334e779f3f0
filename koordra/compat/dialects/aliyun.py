"""Aliyun gpushare: memory in GiB (or MiB, as the plugin is set), summed over the pod's containers, on one
card.

ACK, its commercial form, also has percent of the card's compute, and pods of several cards: with the pod's
label `aliyun.com/gpu-count` each container's amounts are split evenly over so many cards, and do not divide
otherwise.

Only limits are read, and only those of ordinary containers; an init container gets what its pod has. Memory
is counted and not enforced: the container reads its part in variables and is trusted. So shares ask for no
isolation unless the settings do.
"""

from __future__ import annotations

from functools import partial
from typing import Final

from koordra.compat.dialect import (
    GIB,
    NANOSECONDS,
    Allocated,
    ContainerRequest,
    Dialect,
    Granted,
    Memory,
    NormalizedRequest,
    PodView,
    Settings,
    Share,
    Sharing,
    Variables,
    charges,
    memory_unit_section,
)

ALIYUN: Final = "aliyun"
MEMORY: Final = "aliyun.com/gpu-mem"
CORES: Final = "aliyun.com/gpu-core.percentage"
COUNT: Final = "aliyun.com/gpu-count"
"""A label of pods; under that name a node says what it has."""
_LARGEST_CARD: Final = 1 << 40


def parse(view: PodView) -> NormalizedRequest:
    cards = _cards(view)
    return NormalizedRequest(
        view.shares(partial(_share, cards=cards)),
        together=Sharing.ONE_CARD if cards == 1 else Sharing.PER_CONTAINER,
        ignores_init=True,
    )


def _cards(view: PodView) -> int:
    """Raises Refused for what ACK would not split."""
    text, field = view.labels.get(COUNT, "1"), f"{view.meta}.labels[{COUNT}]"
    if not (text.isascii() and text.isdigit() and len(text) < 4 and int(text) > 0):
        raise view.notes.refuse(field, f"{text!r} is no number of cards", "write 1 or more, in quotes")
    asking = [each.name for each in view.containers if MEMORY in each.resources or CORES in each.resources]
    if int(text) > 1 and len(asking) > 1:
        raise view.notes.refuse(
            field,
            f"splits one container over cards, and {' and '.join(asking)} ask",
            "ask in one of them, or use several pods",
        )
    return int(text)


def _share(request: ContainerRequest, *, cards: int) -> Share | None:
    units, cores = request.limit(MEMORY), request.limit(CORES) or 0
    if units is None and cores:
        raise request.refuse(CORES, "comes without memory, and asks for nothing then", f"add {MEMORY}")
    if units is None:
        return None
    for name, amount in ((MEMORY, units), (CORES, cores)):
        if amount % cards:
            raise request.refuse(
                name, f"{amount} is not divisible by {cards} cards", f"write a multiple of {cards}"
            )
    if cores > 100 * cards:
        raise request.refuse(CORES, f"{cores} is more than {cards} cards have", "write 1 to 100 a card")
    unit = _unit(request.pod.settings)
    if units * unit >= _LARGEST_CARD and unit == GIB:
        request.warn(
            MEMORY,
            f"{units}GiB is more than any card has",
            "is the unit MiB? say so: aliyun: {memoryUnit: MiB}",
        )
    return request.share(
        cards if units else 0,
        memory=Memory(bytes=units // cards * unit),
        cores=cores // cards,
        limited_by=request.name(CORES),
    )


def _unit(settings: Settings) -> int:
    return int(settings.option(ALIYUN, "memoryUnit", GIB))


def _environment(granted: Granted) -> Variables:
    first = granted.cards[0]
    return (
        ("ALIYUN_COM_GPU_MEM_IDX", str(first.minor)),
        ("ALIYUN_COM_GPU_MEM_POD", str(sum(card.memory for card in granted.pod) // granted.unit)),
        ("ALIYUN_COM_GPU_MEM_CONTAINER", str(sum(card.memory for card in granted.cards) // granted.unit)),
        ("ALIYUN_COM_GPU_MEM_DEV", str(first.total // granted.unit)),
    )


def _annotations(found: Allocated) -> dict[str, str]:
    cards = {held.minor: held for held in found.gpus()}
    if len(cards) != 1:
        return {}
    ((index, card),) = cards.items()
    return {
        "ALIYUN_COM_GPU_MEM_IDX": str(index),
        "ALIYUN_COM_GPU_MEM_POD": str(sum(held.memory for held in found.gpus()) // found.unit),
        "ALIYUN_COM_GPU_MEM_DEV": str(card.total // found.unit),
        "ALIYUN_COM_GPU_MEM_ASSIGNED": "true",
        "ALIYUN_COM_GPU_MEM_ASSUME_TIME": str(found.at * NANOSECONDS),
    }


DIALECT: Final = Dialect(
    ALIYUN,
    "Aliyun gpushare",
    parse,
    {MEMORY: charges.memory_in(_unit), CORES: charges.cores, COUNT: None},
    annotations=("aliyun.com/gpu-*",),
    labels=(COUNT,),
    written=(
        "ALIYUN_COM_GPU_MEM_IDX",
        "ALIYUN_COM_GPU_MEM_POD",
        "ALIYUN_COM_GPU_MEM_DEV",
        "ALIYUN_COM_GPU_MEM_ASSIGNED",
        "ALIYUN_COM_GPU_MEM_ASSUME_TIME",
        "ALIYUN_COM_GPU_MEM_ASSIGN_TIME",
        "scheduler.framework.gpushare.allocation",
    ),
    provided_variables=("ALIYUN_COM_GPU_MEM_",),
    environment=_environment,
    allocation_annotations=_annotations,
    memory_unit=_unit,
    node_labels={
        "aliyun.accelerator/nvidia_name": lambda cards: cards.product,
        "aliyun.accelerator/nvidia_count": lambda cards: str(cards.count),
        "aliyun.accelerator/nvidia_mem": lambda cards: f"{cards.memory}MiB" if cards.memory else "",
    },
    publishers=(("aliyun.com/gpu-", "Aliyun's gpushare device plugin"),),
    schedulers={"gpushare-scheduler": True},
    like_resources=("aliyun.com/gpu",),
    domains=("aliyun.com/", "alibabacloud.com/"),
    sections={ALIYUN: memory_unit_section},
)
