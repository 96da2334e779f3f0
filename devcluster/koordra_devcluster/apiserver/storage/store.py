"""Objects with one monotonic revision, on disk before the writer hears of it.

    write:  lock ─> compute the new object from the current one ─> revision + 1 ─> sqlite commit (WAL)
            ─> memory ─> watchers
    read:   memory only

The revision is every object's resourceVersion and survives restarts together with the objects, in one
transaction: whoever got an answer will find what it says, also after `kill -9`. (A power cut may lose the
last writes: WAL without fsync per commit. This is a development double.)

The history that watches resume from is kept in memory only, a bounded number of changes per resource; older
revisions get 410 Gone, as does everything before a restart.

Objects are shared between threads and never changed in place: `mutate` callers build a new one.
"""

from __future__ import annotations

import json
import sqlite3
import threading
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from queue import SimpleQueue
from typing import Any, Final

from koordra.api.objects import Object
from koordra.errors import ClusterError
from koordra_devcluster.apiserver import status

HISTORY: Final = 5000
"""Changes kept per resource for watches to resume from."""

Key = tuple[str, str]
"""(namespace or "", name)."""


@dataclass(slots=True)
class Entry:
    """A stored object and, once somebody asked for it, its JSON."""

    object: Object
    _encoded: bytes | None = None

    @property
    def encoded(self) -> bytes:
        if self._encoded is None:
            self._encoded = encode(self.object)
        return self._encoded


def encode(value: Any) -> bytes:
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False).encode()


@dataclass(frozen=True, slots=True)
class Change:
    """One write: `old` is None for a creation; `type` is ADDED, MODIFIED or DELETED (then `new` is the last
    state)."""

    revision: int
    type: str
    old: Entry | None
    new: Entry


@dataclass(slots=True)
class _Resource:
    """One resource's objects, its recent changes and who follows them."""

    floor: int
    objects: dict[Key, Entry] = field(default_factory=dict)
    history: deque[Change] = field(default_factory=deque)
    followers: list[SimpleQueue[Change | None]] = field(default_factory=list)


