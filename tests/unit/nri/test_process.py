"""`koordra nri` as a process: one registered at a time, hand-over, kill -9, a clean end."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from koordra._proto.nri import nri_pb2
from koordra.errors import NRIError
from koordra.node_state.locks import HOOK_LOCK, node_lock
from koordra.nri.service import first_start
from tests.cluster.installation import free_port
from tests.fakes.nri_runtime import FakeRuntime, PluginConnection
from tests.patience import PATIENCE
from tests.unit.nri.node_state import NODE, guarded_json, write


class Processes:
    """Starts `koordra nri` on a node's state directory and socket."""

    def __init__(self, folder: Path) -> None:
        self.socket = folder / "nri.sock"
        self.state_dir = folder / "state"
        self.started: list[subprocess.Popen[bytes]] = []
        write(self.state_dir / "guarded.json", guarded_json())
        self.runtime = FakeRuntime(self.socket)

    def start(self, *more: str) -> subprocess.Popen[bytes]:
        flags = ["--node-name", NODE, "--state-dir", str(self.state_dir), "--socket", str(self.socket), *more]
        process = subprocess.Popen([sys.executable, "-m", "koordra", "nri", *flags])
        self.started.append(process)
        return process

    def end(self) -> None:
        for process in self.started:
            process.kill()
            process.wait()
        self.runtime.stop()


@pytest.fixture
def processes(tmp_path: Path) -> Iterator[Processes]:
    processes = Processes(tmp_path)
    yield processes
    processes.end()


def sees_nothing(connection: PluginConnection) -> bool:
    answer = connection.create(nri_pb2.PodSandbox(name="p"), nri_pb2.Container(name="c"))
    return answer is not None and [(entry.key, entry.value) for entry in answer.adjust.env] == [
        ("NVIDIA_VISIBLE_DEVICES", "void")
    ]


def test_a_second_instance_takes_over_when_the_first_ends_or_dies(processes: Processes) -> None:
    first = processes.start()
    connection = processes.runtime.accept()
    connection.handshake()
    assert sees_nothing(connection)

    second = processes.start()
    processes.runtime.listener.settimeout(0.7)
    with pytest.raises(TimeoutError):
        processes.runtime.accept()
    processes.runtime.listener.settimeout(PATIENCE)
    first.send_signal(signal.SIGTERM)
    assert first.wait(PATIENCE) == 0
    connection = processes.runtime.accept()
    connection.handshake()
    assert sees_nothing(connection)

    second.kill()
    assert connection.closed.wait(PATIENCE)
    third = processes.start()
    connection = processes.runtime.accept()
    connection.handshake()
    assert sees_nothing(connection)
    third.send_signal(signal.SIGINT)
    assert third.wait(PATIENCE) == 0


def configured(connection: PluginConnection) -> None:
    stream, _ = connection.registered.get(timeout=PATIENCE)
    connection.respond(stream, nri_pb2.Empty())
    request = nri_pb2.ConfigureRequest(runtime_name="containerd", runtime_version="v2.1.9")
    connection.call("Configure", request, nri_pb2.ConfigureResponse)


def half_synchronized(connection: PluginConnection) -> None:
    configured(connection)
    part = nri_pb2.SynchronizeRequest(more=True)
    connection.call("Synchronize", part, nri_pb2.SynchronizeResponse)


def asked(connection: PluginConnection) -> None:
    connection.handshake()
    connection.send_request("CreateContainer", nri_pb2.CreateContainerRequest())


@pytest.mark.long
def test_killed_at_any_point_of_a_registration_another_one_is_registered(processes: Processes) -> None:
    """kill -9, with the next one standing by, and of the last one with none: the kernel gives the lock back,
    and nothing that one left keeps another from the runtime."""
    points: list[Callable[[PluginConnection], object]] = [
        lambda _: None,  # the socket is open
        lambda connection: connection.registered.get(timeout=PATIENCE),
        configured,
        half_synchronized,
        asked,
    ]
    process = processes.start()
    for point in points:
        connection = processes.runtime.accept()
        point(connection)
        after = processes.start() if point is not asked else None
        process.kill()
        process.wait(PATIENCE)
        assert connection.closed.wait(PATIENCE)
        process = after or processes.start()
    connection = processes.runtime.accept()
    connection.handshake()
    assert sees_nothing(connection)


