"""Cut cards against brute force: what can follow from a state, what a card is worth, and which places are
taken."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from koordra.cli.debug import leftover_table
from koordra.errors import InvalidManifest
from koordra.placement.free_amounts.state import Request
from koordra.placement.mig.layout import Layout, Place, Slice, layout_of
from koordra.placement.policy import mig_placement
from koordra.placement.policy.mig_placement import MigCardValues
from koordra.placement.policy.workload import Workload, expected
from koordra.placement.policy.workload_table import LearnedTable, SliceDemand
from tests.unit.placement.fleets import mig_layout


def _layout(generator: np.random.Generator) -> Layout:
    """A small card: three to five memory slices, something that is counted beside them, a few profiles
    anywhere."""
    slices, compute = int(generator.integers(3, 6)), int(generator.integers(2, 5))
    places = []
    for profile in "abc"[: int(generator.integers(1, 4))]:
        size, cores = int(generator.integers(1, slices + 1)), int(generator.integers(0, compute + 1))
        for start in range(slices - size + 1):
            if int(generator.integers(3)):
                row = tuple(int(start <= at < start + size) for at in range(slices))
                places.append(Place(profile, (*row, cores), 1000 * size // slices))
    places.append(Place("z", (*[1] * slices, compute), 1000))
    found = layout_of((*[1] * slices, compute), places)
    assert found is not None
    return found


def _most(layout: Layout, taken: int) -> int:
    """The most that can still be given out."""
    return max(
        (layout.places[at].milli + _most(layout, taken | 1 << at) for at in _possible(layout, taken)),
        default=0,
    )


def _left(layout: Layout, taken: int) -> list[int]:
    rows = [place.takes for at, place in enumerate(layout.places) if taken >> at & 1]
    return [has - sum(row[at] for row in rows) for at, has in enumerate(layout.counters)]


def _possible(layout: Layout, taken: int) -> list[int]:
    left = _left(layout, taken)
    return [
        at
        for at, place in enumerate(layout.places)
        if all(amount <= has for amount, has in zip(place.takes, left, strict=True))
    ]


def _reached(layout: Layout) -> list[int]:
    found, new = {0}, [0]
    while new:
        taken = new.pop()
        for at in _possible(layout, taken):
            if taken | 1 << at not in found:
                found.add(taken | 1 << at)
                new.append(taken | 1 << at)
    return sorted(found)


LAYOUTS = [_layout(np.random.default_rng(seed)) for seed in range(12)]


@pytest.mark.parametrize("layout", LAYOUTS, ids=range(len(LAYOUTS)))
def test_states_are_what_the_counters_leave(layout: Layout) -> None:
    for taken in _reached(layout):
        possible = sum(1 << at for at in _possible(layout, taken))
        state = layout.state_of(taken)
        assert layout.states.possible[state] == possible
        assert layout.open_places(taken) == possible & ~taken
        assert layout.states.free[state] == _most(layout, taken)
        blocked = taken | 1 << len(layout.places)
        assert layout.open_places(blocked) == possible & ~taken & ~1


def test_a_real_card_has_few_states() -> None:
    for card in ("A100-SXM4-40GB", "H100-SXM5-80GB"):
        layout = mig_layout(card)
        assert len(layout.places) == 25
        assert len(layout.states) < 300
        assert layout.states.free[-1] == 1000


def _usable(layout: Layout, mix: list[tuple[float, Slice]]) -> dict[int, float]:
    """The formula of MigCardValues, over what is taken, without states."""
    reached = _reached(layout)
    serves = [
        (part, one.milli, {at for at, place in enumerate(layout.places) if place.profile in one.profiles})
        for part, one in mix
    ]
    alone = dict.fromkeys(reached, 0.0)
    for _ in range(30):
        new = {}
        for taken in reached:
            new[taken] = 0.0
            for part, milli, places in serves:
                fits = [taken | 1 << at for at in _possible(layout, taken) if at in places]
                new[taken] += part * (milli + max(alone[then] for then in fits) if fits else alone[taken])
        alone = new

    def count(taken: int, places: set[int]) -> int:
        return max(
            (1 + count(taken | 1 << at, places) for at in _possible(layout, taken) if at in places), default=0
        )

    return {
        taken: (
            3 * alone[taken]
            + 7 * sum(part * milli * count(taken, places) for part, milli, places in serves)
            + 2 * 1000 * (_most(layout, taken) / 1000) ** 2
        )
        / 12
        for taken in reached
    }


@pytest.mark.parametrize("layout", LAYOUTS[:6], ids=range(6))
@pytest.mark.parametrize("known", [False, True])
def test_usable_and_the_choices_of_a_slice_are_what_the_formula_says(layout: Layout, known: bool) -> None:
    slices = {
        profile: Slice((profile,), min(p.milli for p in layout.places if p.profile == profile))
        for profile in layout.profiles
    }
    asked = [SliceDemand(one.profiles, one.milli, 10 * (at + 1)) for at, one in enumerate(slices.values())]
    total, even = sum(one.part for one in asked), 1 / len(slices)
    parts = [0.9 * one.part / total + 0.1 * even for one in asked] if known else [even] * len(slices)
    worth = _usable(layout, list(zip(parts, slices.values(), strict=True)))
    mig_values = MigCardValues(asked if known else ())
    for taken in _reached(layout):
        assert mig_values.usable(layout, taken) == pytest.approx(1000 * worth[taken], abs=2)
        for profile, one in slices.items():
            fits = [at for at in _possible(layout, taken) if layout.places[at].profile == profile]
            found = mig_values.choices(layout, taken, one)
            assert set(found) <= set(fits)
            leaves = {at: round(worth[taken | 1 << at], 1) for at in fits}
            sizes = {(layout.places[at].milli, leaves[at]) for at in fits}
            assert sorted((layout.places[at].milli, leaves[at]) for at in found) == sorted(sizes)


@pytest.mark.parametrize("layout", LAYOUTS, ids=range(len(LAYOUTS)))
@pytest.mark.parametrize("most", [64, 2])
def test_slices_never_take_more_for_less_than_their_sums_say(
    layout: Layout, most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Any profile would do, so that a slice may get a larger place than it asked for. With few sums, too."""
    monkeypatch.setattr(mig_placement, "_MOST_SUMS", most)
    asked, values = Slice(layout.profiles, min(one.milli for one in layout.places)), MigCardValues()
    sums = values.least_of_slices((layout, None), (asked, asked))
    assert len(sums) <= most
    for taken in _reached(layout):
        for first in _possible(layout, taken):
            for second in _possible(layout, taken | 1 << first):
                then = taken | 1 << first | 1 << second
                share = layout.places[first].milli + layout.places[second].milli
                lost = values.usable(layout, taken) - values.usable(layout, then)
                assert any(share <= more and lost >= less for more, less in sums)


