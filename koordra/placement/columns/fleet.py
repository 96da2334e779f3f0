"""The fleet: which node takes a request, at a cost that hardly grows with the number of nodes.

Nodes of equal kind and state stand in one *slot*. For every request class and slot there is a key, a whole number that the
policy computes; smaller is better, INFEASIBLE means no.

    request ─▶ class ─▶ row of keys over slots ─▶ smallest key ─▶ first node of the slot ─▶ devices
                             ▲                                         │
               column of keys over classes ◀── state after ◀───────────┘

A placement changes one node. It leaves its slot and enters that of its new state; only if no node stood there yet, a column
is made, for all classes at once (columns of states seen lately are kept). So keys are never stale, and a decision is one
minimum over a row. The row has one entry per *distinct state*, which are far fewer than nodes in a large fleet.

Tie-break, for every policy: of the slots with the smallest key the one whose first node is first in the fixed order of
nodes, then that node. Which GPU of the node is the policy's rule (`choose`), the first by default.

Nodes come and go (`set_node`), and allocations end (`release`); both are a move between slots, like a placement.
Memory is bounded: at most `most_classes` classes are kept (then all but those seen lately are dropped), the columns kept of
past states take at most 64 MiB.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Sequence
from itertools import islice
from typing import Final, NamedTuple, Protocol

import numpy as np

from koordra.placement.columns.arrays import INFEASIBLE, NOBODY, Classes, Ints, Keys, Slots, grown
from koordra.placement.columns.canonical import CanonicalOrder
from koordra.placement.columns.state import Choice, Kind, Request, State, after

_KEPT_BYTES: Final = 64 << 20
_MOST_MOVES: Final = 1 << 16


class Policy(Protocol):
    """How nodes are compared. `sorts`: the order of GPUs in a node does not matter, so states hold them sorted.

    `cuts`: it knows of cards that are cut; for one that does not, requests for slices fit nowhere.
    """

    name: str
    sorts: bool
    cuts: bool

    def start(self, slots: Slots, classes: Classes) -> None:
        """Use these columns from now on, with nothing entered yet."""
        ...

    def enter(self, slot: int) -> None:
        """The slot holds a new state."""
        ...

    def column(self, slot: int, start: int) -> Keys:
        """Keys of one slot for the classes from `start` on."""
        ...

    def row(self, slots: Ints, number: int) -> Keys:
        """Keys of some slots for one class."""
        ...

    def choose(self, state: State, request: Request) -> Choice:
        """The devices, for a request that fits."""
        ...


class Placement(NamedTuple):
    """Where a request went: the node's number, its GPUs and NICs by position, the worst level of GPU and NIC, the key.

    `cuts` are the places of cut cards: position of the card and number of the place.
    """

    node: int
    request: Request
    gpus: tuple[int, ...]
    nics: tuple[int, ...]
    level: int
    key: int
    cuts: tuple[tuple[int, int], ...] = ()


class Fleet:
    """Nodes by number, in the order that breaks ties. `nodes` are their states; None is a number without a node."""

    def __init__(
        self,
        kinds: Sequence[Kind],
        nodes: Iterable[State | None],
        policy: Policy,
        *,
        most_classes: int = 8192,
    ) -> None:
        self.kinds = tuple(kinds)
        self.policy = policy
        self.most_classes = most_classes
        self.nodes: list[State | None] = []
        self.slots = Slots(self.kinds)
        self.classes = Classes(self.kinds, cuts=policy.cuts)
        self.slot_of_node = np.zeros(0, dtype=np.int64)
        self._sorted = [policy.sorts and kind.shape is None for kind in self.kinds]
        self._canonical_order = [
            CanonicalOrder(kind.shape, kind.layouts) if policy.sorts and kind.shape is not None else None
            for kind in self.kinds
        ]
        self._reset()
        policy.start(self.slots, self.classes)
        for state in nodes:
            self.add_node(state)

    # --- nodes ------------------------------------------------------------------------------------------------------

    def add_node(self, state: State | None) -> int:
        """A new node, last in order. Returns its number."""
        number = len(self.nodes)
        self.nodes.append(None)
        self.slot_of_node = grown(self.slot_of_node, number + 1, fill=-1)
        self.slot_of_node[number] = -1
        if state is not None:
            self.set_node(number, state)
        return number

    def set_node(self, number: int, state: State | None) -> None:
        """The node is in this state now, whatever it was before; None: it is gone (its number can come back)."""
        self.nodes[number] = state
        known = None if state is None else self._canonical(state)
        left = int(self.slot_of_node[number])
        if left >= 0 and self.slots.states[left] == known:
            return
        self.slot_of_node[number] = -1
        if left >= 0:
            self._leave(left)
        if known is not None:
            self._enter(number, known)

    # --- requests ---------------------------------------------------------------------------------------------------

    def expect(self, requests: Iterable[Request]) -> None:
        """Classes that will come: their keys are made now, not when the first of them has to be placed."""
        for request in islice(requests, self.most_classes // 2):
            self._class(request)

    def place(self, request: Request) -> Placement | None:
        """The best place for the request, taken; None where no node can serve it."""
        found = self.find(request)
        if found is not None:
            self.take(found)
        return found

    def find(self, request: Request) -> Placement | None:
        """The best place for the request, not taken."""
        number = self._class(request)
        row, first = self._keys[number, : self.slots.used], self.slots.first
        if not len(row):
            return None
        slot = int(row.argmin())
        best = int(row[slot])
        if best >= INFEASIBLE:
            return None
        tied = (row == best).nonzero()[0]
        if len(tied) > 1:
            slot = int(tied[first[tied].argmin()])
        return self._placement(int(first[slot]), slot, request, best)

    def find_on(self, node: int, request: Request) -> Placement | None:
        """The request's place on one node, not taken."""
        slot, number = int(self.slot_of_node[node]), self._class(request)
        if slot < 0:
            return None
        key = int(self._keys[number, slot])
        return None if key >= INFEASIBLE else self._placement(node, slot, request, key)

    def key_on(self, node: int, request: Request) -> int:
        """The request's key on one node, INFEASIBLE where it does not fit."""
        slot, number = int(self.slot_of_node[node]), self._class(request)
        return INFEASIBLE if slot < 0 else int(self._keys[number, slot])

    def keys_of_nodes(self, request: Request) -> Keys:
        """The request's key on every node, by number."""
        number = self._class(request)
        row = self._keys[number]
        at = self.slot_of_node[: len(self.nodes)]
        found: Keys = np.where(at >= 0, row[at], INFEASIBLE)
        return found

    def take(self, placement: Placement) -> None:
        """The request is placed there."""
        state = self.nodes[placement.node]
        assert state is not None
        choice = Choice(placement.gpus, placement.nics, cuts=placement.cuts)
        self.set_node(placement.node, after(state, placement.request, choice))

    def release(self, placement: Placement) -> None:
        """The request is there no more. Nothing happens if the node is gone."""
        state = self.nodes[placement.node]
        if state is None:
            return
        request = placement.request
        negative = request._replace(
            cpu=-request.cpu, memory=-request.memory, milli=-request.milli, percent=-request.percent
        )
        freed = after(state, negative, Choice(placement.gpus, placement.nics, cuts=placement.cuts))
        self.set_node(placement.node, freed._replace(tags=state.tags))

    def tables_changed(self) -> None:
        """The policy's numbers are new: every key is made again."""
        self._kept.clear()
        self._moves.clear()
        self.policy.start(self.slots, self.classes)
        used = [slot for slot, state in enumerate(self.slots.states) if state is not None]
        for slot in used:
            self.policy.enter(slot)
        if len(used) < len(self.classes):
            for slot in used:
                self._keys[: len(self.classes), slot] = self.policy.column(slot, 0)
            return
        at = np.array(used, dtype=np.int64)
        for number in range(len(self.classes)):
            self._keys[number, at] = self.policy.row(at, number)

    # --- slots ------------------------------------------------------------------------------------------------------

    def _reset(self) -> None:
        self._keys: Keys = np.full((64, 64), INFEASIBLE, dtype=np.int64)
        self._slot_of_state: dict[State, int] = {}
        self._count: list[int] = []
        self._members: list[list[int]] = []
        self._free: list[int] = []
        self._kept: dict[State, Keys] = {}
        self._moves: dict[tuple[State, Request], Choice] = {}

    def _canonical(self, state: State) -> State:
        if not self._sorted[state.kind]:
            likeness = self._canonical_order[state.kind]
            return state if likeness is None else likeness.ordered(state)[0]
        gpus = tuple(sorted(state.gpus))
        return state if gpus == state.gpus else State(*state[:3], gpus, *state[4:])

    def _placement(self, node: int, slot: int, request: Request, key: int) -> Placement:
        state = self.slots.states[slot]
        own = self.nodes[node]
        assert state is not None
        assert own is not None
        choice = self._moves.get((state, request))
        if choice is None:
            choice = self.policy.choose(state, request)
            if len(self._moves) >= _MOST_MOVES:
                self._moves.clear()
            self._moves[state, request] = choice
        if state.gpus != own.gpus or state.nics != own.nics or state.cuts != own.cuts:
            choice = self._on_node(own, choice)
        return Placement(node, request, choice.gpus, choice.nics, choice.level, key, choice.cuts)

    def _on_node(self, own: State, choice: Choice) -> Choice:
        """The choice for the state that stands for the node's, in positions on the node."""
        likeness = self._canonical_order[own.kind]
        if likeness is None:
            by_free = sorted(range(len(own.gpus)), key=own.gpus.__getitem__)
            return choice._replace(gpus=tuple(sorted([by_free[at] for at in choice.gpus])))
        order = likeness.ordered(own)[1]
        if order is None:
            return choice
        return Choice(
            tuple(sorted([order.gpus[at] for at in choice.gpus])),
            tuple(sorted([order.nics[at] for at in choice.nics])),
            choice.level,
            tuple([(order.gpus[at], place) for at, place in choice.cuts]),
        )

    def _leave(self, slot: int) -> None:
        """One node fewer in the slot; its number already says so."""
        self._count[slot] -= 1
        if not self._count[slot]:
            state = self.slots.states[slot]
            assert state is not None
            del self._slot_of_state[state]
            self.slots.states[slot] = None
            self.slots.first[slot] = NOBODY
            self._members[slot] = []
            self._keys[:, slot] = INFEASIBLE
            self._free.append(slot)
            return
        members = self._members[slot]
        while self.slot_of_node[members[0]] != slot:
            heapq.heappop(members)
        self.slots.first[slot] = members[0]

    def _enter(self, number: int, state: State) -> None:
        slot = self._slot_of_state.get(state)
        if slot is None:
            slot = self._new_slot(state)
        self._count[slot] += 1
        members = self._members[slot]
        heapq.heappush(members, number)
        if len(members) > 2 * self._count[slot] + 64:
            # Nodes that left and came back stand in the heap several times.
            members[:] = sorted({node for node in members if self.slot_of_node[node] == slot} | {number})
        self.slot_of_node[number] = slot
        self.slots.first[slot] = min(number, int(self.slots.first[slot]))

    def _new_slot(self, state: State) -> int:
        slot = self._free.pop() if self._free else self.slots.used
        self.slots.write(slot, state)
        if slot == len(self._count):
            self._count.append(0)
            self._members.append([])
            self._keys = grown(self._keys, slot + 1, fill=INFEASIBLE, axis=1)
        self._slot_of_state[state] = slot
        self.policy.enter(slot)
        self._keys[: len(self.classes), slot] = self._column(slot, state)
        return slot

    def _column(self, slot: int, state: State) -> Keys:
        count = len(self.classes)
        column = self._kept.get(state)
        if column is not None and len(column) == count:
            return column
        if column is None:
            column = self.policy.column(slot, 0)
        else:
            column = np.concatenate([column, self.policy.column(slot, len(column))])
        if (len(self._kept) + 1) * max(count, 1) * column.itemsize > _KEPT_BYTES:
            self._kept.clear()
        self._kept[state] = column
        return column

    # --- classes ----------------------------------------------------------------------------------------------------

    def _class(self, request: Request) -> int:
        number = self.classes.index.get(request)
        if number is not None:
            return number
        if len(self.classes) >= self.most_classes:
            self._forget()
        number = self.classes.add(request)
        self._keys = grown(self._keys, number + 1, fill=INFEASIBLE)
        used = [slot for slot, state in enumerate(self.slots.states) if state is not None]
        if used:
            at = np.array(used, dtype=np.int64)
            self._keys[number, at] = self.policy.row(at, number)
        return number

    def _forget(self) -> None:
        """Keep the newer half of the classes."""
        newer = self.classes.requests[len(self.classes) // 2 :]
        self.classes = Classes(self.kinds, cuts=self.policy.cuts)
        for request in newer:
            self.classes.add(request)
        self._keys[:] = INFEASIBLE
        self.tables_changed()
