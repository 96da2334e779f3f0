"""The dashboard of a cluster: under which rights it reads, and what it asks of the API server."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from koordra.api.kinds import EVENTS, NODES, RESOURCE_CLAIMS, RESOURCE_SLICES
from koordra.api.resource_class import CONFIG_MAPS
from koordra.cli.cluster.dashboard.live import Live, Watches
from koordra.cli.cluster.dashboard.pages.address import address_of
from koordra.controller.cache.changes import NEEDED, OPTIONAL
from koordra.controller.gangs.seats.job_owner import JOBS
from koordra.kube.kubeconfig import new_client
from koordra_devcluster.control_plane import ControlPlane
from tests.cluster.waiting import eventually
from tests.fakes.joint_cluster import claim, gpu_slice, node
from tests.patience import PATIENCE

COMPONENT = Path(__file__).resolve().parents[3] / "deploy" / "kustomize" / "dashboard"


def test_the_account_may_read_what_pages_are_made_of_and_nothing_else() -> None:
    granted = {
        (group, resource, verb)
        for obj in yaml.safe_load_all((COMPONENT / "rbac.yaml").read_text())
        for rule in obj.get("rules") or ()
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    }
    wanted = {
        (kind.group, kind.plural, verb)
        for kind in (*NEEDED, *OPTIONAL, EVENTS, JOBS, CONFIG_MAPS)
        for verb in ("list", "watch")
    }
    assert granted == wanted


def test_nothing_but_probes_and_metrics_reaches_its_pod() -> None:
    deployment = yaml.safe_load((COMPONENT / "deployment.yaml").read_text())
    (container,) = deployment["spec"]["template"]["spec"]["containers"]
    assert "--address=127.0.0.1:8910" in container["args"]
    assert [port["name"] for port in container["ports"]] == ["metrics"]


@pytest.fixture
def plane(tmp_path: Path) -> Iterator[ControlPlane]:
    stop = threading.Event()
    plane = ControlPlane(tmp_path)
    plane.start(stop)
    yield plane
    stop.set()
    plane.close()


def test_a_cluster_is_followed_and_looking_asks_nothing_of_the_api_server(
    plane: ControlPlane, monkeypatch: pytest.MonkeyPatch
) -> None:
    admin, own = new_client(str(plane.kubeconfig)), new_client(str(plane.kubeconfig))
    asked = Counter[str]()
    answer = type(own)._answer

    def counted(self: object, *arguments: object, **more: object) -> object:
        asked["all"] += self is own
        return answer(self, *arguments, **more)  # type: ignore[arg-type]

    monkeypatch.setattr(type(own), "_answer", counted)
    stop, watches = threading.Event(), Watches(own)
    watches.start(stop)
    clock = [0.0]
    live = Live(watches.objects, clock=lambda: clock[0], pause=lambda _: None)
    try:
        eventually(watches.is_ready, "the first lists", timeout=PATIENCE)
        assert b"no node publishes a device" in live.page(address_of("/"))
        made = admin.create(NODES, node("a"))
        admin.update(NODES, {**made, "status": node("a")["status"]}, subresource="status")
        admin.create(RESOURCE_SLICES, gpu_slice("a", 3))
        admin.create(RESOURCE_CLAIMS, claim("waits"))

        def page(target: str) -> bytes:
            clock[0] += 1_000
            return live.page(address_of(target))

        cards = 3 + 1  # the key has one
        eventually(lambda: page("/").count(b"<i class=f></i>") == cards, "the cards", timeout=PATIENCE)
        eventually(lambda: b"1 claim waits" in page("/waiting"), "the claim", timeout=PATIENCE)
        before = asked["all"]
        for _ in range(20):
            page("/")
            page("/node/a")
        assert asked["all"] - before <= len(OPTIONAL)  # kinds that are not served are looked for, seldom
    finally:
        stop.set()
