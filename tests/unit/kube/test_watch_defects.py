"""No error ends a watch, and no object keeps another from being seen."""

from __future__ import annotations

import io
import json
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import urllib3

from koordra.api import kinds, objects
from koordra.api.objects import Object
from koordra.errors import ApiUnreachable, Forbidden
from koordra.kube.client import KubeClient
from koordra.kube.watch import WatchCache
from koordra.process import lifecycle, progress


def pod(name: str, version: int) -> Object:
    return {"metadata": {"namespace": "a", "name": name, "resourceVersion": str(version)}}


BOOKMARK = ("BOOKMARK", {"metadata": {"resourceVersion": "12"}})


class NeverWaits(threading.Event):
    def __init__(self) -> None:
        super().__init__()
        self.waits: list[float] = []

    def wait(self, timeout: float | None = None) -> bool:
        self.waits.append(timeout or 0.0)
        return self.is_set()


class Server:
    """Serves lists and streams of a script, each of which may raise; the stop is set when it is over."""

    def __init__(self, *script: Any) -> None:
        self.script = list(script)
        self.stop = NeverWaits()
        self.lists = 0

    def _next(self) -> Any:
        if len(self.script) == 1:
            self.stop.set()
        found = self.script.pop(0)
        if isinstance(found, BaseException):
            raise found
        return found

    def list(self, kind: object, **_selectors: str) -> tuple[list[Object], str]:
        self.lists += 1
        return self._next(), str(9 + self.lists)

    def watch(self, kind: object, **_selectors: str) -> Iterator[tuple[str, Object]]:
        for event in self._next():
            if isinstance(event, BaseException):
                raise event
            yield event


def follow(server: Server, on_change: Callable[[str, Object], object]) -> WatchCache:
    cache = WatchCache(server, kinds.PODS, on_change=on_change)  # type: ignore[arg-type]
    cache.run(server.stop)
    return cache


def test_each_object_that_is_told_is_a_step() -> None:
    """A list of ten thousand is one answer; who takes it object by object does not stand still."""
    steps: list[int] = []

    def on_change(event: str, obj: Object) -> None:
        steps.append(progress.threads[threading.get_ident()].steps)

    follow(Server([pod(name, 9) for name in "abc"]), on_change)
    assert steps == [steps[0], steps[0] + 1, steps[0] + 2]


def test_a_stop_during_the_list_opens_no_watch() -> None:
    """It would last for minutes."""

    class Counting(Server):
        watches = 0

        def watch(self, kind: object, **_selectors: str) -> Iterator[tuple[str, Object]]:
            self.watches += 1
            return iter(())

    server = Counting([pod("a", 9)])
    cache = follow(server, lambda event, obj: None)
    assert [objects.name(obj) for obj in cache.objects()] == ["a"]
    assert server.watches == 0


@pytest.mark.parametrize(
    "error",
    [ValueError("?"), RecursionError("deep"), MemoryError(), KeyError("metadata"), Forbidden("no")],
    ids=lambda error: type(error).__name__,
)
@pytest.mark.parametrize("where", ["list", "watch", "stream"])
def test_any_error_lists_again_and_is_counted(error: Exception, where: str) -> None:
    ways: dict[str, list[Any]] = {
        "list": [error],
        "watch": [[pod("first", 1)], error],
        "stream": [[pod("first", 1)], [("ADDED", pod("second", 11)), error]],
    }
    failing = ways[where]
    server, seen = Server(*failing, [pod("first", 1), pod("third", 12)], []), list[str]()
    counted = lifecycle.failures["MainThread", type(error).__name__]
    follow(server, lambda event, obj: seen.append(f"{event} {objects.name(obj)}"))
    assert server.lists == 2
    assert "ADDED third" in seen
    assert lifecycle.failures["MainThread", type(error).__name__] == counted + 1
    assert len(server.stop.waits) == 2, "not at once"


def test_an_object_that_its_listener_cannot_take_keeps_no_other_from_being_told(
    capsys: pytest.CaptureFixture[str],
) -> None:
    taken: list[str] = []
    refused = 0

    def listener(event: str, obj: Object) -> None:
        nonlocal refused
        if objects.name(obj) == "poison" and refused < 3:
            refused += 1
            raise RecursionError("deep")
        taken.append(f"{event} {objects.name(obj)}")

    listed = [pod("a", 1), pod("poison", 2), pod("z", 3)]
    events = [("MODIFIED", pod("poison", 11)), ("ADDED", pod("new", 12)), BOOKMARK, ("DELETED", pod("a", 13))]
    server = Server(listed, events, [])
    cache = follow(server, listener)
    assert taken == ["ADDED a", "ADDED z", "ADDED new", "MODIFIED poison", "DELETED a"]
    assert (refused, server.lists) == (3, 1)
    assert cache.wait_synced(0)
    told = capsys.readouterr().err
    assert told.count("listener_failed") == 2, "once for each version"
    assert "a/poison" in told


def test_what_was_not_taken_is_told_again_after_a_list() -> None:
    taken: list[str] = []
    failing = [True]

    def listener(event: str, obj: Object) -> None:
        if failing and failing.pop():
            raise ValueError("once")
        taken.append(f"{event} {objects.name(obj)}")

    server = Server([pod("a", 1)], Forbidden("no"), [pod("a", 1)], [])
    follow(server, listener)
    assert taken == ["ADDED a"]


def test_what_was_not_taken_is_told_again_when_the_stream_ends() -> None:
    tries: list[str] = []

    def listener(event: str, _obj: Object) -> None:
        tries.append(event)
        if len(tries) < 3:
            raise ValueError("not yet")

    follow(Server([pod("a", 1)], []), listener)
    assert tries == ["ADDED", "ADDED", "ADDED"], "in the list, after it, and after the stream"


def test_a_server_that_is_away_is_counted() -> None:
    counted = lifecycle.failures["MainThread", "ApiUnreachable"]
    follow(Server([pod("a", 1)], ApiUnreachable("away"), []), lambda event, obj: None)
    assert lifecycle.failures["MainThread", "ApiUnreachable"] == counted + 1


def test_a_page_with_an_object_that_is_nested_too_deeply_is_read(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """10 KiB of brackets, which an API server takes as a claim's opaque parameters."""
    deep = b"[" * 5000 + b"]" * 5000
    claims = [{"metadata": {"name": name}, "spec": {"opaque": "HERE"}} for name in ("a", "deep", "z")]
    page = json.dumps({"kind": "ResourceClaimList", "items": claims}).encode().replace(b'"HERE"', deep)

    def answer(self: KubeClient, *_: Any, **__: Any) -> urllib3.HTTPResponse:
        return urllib3.HTTPResponse(io.BytesIO(page), preload_content=False)

    monkeypatch.setattr(KubeClient, "_open", answer)
    client = KubeClient("http://api", urllib3.PoolManager(), dict, timeout=1, user_agent="test")
    found, _ = client.list(kinds.RESOURCE_CLAIMS)
    assert list(map(objects.name, found)) == ["a", "deep", "z"]
    assert "answer_nested_too_deeply" in capsys.readouterr().err
