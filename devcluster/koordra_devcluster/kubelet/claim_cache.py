"""Claims that this kubelet has prepared, and for which pods: in memory, and on disk as `dra_manager_state`.

A second pod that shares a claim finds it prepared and triggers no call. Whether a claim *is* prepared is
known in memory only: after a restart the next pod that needs it makes the kubelet call the driver again,
which has to cope.
"""

from __future__ import annotations

import json
import threading
import zlib
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from koordra.errors import CheckpointError


@dataclass(frozen=True, slots=True)
class PreparedDevice:
    """One device of a driver's answer. No request names: the device belongs to every request."""

    pool: str
    device: str
    requests: tuple[str, ...] = ()
    cdi_devices: tuple[str, ...] = ()
    share_id: str | None = None


@dataclass(slots=True, eq=False)
class ClaimInfo:
    """A claim on this node: its users and, per driver, what Prepare answered. `lock`: held while drivers are
    called."""

    namespace: str
    name: str
    uid: str
    pods: list[str] = field(default_factory=list)
    drivers: dict[str, list[PreparedDevice]] = field(default_factory=dict)
    prepared: bool = False
    lock: threading.Lock = field(default_factory=threading.Lock)

    def cdi_devices(self, request: str | None) -> list[str]:
        """Ids for a container that references `request` (a main request), or the whole claim (None)."""
        found = [
            cdi
            for devices in self.drivers.values()
            for device in devices
            if not request
            or not device.requests
            or request in {one.partition("/")[0] for one in device.requests}
            for cdi in device.cdi_devices
        ]
        return list(dict.fromkeys(found))


class ClaimCache:
    """All claims of this node. Not thread-safe: the caller holds one lock around it."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._claims = _read(path)

    def get(self, namespace: str, name: str) -> ClaimInfo | None:
        return self._claims.get((namespace, name))

    def add(self, info: ClaimInfo) -> None:
        self._claims[(info.namespace, info.name)] = info

    def remove(self, info: ClaimInfo) -> None:
        self._claims.pop((info.namespace, info.name), None)

    def of_pod(self, pod_uid: str) -> list[ClaimInfo]:
        return [info for info in self._claims.values() if pod_uid in info.pods]

    def pods(self) -> set[str]:
        """uids of all pods that use a claim."""
        return {pod for info in self._claims.values() for pod in info.pods}

    def save(self) -> None:
        """Replaces the checkpoint in one step."""
        claims = [
            {"namespace": info.namespace, "name": info.name, "uid": info.uid, "pods": info.pods,
             "drivers": {driver: [asdict(one) for one in devices] for driver, devices in info.drivers.items()}}
            for info in self._claims.values()
        ]  # fmt: skip
        text = json.dumps(claims, sort_keys=True)
        temporary = self._path.with_suffix(".tmp")
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            temporary.write_text(json.dumps({"Checksum": zlib.crc32(text.encode()), "Data": text}))
            temporary.replace(self._path)
        except OSError as error:
            raise CheckpointError(f"{self._path}: cannot be written: {error.strerror}") from error


def _read(path: Path) -> dict[tuple[str, str], ClaimInfo]:
    if not path.exists():
        return {}
    try:
        wrapped: dict[str, Any] = json.loads(path.read_text())
        if zlib.crc32(wrapped["Data"].encode()) != wrapped["Checksum"]:
            raise CheckpointError(f"{path}: checkpoint is corrupted")
        return {(one["namespace"], one["name"]): _claim(one) for one in json.loads(wrapped["Data"])}
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise CheckpointError(f"{path}: cannot be read: {error}") from error


def _claim(saved: dict[str, Any]) -> ClaimInfo:
    drivers = {
        driver: [
            PreparedDevice(
                one["pool"], one["device"], tuple(one["requests"]), tuple(one["cdi_devices"]), one["share_id"]
            )
            for one in devices
        ]
        for driver, devices in saved["drivers"].items()
    }
    return ClaimInfo(saved["namespace"], saved["name"], saved["uid"], list(saved["pods"]), drivers)
