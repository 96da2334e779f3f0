"""Requests of a claim out of the shares of containers, with init containers using what is there.

A claim is charged for all of its requests together, while an init container is done before the others start.
So an init container gets no request of its own where the pod's containers have what it needs:

1. the request with the same number of cards that has to grow least (where init containers are ignored nothing
   grows);
2. of whole cards: as many requests as make up the number;
3. a request with more cards than it asked for (it sees them all, which is a warning);
4. the largest request, plus one of its own for the cards that are missing.

Where one amount is bytes and the other a percentage, neither is known to be the larger: the init container
has a request of its own. Where all shares of the pod lie on one card, an init container uses all of them, and
the first grows by what they lack.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from koordra.api.classic.notes import Notes
from koordra.compat.normalized_request import ContainerPhase, Memory, NormalizedRequest, Share, Sharing


@dataclass(slots=True)
class MergedRequests:
    """Requests by name, in order, and which of them each container uses. `apart` are sets of requests whose
    cards differ."""

    normalized: NormalizedRequest
    notes: Notes
    requests: dict[str, Share] = field(default_factory=dict)
    used: dict[str, list[str]] = field(default_factory=dict)
    apart: list[tuple[str, ...]] = field(default_factory=list)

    @property
    def devices(self) -> int:
        """How many the claim has at most."""
        nics = self.normalized.nics
        return sum(share.count for share in self.requests.values()) + (nics.most if nics else 0)

    def add(self, share: Share) -> str:
        """A request named after its container, instances beside cards after their profile too; where the name
        is taken of one like it."""
        name = share.container
        if share.profile:
            name += f"-mig-{share.profile.replace('.', '-').replace('+', '-')}"
        number, called = 1, name[:63].rstrip("-")
        while called in self.requests:
            number += 1
            called = f"{name[: 62 - len(str(number))].rstrip('-')}-{number}"
        self.requests[called] = share
        return called

    def use(self, container: str, requests: Iterable[str]) -> None:
        known = self.used.setdefault(container, [])
        known += [name for name in requests if name not in known]

    def for_init(self, share: Share) -> list[str]:
        """The requests that an init container uses. Raises Refused where nobody would serve it."""
        alike = {
            name: other
            for name, other in self.requests.items()
            if (other.profile, other.mig, other.or_mig) == (share.profile, share.mig, share.or_mig)
        }
        if self.normalized.ignores_init:
            return [self._nearest(share, alike)]
        if self.normalized.together is Sharing.ONE_CARD and alike:
            return self._on_the_card(share, alike)
        return self._grown(share, alike)

    def _nearest(self, share: Share, alike: Mapping[str, Share]) -> str:
        dialect = self.normalized.dialect
        if not alike:
            raise self.notes.refuse(
                share.where,
                f"asks for {share}, and {dialect} gives nothing to init containers",
                "ask in a container",
            )
        name, have = min(
            alike.items(), key=lambda each: (each[1].count < share.count, abs(each[1].count - share.count))
        )
        if not (
            have.count >= share.count
            and have.cores >= share.cores
            and _comparable(have.memory, share.memory)
            and _larger(have.memory, share.memory) == have.memory
        ):
            self.notes.warn(
                share.where,
                f"gets what request {name} has, {have}: {dialect} does not look at init containers",
            )
        return name

    def _on_the_card(self, share: Share, alike: Mapping[str, Share]) -> list[str]:
        lacking = (share.memory.bytes or 0) - sum(other.memory.bytes or 0 for other in alike.values())
        name, first = next(iter(alike.items()))
        if lacking > 0:
            self.requests[name] = replace(first, memory=Memory(bytes=(first.memory.bytes or 0) + lacking))
        return list(alike)

    def _grown(self, share: Share, alike: Mapping[str, Share]) -> list[str]:
        comparable = {name: other for name, other in alike.items() if _comparable(other.memory, share.memory)}
        if alike and not comparable:
            self.notes.warn(
                share.where,
                f"{share}: amounts and percentages cannot be compared, so it is charged besides the containers",
            )
        enough = [name for name, other in comparable.items() if other.count >= share.count]
        if enough:
            name = min(enough, key=lambda name: (comparable[name].count, _growth(comparable[name], share)))
            if comparable[name].count == share.count:
                return [self._grow(name, share)]
        if share.whole and all(other.whole for other in comparable.values()):
            return self._made_up(share, comparable)
        if enough:
            self.notes.warn(
                share.where,
                f"sees all {comparable[name].count} cards of request {name}, {share.count} were asked for",
            )
            return [self._grow(name, share)]
        if not comparable:
            return [self.add(share)]
        name = max(comparable, key=lambda name: comparable[name].count)
        missing = replace(share, count=share.count - comparable[name].count)
        return [self._grow(name, share), self.add(missing)]

    def _made_up(self, share: Share, others: Mapping[str, Share]) -> list[str]:
        """Requests for whole cards until there are enough, the smallest that is enough alone first."""
        enough = [name for name, other in others.items() if other.count >= share.count]
        if enough:
            return [min(enough, key=lambda name: others[name].count)]
        names: list[str] = []
        missing = share.count
        for name in sorted(others, key=lambda name: -others[name].count):
            if missing > 0:
                names.append(name)
                missing -= others[name].count
        if missing > 0:
            names.append(self.add(replace(share, count=missing)))
        return names

    def _grow(self, name: str, share: Share) -> str:
        """The request holds what both need."""
        now = self.requests[name]
        memory = _larger(now.memory, share.memory)
        grown = replace(
            now,
            memory=memory,
            cores=max(now.cores, share.cores),
            exclusive=(now.exclusive or share.exclusive) and not memory.whole,
        )
        if grown != now:
            self.notes.warn(share.where, f"needs more than request {name} had, which is now {grown}")
            self.requests[name] = grown
        return name


def merge(normalized: NormalizedRequest, notes: Notes) -> MergedRequests:
    """Raises Refused for an init container that nobody would serve."""
    merged = MergedRequests(normalized, notes)
    for share in normalized.shares:
        if share.phase is not ContainerPhase.INIT:
            merged.use(share.container, [merged.add(share)])
    for share in normalized.shares:
        if share.phase is ContainerPhase.INIT:
            names = merged.for_init(share)
            merged.use(share.container, names)
            if share.distinct and share.count > 1 and len(names) > 1:
                merged.apart.append(tuple(names))
    merged.apart += [(name,) for name, share in merged.requests.items() if share.distinct and share.count > 1]
    return merged


def _comparable(one: Memory, other: Memory) -> bool:
    return one.whole or other.whole or (one.bytes is None) == (other.bytes is None)


def _larger(one: Memory, other: Memory) -> Memory:
    """Of two that are comparable."""
    return max(one, other, key=lambda memory: (memory.whole, memory.bytes or memory.percent or 0))


def _growth(have: Share, want: Share) -> tuple[int, int, int]:
    """How much a request would have to grow: memory that becomes whole, memory, cores."""
    larger = _larger(have.memory, want.memory)
    figure = (larger.bytes or larger.percent or 0) - (have.memory.bytes or have.memory.percent or 0)
    return (int(larger.whole and not have.memory.whole), figure, max(want.cores - have.cores, 0))
