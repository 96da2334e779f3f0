"""Which of the pods that nodes ask for the controller evicts, and how many."""

from __future__ import annotations

from typing import Any

import pytest

from koordra.api import names, objects
from koordra.api.kinds import PODS, RESOURCE_CLAIMS, Kind
from koordra.api.objects import Object
from koordra.api.resource_class import CONFIG_MAPS
from koordra.controller.allocation.writes import Writer
from koordra.controller.reconcile.node_evictions import (
    IN_ALL,
    OF_NODE,
    PAUSE,
    PERIOD,
    SELDOM,
    TRIES,
    WITHIN,
    NodeEvictions,
)
from koordra.controller.reporting.claim_events import ClaimEvent
from koordra.errors import ApiError, ApiUnreachable, NotFound
from koordra.evictions import OF_HOOK, OF_PLUGIN, EvictionRequest, encode
from tests.fakes.joint_cluster import pod as a_pod


class Cluster:
    """Pods and claims as they are watched, what nodes ask for, and what the eviction API says."""

    def __init__(self) -> None:
        self.now, self.leads = 1000.0, True
        self.tables: dict[Kind, dict[str, Object]] = {PODS: {}, RESOURCE_CLAIMS: {}}
        self.asked: dict[str, dict[str, str]] = {}
        self.answers: dict[str, ApiError] = {}
        self.evicted: list[str] = []
        self.tries: list[str] = []
        self.told: list[ClaimEvent] = []
        writer = Writer(self, may_write=lambda: self.leads, now=lambda: "")  # type: ignore[arg-type]
        self.evictions = NodeEvictions(
            writer,
            namespace="koordra-system",
            find=lambda kind, key: self.tables[kind].get(key),
            clock=lambda: self.now,
            report=self.told.append,
        )

    def get(self, kind: Kind, name: str, *, namespace: str | None = None) -> Object:
        assert (kind, namespace) == (CONFIG_MAPS, "koordra-system")
        if name not in self.asked:
            raise NotFound(name, code=404)
        return {"metadata": {"name": name}, **({"data": self.asked[name]} if self.asked[name] else {})}

    def create(self, kind: Kind, body: Object, **where: Any) -> Object:
        assert where["subresource"] == "eviction"
        pod = self.tables[PODS][f"{where['namespace']}/{where['name']}"]
        assert body["deleteOptions"]["preconditions"] == {"uid": objects.uid(pod)}
        self.tries.append(where["name"])
        if where["name"] in self.answers:
            raise self.answers[where["name"]]
        self.evicted.append(where["name"])
        return body

    def pod(self, name: str, *, node: str = "a", pool: str = "a", driver: str = names.DRIVER) -> None:
        """On a node, with a claim that has a device of a pool."""
        made = a_pod(name, [f"claim-{name}"])
        made["metadata"] |= {"namespace": "default", "uid": f"uid-{name}"}
        made["spec"]["nodeName"] = node
        self.tables[PODS][f"default/{name}"] = made
        result = {"driver": driver, "pool": pool, "device": "gpu-0", "request": "gpu"}
        self.tables[RESOURCE_CLAIMS][f"default/claim-{name}"] = {
            "metadata": {"name": f"claim-{name}", "namespace": "default", "uid": f"uid-of-claim-{name}"},
            "status": {"allocation": {"devices": {"results": [result]}}},
        }

    def ask(self, *pods: str, node: str = "a", name: str = OF_PLUGIN, **fields: str) -> None:
        given = [
            EvictionRequest(
                **{"namespace": "default", "name": pod, "uid": f"uid-{pod}", "reason": "OverLimit", **fields}
            )
            for pod in pods
        ]
        self.asked.setdefault(name, {})[node] = encode(given)

    def look(self, seconds: float = 0.0) -> float:
        self.now += seconds
        return self.evictions.sync()


