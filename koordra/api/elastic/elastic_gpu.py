"""Elastic GPU's objects (group elasticgpu.io), read: what a class and a claim ask for, in koordra's words.
Pure.

    ElasticGPUClass   provisioner, reclaimPolicy, egpuBindingMode, parameters  ──> a DeviceClass of its name
    ElasticGPUClaim   class, resources                                         ──> a ResourceClaim of its name
    ElasticGPU        what a claim has: written by koordra, phase Bound or Released
    GPU               a card of a node: written by koordra, from what the node publishes

Both spellings of a class's name are read (the CRD's `elasticGPUClassName`, the README's `egpuClassName`), and
amounts under every name that is in use: `elasticgpu.io/gpu-core`, `elasticgpu.com/...`, `<provisioner>/...`,
TKE's qGPU. From 100 percent up the hundreds are whole cards and the memory is theirs. A plain number of
memory is in the class's unit (MiB unless its parameter `memoryUnit` says GiB; TKE's is GiB); a quantity with
a suffix says its own.

`reclaimPolicy` is Delete where absent, `egpuBindingMode` WaitForFirstConsumer: a card that no pod uses yet is
not taken unless somebody says so.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from functools import partial
from typing import Final

from koordra.api import names, objects, resource_class
from koordra.api.claims import MAX_RESULTS
from koordra.api.classic.class_parameters import cel
from koordra.api.kinds import Kind
from koordra.api.objects import Fields, Object
from koordra.api.opaque.isolation import attribute
from koordra.api.opaque.isolation_words import ISOLATIONS, NO_ISOLATION, isolations
from koordra.api.opaque.parameters import API_VERSION
from koordra.api.reader import Reader
from koordra.api.resource_class import ClassRefused
from koordra.quantity import canonical

GROUP: Final = "elasticgpu.io"
VERSION: Final = "v1alpha1"
"""The README's; served with the same schema."""

ELASTIC_CLASSES: Final = Kind(GROUP, VERSION, "elasticgpuclasses", "ElasticGPUClass", namespaced=False)
ELASTIC_CLAIMS: Final = Kind(GROUP, VERSION, "elasticgpuclaims", "ElasticGPUClaim")
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
_AMOUNTS: Final = {
    **{
        f"{domain}/gpu-{what}": kind
        for domain in DOMAINS
        for what, kind in (("core", "compute"), ("memory", "memory"), ("tflops", "tflops"))
    },
    f"{QGPU}/qgpu-core": "compute",
    f"{QGPU}/qgpu-memory": "memory",
}
_GPU_PARAMETERS: Final = ("isolation", "coresPolicy", "tflopsPrecision")
_PLACEMENT_PARAMETERS: Final = {"nodePolicy": "node", "devicePolicy": "device"}
PARAMETERS: Final = ("memoryUnit", *_GPU_PARAMETERS, *_PLACEMENT_PARAMETERS)

_CLASS_FIELDS: Final = ("elasticGPUClassName", "egpuClassName")

DELETE: Final = "Delete"
RETAIN: Final = names.RETAIN
IMMEDIATE: Final = names.IMMEDIATE
WAIT: Final = "WaitForFirstConsumer"
_INVALID_CLAIM: Final = partial(ClassRefused, "InvalidClaim")


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
    """What a claim asks for: `cards` whole ones, or (0) a share of `cores` percent, or `tflops`, and
    `memory` bytes. `lost`: in words, what does not count."""

    cards: int
    cores: int
    memory: int
    lost: tuple[str, ...] = ()
    tflops: int = 0


