"""The API client against a real HTTP server that says exactly what the test tells it to say."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from datetime import datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
from kubernetes.config import incluster_config
from urllib3 import PoolManager

from koordra import errors
from koordra.api import kinds
from koordra.api.objects import Object
from koordra.kube.client import WATCH_SECONDS, KubeClient
from koordra.kube.kubeconfig import new_client
from koordra.kube.watch import LASTED, OLDER_LISTS, WatchCache, retried
from tests.fakes.clock import Clock
from tests.patience import PATIENCE


class ScriptedServer:
    """Answers requests in order from a script; records what it was asked.

    An answer is (status, body); a body that is a list of byte chunks is sent chunk by chunk, as a watch is.
    """

    def __init__(self) -> None:
        self.script: list[tuple[int, Any]] = []
        self.asked: list[tuple[str, str, Any]] = []
        self.authorization: str | None = None
        outer = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do(self) -> None:
                length = int(self.headers.get("Content-Length") or 0)
                body = json.loads(self.rfile.read(length)) if length else None
                outer.asked.append((self.command, self.path, body))
                outer.authorization = self.headers.get("Authorization")
                status, answer = outer.script.pop(0) if outer.script else (503, {"message": "script is over"})
                self.send_response(status)
                if isinstance(answer, list):
                    self.send_header("Transfer-Encoding", "chunked")
                    self.end_headers()
                    for chunk in answer:
                        self.wfile.write(b"%x\r\n%s\r\n" % (len(chunk), chunk))
                        self.wfile.flush()
                    self.wfile.write(b"0\r\n\r\n")
                    return
                data = answer if isinstance(answer, bytes) else json.dumps(answer).encode()
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            do_GET = do_POST = do_PUT = do_PATCH = do_DELETE = do  # noqa: N815

            def log_message(self, format: str, *args: Any) -> None:
                del format, args

        self.http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.http.daemon_threads = True
        threading.Thread(target=self.http.serve_forever, args=(0.05,), daemon=True).start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.http.server_port}"


@pytest.fixture
def server() -> Iterator[ScriptedServer]:
    server = ScriptedServer()
    yield server
    server.http.shutdown()
    server.http.server_close()


@pytest.fixture
def client(server: ScriptedServer, tmp_path: Path) -> KubeClient:
    config = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "c", "cluster": {"server": server.url}}],
        "users": [{"name": "u", "user": {"token": "secret"}}],
        "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u"}}],
        "current-context": "x",
    }
    path = tmp_path / "kubeconfig"
    path.write_text(json.dumps(config))
    return new_client(str(path), timeout=PATIENCE)


def pod(name: str, version: int) -> Object:
    return {"metadata": {"name": name, "namespace": "a", "resourceVersion": str(version)}}


def line(event: str, obj: Object) -> bytes:
    return json.dumps({"type": event, "object": obj}).encode() + b"\n"


@pytest.mark.parametrize(
    ("code", "error"),
    [
        (400, errors.Invalid),
        (401, errors.Forbidden),
        (403, errors.Forbidden),
        (404, errors.NotFound),
        (409, errors.Conflict),
        (410, errors.Gone),
        (422, errors.Invalid),
        (429, errors.ApiUnreachable),
        (500, errors.ApiUnreachable),
        (503, errors.ApiUnreachable),
    ],
)
def test_statuses_become_errors(
    server: ScriptedServer, client: KubeClient, code: int, error: type[errors.ApiError]
) -> None:
    server.script = [(code, {"kind": "Status", "message": "because", "reason": "Why"})]
    with pytest.raises(error, match="because") as caught:
        client.get(kinds.PODS, "p", namespace="a")
    assert (caught.value.code, caught.value.reason) == (code, "Why")


def test_the_budget_that_refuses_an_eviction_is_named(server: ScriptedServer, client: KubeClient) -> None:
    cause = {
        "reason": "DisruptionBudget",
        "message": "The disruption budget web needs 2 healthy pods and has 2 currently",
    }
    answer = {
        "kind": "Status",
        "message": "Cannot evict pod as it would violate the pod's disruption budget.",
    }
    server.script = [(429, {**answer, "details": {"causes": [cause]}})]
    with pytest.raises(errors.ApiUnreachable, match=r"disruption budget\. The disruption budget web needs 2"):
        client.create(kinds.PODS, {}, namespace="a", name="p", subresource="eviction")


def test_requests_carry_the_token_and_the_body(server: ScriptedServer, client: KubeClient) -> None:
    server.script = [(200, {}), (200, {}), (200, {}), (200, {})]
    client.create(kinds.PODS, {"metadata": {"name": "p"}}, namespace="a", strict=True)
    client.update(kinds.RESOURCE_CLAIMS, {"metadata": {"name": "c", "namespace": "a"}}, subresource="status")
    client.patch(kinds.NODES, "n", {"x": 1})
    client.delete(kinds.PODS, "p", namespace="a", uid="u", grace_period=0)
    assert server.authorization == "Bearer secret"
    assert [(method, path) for method, path, _ in server.asked] == [
        ("POST", "/api/v1/namespaces/a/pods?fieldValidation=Strict"),
        ("PUT", "/apis/resource.k8s.io/v1/namespaces/a/resourceclaims/c/status"),
        ("PATCH", "/api/v1/nodes/n"),
        ("DELETE", "/api/v1/namespaces/a/pods/p"),
    ]
    assert server.asked[3][2]["preconditions"] == {"uid": "u"}
    assert server.asked[3][2]["gracePeriodSeconds"] == 0


def test_lists_are_read_page_by_page(server: ScriptedServer, client: KubeClient) -> None:
    server.script = [
        (200, {"metadata": {"resourceVersion": "9", "continue": "t"}, "items": [pod("p", 1)]}),
        (200, {"metadata": {"resourceVersion": "9"}, "items": [pod("q", 2)]}),
    ]
    items, version = client.list(kinds.PODS)
    assert [(item["kind"], item["metadata"]["name"]) for item in items] == [("Pod", "p"), ("Pod", "q")]
    assert version == "9"
    assert "continue=t" in server.asked[1][1]


@pytest.mark.parametrize("answer", [b"<html>", b"[]", b"{"])
def test_what_is_not_an_object_is_no_answer(
    server: ScriptedServer, client: KubeClient, answer: bytes
) -> None:
    server.script = [(200, answer)]
    with pytest.raises(errors.ApiUnreachable):
        client.get(kinds.NODES, "n")


def test_a_proxy_s_plain_text_is_passed_on(server: ScriptedServer, client: KubeClient) -> None:
    server.script = [(502, b"bad gateway")]
    with pytest.raises(errors.ApiUnreachable, match="bad gateway"):
        client.get(kinds.NODES, "n")


def test_nobody_there(server: ScriptedServer, client: KubeClient) -> None:
    server.http.shutdown()
    server.http.server_close()
    with pytest.raises(errors.ApiUnreachable, match="127"):
        client.get(kinds.NODES, "n")


def test_credentials_in_the_url_are_not_told(tmp_path: Path) -> None:
    path = tmp_path / "kubeconfig"
    config = {
        "clusters": [{"name": "c", "cluster": {"server": "http://me:hidden@127.0.0.1:1/prefix"}}],
        "contexts": [{"name": "x", "context": {"cluster": "c"}}],
        "current-context": "x",
    }
    path.write_text(json.dumps(config))
    client = new_client(str(path))
    assert client.server == "http://127.0.0.1:1/prefix"
    with pytest.raises(errors.ApiUnreachable) as caught:
        client.get(kinds.NODES, "n")
    assert "hidden" not in str(caught.value)


def test_no_kubeconfig(tmp_path: Path) -> None:
    with pytest.raises(errors.InvalidManifest, match="no usable Kubernetes configuration"):
        new_client(str(tmp_path / "absent"))


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[1, 2",
        "[1, 2]",
        "words",
        "\x00",
        (
            "{clusters: [{name: c, cluster: {server: 'http://x', proxy-url: 'foo://x'}}], current-context: x, "
            "contexts: [{name: x, context: {cluster: c}}]}"
        ),
        (
            "{clusters: [{name: c, cluster: {server: 'http://x'}}], users: [{name: u, user: words}], "
            "contexts: [{name: x, context: {cluster: c, user: u}}], current-context: x}"
        ),
    ],
)
def test_a_file_that_is_no_kubeconfig(tmp_path: Path, text: str) -> None:
    """Whatever is wrong with it, and whatever the library makes of that."""
    path = tmp_path / "kubeconfig"
    path.write_text(text)
    with pytest.raises(errors.InvalidManifest, match="no usable Kubernetes configuration") as caught:
        new_client(str(path))
    assert str(path) in str(caught.value)


def test_credentials_that_cannot_be_read_now_are_an_outage(server: ScriptedServer, tmp_path: Path) -> None:
    """A token that is being renewed: the request is tried again like one that nobody answered."""

    def credentials() -> dict[str, str]:
        return {"authorization": (tmp_path / "token").read_text()}

    client = KubeClient(server.url, PoolManager(), credentials, timeout=PATIENCE, user_agent="u")
    with pytest.raises(errors.ApiUnreachable, match="token"):
        client.get(kinds.NODES, "n")
    server.script = [(200, {}), (200, {})]
    for text in ("Bearer one", "Bearer two"):
        (tmp_path / "token").write_text(text)
        client.get(kinds.NODES, "n")
        assert server.authorization == text


def test_a_service_account_whose_token_is_empty_for_a_moment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The token is read again every minute; an empty file is an outage too, and not the end of a thread."""
    token, cert = tmp_path / "token", tmp_path / "ca.crt"
    token.write_text("one")
    cert.write_text("read when the first connection is made")
    monkeypatch.setattr(incluster_config, "SERVICE_TOKEN_FILENAME", str(token))
    monkeypatch.setattr(incluster_config, "SERVICE_CERT_FILENAME", str(cert))
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "127.0.0.1")
    monkeypatch.setenv("KUBERNETES_SERVICE_PORT", "1")
    client = new_client()
    later = SimpleNamespace(now=lambda: datetime(2100, 1, 1))  # noqa: DTZ001 (as the library has it)
    monkeypatch.setattr(incluster_config, "datetime", SimpleNamespace(datetime=later))
    token.write_text("")
    with pytest.raises(errors.ApiUnreachable, match="empty"):
        client.get(kinds.NODES, "n")


