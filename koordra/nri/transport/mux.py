"""NRI's multiplexer: several byte streams over one unix socket.

    frame = u32 connection id | u32 length of payload | payload      (big endian, 8 bytes of header)

Connection 1 carries the Plugin service (the runtime calls), connection 2 the Runtime service (the plugin
calls). There is no open or close; frames for an unopened connection are dropped. A ttrpc message may
span frames, so each connection's payloads are one byte stream.

**The writing rule.** The peer, written in Go, hands each frame whole to one read and fails when the reader's
buffer is smaller. ttrpc reads a message's header, and whatever comes with it, through a buffer of 4096 bytes;
what is still missing of a long message it then reads straight into a buffer of exactly that length. And a
connection queues at most 256 frames; one more and the whole socket is closed. So a message goes out as
`[first 4096 bytes][all the rest]`: the first frame fits the buffer, the second fits what is missing to the
byte, and no message takes more than two places in the queue. (Frames of 4096 throughout also fit the buffer,
but a message beyond 1 MiB can fill the queue.) Both frames leave under one lock, with nothing between them.
"""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
from collections.abc import Callable, Iterator
from typing import Final

from koordra.errors import NRIError, ProtocolError
from koordra.logs import get_logger

PLUGIN_SERVICE: Final = 1
RUNTIME_SERVICE: Final = 2

HEADER: Final = struct.Struct(">II")
FIRST_FRAME: Final = 4096
"""Bytes of a message in its first frame: the size of the peer's read buffer."""
MAX_PAYLOAD: Final = 64 << 20
"""Bytes of a payload that we take. Newer peers send one ttrpc message of 4 MiB at most, older ones do not
keep to that."""

_READ_SIZE: Final = 1 << 16
_SEND_TIMEOUT_S: Final = 10

log = get_logger(__name__)


def split(connection: int, message: bytes) -> Iterator[bytes]:
    """The frames of one message, by the writing rule."""
    for payload in (message[:FIRST_FRAME], message[FIRST_FRAME:]):
        if payload:
            yield HEADER.pack(connection, len(payload)) + payload


class Decoder:
    """Cuts the bytes of a socket, fed in pieces of any size, into (connection, payload)."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    def feed(self, piece: bytes) -> Iterator[tuple[int, bytes]]:
        """The frames that `piece` completes; ProtocolError for a payload longer than any message can be."""
        self._buffer += piece
        while len(self._buffer) >= HEADER.size:
            connection, length = HEADER.unpack_from(self._buffer)
            if length > MAX_PAYLOAD:
                raise ProtocolError(f"a mux frame announces {length} bytes; {MAX_PAYLOAD} is the most")
            end = HEADER.size + length
            if len(self._buffer) < end:
                return
            payload = bytes(self._buffer[HEADER.size : end])
            del self._buffer[:end]
            yield connection, payload


class Mux:
    """One socket and the connections on it.

    Open the connections first, then `run`, which reads until the socket ends and hands each payload to its
    connection's receiver, in order, on the calling thread. `write` and `close` may be called from any thread.
    """

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self._receivers: dict[int, Callable[[bytes], None]] = {}
        self._write_lock = threading.Lock()
        self._closed = threading.Event()
        self._reading = False
        sock.settimeout(None)
        # A peer that stops reading must not hold a writer, and with it all others, for ever.
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, struct.pack("@ll", _SEND_TIMEOUT_S, 0))

    def open(self, connection: int, receive: Callable[[bytes], None]) -> Callable[[bytes], None]:
        """Hand payloads of `connection` to `receive`; returns the function that writes one message to it."""
        self._receivers[connection] = receive
        return lambda message: self.write(connection, message)

    def write(self, connection: int, message: bytes) -> None:
        """Send one whole message. NRIError when the socket has ended; a half-sent message ends it."""
        with self._write_lock:
            try:
                for frame in split(connection, message):
                    self._sock.sendall(frame)
            except OSError as error:
                self.close()
                raise NRIError(f"cannot write to the runtime: {error}") from error

    def run(self) -> None:
        """Read until the peer closes, `close` is called, or bytes arrive that are not mux (ProtocolError)."""
        decoder = Decoder()
        self._reading = True
        try:
            while not self._closed.is_set():
                piece = self._sock.recv(_READ_SIZE)
                if not piece:
                    return
                for connection, payload in decoder.feed(piece):
                    receive = self._receivers.get(connection)
                    if receive is not None:
                        receive(payload)
        except OSError as error:
            if not self._closed.is_set():
                log.info("nri_connection_lost", error=str(error))
        finally:
            self.close()
            self._sock.close()

    def close(self) -> None:
        """End the socket in both directions. The reader, if there is one, wakes up and gives the descriptor
        back."""
        self._closed.set()
        with contextlib.suppress(OSError):
            self._sock.shutdown(socket.SHUT_RDWR)
        if not self._reading:
            self._sock.close()
