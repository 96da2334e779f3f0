"""A live copy of one kind of object: list once, then follow the watch.

    list ──> replace the copy, report what changed ──> watch from its resourceVersion ──> apply event by event
      ^                                                    ^  │ stream ended, broke off, or nobody answers:
      │                                                    └──┤ pause, then watch from the last version
      └──────── 410 Gone, or any other error: pause ──────────┘

Each of these pauses is longer than the one before, until an event has come. The list is read at the newest
version there is (no resourceVersion is sent): what is decided from a copy must know every write that was
answered before. A server that was away costs one request per kind and no list, as with client-go.

Errors are counted (koordra_loop_failures_total), and none ends the watch. An object that its listener cannot
take keeps no other from being told: it is told again with every bookmark (about once a minute), list and end
of a stream, until it is taken.

The copy does not go back in time: an event that was told before is none, and the list of a server that lags
behind is asked for again.

Listeners get (event type, object) with the types of the API: ADDED, MODIFIED, DELETED. After a new list the
differences to the old copy are reported the same way, so that nobody has to know whether a watch broke.
Objects are shared, not copied: whoever wants to change one copies it first.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Iterator
from functools import partial
from typing import Any, Final, TypeVar

from koordra.api.kinds import Kind
from koordra.api.objects import Object, is_newer, key, name, resource_version
from koordra.api.tables import set_or_drop
from koordra.errors import ApiError, ApiUnreachable, Gone
from koordra.kube.client import KubeClient
from koordra.logs import get_logger
from koordra.process.backoff import LONGEST_PAUSE, Backoff
from koordra.process.lifecycle import count_failure, spawn
from koordra.process.progress import resting, step, watched

log = get_logger(__name__)

OLDER_LISTS: Final = 8
"""So many lists in a row that are older than what was seen, over half a minute, are the truth: the server's
data was restored from a backup."""
SELDOM: Final = 60.0
"""Seconds between two questions whether a kind is served by now."""
_GONE: Final = 410
_TIMED_OUT: Final = 504

LASTED: Final = 30.0
"""Seconds after which a stream without a word was no empty answer: of objects that do not change, some
servers tell nothing for as long as a watch lasts, and some load balancers end it after a minute."""


Listener = Callable[[str, Object], object]
"""Called in the watch's own thread; must not block."""

_Answer = TypeVar("_Answer")


def retried(
    ask: Callable[[], _Answer],
    *,
    stop: threading.Event,
    report: Callable[[ApiError], object],
    errors: type[ApiError] = ApiUnreachable,
    longest: float = LONGEST_PAUSE,
) -> _Answer | None:
    """The answer, asked for ever less often while `errors` come, of which the first is reported. None when
    `stop` was set before."""
    backoff = Backoff(longest=longest)
    while not stop.is_set():
        try:
            return ask()
        except errors as error:
            if not backoff.failures:
                report(error)
            with resting():
                stop.wait(backoff.next())
    return None


def negotiate(client: KubeClient, stop: threading.Event) -> None:
    """Which versions of resource.k8s.io the server has; asked until it answers."""
    try:
        served = retried(
            client.negotiate,
            stop=stop,
            report=lambda error: log.warning(
                "api_server_unreachable", server=client.server, error=str(error)
            ),
        )
        log.info("api_versions_negotiated", **(served or {}))
    except ApiError as error:
        log.warning("api_versions_unknown", error=str(error), assumed="v1")


