"""Telling what happened, and not telling the same thing over and over.

A claim that waits is told once per reason. When only the figures change, the newest ones are told after a pause
that doubles from FIRST_PAUSE to LONGEST_PAUSE seconds: what the claim's Events say last is never left to be wrong.
An allocation starts that anew.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from koordra.allocator.reasons import Reason
from koordra.api import objects
from koordra.api.objects import Object
from koordra.controller import happenings
from koordra.controller.happenings import Happening, Witness
from koordra.logs import get_logger

log = get_logger(__name__)

FIRST_PAUSE: Final = 2.0
LONGEST_PAUSE: Final = 60.0


@dataclass(frozen=True, slots=True)
class _Told:
    reason: str
    message: str
    until: float
    pause: float


class Announcements:
    """Passes happenings on to the witnesses. Not thread-safe; witnesses neither block nor raise."""

    def __init__(self, witnesses: Sequence[Witness], *, clock: Callable[[], float]) -> None:
        self._witnesses = tuple(witnesses)
        self._clock = clock
        self._told: dict[str, _Told] = {}
        self._held_back: dict[str, Happening] = {}

    def tell(self, happening: Happening) -> None:
        for witness in self._witnesses:
            witness(happening)

    def allocated(self, claim: Object, pods: Iterable[Object], *, level: str | None) -> None:
        """The claim waits no more."""
        self._told.pop(objects.uid(claim), None)
        self._held_back.pop(objects.uid(claim), None)
        self.tell(happenings.allocated(claim, pods, level=level))

    def waiting(self, claim: Object, pods: Iterable[Object], reasons: Sequence[Reason]) -> None:
        """The claim waits; told only if that is news."""
        self._tell_if_news(happenings.waiting(claim, tuple(pods), reasons), objects.uid(claim))

    def stuck(self, claim: Object, pod: Object, reasons: Sequence[Reason]) -> None:
        """The pod has no place beside a claim that others have; told only if that is news."""
        self._tell_if_news(happenings.stuck(claim, pod, reasons), objects.uid(pod))

    def _tell_if_news(self, happening: Happening, uid: str) -> None:
        before = self._told.get(uid)
        self._held_back.pop(uid, None)
        if before is not None and (before.reason, before.message) == (happening.reason, happening.message):
            return
        if before is not None and before.reason == happening.reason and self._clock() < before.until:
            self._held_back[uid] = happening
            return
        self._tell_waiting(uid, happening)

    def catch_up(self) -> float | None:
        """Tell what was held back and is due; returns when the next is, None when nothing is held back."""
        now = self._clock()
        for uid in [uid for uid in self._held_back if self._told[uid].until <= now]:
            self._tell_waiting(uid, self._held_back.pop(uid))
        return min((self._told[uid].until for uid in self._held_back), default=None)

    def _tell_waiting(self, uid: str, happening: Happening) -> None:
        before, now = self._told.get(uid), self._clock()
        pause = FIRST_PAUSE
        if before is not None and before.reason == happening.reason and now < before.until + LONGEST_PAUSE:
            pause = min(before.pause * 2, LONGEST_PAUSE)
        self._told[uid] = _Told(happening.reason, happening.message, now + pause, pause)
        log.info(
            "claim_waits",
            about=objects.describe(happening.about[0]),
            reason=happening.reason,
            message=happening.message,
        )
        self.tell(happening)

    def forget(self, uid: str) -> None:
        """The claim or pod is gone."""
        self._told.pop(uid, None)
        self._held_back.pop(uid, None)