def test_watch_events_may_be_cut_anywhere(server: ScriptedServer, client: KubeClient) -> None:
    stream = line("ADDED", pod("p", 5)) + b"\n" + line("BOOKMARK", pod("", 8)) + line("DELETED", pod("p", 9))
    server.script = [(200, [stream[i : i + 7] for i in range(0, len(stream), 7)])]
    events = [
        (event, obj["metadata"]["resourceVersion"])
        for event, obj in client.watch(kinds.PODS, resource_version="4")
    ]
    assert events == [("ADDED", "5"), ("BOOKMARK", "8"), ("DELETED", "9")]


def test_an_error_event_ends_the_watch(server: ScriptedServer, client: KubeClient) -> None:
    server.script = [(200, [line("ERROR", {"kind": "Status", "code": 410, "message": "too old"})])]
    with pytest.raises(errors.Gone, match="too old"):
        list(client.watch(kinds.PODS, resource_version="1"))


def test_a_watch_goes_on_after_the_last_event_and_after_410_the_next_request_is_a_list(
    server: ScriptedServer, client: KubeClient
) -> None:
    server.script = [
        (200, {"metadata": {"resourceVersion": "3"}, "items": [pod("kept", 1)]}),
        (200, [line("ADDED", pod("new", 4)), line("BOOKMARK", pod("", 7))]),
        (200, [line("DELETED", pod("new", 8))]),
        (410, {"message": "too old"}),
        (200, {"metadata": {"resourceVersion": "20"}, "items": []}),
        (200, [line("ADDED", pod("other", 21))]),
    ]
    seen: list[str] = []
    stop = threading.Event()

    def on_change(event: str, obj: Object) -> None:
        seen.append(f"{event} {obj['metadata']['name']}")
        if obj["metadata"]["name"] == "other":
            stop.set()

    WatchCache(client, kinds.PODS, on_change=on_change).run(stop)
    asked = [parse_qs(urlsplit(path).query) for _, path, _ in server.asked]
    assert [one["resourceVersion"][0] if "watch" in one else "list" for one in asked] == [
        "list",
        "3",
        "7",
        "8",
        "list",
        "20",
    ]
    assert seen == ["ADDED kept", "ADDED new", "DELETED new", "DELETED kept", "ADDED other"]


