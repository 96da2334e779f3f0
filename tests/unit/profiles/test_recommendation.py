"""Recommendations in the words of every dialect, read again as the dialect reads them."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from koordra.api import names
from koordra.api.classic.notes import Notes
from koordra.compat.dialects import DIALECTS
from koordra.compat.original_request import with_original_request
from koordra.compat.rewrite import rewrite
from koordra.compat.settings import Settings
from koordra.profiles.asked import asked_of
from koordra.profiles.condensed import Use
from koordra.profiles.recommendation import ENOUGH, needed, recommend, spelled
from koordra.profiles.share import AskedShare, Recommendation
from tests.unit.compat.pods import Dict, asking, container, pod
from tests.unit.compat.rows import ROWS
from tests.unit.profiles.use import GIB, use

N = "nvidia.com/"
CARD = 80 * GIB
SETTINGS = Settings()
HAMI = {N + "gpu": 1, N + "gpumem": 40000, N + "gpucores": 50}


def rewritten(manifest: Dict, settings: Settings = SETTINGS) -> Dict:
    """As it runs: in koordra's words, with its user's in an annotation."""
    found = rewrite(manifest, settings, Notes("pod"), namespace="team")
    return with_original_request(manifest, found) if found.template else found.pod


def said(manifest: Dict, memory: int, percent: int, settings: Settings = SETTINGS, **more: Any) -> str:
    asked = asked_of(manifest, {}, settings, card=CARD)
    assert asked is not None
    found = recommend(manifest, asked, use(memory, percent, **more), settings)
    return found.text if found else "nothing"


def claim(count: int = 1, **capacity: str) -> dict[str, Any]:
    asks: dict[str, Any] = {"deviceClassName": names.CLASS_GPU, "count": count}
    if capacity:
        asks["capacity"] = {"requests": capacity}
    return {"devices": {"requests": [{"name": "gpu", "exactly": asks}]}}


def test_the_words_are_the_users() -> None:
    assert said(rewritten(asking(HAMI)), 11 * GIB, 18, peak=12 * GIB) == (
        "asked nvidia.com/gpu 1 / gpumem 40000 / gpucores 50, p99 used 11Gi / 18 %, at most 12Gi: "
        "nvidia.com/gpu 1 / gpumem 13568 / gpucores 25 would do"
    )


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
@pytest.mark.parametrize("used", [(GIB // 8, 5), (GIB, 18), (3 * GIB, 60), (70 * GIB, 99)])
def test_what_is_said_means_a_share_that_is_enough_and_smaller(row: Any, used: tuple[int, int]) -> None:
    asked = asked_of(row.pod, {}, row.settings, card=CARD)
    if asked is None:
        return
    found = recommend(row.pod, asked, use(*used), row.settings)
    if found is None or not found.words:
        return
    again = asked_of(with_words(row.pod, found), {}, row.settings, card=CARD)
    assert again is not None
    assert again.count == asked.count
    before, after = (CARD if one.memory is None else one.memory for one in (asked, again))
    assert min(before, used[0]) <= after <= before
    assert asked.cores == again.cores or min(asked.cores, used[1]) <= again.cores < asked.cores
    assert (before, asked.cores) != (after, again.cores)


def test_every_dialect_has_words_for_a_share() -> None:
    spoken: Counter[str] = Counter()
    for row in ROWS:
        asked = asked_of(row.pod, {}, row.settings, card=CARD)
        found = asked and recommend(row.pod, asked, use(GIB // 8, 5), row.settings)
        if asked and found and found.words:
            spoken[asked.dialect] += 1
    assert set(spoken) == {one.name for one in DIALECTS}


def with_words(manifest: Dict, found: Recommendation) -> Dict:
    """Written by hand into the first container that says one of the names."""

    def without(side: Dict) -> Dict:
        return {name: amount for name, amount in side.items() if name not in found.asked.words}

    copied = {**manifest, "spec": {**manifest["spec"]}}
    changed = []
    for raw in manifest["spec"]["containers"]:
        sides = raw.get("resources") or {}
        own = any(name in side for side in sides.values() for name in found.asked.words)
        changed.append(
            {**raw, "resources": {key: {**without(side), **found.words} for key, side in sides.items()}}
            if own
            else raw
        )
    copied["spec"]["containers"] = changed
    return copied


@pytest.mark.parametrize(
    ("spec", "text"),
    [
        (
            claim(memory="40Gi", cores="50"),
            "asked memory 40Gi / cores 50, p99 used 11Gi / 18 %, at most 12Gi: memory 13568Mi / cores 25 would do",
        ),
        (
            claim(memory="40Gi"),
            "asked memory 40Gi, p99 used 11Gi / 18 %, at most 12Gi: memory 13568Mi would do",
        ),
        (claim(), "asked whole GPUs, p99 used 11Gi / 18 %, at most 12Gi: memory 13568Mi / cores 25 would do"),
        (claim(memory="12Gi", cores="20"), "nothing"),
    ],
)
def test_claims_are_asked_by_the_names_of_capacities(spec: dict[str, Any], text: str) -> None:
    own = pod(container())
    asked = asked_of(own, {"mine": spec}, SETTINGS, card=CARD)
    assert asked is not None
    found = recommend(own, asked, use(11 * GIB, 18, peak=12 * GIB), SETTINGS)
    assert (found.text if found else "nothing") == text


@pytest.mark.parametrize(
    ("memory", "percent", "more"),
    [(39 * GIB, 50, {}), (GIB, 5, {"seconds": ENOUGH - 1}), (38 * GIB, 49, {"peak": 39 * GIB})],
    ids=["at both limits", "too short", "nearly"],
)
def test_nothing_is_said_where_nothing_is_known(memory: int, percent: int, more: dict[str, Any]) -> None:
    assert said(asking(HAMI), memory, percent, **more) == "nothing"


def test_who_is_at_one_limit_keeps_that_amount() -> None:
    assert "gpumem 40000 / gpucores 25 would do" in said(asking(HAMI), 39 * GIB, 18)
    assert "gpumem 1280 / gpucores 50 would do" in said(asking(HAMI), GIB, 49)


def test_what_cannot_be_told_apart_is_no_share() -> None:
    two = pod(container("a", ask=HAMI), container("b", ask=HAMI))
    assert asked_of(two, {}, SETTINGS) is None
    assert asked_of(asking({N + "mig-1g.10gb": 1}), {}, SETTINGS) is None
    assert asked_of(pod(container()), {}, SETTINGS) is None
    assert asked_of(pod(container()), {"a": claim(), "b": claim()}, SETTINGS) is None


def test_a_whole_card_of_unknown_size_has_no_smaller_share() -> None:
    asked = asked_of(asking({N + "gpu": 1}), {}, SETTINGS)
    assert asked == AskedShare("plain", "a", {N + "gpu": "1"}, 1, None, 100, 0)
    assert recommend(asking({N + "gpu": 1}), asked, use(GIB, 5), SETTINGS) is None


@pytest.mark.parametrize(
    "annotation",
    ["", "{", "[]", '{"koordra-devices": 5}', '{"koordra-devices": {"containers": {"a": 7}}}', "[" * 5000],
)
def test_what_a_user_made_of_the_words_harms_nobody(annotation: str) -> None:
    own = rewritten(asking(HAMI))
    own["metadata"]["annotations"]["koordra.io/asked"] = annotation
    assert asked_of(own, {}, SETTINGS) is None


@given(st.integers(1, CARD), st.integers(0, 100), st.integers(1, 80 * 1024), st.integers(0, 100))
def test_never_more_than_was_asked_nor_less_than_was_used(
    peak: int, percent: int, mib: int, cores: int
) -> None:
    manifest = asking({N + "gpu": 1, N + "gpumem": mib, N + "gpucores": cores})
    asked = asked_of(manifest, {}, SETTINGS, card=CARD)
    assert asked is not None
    assert asked.memory is not None
    found = recommend(manifest, asked, use(min(peak, mib << 20), percent, peak=peak), SETTINGS)
    if found is not None:
        assert min(peak, asked.memory) <= found.memory <= asked.memory
        assert min(percent, asked.cores) <= found.cores <= asked.cores


@pytest.mark.parametrize(
    ("given", "found"),
    [
        (use(GIB, 18), (5 * GIB // 4, 25)),
        (use(GIB, 18, seconds=ENOUGH - 1), None),
        (use(1, 0), (GIB // 4, 5)),
        (use(79 * GIB, 100), (87 * GIB, 100)),
        ({series: one for series, one in use(GIB, 18).items() if series.value != "sm"}, (5 * GIB // 4, 0)),
        ({}, None),
    ],
)
def test_what_would_have_done_whatever_was_asked(given: Use, found: tuple[int, int] | None) -> None:
    assert needed(given) == found


def test_names_of_one_domain_have_it_once() -> None:
    assert (
        spelled({"a.io/x": "1", "a.io/y": "2", "b.io/x": "3", "z": "4", "w": "5"})
        == "a.io/x 1 / y 2 / b.io/x 3 / z 4 / w 5"
    )
