"""Elastic GPU's objects (group elasticgpu.io), read: what a class and a claim ask for, in koordra's words. Pure.

    ElasticGPUClass   provisioner, reclaimPolicy, egpuBindingMode, parameters  ──> a DeviceClass of the same name
    ElasticGPUClaim   class, resources                                         ──> a ResourceClaim of the same name
    ElasticGPU        what a claim has: written by koordra, phase Bound or Released
    GPU               a card of a node: written by koordra, from what the node publishes

Both spellings of a class's name are read (the CRD's `elasticGPUClassName`, the README's `egpuClassName`), and amounts under
every name that is in use: `elasticgpu.io/gpu-core`, `elasticgpu.com/...`, `<provisioner>/...`, TKE's qGPU. From 100 percent
up the hundreds are whole cards and the memory is theirs. A plain number of memory is in the class's unit (MiB unless its
parameter `memoryUnit` says GiB; TKE's is GiB); a quantity with a suffix says its own.

`reclaimPolicy` is Delete where absent, `egpuBindingMode` WaitForFirstConsumer: a card that no pod uses yet is not taken
unless somebody says so.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, Final

from koordra.api import names, objects, resource_class
from koordra.api.claims import MAX_RESULTS
from koordra.api.devices import Reader
from koordra.api.kinds import Kind
from koordra.api.objects import Object
from koordra.api.opaque.parameters import API_VERSION, NO_ISOLATION
from koordra.api.resource_class import ClassRefused
from koordra.errors import InvalidInput, InvalidManifest, InvalidQuantity
from koordra.quantity import canonical, parse

GROUP: Final = "elasticgpu.io"
VERSION: Final = "v1alpha1"
"""The README's; served with the same schema."""

ELASTIC_CLASSES: Final = Kind(GROUP, VERSION, "elasticgpuclasses", "ElasticGPUClass", namespaced=False)
ELASTIC_CLAIMS: Final = Kind(GROUP, VERSION, "elasticgpuclaims", "ElasticGPUClaim", namespaced=True)
ELASTIC_GPUS: Final = Kind(GROUP, VERSION, "elasticgpus", "ElasticGPU", namespaced=False)
GPUS: Final = Kind(GROUP, VERSION, "gpus", "GPU", namespaced=False)

CORE: Final = "elasticgpu.io/gpu-core"
MEMORY: Final = "elasticgpu.io/gpu-memory"
MIB: Final = 1 << 20
GIB: Final = 1 << 30

PROVISIONERS: Final = (
    "gpushare.provisioner.elasticgpu.io",
    "qgpu.provisioner.elasticgpu.io",
    "pgpu.provisioner.elasticgpu.io",
    names.DRIVER,
)
"""Classes of other provisioners are left alone."""
DOMAINS: Final = ("elasticgpu.io", "elasticgpu.com", *PROVISIONERS)
QGPU: Final = "tke.cloud.tencent.com"
UNITS: Final = {"MiB": MIB, "GiB": GIB}
_GPU_PARAMETERS: Final = ("isolation", "coresPolicy")
_PLACEMENT_PARAMETERS: Final = {"nodePolicy": "node", "devicePolicy": "device"}
PARAMETERS: Final = ("memoryUnit", *_GPU_PARAMETERS, *_PLACEMENT_PARAMETERS)

DELETE: Final = "Delete"
RETAIN: Final = "Retain"
IMMEDIATE: Final = "Immediate"
WAIT: Final = "WaitForFirstConsumer"


class ElasticRefused(InvalidManifest):
    """A class or claim that cannot be served; `reason` is the condition's."""

    def __init__(
        self, reason: str, problem: str, *, object: str = "", field: str = "", remedy: str = ""
    ) -> None:
        self.reason = reason
        super().__init__(problem, object=object, field=field, remedy=remedy)


@dataclass(frozen=True, slots=True)
class ElasticClass:
    """`ignored`: parameters that mean nothing to koordra."""

    name: str
    retain: bool
    immediate: bool
    unit: int
    ignored: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Amount:
    """What a claim asks for: `cards` whole ones, or (0) a share of `cores` percent and `memory` bytes. `told`: what is lost."""

    cards: int
    cores: int
    memory: int
    told: tuple[str, ...] = ()


