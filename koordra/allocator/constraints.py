"""matchAttribute and distinctAttribute over the devices chosen so far.

A constraint is monotone: once a device is refused, adding more devices never makes it acceptable. Its state
is a tuple of value sets, so that the search can go back by keeping the old one:

    matchAttribute     (intersection,)        what all devices so far have in common; () before the first
    distinctAttribute  (values, values, ...)  one set per device, pairwise disjoint

A scalar is a set of one; lists count only with the gate DRAListTypeAttributes. Values are typed: the string
"1" and the number 1 have nothing in common. A device without the attribute is refused.
"""

from __future__ import annotations

from typing import Any

from koordra.allocator.devices.inventory import PublishedDevice
from koordra.api.claims import Constraint

Values = frozenset[tuple[str, Any]]
State = tuple[Values, ...]


def attribute_of(constraint: Constraint) -> str:
    return constraint.match_attribute or constraint.distinct_attribute


def values_of(attribute: str, offered: PublishedDevice, *, lists: bool) -> Values:
    """The device's values of a constrained attribute; empty when it can never be accepted."""
    found = offered.facts.attributes.get(attribute)
    if found is None or (found.is_list and not lists):
        return frozenset()
    return found.elements


def after(constraint: Constraint, state: State, values: Values) -> State | None:
    """The state with one more device, None when the device is refused."""
    if not values:
        return None
    if constraint.match_attribute:
        common = state[0] & values if state else values
        return (common,) if common else None
    if any(values & earlier for earlier in state):
        return None
    return (*state, values)
