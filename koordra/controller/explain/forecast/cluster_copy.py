"""The objects of a cluster, to which the controller's own writes go while its decisions are foretold.

Like an API server with one client: what is written is stored and told of, nothing is refused, and no answer
is lost. What others would do then (schedule, run, end) does not happen. The objects that were given are never
changed.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from koordra.api import objects
from koordra.api.kinds import Kind
from koordra.api.objects import Object
from koordra.api.pods import at, replaced
from koordra.api.tables import set_or_drop
from koordra.controller.cache.changes import KINDS, ChangeQueue, Table, Tables, key_of, table_of
from koordra.controller.gangs.expected.job_reader import Read
from koordra.errors import NotFound
from koordra.kube.client import JSON_PATCH, MERGE_PATCH

_BEYOND: Final = 10**18
"""Versions from here on are later than those of any server."""


States = Mapping[tuple[Kind, str], Object | None]
"""Objects by kind and key; None where there is none."""


class ClusterCopy:
    """`source` tells the controller of every object, and of every write; `version` goes up with each write.
    `written` has what was written over: the objects as they were given. `evicted` are the pods of which the
    end was asked for, by key."""

    def __init__(self, read: Read) -> None:
        """`read` finds objects of other kinds."""
        self.tables: dict[Kind, Table] = {kind: {} for kind in KINDS}
        self.source = ChangeQueue(lambda: self.tables)
        self.written: dict[tuple[Kind, str], Object | None] = {}
        self.evicted: list[str] = []
        self._read = read
        self._besides: dict[tuple[Kind, str], Object | None] = {}
        """Of objects that came besides the cluster: what was in their place."""
        self.version = _BEYOND

    def take(self, kind: Kind, objects_: Iterable[Object]) -> None:
        """More objects of the cluster as it is given."""
        table = table_of(kind)
        for obj in objects_:
            self.tables[table][key_of(table, obj)] = obj
            self.source.observe(kind, "ADDED", obj)

    def lose(self, kind: Kind, obj: Object) -> None:
        """The object was not there after all."""
        table = table_of(kind)
        self.tables[table].pop(key_of(table, obj), None)
        self.source.observe(kind, "DELETED", obj)

    def begin_again(self, besides: Tables) -> None:
        """The writes have been taken back; these objects come in place of others that came besides."""
        self.written, self.evicted = {}, []
        for (kind, key), obj in self._besides.items():
            there = self.tables[kind].pop(key)
            set_or_drop(self.tables[kind], key, obj)
            self.source.observe(kind, "DELETED" if obj is None else "MODIFIED", obj or there)
        self._besides = {
            (kind, key): self.tables[kind].get(key) for kind, table in besides.items() for key in table
        }
        for kind, table in besides.items():
            self.take(kind, table.values())

    def given(self) -> Tables:
        """The objects as they were given."""
        found = {kind: dict(table) for kind, table in self.tables.items()}
        for (kind, key), obj in self.written.items():
            set_or_drop(found[kind], key, obj)
        return found

    def get(self, kind: Kind, name: str, *, namespace: str | None = None) -> Object:
        key = f"{namespace or 'default'}/{name}" if kind.namespaced else name
        table = self.tables.get(kind)
        found = self._read(kind, name, namespace or "default") if table is None else table.get(key)
        if found is None:
            raise NotFound(f'{kind.plural} "{name}" not found', code=404, reason="NotFound")
        return found

    def list(
        self, kind: Kind, *, namespace: str | None = None, field_selector: str = ""
    ) -> tuple[list[Object], str]:
        """More than a field selector asks for."""
        found = [
            obj for obj in self.tables.get(kind, {}).values() if namespace in (None, objects.namespace(obj))
        ]
        return found, str(self.version)

    def create(
        self,
        kind: Kind,
        body: Object,
        *,
        namespace: str | None = None,
        name: str | None = None,
        subresource: str | None = None,
    ) -> Object:
        """An eviction is noted, no more: who is asked to end ends in his own time."""
        if subresource is not None:
            self.evicted.append(f"{namespace}/{name}")
            return body
        return self._store(kind, {**kind.type_meta, **body}, uid=f"{kind.kind}/{objects.key(body)}")

    def patch(
        self,
        kind: Kind,
        name: str,
        body: Any,
        *,
        namespace: str | None = None,
        subresource: str | None = None,
        content_type: str = MERGE_PATCH,
    ) -> Object:
        """`subresource` is the body's business: it names what it changes."""
        del subresource
        current = self.get(kind, name, namespace=namespace)
        changed = _removed(current, body) if content_type == JSON_PATCH else _merged(current, body)
        return self._store(kind, changed, uid=objects.uid(current))

    def delete(self, kind: Kind, name: str, *, namespace: str | None = None, uid: str | None = None) -> None:
        del uid
        self._put(kind, key_of(kind, self.get(kind, name, namespace=namespace)), None)

    def exchange(self, states: States) -> States:
        """Put these in place of what there is, which is returned."""
        before = {place: self.tables[place[0]].get(place[1]) for place in states}
        for (kind, key), obj in states.items():
            if obj is not None or before[kind, key] is not None:  # what was made and taken away is nowhere
                self._put(kind, key, obj)
        return before

    def _store(self, kind: Kind, obj: Object, *, uid: str) -> Object:
        stored = {**obj, "metadata": {**objects.metadata(obj), "uid": uid}}
        return self._put(kind, key_of(kind, stored), stored)

    def _put(self, kind: Kind, key: str, obj: Object | None) -> Object:
        self.version += 1
        table = self.tables.setdefault(kind, {})
        before = table.pop(key, None)
        self.written.setdefault((kind, key), before)
        stored = before if obj is None else obj
        assert stored is not None, "what is not there is not taken away"
        stored = {
            **stored,
            "metadata": {**objects.metadata(stored), "resourceVersion": str(self.version)},
        }
        if obj is not None:
            table[key] = stored
        self.source.observe(kind, "DELETED" if obj is None else "MODIFIED", stored)
        return stored


def _merged(current: Any, change: Any) -> Any:
    """RFC 7386."""
    if not isinstance(change, Mapping):
        return change
    found = dict(current) if isinstance(current, Mapping) else {}
    for name, value in change.items():
        if value is None:
            found.pop(name, None)
        else:
            found[name] = _merged(found.get(name), value)
    return found


def _removed(current: Object, steps: Sequence[Object]) -> Object:
    """The controller's JSON patches take one entry out of a list: a scheduling gate."""
    changed: Any = current
    for step in steps:
        if step["op"] == "remove":
            *path, number = step["path"].split("/")[1:]
            place = tuple(path)
            rest = [entry for index, entry in enumerate(at(changed, place)) if index != int(number)]
            changed = replaced(changed, place, rest)
    return dict(changed)