def test_a_table_keeps_the_mix_of_slices() -> None:
    small, large = Slice(("1g.10gb",), 132), Slice(("3g.40gb", "4g.40gb"), 460)
    workload = Workload(
        [
            (Request(1000, 1024, 0, 0, slices=(small,)), 60),
            (Request(1000, 1024, 0, 0, slices=(small, large)), 20),
            (Request(1000, 1024, 1, 500), 20),
        ]
    )
    table = expected(workload, {"H100": 8})
    assert table.slices == (
        SliceDemand(small.profiles, small.milli, 800_000),
        SliceDemand(large.profiles, large.milli, 200_000),
    )
    assert LearnedTable.from_document(table.to_document()) == table
    assert Workload.from_document(workload.to_document()).counts == workload.counts


def test_documents_that_are_none_are_refused() -> None:
    row = [20, 1000, 1024, 1, 500, ["H100"], 0, 0]
    assert Workload.from_document([[*row, []]]).counts == {Request(1000, 1024, 1, 500, ("H100",)): 20}
    for broken in (row, [*row, 7], [*row, [], []], [*row, [["1g"]]]):
        with pytest.raises(InvalidManifest):
            Workload.from_document([broken])
    with pytest.raises(InvalidManifest):
        LearnedTable.from_document({**LearnedTable().to_document(), "slices": [["1g", 3]]})


def test_the_mix_of_slices_is_shown(tmp_path: Path) -> None:
    table = LearnedTable(slices=(SliceDemand(("3g.40gb", "4g.40gb"), 460, 250_000),), pods=40)
    file = tmp_path / "table.json"
    file.write_text(json.dumps(table.to_document()))
    shown = CliRunner().invoke(leftover_table, [str(file)])
    assert shown.exit_code == 0, shown.output
    assert "3g.40gb or 4g.40gb" in shown.output
    assert "25.00 %" in shown.output


def test_what_cannot_be_counted_has_no_layout() -> None:
    assert layout_of((1, 1), [Place("a", (0, 0), 100)]) is None
    assert layout_of((1, 1), []) is None
    alone = [Place("a", tuple(int(at == one) for at in range(16)), 62) for one in range(16)]
    assert layout_of((1,) * 16, alone) is None
