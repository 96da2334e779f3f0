"""Gates that the API server does not let the controller lift: a policy says no, or what somebody's webhook
has made of the write. Told once, tried ever less often, and nobody else waits for it."""

from __future__ import annotations

import pytest

from koordra.api import names
from koordra.api.kinds import PODS
from koordra.controller.reporting.claim_events import GATE_REFUSED
from koordra.errors import Forbidden
from tests.fakes.joint_cluster import JointCluster
from tests.fakes.kube_api import Write
from tests.unit.gangs.test_gang_course import gates, member

SAID = "ValidatingAdmissionPolicy 'koordra-controller-pods' denied request: labels"


class Refusing:
    """The pods named here keep their gates; `tries` are counted."""

    def __init__(self, cluster: JointCluster, *pods: str) -> None:
        self.pods = {*pods}
        self.tries = 0
        cluster.api.before = self

    def __call__(self, write: Write) -> None:
        if write.verb == "patch" and write.kind == PODS.plural and write.name in self.pods:
            self.tries += 1
            raise Forbidden(SAID, code=403)


@pytest.fixture(params=["alone", "in a gang"])
def cluster(request: pytest.FixtureRequest) -> JointCluster:
    """Two gated pods, each with a claim."""
    cluster = JointCluster()
    for name in ("p", "q"):
        if request.param == "alone":
            cluster.claim(name)
            cluster.pod(name, name, gates=[names.JOINT_GATE])
        else:
            member(cluster, name)
    return cluster


def test_it_is_told_once_with_the_servers_words_and_nobody_else_waits(cluster: JointCluster) -> None:
    refusing = Refusing(cluster, "p")
    cluster.settle()
    assert (gates(cluster, "p"), gates(cluster, "q")) == ([names.JOINT_GATE], [])
    for _ in range(30):
        cluster.pass_time(1.0)
        cluster.settle(passes=1)
    (event,) = (event for event in cluster.told if event.reason == GATE_REFUSED)
    assert [pod["metadata"]["name"] for pod in event.about] == ["p"]
    assert event.message.endswith(f"refused to lift its gate: {SAID}")
    refusing.pods.clear()
    cluster.pass_time(60.0)
    cluster.settle()
    assert gates(cluster, "p") == []


def test_it_is_tried_ever_less_often(cluster: JointCluster) -> None:
    refusing = Refusing(cluster, "p")
    for _ in range(600):
        cluster.settle(passes=1)
        cluster.pass_time(1.0)
    assert refusing.tries <= 7 + 600 / 60
    before = refusing.tries
    for _ in range(61):
        cluster.settle(passes=1)
        cluster.pass_time(1.0)
    assert refusing.tries == before + 1
