"""The nodes of a trace as columns of numbers, for policies that are compared by replaying it: thousands of
placements per second.

    request ─▶ row of keys over nodes, those that changed since the last time made anew ─▶ least key
            ─▶ GPUs of that node

A key is a whole number that the policy computes; smaller is better, INFEASIBLE means no. Ties: the node that
is first in the fixed order of nodes. Which GPU of the node is the policy's rule (`choose`).

Nodes have cores, memory and GPUs that are alike; what else the engine knows (NICs, slices, the machine's
shape) no trace of this kind has. Rows take at most 64 MiB.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from koordra.placement.free_amounts.state import WHOLE, Choice, FreeAmounts, MachineType, Request, after

Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]

INFEASIBLE: Final = 1 << 62
"""The key of a node that cannot take the request; every real key is smaller."""

SHARE, ONE, SEVERAL = 1, 2, 4
_KEPT_BYTES: Final = 64 << 20


def tag(request: Request) -> int:
    """The sort of a pod, as GPU Clustering tells them apart."""
    if request.gpus == 1:
        return SHARE if request.milli < WHOLE else ONE
    return SEVERAL if request.gpus else 0


class Policy(Protocol):
    """How nodes are compared."""

    def keys(self, fleet: Fleet, at: Ints, request: Request) -> Ints:
        """Of these nodes, whether the request fits or not."""
        ...

    def choose(self, fleet: Fleet, node: int, request: Request) -> tuple[int, ...]:
        """Positions of the GPUs, for a request that fits."""
        ...


class FleetPlacement(NamedTuple):
    """Where a request went: the node's number, its GPUs by position."""

    node: int
    request: Request
    gpus: tuple[int, ...]


class Fleet:
    """Nodes by number, in the order that breaks ties. `gpus` is padded with -1."""

    def __init__(self, kinds: Sequence[MachineType], nodes: Sequence[FreeAmounts], policy: Policy) -> None:
        self.kinds, self.policy, self.nodes = tuple(kinds), policy, list(nodes)
        self.cpu = np.array([state.cpu for state in nodes], dtype=np.int64)
        self.memory = np.array([state.memory for state in nodes], dtype=np.int64)
        self.kind = np.array([state.kind for state in nodes], dtype=np.int64)
        self.tags = np.zeros(len(nodes), dtype=np.int64)
        width = max([len(state.gpus) for state in nodes] + [1])
        self.gpus = np.array([[*s.gpus, *[-1] * (width - len(s.gpus))] for s in nodes], dtype=np.int64)
        self._rows: dict[Request, tuple[Ints, set[int]]] = {}
        """The keys by node, and the nodes that changed since they were made."""

    def place(self, request: Request) -> FleetPlacement | None:
        """The best place for the request, taken; None where no node can serve it."""
        keys = self.keys(request)
        node = int(keys.argmin())
        if keys[node] >= INFEASIBLE:
            return None
        found = FleetPlacement(node, request, self.policy.choose(self, node, request))
        self.take(found)
        return found

    def keys(self, request: Request) -> Ints:
        """The request's key on every node, by number."""
        if request not in self._rows:
            keys = np.empty(len(self.nodes), dtype=np.int64)
            if (len(self._rows) + 1) * keys.nbytes > _KEPT_BYTES:
                self._rows.clear()
            self._rows[request] = keys, set(range(len(self.nodes)))
        keys, changed = self._rows[request]
        if changed:
            at = np.array(sorted(changed), dtype=np.int64)
            keys[at] = np.where(self.fits(at, request), self.policy.keys(self, at, request), INFEASIBLE)
            changed.clear()
        return keys

    def fits(self, at: Ints, request: Request) -> Bools:
        """Whether these nodes may serve the request, and have enough of everything."""
        found: Bools = (self.cpu[at] >= request.cpu) & (self.memory[at] >= request.memory)
        found &= (self.gpus[at] >= request.milli).sum(axis=1) >= request.gpus
        if request.models:
            found &= np.array([kind.model in request.models for kind in self.kinds])[self.kind[at]]
        return found

    def fitting(self, node: int, request: Request) -> list[int]:
        """The node's GPUs with as much free as the request wants of each."""
        return [at for at, free in enumerate(self.nodes[node].gpus) if free >= request.milli]

    def take(self, placement: FleetPlacement) -> None:
        """The request is placed there."""
        node, request = placement.node, placement.request
        state = self.nodes[node] = after(self.nodes[node], request, Choice(placement.gpus))
        self.cpu[node], self.memory[node] = state.cpu, state.memory
        self.gpus[node, : len(state.gpus)] = state.gpus
        self.tags[node] |= tag(request)
        for _, changed in self._rows.values():
            changed.add(node)

    def policy_changed(self) -> None:
        """Every key is to be made again."""
        self._rows.clear()
