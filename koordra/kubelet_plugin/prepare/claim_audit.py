"""Finds prepared claims that the API server no longer knows, and releases those that the kubelet will
never unprepare.

A pod that is deleted by force leaves the API at once and its claim is freed, so its device is offered again.
But the container may still run (a process stuck in the driver cannot be killed); the kubelet unprepares the
claim only when it has ended. Until then the device is held:

    the claim object exists with this uid, its allocation names the device      in order
    the object is gone, is another one of the name, or is allocated elsewhere   HELD: taint koordra.io/held
    it was prepared under another name of this machine's node                   HELD

A machine that has got another node name offers its cards in a pool of that name, in which nobody has them,
while containers from before may still run.

Prepare refuses a held device anyway; the taint keeps the allocator from running into that refusal again and
again.

The node reads each of its own claims by name (it has up to a hundred; a watch of all claims would deliver the
changes of the whole cluster to every node): at start, after a refused claim, since that is how a held device
shows, and every INTERVAL seconds.

An **orphan** is a held claim that the kubelet does not know either: its own state file, `<kubelet
root>/dra_manager_state`, does not name the uid. The kubelet records a claim there before it calls Prepare and
removes it only after Unprepare succeeded, so no pod of this node can have the claim and no call will come. If
that holds for PATIENCE seconds, in two audits, the claim is unprepared here. If the file is absent or
unreadable, no claim is an orphan: devices stay held until the next boot, or until an operator drains the
node.

If the server does not answer, the previous findings stay.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Final

from koordra.api import names, objects
from koordra.api.allocation import Allocation
from koordra.errors import ApiError, InvalidInput, KoordraError, NotFound
from koordra.kubelet_plugin.claims.claim_record import ClaimRecord
from koordra.kubelet_plugin.network.consumers import ClaimSource
from koordra.kubelet_plugin.prepare.device_state import DeviceState
from koordra.logs import get_logger
from koordra.node_state.disk import read_file
from koordra.process.wakeable import Pause, Wakeable

log = get_logger(__name__)

KUBELET_CLAIMS: Final = "dra_manager_state"
INTERVAL: Final = 900.0
"""Seconds; a refused claim, by which a held device shows, does not wait for it."""
PATIENCE: Final = 60.0

_BETWEEN: Final = 5.0
"""Least seconds between two audits."""
_LARGEST: Final = 64 << 20


def _still_allocated(claims: ClaimSource, record: ClaimRecord, *, node: str) -> bool:
    if record.pool != node:
        return False
    try:
        claim = claims.get(record.ref.namespace, record.ref.name)
    except NotFound:
        return False
    if objects.uid(claim) != record.ref.uid:
        return False
    try:
        allocation = Allocation.of_claim(claim)
    except InvalidInput:
        return True
    if allocation is None:
        return False
    given = {
        (result.device.pool, result.device.device, result.share_id)
        for result in allocation.results
        if result.device.driver == names.DRIVER
    }
    return all((record.pool_of(one), one.device, one.share_id) in given for one in record.devices)


def known_to_kubelet(file: Path, uids: Iterable[str]) -> frozenset[str] | None:
    """Those of the uids that the kubelet's record of claims names; None where it cannot be read.

    The file's format is the kubelet's own and may change, so it is only searched for the uid as text.
    """
    try:
        text = read_file(file, largest=_LARGEST)[0].decode(errors="replace")
    except OSError:
        return None
    return frozenset(uid for uid in uids if uid in text) if text.strip() else None


class ClaimAudit(Wakeable):
    """`held`: prepared claims that the API no longer knows; `on_change` is called whenever they change. A
    wake says that a claim was refused or unprepared."""

    def __init__(
        self,
        state: DeviceState,
        claims: ClaimSource,
        *,
        kubelet_claims: Path,
        on_change: Callable[[], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__()
        self._state = state
        self._claims = claims
        self._kubelet_claims = kubelet_claims
        self._on_change = on_change
        self._clock = clock
        self._unknown_since: dict[str, float] = {}
        self.held: tuple[ClaimRecord, ...] = ()

    failed = "claims_not_audited"

    def step(self) -> Pause:
        self.audit()
        # Held claims are audited more often: their devices are waited for.
        return Pause(_BETWEEN, _BETWEEN + (PATIENCE / 2 if self.held else INTERVAL))

    def audit(self) -> None:
        held, sure = [], {}
        for record in self._state.records():
            try:
                if not _still_allocated(self._claims, record, node=self._state.node):
                    held.append(record)
                    sure[record.ref.uid] = record
            except ApiError as error:
                log.debug("claim_not_audited", claim=str(record.ref), error=str(error))
                held += [record for each in self.held if each.ref.uid == record.ref.uid]
        for record in self._orphans(sure):
            ref = record.ref
            try:
                self._state.unprepare(ref)
            except KoordraError as error:
                log.error("orphan_not_released", claim=str(ref), uid=ref.uid, error=str(error))
                continue
            log.warning("orphan_released", claim=str(ref), uid=ref.uid)
            held.remove(record)
        before, self.held = self.held, tuple(held)
        if before != self.held:
            log.warning(
                "prepared_claims_without_api_object", claims=[str(record.ref) for record in self.held]
            )
            self._on_change()

    def _orphans(self, held: Mapping[str, ClaimRecord]) -> list[ClaimRecord]:
        """Of claims that are certainly held, by uid, those that the kubelet has not known for PATIENCE
        seconds."""
        known = known_to_kubelet(self._kubelet_claims, held)
        now = self._clock()
        unknown = [] if known is None else [uid for uid in held if uid not in known]
        self._unknown_since = {uid: self._unknown_since.get(uid, now) for uid in unknown}
        return [held[uid] for uid in unknown if now - self._unknown_since[uid] >= PATIENCE]
