"""Lets go of NVIDIA's driver when somebody wants it to be free, and takes it up again afterwards.

    nobody asks ─> InUse
    somebody does ─> Closing ──(pods are to go)──> Evicting ──(no claim prepared, nobody holds it)──> Released
       ▲                                                                                                 │
       └────────────────────────── nobody asks any more: read the machine again ─────────────────────────┘

`release_wanted` says who asks and how far. In each phase but InUse the GPUs carry the device taint
koordra.io/driver-release, whose value is the phase:

- its effect is NoSchedule. NoExecute would have the cluster delete the pods, whatever their disruption
  budgets say. In phase Evicting the controller evicts them through the Eviction API, gangs whole
  (koordra.controller.allocation.eviction.driver_release);
- Prepare refuses GPUs from phase Evicting on, and while NVML is closed; Unprepare goes on, or pods would hang
  in Terminating;
- NVML is closed at once where that is asked, else when no claim is left. Readings of the machine then keep
  what NVML said last, the limiter's comparisons wait, and Xids come from the kernel's log. It counts as
  closed once the last session has ended, which a call of NVML that hangs can hold up.

Released means that no claim of a GPU is prepared here, NVML is closed, and nobody, this process included,
holds a device node of the driver, or CONFIRM_WITHIN is over: those that still hold one (nvidia-persistenced,
an exporter) are somebody else's to stop, and are named in the report.

**The operator's request** is a file in the state directory, so that it outlives the plugin, and needs no
plugin to be made; the report is another. A plugin that starts goes on from the last report until it has
seen the Node; from one that the disk does not give, as if NVML had been closed.
"""

from __future__ import annotations

import json
import time
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Final, Protocol

from koordra.api import names
from koordra.api.objects import Fields
from koordra.errors import NodeError
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
from koordra.logs import get_logger
from koordra.node_state.disk import Disk, reported
from koordra.node_state.strict_json import BOOLEAN, STRING, listed, load, record, word
from koordra.process.wakeable import Pause, Wakeable

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


REPORT: Final = record(
    ReleaseReport,
    {
        "phase": word(Phase),
        "reason": STRING,
        "nvmlClosed": BOOLEAN,
        "claims": listed(STRING),
        "users": listed(STRING),
        "request": STRING,
    },
)


UNREADABLE: Final = ReleaseReport(
    Phase.CLOSING, "what the plugin said last cannot be read, and the Node was not seen yet", nvml_closed=True
)


def read_report(state: Path, disk: Disk) -> ReleaseReport | None:
    """The plugin's last report; None where there is none that can be read."""
    try:
        return _report(state, disk)
    except OSError:
        return None


def _report(state: Path, disk: Disk) -> ReleaseReport | None:
    """None where there is none, or a damaged one. Raises OSError."""
    data = disk.read(state / REPORT_FILE)
    try:
        return REPORT.read(load(data or b""), "")
    except ValueError:
        return None


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
        users: Callable[[Path], DriverUsers] = driver_users,
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
        self._seen = deque[ReleaseWanted]()
        """What the Node asked since the last step, in order: a cordon may last milliseconds."""
        self._by_node: ReleaseWanted | None = None
        """None until the Node was seen."""
        self._memory = PauseMemory()
        self._empty_since: float | None = None
        """Since when no claim has GPUs here, in this release."""
        self._seen_users = DriverUsers()
        self._users_at = 0.0
        self._written: ReleaseReport | None = None
        try:
            self._written = _report(state, disk)
            self.report = self._written or ReleaseReport()
        except OSError as error:
            log.warning("driver_release_unreadable", error=str(error))
            self.report = UNREADABLE
        self._lets_go = self.report.nvml_closed
        self._closed = self._lets_go and nvml.let_go(within=0.0)

    def see_node(self, node: Fields) -> None:
        self._seen.append(wanted_by_node(node))
        self.wake()

    failed = "driver_release_failed"
    longest = LOOK_EVERY

    def step(self) -> Pause:
        """Look who asks, and do what follows from it. Raises KoordraError where the claims are not known."""
        request = self._request()
        wanted = self._wanted(request)
        if wanted is not None:
            self._follow(wanted, request)
        return Pause(0.0, LOOK_EVERY)

    def _follow(self, wanted: ReleaseWanted, request: str) -> None:
        if wanted.let_go:
            self._let_go(wanted.reason)
        withheld = self.report.withheld
        claims = tuple(sorted(self._claims())) if wanted else ()
        # Only claims that are read after Prepare began to refuse are all that there will be.
        empty = wanted.evict and bool(withheld) and not claims
        if empty:
            self._let_go(wanted.reason)
        stays_closed = wanted.let_go or empty
        report = ReleaseReport(
            phase=phase_of(wanted, free=self._is_free(empty=empty)),
            reason=wanted.reason,
            nvml_closed=stays_closed and self._closed,
            claims=claims,
            users=tuple(self._seen_users.lines()) if empty else (),
            request=request,
        )
        try:
            self._tell(report)  # that it is open, before it is
        finally:
            if not stays_closed:
                self._take_up()

    def _wanted(self, request: str) -> ReleaseWanted | None:
        """None while it is not known: until the Node was seen, what the last plugin did holds."""
        loaded, now = loaded_driver(self._root), self._clock()
        while self._seen:
            self._by_node = self._seen.popleft()
            _, self._memory = after_pause(self._by_node, self._memory, loaded=loaded, now=now)
        by_label = self.report.phase is not Phase.IN_USE and not self.report.request
        if self._by_node is None and not request and by_label:
            return None
        by_node, self._memory = after_pause(self._by_node or NOBODY, self._memory, loaded=loaded, now=now)
        return by_node | (wanted_by_command() if request else NOBODY)

    def _request(self) -> str:
        """What the operator's request says, which only tells one from another; empty where there is none."""
        data = self._disk.read(self._state / REQUEST_FILE)
        return "" if data is None else data.decode("ascii", "replace").strip() or "asked"

    def _is_free(self, *, empty: bool) -> bool:
        """`empty`: pods are to go, and no claim is left."""
        if not empty:
            self._empty_since = None
            return False
        now, was_released = self._clock(), self.report.phase is Phase.RELEASED
        if self._empty_since is None:
            self._empty_since, self._users_at = now, now
        if now >= self._users_at:
            self._seen_users = self._users(self._root)
            self._users_at = now + (USERS_AGAIN if was_released else USERS_EVERY)
        confirmed = self._seen_users.nobody or now - self._empty_since >= CONFIRM_WITHIN
        return self._closed and (confirmed or was_released)

    def _let_go(self, reason: str) -> None:
        if self._closed:
            return
        self._closed = self._nvml.let_go(within=0.0 if self._lets_go else LET_GO_WITHIN)
        if self._closed:
            log.info("nvml_let_go", reason=reason)
        elif not self._lets_go:
            log.error("nvml_not_let_go", remedy="a call of NVML hangs: restart the kubelet plugin's pod")
        self._lets_go = True

    def _take_up(self) -> None:
        if self._lets_go:
            self._nvml.take_up()
        self._lets_go = self._closed = False

    def _tell(self, report: ReleaseReport) -> None:
        if report != self.report:
            if report.phase is not self.report.phase:
                log.info(
                    "driver_release", phase=report.phase.value, reason=report.reason, claims=report.claims
                )
            self.report = report
            self._changed(report)
        if report != self._written:
            data = json.dumps(REPORT.write(report)).encode() + b"\n"
            with reported(NodeError, self._state / REPORT_FILE, "written"):
                self._disk.replace(self._state / REPORT_FILE, data, mode=MODE)
            self._written = report
