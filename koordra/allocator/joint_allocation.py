"""JointAllocation: how near GPUs and NICs must be, as counting over scopes.

A scope (PCIe switch, PCIe root, NUMA node, socket, node) divides a machine's devices into classes by
`scope_key`, so being together is an equivalence and the pairing rules become counts per class (g GPUs, n
NICs):

    PerDevice   each GPU has a NIC of its own in scope     g <= n in every class (Hall's condition is that
                                                           simple here)
    PerGroup    the NICs cover the scopes of the GPUs      n > 0 wherever g > 0
    Together    everything lies in one class               one class in all

A device counts once, however many shares of it the requests have: two shares of one card are one GPU, which
one NIC serves, and two shares of one NIC are one NIC, which is no NIC of its own for two GPUs. (MIG
partitions and VFs are devices by themselves.) Shares that are still to come may coincide with what is there,
so bounds take them for the most that they can bring.

While devices are being chosen, the GPUs that still lack a NIC may not outnumber the NICs still to come; that
cuts hopeless branches early. A GPU without a key (no switch above it, NUMA node unknown) is together with
nobody and is refused.

If only one kind is asked for, there is nothing to pair and every pairing means Together. A JointAllocation in
a claim that has only GPUs or only NICs reaches the other claims of the pod for the kind it lacks.

Preferred is relaxed level by level: the scope as written, then each wider one up to Node, then none. The
first level with a solution is taken.
"""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final

from koordra.allocator.allocation_state import AllocationState
from koordra.allocator.devices.inventory import GPU, NIC, PublishedDevice
from koordra.allocator.request.requests import ResolvedClaim
from koordra.api.opaque.parameters import Enforcement, JointAllocation, Pairing, Scope
from koordra.topology.levels import scope_key

_SCOPES: Final = tuple(Scope)

MOST_RELAXATIONS: Final = 512
"""Ways to widen the scopes of a group that are tried on a node, the narrowest first; then all of its scopes
are widened together."""
MOST_SCOPES: Final = 64

RequestKey = tuple[int, int]
"""A request by its claim's and its own position in the group."""


@dataclass(frozen=True, slots=True)
class Rule:
    """One JointAllocation at one relaxation level, about the requests that are its `members`."""

    members: frozenset[RequestKey]
    scope: Scope
    pairing: Pairing


@dataclass(slots=True)
class ScopeTracker:
    """Counts of different devices per class for one rule; changed by `add` and put back by `remove`.
    `shares`: of each device.

    Every step of a search counts here. What a Counter does in Python (a missing key, `del`) is `get` and
    `pop` of a dict."""

    rule: Rule
    gpus: Counter[str] = field(default_factory=Counter)
    nics: Counter[str] = field(default_factory=Counter)
    lacking: int = 0
    shares: Counter[PublishedDevice] = field(default_factory=Counter)
    _keys: dict[PublishedDevice, str | None] = field(default_factory=dict)

    def allows(self, offered: PublishedDevice, *, nics_to_come: int) -> bool:
        """Whether the device may be added, with that many NICs still to come after it."""
        key = self.key(offered)
        if self.rule.pairing is Pairing.TOGETHER:
            classes = self.gpus.keys() | self.nics.keys()
            return key is not None and (not classes or key in classes)
        is_gpu = offered.kind == GPU
        if offered in self.shares:
            return self.lacking <= nics_to_come
        if key is None:
            return not is_gpu and self.lacking <= nics_to_come
        gpus, nics = self.gpus.get(key, 0), self.nics.get(key, 0)
        more = self._short(gpus + is_gpu, nics + (not is_gpu)) - self._short(gpus, nics)
        return self.lacking + more <= nics_to_come

    def complete(self) -> bool:
        """Whether the rule holds with what is there; being together is seen to device by device."""
        return self.rule.pairing is Pairing.TOGETHER or not self.lacking

    def lacks(self) -> Iterator[tuple[str, int]]:
        """The classes whose GPUs lack NICs, and how many; being together lacks none."""
        if self.rule.pairing is Pairing.TOGETHER:
            return
        for key, gpus in self.gpus.items():
            if short := self._short(gpus, self.nics[key]):
                yield key, short

    def spare(self, further: Sequence[PublishedDevice]) -> int:
        """How many NICs, with these `further` ones, are there for GPUs that are still to come."""
        nics = self.nics
        if further:
            nics = nics + Counter(self.key(nic) or "" for nic in further if nic not in self.shares)
        return sum(max(0, count - self.gpus.get(key, 0)) for key, count in nics.items())

    def add(self, offered: PublishedDevice) -> None:
        shares = self.shares.get(offered, 0)
        self.shares[offered] = shares + 1
        if not shares:
            self._count(offered, 1)

    def remove(self, offered: PublishedDevice) -> None:
        self.shares[offered] -= 1
        if not self.shares[offered]:
            self.shares.pop(offered)
            self._count(offered, -1)

    def _count(self, offered: PublishedDevice, more: int) -> None:
        key = self.key(offered) or ""
        gpus, nics = self.gpus.get(key, 0), self.nics.get(key, 0)
        self.lacking -= self._short(gpus, nics)
        if offered.kind == GPU:
            table, count = self.gpus, gpus + more
            self.lacking += self._short(count, nics)
        else:
            table, count = self.nics, nics + more
            self.lacking += self._short(gpus, count)
        if count:
            table[key] = count
        else:
            table.pop(key)

    def _short(self, gpus: int, nics: int) -> int:
        """How many NICs a class lacks that has so many GPUs and NICs."""
        needed = gpus if self.rule.pairing is Pairing.PER_DEVICE else min(gpus, 1)
        return needed - nics if needed > nics else 0

    def key(self, offered: PublishedDevice) -> str | None:
        """The device's class, looked up once."""
        if offered not in self._keys:
            self._keys[offered] = scope_key(offered.plain, self.rule.scope)
        return self._keys[offered]

    def standing(self, offered: PublishedDevice) -> int:
        """How the device's class stands (what more of it would change); equals are interchangeable."""
        key = self.key(offered)
        if key is None:
            return -1000
        gpus, nics = self.gpus.get(key, 0), self.nics.get(key, 0)
        match self.rule.pairing:
            case Pairing.PER_DEVICE:
                return gpus - nics
            case Pairing.PER_GROUP:
                return (gpus > 0) * 2 + (nics > 0)
            case _:
                return int(gpus + nics > 0) if self.gpus or self.nics else 2


