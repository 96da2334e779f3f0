"""When a CDI spec file is valid: names, versions, strict fields, edits. One broken rule refuses the file.

The declared version must be known and at least what the used fields need: 0.4 mount.type, 0.5
deviceNode.hostPath and device names that start with a digit, 0.6 annotations and dots in the class, 0.7
intelRdt and additionalGids, 1.1 netDevices and the newer intelRdt fields.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from koordra.errors import CDIError

Edits = Mapping[str, Any]

VERSIONS: Final = ("0.1.0", "0.2.0", "0.3.0", "0.4.0", "0.5.0", "0.6.0", "0.7.0", "0.8.0", "1.0.0", "1.1.0")
_VENDOR = re.compile(r"[A-Za-z]([A-Za-z0-9_.-]*[A-Za-z0-9])?")
_DEVICE = re.compile(r"[A-Za-z0-9]([A-Za-z0-9_.:-]*[A-Za-z0-9])?")
_STAGES: Final = ("prestart", "createRuntime", "createContainer", "startContainer", "poststart", "poststop")

_FIELDS: Final[Mapping[str, Mapping[str, type | tuple[type, ...]]]] = {
    "spec": {"cdiVersion": str, "kind": str, "annotations": dict, "devices": list, "containerEdits": dict},
    "device": {"name": str, "annotations": dict, "containerEdits": dict},
    "edits": {
        "env": list, "deviceNodes": list, "netDevices": list, "mounts": list, "hooks": list, "intelRdt": dict,
        "additionalGids": list,
    },
    "deviceNode": {
        "path": str, "hostPath": str, "type": str, "major": int, "minor": int, "fileMode": int, "permissions": str,
        "uid": int, "gid": int,
    },
    "netDevice": {"hostInterfaceName": str, "name": str},
    "mount": {"hostPath": str, "containerPath": str, "type": str, "options": list},
    "hook": {"hookName": str, "path": str, "args": list, "env": list, "timeout": int},
    "intelRdt": {
        "closID": str, "l3CacheSchema": str, "memBwSchema": str, "schemata": list, "enableMonitoring": bool,
        "enableCMT": bool, "enableMBM": bool,
    },
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class CheckedSpec:
    """A valid file: its kind, its own edits, and the edits of each device."""

    kind: str
    edits: Edits
    devices: Mapping[str, Edits]


def check_spec(spec: Any) -> CheckedSpec:
    """The spec's parts. Raises CDIError naming the first broken rule."""
    _strict("spec", spec, "spec")
    version, kind = spec.get("cdiVersion", ""), spec.get("kind", "")
    if version.removeprefix("v") not in VERSIONS:
        raise CDIError(f"invalid CDI version {version!r}")
    check_kind(kind)
    edits = _checked_edits(spec.get("containerEdits") or {}, "containerEdits")
    devices: dict[str, Edits] = {}
    for index, device in enumerate(spec.get("devices") or ()):
        _strict("device", device, f"devices[{index}]")
        name = device.get("name", "")
        if _DEVICE.fullmatch(name) is None:
            raise CDIError(f"invalid device name {name!r}")
        if name in devices:
            raise CDIError(f"invalid spec, multiple device {name!r}")
        devices[name] = _checked_edits(device.get("containerEdits") or {}, f"device {name!r}")
        if not any(devices[name].values()):
            raise CDIError(f"invalid device {name!r}, empty device edits")
    if not devices:
        raise CDIError("invalid spec, no devices")
    needed = minimum_version(spec)
    if _order(version) < _order(needed):
        raise CDIError(f"the spec version must be at least v{needed} but is v{version}")
    return CheckedSpec(kind, edits, devices)


def check_kind(kind: str) -> None:
    """`vendor/class`. Raises CDIError."""
    vendor, slash, class_ = kind.partition("/")
    if not slash or not _VENDOR.fullmatch(vendor) or not _VENDOR.fullmatch(class_):
        raise CDIError(
            f"invalid CDI kind {kind!r}: vendor/class, each starting with a letter and ending alphanumeric"
        )


