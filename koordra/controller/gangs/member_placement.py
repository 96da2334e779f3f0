"""Places for the members of a gang: what `koordra.placement.gang` is asked, and what becomes of its answer.
Pure.

    groups     members that share an unallocated claim have one node between them, so they are one to the
               allocator
    fixed      members that have their devices: new ones are placed beside them
    excluded   nodes that must not be used: refused by the scheduler, reserved for others, ports, affinity and
               spread of pods that are there

What the allocator cannot see is affinity, spread and ports *between* the members. So its answer is gone
through, member by member, as if those before had come; where that shows an obstacle, places are looked for
one by one, which knows them: in the domains of that answer where a level is required, else without regard to
the fabric.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from itertools import chain
from typing import Any, Final

from koordra.allocator.reasons import Cause, ClaimRefused, Reason, reason_of
from koordra.api import objects
from koordra.controller import claims as claims_of
from koordra.controller.allocation.interpod_predicates import reads_other_pods
from koordra.controller.allocation.placer import Placer
from koordra.controller.allocation.waiting_reasons import GroupPlacement
from koordra.controller.cache.fabrics import Fabrics
from koordra.controller.cache.groups import Group, GroupIndex
from koordra.controller.gangs.declared.parts import fabric_request
from koordra.controller.gangs.live.ranks import known_ranks
from koordra.controller.gangs.membership import Gang, Member
from koordra.controller.gangs.phase import GangPhase, GangStatus, places
from koordra.effort import is_spent
from koordra.errors import PlanError, SelectorsCostTooMuch
from koordra.placement import gang as placement
from koordra.placement.decide import Excluded
from koordra.placement.gang.rank_assignment import ranks
from koordra.placement.request.claim_groups import ClaimGroup

ExcludedFor = Callable[[Group], Excluded]

_ELSEWHERE: Final = "others of its gang are in another domain of the level that is required"
_SPENT: Final = "no placement was found or excluded within what one gang may cost a pass"


@dataclass(frozen=True, slots=True)
class PlacementRequest:
    """A gang, as the engine is asked for its places, the groups of its members by key, and what keeps each of
    them off nodes."""

    gang: Gang
    status: GangStatus
    asked: placement.GangRequest
    groups: Mapping[str, Group]
    excluded: ExcludedFor
    placer: Placer
    seats: Mapping[str, placement.KeptSeat]

    def place(self, *, budget: int = 1, without: frozenset[str] = frozenset()) -> placement.GangAnswer:
        """The cluster's places in a pass. `without`: uids of claims and pods as if they were gone."""
        if is_spent():
            return placement.GangUndecided(len(self.asked.fixed), _SPENT, {})
        with self.placer.overlay(without) if without else nullcontext():
            return placement.with_least_of_each(self.asked, partial(self._place, budget=budget))

    def _place(self, asked: placement.GangRequest, *, budget: int) -> placement.GangAnswer:
        try:
            answer = placement.place_in_seats(asked, self.seats, self.placer.engine, budget=budget)
        except SelectorsCostTooMuch as error:
            return placement.GangUndecided(len(self.asked.fixed), str(error), {})
        except PlanError as error:  # a taint rule that cannot be read concerns everybody
            return placement.GangUnsatisfiable(len(self.asked.fixed), str(error), {})
        if isinstance(answer, placement.GangPlaced) and self._is_obstructed(answer):
            return self._one_by_one(asked, answer)
        return answer

    def without(self, gone: frozenset[str]) -> placement.GangAnswer:
        return self.place(without=gone)

    def _is_obstructed(self, answer: placement.GangPlaced) -> bool:
        """Whether a member has no place beside those before it, for reasons that lie between pods."""
        if not any(reads_other_pods(pod) for group in self.groups.values() for pod in group.pods):
            return False
        with self.placer.overlay():
            for placed in answer.members:
                group = self.groups[placed.key]
                if placed.node in self.excluded(group):
                    return True
                self._assume(group, placed.allocations)
        return False

    def _one_by_one(
        self, gang: placement.GangRequest, together: placement.GangPlaced
    ) -> placement.GangAnswer:
        """Each group where it fits best beside those before it; those that ask the most first. Another domain
        than that of the answer `together` might have room: what is not found so is not known."""
        homes = placement.homes_of(gang, together, self.placer.engine.index)
        undecided = homes is not None
        chosen: dict[str, GroupPlacement] = {}
        reasons: dict[str, tuple[Reason, ...]] = {}
        with self.placer.overlay():
            for seat in self.seats.values():
                self.placer.engine.index.release(seat.held)
            for member in sorted(gang.members, key=lambda each: -placement.devices_asked(each.group.claims)):
                group = self.groups[member.key]
                if is_spent():
                    undecided = True
                    break
                if homes is not None and member.key not in homes:
                    continue
                if group.pending:
                    found = self.placer.place(
                        group, self._kept(group, None if homes is None else homes[member.key])
                    )
                else:
                    nodes = {node for claim in group.placed if (node := claims_of.node_of(claim)) is not None}
                    found = GroupPlacement(nodes.pop() if len(nodes) == 1 else None)
                if found.node is None and member.group.claims:
                    undecided = undecided or found.undecided
                    reasons[member.key] = tuple(dict.fromkeys(chain(*found.reasons.values())))
                    continue
                chosen[member.key] = found
                self._assume(group, found.allocations)
        size, fixed = len(gang.fixed) + len(chosen), gang.fixed
        is_cut = homes is not None and len(chosen) < len(homes)
        if size < gang.minimum or not chosen or is_cut:
            text = f"{size} of {len(fixed) + len(gang.members)} members fit, {gang.minimum} are needed"
            unplaced = placement.GangUndecided if undecided else placement.GangUnsatisfiable
            return unplaced(size, text, reasons)
        placed = [
            (member, placement.PlacedMember(member.key, one.node or "", 0, one.allocations, one.levels, {}))
            for member in gang.members
            if (one := chosen.get(member.key)) is not None
        ]
        nodes = {one.node for _, one in placed} | {one.node for one in fixed}
        score = placement.GangScore(size, 0, domains=(), opened=0, nodes=len(nodes - {""}), rails=0, spare=0)
        left = tuple(member.key for member in gang.members if member.key not in chosen)
        return placement.GangPlaced(tuple(ranks(placed, fixed)), left, size, score, proven=False)

    def _kept(self, group: Group, home: frozenset[str] | None) -> Excluded:
        """Nodes that the group is kept off: outside of its home, too."""
        excluded = self.excluded(group)
        if home is None:
            return excluded
        elsewhere = reason_of(Cause.TOPOLOGY_SCOPE_UNMET, _ELSEWHERE)
        return {**dict.fromkeys(self.placer.nodes.keys() - home, elsewhere), **excluded}

    def _assume(self, group: Group, allocations: Mapping[str, Mapping[str, Any]]) -> None:
        for claim in group.pending:
            allocation = allocations.get(objects.key(claim))
            if allocation is not None:
                self.placer.assume(claims_of.with_allocation(claim, allocation), group.pods)


