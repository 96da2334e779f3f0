"""Keeps what the node offers of IMEX, and the domain that it is in, as they are now.

Channels are offered while `koordra imex` runs on the node and has a daemon to run, and the host runs no
daemon of its own and is not to start one: nobody gets a channel into a domain that somebody else made. The
nodes of the domain are read again every few seconds, since a gang's members may move.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Final

from koordra.kubelet_plugin.node_check.host_imex import REMEDY, read_host_imex
from koordra.kubelet_plugin.node_check.readings.host_files import HostFiles
from koordra.kubelet_plugin.nvidia_driver.driver_files import program
from koordra.kubelet_plugin.nvidia_driver.driver_root import DriverRoot
from koordra.kubelet_plugin.prepare.device_state import DeviceState
from koordra.kubelet_plugin.prepare.imex_membership import DomainNotReady, ImexMembership
from koordra.node_state.imex import ImexFolder, is_supervised
from koordra.process.wakeable import Pause, Wakeable

PERIOD: Final = 5.0
"""Seconds."""
LOOKS_EACH: Final = 6
"""Steps: looking through the host's processes costs more."""


def why_not_offered(root: HostFiles, folder: ImexFolder, driver: DriverRoot | None) -> str:
    """Empty where channels may be given out, else why not, with a remedy. Raises NodeError."""
    if driver is None or program(driver, "nvidia-imex") is None:
        return "the GPU driver has no nvidia-imex; install NVIDIA's package of exactly the driver's version"
    if of_host := read_host_imex(root):
        return f"{of_host}; {REMEDY}"
    if not is_supervised(folder):
        return "`koordra imex` does not run on this node; deploy the component deploy/kustomize/imex"
    return ""


class ImexLoop(Wakeable):
    """`offer`: told why channels are not offered; whether that is another answer than before."""

    failed = "imex_domain_not_kept"

    def __init__(
        self,
        state: DeviceState,
        membership: ImexMembership,
        *,
        why_not: Callable[[], str],
        offer: Callable[[str], None],
    ) -> None:
        super().__init__()
        self._state = state
        self._membership = membership
        self._why_not = why_not
        self._offer = offer
        self._steps = 0

    def step(self) -> Pause:
        if self._steps % LOOKS_EACH == 0:
            self._offer(self._why_not())
        self._steps += 1
        with suppress(
            DomainNotReady
        ):  # the controller has given the claims back, and the kubelet is about to
            self._state.imex_domain(self._membership.nodes_of)
        return Pause(0.0, PERIOD)
