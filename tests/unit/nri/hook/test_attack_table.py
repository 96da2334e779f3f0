"""docs/attacks.md says what the table of attacks says."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.e2e.attack_table import ATTACKS, render

DOCUMENT = Path(__file__).resolve().parents[4] / "docs" / "attacks.md"


def test_the_document_is_made_from_the_table(request: pytest.FixtureRequest) -> None:
    if request.config.getoption("--regen"):
        DOCUMENT.parent.mkdir(exist_ok=True)
        DOCUMENT.write_text(render())
    assert DOCUMENT.read_text() == render(), "make it anew with pytest --regen"


def test_every_row_has_a_reason_and_a_name_of_its_own() -> None:
    assert len({attack.name for attack in ATTACKS}) == len(ATTACKS)
    assert all(attack.by and attack.how for attack in ATTACKS)
    for attack in ATTACKS:
        for test in attack.tests:
            file, _, name = test.partition("::")
            text = (DOCUMENT.parents[1] / file).read_text()
            assert f"def {name}(" in text or f"TEST({name})" in text, test
    assert {attack.name for attack in ATTACKS if attack.verdict == "open"} == {
        "passed-descriptor",
        "host-root",
        "hostpath-above-state",
        "leave-cgroup",
        "privileged-holder",
        "critical-priority",
        "passes-for-a-monitor",
        "namespace-of-the-list",
        "api-away",
        "own-mps-server",
    }
