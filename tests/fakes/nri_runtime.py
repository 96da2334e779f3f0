"""The runtime's end of NRI, as strict as the Go one: what containerd does with a plugin, over a real unix
socket.

It shares no code with koordra.nri but the generated messages. Its quirks are those of the Go implementation:

- a mux frame is handed whole to one read; a reader whose buffer is smaller gets ENOMEM, which ends the
connection;
- ttrpc reads through a 4096-byte buffer, past it only when that is empty and at least 4096 bytes are asked
for;
- 256 frames are queued per connection; one more ends the whole socket;
- an answer that does not come in time ends the plugin, and the container is created without it: it fails
open;
- an answer with a status fails the operation; UNIMPLEMENTED too, but for the events' own methods of NRI 0.12.
"""

from __future__ import annotations

import contextlib
import queue
import socket
import struct
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from koordra._proto.nri import nri_pb2, ttrpc_pb2
from tests.patience import PATIENCE

PLUGIN, RUNTIME = 1, 2
BUFIO, QUEUE, LARGEST = 4096, 256, 4 << 20
UNKNOWN, INVALID_ARGUMENT, DEADLINE_EXCEEDED, UNIMPLEMENTED = 2, 3, 4, 12


class PluginLostError(Exception):
    """The plugin's connection ended, or its answer did not come in time; the runtime carries on without
    it."""


class StatusError(Exception):
    """The plugin answered with a status."""

    def __init__(self, code: int, message: str) -> None:
        self.code = code
        super().__init__(message)


class GoConnection:
    """One mux connection: a queue of whole frames, read the way bufio.Reader(4096) under ttrpc reads it."""

    def __init__(self) -> None:
        self.frames: queue.Queue[bytes | None] = queue.Queue()
        self.buffered = b""

    def read(self, size: int) -> bytes:
        """conn.Read with a buffer of `size` bytes."""
        frame = self.frames.get()
        if frame is None:
            raise EOFError
        if len(frame) > size:
            raise MemoryError(f"ENOMEM: a frame of {len(frame)} bytes does not fit {size}")
        return frame

    def read_full(self, size: int) -> bytes:
        """io.ReadFull on the bufio.Reader."""
        got = b""
        while len(got) < size:
            missing = size - len(got)
            if not self.buffered and missing >= BUFIO:
                got += self.read(missing)
                continue
            if not self.buffered:
                self.buffered = self.read(BUFIO)
            got, self.buffered = got + self.buffered[:missing], self.buffered[missing:]
        return got

    def message(self) -> tuple[int, int, bytes]:
        """One ttrpc message: stream, type, data."""
        length, stream, kind, _flags = struct.unpack(">IIBB", self.read_full(10))
        assert length <= LARGEST, f"a ttrpc message of {length} bytes"
        return stream, kind, self.read_full(length)


@dataclass
class Version:
    """What a runtime says of itself, and what of NRI it knows."""

    name: str = "containerd"
    version: str = "v2.1.9"
    nri: str = ""
    events: int = 0x7FF
    dedicated: bool = False


OLD = Version()
NEW = Version(version="v2.3.0", nri="v0.12.0", events=0x3FFF, dedicated=True)


@dataclass
class FakeRuntime:
    """Listens like a runtime. `accept` gives the next plugin that connects; `stop` ends everything without a
    word."""

    path: Path
    version: Version = field(default_factory=Version)
    request_timeout: float = PATIENCE

    def __post_init__(self) -> None:
        self.path.unlink(missing_ok=True)
        self.listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.listener.bind(str(self.path))
        self.listener.listen()
        self.listener.settimeout(PATIENCE)
        self.plugins: list[PluginConnection] = []

    def accept_from(self, start: Callable[[], None]) -> PluginConnection:
        """Start the plugin, if it is not running yet, and accept it."""
        start()
        return self.accept()

    def accept(self) -> PluginConnection:
        sock, _ = self.listener.accept()
        plugin = PluginConnection(sock, version=self.version, request_timeout=self.request_timeout)
        self.plugins.append(plugin)
        return plugin

    def stop(self) -> None:
        self.listener.close()
        self.path.unlink(missing_ok=True)
        for plugin in self.plugins:
            plugin.close()


