"""What the controller has learned of the workload, and which of two nodes that serve a claim equally well it prefers.

The allocator's cost of a site has two parts. What a placement is worth to its claim comes first: rungs, alternatives, nearness of
GPU and NIC, NVLink, compactness (allocator.score). Where that is equal, what the placement does to the cluster decides: how much
free GPU it makes useless to the claims that are to come. That is the policy `koordra` (placement.policy.expected_waste), and here it is
asked with the table learned from the claims that have arrived:

    sites that changed ──▶ fleet (kept between passes) ──▶ key of a request on a site ──▶ order of the sites (offers.py)
    claims that arrive ──▶ counts by class ──▶ table, made anew whenever the count grew by a quarter: a new `epoch`

Before 32 claims were counted there is no table and no key: then the rest of the written cost decides. So it does for
claims that ask for Binpack or Spread, and for those whose classes cannot be counted in devices. A claim is counted once, when
the allocator is first asked for it. A controller that finds nothing that an earlier one has kept begins with the claims that have
their devices already. The same table chooses the devices inside a node (`cards`, given to the allocator).

Sites of one kind publish the same devices under pools of their own names. They are read once per kind, with the own pool's name
left out. Table and counts outlive the process (leftover_store.py).
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

from koordra.allocator.devices.inventory import Inventory, Usage
from koordra.allocator.features import Features
from koordra.allocator.request.requests import ResolvedClaim, resolve
from koordra.api import objects
from koordra.api.allocation import Allocation, DeviceResult
from koordra.api.claims import DeviceClass, ResourceClaim
from koordra.api.devices import DeviceID
from koordra.api.objects import Object
from koordra.api.opaque.parameters import NodePolicy
from koordra.controller import claims as claims_of
from koordra.controller.cache.groups import Group
from koordra.controller.cache.pod_claims import PodClaims
from koordra.controller.request_class import request_class
from koordra.controller.sites import Site, Sites
from koordra.errors import KoordraError, PlanError
from koordra.logs import get_logger
from koordra.placement.columns.arrays import INFEASIBLE
from koordra.placement.columns.node_devices import NodeDevices
from koordra.placement.columns.state import Request
from koordra.placement.order.node_ranking import NodeRanking, read_node
from koordra.placement.policy.device_selection import Cards
from koordra.placement.policy.workload import Workload
from koordra.placement.policy.workload_table import Table

log = get_logger(__name__)

_MOST_CLASSES: Final = 1024
_SPARE_KINDS: Final = 64


@dataclass(frozen=True)
class Learned:
    """What outlives a process."""

    table: Table = field(default_factory=Table)
    workload: Workload = field(default_factory=Workload)


@dataclass(slots=True)
class _Held:
    """What a site's claims hold; the pool `unnamed` is counted without its name."""

    unnamed: str | None
    claims: tuple[Object, ...] = ()
    taken: Usage = field(default_factory=Usage)

    def is_part_of(self, claims: Sequence[Object], unnamed: str | None) -> bool:
        return (
            self.unnamed == unnamed
            and len(self.claims) <= len(claims)
            and all(mine is theirs for mine, theirs in zip(self.claims, claims, strict=False))
        )


