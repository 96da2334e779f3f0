"""Instances that come and go on one card, while NVML's calls fail, or answer late, and the plugin is killed
between any two: a schedule by its seed, judged after every turn.

A turn is one claim that comes or goes, with one fault; then the plugin starts again, with no fault: it undoes
what was begun and is nobody's, and makes what is a claim's. Whatever went wrong on the way:

- the card has the claims' instances afterwards, each whole, at its place, and nothing else;
- no two share a memory slice, which is looked at here, not asked of NVML;
- the instance of a claim that was whole before the turn is the very same after it.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Final

from koordra.errors import PrepareError
from koordra.kubelet_plugin.isolation.mig.instances import InstancesOfCard
from koordra.kubelet_plugin.isolation.mig.journal import Place
from tests.fakes.mig_card import MigCard
from tests.fakes.model_wire import Faults

IN_USE, TIMEOUT, RESOURCES = 19, 10, 23
"""NVML's returns."""
CARDS: Final = ("H100-SXM5-80GB", "A100-SXM4-40GB", "A30-24GB", "RTX-PRO-6000-Blackwell-96GB")
_CALLS: Final = 90
"""More than a turn takes."""


def one_schedule(seed: int, folder: Path, library: Path, *, turns: int = 40) -> Faults:
    """What went wrong on the way; AssertionError where koordra did."""
    faults = Faults(seed, often=1.0)
    card = MigCard(folder, library, CARDS[seed % len(CARDS)])
    schedule = Schedule(card, faults)
    for turn in range(turns):
        schedule.turn(f"c{turn}")
    return faults


class Schedule:
    def __init__(self, card: MigCard, faults: Faults) -> None:
        self.card, self.faults, self.draw = card, faults, faults.random
        self.held: dict[str, Place] = {}
        self.uuids: dict[str, str] = {}

    def turn(self, name: str) -> None:
        self._order()
        if self.held and self.draw.random() < 0.45:
            self._go(self.draw.choice(sorted(self.held)))
        else:
            self._come(name)
        self.card.fake.order()
        self._start_again(name)

    def _order(self) -> None:
        """One fault, at a call of the next process by its number."""
        kind = self.faults.draw("NVML", "kill", "fail", "fail late")
        number, code = self.draw.randint(1, _CALLS), self.draw.choice((TIMEOUT, RESOURCES, IN_USE))
        order = {"kill": f"kill {number}", "fail": f"fail {number} {code}"}
        self.card.fake.order(order.get(kind, f"late {number} {TIMEOUT}"))

    def _go(self, name: str) -> None:
        if self.card.remove(name) == "":
            del self.held[name]
            self.uuids.pop(name, None)
        else:
            # Half of it may be gone: the next Prepare makes another.
            self.uuids.pop(name, None)

    def _come(self, name: str) -> None:
        profile = self.draw.choice(self.card.gpu.mig_profiles)
        start, size = self.draw.choice(profile.placements)
        place = Place(self.card.uuid, profile.id, start, size)
        if not any(_overlap(place, one) for one in self.held.values()):
            self.held[name] = place
            self.faults.note("card", "instance")
            self.card.make(place, name)

    def _start_again(self, turn: str) -> None:
        def run(of: InstancesOfCard) -> list[object]:
            for name in sorted(self.card.written().keys() - self.held.keys()):
                self.card.remove_from(of, name)
            kept: dict[str, str] = {}
            for name, place in self.held.items():
                try:
                    kept[name] = self.card.make_on(of, place, name)
                except PrepareError:
                    # No engine is left for it (+me): it is given back.
                    self.card.remove_from(of, name)
            return [kept, self.card.listed(of)]

        answer = self.card.call(run)
        assert isinstance(answer, list), (turn, answer)
        kept, found = answer
        self.held = {name: self.held[name] for name in kept}
        places = [Place(self.card.uuid, *each[:3]) for each in found]
        assert sorted(found) == sorted([*_numbers(self.held.values())]), (turn, found)
        assert not any(_overlap(one, other) for at, one in enumerate(places) for other in places[:at]), found
        changed = {name: (was, kept.get(name)) for name, was in self.uuids.items() if kept.get(name) != was}
        assert not changed, (turn, changed)
        assert len({*kept.values()}) == len(kept), (turn, kept)
        self.uuids = dict(kept)


def _numbers(places: Iterable[Place]) -> list[list[int]]:
    return [[place.profile, place.start, place.size, 1] for place in places]


def _overlap(one: Place, other: Place) -> bool:
    return one.start < other.start + other.size and other.start < one.start + one.size
