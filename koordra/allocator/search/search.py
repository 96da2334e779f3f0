"""The search on one node: complete, in upstream's order, over all claims of a pod at once.

The question. A group of claims (those of one pod) needs devices. Claims have requests, a request has
alternatives (one, or the entries of firstAvailable), an alternative needs a number of devices or all that
match. Find devices for everything such that no device is used beyond what it has, counters suffice, and every
constraint and JointAllocation holds.

The walk. Depth first, with a stack of generators instead of recursion (a group may need hundreds of devices).
A position is (request, alternative, how many of its devices are there). At each position the candidates are
tried in the node's device order; placing a device updates counts, counters and constraint states, taking it
back restores them. The first complete choice is upstream's choice, since the order of requests, alternatives
and devices is upstream's.

What keeps it fast. None of this loses a solution:

1. Bounds before the walk (`feasibility.py`): devices whose attribute values cannot satisfy a matchAttribute
   are left out, and requests are matched against devices as a whole; when that fails there is no solution.
2. Remembered states. Two partial choices that leave the same devices free, with the same standing towards
   every constraint, have the same completions, so a position is entered once per state. States are compared
   up to symmetry (`symmetry.py`): eight equal switch groups of which one is half used are one state,
   whichever it is. Of devices that are interchangeable in a state only the first is tried.
3. A claim that has more devices than a claim may have is left at once for the last request with another
   alternative.
4. A JointAllocation counts what is still lacking and stops a branch when too few NICs are to come; where
   partitions of the NVLink fabric are demanded (`nvlink_fabric.py`), a branch stops when a claim's cards fit
   into none.

Scored policies. The walk goes on after the first solution; every complete choice is given to the objective,
which depends only on the final state up to symmetry, so entering each state once still sees the best one. At
request boundaries a branch ends when whatever completes it costs no less than the best so far, or more than
the ceiling (`lower_bound.py`); the first of equals is the answer as it would be without bounds. What was cut
off for the ceiling is told as a bound, never as "does not fit": that is proved without one. Requests that
constraints tie together are then placed next to each other, which keeps the number of states small; results
are put back in order.

The budget counts placements tried. Exhausted without a solution, the answer is "undecided"; exhausted with
one, the best so far is the answer.
"""

from __future__ import annotations

from collections.abc import Generator, Hashable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from koordra.allocator.allocation_state import AllocationState
from koordra.allocator.reasons import Cause, refusal
from koordra.allocator.request.requests import ResolvedClaim
from koordra.allocator.score import Cost
from koordra.allocator.search.device_tree import Orbits
from koordra.allocator.search.lower_bound import LowerBound
from koordra.allocator.search.partial_choice import Clauses
from koordra.allocator.search.solution import NOTHING, CostPair, Outcome, Placed, Position
from koordra.allocator.search.steps import DeviceSteps
from koordra.allocator.search.symmetry import Symmetry
from koordra.api.claims import MAX_RESULTS
from koordra.effort import spend

BUDGET: Final = 20_000
"""Placements tried before the answer is "undecided"; whoever is asked again tries twice as many."""

MOST_BUDGET: Final = 80_000
"""Placements beyond which they are not doubled any more."""

REFINEMENT: Final = 30_000
"""Placements tried in search of a better solution once there is one."""

_PATIENCE: Final = 16
"""Dead ends before first fit starts to remember states: the plain cases never pay for it."""


@dataclass(slots=True)
class _Best:
    """The best placement so far. Only what costs less than `limit` is of interest; what was cut off costs
    `cut` at least."""

    limit: CostPair | None
    placed: tuple[Placed, ...] | None = None
    cut: CostPair | None = None

    def may_improve(self, least: CostPair) -> bool:
        """Whether a placement that costs at least so much is of interest; if not, that is noted."""
        if self.limit is None or least < self.limit:
            return True
        self.cut = least if self.cut is None else min(self.cut, least)
        return False

    def offer(self, placed: Sequence[Placed], cost: CostPair) -> None:
        if self.may_improve(cost):
            self.placed, self.limit = tuple(placed), cost

    def outcome(self, *, exhausted: bool = False) -> Outcome:
        if self.placed is None:
            return Outcome(None, exhausted=exhausted, bound=None if exhausted else self.cut)
        assert self.limit is not None
        return Outcome(self.placed, self.limit, exhausted=exhausted)


