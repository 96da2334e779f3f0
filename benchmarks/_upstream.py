"""The plain backtracking that upstream's structured allocator does, over the same plain objects that `plan()`
gets.

Requests in order, per request one device after the other, per device the pools' devices in order; a candidate
is held against use, selectors of class and request, counters and constraints, in that order; on failure one
step back. As upstream does:

- a selector is compiled once, and evaluated once for each request and device that the search gets to (not
  once for each device that looks the same, which is koordra's cache);
- devices of one request are chosen in ascending order (kubernetes#133678);
- once a claim has too many devices, the search goes back to the last request that has another alternative
  (#130593).

No bounds, no symmetry, nothing remembered. Only what the benchmarks need is there: exact counts,
firstAvailable, matchAttribute, counters. Objects are read by koordra's code on both sides.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from decimal import Decimal
from typing import Any

from koordra.allocator.devices.inventory import PublishedDevice
from koordra.allocator.features import Features
from koordra.api.claims import Alternative, DeviceClass
from koordra.cel.selectors import DeviceFacts, _evaluated, _program, _values_read
from koordra.errors import SelectorError
from koordra.placement.index import ClusterIndex
from koordra.placement.manifests import Manifests


def evaluated(expression: str, device: DeviceFacts) -> bool:
    """`matches` without the cache of results: what the cache saves can be measured against it."""
    program = _program(expression)
    if isinstance(program, str):
        raise SelectorError(f"CEL compile error in {expression.strip()!r}: {program}")
    outcome = _evaluated(program, _values_read(program, device))
    if isinstance(outcome, str):
        raise SelectorError(f"CEL runtime error in {expression.strip()!r}: {outcome}")
    return outcome


LIMIT = 32


class GaveUp(Exception):
    """More candidates were looked at than the benchmark has time for."""


class _TooMany(Exception):
    """The claim would have more devices than a claim may have."""


class Plain:
    """One claim on one node. `looked_at` counts candidates, `dead_ends` steps back; GaveUp at `most`."""

    def __init__(
        self, manifests: Sequence[Mapping[str, Any]], *, most: int | None = None, features: Sequence[str] = ()
    ) -> None:
        index, given = ClusterIndex(Features.of(features or None)), Manifests.of(manifests)
        given.fill(index)
        index.settle()
        node = next(iter(index.nodes.values()))
        self.classes = index.classes
        self.devices = [device for pool in node.pools for device in pool.devices]
        self.left = {key: amount for pool in node.pools for key, amount in pool.counters.items()}
        claim = given.pending[next(iter(given.pending))]
        self.requests, self.constraints = claim.requests, claim.constraints
        self.common: list[list[frozenset[Any]]] = [[] for _ in claim.constraints]
        self.used: set[int] = set()
        self.fitting: dict[tuple[str, str, int], bool] = {}
        self.looked_at, self.evaluated, self.dead_ends, self.most = 0, 0, 0, most
        assert node.name

    def run(self) -> bool:
        try:
            return self._request(0, 0)
        except _TooMany:
            return False

    def _request(self, index: int, taken: int) -> bool:
        if index == len(self.requests):
            return True
        too_many = True
        for wanted in self.requests[index].alternatives:
            if taken + wanted.count > LIMIT:
                continue
            try:
                if self._device(index, wanted, 0, 0, taken):
                    return True
            except _TooMany:
                continue
            too_many = False
        if too_many:
            raise _TooMany
        return False

    def _device(self, index: int, wanted: Alternative, chosen: int, first: int, taken: int) -> bool:
        if chosen == wanted.count:
            return self._request(index + 1, taken + chosen)
        name = self.requests[index].name
        for device in range(first, len(self.devices)):
            self.looked_at += 1
            if self.most is not None and self.looked_at > self.most:
                raise GaveUp
            if device in self.used or not self._fits(name, wanted, device):
                continue
            offered = self.devices[device]
            counted = self._count(offered)
            if counted is None:
                continue
            added = self._constrain(name, offered)
            if added is not None:
                self.used.add(device)
                try:
                    if self._device(index, wanted, chosen + 1, device + 1, taken):
                        return True
                except _TooMany:
                    self._take_back(device, added, counted)
                    raise
                self._take_back(device, added, counted)
            else:
                self._take_back(device, (), counted)
        self.dead_ends += 1
        return False

    def _take_back(
        self, device: int, added: Sequence[int], counted: Mapping[tuple[str, str], Decimal]
    ) -> None:
        self.used.discard(device)
        for constraint in added:
            self.common[constraint].pop()
        for key, amount in counted.items():
            self.left[key] += amount

    def _fits(self, name: str, wanted: Alternative, device: int) -> bool:
        key = (name, wanted.name, device)
        found = self.fitting.get(key)
        if found is None:
            offered, device_class = self.devices[device], self.classes[wanted.device_class]
            assert isinstance(device_class, DeviceClass)
            found = all(self.evaluate(text, offered) for text in (*device_class.selectors, *wanted.selectors))
            self.fitting[key] = found
        return found

    def evaluate(self, expression: str, offered: PublishedDevice) -> bool:
        self.evaluated += 1
        return evaluated(expression, offered.facts)

    def _count(self, offered: PublishedDevice) -> dict[tuple[str, str], Decimal] | None:
        taken = {
            (set_name, counter): amount
            for set_name, counters in offered.device.consumes_counters.items()
            for counter, amount in counters.items()
        }
        if any(self.left[key] < amount for key, amount in taken.items()):
            return None
        for key, amount in taken.items():
            self.left[key] -= amount
        return taken

    def _constrain(self, name: str, offered: PublishedDevice) -> list[int] | None:
        """The constraints that got the device, None (and nothing changed) when one refuses it."""
        added: list[int] = []
        for index, constraint in enumerate(self.constraints):
            if constraint.requests and name not in constraint.requests:
                continue
            attribute = offered.facts.attributes.get(constraint.match_attribute)
            values = attribute.elements if attribute is not None else frozenset()
            states = self.common[index]
            values = states[-1] & values if states else values
            if not values:
                for earlier in added:
                    self.common[earlier].pop()
                return None
            states.append(values)
            added.append(index)
        return added
