"""Which machines a request's selectors admit, judged once per sort of machine.

    pools of a node ──▶ what is told of them (names that selectors read) ──▶ `Published`: nodes that publish the same share it
    selectors of class and request ──▶ eligibility.judge on the devices of one such node ──▶ `Admits`

The judgement is the search's own (`allocator.devices.eligibility`): gates, selectors of class and request, foreign drivers, taints, and
amounts that are more than the device has at all. What is free does not matter here.

Two answers are kept apart. `any`: some device could serve the request, were it not tainted. From this follow the models that a
request may run on, which is knowledge about the workload: it must not change because something is broken or reserved for a while.
`enough`: today's devices are enough. A taint counts here if all devices of its type on the node have it (a pool that is set aside, a
node whose driver is gone); one on a single device makes that device unusable (`view`) and bans nothing.

Only what is read makes sorts: a serial number that no selector reads does not. Names that would make as many sorts as there are nodes
(`NodeSets` says when) are not read; an expression that reads such a name, or all names, or fails, may admit the device. The search
has the last word.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Final, NamedTuple

from koordra.allocator.devices.eligibility import judge
from koordra.allocator.devices.inventory import Pool, PublishedDevice
from koordra.allocator.features import Features
from koordra.allocator.request.requests import RequestAlternative
from koordra.api import names
from koordra.api.devices import NO_EXECUTE, NO_SCHEDULE, Taint
from koordra.cel.selectors import names_read_by

TOLD: Final = frozenset(
    {
        names.ATTR_TYPE.rpartition("/")[2],
        names.ATTR_ALLOCATOR.rpartition("/")[2],
        names.ATTR_MODEL.rpartition("/")[2],
        names.ATTR_PRODUCT_NAME.rpartition("/")[2],
        "architecture",
        "profile",
        "linkLayer",
        "rateGbps",
    }
)
"""Names that are read from the start, since many selectors do."""

_MOST: Final = 1 << 14
_READ: Final = "admitted"


@dataclass(frozen=True, slots=True, eq=False)
class Published:
    """What nodes of one sort publish: one node's devices, with the taints that all of their type carry, and without any."""

    devices: tuple[PublishedDevice, ...]
    untainted: tuple[PublishedDevice, ...]
    token: object


class Admits(NamedTuple):
    """See the module."""

    any: bool
    enough: bool


def keeps_out(taint: Taint) -> bool:
    """Whether the taint keeps requests away that do not tolerate it."""
    return taint.effect in (NO_SCHEDULE, NO_EXECUTE)


def published(pools: tuple[Pool, ...], told: frozenset[str]) -> Published:
    """What the pools publish, by these names; pools that publish the same have the same `token`."""
    kept = pools[0].read if pools else {}
    known: tuple[tuple[Pool, ...], frozenset[str], Published] | None = kept.get(_READ)
    if known is None or known[1] != told or known[0] != pools:
        known = kept[_READ] = pools, told, _published(pools, told)
    return known[2]


def _published(pools: tuple[Pool, ...], told: frozenset[str]) -> Published:
    here = tuple([one for pool in pools if not pool.trouble for one in pool.devices if one.here])
    if not any(one.taints for one in here):
        return Published(here, here, _one_of(tuple([_told(one, told) for one in here])))
    common = common_taints(here)
    devices = tuple(replace(one, taints=common[type_of(one)]) for one in here)
    untainted = tuple(replace(one, taints=()) for one in here)
    return Published(devices, untainted, _one_of(tuple([_told(one, told) for one in devices])))


def common_taints(devices: Sequence[PublishedDevice]) -> dict[str, tuple[Taint, ...]]:
    """By type of device, the taints that keep out and that all devices of the type have."""
    found: dict[str, tuple[Taint, ...]] = {}
    for one in devices:
        own = tuple(filter(keeps_out, one.taints)) if one.taints else ()
        known = found.get(type_of(one))
        found[type_of(one)] = own if known is None else tuple(taint for taint in known if taint in own)
    return found


def type_of(one: PublishedDevice) -> str:
    return str(one.plain.get(names.ATTR_TYPE))


def _told(one: PublishedDevice, told: frozenset[str]) -> Hashable:
    facts, device, attributes = one.facts, one.device, one.facts.attributes
    return (
        facts.driver,
        one.taints,
        device.allow_multiple_allocations,
        bool(device.binding_conditions),
        bool(device.consumes_counters),
        tuple(
            [
                (name, attributes[name].kind, attributes[name].value)
                for name in _names(tuple(attributes), told)
            ]
        ),
        tuple([(name, entry.value, entry.policy) for name, entry in sorted(facts.capacity.items())]),
    )


