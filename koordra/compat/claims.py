"""The normal form as the spec of a ResourceClaim, and which of its requests each container uses.

    share         a request named after its container: count, capacity memory and cores; where instances would
                  do too, alternatives `card` and `instance`
    whole card    no memory is asked for, which is all of it; a percentage is GpuConfig.memoryPercent
    distinct      distinctAttribute koordra.io/uuid over the request (whole cards are different ones by
                  themselves)
    one card      matchAttribute koordra.io/uuid over all requests
    pod-shared    requests `gpu` and `rdma`; every container uses both
    NICs          a count, alternatives of more and more NICs, or allocationMode All; virtual functions of
                  different NICs
    nearness      JointAllocation over GPUs and NICs, over the GPUs of one container, or over all (NUMA)
    policies      PlacementPolicy of the claim

Amounts are written in the largest binary unit that is exact. Nothing that is the default is written, so that
the same normalized is always the same spec.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Final

from koordra.api import names
from koordra.api.claims import MAX_RESULTS
from koordra.api.objects import Fields, Object
from koordra.api.opaque.isolation_words import NO_ISOLATION
from koordra.api.opaque.parameters import API_VERSION, Scope
from koordra.compat.dialect.pod_view import PodView
from koordra.compat.dialect.vgpu import cel_text
from koordra.compat.normalized_request import LEAST, Nics, NormalizedRequest, Share, Sharing
from koordra.compat.request_merging import MergedRequests, merge
from koordra.quantity import canonical

RDMA_REQUEST: Final = "rdma"
MOST_REQUESTS: Final = 32
MOST_BYTES: Final = 2**63 - 1
"""A quantity holds no more."""


Used = Mapping[str, tuple[str, ...]]
"""Container -> the requests of the claim that it uses, in their order."""


def claim_of(normalized: NormalizedRequest, view: PodView) -> tuple[Object, Used]:
    """The claim's spec. Raises Refused for more than a claim holds."""
    merged = merge(normalized, view.notes)
    _check_size(merged, view)
    requests = [_request(name, share, normalized) for name, share in merged.requests.items()]
    if normalized.nics is not None:
        requests.append(_nic_request(normalized.nics))
    parts = {
        "requests": requests,
        "constraints": list(_constraints(merged)),
        "config": [*_gpu_configs(merged), *_nearness(merged), *_policies(normalized)],
    }
    used = {container: tuple(found) for container, found in merged.used.items()}
    for container in normalized.nic_users:
        used[container] = (*used.get(container, ()), RDMA_REQUEST)
    if normalized.together is Sharing.POD and normalized.users:
        used = dict.fromkeys(normalized.users, tuple(request["name"] for request in requests))
    return {"devices": {name: entries for name, entries in parts.items() if entries}}, used


def _check_size(merged: MergedRequests, view: PodView) -> None:
    refuse = partial(view.notes.refuse, view.where)
    if merged.devices > MAX_RESULTS:
        raise refuse(f"asks for {merged.devices} devices, a claim holds {MAX_RESULTS}", "use several pods")
    for name, share in merged.requests.items():
        if (share.memory.bytes or 0) > MOST_BYTES:
            raise refuse(f"request {name} asks for {share.memory}, and no amount is that large")
    if len(merged.requests) > MOST_REQUESTS or len(merged.apart) > MOST_REQUESTS:
        raise refuse(f"asks in more than {MOST_REQUESTS} containers, a claim holds as many requests")


CARD: Final = "card"


def _request(name: str, share: Share, normalized: NormalizedRequest) -> Object:
    if share.or_mig:
        instances = replace(share, mig=True, cores=0)
        cards = {"name": CARD, **_asked(share, normalized)}
        return {
            "name": name,
            "firstAvailable": [cards, {"name": "instance", **_asked(instances, normalized)}],
        }
    return {"name": name, "exactly": _asked(share, normalized)}


def _cards_of(name: str, merged: MergedRequests) -> str:
    """The request, or of its alternatives that of cards."""
    return f"{name}/{CARD}" if merged.requests[name].or_mig else name


def _asked(share: Share, normalized: NormalizedRequest) -> Object:
    exactly: Object = {"deviceClassName": names.CLASS_MIG if share.partition else names.CLASS_GPU}
    of_profile = f'device.attributes["{names.DRIVER}"].profile == {cel_text(share.profile)}'
    of_instances = normalized.of_instances if share.partition else ()
    exactly |= _selectors([*([of_profile] if share.profile else ()), *normalized.selectors, *of_instances])
    exactly["count"] = share.count
    capacity = {}
    if share.memory.bytes is not None:
        capacity[names.CAPACITY_MEMORY] = canonical(share.memory.bytes)
    if share.cores:
        capacity[names.CAPACITY_CORES] = str(share.cores)
    if capacity:
        exactly["capacity"] = {"requests": capacity}
    return exactly


