"""Claim parameters of NVIDIA's classic DRA driver (its demos until July 2024), and of the example driver that
it was written after, as requests of v1 that select the same devices.

    GpuClaimParameters         count, selector, sharing   whole GPUs
    MigDeviceClaimParameters   profile, sharing           an instance of the profile

A selector is one property, or a list of selectors under andExpression or orExpression:

    productName, architecture  globs, in either case, found anywhere: CEL on the attribute
    memory, versions           {value, operator}: compareTo
    uuid                       equal
    index                      koordra's `minor`; NVIDIA's driver publishes nothing of the kind
    migEnabled                 whole GPUs are those without MIG; one in MIG mode is given out as its instances

What a target cannot keep is refused: time slices of another length, limits of MPS and MPS on instances by
koordra, brand and index where they are not published, compute instances. Instances on the GPU of another
claim are one claim with it (tied_claims.py). Both drivers have new names; classes of the old ones select
nothing any more.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final

from koordra.api import names, objects
from koordra.api.classic.notes import Notes
from koordra.api.objects import Object
from koordra.api.opaque.isolation import ONE_CARD_REMEDY, is_one_card, several_cards
from koordra.api.opaque.parameters import API_VERSION
from koordra.api.reader import Reader

KOORDRA, NVIDIA = "koordra", "nvidia"
TARGETS: Final = (KOORDRA, NVIDIA)
GROUP: Final = "gpu.resource.nvidia.com"
EXAMPLE_GROUP: Final = "gpu.resource.example.com"
RENAMED: Final = {GROUP: "gpu.nvidia.com", EXAMPLE_GROUP: "gpu.example.com"}
"""Classic driver, which is also the group of its parameters -> the driver now, which is also its class."""
CLASSES: Final = {now: before for before, now in RENAMED.items()}
"""The classes that their charts brought -> classic driver: known without the object."""
_COMPARISONS: Final = {
    "Equals": "==",
    "LessThan": "<",
    "LessThanOrEqualTo": "<=",
    "GreaterThan": ">",
    "GreaterThanOrEqualTo": ">=",
}
_GLOBS: Final = ("productName", "brand", "architecture")
_VERSIONS: Final = ("cudaComputeCapability", "driverVersion", "cudaDriverVersion")
_PROPERTIES: Final = ("index", "uuid", "migEnabled", "memory", *_GLOBS, *_VERSIONS)


@dataclass(frozen=True, slots=True)
class Asked:
    """`exactly` with its class; `config` of the request."""

    exactly: Object
    config: tuple[Object, ...] = ()


@dataclass(frozen=True, slots=True)
class _Target:
    driver: str
    gpu_class: str
    mig_class: str
    mig: bool = False
    """Whether it is about GPUs in MIG mode."""

    @property
    def attributes(self) -> str:
        return f'device.attributes["{self.driver}"]'


def asked_of(found: Object | None, *, driver: str, target: str, notes: Notes) -> Asked:
    """What a claim of the classic driver asks for by its parameters, None where it has none. Raises Refused
    or InvalidManifest."""
    to = _target(driver, target)
    if found is None:
        return Asked({"deviceClassName": to.gpu_class, "count": 1})
    about = notes.within(found)
    read = about.read(found).inner("spec")
    match found.get("kind"):
        case "GpuClaimParameters":
            return _gpus(read, to, about)
        case "MigDeviceClaimParameters" if driver == GROUP:
            return _instance(read, to, about)
    raise about.refuse(
        "kind",
        f"{objects.describe(found)} has no form in v1",
        "a compute instance is no device of its own; ask for a MIG instance of the size that it needs",
    )


def _target(driver: str, target: str) -> _Target:
    if target == KOORDRA:
        return _Target(names.DRIVER, names.CLASS_GPU, names.CLASS_MIG)
    return _Target(RENAMED[driver], RENAMED[driver], "mig.nvidia.com")


def instances_of(gpu: Object, instances: Mapping[str, Object], *, target: str, notes: Notes) -> Object:
    """`devices` of one claim for instances on one GPU, by the names of their requests. Raises Refused or
    InvalidManifest."""
    to = _target(GROUP, target)
    about = notes.within(gpu)
    read = about.read(gpu).inner("spec")
    read.only("count", "selector", "sharing", problem="is no field of these parameters")
    if (read.between("count", 1) or 1) > 1:
        raise read.wrong(
            "several GPUs in MIG mode cannot be told apart", "write one claim for each", at="count"
        )
    selector = read.optional("selector")
    of_gpu = True if selector is None else _expression(selector, replace(to, mig=True), about)
    if of_gpu is False:
        raise read.wrong("asks for a GPU without MIG, which has no instances", at="selector")
    requests, config = [], []
    for name, parameters in instances.items():
        inner = notes.within(parameters)
        asked = _instance(inner.read(parameters).inner("spec"), to, inner, tied=True)
        exactly = dict(asked.exactly)
        if isinstance(of_gpu, str):
            exactly["selectors"] = [*exactly["selectors"], {"cel": {"expression": of_gpu}}]
        requests.append({"name": name, "exactly": exactly})
        config += [{"requests": [name], **entry} for entry in asked.config]
    devices: Object = {"requests": requests}
    if len(requests) > 1:
        devices["constraints"] = [{"requests": list(instances), "matchAttribute": _parent(to)}]
    return devices | ({"config": config} if config else {})


def _gpus(read: Reader, to: _Target, notes: Notes) -> Asked:
    read.only("count", "selector", "sharing", problem="is no field of these parameters")
    exactly: Object = {"deviceClassName": to.gpu_class}
    if selector := read.optional("selector"):
        expression = _expression(selector, to, notes)
        if expression is False:
            raise selector.wrong(
                "asks for GPUs in MIG mode, which are given out as their instances",
                "ask for an instance: MigDeviceClaimParameters with its profile",
            )
        if expression is not True:
            exactly["selectors"] = [{"cel": {"expression": expression}}]
    exactly["count"] = count = read.between("count", 1) or 1
    by = read.inner("sharing").text("strategy").lower()
    if to.driver == names.DRIVER and count > 1 and is_one_card(by):
        raise read.wrong(several_cards(count), f"{ONE_CARD_REMEDY}, or convert --to nvidia", at="count")
    return Asked(exactly, _sharing(read, to, "GpuConfig", notes))


def _instance(read: Reader, to: _Target, notes: Notes, *, tied: bool = False) -> Asked:
    read.only(
        "profile",
        "sharing",
        "gpuClaimName",
        "uninitialized",
        problem="is no field of these parameters",
    )
    for name in ("gpuClaimName", "uninitialized"):
        if read.data.get(name) and not (tied and name == "gpuClaimName"):
            raise read.wrong(
                "ties the instance to another claim, and claims know nothing of each other in v1",
                f"write one claim with a request for each instance, and matchAttribute {_parent(to)} over them",
                at=name,
            )
    profile = read.required("profile")
    if not re.fullmatch(r"[1-9]g\.[1-9][0-9]*gb(\+[a-z0-9.]+)?", profile):
        raise read.wrong(f"{profile!r} is no profile of an instance", "write one like 1g.5gb", at="profile")
    expression = f"{to.attributes}.profile == {_text(profile)}"
    exactly: Object = {
        "deviceClassName": to.mig_class,
        "selectors": [{"cel": {"expression": expression}}],
        "count": 1,
    }
    return Asked(exactly, _sharing(read, to, "MigDeviceConfig", notes))


def _parent(to: _Target) -> str:
    return names.ATTR_PARENT if to.driver == names.DRIVER else f"{to.driver}/parentUUID"


def _expression(read: Reader, to: _Target, notes: Notes) -> str | bool:
    """CEL, or what is true of all whole GPUs, or of none."""
    lists = [name for name in ("andExpression", "orExpression") if name in read.data]
    read.only(*_PROPERTIES, "andExpression", "orExpression", problem="is no property of a selector")
    if len(read.data) != 1:
        raise read.wrong("is not one property or one list", "put them into andExpression")
    if not lists:
        return _property(next(iter(read.data)), read, to, notes)
    every = lists[0] == "andExpression"
    parts = [_expression(each, to, notes) for each in read.each(lists[0])]
    if (not every) in parts:
        return not every
    texts = [part for part in parts if isinstance(part, str)]
    joined = (" && " if every else " || ").join(texts if len(texts) < 2 else [f"({text})" for text in texts])
    return joined or every


def _property(name: str, read: Reader, to: _Target, notes: Notes) -> str | bool:
    here = f"{to.attributes}.{name}"
    koordra = to.driver == names.DRIVER
    if name == "migEnabled":
        return read.data[name] is to.mig
    if name == "uuid":
        return f"{here} == {_text(read.required(name))}"
    if name == "index":
        if not koordra:
            raise read.wrong(
                f"{to.driver} publishes no index", "select by uuid, or convert --to koordra", at=name
            )
        number = read.between(name, 0)
        notes.warn(
            read.place(name),
            "is taken for the minor number of /dev/nvidia<n>",
            "check a node's ResourceSlice",
        )
        return f"{to.attributes}.minor == {number}"
    if name == "brand" and koordra:
        raise read.wrong("koordra publishes no brand", "select by productName", at=name)
    if name in _GLOBS:
        return _glob(here, name, read.required(name))
    condition = read.inner(name)
    condition.only("value", "operator", problem="is no field of a comparison")
    sign = _COMPARISONS[condition.choice("operator", _COMPARISONS) or "Equals"]
    if name == "memory":
        condition.quantity(condition.data.get("value"), at="value")
        amount = _text(str(condition.data.get("value")))
        return f'device.capacity["{to.driver}"].memory.compareTo(quantity({amount})) {sign} 0'
    version = _semver(str(condition.data.get("value")))
    if not version:
        raise condition.wrong(f"{condition.data.get('value')!r} is no version", "write 7.5", at="value")
    return f'{here}.compareTo(semver("{version}")) {sign} 0'


def _glob(here: str, name: str, pattern: str) -> str:
    """As the classic driver compared: in either case, anywhere in the text."""
    parts = [part for part in pattern.lower().split("*") if part]
    there = f'"{name}" in {here.rpartition(".")[0]}'
    if not parts:
        return there
    if len(parts) == 1:
        return f"{there} && {here}.lowerAscii().contains({_text(parts[0])})"
    expression = ".*".join(re.sub(r"[^\w\s-]", lambda found: f"[{found[0]}]", part) for part in parts)
    return f"{there} && {here}.lowerAscii().matches({_text(expression)})"


def _semver(text: str) -> str:
    found = re.fullmatch(r"v?(\d{1,9})(?:\.(\d{1,9}))?(?:\.(\d{1,9}))?", text)
    return ".".join(str(int(part or 0)) for part in found.groups()) if found else ""


def _sharing(read: Reader, to: _Target, kind: str, notes: Notes) -> tuple[Object, ...]:
    sharing = read.optional("sharing")
    if sharing is None:
        return ()
    sharing.only("strategy", "timeSlicingConfig", "mpsConfig", problem="is no field of sharing")
    strategy = sharing.choice("strategy", ("TimeSlicing", "MPS"))
    if to.driver == names.DRIVER:
        return _koordras(sharing, strategy, kind, notes)
    given: Object = {"strategy": strategy}
    slicing, mps = sharing.optional("timeSlicingConfig"), sharing.optional("mpsConfig")
    if slicing is not None and kind == "GpuConfig":
        given["timeSlicingConfig"] = {"interval": slicing.text("timeSlice") or slicing.text("interval")}
    if mps is not None:
        given["mpsConfig"] = dict(mps.data)
    if strategy == "TimeSlicing" and kind == "MigDeviceConfig":
        return ()  # an instance has no other way to be shared, and the kind no such field
    parameters = {"apiVersion": "resource.nvidia.com/v1beta1", "kind": kind, "sharing": given}
    return ({"opaque": {"driver": to.driver, "parameters": parameters}},)


def _koordras(sharing: Reader, strategy: str, kind: str, notes: Notes) -> tuple[Object, ...]:
    """Processes on one card take turns by themselves; how long is the driver's default."""
    slicing, mps = sharing.optional("timeSlicingConfig"), sharing.optional("mpsConfig")
    if strategy != "MPS":
        interval = slicing.text("timeSlice") or slicing.text("interval") if slicing is not None else ""
        if interval not in ("", "Default"):
            raise sharing.wrong(
                f"{interval}: koordra leaves the length of time slices to NVIDIA's driver",
                "write Default, or convert --to nvidia",
                at="timeSlicingConfig.timeSlice",
            )
        return ()
    if mps is not None and mps.data:
        raise sharing.wrong(
            f"{', '.join(mps.data)}: koordra limits MPS by what the claim asks for",
            "ask for memory and cores (capacity.requests) in claims of their own, or convert --to nvidia",
            at="mpsConfig",
        )
    if kind == "MigDeviceConfig":
        raise sharing.wrong(
            "MPS: koordra shares whole cards by it, and this is an MIG instance",
            "ask for a share of a card (capacity.requests), or convert --to nvidia",
            at="strategy",
        )
    notes.warn(
        sharing.place("strategy"),
        "needs nodes that share cards by MPS",
        "koordra kubelet-plugin --allowed-isolation mps",
    )
    parameters = {"apiVersion": API_VERSION, "kind": "GpuConfig", "isolation": "mps"}
    return ({"opaque": {"driver": names.DRIVER, "parameters": parameters}},)


def of_sharing(read: Reader, notes: Notes) -> Object | None:
    """koordra's parameters for `sharing` of NVIDIA's v1 configuration; None where nothing is to be said."""
    sharing = read.optional("sharing")
    if sharing is None:
        return None
    strategy = sharing.choice("strategy", ("TimeSlicing", "MPS"))
    found = _koordras(sharing, strategy, read.text("kind"), notes)
    return dict(found[0]["opaque"]["parameters"]) if found else None


def _text(value: str) -> str:
    return '"' + value.replace("\\", "\\\\").replace('"', '\\"') + '"'


def is_classic(obj: Mapping[str, object]) -> bool:
    """Whether it is a parameters object of one of the two drivers."""
    return str(obj.get("apiVersion")).partition("/")[0] in RENAMED