@pytest.mark.usefixtures("fixed")
@pytest.mark.parametrize(
    "told", [None, [], [b"{half"], [line("MODIFIED", pod("kept", 2))], [line("BOOKMARK", pod("", 2))]]
)
@pytest.mark.parametrize(("newest", "then"), [("3", "3"), ("7", "3"), ("2", "list")])
def test_a_watch_that_is_told_nothing_new_asks_whether_the_server_is_of_its_time(
    server: ScriptedServer, client: KubeClient, told: list[Any] | None, newest: str, then: str
) -> None:
    """An etcd that was restored from a backup is at an earlier version: a watch from a later one is silent,
    or tells what is older."""
    at = {"metadata": {"resourceVersion": newest}, "items": []}
    late = {"message": "Too large resource version: 3, current: 2", "reason": "Timeout"}
    server.script = [
        EMPTY,
        (504, late) if told is None else (200, told),
        (200, at),
        (200, [line("ADDED", pod("p", 9))]),
    ]
    WatchCache(client, kinds.PODS).run(Waits())
    asked = [parse_qs(urlsplit(path).query) for _, path, _ in server.asked]
    found = [
        one.get("resourceVersion", [""])[0]
        if "watch" in one
        else "newest"
        if one["limit"] == ["1"]
        else "list"
        for one in asked
    ]
    assert found[:4] == ["list", "3", "newest", then]