def minimum_version(spec: Mapping[str, Any]) -> str:
    """The oldest version whose rules allow every field that is used."""
    devices = spec.get("devices") or ()
    all_edits = [
        spec.get("containerEdits") or {},
        *(device.get("containerEdits") or {} for device in devices),
    ]
    needed = "0.3.0"
    if any(mount.get("type") for edits in all_edits for mount in edits.get("mounts") or ()):
        needed = "0.4.0"
    if any(device["name"][:1].isdigit() for device in devices) or any(
        node.get("hostPath") for edits in all_edits for node in edits.get("deviceNodes") or ()
    ):
        needed = "0.5.0"
    if (
        spec.get("annotations")
        or any(device.get("annotations") for device in devices)
        or "." in str(spec["kind"]).partition("/")[2]
    ):
        needed = "0.6.0"
    if any(edits.get("intelRdt") or edits.get("additionalGids") for edits in all_edits):
        needed = "0.7.0"
    rdt = [edits.get("intelRdt") or {} for edits in all_edits]
    if any(edits.get("netDevices") for edits in all_edits) or any(
        one.get("schemata") or one.get("enableMonitoring") for one in rdt
    ):
        needed = "1.1.0"
    return needed


def _order(version: str) -> int:
    return VERSIONS.index(version.removeprefix("v"))


def _strict(table: str, value: Any, where: str) -> None:
    """Only known fields, each of its type."""
    if not isinstance(value, dict):
        raise CDIError(f"{where} is not an object")
    for name, inner in value.items():
        wanted = _FIELDS[table].get(name)
        if wanted is None:
            raise CDIError(f'{where}: unknown field "{name}"')
        if inner is not None and (
            not isinstance(inner, wanted) or (wanted is int and isinstance(inner, bool))
        ):
            raise CDIError(f"{where}.{name} has the wrong type")


def _checked_edits(edits: Any, where: str) -> Edits:
    _strict("edits", edits, where)
    for variable in edits.get("env") or ():
        if not isinstance(variable, str) or not variable.partition("=")[0] or "=" not in variable:
            raise CDIError(f"{where}: invalid environment variable {variable!r}")
    for node in edits.get("deviceNodes") or ():
        _check_node(node, where)
    for network in edits.get("netDevices") or ():
        _strict("netDevice", network, where)
        if not network.get("hostInterfaceName") or not network.get("name"):
            raise CDIError(f"{where}: invalid network device, hostInterfaceName and name are required")
    for mount in edits.get("mounts") or ():
        _strict("mount", mount, where)
        if not mount.get("hostPath") or not mount.get("containerPath"):
            raise CDIError(f"{where}: invalid mount, hostPath and containerPath are required")
    for hook in edits.get("hooks") or ():
        _strict("hook", hook, where)
        if hook.get("hookName") not in _STAGES:
            raise CDIError(f"{where}: invalid hook name {hook.get('hookName')!r}")
        if not hook.get("path"):
            raise CDIError(f"{where}: invalid hook, empty path")
    if edits.get("intelRdt") is not None:
        _check_rdt(edits["intelRdt"], where)
    if any(
        isinstance(gid, bool) or not isinstance(gid, int) or gid < 0
        for gid in edits.get("additionalGids") or ()
    ):
        raise CDIError(f"{where}: additionalGids are numbers")
    return dict(edits)


def _check_node(node: Any, where: str) -> None:
    _strict("deviceNode", node, where)
    path = node.get("path")
    if not path:
        raise CDIError(f"{where}: invalid (empty) device path")
    if node.get("type") not in (None, "", "b", "c", "u", "p"):
        raise CDIError(f"{where}: device {path!r}: invalid type {node['type']!r}")
    permissions = node.get("permissions") or ""
    if permissions != "none" and set(permissions) - set("rwm"):
        raise CDIError(f"{where}: device {path!r}: invalid permissions {permissions!r}")


def _check_rdt(rdt: Any, where: str) -> None:
    _strict("intelRdt", rdt, where)
    closid = rdt.get("closID", "")
    if closid in (".", "..") or "/" in closid or "\n" in closid or len(closid) >= 4096:
        raise CDIError(f"{where}: invalid intelRdt closID {closid!r}")
