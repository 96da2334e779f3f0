"""Koordinator: the pod's containers ask together, and all of them see the same devices.

    amounts (requests) ──> n            cards, what of each      ──┐
    annotations (hints) ──>            NICs, selectors, nearness ──┴──> requests `gpu` and `rdma`, every container a user

With joint allocation the NICs follow the GPUs' PCIe roots. Koordinator takes as many as there are roots; how many that will be
is known once the GPUs are chosen, so the request lists alternatives: one NIC, or two ..., the fewest that cover the roots.
With SamePCIe the roots have to be covered, without it that is tried first. Where there are as many NICs as GPUs, each GPU
has one of its own.

exclusivePolicy is kept, which Koordinator itself does not do outside RequestsAsCount: the devices are nobody else's. PCIeLevel
would keep the rest of the root free as well; that is told.
"""

from __future__ import annotations

from typing import Final

from koordra.api.classic.notes import Notes
from koordra.api.opaque.parameters import Scope
from koordra.compat.dialect import Dialect, PodView, charges, resource_names
from koordra.compat.dialect.containers import REQUESTS_FIRST, Container, amount
from koordra.compat.dialects.koordinator import requests as arithmetic
from koordra.compat.dialects.koordinator.hints import (
    JOINT,
    PARENT,
    PARTITION,
    Hint,
    hints,
    joint,
    labels,
    partition,
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
from koordra.compat.dialects.koordinator.vocabulary import (
    KOORDINATOR,
    PROVIDER,
    VOCABULARY,
    device_allocated,
    environment,
)
from koordra.compat.normalized_request import (
    Joint,
    Memory,
    Nics,
    NormalizedRequest,
    Phase,
    Share,
    Together,
    percent_of,
)
from koordra.compat.settings import Settings

GPU_REQUEST: Final = "gpu"
MOST_ALTERNATIVES: Final = 8
"""Entries that `firstAvailable` may have."""


def parse(view: PodView, settings: Settings, notes: Notes) -> NormalizedRequest:
    totals = _totals(view, settings, notes)
    said = hints(view, notes)
    together = joint(view, notes)
    cards = _cards(totals, view, said.get("gpu"), settings, notes)
    amount_of_nics = totals.get(RDMA, 0)
    nics = _nics(amount_of_nics, view, said.get("rdma"), settings, notes) if amount_of_nics else None
    for kind, there in (("gpu", cards), ("rdma", nics), ("fpga", None)):
        if kind in said and there is None:
            notes.warn(said[kind].where, f"is about nothing: the pod asks for no {kind}")
    near: Joint | None = None
    if together is not None and cards is not None and nics is not None and not nics.all:
        if {"gpu", "rdma"} <= set(together.types):
            nics, near = _beside(nics, cards, required=together.same_pcie)
        elif set(together.types) & {"gpu", "rdma"}:
            notes.warn(view.field(JOINT), "names one type of device only, which is near itself")
    isolation = _isolation(view, cards, settings, notes)
    gpu_hint = said.get("gpu")
    return NormalizedRequest(
        KOORDINATOR,
        shares=(cards,) if cards else (),
        nics=nics,
        together=Together.POD,
        users=tuple(container.name for container in view.containers),
        selectors=_labels(gpu_hint, notes) if cards else (),
        gpu_scope=_scope(gpu_hint, cards, notes),
        joint=near,
        partition=_partition(view, cards, notes),
        isolation=isolation,
        names=resource_names(VOCABULARY, settings),
        results=VOCABULARY.results(list(view.annotations)),
    )


def _totals(view: PodView, settings: Settings, notes: Notes) -> dict[str, int]:
    """What the pod asks for under the tables' names, after the webhook."""
    apps: list[dict[str, int]] = []
    sidecars: list[tuple[int, dict[str, int]]] = []
    inits: list[tuple[int, dict[str, int]]] = []
    for position, container in enumerate(view.containers):
        asked = _asked(container, settings, notes)
        if container.phase is Phase.APP:
            apps.append(arithmetic.completed(asked))
        else:
            (sidecars if container.phase is Phase.SIDECAR else inits).append((position, asked))
    for container in view.containers:
        name = settings.name(SHARED)
        if name in container.resources() and amount(container, name, notes=notes, sides=REQUESTS_FIRST) == 0:
            raise notes.refuse(container.field(name), "0 cards cannot be shared", "write 1 or more")
        if {settings.name(GPU), name} <= set(container.resources()):
            raise notes.refuse(
                container.field(name),
                f"stands beside {GPU}",
                "write gpu-core and gpu-memory-ratio beside gpu.shared",
            )
    return arithmetic.of_pod(apps, sidecars, inits)


def _asked(container: Container, settings: Settings, notes: Notes) -> dict[str, int]:
    found = {}
    for name in (NVIDIA, GPU, CORE, MEMORY, RATIO, SHARED, RDMA, FPGA):
        value = amount(container, settings.name(name), notes=notes, sides=REQUESTS_FIRST)
        if value is not None:
            found[name] = value
    return found


def _cards(
    totals: dict[str, int], view: PodView, said: Hint | None, settings: Settings, notes: Notes
) -> Share | None:
    """The pod's cards as one share. Raises Refused for what Koordinator turns down."""
    request = {name: totals[name] for name in arithmetic.TYPES["gpu"] if name in totals}
    if not request:
        return None
    problem = arithmetic.problem_of(request)
    if problem is not None:
        name, told = problem
        if frozenset(request) not in arithmetic.COMBINATIONS:
            told = _turned_down(request, view, settings)
        raise notes.refuse(_where(view, settings.name(name)), told, _COMBINATIONS)
    found = arithmetic.split(arithmetic.converted(request))
    share = Share(
        GPU_REQUEST, Phase.APP, found.count, memory=_memory(found, view, notes), cores=found.each.get(CORE, 0)
    )
    if share.cores > 100:
        raise notes.refuse(
            _where(view, CORE), f"{share.cores}% of one card", "say gpu.shared: over how many cards"
        )
    if said is None:
        return share
    if said.vf_selector is not None:
        raise notes.refuse(
            f"{said.where}.vfSelector", "GPUs have no virtual functions", "ask for MIG instances instead"
        )
    if said.strategy:
        notes.warn(f"{said.where}.allocateStrategy", "is not read for GPUs in Koordinator, and is left out")
    if said.exclusive:
        _tell_exclusive(said, notes)
        if not share.memory.whole:
            return Share(
                share.container,
                share.phase,
                share.count,
                memory=share.memory,
                cores=share.cores,
                exclusive=True,
            )
    return share


def _turned_down(request: dict[str, int], view: PodView, settings: Settings) -> str:
    """Names that do not stand together, as they are written: what the webhook adds would puzzle the reader."""
    asked = {settings.name(name) for name in (*request, GPU)}
    written = sorted({name for container in view.containers for name in container.resources()} & asked)
    if len(written) > 1:
        return f"{', '.join(written)} do not stand together in Koordinator"
    if not written:
        return "is 0 everywhere, and asks for no GPU"
    if any(
        container.phase is Phase.INIT and written[0] in container.resources() for container in view.containers
    ):
        return f"{written[0]} of an init container is turned down in Koordinator"
    return f"{written[0]} alone is turned down in Koordinator"


_COMBINATIONS: Final = "use koordinator.sh/gpu, gpu-memory or gpu-memory-ratio, with or without gpu-core, and gpu.shared for several cards"


def _memory(found: Split, view: PodView, notes: Notes) -> Memory:
    if MEMORY in found.each:
        if not found.each[MEMORY]:
            raise notes.refuse(_where(view, MEMORY), "is less than a byte for each card", "ask for more")
        return Memory(bytes=found.each[MEMORY])
    if not found.each[RATIO]:
        raise notes.refuse(_where(view, RATIO), "is less than a percent of each card", "ask for more")
    return percent_of(found.each[RATIO])


def _nics(total: int, view: PodView, said: Hint | None, settings: Settings, notes: Notes) -> Nics:
    problem = arithmetic.problem_of({RDMA: total})
    if problem is not None:
        raise notes.refuse(_where(view, settings.name(RDMA)), problem[1], "write 1 to 100, 200, 300 ...")
    if said is None:
        said = Hint("")
    exclusive = bool(said.exclusive)
    count, each = arithmetic.nics(total, said.strategy, exclusive=exclusive)
    virtual = said.vf_selector is not None
    everything = count == arithmetic.ALL
    if said.scope:
        notes.warn(
            f"{said.where}.requiredTopologyScope", "is read for GPUs only in Koordinator, and is left out"
        )
    if everything and virtual:
        raise notes.refuse(
            f"{said.where}.allocateStrategy",
            "ApplyForAll with vfSelector is one function of every NIC, which a claim cannot say",
            "ask for a number: RequestsAsCount",
        )
    if exclusive:
        _tell_exclusive(said, notes)
        if virtual:
            notes.warn(
                f"{said.where}.exclusivePolicy",
                "a virtual function is nobody else's; the other functions of its NIC may be",
            )
    elif virtual and each == 100:
        notes.warn(
            f"{said.where}.vfSelector",
            "a virtual function is given; the other functions of its NIC stay free for others",
        )
    return Nics(
        1 if everything else count,
        None if virtual else (100 if exclusive else each),
        most=1 if everything else count,
        virtual=virtual,
        all=everything,
        exclusive=exclusive,
        selectors=_labels(said, notes),
    )


def _tell_exclusive(said: Hint, notes: Notes) -> None:
    if said.exclusive == "PCIeLevel":
        notes.warn(
            f"{said.where}.exclusivePolicy",
            "the devices are nobody else's; others under the same PCIe root may be given away",
        )


def _labels(said: Hint | None, notes: Notes) -> tuple[str, ...]:
    """CEL of the selectors; those of a virtual function's NIC are looked for under `parent_`."""
    if said is None:
        return ()
    found = []
    if said.selector is not None:
        prefix = PARENT if said.vf_selector is not None else ""
        found.append(labels(said.selector, field=f"{said.where}.selector", notes=notes, prefix=prefix))
    if said.vf_selector is not None:
        found.append(labels(said.vf_selector, field=f"{said.where}.vfSelector", notes=notes))
    return tuple(expression for expression in found if expression)


def _beside(nics: Nics, cards: Share, *, required: bool) -> tuple[Nics, Joint]:
    """NICs near the cards, as many as the cards can have roots."""
    per_device = nics.count >= cards.count
    most = nics.count if per_device else min(cards.count, nics.count + MOST_ALTERNATIVES - 1)
    wider = Nics(
        nics.count,
        nics.share,
        most=most,
        virtual=nics.virtual,
        exclusive=nics.exclusive,
        selectors=nics.selectors,
    )
    return wider, Joint(required=required, per_device=per_device)


def _scope(said: Hint | None, cards: Share | None, notes: Notes) -> Scope | None:
    if said is None or cards is None or not said.scope or cards.count == 1:
        return None
    if said.scope == "Device":
        raise notes.refuse(
            f"{said.where}.requiredTopologyScope",
            f"{cards.count} cards are not one device",
            "write PCIe or NUMANode",
        )
    return {"PCIe": Scope.PCIE_ROOT, "NUMANode": Scope.NUMA_NODE}.get(said.scope)


def _partition(view: PodView, cards: Share | None, notes: Notes) -> bool:
    asked = partition(view, notes)
    if asked is None:
        return False
    if cards is None or not cards.memory.whole:
        notes.warn(view.field(PARTITION), "is for whole cards only, in Koordinator too, and is left out")
        return False
    if asked.bandwidth:
        notes.warn(
            view.field(PARTITION),
            f"ringBusBandwidth {asked.bandwidth} is not compared: a partition has all the links of its cards",
        )
    return True


def _isolation(view: PodView, cards: Share | None, settings: Settings, notes: Notes) -> str | None:
    said, chosen = view.labels.get(PROVIDER), settings.isolation.get(KOORDINATOR)
    if said is None or cards is None:
        return chosen
    if said.lower() != "hami-core":
        raise notes.refuse(f"{view.meta}.labels[{PROVIDER}]", f"{said!r} is no provider", "write HAMi-core")
    if said != "HAMi-core":
        notes.warn(
            f"{view.meta}.labels[{PROVIDER}]",
            f"{said!r} is taken for HAMi-core; Koordinator itself compares letter by letter",
        )
    return chosen or "limiter"


def _where(view: PodView, name: str) -> str:
    """The field of the first container that asks under the name."""
    asking = [container for container in view.containers if name in container.resources()]
    if not asking and name in (CORE, RATIO):
        return _where(view, GPU)  # which is both of them
    return asking[0].field(name) if asking else f"{view.where}.containers[*].resources"


DIALECT: Final = Dialect(
    VOCABULARY,
    parse,
    charges={
        NVIDIA: charges.count,
        GPU: charges.compute,
        CORE: charges.compute,
        MEMORY: charges.memory_in(lambda _: 1),
        RATIO: charges.percent,
        SHARED: charges.count,
        RDMA: charges.nics,
    },
    bytes=frozenset({MEMORY}),
    environment=environment,
    annotations=device_allocated,
    publishers=((GPU, "Koordinator's koord-manager and koordlet"),),
    node_labels={
        "node.koordinator.sh/gpu-vendor": lambda cards: "nvidia" if cards.count else "",
        "node.koordinator.sh/gpu-model": lambda cards: cards.product.removeprefix("NVIDIA"),
        "node.koordinator.sh/gpu-driver-version": lambda cards: cards.driver_version,
    },
    schedulers={"koord-scheduler": False},
    like_resources=(GPU,),
    like_annotations=("scheduling.koordinator.sh/device-", "scheduling.koordinator.sh/gpu-"),
)
