"""Behind --learn-from-profiles the table is made of what jobs will ask for when they come again."""

from __future__ import annotations

import json
from collections.abc import Mapping
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from koordra.api import names
from koordra.api.objects import Object
from koordra.api.resource_class import CONFIG_MAPS
from koordra.controller.allocation.learned.foreseen import PERIOD, Foreseen, coming_again
from koordra.errors import ApiError, NotFound
from koordra.placement.free_amounts.state import WHOLE, Request
from koordra.placement.policy.learned_order import ComesAgain
from koordra.placement.policy.workload import Moves, Workload, expected, foreseen
from koordra.profiles.config_map import AskedBy, Recommended
from tests.unit.controller.test_learned_order import GPU, Learning

GIB = 1 << 30
HALF, EIGHTH = GPU // 2 * GIB, GPU // 8 * GIB


def device_class(name: str, word: str = "") -> Object:
    marks = {names.APPLY_RECOMMENDATION: word} if word else {}
    return {"metadata": {"name": name, "annotations": marks}}


class Api:
    """What the profiler has written."""

    def __init__(self, known: Mapping[str, Mapping[str, Recommended]]) -> None:
        document = {place: {key: one._asdict() for key, one in of.items()} for place, of in known.items()}
        self.data = {"recommendations.json": json.dumps(document)}
        self.error: Exception | None = None
        self.asked = 0

    def get(self, kind: Any, name: str, *, namespace: str) -> Object:
        assert (kind, name, namespace) == (CONFIG_MAPS, "koordra-recommendations", "home")
        self.asked += 1
        if self.error is not None:
            raise self.error
        return {"data": self.data}


def busy() -> Learning:
    """Forty pods have asked for half a GPU."""
    book = Learning(nodes=20, gpus=2)
    for number in range(40):
        book.place(f"c{number}", memory=f"{GPU // 2}Gi", cpu="100m")
    return book


def recommended(
    namespace: str = "default", *, device_class: str = "share"
) -> dict[str, dict[str, Recommended]]:
    return {namespace: {"t": Recommended(EIGHTH, 0, 1, (AskedBy(device_class, HALF, 0, 12),))}}


def test_the_table_is_of_what_will_be_asked_and_the_counts_of_what_was() -> None:
    book, now = busy(), [0.0]
    order = book.placer.order
    namespace = next(iter(order.online.of))
    api = Api(recommended(namespace))
    before, counts = order.table, order.learned.workload.counts
    term = Foreseen(api, "home", lambda: now[0])  # type: ignore[arg-type]
    assert term.sync(order, [device_class("share", "Smaller")]) == PERIOD
    wanted = expected(Workload([(Request(100, 0, 1, 125), 40)]), order.online.capacity)
    assert order.table.holes == wanted.holes != before.holes
    assert order.learned.workload.counts == counts == {Request(100, 0, 1, 500): 40}
    # Known once, until its time comes; then nothing is made anew without anything new.
    epoch, now[0] = order.epoch, PERIOD / 2
    assert term.sync(order, []) == PERIOD / 2
    now[0] = PERIOD
    assert term.sync(order, [device_class("share", "Smaller")]) == PERIOD
    assert (api.asked, order.epoch) == (2, epoch)
    # The operator takes the word back.
    now[0] = 2 * PERIOD
    term.sync(order, [device_class("share")])
    assert order.table.holes == before.holes


def test_what_was_foreseen_is_forgotten_with_the_config_map_and_no_sooner() -> None:
    book, now = busy(), [0.0]
    order, before = book.placer.order, book.placer.order.table
    api, classes = Api(recommended(next(iter(order.online.of)))), [device_class("share", "Smaller")]
    term = Foreseen(api, "home", lambda: now[0])  # type: ignore[arg-type]
    term.sync(order, classes)
    holes, now[0] = order.table.holes, PERIOD
    api.error = ApiError("down", code=500)
    term.sync(order, classes)
    assert order.table.holes == holes != before.holes
    api.error, now[0] = NotFound("none", code=404), 2 * PERIOD
    term.sync(order, classes)
    assert order.table.holes == before.holes


