"""Calls of isolation backends: one at a time for each card, and each with a limit.

A backend asks programs of the driver, NVML, or whatever another package asks; any of them may hang, and a
driver that hangs does not end its callers even when they are killed. So each call is made in a thread of its
own. One that does not return in time is a PrepareError for whom it was made, and keeps its card, and nothing
else, until it returns: no other call is made for the card, and claims of other cards go on.

    prepare, unprepare   take their cards (`alone`), then the state lock
    a look at a card     takes the card, and no state lock while it looks
    a start              takes nothing beforehand: each call takes its card while it lasts
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from typing import Final, Protocol, TypeVar

from koordra.errors import PrepareError
from koordra.kubelet_plugin.isolation.backend import Keep
from koordra.kubelet_plugin.publish.devices import whole_of
from koordra.node_state.locks import CardLocks
from koordra.node_state.strict_json import Pairs
from koordra.process.lifecycle import spawn

T = TypeVar("T")
ANSWERS_WITHIN: Final = 15.0
"""Seconds that a call has; a program of the driver has 10 (driver_programs). Who waits for the state lock
meanwhile waits 20, and the kubelet 45."""


def answered(call: Callable[[], T], *, within: float | None = None) -> T:
    """What the call returns or raises, TimeoutError where it does not return in time: it is made in a thread,
    which is left alone then."""
    within = ANSWERS_WITHIN if within is None else within
    future: Future[T] = Future()

    def run() -> None:
        try:
            future.set_result(call())
        except BaseException as error:  # noqa: BLE001 (raised again below)
            future.set_exception(error)

    spawn(run, name="isolation-call")
    try:
        return future.result(within)
    except TimeoutError:
        if future.done():  # its own
            raise
        raise TimeoutError(f"no answer within {within:g} s") from None


class Runner(Protocol):
    """How a call is made; as `answered`."""

    def __call__(self, call: Callable[[], T]) -> T: ...


class CardCalls:
    """Safe to use from several threads, and beside another instance of the plugin. Cards are named by the
    device that is asked about: that of an instance is the card's."""

    def __init__(self, locks: CardLocks, *, run: Runner = answered) -> None:
        self._locks, self._run = locks, run
        self._taken: dict[str, int] = {}
        """The cards that `alone` has taken, and the locks."""
        self._running: dict[str, str] = {}
        """By card, the call that has not returned."""
        self._begin = threading.Lock()

    @contextmanager
    def alone(self, devices: Iterable[str]) -> Iterator[None]:
        """Take the cards of these devices. Raises PrepareError where another has one for too long."""
        mine: list[str] = []
        try:
            for card in sorted({whole_of(device) for device in devices}):
                self._taken[card] = self._wait_for(card)
                mine.append(card)
            yield
        finally:
            for card in mine:
                os.close(self._taken.pop(card))

    def answer(self, device: str, what: str, call: Callable[[], T]) -> T:
        """What the call says. Raises PrepareError where it does not answer, or one of before has not
        returned."""
        card = whole_of(device)
        with self._begin:
            if card in self._running:
                raise self._busy(card)
            self._running[card] = what
        try:
            taken = self._taken.get(card)
            lock = os.dup(taken) if taken is not None else self._locks.take(card)
            if lock is None:
                raise self._busy("")
        except BaseException:
            del self._running[card]
            raise
        return self._made(card, lock, what, call)

    def kept(self, device: str, what: str, keep: Keep, call: Callable[[Keep], T]) -> T:
        """The same for a call that writes a journal; once it was given up it writes no more."""
        lock, awaited = threading.Lock(), True

        def own(journal: Pairs) -> None:
            with lock:
                if not awaited:
                    raise PrepareError(f"{what}: nobody waits for it any more")
                keep(journal)

        try:
            return self.answer(device, what, lambda: call(own))
        finally:
            with lock:
                awaited = False

    def _made(self, card: str, lock: int, what: str, call: Callable[[], T]) -> T:
        """The lock goes with the call."""
        begun = False

        def run() -> T:
            nonlocal begun
            begun = True
            try:
                return call()
            finally:
                done()

        def done() -> None:
            del self._running[card]
            os.close(lock)

        try:
            return self._run(run)
        except TimeoutError as error:
            raise PrepareError(f"BackendUnavailable: {what}: {error}") from error
        except RuntimeError as error:
            if begun:
                raise
            done()  # no room for a thread
            raise PrepareError(f"BackendUnavailable: {what}: {error}") from error

    def _wait_for(self, card: str) -> int:
        lock = self._locks.wait_for(card)
        if lock is None:
            raise self._busy(card)
        return lock

    def _busy(self, card: str) -> PrepareError:
        what = self._running.get(card, "another call for the card")
        return PrepareError(f"BackendUnavailable: {what} has not returned yet")
