"""Sites: sets of devices that would be a wanted shape, and the pods that use them.

A site is k GPUs and j NICs of one node within one scope; emptying it evicts every pod that uses one of its
devices. Sites of a node that evict the same pods and leave the same behind are one.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import reduce
from itertools import combinations
from typing import Final, NamedTuple

from koordra.placement.free_amounts.state import FULL, WHOLE, Choice, FreeAmounts, MachineType, Request, after
from koordra.topology.levels import Level
from koordra.topology.machine_shape import NEAR, DeviceGroup

_MOST_CHOICES: Final = 2_000


class Shape(NamedTuple):
    """What should become free. `scope` is the widest level that may lie between its devices; SYS is the whole
    node."""

    gpus: int
    nics: int = 0
    scope: Level = Level.PXB


class Pod(NamedTuple):
    """A pod that may move, where it is: node by number, GPUs and NICs by position."""

    name: str
    node: int
    request: Request
    gpus: tuple[int, ...]
    nics: tuple[int, ...] = ()


class Site(NamedTuple):
    evicted: tuple[int, ...]
    share: int
    node: int
    gpus: tuple[int, ...]
    nics: tuple[int, ...]


def sites_of(
    kinds: Sequence[MachineType], nodes: Sequence[FreeAmounts], pods: Sequence[Pod], shape: Shape
) -> Iterator[Site]:
    on_node: dict[int, list[int]] = {}
    for number, pod in enumerate(pods):
        on_node.setdefault(pod.node, []).append(number)
    for node, state in enumerate(nodes):
        users = on_node.get(node, [])
        # What is missing of a device without these pods nobody can move away.
        usable = _emptied(state, [pods[number] for number in users])
        best: dict[object, Site] = {}
        for group in groups_of(kinds[state.kind], shape.scope):
            gpus = [at for at, free in enumerate(usable.gpus) if free >= WHOLE and group.gpus >> at & 1]
            nics = [at for at, free in enumerate(usable.nics) if free >= FULL and group.nics >> at & 1]
            for chosen in _choices(gpus, nics, shape, [pods[number] for number in users]):
                evicted = tuple(
                    number
                    for number in users
                    if not set(pods[number].gpus).isdisjoint(chosen[0])
                    or not set(pods[number].nics).isdisjoint(chosen[1])
                )
                share = sum(pods[number].request.share for number in evicted)
                site = Site(evicted, share, node, *chosen)
                left = kept_free(_emptied(state, [pods[number] for number in evicted]), site)
                alike = (evicted, tuple(sorted(left.gpus)), tuple(sorted(left.nics)))
                best.setdefault(alike, site)
        yield from best.values()


def groups_of(kind: MachineType, scope: Level) -> Sequence[DeviceGroup]:
    if kind.shape is None or scope not in NEAR:
        return [DeviceGroup((1 << kind.gpus) - 1, -1)]
    return kind.shape.classes[NEAR.index(scope)]


def _choices(
    gpus: Sequence[int], nics: Sequence[int], shape: Shape, pods: Sequence[Pod]
) -> Iterator[tuple[tuple[int, ...], tuple[int, ...]]]:
    """Choices of devices; with too many of them only those on the devices with the fewest users.

    NICs whose users all go with the GPUs come first: with one that costs more pods instead, the answer would
    be the same with those pods as others.
    """
    if len(gpus) < shape.gpus or len(nics) < shape.nics:
        return
    gpu_users = {at: frozenset(n for n, pod in enumerate(pods) if at in pod.gpus) for at in gpus}
    nic_users = {at: frozenset(n for n, pod in enumerate(pods) if at in pod.nics) for at in nics}
    count = 0
    for chosen in combinations(sorted(gpus, key=lambda at: (len(gpu_users[at]), at)), shape.gpus):
        gone = frozenset[int]().union(*(gpu_users[at] for at in chosen))
        ordered = sorted(nics, key=lambda at: (len(nic_users[at] - gone), at))
        costless = [at for at in ordered if nic_users[at] <= gone][: shape.nics]
        rest = [at for at in ordered if not nic_users[at] <= gone]
        for ports in combinations(rest, shape.nics - len(costless)):
            yield tuple(sorted(chosen)), tuple(sorted((*costless, *ports)))
            count += 1
            if count >= _MOST_CHOICES:
                return


def _emptied(state: FreeAmounts, pods: Sequence[Pod]) -> FreeAmounts:
    return reduce(without, pods, state)


def without(state: FreeAmounts, pod: Pod) -> FreeAmounts:
    taken = pod.request
    given = taken._replace(cpu=-taken.cpu, memory=-taken.memory, milli=-taken.milli, percent=-taken.percent)
    return after(state, given, Choice(pod.gpus, pod.nics))


def kept_free(state: FreeAmounts, site: Site) -> FreeAmounts:
    """The site's devices are spoken for."""
    gpus = tuple(0 if at in site.gpus else free for at, free in enumerate(state.gpus))
    nics = tuple(0 if at in site.nics else free for at, free in enumerate(state.nics))
    return state._replace(gpus=gpus, nics=nics)
