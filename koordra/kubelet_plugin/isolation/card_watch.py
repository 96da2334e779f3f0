"""The backends that are the node's own, and a look every few seconds whether these keep their shares."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Final

from koordra.kubelet_plugin.isolation.backend import IsolationBackend
from koordra.kubelet_plugin.isolation.hami_core import HamiCore
from koordra.kubelet_plugin.isolation.mps.backend import MpsIsolation
from koordra.kubelet_plugin.isolation.realisation import CardLook
from koordra.kubelet_plugin.isolation.timeslicing import TimeSlicing
from koordra.kubelet_plugin.nvidia_driver.card_settings import CardSettings
from koordra.kubelet_plugin.nvidia_driver.driver_programs import DriverPrograms, on_host
from koordra.kubelet_plugin.settings import Settings
from koordra.logs import get_logger
from koordra.process.wakeable import Pause, Wakeable

log = get_logger(__name__)

INTERVAL: Final = 5.0
_REST: Final = 3.0
"""Times as long as the looks took nobody looks after them: no claim of a card is prepared while it is looked
at."""


def node_backends(settings: Settings) -> tuple[IsolationBackend, ...]:
    """Those that need nothing but the node's programs and files."""
    programs = DriverPrograms(on_host(settings.homes))
    cards = CardSettings(programs)
    state, shared = settings.paths.state, settings.offering.mps_shared
    hami = HamiCore(settings.homes.host, str(settings.hami_core))
    return MpsIsolation(state, programs, cards, shared=shared), TimeSlicing(cards), hami


class CardWatch(Wakeable):
    """`look` answers how the cards are kept, by device; `changed` is called when that is something else than
    before."""

    failed = "cards_not_verified"

    def __init__(
        self,
        look: Callable[[], Mapping[str, CardLook]],
        changed: Callable[[], None],
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__()
        self._look, self._changed, self._clock = look, changed, clock
        self.looks: Mapping[str, CardLook] = {}
        """The last ones, by device."""

    def step(self) -> Pause:
        began = self._clock()
        before, found = self.looks, self._look()
        rest = _REST * (self._clock() - began)
        if found != before:
            for device in sorted(found.keys() | before.keys()):
                was, now = (looks[device].problem if device in looks else None for looks in (before, found))
                if now and now != was:
                    log.error("card_not_kept", device=device, problem=now)
                elif was and not now:
                    log.info("card_kept_again", device=device)
            self.looks = found
            self._changed()
        return Pause(max(INTERVAL / 2, rest), max(INTERVAL, rest))