def test_a_waiting_instance_ends_when_it_is_told_to(tmp_path: Path) -> None:
    stop = threading.Event()
    with node_lock(tmp_path, stop) as first:
        assert first
        threading.Timer(0.1, stop.set).start()
        with node_lock(tmp_path, stop) as second:
            assert not second


def test_a_state_directory_that_cannot_be_had_is_an_error_that_names_it(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with (
        pytest.raises(NRIError, match="file/state"),
        node_lock(tmp_path / "file" / "state", threading.Event()),
    ):
        pass
    (tmp_path / HOOK_LOCK).symlink_to(tmp_path / "elsewhere")
    with pytest.raises(NRIError, match=HOOK_LOCK), node_lock(tmp_path, threading.Event()):
        pass


def test_a_bad_index_is_an_input_error(processes: Processes) -> None:
    flags = ["--node-name", NODE, "--state-dir", str(processes.state_dir), "--plugin-index", "9"]
    ended = subprocess.run([sys.executable, "-m", "koordra", "nri", *flags], capture_output=True, check=False)
    assert ended.returncode == 2
    assert b"NRI plugin index: '9'; use exactly two digits" in ended.stderr


def answers(port: int, path: str) -> tuple[int, str]:
    """Status and text; 0 while nobody listens."""
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=PATIENCE) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        error.close()
        return error.code, ""
    except OSError:
        return 0, ""


def wait_for(port: int, path: str, status: int) -> str:
    deadline = time.monotonic() + PATIENCE
    while (found := answers(port, path))[0] != status:
        assert time.monotonic() < deadline, f"{path} answers {found[0]}, not {status}"
        time.sleep(0.02)
    return found[1]


def test_ready_means_registered_or_standing_by(processes: Processes) -> None:
    """So that an update that surges goes on: the newer one is ready before the older one ends."""
    first, second = free_port(), free_port()
    older = processes.start("--metrics-address", f"127.0.0.1:{first}")
    connection = processes.runtime.accept()
    wait_for(first, "/healthz", 200)
    wait_for(first, "/readyz", 503)
    connection.handshake()
    wait_for(first, "/readyz", 200)

    newer = processes.start("--metrics-address", f"127.0.0.1:{second}")
    wait_for(second, "/readyz", 200)
    assert "koordra_nri_registered 0.0" in wait_for(second, "/metrics", 200)
    older.send_signal(signal.SIGTERM)
    assert older.wait(PATIENCE) == 0
    connection = processes.runtime.accept()
    wait_for(second, "/readyz", 503)
    connection.handshake()
    wait_for(second, "/readyz", 200)
    assert "koordra_nri_registered 1.0" in wait_for(second, "/metrics", 200)
    newer.send_signal(signal.SIGTERM)
    assert newer.wait(PATIENCE) == 0


def test_the_first_start_of_a_hook_on_a_node_is_remembered(tmp_path: Path) -> None:
    stop = threading.Event()
    with node_lock(tmp_path, stop) as alone:
        assert alone
    os.utime(tmp_path / "nri.lock", (1000, 1000))
    with node_lock(tmp_path, stop):
        assert first_start(tmp_path) == 1000


def test_a_first_start_to_come_is_now(tmp_path: Path) -> None:
    """The clock was ahead: otherwise nothing would be evicted until that time."""
    with node_lock(tmp_path, threading.Event()):
        os.utime(tmp_path / HOOK_LOCK, (5000, 5000))
        assert first_start(tmp_path, now=lambda: 2000.0) == 2000
        assert first_start(tmp_path, now=lambda: 6000.0) == 2000
