"""Frames and calls: byte vectors seen on containerd 2.1.9, cutting at any place, answers in any order."""

from __future__ import annotations

import struct
import threading
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from koordra._proto.nri import nri_pb2, ttrpc_pb2
from koordra.errors import NRIError, ProtocolError, RemoteError
from koordra.nri.transport import mux, ttrpc
from koordra.nri.transport.ttrpc import Caller, Code, Frame, encode
from tests.patience import PATIENCE

REGISTER = bytes.fromhex(
    "0000000200000051"  # mux: connection 2, 81 bytes
    "00000047000000010100"  # ttrpc: 71 bytes, stream 1, request, no flags
    "0a1c" + b"nri.pkg.api.v1alpha1.Runtime".hex() + "120e" + b"RegisterPlugin".hex() + "1a11"
    "0a03"
    + b"fgd".hex()
    + "1202"
    + b"10".hex()
    + "1a06"
    + b"v0.8.0".hex()
    + "2080e497d012"  # 5 s in nanoseconds
)


def register_request() -> nri_pb2.RegisterPluginRequest:
    return nri_pb2.RegisterPluginRequest(plugin_name="fgd", plugin_idx="10", NRI_version="v0.8.0")


def test_register_plugin_is_the_known_bytes() -> None:
    sent: list[bytes] = []
    caller = Caller(lambda message: sent.extend(mux.split(2, message)))
    calling = threading.Thread(
        target=caller.call,
        args=("nri.pkg.api.v1alpha1.Runtime", "RegisterPlugin", register_request(), nri_pb2.Empty),
        kwargs={"timeout": 5.0},
    )
    calling.start()
    while not sent:
        calling.join(0.01)
    caller.on_frame(next(ttrpc.Decoder().feed(bytes.fromhex("00000000000000010200"))))
    calling.join(PATIENCE)
    assert not calling.is_alive()
    assert b"".join(sent) == REGISTER


@pytest.mark.parametrize(
    ("stream", "payload", "expected"),
    [
        (1, nri_pb2.ConfigureResponse(events=0x7FF).SerializeToString(), "00000005000000010200120310ff0f"),
        (3, b"", "00000000000000030200"),
    ],
    ids=["Configure", "empty"],
)
def test_responses_are_the_known_bytes(stream: int, payload: bytes, expected: str) -> None:
    assert encode(ttrpc.response_frame(stream, payload)).hex() == expected


def test_a_status_is_googles() -> None:
    response = ttrpc_pb2.Response.FromString(ttrpc.status_frame(5, Code.UNKNOWN, "no").data)
    assert (response.status.code, response.status.message, response.payload) == (2, "no", b"")


@given(
    frames=st.lists(
        st.builds(
            Frame,
            stream=st.integers(0, 2**32 - 1),
            kind=st.integers(0, 255),
            data=st.binary(max_size=60),
            flags=st.integers(0, 255),
        ),
        max_size=10,
    ),
    cuts=st.lists(st.integers(1, 40), min_size=1),
)
def test_frames_survive_any_cutting_of_the_byte_stream(frames: list[Frame], cuts: list[int]) -> None:
    stream = b"".join(encode(frame) for frame in frames)
    decoder, found, position, turn = ttrpc.Decoder(), [], 0, 0
    while position < len(stream):
        step = cuts[turn % len(cuts)]
        found += decoder.feed(stream[position : position + step])
        position, turn = position + step, turn + 1
    assert found == frames


@given(length=st.integers(101, 500), step=st.integers(1, 600))
def test_an_oversized_frame_is_announced_and_skipped(length: int, step: int) -> None:
    stream = struct.pack(">IIBB", length, 9, 1, 0) + bytes(length) + encode(Frame(11, 1, b"next"))
    decoder, found = ttrpc.Decoder(limit=100), []
    for position in range(0, len(stream), step):
        found += decoder.feed(stream[position : position + step])
    assert found == [Frame(9, 1, oversized=True), Frame(11, 1, b"next")]


