"""The rules by which a CDI loader rejects a whole spec file.

The published JSON schema accepts unknown fields, empty edits and wrong versions; the Go loader
(tags.cncf.io/container-device-interface pkg/cdi, pkg/parser) does not, and drops the file with all its
devices, so that containers fail to start with "unresolvable CDI devices". koordra validates every spec by the
loader's rules before it is written:

- strict fields; a known `cdiVersion` that is at least what the fields used need (older runtimes reject newer
  versions than needed, so `minimum_version` is what is written);
- names: vendor and class start with a letter and end in a letter or digit, with `_ . -` between; a device
  name starts and ends with a letter or digit and may also have `:` between; class at most 63, vendor a DNS
  subdomain of at most 253;
- at least one device, no name twice, no device whose edits are empty;
- env `NAME=value`; device nodes with a path, type b c u p and permissions of r w m; mounts with both paths;
  hooks with a known name, a path and an env of `NAME=value`; network devices with both names, none twice;
  groups and times that are numbers; an RDT class that can be a directory's name; annotations of text, with
  qualified names, 256 KiB at most.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

from koordra.errors import CDIError

VERSIONS: Final = ("0.3.0", "0.4.0", "0.5.0", "0.6.0", "0.7.0", "0.8.0", "1.0.0", "1.1.0")

_QUALIFIER = re.compile(r"[A-Za-z](?:[A-Za-z0-9_.-]*[A-Za-z0-9])?")
_SUBDOMAIN = re.compile(r"[a-z0-9](?:[a-z0-9-]*[a-z0-9])?(?:\.[a-z0-9](?:[a-z0-9-]*[a-z0-9])?)*")
_DEVICE = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9_.:-]*[A-Za-z0-9])?")
_HOOKS = {"prestart", "createRuntime", "createContainer", "startContainer", "poststart", "poststop"}

_SPEC = {"cdiVersion", "kind", "annotations", "devices", "containerEdits"}
_DEVICE_FIELDS = {"name", "annotations", "containerEdits"}
_EDITS = {"env", "deviceNodes", "netDevices", "mounts", "hooks", "intelRdt", "additionalGids"}
_NODE = {"path", "hostPath", "type", "major", "minor", "fileMode", "permissions", "uid", "gid"}
_MOUNT = {"hostPath", "containerPath", "type", "options"}
_HOOK = {"hookName", "path", "args", "env", "timeout"}
_NET_DEVICE = {"hostInterfaceName", "name"}
_RDT = {
    "closID",
    "l3CacheSchema",
    "memBwSchema",
    "schemata",
    "enableMonitoring",
    "enableCMT",
    "enableMBM",
}
_RDT_1_1 = {"schemata", "enableMonitoring"}
_ANNOTATION = re.compile(
    r"(?:[a-z0-9](?:[a-z0-9.-]*[a-z0-9])?/)?[A-Za-z0-9](?:[A-Za-z0-9_.-]{0,61}[A-Za-z0-9])?"
)
_MOST_ANNOTATIONS = 256 << 10


def check(spec: object) -> None:
    """Raises CDIError naming the field and the rule."""
    document = _object(spec, "spec", _SPEC)
    version = document.get("cdiVersion")
    if version not in VERSIONS:
        raise CDIError(f"cdiVersion {version!r} is not known; known are {', '.join(VERSIONS)}")
    needed = minimum_version(document)
    if VERSIONS.index(version) < VERSIONS.index(needed):
        raise CDIError(f"cdiVersion {version} is too old for the fields used; at least {needed} is needed")
    _check_kind(document.get("kind"))
    devices = _list(document.get("devices"), "devices")
    if not devices:
        raise CDIError("devices: a spec without devices is refused")
    names: set[str] = set()
    for index, raw in enumerate(devices):
        where = f"devices[{index}]"
        device = _object(raw, where, _DEVICE_FIELDS)
        name = device.get("name")
        if not isinstance(name, str) or not _DEVICE.fullmatch(name):
            raise CDIError(f"{where}.name: {name!r} is not a CDI device name")
        if name in names:
            raise CDIError(f"{where}.name: {name!r} is there twice")
        names.add(name)
        edits = _object(device.get("containerEdits"), f"{where}.containerEdits", _EDITS)
        if not any(edits.values()):
            raise CDIError(f"{where}.containerEdits: a device without edits is refused")
        _check_edits(edits, f"{where}.containerEdits")
        _check_annotations(device.get("annotations"), f"{where}.annotations")
    _check_annotations(document.get("annotations"), "annotations")
    if document.get("containerEdits") is not None:
        _check_edits(_object(document["containerEdits"], "containerEdits", _EDITS), "containerEdits")


def minimum_version(spec: Mapping[str, Any]) -> str:
    """The oldest cdiVersion that has every field the spec uses."""
    return max((version for version in _needs(spec)), key=VERSIONS.index, default=VERSIONS[0])


def _needs(spec: Mapping[str, Any]) -> Iterator[str]:
    devices = [device for device in spec.get("devices") or () if isinstance(device, Mapping)]
    if "." in str(spec.get("kind")).partition("/")[2] or spec.get("annotations"):
        yield "0.6.0"
    for device in devices:
        if str(device.get("name"))[:1].isdigit():
            yield "0.5.0"
        if device.get("annotations"):
            yield "0.6.0"
    for edits in (spec.get("containerEdits"), *(device.get("containerEdits") for device in devices)):
        if not isinstance(edits, Mapping):
            continue
        if any(mount.get("type") for mount in _objects(edits.get("mounts"))):
            yield "0.4.0"
        if any(node.get("hostPath") for node in _objects(edits.get("deviceNodes"))):
            yield "0.5.0"
        if edits.get("intelRdt") or edits.get("additionalGids"):
            yield "0.7.0"
        rdt = edits.get("intelRdt")
        if edits.get("netDevices") or (isinstance(rdt, Mapping) and any(rdt.get(name) for name in _RDT_1_1)):
            yield "1.1.0"


def _check_kind(kind: object) -> None:
    vendor, slash, device_class = str(kind).partition("/")
    if not isinstance(kind, str) or not slash:
        raise CDIError(f"kind: {kind!r} is not vendor/class")
    if not _QUALIFIER.fullmatch(vendor) or not _SUBDOMAIN.fullmatch(vendor) or len(vendor) > 253:
        raise CDIError(f"kind: {vendor!r} is not a vendor name")
    if not _QUALIFIER.fullmatch(device_class) or len(device_class) > 63:
        raise CDIError(f"kind: {device_class!r} is not a class name")


def _check_edits(edits: Mapping[str, Any], where: str) -> None:
    _check_env(edits.get("env"), f"{where}.env")
    for index, raw in enumerate(_list(edits.get("deviceNodes"), f"{where}.deviceNodes")):
        _check_node(_object(raw, f"{where}.deviceNodes[{index}]", _NODE), f"{where}.deviceNodes[{index}]")
    for index, raw in enumerate(_list(edits.get("mounts"), f"{where}.mounts")):
        mount = _object(raw, f"{where}.mounts[{index}]", _MOUNT)
        if not mount.get("hostPath") or not mount.get("containerPath"):
            raise CDIError(f"{where}.mounts[{index}]: hostPath and containerPath are both needed")
    for index, raw in enumerate(_list(edits.get("hooks"), f"{where}.hooks")):
        hook = _object(raw, f"{where}.hooks[{index}]", _HOOK)
        if hook.get("hookName") not in _HOOKS or not hook.get("path"):
            raise CDIError(f"{where}.hooks[{index}]: a known hookName and a path are needed")
        _check_env(hook.get("env"), f"{where}.hooks[{index}].env")
        _check_numbers(hook, ("timeout",), f"{where}.hooks[{index}]")
    _check_net_devices(edits.get("netDevices"), f"{where}.netDevices")
    for gid in _list(edits.get("additionalGids"), f"{where}.additionalGids"):
        _check_numbers({"gid": gid}, ("gid",), f"{where}.additionalGids")
    if edits.get("intelRdt") is not None:
        rdt = _object(edits["intelRdt"], f"{where}.intelRdt", _RDT)
        closid = rdt.get("closID", "")
        if (
            not isinstance(closid, str)
            or closid in {".", ".."}
            or "/" in closid
            or "\n" in closid
            or len(closid) > 4095
        ):
            raise CDIError(f"{where}.intelRdt.closID: {closid!r} cannot be a directory's name")


def _check_env(raw: object, where: str) -> None:
    for entry in _list(raw, where):
        if not isinstance(entry, str) or entry.find("=") < 1 or "\0" in entry:
            raise CDIError(f"{where}: {entry!r} is not NAME=value")


def _check_net_devices(raw: object, where: str) -> None:
    hosts: set[object] = set()
    inside: set[object] = set()
    for index, entry in enumerate(_list(raw, where)):
        device = _object(entry, f"{where}[{index}]", _NET_DEVICE)
        host, name = device.get("hostInterfaceName"), device.get("name")
        if not host or not name:
            raise CDIError(f"{where}[{index}]: hostInterfaceName and name are both needed")
        if host in hosts or name in inside:
            raise CDIError(f"{where}[{index}]: {host!r} or {name!r} is there twice")
        hosts.add(host)
        inside.add(name)


def _check_annotations(raw: object, where: str) -> None:
    if raw is None:
        return
    if not isinstance(raw, Mapping):
        raise CDIError(f"{where} is not an object")
    size = 0
    for name, value in raw.items():
        if not isinstance(name, str) or not _ANNOTATION.fullmatch(name.lower()):
            raise CDIError(f"{where}: {name!r} is not a qualified name")
        if not isinstance(value, str):
            raise CDIError(f"{where}.{name}: {value!r} is not text")
        size += len(name.encode()) + len(value.encode())
    if size > _MOST_ANNOTATIONS:
        raise CDIError(f"{where}: {size} bytes; {_MOST_ANNOTATIONS} is the most")


def _check_numbers(raw: Mapping[str, Any], names: Iterable[str], where: str) -> None:
    for name in names:
        if name in raw and (isinstance(raw[name], bool) or not isinstance(raw[name], int)):
            raise CDIError(f"{where}.{name}: {raw[name]!r} is not a number")


def _check_node(node: Mapping[str, Any], where: str) -> None:
    if not isinstance(node.get("path"), str) or not node["path"]:
        raise CDIError(f"{where}.path is missing")
    if node.get("type", "") not in {"", "b", "c", "u", "p"}:
        raise CDIError(f"{where}.type: {node['type']!r} is none of b, c, u, p")
    permissions = node.get("permissions", "")
    if permissions != "none" and not set(permissions) <= set("rwm"):
        raise CDIError(f"{where}.permissions: {permissions!r} has other letters than r, w, m")
    _check_numbers(node, ("major", "minor", "uid", "gid", "fileMode"), where)


def _object(raw: object, where: str, fields: set[str]) -> Mapping[str, Any]:
    if not isinstance(raw, Mapping):
        raise CDIError(f"{where} is not an object")
    unknown = sorted(str(field) for field in raw if field not in fields)
    if unknown:
        raise CDIError(f"{where}.{unknown[0]} is not a field of the CDI format")
    return raw


def _objects(raw: object) -> Iterable[Mapping[str, Any]]:
    return (item for item in raw if isinstance(item, Mapping)) if isinstance(raw, list) else ()


def _list(raw: object, where: str) -> list[Any]:
    if raw is None:
        return []
    if not isinstance(raw, list):
        raise CDIError(f"{where} is not a list")
    return raw
