"""A claim whose opaque parameters are nested as deeply as an API server takes them: it is told so, and
everybody else is served."""

from __future__ import annotations

import json

import pytest

from koordra.api.kinds import RESOURCE_CLAIMS
from koordra.api.objects import Object
from koordra.nesting import decoded
from tests.fakes.joint_cluster import JointCluster, claim


def deep_claim(levels: int, driver: str) -> Object:
    """As the controller reads it: parameters that cannot be decoded are cut."""
    made = claim("deep")
    made["spec"]["devices"]["config"] = [{"opaque": {"driver": driver, "parameters": "HERE"}}]
    text = json.dumps(made).encode().replace(b'"HERE"', b'{"a":' * levels + b"1" + b"}" * levels)
    found: Object = decoded(text)[0]
    return found


@pytest.mark.parametrize("driver", ["koordra.io", "other.example.org"])
@pytest.mark.parametrize("levels", [101, 500, 900, 5000])
def test_a_deep_claim_is_refused_in_words_and_the_others_are_served(levels: int, driver: str) -> None:
    cluster = JointCluster()
    made = deep_claim(levels, driver)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("tests.fakes.kube_api._copy", lambda value: value)  # it recurses
        cluster.api.create(RESOURCE_CLAIMS, made)
        cluster.claim("good")
        cluster.pod("p", "deep", priority=1000)
        cluster.pod("q", "good")
        cluster.settle(passes=4)
        assert cluster.allocation("good") is not None
        assert cluster.allocation("deep") is None
    (told,) = [happening for happening in cluster.told if "deep" in happening.message]
    assert told.reason == "ConstraintViolated"
    assert "config[0].opaque.parameters: is nested deeper than 100 levels" in told.message