def request_for(
    gang: Gang,
    status: GangStatus,
    placer: Placer,
    *,
    excluded: ExcludedFor,
    seats: Mapping[str, placement.KeptSeat],
    unfit: ExcludedFor,
    fabrics: Fabrics,
) -> PlacementRequest:
    """`seats`: what is held for members, by their keys. A node that is kept free for others is none for a new
    place, and no hindrance for what was given out before: only where it is `unfit` does a seat not count.
    `fabrics`: which levels there are."""
    asking = (*status.plan, *status.coming)
    groups = {objects.key(group.pods[0]): group for group in _colocated(asking)}
    planned = {member.uid for member in asking}
    positions = _positions((*gang.members, *status.coming))
    known = known_ranks(gang)
    fixed = tuple(
        _fixed(member, known, positions)
        for member in gang.members
        if (member.is_committed or member.is_placed) and member.uid not in planned
        if _node_of(member) is not None
    )
    is_shared = any(len(group.pods) > 1 for group in groups.values())
    least = len(groups) if is_shared else min(status.needed + len(status.coming), len(groups))
    members = tuple(
        placement.NewMember(
            key,
            _read(group, placer),
            index=positions.get(uid := objects.uid(group.pods[0])),
            rank=known.get(uid),
            excluded=excluded(group),
        )
        for key, group in groups.items()
    )
    fitting = {
        key: seat for key, seat in seats.items() if key in groups and seat.node not in unfit(groups[key])
    }
    topology = gang.terms.topology
    levels = fabrics.levels_for(topology.words, topology.labels)
    fabric = fabric_request(topology, (*gang.members, *status.coming), levels)
    asked = placement.GangRequest(
        gang.key,
        members,
        len(fixed) + least,
        fixed,
        required=fabric.required,
        preferred=fabric.preferred,
        parts=fabric.parts,
        levels=fabric.levels,
        least_of=() if is_shared else _least_of(gang, status, {one.key for one in fixed}),
    )
    return PlacementRequest(gang, status, asked, groups, excluded, placer, fitting)


