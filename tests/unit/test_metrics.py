"""Counting, and telling it over HTTP."""

from __future__ import annotations

import socket
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import pytest

from koordra.errors import InvalidInput
from koordra.metrics import Metrics, bounded, counter, gauge, registry
from koordra.process import metrics_server
from koordra.process.connections import REASONS
from koordra.process.metrics_server import (
    MOST_ANSWERS,
    MOST_CONNECTIONS,
    MetricsServer,
    Shared,
    parse_address,
    serve,
)
from tests.fakes.clock import Clock
from tests.fakes.metric_samples import sample
from tests.patience import PATIENCE


def read(port: int, path: str) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=PATIENCE) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode()


def test_instruments_are_counted_and_served() -> None:
    metrics, ready, well = Metrics(), [False], [True]
    metrics.counter(counter("koordra_test_things_total", "Things.", reason=("Tainted", "Idle"))).labels(
        "Tainted"
    ).inc(3)
    server = serve(metrics, "127.0.0.1:0", ready=lambda: ready[0], well=lambda: well[0])
    assert server is not None
    try:
        assert 'koordra_test_things_total{reason="Tainted"} 3.0' in read(server.port, "/metrics")[1]
        assert read(server.port, "/healthz")[0] == 200
        assert read(server.port, "/readyz")[0] == 503
        ready[0] = True
        assert read(server.port, "/readyz?verbose")[0] == 200
        well[0] = False
        assert read(server.port, "/healthz") == (503, "not well, see the log\n")
        assert read(server.port, "/else")[0] == 404
        with pytest.raises(InvalidInput, match="in use"):
            serve(metrics, f"127.0.0.1:{server.port}")
    finally:
        server.close()
    assert sample(metrics, "koordra_test_things_total", {"reason": "Tainted"}) == 3.0


def test_addresses() -> None:
    assert parse_address(":9400") == ("", 9400)
    assert parse_address("[::1]:9400") == ("::1", 9400)
    assert serve(Metrics(), "") is None
    for wrong in ("9400", "host:", "host:99999", "host:x"):
        with pytest.raises(InvalidInput, match="host:port"):
            parse_address(wrong)


@contextmanager
def served(metrics: Metrics, clock: Clock) -> Iterator[MetricsServer]:
    server = MetricsServer(
        metrics, ("127.0.0.1", 0), ready=lambda: True, well=lambda: True, clock=clock.monotonic
    )
    try:
        yield server
    finally:
        server.close()


def test_who_opens_connections_and_says_nothing_takes_no_threads_and_no_probes_place() -> None:
    """A pod reaches the address of every node process: out of threads, files or memory the hook would isolate
    nobody."""
    metrics = Metrics()
    with served(metrics, Clock()) as server:
        before = threading.active_count()
        silent = [
            socket.create_connection(("127.0.0.1", server.port), timeout=PATIENCE)
            for _ in range(3 * MOST_CONNECTIONS)
        ]
        for half in silent[::2]:
            half.sendall(b"GET /metrics HT")
        assert read(server.port, "/healthz") == (200, "ok\n")
        displaced = sample(metrics, "koordra_metrics_connections_closed_total", {"reason": "displaced"})
        assert displaced is not None
        assert displaced >= 2 * MOST_CONNECTIONS
        deadline = time.monotonic() + PATIENCE
        while threading.active_count() > before + MOST_CONNECTIONS and time.monotonic() < deadline:
            time.sleep(0.01)
        assert threading.active_count() <= before + MOST_CONNECTIONS
        for each in silent:
            each.close()


def test_who_trickles_is_cut_off() -> None:
    metrics, clock = Metrics(), Clock()
    with (
        served(metrics, clock) as server,
        socket.create_connection(("127.0.0.1", server.port), timeout=PATIENCE) as slow,
    ):
        slow.sendall(b"GET /")
        assert read(server.port, "/healthz")[0] == 200, "the one before it is accepted"
        clock.now += 11.0
        assert slow.recv(1) == b""
        closed = sample(metrics, "koordra_metrics_connections_closed_total", {"reason": "slow"})
        assert closed in (1, 2), "and perhaps the other, which has been answered, and is not gone yet"


