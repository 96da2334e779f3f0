"""The runtime's end of an NRI connection: multiplexed streams, ttrpc both ways.

    mux frame    u32 connection | u32 length | payload              connection 1: we call the plugin, 2: the
                                                                    plugin calls us
    ttrpc frame  u32 length | u32 stream | u8 type | u8 flags | data     type 1 request, 2 response

The reader behaves like the Go runtime's, traps included: a payload is read whole into the buffer of whoever
reads, and a buffer that is too small ends the connection. Headers are read through a 4096-byte buffer, so a
message's first frame may hold at most 4096 bytes; what is left is read straight into a buffer of its size, so
it may come in one frame. We write that way.
"""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures import TimeoutError as FutureTimeout
from queue import SimpleQueue
from typing import Final

from google.protobuf.message import DecodeError

from koordra._proto.nri import ttrpc_pb2
from koordra.errors import NRIError, ProtocolError, RemoteError

PLUGIN_SERVICE: Final = 1
RUNTIME_SERVICE: Final = 2
BUFFER: Final = 4096
MAX_MESSAGE: Final = 4 << 20
UNIMPLEMENTED: Final = 12
_MUX = struct.Struct(">II")
_TTRPC = struct.Struct(">IIBB")
_REQUEST, _RESPONSE = 1, 2


class PluginTimeout(NRIError):
    """The plugin did not answer in time."""


class PluginClosed(NRIError):
    """The connection has ended."""


class Trunk:
    """One unix socket with its two byte streams. `on_close` is called once, with the reason."""

    def __init__(self, connection: socket.socket, on_close: Callable[[str], None]) -> None:
        self._socket = connection
        self._on_close = on_close
        self._write_lock = threading.Lock()
        self._streams: dict[int, SimpleQueue[bytes | None]] = {
            PLUGIN_SERVICE: SimpleQueue(),
            RUNTIME_SERVICE: SimpleQueue(),
        }
        self._closed = threading.Event()

    def start(self) -> None:
        threading.Thread(target=self._read, name="nri-trunk", daemon=True).start()

    def payload(self, connection: int) -> bytes:
        """The next frame's payload of a stream. Raises PluginClosed at its end."""
        found = self._streams[connection].get()
        if found is None:
            self._streams[connection].put(None)
            raise PluginClosed("ttrpc: closed")
        return found

    def write(self, connection: int, message: bytes) -> None:
        """One message as [first 4096][rest], not interleaved with others."""
        parts = [message[:BUFFER], message[BUFFER:]] if len(message) > BUFFER else [message]
        data = b"".join(_MUX.pack(connection, len(part)) + part for part in parts)
        try:
            with self._write_lock:
                self._socket.sendall(data)
        except OSError as error:
            self.close(f"write failed: {error}")
            raise PluginClosed("ttrpc: closed") from error

    def close(self, reason: str) -> None:
        if self._closed.is_set():
            return
        self._closed.set()
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()
        for stream in self._streams.values():
            stream.put(None)
        self._on_close(reason)

    def _read(self) -> None:
        try:
            while True:
                connection, length = _MUX.unpack(self._exactly(_MUX.size))
                if length > MAX_MESSAGE + _TTRPC.size:
                    raise ProtocolError(f"mux frame of {length} bytes")
                payload = self._exactly(length)
                if connection in self._streams:
                    self._streams[connection].put(payload)
        except (OSError, ProtocolError, PluginClosed) as error:
            self.close(str(error))

    def _exactly(self, size: int) -> bytes:
        data = b""
        while len(data) < size:
            part = self._socket.recv(size - len(data))
            if not part:
                raise PluginClosed("EOF")
            data += part
        return data


class _GoReader:
    """bufio.Reader of 4096 bytes over a stream whose reads give one whole frame or fail."""

    def __init__(self, trunk: Trunk, connection: int) -> None:
        self._trunk = trunk
        self._connection = connection
        self._buffered = b""

    def message(self) -> tuple[int, int, bytes]:
        """(stream id, type, data) of the next ttrpc frame. Raises PluginClosed and ProtocolError."""
        length, stream, type_, _flags = _TTRPC.unpack(self._full(_TTRPC.size))
        if length > MAX_MESSAGE:
            raise ProtocolError(f"ttrpc message of {length} bytes")
        return stream, type_, self._full(length)

    def _full(self, size: int) -> bytes:
        data = b""
        while len(data) < size:
            left = size - len(data)
            if not self._buffered:
                frame = self._trunk.payload(self._connection)
                room = max(left, BUFFER)
                if len(frame) > room:
                    raise ProtocolError(
                        f"a frame of {len(frame)} bytes does not fit the reader's buffer of {room}"
                    )
                self._buffered = frame
            data += self._buffered[:left]
            self._buffered = self._buffered[left:]
        return data


