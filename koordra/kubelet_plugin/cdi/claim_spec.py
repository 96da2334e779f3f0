"""The CDI spec of one claim: what the container runtime changes in a container that gets one of the claim's
devices.

    <cdi dir>/koordra.io-claim_<claim uid>.json        kind koordra.io/claim
      containerEdits            once for any device of the claim: NVIDIA_VISIBLE_DEVICES=void and the claim's marker
      devices[]                 <uid>-<device>[-<first 8 of share id>]: nodes, libraries, environment, the device's marker

Each claim has its own file and its own device names, both with the uid: runtimes cache specs, so a name must
never be reused for another claim, and two files that define the same name cancel each other. Device numbers
are written out, so the runtime never reads the host's /dev; `hostPath` appears only where the machine is
below another root (tests, demo).

The markers carry the claim's nonce. The NRI hook learns from them which devices a container was really given,
which the runtime does not report; it replaces their values before the container starts, so that no container
can copy them.

Pure; prepare/claim_files.py writes the file.

**The rules** by which a CDI loader rejects a whole spec file, as far as they concern fields that koordra writes. The published JSON schema accepts unknown fields, empty edits and wrong versions; the Go loader
(tags.cncf.io/container-device-interface pkg/cdi, pkg/parser) does not, and drops the file with all its
devices, so that containers fail to start with "unresolvable CDI devices". koordra validates every spec by the
loader's rules before it is written:

- strict fields: those of the format that koordra does not write are refused too; a known `cdiVersion` that is at least what the
  fields used need (older runtimes reject newer versions than needed, so `minimum_version` is what is written);
- names: vendor and class start with a letter and end in a letter or digit, with `_ . -` between; a device
  name starts and ends with a letter or digit and may also have `:` between; class at most 63, vendor a DNS
  subdomain of at most 253;
- at least one device, no name twice, no device whose edits are empty;
- env `NAME=value`; device nodes with a path, type b c u p and permissions of r w m; mounts with both paths;
  hooks with a known name and a path.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, Final

from koordra.errors import CDIError
from koordra.kubelet_plugin.claims.claim_record import ClaimRecord, ContainerEdits
from koordra.node_state.claim_ref import is_claim_uid

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
}
_EDITS: Final[Mapping[str, Check]] = {
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


VENDOR: Final = "koordra.io"
CLASS: Final = "claim"
KIND: Final = f"{VENDOR}/{CLASS}"
MODE: Final = 0o644

_PREFIX: Final = f"{VENDOR}-{CLASS}_"
_SUFFIX: Final = ".json"


def file_name(uid: str) -> str:
    return f"{_PREFIX}{uid}{_SUFFIX}"


def claim_of_file(name: str) -> str | None:
    """The claim uid in one of our own file names; None for every other file of the directory."""
    if not (name.startswith(_PREFIX) and name.endswith(_SUFFIX)):
        return None
    uid = name.removeprefix(_PREFIX).removesuffix(_SUFFIX)
    return uid if is_claim_uid(uid) else None


def device_ids(record: ClaimRecord) -> tuple[str, ...]:
    """Fully qualified CDI names, in the order of the record's devices."""
    return tuple(f"{KIND}={record.cdi_name(index)}" for index in range(len(record.devices)))


def encode(record: ClaimRecord, *, root: Path) -> bytes:
    """The claim's spec file. `root` is the machine's: "/" outside of tests and the demo.

    Raises CDIError should the spec break a rule on which a runtime would drop the whole file.
    """
    document = spec(record, root=root)
    check(document)
    return json.dumps(document, indent=1).encode() + b"\n"


def spec(record: ClaimRecord, *, root: Path) -> dict[str, Any]:
    document: dict[str, Any] = {
        "cdiVersion": "",
        "kind": KIND,
        "devices": [
            {
                "name": record.cdi_name(index),
                "containerEdits": _edits(
                    device.edits + ContainerEdits(env=((f"{record.ref.marker}_{index}", record.nonce),)),
                    root=root,
                ),
            }
            for index, device in enumerate(record.devices)
        ],
        "containerEdits": _edits(
            ContainerEdits(env=(("NVIDIA_VISIBLE_DEVICES", "void"), (record.ref.marker, record.nonce))),
            root=root,
        ),
    }
    document["cdiVersion"] = minimum_version(document)
    return document


def _edits(edits: ContainerEdits, *, root: Path) -> dict[str, Any]:
    found: dict[str, Any] = {
        "env": [f"{name}={value}" for name, value in edits.env],
        "deviceNodes": [
            {
                "path": node.path,
                **({} if root == Path("/") else {"hostPath": str(root / node.path.lstrip("/"))}),
                "type": node.type,
                "major": node.major,
                "minor": node.minor,
                "permissions": "rw",
            }
            for node in edits.device_nodes
        ],
        "mounts": [
            {
                "hostPath": mount.host_path,
                "containerPath": mount.container_path,
                "options": list(mount.options),
            }
            for mount in edits.mounts
        ],
        "hooks": [
            {
                "hookName": hook.name,
                "path": hook.path,
                **({"args": list(hook.arguments)} if hook.arguments else {}),
            }
            for hook in edits.hooks
        ],
    }
    return {field: entries for field, entries in found.items() if entries}