class Store:
    """The state of the cluster in one sqlite file, or in memory without a path.

    `patience`: seconds to wait for an earlier process to let go of the file.
    """

    def __init__(self, path: Path | None, *, patience: float = 5.0) -> None:
        self._lock = threading.RLock()
        self._database = _open(path, patience)
        self._revision = self._oldest = int(self.setting("revision", "1"))
        self._resources: dict[str, _Resource] = {}
        for resource, namespace, name, text in self._database.execute(
            "SELECT resource, namespace, name, object FROM objects"
        ):
            self._resource(resource).objects[(namespace, name)] = Entry(json.loads(text), text.encode())

    @property
    def revision(self) -> int:
        return self._revision

    def setting(self, name: str, default: str) -> str:
        """A persistent setting; `default` is stored when there is none yet."""
        with self._lock:
            self._database.execute("INSERT OR IGNORE INTO settings VALUES (?, ?)", (name, default))
            found = self._database.execute("SELECT value FROM settings WHERE name = ?", (name,)).fetchone()
        return str(found[0])

    def set(self, name: str, value: str) -> None:
        with self._lock:
            self._database.execute("INSERT OR REPLACE INTO settings VALUES (?, ?)", (name, value))

    def get(self, resource: str, key: Key) -> Entry | None:
        with self._lock:
            return self._resource(resource).objects.get(key)

    def list(self, resource: str) -> tuple[list[tuple[Key, Entry]], int]:
        """Everything in the order of the keys, and the revision it was read at."""
        with self._lock:
            return sorted(self._resource(resource).objects.items(), key=lambda item: item[0]), self._revision

    def mutate(self, resource: str, key: Key, change: Callable[[Object | None], Object | None]) -> Entry:
        """Replace the object under `key` by what `change` makes of it, in one step with every other write.

        `change` gets the current object (None when there is none) and returns a new one, the very same one
        (nothing is written) or None (the object is removed). Whatever it raises leaves the store as it was.
        """
        with self._lock:
            place = self._resource(resource)
            old = place.objects.get(key)
            new = change(old.object if old else None)
            if old is not None and new is old.object:
                return old
            if new is not None:
                obj, type_ = new, "MODIFIED" if old else "ADDED"
            elif old is not None:
                obj, type_ = dict(old.object), "DELETED"
            else:
                raise ValueError(f"{resource} {key}: nothing to remove")
            revision = self._revision + 1
            obj["metadata"] = {**obj["metadata"], "resourceVersion": str(revision)}
            change_made = Change(revision, type_, old, Entry(obj))
            self._commit(resource, key, change_made)
            if type_ == "DELETED":
                del place.objects[key]
            else:
                place.objects[key] = change_made.new
            self._publish(place, change_made)
            return change_made.new

    def _commit(self, resource: str, key: Key, change: Change) -> None:
        """The object and the new revision, in one transaction."""
        with self._database:
            self._database.execute("BEGIN")
            if change.type == "DELETED":
                self._database.execute(
                    "DELETE FROM objects WHERE resource = ? AND namespace = ? AND name = ?", (resource, *key)
                )
            else:
                row = (resource, *key, change.new.encoded.decode())
                self._database.execute("INSERT OR REPLACE INTO objects VALUES (?, ?, ?, ?)", row)
            revision = str(change.revision)
            self._database.execute("UPDATE settings SET value = ? WHERE name = 'revision'", (revision,))
        self._revision = change.revision

    def _publish(self, place: _Resource, change: Change) -> None:
        place.history.append(change)
        if len(place.history) > HISTORY:
            place.floor = place.history.popleft().revision
        for follower in place.followers:
            follower.put(change)

    def follow(self, resource: str, since: int | None) -> Subscription:
        """Every change after revision `since`; None: what exists now as ADDED, then every change.

        Raises Refusal 410 when the history does not reach back.
        """
        queue: SimpleQueue[Change | None] = SimpleQueue()
        with self._lock:
            place = self._resource(resource)
            initial: list[Change] = []
            if since is None:
                initial = [
                    Change(int(entry.object["metadata"]["resourceVersion"]), "ADDED", None, entry)
                    for _, entry in sorted(place.objects.items(), key=lambda item: item[0])
                ]
            else:
                if since < place.floor:
                    raise status.expired(since, place.floor)
                initial = [change for change in place.history if change.revision > since]
            place.followers.append(queue)
            return Subscription(self, resource, queue, initial, self._revision)

    def unfollow(self, resource: str, queue: SimpleQueue[Change | None]) -> None:
        with self._lock:
            followers = self._resource(resource).followers
            if queue in followers:
                followers.remove(queue)

    def forget_history(self) -> None:
        """Compact: every watch that is not at the current revision gets 410 Gone."""
        with self._lock:
            self._oldest = self._revision
            for place in self._resources.values():
                place.history.clear()
                place.floor = self._revision

    def end_watches(self, resource: str) -> None:
        with self._lock:
            for follower in self._resource(resource).followers:
                follower.put(None)

    def close(self) -> None:
        """Ends every watch and the database."""
        with self._lock:
            for resource in self._resources:
                self.end_watches(resource)
            self._database.close()

    def _resource(self, resource: str) -> _Resource:
        found = self._resources.get(resource)
        if found is None:
            found = self._resources[resource] = _Resource(floor=self._oldest)
        return found


@dataclass(slots=True)
class Subscription:
    """The changes of one resource, in order. Close it when done."""

    store: Store
    resource: str
    queue: SimpleQueue[Change | None]
    initial: list[Change]
    revision: int
    """The store's revision when the subscription began."""

    def __enter__(self) -> Subscription:
        return self

    def __exit__(self, *_: object) -> None:
        self.store.unfollow(self.resource, self.queue)

    def __iter__(self) -> Iterator[Change]:
        return iter(self.initial)


def _open(path: Path | None, patience: float) -> sqlite3.Connection:
    try:
        if path is not None:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.touch(mode=0o600)
        database = sqlite3.connect(
            path or ":memory:", check_same_thread=False, isolation_level=None, timeout=patience
        )
        database.execute("PRAGMA locking_mode = EXCLUSIVE")
        database.execute("PRAGMA journal_mode = WAL")
        database.execute("PRAGMA synchronous = NORMAL")
        database.execute(
            "CREATE TABLE IF NOT EXISTS objects (resource TEXT, namespace TEXT, name TEXT, object TEXT,"
            " PRIMARY KEY (resource, namespace, name)) WITHOUT ROWID"
        )
        database.execute("CREATE TABLE IF NOT EXISTS settings (name TEXT PRIMARY KEY, value TEXT)")
    except (OSError, sqlite3.Error) as error:
        raise ClusterError(f"{path}: the cluster's state cannot be opened: {error}") from error
    return database
