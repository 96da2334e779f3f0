"""Looks every few seconds whether the cards that backends do something to still keep their shares."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from koordra.logs import get_logger
from koordra.process.wakeable import Pause, Wakeable

log = get_logger(__name__)

INTERVAL: Final = 5.0


class CardWatch(Wakeable):
    """`verify` answers what is wrong, by device; `changed` is called when that is something else than
    before."""

    failed = "cards_not_verified"

    def __init__(self, verify: Callable[[], Mapping[str, str]], changed: Callable[[], None]) -> None:
        super().__init__()
        self._verify, self._changed = verify, changed
        self.problems: Mapping[str, str] = {}
        """By device, in words."""

    def step(self) -> Pause:
        found = self._verify()
        if found != self.problems:
            for device, problem in sorted(found.items()):
                if self.problems.get(device) != problem:
                    log.error("card_not_kept", device=device, problem=problem)
            for device in sorted(self.problems.keys() - found.keys()):
                log.info("card_kept_again", device=device)
            self.problems = found
            self._changed()
        return Pause(INTERVAL / 2, INTERVAL)