def test_a_cache_that_was_never_listed_is_empty(client: KubeClient) -> None:
    cache = WatchCache(client, kinds.PODS)
    assert cache.objects() == []
    assert cache.get("default/a") is None
    assert not cache.wait_synced(0)


class Waits(threading.Event):
    """Records how long it is waited for, and is set after the tenth time."""

    def __init__(self) -> None:
        super().__init__()
        self.seconds: list[float] = []

    def wait(self, timeout: float | None = None) -> bool:
        self.seconds.append(timeout or 0.0)
        if len(self.seconds) == 10:
            self.set()
        return self.is_set()


PAUSES = [0.2, 0.4, 0.8, 1.6, 3.2, 6.4, 12.8, 25.6, 30.0, 30.0]


@pytest.fixture
def fixed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pauses are drawn in the middle, each as long as it is written down."""
    monkeypatch.setattr("koordra.process.backoff.random.random", lambda: 0.5)


@pytest.mark.usefixtures("fixed")
@pytest.mark.parametrize("code", [401, 403, 404, 410, 422, 429, 500, 503])
def test_a_cache_that_gets_no_answer_waits_twice_as_long_each_time_up_to_half_a_minute(
    server: ScriptedServer, client: KubeClient, code: int
) -> None:
    server.script = [(code, {"message": "no"})] * 10
    stop = Waits()
    WatchCache(client, kinds.PODS).run(stop)
    assert stop.seconds == PAUSES
    assert len(server.asked) == 10


EMPTY = (200, {"metadata": {"resourceVersion": "3"}, "items": []})


@pytest.mark.usefixtures("fixed")
@pytest.mark.parametrize("end", [(410, {"message": "too old"}), (200, [line("ERROR", {"code": 410})])])
def test_a_server_whose_history_is_always_gone_is_not_listed_over_and_over(
    server: ScriptedServer, client: KubeClient, end: tuple[int, Any]
) -> None:
    server.script = [EMPTY, end] * 10
    stop = Waits()
    WatchCache(client, kinds.PODS).run(stop)
    assert stop.seconds == PAUSES


@pytest.mark.usefixtures("fixed")
@pytest.mark.parametrize("end", [None, (503, {"message": "starting"})], ids=["bookmark", "away"])
def test_a_watch_that_tells_nothing_is_taken_up_again_later_and_later_without_a_list(
    server: ScriptedServer, client: KubeClient, end: tuple[int, Any] | None
) -> None:
    """A stream of a bookmark that is not new, a server that is away."""
    first, then = (end or (200, [line("BOOKMARK", pod("", version))]) for version in (3, 7))
    server.script = [EMPTY, *[first] * 4, (200, [line("ADDED", pod("p", 7)), b"{half"]), *[then] * 5]
    stop = Waits()
    WatchCache(client, kinds.PODS).run(stop)
    assert stop.seconds == [*PAUSES[:4], *PAUSES[:6]]
    asked = [parse_qs(urlsplit(path).query) for _, path, _ in server.asked]
    assert [one["resourceVersion"][0] if "watch" in one else "list" for one in asked] == [
        "list",
        *["3"] * 5,
        *["7"] * 5,
    ]


@pytest.mark.usefixtures("fixed")
@pytest.mark.parametrize("cut", [False, True])
def test_a_stream_that_was_silent_for_long_is_taken_up_again_at_once(
    monkeypatch: pytest.MonkeyPatch, cut: bool
) -> None:
    """Slices of a node do not change for weeks, and not every server sends bookmarks."""
    clock, watched = Clock(), 0

    class Silent:
        def list(self, kind: object, **_: object) -> tuple[list[Object], str]:
            return [], "1"

        def watch(self, kind: object, **_: object) -> Iterator[tuple[str, Object]]:
            nonlocal watched
            watched += 1
            clock.now += LASTED if watched != 5 else LASTED - 1
            if cut:
                raise errors.ApiUnreachable("cut off by a load balancer")
            return iter(())

    monkeypatch.setattr("koordra.kube.watch.time", clock)
    stop = Waits()
    WatchCache(Silent(), kinds.PODS).run(stop)  # type: ignore[arg-type]
    assert stop.seconds == [*[0.2] * 4, 0.4, *[0.2] * 5]
    assert watched == 10


def test_watches_that_begin_together_do_not_end_together(server: ScriptedServer, client: KubeClient) -> None:
    server.script = [(200, [])] * 20
    for _ in range(20):
        list(client.watch(kinds.PODS, resource_version="1"))
    lengths = [int(parse_qs(urlsplit(path).query)["timeoutSeconds"][0]) for _, path, _ in server.asked]
    assert all(WATCH_SECONDS <= length <= 2 * WATCH_SECONDS for length in lengths)
    assert len(set(lengths)) > 10


def page(number: int, *, following: str = "") -> tuple[int, Any]:
    return 200, {"metadata": {"resourceVersion": "9", "continue": following}, "items": [pod(f"p{number}", 1)]}


def test_a_list_whose_history_is_lost_between_two_pages_is_read_anew_in_one_answer(
    server: ScriptedServer, client: KubeClient
) -> None:
    """The token that comes with the 410 goes on at a later moment, and a watch would miss what lies
    between."""
    late = {"message": "expired", "reason": "Expired", "metadata": {"continue": "later"}}
    server.script = [page(0, following="t"), page(1, following="u"), (410, late), page(2)]
    items, version = client.list(kinds.PODS, field_selector="a=b")
    assert ([item["metadata"]["name"] for item in items], version) == (["p2"], "9")
    asked = [parse_qs(urlsplit(path).query) for _, path, _ in server.asked]
    assert asked == [
        {"limit": ["500"], "fieldSelector": ["a=b"]},
        {"limit": ["500"], "fieldSelector": ["a=b"], "continue": ["t"]},
        {"limit": ["500"], "fieldSelector": ["a=b"], "continue": ["u"]},
        {"fieldSelector": ["a=b"]},
    ]


def test_a_list_that_is_gone_at_once_or_again_is_an_error(server: ScriptedServer, client: KubeClient) -> None:
    gone = (410, {"message": "expired"})
    server.script = [gone]
    with pytest.raises(errors.Gone):
        client.list(kinds.PODS)
    server.script = [page(0, following="t"), gone, gone]
    with pytest.raises(errors.Gone):
        client.list(kinds.PODS)
    assert not server.script


def test_what_is_kept_of_a_page_is_taken_before_the_next_one_is_asked_for(
    server: ScriptedServer, client: KubeClient
) -> None:
    """So a list of a cluster holds one page of whole objects, not all of them."""
    server.script = [page(0, following="t"), page(1, following="u"), page(2)]
    asked_then: list[int] = []

    def short(obj: Object) -> Object:
        asked_then.append(len(server.asked))
        return {"metadata": obj["metadata"]}

    items, _ = client.list(kinds.PODS, each=short)
    assert asked_then == [1, 2, 3]
    assert all(item.keys() == {"metadata"} for item in items)


def test_the_newest_version_costs_one_object(server: ScriptedServer, client: KubeClient) -> None:
    server.script = [page(0, following="more"), (404, {"message": "no such kind"}), (403, {"message": "no"})]
    assert client.newest(kinds.PERSISTENT_VOLUMES)
    for error in (errors.NotFound, errors.Forbidden):
        with pytest.raises(error):
            client.newest(kinds.PERSISTENT_VOLUMES)
    assert [path for _, path, _ in server.asked] == ["/api/v1/persistentvolumes?limit=1"] * 3


def test_a_namespace_that_is_being_deleted_is_as_good_as_gone(
    server: ScriptedServer, client: KubeClient
) -> None:
    """The API server says so by a 403, which elsewhere may be RBAC that has not been read yet."""
    cause = {"reason": "NamespaceTerminating", "message": "namespace a is being terminated"}
    server.script = [
        (403, {"message": "no", "reason": "Forbidden", "details": {"causes": [cause]}}),
        (403, {"message": "no", "details": {"causes": [{"reason": "Other"}]}}),
        (403, {"message": "no", "details": "of a proxy"}),
    ]
    with pytest.raises(errors.NotFound):
        client.create(kinds.PODS, pod("p", 1))
    for _ in range(2):
        with pytest.raises(errors.Forbidden):
            client.create(kinds.PODS, pod("p", 1))


@pytest.mark.usefixtures("fixed")
def test_what_is_retried_waits_twice_as_long_each_time_and_reports_the_first_error_alone() -> None:
    stop, reported = Waits(), list[errors.ApiError]()
    failures = [errors.ApiUnreachable(f"failure {number}") for number in range(10)]

    def ask() -> str:
        raise failures[len(stop.seconds)]

    assert retried(ask, stop=stop, report=reported.append) is None
    assert stop.seconds == PAUSES
    assert reported == failures[:1]
    assert retried(lambda: "served", stop=threading.Event(), report=reported.append) == "served"


def test_the_cache_lists_watches_and_lists_again_when_history_is_gone(
    server: ScriptedServer, client: KubeClient
) -> None:
    """What happened while nobody watched is reported as the same events."""
    server.script = [
        (
            200,
            {
                "metadata": {"resourceVersion": "3"},
                "items": [pod("kept", 1), pod("changed", 2), pod("lost", 3)],
            },
        ),
        (200, [line("ADDED", pod("new", 4)), line("DELETED", pod("new", 5))]),
        (410, {"message": "too old"}),
        (500, {"message": "hiccup"}),
        (200, {"metadata": {"resourceVersion": "9"}, "items": [pod("kept", 1), pod("changed", 8)]}),
    ]
    seen: list[tuple[str, str]] = []
    stop = threading.Event()
    cache = WatchCache(
        client,
        kinds.PODS,
        on_change=lambda event, obj: seen.append((event, obj["metadata"]["name"])),
    )
    thread = threading.Thread(target=cache.run, args=(stop,), daemon=True)
    thread.start()
    assert cache.wait_synced(PATIENCE)
    deadline = time.monotonic() + PATIENCE
    while ("DELETED", "lost") not in seen and time.monotonic() < deadline:
        time.sleep(0.01)
    stop.set()
    thread.join(PATIENCE)
    assert not thread.is_alive()
    assert seen == [
        ("ADDED", "kept"),
        ("ADDED", "changed"),
        ("ADDED", "lost"),
        ("ADDED", "new"),
        ("DELETED", "new"),
        ("MODIFIED", "changed"),
        ("DELETED", "lost"),
    ]
    assert [obj["metadata"]["name"] for obj in cache.objects()] == ["changed", "kept"]
    assert cache.get("a/lost") is None


def steps_until(cache: WatchCache, number: int) -> None:
    """So many of the watch's steps, without the pauses in between."""
    for _, _pause in zip(range(number), cache.steps(), strict=False):
        pass


