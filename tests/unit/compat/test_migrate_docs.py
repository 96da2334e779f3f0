"""docs/migrate: the tables are the code's, the examples are converted as they say. `--regen` writes them."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner

from koordra.cli.convert import convert_command as command
from koordra.compat.dialect import Dialect
from koordra.compat.dialects import DIALECTS
from koordra.compat.settings import Settings
from koordra.compat.settings_document import with_document

FOLDER = Path(__file__).resolve().parents[3] / "docs" / "migrate"
ABOUT_ALL = {"README.md", "in-the-cluster.md", "quota.md"}
PAGES = sorted(path.name for path in FOLDER.glob("*.md") if path.name not in ABOUT_ALL)
NAMES = re.compile(r"<!-- names of ([-a-z]+) -->\n(.*?)<!-- end of names -->\n", re.DOTALL)
ROW = re.compile(r"^\| `(.+?)` \| (\w+) \| (.+) \| (.+) \|$", re.MULTILINE)
TABLES = {
    found[1]: ROW.findall(found[2]) for name in PAGES for found in NAMES.finditer((FOLDER / name).read_text())
}
"""Dialect -> rows: name, where it stands, what it means, what becomes of it."""
EXAMPLE = re.compile(
    r"```yaml\n(.*?)```\n\n`koordra convert --explain` says of it:\n\n```text\n(.*?)```", re.DOTALL
)


def told(manifest: str) -> str:
    result = CliRunner().invoke(command, ["-f", "-", "--explain"], input=manifest, catch_exceptions=False)
    assert result.exit_code == 0
    return result.stderr


def as_it_should_be(text: str) -> str:
    return EXAMPLE.sub(lambda found: found[0].removesuffix(f"{found[2]}```") + told(found[1]) + "```", text)


@pytest.mark.parametrize("name", PAGES)
def test_a_page_says_what_the_code_does(name: str, request: pytest.FixtureRequest) -> None:
    path = FOLDER / name
    text = path.read_text()
    assert EXAMPLE.search(text)
    if request.config.getoption("--regen"):
        path.write_text(as_it_should_be(text))
    assert path.read_text() == as_it_should_be(text), "see pytest --regen"


def test_every_dialect_has_a_table() -> None:
    assert sorted(TABLES) == sorted(dialect.name for dialect in DIALECTS)


@pytest.mark.parametrize("dialect", DIALECTS, ids=lambda dialect: dialect.name)
def test_a_table_has_the_names_that_the_code_reads(dialect: Dialect) -> None:
    def named(place: str) -> list[str]:
        return sorted(name for name, where, _, _ in TABLES[dialect.name] if where == place)

    assert named("resource") == sorted(dialect.resources)
    assert named("annotation") == sorted((*dialect.annotations, *dialect.soft_annotations, *dialect.written))
    assert named("label") == sorted((*dialect.labels, *dialect.soft_labels))
    assert set(named("schedulerName")) <= {name for each in DIALECTS for name in each.schedulers}
    assert set(named("environment")) >= {*dialect.lost_variables, *dialect.provided_variables}


@pytest.mark.parametrize("dialect", DIALECTS, ids=lambda dialect: dialect.name)
def test_a_table_says_what_the_messages_say(dialect: Dialect) -> None:
    rows = {(name, where): (meaning, becomes) for name, where, meaning, becomes in TABLES[dialect.name]}
    for name, words in dialect.lost_variables.items():
        assert rows[name, "environment"] == words
    taken_out = {
        name for (name, where), (_, becomes) in rows.items() if becomes.startswith("taken out with a warning")
    }
    assert taken_out == set(dialect.written)


@pytest.mark.parametrize("name", PAGES)
def test_a_page_has_the_way_there_and_back(name: str) -> None:
    text = (FOLDER / name).read_text()
    for heading in (
        "## An example",
        "## What is different",
        "## Every name, and what becomes of it",
        "## Step by step",
        "## How to go back",
    ):
        assert heading in text


def test_the_settings_of_the_first_page_are_read() -> None:
    text = (FOLDER / "README.md").read_text()
    found = re.search(r"```yaml\n(.*?)```", text, re.DOTALL)
    assert found
    settings = with_document(Settings(), yaml.safe_load(found[1]), source="README.md")
    assert settings.option("plain", "replicas", None) == 4
    assert all(f"({name})" in text for name in PAGES)