def test_a_peer_that_breaks_off_leaves_no_line(capfd: pytest.CaptureFixture[str]) -> None:
    """A traceback for each would fill the node's disk at a tenant's will."""
    with served(Metrics(), Clock()) as server:
        for request in (b"GET /metrics HTTP/1.1\r\n\r\n", b"\xff" * 100, b"GET / HTTP/9.9\r\n\r\n", b"\r\n"):
            broken = socket.create_connection(("127.0.0.1", server.port), timeout=PATIENCE)
            broken.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\x01\0\0\0\0\0\0\0")
            broken.sendall(request)
            broken.close()  # a reset
        assert read(server.port, "/healthz")[0] == 200
    assert capfd.readouterr() == ("", "")


def test_what_many_ask_at_once_is_answered_once_and_nobody_hears_of_before_he_asked() -> None:
    asked: list[int] = []
    begun, go_on = threading.Semaphore(0), threading.Semaphore(0)

    def ask() -> int:
        asked.append(len(asked))
        begun.release()
        assert go_on.acquire(timeout=PATIENCE)
        return asked[-1]

    shared, answers = Shared(ask), [-1] * 20
    threads = [
        threading.Thread(target=lambda at: answers.__setitem__(at, shared()), args=(at,)) for at in range(20)
    ]
    threads[0].start()
    assert begun.acquire(timeout=PATIENCE)
    for each in threads[1:]:
        each.start()
    for _ in threads:
        go_on.release()
    for each in threads:
        each.join(PATIENCE)
    assert answers[0] == 0
    assert min(answers[1:]) >= 1, "who came while the first was answered has not its answer"
    assert len(asked) < 10, "and it was not put for each"


def test_why_connections_ended_is_told_from_the_start() -> None:
    with served(Metrics(), Clock()) as server:
        text = read(server.port, "/metrics")[1]
    for reason in REASONS:
        assert f'koordra_metrics_connections_closed_total{{reason="{reason}"}} 0.0' in text