def test_events_that_were_told_before_change_nothing(server: ScriptedServer, client: KubeClient) -> None:
    """A server that replays, or repeats, what lies before the version that was asked for."""
    old, new = pod("one", 4), {**pod("one", 5), "spec": {"nodeName": "n"}}
    server.script = [
        (200, {"metadata": {"resourceVersion": "3"}, "items": []}),
        (200, [line("ADDED", old), line("MODIFIED", new), line("ADDED", old), line("MODIFIED", new)]),
        (200, [line("BOOKMARK", pod("", 4)), line("DELETED", old), line("DELETED", pod("one", 6))]),
    ]
    seen: list[tuple[str, str]] = []
    cache = WatchCache(
        client,
        kinds.PODS,
        on_change=lambda event, obj: seen.append((event, obj["metadata"]["resourceVersion"])),
    )
    steps_until(cache, 9)
    assert seen == [("ADDED", "4"), ("MODIFIED", "5"), ("DELETED", "6")]
    asked = [parse_qs(urlsplit(path).query) for _, path, _ in server.asked]
    assert [one["resourceVersion"][0] for one in asked if "watch" in one] == ["3", "5"]


def test_what_a_new_list_shows_unchanged_is_the_object_that_was_told(
    server: ScriptedServer, client: KubeClient
) -> None:
    """An audit compares by identity what was told with what there is."""
    told: list[Object] = []
    listed = {"metadata": {"resourceVersion": "9"}, "items": [pod("kept", 9)]}
    server.script = [(200, listed), (410, {"message": "too old"}), (200, listed)]
    cache = WatchCache(client, kinds.PODS, on_change=lambda _event, obj: told.append(obj))
    steps_until(cache, 3)
    assert len(server.asked) == 3
    assert cache.objects() == told
    assert cache.get("a/kept") is told[0]