@pytest.mark.parametrize("name", [OF_PLUGIN, OF_HOOK])
def test_a_pod_on_the_asking_node_is_evicted_once_and_told(name: str) -> None:
    cluster = Cluster()
    cluster.pod("p")
    cluster.ask("p", name=name)
    assert cluster.look() == PERIOD
    cluster.look(PERIOD)
    assert cluster.evicted == ["p"]
    (event,) = cluster.told
    assert event.reason == "NodeEviction"
    assert event.message == "pod default/p was evicted because node a asked for it: OverLimit"


def test_without_a_component_and_without_requests_nothing_happens() -> None:
    cluster = Cluster()
    cluster.pod("p")
    assert cluster.look() == SELDOM
    cluster.asked = {OF_PLUGIN: {}}
    assert cluster.look() == PERIOD
    assert cluster.tries == []


@pytest.mark.parametrize("name", [OF_PLUGIN, OF_HOOK])
def test_a_node_is_believed_only_about_its_own_pods(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    cluster = Cluster()
    cluster.pod("elsewhere", node="b", pool="b")
    cluster.pod("nowhere", node="")
    cluster.ask("elsewhere", "nowhere", "unknown", node="a", name=name)
    for _ in range(3):
        cluster.look(PAUSE)
    assert cluster.tries == []
    said = capsys.readouterr()
    text = said.out + said.err
    assert text.count("eviction_refused") == 2, "once each"
    assert "it is on node b" in text


def test_another_pod_of_that_name_stays() -> None:
    cluster = Cluster()
    cluster.pod("p")
    cluster.ask("p", uid="uid-of-the-one-before")
    cluster.look()
    assert cluster.tries == []


@pytest.mark.parametrize(
    "change", [{"metadata": {"deletionTimestamp": "now"}}, {"status": {"phase": "Succeeded"}}], ids=str
)
def test_a_pod_that_ends_anyway_is_left_alone(change: dict[str, Any]) -> None:
    cluster = Cluster()
    cluster.pod("p")
    pod = cluster.tables[PODS]["default/p"]
    for part, fields in change.items():
        pod[part] = {**pod.get(part, {}), **fields}
    cluster.ask("p")
    cluster.look()
    assert cluster.tries == []


@pytest.mark.parametrize(("pool", "driver"), [("b", names.DRIVER), ("a", "other.example.com")])
def test_for_a_share_the_pod_has_to_use_a_device_of_the_node(pool: str, driver: str) -> None:
    cluster = Cluster()
    cluster.pod("p", pool=pool, driver=driver)
    cluster.ask("p", name=OF_PLUGIN)
    cluster.look()
    assert cluster.tries == []
    cluster.ask("p", name=OF_HOOK, reason="ForeignDevice")
    cluster.look()
    assert cluster.evicted == ["p"], "what it has, it was not given"


def test_a_budget_is_asked_again_for_as_long_as_the_node_wants_it() -> None:
    cluster = Cluster()
    cluster.pod("p")
    cluster.pod("free")
    cluster.ask("p", "free")
    cluster.answers["p"] = ApiError("the disruption budget needs 1 healthy pod", code=429)
    for _ in range(3):
        cluster.look()
        cluster.look(PAUSE - 0.1)
        cluster.now += 0.1
    assert cluster.tries.count("p") == 3
    assert cluster.evicted == ["free"] * 3  # it does not go in this world
    waits = [event for event in cluster.told if event.reason == "NodeEvictionWaits"]
    assert len(waits) == 1
    assert "the disruption budget needs 1 healthy pod" in waits[0].message
    del cluster.answers["p"]
    cluster.look(PAUSE)
    assert cluster.evicted.count("p") == 1


def test_a_request_that_was_withdrawn_is_forgotten() -> None:
    cluster = Cluster()
    cluster.pod("p")
    cluster.ask("p")
    cluster.answers["p"] = ApiError("not now", code=429)
    cluster.look()
    cluster.ask()
    cluster.look(PAUSE)
    assert len(cluster.tries) == 1
    assert not cluster.evictions._tried
    assert not cluster.evictions._told


def test_the_bounds_are_those_of_the_documents() -> None:
    assert (PERIOD, SELDOM, PAUSE, WITHIN, OF_NODE, IN_ALL, TRIES) == (5.0, 30.0, 30.0, 600.0, 5, 50, 20)


def test_who_waits_for_others_evictions_is_logged_once(capsys: pytest.CaptureFixture[str]) -> None:
    cluster = Cluster()
    pods = [f"p{number}" for number in range(OF_NODE + 1)]
    for pod in pods:
        cluster.pod(pod)
    cluster.ask(*pods)
    for _ in range(3):
        cluster.look(1.0)
    said = capsys.readouterr()
    text = said.out + said.err
    assert text.count("pod_not_evicted") == 1
    assert "5 pods of the node were evicted in 600 s" in text


def test_of_a_node_no_more_than_five_pods_go_in_ten_minutes() -> None:
    cluster = Cluster()
    pods = [f"p{number}" for number in range(8)]
    for pod in pods:
        cluster.pod(pod)
    cluster.pod("other", node="b", pool="b")
    cluster.ask(*pods)
    cluster.ask("other", node="b")
    for _ in range(3):
        cluster.look(1.0)
    assert len(cluster.evicted) == OF_NODE + 1
    assert "other" in cluster.evicted
    cluster.look(WITHIN)
    assert set(cluster.evicted) >= {*pods}


def test_in_the_cluster_no_more_than_fifty_go_in_ten_minutes() -> None:
    cluster = Cluster()
    nodes = [f"node-{number:02d}" for number in range(IN_ALL // OF_NODE + 2)]
    for node in nodes:
        mine = [f"{node}-{number}" for number in range(OF_NODE)]
        for pod in mine:
            cluster.pod(pod, node=node, pool=node)
        cluster.ask(*mine, node=node)
    for _ in range(len(nodes)):
        before = len(cluster.tries)
        cluster.look(1.0)
        assert len(cluster.tries) - before <= TRIES
    assert len(cluster.evicted) == IN_ALL
    cluster.look(WITHIN)
    assert len(cluster.evicted) == IN_ALL + TRIES


def test_those_that_budgets_keep_do_not_keep_others_from_their_turn() -> None:
    cluster = Cluster()
    for number in range(TRIES + 1):
        cluster.pod(f"p{number:02d}", node=f"n{number:02d}", pool=f"n{number:02d}")
        cluster.ask(f"p{number:02d}", node=f"n{number:02d}")
        cluster.answers[f"p{number:02d}"] = ApiError("not now", code=429)
    cluster.look()
    cluster.look(PAUSE)
    assert set(cluster.tries) == {f"p{number:02d}" for number in range(TRIES + 1)}


def test_what_no_node_writes_hurts_nobody_else(capsys: pytest.CaptureFixture[str]) -> None:
    cluster = Cluster()
    cluster.pod("p")
    cluster.asked = {OF_PLUGIN: {"0": "[" * 8000, "1": '[{"a": 1}]'}}
    cluster.ask("p")
    cluster.look()
    cluster.look(PERIOD)
    assert cluster.evicted == ["p"]
    said = capsys.readouterr()
    assert (said.out + said.err).count("eviction_request_unreadable") == 2


def test_nothing_is_evicted_without_the_lease_nor_where_nobody_answers() -> None:
    cluster = Cluster()
    cluster.pod("p")
    cluster.ask("p")
    cluster.leads = False
    with pytest.raises(ApiUnreachable):
        cluster.look()
    assert cluster.tries == []
    cluster.leads = True
    cluster.answers["p"] = ApiUnreachable("no route")
    with pytest.raises(ApiUnreachable):
        cluster.look(PAUSE)
    del cluster.answers["p"]
    cluster.look(PAUSE)
    assert cluster.evicted == ["p"]


def test_who_is_gone_meanwhile_is_nobodys_business() -> None:
    cluster = Cluster()
    cluster.pod("p")
    cluster.ask("p")
    cluster.answers["p"] = NotFound("p", code=404)
    cluster.look()
    assert cluster.told == []
