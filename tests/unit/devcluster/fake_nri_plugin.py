"""A small NRI plugin for the tests of the runtime's side: plain frames, one handler per method."""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from koordra._proto.nri import nri_pb2, ttrpc_pb2
from tests.patience import PATIENCE

BASE = 4096
CREATE = 1 << (nri_pb2.CREATE_CONTAINER - 1)
VALIDATE = 1 << (nri_pb2.VALIDATE_CONTAINER_ADJUSTMENT - 1)
ALL_BUT_VALIDATE = VALIDATE - 1
Handler = Callable[[Any], Any]


class PluginError(Exception):
    """What a handler raises to answer with a status."""

    def __init__(self, code: int, message: str) -> None:
        self.code = code
        super().__init__(message)


class FakePlugin:
    """Handlers by method name; methods without one answer UNIMPLEMENTED. `seen`: (method, request) in order.

    `frames`: sizes of the first frames of a message; the rest goes into one more.
    """

    def __init__(
        self, path: Path, *, name: str = "test", index: str = "10", events: int = CREATE, **handlers: Handler
    ) -> None:
        self.seen: list[tuple[str, Any]] = []
        self.frames = [BASE]
        self.ended = threading.Event()
        self._events = events
        self._handlers = handlers
        self._lock = threading.Lock()
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._socket.connect(str(path))
        self._streams = {1: b"", 2: b""}
        self._answers: dict[int, ttrpc_pb2.Response] = {}
        self._answered = threading.Condition()
        self._next = 1
        threading.Thread(target=self._read, daemon=True).start()
        self.register(name, index)

    def register(self, name: str, index: str) -> ttrpc_pb2.Response:
        request = nri_pb2.RegisterPluginRequest(plugin_name=name, plugin_idx=index)
        return self.call("RegisterPlugin", request)

    def call(self, method: str, request: Any) -> ttrpc_pb2.Response:
        """A call of the Runtime service."""
        stream, self._next = self._next, self._next + 2
        body = ttrpc_pb2.Request(
            service="nri.pkg.api.v1alpha1.Runtime", method=method, payload=request.SerializeToString()
        ).SerializeToString()
        self._send(2, struct.pack(">IIBB", len(body), stream, 1, 0) + body)
        with self._answered:
            assert self._answered.wait_for(lambda: stream in self._answers or self.ended.is_set(), PATIENCE)
            return self._answers.pop(stream, ttrpc_pb2.Response())

    def methods(self) -> list[str]:
        return [method for method, _ in self.seen]

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self.ended.wait(PATIENCE)

    def _send(self, connection: int, message: bytes) -> None:
        """First frames of the sizes in `frames`, then the rest in one."""
        parts, rest = [], message
        for size in self.frames:
            parts.append(rest[:size])
            rest = rest[size:]
        data = b"".join(struct.pack(">II", connection, len(part)) + part for part in (*parts, rest) if part)
        with self._lock, contextlib.suppress(OSError):
            self._socket.sendall(data)

    def _read(self) -> None:
        with contextlib.suppress(OSError, EOFError):
            while True:
                connection, length = struct.unpack(">II", self._exactly(8))
                self._streams[connection] += self._exactly(length)
                self._messages(connection)
        self._socket.close()
        self.ended.set()
        with self._answered:
            self._answered.notify_all()

    def _exactly(self, size: int) -> bytes:
        data = b""
        while len(data) < size:
            part = self._socket.recv(size - len(data))
            if not part:
                raise EOFError
            data += part
        return data

    def _messages(self, connection: int) -> None:
        while len(self._streams[connection]) >= 10:
            length, stream, kind, _ = struct.unpack(">IIBB", self._streams[connection][:10])
            if len(self._streams[connection]) < 10 + length:
                return
            body = self._streams[connection][10 : 10 + length]
            self._streams[connection] = self._streams[connection][10 + length :]
            if kind == 1:
                threading.Thread(target=self._serve, args=(stream, body), daemon=True).start()
            else:
                with self._answered:
                    self._answers[stream] = ttrpc_pb2.Response.FromString(body)
                    self._answered.notify_all()

    def _serve(self, stream: int, body: bytes) -> None:
        call = ttrpc_pb2.Request.FromString(body)
        response = ttrpc_pb2.Response()
        try:
            response.payload = self._handle(call.method, call.payload).SerializeToString()
        except PluginError as error:
            response.status.code, response.status.message = error.code, str(error)
        data = response.SerializeToString()
        self._send(1, struct.pack(">IIBB", len(data), stream, 2, 0) + data)

    def _handle(self, method: str, payload: bytes) -> Any:
        names = {"StateChange": "StateChangeEvent", "Shutdown": "Empty"}
        request = getattr(nri_pb2, names.get(method, f"{method}Request")).FromString(payload)
        self.seen.append((method, request))
        if method in self._handlers:
            return self._handlers[method](request)
        if method == "Configure":
            return nri_pb2.ConfigureResponse(events=self._events)
        if method == "Synchronize":
            return nri_pb2.SynchronizeResponse(more=request.more)
        raise PluginError(12, method)


def late(until: threading.Event, answer: Any) -> Handler:
    def handle(_request: Any) -> Any:
        until.wait(PATIENCE)
        return answer

    return handle


def failing(message: str, code: int = 2) -> Handler:
    def handle(_request: Any) -> Any:
        raise PluginError(code, message)

    return handle


def answering(answer: Any) -> Handler:
    return lambda _request: answer
