"""What the kubelet plugin stored for the hook, read from its state directory.

    prepared/<claim uid>.json     one prepared claim, schema koordra.io/prepared/v1
    guarded.json                  every device node of a GPU or NIC of this node, schema koordra.io/guarded/v1
    network/<claim uid>.json      what its pod gets of network interfaces, schema koordra.io/network/v1
    network/attached/<claim uid>.json   the pod that has a claim's network, schema koordra.io/network-attached/v1

The plugin (the last: the hook itself, with --pod-network) writes them atomically, with mode 0600. They decide what a container may open, so they are believed
only when they are regular files (no symbolic links) of this process's own user or root's, and have exactly
the known fields; anything else is a CheckpointError, on which the hook refuses what depends on them. A
changed format has a new schema name.

prepared/<claim uid>.json:

    {"schema": "koordra.io/prepared/v1",
     "claim": {"namespace": "...", "name": "...", "uid": "..."},
     "nonce": "<32 hex digits>", "marker": "KOORDRA_CLAIM_<UID>",        UID in capitals, "_" for "-"
     "devices": [{"request": "...", "device": "...", "type": "gpu|mig|nic|vf", "shareID": null | "...",
                  "cdiDevices": ["koordra.io/claim=..."], "uuid": null | "...", "ibDevice": null | "...",
                  "netdev": null | "...", "numaNode": null | 0, "cpus": null | "0-55",
                  "deviceNodes": [{"path": "/dev/nvidia0", "type": "c", "major": 195, "minor": 0}],
                  "env": {"NAME": "value"}}],
     "memlock": true | false}

guarded.json:

    {"schema": "koordra.io/guarded/v1", "node": "...",
     "devices": [{"name": "...", "type": "gpu|nic", "nodes": [<device node>]}],
     "control": [<device node>]}                                         nvidiactl, nvidia-uvm, rdma_cm, ...

network/<claim uid>.json, of whose plans only the interface's name matters here, and whether there is one:

    {"schema": "koordra.io/network/v1", "claim": {"namespace": "...", "name": "...", "uid": "..."}, "pods": [...],
     "devices": [{"device": "...", "plan": {"hostInterface": "..." | "", "interface": "...", ...}}]}

network/attached/<claim uid>.json, of which only uid and pod matter here:

    {"schema": "koordra.io/network-attached/v1", "uid": "...", "pod": "<pod uid>", "sandbox": "...", "netns": "...",
     "devices": [...]}
"""

from __future__ import annotations

import json
import os
import re
import stat
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TypeVar

from koordra.api import names
from koordra.errors import CheckpointError
from koordra.nri.hook.oci import DeviceNode

PREPARED_SCHEMA: Final = "koordra.io/prepared/v1"
GUARDED_SCHEMA: Final = "koordra.io/guarded/v1"
NETWORK_SCHEMA: Final = "koordra.io/network/v1"
ATTACHED_SCHEMA: Final = "koordra.io/network-attached/v1"
MARKER_PREFIX: Final = "KOORDRA_CLAIM_"

GPU_TYPES: Final = frozenset({names.TYPE_GPU, names.TYPE_MIG})
NIC_TYPES: Final = frozenset({names.TYPE_NIC, names.TYPE_VF})

_LARGEST_FILE: Final = 4 << 20
_CACHED_FILES: Final = 1024

Value = TypeVar("Value")


@dataclass(frozen=True, slots=True)
class PreparedDevice:
    """One device of a prepared claim, and what its CDI edits put into a container."""

    request: str
    device: str
    type: str
    share_id: str | None
    cdi_devices: tuple[str, ...]
    uuid: str | None
    ib_device: str | None
    netdev: str | None
    numa_node: int | None
    cpus: str | None
    nodes: tuple[DeviceNode, ...]
    env: tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class PreparedClaim:
    """A claim that the kubelet plugin has prepared. `nonce` is known to the node and to the claim's CDI file
    only."""

    namespace: str
    name: str
    uid: str
    nonce: str
    marker: str
    devices: tuple[PreparedDevice, ...]
    memlock: bool

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}"


