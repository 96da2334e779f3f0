"""A plugin of a container runtime: subclass `Plugin`, hand it to `Stub`, call `run`.

One life of a connection, in the order that works with every runtime:

    1. the socket: inherited if the runtime launched us (NRI_PLUGIN_SOCKET), else dialled
    2. the Plugin service is served, on mux connection 1
    3. RegisterPlugin on mux connection 2; Configure, and even Synchronize, may arrive before its answer
    4. Configure answers with the events the plugin handles, cut to what the runtime knows
    5. Synchronize, in as many messages as the runtime needs; the plugin sees one listing
    6. events, until the socket ends

A launched plugin then ends, and the runtime's restart launches it anew. A plugin that dialled dials again:
after a lost connection soon, since containers created meanwhile are not seen by it; after a rejection later,
since each registration stops all container operations of the node for a moment.

Handlers get and return the messages of koordra.nri.messages. Which events a plugin subscribes to is
read from the methods that its class overrides. A handler that raises fails the runtime's operation with the
error's text (RemoteError chooses the status code); so does one that is too slow (see
transport/ttrpc_server.py).
"""

from __future__ import annotations

import os
import re
import socket
import threading
import time
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Final

from koordra._proto.nri import nri_pb2
from koordra.errors import InvalidInput, KoordraError, NRIError, RemoteError
from koordra.logs import get_logger
from koordra.nri.transport import mux
from koordra.nri.transport.events import (
    BY_EVENT,
    EVENT_METHODS,
    EventMethod,
    Plugin,
    known_events,
    subscription,
)
from koordra.nri.transport.instrumentation import REGISTERED, REJECTED, UNREACHABLE, Observer
from koordra.nri.transport.ttrpc import Call, Caller, Code, frames
from koordra.nri.transport.ttrpc_server import Dispatcher, Handler
from koordra.process.backoff import Backoff
from koordra.process.lifecycle import count_failure, spawn

__all__ = ["DEFAULT_SOCKET", "Plugin", "Session", "Stub"]

PLUGIN_SERVICE: Final = "nri.pkg.api.v1alpha1.Plugin"
RUNTIME_SERVICE: Final = "nri.pkg.api.v1alpha1.Runtime"
NRI_VERSION: Final = "v0.12.0"
"""The version of NRI that this library implements, sent at registration."""
DEFAULT_SOCKET: Final = Path("/var/run/nri/nri.sock")

FIRST_PAUSE_S: Final = 0.1
LOST_PAUSE_S: Final = 2.0
REJECTED_PAUSE_S: Final = 15.0
STEADY_S: Final = 5.0
"""A connection that lived so long was a good one: pauses between attempts begin anew."""
MOST_EMPTY_PARTS: Final = 100
"""Empty parts of Synchronize, in a row, after which the runtime is taken to be caught in a loop."""
DRAIN_S: Final = 2.0
LINGER_S: Final = 0.05
"""Between the last answer and the end of the socket: a peer in Go may see the end before an answer that it
has queued."""

log = get_logger(__name__)