def _selectors(expressions: Sequence[str]) -> Object:
    entries = [{"cel": {"expression": expression}} for expression in expressions]
    return {"selectors": entries} if entries else {}


def _nic_request(nics: Nics) -> Object:
    body: Object = {"deviceClassName": names.CLASS_VF if nics.virtual else names.CLASS_NIC}
    body |= _selectors(nics.selectors)
    if nics.share is not None:
        body["capacity"] = {"requests": {names.CAPACITY_SHARE: str(nics.share)}}
    if nics.all:
        return {"name": RDMA_REQUEST, "exactly": {**body, "allocationMode": "All"}}
    if nics.most == nics.count:
        return {"name": RDMA_REQUEST, "exactly": {**body, "count": nics.count}}
    return {
        "name": RDMA_REQUEST,
        "firstAvailable": [
            {"name": f"take-{number}", **body, "count": number} for number in range(nics.count, nics.most + 1)
        ],
    }


def _constraints(merged: MergedRequests) -> Iterator[Object]:
    nics = merged.normalized.nics
    for members in merged.apart:
        if any(not merged.requests[name].whole for name in members):
            cards = [_cards_of(name, merged) for name in members]
            yield {"requests": cards, "distinctAttribute": names.ATTR_UUID}
    if merged.normalized.together is Sharing.ONE_CARD and len(merged.requests) > 1:
        yield {"requests": list(merged.requests), "matchAttribute": names.ATTR_UUID}
    if nics is not None and nics.distinct and not nics.virtual and nics.most > 1:
        yield {"requests": [RDMA_REQUEST], "distinctAttribute": names.STANDARD_PCI_BUS_ID}
    if nics is not None and nics.virtual and nics.most > 1:
        yield {"requests": [RDMA_REQUEST], "distinctAttribute": names.ATTR_PARENT}


def _gpu_configs(merged: MergedRequests) -> Iterator[Object]:
    alike: dict[tuple[tuple[str, Any], ...], list[str]] = {}
    for name, share in merged.requests.items():
        fields = tuple(_gpu_config(share, merged.normalized).items())
        alike.setdefault(fields, []).append(_cards_of(name, merged))
    for fields, members in alike.items():
        if fields:
            yield _opaque("GpuConfig", dict(fields), members)


def _gpu_config(share: Share, normalized: NormalizedRequest) -> Object:
    if share.partition:
        return {}
    isolation = normalized.isolation or (NO_ISOLATION if share.memory == LEAST else None)
    fields = {
        "isolation": None if share.whole else isolation,
        "coresPolicy": share.cores_policy.value if share.cores_policy and share.cores else None,
        "priority": share.priority,
        "memoryPercent": share.memory.percent,
        "tflops": share.tflops or None,
        "tflopsPrecision": share.precision.value if share.tflops else None,
        "exclusive": share.exclusive or None,
        "partition": "Honor" if normalized.partition else None,
        "numaAffinity": normalized.numa_affinity or None,
    }
    return {name: value for name, value in fields.items() if value is not None}


def _policies(normalized: NormalizedRequest) -> Iterator[Object]:
    policies = {"node": normalized.node_policy, "device": normalized.device_policy}
    if given := {key: policy.value for key, policy in policies.items() if policy}:
        yield _opaque("PlacementPolicy", given)


def _nearness(merged: MergedRequests) -> Iterator[Object]:
    normalized = merged.normalized
    if normalized.numa is not None:
        for members in merged.apart:
            yield _joint(Scope.NUMA_NODE, members, required=normalized.numa)
    if normalized.pod_numa is not None and merged.devices > 1:
        every = [*merged.requests, *([RDMA_REQUEST] if normalized.nics else ())]
        yield _joint(Scope.NUMA_NODE, every, required=normalized.pod_numa)
    if normalized.gpu_scope is not None:
        yield _joint(normalized.gpu_scope, merged.requests, required=True)
    if (joint := normalized.joint) is not None:
        pairing = "PerDevice" if joint.per_device else "PerGroup"
        everything = [*merged.requests, RDMA_REQUEST]
        yield _joint(Scope.PCIE_ROOT, everything, required=joint.required, pairing=pairing)


def _joint(scope: Scope, requests: Iterable[str], *, required: bool, pairing: str = "Together") -> Object:
    enforcement = "Required" if required else "Preferred"
    fields = {"scope": scope.value, "enforcement": enforcement, "pairing": pairing}
    return _opaque("JointAllocation", fields, list(requests))


def _opaque(kind: str, fields: Fields, requests: list[str] | None = None) -> Object:
    entry: Object = {
        "opaque": {"driver": names.DRIVER, "parameters": {"apiVersion": API_VERSION, "kind": kind, **fields}}
    }
    return {"requests": requests, **entry} if requests else entry
