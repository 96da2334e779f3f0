"""The operator's side of a release: asking the kubelet plugin for it, taking that back, and waiting for it.

Both sides are files in the plugin's state directory (release.py), so that no plugin has to run to be asked,
and a request outlives it.
"""

from __future__ import annotations

import secrets
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from koordra.errors import NodeError
from koordra.kubelet_plugin.nvidia_driver.device_holders import DriverUsers, driver_users
from koordra.kubelet_plugin.nvidia_driver.release import (
    MODE,
    REPORT_FILE,
    REQUEST_FILE,
    Phase,
    ReleaseReport,
    read_report,
)
from koordra.node_state.disk import Disk, reported

LOOK_EVERY: Final = 0.2
UNTOLD_FOR: Final = 10.0
"""Seconds in which the plugin sees the labels by which the Operator ended the waiting pod."""


@dataclass(frozen=True, slots=True)
class ReleaseFolder:
    """The plugin's state directory, as the operator uses it."""

    state: Path
    disk: Disk
    clock: Callable[[], float] = time.monotonic
    rest: Callable[[float], object] = time.sleep

    def ask(self) -> str:
        """Ask for the release; a request that stands already stays. Raises NodeError where the directory
        cannot be written."""
        path = self.state / REQUEST_FILE
        with reported(
            NodeError, path, "written", remedy="name the plugin's state directory with --state-dir"
        ):
            before = self.disk.read(path)
            if before is not None and before.strip():
                return before.decode("ascii", "replace").strip()
            if not self.state.is_dir():
                raise NodeError(
                    f"{self.state} does not exist; name the plugin's state directory with --state-dir"
                )
            token = secrets.token_hex(8)
            self.disk.replace(path, token.encode() + b"\n", mode=MODE)
        return token

    def take_back(self) -> bool:
        """Whether there was a request. Raises NodeError."""
        with reported(NodeError, self.state / REQUEST_FILE, "removed"):
            return self.disk.remove(self.state / REQUEST_FILE)

    def report(self) -> ReleaseReport | None:
        return read_report(self.state, self.disk)

    def wait(self, request: str, *, timeout: float) -> ReleaseReport | None:
        """The plugin's report about this request once the driver is released, or the one there is when the
        time is over; None where the plugin has not answered it."""
        until = self.clock() + timeout
        while True:
            report = self.report()
            if report is not None and report.request != request:
                report = None
            if (report is not None and report.phase is Phase.RELEASED) or self.clock() >= until:
                return report
            self.rest(LOOK_EVERY)

    def wait_at_end(self, stop: threading.Event) -> None:
        """Wait for `stop`, then until nothing of koordra's is in the way of an upgrade. Without one it
        returns soon: the pod ends for another reason. Raises NodeError at once where it could not see the
        report: a driver would be unloaded under the plugin."""
        path = self.state / REPORT_FILE
        with reported(NodeError, path, "read", remedy="let this pod read the plugin's state directory"):
            self.disk.read(path)
        stop.wait()
        untold_until = self.clock() + UNTOLD_FOR
        while True:
            report = self.report()
            if report is None or report.may_unload:
                return
            if report.phase is Phase.IN_USE and self.clock() >= untold_until:
                return
            self.rest(LOOK_EVERY)


@dataclass(frozen=True, slots=True)
class DriverAnswer:
    """What became of a request: the plugin's report about it, None where it has not answered; who holds the
    driver, and the node's pods by uid."""

    report: ReleaseReport | None
    users: DriverUsers
    pods: Mapping[str, str]

    @property
    def is_released(self) -> bool:
        return self.report is not None and self.report.phase is Phase.RELEASED

    @property
    def is_free(self) -> bool:
        return self.is_released and self.users.nobody

    def in_the_way(self) -> list[str]:
        """In words, one line each."""
        claims = self.report.claims if self.report is not None else ()
        return [
            *(f"claim {claim} still has GPUs" for claim in claims),
            *self.users.lines(self.pods),
        ]

    def standing(self) -> str:
        """How far the plugin is, in words."""
        if self.report is None:
            return "the kubelet plugin has not answered: does it run, and is this its state directory?"
        return f"{self.report.phase.value}: NVML is {'closed' if self.report.nvml_closed else 'open'}"


def ask_for_driver(folder: ReleaseFolder, root: Path, *, timeout: float) -> DriverAnswer:
    """Ask the plugin of the machine below `root` to let go of the driver, and wait for it. The request stands
    afterwards. Raises NodeError where it cannot be made."""
    report = folder.wait(folder.ask(), timeout=timeout)
    return DriverAnswer(report, driver_users(root), pods_on(root))


def pods_on(root: Path) -> dict[str, str]:
    """The names of the node's pods by uid, as the kubelet names their folders of logs."""
    found = {}
    try:
        folders = sorted((root / "var/log/pods").iterdir())
    except OSError:
        return {}
    for folder in folders:
        namespace, _, rest = folder.name.partition("_")
        name, _, uid = rest.rpartition("_")
        if name and uid:
            found[uid] = f"{namespace}/{name}"
    return found