def test_a_port_that_an_older_instance_still_has_is_taken_when_it_is_free(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """On the host's network two instances of the plugin overlap in an update."""
    monkeypatch.setattr(metrics_server, "AGAIN", 0.01)
    older, newer = Metrics(), Metrics()
    older.gauge(gauge("koordra_test_which", "Which.")).set(1)
    newer.gauge(gauge("koordra_test_which", "Which.")).set(2)
    first = serve(older, "127.0.0.1:0")
    assert first is not None
    address = f"127.0.0.1:{first.port}"
    second = serve(newer, address, patient=True)
    assert second is not None
    assert "koordra_test_which 1.0" in read(first.port, "/metrics")[1]
    first.close()
    deadline = time.monotonic() + PATIENCE
    while time.monotonic() < deadline:
        with suppress(OSError):
            if "koordra_test_which 2.0" in read(first.port, "/metrics")[1]:
                break
    else:
        raise AssertionError("the newer one does not take the port")
    third = serve(Metrics(), address, patient=True)
    assert third is not None
    third.close()
    second.close()


def test_what_is_listed_is_there_from_the_start_and_what_is_not_is_other() -> None:
    metrics = Metrics()
    found = metrics.counter(counter("koordra_test_told_total", "Told.", reason=("a", "b"), by=("x",)))
    assert sample(metrics, "koordra_test_told_total", {"reason": "b", "by": "x"}) == 0
    found.labels("a tenant's words", "x").inc()
    assert sample(metrics, "koordra_test_told_total", {"reason": "other", "by": "x"}) == 1
    table = metrics.table(gauge("koordra_test_now", "Now.", state=("on", "off"), of=bounded("the node's")))
    table.set({("on", "n"): 1, ("half", "n"): 2})
    assert sample(metrics, "koordra_test_now", {"state": "on", "of": "n"}) == 1
    assert sample(metrics, "koordra_test_now", {"state": "other", "of": "n"}) == 2
    table.set({("on", "m"): 1})
    assert sample(metrics, "koordra_test_now", {"state": "on", "of": "n"}) is None
    assert "_created" not in metrics.text()
    with pytest.raises(ValueError, match="koordra_test_now"):
        metrics.table(gauge("koordra_test_now", "Again."))


def test_rows_of_nodes_are_text_that_is_made_once() -> None:
    metrics = Metrics()
    declared = gauge("koordra_test_devices", "Devices.", node=bounded("nodes"), type=bounded("types"))
    tables = metrics.node_tables([declared])
    tables.put('n"\\\n', ({("gpu",): 2.0, ("nic",): 0.5},))
    tables.put("m", ({("gpu",): 1e12},))
    for _ in range(2):
        assert sample(metrics, "koordra_test_devices", {"node": 'n"\\\n', "type": "nic"}) == 0.5
        assert sample(metrics, "koordra_test_devices", {"node": "m", "type": "gpu"}) == 1e12
    tables.put("m", ({("gpu",): 3.0},))
    tables.put('n"\\\n', None)
    assert sample(metrics, "koordra_test_devices", {"node": "m", "type": "gpu"}) == 3
    assert metrics.text().count("koordra_test_devices{") == 1
    tables.clear()
    assert "koordra_test_devices{" not in metrics.text()
    assert metrics.text().count("# TYPE koordra_test_devices gauge") == 1


def test_who_asks_without_end_has_so_many_answers_made_in_a_second() -> None:
    """Handlers of the hook share the interpreter with whoever asks for metrics: counted, as the cost is."""
    clock, made = Clock(), []
    shared = Shared(lambda: made.append(len(made)) or made[-1], clock=clock.monotonic)  # type: ignore[func-returns-value]
    answers = [shared() for _ in range(10_000)]
    assert answers == [*range(MOST_ANSWERS), *[MOST_ANSWERS - 1] * (10_000 - MOST_ANSWERS)]
    clock.now += 1
    assert shared() == MOST_ANSWERS, "and in the next second again"


def test_metrics_over_http_are_made_so_often_and_nobody_is_turned_away() -> None:
    """A hook whose probes are turned away would be restarted."""
    metrics, clock, made = Metrics(), Clock(), []
    whole, metrics.text = metrics.text, lambda: made.append(1) or whole()  # type: ignore[method-assign,func-returns-value,assignment]
    with served(metrics, clock) as server:
        for _ in range(3 * MOST_ANSWERS):
            assert read(server.port, "/metrics")[0] == 200
            assert read(server.port, "/healthz") == (200, "ok\n")
    assert len(made) == MOST_ANSWERS


def test_a_process_that_goes_on_with_a_stuck_thread_says_so_and_is_not_restarted() -> None:
    stuck: set[str] = set()
    address = ("127.0.0.1", 0)
    server = MetricsServer(
        Metrics(), address, ready=lambda: True, well=lambda: True, stuck=lambda: frozenset(stuck)
    )
    try:
        assert read(server.port, "/healthz") == (200, "ok\n")
        stuck |= {"verification", "answer CreateContainer"}
        expected = "ok, but stuck: answer CreateContainer, verification; see the log\n"
        assert read(server.port, "/healthz") == (200, expected)
    finally:
        server.close()


def test_however_labels_are_spelt_they_are_one_series_and_spellings_are_forgotten(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(registry, "MOST_KNOWN", 2)
    metrics = Metrics()
    made = metrics.counter(counter("koordra_test_told_total", "What", word=("a", "b")))
    for word in ("a", "x", "y", "a", "z", "x"):
        made.labels(word).inc()
    assert sample(metrics, "koordra_test_told_total", {"word": "a"}) == 2
    assert sample(metrics, "koordra_test_told_total", {"word": "other"}) == 4
    assert len(made.known) <= 2, "a tenant's words are not kept without a bound"
