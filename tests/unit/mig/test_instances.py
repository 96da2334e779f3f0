"""One instance on a card of the fake NVML: made and removed, with failures at every call, and killed between
any two."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from koordra.errors import PrepareError
from koordra.kubelet_plugin.isolation.mig.instances import InstancesOfCard
from koordra.kubelet_plugin.isolation.mig.journal import Journal, Place
from tests.fakes.mig_card import MigCard
from tests.fakes.mig_world import RESOURCES, TIMEOUT, one_schedule
from tests.fakes.nvml_library import build

CALLS = 80
"""More than making or removing takes."""
FIRST = 3
"""Before it the library is initialised, and the card looked for."""


@pytest.fixture(scope="module")
def library() -> Path:
    return build()


@pytest.fixture
def card(tmp_path: Path, library: Path) -> MigCard:
    return MigCard(tmp_path, library)


def test_an_instance_is_made_with_all_of_its_multiprocessors_and_removed(card: MigCard) -> None:
    for profile, start in (("1g.20gb", 6), ("3g.40gb", 0), ("1g.10gb", 4)):
        place = card.place(profile, start)
        uuid = card.make(place, profile)
        assert uuid.startswith("MIG-")
        assert card.make(place, profile) == uuid, "again, and it is the same"
    assert [parts for _, parts in card.instances()] == [1, 1, 1]
    for profile in ("1g.20gb", "3g.40gb", "1g.10gb"):
        assert card.remove(profile) == ""
    assert card.instances() == []
    assert card.remove("1g.20gb") == ""


def finished(card: MigCard, place: Place) -> None:
    """Whoever comes next finishes what was begun, and removes it."""

    def run(of: InstancesOfCard) -> list[object]:
        return [card.make_on(of, place), card.listed(of), card.remove_from(of), card.listed(of)]

    card.fake.order()
    uuid, made, said, left = card.call(run)
    assert uuid.startswith("MIG-")
    assert made == [[place.profile, place.start, place.size, 1]]
    assert (said, left) == ("", [])


def removed(card: MigCard, place: Place) -> None:
    del place
    card.fake.order()
    assert card.call(lambda of: [card.listed(of), card.remove_from(of), card.listed(of)])[1:] == ["", []]


EVERY = pytest.mark.parametrize("step", [pytest.param(1, marks=pytest.mark.long), 9])
"""Every call, or every ninth."""


@EVERY
@pytest.mark.parametrize("then", [finished, removed])
def test_killed_at_any_call_an_instance_is_finished_or_removed(
    card: MigCard, step: int, then: Callable[[MigCard, Place], None]
) -> None:
    place, number, killed = card.place("1g.20gb", 4), 1, True
    while killed:
        card.fake.order(f"kill {number}")
        killed = card.make(place) == "killed"
        then(card, place)
        number += step
    assert number > 30


@EVERY
def test_killed_at_any_call_a_removal_is_finished(card: MigCard, step: int) -> None:
    place, number, killed = card.place("3g.40gb", 4), 1, True
    while killed:
        assert card.make(place).startswith("MIG-")
        card.fake.order(f"kill {number}")
        killed = card.remove() == "killed"
        removed(card, place)
        number += step
    assert number > 20


@EVERY
@pytest.mark.parametrize("order", [f"fail {{}} {TIMEOUT}", f"fail {{}} {RESOURCES}", f"late {{}} {TIMEOUT}"])
def test_a_failure_at_any_call_leaves_a_whole_instance_or_what_the_next_one_finishes(
    card: MigCard, order: str, step: int
) -> None:
    place = card.place("2g.20gb", 2)
    whole = [place.profile, place.start, place.size, 1]

    def tried(of: InstancesOfCard, action: Callable[[], str]) -> str:
        """In the process in which the order counts calls; then all goes well again."""
        try:
            return action()
        except PrepareError as error:
            return f"error: {error}"
        finally:
            card.fake.order()

    def make(of: InstancesOfCard) -> list[object]:
        said = tried(of, lambda: card.make_on(of, place))
        return [said, card.listed(of), card.make_on(of, place), card.listed(of)]

    def remove(of: InstancesOfCard) -> list[object]:
        tried(of, lambda: card.remove_from(of))
        return [card.remove_from(of), card.listed(of)]

    for number in range(FIRST, CALLS, step):
        card.fake.order(order.format(number))
        found = card.call(make)
        said, after, again, then = found
        assert again.startswith("MIG-")
        assert then == [whole]
        if said.startswith("MIG-"):
            assert after == [whole]
        card.fake.order(order.format(number))
        assert card.call(remove) == ["", []], number


def test_a_failed_compute_instance_takes_its_gpu_instance_with_it(card: MigCard) -> None:
    card.fake.order(f"error nvmlGpuInstanceCreateComputeInstance {RESOURCES}")
    assert "compute instances in place of one" in card.make(card.place("3g.40gb", 0))
    assert card.instances() == []


def test_an_instance_in_use_stays_and_is_removed_later(card: MigCard) -> None:
    place = card.place("1g.10gb", 3)
    uuid = card.make(place)
    card.fake.processes((uuid, "compute", 4711, 1))
    assert "is still used" in card.remove()
    assert card.instances() == [(place, 1)]
    card.fake.order()
    assert card.remove() == ""
    assert card.instances() == []


def test_what_others_made_is_told_and_left(card: MigCard) -> None:
    mine, theirs = card.place("1g.10gb", 1), card.place("3g.40gb", 0)
    card.make(theirs, "theirs")
    assert "in its way: profile 9 at 0:4" in card.make(mine)
    assert card.instances() == [(theirs, 1)]
    # One that is there already is handed out as it is, and left.
    uuid = card.written()["theirs"].uuid
    assert card.make(theirs, "other") == uuid
    assert card.written()["other"].given
    assert card.remove("other") == ""
    assert card.instances() == [(theirs, 1)]


def test_another_ones_instance_at_the_place_of_ours_is_not_removed(card: MigCard) -> None:
    place = card.place("2g.20gb", 4)
    card.make(place)
    ours = card.written()["claim"]
    card.remove()
    theirs = card.make(place, "theirs")
    card.keep(ours)
    assert theirs != ours.uuid
    assert "koordra did not make" in card.make(place)
    assert card.remove() == ""
    assert card.instances() == [(place, 1)]


def test_half_an_instance_of_others_is_left(card: MigCard) -> None:
    place = card.place("2g.20gb", 0)
    card.fake.order("error nvmlGpuInstanceCreateComputeInstance 10", "error nvmlGpuInstanceDestroy 10")
    card.make(place)
    card.keep(None)
    card.fake.order()
    assert card.instances() == [(place, 0)]
    assert "with 0 compute instances that koordra did not make" in card.make(place)
    assert card.instances() == [(place, 0)]


def test_a_card_that_is_not_in_mig_mode_is_left_alone(tmp_path: Path, library: Path) -> None:
    card = MigCard(tmp_path, library, enabled=False)
    assert "MIG mode" in card.make(card.place("1g.10gb", 0))
    card.keep(Journal(card.place("1g.10gb", 0)))
    assert card.remove() == ""


def test_instances_do_not_outlive_a_reset(card: MigCard) -> None:
    place = card.place("1g.10gb", 0)
    before = card.make(place)
    (card.fake.folder / "instances").unlink()
    after = card.make(place)
    assert after.startswith("MIG-")
    assert after != before


@pytest.mark.long
def test_slices_come_and_go_among_failures_and_kills(tmp_path: Path, library: Path) -> None:
    """`python -m tests.soak --only mig` runs many."""
    assert sum(one_schedule(0, tmp_path, library).drawn.values()) > 40