def test_the_list_of_a_server_that_lags_behind_is_no_list(server: ScriptedServer, client: KubeClient) -> None:
    listed = {"metadata": {"resourceVersion": "9"}, "items": [pod("new", 9)]}
    older = {"metadata": {"resourceVersion": "8"}, "items": []}
    gone = (410, {"message": "too old"})
    server.script = [(200, listed), gone, (200, older), (200, listed), gone]
    cache = WatchCache(client, kinds.PODS)
    steps_until(cache, 5)
    assert cache.get("a/new") is not None
    # Eight times in a row it is the truth: the server's data was restored. The count begins anew each time.
    server.script = [(200, older)] * 8
    steps_until(cache, OLDER_LISTS - 1)
    assert cache.get("a/new") is not None
    steps_until(cache, 1)
    assert cache.objects() == []


def test_a_server_without_the_api_is_told_in_words(server: ScriptedServer, client: KubeClient) -> None:
    missing = (404, {"message": "not found"})
    server.script = [missing] * len(kinds.SERVED)
    with pytest.raises(errors.NotFound, match="koordra needs Kubernetes"):
        client.negotiate()
    server.script = [missing, (403, {"message": "forbidden"}), missing, missing]
    assert client.negotiate() == {}, "who may not ask is not told that there is none"


