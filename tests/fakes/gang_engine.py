"""A cluster's plain objects as `place_gang` sees them: the engine that plans on them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from koordra.api.claims import ResourceClaim
from koordra.api.objects import Fields
from koordra.placement import engine_for
from koordra.placement.candidates.node_scoring import ScoringStrategy
from koordra.placement.decide import Engine
from koordra.placement.gang import GangScore, NewMember
from koordra.placement.manifests import Manifests
from koordra.placement.request.claim_groups import ClaimGroup


def gang_engine(
    manifests: Iterable[Fields], *, policy: str = "koordra", scoring: ScoringStrategy | None = None
) -> Engine:
    """Allocated claims hold what they say, bound pods load their node."""
    engine = engine_for(policy=policy, scoring=scoring)
    Manifests.of(manifests).fill(engine.index)
    return engine


def member(key: str, pods: Sequence[Fields], claims: Sequence[Fields] = (), **more: Any) -> NewMember:
    """A member by its plain objects."""
    return NewMember(key, ClaimGroup(tuple(map(ResourceClaim.from_dict, claims)), tuple(pods)), **more)


def order_of(score: GangScore) -> tuple[int, ...]:
    """By which scores are compared; less is better."""
    counts = tuple(count for _, count in score.domains)
    return (-score.placed, score.apart, *counts, score.opened, score.nodes, score.rails, score.spare)
