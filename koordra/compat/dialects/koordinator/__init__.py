"""Koordinator: the pod's containers ask together, and all of them see the same devices.

    amounts (requests)  ──> n cards, what of each     ──┐
    annotations (hints) ──> NICs, selectors, nearness ──┴──> requests `gpu` and `rdma`, every container a user

With joint allocation the NICs follow the GPUs' PCIe roots. Koordinator takes as many as there are roots; how
many that will be is known once the GPUs are chosen, so the request lists alternatives: one NIC, or two ...,
the fewest that cover the roots. With SamePCIe the roots have to be covered, without it that is tried first.
Where there are as many NICs as GPUs, each GPU has one of its own.

exclusivePolicy is kept, which Koordinator itself does not do outside RequestsAsCount: the devices are nobody
else's. PCIeLevel would keep the rest of the root free as well; that is a warning.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from koordra.api.classic.notes import Refused
from koordra.api.opaque.parameters import Scope
from koordra.compat.dialect import (
    REQUESTS_FIRST,
    ContainerPhase,
    Dialect,
    Joint,
    Memory,
    Nics,
    NormalizedRequest,
    PodView,
    Share,
    Sharing,
    charges,
    exclusively,
    percent_of,
)
from koordra.compat.dialects.koordinator import requests as arithmetic
from koordra.compat.dialects.koordinator.allocation import device_allocated, environment
from koordra.compat.dialects.koordinator.hints import (
    HINT,
    JOINT,
    NUMA,
    PARENT,
    PARTITION,
    Hint,
    hints_of,
    joint,
    labels,
    numa,
    partition_bandwidth,
)
from koordra.compat.dialects.koordinator.requests import (
    CORE,
    FPGA,
    GPU,
    MEMORY,
    NVIDIA,
    RATIO,
    RDMA,
    SHARED,
    Split,
)

KOORDINATOR: Final = "koordinator"
PROVIDER: Final = "koordinator.sh/gpu-isolation-provider"
GPU_REQUEST: Final = "gpu"
MOST_ALTERNATIVES: Final = 8
"""Entries that `firstAvailable` may have."""


def parse(view: PodView) -> NormalizedRequest:
    totals, hints = _totals(view), hints_of(view)
    gpu, rdma = hints.get("gpu", Hint()), hints.get("rdma", Hint())
    types, same_pcie = joint(view)
    on_one_numa_node = numa(view)
    cards = _cards(totals, view, gpu)
    nics = _nics(totals[RDMA], view, rdma) if totals.get(RDMA) else None
    for kind, there in (("gpu", cards), ("rdma", nics), ("fpga", None)):
        if kind in hints and there is None:
            view.notes.warn(hints[kind].where, f"is about nothing: the pod asks for no {kind}")
    near: Joint | None = None
    if cards is not None and nics is not None and not nics.all:
        if {"gpu", "rdma"} <= types:
            nics, near = _beside(nics, cards, required=same_pcie)
        elif {"gpu", "rdma"} & types:
            view.warn(JOINT, "names one type of device only, which is near itself")
    return NormalizedRequest(
        (cards,) if cards else (),
        nics=nics,
        together=Sharing.POD,
        users=tuple(container.name for container in view.containers),
        selectors=_labels(gpu, view) if cards else (),
        gpu_scope=_scope(gpu, cards, view) if cards else None,
        pod_numa=on_one_numa_node,
        numa_affinity=bool(cards) and on_one_numa_node is not None,
        joint=near,
        partition=_partition(view, cards),
        isolation=_isolation(view) if cards else None,
    )


def _totals(view: PodView) -> dict[str, int]:
    """What the pod asks for under the tables' names, after the webhook; FPGAs are refused before, as another
    vendor's."""
    names = (NVIDIA, GPU, CORE, MEMORY, RATIO, SHARED, RDMA)
    found: dict[ContainerPhase, list[tuple[int, arithmetic.Amounts]]] = {
        phase: [] for phase in ContainerPhase
    }
    for position, request in enumerate(view.requests(REQUESTS_FIRST)):
        asked = {name: value for name in names if (value := request.amount(name)) is not None}
        if asked.get(SHARED) == 0:
            raise request.refuse(SHARED, "0 cards cannot be shared", "write 1 or more")
        if {SHARED, GPU} <= asked.keys():
            remedy = "write gpu-core and gpu-memory-ratio beside gpu.shared"
            raise request.refuse(SHARED, f"stands beside {GPU}", remedy)
        found[request.container.phase].append((position, asked))
    apps = [arithmetic.completed(asked) for _, asked in found[ContainerPhase.APP]]
    return arithmetic.of_pod(apps, found[ContainerPhase.SIDECAR], found[ContainerPhase.INIT])


