"""The wire between one process and the model's API server: what `koordra.kube.client.KubeClient` takes for
its connection pool.

Requests are answered as an API server answers: JSON, pages of a list, and watches as streams of bytes whose
chunks end anywhere. What the server guarantees always holds: the events of one kind come in order, each from
the version on that was asked for; a first list shows every write that was answered before. What is out of
order are older events that come again after newer ones, and kinds against each other. Everything else
may happen, drawn by `Faults`:

    list      429, 500, 503, 403 of a server that starts; 410 or another error between two pages; an answer
              that breaks off, or is another's; the state of a server that lags behind (never in the first
              list)
    watch     the same statuses; 410; the time limit of the stream at any moment; a cut in the middle of a
              line, noticed or not; ERROR events; events again, and from long before; bookmarks
    others    are up to `deliver`, which raises ApiUnreachable where no answer comes back, whether or not the
              request took effect; here it is drawn how that looks
"""

from __future__ import annotations

import json
import random
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from typing import Any
from urllib.parse import parse_qsl, urlsplit

from urllib3.exceptions import NewConnectionError, ProtocolError, ReadTimeoutError

from koordra.api.kinds import (
    DEVICE_CLASSES,
    DEVICE_HOLDS,
    DEVICE_TAINT_RULES,
    EVENTS,
    LEASES,
    NODES,
    POD_DISRUPTION_BUDGETS,
    PODS,
    RESERVATIONS,
    RESOURCE_CLAIMS,
    RESOURCE_SLICES,
    Kind,
)
from koordra.api.objects import Object
from koordra.errors import ApiError, ApiUnreachable, Conflict
from tests.fakes.model_api import JSON_PATCH, ModelApi, Request

SERVED = {
    kind.plural: kind
    for kind in (
        NODES,
        RESOURCE_SLICES,
        DEVICE_CLASSES,
        DEVICE_TAINT_RULES,
        RESOURCE_CLAIMS,
        PODS,
        LEASES,
        EVENTS,
        DEVICE_HOLDS,
        POD_DISRUPTION_BUDGETS,
        RESERVATIONS,
    )
}
AWAY = {429: "TooManyRequests", 500: "InternalError", 503: "ServiceUnavailable", 403: "Forbidden"}
REFUSED = ("refused", "status 429", "status 500", "status 503", "status 403", "no answer", "plain text")
MOST_STALE = 3
"""Lists in a row; a server that lags for longer has lost its history."""


class Faults:
    """What goes wrong on the way. `often`: of how many requests and events; `calm` ends it. `drawn` counts
    by kind."""

    def __init__(self, seed: int, *, often: float = 0.08) -> None:
        self.random = random.Random(seed)
        self.often = often
        self.calm = False
        self.drawn: Counter[str] = Counter()

    def draw(self, where: str, *kinds: str) -> str:
        """One of `kinds`, or none."""
        if self.calm or self.random.random() >= self.often:
            return ""
        return self.note(where, self.random.choice(kinds))

    def note(self, where: str, kind: str) -> str:
        self.drawn[f"{where}: {kind}"] += 1
        return kind


class Answer:
    """What urllib3's response is to KubeClient."""

    def __init__(self, status: int, data: bytes, *, broken: bool = False) -> None:
        self.status = status
        self.headers: Mapping[str, str] = {}
        self._data = data
        self._broken = broken

    def read(self) -> bytes:
        if self._broken:
            raise ProtocolError("Connection broken: IncompleteRead")
        return self._data

    def stream(self, amt: int, decode_content: bool) -> Iterator[bytes]:
        del amt, decode_content
        yield self.read()

    def close(self) -> None: ...

    def release_conn(self) -> None: ...