def read_class(obj: Object) -> ElasticClass:
    """Raises ClassRefused."""
    read = Reader.of(obj, error=partial(ClassRefused, "InvalidClass"))
    provisioner = read.required("provisioner")
    if provisioner not in PROVISIONERS:
        raise ClassRefused(
            "ForeignProvisioner",
            f"{provisioner} is not koordra's; the class is left to it",
            object=read.object,
            field="provisioner",
            remedy=f"koordra serves {', '.join(PROVISIONERS)}",
        )
    parameters = read.inner("parameters")
    return ElasticClass(
        name=objects.name(obj),
        retain=read.choice("reclaimPolicy", (DELETE, RETAIN), problem="is unknown") == RETAIN,
        immediate=read.choice("egpuBindingMode", (WAIT, IMMEDIATE), problem="is unknown") == IMMEDIATE,
        unit=UNITS[parameters.choice("memoryUnit", UNITS, problem="is unknown") or "MiB"],
        ignored=tuple(sorted(_parameters(parameters).keys() - set(PARAMETERS))),
    )


def device_class(obj: Object) -> Object:
    """The DeviceClass that an ElasticGPUClass means. Raises ClassRefused."""
    cls = read_class(obj)
    parameters = _parameters(Reader.of(obj).inner("parameters"))
    placement = {name: parameters[key] for key, name in _PLACEMENT_PARAMETERS.items() if key in parameters}
    meant = {
        "kind": ELASTIC_CLASSES.kind,
        "metadata": {
            "name": objects.name(obj),
            "uid": objects.uid(obj),
            "labels": objects.labels_of(obj),
            "annotations": objects.annotations_of(obj),
        },
        **_devices(parameters.get("isolation", "")),
        "allocationMode": IMMEDIATE if cls.immediate else WAIT,
        "policy": {
            "gpu": {key: parameters[key] for key in _GPU_PARAMETERS if key in parameters},
            "placement": placement,
        },
    }
    found = resource_class.device_class(meant, lookup=lambda *_: None, own_namespace="")
    if cls.retain:
        found["metadata"].setdefault("annotations", {})[names.RECLAIM_POLICY] = RETAIN
    found["metadata"]["ownerReferences"] = [resource_class.owner_reference(obj, ELASTIC_CLASSES)]
    return found


def _devices(word: str) -> Object:
    """Which devices a class of this isolation has: instances for `mig`, cards for koordra's other words. A
    package's own may be cards, or on no node and of a type of their own: they are known by the word."""
    if word == names.TYPE_MIG:
        return {"deviceType": names.TYPE_MIG}
    if word in isolations() and word not in ISOLATIONS:
        published, own = attribute(word).removeprefix(names.DOMAIN), f'device.attributes["{names.DRIVER}"]'
        return {"selectors": [cel(f'"{published}" in {own} && {own}.{published}')]}
    return {"deviceType": names.TYPE_GPU}


def _parameters(read: Reader) -> dict[str, str]:
    return {str(key): read.text(key) for key in read.data}


def class_name(claim: Object) -> str:
    """The class a claim names, in either spelling. Raises ClassRefused."""
    spec = Reader.of(claim, error=_INVALID_CLAIM).inner("spec")
    found = [str(spec.data[key]) for key in _CLASS_FIELDS if spec.data.get(key)]
    if not found:
        raise ClassRefused(
            "NoClass",
            "names no class",
            object=spec.object,
            field=spec.place(_CLASS_FIELDS[0]),
            remedy="name an ElasticGPUClass",
        )
    if len(set(found)) > 1:
        problem = f"elasticGPUClassName {found[0]} and egpuClassName {found[1]} are two classes"
        raise spec.wrong(problem, "leave one out")
    return found[0]


def requested(claim: Object, cls: ElasticClass) -> Amount:
    """Requests, and limits where a name is in no request. Raises ClassRefused."""
    resources = Reader.of(claim, error=_INVALID_CLAIM).inner("spec").inner("resources")
    either = {**resources.inner("limits").data, **resources.inner("requests").data}
    return _amount(resources.over(either), cls)


