"""Every loop of a node's processes, hook and plugin: what paces it, and how often the hook asks a runtime
that does not let it in. Loops that ask the API server: tests/unit/kube/test_back_off_of_every_loop.py.

A loop that meets a failure and goes round at once keeps a core, and the interpreter that others wait for.
"""

from __future__ import annotations

import ast
import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final

import pytest

import koordra
from koordra.errors import ApiUnreachable, NRIError, RemoteError
from koordra.nri import stub
from koordra.nri.hook.ledger import Ledger
from koordra.nri.stub import Plugin, Session, Stub
from koordra.nri.transport.ttrpc import Code
from tests.fakes.clock import Clock
from tests.fakes.nri_runtime import FakeRuntime
from tests.patience import PATIENCE
from tests.unit.kube.test_back_off_of_every_loop import GROWS, HOUR, Hour
from tests.unit.nri.node_state import MARKER
from tests.unit.nri.verify.test_verify import FakeNode, Told, spec, verification_of

ROOT: Final = Path(koordra.__file__).parent
OF_A_NODE: Final = ("nri", "kubelet_plugin", "node_state", "process", "cli/processes")
COMMANDS: Final = ("kubelet_plugin/selftest/",)
"""A command that ends."""

LOOPS: Final = {
    # The hook.
    "nri/stub.py Stub.run": "stop.wait(backoff.next(longest=most))",
    "nri/transport/ttrpc_server.py Dispatcher._work": "self._next()",
    "nri/transport/ttrpc_server.py Dispatcher._expire_deadlines": "self._earlier_deadline.wait(",
    "nri/verify/verification.py Verification.run": "self._due.wait(min(0.5, period))",
    # The plugin. The first is the loop of publisher, audit, status, overuse, limiters, labels and driver.
    "process/wakeable.py Wakeable.run": "stop.wait(pause.at_least)",
    "kubelet_plugin/dra/node_readings.py NodeReadings.wait_for_first": "self._first.wait(0.1)",
    "kubelet_plugin/dra/restoring.py keep_restoring": "stop.wait(CHECK_INTERVAL)",
    "kubelet_plugin/discovery/watcher.py MachineWatcher.run": "selector.select(",
    "kubelet_plugin/discovery/events/xid_events.py XidEvents._run": "until.wait(self._try_again)",
    "kubelet_plugin/dra/health.py HealthFeed.follow": "self._changed.wait(max(rest, 0.05))",
    "kubelet_plugin/isolation/limiter/broker.py Broker._serve": "time.sleep(_REST)",
    "kubelet_plugin/isolation/limiter/backend.py remove_folder": "own_file_system.unmount(folder)",
    "kubelet_plugin/network/rdma_links.py kernel_exchange": "link.recv(1 << 16)",
    "kubelet_plugin/nvidia_driver/paths_below.py resolved": "links > _MOST_LINKS",
    "kubelet_plugin/nvidia_driver/release_request.py ReleaseFolder.wait": "self.rest(LOOK_EVERY)",
    "kubelet_plugin/nvidia_driver/release_request.py ReleaseFolder.wait_at_end": "self.rest(LOOK_EVERY)",
    # Both.
    "node_state/locks.py wait_for_lock": "stop.wait(retry)",
    "node_state/locks.py StateLock.held": "time.sleep(_STATE_RETRY_S)",
    "node_state/locks.py CardLocks.wait_for": "time.sleep(_STATE_RETRY_S)",
    "node_state/locks.py sole_instance": "wait_for_lock(",
    "process/metrics_server.py MetricsServer._serve": "self._closed.wait(AGAIN)",
    "process/watchdog.py Watchdog._run": "stop.wait(PERIOD)",
}
"""Each loop that may go round without having got anything, and what in it keeps it from doing so at once."""

_WAITS: Final = {"wait", "wait_for", "sleep", "select", "rest", "recv", "accept"}


def may_go_round(loop: ast.While) -> bool:
    """It runs until it is stopped, waits, or goes on after an error; and is not one over data in memory."""
    test = ast.unparse(loop.test)
    return (
        test == "True"
        or "is_set" in test
        or any(
            isinstance(node, ast.Try)
            or (isinstance(node, ast.Call) and getattr(node.func, "attr", "") in _WAITS)
            for node in ast.walk(loop)
        )
    )


def loops_of(tree: ast.AST, place: tuple[str, ...] = ()) -> Iterator[tuple[str, str]]:
    """The qualified name and the source of each."""
    for node in ast.iter_child_nodes(tree):
        inside = (*place, node.name) if isinstance(node, (ast.FunctionDef, ast.ClassDef)) else place
        if isinstance(node, ast.While) and may_go_round(node):
            yield ".".join(place), ast.unparse(node)
        yield from loops_of(node, inside)