class Stream(Answer):
    """One watch. Events that are not `visible` yet are never told; when all that are have been, it ends."""

    def __init__(self, wire: Wire, kind: Kind, version: int, *, is_lost: bool) -> None:
        super().__init__(200, b"")
        self._wire, self._kind, self._is_lost = wire, kind, is_lost
        self._at = wire.position(kind, version)
        self._is_over = False

    def stream(self, amt: int, decode_content: bool) -> Iterator[bytes]:
        del amt, decode_content
        for chunk in self._chunks():
            self._is_over = chunk.startswith(b'{"type": "ERROR"')
            yield chunk
        self._is_over = True

    def close(self) -> None:
        if not self._is_over:
            self._wire.wrong.append(f"the watch of {self._kind} was broken off by who followed it")

    def _chunks(self) -> Iterator[bytes]:
        faults = self._wire.faults
        back = self._wire.replays.pop(self._kind.plural, 0)
        if faults.draw("watch", "replay"):
            back = faults.random.randrange(1, 6)
        at = max(0, self._at - back)
        if self._is_lost:
            yield _event("ERROR", _status(500, "InternalError"))
            return
        while at < self._wire.visible(self._kind):
            line = self._wire.line(self._kind, at)
            fault = faults.draw(
                "stream",
                "duplicate",
                "bookmark",
                "error 410",
                "error 500",
                "time limit",
                "cut",
                "cut unnoticed",
                "split",
                "gathered",
            )
            if fault.startswith("error"):
                self._wire.lose(self._kind, fault)
            if fault == "error 410":
                yield _event("ERROR", _status(410, "Expired"))
                return
            if fault == "error 500":
                yield _event("ERROR", _status(500, "InternalError"))
                return
            if fault == "time limit":
                return
            if fault.startswith("cut"):
                yield line[: faults.random.randrange(1, len(line) - 1)]
                self._is_over = True
                if fault == "cut":
                    raise ProtocolError("Connection broken: InvalidChunkLength")
                return
            at += 1
            if fault == "gathered" and at < self._wire.visible(self._kind):
                line += self._wire.line(self._kind, at)
                at += 1
            if fault == "duplicate":
                line += line
            if fault == "bookmark":
                line += self._wire.bookmark(self._kind, at)
            middle = faults.random.randrange(1, len(line)) if fault else len(line)
            yield line[:middle]
            if middle < len(line):
                yield line[middle:]


