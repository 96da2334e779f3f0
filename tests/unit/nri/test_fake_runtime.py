"""The fake is as strict as the real runtime: what kills a plugin there (seen on containerd 2.1.9 and 1.7.24)
kills it here."""

from __future__ import annotations

import queue
import socket
import struct
from collections.abc import Callable, Iterator

import pytest

from koordra._proto.nri import nri_pb2, ttrpc_pb2
from tests.fakes.nri_runtime import PluginConnection, ttrpc_frame
from tests.patience import PATIENCE


@pytest.fixture
def ends() -> Iterator[tuple[socket.socket, PluginConnection]]:
    ours, theirs = socket.socketpair()
    connection = PluginConnection(theirs)
    yield ours, connection
    connection.close()
    ours.close()


def answer(size: int) -> bytes:
    response = nri_pb2.CreateContainerResponse()
    response.adjust.annotations["x"] = "y" * size
    return ttrpc_frame(1, 2, ttrpc_pb2.Response(payload=response.SerializeToString()).SerializeToString())


def cut(message: bytes, size: int) -> list[bytes]:
    return [message[n : n + size] for n in range(0, len(message), size)]


@pytest.mark.parametrize(
    ("size", "frames", "dies"),
    [
        (20_000, lambda message: [message], "ENOMEM"),
        (20_000, lambda message: cut(message, 5000), "ENOMEM"),
        (20_000, lambda message: cut(message, 4096), ""),
        (20_000, lambda message: [message[:4096], message[4096:]], ""),
        (3_900_000, lambda message: [message[:4096], message[4096:]], ""),
    ],
    ids=["one frame", "5000", "4096", "4096 and rest", "4096 and rest, large"],
)
def test_which_framing_survives(
    ends: tuple[socket.socket, PluginConnection], size: int, frames: Callable[[bytes], list[bytes]], dies: str
) -> None:
    ours, connection = ends
    connection.answers[1] = queue.Queue()
    try:
        for payload in frames(answer(size)):
            ours.sendall(struct.pack(">II", 1, len(payload)) + payload)
    except (BrokenPipeError, ConnectionResetError):
        assert dies
    if dies:
        assert connection.closed.wait(PATIENCE)
        assert dies in connection.death
    else:
        connection.wait_answer(1, nri_pb2.CreateContainerResponse)
        assert connection.death == ""


class Deaf(PluginConnection):
    """A runtime that has stopped reading the answers of a plugin."""

    def _read_answers(self) -> None:
        return


def test_more_than_256_queued_frames_end_the_socket() -> None:
    ours, theirs = socket.socketpair()
    connection = Deaf(theirs)
    with ours, pytest.raises((BrokenPipeError, ConnectionResetError)):  # noqa: PT012 -- somewhere in the loop
        for _ in range(5000):
            ours.sendall(struct.pack(">II", 1, 1) + b"x")
    assert connection.closed.wait(PATIENCE)
    assert "failed to queue" in connection.death
