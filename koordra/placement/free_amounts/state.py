"""A node and a request as small values that many nodes and many pods share.

A node is, for placement, its *kind* (model, number of GPUs, and the shape of the machine where that is known)
and its *state*: free milli-cores, free MiB, the free share of each GPU in thousandths, the free percent of
each NIC. Nodes of equal kind and state are interchangeable. A pod is its *request*.
"""

from __future__ import annotations

from decimal import Decimal
from math import ceil, floor
from typing import Final, NamedTuple

from koordra.placement.mig.layout import Layout, Slice
from koordra.topology.machine_shape import MachineShape

WHOLE: Final = 1000
"""Thousandths of a GPU."""

FULL: Final = 100
"""Percent of a NIC."""

PLENTY: Final = 1 << 30
_MOST: Final = Decimal(2 * PLENTY)
"""More of anything counts as this: a pod may ask for any number, and costs of many nodes at once have 64
bits."""

_MEBI: Final = 1 << 20


class Request(NamedTuple):
    """A request class: `gpus` GPUs, `milli` of each (only one GPU can be shared), `nics` NICs with `percent`
    of each.

    `models` are the GPU models allowed, sorted, empty for any. `slices` are parts of cut cards (MIG), sorted,
    beside or instead of GPUs.
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


class MachineType(NamedTuple):
    """What nodes of one sort have in common. Without a shape GPUs are interchangeable and there are no NICs.

    `layouts` says of each GPU how it may be cut, None for one that is not; it is empty
    where none is, and only nodes of known shape have some.
    """

    model: str
    gpus: int
    shape: MachineShape | None = None
    layouts: tuple[Layout | None, ...] = ()


class FreeAmounts(NamedTuple):
    """`kind` numbers the machine types of the nodes.

    `cuts` is what is taken of each GPU that may be cut (its layout's code), empty where none may; such a GPU
    has 0 in `gpus`.
    """

    kind: int
    cpu: int
    memory: int
    gpus: tuple[int, ...]
    nics: tuple[int, ...] = ()
    cuts: tuple[int, ...] = ()


class Choice(NamedTuple):
    """Positions of GPUs and NICs in the state's tuples: those that are chosen, or that one switch joins."""

    gpus: tuple[int, ...]
    nics: tuple[int, ...] = ()


def after(state: FreeAmounts, request: Request, choice: Choice) -> FreeAmounts:
    """The state once the request is placed by this choice (or, with negative amounts, is there no more)."""
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
    return FreeAmounts(
        state.kind, state.cpu - request.cpu, state.memory - request.memory, gpus, nics, state.cuts
    )


def milli_of(amount: Decimal) -> int:
    return ceil(max(-_MOST, min(_MOST, amount * 1000)))


def mebi_of(amount: Decimal) -> int:
    return floor(max(-_MOST, min(_MOST, amount / _MEBI)))
