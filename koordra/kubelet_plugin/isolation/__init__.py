"""How a container is kept within its share of a GPU: backends behind one interface. The files of a backend
stand in one folder.

    none       here: the share is accounted for, and not enforced
    limiter/   a memory limit inside the container, by a library in front of the driver's

Class, claim and the operator's policy determine the backend of a share by its name
(koordra.api.opaque.isolation). A backend answers with container edits, which is pure, and may have something
to start on the node for it, which must be idempotent and undone by `stop`. Prepare calls `edits`, then
`start` between the two steps of the checkpoint; Unprepare and roll-back call `stop`, also for shares that
never started.

Third parties register a backend as an entry point of the group `koordra.isolation`; its name is the entry
point's, and the object is called without arguments to make the backend. A backend that cannot be made, or has
another name, is logged and unknown to the node: what Prepare started under one name could not be stopped
under the other. What it raises, and that it does not answer, becomes a PrepareError of the claim that is
prepared, and nothing else of the node is touched by it. Of what lies in koordra's state directory a backend
mounts only `<its folder>/claims/<claim uid>/...`, read-only: the hook refuses a container that has anything
else of it.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from importlib.metadata import EntryPoint, entry_points
from typing import Final, Protocol, TypeVar

from koordra.api.opaque.parameters import ISOLATION_ENTRY_POINTS, GpuConfig
from koordra.errors import PrepareError
from koordra.kubelet_plugin.claims.claim_record import CONTAINER_EDITS, ContainerEdits
from koordra.logs import get_logger
from koordra.node_state.claim_ref import environment_name
from koordra.process.lifecycle import spawn

T = TypeVar("T")
log = get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Share:
    """One claim's part of one GPU. `index` counts the claim's devices. `memory_bytes` None: all of the card.
    `cores`: percent reserved, None: none."""

    claim_uid: str
    index: int
    device: str
    uuid: str
    memory_bytes: int | None
    cores: int | None


class Backend(Protocol):
    @property
    def name(self) -> str:
        """The word in `GpuConfig.isolation`."""

    def edits(self, share: Share, config: GpuConfig) -> ContainerEdits:
        """What the container gets. Pure; raises PrepareError for a share it cannot keep."""

    def start(self, share: Share, config: GpuConfig) -> None:
        """Make the node ready for all that the claim has of the card, as one share; called for each of them.
        Idempotent; raises PrepareError."""

    def stop(self, *, claim_uid: str, device: str) -> None:
        """Undo `start`. Idempotent, also for a share that was never started; raises PrepareError."""


class NoIsolation:
    """Backend `none`: cooperative programs and people read the share's figures from the environment.

    `KOORDRA_MEMORY_LIMIT_<UID>_<n>` is in bytes, `KOORDRA_CORES_RESERVED_<UID>_<n>` in percent (reserved
    and counted; the limiter enforces them where the node's operator and a coresPolicy say so). Claim uid
    and the device's place in the claim are those of `KOORDRA_DEVICE_<UID>_<n>`, so that the limits of
    two claims in one container stand side by side.
    """

    name: Final = "none"

    def edits(self, share: Share, config: GpuConfig) -> ContainerEdits:
        suffix = f"{environment_name(share.claim_uid)}_{share.index}"
        return ContainerEdits(
            env=tuple(
                (f"KOORDRA_{name}_{suffix}", str(value))
                for name, value in {"MEMORY_LIMIT": share.memory_bytes, "CORES_RESERVED": share.cores}.items()
                if value is not None
            )
        )

    def start(self, share: Share, config: GpuConfig) -> None:
        """Nothing runs on the node for it."""

    def stop(self, *, claim_uid: str, device: str) -> None:
        """Nothing ran."""


def backends(*built_in: Backend) -> dict[str, Backend]:
    """By name: the built-in backends and those that other packages have registered; a built-in name cannot be
    taken over. `built_in` are those that need to know something of the node."""
    known = {
        entry.name: backend
        for entry in entry_points(group=ISOLATION_ENTRY_POINTS)
        if (backend := _loaded(entry))
    }
    return {**known, **{each.name: each for each in built_in}, NoIsolation.name: NoIsolation()}


def _loaded(entry: EntryPoint) -> Backend | None:
    """None for a package that cannot be used: its shares are refused, and the others of the node are kept."""

    def load() -> Backend:
        backend: Backend = entry.load()()
        if backend.name != entry.name:
            raise ValueError(f"the backend calls itself {backend.name!r}; the two names must be the same")
        return backend

    try:
        return ForeignBackend(entry.name, entry.value, answered(load, name=entry.name))
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


@dataclass(slots=True, eq=False)
class ForeignBackend:
    """A backend of another package: whatever it raises, or answers, or does not answer, is a PrepareError at
    most. `_busy` is the call that hangs; until it returns no other is made."""

    name: str
    package: str
    backend: Backend
    _busy: str = ""

    def edits(self, share: Share, config: GpuConfig) -> ContainerEdits:
        def call() -> ContainerEdits:
            found = CONTAINER_EDITS.write(self.backend.edits(share, config))
            return CONTAINER_EDITS.read(json.loads(json.dumps(found)), "edits")

        return self._answer("edits", share.claim_uid, call)

    def start(self, share: Share, config: GpuConfig) -> None:
        self._answer("start", share.claim_uid, lambda: self.backend.start(share, config))

    def stop(self, *, claim_uid: str, device: str) -> None:
        self._answer("stop", claim_uid, lambda: self.backend.stop(claim_uid=claim_uid, device=device))

    def _answer(self, name: str, claim_uid: str, call: Callable[[], T]) -> T:
        what = f"{name} of claim {claim_uid}"

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
        except PrepareError:
            raise
        except Exception as error:
            raise PrepareError(
                f"isolation {self.name}: {what} failed in {self.package}: {error!r}; "
                "this is a defect of that package, or of what it found on this node"
            ) from error