@pytest.mark.parametrize("error", [NotFound("none", code=404), ApiError("down", code=500)])
def test_without_recommendations_it_is_of_what_was_asked(error: Exception) -> None:
    book, api = busy(), Api({})
    api.error, before = error, book.placer.order.table
    term = Foreseen(api, "home", lambda: 0.0)  # type: ignore[arg-type]
    assert term.sync(book.placer.order, []) == PERIOD
    assert book.placer.order.table is before


def test_where_nothing_was_learned_yet_the_first_table_is_of_it() -> None:
    book = Learning(nodes=20, gpus=2)
    book.placer.sync(book.seen())
    order = book.placer.order
    term = Foreseen(Api(recommended()), "home", lambda: 0.0)  # type: ignore[arg-type]
    assert Learning(nodes=0).placer.order.measures is False
    assert term.sync(Learning(nodes=0).placer.order, []) is None
    term.sync(order, [device_class("share", "Either")])
    assert order.table.pods == 0
    for number in range(40):
        book.place(f"c{number}", memory=f"{GPU // 2}Gi", cpu="100m")
    (namespace,) = order.online.of
    assert namespace == "default"
    assert order.table.holes == expected(Workload([(Request(100, 0, 1, 125), 40)]), {}).holes


@pytest.mark.parametrize(
    ("word", "asked", "wanted"),
    [
        ("Smaller", (HALF, 50), {"memory": EIGHTH, "cores": 25}),
        ("Smaller", (GIB, 50), {"memory": GIB, "cores": 25}),
        ("Either", (GIB, 50), {"memory": EIGHTH, "cores": 25}),
        ("Smaller", (HALF, 0), {"memory": EIGHTH}),
        ("Tell", (HALF, 50), {"memory": HALF, "cores": 50}),
        ("", (HALF, 50), {"memory": HALF, "cores": 50}),
    ],
)
def test_what_comes_again_asks_for_what_its_class_gives(
    word: str, asked: tuple[int, int], wanted: dict[str, int]
) -> None:
    known = {
        "team": {"t": Recommended(EIGHTH, 25, 1, (AskedBy("share", *asked, 3), AskedBy("gone", 1, 0, 2)))}
    }
    first, second = coming_again(known, {"share": device_class("share", word)})
    amounts = {"memory": asked[0], **({"cores": asked[1]} if asked[1] else {})}
    assert first == ComesAgain("team", _decimals(amounts), _decimals(wanted), 3)
    assert second.asked == second.wanted


def _decimals(amounts: Mapping[str, int]) -> dict[str, Decimal]:
    return {name: Decimal(amount) for name, amount in amounts.items()}


REQUESTS = st.builds(
    Request,
    cpu=st.integers(0, 3),
    memory=st.just(0),
    gpus=st.integers(0, 2),
    milli=st.sampled_from([0, 250, 500, WHOLE]),
)
MOVES = st.dictionaries(
    st.sampled_from([250, 500]),
    st.dictionaries(st.sampled_from([100, 250, 500, WHOLE]), st.integers(1, 9), min_size=1),
)


@given(st.dictionaries(REQUESTS, st.integers(1, 100)), MOVES)
def test_nobody_is_lost_and_only_shares_move(
    counts: dict[Request, int], moves: dict[int, dict[int, int]]
) -> None:
    known: Moves = {"team": moves}
    own = Workload(counts.items())
    found = foreseen({"team": own, "other": own}, known)
    assert found["other"] is own
    assert found["team"].count == own.count
    for request, count in counts.items():
        if request.gpus != 1 or request.milli not in moves:
            assert found["team"].counts[request] >= count
    still = {"team": {milli: {milli: 1} for milli in (100, 250, 500)}}
    assert foreseen(found, still)["team"].counts == found["team"].counts


def test_a_class_goes_in_the_parts_in_which_pods_do() -> None:
    asked = Request(100, 0, 1, 500)
    found = foreseen({"team": Workload([(asked, 10)])}, {"team": {500: {100: 1, 500: 3}}})["team"]
    assert found.counts == {asked._replace(milli=100): 2, asked: 8}
