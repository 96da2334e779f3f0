"""From a gang to its answer.

    members ─▶ classes ┐
    nodes ───▶ kinds ──┼─▶ what each kind takes ─▶ tables over the tree of domains ─▶ counts per node ─▶ assignments, ranks
    labels ──▶ tree ───┘

    scope          where the gang may stand; what it requires and cannot be had ends here
    node_fit       what each kind of node takes, by the engine's word
    distribution   the best counts, first without a word on rails
    rails          the same on fewer rails
    answer         members get their assignments in order of the fabric, and ranks; or every member is told why not

If the search ran out of budget somewhere and counting does not exclude a placement, the answer is Undecided.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from koordra.allocator.devices.gpu_nic_distance import level_of
from koordra.allocator.reasons import Cause, ClaimRefused, Reason
from koordra.placement.decide import Engine
from koordra.placement.gang.member_assignment import offer_for
from koordra.placement.gang.member_classes import MemberClass, classes_of, natural
from koordra.placement.gang.node_fit import NodeFit
from koordra.placement.gang.rank_assignment import ranks
from koordra.placement.gang.topology.distribution import Distribution, Found
from koordra.placement.gang.topology.domains import Scope
from koordra.placement.gang.topology.rail_minimization import FewerRails
from koordra.placement.gang.types import (
    Gang,
    GangAnswer,
    GangPlaced,
    GangScore,
    GangUndecided,
    GangUnsatisfiable,
    Member,
    PlacedMember,
)
from koordra.topology.network_topology import NODE, NetworkLevels

_MOST_TOLD: Final = 24


def place_gang(
    gang: Gang, engine: Engine, *, fabric: NetworkLevels | None = None, budget: int = 1
) -> GangAnswer:
    """The best placement of the gang's members on the engine's nodes, or why there is none.

    A larger `budget` searches longer before it says Undecided. Nothing is assumed: who writes the answer tells the index.
    """
    engine.settle()
    try:
        missing = [text for member in gang.members for text in member.group.missing]
        if missing:
            return _nothing(gang, len(gang.fixed), missing[0], {})
        fitting = NodeFit(classes_of(gang.members, engine), engine, budget)
        scope = Scope(gang, engine.index, fabric or NetworkLevels())
        spread = Distribution(gang, scope, fitting, budget)
        return _Placing(gang, fitting, scope, spread, FewerRails(gang, fitting, spread, budget)).run()
    except ClaimRefused as error:
        return _nothing(
            gang, len(gang.fixed), str(error), {member.key: (error.reason,) for member in gang.members}
        )


def _nothing(
    gang: Gang,
    most: int,
    text: str,
    reasons: Mapping[str, Sequence[Reason]],
    *,
    cause: Cause = Cause.INSUFFICIENT_CAPACITY,
) -> GangUnsatisfiable:
    head = Reason(None, None, None, cause.value, f"gang {gang.name}: {text}")
    return GangUnsatisfiable(
        most, text, {member.key: (head, *reasons.get(member.key, ())) for member in gang.members}
    )


@dataclass(slots=True)
class _Placing:
    gang: Gang
    fitting: NodeFit
    scope: Scope
    spread: Distribution
    rails: FewerRails

    def run(self) -> GangAnswer:
        if not self.gang.members:
            return self._nobody()
        why = self.scope.find()
        if why:
            return _nothing(self.gang, len(self.gang.fixed), why, {}, cause=Cause.TOPOLOGY_SCOPE_UNMET)
        self.fitting.kinds.find(frozenset(one.node for one in self.gang.fixed))
        takes = {kind: self.fitting.takes(kind) for kind in self.fitting.kinds.example}
        found = self.spread.packed(takes, None)
        if found is None:
            return self._refused()
        return self._answer(self.rails.reduced(found, takes))

    def _nobody(self) -> GangAnswer:
        """A gang of which all are placed already has nothing to ask for."""
        size = len(self.gang.fixed)
        if size < self.gang.minimum:
            text = f"{size} of {size} members fit, at least {self.gang.minimum} are needed"
            return _nothing(self.gang, size, text, {})
        nodes = len({one.node for one in self.gang.fixed})
        return GangPlaced((), (), size, GangScore(size, 0, (), 0, nodes, len(self.rails.fixed()), 0))

    def _answer(self, found: Found) -> GangPlaced:
        waiting = [iter(zip(one.members, one.resolved_groups, strict=True)) for one in self.fitting.classes]
        engine, placed = self.fitting.engine, list[tuple[Member, PlacedMember]]()
        for node in sorted(
            found.counts, key=lambda name: (tuple(map(natural, self.scope.places[name])), natural(name))
        ):
            fit = self.fitting.placed(node, found.counts[node], found.rails)
            domains = dict(zip(self.scope.levels, self.scope.places[node], strict=False))
            for members, assignments in zip(waiting, fit.assignments, strict=True):
                for assignment in assignments:
                    member, resolved = next(members)
                    offer = offer_for(assignment, resolved, node, engine)
                    keys = [claim.key for claim in member.group.claims]
                    given = offer.allocations(pin_to_node=True)
                    allocations = {key: one.to_dict() for key, one in zip(keys, given, strict=True)}
                    levels = {key: level_of(offer.devices_of(at)) for at, key in enumerate(keys)}
                    placed.append(
                        (
                            member,
                            PlacedMember(member.key, node, 0, allocations, levels, domains, assignment.rails),
                        )
                    )
        ranked = ranks(placed, self.gang.fixed)
        done = {one.key for one in ranked}
        return GangPlaced(
            members=tuple(ranked),
            left=tuple(member.key for member in self.gang.members if member.key not in done),
            size=len(done) + len(self.gang.fixed),
            score=self._score(found),
            proven=found.proven and not self.fitting.unknown,
            remark=self.scope.remark,
        )

    def _score(self, found: Found) -> GangScore:
        used = set(found.counts) | {one.node for one in self.gang.fixed if one.node in self.scope.places}
        fits = [self.fitting.placed(node, count, found.rails) for node, count in found.counts.items()]
        rules = self.scope.rules(())
        return GangScore(
            placed=found.size + len(self.gang.fixed),
            apart=sum(fit.apart for fit in fits),
            domains=tuple(
                (self.scope.levels[at], len({self.scope.places[node][: at + 1] for node in used}))
                for at in rules.levels
            ),
            opened=found.opened,
            nodes=len(used),
            rails=len(self.rails.fixed() | self.rails.used(found)),
            spare=sum(fit.spare for fit in fits),
        )

    def _refused(self) -> GangUnsatisfiable | GangUndecided:
        """Fewer than the minimum fit, as far as is known."""
        whole, most = len(self.gang.fixed) + len(self.gang.members), self.spread.most
        required, levels = self.scope.required, self.scope.levels
        where = (
            f" in one {levels[required] if required < len(levels) else NODE}" if required is not None else ""
        )
        enough = f", at least {self.gang.minimum} are needed" if self.gang.minimum < whole else ""
        text = f"{most} of {whole} members fit{where}{enough}"
        cause = Cause.INSUFFICIENT_CAPACITY if required is None else Cause.TOPOLOGY_SCOPE_UNMET
        told = [self._reasons(one, at) for at, one in enumerate(self.fitting.classes)]
        reasons = {
            member.key: own
            for one, own in zip(self.fitting.classes, told, strict=True)
            for member in one.members
        }
        if self.fitting.unknown:
            text = f"no placement was found or excluded within the search limit; so far {text}"
            found = _nothing(self.gang, most, text, reasons, cause=Cause.SEARCH_LIMIT)
            return GangUndecided(found.most, found.text, found.reasons)
        if most >= self.gang.minimum:
            text += ", but not all that are indispensable"
        return _nothing(self.gang, most, text, reasons, cause=cause)

    def _reasons(self, one: MemberClass, at: int) -> list[Reason]:
        """Why a member of the class is not on the nodes: nodes that say the same words are told once, and so is every kind. Only where
        the node itself does not refuse, the allocator is asked for devices for one lone member."""
        kinds, found = self.fitting.kinds, list[Reason]()
        told: set[Hashable] = set()
        lone = tuple(int(position == at) for position in range(len(self.fitting.classes)))
        for name in sorted(kinds.of):
            if len(told) >= _MOST_TOLD:
                break
            kind, refusals = kinds.of[name], kinds.refusals[name][at]
            key: Hashable = tuple(reason.detail for reason in refusals) or kind
            if key in told:
                continue
            told.add(key)
            if refusals:
                found += [replace(reason, node=name) for reason in refusals]
            elif one.claims and self.fitting.numbers(kind, lone) is None:
                answer = self.fitting.searching.ask(name, one.resolved_groups[0])
                found += [reason for _, reason in answer.reasons()]
        return found
