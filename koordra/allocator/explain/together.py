"""What all requests of a group ask of one node together, against what the node has: by counting alone."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from decimal import Decimal

from koordra.allocator.allocation_state import AllocationState
from koordra.allocator.explain.rejection import usable_devices
from koordra.allocator.reasons import Cause, ClaimReason, Reason, amount_text, free_text, reason_of
from koordra.allocator.request.requests import RequestAlternative, ResolvedClaim
from koordra.allocator.search.feasibility import Candidates, candidates_of, enough, rooms_of


def count_of(wanted: RequestAlternative, found: Sequence[int] = (0,)) -> int:
    """Devices that the request is for, given those that all of them would be."""
    return len(found) if wanted.takes_all else wanted.spec.count


@dataclass(frozen=True, slots=True)
class Together:
    node: str
    claims: Sequence[ResolvedClaim]

    @property
    def _wanted(self) -> list[RequestAlternative]:
        return [request.alternatives[0] for claim in self.claims for request in claim.requests]

    def short_classes(
        self, state: AllocationState, unused: AllocationState, candidates: Candidates | None
    ) -> Iterator[ClaimReason]:
        """Classes of which all requests together want more devices than there are places: now (`candidates`
        of `state`), or even if nothing were in use."""
        found, ever = candidates or {}, candidates_of(self.claims, unused)
        for name in sorted({wanted.device_class.name for wanted in found}):
            of_class, if_unused = _of_class(name, found), _of_class(name, ever or {})
            if enough(of_class, rooms_of(state, of_class)):
                continue
            if ever is not None and not enough(if_unused, rooms_of(unused, if_unused)):
                reason = self._short_class(name, if_unused, unused, Cause.EXCEEDS_DEVICE)
            else:
                reason = self._short_class(name, of_class, state, Cause.INSUFFICIENT_CAPACITY)
            yield from ((claim, reason) for claim in sorted({wanted.claim for wanted in of_class}))

    def _short_class(self, name: str, of_class: Candidates, state: AllocationState, cause: Cause) -> Reason:
        asked = sum(wanted.spec.count for wanted in of_class)
        there = len({device for devices in of_class.values() for device in devices})
        several = len({wanted.claim for wanted in of_class})
        who = f"by {several} claims that belong together" if several > 1 else "in all"
        clause = f"class {name}: requested {asked} devices on one node {who},"
        has, at_best = f"{there} have room", f"at best {there} have room"
        if cause is Cause.EXCEEDS_DEVICE:
            has, at_best = f"the node has {there}", f"no node has more than {there}"
        asking = [wanted for wanted in self._wanted if wanted.device_class.name == name]
        if any(wanted.spec.capacity for wanted in asking):  # several may have a part of one device
            amounts = _amounts(asking, state, "has" if cause is Cause.EXCEEDS_DEVICE else "free")[1]
            has, at_best = ("; ".join([text, *amounts]) for text in (has, at_best))
        short = max(0.0, 1 - there / asked)
        return Reason(
            self.node, None, None, cause.value, f"{clause} {has}", clause=clause, at_best=at_best, short=short
        )

    def totals(self, state: AllocationState) -> list[ClaimReason]:
        """What is asked for in all and what is free."""
        several = "" if len(self.claims) == 1 else f" of the {len(self.claims)} claims that belong together"
        room, amounts = _amounts(self._wanted, state)
        count = f"devices: requested {sum(map(count_of, self._wanted))}, {room} have room"
        text = f"every request has enough devices by itself, but not all requests{several} at once: "
        reason = reason_of(Cause.INSUFFICIENT_CAPACITY, text + "; ".join([count, *amounts]), self.node)
        return [(position, reason) for position in range(len(self.claims))]


def _of_class(name: str, found: Candidates) -> Candidates:
    return {wanted: devices for wanted, devices in found.items() if wanted.device_class.name == name}


def _amounts(
    alternatives: Sequence[RequestAlternative], state: AllocationState, free_is: str = "free"
) -> tuple[int, list[str]]:
    """Of what is asked for: devices that could serve something; both figures of the capacities that are short
    in all (of all capacities where none is)."""
    asked, free = defaultdict[str, Decimal](Decimal), defaultdict[str, Decimal](Decimal)
    serving: set[int] = set()
    for wanted in alternatives:
        fitting = usable_devices(wanted, state)
        serving.update(fitting)
        demand = state.demand(wanted, fitting[0]) if fitting else None
        for name, amount in demand.amounts.items() if demand else ():
            asked[name] += amount * count_of(wanted)
    for device in serving:
        for name in state.capacity[device]:
            free[name] += state.free(device, name)
    return len(serving), [
        f"{name}: requested {amount_text(name, asked[name])}, {free_is} {free_text(name, free[name], asked=asked[name])}"
        for name in sorted([name for name in asked if asked[name] > free[name]] or asked)
        if asked[name] > 0
    ]
