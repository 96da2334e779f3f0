"""A process that could not be limited is told of for as long as it lives, and a moment longer."""

from __future__ import annotations

import errno
import fcntl
import itertools
import json
import os
import socket
import struct
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace

import pytest

from koordra.kubelet_plugin.isolation.limiter import broker as limiter_broker
from koordra.kubelet_plugin.isolation.limiter import region
from koordra.kubelet_plugin.isolation.limiter import region as layout
from koordra.kubelet_plugin.isolation.limiter import usage as limiter_usage
from koordra.kubelet_plugin.isolation.limiter.broker import Broker
from koordra.kubelet_plugin.isolation.limiter.region import SLOTS_MAX
from koordra.kubelet_plugin.isolation.limiter.report import verdict
from koordra.kubelet_plugin.isolation.limiter.usage import REFUSED_SHOWN
from koordra.kubelet_plugin.sampling.host_processes import start_time
from tests.patience import PATIENCE
from tests.unit.limiter.native_build import environment

UUID = "GPU-01020304-0506-0708-090a-0b0c0d0e0f10"
GIB = 1 << 30
NOT_PERMITTED = 800
OFD_SETLK = 37


@pytest.fixture
def claim(built: Path, tmp_path: Path) -> Path:
    folder = tmp_path / "regions" / "c"
    region.allow(folder, claim="c", uuid=UUID, limit=GIB)
    subprocess.run([str(built / "test" / "tenant"), "--world", str(tmp_path), UUID, str(8 * GIB)], check=True)
    return folder