def _cards(totals: dict[str, int], view: PodView, hint: Hint) -> Share | None:
    """The pod's cards as one share. Raises Refused for what Koordinator turns down."""
    request = {name: amount for name, amount in totals.items() if name != RDMA}
    if not request:
        return None
    if problem := arithmetic.problem_of(request):
        name, text = problem
        if frozenset(request) not in arithmetic.COMBINATIONS:
            text = _turned_down(request, view)
        raise _refuse(view, name, text, _COMBINATIONS)
    found = arithmetic.split(arithmetic.converted(request))
    share = Share(
        GPU_REQUEST,
        ContainerPhase.APP,
        found.count,
        memory=_memory(found, view),
        cores=found.each.get(CORE, 0),
        limited_by=view.settings.name(CORE) if PROVIDER in view.labels else "",
    )
    if share.cores > 100:
        raise _refuse(view, CORE, f"{share.cores}% of one card", "say gpu.shared: over how many cards")
    if hint.vf_selector is not None:
        raise view.notes.refuse(
            f"{hint.where}.vfSelector", "GPUs have no virtual functions", "ask for MIG instances instead"
        )
    if hint.strategy:
        view.notes.warn(
            f"{hint.where}.allocateStrategy", "is not read for GPUs in Koordinator, and is left out"
        )
    _warn_of_exclusive(hint, view)
    return exclusively(share) if hint.exclusive else share


def _turned_down(request: dict[str, int], view: PodView) -> str:
    """Names that do not stand together, as they are written: what the webhook adds would puzzle readers."""
    asked = {view.settings.name(name) for name in (*request, GPU)}
    written = sorted({name for container in view.containers for name in container.resources} & asked)
    if len(written) > 1:
        return f"{', '.join(written)} do not stand together in Koordinator"
    if not written:
        return "is 0 everywhere, and asks for no GPU"
    asking = (container for container in view.containers if written[0] in container.resources)
    of_init = any(container.phase is ContainerPhase.INIT for container in asking)
    return f"{written[0]}{' of an init container' if of_init else ' alone'} is turned down in Koordinator"


_COMBINATIONS: Final = "use koordinator.sh/gpu, gpu-memory or gpu-memory-ratio, with or without gpu-core, and gpu.shared for several cards"


def _memory(found: Split, view: PodView) -> Memory:
    if MEMORY in found.each:
        if not found.each[MEMORY]:
            raise _refuse(view, MEMORY, "is less than a byte for each card", "ask for more")
        return Memory(bytes=found.each[MEMORY])
    if not found.each[RATIO]:
        raise _refuse(view, RATIO, "is less than a percent of each card", "ask for more")
    return percent_of(found.each[RATIO])


def _nics(total: int, view: PodView, hint: Hint) -> Nics:
    if problem := arithmetic.problem_of({RDMA: total}):
        raise _refuse(view, RDMA, problem[1], "write 1 to 100, 200, 300 ...")
    notes, exclusive, virtual = view.notes, bool(hint.exclusive), hint.vf_selector is not None
    count, each = arithmetic.nics(total, hint.strategy, exclusive=exclusive)
    everything = count == arithmetic.ALL
    if hint.scope:
        notes.warn(
            f"{hint.where}.requiredTopologyScope", "is read for GPUs only in Koordinator, and is left out"
        )
    if everything and virtual:
        raise notes.refuse(
            f"{hint.where}.allocateStrategy",
            "ApplyForAll with vfSelector is one function of every NIC, which a claim cannot say",
            "ask for a number: RequestsAsCount",
        )
    _warn_of_exclusive(hint, view)
    if virtual and exclusive:
        notes.warn(
            f"{hint.where}.exclusivePolicy",
            "a virtual function is nobody else's; the other functions of its NIC may be",
        )
    elif virtual and each == 100:
        notes.warn(
            f"{hint.where}.vfSelector",
            "a virtual function is given; the other functions of its NIC stay free for others",
        )
    number = 1 if everything else count
    return Nics(
        number,
        None if virtual else (100 if exclusive else each),
        most=number,
        virtual=virtual,
        all=everything,
        selectors=_labels(hint, view),
    )


def _warn_of_exclusive(hint: Hint, view: PodView) -> None:
    if hint.exclusive == "PCIeLevel":
        view.notes.warn(
            f"{hint.where}.exclusivePolicy",
            "the devices are nobody else's; others under the same PCIe root may be given away",
        )


