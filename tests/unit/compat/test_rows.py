"""Every name of the vocabularies: what it becomes, what is told, what is refused."""

from __future__ import annotations

import pytest

from koordra.cel.selectors import compile_error
from koordra.compat.dialect import Name, Place
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


def _used(place: Place) -> set[str]:
    found: set[str] = set()
    for manifest in [*(row.pod for row in ROWS), *(entry[1] for entry in REFUSED)]:
        metadata, spec = manifest["metadata"], manifest["spec"]
        if place is Place.RESOURCE:
            for container in (*spec.get("initContainers", ()), *spec["containers"]):
                for side in container.get("resources", {}).values():
                    found |= set(side)
        elif place is Place.SCHEDULER:
            found |= {spec.get("schedulerName", "")}
        else:
            found |= set(metadata.get("annotations" if place is Place.ANNOTATION else "labels", {}))
    return found


NAMES = [
    (dialect.name, name)
    for dialect in DIALECTS
    for name in dialect.of(Place.RESOURCE, Place.ANNOTATION, Place.LABEL, Place.SCHEDULER)
    if not name.result
]


@pytest.mark.parametrize(("dialect", "name"), NAMES, ids=[f"{dialect}-{name.key}" for dialect, name in NAMES])
def test_every_name_of_the_tables_has_a_row(dialect: str, name: Name) -> None:
    del dialect
    if name.key == "hami.io/webhook":
        return  # tests/unit/compat/test_rules.py: the pod stays as it is
    assert any(name.covers(key) for key in _used(name.place)), name.key


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_a_second_pass_changes_nothing_and_says_nothing(row: Row) -> None:
    once = converted(row.pod, settings=row.settings)
    twice = converted(*once.objects, settings=row.settings)
    assert twice.objects == once.objects
    assert not twice.notes
