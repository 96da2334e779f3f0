"""Why a group does not fit on a node: per device and request, and the clause that all of it together fails.

First what each device says by itself (selector, taint, in use, no room, counters; `device_reason.py`). Devices of another class
than the one asked for are not told where some devices are of the class. A request with fewer usable devices than it needs is
the whole story. Otherwise the devices would do one by one, and the clause that stands in the way is looked for by taking clauses
away (`relaxation.py`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from decimal import Decimal

from koordra.allocator.explain.nearest_fit import ClaimReason, Together
from koordra.allocator.explain.rejection import Rejection, device_reason
from koordra.allocator.joint_allocation import Rule
from koordra.allocator.node_state import NodeState
from koordra.allocator.reasons import Cause, Reason, figure
from koordra.allocator.request.requests import RequestAlternative, ResolvedClaim


@dataclass(slots=True)
class _Diagnosis:
    node: str
    claims: Sequence[ResolvedClaim]
    state: NodeState
    joint_rules: Sequence[Rule]
    known: dict[tuple[object, ...], list[ClaimReason]]
    form: tuple[object, ...]
    of_devices: list[ClaimReason] = field(default_factory=list)
    of_requests: list[ClaimReason] = field(default_factory=list)

    def run(self) -> list[ClaimReason]:
        served = True
        for position, claim in enumerate(self.claims):
            for request in claim.requests:
                # All alternatives are told, but one that could be served is enough.
                could = [self._tell(position, claim, wanted) for wanted in request.alternatives]
                served = served and any(could)
        for pool in self.state.pools:
            if pool.trouble:
                detail = f"pool {pool} is {'incomplete' if pool.incomplete else 'invalid'}: {pool.trouble}"
                self._for_all(Cause.POOL_INCOMPLETE, detail)
        if served:
            self.of_requests += self._together_known()
        return [*self.of_requests, *self.of_devices]

    def _together_known(self) -> list[ClaimReason]:
        """A node of the same form has the same story, so it is worked out once."""
        if self.form not in self.known:
            together = Together(self.node, self.claims, self.state, self.joint_rules)
            self.known[self.form] = together.reasons()
        return [(position, replace(reason, node=self.node)) for position, reason in self.known[self.form]]

    def _for_all(self, cause: Cause, detail: str) -> None:
        reason = Reason(self.node, None, None, cause.value, detail)
        self.of_requests += [(position, reason) for position in range(len(self.claims))]

    def _tell(self, position: int, claim: ResolvedClaim, wanted: RequestAlternative) -> bool:
        """Tell the devices that cannot serve the request; true when enough others can."""
        state = self.state
        of_class = [device for device in range(len(state.devices)) if state.verdict(wanted, device).of_class]
        usable, misses = 0, dict[int, Rejection]()
        for device in of_class or range(len(state.devices)):
            miss = device_reason(wanted, device, state)
            if miss is None:
                usable += 1
                continue
            misses[device] = miss
            name = state.devices[device].id.device
            self.of_devices.append(
                (position, Reason(self.node, name, wanted.label, miss.cause.value, miss.detail))
            )
        needed = 1 if wanted.takes_all else wanted.spec.count
        if usable >= needed:
            return True
        if not state.devices and any(pool.trouble for pool in state.pools):
            return False
        causes = {miss.cause for miss in misses.values()}
        cause = next((cause for cause in Cause if cause in causes), Cause.INSUFFICIENT_CAPACITY)
        detail = f"devices: requested {needed}, free {usable} of {len(of_class)} of class {wanted.device_class.name}"
        if not state.devices:
            detail = f"devices: requested {needed}, the node publishes none"
        detail += self._nearest(misses)
        self.of_requests.append((position, Reason(self.node, None, wanted.label, cause.value, detail)))
        return False

    def _nearest(self, misses: dict[int, Rejection]) -> str:
        """The device that lacks least of what it is short of."""
        short = {device: miss for device, miss in misses.items() if miss.lacking > 0}
        if not short:
            return ""

        def part(device: int) -> Decimal:
            total = self.state.devices[device].device.capacity[short[device].name].value
            return short[device].lacking / total if total else Decimal("Infinity")

        nearest = min(short, key=lambda device: (part(device), device))
        lacks = f"{figure(short[nearest].lacking)} of {short[nearest].name}"
        return f"; nearest miss {self.state.devices[nearest].id.device} lacks {lacks}"


def reasons_on_node(
    node: str,
    claims: Sequence[ResolvedClaim],
    state: NodeState,
    *,
    joint_rules: Sequence[Rule],
    known: dict[tuple[object, ...], list[ClaimReason]] | None = None,
    form: tuple[object, ...] = (),
) -> list[ClaimReason]:
    """Everything that keeps the group off the node; never empty.

    `known` remembers what was found for nodes by their `form`; an empty form is remembered for nobody.
    """
    remembered = known if known is not None and form else {}
    return _Diagnosis(node, claims, state, joint_rules, remembered, form).run()
