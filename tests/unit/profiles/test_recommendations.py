"""What of very many recommendations is kept."""

from __future__ import annotations

import pytest

from koordra.cli.cluster.use.profile import recommendations
from koordra.cli.cluster.use.profile.recommendations import MOST_TEMPLATES, bounded
from koordra.profiles.config_map import Recommended


def test_of_a_namespace_the_last_are_kept() -> None:
    many = {f"t{number}": Recommended(1, 5, number) for number in range(MOST_TEMPLATES + 9)}
    found = bounded({"loud": many, "quiet": {"old": Recommended(1, 5, 0)}})
    assert found["quiet"] == {"old": Recommended(1, 5, 0)}
    assert sorted(one.at for one in found["loud"].values()) == list(range(9, MOST_TEMPLATES + 9))


def test_beyond_all_those_go_that_a_namespace_has_most_of(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recommendations, "MOST", 4)
    loud = {f"t{number}": Recommended(1, 5, 100 + number) for number in range(9)}
    found = bounded({"loud": loud, "quiet": {"old": Recommended(1, 5, 0)}, "other": {"x": Recommended(at=1)}})
    assert {place: sorted(of) for place, of in found.items()} == {
        "loud": ["t7", "t8"],
        "quiet": ["old"],
        "other": ["x"],
    }
