"""Lets go of NVIDIA's driver when somebody wants it to be free, and takes it up again afterwards.

    nobody asks ─> InUse
    somebody does ─> Closing ──(pods are to go)──> Evicting ──(no claim prepared, nobody holds it)──> Released
       ▲                                                                                                 │
       └────────────────────────── nobody asks any more: read the machine again ─────────────────────────┘

`release_wanted` says who asks and how far. In each phase but InUse the GPUs carry the device taint
koordra.io/driver-release, whose value is the phase:

- its effect is NoSchedule. NoExecute would have the cluster delete the pods, whatever their disruption
  budgets say. In phase Evicting the controller evicts them through the Eviction API, gangs whole
  (koordra.controller.allocation.driver_release);
- Prepare refuses GPUs from phase Evicting on, and while NVML is closed; Unprepare goes on, or pods would hang
  in Terminating;
- NVML is closed at once where that is asked, else when no claim is left. Readings of the machine then keep
  what NVML said last, the limiter's comparisons wait, and Xids come from the kernel's log.

Released means that no claim of a GPU is prepared here, NVML is closed, and nobody holds a device node of the
driver, or CONFIRM_WITHIN is over: those that still hold one (nvidia-persistenced, an exporter) are somebody
else's to stop, and are named in the report.

**The operator's request** is a file in the state directory, so that it outlives the plugin, and needs no
plugin to be made; the report is another. A plugin that starts goes on from the last report until it has
seen the Node.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any, Final, Protocol

from koordra.api import names
from koordra.api.objects import Fields
from koordra.errors import KoordraError, NodeError
from koordra.kubelet_plugin.nvidia_driver.device_holders import DriverUsers, driver_users
from koordra.kubelet_plugin.nvidia_driver.release_wanted import (
    NOBODY,
    PauseMemory,
    ReleaseWanted,
    after_pause,
    loaded_driver,
    wanted_by_command,
    wanted_by_node,
)
from koordra.kubelet_plugin.wakeable import Pause, Wakeable
from koordra.logs import get_logger
from koordra.node_state.disk import Disk, reported

log = get_logger(__name__)

REQUEST_FILE: Final = "release-driver"
REPORT_FILE: Final = "driver-release.json"
MODE: Final = 0o600
LOOK_EVERY: Final = 0.5
"""Seconds between two looks for the request."""
USERS_EVERY: Final = 2.0
"""Seconds between two looks through /proc."""
USERS_AGAIN: Final = 10.0
"""The same, once the driver is released."""
CONFIRM_WITHIN: Final = 30.0
LET_GO_WITHIN: Final = 2.0


class Phase(StrEnum):
    IN_USE = "InUse"
    CLOSING = "Closing"
    EVICTING = names.RELEASE_EVICTING
    RELEASED = "Released"


@dataclass(frozen=True, slots=True)
class ReleaseReport:
    """`claims`: namespace/name of the claims that still have GPUs here; `users`: who else uses the driver, in
    words; `request`: the operator's request that it answers."""

    phase: Phase = Phase.IN_USE
    reason: str = ""
    nvml_closed: bool = False
    claims: tuple[str, ...] = ()
    users: tuple[str, ...] = ()
    request: str = ""

    @property
    def withheld(self) -> str:
        """Why Prepare refuses GPUs now; empty where it does not."""
        if self.phase in (Phase.EVICTING, Phase.RELEASED) or self.nvml_closed:
            return f"NVIDIA's driver is being released ({self.reason})"
        return ""

    @property
    def taint(self) -> str:
        """The value of the GPUs' taint; empty where they have none."""
        return "" if self.phase is Phase.IN_USE else self.phase.value

    @property
    def may_unload(self) -> bool:
        """Whether nothing of koordra's is in the way any more, as far as was asked."""
        return self.nvml_closed and self.phase is not Phase.EVICTING


def phase_of(wanted: ReleaseWanted, *, free: bool) -> Phase:
    """`free`: no claim has GPUs here any more, and nobody else is waited for."""
    if not wanted:
        return Phase.IN_USE
    if not wanted.evict:
        return Phase.CLOSING
    return Phase.RELEASED if free else Phase.EVICTING


class Nvml(Protocol):
    """What of NVML's sessions the release decides (nvml_session.py)."""

    def let_go(self, *, within: float) -> bool: ...

    def take_up(self) -> None: ...


def read_report(state: Path, disk: Disk) -> ReleaseReport | None:
    """The plugin's last report; None where there is none that can be read."""
    try:
        found = json.loads(disk.read(state / REPORT_FILE) or b"")
        return ReleaseReport(
            phase=Phase(found["phase"]),
            reason=str(found["reason"]),
            nvml_closed=bool(found["nvmlClosed"]),
            claims=tuple(map(str, found["claims"])),
            users=tuple(map(str, found["users"])),
            request=str(found["request"]),
        )
    except (OSError, ValueError, KeyError, TypeError):
        return None


