"""Why a group fits nowhere: of each node every reason, in the words of the search that did not find a place
there."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from koordra.allocator.explain.nearest_fit import ClaimReason
from koordra.allocator.reasons import Cause, ClaimRefused, Reason, reason_of
from koordra.api import names
from koordra.placement.decide import NOTHING, Engine, Excluded
from koordra.placement.index import NodeInfo
from koordra.placement.request.claim_groups import ClaimGroup
from koordra.placement.request.request_class import refusals


class Explanation(NamedTuple):
    """By node, in order of their names, with the position of the claim that a reason concerns. `error`: the
    one with which upstream would have ended."""

    reasons: tuple[ClaimReason, ...] = ()
    undecided: bool = False
    error: ClaimRefused | None = None


def explain(
    engine: Engine, group: ClaimGroup, *, excluded: Excluded = NOTHING, nodes: Sequence[str] | None = None
) -> Explanation:
    """Why the group is on none of these nodes (all)."""
    resolved, index = engine.resolve(group), engine.index
    engine.settle()
    placement = engine.placement_for(resolved)
    found: list[ClaimReason] = []
    undecided, error = False, None
    for name in sorted(index.nodes if nodes is None else nodes):
        info = index.nodes[name]
        refused = [excluded[name]] if name in excluded else refusals(engine.index, group, info)
        of_all = refused or _unreadable(engine, info)
        found += [(position, reason) for position in range(len(group.claims)) for reason in of_all]
        if not refused:
            alike = engine.where(resolved, info)
            answer = engine.search(resolved, info, index.taken, placement=placement, alike=alike)
            found += answer.reasons()
            undecided, error = undecided or answer.exhausted, error or answer.error
    return Explanation(tuple(found), undecided, error)


def unlike_nodes(engine: Engine, group: ClaimGroup, *, excluded: Excluded = NOTHING, most: int) -> list[str]:
    """Nodes of which no two have the same reasons, by name: one of every state, `most` of them, and all that
    are excluded."""
    resolved, nodes = engine.resolve(group), engine.index.nodes
    named = engine.pinned(group) if group.allocated else list(nodes)
    found: dict[object, str] = {}
    for name in sorted(named):
        if len(found) >= most:
            break
        if name in nodes and name not in excluded:
            info = nodes[name]
            alone = refusals(engine.index, group, info)
            found.setdefault(name if alone else engine.where(resolved, info), name)
    return [*found.values(), *(name for name in named if name in excluded)]


def _unreadable(engine: Engine, info: NodeInfo) -> list[Reason]:
    """Slices that cannot be read: the node looks as if its devices were not there."""
    pool = (names.DRIVER, info.name)
    if any(one.id == pool for one in info.pools):
        return []
    texts = engine.index.inventory.unreadable.get(pool, {})
    return [reason_of(Cause.POOL_INCOMPLETE, text, info.name) for text in sorted(texts.values())]
