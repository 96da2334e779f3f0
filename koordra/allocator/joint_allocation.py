"""JointAllocation: how near GPUs and NICs must be, as counting over scopes.

A scope (PCIe switch, PCIe root, NUMA node, socket, node) divides a machine's devices into classes by `scope_key`, so
being together is an equivalence and the pairing rules become counts per class (g GPUs, n NICs):

    PerDevice   each GPU has a NIC of its own in scope     g <= n in every class (Hall's condition is that simple here)
    PerGroup    the NICs cover the scopes of the GPUs      n > 0 wherever g > 0
    Together    everything lies in one class               one class in all

A device counts once, however many shares of it the requests have: two shares of one card are one GPU, which one NIC serves,
and two shares of one NIC are one NIC, which is no NIC of its own for two GPUs. (MIG partitions and VFs are devices by themselves.)
Shares that are still to come may coincide with what is there, so bounds take them for the most that they can bring.

While devices are being chosen, the GPUs that still lack a NIC may not outnumber the NICs still to come; that cuts hopeless
branches early. A GPU without a key (no switch above it, NUMA node unknown) is together with nobody and is refused.

If only one kind is asked for, there is nothing to pair and every pairing means Together. A JointAllocation in a claim that
has only GPUs or only NICs reaches the other claims of the pod for the kind it lacks.

Preferred is relaxed level by level: the scope as written, then each wider one up to Node, then none. The first level with a
solution is taken.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from koordra.allocator.devices.inventory import GPU, NIC, PublishedDevice
from koordra.allocator.request.requests import ResolvedClaim
from koordra.api.opaque.parameters import Enforcement, JointAllocation, Pairing, Scope
from koordra.topology.levels import scope_key

_SCOPES: Final = tuple(Scope)

Member = tuple[int, int]
"""A request by its claim's and its own position in the group."""


@dataclass(frozen=True, slots=True)
class Rule:
    """One JointAllocation at one relaxation level. `scope` None is the level past Node, where nothing is asked any more."""

    members: frozenset[Member]
    scope: Scope | None
    pairing: Pairing