class WatchCache:
    """The objects of one kind, kept current by a thread of its own (`run`). `trim` takes from each object
    what is to be kept of it, its name and resourceVersion at least."""

    def __init__(
        self,
        client: KubeClient,
        kind: Kind,
        *,
        namespace: str | None = None,
        field_selector: str = "",
        label_selector: str = "",
        on_change: Listener = lambda event, obj: None,
        trim: Callable[[Object], Object] | None = None,
    ) -> None:
        self.kind = kind
        self._client = client
        self._selectors: dict[str, Any] = {"field_selector": field_selector}
        if label_selector:
            self._selectors["label_selector"] = label_selector
        if namespace is not None:
            self._selectors["namespace"] = namespace
        self._on_change = on_change
        self._trim = trim
        self._lock = threading.Lock()
        self._objects: dict[str, Object] = {}
        self._order: list[str] | None = None
        self._version, self._is_listed = "", False
        self._older_lists = 0
        self._synced = threading.Event()
        self._untold: dict[str, tuple[str, Object]] = {}
        """By key: events that the listener could not take."""

    def start(self, stop: threading.Event) -> threading.Thread:
        return spawn(partial(self.run, stop), name=f"watch-{self.kind.plural}", until=stop)

    def start_when_served(self, stop: threading.Event) -> threading.Thread:
        """As `start`, of a kind whose definition may be installed later, or never: asked for seldom."""

        def run() -> None:
            ask = partial(self._client.list, self.kind, **self._selectors)
            report = partial(log.info, "kind_not_served", kind=str(self.kind))
            if (
                retried(ask, stop=stop, report=lambda _: report(), errors=ApiError, longest=SELDOM)
                is not None
            ):
                self.run(stop)

        return spawn(run, name=f"watch-{self.kind.plural}", until=stop)

    def wait_synced(self, timeout: float | None = None) -> bool:
        """True once the first list is in, and the listener has been told of all of it."""
        return self._synced.wait(timeout)

    def get(self, object_key: str) -> Object | None:
        """By `namespace/name`, or by name for cluster-scoped kinds."""
        with self._lock:
            return self._objects.get(object_key)

    def objects(self) -> list[Object]:
        with self._lock:
            if self._order is None:
                self._order = sorted(self._objects)
            return [self._objects[object_key] for object_key in self._order]

    @watched()
    def run(self, stop: threading.Event) -> None:
        for pause in self.steps():
            with resting():
                if (pause and stop.wait(pause)) or stop.is_set():
                    return

    def steps(self) -> Iterator[float]:
        """For ever: a list, an event of the watch or the end of it, and after each the seconds to wait before
        the next. A stream that tells of nothing new is a success only if it LASTED."""
        backoff, timed_out = Backoff(), False
        while True:
            try:
                if timed_out and self._is_listed:  # "Too large resource version" is told so
                    self._require_history()
                timed_out = False
                if not self._is_listed:
                    self._relist()
                    yield 0.0
                opened, told = time.monotonic(), False
                try:
                    for event, obj in self._client.watch(
                        self.kind, resource_version=self._version, **self._selectors
                    ):
                        if self._follow(event, obj):
                            backoff.reset()
                        told = told or resource_version(obj) == self._version
                        yield 0.0
                finally:
                    if time.monotonic() - opened >= LASTED:
                        backoff.reset()
                self._tell_again()
                if not told:
                    self._require_history()
            except ApiUnreachable as error:
                count_failure(error)
                timed_out = error.code == _TIMED_OUT
                log.warning("watch_interrupted", kind=str(self.kind), error=str(error))
            except ApiError as error:
                if error.code != _GONE:
                    count_failure(error)
                    log.warning("watch_interrupted", kind=str(self.kind), error=str(error))
                self._is_listed = False
            except Exception as defect:
                count_failure(defect)
                log.exception("watch_failed", kind=str(self.kind))
                self._is_listed = False
            yield backoff.next()

    def _relist(self) -> None:
        if self._trim is None:
            items, version = self._client.list(self.kind, **self._selectors)
        else:
            items, version = self._client.list(self.kind, **self._selectors, each=self._trim)
        self._require_newest(version)
        old, fresh = self._objects, {self._key(item): item for item in items}
        for object_key, before in old.items():  # an object is the same one until something else is told of it
            if object_key in fresh and resource_version(before) == resource_version(fresh[object_key]):
                fresh[object_key] = before
        with self._lock:
            self._objects, self._order = fresh, None
        self._version, self._is_listed = version, True
        for object_key, obj in fresh.items():
            if (known := old.get(object_key)) is not obj:
                self._tell("ADDED" if known is None else "MODIFIED", obj)
        for object_key in old.keys() - fresh.keys():
            self._tell("DELETED", old[object_key])
        self._tell_again()
        self._synced.set()

    def _require_newest(self, version: str) -> None:
        """Raises ApiUnreachable where the list is older than what was seen: a server that lags behind. The
        copy does not go back in time, unless all answers are of such a time: then etcd was restored."""
        if version == self._version or is_newer(version, self._version):
            self._older_lists = 0
            return
        self._older_lists += 1
        if self._older_lists < OLDER_LISTS:
            raise ApiUnreachable(f"the list is of resourceVersion {version}, older than {self._version}")
        log.error("history_went_back", kind=str(self.kind), listed=version, seen=self._version)

    def _require_history(self) -> None:
        """Raises Gone where the server is older than what was seen: an etcd that was restored from a backup.
        Asked to watch from a version that it does not have yet, it says nothing at all, or 504; never 410."""
        try:
            newest = self._client.newest(self.kind, **self._selectors)
        except ApiError:
            return  # asked again at the next such end
        if is_newer(self._version, newest):
            raise Gone(f"the server is at resourceVersion {newest}, before {self._version}", code=_GONE)

    def _follow(self, event: str, obj: Object) -> bool:
        """Whether the event is news."""
        if event == "BOOKMARK":
            self._tell_again()
        version = resource_version(obj)
        if version and not is_newer(version, self._version):
            return False
        if event != "BOOKMARK":
            self._apply(event, self._trim(obj) if self._trim else obj)
        self._version = version or self._version
        return True

    def _apply(self, event: str, obj: Object) -> None:
        with self._lock:
            object_key = self._key(obj)
            if (event == "DELETED") == (object_key in self._objects):
                self._order = None
            set_or_drop(self._objects, object_key, None if event == "DELETED" else obj)
        self._tell(event, obj)

    def _tell(self, event: str, obj: Object) -> None:
        step()
        object_key = self._key(obj)
        _, before = self._untold.pop(object_key, ("", {}))
        try:
            self._on_change(event, obj)
        except Exception as error:
            count_failure(error)
            self._untold[object_key] = event, obj
            if before is not obj:
                log.exception("listener_failed", kind=str(self.kind), object=object_key)

    def _tell_again(self) -> None:
        for event, obj in list(self._untold.values()):
            self._tell(event, obj)

    def _key(self, obj: Object) -> str:
        return key(obj) if self.kind.namespaced else name(obj)


def start_watches(caches: Collection[WatchCache], stop: threading.Event) -> bool:
    """Each in a thread of its own, until `stop`. Whether all were listed before that."""
    for cache in caches:
        cache.start(stop)
    for cache in caches:
        while not cache.wait_synced(0.2):
            step()  # whether the API server answers is no question of this thread
            if stop.is_set():
                log.warning("initial_list_incomplete", kind=str(cache.kind))
                return False
    return True