class Session:
    """One connection of a plugin to a runtime, from registration to end of socket."""

    def __init__(self, plugin: Plugin, sock: socket.socket, *, observer: Observer | None = None) -> None:
        self._plugin = plugin
        self._observer = observer or Observer()
        self._mux = mux.Mux(sock)
        self._pods: list[nri_pb2.PodSandbox] = []
        self._containers: list[nri_pb2.Container] = []
        self._empty_parts = 0
        self.synchronized = threading.Event()
        self._report_lock = threading.Lock()
        self._ended = False
        self._caller = Caller(partial(self._mux.write, mux.RUNTIME_SERVICE))
        self._mux.open(mux.RUNTIME_SERVICE, frames(self._caller.on_frame))
        self._dispatcher = Dispatcher(
            self._handlers(), partial(self._mux.write, mux.PLUGIN_SERVICE), observer=self._observer
        )
        self._mux.open(mux.PLUGIN_SERVICE, frames(self._dispatcher.on_frame))
        self._reader: threading.Thread | None = None

    def start(self, *, name: str, index: str) -> None:
        """Serve, then register; NRIError (RemoteError when the runtime said no) when that fails.

        No timer of our own: the runtime closes the socket when registration takes too long, and a
        registration of another plugin, or a long operation, may legitimately hold ours up.
        """
        self._reader = spawn(self._read, name="nri-reader")
        request = nri_pb2.RegisterPluginRequest(plugin_name=name, plugin_idx=index, NRI_version=NRI_VERSION)
        try:
            self._caller.call(RUNTIME_SERVICE, "RegisterPlugin", request, nri_pb2.Empty)
        except KoordraError:
            self.close()
            raise

    def wait_closed(self, timeout: float | None = None) -> bool:
        """Wait for the end of the connection; False when it outlives `timeout` seconds."""
        if self._reader is None:
            return True
        self._reader.join(timeout)
        return not self._reader.is_alive()

    def update_containers(
        self, updates: Sequence[nri_pb2.ContainerUpdate], *, timeout: float | None = 10
    ) -> Sequence[nri_pb2.ContainerUpdate]:
        """Change running containers unasked; returns those that failed. Never from within a handler: both
        would wait."""
        request = nri_pb2.UpdateContainersRequest(update=updates)
        return self._caller.call(
            RUNTIME_SERVICE, "UpdateContainers", request, nri_pb2.UpdateContainersResponse, timeout=timeout
        ).failed

    def close(self, *, drain: float = 0) -> None:
        """End the connection, after up to `drain` seconds for the requests that are being answered."""
        if drain:
            self._dispatcher.wait_idle(drain)
            time.sleep(LINGER_S)
        self._mux.close()

    def _read(self) -> None:
        why: Exception = NRIError("the runtime closed the connection")
        try:
            self._mux.run()
        except NRIError as error:
            log.error("nri_protocol_error", error=str(error))
            why = error
        except Exception as error:  # the connection ends, and the next one may not meet it
            count_failure(error)
            log.exception("nri_reader_failed")
        finally:
            self._report_connection(connected=False)
            self._caller.close(why)
            self._dispatcher.close()

    def _report_connection(self, *, connected: bool) -> None:
        """Report to the observer; a Synchronize whose handler outlives the connection is ignored."""
        with self._report_lock:
            self._ended = self._ended or not connected
            self._observer.connected(connected and not self._ended)

    def _handlers(self) -> dict[tuple[str, str], Handler]:
        methods: dict[str, Handler] = {
            "Configure": self._configure,
            "Synchronize": self._synchronize,
            "Shutdown": self._shutdown,
            "StateChange": self._state_change,
            **{row.method: self._event(row) for row in EVENT_METHODS},
        }
        return {(PLUGIN_SERVICE, method): handler for method, handler in methods.items()}

    def _event(self, row: EventMethod) -> Handler:
        handle = self._plugin.handler(row)

        def serve(payload: bytes, call: Call) -> bytes:
            response = None if handle is None else handle(row.request.FromString(payload), call)
            # An empty response is a valid one of every event: nothing to change.
            return b"" if response is None else bytes(response.SerializeToString())

        return serve

    def _configure(self, payload: bytes, _call: Call) -> bytes:
        request = nri_pb2.ConfigureRequest.FromString(payload)
        self._plugin.configure(request)
        known, wanted = known_events(request), self._plugin.wanted_events()
        events = subscription(wanted, known)
        log.info(
            "nri_configured",
            runtime=f"{request.runtime_name} {request.runtime_version}",
            nri=request.NRI_version or None,
            events=hex(events),
            unknown_to_runtime=hex(wanted & ~known),
        )
        return nri_pb2.ConfigureResponse(events=events).SerializeToString()

    def _synchronize(self, payload: bytes, _call: Call) -> bytes:
        request = nri_pb2.SynchronizeRequest.FromString(payload)
        empty = request.more and not request.pods and not request.containers
        self._empty_parts = self._empty_parts + 1 if empty else 0
        if self._empty_parts > MOST_EMPTY_PARTS:
            # Some runtimes cut the number of pods per part down to none where a long listing has very few
            # pods, and never get to the last. All container operations wait meanwhile, so an error is the
            # better answer.
            raise RemoteError(Code.UNKNOWN, "the runtime sends empty parts of its listing without end")
        self._pods += request.pods
        self._containers += request.containers
        if request.more:
            return nri_pb2.SynchronizeResponse(more=True).SerializeToString()
        pods, self._pods = self._pods, []
        containers, self._containers = self._containers, []
        updates = self._plugin.synchronize(pods, containers)
        self.synchronized.set()
        self._report_connection(connected=True)
        return nri_pb2.SynchronizeResponse(update=updates).SerializeToString()

    def _shutdown(self, _payload: bytes, _call: Call) -> bytes:
        self._plugin.shutdown()
        return b""

    def _state_change(self, payload: bytes, call: Call) -> bytes:
        """An event in the form of older runtimes. One that is not handled succeeds: an error would fail the
        operation."""
        change = nri_pb2.StateChangeEvent.FromString(payload)
        row = BY_EVENT.get(change.event)
        if row is not None and (handle := self._plugin.handler(row)) is not None:
            fields = {"pod": change.pod, "container": change.container}
            known = row.request.DESCRIPTOR.fields_by_name
            handle(row.request(**{name: value for name, value in fields.items() if name in known}), call)
        return b""