@dataclass(frozen=True, slots=True)
class AttachedNetwork:
    """Where a claim's network is: `pod` is the uid of the pod that has it, or is about to."""

    claim: str
    pod: str


@dataclass(frozen=True, slots=True)
class PlannedNetwork:
    """The interfaces that a claim's pod is to have: device name -> name of the interface in the pod."""

    claim: str
    interfaces: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class GuardedDevice:
    """A GPU or NIC of this node, with all device nodes that lead to it."""

    name: str
    type: str
    nodes: tuple[DeviceNode, ...]


@dataclass(frozen=True, slots=True)
class Guarded:
    """The device nodes that a container may open only by a claim. `control` belongs to no single device."""

    node: str
    devices: tuple[GuardedDevice, ...]
    control: tuple[DeviceNode, ...]


def marker_of(uid: str) -> str:
    """The environment variable by which a claim's CDI edits are recognised."""
    return MARKER_PREFIX + uid.upper().replace("-", "_")


Network = TypeVar("Network", AttachedNetwork, PlannedNetwork)


class NodeState:
    """The plugin's state directory. A file is read again when it was replaced; unchanged ones cost one
    stat."""

    def __init__(self, state_dir: Path, *, node_name: str) -> None:
        self._state_dir = state_dir
        self._node_name = node_name
        self._cache: dict[Path, tuple[tuple[int, int, int], Any]] = {}

    def claim(self, marker: str) -> PreparedClaim | None:
        """The prepared claim whose marker this is; None when there is none. CheckpointError: its record is
        unusable."""
        uid = marker.removeprefix(MARKER_PREFIX).lower().replace("_", "-")
        if not re.fullmatch(r"[0-9a-z](?:[0-9a-z-]{0,126}[0-9a-z])?", uid):
            return None
        claim = self._read(self._state_dir / "prepared" / f"{uid}.json", claim_from)
        if claim is not None and (claim.uid != uid or claim.marker != marker):
            raise CheckpointError(
                f"prepared/{uid}.json is about claim {claim.uid} with marker {claim.marker}"
            )
        return claim

    def attached(self, uid: str) -> AttachedNetwork | None:
        """Where the claim's network is; None while it is in no pod. CheckpointError: its record is unusable."""
        return self._of_claim(uid, "network/attached", attached_from)

    def planned(self, uid: str) -> PlannedNetwork | None:
        """The interfaces that the claim's pod is to have; None for a claim without. CheckpointError: unusable."""
        return self._of_claim(uid, "network", planned_from)

    def _of_claim(self, uid: str, folder: str, decode: Callable[[Any], Network]) -> Network | None:
        found = self._read(self._state_dir / folder / f"{uid}.json", decode)
        if found is not None and found.claim != uid:
            raise CheckpointError(f"{folder}/{uid}.json is about claim {found.claim}")
        return found

    def guarded(self) -> Guarded | None:
        """The guarded device nodes; None while the plugin has not written them. CheckpointError: unusable."""
        guarded = self._read(self._state_dir / "guarded.json", guarded_from)
        if guarded is not None and guarded.node != self._node_name:
            raise CheckpointError(f"guarded.json is about node {guarded.node}, not {self._node_name}")
        return guarded

    def _read(self, path: Path, decode: Callable[[Any], Value]) -> Value | None:
        try:
            cached = self._cache.get(path)
            if cached is not None and cached[0] == _version(path.lstat()):
                value: Value = cached[1]
                return value
            text, version = _trusted_text(path)
        except FileNotFoundError:
            self._cache.pop(path, None)
            return None
        except OSError as error:
            raise CheckpointError(f"{path.name} cannot be read: {error.strerror or error}") from error
        try:
            value = decode(json.loads(text))
        except (ValueError, RecursionError) as error:
            raise CheckpointError(f"{path.name} is unusable: {error}") from error
        if len(self._cache) >= _CACHED_FILES:
            self._cache.clear()
        self._cache[path] = (version, value)
        return value