def read_class(obj: Object) -> ElasticClass:
    """Raises ElasticRefused."""
    read = Reader(object=objects.describe(obj))
    try:
        provisioner = read.at("provisioner").text(obj.get("provisioner"), required=True)
        if provisioner not in PROVISIONERS:
            raise ElasticRefused(
                "ForeignProvisioner",
                f"{provisioner} is not koordra's; the class is left to it",
                object=read.object,
                field="provisioner",
                remedy=f"koordra serves {', '.join(PROVISIONERS)}",
            )
        parameters = _parameters(obj, read)
        return ElasticClass(
            name=objects.name(obj),
            retain=_choice(obj, read, "reclaimPolicy", (DELETE, RETAIN)) == RETAIN,
            immediate=_choice(obj, read, "egpuBindingMode", (WAIT, IMMEDIATE)) == IMMEDIATE,
            unit=UNITS[_one_of(read.at("parameters.memoryUnit"), parameters.get("memoryUnit", "MiB"), UNITS)],
            ignored=tuple(sorted(set(parameters) - set(PARAMETERS))),
        )
    except ElasticRefused:
        raise
    except InvalidInput as error:
        raise _refused("InvalidClass", error) from error


def device_class(obj: Object) -> Object:
    """The DeviceClass that an ElasticGPUClass means. Raises ElasticRefused."""
    read_class(obj)
    parameters = _parameters(obj, Reader(object=objects.describe(obj)))
    gpu = {key: parameters[key] for key in _GPU_PARAMETERS if key in parameters}
    placement = {
        _PLACEMENT_PARAMETERS[key]: parameters[key] for key in _PLACEMENT_PARAMETERS if key in parameters
    }
    policy = {name: fields for name, fields in (("gpu", gpu), ("placement", placement)) if fields}
    meant = {
        "kind": ELASTIC_CLASSES.kind,
        "metadata": {"name": objects.name(obj), "uid": objects.uid(obj)},
        "deviceType": names.TYPE_GPU,
        **({"policy": policy} if policy else {}),
    }
    try:
        found = resource_class.device_class(meant, lookup=lambda *_: None, own_namespace="")
    except ClassRefused as error:
        raise _refused("InvalidClass", error) from error
    found["metadata"]["ownerReferences"] = [owner_reference(obj, ELASTIC_CLASSES)]
    return found


def owner_reference(obj: Object, kind: Kind) -> Object:
    return {
        "apiVersion": kind.api_version,
        "kind": kind.kind,
        "name": objects.name(obj),
        "uid": objects.uid(obj),
        "controller": True,
    }


def class_name(claim: Object) -> str:
    """The class a claim names, in either spelling. Raises ElasticRefused."""
    read = Reader(object=objects.describe(claim), field="spec")
    spec = read.mapping(claim.get("spec"))
    found = [str(spec[key]) for key in ("elasticGPUClassName", "egpuClassName") if spec.get(key)]
    if not found:
        raise ElasticRefused(
            "NoClass",
            "names no class",
            object=read.object,
            field="spec.elasticGPUClassName",
            remedy="name an ElasticGPUClass",
        )
    if len(set(found)) > 1:
        raise ElasticRefused(
            "InvalidClaim",
            f"elasticGPUClassName {found[0]} and egpuClassName {found[1]} are two classes",
            object=read.object,
            field="spec",
            remedy="leave one out",
        )
    return found[0]


def asked(claim: Object, cls: ElasticClass) -> Amount:
    """Requests, and limits where a name is in no request. Raises ElasticRefused."""
    read = Reader(object=objects.describe(claim), field="spec.resources")
    try:
        resources = read.mapping(objects.spec_of(claim).get("resources"))
        limits = read.at("limits").mapping(resources.get("limits"))
        requests = read.at("requests").mapping(resources.get("requests"))
        return _amount({**limits, **requests}, cls, read)
    except ElasticRefused:
        raise
    except InvalidInput as error:
        raise _refused("InvalidClaim", error) from error


