"""A class that allows it has the claims that pods make of it get what such pods have used."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import pytest

from koordra.api import names
from koordra.api.kinds import PODS, Kind
from koordra.api.objects import Object
from koordra.api.resource_class import CONFIG_MAPS
from koordra.controller.webhook import handlers
from koordra.controller.webhook.lookups import ReviewLookups
from koordra.controller.webhook.recommended import FRESH, Recommendations
from koordra.controller.webhook.review import AdmissionRequest
from koordra.profiles.config_map import Recommended
from koordra.profiles.template import template_of

POD: Object = {
    "metadata": {"name": "train-1", "namespace": "team", "uid": "u1"},
    "spec": {"containers": [{"name": "main", "image": "train", "command": ["python", "train.py"]}]},
}
AGAIN = template_of(POD)


class Known:
    """What the API server knows; `asked`: what it was asked for."""

    def __init__(self, word: str | None = "Smaller", **recommended: Recommended) -> None:
        marks = {} if word is None else {names.APPLY_RECOMMENDATION: word}
        self._classes = {"share": {"metadata": {"name": "share", "annotations": marks}}}
        found = recommended or {AGAIN: Recommended(11 << 30, 25, 1)}
        text = json.dumps({"team": {template: one._asdict() for template, one in found.items()}})
        self.there: dict[tuple[Kind, str, str], Object] = {
            (PODS, "team", "train-1"): POD,
            (CONFIG_MAPS, "koordra-system", "koordra-recommendations"): {
                "data": {"recommendations.json": text}
            },
        }
        self.asked: list[str] = []

    def classes(self) -> Mapping[str, Object]:
        return self._classes

    def known(self, kind: Kind, key: str) -> Object | None:
        raise AssertionError((kind, key))

    def ask(self, kind: Kind, namespace: str, name: str) -> Object | None:
        self.asked.append(f"{kind.plural}/{name}")
        return self.there.get((kind, namespace, name))

    def for_review(self) -> ReviewLookups:
        return ReviewLookups(self)


def claim(amounts: Mapping[str, Any] | None = None, *, owner: str = "u1", requests: int = 1) -> Object:
    said = {"memory": "40Gi", "cores": "50"} if amounts is None else amounts
    asked = (
        {"deviceClassName": "share", "capacity": {"requests": said}} if said else {"deviceClassName": "share"}
    )
    metadata: Object = {"name": "c", "namespace": "team"}
    if owner:
        metadata["ownerReferences"] = [{"kind": "Pod", "name": "train-1", "uid": owner, "controller": True}]
    devices = {"requests": [{"name": f"gpu{at}", "exactly": asked} for at in range(requests)]}
    return {"kind": "ResourceClaim", "metadata": metadata, "spec": {"devices": devices}}


def admitted(asked: Object, known: Known) -> Object | None:
    """As it is stored, None where it is stored as it was sent."""
    recommended = Recommendations(known, "koordra-system", lambda: 0.0)
    decide = handlers.paths(known, recommended.applied)["/mutate/claims"]
    return decide(AdmissionRequest("1", "CREATE", "ResourceClaim", "team", asked)).object


def amounts(found: Object | None) -> Mapping[str, str]:
    assert found is not None
    said: Mapping[str, str] = found["spec"]["devices"]["requests"][0]["exactly"]["capacity"]["requests"]
    return said


def test_a_job_that_comes_again_gets_what_it_used_and_what_it_asked_for_is_told() -> None:
    found = admitted(claim(), Known())
    assert amounts(found) == {"memory": "11Gi", "cores": "25"}
    assert found is not None
    told = json.loads(found["metadata"]["annotations"]["koordra.io/asked-share"])
    assert told == {"request": "gpu0", "memory": "40Gi", "cores": "50", "template": AGAIN}
    assert claim()["metadata"]["ownerReferences"] == found["metadata"]["ownerReferences"]


def test_a_class_may_have_it_only_told() -> None:
    known = Known("Tell", **{AGAIN: Recommended(11 << 30, 60, 1)})
    found = admitted(claim(), known)
    assert amounts(found) == {"memory": "40Gi", "cores": "50"}
    assert found is not None
    (told,) = found["metadata"]["annotations"].items()
    assert told[0] == "koordra.io/recommended-share"
    assert json.loads(told[1]) == {"request": "gpu0", "memory": "11Gi", "cores": "60", "template": AGAIN}
    assert admitted(claim({"memory": "11Gi"}), known) is None


@pytest.mark.parametrize("word", [None, "", "smaller", "true"])
def test_without_the_operators_word_nothing_changes_and_nothing_is_looked_up(word: str | None) -> None:
    known = Known(word)
    assert admitted(claim(), known) is None
    assert known.asked == []


@pytest.mark.parametrize(
    ("asked", "known"),
    [
        (claim({}), Known()),
        (claim({"memory": "8Gi"}), Known()),
        (claim({"memory": "11Gi", "cores": 25}), Known()),
        (claim({"memory": "lots"}), Known()),
        (claim(owner=""), Known()),
        (claim(owner="another"), Known()),
        (claim(requests=2), Known()),
        (claim(), Known(other=Recommended(1 << 30, 5, 1))),
        (claim(), Known(**{AGAIN: Recommended(0, 0, 1)})),
    ],
    ids=[
        "a whole GPU",
        "less is asked",
        "the same",
        "no quantity",
        "no pod's",
        "of an earlier pod of the name",
        "two shares",
        "another template",
        "nothing is said",
    ],
)
def test_what_stays(asked: Object, known: Known) -> None:
    assert admitted(asked, known) is None


def test_never_more_than_was_asked_unless_the_class_says_so() -> None:
    asked = claim({"memory": "8Gi", "cores": "50"})
    assert amounts(admitted(asked, Known())) == {"memory": "8Gi", "cores": "25"}
    assert amounts(admitted(asked, Known("Either"))) == {"memory": "11Gi", "cores": "25"}


def test_a_cluster_without_a_profiler_costs_one_question_in_a_while() -> None:
    known, now = Known(), [0.0]
    del known.there[CONFIG_MAPS, "koordra-system", "koordra-recommendations"]
    recommended = Recommendations(known, "koordra-system", lambda: now[0])
    for _ in range(5):
        asked = claim()
        assert recommended.applied(asked) is asked
    assert known.asked == ["configmaps/koordra-recommendations"]
    now[0] = FRESH
    recommended.applied(claim())
    assert len(known.asked) == 2
