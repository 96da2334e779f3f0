"""Koordinator's arithmetic: from what the containers ask for to devices and what is taken of each.

    1. webhook   per container: `gpu: q` is core q and ratio q; without gpu.shared one is added: ratio/100, or
                 core/100, where that is a whole number above 1, else 1
    2. pod       containers and sidecars summed, or the largest init container, name by name
    3. validate  one of the combinations of names below; above 100 only multiples of 100; with gpu.shared n
                 every percentage is a multiple of n and at most 100 n
    4. convert   whole cards of a vendor and `gpu` become core and ratio
    5. split     n cards (gpu.shared, or ratio/100), every amount divided by n. Shared is what asks for bytes
                 or for less than the whole ratio
    6. NICs      above 100: q/100 devices at 100; else by strategy: every device at q, or q devices at 1 (at
                 100 where they are exclusive), or one device at q

Source of the rules: koordinator pkg/webhook/pod and pkg/scheduler/plugins/deviceshare; proven on upstream's
own cases.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

NVIDIA: Final = "nvidia.com/gpu"
AMD: Final = "amd.com/gpu"
DCU: Final = "dcu.com/gpu"
GPU: Final = "koordinator.sh/gpu"
CORE: Final = "koordinator.sh/gpu-core"
MEMORY: Final = "koordinator.sh/gpu-memory"
RATIO: Final = "koordinator.sh/gpu-memory-ratio"
SHARED: Final = "koordinator.sh/gpu.shared"
RDMA: Final = "koordinator.sh/rdma"
FPGA: Final = "koordinator.sh/fpga"
NPU_CORE: Final = "huawei.com/npu-core"
NPU_CPU: Final = "huawei.com/npu-cpu"
NPU_DVPP: Final = "huawei.com/npu-dvpp"

COMBINATIONS: Final = frozenset(
    map(
        frozenset,
        (
            (NVIDIA,),
            (AMD,),
            (DCU,),
            (GPU,),
            (MEMORY,),
            (RATIO,),
            (CORE, MEMORY),
            (CORE, RATIO),
            (NPU_CORE, RATIO),
            (SHARED, MEMORY),
            (SHARED, RATIO),
            (SHARED, CORE, MEMORY),
            (SHARED, CORE, RATIO),
            (SHARED, NPU_CORE, NPU_CPU, MEMORY),
            (SHARED, NPU_CORE, NPU_CPU, NPU_DVPP, MEMORY),
            (RDMA,),
            (FPGA,),
        ),
    )
)
"""Names that may stand together."""

_PERCENTAGES: Final = (GPU, CORE, RATIO, RDMA, FPGA)

Amounts = Mapping[str, int]


@dataclass(frozen=True, slots=True)
class Split:
    """`count` cards and `each` of them; `shared`: others may be on the card too."""

    count: int
    each: Amounts
    shared: bool


def completed(container: Amounts) -> dict[str, int]:
    """A container's amounts as the mutating webhook leaves them."""
    found = dict(container)
    if not set(found) & {GPU, CORE, MEMORY, RATIO, SHARED}:
        return found
    if GPU in found:
        found[CORE] = found[RATIO] = found.pop(GPU)
    if SHARED not in found:
        found[SHARED] = _cards_in(found[RATIO] if RATIO in found else found.get(CORE, 0))
    return found


def _cards_in(percent: int) -> int:
    return percent // 100 if percent > 100 and percent % 100 == 0 else 1


def of_pod(
    containers: Sequence[Amounts],
    sidecars: Sequence[tuple[int, Amounts]],
    inits: Sequence[tuple[int, Amounts]],
) -> dict[str, int]:
    """What the pod asks for; sidecars and init containers come with their position. Zeros are left out."""
    found = _sum([*containers, *(amounts for _, amounts in sidecars)])
    for at, amounts in inits:
        found |= _sum([amounts, *(other for position, other in sidecars if position < at)])  # the larger
    return {name: amount for name, amount in found.items() if amount}


def _sum(parts: Sequence[Amounts]) -> Counter[str]:
    total: Counter[str] = Counter()
    for part in parts:
        total.update(part)
    return total


def problem_of(request: Amounts) -> tuple[str, str] | None:
    """(name, what is wrong) where Koordinator would turn the request for one type of device down."""
    if not request:
        return "", "asks for nothing"
    if frozenset(request) not in COMBINATIONS:
        together = ", ".join(sorted(request))
        return min(request), f"{together} do not stand together in Koordinator"
    if SHARED not in request:
        for name in _PERCENTAGES:
            if request.get(name, 0) > 100 and request[name] % 100:
                return name, f"{request[name]} is above 100 and no multiple of it"
        return None
    shared = request[SHARED]
    if NPU_CORE in request:
        if shared > 1:
            return SHARED, f"{shared}: a virtual NPU is of one card"
        return (NPU_DVPP, f"{request[NPU_DVPP]} is above 100") if request.get(NPU_DVPP, 0) > 100 else None
    for name in (CORE, RATIO):
        amount = request.get(name, 0)
        if amount % shared or amount // shared > 100:
            return name, f"{amount} cannot be split over {shared} {'card' if shared == 1 else 'cards'}"
    return None


def converted(request: Amounts) -> dict[str, int]:
    """The request in cores and ratios. It has to be a valid one."""
    for name in (NVIDIA, AMD, DCU):
        if name in request:
            return {CORE: 100 * request[name], RATIO: 100 * request[name]}
    if GPU in request:
        return {CORE: request[GPU], RATIO: request[GPU]}
    return dict(request)


def split(request: Amounts) -> Split:
    """A converted request, card by card."""
    count = request.get(SHARED) or _cards_in(request.get(RATIO, 0))
    each = {name: amount // count for name, amount in request.items() if name != SHARED}
    return Split(count, each, MEMORY in each or each.get(RATIO, 100) < 100)


ALL: Final = -1
"""Every device that matches."""


def nics(amount: int, strategy: str = "", *, exclusive: bool = False) -> tuple[int, int]:
    """(number of devices, percent of each) that an amount of rdma or fpga is; ALL for every device."""
    if amount > 100:
        return amount // 100, 100
    if strategy == "ApplyForAll":
        return ALL, amount
    if strategy == "RequestsAsCount":
        return amount, 100 if exclusive else 1
    return 1, amount
