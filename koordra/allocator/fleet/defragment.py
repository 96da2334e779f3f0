"""The fewest pods whose move frees a shape: k whole GPUs with j NICs under one switch, or on one node. Nothing is moved here.

A *site* is k GPUs and j NICs of one scope; emptying it evicts every pod that uses one of them. All evicted pods must find a place
on what is left, the site kept free. Sites are tried in the order of their number of pods, then of the GPU share that moves.

    lower bound   no answer can have fewer moves than the emptiest site has pods
    direct        the first site in order whose pods all find a place
    with others   if sites with fewer pods failed, some other pods may be moved as well to make room: tried by exchanging up to
                  the difference, all subsets on a small cluster
    proven        every smaller number of moves was excluded; otherwise `at_least` says how far that got

Finding a place for the evicted is a search: largest first, over nodes in distinct states and GPUs with distinct free shares,
with a budget of steps. Where the budget ended a branch the answer is not called proven.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Final, NamedTuple

from koordra.allocator.fleet.states import FULL, WHOLE, Choice, Kind, Request, State, after
from koordra.topology.levels import Level
from koordra.topology.shapes import NEAR, Group

STEPS: Final = 20_000
"""Placements tried for one set of evicted pods."""

MOST_SETS: Final = 5_000
"""Sets of pods whose places are searched, in all."""

_MOST_CHOICES: Final = 2_000
_NODES_PER_POD: Final = 24


class Shape(NamedTuple):
    """What should become free. `scope` is the widest level that may lie between its devices; SYS is the whole node."""

    gpus: int
    nics: int = 0
    scope: Level = Level.PXB


class Pod(NamedTuple):
    """A pod where it is: node by number, GPUs and NICs by position."""

    name: str
    node: int
    request: Request
    gpus: tuple[int, ...]
    nics: tuple[int, ...] = ()
    movable: bool = True


class Move(NamedTuple):
    pod: Pod
    node: int


@dataclass(frozen=True, slots=True)
class Freed:
    """`moves` free the shape on `node`. `share` is the GPU (thousandths) that moves; `at_least` moves are needed for sure."""

    node: int
    gpus: tuple[int, ...]
    nics: tuple[int, ...]
    moves: tuple[Move, ...]
    at_least: int

    @property
    def proven(self) -> bool:
        return len(self.moves) == self.at_least

    @property
    def share(self) -> int:
        return sum(move.pod.request.share for move in self.moves)


class _Site(NamedTuple):
    evicted: tuple[int, ...]
    share: int
    node: int
    gpus: tuple[int, ...]
    nics: tuple[int, ...]


def defragment(
    kinds: Sequence[Kind], nodes: Sequence[State | None], pods: Sequence[Pod], shape: Shape
) -> Freed | None:
    """The fewest moves found; None where no set of moves that was tried frees the shape."""
    sites = sorted(
        _sites(kinds, nodes, pods, shape), key=lambda site: (len(site.evicted), site.share, *site[2:])
    )
    if not sites:
        return None
    search = _Search(kinds, nodes, pods)
    least = len(sites[0].evicted)
    most = len(pods)
    proven = True
    for count in range(least, most + 1):
        for site in sites:
            if len(site.evicted) > count:
                break
            for others in search.others(site, count - len(site.evicted)):
                moves = search.rehoused(site, (*site.evicted, *others))
                if moves is not None:
                    return Freed(
                        site.node, site.gpus, site.nics, tuple(moves), at_least=count if proven else least
                    )
        proven = proven and not search.gave_up
        least = count + 1 if proven else least
        if search.exhausted and count >= len(sites[-1].evicted):
            return None
    return None


def _sites(
    kinds: Sequence[Kind], nodes: Sequence[State | None], pods: Sequence[Pod], shape: Shape
) -> Iterator[_Site]:
    on_node: dict[int, list[int]] = {}
    for number, pod in enumerate(pods):
        on_node.setdefault(pod.node, []).append(number)
    for node, state in enumerate(nodes):
        if state is None:
            continue
        users = on_node.get(node, [])
        usable = _usable(state, [pods[number] for number in users])
        best: dict[object, _Site] = {}
        for group in _groups(kinds[state.kind], shape.scope):
            gpus = [at for at in usable[0] if group.gpus >> at & 1]
            nics = [at for at in usable[1] if group.nics >> at & 1]
            for chosen in _choices(gpus, nics, shape, [pods[number] for number in users]):
                evicted = tuple(
                    number
                    for number in users
                    if not set(pods[number].gpus).isdisjoint(chosen[0])
                    or not set(pods[number].nics).isdisjoint(chosen[1])
                )
                if all(pods[number].movable for number in evicted):
                    share = sum(pods[number].request.share for number in evicted)
                    site = _Site(evicted, share, node, *chosen)
                    left = _kept_free(_emptied(state, [pods[number] for number in evicted]), site)
                    alike = (evicted, tuple(sorted(left.gpus)), tuple(sorted(left.nics)))
                    best.setdefault(alike, site)
        yield from best.values()


def _usable(state: State, pods: Sequence[Pod]) -> tuple[list[int], list[int]]:
    """GPUs and NICs that would be entirely free without these pods; what else is missing nobody can move away."""
    gpus, nics = list(state.gpus), list(state.nics)
    for pod in pods:
        for at in pod.gpus:
            gpus[at] += pod.request.milli
        for at in pod.nics:
            nics[at] += pod.request.percent
    return (
        [at for at, free in enumerate(gpus) if free >= WHOLE],
        [at for at, free in enumerate(nics) if free >= FULL],
    )


def _groups(kind: Kind, scope: Level) -> Sequence[Group]:
    if kind.shape is None or scope not in NEAR:
        return [Group((1 << kind.gpus) - 1, -1)]
    return kind.shape.classes[NEAR.index(scope)]


def _choices(
    gpus: Sequence[int], nics: Sequence[int], shape: Shape, pods: Sequence[Pod]
) -> Iterator[tuple[tuple[int, ...], tuple[int, ...]]]:
    """Choices of devices; with too many of them only those on the devices with the fewest users."""
    if len(gpus) < shape.gpus or len(nics) < shape.nics:
        return
    users = [sum(at in pod.gpus for pod in pods) for at in range(max(gpus, default=0) + 1)]
    nic_users = [sum(at in pod.nics for pod in pods) for at in range(max(nics, default=0) + 1)]
    ordered = sorted(gpus, key=lambda at: (users[at], at))
    nics_ordered = sorted(nics, key=lambda at: (nic_users[at], at))
    count = 0
    for chosen in combinations(ordered, shape.gpus):
        for ports in combinations(nics_ordered, shape.nics):
            yield tuple(sorted(chosen)), tuple(sorted(ports))
            count += 1
            if count >= _MOST_CHOICES:
                return


class _Search:
    """Finds places for evicted pods, and counts what that costs."""

    def __init__(self, kinds: Sequence[Kind], nodes: Sequence[State | None], pods: Sequence[Pod]) -> None:
        self.kinds, self.nodes, self.pods = kinds, nodes, pods
        self.gave_up = False
        self.sets = 0
        self._steps = 0
        self._failed: set[tuple[int, tuple[int, ...], tuple[int, ...], frozenset[int]]] = set()

    @property
    def exhausted(self) -> bool:
        return self.sets >= MOST_SETS

    def others(self, site: _Site, count: int) -> Iterator[tuple[int, ...]]:
        """So many more pods that might be moved as well."""
        if not count:
            yield ()
            return
        free = [
            number
            for number, pod in enumerate(self.pods)
            if number not in site.evicted and pod.movable and (pod.gpus or pod.nics or pod.request.cpu)
        ]
        for chosen in combinations(free, count):
            if self.exhausted:
                self.gave_up = True
                return
            yield chosen

    def rehoused(self, site: _Site, evicted: Sequence[int]) -> list[Move] | None:
        """Places for the evicted with the site kept free; None where there are none, or none was found in time."""
        signature = (site.node, site.gpus, site.nics, frozenset(evicted))
        if signature in self._failed:
            return None
        self.sets += 1
        states = {at: state for at, state in enumerate(self.nodes) if state is not None}
        for number in evicted:
            pod = self.pods[number]
            states[pod.node] = _without(states[pod.node], pod)
        states[site.node] = _kept_free(states[site.node], site)
        order = sorted(
            evicted,
            key=lambda number: (
                -self.pods[number].request.share,
                -self.pods[number].request.percent,
                -self.pods[number].request.cpu,
                number,
            ),
        )
        self._steps = 0
        moves: list[Move] = []
        if self._place(order, states, moves):
            return [move for move in moves if move.pod.node != move.node or move.pod.gpus or move.pod.nics]
        self._failed.add(signature)
        return None

    def _place(self, left: Sequence[int], states: dict[int, State], moves: list[Move]) -> bool:
        if not left:
            return True
        pod = self.pods[left[0]]
        for node, state in self._homes(pod, states):
            for choice in _ways(state, pod.request):
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

    def _homes(self, pod: Pod, states: Mapping[int, State]) -> list[tuple[int, State]]:
        """One node of each distinct state that can take the pod, the fullest first."""
        seen: dict[State, int] = {}
        for node, state in states.items():
            if state.cpu < pod.request.cpu or state.memory < pod.request.memory:
                continue
            if pod.request.models and self.kinds[state.kind].model not in pod.request.models:
                continue
            seen.setdefault(state, node)
        found = [
            (node, state) for state, node in seen.items() if any(True for _ in _ways(state, pod.request))
        ]
        found.sort(key=lambda entry: (sum(entry[1].gpus), entry[1].cpu, entry[0]))
        if len(found) > _NODES_PER_POD:
            self.gave_up = True
        return found[:_NODES_PER_POD]


def _ways(state: State, request: Request) -> Iterator[Choice]:
    """Choices that differ in what they leave: GPUs, and NICs, with the same free amount are alike."""
    gpus = [at for at, free in enumerate(state.gpus) if free >= request.milli] if request.gpus else []
    nics = [at for at, free in enumerate(state.nics) if free >= request.percent] if request.nics else []
    if len(gpus) < request.gpus or len(nics) < request.nics:
        return
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


def _emptied(state: State, pods: Sequence[Pod]) -> State:
    for pod in pods:
        state = _without(state, pod)
    return state


def _without(state: State, pod: Pod) -> State:
    request = pod.request
    return after(
        state,
        request._replace(
            cpu=-request.cpu, memory=-request.memory, milli=-request.milli, percent=-request.percent
        ),
        Choice(pod.gpus, pod.nics),
    )._replace(tags=state.tags)


def _kept_free(state: State, site: _Site) -> State:
    """The site's devices are spoken for."""
    gpus = tuple(0 if at in site.gpus else free for at, free in enumerate(state.gpus))
    nics = tuple(0 if at in site.nics else free for at, free in enumerate(state.nics))
    return state._replace(gpus=gpus, nics=nics)
