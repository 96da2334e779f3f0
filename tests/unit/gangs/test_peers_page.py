"""docs/gangs-peers.md: every yes of koordra's names a test that is there."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]

PAGE = (ROOT / "docs/gangs-peers.md").read_text()
ROWS = [
    [cell.strip() for cell in line.strip("|").split("|")]
    for line in PAGE.splitlines()
    if line.startswith("|")
][2:]


def test_every_yes_names_a_test_that_is_there() -> None:
    assert len(ROWS) > 20
    for feature, *_peers, cell in ROWS:
        ours, _, shown = cell.partition(": ")
        assert ours.startswith("y") == bool(shown), feature
        kinds = re.findall(r"\*(real|double)\*: ((?:`[^`]+`(?:, )?)+)", shown)
        assert bool(kinds) == bool(shown), feature
        for kind, tests in kinds:
            assert all(("`cluster/" in test) == (kind == "real") for test in tests.split(", ")), feature
        for test in re.findall(r"`([^`]+)`", shown):
            name, _, function = test.partition("::")
            text = (ROOT / "tests" / ("" if name.startswith("cluster/") else "unit") / name).read_text()
            assert not function or re.search(rf"^def {function}\(", text, re.MULTILINE), (feature, test)


def test_what_is_no_yes_is_explained_below() -> None:
    assert {cell.partition(": ")[0] for *_, cell in ROWS} <= {"y", "y, y", "y, 3", "p", "-"}
    assert "What koordra lacks" in PAGE
