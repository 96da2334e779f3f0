"""From a solution to what is written: AllocationResults, share ids, configuration and node selectors.

`Offer` is one group's placement on one node.
"""

from __future__ import annotations

import uuid
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from koordra.allocator.devices.eligibility import chosen_isolation
from koordra.allocator.devices.inventory import PublishedDevice
from koordra.allocator.request.requests import RequestAlternative, ResolvedClaim
from koordra.allocator.search.solution import NOTHING, CostPair, Placed
from koordra.api import names
from koordra.api.allocation import FROM_CLAIM, FROM_CLASS, Allocation, DeviceResult
from koordra.api.devices import NodeSelection
from koordra.api.opaque.parameters import API_VERSION

_SHARES: Final = uuid.uuid5(uuid.NAMESPACE_DNS, "shares.koordra.io")


@dataclass(frozen=True, slots=True, eq=False)
class Offer:
    """A group's placement on one node, by positions in its `devices`. `cost` orders offers, least first."""

    node: str
    claims: Sequence[ResolvedClaim]
    devices: Sequence[PublishedDevice]
    placed: tuple[Placed, ...]
    cost: CostPair = NOTHING

    def allocations(self, *, pin_to_node: bool) -> list[Allocation]:
        """One allocation per claim, in the group's order. `pin_to_node`: name the node even for network
        devices."""
        return [
            self._allocation(position, claim, pin_to_node=pin_to_node)
            for position, claim in enumerate(self.claims)
        ]

    def devices_of(self, position: int) -> list[Mapping[str, Any]]:
        """Plain attributes of the devices of one claim, each device once."""
        devices = dict.fromkeys(placed.device for placed in self.placed if placed.wanted.claim == position)
        return [self.devices[device].plain for device in devices]

    def _allocation(self, position: int, claim: ResolvedClaim, *, pin_to_node: bool) -> Allocation:
        mine = [placed for placed in self.placed if placed.wanted.claim == position]
        # First fit keeps upstream's order; otherwise devices of a request come in the node's order.
        mine.sort(key=lambda placed: (placed.wanted.request, placed.device if pin_to_node else 0))
        counts = Counter[str]()
        results = []
        for placed in mine:
            label = placed.wanted.label
            results.append(self._result(claim, placed, counts[label]))
            counts[label] += 1
        chosen = list(dict.fromkeys(placed.wanted for placed in mine))
        return Allocation(
            results=tuple(results),
            config=(*_configuration(claim, chosen), *self._isolations(mine)),
            node_selector=_named(self.node)
            if pin_to_node
            else self._node_selector([placed.device for placed in mine]),
        )

    def _isolations(self, placed: Sequence[Placed]) -> list[Mapping[str, Any]]:
        """What `Auto` came to, by request: the node does the same, and people see it."""
        found: dict[str, set[str]] = {}
        for one in placed:
            if word := chosen_isolation(one.wanted, self.devices[one.device], one.demand):
                found.setdefault(one.wanted.label, set()).add(word)
        return [
            _entry(FROM_CLAIM, [label], {"opaque": {"driver": names.DRIVER, "parameters": parameters}})
            for label, words in found.items()
            if len(words) == 1  # cards with policies of their own may differ: each node finds the same
            for word in words
            for parameters in [{"apiVersion": API_VERSION, "kind": "GpuConfig", "isolation": word}]
        ]

    def _result(self, claim: ResolvedClaim, placed: Placed, index: int) -> DeviceResult:
        offered = self.devices[placed.device]
        return DeviceResult(
            request=placed.wanted.label,
            device=offered.id,
            share_id=share_id(claim.claim.uid or claim.claim.key, placed.wanted.label, index)
            if placed.shared
            else None,
            consumed=placed.demand.amounts,
            consumed_spelled=placed.demand.spelled,
            admin_access=True if placed.wanted.spec.admin_access else None,
            tolerations=tuple(toleration.raw for toleration in placed.wanted.spec.tolerations),
            binding_conditions=offered.device.binding_conditions,
            binding_failure_conditions=offered.device.binding_failure_conditions,
        )

    def _node_selector(self, devices: Sequence[int]) -> Mapping[str, Any] | None:
        """Upstream's form: the node for local devices, else every requirement of the devices' selectors, else
        nothing."""
        expressions: list[Mapping[str, Any]] = []
        fields: list[Mapping[str, Any]] = []
        for device in devices:
            offered = self.devices[device]
            selection: NodeSelection = offered.selection
            if selection.node_name or offered.device.binds_to_node:
                return _named(self.node)
            for term in (selection.selector or {}).get("nodeSelectorTerms") or ():
                _add_new(fields, term.get("matchFields") or ())
                _add_new(expressions, term.get("matchExpressions") or ())
        term = {
            **({"matchExpressions": expressions} if expressions else {}),
            **({"matchFields": fields} if fields else {}),
        }
        return {"nodeSelectorTerms": [term]} if term else None


def share_id(claim: str, request: str, index: int) -> str:
    """The same share of the same claim always has the same id, so that planning again changes nothing."""
    return str(uuid.uuid5(_SHARES, f"{claim}/{request}/{index}"))


def _named(node: str) -> dict[str, Any]:
    requirement = {"key": "metadata.name", "operator": "In", "values": [node]}
    return {"nodeSelectorTerms": [{"matchFields": [requirement]}]}


def _add_new(into: list[Mapping[str, Any]], requirements: Sequence[Mapping[str, Any]]) -> None:
    into.extend(entry for entry in requirements if entry not in into)


def _configuration(claim: ResolvedClaim, chosen: Sequence[RequestAlternative]) -> list[Mapping[str, Any]]:
    """Classes' entries first, then the claim's; `requests` is left out where an entry is for all of them."""
    found: list[Mapping[str, Any]] = []
    for device_class in dict.fromkeys(wanted.device_class for wanted in chosen):
        labels = [wanted.label for wanted in chosen if wanted.device_class is device_class]
        found += [
            _entry(FROM_CLASS, [] if len(labels) == len(chosen) else labels, entry.raw)
            for entry in device_class.config
        ]
    for entry in claim.claim.config:
        concerned = [wanted for wanted in chosen if {wanted.base, wanted.label} & set(entry.requests)]
        if entry.requests and not concerned:
            continue
        every = not entry.requests or len(concerned) == len(chosen)
        found.append(_entry(FROM_CLAIM, [] if every else list(entry.requests), entry.raw))
    return found


def _entry(source: str, requests: list[str], raw: Mapping[str, Any]) -> Mapping[str, Any]:
    return {"source": source, **({"requests": requests} if requests else {}), **raw}
