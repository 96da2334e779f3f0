"""Native mode: what a JointAllocation says, in standard terms. Pure.

kube-scheduler allocates there and knows `matchAttribute` only, an "all or nothing" over the devices of some
requests:

    Together, or one kind of device      one constraint over all of its requests
    PerDevice, one device each           one constraint over the two requests
    PerDevice, n GPUs and n NICs         both requests are split into n requests of one device, a constraint
                                         for each pair; NICs beyond n keep a request of their own
    scope Node                           nothing: a claim is on one node anyway

An isolation that class or claim name becomes a selector on what nodes publish of their policy (claims.py).

A name that was split (`gpu`) is no request any more (`gpu-0` ... are): containers that name it have to name
the new ones, which a warning says. What has no standard form is refused: Preferred scopes, PerGroup over
several devices, policies of node and device, a percentage of memory, allocationMode All in pairs,
alternatives in pairs. The JointAllocation itself stays in the claim, since the node checks a Required scope
once more before it hands devices out.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from koordra.api import names, objects
from koordra.api.objects import Fields, Object
from koordra.api.opaque.parameters import (
    SCOPE_ATTRIBUTES,
    Enforcement,
    GpuConfig,
    JointAllocation,
    Pairing,
    PlacementPolicy,
    RdmaConfig,
    RdmaMode,
)
from koordra.api.reader import Reader
from koordra.controller.webhook.claims import AskedDevices, Entry, alternatives
from koordra.errors import InvalidInput

_TYPE: Final = re.compile(r"""\.\s*type\s*==\s*["'](\w+)["']""")
_JOINT_REMEDY: Final = "use a node pool in joint mode (koordra.io/allocation-mode), or leave it out"
MOST_REQUESTS: Final = 32


class Translated(NamedTuple):
    """`object` is the very same one where nothing had to change."""

    object: Object
    problems: tuple[InvalidInput, ...] = ()
    warnings: tuple[str, ...] = ()


@dataclass(slots=True)
class _Work:
    """One claim under translation: its `devices` as written, and a copy of them with its requests, which is
    changed in place."""

    read: Reader
    devices: Object
    requests: list[Object]
    classes: Mapping[str, Object]
    problems: list[InvalidInput] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)

    def refuse(self, read: Reader, at: str, problem: str, remedy: str = _JOINT_REMEDY) -> None:
        self.problems.append(read.wrong(problem, remedy, at=at))


def translate(obj: Object, classes: Mapping[str, Object]) -> Translated:
    """A claim or template for native nodes. `classes`: DeviceClasses by name, to tell GPUs from NICs."""
    asked = AskedDevices.of(obj)
    if asked.is_class or not asked.read.data.get("requests") or _is_too_long(asked):
        return Translated(obj)
    devices = dict(asked.selecting(classes).data)
    devices["requests"] = list(devices.get("requests") or ())
    work = _Work(asked.read, devices, devices["requests"], classes)
    for entry in asked.entries:  # what cannot be decoded is the validating webhook's to refuse, once
        _translate_entry(entry, work)
    if work.problems:
        return Translated(obj, tuple(work.problems))
    if work.devices == asked.read.data:
        return Translated(obj)
    spec = dict(obj["spec"])
    if obj.get("kind") == "ResourceClaimTemplate":
        spec["spec"] = {**spec["spec"], "devices": work.devices}
    else:
        spec["devices"] = work.devices
    return Translated({**obj, "spec": spec}, warnings=tuple(work.warnings))


def _is_too_long(asked: AskedDevices) -> bool:
    """Whether the API server, which validates after mutating webhooks, refuses the claim for the length of a
    list."""
    lists = [asked.read.sequence("requests"), asked.read.sequence("config")]
    lists += [entry.requests for entry in asked.entries]
    lists += [request.sequence("firstAvailable") for request in asked.read.each("requests")]
    return any(len(each) > MOST_REQUESTS for each in lists)


def _translate_entry(entry: Entry, work: _Work) -> None:
    value = entry.value
    if isinstance(value, JointAllocation):
        _joint(value, entry, work)
    elif isinstance(value, PlacementPolicy):
        problem = "in native mode kube-scheduler places devices; it knows no PlacementPolicy"
        work.refuse(entry.read, "opaque.parameters", problem)
    elif isinstance(value, RdmaConfig) and value.mode is RdmaMode.EXCLUSIVE:
        for name, request in alternatives(work.read):
            asked = request.inner("capacity").inner("requests").data
            if entry.covers(name) and any(str(key).endswith(names.CAPACITY_SHARE) for key in asked):
                problem = f"in native mode nobody keeps the rest of the NIC of request {name} free"
                work.refuse(entry.parameters, "mode", problem, "ask for all of it: leave its share out")
    elif isinstance(value, GpuConfig):
        for name, problem, remedy in _JOINT_ALONE:
            if entry.parameters.data.get(name):
                work.refuse(entry.parameters, name, problem, remedy)


_JOINT_ALONE: Final = (
    (
        "memoryPercent",
        "in native mode the amount has to be known before the card is chosen",
        "ask for an amount: capacity.requests.memory",
    ),
    (
        "tflops",
        "in native mode the percentage has to be known before the card is chosen",
        "ask for a percentage: capacity.requests.cores",
    ),
    (
        "exclusive",
        "in native mode nobody keeps the rest of a card free",
        "ask for all of its memory: leave capacity.requests.memory out",
    ),
    ("partition", "in native mode nobody looks at the partitions of the NVLink fabric", _JOINT_REMEDY),
)
"""Fields of GpuConfig that only koordra's own controller keeps."""