class Client:
    """ttrpc calls to the plugin over connection 1."""

    def __init__(self, trunk: Trunk) -> None:
        self._trunk = trunk
        self._lock = threading.Lock()
        self._next = 1
        self._waiting: dict[int, Future[ttrpc_pb2.Response]] = {}

    def start(self) -> None:
        threading.Thread(target=self._read, name="nri-client", daemon=True).start()

    def call(self, service: str, method: str, payload: bytes, timeout: float) -> bytes:
        """The answer's payload. Raises RemoteError, PluginTimeout and PluginClosed."""
        request = ttrpc_pb2.Request(
            service=service, method=method, payload=payload, timeout_nano=int(timeout * 1e9)
        ).SerializeToString()
        if len(request) > MAX_MESSAGE:
            raise RemoteError(8, f"message of {len(request)} bytes exceeds the maximum")
        answer: Future[ttrpc_pb2.Response] = Future()
        with self._lock:
            stream, self._next = self._next, self._next + 2
            self._waiting[stream] = answer
        self._trunk.write(PLUGIN_SERVICE, _TTRPC.pack(len(request), stream, _REQUEST, 0) + request)
        try:
            response = answer.result(timeout)
        except FutureTimeout as error:
            raise PluginTimeout(f"{method}: context deadline exceeded") from error
        finally:
            self._waiting.pop(stream, None)
        if response.status.code:
            raise RemoteError(response.status.code, response.status.message)
        return response.payload

    def _read(self) -> None:
        reader = _GoReader(self._trunk, PLUGIN_SERVICE)
        try:
            while True:
                stream, type_, data = reader.message()
                answer = self._waiting.get(stream)
                if type_ == _RESPONSE and answer is not None and not answer.done():
                    answer.set_result(ttrpc_pb2.Response.FromString(data))
        except (NRIError, DecodeError) as error:
            self._trunk.close(str(error))
            for answer in list(self._waiting.values()):
                if not answer.done():
                    answer.set_exception(PluginClosed("ttrpc: closed"))


Handler = Callable[[str, str, bytes], bytes]
"""(service, method, payload) -> payload; raises RemoteError."""


class Server:
    """ttrpc calls of the plugin over connection 2, each in a thread of its own."""

    def __init__(self, trunk: Trunk, handler: Handler) -> None:
        self._trunk = trunk
        self._handler = handler
        self._threads = ThreadPoolExecutor(max_workers=4, thread_name_prefix="nri-server")

    def start(self) -> None:
        threading.Thread(target=self._read, name="nri-server", daemon=True).start()

    def _read(self) -> None:
        reader = _GoReader(self._trunk, RUNTIME_SERVICE)
        newest = 0
        try:
            while True:
                stream, type_, data = reader.message()
                if type_ != _REQUEST:
                    continue
                if stream % 2 == 0 or stream <= newest:
                    self._answer(stream, error=RemoteError(3, f"invalid stream id {stream}"))
                    continue
                newest = stream
                self._threads.submit(self._serve, stream, ttrpc_pb2.Request.FromString(data))
        except (NRIError, DecodeError) as error:
            self._trunk.close(str(error))
        finally:
            self._threads.shutdown(wait=False)

    def _serve(self, stream: int, request: ttrpc_pb2.Request) -> None:
        try:
            payload = self._handler(request.service, request.method, request.payload)
        except RemoteError as error:
            self._answer(stream, error=error)
        except DecodeError as error:
            self._answer(stream, error=RemoteError(3, str(error)))
        else:
            self._answer(stream, payload)

    def _answer(self, stream: int, payload: bytes = b"", *, error: RemoteError | None = None) -> None:
        response = ttrpc_pb2.Response(payload=payload)
        if error is not None:
            response.status.code, response.status.message = error.code, error.message
        data = response.SerializeToString()
        with contextlib.suppress(PluginClosed):
            self._trunk.write(RUNTIME_SERVICE, _TTRPC.pack(len(data), stream, _RESPONSE, 0) + data)