class Search(DeviceSteps):
    """One walk over one node for one group of claims.

    `codes`: numbers of the forms of partial choices, which searches for one group share. `ceiling`: only
    placements that cost less are of interest. `counted`: what counting said (`feasibility.enough`), once it
    has.

    `settled`: all complete choices cost the same (`feasibility.settled`).
    `in_any_order`: any solution will do, so that requests may be taken in the order that is found fastest.
    """

    def __init__(
        self,
        claims: Sequence[ResolvedClaim],
        state: AllocationState,
        clauses: Clauses,
        *,
        objective: Cost | None = None,
        in_any_order: bool = False,
        budget: int = BUDGET,
        codes: dict[Hashable, int] | None = None,
    ) -> None:
        scored = objective is not None
        super().__init__(claims, state, clauses, scored=scored, strict=not (scored or in_any_order))
        self.settled = False
        self.objective = objective
        self.ceiling: CostPair | None = None
        self.counted: bool | None = None
        self.budget = budget
        self.tried = 0
        self._told = 0
        self.symmetry: Symmetry | None = None
        self.codes: dict[Hashable, int] = {} if codes is None else codes
        self._orbits: Orbits | None = None
        self.too_many: int | None = None
        self._stack: list[Generator[Position, None, None]] = []
        self._lower_bound: LowerBound | None = None

    # --- the walk -------------------------------------------------------------------------------------------

    def run(self) -> Outcome:
        """The first solution, or with an objective the one of least cost. Raises ClaimRefused where upstream
        errs."""
        best = _Best(None if self.objective is None else self.ceiling)
        entered: set[tuple[object, ...]] = set()
        dead_ends = 0
        limit = self.budget
        thorough = not self.strict and not self.settled
        start = Position(0)
        self.check_beforehand()
        if start.request >= len(self.requests):
            return Outcome((), self.objective(self) if self.objective else NOTHING)
        stack = self._stack
        stack.append(self._moves(start))
        while stack:
            following = next(stack[-1], None)
            if self.tried > limit:
                return best.outcome(exhausted=True)
            if following is None:
                stack.pop()
                dead_ends += 1
                continue
            if following.request >= len(self.requests):
                if not self._holds():
                    dead_ends += 1
                    continue
                if self.objective is None:
                    return Outcome(tuple(self.placed))
                if best.placed is None:
                    limit = min(limit, self.tried + REFINEMENT)
                best.offer(self.placed, self.objective(self))
                if self.settled:
                    break
                continue
            bounded = following.alternative is None and (best.limit is not None or dead_ends > _PATIENCE)
            if bounded and self._is_cut(following, best):
                dead_ends += 1
                continue
            fresh = following.alternative is not None or self.requests[following.request][2].prioritized
            if fresh and (thorough or dead_ends > _PATIENCE):
                key = self._key(following)
                if key in entered:
                    continue
                entered.add(key)
            else:
                self._orbits = None
            stack.append(self._moves(following))
        return best.outcome()

    def _is_cut(self, at: Position, best: _Best) -> bool:
        """Whether nothing from this request boundary on fits, or is of interest."""
        least = self.least(at.request)
        return least is None or not best.may_improve(least)

    def least(self, request: int) -> CostPair | None:
        """What any completion costs at least when this request is the next to be served; None where there is
        none."""
        if self.objective is None:
            return CostPair()
        if self._lower_bound is None:
            self._lower_bound = LowerBound(self, self.objective)
        return self._lower_bound.at(self, request) if self._lower_bound.usable else CostPair()

    def _holds(self) -> bool:
        """Whether a complete choice meets what bounds along the way only kept possible."""
        if self.demanded is not None and not self.demanded.complete():
            return False
        return all(tally.complete() for tally in self.tallies)

    def unwind(self) -> None:
        """Take every step back, so that the node's state is as it was."""
        while self._stack:
            self._stack.pop().close()
        spend(self.tried - self._told)
        self._told = self.tried

    def check_beforehand(self) -> None:
        """What upstream finds before it searches: `All` requests it cannot count, and claims that ask for too
        much."""
        for claim in self.claims:
            least = sum(
                min(self.needed(wanted) for wanted in request.alternatives) for request in claim.requests
            )
            if least > MAX_RESULTS:
                detail = f"number of requested devices {least} exceeds the claim limit of {MAX_RESULTS}"
                raise refusal(claim.claim.key, Cause.EXCEEDS_DEVICE, detail)

    def _moves(self, at: Position) -> Generator[Position, None, None]:
        """Positions one step further. Each is yielded with its step taken; resuming takes the step back."""
        claim, index, request = self.requests[at.request]
        orbits, tried_orbits = self._orbits, set[Hashable]()
        if at.alternative is None:
            yield from self._alternatives(at)
            return
        wanted = request.alternatives[at.alternative]
        devices = self.all_of(wanted) if wanted.takes_all else None
        if devices is not None:
            device = devices[at.placed]
            candidates: Sequence[int] = (device,)
        else:
            candidates = self.candidates.get(wanted, range(len(self.state.devices)))
        for device in candidates:
            if orbits is not None:
                orbit = orbits.of(device)
                if orbit in tried_orbits:
                    continue
                tried_orbits.add(orbit)
            self.tried += 1
            undo = self.place(wanted, device, (claim, index), at, must=devices is not None)
            if undo is None:
                continue
            try:
                yield from self._onward(Position(at.request, at.alternative, at.placed + 1))
            finally:
                undo()
            too_many, self.too_many = self.too_many, None
            if too_many == claim:
                # No other device makes the claim smaller; only another alternative does.
                self.too_many = claim
                return

    def _alternatives(self, at: Position) -> Iterator[Position]:
        """The first position of each alternative. Tells the frames below when the claim is too large with any
        of them."""
        claim, _, request = self.requests[at.request]
        all_too_many = True
        for number, wanted in enumerate(request.alternatives):
            if request.prioritized:
                self.tried += 1
            if self.per_claim[claim] + self.needed(wanted) > MAX_RESULTS:
                continue
            yield from self._onward(Position(at.request, number))
            all_too_many = all_too_many and self.too_many == claim
            self.too_many = None
        if all_too_many:
            self.too_many = claim

    def _onward(self, at: Position) -> Iterator[Position]:
        """The position itself, or the next request's once this one has all its devices."""
        assert at.alternative is not None
        wanted = self.requests[at.request][2].alternatives[at.alternative]
        needed = self.needed(wanted)
        if at.placed >= needed:
            if needed or not wanted.takes_all:
                yield Position(at.request + 1)
        else:
            yield at

    def _key(self, at: Position) -> tuple[object, ...]:
        """The state as the search compares it; leaves the orbits for the moves from here."""
        if self.symmetry is None:
            self.symmetry = Symmetry(self, self.codes)
        form, self._orbits = self.symmetry.form(self, at)
        return (at, form)

    def start_form(self) -> tuple[object, ...]:
        """The canonical form of the untouched node: nodes with equal forms have equal answers."""
        form = self._key(Position(0))
        self._orbits = None
        return form
