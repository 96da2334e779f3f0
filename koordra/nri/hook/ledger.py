"""The ledger: what the hook granted to which container, for comparison later.

    <state>/nri-granted/<container id>.json      schema koordra.io/nri-granted/v1, mode 0600

Only containers that hold devices have an entry; it is written in CreateContainer and removed with the
container. A container whose marker says `granted` and that has no entry was never adjusted by a hook: it set
the value itself. Entries survive the hook's process, not the machine: nothing is fsynced, since no container
survives a reboot. If an entry cannot be written the container still starts; this process keeps it in memory,
and `flush` retries: without the entry the next process would report the container as forged. The same goes
for an entry that the disk does not give: `problem` says so until a later `flush` has read it.

Killed before the entry is written, the hook leaves a container that no hook saw; killed between the entry and
the answer, one that has an entry and none of what it says. Verification finds both (verify.drift).
"""

from __future__ import annotations

import contextlib
import json
import re
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import astuple, dataclass
from pathlib import Path
from typing import Any, Final

from koordra.errors import CheckpointError
from koordra.logs import get_logger
from koordra.node_state.disk import TEMPORARY, Disk, NotAFile
from koordra.node_state.granted_claims import DIRECTORY, SCHEMA
from koordra.node_state.prepared_claim import DeviceGuard
from koordra.node_state.reader import trusted
from koordra.node_state.strict_json import load
from koordra.nri.hook.grants import Grants
from koordra.nri.hook.oci import Container, Mount
from koordra.nri.hook.ungranted_access import control_nodes

_ID: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,127}")
_UNUSABLE: Final = (OSError, ValueError, KeyError, TypeError, AttributeError, OverflowError, CheckpointError)
"""What comes of an entry that is no file, or says nothing sensible: the hook starts without it."""
_SETTLED_S: Final = 60.0
"""An entry younger than this is kept although the runtime did not list its container, which may still be
created."""

log = get_logger(__name__)


@dataclass(frozen=True, slots=True)
class GrantedDevice:
    """One device that the container holds; without a claim's name where Koordinator's scheduler gave it."""

    claim_namespace: str
    claim_name: str
    claim_uid: str
    device: str
    type: str
    share_id: str | None


@dataclass(frozen=True, slots=True)
class Granted:
    """What one container was granted: the variables set by the hook and the device numbers that it may open,
    control nodes included. `mounts` are those of the isolation backend: library and limits. `confined`: it
    can open no others; `container`: its namespace, its pod and its name, for people. `asked`: how much of a
    device it holds, where no claim says so (Grant)."""

    pod_uid: str
    env: tuple[tuple[str, str], ...]
    numbers: frozenset[tuple[str, int, int]]
    devices: tuple[GrantedDevice, ...]
    memlock: bool = False
    mounts: tuple[Mount, ...] = ()
    confined: bool = True
    container: tuple[str, str, str] = ("", "", "")
    asked: tuple[tuple[str, tuple[tuple[str, int], ...]], ...] = ()


def granted_of(
    container: Container,
    grants: Grants,
    guarded: DeviceGuard | None,
    *,
    env: tuple[tuple[str, str], ...] = (),
    mounts: tuple[Mount, ...] = (),
    confined: bool = True,
) -> Granted:
    """What the grants give the container, with the control nodes that its devices need."""
    nodes = grants.nodes | control_nodes(guarded, grants)
    devices = [
        GrantedDevice(ref.namespace, ref.name, ref.uid, device.device, device.type, device.share_id)
        for ref, device in [(grant.claim.ref, grant.device) for grant in grants.held]
    ]
    numbers = frozenset(node.number for node in nodes)
    return Granted(
        container.pod_uid,
        env,
        numbers,
        tuple(devices),
        grants.memlock,
        mounts,
        confined,
        (container.namespace, container.pod, container.name),
        tuple((grant.device.device, grant.asked) for grant in grants.held if grant.asked),
    )


