"""Byte streams over one socket: the writing rule, reassembly, and how a socket ends."""

from __future__ import annotations

import socket
import struct
import threading
from functools import partial

import pytest
from hypothesis import given
from hypothesis import strategies as st

from koordra.errors import NRIError, ProtocolError
from koordra.nri.transport import mux
from tests.patience import PATIENCE


def payloads(frames: list[bytes]) -> list[tuple[int, bytes]]:
    return [(struct.unpack(">I", frame[:4])[0], frame[8:]) for frame in frames]


@pytest.mark.parametrize(
    ("size", "sizes"),
    [
        (0, []),
        (1, [1]),
        (4096, [4096]),
        (4097, [4096, 1]),
        (300_000, [4096, 295_904]),
        (3 << 20, [4096, 3_141_632]),
    ],
)
def test_a_message_leaves_as_its_first_4096_bytes_and_all_the_rest(size: int, sizes: list[int]) -> None:
    message = bytes(size)
    frames = payloads(list(mux.split(1, message)))
    assert [len(payload) for _, payload in frames] == sizes
    assert b"".join(payload for _, payload in frames) == message
    assert all(connection == 1 for connection, _ in frames)


@given(
    frames=st.lists(st.tuples(st.integers(0, 2**32 - 1), st.binary(max_size=40)), max_size=12),
    cuts=st.lists(st.integers(1, 30), min_size=1),
)
def test_frames_survive_any_cutting_of_the_byte_stream(
    frames: list[tuple[int, bytes]], cuts: list[int]
) -> None:
    stream = b"".join(
        struct.pack(">II", connection, len(payload)) + payload for connection, payload in frames
    )
    ours, theirs = socket.socketpair()
    trunk, found = mux.Mux(ours), []
    for connection in {connection for connection, _ in frames}:
        trunk.open(connection, lambda payload, connection=connection: found.append((connection, payload)))
    reader = threading.Thread(target=trunk.run)
    reader.start()
    position, turn = 0, 0
    with theirs:
        while position < len(stream):
            step = cuts[turn % len(cuts)]
            theirs.sendall(stream[position : position + step])
            position, turn = position + step, turn + 1
    reader.join(PATIENCE)
    assert found == frames


def test_a_frame_longer_than_any_message_is_a_protocol_error() -> None:
    ours, theirs = socket.socketpair()
    with theirs:
        theirs.sendall(struct.pack(">II", 1, (64 << 20) + 1))
        with pytest.raises(ProtocolError, match="67108865 bytes"):
            mux.Mux(ours).run()


def test_a_frame_that_ends_early_is_dropped() -> None:
    ours, theirs = socket.socketpair()
    trunk, found = mux.Mux(ours), list[bytes]()
    trunk.open(1, found.append)
    with theirs:
        theirs.sendall(struct.pack(">II", 1, 2) + b"ab" + struct.pack(">II", 1, 5) + b"half")
    trunk.run()
    assert found == [b"ab"]


def test_payloads_reach_their_connection_in_order_and_unopened_ones_are_dropped() -> None:
    ours, theirs = socket.socketpair()
    trunk = mux.Mux(ours)
    one: list[bytes] = []
    two: list[bytes] = []
    trunk.open(1, one.append)
    trunk.open(2, two.append)
    with theirs:
        for connection, payload in ((1, b"a"), (7, b"?"), (2, b"b"), (0, b"?"), (1, b"c")):
            theirs.sendall(struct.pack(">II", connection, 1) + payload)
    trunk.run()
    assert (one, two) == ([b"a", b"c"], [b"b"])


def test_messages_of_many_writers_are_not_interleaved() -> None:
    ours, theirs = socket.socketpair()
    trunk = mux.Mux(ours)
    write = partial(trunk.write, 1)
    threads = [threading.Thread(target=write, args=(bytes([n]) * 10_000,)) for n in range(8)]
    for thread in threads:
        thread.start()
    with theirs:
        received = theirs.recv(8 * 10_016, socket.MSG_WAITALL)
    frames = []
    while received:
        _, length = mux.HEADER.unpack_from(received)
        frames.append(received[8 : 8 + length])
        received = received[8 + length :]
    assert [len(payload) for payload in frames] == [4096, 5904] * 8
    assert all(frames[n][0] == frames[n + 1][0] for n in range(0, 16, 2))
    for thread in threads:
        thread.join()
    trunk.close()


def test_writing_to_a_socket_that_ended_is_an_error_and_closes_it() -> None:
    ours, theirs = socket.socketpair()
    trunk = mux.Mux(ours)
    write = partial(trunk.write, 1)
    theirs.close()
    with pytest.raises(NRIError, match="cannot write"):
        write(b"x")
    assert ours.fileno() == -1


def test_close_wakes_the_reader() -> None:
    ours, theirs = socket.socketpair()
    trunk = mux.Mux(ours)
    reader = threading.Thread(target=trunk.run)
    reader.start()
    trunk.close()
    reader.join(PATIENCE)
    assert not reader.is_alive()
    theirs.close()