class Stub:
    """Keeps a plugin registered with the runtime of this node until it is stopped.

    `name` and `index` are ignored by a runtime that launched the plugin itself (they are those of the
    executable).
    """

    def __init__(
        self,
        plugin: Plugin,
        *,
        name: str,
        index: str,
        socket_path: Path = DEFAULT_SOCKET,
        environ: Mapping[str, str] = os.environ,
        observer: Observer | None = None,
    ) -> None:
        if not re.fullmatch(r"[A-Za-z0-9_.+-]+", name):
            raise InvalidInput(repr(name), field="NRI plugin name", remedy="use letters, digits and _ . + -")
        if not re.fullmatch(r"[0-9]{2}", index):
            remedy = "use exactly two digits, such as 90"
            raise InvalidInput(repr(index), field="NRI plugin index", remedy=remedy)
        self._plugin = plugin
        self._observer = observer or Observer()
        self._name = name
        self._index = index
        self._socket_path = socket_path
        self._inherited = environ.get("NRI_PLUGIN_SOCKET", "")
        self._session: Session | None = None

    def run(self, stop: threading.Event) -> None:
        """Register and serve until `stop`; for a launched plugin until the connection ends. NRIError:
        launched, but without a usable socket, or rejected."""
        spawn(partial(self._close_on, stop), name="nri-stop", until=stop)
        if self._inherited:
            self._serve(_inherited_socket(self._inherited), stop)
            return
        backoff = Backoff(first=FIRST_PAUSE_S)
        reported = ""
        while not stop.is_set():
            most = LOST_PAUSE_S
            connected = time.monotonic()
            try:
                sock = self._dial()
            except NRIError as error:
                # Dialling a missing socket disturbs nobody, and every container that the runtime creates
                # before we are registered is created without the hook.
                self._observer.registration(UNREACHABLE)
                reported = self._report(error, reported)
                stop.wait(FIRST_PAUSE_S)
                continue
            try:
                if not self._serve(sock, stop):
                    # Each attempt stops the node's container operations until the runtime gives it up, which
                    # may take longer than a good connection needs to be called steady.
                    log.error("nri_not_synchronized", socket=str(self._socket_path))
                    most = REJECTED_PAUSE_S
                elif time.monotonic() - connected >= STEADY_S:
                    backoff.reset()
                    reported = ""
            except NRIError as error:
                if isinstance(error, RemoteError):
                    most = REJECTED_PAUSE_S
                reported = self._report(error, reported)
            stop.wait(backoff.next(longest=most))

    def _report(self, error: NRIError, reported: str) -> str:
        """Log once per reason, not once per attempt; returns the reason."""
        if str(error) != reported:
            log.warning("nri_not_registered", socket=str(self._socket_path), error=str(error))
        return str(error)

    def _dial(self) -> socket.socket:
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            sock.connect(str(self._socket_path))
        except OSError as error:
            sock.close()
            raise NRIError(
                f"cannot reach the runtime at {self._socket_path}: {error.strerror or error}"
            ) from error
        return sock

    def _serve(self, sock: socket.socket, stop: threading.Event) -> bool:
        """One connection, to its end or to `stop`; False when it ended before the runtime synchronized."""
        session = self._session = Session(self._plugin, sock, observer=self._observer)
        try:
            if stop.is_set():  # `_close_on` may have looked before there was a session
                return True
            try:
                session.start(name=self._name, index=self._index)
            except NRIError:
                self._observer.registration(REJECTED)
                raise
            self._observer.registration(REGISTERED)
            log.info("nri_registered", name=self._name, index=self._index)
            session.wait_closed()
            log.info("nri_connection_ended", stopping=stop.is_set())
            return stop.is_set() or session.synchronized.is_set()
        finally:
            session.close(drain=DRAIN_S if stop.is_set() else 0)
            session.wait_closed(DRAIN_S)

    def _close_on(self, stop: threading.Event) -> None:
        """Turn `stop` into the end of the session, letting it finish what it answers."""
        stop.wait()
        if self._session is not None:
            self._session.close(drain=DRAIN_S)


def _inherited_socket(number: str) -> socket.socket:
    try:
        return socket.socket(fileno=int(number))
    except (ValueError, OSError) as error:
        raise NRIError(f"NRI_PLUGIN_SOCKET={number!r} is not the descriptor of a socket: {error}") from error
