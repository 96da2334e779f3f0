"""Every name of the vocabularies: what it becomes, what is told, what is refused."""

from __future__ import annotations

import pytest

from koordra.cel.selectors import compile_error
from koordra.compat.dialect import covers
from koordra.compat.dialects import DIALECTS
from koordra.compat.settings import Settings
from tests.unit.compat.pods import Dict, converted, refusal, spec_of, warnings, words
from tests.unit.compat.rows import REFUSED, ROWS, Row


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_a_pod_asks_for(row: Row) -> None:
    assert words(row.pod, settings=row.settings) == row.claim


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_what_is_lost_is_told_and_nothing_else(row: Row) -> None:
    told = warnings(row.pod, settings=row.settings)
    assert len(told) == len(row.warned), told
    for part in row.warned:
        assert any(part in text for text in told), part


@pytest.mark.parametrize(
    ("manifest", "told", "settings"), [row[1:] for row in REFUSED], ids=[row[0] for row in REFUSED]
)
def test_what_cannot_be_honoured_is_refused_by_name(manifest: Dict, told: str, settings: Settings) -> None:
    assert told in refusal(manifest, settings=settings)


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_selectors_compile(row: Row) -> None:
    for entry in spec_of(row.pod, settings=row.settings)["requests"]:
        for body in entry.get("firstAvailable") or [entry["exactly"]]:
            for selector in body.get("selectors", ()):
                assert compile_error(selector["cel"]["expression"]) is None


def test_two_kinds_of_rows_have_names_of_their_own() -> None:
    names = [row.name for row in ROWS]
    assert len(set(names)) == len(names)


def _used(place: str) -> set[str]:
    found: set[str] = set()
    for manifest in [*(row.pod for row in ROWS), *(entry[1] for entry in REFUSED)]:
        metadata, spec = manifest["metadata"], manifest["spec"]
        if place == "resources":
            for container in (*spec.get("initContainers", ()), *spec["containers"]):
                for side in container.get("resources", {}).values():
                    found |= set(side)
        elif place == "schedulers":
            found |= {spec.get("schedulerName", "")}
        else:
            found |= set(metadata.get(place, {}))
    return found


WITHOUT_ROW = {
    "hami.io/webhook",  # tests/unit/compat/test_rules.py: the pod stays as it is
    "4pd-vgpu-scheduler",  # HAMi's scheduler under its first name; Aliyun's and Elastic GPU's: as the other dialects' schedulers
    "gpushare-scheduler",
    "elastic-gpu-scheduler",
}
NAMES = [
    (place, dialect.name, name)
    for dialect in DIALECTS
    for place, names in (
        ("resources", dialect.resources),
        ("annotations", (*dialect.annotations, *dialect.soft_annotations)),
        ("labels", (*dialect.labels, *dialect.soft_labels)),
        ("schedulers", dialect.schedulers),
    )
    for name in names
    if name not in WITHOUT_ROW
]


@pytest.mark.parametrize(("place", "dialect", "name"), NAMES)
def test_every_name_of_a_dialect_has_a_row(place: str, dialect: str, name: str) -> None:
    del dialect
    assert any(covers((name,), key) for key in _used(place)), name


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_a_second_pass_changes_nothing_and_says_nothing(row: Row) -> None:
    once = converted(row.pod, settings=row.settings)
    twice = converted(*once.objects, settings=row.settings)
    assert twice.objects == once.objects
    assert not twice.notes
