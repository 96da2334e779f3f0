"""CDI as the runtime reads it: a strict loader and the injection into a container's spec.

Every *.json and *.yaml of the directories is loaded (no recursion). A file that breaks a rule is refused as a
whole and its problem remembered; the others are not affected. A device id that two files of the same
directory declare is dropped from both: nobody can say which was meant. A directory named later wins over an
earlier one.

Injection takes fully qualified ids `vendor/class=device`. One id that cannot be resolved fails the container.
The edits of a file go in once, before those of its devices. Environment variables replace, mounts replace by
destination, every block or character node brings its allow rule; a node without type and numbers is looked at
on the host when the container is made.

Rules as in the Go package tags.cncf.io/container-device-interface (CDI 1.1.0).
"""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from koordra.errors import CDIError, InvalidManifest
from koordra.yaml_text import read_document
from koordra_devcluster.container_runtime.cdi_rules import Edits, check_spec
from koordra_devcluster.container_runtime.oci import ContainerSpec, DeviceNode, Hook, Mount

HostDevice = tuple[str, int, int]
"""(type, major, minor)."""

_STAND_IN_LIMIT: Final = 64


@dataclass(frozen=True, slots=True)
class Device:
    """One resolvable device: its own edits and those of its file."""

    name: str
    file: Path
    edits: Edits
    file_edits: Edits


@dataclass(frozen=True, slots=True)
class Loaded:
    """What the directories hold: devices by id, problems by file."""

    devices: Mapping[str, Device] = field(default_factory=dict)
    problems: Mapping[Path, str] = field(default_factory=dict)


def load(directories: Sequence[Path]) -> Loaded:
    """Read all spec files; later directories win."""
    devices: dict[str, Device] = {}
    problems: dict[Path, str] = {}
    for directory in directories:
        found: dict[str, Device] = {}
        dropped: set[str] = set()
        for path in sorted(directory.glob("*")) if directory.is_dir() else ():
            if path.suffix not in (".json", ".yaml"):
                continue
            try:
                for name, device in read_spec(path).items():
                    if name in found:
                        dropped.add(name)
                        problems[path] = f"conflicting device {name!r} (specs {found[name].file}, {path})"
                    found[name] = device
            except CDIError as error:
                problems[path] = str(error)
        devices |= found
        for name in dropped:
            del devices[name]
    return Loaded(devices, problems)


def read_spec(path: Path) -> dict[str, Device]:
    """The devices of one file by qualified id. Raises CDIError."""
    try:
        text = path.read_text(encoding="utf-8")
        spec = (
            json.loads(text, object_pairs_hook=_no_duplicates)
            if path.suffix == ".json"
            else read_document(text, source=str(path))
        )
    except (OSError, ValueError, InvalidManifest) as error:
        raise CDIError(f"{path}: cannot be read: {error}") from error
    try:
        checked = check_spec(spec)
    except CDIError as error:
        raise CDIError(f"{path}: {error}") from error
    return {
        f"{checked.kind}={name}": Device(name, path, edits, checked.edits)
        for name, edits in checked.devices.items()
    }


def _no_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in pairs:
        if key in found:
            raise ValueError(f"key {key!r} is there twice")
        found[key] = value
    return found


def inject(
    spec: ContainerSpec, names: Iterable[str], loaded: Loaded, *, host_device: Callable[[Path], HostDevice]
) -> None:
    """Work the devices into the spec. Raises CDIError when one cannot be resolved or looked at."""
    wanted = list(dict.fromkeys(names))
    unresolved = [name for name in wanted if name not in loaded.devices]
    if unresolved:
        raise CDIError(f"unresolvable CDI devices {', '.join(unresolved)}")
    files: set[Path] = set()
    for name in wanted:
        device = loaded.devices[name]
        if device.file not in files:
            files.add(device.file)
            _apply(spec, device.file_edits, host_device)
        _apply(spec, device.edits, host_device)


def _apply(spec: ContainerSpec, edits: Edits, host_device: Callable[[Path], HostDevice]) -> None:
    for variable in edits.get("env") or ():
        name, _, value = variable.partition("=")
        spec.env[name] = value
    for node in edits.get("deviceNodes") or ():
        kind, major, minor = _numbers(node, host_device)
        access = node.get("permissions") or "rwm"
        found = DeviceNode(
            node["path"], kind, major, minor, node.get("fileMode"), node.get("uid"), node.get("gid")
        )
        spec.add_device(found, "" if access == "none" else access)
    for network in edits.get("netDevices") or ():
        spec.net_devices[network["hostInterfaceName"]] = network["name"]
    for mount in edits.get("mounts") or ():
        options = tuple(mount.get("options") or ())
        spec.add_mount(Mount(mount["containerPath"], mount["hostPath"], mount.get("type") or "bind", options))
    for hook in edits.get("hooks") or ():
        spec.hooks.append(Hook(hook["hookName"], hook["path"], tuple(hook.get("args") or ())))
    if edits.get("intelRdt"):
        spec.resources["intelRdt"] = edits["intelRdt"]
    for gid in edits.get("additionalGids") or ():
        if gid and gid not in spec.additional_gids:
            spec.additional_gids.append(gid)


def _numbers(node: Mapping[str, Any], host_device: Callable[[Path], HostDevice]) -> HostDevice:
    kind, major, minor = node.get("type") or "", node.get("major") or 0, node.get("minor") or 0
    if kind and (major or kind == "p"):
        return kind, major, minor
    found = host_device(Path(node.get("hostPath") or node["path"]))
    if kind and kind != found[0]:
        raise CDIError(f"CDI device ({node['path']}), host type mismatch ({kind}, {found[0]})")
    return found


def host_device(path: Path) -> HostDevice:
    """Type and numbers of a device node, links not followed.

    A regular file with the text `c MAJOR:MINOR` stands for a node of a machine that is made up. Raises
    CDIError.
    """
    try:
        found = path.lstat()
        if stat.S_ISREG(found.st_mode) and found.st_size <= _STAND_IN_LIMIT:
            return stand_in(path.read_text(encoding="ascii"))
    except (OSError, ValueError) as error:
        raise CDIError(f"failed to stat CDI host device {str(path)!r}: {error}") from error
    for test, kind in ((stat.S_ISCHR, "c"), (stat.S_ISBLK, "b")):
        if test(found.st_mode):
            return kind, os.major(found.st_rdev), os.minor(found.st_rdev)
    if stat.S_ISFIFO(found.st_mode):
        return "p", 0, 0
    raise CDIError(f"{path} is not a device node")


def stand_in(text: str) -> HostDevice:
    """`c 195:0` -> ("c", 195, 0). Raises ValueError."""
    kind, _, numbers = text.strip().partition(" ")
    major, _, minor = numbers.partition(":")
    if kind not in ("b", "c"):
        raise ValueError(f"{text!r} does not describe a device node")
    return kind, int(major), int(minor)
