"""Reading ResourceClaims: whose they are, where they are allocated, and who holds them.

Whose claim is it? Every request (and every alternative of `firstAvailable`) names a DeviceClass. A class is
koordra's when its name is `koordra.io` or ends in `.koordra.io`, or when its own words say so: a selector
that demands the driver koordra.io or reads one of its attributes, or opaque parameters for that driver. Then

    all requests koordra's                  KOORDRA   planned here
    none                                    FOREIGN   left alone: another driver's, or nobody's
    some                                    MIXED     refused (ForeignDriver): one claim has one allocator
    a class that does not exist             UNKNOWN   waits; nobody can allocate it

A class of koordra's by name that does not exist is UNKNOWN too.
"""

from __future__ import annotations

import re
from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from koordra.api import names, objects
from koordra.api.allocation import pinned_node
from koordra.api.claims import MAX_RESULTS
from koordra.api.objects import Fields, Object
from koordra.api.pods import SIDES, amounts, containers

POD_GROUPS: Final = "scheduling.k8s.io"
"""API group of Kubernetes' own PodGroups."""

EXTENDED_RESOURCE: Final = "deviceclass.resource.kubernetes.io/"
"""Before a DeviceClass' name: the extended resource that every class is, without saying so (KEP-5004)."""

Users = Mapping[str, Sequence[Object]]
"""Claim key -> the pods that name it and have not finished."""


class Owner(StrEnum):
    """Who may allocate a claim; see the module's table."""

    KOORDRA = "koordra"
    FOREIGN = "foreign"
    MIXED = "mixed"
    UNKNOWN = "unknown"


_OUR_WORDS: Final = re.compile(
    r"""device\.driver\s*==\s*(['"])koordra\.io\1"""  # demands the driver
    r"""|\[\s*(['"])koordra\.io\2\s*\]"""  # device.attributes["koordra.io"], device.capacity["koordra.io"]
)


def owner(claim: Fields, classes: Mapping[str, Object]) -> Owner:
    return owner_of(class_names(claim), classes)


def owner_of(named: Sequence[str], classes: Mapping[str, Object]) -> Owner:
    if any(name not in classes for name in named):
        return Owner.UNKNOWN
    ours = [is_koordra_class(classes[name]) for name in named]
    if not any(ours):
        return Owner.FOREIGN
    return Owner.KOORDRA if all(ours) else Owner.MIXED


def class_names(claim: Fields) -> list[str]:
    """The DeviceClasses a claim names, in the order of its requests, each once."""
    found: dict[str, None] = {}
    devices = objects.spec_of(claim).get("devices")
    for request in _mappings(devices.get("requests") if isinstance(devices, Mapping) else None):
        for asked in (request, request.get("exactly"), *_mappings(request.get("firstAvailable"))):
            if isinstance(asked, Mapping) and asked.get("deviceClassName"):
                found[str(asked["deviceClassName"])] = None
    return list(found)


def is_made_for(claim: Fields, pod_uid: str) -> bool:
    """Whether it was made of a template, for this pod, and ends with it."""
    if names.POD_CLAIM_NAME not in objects.annotations_of(claim):
        return False
    owners = objects.metadata(claim).get("ownerReferences") or ()
    return any(one.get("controller") and one.get("uid") == pod_uid for one in owners)


def is_koordra_class(device_class: Fields) -> bool:
    """Whether devices of koordra are meant by this DeviceClass; see the module's docstring."""
    name = objects.name(device_class)
    if name == names.DRIVER or name.endswith(f".{names.DRIVER}"):
        return True
    config = _mappings(objects.spec_of(device_class).get("config"))
    return any(map(_OUR_WORDS.search, expressions(device_class))) or any(
        (entry.get("opaque") or {}).get("driver") == names.DRIVER for entry in config
    )


def extended_resources(pod: Fields, classes: Mapping[str, Object]) -> dict[str, str]:
    """Resources of the pod's containers of which kube-scheduler makes claims for devices of koordra's, with
    their classes: by the name that a class gives itself, or by that which every class has."""
    asked = {name for raw in containers(pod) for side in SIDES for name in amounts(raw, side)}
    found = {}
    for name, one in classes.items():
        own = str(objects.spec_of(one).get("extendedResourceName") or "")
        found.update({each: name for each in (own, EXTENDED_RESOURCE + name) if each in asked})
    return {name: of for name, of in sorted(found.items()) if is_koordra_class(classes[of])}