def loops() -> dict[str, str]:
    found: dict[str, str] = {}
    for folder in OF_A_NODE:
        for path in sorted((ROOT / folder).rglob("*.py")):
            file = path.relative_to(ROOT).as_posix()
            text = path.read_text()
            if "while " in text and not file.startswith(COMMANDS):
                for name, source in loops_of(ast.parse(text)):
                    found[f"{file} {name}"] = found.get(f"{file} {name}", "") + source
    return found


def test_every_loop_is_known_and_paced_by_what_stands_here() -> None:
    found = loops()
    assert sorted(found) == sorted(LOOPS), "a new loop: give it a pause, and its row"
    assert [name for name, pace in LOOPS.items() if pace not in found[name]] == []


def absent(_stub: Stub) -> socket.socket:
    raise NRIError("cannot reach the runtime")


def closing(_stub: Stub) -> socket.socket:
    ours, theirs = socket.socketpair()
    theirs.close()
    return ours


def dropped(session: Session, **_: Any) -> None:
    """Registered, and the connection ends before the runtime has synchronized."""
    session.close()


def rejected(_session: Session, **_: Any) -> None:
    raise RemoteError(Code.UNKNOWN, "no such plugin here")


AGAIN: Final = HOUR / 1.0 + 40
"""Pauses that double to 2 s, of which the shortest is 1."""
RARELY: Final = HOUR / 7.5 + 40
"""To 15 s: each try stops all container operations of the node for a moment."""
RUNTIMES: Final[dict[str, tuple[Callable[[Stub], socket.socket], Callable[..., None] | None, float]]] = {
    "no socket": (absent, None, HOUR / 0.1 + 1),  # disturbs nobody, and each moment without the hook counts
    "closes": (closing, None, AGAIN),
    "drops": (closing, dropped, RARELY),
    "rejects": (closing, rejected, RARELY),
}


@pytest.mark.parametrize("runtime", RUNTIMES)
def test_an_hour_of_a_runtime_that_does_not_let_the_hook_in(
    runtime: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hour, dials = Hour(), []
    dial, start, most = RUNTIMES[runtime]

    def dialled(one: Stub) -> socket.socket:
        dials.append(hour.now)
        assert len(dials) < 50_000, "without a pause"
        return dial(one)

    monkeypatch.setattr(Stub, "_dial", dialled)
    started = stub.spawn

    def spawned(target: Callable[[], object], *, name: str, until: threading.Event | None = None) -> Any:
        return (
            None if name == "nri-stop" else started(target, name=name, until=until)
        )  # it waits in real time

    monkeypatch.setattr(stub, "spawn", spawned)
    monkeypatch.setattr(stub, "time", SimpleNamespace(monotonic=hour.monotonic, sleep=hour.passes))
    if start is not None:
        monkeypatch.setattr(Session, "start", start)
    Stub(Plugin(), name="x", index="90", socket_path=tmp_path / "s", environ={}).run(hour.stop)
    assert hour.now >= HOUR
    assert 0 < len(dials) <= most


def test_a_runtime_that_answers_nothing_is_waited_for_on_one_connection(tmp_path: Path) -> None:
    """It hangs, and so creates no container either; dialling again would find the same. It is not told as
    registered, and a stop is obeyed."""
    runtime, stop, connected = FakeRuntime(tmp_path / "nri.sock"), threading.Event(), list[bool]()
    observer: Any = SimpleNamespace(
        connected=connected.append, registration=lambda _outcome: None, answered=lambda *_: None
    )
    one = Stub(Plugin(), name="x", index="90", socket_path=runtime.path, environ={}, observer=observer)
    thread = threading.Thread(target=one.run, args=(stop,), daemon=True)
    thread.start()
    connection = runtime.accept()
    connection.registered.get(timeout=PATIENCE)
    runtime.listener.settimeout(0.3)
    with pytest.raises(TimeoutError):
        runtime.accept()
    assert True not in connected
    stop.set()
    thread.join(PATIENCE)
    assert not thread.is_alive()
    runtime.stop()


def test_containers_without_end_are_no_reason_to_ask_an_api_server_that_is_away(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each container with devices wakes the verification; the report of a difference waits for its pause."""
    node, told, clock = FakeNode(tmp_path / "node"), Told(), Clock()
    asked: list[float] = []

    def away(_finding: Any) -> None:
        asked.append(clock.now)
        raise ApiUnreachable("away")

    monkeypatch.setattr(told, "found", away)
    told.away = True
    node.run("c1", spec(env=[f"{MARKER}=granted"]))
    verification = verification_of(tmp_path, node, Ledger(tmp_path), told)
    verification.monotonic = clock.monotonic
    verification._deliver_at = clock.now
    monkeypatch.setattr("koordra.nri.verify.verification.time.sleep", lambda _seconds: None)
    for _ in range(int(HOUR / 5)):
        clock.now += 5
        verification.sync()
    assert 0 < len(asked) <= GROWS
