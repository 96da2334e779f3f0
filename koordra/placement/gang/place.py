"""From a gang to its answer.

    members ─▶ classes ┐
    nodes ───▶ kinds ──┼─▶ what each kind takes ─▶ tables over the tree of domains ─▶ counts per node ─▶ seats, ranks
    labels ──▶ tree ───┘

    scope       where the gang may stand; what it requires and cannot be had ends here
    fitting     what each kind of node takes
    spreading   the best counts, first without a word on rails
    rails       the same on fewer rails
    answer      members get their seats in order of the fabric, and ranks; or every member is told why not

If the search ran out of budget somewhere and counting does not exclude a placement, the answer is Undecided.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from koordra.allocator.features import Features
from koordra.allocator.reasons import Cause, ClaimRefused, Reason
from koordra.allocator.score import policy_of
from koordra.api import objects
from koordra.api.claims import DeviceClass
from koordra.errors import InvalidManifest
from koordra.placement.gang.member_assignment import seated
from koordra.placement.gang.member_classes import classes_of, natural
from koordra.placement.gang.node_fit import Fitting
from koordra.placement.gang.rank_assignment import ranks
from koordra.placement.gang.reasons import refusals_of
from koordra.placement.gang.result_cache import Remembered
from koordra.placement.gang.topology.constraint import Scope
from koordra.placement.gang.topology.distribution import Found, Spreading
from koordra.placement.gang.topology.rail_minimization import FewerRails
from koordra.placement.gang.types import (
    Gang,
    GangAnswer,
    GangNode,
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
    gang: Gang,
    nodes: Mapping[str, GangNode],
    classes: Mapping[str, Mapping[str, Any]],
    *,
    fabric: NetworkLevels | None = None,
    policy: str = "koordra",
    features: str | Iterable[str] | None = None,
    memory: Remembered | None = None,
    budget: int = 1,
) -> GangAnswer:
    """The best placement of the gang's members on the nodes, or why there is none.

    `classes`  DeviceClasses by name
    `memory`   answers of nodes, kept by who plans often
    `budget`   a larger one searches longer before it says Undecided
    Raises PlanError for an unknown policy or gate.
    """
    fitting = Fitting(
        classes_of(gang.members),
        nodes,
        {name: _read(entry) for name, entry in classes.items()},
        Features.of(features),
        policy_of(policy),
        Remembered() if memory is None else memory,
        budget,
    )
    scope = Scope(gang, nodes, fabric or NetworkLevels(), fitting.memory)
    spreading = Spreading(gang, scope, fitting, budget)
    placing = _Placing(gang, fitting, scope, spreading, FewerRails(gang, fitting, spreading, budget))
    try:
        return placing.run()
    except ClaimRefused as error:
        return placing.nothing(
            len(gang.fixed), str(error), {member.key: (error.reason,) for member in gang.members}
        )


def _read(entry: Mapping[str, Any]) -> DeviceClass | InvalidManifest:
    try:
        return DeviceClass.from_dict(entry)
    except InvalidManifest as error:
        return error


@dataclass(slots=True)
class _Placing:
    gang: Gang
    fitting: Fitting
    scope: Scope
    spreading: Spreading
    rails: FewerRails

    def run(self) -> GangAnswer:
        if not self.gang.members:
            return self._nobody()
        why = self.scope.look()
        if why:
            return self.nothing(len(self.gang.fixed), why, {}, cause=Cause.TOPOLOGY_SCOPE_UNMET)
        self.fitting.kinds.look(frozenset(one.node for one in self.gang.fixed))
        takes = {kind: self.fitting.takes(kind) for kind in self.fitting.kinds.example}
        found = self.spreading.packed(takes, None)
        if found is None:
            return self._told()
        return self._answer(self.rails.sought(found, takes))

    def _nobody(self) -> GangAnswer:
        """A gang of which all are placed already has nothing to ask for."""
        size = len(self.gang.fixed)
        if size < self.gang.minimum:
            return self.nothing(
                size, f"{size} of {size} members fit, at least {self.gang.minimum} are needed", {}
            )
        nodes = len({one.node for one in self.gang.fixed})
        return GangPlaced((), (), size, GangScore(size, 0, (), 0, nodes, len(self.rails.fixed()), 0))

    def _answer(self, found: Found) -> GangPlaced:
        waiting = [iter(one.members) for one in self.fitting.classes]
        placed: list[tuple[Member, PlacedMember]] = []
        for node in sorted(
            found.counts, key=lambda name: (tuple(map(natural, self.scope.places[name])), natural(name))
        ):
            fit = self.fitting.placed(node, found.counts[node], found.rails)
            for members, seats in zip(waiting, fit.seats, strict=True):
                for seat in seats:
                    member = next(members)
                    allocations = seated(seat, member, example=fit.node, node=node)
                    levels = {
                        objects.key(claim): level
                        for claim, level in zip(member.claims, seat.levels, strict=True)
                    }
                    domains = dict(zip(self.scope.levels, self.scope.places[node], strict=False))
                    placed.append(
                        (member, PlacedMember(member.key, node, 0, allocations, levels, domains, seat.rails))
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

    def _told(self) -> GangAnswer:
        """Fewer than the minimum fit, as far as is known."""
        whole = len(self.gang.fixed) + len(self.gang.members)
        required, levels = self.scope.required, self.scope.levels
        where = (
            f" in one {levels[required] if required < len(levels) else NODE}" if required is not None else ""
        )
        enough = f", at least {self.gang.minimum} are needed" if self.gang.minimum < whole else ""
        text = f"{self.spreading.most} of {whole} members fit{where}{enough}"
        if self.spreading.most >= self.gang.minimum and not self.fitting.unknown:
            text += ", but not all that are indispensable"
        reasons = {}
        for at, one in enumerate(self.fitting.classes):
            told = refusals_of(self.fitting, one, at, most=_MOST_TOLD)
            for member in one.members:
                reasons[member.key] = tuple(told)
        cause = Cause.INSUFFICIENT_CAPACITY if required is None else Cause.TOPOLOGY_SCOPE_UNMET
        return self.nothing(self.spreading.most, text, reasons, cause=cause)

    def nothing(
        self,
        most: int,
        text: str,
        reasons: Mapping[str, Sequence[Reason]],
        *,
        cause: Cause = Cause.INSUFFICIENT_CAPACITY,
    ) -> GangUnsatisfiable | GangUndecided:
        if self.fitting.unknown:
            text = f"no placement was found or excluded within the search limit; so far {text}"
            cause = Cause.SEARCH_LIMIT
        head = Reason(None, None, None, cause.value, f"gang {self.gang.name}: {text}")
        told = {member.key: (head, *reasons.get(member.key, ())) for member in self.gang.members}
        return (
            GangUndecided(most, text, told) if self.fitting.unknown else GangUnsatisfiable(most, text, told)
        )
