"""The backends of a node by name: koordra's own, and those that other packages register.

A package registers one as an entry point of the group `koordra.isolation`; its name is the entry point's,
and the object is called without arguments to make the backend. A backend that cannot be made, or has another
name, is logged and unknown to the node: what Prepare made under one name could not be undone under the other.
What it raises, and that it does not answer, becomes a PrepareError of the claim that is prepared, and nothing
else of the node is touched by it.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from importlib.metadata import EntryPoint, entry_points
from typing import TypeVar

from koordra.api.opaque.parameters import ISOLATION_ENTRY_POINTS, GpuConfig
from koordra.errors import KoordraError, PrepareError
from koordra.kubelet_plugin.claims.claim_record import CONTAINER_EDITS
from koordra.kubelet_plugin.isolation.backend import (
    Capabilities,
    Card,
    Held,
    IsolationBackend,
    Keep,
    Realised,
    Share,
)
from koordra.kubelet_plugin.isolation.none import NoIsolation
from koordra.logs import get_logger
from koordra.node_state.strict_json import DEVICE_NODES, PAIR, STRING, Pairs, listed, optional, record
from koordra.process.lifecycle import spawn

T = TypeVar("T")
log = get_logger(__name__)


def backends(*built_in: IsolationBackend) -> dict[str, IsolationBackend]:
    """By name: the built-in backends and those that other packages have registered; a built-in name cannot be
    taken over. `built_in` are those that need to know something of the node."""
    known = {
        entry.name: backend
        for entry in entry_points(group=ISOLATION_ENTRY_POINTS)
        if (backend := _loaded(entry))
    }
    return {**known, **{each.name: each for each in built_in}, NoIsolation.name: NoIsolation()}


def _loaded(entry: EntryPoint) -> IsolationBackend | None:
    """None for a package that cannot be used: its shares are refused, and the others of the node are kept."""

    def load() -> ForeignBackend:
        backend = entry.load()()
        if not isinstance(backend, IsolationBackend):
            raise TypeError(f"{type(backend).__name__} is no {IsolationBackend.__qualname__}")
        if backend.name != entry.name:
            raise ValueError(f"the backend calls itself {backend.name!r}; the two names must be the same")
        capabilities = backend.capabilities
        if not isinstance(capabilities, Capabilities):
            raise TypeError(f"its capabilities are {capabilities!r}")
        return ForeignBackend(entry.name, capabilities, package=entry.value, backend=backend)

    try:
        return answered(load, name=entry.name)
    except Exception as error:  # noqa: BLE001 (code of others must not stop the plugin)
        log.error(
            "isolation_backend_unusable", entry_point=f"{entry.name} = {entry.value}", error=repr(error)
        )
        return None


ANSWERS_WITHIN = 10.0
"""Seconds that code of another package has for a call. The kubelet waits 45 s for an answer, and while one
claim is prepared no other of the node is."""


def answered(call: Callable[[], T], *, name: str) -> T:
    """What the call returns or raises, RuntimeError where it does not return: it is made in a thread of its
    own, which is left alone then."""
    future: Future[T] = Future()

    def run() -> None:
        try:
            future.set_result(call())
        except Exception as error:  # noqa: BLE001 (raised again below)
            future.set_exception(error)
        except BaseException as error:  # noqa: BLE001 (SystemExit ends nobody else's thread)
            future.set_exception(RuntimeError(f"it raised {error!r}"))

    spawn(run, name=f"isolation-{name}")
    try:
        return future.result(ANSWERS_WITHIN)
    except TimeoutError:
        if future.done():  # its own
            raise
        raise RuntimeError(f"no answer within {ANSWERS_WITHIN:g} s") from None


_REALISED = record(
    Realised,
    {"edits": CONTAINER_EDITS, "uuid": optional(STRING), "nodes": optional(DEVICE_NODES)},
)
_JOURNAL = listed(PAIR)


class ForeignBackend(IsolationBackend):
    """A backend of another package: whatever it raises, or answers, or does not answer, is a PrepareError at
    most. `_busy` is the call that hangs; until it returns no other is made."""

    name = ""
    capabilities = Capabilities()

    def __init__(
        self, name: str, capabilities: Capabilities, *, package: str, backend: IsolationBackend
    ) -> None:
        self.name, self.capabilities = name, capabilities
        self.package, self.backend = package, backend
        self._busy = ""

    def fits(self, share: Share, config: GpuConfig, card: Card) -> str | None:
        def call() -> str | None:
            return optional(STRING).read(self.backend.fits(share, config, card), "fits")

        return self._answer(f"fits of claim {share.claim_uid}", call)

    def card_start(self, card: Card, config: GpuConfig | None, keep: Keep) -> None:
        self._kept(
            f"card_start of {card.device}", keep, lambda own: self.backend.card_start(card, config, own)
        )

    def card_stop(self, card: Card) -> None:
        self._answer(f"card_stop of {card.device}", lambda: self.backend.card_stop(card))

    def prepare(self, share: Share, config: GpuConfig, keep: Keep) -> Realised:
        def call(own: Keep) -> Realised:
            found = _REALISED.write(self.backend.prepare(share, config, own))
            return _REALISED.read(json.loads(json.dumps(found)), "prepare")

        return self._kept(f"prepare of claim {share.claim_uid}", keep, call)

    def unprepare(self, share: Share) -> None:
        self._answer(f"unprepare of claim {share.claim_uid}", lambda: self.backend.unprepare(share))

    def resume(self, held: Held | None) -> None:
        self._answer("resume", lambda: self.backend.resume(held))

    def verify(self, card: Card) -> str | None:
        def call() -> str | None:
            return optional(STRING).read(self.backend.verify(card), "verify")

        return self._answer(f"verify of {card.device}", call)

    def status(self, card: Card) -> Mapping[str, str]:
        def call() -> Mapping[str, str]:
            found = self.backend.status(card)
            return {STRING.read(name, "status"): STRING.read(value, name) for name, value in found.items()}

        return self._answer(f"status of {card.device}", call)

    def _kept(self, what: str, keep: Keep, call: Callable[[Keep], T]) -> T:
        """A call that writes a journal; once it was given up it writes no more."""
        lock, awaited = threading.Lock(), True

        def own(journal: Pairs) -> None:
            with lock:
                if not awaited:
                    raise PrepareError(f"isolation {self.name}: {what}: nobody waits for it any more")
                keep(_JOURNAL.read(json.loads(json.dumps(journal)), "journal"))

        try:
            return self._answer(what, lambda: call(own))
        finally:
            with lock:
                awaited = False

    def _answer(self, what: str, call: Callable[[], T]) -> T:
        def once() -> T:
            try:
                return call()
            finally:
                self._busy = ""

        try:
            if self._busy:
                raise RuntimeError(f"{self._busy} has not returned yet")
            self._busy = what
            return answered(once, name=self.name)
        except KoordraError:
            raise
        except Exception as error:
            raise PrepareError(
                f"isolation {self.name}: {what} failed in {self.package}: {error!r}; "
                "this is a defect of that package, or of what it found on this node"
            ) from error