def expressions(device_class: Fields) -> list[str]:
    """CEL of its selectors."""
    selectors = _mappings(objects.spec_of(device_class).get("selectors"))
    return [str((selector.get("cel") or {}).get("expression") or "") for selector in selectors]


def allocation(claim: Fields) -> Fields | None:
    """status.allocation, None while there is none."""
    found = objects.status_of(claim).get("allocation")
    return found if isinstance(found, (dict, Mapping)) else None


def with_allocation(claim: Object, allocation: Fields) -> Object:
    return {**claim, "status": {**objects.status_of(claim), "allocation": allocation}}


def results(claim: Fields) -> list[Fields]:
    return list(_mappings(((allocation(claim) or {}).get("devices") or {}).get("results")))


def consumed(result: Fields) -> dict[str, str]:
    """What a result takes of its device's capacities; empty where it says nothing that can be read."""
    found = result.get("consumedCapacity")
    return {str(name): str(found[name]) for name in sorted(found)} if isinstance(found, dict) else {}


def is_allocated(claim: Fields) -> bool:
    return allocation(claim) is not None


def holds_koordra_devices(claim: Fields) -> bool:
    return any(result.get("driver") == names.DRIVER for result in results(claim))


def pools(claim: Fields) -> set[str]:
    return {str(result.get("pool")) for result in results(claim) if result.get("driver") == names.DRIVER}


def reserved_for(claim: Fields) -> list[str]:
    return [str(entry.get("uid")) for entry in _mappings(objects.status_of(claim).get("reservedFor"))]


def node_of(claim: Fields) -> str | None:
    """The one node an allocation is pinned to through `metadata.name In [node]`; None when it is not pinned
    that way."""
    return pinned_node((allocation(claim) or {}).get("nodeSelector")) or None


def is_immediate(obj: Fields) -> bool:
    """Whether the claim, or DeviceClass, says that devices are given out without waiting for a pod. Whose
    word counts is another question (cache/immediate_claims)."""
    return objects.annotations_of(obj).get(names.MODE_LABEL) == names.IMMEDIATE


def is_kept(claim: Fields) -> bool:
    """Whether it is marked to keep its devices between pods (controller/resource_class/elastic)."""
    return is_immediate(claim) and names.RETAIN_FINALIZER in objects.finalizers_of(claim)


def outlives_pods(claim: Fields) -> bool:
    """Whether it has its devices still when no pod uses it any more: it is kept, or reserved for a PodGroup,
    which ends when its maker deletes it."""
    return is_kept(claim) or any(map(is_pod_group, _mappings(objects.status_of(claim).get("reservedFor"))))


def is_pod_group(consumer: Fields) -> bool:
    """Of an entry of `status.reservedFor` (KEP 5729, DRAWorkloadResourceClaims)."""
    return consumer.get("apiGroup") == POD_GROUPS and consumer.get("resource") == "podgroups"


def requested_devices(claim: Fields) -> int:
    """How many devices it asks for at most; all of a node's are as many as an allocation can name, as in
    Kubernetes' ResourceQuota."""
    devices = objects.spec_of(claim).get("devices")
    requests = _mappings(devices.get("requests") if isinstance(devices, Mapping) else None)
    return sum(
        max(map(_count, _mappings(each.get("firstAvailable")) or [_exactly(each)])) for each in requests
    )


def _exactly(request: Fields) -> Fields:
    found = request.get("exactly")
    return found if isinstance(found, Mapping) else request


def _count(asked: Fields) -> int:
    count = asked.get("count")
    if asked.get("allocationMode") == "All" or not isinstance(count, int | None):
        return MAX_RESULTS
    return 1 if count is None else count


