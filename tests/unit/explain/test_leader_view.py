"""The leader answers from its indices what a command works out from a full read."""

from __future__ import annotations

import random
from datetime import UTC, datetime
from typing import Any

import pytest

from koordra.api import objects
from koordra.api.kinds import NODES, PODS, RESOURCE_CLAIMS
from koordra.controller.explain.answer import answer
from koordra.controller.explain.forecast.forecast import forecast
from koordra.controller.explain.forecast.intake import Terms
from koordra.controller.explain.leader_view import leader_view
from koordra.controller.explain.question import Question, Subject
from koordra.errors import NotFound
from tests.fakes.joint_cluster import JointCluster

NOW = datetime(2026, 11, 21, 0, 30, tzinfo=UTC)


def cluster(chance: random.Random) -> JointCluster:
    found = JointCluster(nodes=3, gpus=3)
    for number in range(chance.randint(4, 9)):
        asked: dict[str, Any] = chance.choice(
            [{}, {"count": 2}, {"memory": "30Gi"}, {"count": 3}, {"memory": "200Gi"}]
        )
        name = f"c{number}"
        found.claim(name, **asked)
        if chance.random() < 0.8:
            found.pod(name, name, created=f"2026-11-21T00:00:{number:02}Z")
            if chance.random() < 0.2:
                made = found.api.get(PODS, name)
                made["metadata"]["annotations"] = {"koordra.io/gang": "g", "koordra.io/gang-min": "2"}
                found.api.update(PODS, made)
        if chance.random() < 0.7:
            found.settle()
            if found.node_of(name) and chance.random() < 0.5:
                found.scheduler_binds(name, name)
    found.settle(passes=5)
    return found


def questions(found: JointCluster) -> list[Question]:
    claims = [Question(Subject.CLAIM, "default", objects.name(one)) for one in found.api.all(RESOURCE_CLAIMS)]
    pods = [Question(Subject.POD, "default", objects.name(one)) for one in found.api.all(PODS)]
    nodes = [Question(Subject.NODE, "", objects.name(one)) for one in found.api.all(NODES)]
    return [
        *claims,
        *pods,
        *nodes,
        Question(Subject.GANG, "default", "g"),
        Question(Subject.CLAIM, "default", "no"),
    ]


@pytest.mark.parametrize("seed", range(12))
def test_the_leader_says_what_a_full_read_says(seed: int) -> None:
    found = cluster(random.Random(seed))
    leader = leader_view(found.reconciler)
    read = forecast(found.caches.cluster(), Terms(NOW)).view
    before = found.reconciler.cache.version
    for question in questions(found):
        try:
            expected = answer(read, question)
        except NotFound:
            with pytest.raises(NotFound):
                answer(leader, question)
            continue
        assert answer(leader, question) == expected, question
        assert answer(leader, question) == expected, "asking changes nothing"
    assert found.reconciler.cache.version == before
    writes = len(found.api.writes)
    found.reconciler.reconcile()
    assert len(found.api.writes) == writes, "and leaves nothing to do"
