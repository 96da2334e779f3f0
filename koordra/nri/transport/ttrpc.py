"""ttrpc: frames on a byte stream, and the calling side.

    frame  = u32 length of data | u32 stream id | u8 type | u8 flags | data   (big endian, header of 10 bytes)

A unary call, which is all that NRI needs, is one Request frame and one Response frame with the same stream id
and no flags. The caller numbers its streams 1, 3, 5...; the peer demands that they rise on the wire, so
numbering and writing share one lock. Responses come back in any order and are matched by number; a Response
for a stream without a pending call is dropped, and frames of unknown types are ignored.

The data is a `ttrpc.Request` (service, method, payload, remaining time, metadata) or a `ttrpc.Response`
(status, payload). The answering side is in `ttrpc_server`.
"""

from __future__ import annotations

import struct
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from dataclasses import dataclass
from enum import IntEnum
from typing import Final, TypeVar

from google.protobuf.message import DecodeError, Message

from koordra._proto.nri import ttrpc_pb2
from koordra.errors import NRIError, ProtocolError, RemoteError
from koordra.inert import shortened

HEADER: Final = struct.Struct(">IIBB")
MAX_DATA: Final = 4 << 20
"""Bytes of data in a frame that we send; a longer message is refused by the peer."""
MAX_RECEIVED: Final = 64 << 20
"""Bytes of data in a frame that we take. More than peers should send: NRI before 0.7 lists all containers in
one message."""

LONGEST_STATUS: Final = 64 << 10
"""Characters of a status, of four bytes at most each."""

REQUEST: Final = 1
RESPONSE: Final = 2
DATA: Final = 3


class Code(IntEnum):
    """The gRPC status codes that are used here."""

    OK = 0
    UNKNOWN = 2
    INVALID_ARGUMENT = 3
    DEADLINE_EXCEEDED = 4
    PERMISSION_DENIED = 7
    RESOURCE_EXHAUSTED = 8
    UNIMPLEMENTED = 12


Answer = TypeVar("Answer", bound=Message)


@dataclass(frozen=True, slots=True)
class Frame:
    """One ttrpc frame. `oversized` marks a frame whose data was too long and has been thrown away unread."""

    stream: int
    kind: int
    data: bytes = b""
    flags: int = 0
    oversized: bool = False


def encode(frame: Frame) -> bytes:
    """The bytes of a frame; ProtocolError when its data is longer than the peer would take."""
    if len(frame.data) > MAX_DATA:
        raise ProtocolError(
            f"a ttrpc message of {len(frame.data)} bytes exceeds the {MAX_DATA} that a peer takes"
        )
    return HEADER.pack(len(frame.data), frame.stream, frame.kind, frame.flags) + frame.data


class Decoder:
    """Cuts a byte stream, fed in pieces of any size, into frames. Holds at most one frame, of `limit` bytes
    of data."""

    def __init__(self, *, limit: int = MAX_RECEIVED) -> None:
        self._limit = limit
        self._buffer = bytearray()
        self._discard = 0

    def feed(self, piece: bytes) -> Iterator[Frame]:
        """The frames that `piece` completes. An oversized one is announced once and its data is skipped."""
        if self._discard:
            skipped = min(self._discard, len(piece))
            self._discard -= skipped
            piece = piece[skipped:]
        self._buffer += piece
        while len(self._buffer) >= HEADER.size:
            length, stream, kind, flags = HEADER.unpack_from(self._buffer)
            end = HEADER.size + length
            if length > self._limit:
                self._discard = max(0, end - len(self._buffer))
                del self._buffer[:end]
                yield Frame(stream, kind, flags=flags, oversized=True)
                continue
            if len(self._buffer) < end:
                return
            data = bytes(self._buffer[HEADER.size : end])
            del self._buffer[:end]
            yield Frame(stream, kind, data, flags)


def frames(receive: Callable[[Frame], None]) -> Callable[[bytes], None]:
    """A receiver of the stream's bytes, in pieces of any size, that hands each frame on."""
    decoder = Decoder()

    def decode(piece: bytes) -> None:
        for frame in decoder.feed(piece):
            receive(frame)

    return decode