class Leftovers:
    """All sites as a fleet, and what was learned. Not thread-safe.

    `epoch` goes up when the table is new; what was ordered by the old one has to be ordered anew.
    """

    def __init__(self, learned: Learned | None = None) -> None:
        known = learned or Learned()
        self.epoch = 0
        self._ranking = NodeRanking((), known.table)
        self._ranking.online.resume(known.workload)
        self._read = 0
        self._numbering = -1
        self._of_kind: dict[int, NodeDevices] = {}
        self._published: dict[str, tuple[Any, Object]] = {}
        self._held: dict[str, _Held] = {}
        self._heard: set[str] = set()
        self._requests: dict[str, Request | None] = {}
        self._sets_epoch = -1
        self._measures = self._ranking.measures
        self._begun = known.workload.count > 0
        self._cards: Cards | None = None

    @property
    def cards(self) -> Cards | None:
        """What is known, for the choice of devices inside a node; None while nothing is."""
        table = self._ranking.policy.table
        if not table.pods:
            return None
        if self._cards is None or self._cards.table is not table:
            self._cards = Cards(table)
        return self._cards

    @property
    def learned(self) -> Learned:
        """What to keep."""
        return Learned(self._ranking.policy.table, self._ranking.online.workload)

    def follow(self, sites: Sites) -> None:
        """Take over the sites that changed since the last call."""
        changes = sites.changes
        if self._numbering != sites.numbering:
            self._of_kind.clear()
            self._numbering = sites.numbering
        stale = set(changes[self._read :])
        if self._read > len(changes):
            stale = sites.by_name.keys() | self._published.keys()  # the list was begun anew
        self._read = len(changes)
        for name in sorted(stale):
            site = sites.by_name.get(name)
            if site is None:
                self._forget(name)
                continue
            try:
                self._take_over(site, sites)
            except KoordraError as error:
                log.debug("site_not_ranked", node=name, error=str(error))
                self._forget(name)
            except Exception:  # it is only a preference: no defect of it may keep claims from being placed
                log.exception("site_not_ranked", node=name)
                self._forget(name)
        if stale and self._ranking.measures != self._measures:
            self._measures = self._ranking.measures
            self._requests.clear()

    def begin(
        self, claims: Collection[Object], pods: Collection[Object], classes: Mapping[str, Object]
    ) -> None:
        """Once, where nothing was counted before: what is in use already is what was asked for until now."""
        if self._begun or not any(self._ranking.measures):
            return
        self._begun = True
        found = list(_in_use(claims, pods))
        self._heard |= {uid for group in found for uid in _uids(group)}
        asked = (self._request(request_class(group), group, classes) for group in found)
        if self._ranking.begin_with(request for request in asked if request is not None):
            self.epoch += 1
            log.info("leftover_table_learned", claims=self._ranking.policy.table.pods, of="claims in use")

    def is_new(self, group: Group) -> bool:
        """Whether some of the claims were not counted yet."""
        return any(self._ranking.measures) and not _uids(group) <= self._heard

    def heard(self, kind: str, group: Group, classes: Mapping[str, Object]) -> None:
        """These claims wait; those that are new are counted."""
        if not self.is_new(group):
            return
        self._heard |= _uids(group)
        request = self._request(kind, group, classes)
        try:
            learned = request is not None and self._ranking.heard(request)
        except Exception:  # as in `follow`
            log.exception("claims_not_counted")
            return
        if learned:
            self.epoch += 1
            log.info("leftover_table_learned", claims=self._ranking.policy.table.pods)

    def retain(self, claims: Collection[Object]) -> None:
        """Claims that are not there any more need not be known."""
        if len(self._heard) > 2 * len(claims) + 100:
            self._heard &= {objects.uid(claim) or objects.key(claim) for claim in claims}

    def key(self, kind: str, group: Group, site: Site, classes: Mapping[str, Object]) -> int | None:
        """Smaller is better for what is to come; None for all where nothing is known, or the request cannot be counted."""
        if not self._ranking.policy.table.pods:
            return None
        request = self._request(kind, group, classes)
        if request is None:
            return None
        try:
            found = self._ranking.key(site.name, request)
        except Exception:  # as in `follow`
            log.exception("site_not_ranked", node=site.name)
            self._requests[kind] = None
            return None
        return INFEASIBLE if found is None else found

    def forget_classes(self) -> None:
        """DeviceClasses changed."""
        self._requests.clear()

    # sites

    def _take_over(self, site: Site, sites: Sites) -> None:
        taken = self._taken(site)
        published = (site.kind if site.kind is not None else site.inventory, site.node)
        before_of_site = self._published.get(site.name)
        if (
            before_of_site is not None
            and before_of_site[0] == published[0]
            and published[0] is not None
            and before_of_site[1] is site.node
        ):
            self._ranking.changed(site.name, taken, site.load)
            return
        self._ranking.put(self._devices(site, sites), taken, site.load)
        self._published[site.name] = (
            site.kind if site.kind is not None else site.inventory,
            site.node,
        )

    def _taken(self, site: Site) -> Usage:
        """What the site's claims hold. Those that only came are added to what was there."""
        held, unnamed = self._held.get(site.name), site.name if site.kind is not None else None
        if held is None or not held.is_part_of(site.holders, unnamed):
            held = self._held[site.name] = _Held(unnamed)
        for claim in site.holders[len(held.claims) :]:
            held.taken.add(_results(claim, unnamed=unnamed), holder=objects.uid(claim) or objects.key(claim))
        held.claims = site.holders
        return held.taken

    def _devices(self, site: Site, sites: Sites) -> NodeDevices:
        known = None if site.kind is None else self._of_kind.get(site.kind)
        inventory = Inventory(Features.of(None)) if known is not None else sites.inventory_of(site)
        if not isinstance(inventory, Inventory):
            raise PlanError("the inventory is not the allocator's; only that one can be ranked")
        own = read_node(site.name, site.node, inventory)
        if known is not None:
            return replace(known, name=site.name, node=site.node, cpu=own.cpu, host_memory=own.host_memory)
        if site.kind is not None:
            if len(self._of_kind) > len(self._published) + _SPARE_KINDS:
                living = {of for of, _ in self._published.values()}
                self._of_kind = {kind: read for kind, read in self._of_kind.items() if kind in living}
            own = self._of_kind[site.kind] = _unnamed(own, site.name)
        return own

    def _forget(self, name: str) -> None:
        self._ranking.gone(name)
        self._held.pop(name, None)
        self._published.pop(name, None)

    # requests

    def _request(self, kind: str, group: Group, classes: Mapping[str, Object]) -> Request | None:
        if self._sets_epoch != self._ranking.sets.epoch:
            # Nodes of another sort came: what some requests may use is another set now.
            self._sets_epoch = self._ranking.sets.epoch
            self._requests.clear()
        if kind not in self._requests:
            if len(self._requests) >= _MOST_CLASSES:
                self._requests.clear()
            self._requests[kind] = None
            try:
                asked = _asked(group, classes)
                if all(claim.placement.node in _OURS for claim in asked):
                    self._requests[kind] = self._ranking.request(asked, group.pods)
            except KoordraError:
                pass  # the allocator says why
            except Exception:  # as in `follow`
                log.exception("claims_not_counted")
        return self._requests[kind]