def lacking(pod: Fields, claims: Container[str]) -> list[str]:
    """What the pod waits for because it is not there: claims by name, entries whose claim nobody has made
    yet."""
    namespace, found = objects.namespace(pod), []
    named = {str(one.get("name")): one for one in objects.spec_of(pod).get("resourceClaims") or ()}
    for entry, name in objects.pod_claim_names(pod).items():
        if name is None:
            template = named[entry].get("resourceClaimTemplateName")
            found.append(
                f"{entry} (made from ResourceClaimTemplate {namespace}/{template}, if that is there)"
            )
        elif f"{namespace}/{name}" not in claims:
            found.append(f"{namespace}/{name}")
    return found


def unused(claims: Iterable[Object], inside: frozenset[str], users: Users) -> tuple[Object, ...]:
    """Those that have devices of koordra's, are reserved by nobody, and that only pods `inside` (by uid) wait
    for; by key, each once."""
    found = {
        objects.key(claim): claim
        for claim in claims
        if holds_koordra_devices(claim)
        and not reserved_for(claim)
        and not is_kept(claim)
        and inside.issuperset(objects.uid(pod) for pod in users.get(objects.key(claim), ()))
    }
    return tuple(found[key] for key in sorted(found))


Device = tuple[str, str, str, str]
"""Driver, pool, device and share id."""


@dataclass(frozen=True, slots=True)
class ClaimEntry:
    """What the controller reads of one version of a claim.

    `devices` are those of all drivers, as driver, pool, device and share id; `places` pool and device of
    koordra's, `pools` their pools. `owners` are the uids of the objects that it goes with, `made_for` those
    of them for which it was made from a template, None where it was not; `made_for_group`: the name of the
    PodGroup among these, of which its pods do not know the uid.
    """

    claim: Object
    uid: str
    class_names: tuple[str, ...]
    is_allocated: bool
    node: str | None
    devices: tuple[Device, ...]
    places: frozenset[tuple[str, str]]
    pools: frozenset[str]
    is_reserved: bool
    owners: tuple[str, ...]
    made_for: tuple[str, ...] | None
    made_for_group: str | None
    is_deleting: bool

    @classmethod
    def of(cls, claim: Object, before: ClaimEntry | None) -> ClaimEntry:
        """`before`: an earlier version; the spec of a claim never changes."""
        uid, references = objects.uid(claim), _mappings(objects.metadata(claim).get("ownerReferences"))
        named = tuple(class_names(claim)) if before is None or before.uid != uid else before.class_names
        devices = tuple(sorted(map(_device, results(claim))))
        makers = [one for one in references if one.get("controller")]
        places = frozenset([(pool, device) for driver, pool, device, _ in devices if driver == names.DRIVER])
        return cls(
            claim,
            uid,
            named,
            is_allocated(claim),
            node_of(claim),
            devices,
            places,
            frozenset([pool for pool, _ in places]),
            bool(objects.status_of(claim).get("reservedFor")),
            tuple([str(one.get("uid")) for one in references]),
            tuple([str(one.get("uid")) for one in makers])
            if names.POD_CLAIM_NAME in objects.annotations_of(claim)
            else None,
            next((str(one.get("name")) for one in makers if _is_pod_group(one)), None),
            objects.is_deleting(claim),
        )

    @property
    def may_be_orphan(self) -> bool:
        """Held and not reserved: whether a pod can use it changes with the pods. A claim that is being
        deleted is kube-controller-manager's to free where it has the builtin finalizer, which its owner may
        have taken off."""
        if not self.pools or self.is_reserved:
            return False
        return not (self.is_deleting and names.DELETE_PROTECTION in objects.finalizers_of(self.claim))


def _is_pod_group(owner: Fields) -> bool:
    """Whatever its version."""
    return owner.get("kind") == "PodGroup" and str(owner.get("apiVersion")).startswith(f"{POD_GROUPS}/")


def _device(result: Fields) -> Device:
    return (
        str(result.get("driver")),
        str(result.get("pool")),
        str(result.get("device")),
        str(result.get("shareID", "")),
    )


def _mappings(value: object) -> Sequence[Fields]:
    if value is None or isinstance(value, str) or not isinstance(value, (list, Sequence)):
        return ()
    return [entry for entry in value if isinstance(entry, (dict, Mapping))]
