"""What of very many recommendations is kept."""

from __future__ import annotations

from typing import Any

import pytest

from koordra.api import names
from koordra.cli.cluster.use.profile import recommendations
from koordra.cli.cluster.use.profile.recommendations import MOST_TEMPLATES, asked_by, bounded
from koordra.profiles.config_map import AskedBy, Recommended
from koordra.profiles.kept import KeptProfile
from koordra.profiles.profile import JobRef, PodProfile
from tests.unit.profiles.test_recommendation import claim


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


def kept(*claims: dict[str, Any]) -> KeptProfile:
    profile = PodProfile("team", "p", "u", "n", 0, 1)
    return KeptProfile(
        JobRef("team", "Job", "j", "u"),
        "t",
        profile,
        {},
        {f"c{number}": one for number, one in enumerate(claims)},
    )


def test_what_pods_asked_for_is_of_their_one_share() -> None:
    half, part = claim(memory="40Gi", cores="50"), claim(memory="5Gi")
    nothing = [kept(claim()), kept(), kept(half, part), kept(claim(memory="lots"))]
    found = asked_by([kept(half), kept(half), kept(part), kept(claim(cores="5")), *nothing])
    assert found == (
        AskedBy(names.CLASS_GPU, 40 << 30, 50, 2),
        AskedBy(names.CLASS_GPU, 0, 5, 1),
    )
