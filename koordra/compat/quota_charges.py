"""How much a claim made for a legacy pod is, in the words of its dialect: what quotas under those names are
charged. Pure.

    claim spec ──> shares of cards, percent of NICs ──> the names of the dialect, and koordra's own

A pod that was rewritten asks for no extended resource any more, so the API server charges it to no
ResourceQuota. Its claim's spec still says what it asked, and cannot be changed; the template's name says the
dialect. So the amounts are worked out from these two and not from what somebody may have edited since.

What the claim does not say as an amount (all of a card's memory, a percentage of it) is None: under a quota
it has to be said. MIG instances have names of their own, but in dialects that give them out under the names
of cards.

koordra's own names hold for every dialect: koordra.io/gpu (devices), koordra.io/gpu-memory (bytes),
koordra.io/gpu-cores (percent), koordra.io/nic (NICs and shares of them), koordra.io/nic-share (percent).
Handwritten claims count under these too (controller/quota/claims). Nothing amounts to less than nothing:
other pods would be bounded by less.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Final

from koordra.api import names, objects
from koordra.api.claims import ResourceClaim
from koordra.api.objects import Fields, Object
from koordra.compat.dialect import charges
from koordra.compat.dialect.charges import Charged
from koordra.compat.dialects import DIALECTS, dialect_named
from koordra.compat.normalized_request import ContainerPhase, Memory, Share
from koordra.compat.settings import Settings
from koordra.quantity import to_int

OWN_COUNT: Final = "koordra.io/gpu"
"""Name in a ResourceQuota (docs/quota.md): GPUs, shares of them and MIG instances."""
OWN_MEMORY: Final = "koordra.io/gpu-memory"
"""Name in a ResourceQuota: bytes of GPU memory."""
OWN_CORES: Final = "koordra.io/gpu-cores"
"""Name in a ResourceQuota: percent of GPUs."""
OWN_NICS: Final = "koordra.io/nic"
"""Name in a ResourceQuota: NICs and shares of them."""
OWN_NIC_SHARE: Final = "koordra.io/nic-share"
"""Name in a ResourceQuota: percent of NICs."""
TEMPLATE_NAME: Final = re.compile(r"koordra-([a-z-]+)-[0-9a-f]{32}")
_MIG_PROFILE: Final = re.compile(r"""profile == ["'](\d+g\.\d+gb(?:\+[a-z0-9.]+)?)["']""")
_COUNTED: Final = (names.CAPACITY_MEMORY, names.CAPACITY_CORES, names.CAPACITY_SHARE)
_OWN: Final[Mapping[str, charges.Charge]] = {
    OWN_COUNT: charges.count,
    OWN_MEMORY: charges.memory_in(lambda _: 1),
    OWN_CORES: charges.compute,
    OWN_NICS: lambda claim: claim.nics,
    OWN_NIC_SHARE: charges.nics,
}
OWN: Final = frozenset(_OWN)

Amounts = Mapping[str, int | None]


def dialect_of(template: str) -> str:
    """The dialect in the name of a template; "" for a name of another kind."""
    found = TEMPLATE_NAME.fullmatch(template)
    return found[1] if found else ""


def charged_as(pod: Fields) -> Object:
    """As much of a pod's spec as quotas look at, in bounded size: the entries that name templates of ours,
    and what scopes ask. Nothing of a pod that is charged to none."""
    spec = objects.spec_of(pod)
    entries = [one for one in spec.get("resourceClaims") or () if dialect_of(_template(one))]
    if not entries:
        return {}
    found: Object = {
        name: spec[name] for name in ("activeDeadlineSeconds", "priorityClassName") if name in spec
    }
    if crosses_namespaces(pod):
        found["affinity"] = _CROSSING
    named = [{name: one[name] for name in ("name", "resourceClaimTemplateName")} for one in entries]
    return {**found, "resourceClaims": named}


def _template(entry: object) -> str:
    return str(entry.get("resourceClaimTemplateName") or "") if isinstance(entry, Mapping) else ""


_REQUIRED: Final = "requiredDuringSchedulingIgnoredDuringExecution"
_CROSSING: Final[Object] = {"podAffinity": {_REQUIRED: [{"namespaceSelector": {}}]}}
"""What stands for any affinity that looks at pods of other namespaces."""


def crosses_namespaces(pod: Fields) -> bool:
    """Whether the pod's affinity looks at pods of other namespaces (scope CrossNamespacePodAffinity)."""
    return any(
        term.get("namespaces") or term.get("namespaceSelector") is not None for term in _affinity_terms(pod)
    )


def _affinity_terms(pod: Fields) -> Iterator[Fields]:
    affinity = objects.spec_of(pod).get("affinity") or {}
    for kind in ("podAffinity", "podAntiAffinity"):
        said = affinity.get(kind) or {}
        yield from said.get(_REQUIRED) or ()
        for weighted in said.get("preferredDuringSchedulingIgnoredDuringExecution") or ():
            yield weighted.get("podAffinityTerm") or {}


def amounts(dialect: str, spec: Fields, settings: Settings) -> Amounts:
    """Name -> total, of every name of the dialect and of koordra's own."""
    claim = charged_of(spec, settings)
    found = {name: charge(claim) for name, charge in _OWN.items()}
    spoken = dialect_named(dialect)
    if spoken is not None:
        cards = [share for share in claim.shares if spoken.charges_partitions or not share.mig]
        for key, charge in spoken.resources.items():
            if charge is not None and (name := settings.name(key, dialect)):
                found[name] = charge(claim._replace(shares=cards))
    for share in claim.shares:
        if share.profile:
            name = "nvidia.com/mig-" + share.profile.replace("+", ".")
            found[name] = (found.get(name) or 0) + share.count
    return found


def is_in_bytes(name: str) -> bool:
    """Whether amounts under the name are bytes, and written as quantities."""
    return name == OWN_MEMORY or any(name in dialect.bytes for dialect in DIALECTS)


def charged_of(spec: Fields, settings: Settings) -> Charged:
    """A claim's shares and NICs. Raises InvalidInput for what nobody but a user wrote."""
    claim = ResourceClaim.from_dict({"spec": spec})
    percents, tflops = dict(_figures(claim, "memoryPercent")), dict(_figures(claim, "tflops"))
    shares, nics, nic_percent = [], 0, 0
    for request in claim.requests:
        asked = request.alternatives[-1]
        said = asked.capacity_spelled
        capacity = {name: max(0, to_int(said[name])) for name in _COUNTED if name in said}
        if asked.device_class in (names.CLASS_NIC, names.CLASS_VF):
            nics += asked.count
            nic_percent += asked.count * capacity.get(names.CAPACITY_SHARE, 100)
            continue
        is_mig = asked.device_class == names.CLASS_MIG
        shares.append(
            Share(
                container=request.name,
                phase=ContainerPhase.APP,
                count=asked.count,
                memory=Memory(capacity.get(names.CAPACITY_MEMORY), percents.get(request.name)),
                cores=capacity.get(names.CAPACITY_CORES, 0),
                tflops=tflops.get(request.name, 0),
                profile=_profile(asked.selectors) if is_mig else "",
                mig=is_mig,
            )
        )
    return Charged(settings, shares, nics, nic_percent)


def _profile(selectors: Iterable[str]) -> str:
    found = _MIG_PROFILE.search(" ".join(selectors))
    return found[1] if found else ""


def _figures(claim: ResourceClaim, name: str) -> Iterator[tuple[str, int]]:
    """A field of GpuConfig by request."""
    for entry in claim.config:
        body = entry.parameters or {}
        if body.get("kind") == "GpuConfig" and body.get(name) is not None:
            figure = max(0, int(body[name]))
            yield from (
                (request, figure) for request in entry.requests or (each.name for each in claim.requests)
            )


def canonical_spec(spec: Fields) -> Object:
    """The spec as it was written: without what the API server filled in."""
    devices = dict(spec.get("devices") or {})
    if devices.get("requests"):
        devices["requests"] = [dict(request) for request in devices["requests"]]
        for request in devices["requests"]:
            if isinstance(request.get("exactly"), Mapping):
                request["exactly"] = _without_defaults(request["exactly"])
            if request.get("firstAvailable"):
                request["firstAvailable"] = [_without_defaults(one) for one in request["firstAvailable"]]
    return {**spec, "devices": devices}


def _without_defaults(asked: Fields) -> Object:
    found = dict(asked)
    if found.get("allocationMode") == "ExactCount":
        del found["allocationMode"]
    if found.get("allocationMode") is None:
        found.setdefault("count", 1)
    return found
