"""docs/migrate: the examples are converted as they say. `--regen` writes them."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner

from koordra.cli.convert import convert_command as command
from koordra.compat.dialects import DIALECTS
from koordra.compat.settings import Settings
from koordra.compat.settings_document import with_document

FOLDER = Path(__file__).resolve().parents[3] / "docs" / "migrate"
ABOUT_ALL = {
    *("README.md", "in-the-cluster.md", "keys.md", "node-by-node.md", "nvidia-dra.md", "pool-by-pool.md"),
}
PAGES = sorted(path.name for path in FOLDER.glob("*.md") if path.name not in ABOUT_ALL)
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


@pytest.mark.parametrize("name", [*PAGES, "nvidia-dra.md"])
def test_a_page_says_how_nodes_move(name: str) -> None:
    _, _, moving = (FOLDER / name).read_text().partition("\n## Moving over\n")
    assert "](pool-by-pool.md)" in moving
    assert "](node-by-node.md)" in moving


def test_pages_name_the_label_of_each_dialects_templates() -> None:
    told = [(FOLDER / name).read_text().partition("\n## Moving over\n")[2] for name in PAGES]
    named = [label for text in told for label in re.findall(r"\*\*Dialects?\*\*: (.*?)\.", text)]
    assert sorted(re.findall(r"`(.*?)`", " ".join(named))) == sorted(one.name for one in DIALECTS)
    assert "-l koordra.io/dialect=" in (FOLDER / "pool-by-pool.md").read_text()


def test_the_settings_of_the_first_page_are_read() -> None:
    text = (FOLDER / "README.md").read_text()
    found = re.search(r"```yaml\n(.*?)```", text, re.DOTALL)
    assert found
    settings = with_document(Settings(), yaml.safe_load(found[1]), source="README.md")
    assert settings.option("plain", "replicas", None) == 4
    assert all(f"({name})" in text for name in PAGES)