@contextmanager
def running(built: Path, claim: Path) -> Iterator[dict[str, int]]:
    """A program of the claim that has tried CUDA and stays; what it said."""
    with subprocess.Popen(
        [str(built / "test" / "tenant"), str(GIB), "stay"],
        env=environment(built, regions=claim.parent, world=claim.parent.parent),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as process:
        assert process.stdout is not None
        yield json.loads(process.stdout.readline())
        process.kill()


@contextmanager
def all_slots_owned(claim: Path) -> Iterator[None]:
    """As if a thousand processes lived."""
    files = []
    for name in layout.ALIVE:
        file = os.open(claim / name, os.O_RDONLY)
        fcntl.fcntl(file, OFD_SETLK, struct.pack("=hh4xqqi4x", fcntl.F_RDLCK, os.SEEK_SET, 0, SLOTS_MAX, 0))
        files.append(file)
    yield
    for file in files:
        os.close(file)


def test_a_refused_process_is_told_until_it_is_gone(
    built: Path, claim: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limiter_usage, "REFUSED_SHOWN", 0.0)
    with all_slots_owned(claim), running(built, claim) as said:
        assert said["init"] == NOT_PERMITTED
        found = verdict(claim.parent, "c")
        assert found is not None
        assert (found.enforced, found.reason) == (False, "ProcessRefused")
    with running(built, claim) as said:
        assert said["init"] == 0
        found = verdict(claim.parent, "c")
        assert found is not None
        assert (found.enforced, found.reason) == (True, "Enforcing")
        assert found.message.endswith("refused before, and gone: 1")


def test_one_that_ends_at_once_is_told_for_a_minute(built: Path, claim: Path) -> None:
    with all_slots_owned(claim), running(built, claim):
        pass
    now = time.monotonic()
    assert limiter_usage.read(claim, now=now).handshake == "refused"
    assert limiter_usage.read(claim, now=now + REFUSED_SHOWN + 1).handshake == "waiting"
    assert limiter_usage.read(claim, now=now + REFUSED_SHOWN + 1).turned_away == 1


def test_a_time_that_was_made_up_is_not_believed(claim: Path) -> None:
    with (claim / "usage").open("r+b") as usage:
        usage.seek(56)
        usage.write(b"\xff" * 8)
    assert limiter_usage.read(claim).handshake == "waiting"


def test_a_process_without_a_slot_calls_too(built: Path, claim: Path) -> None:
    called = threading.Event()
    broker = Broker(claim.parent)
    broker.listen("c")
    broker.on_call = called.set
    with all_slots_owned(claim), running(built, claim) as said:
        assert said["init"] == NOT_PERMITTED
        assert called.wait(PATIENCE)
    broker.forget("c")


def call(claim: Path, message: bytes) -> socket.socket:
    connection = socket.socket(socket.AF_UNIX)
    folder = os.open(claim, os.O_PATH)
    connection.connect(f"/proc/self/fd/{folder}/broker.sock")
    os.close(folder)
    connection.sendall(message)
    return connection


def test_who_calls_and_says_nothing_keeps_no_other_claim_waiting(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However patient the node is with him."""
    monkeypatch.setattr(limiter_broker, "_PATIENCE", 3600.0)
    for uid in ("a", "b"):
        (tmp_path / uid).mkdir()
    broker = Broker(tmp_path)
    called = threading.Semaphore(0)
    broker.on_call = called.release
    for uid in ("a", "b"):
        broker.listen(uid)
    with call(tmp_path / "a", b""):
        for _ in range(3):
            with call(tmp_path / "b", struct.pack("=QQ", SLOTS_MAX, 0)):
                assert called.acquire(timeout=PATIENCE)
        broker.forget("a")
        (tmp_path / "a" / "broker.sock").unlink()
        broker.listen("a")
        with call(tmp_path / "a", struct.pack("=QQ", SLOTS_MAX, 0)):
            assert called.acquire(timeout=PATIENCE)
    assert broker.caller(os.getpid(), start_time(os.getpid()) or 0) == "a"


def test_who_calls_and_says_nothing_keeps_his_own_claim_waiting_for_a_moment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limiter_broker, "_PATIENCE", 0.02)
    (tmp_path / "a").mkdir()
    broker = Broker(tmp_path)
    called = threading.Semaphore(0)
    broker.on_call = called.release
    broker.listen("a")
    silent = [call(tmp_path / "a", b"") for _ in range(5)]
    with call(tmp_path / "a", b"short"), call(tmp_path / "a", struct.pack("=QQ", SLOTS_MAX, 0)):
        assert called.acquire(timeout=PATIENCE)
    for each in silent:
        each.settimeout(PATIENCE)
        assert each.recv(1) == b"", "hung up"
        each.close()


def test_a_defect_met_with_one_message_keeps_no_other_claim_waiting(tmp_path: Path) -> None:
    for uid in ("a", "b"):
        (tmp_path / uid).mkdir()
    broker, called = Broker(tmp_path), threading.Semaphore(0)

    def on_call() -> None:
        called.release()
        if broker.caller(os.getpid(), start_time(os.getpid()) or 0) == "a":
            raise ValueError("a defect")

    broker.on_call = on_call
    for uid in ("a", "b"):
        broker.listen(uid)
    for uid in ("a", "b", "a", "b"):
        with call(tmp_path / uid, struct.pack("=QQ", SLOTS_MAX, 0)):
            assert called.acquire(timeout=PATIENCE)


def test_processes_by_the_thousand_push_out_their_own_claims_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Or those of another would be strangers to the node."""
    monkeypatch.setattr(limiter_broker, "MOST_CALLERS", 3)
    begun = itertools.count()
    monkeypatch.setattr(limiter_broker, "start_time", lambda _pid: next(begun))
    broker, called = Broker(tmp_path), threading.Semaphore(0)
    broker.on_call = called.release
    for uid in ("a", "b"):
        (tmp_path / uid).mkdir()
        broker.listen(uid)
    for uid in ("b", *"aaaaa", "b"):
        with call(tmp_path / uid, struct.pack("=QQ", SLOTS_MAX, 0)):
            assert called.acquire(timeout=PATIENCE)
    known = [broker.caller(os.getpid(), began) for began in range(7)]
    assert known == ["b", None, None, "a", "a", "a", "b"]
    broker._remember("a", (os.getpid(), 6))
    assert broker.caller(os.getpid(), 6) == "a", "who has two claims, and calls both, is the last one's"
    broker.forget("a")
    assert [broker.caller(os.getpid(), began) for began in range(7)] == ["b", *[None] * 6]


def test_a_broker_that_is_out_of_files_rests_before_it_looks_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its socket stays ready, and so a loop without a pause would keep the interpreter from all others."""
    (tmp_path / "a").mkdir()
    broker, rests, called = Broker(tmp_path), threading.Semaphore(0), threading.Semaphore(0)
    short = iter(range(3))
    ready = broker._ready

    def out_of_files(sock: socket.socket, claim_uid: str) -> None:
        if next(short, None) is not None:
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
        ready(sock, claim_uid)

    monkeypatch.setattr(broker, "_ready", out_of_files)
    fake = SimpleNamespace(sleep=lambda _seconds: rests.release(), monotonic=time.monotonic)
    monkeypatch.setattr(limiter_broker, "time", fake)
    broker.on_call = called.release
    broker.listen("a")
    with call(tmp_path / "a", struct.pack("=QQ", SLOTS_MAX, 0)):
        assert called.acquire(timeout=PATIENCE), "and then answers"
    for _ in range(3):
        assert rests.acquire(blocking=False)
    assert not rests.acquire(blocking=False)
    broker.forget("a")


def test_folders_that_the_disk_does_not_give_keep_the_plugin_from_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "a").mkdir()
    listed = Path.iterdir
    fails = iter(range(1))

    def iterdir(folder: Path) -> Iterator[Path]:
        if folder == tmp_path and next(fails, None) is not None:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return iter(listed(folder))

    monkeypatch.setattr(Path, "iterdir", iterdir)
    broker, called = Broker(tmp_path), threading.Semaphore(0)
    broker.on_call = called.release
    broker.resume()
    broker.resume()
    with call(tmp_path / "a", struct.pack("=QQ", SLOTS_MAX, 0)):
        assert called.acquire(timeout=PATIENCE)
    broker.forget("a")
