"""The backends that do something to cards, and a look every few seconds whether these keep their shares."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Final

from koordra.kubelet_plugin.isolation.backend import IsolationBackend
from koordra.kubelet_plugin.isolation.mps.backend import MpsIsolation
from koordra.kubelet_plugin.isolation.timeslicing import TimeSlicing
from koordra.kubelet_plugin.nvidia_driver.card_settings import CardSettings
from koordra.kubelet_plugin.nvidia_driver.driver_programs import DriverPrograms, on_host
from koordra.kubelet_plugin.settings import Settings
from koordra.logs import get_logger
from koordra.process.wakeable import Pause, Wakeable

log = get_logger(__name__)

INTERVAL: Final = 5.0
_REST: Final = 3.0
"""Times as long as a look took nobody looks after it: no claim is prepared during one, and each program of
the driver that hangs costs it ten seconds."""


def card_backends(settings: Settings) -> tuple[IsolationBackend, ...]:
    programs = DriverPrograms(on_host(settings.homes))
    cards = CardSettings(programs)
    state, shared = settings.paths.state, settings.mps_shared
    return MpsIsolation(state, programs, cards, shared=shared), TimeSlicing(cards)


class CardWatch(Wakeable):
    """`verify` answers what is wrong, by device; `changed` is called when that is something else than
    before."""

    failed = "cards_not_verified"

    def __init__(
        self,
        verify: Callable[[], Mapping[str, str]],
        changed: Callable[[], None],
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__()
        self._verify, self._changed, self._clock = verify, changed, clock
        self.problems: Mapping[str, str] = {}
        """By device, in words."""

    def step(self) -> Pause:
        began = self._clock()
        found = self._verify()
        rest = _REST * (self._clock() - began)
        if found != self.problems:
            for device, problem in sorted(found.items()):
                if self.problems.get(device) != problem:
                    log.error("card_not_kept", device=device, problem=problem)
            for device in sorted(self.problems.keys() - found.keys()):
                log.info("card_kept_again", device=device)
            self.problems = found
            self._changed()
        return Pause(max(INTERVAL / 2, rest), max(INTERVAL, rest))
