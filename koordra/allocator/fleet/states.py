"""What the fleet knows of a node and of a request: small values that many nodes and many pods share.

A node is, for placement, its *kind* (model, number of GPUs, and the shape of the machine where that is known) and its
*state*: free milli-cores, free MiB, the free share of each GPU in thousandths, the free percent of each NIC. Nodes of equal
kind and state are interchangeable, so the fleet computes with states and only counts nodes. A pod is its *request*.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from koordra.topology.shapes import Shape

WHOLE: Final = 1000
"""Thousandths of a GPU."""

FULL: Final = 100
"""Percent of a NIC."""


Spread = tuple[tuple[int, tuple[int, ...]], ...]
"""Groups of GPUs by level of the machine, with the weight of a group more than one: ((weight, masks), ...)."""


class Request(NamedTuple):
    """A request class: `gpus` GPUs, `milli` of each (only one GPU can be shared), `nics` NICs with `percent` of each.

    `models` are the GPU models allowed, sorted, empty for any. `nodes` restricts to node sets by number (selectors and taints
    of the pod, evaluated once per set), -1 for none.
    """

    cpu: int
    memory: int
    gpus: int
    milli: int
    models: tuple[str, ...] = ()
    nics: int = 0
    percent: int = 0
    nodes: int = -1

    @property
    def share(self) -> int:
        """Thousandths of GPU in all."""
        return self.gpus * self.milli

    @property
    def form(self) -> Form:
        return Form(self.gpus, self.milli, self.nics, self.percent)


class Form(NamedTuple):
    """The part of a request that concerns devices."""

    gpus: int
    milli: int
    nics: int
    percent: int

    @property
    def shared(self) -> bool:
        return self.gpus == 1 and self.milli < WHOLE


class Kind(NamedTuple):
    """What nodes of one sort have in common. Without a shape GPUs are interchangeable and there are no NICs.

    `sets` has bit i where the nodes belong to node set i of the requests' restrictions. `spread` are the groups as published, where
    they are; without them those of the shape.
    """

    model: str
    gpus: int
    shape: Shape | None = None
    sets: int = 0
    spread: Spread = ()


class State(NamedTuple):
    """`kind` numbers the fleet's kinds; `tags` is a bit set of sorts of pods on the node (GPU Clustering)."""

    kind: int
    cpu: int
    memory: int
    gpus: tuple[int, ...]
    nics: tuple[int, ...] = ()
    tags: int = 0

    @property
    def devices(self) -> Devices:
        return Devices(self.kind, self.gpus, self.nics)


class Devices(NamedTuple):
    """The devices of a state; what a request costs on them does not depend on cores and memory."""

    kind: int
    gpus: tuple[int, ...]
    nics: tuple[int, ...]


class Choice(NamedTuple):
    """Positions of the chosen GPUs and NICs in the state's tuples, and the worst level of their pairs (0: nothing paired)."""

    gpus: tuple[int, ...]
    nics: tuple[int, ...] = ()
    level: int = 0


def after(state: State, request: Request, choice: Choice) -> State:
    """The state once the request is placed by this choice."""
    gpus, nics = state.gpus, state.nics
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
    return State(
        state.kind,
        state.cpu - request.cpu,
        state.memory - request.memory,
        gpus,
        nics,
        state.tags | tag(request),
    )


SHARE, ONE, SEVERAL = 1, 2, 4


def tag(request: Request) -> int:
    """The sort of a pod, as GPU Clustering tells them apart."""
    if not request.gpus:
        return 0
    if request.gpus > 1:
        return SEVERAL
    return SHARE if request.milli < WHOLE else ONE
