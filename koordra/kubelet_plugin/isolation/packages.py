"""The backends of a node by name: koordra's own, and those that other packages register.

A package registers one as an entry point of the group `koordra.isolation`; its name is the entry point's,
and the object is called without arguments to make the backend. A backend that cannot be made, or has another
name, is logged and unknown to the node: what Prepare made under one name could not be undone under the other.
What it raises, or answers wrongly, becomes a PrepareError of the claim that is prepared, and nothing else of
the node is touched by it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from importlib.metadata import EntryPoint, entry_points
from typing import TypeVar

from koordra.api.opaque.isolation_words import ISOLATION_ENTRY_POINTS
from koordra.api.opaque.parameters import GpuConfig
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
from koordra.kubelet_plugin.isolation.card_calls import answered
from koordra.kubelet_plugin.isolation.none import NoIsolation
from koordra.logs import get_logger
from koordra.node_state.strict_json import DEVICE_NODES, PAIR, STRING, listed, optional, record

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
        made = ForeignBackend(entry.name, capabilities, package=entry.value, backend=backend)
        made.unavailable = optional(STRING).read(backend.unavailable, "unavailable")
        return made

    try:
        return answered(load)
    except (Exception, SystemExit) as error:  # noqa: BLE001 (code of others must not stop the plugin)
        log.error(
            "isolation_backend_unusable", entry_point=f"{entry.name} = {entry.value}", error=repr(error)
        )
        return None


_REALISED = record(
    Realised,
    {"edits": CONTAINER_EDITS, "uuid": optional(STRING), "nodes": optional(DEVICE_NODES)},
)
_JOURNAL = listed(PAIR)


class ForeignBackend(IsolationBackend):
    """A backend of another package: whatever it raises or answers is a PrepareError at most."""

    name = ""
    capabilities = Capabilities()
    unavailable: str | None = None

    def __init__(
        self, name: str, capabilities: Capabilities, *, package: str, backend: IsolationBackend
    ) -> None:
        self.name, self.capabilities = name, capabilities
        self.package, self.backend = package, backend

    def fits(self, share: Share, config: GpuConfig, card: Card) -> str | None:
        def call() -> str | None:
            return optional(STRING).read(self.backend.fits(share, config, card), "fits")

        return self._answer(f"fits of claim {share.claim_uid}", call)

    def card_start(self, card: Card, config: GpuConfig | None, keep: Keep) -> None:
        self._answer(
            f"card_start of {card.device}", lambda: self.backend.card_start(card, config, _strict(keep))
        )

    def card_stop(self, card: Card) -> None:
        self._answer(f"card_stop of {card.device}", lambda: self.backend.card_stop(card))

    def prepare(self, share: Share, config: GpuConfig, keep: Keep) -> Realised:
        def call() -> Realised:
            found = _REALISED.write(self.backend.prepare(share, config, _strict(keep)))
            return _REALISED.read(json.loads(json.dumps(found)), "prepare")

        return self._answer(f"prepare of claim {share.claim_uid}", call)

    def unprepare(self, share: Share) -> None:
        self._answer(f"unprepare of claim {share.claim_uid}", lambda: self.backend.unprepare(share))

    def resume(self, held: Held | None) -> None:
        self._answer("resume", lambda: self.backend.resume(held))

    def suspend(self, card: Card) -> None:
        self._answer(f"suspend of {card.device}", lambda: self.backend.suspend(card))

    def verify(self, card: Card) -> str | None:
        def call() -> str | None:
            return optional(STRING).read(self.backend.verify(card), "verify")

        return self._answer(f"verify of {card.device}", call)

    def status(self, card: Card) -> Mapping[str, str]:
        def call() -> Mapping[str, str]:
            found = self.backend.status(card)
            return {STRING.read(name, "status"): STRING.read(value, name) for name, value in found.items()}

        return self._answer(f"status of {card.device}", call)

    def _answer(self, what: str, call: Callable[[], T]) -> T:
        try:
            return call()
        except KoordraError:
            raise
        except (Exception, SystemExit) as error:
            raise PrepareError(
                f"isolation {self.name}: {what} failed in {self.package}: {error!r}; "
                "this is a defect of that package, or of what it found on this node"
            ) from error


def _strict(keep: Keep) -> Keep:
    return lambda journal: keep(_JOURNAL.read(json.loads(json.dumps(journal)), "journal"))