def response_frame(stream: int, payload: bytes = b"") -> Frame:
    """The Response to a stream with a payload. Too long a one becomes a status."""
    if len(payload) > MAX_DATA - 16:
        why = f"the answer of {len(payload)} bytes exceeds {MAX_DATA}"
        return status_frame(stream, Code.RESOURCE_EXHAUSTED, why)
    return Frame(stream, RESPONSE, ttrpc_pb2.Response(payload=payload).SerializeToString())


def status_frame(stream: int, code: int, message: str) -> Frame:
    """The Response to a stream with a status that is not OK. The peer takes it, however long the message is:
    who gets no answer carries on as if there were no plugin."""
    status = ttrpc_pb2.Status(code=code, message=shortened(message, LONGEST_STATUS))
    return Frame(stream, RESPONSE, ttrpc_pb2.Response(status=status).SerializeToString())


class Caller:
    """The calling side of one stream pair; safe to use from many threads.

    `write` sends the bytes of one message; it is called under the caller's lock, so stream ids rise on the
    wire.
    """

    def __init__(self, write: Callable[[bytes], None]) -> None:
        self._write = write
        self._lock = threading.Lock()
        self._next = 1
        self._pending: dict[int, Future[Frame]] = {}
        self._closed: Exception | None = None

    def call(
        self,
        service: str,
        method: str,
        request: Message,
        answer: type[Answer],
        *,
        timeout: float | None = None,
    ) -> Answer:
        """Call and wait. `timeout` in seconds; None waits until the connection ends.

        RemoteError: the peer's status, or DEADLINE_EXCEEDED. NRIError: the connection ended first.
        ProtocolError: the request is too long, or the answer is not what it should be.
        """
        envelope = ttrpc_pb2.Request(service=service, method=method, payload=request.SerializeToString())
        if timeout is not None:
            envelope.timeout_nano = int(timeout * 1e9)
        answered: Future[Frame] = Future()
        with self._lock:
            if self._closed is not None:
                raise NRIError(f"{method}: {self._closed}")
            stream = self._next
            message = encode(Frame(stream, REQUEST, envelope.SerializeToString()))
            self._next += 2
            self._pending[stream] = answered
            try:
                self._write(message)
            except NRIError:
                del self._pending[stream]
                raise
        try:
            frame = answered.result(timeout)
        except NRIError as error:
            raise NRIError(f"{method}: {error}") from error
        except TimeoutError as error:
            with self._lock:
                self._pending.pop(stream, None)
            raise RemoteError(Code.DEADLINE_EXCEEDED, f"{method}: no answer within {timeout} s") from error
        return _answer_of(method, frame, answer)

    def on_frame(self, frame: Frame) -> None:
        if frame.kind != RESPONSE:
            return
        with self._lock:
            answered = self._pending.pop(frame.stream, None)
        if answered is not None:
            answered.set_result(frame)

    def close(self, why: Exception) -> None:
        with self._lock:
            self._closed = self._closed or why
            pending, self._pending = self._pending, {}
        for answered in pending.values():
            answered.set_exception(why)


def _answer_of(method: str, frame: Frame, answer: type[Answer]) -> Answer:
    if frame.oversized:
        raise ProtocolError(f"{method}: the answer exceeds {MAX_RECEIVED} bytes")
    try:
        response = ttrpc_pb2.Response.FromString(frame.data)
        if response.status.code != Code.OK:
            raise RemoteError(response.status.code, response.status.message)
        return answer.FromString(response.payload)
    except DecodeError as error:
        raise ProtocolError(f"{method}: the answer is not a {answer.__name__}: {error}") from error


@dataclass(frozen=True, slots=True)
class Call:
    """What a handler may know of the call it answers. `deadline` is on time.monotonic's clock; None for no
    limit."""

    service: str
    method: str
    deadline: float | None = None

    def remaining(self, now: Callable[[], float] = time.monotonic) -> float | None:
        """Seconds that the caller still waits; None for ever."""
        return None if self.deadline is None else self.deadline - now()
