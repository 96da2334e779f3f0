"""What a ResourceClaim counts in quotas, whoever wrote it and whoever allocates it. Pure.

    koordra.io/gpu           devices: cards, shares of cards, MIG instances
    koordra.io/gpu-memory    bytes, on all of them together
    koordra.io/gpu-cores     percent; a whole card is 100, a MIG instance 0
    koordra.io/nic           NICs, shares of NICs, VFs
    koordra.io/nic-share     percent; a whole NIC and a VF are 100

A claim counts by its spec, which cannot be changed, from its admission until it is gone, allocated or not:
the most that it may come to. Of alternatives the largest counts, for each name by itself. What it does not
say in bytes (a whole card, a percentage of one) is of the largest device that class and selectors leave of
those that nodes publish; an exclusive share counts as the whole of its card, since nobody else gets the rest.
None is an amount that nobody knows: all devices of a node (allocationMode All), a card that no node has.
adminAccess counts nothing, as with Kubernetes.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Final, NamedTuple, Protocol

from koordra.api import names, objects
from koordra.api.objects import Fields, Object
from koordra.api.opaque.configuration import Configuration
from koordra.api.opaque.parameters import RdmaMode
from koordra.api.reader import Reader
from koordra.compat.quota_charges import OWN_CORES, OWN_COUNT, OWN_MEMORY, OWN_NIC_SHARE, OWN_NICS, Amounts
from koordra.controller import claims as claims_of
from koordra.controller.quota.bounds import Charge
from koordra.controller.webhook.claims import AskedDevices
from koordra.quantity import to_int

_TYPE: Final = re.compile(r"""\.\s*type\s*==\s*["'](\w+)["']""")
_TYPES: Final = {
    names.CLASS_GPU: names.TYPE_GPU,
    names.CLASS_MIG: names.TYPE_MIG,
    names.CLASS_NIC: names.TYPE_NIC,
    names.CLASS_VF: names.TYPE_VF,
}


class LargestMemory(Protocol):
    def __call__(self, of_class: Sequence[str], of_request: Sequence[str], percent: int = 100) -> int | None:
        """Bytes of the largest device that is published, or a percentage of it, as it would be allocated;
        None where none is. `of_class`, `of_request`: selectors."""


class _Asked(NamedTuple):
    """An exact request or one alternative, with what class and claim say of it."""

    label: str
    body: Reader
    device_class: Fields
    config: Configuration

    @property
    def selectors(self) -> list[str]:
        return [each.inner("cel").text("expression") for each in self.body.each("selectors")]

    @property
    def type(self) -> str:
        """`type` of the devices. Classes of one's own say it in their selectors; a class of koordra's that
        does not counts as one of GPUs, which is the stricter side."""
        name = self.body.text("deviceClassName")
        if name in names.IMEX_CLASSES:
            return names.TYPE_IMEX
        words = " ".join([*claims_of.expressions(self.device_class), *self.selectors])
        said = _TYPES.get(name) or next(iter(_TYPE.findall(words)), "")
        return said or names.TYPE_GPU

    def capacity(self, name: str) -> int | None:
        for key, amount in self.body.inner("capacity").inner("requests").data.items():
            if str(key).rpartition("/")[2] == name:
                return max(0, to_int(str(amount)))
        return None


def amounts_of(claim: Fields, classes: Mapping[str, Object], largest: LargestMemory) -> Amounts:
    """Raises InvalidInput (or another of usage.MALFORMED) for what the API server would not store."""
    asked = AskedDevices.of({"kind": "ResourceClaim", **claim})
    total: dict[str, int | None] = {}
    for alternatives in _requests(asked, classes):
        most: dict[str, int | None] = {}
        for one in alternatives:
            for name, amount in _amounts(one, largest).items():
                before = most.get(name, 0)
                most[name] = None if amount is None or before is None else max(before, amount)
        for name, amount in most.items():
            before = total.get(name, 0)
            total[name] = None if amount is None or before is None else before + amount
    return total


def _requests(asked: AskedDevices, classes: Mapping[str, Object]) -> Iterator[list[_Asked]]:
    """The alternatives of each request that are koordra's."""
    of: dict[str, list[_Asked]] = {}
    for label, body, config in asked.configured(classes):
        found = classes.get(name := body.text("deviceClassName"), {"metadata": {"name": name}})
        if claims_of.is_koordra_class(found) and not body.flag("adminAccess"):
            of.setdefault(label.partition("/")[0], []).append(_Asked(label, body, found, config))
    yield from of.values()


def _amounts(one: _Asked, largest: LargestMemory) -> Amounts:
    kind = one.type
    count = None if one.body.text("allocationMode") == "All" else one.body.whole("count", default=1)
    if kind in names.NIC_TYPES:
        exclusive = one.config.rdma(one.label).mode is RdmaMode.EXCLUSIVE
        said = None if exclusive else one.capacity(names.CAPACITY_SHARE)
        each: dict[str, int | None] = {OWN_NICS: 1, OWN_NIC_SHARE: 100 if said is None else said}
    elif kind in names.GPU_TYPES:
        memory, is_part = _memory(one, largest)
        cores = 0 if kind == names.TYPE_MIG else _cores(one, is_part)
        each = {OWN_COUNT: 1, OWN_MEMORY: memory, OWN_CORES: cores}
    else:
        return {}
    return {
        name: None if count is None or amount is None else count * amount for name, amount in each.items()
    }


def _memory(one: _Asked, largest: LargestMemory) -> tuple[int | None, bool]:
    """Bytes of each device; whether others may have the rest of it."""
    gpu, said = one.config.gpu(one.label), one.capacity(names.CAPACITY_MEMORY)
    is_part = (said is not None or gpu.memory_percent not in (None, 100)) and not gpu.exclusive
    if said is not None and is_part:
        return said, True
    percent = gpu.memory_percent if is_part else None
    return largest(claims_of.expressions(one.device_class), one.selectors, percent or 100), is_part


def _cores(one: _Asked, is_part: bool) -> int:
    said = one.capacity(names.CAPACITY_CORES)
    if said is not None and not one.config.gpu(one.label).exclusive:
        return said
    return 100 if not is_part or one.config.gpu(one.label).tflops else 0


def charge_of(claim: Object, classes: Mapping[str, Object], largest: LargestMemory) -> Charge | None:
    """None where it counts nothing. In the place of a pod stands one that names the claim and has nothing
    that scopes of quotas ask."""
    found = amounts_of(claim, classes, largest)
    if not found:
        return None
    metadata = {"namespace": objects.namespace(claim), "name": f"claim {objects.name(claim)}"}
    metadata["creationTimestamp"] = str(objects.metadata(claim).get("creationTimestamp") or "")
    named = [{"name": "claim", "resourceClaimName": objects.name(claim)}]
    return Charge({"metadata": metadata, "spec": {"resourceClaims": named}}, found)


def with_percent_bounds(obj: Object, classes: Mapping[str, Object], largest: LargestMemory) -> Object:
    """A claim or template in which requests for a percentage of a card's memory say in `capacity.requests`
    the most that it may come to (for Kueue, which reads no parameters of koordra's); the very same one where
    there is nothing to say."""
    asked = AskedDevices.of(obj)
    bounds = {
        one.label: bound
        for alternatives in _requests(asked, classes)
        for one in alternatives
        if one.config.gpu(one.label).memory_percent is not None
        and one.capacity(names.CAPACITY_MEMORY) is None
        and (bound := _memory(one, largest)[0])
    }
    return _bounded(obj, bounds) if bounds else obj


def _bounded(obj: Object, bounds: Mapping[str, int]) -> Object:
    def of(spec: Fields) -> Object:
        devices = objects.fields(spec.get("devices"))
        return {**spec, "devices": {**devices, "requests": [request(each) for each in devices["requests"]]}}

    def request(each: Fields) -> Object:
        name = each["name"]
        if each.get("exactly"):
            return {**each, "exactly": body(each["exactly"], name)}
        return {
            **each,
            "firstAvailable": [body(one, f"{name}/{one['name']}") for one in each["firstAvailable"]],
        }

    def body(asked: Fields, label: str) -> Object:
        if label not in bounds:
            return dict(asked)
        capacity = objects.fields(asked.get("capacity"))
        said = {**objects.fields(capacity.get("requests")), names.CAPACITY_MEMORY: str(bounds[label])}
        return {**asked, "capacity": {**capacity, "requests": said}}

    spec = objects.spec_of(obj)
    is_template = obj.get("kind") == "ResourceClaimTemplate"
    return {**obj, "spec": {**spec, "spec": of(spec["spec"])} if is_template else of(spec)}
