"""From a gang to its answer.

    members ─▶ classes ┐
    nodes ───▶ kinds ──┼─▶ what each kind takes ─▶ tables over the tree of domains ─▶ counts per node
    labels ──▶ tree ───┘   ─▶ assignments, ranks

    topology       where the gang may stand; what it requires and cannot be had ends here
    node_fit       what each kind of node takes, by the engine's word
    distribution   the best counts, first without a word on rails
    rails          the same on fewer rails
    answer         members get their assignments in order of the fabric, and ranks; or every member is told
                   why not

If the search ran out of budget somewhere and counting does not exclude a placement, the answer is Undecided.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from koordra.allocator.devices.gpu_nic_distance import level_of
from koordra.allocator.explain.grouping import ReasonGroups
from koordra.allocator.reasons import Cause, ClaimRefused, Reason, reason_of
from koordra.placement.decide import Engine
from koordra.placement.gang.equivalence import MemberClass, NodeKinds, classes_of
from koordra.placement.gang.member_assignment import offer_for
from koordra.placement.gang.node_fit import NodeFit
from koordra.placement.gang.node_search import NodeSearch
from koordra.placement.gang.rank_assignment import ranks
from koordra.placement.gang.topology.distribution import Distribution, Found
from koordra.placement.gang.topology.domains import GangTopology, TopologyUnmet
from koordra.placement.gang.topology.packing import cut_at
from koordra.placement.gang.topology.rail_minimization import FewerRails
from koordra.placement.gang.topology.seating import seated
from koordra.placement.gang.topology.units import units_of
from koordra.placement.gang.types import (
    GangAnswer,
    GangPlaced,
    GangRequest,
    GangScore,
    GangUndecided,
    GangUnplaced,
    GangUnsatisfiable,
    NewMember,
    PlacedMember,
)
from koordra.topology.network_topology import NODE

_MOST_ASKED: Final = 24
"""Kinds of nodes that the allocator is asked about for a lone member."""
_NOT_ALL: Final = "one member has room here, but there is no room anywhere for all that are missing"


def place_gang(gang: GangRequest, engine: Engine, *, budget: int = 1) -> GangAnswer:
    """The best placement of the gang's members on the engine's nodes, or why there is none.

    A larger `budget` searches longer before it says Undecided. Nothing is assumed: who writes the answer
    tells the index.
    """
    engine.settle()
    missing = [text for member in gang.members for text in member.group.missing]
    if missing:
        return _nothing(gang, len(gang.fixed), missing[0], {})
    try:
        classes = classes_of(gang.members, engine)
        topology = GangTopology.of(gang, engine.index)
        units = units_of(topology, classes)
    except ClaimRefused as error:
        reasons = {member.key: (error.reason,) for member in gang.members}
        return _nothing(gang, len(gang.fixed), str(error), reasons)
    except TopologyUnmet as error:
        return _nothing(gang, len(gang.fixed), str(error), {}, cause=Cause.TOPOLOGY_SCOPE_UNMET)
    kinds = NodeKinds(units.classes, engine, frozenset(one.node for one in gang.fixed))
    fitting = NodeFit(units.classes, engine, kinds, NodeSearch(engine, budget), budget)
    spread = Distribution(topology, units, fitting, budget, topology.tree({}))
    return _Placing(gang, fitting, topology, FewerRails(gang, fitting, spread, budget)).run()


def _nothing(
    gang: GangRequest,
    most: int,
    text: str,
    reasons: Mapping[str, Sequence[Reason]],
    *,
    cause: Cause = Cause.INSUFFICIENT_CAPACITY,
) -> GangUnplaced:
    head = reason_of(cause, f"gang {gang.name}: {text}")
    answer = GangUndecided if cause is Cause.SEARCH_LIMIT else GangUnsatisfiable
    return answer(most, text, {member.key: (head, *reasons.get(member.key, ())) for member in gang.members})


@dataclass(frozen=True, slots=True)
class _Placing:
    gang: GangRequest
    fitting: NodeFit
    topology: GangTopology
    rails: FewerRails

    def run(self) -> GangAnswer:
        takes = {kind: self.fitting.takes(kind) for kind in self.fitting.kinds.all.values()}
        found = self.rails.spread.packed(takes, None)
        if found.size + len(self.gang.fixed) < self.gang.minimum:
            return self._refused(found.size + len(self.gang.fixed))
        return self._answer(self.rails.reduced(found, takes) if found.counts else found)

    def _answer(self, found: Found) -> GangPlaced:
        engine, placed = self.fitting.engine, list[tuple[NewMember, PlacedMember]]()
        apart = spare = 0
        paths, classes = self.topology.paths, self.fitting.classes
        counts = {node: found.counts[node] for node in paths if node in found.counts}
        for node, seats in seated(self.rails.spread.units, counts, paths).items():
            fit = self.fitting.placed(node, counts[node], found.rails)
            apart, spare = apart + fit.apart, spare + fit.spare
            domains = dict(zip(self.topology.levels, paths[node], strict=False))
            for of, members, assignments in zip(classes, seats, fit.assignments, strict=True):
                for at, assignment in zip(members, assignments, strict=True):
                    member, resolved = of.members[at], of.resolved_groups[at]
                    offer = offer_for(assignment, resolved, node, engine)
                    keys = [claim.key for claim in member.group.claims]
                    given = zip(keys, offer.allocations(pin_to_node=True), strict=True)
                    allocations = {key: one.to_dict() for key, one in given}
                    levels = {key: level_of(offer.devices_of(at)) for at, key in enumerate(keys)}
                    one = PlacedMember(member.key, node, 0, allocations, levels, domains, assignment.rails)
                    placed.append((member, one))
        ranked = ranks(placed, self.gang.fixed)
        done = {one.key for one in ranked}
        used = found.counts.keys() | {one.node for one in self.gang.fixed if one.node in self.topology.paths}
        score = GangScore(
            placed=len(done) + len(self.gang.fixed),
            apart=apart,
            domains=tuple(zip(self.topology.levels, self.topology.used(used), strict=True)),
            opened=found.parts.get("opened", 0),
            nodes=len(used),
            rails=len(self.rails.fixed() | self.rails.used(found)),
            spare=spare,
            cut=tuple(
                (level, found.parts[cut_at(at)])
                for at, level in enumerate((*self.topology.levels, NODE))
                if cut_at(at) in found.parts
            ),
        )
        return GangPlaced(
            members=tuple(ranked),
            left=tuple(member.key for member in self.gang.members if member.key not in done),
            size=score.placed,
            score=score,
            proven=found.proven and not self.fitting.unknown,
        )

    def _refused(self, most: int) -> GangUnplaced:
        """Fewer than the minimum fit, as far as is known."""
        whole, named = len(self.gang.fixed) + len(self.gang.members), self.topology.required_name
        where = f" in one {named}" if named else ""
        enough = f", at least {self.gang.minimum} are needed" if self.gang.minimum != whole else ""
        text = f"{most} of {whole} members fit{where}{enough}"
        reasons: dict[str, list[Reason]] = {}
        for at, one in enumerate(self.fitting.classes):
            reasons |= dict.fromkeys([member.key for member in one.members], self._reasons(one, at))
        cause = Cause.TOPOLOGY_SCOPE_UNMET if named else Cause.INSUFFICIENT_CAPACITY
        if self.fitting.unknown:
            text = f"no placement was found or excluded within the search limit; so far {text}"
            cause = Cause.SEARCH_LIMIT
        return _nothing(self.gang, most, text, reasons, cause=cause)

    def _reasons(self, one: MemberClass, at: int) -> list[Reason]:
        """Why a member of the class is not on the nodes, by clause over all of them. Only where the node
        itself does not refuse, the allocator is asked for devices for one lone member."""
        fitting, kinds, alike = self.fitting, self.fitting.kinds, dict[Hashable, list[str]]()
        for name in sorted(kinds.of):
            key: Hashable = tuple(reason.detail for reason in kinds.refusals[name][at]) or kinds.of[name]
            alike.setdefault(key, []).append(name)
        groups, asked = ReasonGroups(), 0
        lone = tuple(int(position == at) for position in range(len(fitting.classes)))
        for names in alike.values():
            kind, reasons = kinds.of[names[0]], list(kinds.refusals[names[0]][at])
            if not reasons and asked < _MOST_ASKED and one.claims:
                asked += 1
                if fitting.numbers(kind, lone) is not None:
                    reasons = [reason_of(Cause.INSUFFICIENT_CAPACITY, _NOT_ALL, names[0])]
                else:
                    taken = fitting.engine.index.taken
                    answer = fitting.searching.ask(kind.info, one.resolved_groups[0], taken)
                    reasons = [reason for _, reason in answer.reasons()]
            for reason in reasons:
                groups.add(reason, names)
        return list(groups.told())
