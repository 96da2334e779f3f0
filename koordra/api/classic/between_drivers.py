"""Claims, templates and classes of v1 from one driver to another (`koordra convert --to`). Pure.

    NVIDIA's DRA driver   gpu.nvidia.com   both ways: classes, attributes, GpuConfig, MigDeviceConfig
    dranet                dra.net          both ways: attributes, name and MTU of the interface

Word by word: what the tables lack is refused, since a claim without it would select other devices. Classes
that the drivers' charts bring are left out, claims name those of the other; a class of one's own keeps its
name. koordra's driver has GPUs and NICs, so a selector by driver alone becomes one by their type too, and a
class carries the guard against kube-scheduler's allocator.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from koordra.api import names, objects
from koordra.api.classic.notes import Notes
from koordra.api.classic.nvidia_parameters import KOORDRA, of_sharing
from koordra.api.classic.v1alpha2 import driver_selector
from koordra.api.kinds import RESOURCE_GROUP
from koordra.api.objects import Object
from koordra.api.opaque.parameters import API_VERSION
from koordra.api.reader import Reader

_KINDS: Final = ("ResourceClaim", "ResourceClaimTemplate", "DeviceClass")
_COMMON: Final = (
    "type",
    "uuid",
    "productName",
    "architecture",
    "cudaComputeCapability",
    "driverVersion",
    "cudaDriverVersion",
    "profile",
)
_GUARD: Final = driver_selector(names.DRIVER)
_SHARINGS: Final = {"mps": "MPS", "timeslicing": "TimeSlicing"}


@dataclass(frozen=True, slots=True)
class Words:
    """From one driver to another: names here and there. `here`: CEL of every device that the source has.
    `alone` are classes that have none beside them there, `matched` attributes that constraints may name;
    `config` makes a parameters document of theirs, None for nothing to say."""

    source: str
    driver: str
    here: str
    classes: Mapping[str, str]
    alone: frozenset[str]
    attributes: Mapping[str, str]
    matched: Mapping[str, str]
    capacities: tuple[str, ...]
    config: Callable[[Reader, Notes], Object | None]
    expressions: Mapping[str, str] = field(default_factory=dict)
    """Attribute -> what is true of every device there instead, or where else it stands, as CEL."""


def _of_nvidia(read: Reader, notes: Notes) -> Object | None:
    if read.text("kind") not in ("GpuConfig", "MigDeviceConfig"):
        raise read.wrong(
            f"{read.text('kind')} has no form in koordra", "leave these claims to NVIDIA's driver"
        )
    read.only("apiVersion", "kind", "sharing", problem="is no field of these parameters")
    return of_sharing(read, notes)


def _of_koordra(read: Reader, _notes: Notes) -> Object | None:
    if read.text("kind") != "GpuConfig":
        raise read.wrong(f"{read.text('kind')} has no form in NVIDIA's driver", "take it out")
    for name in sorted(read.data.keys() - {"apiVersion", "kind", "isolation"}):
        raise read.wrong("has no form in NVIDIA's driver", "take it out", at=name)
    isolation = read.text("isolation")
    if not isolation or isolation == "none":
        return None
    if isolation not in _SHARINGS:
        raise read.wrong(f"{isolation}: NVIDIA's driver has MPS and TimeSlicing", "use mps", at="isolation")
    sharing = {"strategy": _SHARINGS[isolation]}
    return {"apiVersion": "resource.nvidia.com/v1beta1", "kind": "GpuConfig", "sharing": sharing}


def _nic_of_koordra(read: Reader, _notes: Notes) -> Object | None:
    if read.text("kind") != "RdmaConfig":
        raise read.wrong(f"{read.text('kind')} has no form in dranet", "take it out")
    network = read.inner("network")
    for place, known in (
        (read, {"apiVersion", "kind", "network", "memlock"}),
        (network, {"interface", "mtu"}),
    ):
        for name in sorted(map(str, place.data.keys() - known)):
            raise place.wrong("has no form in dranet", "take it out", at=name)
    if read.data.get("memlock") is False:
        raise read.wrong("has no form in dranet", "take it out", at="memlock")
    said = objects.without_none(
        {"name": network.text("interface") or None, "mtu": network.between("mtu", 68, 65535)}
    )
    return {"interface": said} if said else None


def _of_dranet(read: Reader, _notes: Notes) -> Object | None:
    """Addresses and routes are the operator's in koordra: a pool of a class gives them."""
    interface = read.inner("interface")
    for place, known in ((read, ("apiVersion", "kind", "interface")), (interface, ("name", "mtu"))):
        for name in sorted(map(str, place.data.keys() - set(known))):
            raise place.wrong(
                "cannot be said in a claim of koordra's", "let a class say it (RdmaConfig.network)", at=name
            )
    network = {"interface": interface.text("name") or None, "mtu": interface.between("mtu", 68, 65535)}
    said = objects.without_none(network)
    return {"apiVersion": API_VERSION, "kind": "RdmaConfig", "network": said} if said else None