@dataclass(slots=True)
class ScopeTracker:
    """Counts of different devices per class for one rule; changed by `add` and put back by `remove`. `shares`: of each device."""

    rule: Rule
    gpus: dict[str, int] = field(default_factory=dict)
    nics: dict[str, int] = field(default_factory=dict)
    lacking: int = 0
    shares: dict[PublishedDevice, int] = field(default_factory=dict)
    _keys: dict[PublishedDevice, str | None] = field(default_factory=dict)

    def allows(self, offered: PublishedDevice, *, nics_to_come: int) -> bool:
        """Whether the device may be added, with that many NICs still to come after it."""
        key, kind = self.key(offered), offered.kind
        if self.rule.pairing is Pairing.TOGETHER:
            classes = self.gpus.keys() | self.nics.keys()
            return key is not None and (not classes or key in classes)
        if offered in self.shares:
            return self.lacking <= nics_to_come
        if kind != GPU:
            return self.lacking - self._relief(key) <= nics_to_come
        return key is not None and self.lacking + self._burden(key) <= nics_to_come

    def complete(self) -> bool:
        """Whether the rule holds with what is there; being together is seen to device by device."""
        return self.rule.pairing is Pairing.TOGETHER or not self.lacking

    def lacks(self) -> Iterator[tuple[str, int]]:
        """The classes whose GPUs lack NICs, and how many; being together lacks none."""
        if self.rule.pairing is Pairing.TOGETHER:
            return
        for key, gpus in self.gpus.items():
            needed = gpus if self.rule.pairing is Pairing.PER_DEVICE else min(gpus, 1)
            if needed > self.nics.get(key, 0):
                yield key, needed - self.nics.get(key, 0)

    def spare(self) -> int:
        """How many NICs are there for GPUs that are still to come."""
        return sum(max(0, count - self.gpus.get(key, 0)) for key, count in self.nics.items())

    def add(self, offered: PublishedDevice) -> None:
        shares = self.shares.get(offered, 0)
        self.shares[offered] = shares + 1
        if shares:
            return
        key, kind = self.key(offered) or "", offered.kind
        if kind == GPU:
            self.lacking += self._burden(key)
            self.gpus[key] = self.gpus.get(key, 0) + 1
        else:
            self.lacking -= self._relief(key)
            self.nics[key] = self.nics.get(key, 0) + 1

    def remove(self, offered: PublishedDevice) -> None:
        self.shares[offered] -= 1
        if self.shares[offered]:
            return
        del self.shares[offered]
        key = self.key(offered) or ""
        table = self.gpus if offered.kind == GPU else self.nics
        table[key] -= 1
        if not table[key]:
            del table[key]
        if table is self.gpus:
            self.lacking -= self._burden(key)
        else:
            self.lacking += self._relief(key)

    def key(self, offered: PublishedDevice) -> str | None:
        """The device's class, looked up once."""
        if offered not in self._keys:
            assert self.rule.scope is not None
            self._keys[offered] = scope_key(offered.plain, self.rule.scope.value)
        return self._keys[offered]

    def standing(self, offered: PublishedDevice) -> int:
        """How the device's class stands (what more of it would change); equal standings are interchangeable."""
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

    def _burden(self, key: str) -> int:
        """How many more GPUs lack a NIC once one more GPU is in the class."""
        gpus, nics = self.gpus.get(key, 0), self.nics.get(key, 0)
        if self.rule.pairing is Pairing.PER_DEVICE:
            return int(gpus >= nics)
        return int(gpus == 0 and nics == 0)

    def _relief(self, key: str | None) -> int:
        """How many GPUs stop lacking a NIC once one more NIC is in the class."""
        if key is None:
            return 0
        gpus, nics = self.gpus.get(key, 0), self.nics.get(key, 0)
        if self.rule.pairing is Pairing.PER_DEVICE:
            return int(gpus > nics)
        return int(gpus > 0 and nics == 0)


def relaxation_levels(joint: JointAllocation) -> tuple[Scope | None, ...]:
    """The scopes to try, narrow to wide; a Required scope is the only one."""
    if joint.enforcement is Enforcement.REQUIRED:
        return (joint.scope,)
    return (*_SCOPES[_SCOPES.index(joint.scope) :], None)


def members_of(
    claims: Sequence[ResolvedClaim], kinds: Mapping[Member, set[str]], siblings: Sequence[frozenset[int]]
) -> list[tuple[JointAllocation, frozenset[Member]]]:
    """Every JointAllocation of the group with the requests it is about.

    `kinds` tells what each request can get on this node: GPUs, NICs or both. `siblings` tells for each claim which claims
    a pod uses together with it; a claim that only has GPUs, or only NICs, pairs with those.
    """
    found = []
    for position, claim in enumerate(claims):
        for joint, covered in zip(claim.joints, claim.joint_requests, strict=True):
            members = frozenset((position, index) for index in covered)
            have = _kinds_among(members, kinds)
            if len(have) == 1 and len(covered) == len(claim.requests):
                lacking = {GPU, NIC} - have
                members |= {
                    member
                    for member, kind in kinds.items()
                    if member[0] in siblings[position] and kind == lacking
                }
            found.append((joint, members))
    return found


def rule_for(
    joint: JointAllocation, members: frozenset[Member], scope: Scope | None, kinds: Mapping[Member, set[str]]
) -> Rule:
    """The rule at one relaxation level; with one kind of device there is nothing to pair."""
    both = _kinds_among(members, kinds) == {GPU, NIC}
    return Rule(members, scope, joint.pairing if both else Pairing.TOGETHER)


def _kinds_among(members: Iterable[Member], kinds: Mapping[Member, set[str]]) -> set[str]:
    return {kind for member in members for kind in kinds.get(member, ()) if kind}