class PluginConnection:
    """One plugin, as the runtime sees it. `death` says why the runtime dropped it."""

    def __init__(
        self, sock: socket.socket, *, version: Version = OLD, request_timeout: float = PATIENCE
    ) -> None:
        self.sock = sock
        self.version = version
        self.request_timeout = request_timeout
        self.death = ""
        self.closed = threading.Event()
        self.registered: queue.Queue[tuple[int, nri_pb2.RegisterPluginRequest]] = queue.Queue()
        self.updates: list[nri_pb2.UpdateContainersRequest] = []
        self.answers: dict[int, queue.Queue[tuple[int, bytes]]] = {}
        self.order: list[int] = []
        self.events = 0
        self.stream = -1
        self.lock = threading.Lock()
        self.connections = {PLUGIN: GoConnection(), RUNTIME: GoConnection()}
        for target in (self._read_mux, self._read_answers, self._serve_runtime):
            threading.Thread(target=target, daemon=True).start()

    # ----------------------------------------------------------------------------------------- what it does

    def handshake(
        self,
        *,
        configure_first: bool = False,
        pods: Sequence[nri_pb2.PodSandbox] = (),
        chunks: Sequence[Sequence[nri_pb2.Container]] = ((),),
    ) -> nri_pb2.SynchronizeResponse:
        """Register, configure, synchronize. `configure_first` lets the answer to the registration come
        last."""
        stream, request = self.registered.get(timeout=PATIENCE)
        assert len(request.plugin_idx) == 2
        assert request.plugin_name
        if not configure_first:
            self.respond(stream, nri_pb2.Empty())
        version = self.version
        configured = self.call(
            "Configure",
            nri_pb2.ConfigureRequest(
                runtime_name=version.name, runtime_version=version.version, NRI_version=version.nri
            ),
            nri_pb2.ConfigureResponse,
        )
        self.events = configured.events or version.events
        if self.events & ~version.events:
            self.die("invalid plugin events")
            raise PluginLostError(self.death)
        for n, containers in enumerate(chunks):
            more = n + 1 < len(chunks)
            part = nri_pb2.SynchronizeRequest(pods=pods if n == 0 else (), containers=containers, more=more)
            answer = self.call("Synchronize", part, nri_pb2.SynchronizeResponse)
            assert answer.more == more
            assert not (more and answer.update)
        if configure_first:
            self.respond(stream, nri_pb2.Empty())
        return answer

    def create(
        self, pod: nri_pb2.PodSandbox, container: nri_pb2.Container
    ) -> nri_pb2.CreateContainerResponse | None:
        """CreateContainer; None when the plugin is gone or late (the container runs, unadjusted)."""
        request = nri_pb2.CreateContainerRequest(pod=pod, container=container)
        try:
            return self.call("CreateContainer", request, nri_pb2.CreateContainerResponse)
        except PluginLostError:
            return None

    def announce(self, event: nri_pb2.Event, **about: Any) -> None:
        """An event without an answer that matters, the way this version of NRI sends it."""
        if self.version.dedicated:
            name = "".join(part.capitalize() for part in nri_pb2.Event.Name(event).split("_"))
            request = getattr(nri_pb2, f"{name}Request")(**about)
            try:
                self.call(name, request, getattr(nri_pb2, f"{name}Response"))
                return
            except StatusError as error:
                if error.code != UNIMPLEMENTED:
                    raise
        self.call("StateChange", nri_pb2.StateChangeEvent(event=event, **about), nri_pb2.Empty)

    def call(self, method: str, request: Any, answer: Any, *, service: str = "Plugin") -> Any:
        """Call the plugin; PluginLostError after the request timeout, StatusError for a status."""
        stream = self.send_request(method, request, service=service)
        return self.wait_answer(stream, answer)

    def send_request(
        self, method: str, request: Any, *, service: str = "Plugin", timeout: float | None = None
    ) -> int:
        """Send without waiting; returns the stream id."""
        timeout = self.request_timeout if timeout is None else timeout
        envelope = ttrpc_pb2.Request(
            service=f"nri.pkg.api.v1alpha1.{service}",
            method=method,
            payload=request.SerializeToString(),
            timeout_nano=int(timeout * 1e9),
            metadata=[ttrpc_pb2.KeyValue(key="containerd-namespace-ttrpc", value="k8s.io")],
        )
        with self.lock:
            self.stream += 2
            self.answers[self.stream] = queue.Queue()
            self.send_raw(PLUGIN, ttrpc_frame(self.stream, 1, envelope.SerializeToString()))
            return self.stream

    def wait_answer(self, stream: int, answer: Any) -> Any:
        try:
            _, data = self.answers[stream].get(timeout=self.request_timeout)
        except queue.Empty:
            self.die("deadline exceeded")
            raise PluginLostError(self.death) from None
        if self.closed.is_set() and not data:
            raise PluginLostError(self.death)
        response = ttrpc_pb2.Response.FromString(data)
        if response.status.code:
            raise StatusError(response.status.code, response.status.message)
        return answer.FromString(response.payload)

    def respond(self, stream: int, message: Any = None, *, code: int = 0, text: str = "") -> None:
        """Answer a call of the plugin."""
        response = ttrpc_pb2.Response(payload=message.SerializeToString() if message else b"")
        if code:
            response.status.code, response.status.message = code, text
        with self.lock:
            self.send_raw(RUNTIME, ttrpc_frame(stream, 2, response.SerializeToString()))

    def send_raw(self, connection: int, message: bytes) -> None:
        """One message the way Go writes it: 4096 bytes, then the rest."""
        for payload in filter(None, (message[:BUFIO], message[BUFIO:])):
            self.sock.sendall(struct.pack(">II", connection, len(payload)) + payload)

    def die(self, why: str) -> None:
        """Drop the plugin, as the runtime does; the first reason is kept."""
        self.death = self.death or why
        self.close()

    def close(self) -> None:
        if not self.closed.is_set():
            self.closed.set()
            with contextlib.suppress(OSError):
                self.sock.shutdown(socket.SHUT_RDWR)
            for connection in self.connections.values():
                connection.frames.put(None)

    # ---------------------------------------------------------------------------------------- what it reads

    def _read_mux(self) -> None:
        try:
            with self.sock.makefile("rb") as stream:
                while header := stream.read(8):
                    number, length = struct.unpack(">II", header)
                    payload = stream.read(length)
                    connection = self.connections.get(number)
                    if connection is None:
                        continue
                    if connection.frames.qsize() >= QUEUE:
                        self.die("failed to queue payload for reading")
                        return
                    connection.frames.put(payload)
        except OSError:
            pass
        finally:
            self.die("the plugin closed the connection")
            self.sock.close()

    def _messages(self, connection: int) -> Any:
        try:
            while True:
                yield self.connections[connection].message()
        except EOFError:
            return
        except (MemoryError, AssertionError) as error:
            self.die(str(error))

    def _read_answers(self) -> None:
        for stream, kind, data in self._messages(PLUGIN):
            assert kind == 2, f"type {kind} on the Plugin connection"
            self.order.append(stream)
            if stream in self.answers:
                self.answers[stream].put((kind, data))
        for waiting in self.answers.values():  # what was queued before the end has been delivered
            waiting.put((0, b""))

    def _serve_runtime(self) -> None:
        last = -1
        for stream, kind, data in self._messages(RUNTIME):
            assert kind == 1, f"type {kind} on the Runtime connection"
            if stream <= last or stream % 2 == 0:
                self.respond(stream, code=INVALID_ARGUMENT, text="stream id")
                continue
            last = stream
            request = ttrpc_pb2.Request.FromString(data)
            if request.method == "RegisterPlugin":
                self.registered.put((stream, nri_pb2.RegisterPluginRequest.FromString(request.payload)))
            elif request.method == "UpdateContainers":
                self.updates.append(nri_pb2.UpdateContainersRequest.FromString(request.payload))
                self.respond(stream, nri_pb2.UpdateContainersResponse(failed=self.updates[-1].update[:1]))
            else:
                self.respond(stream, code=UNIMPLEMENTED, text=request.method)


def ttrpc_frame(stream: int, kind: int, data: bytes) -> bytes:
    return struct.pack(">IIBB", len(data), stream, kind, 0) + data
