"""Places for the members of a gang: what `koordra.placement.gang` is shown, and what becomes of its answer. Pure.

    colocated  members that share an unallocated claim have one node between them, so they are one to the allocator
    fixed      members that have their devices: new ones are placed beside them
    nodes      every node with what holds its devices and takes its room now; each colocated set comes with the nodes that are
               excluded for it: refused by the scheduler, reserved for others, ports, affinity and spread of pods that are there

What the allocator cannot see is affinity, spread and ports *between* the members. So its answer is gone through, member by
member, as if those before had come; where that shows an obstacle, places are looked for one by one, which knows them, and
without regard to the fabric. The same is done where no allocator for gangs is given.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from koordra.allocator.reasons import ClaimRefused, Reason
from koordra.api import objects
from koordra.api.claims import ResourceClaim
from koordra.controller import claims as claims_of
from koordra.controller.allocation.pod_terms import host_ports
from koordra.controller.cache.groups import Group
from koordra.controller.gangs.membership import Gang, Member, index_of
from koordra.controller.gangs.phase import GangStatus, places
from koordra.controller.placer import GroupPlacement, Placer
from koordra.errors import PlanError
from koordra.placement import gang as asked
from koordra.placement.decide import Excluded
from koordra.placement.gang.rank_assignment import ranks
from koordra.placement.request import groups as placement_groups

ExcludedFor = Callable[[Group], Excluded]

Place = Callable[..., asked.GangAnswer]
"""`koordra.placement.gang.place_gang`."""

_BETWEEN_PODS: Final = ("podAffinity", "podAntiAffinity")


@dataclass(frozen=True, slots=True)
class ColocatedMembers:
    """Members that have to be on one node."""

    members: tuple[Member, ...]

    @property
    def key(self) -> str:
        return self.members[0].key

    @property
    def group(self) -> Group:
        return Group(tuple(member.claims for member in self.members if member.claims is not None))

    @property
    def pinned(self) -> frozenset[str] | None:
        found = {
            node
            for member in self.members
            if member.claims is not None
            for claim in (*member.claims.ours, *member.claims.others)
            if (node := claims_of.node_of(claim)) is not None
        }
        if not found:
            return None
        return frozenset(found) if len(found) == 1 else frozenset()


def colocated_members(members: Iterable[Member]) -> list[ColocatedMembers]:
    """In the order of their first members."""
    home: dict[str, int] = {}
    joined: dict[int, list[Member]] = {}
    for position, member in enumerate(members):
        keys = [objects.key(claim) for claim in (member.claims.pending if member.claims is not None else ())]
        met = sorted({home[key] for key in keys if key in home})
        target = met[0] if met else position
        gathered = joined.setdefault(target, [])
        for other in met[1:]:
            gathered += joined.pop(other)
        gathered.append(member)
        for inside in gathered:
            pending = inside.claims.pending if inside.claims is not None else ()
            home.update((objects.key(claim), target) for claim in pending)
    return [ColocatedMembers(tuple(joined[position])) for position in sorted(joined)]


def question(
    gang: Gang, status: GangStatus, placer: Placer, *, excluded: ExcludedFor
) -> tuple[asked.Gang, dict[str, ColocatedMembers]]:
    """The gang as the engine is asked, and the colocated members by key."""
    colocated = colocated_members(status.plan)
    planned = {member.uid for member in status.plan}
    fixed = tuple(
        asked.Fixed(
            member.key,
            node,
            tuple(claim for claim in member.claims.ours if claims_of.is_allocated(claim))
            if member.claims
            else (),
            rank=rank_of(member),
            index=index_of(member.pod),
        )
        for member in gang.members
        if (member.is_committed or member.is_placed) and member.uid not in planned
        if (node := node_of(member)) is not None
    )
    shared = any(len(together.members) > 1 for together in colocated)
    least = len(colocated) if shared else min(status.needed, len(colocated))
    members = tuple(
        asked.Member(
            together.key,
            _group(together, placer),
            index=index_of(together.members[0].pod),
            excluded=excluded(together.group),
        )
        for together in colocated
    )
    whole = asked.Gang(gang.key, members, len(fixed) + least, fixed, required=gang.terms.topology)
    return whole, {together.key: together for together in colocated}


def _group(together: ColocatedMembers, placer: Placer) -> placement_groups.Group:
    """As the engine reads it. Of a claim that cannot be read, why."""
    try:
        return placer.group(together.group)
    except ClaimRefused as error:
        return placement_groups.Group((), together.group.pods, missing=(str(error),))


def node_of(member: Member) -> str | None:
    """Where the member is, or where its devices will bring it."""
    bound = objects.spec_of(member.pod).get("nodeName")
    if bound:
        return str(bound)
    return next(iter(sorted(places(member))), None)


def rank_of(member: Member) -> int | None:
    """The rank that its allocation carries."""
    for claim in member.claims.ours if member.claims is not None else ():
        for entry in ((claims_of.allocation(claim) or {}).get("devices") or {}).get("config") or ():
            parameters = (entry.get("opaque") or {}).get("parameters") or {}
            if parameters.get("kind") == "GangMember" and isinstance(parameters.get("rank"), int):
                return int(parameters["rank"])
    return None


class MemberPlacement:
    """Finds places in the cluster as it is in a pass. Not thread-safe."""

    def __init__(self, placer: Placer, *, place: Place | None) -> None:
        self._placer = placer
        self._place = place

    def place(
        self,
        whole: asked.Gang,
        colocated: Mapping[str, ColocatedMembers],
        *,
        excluded: ExcludedFor,
        budget: int = 1,
        without: frozenset[str] = frozenset(),
    ) -> asked.GangAnswer:
        """`without`: uids of claims and pods as if they were gone."""
        if without:
            with self._placer.overlay(without):
                return self.place(whole, colocated, excluded=excluded, budget=budget)
        if self._place is not None:
            try:
                answer = self._place(whole, self._placer.engine, budget=budget)
            except PlanError as error:  # a taint rule that cannot be read concerns everybody
                return asked.GangUnsatisfiable(len(whole.fixed), str(error), {})
            if not (
                isinstance(answer, asked.GangPlaced) and self._is_obstructed(answer, colocated, excluded)
            ):
                return answer
        return self._one_by_one(whole, colocated, excluded)

    def _is_obstructed(
        self, answer: asked.GangPlaced, colocated: Mapping[str, ColocatedMembers], excluded: ExcludedFor
    ) -> bool:
        """Whether a member has no place beside those before it, for reasons that lie between pods."""
        if not any(_looks_at_others(pod) for together in colocated.values() for pod in together.group.pods):
            return False
        with self._placer.overlay():
            for placed in answer.members:
                together = colocated[placed.key]
                if placed.node in excluded(together.group):
                    return True
                self._come(together, placed.node, placed.allocations)
        return False

    def _one_by_one(
        self, whole: asked.Gang, colocated: Mapping[str, ColocatedMembers], excluded: ExcludedFor
    ) -> asked.GangAnswer:
        """Each colocated set where it fits best beside those before it; those that ask the most first."""
        chosen: dict[str, GroupPlacement] = {}
        reasons: dict[str, tuple[Reason, ...]] = {}
        undecided = False
        with self._placer.overlay():
            for member in sorted(whole.members, key=lambda each: -_asks(each.group.claims)):
                together = colocated[member.key]
                found = self._offer(together, excluded(together.group))
                if found.node is None and member.group.claims:
                    undecided = undecided or found.undecided
                    reasons[member.key] = tuple(
                        dict.fromkeys(reason for told in found.reasons.values() for reason in told)
                    )
                    continue
                chosen[member.key] = found
                self._come(together, found.node, found.allocations)
        total = len(whole.fixed) + len(chosen)
        if total < whole.minimum or not chosen:
            text = (
                f"{total} of {len(whole.fixed) + len(whole.members)} members fit, {whole.minimum} are needed"
            )
            if undecided:
                return asked.GangUndecided(total, text, reasons)
            return asked.GangUnsatisfiable(total, text, reasons)
        return _placed(whole, chosen)

    def _offer(self, together: ColocatedMembers, kept: Excluded) -> GroupPlacement:
        if together.group.pending:
            return self._placer.place(together.group, kept)
        pinned = together.pinned
        return GroupPlacement(next(iter(pinned)) if pinned else None)

    def _come(
        self, together: ColocatedMembers, node: str | None, allocations: Mapping[str, Mapping[str, Any]]
    ) -> None:
        for claim in together.group.pending:
            taken = allocations.get(objects.key(claim))
            if taken is not None:
                status = {**objects.status_of(claim), "allocation": taken}
                self._placer.assume({**claim, "status": status}, together.group.pods)


def _placed(whole: asked.Gang, chosen: Mapping[str, GroupPlacement]) -> asked.GangPlaced:
    placed = [
        (
            member,
            asked.PlacedMember(member.key, found.node or "", 0, found.allocations, found.levels, {}),
        )
        for member in whole.members
        if (found := chosen.get(member.key)) is not None
    ]
    members = tuple(ranks(placed, whole.fixed))
    size = len(whole.fixed) + len(members)
    nodes = {entry.node for entry in members} | {fixed.node for fixed in whole.fixed}
    score = asked.GangScore(size, apart=0, domains=(), opened=0, nodes=len(nodes - {""}), rails=0, spare=0)
    left = tuple(member.key for member in whole.members if member.key not in chosen)
    return asked.GangPlaced(members, left, size, score, proven=False)


def _looks_at_others(pod: Mapping[str, Any]) -> bool:
    spec = objects.spec_of(pod)
    affinity = spec.get("affinity") or {}
    between = any(affinity.get(name) for name in _BETWEEN_PODS)
    return bool(between or spec.get("topologySpreadConstraints") or host_ports(spec))


def _asks(claims: Sequence[ResourceClaim]) -> int:
    """Roughly how much: the number of devices."""
    requests = [request for claim in claims for request in claim.requests]
    return sum(request.alternatives[0].count for request in requests if request.alternatives)