def claim_spec(amount: Amount, cls: ElasticClass) -> Object:
    """The spec of the ResourceClaim. A share of compute alone is charged 1Mi, and cannot be held to that: it
    asks for no limits."""
    capacity = {names.CAPACITY_CORES: "100"}
    if not amount.cards:
        cores = {names.CAPACITY_CORES: str(amount.cores)} if amount.cores else {}
        capacity = {names.CAPACITY_MEMORY: canonical(amount.memory), **cores}
    exactly = {
        "deviceClassName": cls.name,
        "count": max(1, amount.cards),
        "capacity": {"requests": capacity},
    }
    devices: Object = {"requests": [{"name": "gpu", "exactly": exactly}]}
    parameters: Object = {"isolation": NO_ISOLATION} if amount.memory == MIB else {}
    if amount.tflops:
        parameters["tflops"] = amount.tflops
    if parameters:
        parameters = {"apiVersion": API_VERSION, "kind": "GpuConfig", **parameters}
        devices["config"] = [{"opaque": {"driver": names.DRIVER, "parameters": parameters}}]
    return {"devices": devices}


def digest(spec: Fields) -> str:
    """By which a claim's spec is recognised, whatever the API server added to it."""
    return hashlib.sha256(json.dumps(spec, sort_keys=True, separators=(",", ":")).encode()).hexdigest()[:16]


def _amount(resources: Reader, cls: ElasticClass) -> Amount:
    found: dict[str, tuple[str, int]] = {}
    for name in sorted(resources.data):
        at, kind = f"[{name}]", _AMOUNTS.get(name)
        if kind is None:
            raise resources.wrong("is no amount of a GPU", f"ask for {CORE} and {MEMORY}", at=at)
        unit = GIB if name.startswith(QGPU) else cls.unit
        amount = _bytes(resources, name, unit) if kind == "memory" else _whole(resources, name)
        other, before = found.setdefault(kind, (name, amount))
        if before != amount:
            raise resources.wrong(
                f"asks for another amount of {kind} than {other}", "leave one of the two out", at=at
            )
    cores, memory, tflops = (found.get(kind, ("", 0))[1] for kind in ("compute", "memory", "tflops"))
    lost = []
    if cores and tflops:
        raise resources.wrong("asks for compute in percent and in TFLOPS", "leave one of the two out")
    if not cores and not memory and not tflops:
        raise resources.wrong("asks for nothing", f"ask for {CORE} and {MEMORY}")
    if cores >= 100:
        if cores // 100 > MAX_RESULTS:
            raise resources.wrong(f"asks for {cores // 100} cards, a claim holds {MAX_RESULTS}")
        if cores % 100:
            lost.append(f"{cores} percent is {cores // 100} whole cards, the rest does not count")
        if memory:
            lost.append("memory does not count: a whole card comes with all of it")
        return Amount(cores // 100, 0, 0, tuple(lost))
    if not memory:
        lost.append("compute without memory is charged the least there is, 1Mi")
    if cores or tflops:
        compute = f"{tflops} TFLOPS are" if tflops else f"{cores}% of compute is"
        lost.append(f"{compute} accounting only: reserved and counted, not enforced")
    return Amount(0, cores, memory or MIB, tuple(lost), tflops)


def _whole(resources: Reader, name: str) -> int:
    value = resources.data[name]
    number = resources.quantity(value, at=f"[{name}]")
    if number < 0 or number != number.to_integral_value():
        raise resources.wrong(f"{value} is not a whole number", "write for example 30", at=f"[{name}]")
    return int(number)


def _bytes(resources: Reader, name: str, unit: int) -> int:
    value, at = resources.data[name], f"[{name}]"
    number = resources.quantity(value, at=at)
    if number < 0:
        raise resources.wrong(f"{value} is less than nothing", at=at)
    found = number * unit if str(value).isdigit() else number
    if found != found.to_integral_value() or (found and found < MIB) or found >= 2**63:
        raise resources.wrong(
            f"{value} is no amount of memory", "write a whole number of MiB, or a quantity such as 4Gi", at=at
        )
    return -(-int(found) // MIB) * MIB