def relaxation_levels(joint: JointAllocation) -> tuple[Scope | None, ...]:
    """The scopes to try, narrow to wide; a Required scope is the only one."""
    if joint.enforcement is Enforcement.REQUIRED:
        return (joint.scope,)
    return (*_SCOPES[_SCOPES.index(joint.scope) :], None)


def relaxations_of(levels: Sequence[int]) -> list[tuple[int, ...]]:
    """How many levels each scope is widened, of so many that it has: the fewest in sum first, then the first
    scopes least; MOST_RELAXATIONS of them, and then all scopes alike. With the scopes of one pod's claims
    their number is exponential; of more than MOST_SCOPES only the latter are tried."""
    found: list[tuple[int, ...]] = [(0,) * len(levels)]
    if len(levels) <= MOST_SCOPES:
        most = [number - 1 for number in levels]
        ways = (steps for total in range(sum(most) + 1) for steps in _with_sum(total, most))
        found = list(itertools.islice(ways, MOST_RELAXATIONS))
    if math.prod(levels) > len(found):
        alike = [tuple(min(level, number - 1) for number in levels) for level in range(max(levels))]
        found += [steps for steps in alike if (sum(steps), steps) > (sum(found[-1]), found[-1])]
    return found


def _with_sum(total: int, most: Sequence[int]) -> Iterator[tuple[int, ...]]:
    """Numbers up to `most` each, which add up to the total, in order."""
    if not most:
        if not total:
            yield ()
        return
    rest = sum(most[1:])
    for first in range(max(0, total - rest), min(most[0], total) + 1):
        for others in _with_sum(total - first, most[1:]):
            yield (first, *others)


def rules_of(
    claims: Sequence[ResolvedClaim], siblings: Sequence[frozenset[int]], state: AllocationState
) -> list[list[Rule | None]]:
    """Every JointAllocation of the group as its rules at each relaxation level; None for the level at which
    nothing is asked any more.

    `siblings` tells for each claim which claims a pod uses together with it: a claim that only has GPUs here,
    or only NICs, pairs with those. With one kind of device there is nothing to pair.
    """
    if not any(claim.joints for claim in claims):
        return []
    kinds = _kinds(claims, state)
    found: list[list[Rule | None]] = []
    for position, claim in enumerate(claims):
        for joint, covered in zip(claim.joints, claim.joint_requests, strict=True):
            members = frozenset((position, index) for index in covered)
            have = {kind for member in members for kind in kinds[member]}
            if len(have) == 1 and len(covered) == len(claim.requests):
                paired = {
                    member
                    for member, own in kinds.items()
                    if member[0] in siblings[position] and own == {GPU, NIC} - have
                }
                members, have = members | paired, {GPU, NIC} if paired else have
            pairing = joint.pairing if have == {GPU, NIC} else Pairing.TOGETHER
            found.append(
                [
                    None if scope is None else Rule(members, scope, pairing)
                    for scope in relaxation_levels(joint)
                ]
            )
    return found


def _kinds(claims: Sequence[ResolvedClaim], state: AllocationState) -> dict[RequestKey, set[str]]:
    """What each request can get on this node: GPUs, NICs or both."""
    found = {
        (at, index): set[str]() for at, claim in enumerate(claims) for index in range(len(claim.requests))
    }
    of_kind: dict[object, set[str]] = {}
    for claim in claims:
        for wanted in claim.alternatives:
            if wanted.kind not in of_kind:
                of_kind[wanted.kind] = {
                    offered.kind
                    for device, offered in enumerate(state.devices)
                    if offered.kind in (GPU, NIC) and state.verdict(wanted, device).demand is not None
                }
            found[wanted.claim, wanted.request] |= of_kind[wanted.kind]
    return found
