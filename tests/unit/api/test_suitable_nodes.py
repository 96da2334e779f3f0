"""Terms of nodes, multiplied: whoever writes a pod writes some of them."""

from __future__ import annotations

import pytest

from koordra.api.classic.suitable_nodes import MOST_TERMS, both, require
from koordra.api.objects import Object
from koordra.errors import InvalidManifest


def terms(key: str, number: int) -> Object:
    return {
        "nodeSelectorTerms": [
            {"matchExpressions": [{"key": key, "operator": "In", "values": [str(each)]}]}
            for each in range(number)
        ]
    }


def test_what_all_of_them_select_is_every_combination() -> None:
    found = both([terms("a", 2), terms("b", 3)])["nodeSelectorTerms"]
    assert len(found) == 6
    assert all(len(term["matchExpressions"]) == 2 for term in found)


def test_more_terms_than_a_pod_may_come_to_are_refused_before_they_are_made() -> None:
    assert len(both([terms("a", MOST_TERMS)])["nodeSelectorTerms"]) == MOST_TERMS
    affinity = {"requiredDuringSchedulingIgnoredDuringExecution": terms("own", 3_000)}
    pod: Object = {"affinity": {"nodeAffinity": affinity}}
    with pytest.raises(
        InvalidManifest, match=f"come to {3_000 * 2**10} together, and {MOST_TERMS} is the most"
    ):
        require(pod, [terms(f"class-{each}", 2) for each in range(10)])
