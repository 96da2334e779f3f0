"""The rules by which a CDI loader rejects a whole spec file, as far as they concern fields that koordra
writes, for any JSON.

The published JSON schema accepts unknown fields, empty edits and wrong versions; the Go loader
(tags.cncf.io/container-device-interface pkg/cdi, pkg/parser) does not. koordra checks the values that it puts
into a spec (cdi/claim_spec); what it writes is held to these rules by the tests.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

from koordra.errors import CDIError

VERSIONS: Final = ("0.3.0", "0.4.0", "0.5.0", "0.6.0", "0.7.0", "0.8.0", "1.0.0", "1.1.0")

_QUALIFIER = re.compile(r"[A-Za-z](?:[A-Za-z0-9_.-]*[A-Za-z0-9])?")
_SUBDOMAIN = re.compile(r"[a-z0-9](?:[a-z0-9-]*[a-z0-9])?(?:\.[a-z0-9](?:[a-z0-9-]*[a-z0-9])?)*")
_DEVICE = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9_.:-]*[A-Za-z0-9])?")
_HOOKS = ("prestart", "createRuntime", "createContainer", "startContainer", "poststart", "poststop")

Check = Callable[[Any, str], object]
"""Raises CDIError for a value, which stands at the place, that breaks a rule."""


def check(spec: object) -> None:
    """Raises CDIError naming the field and the rule."""
    document = _fields(spec, "spec", _SPEC)
    version = document.get("cdiVersion")
    if version not in VERSIONS:
        raise CDIError(f"cdiVersion {version!r} is not known; known are {', '.join(VERSIONS)}")
    for field, rule in _SPEC.items():
        rule(document.get(field), field)
    if not document.get("devices"):
        raise CDIError("devices: a spec without devices is refused")
    needed = minimum_version(document)
    if VERSIONS.index(version) < VERSIONS.index(needed):
        raise CDIError(f"cdiVersion {version} is too old for the fields used; at least {needed} is needed")


def minimum_version(spec: Mapping[str, Any]) -> str:
    """The oldest cdiVersion that has every field the spec uses. The spec has the format's shape."""
    if "." in spec["kind"].partition("/")[2]:
        return "0.6.0"
    edits = [spec.get("containerEdits") or {}, *(device["containerEdits"] for device in spec["devices"])]
    if any(each.get("additionalGids") for each in edits):
        return "0.7.0"
    nodes = [node for each in edits for node in each.get("deviceNodes") or ()]
    digit = any(device["name"][:1].isdigit() for device in spec["devices"])
    return "0.5.0" if digit or any(node.get("hostPath") for node in nodes) else VERSIONS[0]


# The shapes: objects with known fields, lists, and single values.


def _fields(raw: object, where: str, known: Iterable[str]) -> Mapping[str, Any]:
    if not isinstance(raw, Mapping):
        raise CDIError(f"{where} is not an object")
    unknown = sorted(str(field) for field in raw if field not in known)
    if unknown:
        raise CDIError(f"{where}.{unknown[0]} is not a field of the CDI format that koordra writes")
    return raw


def _object(fields: Mapping[str, Check], rule: Check | None = None) -> Check:
    """An object of these fields, each of which may be missing; `rule` is about the whole."""

    def check(raw: object, where: str) -> None:
        found = _fields(raw, where, fields)
        if rule:
            rule(found, where)
        for field, value in found.items():
            fields[field](value, f"{where}.{field}")

    return check


def _list(item: Check) -> Check:
    def check(raw: object, where: str) -> None:
        if raw is not None and not isinstance(raw, list):
            raise CDIError(f"{where} is not a list")
        for index, each in enumerate(raw or ()):
            item(each, f"{where}[{index}]")

    return check


def _rule(allowed: Callable[[Any], object], problem: str) -> Check:
    """`problem` is the text after the place, with the value as `{!r}`."""

    def check(raw: object, where: str) -> None:
        if not allowed(raw):
            raise CDIError(where + problem.format(raw))

    return check


def _any(raw: object, where: str) -> None:
    """A value about which the loader has no rule."""


def _kind(kind: object, where: str) -> None:
    vendor, slash, device_class = str(kind).partition("/")
    if not isinstance(kind, str) or not slash:
        raise CDIError(f"{where}: {kind!r} is not vendor/class")
    if not _QUALIFIER.fullmatch(vendor) or not _SUBDOMAIN.fullmatch(vendor) or len(vendor) > 253:
        raise CDIError(f"{where}: {vendor!r} is not a vendor name")
    if not _QUALIFIER.fullmatch(device_class) or len(device_class) > 63:
        raise CDIError(f"{where}: {device_class!r} is not a class name")


def _device(device: Mapping[str, Any], where: str) -> None:
    name = device.get("name")
    if not isinstance(name, str) or not _DEVICE.fullmatch(name):
        raise CDIError(f"{where}.name: {name!r} is not a CDI device name")
    if not any(_fields(device.get("containerEdits"), f"{where}.containerEdits", _EDITS).values()):
        raise CDIError(f"{where}.containerEdits: a device without edits is refused")


def _devices(raw: object, where: str) -> None:
    _list(_object({"name": _any, "containerEdits": _object(_EDITS)}, _device))(raw, where)
    names = [device["name"] for device in raw] if isinstance(raw, list) else []
    for index, name in enumerate(names):
        if name in names[:index]:
            raise CDIError(f"{where}[{index}].name: {name!r} is there twice")


# The fields of the format, each with its rule.

_NUMBER = _rule(
    lambda value: isinstance(value, int) and not isinstance(value, bool), ": {!r} is not a number"
)
_NODE: Final[Mapping[str, Check]] = {
    "path": _any,
    "hostPath": _any,
    "type": _rule(lambda kind: kind in ("", "b", "c", "u", "p"), ": {!r} is none of b, c, u, p"),
    "permissions": _rule(
        lambda letters: letters == "none" or (isinstance(letters, str) and set(letters) <= set("rwm")),
        ": {!r} has other letters than r, w, m",
    ),
    "major": _NUMBER,
    "minor": _NUMBER,
    "fileMode": _NUMBER,
}
_EDITS: Final[Mapping[str, Check]] = {
    "additionalGids": _list(_NUMBER),
    "env": _list(
        _rule(
            lambda entry: isinstance(entry, str) and entry.find("=") > 0 and "\0" not in entry,
            ": {!r} is not NAME=value",
        )
    ),
    "deviceNodes": _list(
        _object(
            _NODE, _rule(lambda node: node.get("path") and isinstance(node["path"], str), ".path is missing")
        )
    ),
    "mounts": _list(
        _object(
            dict.fromkeys(("hostPath", "containerPath", "options"), _any),
            _rule(
                lambda mount: mount.get("hostPath") and mount.get("containerPath"),
                ": hostPath and containerPath are both needed",
            ),
        )
    ),
    "hooks": _list(
        _object(
            dict.fromkeys(("hookName", "path", "args"), _any),
            _rule(
                lambda hook: hook.get("path") and hook.get("hookName") in _HOOKS,
                ": a known hookName and a path are needed",
            ),
        )
    ),
}
_SPEC: Final[Mapping[str, Check]] = {
    "cdiVersion": _any,
    "kind": _kind,
    "devices": _devices,
    "containerEdits": lambda raw, where: None if raw is None else _object(_EDITS)(raw, where),
}