TO_KOORDRA: Final = (
    Words(
        "gpu.nvidia.com",
        names.DRIVER,
        f'device.driver == "{names.DRIVER}" && device.attributes["{names.DRIVER}"].type in ["gpu", "mig"]',
        {"gpu.nvidia.com": names.CLASS_GPU, "mig.nvidia.com": names.CLASS_MIG},
        frozenset(
            (
                "vfio.gpu.nvidia.com",
                "compute-domain-daemon.nvidia.com",
                "compute-domain-default-channel.nvidia.com",
            )
        ),
        {name: name for name in _COMMON},
        {**{name: name for name in _COMMON}, "parentUUID": "parent"},
        ("memory",),
        _of_nvidia,
    ),
    Words(
        "dra.net",
        names.DRIVER,
        f'device.driver == "{names.DRIVER}" && device.attributes["{names.DRIVER}"].type in ["nic", "vf"]',
        {},
        frozenset(),
        {"ifName": "netdev", "rdmaDevice": "ibDevice", "numaNode": "numaNode"},
        {"ifName": "netdev", "rdmaDevice": "ibDevice", "numaNode": "numaNode"},
        (),
        _of_dranet,
        {
            "rdma": "true",
            "virtual": "false",
            "isSriovVf": f'(device.attributes["{names.DRIVER}"].type == "{names.TYPE_VF}")',
            "pciAddress": 'device.attributes["resource.kubernetes.io"].pciBusID',
        },
    ),
)
TO_NVIDIA: Final = (
    Words(
        names.DRIVER,
        "gpu.nvidia.com",
        'device.driver == "gpu.nvidia.com"',
        {names.CLASS_GPU: "gpu.nvidia.com", names.CLASS_MIG: "mig.nvidia.com"},
        frozenset((names.CLASS_NIC, names.CLASS_VF, *names.IMEX_CLASSES)),
        {name: name for name in _COMMON},
        {**{name: name for name in _COMMON}, "parent": "parentUUID"},
        ("memory",),
        _of_koordra,
    ),
)
TO_DRANET: Final = (
    Words(
        names.DRIVER,
        "dra.net",
        'device.driver == "dra.net"',
        {names.CLASS_NIC: "dranet-rdma", names.CLASS_VF: "dranet-vf"},
        frozenset((names.CLASS_GPU, names.CLASS_MIG, *names.IMEX_CLASSES)),
        {"netdev": "ifName", "ibDevice": "rdmaDevice", "numaNode": "numaNode"},
        {"netdev": "ifName", "ibDevice": "rdmaDevice", "numaNode": "numaNode"},
        (),
        _nic_of_koordra,
    ),
)
DRANET: Final = "dranet"
_WORDS: Final = {KOORDRA: TO_KOORDRA, DRANET: TO_DRANET}
_OF_DRANET: Final = 'device.driver == "dra.net" && device.attributes["dra.net"].rdma == true'
BROUGHT: Final = {
    "dranet-rdma": f'{_OF_DRANET} && device.attributes["dra.net"].isSriovVf == false',
    "dranet-vf": f'{_OF_DRANET} && device.attributes["dra.net"].isSriovVf == true',
}
"""Classes that no chart brings -> what they select. They come with the claims that name them."""


def converted(obj: Object, target: str, notes: Notes) -> list[Object]:
    """The object for the other driver; as it is where it is not about one of the tables' drivers. Raises
    Refused or InvalidInput."""
    if objects.group_of(obj) != RESOURCE_GROUP or obj.get("kind") not in _KINDS:
        return [obj]
    made = obj
    for words in _WORDS.get(target, TO_NVIDIA):
        if _is_about(made, words):
            if obj["kind"] == "DeviceClass" and objects.name(obj) in words.classes:
                now = words.classes[objects.name(obj)]
                notes.warn(
                    "", f"is the class that the driver's chart brings, claims name {now}", "it is left out"
                )
                return []
            made = _object(made, words, notes)
    brought = BROUGHT if target == DRANET and made is not obj else {}
    return [made, *(_brought(name) for name in brought if _is_named(made, name))]


def _brought(name: str) -> Object:
    return {
        "apiVersion": f"{RESOURCE_GROUP}/v1",
        "kind": "DeviceClass",
        "metadata": {"name": name},
        "spec": {"selectors": [{"cel": {"expression": BROUGHT[name]}}]},
    }


def _is_named(value: Any, name: str) -> bool:
    if isinstance(value, Mapping):
        return value.get("deviceClassName") == name or any(_is_named(each, name) for each in value.values())
    return isinstance(value, list) and any(_is_named(each, name) for each in value)