def _joint(value: JointAllocation, entry: Entry, work: _Work) -> None:
    read = entry.parameters
    if value.enforcement is Enforcement.PREFERRED:
        work.refuse(
            read,
            "enforcement",
            "in native mode a scope can only be Required",
            "write Required, or use joint mode",
        )
        return
    attribute = SCOPE_ATTRIBUTES.get(value.scope)
    if attribute is None:
        return
    named = list(entry.requests) or [str(one.get("name")) for one in work.requests]
    tops = {name.partition("/")[0] for name in named}
    members = [request for request in work.requests if request.get("name") in tops]
    gpus = [request for request in members if _kinds(request, work.classes) == {"gpu"}]
    nics = [request for request in members if _kinds(request, work.classes) == {"nic"}]
    if len(gpus) + len(nics) != len(members):
        work.refuse(read, "pairing", "it is not known which of the requests are GPUs and which are NICs")
    elif value.pairing is Pairing.TOGETHER or not gpus or not nics:
        _match(named, attribute, work)
    elif any(_count(request) is None for request in members):
        work.refuse(
            read,
            "pairing",
            "in native mode pairs need exact requests with a count, no alternatives and no allocationMode All",
        )
    elif value.pairing is Pairing.PER_GROUP and _total(gpus) > 1:
        work.refuse(
            read,
            "pairing",
            "in native mode PerGroup can be said of one GPU only",
            "write PerDevice or Together",
        )
    else:
        _pairs(gpus, nics, attribute, read, work)


def _pairs(gpus: Sequence[Object], nics: Sequence[Object], attribute: str, read: Reader, work: _Work) -> None:
    """Each GPU with a NIC of its own: in the order of the requests, the first GPU with the first NIC."""
    wanted, offered = _total(gpus), _total(nics)
    if offered < wanted:
        work.refuse(
            read,
            "pairing",
            f"{wanted} GPUs need a NIC each, the claim asks for {offered}",
            "ask for as many NICs as GPUs",
        )
        return
    after = len(work.requests) - len(gpus) - len(nics) + wanted + offered
    if after > MOST_REQUESTS:  # before they are made: a count may be any number
        work.refuse(work.read, "requests", f"{after} requests after pairs were split; {MOST_REQUESTS} fit")
        return
    gpu_names = [name for request in gpus for name in _split(request, work)]
    nic_names = [name for request in nics for name in _split(request, work)]
    for gpu, nic in zip(gpu_names, nic_names, strict=False):
        _match([gpu, nic], attribute, work)


def _split(request: Object, work: _Work) -> list[str]:
    """The names under which a request's devices are asked for one by one."""
    name, count = str(request.get("name")), _count(request) or 1
    if count <= 1:
        return [name]
    made = [f"{name}-{index}" for index in range(count)]
    if {str(other.get("name")) for other in work.requests} & set(made) or any(len(one) > 63 for one in made):
        work.refuse(
            work.read,
            "requests",
            f"request {name!r} cannot be split into {made[0]} ...",
            "rename the request",
        )
        return [name]
    position = work.requests.index(request)
    work.requests[position : position + 1] = [
        {**request, "name": one, "exactly": {**request["exactly"], "count": 1}} for one in made
    ]
    for entry in (*(work.devices.get("constraints") or ()), *(work.devices.get("config") or ())):
        if name in (entry.get("requests") or ()):
            entry["requests"] = [
                part for one in entry["requests"] for part in (made if one == name else [one])
            ]
    work.warnings.append(
        f"request {name} was split into {made[0]} to {made[-1]} for native mode: "
        f"containers that name request {name} have to name these"
    )
    return made


def _match(requests: Sequence[str], attribute: str, work: _Work) -> None:
    constraint = {"requests": list(requests), "matchAttribute": attribute}
    constraints = work.devices.get("constraints") or []
    if constraint not in constraints:
        work.devices["constraints"] = [*constraints, constraint]


def _count(request: Fields) -> int | None:
    """Devices of an exact request; None for all there are and for alternatives."""
    exactly = request.get("exactly")
    if not isinstance(exactly, Mapping) or exactly.get("allocationMode") == "All":
        return None
    return int(exactly.get("count") or 1)


def _total(requests: Sequence[Object]) -> int:
    """Devices of exact requests; a count below one, which the API server refuses later, does not make up for
    another's."""
    return sum(max(_count(request) or 1, 1) for request in requests)


def _kinds(request: Fields, classes: Mapping[str, Object]) -> set[str]:
    """`gpu` and `nic`, for every class the request names; "" for one that does not say."""
    asked = [request.get("exactly"), *(request.get("firstAvailable") or ())]
    return {
        _kind_of_class(str(one["deviceClassName"]), classes)
        for one in asked
        if isinstance(one, Mapping) and one.get("deviceClassName")
    }


def _kind_of_class(name: str, classes: Mapping[str, Object]) -> str:
    own = name.removesuffix(f".{names.DRIVER}")
    types = {own} if own != name else set()
    for selector in objects.spec_of(classes.get(name) or {}).get("selectors") or ():
        types.update(_TYPE.findall(str((selector.get("cel") or {}).get("expression") or "")))
    known = (("gpu", names.GPU_TYPES), ("nic", names.NIC_TYPES))
    return next((kind for kind, words in known if types and types <= words), "")