def claim_spec(amount: Amount, cls: ElasticClass) -> Object:
    """The spec of the ResourceClaim. A share of compute alone is charged 1Mi, and cannot be held to that: it asks for no limits."""
    exactly: Object = {"deviceClassName": cls.name, "count": max(1, amount.cards)}
    capacity = {names.CAPACITY_CORES: "100"} if amount.cards else {}
    if not amount.cards:
        capacity = {names.CAPACITY_MEMORY: canonical(amount.memory)}
        if amount.cores:
            capacity[names.CAPACITY_CORES] = str(amount.cores)
    exactly["capacity"] = {"requests": capacity}
    devices: Object = {"requests": [{"name": "gpu", "exactly": exactly}]}
    if amount.memory == MIB:
        parameters = {"apiVersion": API_VERSION, "kind": "GpuConfig", "isolation": NO_ISOLATION}
        devices["config"] = [{"opaque": {"driver": names.DRIVER, "parameters": parameters}}]
    return {"devices": devices}


def digest(spec: Mapping[str, Any]) -> str:
    """By which a claim's spec is recognised, whatever the API server added to it."""
    text = json.dumps(spec, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _amount(resources: Mapping[str, Any], cls: ElasticClass, read: Reader) -> Amount:
    found: dict[str, tuple[str, int]] = {}
    for name in sorted(resources):
        domain, _, what = name.partition("/")
        at = read.at(f"[{name}]")
        if (what == "gpu-core" and domain in DOMAINS) or name == f"{QGPU}/qgpu-core":
            kind, amount = "compute", _whole(at, resources[name])
        elif what == "gpu-memory" and domain in DOMAINS:
            kind, amount = "memory", _bytes(at, resources[name], cls.unit)
        elif name == f"{QGPU}/qgpu-memory":
            kind, amount = "memory", _bytes(at, resources[name], GIB)
        else:
            raise at.wrong("is no amount of a GPU", f"ask for {CORE} and {MEMORY}")
        other, before = found.setdefault(kind, (name, amount))
        if before != amount:
            raise at.wrong(f"asks for another amount of {kind} than {other}", "leave one of the two out")
    cores, memory = (found.get(kind, ("", 0))[1] for kind in ("compute", "memory"))
    told = []
    if not cores and not memory:
        raise read.wrong("asks for nothing", f"ask for {CORE} and {MEMORY}")
    if cores >= 100:
        if cores // 100 > MAX_RESULTS:
            raise read.wrong(f"asks for {cores // 100} cards, a claim holds {MAX_RESULTS}")
        if cores % 100:
            told.append(f"{cores} percent is {cores // 100} whole cards, the rest does not count")
        if memory:
            told.append("memory does not count: a whole card comes with all of it")
        return Amount(cores // 100, 0, 0, tuple(told))
    if not memory:
        told.append("compute without memory is charged the least there is, 1Mi")
    if cores:
        told.append(f"{cores}% of compute is accounting only: reserved and counted, not enforced")
    return Amount(0, cores, memory or MIB, tuple(told))


def _number(at: Reader, value: object) -> Decimal:
    try:
        return parse(value)
    except InvalidQuantity as error:
        raise at.wrong(error.problem, error.remedy) from error


def _whole(at: Reader, value: object) -> int:
    number = _number(at, value)
    if number < 0 or number != number.to_integral_value():
        raise at.wrong(f"{value} is not a whole number of percent", "write for example 30")
    return int(number)


def _bytes(at: Reader, value: object, unit: int) -> int:
    number = _number(at, value)
    if number < 0:
        raise at.wrong(f"{value} is less than nothing")
    plain = str(value).isdigit()
    found = number * unit if plain else number
    if found != found.to_integral_value() or (found and found < MIB) or found >= 2**63:
        raise at.wrong(
            f"{value} is no amount of memory", "write a whole number of MiB, or a quantity such as 4Gi"
        )
    return -(-int(found) // MIB) * MIB


def _parameters(obj: Object, read: Reader) -> dict[str, str]:
    at = read.at("parameters")
    found = at.mapping(obj.get("parameters"))
    return {str(key): at.at(str(key)).text(value) for key, value in found.items()}


def _choice(obj: Object, read: Reader, field: str, allowed: tuple[str, ...]) -> str:
    at = read.at(field)
    return _one_of(at, at.text(obj.get(field)) or allowed[0], allowed)


def _one_of(at: Reader, value: str, allowed: Any) -> str:
    if value not in allowed:
        raise at.wrong(f"{value!r} is unknown", f"use one of {', '.join(allowed)}")
    return value


def _refused(reason: str, error: InvalidInput) -> ElasticRefused:
    return ElasticRefused(reason, error.problem, object=error.object, field=error.field, remedy=error.remedy)
