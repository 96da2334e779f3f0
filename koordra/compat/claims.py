"""The normal form as the spec of a ResourceClaim, and which of its requests each container uses.

    share         a request named after its container: count, capacity memory and cores
    whole card    no memory is asked for, which is all of it; a percentage is GpuConfig.memoryPercent
    distinct      distinctAttribute koordra.io/uuid over the request (whole cards are different ones by themselves)
    one card      matchAttribute koordra.io/uuid over all requests
    pod-shared    requests `gpu` and `rdma`; every container uses both
    NICs          a count, alternatives of more and more NICs, or allocationMode All; virtual functions of different NICs
    nearness      JointAllocation over GPUs and NICs, or over the GPUs of one container (NUMA)
    policies      PlacementPolicy of the claim

Amounts are written in the largest binary unit that is exact. Nothing that is the default is written, so that the same normalized is
always the same spec.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

from koordra.api import names
from koordra.api.claims import MAX_RESULTS
from koordra.api.classic.notes import Notes
from koordra.api.objects import Object
from koordra.api.opaque.parameters import API_VERSION, NO_ISOLATION, Scope
from koordra.compat.dialect.vgpu import cel_text
from koordra.compat.normalized_request import LEAST, Nics, NormalizedRequest, Share, Together
from koordra.compat.request_merging import MergedRequests, merge
from koordra.quantity import canonical

RDMA_REQUEST: Final = "rdma"
MOST_REQUESTS: Final = 32
MOST_BYTES: Final = 2**63 - 1
"""A quantity holds no more."""


Used = Mapping[str, tuple[str, ...]]
"""Container -> the requests of the claim that it uses, in their order."""


def claim_of(
    normalized: NormalizedRequest, *, where: Mapping[str, str], pod: str, notes: Notes
) -> tuple[Object, Used]:
    """The claim's spec. `where` is the field of each container, `pod` that of the pod's spec. Raises Refused for more than a claim
    holds."""
    merged = merge(normalized, where=where, notes=notes)
    requests = [_request(name, share, normalized) for name, share in merged.requests.items()]
    if normalized.nics is not None:
        requests.append(_nic_request(normalized.nics))
    devices: Object = {"requests": requests}
    if constraints := list(_constraints(merged, normalized)):
        devices["constraints"] = constraints
    if config := list(_config(merged, normalized)):
        devices["config"] = config
    _check_size(merged, normalized, pod, notes)
    used = {container: tuple(found) for container, found in merged.used.items()}
    if normalized.together is Together.POD:
        everything = (*merged.requests, *((RDMA_REQUEST,) if normalized.nics else ()))
        used = dict.fromkeys(normalized.users, everything)
    return {"devices": devices}, used


def _check_size(merged: MergedRequests, normalized: NormalizedRequest, pod: str, notes: Notes) -> None:
    cards = sum(share.count for share in merged.requests.values()) + (
        normalized.nics.most if normalized.nics else 0
    )
    if cards > MAX_RESULTS:
        raise notes.refuse(pod, f"asks for {cards} devices, a claim holds {MAX_RESULTS}", "use several pods")
    for name, share in merged.requests.items():
        if (share.memory.bytes or 0) > MOST_BYTES:
            raise notes.refuse(pod, f"request {name} asks for {share.memory}, and no amount is that large")
    if len(merged.requests) > MOST_REQUESTS or len(merged.apart) > MOST_REQUESTS:
        raise notes.refuse(
            pod, f"asks in more than {MOST_REQUESTS} containers, a claim holds as many requests"
        )


def _request(name: str, share: Share, normalized: NormalizedRequest) -> Object:
    exactly: Object = {"deviceClassName": names.CLASS_MIG if share.partition else names.CLASS_GPU}
    of_profile = f'device.attributes["{names.DRIVER}"].profile == {cel_text(share.profile)}'
    wanted = [*([of_profile] if share.profile else ()), *normalized.selectors]
    if wanted:
        exactly["selectors"] = [{"cel": {"expression": expression}} for expression in wanted]
    exactly["count"] = share.count
    amounts = {
        names.CAPACITY_MEMORY: None if share.memory.bytes is None else canonical(share.memory.bytes),
        names.CAPACITY_CORES: str(share.cores) if share.cores else None,
    }
    if capacity := {key: amount for key, amount in amounts.items() if amount is not None}:
        exactly["capacity"] = {"requests": capacity}
    return {"name": name, "exactly": exactly}


def _nic_request(nics: Nics) -> Object:
    body: Object = {"deviceClassName": names.CLASS_VF if nics.virtual else names.CLASS_NIC}
    if nics.selectors:
        body["selectors"] = [{"cel": {"expression": expression}} for expression in nics.selectors]
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


def _constraints(merged: MergedRequests, normalized: NormalizedRequest) -> Iterator[Object]:
    for members in merged.apart:
        if any(not merged.requests[name].whole for name in members):
            yield {"requests": list(members), "distinctAttribute": names.ATTR_UUID}
    if normalized.together is Together.ONE_CARD and len(merged.requests) > 1:
        yield {"requests": list(merged.requests), "matchAttribute": names.ATTR_UUID}
    if normalized.nics is not None and normalized.nics.virtual and normalized.nics.most > 1:
        yield {"requests": [RDMA_REQUEST], "distinctAttribute": names.ATTR_PARENT}


def _config(merged: MergedRequests, normalized: NormalizedRequest) -> Iterator[Object]:
    alike: dict[tuple[tuple[str, Any], ...], list[str]] = {}
    for name, share in merged.requests.items():
        alike.setdefault(tuple(_gpu_config(share, normalized).items()), []).append(name)
    for fields, members in alike.items():
        if fields:
            yield _opaque("GpuConfig", dict(fields), members)
    yield from _nearness(merged, normalized)
    policies = {"node": normalized.node_policy, "device": normalized.device_policy}
    if given := {key: policy.value for key, policy in policies.items() if policy}:
        yield _opaque("PlacementPolicy", given)


def _gpu_config(share: Share, normalized: NormalizedRequest) -> Object:
    if share.partition:
        return {}
    isolation = normalized.isolation or (NO_ISOLATION if share.memory == LEAST else None)
    fields = {
        "isolation": None if share.whole else isolation,
        "coresPolicy": share.cores_policy.value if share.cores_policy and share.cores else None,
        "priority": share.priority,
        "memoryPercent": share.memory.percent,
        "exclusive": share.exclusive or None,
        "partition": "Honor" if normalized.partition else None,
    }
    return {name: value for name, value in fields.items() if value is not None}


def _nearness(merged: MergedRequests, normalized: NormalizedRequest) -> Iterator[Object]:
    if normalized.numa is not None:
        for members in merged.apart:
            yield _joint(Scope.NUMA_NODE, members, required=normalized.numa)
    if normalized.gpu_scope is not None:
        yield _joint(normalized.gpu_scope, merged.requests, required=True)
    if normalized.joint is not None:
        pairing = "PerDevice" if normalized.joint.per_device else "PerGroup"
        yield _joint(
            Scope.PCIE_ROOT,
            [*merged.requests, RDMA_REQUEST],
            required=normalized.joint.required,
            pairing=pairing,
        )


def _joint(scope: Scope, requests: Iterable[str], *, required: bool, pairing: str = "Together") -> Object:
    enforcement = "Required" if required else "Preferred"
    fields = {"scope": scope.value, "enforcement": enforcement, "pairing": pairing}
    return _opaque("JointAllocation", fields, list(requests))


def _opaque(kind: str, fields: Mapping[str, Any], requests: list[str] | None = None) -> Object:
    entry: Object = {
        "opaque": {"driver": names.DRIVER, "parameters": {"apiVersion": API_VERSION, "kind": kind, **fields}}
    }
    return {"requests": requests, **entry} if requests else entry
