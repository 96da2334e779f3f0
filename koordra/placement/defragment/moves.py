"""The fewest pods whose move frees a shape: k whole GPUs with j NICs under one switch, or on one node.
Nothing is moved here, and whether the engine finds those places too is asked in `cluster`: free amounts
alone, which this looks at, are the coarser view.

A *site* is k GPUs and j NICs of one scope; emptying it evicts every pod that uses one of them. All evicted
pods must find a place on what is left, the site kept free. Sites are tried in the order of their number of
pods, then of the GPU share that moves.

    lower bound   no answer can have fewer moves than the emptiest site has pods
    direct        the first site in order whose pods all find a place: an upper bound
    with others   for every smaller number: pods elsewhere may be moved as well to make room in a site with
                  fewer pods; all sets of them on a small cluster
    proven        every smaller number of moves was excluded; otherwise `at_least` says how far that got

Finding a place for the evicted is a search: largest first, over nodes in distinct states and GPUs with
distinct free shares, with a budget of steps. Most sets that cannot do are seen by counting (`_suffice`): more
pieces of a size than there is room for pieces of that size. Where a budget ended a branch the answer is not
called proven. Budgets are counted, not timed, so that the answer is the same everywhere.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain, combinations
from typing import Final, NamedTuple

from koordra.placement.defragment.emptying import Pod, Shape, Site, groups_of, kept_free, sites_of, without
from koordra.placement.free_amounts.state import FULL, WHOLE, Choice, FreeAmounts, MachineType, Request, after

STEPS: Final = 20_000
"""Placements tried for one set of evicted pods."""

MOST_SETS: Final = 3_000
"""Sets of pods that are counted, in all; few of them have to be searched."""

MOST_LOOKS: Final = 1_000_000
"""Nodes looked at in search of places, in all."""

_NODES_PER_POD: Final = 24


class Move(NamedTuple):
    pod: Pod
    node: int


@dataclass(frozen=True, slots=True)
class Freed:
    """`moves` free the site. `share` is the GPU (thousandths) that moves; `at_least` moves are needed for
    sure."""

    site: Site
    moves: tuple[Move, ...]
    at_least: int

    @property
    def share(self) -> int:
        return sum(move.pod.request.share for move in self.moves)


def defragment(
    kinds: Sequence[MachineType], nodes: Sequence[FreeAmounts], pods: Sequence[Pod], shape: Shape
) -> Freed | None:
    """The fewest moves found; None where no set of moves that was tried frees the shape."""
    sites = sorted(
        sites_of(kinds, nodes, pods, shape), key=lambda site: (len(site.evicted), site.share, *site[2:])
    )
    # Moves change where something is free, not how much.
    if (
        not sites
        or sum(sum(state.gpus) for state in nodes) < WHOLE * shape.gpus
        or sum(sum(state.nics) for state in nodes) < FULL * shape.nics
    ):
        return None
    search = _Search(kinds, nodes, pods)
    direct, unsure = _direct(search, sites)
    least = at_least = len(sites[0].evicted)
    proven = True
    for count in range(least, len(pods) + 1 if direct is None else len(direct.moves)):
        for site in sites:
            if len(site.evicted) >= count or search.exhausted:
                break
            for others in search.others(site, count - len(site.evicted)):
                moves = search.rehoused(site, (*site.evicted, *others))
                if moves is not None:
                    return Freed(site, tuple(moves), at_least=count if proven else at_least)
        proven = proven and not (search.gave_up or search.exhausted) and count < unsure
        if search.exhausted or (not proven and direct is None and count >= len(sites[-1].evicted)):
            break
        if proven:
            at_least = count + 1
    return None if direct is None else replace(direct, at_least=min(at_least, len(direct.moves)))


def _direct(search: _Search, sites: Sequence[Site]) -> tuple[Freed | None, int]:
    """The first site whose own pods find places, and the number of moves from which that is not certain."""
    unsure = len(search.pods) + 1
    for site in sites:
        moves = search.rehoused(site, site.evicted)
        if moves is not None:
            return Freed(site, tuple(moves), at_least=0), unsure
        if search.gave_up:
            unsure, search.gave_up = min(unsure, len(site.evicted)), False
        if search.exhausted:
            break
    search.looks = min(search.looks, MOST_LOOKS // 2)
    return None, unsure


def shapes_free(kinds: Sequence[MachineType], nodes: Sequence[FreeAmounts], shape: Shape) -> int:
    """How many such shapes are free at once."""
    total = 0
    for state in nodes:
        for group in groups_of(kinds[state.kind], shape.scope):
            gpus = sum(free == WHOLE and group.gpus >> at & 1 for at, free in enumerate(state.gpus))
            nics = sum(free == FULL and group.nics >> at & 1 for at, free in enumerate(state.nics))
            total += min(
                gpus // shape.gpus if shape.gpus else nics, nics // shape.nics if shape.nics else gpus
            )
    return total


class _Search:
    def __init__(
        self, kinds: Sequence[MachineType], nodes: Sequence[FreeAmounts], pods: Sequence[Pod]
    ) -> None:
        self.kinds, self.nodes, self.pods = kinds, nodes, pods
        self.gave_up = False
        self.sets = self.looks = 0
        self._steps = 0
        self._rooms = Counter(chain.from_iterable(map(_rooms, nodes)))
        self._failed: set[tuple[Site, frozenset[int]]] = set()

    @property
    def exhausted(self) -> bool:
        return self.sets >= MOST_SETS or self.looks >= MOST_LOOKS

    def others(self, site: Site, count: int) -> Iterator[tuple[int, ...]]:
        """So many more pods that might be moved as well."""
        if not count:
            yield ()
            return
        free = [
            number
            for number, pod in enumerate(self.pods)
            if number not in site.evicted and (pod.gpus or pod.nics or pod.request.cpu)
        ]
        for chosen in combinations(free, count):
            if self.exhausted:
                self.gave_up = True
                return
            yield chosen

    def rehoused(self, site: Site, evicted: Sequence[int]) -> list[Move] | None:
        """Places for the evicted with the site kept free; None where there are none, or none was found in
        time."""
        signature = (site, frozenset(evicted))
        if signature in self._failed:
            return None
        self.sets += 1
        states, rooms = list(self.nodes), self._rooms.copy()
        leaving = [self.pods[number] for number in evicted]
        for pod in leaving:
            states[pod.node] = without(states[pod.node], pod)
        states[site.node] = kept_free(states[site.node], site)
        for node in {site.node, *(pod.node for pod in leaving)}:
            rooms.subtract(_rooms(self.nodes[node]))
            rooms.update(_rooms(states[node]))
        if not _suffice(rooms, [pod.request for pod in leaving]):
            return None
        self._steps = 0
        moves: list[Move] = []
        leaving.sort(key=lambda pod: (-pod.request.share, -pod.request.percent, -pod.request.cpu))
        if self._place(leaving, states, moves):
            return [move for move in moves if move.pod.node != move.node or move.pod.gpus or move.pod.nics]
        self._failed.add(signature)
        return None

    def _place(self, left: Sequence[Pod], states: list[FreeAmounts], moves: list[Move]) -> bool:
        if not left:
            return True
        pod = left[0]
        for node, state in self._homes(pod, states):
            for choice in ways(state, pod.request):
                self._steps += 1
                if self._steps > STEPS:
                    self.gave_up = True
                    return False
                before = states[node]
                states[node] = after(state, pod.request, choice)
                moves.append(Move(pod, node))
                if self._place(left[1:], states, moves):
                    return True
                moves.pop()
                states[node] = before
        return False

    def _homes(self, pod: Pod, states: Sequence[FreeAmounts]) -> list[tuple[int, FreeAmounts]]:
        """One node of each distinct state that can take the pod, the fullest first."""
        seen: dict[FreeAmounts, int] = {}
        self.looks += len(states)
        if self.looks >= MOST_LOOKS:
            self.gave_up = True
            return []
        for node, state in enumerate(states):
            models = pod.request.models
            if (
                state.cpu >= pod.request.cpu
                and state.memory >= pod.request.memory
                and (not models or self.kinds[state.kind].model in models)
            ):
                seen.setdefault(state, node)
        found = [(node, state) for state, node in seen.items() if any(True for _ in ways(state, pod.request))]
        found.sort(key=lambda entry: (sum(entry[1].gpus), entry[1].cpu, entry[0]))
        if len(found) > _NODES_PER_POD:
            self.gave_up = True
        return found[:_NODES_PER_POD]


def ways(state: FreeAmounts, request: Request) -> Iterator[Choice]:
    """Choices that differ in what they leave: GPUs, and NICs, with the same free amount are alike."""
    gpus = [at for at, free in enumerate(state.gpus) if free >= request.milli]
    nics = [at for at, free in enumerate(state.nics) if free >= request.percent]
    if len(nics) < request.nics:
        return  # Else all sets of GPUs would be gone through in vain.
    for chosen in _distinct(gpus, state.gpus, request.gpus):
        for ports in _distinct(nics, state.nics, request.nics):
            yield Choice(chosen, ports)


def _distinct(positions: Sequence[int], free: Sequence[int], count: int) -> Iterator[tuple[int, ...]]:
    """Sets of so many positions, one for each multiset of what is free there; the fullest first."""
    ordered = sorted(positions, key=lambda at: (free[at], at))
    seen = set()
    for chosen in combinations(ordered, count):
        amounts = tuple(free[at] for at in chosen)
        if amounts not in seen:
            seen.add(amounts)
            yield tuple(sorted(chosen))


Room = tuple[str, int]
"""A GPU or a NIC with so much free, or a node with so many whole GPUs."""


def _rooms(state: FreeAmounts) -> list[Room]:
    whole = sum(free == WHOLE for free in state.gpus)
    return [*(("gpu", free) for free in state.gpus), *(("nic", free) for free in state.nics), ("node", whole)]


def _suffice(rooms: Mapping[Room, int], requests: Sequence[Request]) -> bool:
    """Whether pods may have room, by counting: of every size, no more pieces than there are rooms of that
    size; False is certain.

    GPU shares, NIC shares, and sets of whole GPUs on one node are counted each for itself.
    """
    wanted = {
        "gpu": [(one.milli, one.gpus) for one in requests if one.gpus],
        "nic": [(one.percent, one.nics) for one in requests if one.nics],
        "node": [(one.gpus, 1) for one in requests if one.gpus > 1 and one.milli == WHOLE],
    }
    return all(
        _pieces_fit({free: count for (what, free), count in rooms.items() if what == kind}, pieces)
        for kind, pieces in wanted.items()
        if pieces
    )


def _pieces_fit(free: Mapping[int, int], wanted: Sequence[tuple[int, int]]) -> bool:
    """Of every size asked for: no more pieces as large or larger than there are rooms of that size."""
    return all(
        sum(count for other, count in wanted if other >= size)
        <= sum(count * (amount // size) for amount, count in free.items())
        for size, _ in wanted
        if size
    )