def _fixed(member: Member, ranks: Mapping[str, int], positions: Mapping[str, int]) -> placement.Fixed:
    """A launcher without devices runs wherever kube-scheduler puts it, at its start too: the others are not
    bound to its place."""
    return placement.Fixed(
        member.key,
        (_node_of(member) if member.ours or objects.spec_of(member.pod).get("resourceClaims") else None)
        or "",
        tuple(filter(claims_of.is_allocated, member.ours)),
        rank=ranks.get(member.uid),
        index=positions.get(member.uid),
    )


def _least_of(gang: Gang, status: GangStatus, fixed: Container[str]) -> tuple[placement.LeastOf, ...]:
    """Of roles that have too few (where members are placed one by one, none has), and of parts that the gang
    may do without: these are placed with what they lack or not at all."""
    have = {member.uid for member in gang.members if member.key in fixed}
    key_of = {member.uid: member.key for member in (*status.plan, *status.coming)}
    found = []
    for role in gang.terms.roles if status.phase is not GangPhase.GROWING else ():
        inside = frozenset(key_of[uid] for uid in role.pods & key_of.keys())
        if least := min(role.lacks(have), len(inside)):
            found.append(placement.LeastOf(role.name, inside, least))
    for part in gang.terms.topology.parts:
        inside = frozenset(key_of[uid] for uid in part.pods & key_of.keys())
        if part.size is not None and inside and (lacks := part.size - len(part.pods & have)) > 1:
            found.append(placement.LeastOf(part.name, inside, lacks, or_none=True))
    return tuple(found)


def _positions(members: Iterable[Member]) -> dict[str, int]:
    """By uid, of those that the workload numbers."""
    numbered = [(member.index, member.uid) for member in members if member.index is not None]
    return {uid: at for at, (_, uid) in enumerate(sorted(numbered))}


def _colocated(members: Iterable[Member]) -> list[Group]:
    """Members that share a claim that waits, in the order given; so are the groups, by first members."""
    index, order = GroupIndex(), dict[str, int]()
    for member in members:
        order[member.uid] = len(order)
        index.update(member.uid, member.claims)
    joined, _ = index.settle({})
    groups = [
        Group(tuple(sorted(group.members, key=lambda one: order[objects.uid(one.pod)]))) for group in joined
    ]
    return sorted(groups, key=lambda group: order[group.key])


def _read(group: Group, placer: Placer) -> ClaimGroup:
    """As the engine reads it. Of a claim that cannot be read, why."""
    try:
        return placer.group(group)
    except ClaimRefused as error:
        return ClaimGroup((), group.pods, missing=(str(error),))


def _node_of(member: Member) -> str | None:
    """Where the member is, or where its devices will bring it."""
    return objects.spec_of(member.pod).get("nodeName") or min(places(member), default=None)
