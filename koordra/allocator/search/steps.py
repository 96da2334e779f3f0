"""One step of the search: a device is given to a request, and taken back.

Everything that a claim may not have is seen to here: what others hold, capacities and counters, constraints,
JointAllocations, partitions of the NVLink fabric, cards beside one by MPS. What a step changed is put back by
the function that it returns.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property
from operator import add

from koordra.allocator import constraints as rules
from koordra.allocator.devices.capacity import Demand
from koordra.allocator.devices.inventory import GPU
from koordra.allocator.devices.nvlink_fabric import PartitionTracker
from koordra.allocator.joint_allocation import RequestKey, ScopeTracker
from koordra.allocator.reasons import Cause, refusal
from koordra.allocator.request.requests import RequestAlternative
from koordra.allocator.search.one_card import Standing
from koordra.allocator.search.partial_choice import PartialChoice
from koordra.allocator.search.remaining_supply import cards_after, cards_taken, nics_after
from koordra.allocator.search.solution import Placed, Position


class DeviceSteps(PartialChoice):
    """A choice that grows and shrinks device by device."""

    @cached_property
    def nics_after(self) -> list[list[int]]:
        return nics_after(self)

    @cached_property
    def cards_after(self) -> list[tuple[int, int]]:
        return cards_after(self)

    def needed(self, wanted: RequestAlternative) -> int:
        """How many devices the request needs."""
        return len(self.all_of(wanted)) if wanted.takes_all else wanted.spec.count

    def place(
        self, wanted: RequestAlternative, device: int, member: RequestKey, at: Position, *, must: bool
    ) -> Callable[[], None] | None:
        """Give the device to the request; returns how to take it back, None when it cannot be given."""
        state, claim = self.state, wanted.claim
        admin = wanted.spec.admin_access
        if not admin and (state.busy[device] or self.allocating.get(device)):
            return None
        if admin and not state.shared[device] and claim in self.allocating.get(device, ()):
            return None
        if (member, device) in self.by_request:
            # The devices of one request are different ones, also where a device can be shared.
            return None
        verdict = state.verdict(wanted, device)
        if verdict.error:
            self._err(wanted, verdict.cause or Cause.SELECTOR_ERROR, verdict.detail)
        if verdict.demand is None or verdict.cause is not None:
            return None
        if state.pools[state.pool_of[device]].trouble:
            return None
        demand = verdict.demand
        if not admin and not state.has_room(device, demand):
            return None
        counted = state.counters_for(device) if self.clauses.counters else {}
        if counted is None:
            return None
        new_states = self._constraints_with(wanted, device)
        if new_states is None:
            if must:
                why = "because a claim constraint would not be satisfied"
                detail = f"cannot add device {state.devices[device].id} {why}"
                self._err(wanted, Cause.CONSTRAINT_VIOLATED, detail)
            return None
        standing = self.one_card.after(wanted, device, demand) if self.one_card else None
        if standing is False:
            return None
        offered = state.devices[device]
        rest = self.needed(wanted) - at.placed - 1
        nics_rest = rest if offered.kind != GPU else 0
        tallies = []
        for tally, after in zip(self.tallies, self.nics_after, strict=True):
            if member not in tally.rule.members:
                continue
            if not tally.allows(offered, nics_to_come=after[at.request] + nics_rest):
                return None
            tallies.append(tally)
        partitions = self.demanded if self.takes_card(claim, device, demand) else None
        if partitions is not None:
            fewest, most = map(add, self.cards_after[at.request], cards_taken(self, wanted, rest))
            if not partitions.allows(claim, device, fewest=fewest, most=most):
                return None
        return self._apply(
            wanted,
            device,
            demand,
            counted=counted,
            new_states=new_states,
            tallies=tallies,
            partitions=partitions,
            standing=standing,
        )

    def _apply(
        self,
        wanted: RequestAlternative,
        device: int,
        demand: Demand,
        *,
        counted: dict[tuple[str, str], int],
        new_states: list[rules.State],
        tallies: Sequence[ScopeTracker],
        partitions: PartitionTracker | None,
        standing: Standing,
    ) -> Callable[[], None]:
        """The step taken: what it changes of capacities, counters, constraints, JointAllocations and
        partitions."""
        state, claim = self.state, wanted.claim
        shared, offered = state.shared[device], state.devices[device]
        counters = state.counters[state.pool_of[device]]
        old_states = self.constraint_states[claim]
        old_used, old_part = state.used[device], state.parts[device]
        self.constraint_states[claim] = new_states
        self.placed.append(Placed(wanted, device, demand if shared else Demand({}), shared))
        self.per_claim[claim] += 1
        for name, amount in counted.items():
            counters[name] -= amount
        if shared and not wanted.spec.admin_access:
            used = dict(old_used)
            for capacity, amount in demand.nano.items():
                used[capacity] = used.get(capacity, 0) + amount
            state.used[device] = used
            state.parts[device] = state.part(device, used)
            state.holders[device] += 1
        elif not shared:
            self.allocating.setdefault(device, []).append(claim)
        for tally in tallies:
            tally.add(offered)
        once = ((claim, wanted.request), device)
        self.by_request.add(once)
        if partitions is not None:
            partitions.add(claim, device)
        stood = self._stand(claim, standing)

        def undo() -> None:
            self.by_request.remove(once)
            self._stand(claim, stood)
            if partitions is not None:
                partitions.remove(claim, device)
            for tally in tallies:
                tally.remove(offered)
            if shared and not wanted.spec.admin_access:
                state.used[device], state.parts[device] = old_used, old_part
                state.holders[device] -= 1
            elif not shared:
                self.allocating[device].pop()
            for name, amount in counted.items():
                counters[name] += amount
            self.per_claim[claim] -= 1
            self.placed.pop()
            self.constraint_states[claim] = old_states

        return undo

    def _stand(self, claim: int, standing: Standing) -> Standing:
        """Put the claim's standing in place of the one that it answers."""
        if self.one_card is None:
            return None
        before, self.one_card.standings[claim] = self.one_card.standings[claim], standing
        return before

    def _constraints_with(self, wanted: RequestAlternative, device: int) -> list[rules.State] | None:
        states = list(self.constraint_states[wanted.claim])
        for index, constraint in enumerate(self.constraints[wanted.claim]):
            if constraint.covers(wanted.base, wanted.sub):
                values = self.values_of(wanted.claim, index, device)
                after = rules.after(constraint, states[index], values)
                if after is None:
                    return None
                states[index] = after
        return states

    def all_of(self, wanted: RequestAlternative) -> list[int]:
        """The devices of an `All` request: all that match and could hold the demand when idle."""
        found = self.all_devices.get(wanted)
        if found is not None:
            return found
        for pool in self.state.pools:
            if pool.trouble:
                what = "currently being updated" if pool.incomplete else f"currently invalid: {pool.trouble}"
                raise refusal(
                    self.claims[wanted.claim].claim.key,
                    Cause.POOL_INCOMPLETE,
                    f"asks for all devices, but resource pool {pool} is {what}",
                    request=wanted.label,
                )
        found = []
        for device in range(len(self.state.devices)):
            verdict = self.state.verdict(wanted, device)
            if verdict.error:
                self._err(wanted, Cause.SELECTOR_ERROR, verdict.detail)
            if verdict.demand is not None:
                found.append(device)
        self.all_devices[wanted] = found
        return found

    def _err(self, wanted: RequestAlternative, cause: Cause, detail: str) -> None:
        """End as upstream does, or remember the error for the case that nothing fits."""
        error = refusal(self.claims[wanted.claim].claim.key, cause, detail, request=wanted.label)
        if self.strict:
            raise error
        self.forced_error = self.forced_error or error
