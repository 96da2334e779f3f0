"""Backend `timeslicing`: the driver gives the card to its shares in turns of a length that is set; memory is
counted, and not enforced.

A card has one length for all its shares: it is that of the first (`timeSlice` of GpuConfig), and a share that
asks for another is refused while it has any. The compute mode is DEFAULT meanwhile. Afterwards the card has
the compute mode that it had, and the driver's own length, which is what it had unless somebody set it by
hand: nothing tells it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from koordra.api.opaque.parameters import GpuConfig, TimeSlice
from koordra.kubelet_plugin.isolation.backend import (
    Capabilities,
    Card,
    IsolationBackend,
    Keep,
    Realised,
    Share,
)
from koordra.kubelet_plugin.isolation.none import figures
from koordra.kubelet_plugin.nvidia_driver.card_settings import CardSettings, ComputeMode

_MODE, _SLICE = "computeMode", "timeSlice"
_NUMBERS: Final = {TimeSlice.DEFAULT: 0, TimeSlice.SHORT: 1, TimeSlice.MEDIUM: 2, TimeSlice.LONG: 3}


class TimeSlicing(IsolationBackend):
    name: Final = "timeslicing"
    capabilities = Capabilities(per_card=True)

    def __init__(self, cards: CardSettings) -> None:
        self._cards = cards

    @property
    def unavailable(self) -> str | None:
        return self._cards.unavailable

    def fits(self, share: Share, config: GpuConfig, card: Card) -> str | None:
        if not share.uuid.startswith("GPU-"):
            return "isolation timeslicing: only a whole card has time-slices, and no instance of one"
        wanted, found = _wanted(config), dict(card.journal).get(_SLICE)
        if len(card.shares) > 1 and found not in (None, wanted):
            return (
                f"isolation timeslicing: the card's time-slice is {found} as long as it has other shares, and {wanted} is "
                "asked; a card has one for all"
            )
        return None

    def card_start(self, card: Card, config: GpuConfig | None, keep: Keep) -> None:
        journal = dict(card.journal)
        mode = journal.get(_MODE) or str(self._cards.compute_mode(card.uuid))
        kept = TimeSlice(journal.get(_SLICE, TimeSlice.DEFAULT))
        length = _wanted(config) if config is not None and len(card.shares) == 1 else kept
        keep(((_MODE, mode), (_SLICE, length)))
        self._cards.set_compute_mode(card.uuid, ComputeMode.DEFAULT)
        self._cards.set_time_slice(card.uuid, _NUMBERS[length])

    def card_stop(self, card: Card) -> None:
        mode = dict(card.journal).get(_MODE)
        if mode is not None:
            self._cards.restore(card.uuid, ComputeMode(mode), time_slice=_NUMBERS[TimeSlice.DEFAULT])

    def prepare(self, share: Share, config: GpuConfig, keep: Keep) -> Realised:
        del config, keep
        return Realised(figures(share))

    def unprepare(self, share: Share) -> None:
        """What there is of it is the card's."""

    def verify(self, card: Card) -> str | None:
        mode = self._cards.compute_mode(card.uuid)
        if mode is not ComputeMode.DEFAULT:
            return f"its compute mode is {mode}, set by somebody else; its shares need {ComputeMode.DEFAULT}"
        return None

    def status(self, card: Card) -> Mapping[str, str]:
        return {"time-slice": dict(card.journal).get(_SLICE, TimeSlice.DEFAULT)}


def _wanted(config: GpuConfig) -> TimeSlice:
    return config.time_slice or TimeSlice.DEFAULT