def _version(status: os.stat_result) -> tuple[int, int, int]:
    return status.st_ino, status.st_mtime_ns, status.st_size


def _trusted_text(path: Path) -> tuple[bytes, tuple[int, int, int]]:
    """The file's content and version; CheckpointError when somebody else could have put it there."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    with os.fdopen(descriptor, "rb") as file:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            raise CheckpointError(f"{path.name} is not a regular file")
        if status.st_uid not in (0, os.geteuid()) or status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
            raise CheckpointError(f"{path.name} belongs to, or can be written by, another user")
        if status.st_size > _LARGEST_FILE:
            raise CheckpointError(f"{path.name} has {status.st_size} bytes; {_LARGEST_FILE} is the most")
        return file.read(_LARGEST_FILE), _version(status)


# ------------------------------------------------------------------------------------------ strict decoding


def claim_from(document: Any) -> PreparedClaim:
    """A prepared claim from decoded JSON; ValueError names the field that is not as described above."""
    record = _fields(document, "record", "schema claim nonce marker devices memlock")
    _same(record["schema"], PREPARED_SCHEMA, "schema")
    claim = _fields(record["claim"], "claim", "namespace name uid")
    uid = _text(claim["uid"], "claim.uid")
    nonce = _text(record["nonce"], "nonce")
    if not re.fullmatch(r"[0-9a-f]{32}", nonce):
        raise ValueError("nonce: not 32 hexadecimal digits")
    _same(record["marker"], marker_of(uid), "marker")
    return PreparedClaim(
        namespace=_text(claim["namespace"], "claim.namespace"),
        name=_text(claim["name"], "claim.name"),
        uid=uid,
        nonce=nonce,
        marker=marker_of(uid),
        devices=tuple(
            _device(item, f"devices[{n}]") for n, item in enumerate(_list(record["devices"], "devices"))
        ),
        memlock=_typed(record["memlock"], bool, "memlock"),
    )


def attached_from(document: Any) -> AttachedNetwork:
    """Where a network is, from decoded JSON; ValueError names the field that is not as described above."""
    record = _fields(document, "record", "schema uid pod sandbox netns devices")
    _same(record["schema"], ATTACHED_SCHEMA, "schema")
    return AttachedNetwork(claim=_text(record["uid"], "uid"), pod=_text(record["pod"], "pod"))


def planned_from(document: Any) -> PlannedNetwork:
    """The interfaces that a pod is to have, from decoded JSON; ValueError names the field that is not as described above."""
    record = _fields(document, "record", "schema claim pods devices")
    _same(record["schema"], NETWORK_SCHEMA, "schema")
    claim = _fields(record["claim"], "claim", "namespace name uid")
    interfaces = {}
    for n, item in enumerate(_list(record["devices"], "devices")):
        entry = _fields(item, f"devices[{n}]", "device plan")
        plan: dict[str, Any] = _typed(entry["plan"], dict, f"devices[{n}].plan")
        if _typed(plan.get("hostInterface"), str, f"devices[{n}].plan.hostInterface"):
            interface = _text(plan.get("interface"), f"devices[{n}].plan.interface")
            interfaces[_text(entry["device"], f"devices[{n}].device")] = interface
    return PlannedNetwork(claim=_text(claim["uid"], "claim.uid"), interfaces=interfaces)


def guarded_from(document: Any) -> Guarded:
    """The guarded device nodes from decoded JSON; ValueError names the field that is not as described
    above."""
    record = _fields(document, "record", "schema node devices control")
    _same(record["schema"], GUARDED_SCHEMA, "schema")
    devices = []
    for n, item in enumerate(_list(record["devices"], "devices")):
        entry = _fields(item, f"devices[{n}]", "name type nodes")
        devices.append(
            GuardedDevice(
                name=_text(entry["name"], f"devices[{n}].name"),
                type=_one_of(entry["type"], {names.TYPE_GPU, names.TYPE_NIC}, f"devices[{n}].type"),
                nodes=_nodes(entry["nodes"], f"devices[{n}].nodes"),
            )
        )
    return Guarded(
        node=_text(record["node"], "node"),
        devices=tuple(devices),
        control=_nodes(record["control"], "control"),
    )


_DEVICE_FIELDS: Final = (
    "request device type shareID cdiDevices uuid ibDevice netdev numaNode cpus deviceNodes env"
)


def _device(item: Any, where: str) -> PreparedDevice:
    entry = _fields(item, where, _DEVICE_FIELDS)
    env = _typed(entry["env"], dict, f"{where}.env")
    return PreparedDevice(
        request=_text(entry["request"], f"{where}.request"),
        device=_text(entry["device"], f"{where}.device"),
        type=_one_of(entry["type"], GPU_TYPES | NIC_TYPES, f"{where}.type"),
        share_id=_optional(entry["shareID"], str, f"{where}.shareID"),
        cdi_devices=tuple(
            _text(name, f"{where}.cdiDevices") for name in _list(entry["cdiDevices"], f"{where}.cdiDevices")
        ),
        uuid=_optional(entry["uuid"], str, f"{where}.uuid"),
        ib_device=_optional(entry["ibDevice"], str, f"{where}.ibDevice"),
        netdev=_optional(entry["netdev"], str, f"{where}.netdev"),
        numa_node=_optional(entry["numaNode"], int, f"{where}.numaNode"),
        cpus=_optional(entry["cpus"], str, f"{where}.cpus"),
        nodes=_nodes(entry["deviceNodes"], f"{where}.deviceNodes"),
        env=tuple((name, _typed(value, str, f"{where}.env[{name}]")) for name, value in env.items()),
    )


def _nodes(items: Any, where: str) -> tuple[DeviceNode, ...]:
    nodes = []
    for item in _list(items, where):
        entry = _fields(item, where, "path type major minor")
        path = _text(entry["path"], f"{where}.path")
        if not path.startswith("/"):
            raise ValueError(f"{where}.path: {path!r} is not absolute")
        kind = _one_of(entry["type"], {"c", "b"}, f"{where}.type")
        major = _typed(entry["major"], int, f"{where}.major")
        nodes.append(DeviceNode(path, kind, major, _typed(entry["minor"], int, f"{where}.minor")))
    return tuple(nodes)


def _fields(item: Any, where: str, expected: str) -> Mapping[str, Any]:
    """A JSON object with exactly the expected fields."""
    found: dict[str, Any] = _typed(item, dict, where)
    for name in sorted(found.keys() ^ set(expected.split())):
        raise ValueError(f"{where}.{name}: {'not a field of this schema' if name in found else 'missing'}")
    return found


def _typed(item: Any, kind: type[Value], where: str) -> Value:
    if not isinstance(item, kind) or (kind is int and isinstance(item, bool)):
        raise ValueError(f"{where}: expected {kind.__name__}, found {type(item).__name__}")
    return item


def _text(item: Any, where: str) -> str:
    if not _typed(item, str, where):
        raise ValueError(f"{where}: empty")
    return str(item)


def _optional(item: Any, kind: type[Value], where: str) -> Value | None:
    return None if item is None else _typed(item, kind, where)


def _list(item: Any, where: str) -> list[Any]:
    return _typed(item, list, where)


def _one_of(item: Any, allowed: set[str] | frozenset[str], where: str) -> str:
    if _typed(item, str, where) not in allowed:
        raise ValueError(f"{where}: {item!r} is none of {', '.join(sorted(allowed))}")
    return str(item)


def _same(item: Any, expected: str, where: str) -> None:
    if item != expected:
        raise ValueError(f"{where}: {item!r}, expected {expected!r}")