def _labels(hint: Hint, view: PodView) -> tuple[str, ...]:
    """CEL of the selectors; those of a virtual function's NIC are looked for under `parent_`."""
    of_nic = PARENT if hint.vf_selector is not None else ""
    found = [
        labels(selector, view.notes, prefix=prefix)
        for selector, prefix in ((hint.selector, of_nic), (hint.vf_selector, ""))
        if selector is not None
    ]
    return tuple(filter(None, found))


def _beside(nics: Nics, cards: Share, *, required: bool) -> tuple[Nics, Joint]:
    """NICs near the cards, as many as the cards can have roots."""
    per_device = nics.count >= cards.count
    most = nics.count if per_device else min(cards.count, nics.count + MOST_ALTERNATIVES - 1)
    return replace(nics, most=most), Joint(required=required, per_device=per_device)


def _scope(hint: Hint, cards: Share, view: PodView) -> Scope | None:
    if cards.count == 1:
        return None
    if hint.scope == "Device":
        raise view.notes.refuse(
            f"{hint.where}.requiredTopologyScope",
            f"{cards.count} cards are not one device",
            "write PCIe or NUMANode",
        )
    return {"PCIe": Scope.PCIE_ROOT, "NUMANode": Scope.NUMA_NODE}.get(hint.scope)


def _partition(view: PodView, cards: Share | None) -> bool:
    bandwidth = partition_bandwidth(view)
    if bandwidth is None:
        return False
    if cards is None or not cards.memory.whole:
        view.warn(PARTITION, "is for whole cards only, in Koordinator too, and is left out")
        return False
    if bandwidth:
        view.warn(
            PARTITION,
            f"ringBusBandwidth {bandwidth} is not compared: a partition has all the links of its cards",
        )
    return True


def _isolation(view: PodView) -> str | None:
    provider, field = view.labels.get(PROVIDER), f"{view.meta}.labels[{PROVIDER}]"
    if provider is None:
        return None
    if provider.lower() != "hami-core":
        raise view.notes.refuse(field, f"{provider!r} is no provider", "write HAMi-core")
    if provider != "HAMi-core":
        view.notes.warn(
            field, f"{provider!r} is taken for HAMi-core; Koordinator itself compares letter by letter"
        )
    return view.settings.isolation.get(KOORDINATOR) or "limiter"


def _refuse(view: PodView, name: str, problem: str, remedy: str) -> Refused:
    """About the first container that asks under a name of the tables; `gpu` is both core and ratio."""
    for key in (name, GPU) if name in (CORE, RATIO) else (name,):
        for request in view.requests(REQUESTS_FIRST):
            if request.has(key):
                return request.refuse(key, problem, remedy)
    return view.notes.refuse(f"{view.where}.containers[*].resources", problem, remedy)


DIALECT: Final = Dialect(
    KOORDINATOR,
    "Koordinator",
    parse,
    {
        NVIDIA: charges.count,
        GPU: charges.compute,
        CORE: charges.compute,
        MEMORY: charges.memory_in(lambda _: 1),
        RATIO: charges.percent,
        SHARED: charges.count,
        RDMA: charges.nics,
        FPGA: None,
    },
    bytes=frozenset({MEMORY}),
    annotations=(JOINT, HINT, NUMA, PARTITION),
    labels=(PROVIDER,),
    soft_annotations=("*koordinator.sh/*",),
    soft_labels=("koordinator.sh/*",),
    written=(
        "scheduling.koordinator.sh/device-allocated",
        "scheduling.koordinator.sh/reservation-allocated",
        "scheduling.koordinator.sh/bind-timestamp",
        "scheduling.koordinator.sh/gpu-minors",
    ),
    environment=environment,
    allocation_annotations=device_allocated,
    publishers=((GPU, "Koordinator's koord-manager and koordlet"),),
    node_labels={
        "node.koordinator.sh/gpu-vendor": lambda cards: "nvidia" if cards.count else "",
        "node.koordinator.sh/gpu-model": lambda cards: cards.product.removeprefix("NVIDIA"),
        "node.koordinator.sh/gpu-driver-version": lambda cards: cards.driver_version,
    },
    schedulers={"koord-scheduler": False},
    like_resources=(GPU,),
    domains=tuple(
        f"{part}koordinator.sh/"
        for part in (
            "",
            "scheduling.",
            "internal.scheduling.",
            "gang.scheduling.",
            "quota.scheduling.",
            "node.",
            "pod.",
        )
    ),
)