@lru_cache(maxsize=4096)
def _names(published: tuple[str, ...], told: frozenset[str]) -> tuple[str, ...]:
    """Those that are told, sorted; devices of one type publish the same names."""
    return tuple(
        sorted(
            name
            for name in published
            if name.rpartition("/")[2] in told or name.startswith(names.ATTR_ISOLATION)
        )
    )


@lru_cache(maxsize=4096)
def _one_of(_told: tuple[Hashable, ...]) -> object:
    return object()


class Admitted:
    """Judgements by request and sort. `told` are the names that sorts are told apart by."""

    def __init__(self, features: Features, told: frozenset[str] = TOLD) -> None:
        self.features, self.told = features, told
        self._known: dict[tuple[object, int, bool, object], Admits] = {}
        self._plain: dict[object, RequestAlternative] = {}

    def tell(self, more: frozenset[str]) -> None:
        """Read these names too. Sorts are others then."""
        self.told |= more
        self._known.clear()
        self._plain.clear()

    def of(self, wanted: RequestAlternative, at: Published, *, own_driver_only: bool) -> Admits:
        """Whether devices of the sort serve the request."""
        key = (wanted.kind, wanted.spec.count, own_driver_only, at.token)
        found = self._known.get(key)
        if found is None:
            if len(self._known) >= _MOST:
                self._known.clear()
                self._plain.clear()
            found = self._known[key] = self._judged(wanted, at, own_driver_only=own_driver_only)
        return found

    def types(self, wanted: RequestAlternative, at: Published, *, own_driver_only: bool) -> frozenset[str]:
        """Types of the devices that could serve the request, were they not tainted."""
        plain = _readable(wanted, self.told)
        return frozenset(
            type_of(one) for one in at.untainted if self._times(plain, one, own_driver_only=own_driver_only)
        )

    def _judged(self, wanted: RequestAlternative, at: Published, *, own_driver_only: bool) -> Admits:
        plain = self._plain.get(wanted.kind)
        if plain is None:
            plain = self._plain[wanted.kind] = _readable(wanted, self.told)
        times = sum(self._times(plain, one, own_driver_only=own_driver_only) for one in at.devices)
        enough = times >= max(1, wanted.spec.count)
        if at.devices is at.untainted or enough:
            return Admits(any=times > 0, enough=enough)
        free = any(self._times(plain, one, own_driver_only=own_driver_only) for one in at.untainted)
        return Admits(any=free, enough=False)

    def _times(self, wanted: RequestAlternative, one: PublishedDevice, *, own_driver_only: bool) -> int:
        """How often the empty device serves the request."""
        verdict = judge(wanted, one, features=self.features, own_driver_only=own_driver_only)
        if verdict.error:
            return max(1, wanted.spec.count)
        if verdict.demand is None or verdict.cause is not None:
            return 0
        if not one.device.allow_multiple_allocations:
            return 1
        capacity = one.device.capacity
        asked = [(name, amount) for name, amount in verdict.demand.amounts.items() if amount > 0]
        return min((int(capacity[name].value // amount) for name, amount in asked), default=wanted.spec.count)


def names_of(wanted: RequestAlternative) -> frozenset[str]:
    """The names that the selectors of class and request read; those that may read all names are left out."""
    found: frozenset[str] = frozenset()
    for expression in (*wanted.device_class.selectors, *wanted.spec.selectors):
        found |= names_read_by(expression) or frozenset()
    return found


def _readable(wanted: RequestAlternative, told: frozenset[str]) -> RequestAlternative:
    """The request without the expressions that read what sorts are not told apart by."""

    def kept(expressions: tuple[str, ...]) -> tuple[str, ...]:
        read = ((one, names_read_by(one)) for one in expressions)
        return tuple(one for one, needed in read if needed is not None and needed <= told)

    own, of_class = kept(wanted.spec.selectors), kept(wanted.device_class.selectors)
    if own == wanted.spec.selectors and of_class == wanted.device_class.selectors:
        return wanted
    return replace(
        wanted,
        spec=replace(wanted.spec, selectors=own),
        device_class=replace(wanted.device_class, selectors=of_class),
    )
