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

_SEND_TIMEOUT_S: Final = 10

log = get_logger(__name__)


def split(connection: int, message: bytes) -> Iterator[bytes]:
    """The frames of one message, by the writing rule."""
    for payload in (message[:FIRST_FRAME], message[FIRST_FRAME:]):
        if payload:
            yield HEADER.pack(connection, len(payload)) + payload


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

    def open(self, connection: int, receive: Callable[[bytes], None]) -> None:
        self._receivers[connection] = receive

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
        self._reading = True
        try:
            with self._sock.makefile("rb") as stream:
                while len(header := stream.read(HEADER.size)) == HEADER.size:
                    connection, length = HEADER.unpack(header)
                    if length > MAX_PAYLOAD:
                        raise ProtocolError(
                            f"a mux frame announces {length} bytes; {MAX_PAYLOAD} is the most"
                        )
                    payload = stream.read(length)
                    receive = self._receivers.get(connection)
                    if receive is not None and len(payload) == length:
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