class Ledger:
    """The entries of this node. Safe to use from several threads. `runs` returns whether a container still
    exists although the runtime does not list it (after a restart it omits those whose state it has not read
    yet)."""

    def __init__(
        self, state_dir: Path, *, runs: Callable[[str], bool] = lambda _id: False, disk: Disk | None = None
    ) -> None:
        self._folder = state_dir / DIRECTORY
        self._disk = disk or Disk()
        self._runs = runs
        self._unread: dict[str, str] = {}
        """Why the entry of a container could not be read; "": those of all that have none."""
        self._unwritten: set[str] = set()
        self._lock = threading.Lock()
        self._entries: dict[str, Granted] = {}
        self._since: dict[str, float] = {}
        self._load()
        for left in self._files(TEMPORARY):  # by a hook that was killed while it wrote
            with contextlib.suppress(OSError):
                self._disk.unlink(left)

    def add(self, container_id: str, granted: Granted) -> None:
        """Add an entry, in memory and if possible on disk."""
        if not _ID.fullmatch(container_id):
            return
        with self._lock:
            self._entries[container_id] = granted
            self._since[container_id] = time.monotonic()
        self._write(container_id, granted)

    def problem(self, container_id: str) -> str:
        """Why a container without an entry may have one all the same; empty where it has none."""
        return self._unread.get(container_id) or self._unread.get("", "")

    def flush(self) -> None:
        """Write and read what could not be written and read before."""
        if self._unread:
            self._unread = {}
            self._load()
        with self._lock:
            waiting = [(each, self._entries[each]) for each in self._unwritten & self._entries.keys()]
        for container_id, granted in waiting:
            self._write(container_id, granted)

    def _write(self, container_id: str, granted: Granted) -> None:
        path = self._folder / f"{container_id}.json"
        try:
            self._disk.replace(path, json.dumps(_document(granted)).encode(), mode=0o600, durable=False)
        except OSError as error:
            log.warning("ledger_entry_not_written", container=container_id, error=str(error))
            with self._lock:
                self._unwritten.add(container_id)
            return
        with self._lock:
            self._unwritten.discard(container_id)
            forgotten = container_id not in self._entries
        if forgotten:  # removed while it was being written
            with contextlib.suppress(OSError):
                self._disk.unlink(path)

    def get(self, container_id: str) -> Granted | None:
        with self._lock:
            return self._entries.get(container_id)

    def holds_claim(self, pod_uid: str) -> bool:
        with self._lock:
            return any(
                entry.pod_uid == pod_uid and any(device.claim_name for device in entry.devices)
                for entry in self._entries.values()
            )

    def remove(self, container_id: str) -> None:
        with self._lock:
            known = self._entries.pop(container_id, None)
            self._since.pop(container_id, None)
            self._unwritten.discard(container_id)
        if known is not None:
            with contextlib.suppress(OSError):
                self._disk.unlink(self._folder / f"{container_id}.json")

    def retain(self, existing: Iterable[str]) -> None:
        there = set(existing)
        now = time.monotonic()
        with self._lock:
            gone = [
                each
                for each in self._entries.keys() - there
                if now - self._since.get(each, -_SETTLED_S) >= _SETTLED_S
            ]
        for container_id in gone:
            if not self._runs(container_id):
                self.remove(container_id)

    def _load(self) -> None:
        """Read the entries that are not known."""
        for path in self._files(".json"):
            if path.stem in self._entries:
                continue
            try:
                entry = _entry(load(trusted(path)[0]))
            except _UNUSABLE as error:
                log.warning("ledger_entry_not_read", file=path.name, error=str(error))
                if isinstance(error, OSError) and not isinstance(error, (NotAFile, FileNotFoundError)):
                    self._unread[path.stem] = f"{DIRECTORY}/{path.name} cannot be read: {error.strerror}"
                continue
            with self._lock:
                self._entries.setdefault(path.stem, entry)

    def _files(self, suffix: str) -> list[Path]:
        try:
            self._folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            return [self._folder / name for name in self._disk.names(self._folder) if name.endswith(suffix)]
        except (FileExistsError, NotADirectoryError) as error:
            log.warning("ledger_entry_not_read", error=str(error))
        except OSError as error:
            log.warning("ledger_entry_not_read", error=str(error))
            self._unread[""] = f"{DIRECTORY} cannot be read: {error.strerror}"
        return []


def _document(granted: Granted) -> dict[str, Any]:
    return {
        "schema": SCHEMA,
        "podUID": granted.pod_uid,
        "env": dict(granted.env),
        "numbers": sorted(granted.numbers),
        "devices": [list(astuple(device)) for device in granted.devices],
        "memlock": granted.memlock,
        "mounts": [[mount.source, mount.destination, mount.read_only] for mount in granted.mounts],
        "confined": granted.confined,
        "container": list(granted.container),
        "asked": {device: dict(amounts) for device, amounts in granted.asked},
    }


def _entry(document: Any) -> Granted:
    if document["schema"] != SCHEMA:
        raise ValueError(f"schema {document['schema']!r}")
    return Granted(
        pod_uid=str(document["podUID"]),
        env=tuple((str(name), str(value)) for name, value in document["env"].items()),
        numbers=frozenset((str(kind), int(major), int(minor)) for kind, major, minor in document["numbers"]),
        devices=tuple(GrantedDevice(*fields) for fields in document["devices"]),
        memlock=bool(document["memlock"]),
        mounts=tuple(
            Mount(str(source), str(destination), bind=True, read_only=bool(read_only))
            for source, destination, read_only in document["mounts"]
        ),
        # An earlier koordra wrote none of these.
        confined=bool(document.get("confined", True)),
        container=_names(document.get("container", ("", "", ""))),
        asked=tuple(
            (str(device), tuple((str(name), int(amount)) for name, amount in amounts.items()))
            for device, amounts in document.get("asked", {}).items()
        ),
    )


def _names(written: Any) -> tuple[str, str, str]:
    namespace, pod, name = map(str, written)
    return namespace, pod, name