def test_too_long_a_message_is_not_sent() -> None:
    sent: list[bytes] = []
    caller = Caller(sent.append)
    huge = nri_pb2.RegisterPluginRequest(plugin_name="x" * (ttrpc.MAX_DATA + 1))
    with pytest.raises(ProtocolError, match="exceeds"):
        caller.call("s", "m", huge, nri_pb2.Empty, timeout=1)
    assert sent == []


def test_too_long_an_answer_becomes_a_status() -> None:
    response = ttrpc_pb2.Response.FromString(ttrpc.response_frame(1, bytes(ttrpc.MAX_DATA)).data)
    assert response.status.code == Code.RESOURCE_EXHAUSTED


def test_answers_may_come_in_any_order() -> None:
    streams: list[int] = []
    caller = Caller(lambda message: streams.append(struct.unpack(">I", message[4:8])[0]))
    results: dict[str, str] = {}

    def call(name: str) -> None:
        answer = caller.call("s", name, nri_pb2.Empty(), nri_pb2.PluginInstance, timeout=PATIENCE)
        results[name] = answer.name

    threads = [threading.Thread(target=call, args=(f"m{n}",)) for n in range(4)]
    for thread in threads:
        thread.start()
    while len(streams) < 4:
        threads[0].join(0.01)
    for stream in reversed(streams):
        payload = nri_pb2.PluginInstance(name=f"answer {stream}").SerializeToString()
        caller.on_frame(ttrpc.response_frame(stream, payload))
    for thread in threads:
        thread.join(PATIENCE)
    assert streams == [1, 3, 5, 7]
    assert sorted(results.values()) == ["answer 1", "answer 3", "answer 5", "answer 7"]


def immediate(*frames: Frame) -> Caller:
    """A caller that is answered with the given frames as soon as it has written."""
    holder: list[Caller] = []

    def write(_message: bytes) -> None:
        threading.Thread(target=lambda: [holder[0].on_frame(frame) for frame in frames]).start()

    holder.append(Caller(write))
    return holder[0]


@pytest.mark.parametrize(
    ("frame", "error", "text"),
    [
        (ttrpc.status_frame(1, 2, "plugin says no"), RemoteError, "status 2: plugin says no"),
        (Frame(1, ttrpc.RESPONSE, b"\xff\xff"), ProtocolError, "not a PluginInstance"),
        (Frame(1, ttrpc.RESPONSE, oversized=True), ProtocolError, "exceeds"),
    ],
)
def test_bad_answers_are_errors_of_ours(frame: Frame, error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=text):
        immediate(frame).call("s", "m", nri_pb2.Empty(), nri_pb2.PluginInstance, timeout=PATIENCE)


def test_stray_frames_do_no_harm() -> None:
    good = ttrpc.response_frame(1, nri_pb2.PluginInstance(name="ok").SerializeToString())
    caller = immediate(ttrpc.response_frame(99), Frame(1, 77, b"?"), Frame(1, ttrpc.DATA), good)
    assert caller.call("s", "m", nri_pb2.Empty(), nri_pb2.PluginInstance, timeout=PATIENCE).name == "ok"


def test_no_answer_in_time_is_a_deadline() -> None:
    with pytest.raises(RemoteError, match=r"no answer within 0\.05 s") as raised:
        Caller(lambda _message: None).call("s", "m", nri_pb2.Empty(), nri_pb2.Empty, timeout=0.05)
    assert raised.value.code == Code.DEADLINE_EXCEEDED


def test_the_end_of_the_connection_fails_what_waits_and_what_comes() -> None:
    caller = Caller(lambda _message: threading.Thread(target=caller.close, args=(NRIError("gone"),)).start())
    for _ in range(2):
        with pytest.raises(NRIError, match="m: gone"):
            caller.call("s", "m", nri_pb2.Empty(), nri_pb2.Empty, timeout=PATIENCE)


def test_a_failed_write_leaves_nothing_behind() -> None:
    def fail(_message: bytes) -> Any:
        raise NRIError("cannot write")

    caller = Caller(fail)
    with pytest.raises(NRIError, match="cannot write"):
        caller.call("s", "m", nri_pb2.Empty(), nri_pb2.Empty, timeout=PATIENCE)
    caller.close(NRIError("gone"))
