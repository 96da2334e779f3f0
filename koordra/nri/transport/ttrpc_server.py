"""The server side of ttrpc: every request is answered before the caller's timeout.

Requests arrive on the connection's reading thread, which must not block; worker threads answer them, so that
a request is served while another, or a call of our own, is pending.

**Why the deadline matters.** A container runtime that gets no answer within its timeout drops the plugin and
carries on as if the plugin did not exist: it fails open. An answer with an error status makes it fail the
operation: closed. So when a handler has used ANSWER_BY of the time that the request allows, an error is
sent in its place, and its later answer is dropped.

A handler that never returns is answered in its place as well, and so are all requests once every worker is
caught in one: nothing is created then, and the watchdog tells of it (koordra.process.watchdog). What was
answered is kept no longer, and beyond MOST_OPEN requests are refused at once: memory has a bound however long
that goes on.

Invalid requests are answered as Go's ttrpc does: an even or non-rising stream id and a stray
Data frame with INVALID_ARGUMENT, too long a message with RESOURCE_EXHAUSTED, an unknown service or method
with UNIMPLEMENTED.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable
from typing import Final

from google.protobuf.message import DecodeError

from koordra._proto.nri import ttrpc_pb2
from koordra.errors import KoordraError, NRIError, RemoteError
from koordra.inert import inert, shortened
from koordra.logs import get_logger
from koordra.nri.transport.instrumentation import ANSWERED, FAILED, LATE, REFUSED, Observer
from koordra.nri.transport.ttrpc import (
    DATA,
    LONGEST_STATUS,
    REQUEST,
    Call,
    Code,
    Frame,
    encode,
    response_frame,
    status_frame,
)
from koordra.process.lifecycle import spawn
from koordra.process.progress import watched

ANSWER_BY: Final = 0.75
"""Fraction of a request's time after which it is answered with an error in the handler's place."""
SLOW: Final = 0.5
"""Fraction of a request's time from which on an answer is logged as slow."""

MOST_WORKERS: Final = 32
"""Threads of a connection; each of its first requests makes one."""
MOST_OPEN: Final = 1024
"""Requests that are not answered yet. A node has some hundred pods, and a runtime asks a few at a time."""

Handler = Callable[[bytes, Call], bytes]
"""Payload in, payload out. Raise RemoteError for a status of one's own; any other error is answered with
UNKNOWN and its text."""

log = get_logger(__name__)


