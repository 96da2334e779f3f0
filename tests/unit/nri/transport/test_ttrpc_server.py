"""Answering requests: concurrently, always, and before the caller stops waiting.

The dispatcher reads a clock that only the tests move, so what happens before a deadline does not depend on
how fast the machine is. The dispatcher still waits in real time and then reads its clock again: a time that
has come on the clock is noticed within the seconds that the request allows.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

from koordra._proto.nri import ttrpc_pb2
from koordra.errors import NRIError, RemoteError
from koordra.nri.transport.ttrpc import DATA, REQUEST, Call, Code, Decoder, Frame
from koordra.nri.transport.ttrpc_server import Dispatcher, Handler
from tests.fakes.clock import Clock
from tests.patience import PATIENCE


class Wire:
    """Collects what a dispatcher sends, by stream."""

    def __init__(self) -> None:
        self.answers: dict[int, ttrpc_pb2.Response] = {}
        self.order: list[int] = []
        self._arrived = threading.Condition()

    def write(self, message: bytes) -> None:
        (frame,) = Decoder().feed(message)
        with self._arrived:
            assert frame.stream not in self.answers, "answered twice"
            self.answers[frame.stream] = ttrpc_pb2.Response.FromString(frame.data)
            self.order.append(frame.stream)
            self._arrived.notify_all()

    def wait(self, stream: int) -> ttrpc_pb2.Response:
        with self._arrived:
            assert self._arrived.wait_for(lambda: stream in self.answers, PATIENCE), f"no answer on {stream}"
            return self.answers[stream]


def request(stream: int, method: str, payload: bytes = b"", *, timeout: float = 0) -> Frame:
    envelope = ttrpc_pb2.Request(service="s", method=method, payload=payload, timeout_nano=int(timeout * 1e9))
    envelope.metadata.add(key="traceparent", value="00-1-2-01")
    return Frame(stream, REQUEST, envelope.SerializeToString())


class Bench:
    """A dispatcher with an echo, a gate that handlers can wait at, and handlers that fail."""

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self.wire = Wire()
        self.gate = threading.Event()
        self.calls: list[Call] = []
        self.refusal = "not yours"
        handlers: dict[str, Handler] = {
            "echo": self.echo,
            "wait": self.wait,
            "refuse": self.refuse,
            "break": self.broken,
        }
        self.dispatcher = Dispatcher(
            {("s", name): handler for name, handler in handlers.items()}, self.wire.write
        )

    def echo(self, payload: bytes, call: Call) -> bytes:
        self.calls.append(call)
        return payload

    def wait(self, payload: bytes, _call: Call) -> bytes:
        self.gate.wait(3 * PATIENCE)
        return payload

    def refuse(self, _payload: bytes, _call: Call) -> bytes:
        raise RemoteError(Code.PERMISSION_DENIED, self.refusal)

    def broken(self, _payload: bytes, _call: Call) -> bytes:
        raise KeyError("oops\x1b[2J")


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch) -> Iterator[Bench]:
    clock = Clock()
    monkeypatch.setattr("koordra.nri.transport.ttrpc_server.time", clock)
    bench = Bench(clock)
    yield bench
    bench.gate.set()
    bench.dispatcher.close()


def test_a_request_is_answered_while_another_is_worked_on(bench: Bench) -> None:
    bench.dispatcher.on_frame(request(1, "wait", b"slow"))
    bench.dispatcher.on_frame(request(3, "echo", b"fast"))
    assert bench.wire.wait(3).payload == b"fast"
    bench.gate.set()
    assert bench.wire.wait(1).payload == b"slow"
    assert bench.wire.order == [3, 1]


def test_many_waiting_handlers_do_not_keep_the_rest_from_an_answer(bench: Bench) -> None:
    for n in range(40):  # more than there are threads
        bench.dispatcher.on_frame(request(2 * n + 1, "wait", timeout=0.2))
    bench.dispatcher.on_frame(request(81, "echo", timeout=0.2))
    bench.clock.now += 0.19
    codes = {bench.wire.wait(2 * n + 1).status.code for n in range(41)}
    assert codes == {Code.DEADLINE_EXCEEDED}


@pytest.mark.parametrize("letter", ["x", "\x1b", "\U000e0001"])
def test_a_refusal_of_any_length_is_an_answer_that_the_peer_takes(bench: Bench, letter: str) -> None:
    """Who gets none waits in vain, drops the plugin, and goes on without it."""
    bench.refusal = "not yours: " + letter * 6_000_000 + "; leave it away"
    bench.dispatcher.on_frame(request(1, "refuse", timeout=PATIENCE))
    status = bench.wire.wait(1).status
    assert status.code == Code.PERMISSION_DENIED
    assert status.message.startswith("not yours: ")
    assert status.message.endswith("; leave it away")


def test_a_late_handler_is_answered_for_with_an_error_before_the_caller_gives_up(bench: Bench) -> None:
    bench.dispatcher.on_frame(request(1, "wait", timeout=0.4))
    bench.clock.now += 0.39  # and no further: an answer that comes does not wait for the caller's deadline
    status = bench.wire.wait(1).status
    assert status.code == Code.DEADLINE_EXCEEDED
    assert "did not answer in time" in status.message
    bench.gate.set()  # what the handler says now is dropped (Wire would complain of a second answer)
    bench.dispatcher.on_frame(request(3, "echo", b"on", timeout=5))
    assert bench.wire.wait(3).payload == b"on"


def test_an_earlier_deadline_is_not_missed_behind_a_later_one(bench: Bench) -> None:
    bench.dispatcher.on_frame(request(1, "wait", timeout=100 * PATIENCE))
    bench.dispatcher.on_frame(request(3, "wait", timeout=0.1))
    bench.clock.now += 0.1
    assert bench.wire.wait(3).status.code == Code.DEADLINE_EXCEEDED
    assert 1 not in bench.wire.answers


def test_a_handler_knows_how_long_the_caller_waits(bench: Bench) -> None:
    bench.dispatcher.on_frame(request(1, "echo", timeout=30))
    bench.dispatcher.on_frame(request(3, "echo"))
    bench.wire.wait(1)
    bench.wire.wait(3)
    limited, unlimited = sorted(bench.calls, key=lambda call: call.deadline is None)
    assert limited.remaining(bench.clock.monotonic) == 30
    assert unlimited.remaining() is None


@pytest.mark.parametrize(
    ("frame", "code", "text"),
    [
        (request(1, "refuse"), Code.PERMISSION_DENIED, "not yours"),
        (request(1, "break"), Code.UNKNOWN, "break: KeyError: 'oops\\x1b[2J'"),
        (request(1, "nothing"), Code.UNIMPLEMENTED, "s/nothing is not served here"),
        (request(2, "echo"), Code.INVALID_ARGUMENT, "odd"),
        (Frame(1, DATA, b"x"), Code.INVALID_ARGUMENT, "closed stream"),
        (Frame(1, REQUEST, b"\xff\xff"), Code.INVALID_ARGUMENT, "not a ttrpc request"),
        (Frame(1, REQUEST, oversized=True), Code.RESOURCE_EXHAUSTED, "too long"),
    ],
)
def test_every_wrong_request_is_answered(bench: Bench, frame: Frame, code: Code, text: str) -> None:
    bench.dispatcher.on_frame(frame)
    status = bench.wire.wait(frame.stream).status
    assert status.code == code
    assert text in status.message


def test_a_stream_id_that_does_not_rise_is_refused(bench: Bench) -> None:
    bench.dispatcher.on_frame(request(5, "echo"))
    bench.wire.wait(5)
    bench.dispatcher.on_frame(request(3, "echo"))
    assert bench.wire.wait(3).status.code == Code.INVALID_ARGUMENT


def test_frames_of_unknown_types_are_ignored(bench: Bench) -> None:
    bench.dispatcher.on_frame(Frame(1, 9, b"?"))
    bench.dispatcher.on_frame(request(1, "echo", b"still"))
    assert bench.wire.wait(1).payload == b"still"


def test_draining_waits_for_answers_and_closing_does_not(bench: Bench) -> None:
    bench.dispatcher.on_frame(request(1, "wait"))
    assert not bench.dispatcher.wait_idle(0.05)
    threading.Timer(0.05, bench.gate.set).start()
    assert bench.dispatcher.wait_idle(PATIENCE)
    bench.gate.clear()
    bench.dispatcher.on_frame(request(3, "wait"))
    bench.dispatcher.close()
    assert bench.dispatcher.wait_idle(0)


def test_an_answer_that_cannot_be_sent_ends_nothing(bench: Bench) -> None:
    def fail(_message: bytes) -> None:
        raise NRIError("cannot write")

    dispatcher = Dispatcher({("s", "echo"): bench.echo}, fail)
    dispatcher.on_frame(request(1, "echo"))
    assert dispatcher.wait_idle(PATIENCE)
    dispatcher.close()
