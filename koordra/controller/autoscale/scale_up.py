"""Which new nodes, and how many, would make what waits fit.

    forecast, every group as large as it may be ─▶ what can be served at all
    the last group made as small as still serves all of that, then the one before it ... the first at last

So the first groups are the ones used, in the operator's order (cheapest first), one after the other has as
few nodes as will do beside the others, and a claim that two groups serve together only is served by both.
Every step asks the forecast that `koordra plan` tells: gangs as a whole, levels of the network, quotas,
taints, and the room that there is on other nodes are the controller's own rules. Quotas and whatever else no
node helps against show in the reasons of what waits on although every group is as large as it may be.

Fewer nodes are taken to serve no more than many: numbers between are found by halving.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from koordra.allocator.reasons import Reason
from koordra.controller.autoscale.node_groups import NodeGroup, new_nodes
from koordra.controller.cache.changes import Tables
from koordra.controller.explain.forecast.forecast import Forecast, forecast
from koordra.controller.explain.forecast.intake import Terms
from koordra.controller.explain.view import Planned

Counts = Mapping[str, int]
"""New nodes by the groups' names."""


@dataclass(frozen=True, slots=True)
class Fit:
    """What a claim gets on a new node of the group, or on a node that is there (`group` is None): with the
    rest of its gang."""

    group: str | None
    planned: Planned


@dataclass(frozen=True, slots=True)
class ScaleUp:
    """`counts`: new nodes of every group. `fits`: claims that wait and would have devices then; `waits`:
    those that wait on although every group is as large as it may be, and why. `beyond`: nodes with which
    those in `fits_beyond` would fit if the groups might be larger; empty where none would, or nobody
    asked."""

    counts: Counts
    fits: Mapping[str, Fit]
    waits: Mapping[str, tuple[Reason, ...]]
    beyond: Counts = field(default_factory=dict)
    fits_beyond: Sequence[str] = ()


Foretell = Callable[[Counts], Mapping[str, Planned]]
"""What claims, by key, are given with so many new nodes besides."""


def scale_up(
    cluster: Tables,
    terms: Terms,
    groups: Sequence[NodeGroup],
    *,
    room: Counts | None = None,
    now: Forecast | None = None,
    beyond: bool = False,
    told: int | None = None,
) -> ScaleUp:
    """`room`: how many nodes may be added to each group, where its nodes that are there do not say it.
    `now`: the forecast for the nodes that are there, where somebody has it, of which nothing more can be
    asked then. `beyond`: look also what larger groups would serve. `told`: of so many that wait it is said
    why, of all where None."""
    first = forecast(cluster, terms) if now is None else now
    lacking = first.lacking
    free = {group.name: group.most - len(group.there(cluster)) for group in groups} if room is None else room
    most = {group.name: max(0, min(free[group.name], len(lacking))) for group in groups}
    known = {_key(groups, {}): first.planned}
    top = first.with_besides(new_nodes(groups, most)) if any(most.values()) else first
    known[_key(groups, most)] = top.planned
    still = top.lacking[:told]
    with top.when_done():
        why = {key: top.reasons_of(key).reasons[key] for key in still}

    def foretell(counts: Counts) -> Mapping[str, Planned]:
        key = _key(groups, counts)
        if key not in known:
            known[key] = top.with_besides(new_nodes(groups, counts)).planned
        return known[key]

    counts = _fewest(foretell, groups, most)
    added, served = _new_nodes(groups, counts), foretell(counts)
    fits = {key: Fit(added.get(served[key].node or ""), served[key]) for key in lacking if key in served}
    waits = {key: why.get(key, ()) for key in lacking if key not in fits}
    if not (waits and beyond):
        return ScaleUp(counts, fits, waits)
    larger = {group.name: len(lacking) for group in groups}
    more = [key for key in waits if key in foretell(larger)]
    return ScaleUp(counts, fits, waits, _fewest(foretell, groups, larger) if more else {}, more)


def _key(groups: Sequence[NodeGroup], counts: Counts) -> tuple[int, ...]:
    return tuple(counts.get(group.name, 0) for group in groups)


def _fewest(foretell: Foretell, groups: Sequence[NodeGroup], most: Counts) -> Counts:
    """As few as serve what `most` do."""
    target = foretell(most).keys()

    def serves(counts: Counts) -> bool:
        return target <= foretell(counts).keys()

    counts = dict(most)
    for group in reversed(groups):
        used = _used(group, counts, foretell(counts))
        low, high = 0, used if serves({**counts, group.name: used}) else counts[group.name]
        while low < high:
            middle = (low + high) // 2
            if serves({**counts, group.name: middle}):
                high = middle
            else:
                low = middle + 1
        counts[group.name] = high
    return counts


def _used(group: NodeGroup, counts: Counts, given: Mapping[str, Planned]) -> int:
    """New nodes of the group that somebody has something on."""
    new = _new_nodes([group], counts)
    return len({planned.node for planned in given.values()} & new.keys())


def _new_nodes(groups: Sequence[NodeGroup], counts: Counts) -> dict[str, str]:
    return {
        group.called(number): group.name for group in groups for number in range(counts.get(group.name, 0))
    }