class Dispatcher:
    """Answers the requests of one connection.

    `handlers` maps (service, method) to a Handler; `write` sends the bytes of one message; `observer` gets
    how each request ended.
    """

    def __init__(
        self,
        handlers: dict[tuple[str, str], Handler],
        write: Callable[[bytes], None],
        *,
        observer: Observer | None = None,
    ) -> None:
        self._handlers = handlers
        self._write = write
        self._observer = observer or Observer()
        self._waiting: dict[int, Callable[[], None]] = {}
        """By stream, in the order of arrival: what no worker has taken yet."""
        self._workers = 0
        self._last_stream = 0
        self._lock = threading.Lock()
        self._arrived = threading.Condition(self._lock)
        self._earlier_deadline = threading.Condition(self._lock)
        self._drained = threading.Condition(self._lock)
        self._open: dict[int, tuple[float, Call, float]] = {}
        """By stream: when it is answered in the handler's place, the call, and when it arrived."""
        self._sending = 0
        self._watch: threading.Thread | None = None
        self._closed = threading.Event()

    def on_frame(self, frame: Frame) -> None:
        """Take a frame that arrived; returns without waiting for the handler."""
        received = time.monotonic()
        if frame.kind not in (DATA, REQUEST):
            return
        try:
            request, handler = self._request_of(frame)
            self._accept(frame.stream, request, handler, received)
        except RemoteError as error:
            self._send(status_frame(frame.stream, error.code, error.message))

    def _request_of(self, frame: Frame) -> tuple[ttrpc_pb2.Request, Handler]:
        """The request in a frame and who answers it. RemoteError: the status of an invalid one."""
        if frame.kind == DATA:
            raise RemoteError(Code.INVALID_ARGUMENT, "data on a closed stream")
        if frame.stream % 2 == 0 or frame.stream <= self._last_stream:
            raise RemoteError(Code.INVALID_ARGUMENT, "stream ids are odd and rise")
        self._last_stream = frame.stream
        if frame.oversized:
            raise RemoteError(Code.RESOURCE_EXHAUSTED, "the message is too long")
        try:
            request = ttrpc_pb2.Request.FromString(frame.data)
        except DecodeError as error:
            raise RemoteError(Code.INVALID_ARGUMENT, f"not a ttrpc request: {error}") from error
        handler = self._handlers.get((request.service, request.method))
        if handler is None:
            raise RemoteError(Code.UNIMPLEMENTED, f"{request.service}/{request.method} is not served here")
        return request, handler

    def wait_idle(self, timeout: float) -> bool:
        """Wait until every request has been answered; False when that takes longer than `timeout` seconds."""
        with self._lock:
            return self._drained.wait_for(lambda: not self._open and not self._sending, timeout)

    def close(self) -> None:
        """The connection has ended: answer nothing more and let the threads go."""
        with self._lock:
            self._closed.set()
            self._open.clear()
            self._waiting.clear()
            self._arrived.notify_all()
            self._drained.notify_all()
            self._earlier_deadline.notify_all()

    def _accept(self, stream: int, request: ttrpc_pb2.Request, handler: Handler, received: float) -> None:
        allowed = request.timeout_nano / 1e9 if request.timeout_nano > 0 else None
        call = Call(request.service, request.method, None if allowed is None else received + allowed)
        answer_by = math.inf if allowed is None else received + allowed * ANSWER_BY
        with self._lock:
            if len(self._open) >= MOST_OPEN:
                why = (
                    f"{call.method}: {MOST_OPEN} requests wait for an answer; refused, and may be tried again"
                )
                raise RemoteError(Code.RESOURCE_EXHAUSTED, why)
            earliest = min((each for each, _, _ in self._open.values()), default=math.inf)
            self._open[stream] = answer_by, call, received
            self._waiting[stream] = lambda: self._serve(stream, request.payload, call, handler, received)
            self._arrived.notify()
            if answer_by < earliest:
                self._earlier_deadline.notify_all()
        if self._watch is None:
            self._watch = spawn(self._expire_deadlines, name="nri-deadlines", until=self._closed)
        if self._workers < MOST_WORKERS:
            self._workers += 1
            spawn(self._work, name=f"nri-worker-{self._workers}", until=self._closed)

    def _work(self) -> None:
        while (serve := self._next()) is not None:
            try:
                serve()
            except Exception:
                log.exception("nri_worker_failed")

    def _next(self) -> Callable[[], None] | None:
        """What arrived first of what waits; None once the connection has ended."""
        with self._lock:
            self._arrived.wait_for(lambda: self._waiting or self._closed.is_set())
            return self._waiting.pop(next(iter(self._waiting))) if self._waiting else None

    def _serve(self, stream: int, payload: bytes, call: Call, handler: Handler, received: float) -> None:
        with self._lock:
            if stream not in self._open:
                return  # answered in our place, or the connection ended, while all workers were busy
        outcome = FAILED
        try:
            with watched(f"answer {call.method}"):
                answer = response_frame(stream, handler(payload, call))
            outcome = ANSWERED
        except RemoteError as error:
            outcome = REFUSED
            answer = status_frame(stream, error.code, error.message)
        except DecodeError as error:
            answer = status_frame(stream, Code.INVALID_ARGUMENT, f"{call.method}: {error}")
        except KoordraError as error:
            answer = status_frame(stream, Code.UNKNOWN, str(error))
        except Exception as error:
            log.exception("nri_handler_failed", method=call.method)
            why = inert(shortened(f"{call.method}: {type(error).__name__}: {error}", LONGEST_STATUS))
            answer = status_frame(stream, Code.UNKNOWN, why)
        took = time.monotonic() - received
        if call.deadline is not None and took > (call.deadline - received) * SLOW:
            log.warning("nri_answer_slow", method=call.method, seconds=round(took, 3))
        if self._finish(stream, answer):
            self._observer.answered(call.method, outcome, took)

    def _finish(self, stream: int, answer: Frame) -> bool:
        """Send the answer of a stream; False when another was sent before."""
        with self._lock:
            if stream not in self._open:
                return False
            del self._open[stream]
            self._waiting.pop(stream, None)
            self._sending += 1
        try:
            self._send(answer)
        finally:
            with self._lock:
                self._sending -= 1
                self._drained.notify_all()
        return True

    def _send(self, answer: Frame) -> None:
        try:
            self._write(encode(answer))
        except NRIError as error:
            log.info("nri_answer_not_sent", stream=answer.stream, error=str(error))

    def _expire_deadlines(self) -> None:
        """Answer requests whose time is used up; woken for a deadline that is earlier than all others."""
        while True:
            with self._lock:
                if self._closed.is_set():
                    return
                now = time.monotonic()
                late = {stream: entry for stream, entry in self._open.items() if entry[0] <= now}
                if not late:
                    earliest = min((each for each, _, _ in self._open.values()), default=math.inf)
                    self._earlier_deadline.wait(min(earliest - now, threading.TIMEOUT_MAX))
                    continue
            for stream, (_, call, received) in late.items():
                log.error("nri_handler_late", method=call.method, stream=stream)
                why = f"{call.method}: the plugin did not answer in time; refused, and may be tried again"
                with watched("answer late requests"):
                    if self._finish(stream, status_frame(stream, Code.DEADLINE_EXCEEDED, why)):
                        self._observer.answered(call.method, LATE, time.monotonic() - received)
