"""Watch caches of the model: the product's, over the model's wire, advanced step by step and checked after
each."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Mapping

from koordra.api.kinds import Kind
from koordra.api.objects import Object, key, name, resource_version
from koordra.kube.client import KubeClient
from koordra.kube.request_limit import RequestLimit
from koordra.kube.watch import WatchCache
from koordra.process.lifecycle import failures
from tests.fakes.model_api import ModelApi
from tests.fakes.model_wire import Wire

PATIENCE = 600
"""Steps after which a watch that has not come on stands still: faults are not that frequent."""

MANY = 40
"""Objects with which not every event is checked, but where a watch has been brought to."""
KNOWN = {"ApiUnreachable", "Forbidden", "Gone", "Deaf"}
"""What a watch may meet in the model; it catches defects too, the model's own among them."""


class Deaf(Exception):
    """A listener did not take an event."""


Listener = Callable[[Kind, str, Object], object]


def client_over(wire: Wire) -> KubeClient:
    pool: object = wire
    return KubeClient(
        "https://model",
        pool,  # type: ignore[arg-type]
        dict,
        timeout=5.0,
        user_agent="model",
        limit=RequestLimit(clock=lambda: 0.0),
    )


class Watch:
    """One WatchCache. After every step (of many objects: where it has been brought to)

    - its version is not older than before,
    - its objects are those that the server had at that version, each once,
    - the listener has been told of exactly these, each time with the type of event that fits, and of newer
      ones each time.

    `deaf` listeners fail now and then (`told` raises); then only what is so at rest is checked, in `settle`.
    """

    def __init__(
        self, api: ModelApi, wire: Wire, client: KubeClient, kind: Kind, told: Listener, *, deaf: bool = False
    ) -> None:
        self._api, self._wire, self.kind, self._told, self._deaf = api, wire, kind, told, deaf
        self._mirror: dict[str, Object] = {}
        self._seen: dict[str, int] = {}
        self._reached = 0
        self._folded, self._expected = 0, dict[str, str]()
        self._met = _defects()
        self._wrong: list[str] = []
        self.cache = WatchCache(client, kind, on_change=self._hear)
        self._steps = self.cache.steps()

    @property
    def version(self) -> int:
        return int(self.cache._version or 0)

    def begin(self) -> None:
        """Until the first list is in."""
        self._until(lambda: self.cache.wait_synced(0))

    def deliver(self, events: int | None = None, *, again: int = 0) -> None:
        """Until the next events of the kind are told (None: all there are)."""
        plural = self.kind.plural
        at = self._wire.position(self.kind, self.version)
        whole = len(self._api.history.get(plural, ()))
        self._wire.limits[plural] = end = whole if events is None else min(whole, at + events)
        if again:
            self._wire.replays[plural] = again
        target = self._wire.version_at(self.kind, end)
        self._until(lambda: self.version >= target)

    def step(self) -> None:
        next(self._steps)
        if len(self._mirror) < MANY:
            self.check()

    def settle(self) -> None:
        """With no more faults all is as the server has it, and the listener knows."""
        self._wire.limits.pop(self.kind.plural, None)
        self.deliver()
        if self._deaf:
            self._until(lambda: not self.cache._untold)
        server = self._api.table(self.kind)
        assert self.table() == server, f"{self.kind} at rest: {_apart(self.table(), server)}"
        assert self._mirror == server, f"{self.kind} as told: {_apart(self._mirror, server)}"

    def table(self) -> dict[str, Object]:
        return {self._key(obj): obj for obj in self.cache.objects()}

    def check(self) -> None:
        version = self.version
        assert version >= self._reached, f"{self.kind} went back from {self._reached} to {version}"
        self._reached = version
        assert not self._wrong, self._wrong
        assert not self._wire.wrong, self._wire.wrong
        if not self.cache.wait_synced(0):
            return
        self._fold(version)
        table = self.table()
        found = {object_key: resource_version(obj) for object_key, obj in table.items()}
        assert found == self._expected, f"{self.kind} at {version}: {_apart(found, self._expected)}"
        if not self._deaf:
            assert table.keys() == self._mirror.keys(), f"{self.kind} as told: {_apart(self._mirror, table)}"
            for object_key, obj in table.items():
                assert self._mirror[object_key] is obj, f"{object_key} in the cache is not what was told"

    def _fold(self, version: int) -> None:
        """What the server had at this version."""
        end = self._wire.position(self.kind, version)
        for event, _, obj in self._api.history.get(self.kind.plural, [])[self._folded : end]:
            object_key = self._key(obj)
            self._expected.pop(object_key, None)
            if event != "DELETED":
                self._expected[object_key] = resource_version(obj)
        self._folded = end

    def _hear(self, event: str, obj: Object) -> None:
        """A listener's errors are caught, so what is wrong is kept for `check`."""
        object_key, version = self._key(obj), int(resource_version(obj))
        self._told(self.kind, event, obj)
        if not self._deaf:
            if event != "DELETED" and version <= self._seen.get(object_key, 0):
                self._wrong.append(f"{event} of {object_key} at {version} is told again")
            if (event == "ADDED") == (object_key in self._mirror):
                self._wrong.append(f"{event} does not fit {object_key}")
        self._seen[object_key] = max(version, self._seen.get(object_key, 0))
        if event == "DELETED":
            self._mirror.pop(object_key, None)
        else:
            self._mirror[object_key] = obj

    def _until(self, reached: Callable[[], bool]) -> None:
        for done in range(PATIENCE + 2 * len(self._api.history.get(self.kind.plural, ()))):
            if reached():
                if not done:
                    return
                self.check()
                met = _defects() - self._met
                assert not met, f"caught by the watch: {dict(met)}"
                return
            self.step()
        raise AssertionError(f"the watch of {self.kind} stands still at {self.version}")

    def _key(self, obj: Object) -> str:
        return key(obj) if self.kind.namespaced else name(obj)


def _defects() -> Counter[str]:
    mine = threading.current_thread().name
    return Counter(
        {error: count for (thread, error), count in failures.items() if thread == mine and error not in KNOWN}
    )


def _apart(one: Mapping[str, object], other: Mapping[str, object]) -> str:
    return ", ".join(sorted(each for each in one.keys() | other.keys() if one.get(each) != other.get(each)))