def _is_about(value: Any, words: Words) -> bool:
    if isinstance(value, Mapping):
        return any(_is_about(entry, words) for key, entry in value.items() if key != "metadata")
    if isinstance(value, list):
        return any(_is_about(entry, words) for entry in value)
    known = words.classes.keys() | words.alone
    return isinstance(value, str) and (value in known or _names(value, words.source))


def _names(text: str, driver: str) -> bool:
    """Whether the driver's own name stands in the text, and not in that of a class or a longer domain."""
    return re.search(rf"(?<![\w.-]){re.escape(driver)}(?![\w.-])", text) is not None


def _object(obj: Object, words: Words, notes: Notes) -> Object:
    spec = notes.read(obj).inner("spec")
    if obj["kind"] == "DeviceClass":
        return {**obj, "spec": _class(spec, words, notes)}
    if obj["kind"] == "ResourceClaim":
        return {**obj, "spec": {**spec.data, "devices": _devices(spec.inner("devices"), words, notes)}}
    inner = spec.inner("spec")
    changed = {**inner.data, "devices": _devices(inner.inner("devices"), words, notes)}
    return {**obj, "spec": {**spec.data, "spec": changed}}


def _class(read: Reader, words: Words, notes: Notes) -> Object:
    made = {**read.data, **_selectors(read, words)}
    if words.driver == names.DRIVER:
        made["selectors"] = [*(made.get("selectors") or ()), {"cel": {"expression": _GUARD}}]
    if config := list(_configs(read, words, notes)):
        made["config"] = config
    else:
        made.pop("config", None)
    return made


def _devices(read: Reader, words: Words, notes: Notes) -> Object:
    made: Object = {**read.data, "requests": [_request(each, words) for each in read.each("requests")]}
    constraints = [_constraint(each, words) for each in read.each("constraints")]
    config = list(_configs(read, words, notes))
    for name, entries in (("constraints", constraints), ("config", config)):
        made.pop(name, None)
        if entries:
            made[name] = entries
    return made


def _request(read: Reader, words: Words) -> Object:
    if exactly := read.optional("exactly"):
        return {**read.data, "exactly": _body(exactly, words)}
    return {**read.data, "firstAvailable": [_body(each, words) for each in read.each("firstAvailable")]}


def _body(read: Reader, words: Words) -> Object:
    called = read.text("deviceClassName")
    if called in words.alone:
        raise read.wrong(
            f"{called} has no class beside it there", "leave the claim as it is", at="deviceClassName"
        )
    if read.data.get("capacity") and called in words.classes and words.driver != names.DRIVER:
        raise read.wrong(f"{words.driver} gives whole devices", "take it out", at="capacity")
    return {**read.data, "deviceClassName": words.classes.get(called, called), **_selectors(read, words)}


def _selectors(read: Reader, words: Words) -> Object:
    found = []
    for each in read.each("selectors"):
        cel = each.inner("cel")
        if cel.data.get("expression") == _GUARD:
            continue
        found.append({**each.data, "cel": {**cel.data, "expression": _expression(cel, words)}})
    return {"selectors": found} if found else {}


def _expression(read: Reader, words: Words) -> str:
    driver = re.escape(words.source)

    def attribute(found: re.Match[str]) -> str:
        place, name = found["place"], found["name"]
        if place == "attributes" and name in words.expressions:
            return words.expressions[name]
        known = words.attributes if place == "attributes" else {name: name for name in words.capacities}
        if name not in known:
            raise read.wrong(
                f"{words.driver} publishes no {name} as {words.source} does",
                f"select by {', '.join(known) or 'something else'}",
                at="expression",
            )
        return f'device.{place}["{words.driver}"].{known[name]}'

    text = re.sub(
        rf"""device\.(?P<place>attributes|capacity)\[\s*(["']){driver}\2\s*\]\.(?P<name>\w+)""",
        attribute,
        read.required("expression"),
    )
    text = re.sub(rf"""device\.driver\s*==\s*(["']){driver}\1""", lambda _: f"({words.here})", text)
    if _names(text, words.source):
        raise read.wrong(
            f"{words.source} is read in a way that cannot be told apart",
            'write device.attributes["<driver>"].<name>',
            at="expression",
        )
    return text


def _constraint(read: Reader, words: Words) -> Object:
    made = dict(read.data)
    for name in ("matchAttribute", "distinctAttribute"):
        domain, _, attribute = read.text(name).rpartition("/")
        if domain == words.source:
            if attribute not in words.matched:
                raise read.wrong(f"{words.driver} publishes no {attribute}", "match another", at=name)
            made[name] = f"{words.driver}/{words.matched[attribute]}"
    return made


def _configs(read: Reader, words: Words, notes: Notes) -> Any:
    for entry in read.each("config"):
        opaque = entry.inner("opaque")
        if opaque.text("driver") != words.source:
            yield dict(entry.data)
        elif (found := words.config(opaque.inner("parameters"), notes)) is not None:
            yield {**entry.data, "opaque": {"driver": words.driver, "parameters": found}}