def test_each_kind_is_spoken_to_in_the_best_version_that_is_served(tmp_path: Path) -> None:
    """A server of 1.32: v1beta1 alone. Callers see and write v1."""
    server = ScriptedServer()
    config = tmp_path / "config"
    config.write_text(
        json.dumps(
            {
                "apiVersion": "v1",
                "kind": "Config",
                "clusters": [{"name": "c", "cluster": {"server": server.url}}],
                "users": [{"name": "u", "user": {}}],
                "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
                "current-context": "c",
            }
        )
    )
    client = new_client(str(config))
    beta: Object = {
        "apiVersion": "resource.k8s.io/v1beta1",
        "kind": "ResourceClaim",
        "metadata": {"name": "c", "namespace": "default"},
        "spec": {"devices": {"requests": [{"name": "gpu", "deviceClassName": "gpu.koordra.io"}]}},
    }
    server.script = [
        (404, {"message": "not found"}),
        (404, {"message": "not found"}),
        (200, {"resources": [{"name": "resourceclaims"}, {"name": "resourceclaims/status"}]}),
        (404, {"message": "not found"}),
        (200, beta),
        (200, beta),
    ]
    assert client.negotiate()["resourceclaims"] == "v1beta1"
    found = client.get(kinds.RESOURCE_CLAIMS, "c", namespace="default")
    assert found["apiVersion"] == "resource.k8s.io/v1"
    assert found["spec"]["devices"]["requests"][0]["exactly"] == {"deviceClassName": "gpu.koordra.io"}
    assert client.create(kinds.RESOURCE_CLAIMS, found) == found
    path = "/apis/resource.k8s.io/v1beta1/namespaces/default/resourceclaims"
    assert server.asked[-2][1] == f"{path}/c"
    assert server.asked[-1] == ("POST", path, beta)