_OURS: Final = (None, NodePolicy.FRAGMENTATION_AWARE)


def _asked(group: Group, classes: Mapping[str, Object]) -> list[ResolvedClaim]:
    named = {name for claim in group.pending for name in claims_of.class_names(claim)}
    read = {name: DeviceClass.from_dict(classes[name]) for name in named if name in classes}
    return [
        resolve(ResourceClaim.from_dict(claim), position=at, classes=read, features=Features.of(None))
        for at, claim in enumerate(group.pending)
    ]


def _uids(group: Group) -> set[str]:
    return {objects.uid(claim) or objects.key(claim) for claim in group.pending}


def _in_use(claims: Collection[Object], pods: Collection[Object]) -> Iterator[Group]:
    """The claims that have their devices, by pod, as they were when they waited; those without a pod one by one."""
    held = {
        objects.key(claim): {**claim, "status": {}}
        for claim in claims
        if claims_of.holds_koordra_devices(claim)
    }
    for pod in pods:
        names = [f"{objects.namespace(pod)}/{name}" for name in objects.pod_claim_names(pod).values()]
        own = [held.pop(name) for name in names if name in held]
        if own:
            spec = {name: value for name, value in objects.spec_of(pod).items() if name != "nodeName"}
            yield Group((PodClaims({**pod, "spec": spec}, tuple(own)),))
    for claim in held.values():
        yield Group((), claim)


def _results(claim: Object, *, unnamed: str | None) -> tuple[DeviceResult, ...]:
    """What a claim holds; the pool `unnamed` goes without its name."""
    allocation = Allocation.of_claim(claim)
    if allocation is None:
        return ()
    return tuple(
        replace(result, device=_without(result.device, unnamed)) if unnamed is not None else result
        for result in allocation.results
    )


def _unnamed(devices: NodeDevices, pool: str) -> NodeDevices:
    """The same with the own pool's name left out."""
    return replace(
        devices,
        gpus=tuple(_without(one, pool) for one in devices.gpus),
        nics=tuple(_without(one, pool) for one in devices.nics),
        parts={_without(one, pool): part for one, part in devices.parts.items()},
        cuts={_without(one, pool): place for one, place in devices.cuts.items()},
        capacity={_without(one, pool): amounts for one, amounts in devices.capacity.items()},
        unusable=frozenset(_without(one, pool) for one in devices.unusable),
        pools=frozenset((driver, "" if name == pool else name) for driver, name in devices.pools),
    )


def _without(device: DeviceID, pool: str) -> DeviceID:
    return replace(device, pool="") if device.pool == pool else device
