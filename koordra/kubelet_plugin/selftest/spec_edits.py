"""What a CDI spec changes in a container, read from the file that Prepare has written, as a runtime reads
it: the edits of the whole file, then those of each device that is asked for
(tags.cncf.io/container-device-interface).

The self test reads the file and not the record it was made from, so that what is tried is what a runtime
gets."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from koordra.api.objects import Object
from koordra.errors import CDIError
from koordra.kubelet_plugin.claims.claim_record import NO_EDITS, ContainerEdits, Mount
from koordra.topology.location import DeviceNode


def edits_of(spec: Object, device_ids: Iterable[str]) -> ContainerEdits:
    """The edits for these fully qualified devices. Raises CDIError for a device that the file has not."""
    devices = {f"{spec.get('kind')}={device.get('name')}": device for device in spec.get("devices") or ()}
    found = _edits(spec.get("containerEdits") or {})
    for name in device_ids:
        if name not in devices:
            raise CDIError(f"unresolvable CDI device {name}: the spec has {', '.join(devices) or 'none'}")
        found += _edits(devices[name].get("containerEdits") or {})
    return found


def hooks_of(spec: Object, device_ids: Iterable[str]) -> tuple[Object, ...]:
    """The hooks of the file and of these devices, once each, in order."""
    wanted = set(device_ids)
    parts = [
        spec,
        *(one for one in spec.get("devices") or () if f"{spec.get('kind')}={one.get('name')}" in wanted),
    ]
    found: list[Object] = []
    for part in parts:
        for hook in (part.get("containerEdits") or {}).get("hooks") or ():
            if hook not in found:
                found.append(hook)
    return tuple(found)


def _edits(edits: Any) -> ContainerEdits:
    if not edits:
        return NO_EDITS
    return ContainerEdits(
        env=tuple(
            (name, value) for name, _, value in (each.partition("=") for each in edits.get("env") or ())
        ),
        device_nodes=tuple(
            DeviceNode(path=node["path"], major=node["major"], minor=node["minor"])
            for node in edits.get("deviceNodes") or ()
        ),
        mounts=tuple(
            Mount(mount["hostPath"], mount["containerPath"], tuple(mount.get("options") or ()))
            for mount in edits.get("mounts") or ()
        ),
    )
