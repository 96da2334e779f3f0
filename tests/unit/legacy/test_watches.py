"""How often each kind is watched: a cluster of 10,000 nodes pays for every watch in memory and in the API
server's work."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from koordra.api import kinds
from koordra.api.kinds import Kind
from koordra.api.objects import Object
from koordra.controller.legacy.settings import LegacySettings
from koordra.controller.run import Readiness, run, start_webhook
from koordra.controller.settings import Settings
from koordra.controller.webhook.cert_rotation import WebhookSettings
from koordra.kube.client import KubeClient
from koordra.kube.kubeconfig import new_client
from koordra.metrics import Metrics
from koordra_devcluster.control_plane import ControlPlane
from tests.patience import PATIENCE
from tests.unit.legacy.cluster import pod


class Counting(KubeClient):
    """Counts the watches that are open."""

    def __init__(self, kubeconfig: str) -> None:
        vars(self).update(vars(new_client(kubeconfig)))
        self.open: Counter[str] = Counter()

    def watch(self, kind: Kind, **more: Any) -> Iterator[tuple[str, Object]]:
        self.open[kind.plural] += 1
        try:
            yield from super().watch(kind, **more)
        finally:
            self.open[kind.plural] -= 1


@pytest.fixture
def plane(tmp_path: Path) -> Iterator[ControlPlane]:
    stop = threading.Event()
    made = ControlPlane(tmp_path, first_backoff=0.1)
    made.start(stop)
    yield made
    stop.set()
    made.close()


def eventually(look: Callable[[], Any], what: str) -> None:
    ends = time.monotonic() + PATIENCE
    while not look():
        assert time.monotonic() < ends, what
        time.sleep(0.05)


def test_a_leader_with_everything_on_watches_pods_once_and_its_webhook_once(plane: ControlPlane) -> None:
    leader, webhook = Counting(str(plane.kubeconfig)), Counting(str(plane.kubeconfig))
    stop, readiness, legacy = threading.Event(), Readiness(), LegacySettings()
    settings = Settings(
        identity="one", leader_elect=False, legacy=legacy, elastic_gpu=True, peer_annotations=True
    )
    server = start_webhook(
        webhook, WebhookSettings("127.0.0.1:0"), metrics=Metrics(), stop=stop, legacy=legacy
    )
    term = threading.Thread(target=lambda: run(leader, settings, stop=stop, readiness=readiness), daemon=True)
    term.start()
    try:
        assert server is not None
        eventually(readiness, "the leader is ready")
        eventually(server.is_ready, "the webhook is ready")
        expected = {"pods": 1, "resourceclaims": 1, "resourceclaimtemplates": 1, "resourcequotas": 1}
        eventually(lambda: expected.items() <= leader.open.items(), "the leader watches")
        assert leader.open["nodes"] == leader.open["resourceslices"] == 1
        expected |= {"deviceclasses": 1, "resourceslices": 1}
        eventually(lambda: dict(+webhook.open) == expected, "the webhook watches, and nothing else")
        for _ in range(3):  # a pod comes, is counted and goes: nothing is watched anew
            leader.create(kinds.PODS, {**pod({"cpu": 1}), "metadata": {"name": "p"}}, namespace="default")
            leader.delete(kinds.PODS, "p", namespace="default", grace_period=0)
        assert leader.open["pods"] == webhook.open["pods"] == 1
    finally:
        stop.set()
        term.join(PATIENCE)


def test_the_webhook_keeps_of_a_pod_only_what_it_counts() -> None:
    from koordra.controller.quota.usage import counted_part

    stored = pod({"cpu": 1}, labels={"a": "b"}, annotations={"c": "d"})
    assert counted_part(stored) == {"metadata": {"name": "p", "namespace": "team"}}
    name = "koordra-plain-" + "0" * 32
    stored["spec"]["resourceClaims"] = [{"name": "d", "resourceClaimTemplateName": name}]
    stored["spec"]["priorityClassName"] = "urgent"
    kept = counted_part(stored)
    assert kept["spec"] == {
        "resourceClaims": stored["spec"]["resourceClaims"],
        "priorityClassName": "urgent",
    }
    assert "labels" not in kept["metadata"]