class Wire:
    """One process's way to the server. `deliver(request, what)` carries a request out that is no list and no
    watch, and decides what becomes of it; `saw` is told of each claim that such an answer shows.

    By plural: `limits`, how many events of a kind the watches may tell (all, where nothing is said), and
    `replays`, how many events the next watch tells again.
    """

    def __init__(
        self,
        api: ModelApi,
        deliver: Callable[[Request, str], Object],
        faults: Faults,
        *,
        saw: Callable[[Object], None] = lambda _claim: None,
    ) -> None:
        self.faults = faults
        self.limits: dict[str, int] = {}
        self.replays: dict[str, int] = {}
        self._api = api
        self._deliver = deliver
        self._saw = saw
        self._listed: Counter[str] = Counter()
        self._had: set[str] = set()
        """Kinds of which a whole list has arrived."""
        self._stale: Counter[str] = Counter()
        self.wrong: list[str] = []
        self.meanwhile: Callable[[], None] = lambda: None
        """Called before lists, pages and watches: others write."""
        self._lost: dict[str, tuple[int, str]] = {}
        self._followed: set[str] = set()
        self._pages: dict[str, tuple[int, list[Object]]] = {}
        self.patching: Callable[[Kind, str, Any, Request], Request] = lambda _kind, _name, _body, change: (
            change
        )
        """Called with every patch that is sent."""

    # --- the server's history

    def position(self, kind: Kind, version: int) -> int:
        """How many events of a kind are not newer than this version."""
        return bisect_right(self._api.history.get(kind.plural, ()), version, key=_version_of)

    def version_at(self, kind: Kind, at: int) -> int:
        """Of the last of so many events."""
        return _version_of(self._api.history[kind.plural][at - 1]) if at else 0

    def visible(self, kind: Kind) -> int:
        told = len(self._api.history.get(kind.plural, ()))
        return min(told, self.limits.get(kind.plural, told))

    def line(self, kind: Kind, at: int) -> bytes:
        event, _, obj = self._api.history[kind.plural][at]
        return b'{"type":"%s","object":%s}\n' % (event.encode(), self._api.encoded(obj))

    def bookmark(self, kind: Kind, at: int) -> bytes:
        """Of any version between the events before and after."""
        history = self._api.history[kind.plural]
        end = _version_of(history[at]) - 1 if at < len(history) else self._api.version
        version = self.faults.random.randint(_version_of(history[at - 1]), end)
        return _event("BOOKMARK", {"kind": kind.kind, "metadata": {"resourceVersion": str(version)}})

    def lose(self, kind: Kind, fault: str) -> None:
        """The process has to list the kind anew: the server's history has become shorter, or cannot be told
        any more (403: it only said no)."""
        self._followed.discard(kind.plural)
        if "403" not in fault:
            self._lost[kind.plural] = self._api.version, fault

    # --- requests

    def request(
        self,
        method: str,
        url: str,
        *,
        body: bytes | None = None,
        headers: Mapping[str, str],
        preload_content: bool,
        timeout: object,
    ) -> Answer:
        del preload_content, timeout
        split = urlsplit(url)
        kind, name, subresource = _addressed(split.path)
        query = dict(parse_qsl(split.query))
        if method == "GET" and name is None:
            return self._collection(kind, query)
        sent = json.loads(body) if body else {}
        if kind is EVENTS:
            return Answer(201, body or b"{}")
        change, what = self._request(
            method, kind, name or "", subresource, sent, headers.get("Content-Type", "")
        )
        try:
            found = self._deliver(change, what)
        except ApiUnreachable as error:
            return self._no_answer(str(error))
        except ApiError as error:
            return _refusal(error)
        if kind is RESOURCE_CLAIMS and "metadata" in found:
            self._saw(found)
        return Answer(200, json.dumps(found).encode())

    def _request(
        self, method: str, kind: Kind, name: str, subresource: str | None, body: Any, content_type: str
    ) -> tuple[Request, str]:
        api = self._api
        if method == "GET":
            return lambda: api.get(kind, name), "read"
        if method == "POST" and subresource == "eviction":
            return lambda: _evict(api, name, body), "evictions"
        if method == "POST":
            return lambda: api.create(kind, body), kind.plural
        if method == "PUT":
            return lambda: api.update(kind, body), kind.plural
        if method == "DELETE":
            uid = (body.get("preconditions") or {}).get("uid")
            return lambda: api.delete(kind, name, uid=uid) or {}, kind.plural
        json_patch = content_type if content_type == JSON_PATCH else "application/merge-patch+json"

        def change() -> Object:
            return api.patch(kind, name, body, subresource, json_patch)

        return self.patching(kind, name, body, change), kind.plural

    def _no_answer(self, text: str) -> Answer:
        """Nobody can say whether the request took effect."""
        way = self.faults.random.randrange(6)
        if text == "throttled":
            return _error(429, AWAY[429])
        if way == 0:
            raise ReadTimeoutError(None, "", "Read timed out.")  # type: ignore[arg-type]
        if way == 1:
            raise ProtocolError("Connection aborted.")
        if way == 2:
            return Answer(200, b'{"kind":"Sta', broken=True)
        if way == 3:
            return Answer(502, b"<html>Bad Gateway</html>")
        return _error(*((500, AWAY[500]) if way == 4 else (503, AWAY[503])))

    def _collection(self, kind: Kind, query: Mapping[str, str]) -> Answer:
        if kind is POD_DISRUPTION_BUDGETS:  # there are none
            return Answer(200, json.dumps({"kind": f"{kind.kind}List", "metadata": {}, "items": []}).encode())
        self.meanwhile()
        is_watch = "watch" in query
        where = "watch" if is_watch else "page" if "continue" in query else "list"
        where = "newest" if query.get("limit") == "1" else where
        assert where != "list" or kind.plural not in self._followed, f"{kind} is listed without need"
        fault = self.faults.draw(where, *REFUSED, "broken" if where == "list" else "status 410")
        if fault.startswith("status"):
            code = int(fault.partition(" ")[2])
            if code in {403, 410} and is_watch:
                self.lose(kind, fault)
            return _error(code, AWAY.get(code, "Expired"))
        if fault == "refused":
            raise NewConnectionError(None, "Connection refused")  # type: ignore[arg-type]
        if fault == "no answer":
            raise ReadTimeoutError(None, "", "Read timed out.")  # type: ignore[arg-type]
        if fault == "plain text":
            return Answer(200, b"upstream connect error or disconnect/reset before headers")
        if is_watch:
            first, how = self._lost.get(kind.plural, (0, ""))
            is_lost = int(query["resourceVersion"]) < first
            if is_lost and "410" in how:
                return _error(410, "Expired")
            return Stream(self, kind, int(query["resourceVersion"]), is_lost=is_lost)
        if where == "newest":
            metadata = {"resourceVersion": str(self._api.version)}
            return Answer(200, json.dumps({"kind": f"{kind.kind}List", "metadata": metadata}).encode())
        page, is_whole = self._page(kind, query)
        if is_whole and fault != "broken":
            self._followed.add(kind.plural)
            self._had.add(kind.plural)
        return Answer(200, json.dumps(page).encode(), broken=fault == "broken")

    def _page(self, kind: Kind, query: Mapping[str, str]) -> tuple[Object, bool]:
        """At most `limit` objects, often fewer, all of them as they were when the first page was asked
        for. And whether the list is whole, and may be believed."""
        if "continue" in query:
            version, items = self._pages.pop(query["continue"])
        else:
            version, items = self._state(kind)
        most = int(query.get("limit") or len(items) or 1)
        if not self.faults.calm and "limit" in query and self.faults.random.random() < 0.5:
            most = min(most, self.faults.random.randrange(1, 4))
        metadata = {"resourceVersion": str(version)}
        if items[most:]:
            metadata["continue"] = f"{kind.plural} {version} {len(items) - most}"
            self._pages[metadata["continue"]] = version, items[most:]
        bare = [
            {name: part for name, part in item.items() if name not in {"apiVersion", "kind"}}
            for item in items[:most]
        ]
        is_whole = not items[most:] and not self._stale[kind.plural]
        return {"kind": f"{kind.kind}List", "metadata": metadata, "items": bare}, is_whole

    def _state(self, kind: Kind) -> tuple[int, list[Object]]:
        if not self._listed[kind.plural] or self._stale[kind.plural] >= MOST_STALE:
            stale = ""
        else:
            stale = self.faults.draw("list", "stale", "stale", "of the beginning")
        self._listed[kind.plural] += 1
        if kind.plural not in self._had:  # a server that this client has nothing of answers consistently
            stale = ""
        if not stale:
            self._stale[kind.plural] = 0
            table = self._api.table(kind)
            return self._api.version, [table[key] for key in sorted(table)]
        self._stale[kind.plural] += 1
        history = self._api.history.get(kind.plural, [])
        at = 0 if stale == "of the beginning" else self.faults.random.randrange(len(history) + 1)
        old: dict[str, Object] = {}
        for event, key, obj in history[:at]:
            old.pop(key, None)
            if event != "DELETED":
                old[key] = obj
        return _version_of(history[at - 1]) if at else 1, [old[key] for key in sorted(old)]