def report_document(report: ReleaseReport) -> dict[str, Any]:
    return {
        "phase": report.phase.value,
        "reason": report.reason,
        "nvmlClosed": report.nvml_closed,
        "claims": list(report.claims),
        "users": list(report.users),
        "request": report.request,
    }


def others_that_use_it(root: Path) -> DriverUsers:
    """Who uses the driver besides this process."""
    return driver_users(root, without=os.getpid())


class DriverRelease(Wakeable):
    """Of one node, the machine below `root`. `see_node` may be called from any thread; `report` is the
    latest."""

    def __init__(
        self,
        state: Path,
        root: Path,
        *,
        nvml: Nvml,
        claims: Callable[[], Iterable[str]],
        changed: Callable[[ReleaseReport], None],
        disk: Disk,
        users: Callable[[Path], DriverUsers] = others_that_use_it,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__()
        self._state = state
        self._root = root
        self._nvml = nvml
        self._claims = claims
        self._users = users
        self._changed = changed
        self._disk = disk
        self._clock = clock
        self._by_node: ReleaseWanted | None = None
        """None until the Node was seen."""
        self._memory = PauseMemory()
        self._unclaimed_since: float | None = None
        """Since when no claim has GPUs here, in this release."""
        self._seen_users = DriverUsers()
        self._users_at = 0.0
        self._written = read_report(state, disk)
        self.report = self._written or ReleaseReport()
        self._closed = self.report.nvml_closed
        if self._closed:
            nvml.let_go(within=0.0)

    def see_node(self, node: Fields) -> None:
        self._by_node = wanted_by_node(node)
        self.wake()

    def step(self) -> Pause:
        try:
            self.advance()
        except (OSError, KoordraError) as error:
            log.warning("driver_release_failed", error=str(error))
        return Pause(0.0, LOOK_EVERY)

    def advance(self) -> None:
        """Look who asks, and do what follows from it. Raises KoordraError where the claims are not known."""
        request = self._request()
        wanted = self._wanted(request)
        if wanted is None:
            return
        if wanted.let_go:
            self._let_go(wanted.reason)
        claims = tuple(sorted(self._claims())) if wanted else ()
        phase = phase_of(wanted, free=self._is_free(wanted, claims))
        closed = wanted.let_go or phase is Phase.RELEASED
        report = ReleaseReport(
            phase=phase,
            reason=wanted.reason,
            nvml_closed=closed,
            claims=claims,
            users=tuple(self._seen_users.lines()) if self._unclaimed_since is not None else (),
            request=request,
        )
        if closed:
            self._let_go(wanted.reason)
        elif self._closed:
            self._nvml.take_up()
            self._closed = False
        self._tell(report)

    def _wanted(self, request: str) -> ReleaseWanted | None:
        """None while it is not known: until the Node was seen, what the last plugin did holds."""
        by_label = self.report.phase is not Phase.IN_USE and not self.report.request
        if self._by_node is None and not request and by_label:
            return None
        by_node, self._memory = after_pause(
            self._by_node or NOBODY, self._memory, loaded=loaded_driver(self._root), now=self._clock()
        )
        return by_node | (wanted_by_command() if request else NOBODY)

    def _request(self) -> str:
        """What the operator's request says, which only tells one from another; empty where there is none."""
        data = self._disk.read(self._state / REQUEST_FILE)
        return "" if data is None else data.decode("ascii", "replace").strip() or "asked"

    def _is_free(self, wanted: ReleaseWanted, claims: Sequence[str]) -> bool:
        if not wanted.evict or claims:
            self._unclaimed_since = None
            return False
        now = self._clock()
        if self._unclaimed_since is None:
            self._unclaimed_since, self._users_at = now, now
        if now >= self._users_at:
            self._seen_users = self._users(self._root)
            released = self.report.phase is Phase.RELEASED
            self._users_at = now + (USERS_AGAIN if released else USERS_EVERY)
        return self._seen_users.nobody or now - self._unclaimed_since >= CONFIRM_WITHIN

    def _let_go(self, reason: str) -> None:
        if self._closed:
            return
        self._closed = True
        if not self._nvml.let_go(within=LET_GO_WITHIN):
            log.error("nvml_not_let_go", remedy="a call of NVML hangs: restart the kubelet plugin's pod")
        log.info("nvml_let_go", reason=reason)

    def _tell(self, report: ReleaseReport) -> None:
        if report != self.report:
            if report.phase is not self.report.phase:
                log.info(
                    "driver_release", phase=report.phase.value, reason=report.reason, claims=report.claims
                )
            self.report = report
            self._changed(report)
        if report != self._written:
            data = json.dumps(report_document(report)).encode() + b"\n"
            with reported(NodeError, self._state / REPORT_FILE, "written"):
                self._disk.replace(self._state / REPORT_FILE, data, mode=MODE)
            self._written = report
