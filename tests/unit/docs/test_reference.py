"""docs/reference is what the code says; `pytest --regen tests/unit/docs/test_reference.py` makes it anew."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from koordra.allocator.reasons import Cause
from koordra.controller.reporting.claim_events import TOLD
from tests.reference import words
from tests.reference.pages import FOLDER, PAGES

KUSTOMIZE = Path(__file__).resolve().parents[3] / "deploy" / "kustomize"


@pytest.mark.parametrize("name", PAGES)
def test_a_page_is_made_of_the_code(name: str, request: pytest.FixtureRequest) -> None:
    text = PAGES[name]()
    if request.config.getoption("--regen"):
        FOLDER.mkdir(exist_ok=True)
        (FOLDER / name).write_text(text)
    assert (FOLDER / name).read_text() == text, "pytest --regen tests/unit/docs/test_reference.py"


def test_the_terms_of_gangs_are_made_of_the_code(request: pytest.FixtureRequest) -> None:
    text = words.gangs_page(words.GANGS_PAGE.read_text())
    if request.config.getoption("--regen"):
        words.GANGS_PAGE.write_text(text)
    assert words.GANGS_PAGE.read_text() == text, "pytest --regen tests/unit/docs/test_reference.py"


def test_names_of_the_manifests_have_a_row() -> None:
    """But for formats (`koordra.io/v1alpha1`), attributes, and files that the examples make."""
    page, shipped = words.api_names(), "".join(path.read_text() for path in KUSTOMIZE.rglob("*.yaml"))
    for name in words.OF_MANIFESTS:
        assert name in shipped, name
    used = set(re.findall(r"(?m)^\s*(?:- |- \{key: )?\"?(koordra\.io/[a-z][a-z-]*)\"?[:,]", shipped))
    assert len(used) > 3
    assert not {name for name in used if f"`{name}`" not in page}


def test_there_is_no_other_page() -> None:
    assert {path.name for path in FOLDER.iterdir()} == {name for name in PAGES if "/" not in name}


def test_every_event_has_a_row() -> None:
    assert not words.told_without_a_row()
    page = words.events()
    assert not [word for word in TOLD if word not in list(Cause) and f"`{word}`" not in page]


def test_every_meaning_is_said() -> None:
    for name, made in PAGES.items():
        empty = [line for line in made().splitlines() if line.endswith(("| . |", "|  |"))]
        assert not empty, (name, empty)