def _version_of(entry: tuple[str, str, Object]) -> int:
    return int(entry[2]["metadata"]["resourceVersion"])


def _addressed(path: str) -> tuple[Kind, str | None, str | None]:
    parts = path.strip("/").split("/")
    rest = parts[2:] if parts[0] == "api" else parts[3:]
    if rest[0] == "namespaces" and len(rest) > 2:
        rest = rest[2:]
    plural, name, subresource, *_ = [*rest, None, None]
    assert plural is not None
    return SERVED[plural], name, subresource


def _event(event: str, obj: Object) -> bytes:
    return json.dumps({"type": event, "object": obj}).encode() + b"\n"


def _status(code: int, reason: str, message: str = "") -> Object:
    return {"kind": "Status", "apiVersion": "v1", "code": code, "reason": reason, "message": message}


def _error(code: int, reason: str, message: str = "") -> Answer:
    return Answer(code, json.dumps(_status(code, reason, message)).encode())


def _refusal(error: ApiError) -> Answer:
    return _error(error.code, error.reason, error.message)


def _evict(api: ModelApi, name: str, body: Object) -> Object:
    """The eviction API: the pod is asked to end, if it is that very pod."""
    pod = api.get(PODS, name)
    if body["deleteOptions"]["preconditions"]["uid"] != pod["metadata"]["uid"]:
        raise Conflict("the UID in the precondition does not match", code=409)
    if not pod["spec"].get("nodeName"):
        api.remove(PODS, name)
        return body
    return api.change(PODS, name, metadata={"deletionTimestamp": "2026-11-21T01:00:00Z"})
