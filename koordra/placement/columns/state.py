"""What the fleet knows of a node and of a request: small values that many nodes and many pods share.

A node is, for placement, its *kind* (model, number of GPUs, and the shape of the machine where that is known) and its
*state*: free milli-cores, free MiB, the free share of each GPU in thousandths, the free percent of each NIC. Nodes of equal
kind and state are interchangeable, so the fleet computes with states and only counts nodes. A pod is its *request*.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from koordra.placement.mig.layout import Layout
from koordra.topology.machine_shape import MachineShape

WHOLE: Final = 1000
"""Thousandths of a GPU."""

FULL: Final = 100
"""Percent of a NIC."""


Spread = tuple[tuple[int, tuple[int, ...]], ...]
"""Groups of GPUs by level of the machine, with the weight of a group more than one: ((weight, masks), ...)."""


class Slice(NamedTuple):
    """One part of a cut card: any of the profiles will do; `milli` is the smallest of them, in thousandths of its card."""

    profiles: tuple[str, ...]
    milli: int


class Request(NamedTuple):
    """A request class: `gpus` GPUs, `milli` of each (only one GPU can be shared), `nics` NICs with `percent` of each.

    `models` are the GPU models allowed, sorted, empty for any. `slices` are parts of cut cards (MIG), sorted, beside or instead of GPUs.
    """

    cpu: int
    memory: int
    gpus: int
    milli: int
    models: tuple[str, ...] = ()
    nics: int = 0
    percent: int = 0
    slices: tuple[Slice, ...] = ()

    @property
    def share(self) -> int:
        """Thousandths of GPU in all."""
        whole = self.gpus * self.milli
        return whole + sum([one.milli for one in self.slices]) if self.slices else whole

    @property
    def form(self) -> DeviceRequestShape:
        return DeviceRequestShape(self.gpus, self.milli, self.nics, self.percent, self.slices)


class DeviceRequestShape(NamedTuple):
    """The part of a request that concerns devices."""

    gpus: int
    milli: int
    nics: int
    percent: int
    slices: tuple[Slice, ...] = ()

    @property
    def shared(self) -> bool:
        return self.gpus == 1 and self.milli < WHOLE


class Kind(NamedTuple):
    """What nodes of one sort have in common. Without a shape GPUs are interchangeable and there are no NICs.

    `spread` are the groups as published, where
    they are; without them those of the shape. `layouts` says of each GPU how it may be cut, None for one that is not; it is empty
    where none is, and only nodes of known shape have some.
    """

    model: str
    gpus: int
    shape: MachineShape | None = None
    spread: Spread = ()
    layouts: tuple[Layout | None, ...] = ()


class State(NamedTuple):
    """`kind` numbers the fleet's kinds; `tags` is a bit set of sorts of pods on the node (GPU Clustering).

    `cuts` is what is taken of each GPU that may be cut (its layout's code), empty where none may; such a GPU has 0 in `gpus`.
    """

    kind: int
    cpu: int
    memory: int
    gpus: tuple[int, ...]
    nics: tuple[int, ...] = ()
    tags: int = 0
    cuts: tuple[int, ...] = ()

    @property
    def devices(self) -> Devices:
        return Devices(self.kind, self.gpus, self.nics, self.cuts)


class Devices(NamedTuple):
    """The devices of a state; what a request costs on them does not depend on cores and memory."""

    kind: int
    gpus: tuple[int, ...]
    nics: tuple[int, ...]
    cuts: tuple[int, ...] = ()


class Choice(NamedTuple):
    """Positions of the chosen GPUs and NICs in the state's tuples, and the worst level of their pairs (0: nothing paired).

    `cuts` are the places of cut cards: position of the card and number of the place.
    """

    gpus: tuple[int, ...]
    nics: tuple[int, ...] = ()
    level: int = 0
    cuts: tuple[tuple[int, int], ...] = ()


def after(state: State, request: Request, choice: Choice) -> State:
    """The state once the request is placed by this choice (or, with negative amounts, is there no more)."""
    gpus, nics, cuts = state.gpus, state.nics, state.cuts
    if choice.gpus:
        left = list(gpus)
        for position in choice.gpus:
            left[position] -= request.milli
        gpus = tuple(left)
    if choice.nics:
        left = list(nics)
        for position in choice.nics:
            left[position] -= request.percent
        nics = tuple(left)
    if choice.cuts:
        codes = list(cuts)
        for position, place in choice.cuts:
            codes[position] ^= 1 << place
        cuts = tuple(codes)
    return State(
        state.kind,
        state.cpu - request.cpu,
        state.memory - request.memory,
        gpus,
        nics,
        state.tags | tag(request),
        cuts,
    )


SHARE, ONE, SEVERAL = 1, 2, 4


def tag(request: Request) -> int:
    """The sort of a pod, as GPU Clustering tells them apart."""
    if not request.gpus:
        return 0
    if request.gpus > 1:
        return SEVERAL
    return SHARE if request.milli < WHOLE else ONE
