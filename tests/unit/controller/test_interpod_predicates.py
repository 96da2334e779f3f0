"""The predicates that look at more than one pod, against the rules of kube-scheduler."""

from __future__ import annotations

import json
import random
from typing import Any

import pytest

from koordra.allocator.features import Features
from koordra.api import names, objects
from koordra.api.kinds import NAMESPACES, PODS
from koordra.api.objects import Object
from koordra.controller.allocation.guest_index import host_ports
from koordra.controller.allocation.interpod_predicates import InterPodPredicates, reads_other_pods
from koordra.controller.allocation.label_selectors import (
    LONGEST_TEXT,
    LabelSelector,
    label_selector_matches,
)
from koordra.controller.cache.cluster_cache import ClusterCache
from koordra.controller.cache.groups import Group
from koordra.controller.cache.pod_index import PodClaims
from koordra.placement.index import ClusterIndex
from tests.fakes.cluster import Cluster
from tests.fakes.joint_cluster import JointCluster, claim, node, pod

HOST = "kubernetes.io/hostname"
ZONE = "topology.kubernetes.io/zone"
REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"


def labelled(name: str, labels: dict[str, str], **spec: Any) -> Object:
    made = pod(name, [], **spec)
    made["metadata"] |= {"labels": labels, "uid": name}
    return made


def excluded(waits: Object, running: dict[str, list[Object]], **more: Any) -> dict[str, str]:
    """Node -> why; nodes n0, n1 in zone a, n2 in zone b."""
    return together([waits], running, **more)


def three_nodes() -> list[Object]:
    nodes = []
    for index, zone in enumerate("aab"):
        nodes.append(node(f"n{index}"))
        nodes[-1]["metadata"]["labels"][ZONE] = zone
    return nodes


def together(
    waiting: list[Object], running: dict[str, list[Object]], *, nodes: list[Object] | None = None, **more: Any
) -> dict[str, str]:
    """The same, of pods that share a claim."""
    nodes = nodes or three_nodes()
    group = Group(tuple([PodClaims(one, (claim("c", uid="c"),)) for one in waiting]))
    found = predicates(nodes, running, **more).of(group)
    return {name: reason.detail for name, reason in found.items()}


def predicates(nodes: list[Object], running: dict[str, list[Object]], **more: Any) -> InterPodPredicates:
    """With the running pods bound to their nodes."""
    pods = [
        {**guest, "spec": {**guest["spec"], "nodeName": name}}
        for name, guests in running.items()
        for guest in guests
    ]
    index = ClusterIndex(Features.of(None))
    of_node = {objects.name(one): one for one in nodes}
    index.sync({"Node": of_node, "Pod": {objects.key(one): one for one in pods}})
    return InterPodPredicates(ClusterCache.of(Cluster(nodes=nodes, pods=pods, **more)), index)


def with_port(name: str, **port: Any) -> Object:
    return labelled(name, {}, containers=[{"name": "main", "ports": [port]}])


@pytest.mark.parametrize(
    ("wanted", "clash"),
    [
        ({"hostPort": 80}, True),
        ({"hostPort": 81}, False),
        ({"hostPort": 80, "protocol": "UDP"}, False),
        ({"hostPort": 80, "hostIP": "10.0.0.1"}, True),
        ({"containerPort": 80}, False),
    ],
)
def test_host_ports(wanted: dict[str, Any], clash: bool) -> None:
    found = excluded(with_port("p", **wanted), {"n0": [with_port("q", hostPort=80)]})
    assert list(found) == (["n0"] if clash else [])


def test_two_addresses_share_a_port_and_the_host_network_takes_container_ports() -> None:
    running = {"n0": [with_port("q", hostPort=80, hostIP="10.0.0.2")]}
    assert excluded(with_port("p", hostPort=80, hostIP="10.0.0.1"), running) == {}
    assert host_ports({"hostNetwork": True, "containers": [{"ports": [{"containerPort": 9}]}]}) == [
        ("0.0.0.0", "TCP", 9)
    ]


def affinity(kind: str, key: str, labels: dict[str, str], **term: Any) -> dict[str, Any]:
    return {kind: {REQUIRED: [{"topologyKey": key, "labelSelector": {"matchLabels": labels}, **term}]}}


def test_required_affinity_wants_a_matching_pod_in_the_domain() -> None:
    waits = labelled("p", {}, affinity=affinity("podAffinity", ZONE, {"app": "db"}))
    assert sorted(excluded(waits, {"n0": [labelled("q", {"app": "db"})]})) == ["n2"]
    assert sorted(excluded(waits, {})) == ["n0", "n1", "n2"]


def test_a_companion_is_a_pod_that_all_terms_mean() -> None:
    """As kube-scheduler counts: two pods of which each meets one term are no company."""
    both = affinity("podAffinity", ZONE, {"app": "db"})
    both["podAffinity"][REQUIRED] += affinity("podAffinity", HOST, {"tier": "hot"})["podAffinity"][REQUIRED]
    waits = labelled("p", {}, affinity=both)
    halves = {"n0": [labelled("q", {"app": "db"}), labelled("r", {"tier": "hot"})]}
    assert sorted(excluded(waits, halves)) == ["n0", "n1", "n2"]
    assert sorted(excluded(waits, {"n0": [labelled("q", {"app": "db", "tier": "hot"})]})) == ["n1", "n2"]


def test_the_first_of_a_series_may_start_anywhere() -> None:
    waits = labelled("p", {"app": "db"}, affinity=affinity("podAffinity", ZONE, {"app": "db"}))
    assert excluded(waits, {}) == {}


def test_anti_affinity_works_both_ways() -> None:
    apart = affinity("podAntiAffinity", HOST, {"app": "db"})
    running = {"n1": [labelled("q", {"app": "db"})]}
    assert list(excluded(labelled("p", {}, affinity=apart), running)) == ["n1"]
    loner = {"n0": [labelled("q", {}, affinity=affinity("podAntiAffinity", ZONE, {"app": "web"}))]}
    assert sorted(excluded(labelled("p", {"app": "web"}), loner)) == ["n0", "n1"]
    assert excluded(labelled("p", {"app": "db"}), loner) == {}


@pytest.mark.parametrize(("one", "other"), [("n0", "n1"), ("n1", "n0")])
def test_the_first_pod_by_name_is_the_example_for_all_nodes(one: str, other: str) -> None:
    """Where each node's own were named, a thousand nodes would be told in a thousand lines."""
    waits = labelled("p", {}, affinity=affinity("podAntiAffinity", ZONE, {"app": "db"}))
    running = {
        one: [labelled("db-3", {"app": "db"})],
        other: [labelled(name, {"app": "db"}) for name in ("db-4", "db-1", "db-5")],
        "n2": [labelled("db-0", {"app": "web"}), labelled("db-2", {"app": "db"})],
    }
    found = excluded(waits, running)
    assert list(found) == ["n0", "n1", "n2"]
    assert set(found.values()) == {
        f"required pod anti-affinity: a pod with app=db, such as default/db-1, is in its {ZONE}"
    }


def test_terms_reach_other_namespaces_only_when_they_say_so() -> None:
    away = labelled("q", {"app": "db"})
    away["metadata"]["namespace"] = "other"
    running = {"n1": [away]}
    team = {"metadata": {"name": "other", "labels": {"team": "a"}}}

    def waits(**term: Any) -> Object:
        return labelled("p", {}, affinity=affinity("podAntiAffinity", HOST, {"app": "db"}, **term))

    assert excluded(waits(), running) == {}
    assert list(excluded(waits(namespaces=["other"]), running)) == ["n1"]
    by_label = waits(namespaceSelector={"matchLabels": {"team": "a"}})
    assert list(excluded(by_label, running, namespaces=[team])) == ["n1"]
    assert list(excluded(waits(namespaceSelector={}), running)) == ["n1"]


def spread(**more: Any) -> list[dict[str, Any]]:
    selector = {"matchLabels": {"app": "web"}}
    base = {
        "topologyKey": ZONE,
        "maxSkew": 1,
        "whenUnsatisfiable": "DoNotSchedule",
        "labelSelector": selector,
    }
    return [{**base, **more}]


def test_spread_counts_the_domains_and_the_pod_itself() -> None:
    running = {"n0": [labelled("a", {"app": "web"})]}
    waits = labelled("p", {"app": "web"}, topologySpreadConstraints=spread())
    assert sorted(excluded(waits, running)) == ["n0", "n1"]
    assert excluded(labelled("p", {}, topologySpreadConstraints=spread()), running) == {}
    soft = labelled("p", {"app": "web"}, topologySpreadConstraints=spread(whenUnsatisfiable="ScheduleAnyway"))
    assert excluded(soft, running) == {}
    loose = labelled("p", {"app": "web"}, topologySpreadConstraints=spread(maxSkew=2))
    assert excluded(loose, running) == {}


def test_spread_leaves_out_domains_that_the_pod_cannot_use_and_obeys_min_domains() -> None:
    running = {"n0": [labelled("a", {"app": "web"})]}
    only_a = {"nodeSelector": {ZONE: "a"}}
    waits = labelled("p", {"app": "web"}, topologySpreadConstraints=spread(), **only_a)
    assert excluded(waits, running).keys() & {"n0", "n1"} == set()
    few = labelled("p", {"app": "web"}, topologySpreadConstraints=spread(minDomains=3))
    assert sorted(excluded(few, {"n0": running["n0"], "n2": [labelled("b", {"app": "web"})]})) == [
        "n0",
        "n1",
        "n2",
    ]


def test_a_node_without_the_label_of_one_constraint_counts_for_none() -> None:
    """The empty domain of such a node would otherwise make every other one look too full."""
    common = {
        "maxSkew": 1,
        "whenUnsatisfiable": "DoNotSchedule",
        "labelSelector": {"matchLabels": {"app": "x"}},
    }
    spread = [{"topologyKey": key, **common} for key in (HOST, "rack")]
    racked, loose = node("n0"), node("n1")
    racked["metadata"]["labels"]["rack"] = "r"
    waits = labelled("p", {}, topologySpreadConstraints=spread)
    group = Group((PodClaims(waits, (claim("c", uid="c"),)),))
    waits["metadata"]["labels"] = {"app": "x"}
    assert sorted(predicates([racked, loose], {"n0": [labelled("q", {"app": "x"})]}).of(group)) == ["n1"]


def test_matchLabelKeys_narrow_the_selector() -> None:
    running = {"n0": [labelled("a", {"app": "web", "rev": "1"})]}
    constraint = spread(matchLabelKeys=["rev"])
    newer = labelled("p", {"app": "web", "rev": "2"}, topologySpreadConstraints=constraint)
    assert excluded(newer, running) == {}


def test_a_volume_pins_its_pod() -> None:
    waits = labelled("p", {}, volumes=[{"name": "d", "persistentVolumeClaim": {"claimName": "data"}}])
    bound = {"metadata": {"name": "data", "namespace": "default"}, "spec": {"volumeName": "pv"}}
    terms = [{"matchExpressions": [{"key": HOST, "operator": "In", "values": ["n2"]}]}]
    volume: Object = {
        "metadata": {"name": "pv"},
        "spec": {"nodeAffinity": {"required": {"nodeSelectorTerms": terms}}},
    }
    assert sorted(excluded(waits, {}, volume_claims=[bound], volumes=[volume])) == ["n0", "n1"]
    zoned = {"metadata": {"name": "pv", "labels": {ZONE: "b"}}, "spec": {}}
    assert sorted(excluded(waits, {}, volume_claims=[bound], volumes=[zoned])) == ["n0", "n1"]
    alone = {"metadata": {"name": "pv"}, "spec": {"accessModes": ["ReadWriteOncePod"]}}
    user = labelled("q", {}, volumes=waits["spec"]["volumes"])
    assert len(excluded(waits, {"n1": [user]}, volume_claims=[bound], volumes=[alone])) == 3
    assert excluded(waits, {}, volume_claims=[], volumes=[volume]) == {}


@pytest.mark.parametrize("seed", range(150))
def test_pods_that_share_a_claim_have_no_node_where_the_scheduler_would_refuse_one_of_them(seed: int) -> None:
    """It takes them one by one, each beside those before it."""
    chance = random.Random(seed)
    nodes = three_nodes()
    nodes[chance.randrange(3)]["metadata"]["labels"]["rack"] = "r"
    volumes = {
        "volume_claims": [
            {"metadata": {"name": "data", "namespace": "default"}, "spec": {"volumeName": "pv"}}
        ],
        "volumes": [{"metadata": {"name": "pv"}, "spec": {"accessModes": ["ReadWriteOncePod"]}}],
    }
    running = {name: [drawn(chance, f"at-{name}")] for name in ("n0", "n1", "n2") if chance.random() < 0.6}
    waiting = [drawn(chance, f"w{at}") for at in range(chance.randint(2, 4))]
    wrong = set()
    for name in ("n0", "n1", "n2"):
        for at, one in enumerate(waiting):
            there = {**running, name: [*running.get(name, ()), *waiting[:at]]}
            if name in together([one], there, nodes=nodes, **volumes):
                wrong.add(name)
    assert together(waiting, running, nodes=nodes, **volumes).keys() == wrong


def drawn(chance: random.Random, name: str) -> Object:
    app = {"app": chance.choice(("web", "db"))}
    more: dict[str, Any] = {}
    if chance.random() < 0.2:
        key, other = chance.choice((HOST, ZONE, "rack")), chance.choice(("web", "db"))
        more["affinity"] = affinity("podAntiAffinity", key, {"app": other})
    if chance.random() < 0.5:
        terms = {"topologyKey": chance.choice((HOST, ZONE)), "maxSkew": chance.choice((1, 2))}
        more["topologySpreadConstraints"] = spread(**terms, **chance.choice(({}, {"minDomains": 3})))
    if chance.random() < 0.1:
        more["volumes"] = [{"name": "d", "persistentVolumeClaim": {"claimName": "data"}}]
    port = {"hostPort": chance.choice((80, 81)), "hostIP": chance.choice(("", "10.0.0.1", "10.0.0.2"))}
    ports = [port] if chance.random() < 0.3 else []
    if chance.random() < 0.3:
        more["nodeSelector"] = {ZONE: "a"}
    return labelled(name, app, containers=[{"name": "main", "ports": ports}], **more)


def test_what_keeps_pods_apart_that_share_a_claim_is_told() -> None:
    both = [with_port("p", hostPort=80), with_port("q", hostPort=80)]
    assert together(both, {})["n1"] == (
        "pods default/p and default/q share claims, and host port TCP/80 is asked for by both"
    )


def test_suitable_nodes_of_a_converted_class_are_obeyed() -> None:
    terms = {"nodeSelectorTerms": [{"matchExpressions": [{"key": ZONE, "operator": "In", "values": ["b"]}]}]}
    found = {
        "metadata": {
            "name": names.CLASS_GPU,
            "annotations": {"koordra.io/suitable-nodes": json.dumps(terms)},
        }
    }
    assert sorted(excluded(labelled("p", {}), {}, classes=[found])) == ["n0", "n1"]


@pytest.mark.parametrize(
    ("expression", "holds"),
    [
        ({"key": "a", "operator": "In", "values": ["1"]}, True),
        ({"key": "a", "operator": "NotIn", "values": ["1"]}, False),
        ({"key": "b", "operator": "NotIn", "values": ["1"]}, True),
        ({"key": "a", "operator": "Exists"}, True),
        ({"key": "b", "operator": "DoesNotExist"}, True),
        ({"key": "a", "operator": "Unheard"}, False),
    ],
)
def test_label_selectors(expression: dict[str, Any], holds: bool) -> None:
    assert label_selector_matches({"matchExpressions": [expression]}, {"a": "1"}) is holds


def test_selectors_are_told_as_kubectl_writes_them() -> None:
    expressions = [
        {"key": "tier", "operator": "In", "values": ["b", "a"]},
        {"key": "env", "operator": "NotIn", "values": ["dev"]},
        {"key": "zone", "operator": "Exists"},
    ]
    selector = {"matchLabels": {"app": "db"}, "matchExpressions": expressions}
    assert str(LabelSelector.of(selector)) == "app=db,env notin (dev),tier in (a,b),zone Exists"
    assert str(LabelSelector.of({})) == "any labels"
    long = str(LabelSelector.of({"matchLabels": {"app": "x" * 4000}}))
    assert (len(long), long[-5:]) == (LONGEST_TEXT + 3, "xx...")


def test_only_volumes_of_persistent_volume_claims_look_at_other_pods() -> None:
    token, scratch = {"name": "token", "projected": {}}, {"name": "scratch", "emptyDir": {}}
    assert not reads_other_pods({"spec": {"volumes": [token, scratch]}})
    assert reads_other_pods({"spec": {"volumes": [token, {"persistentVolumeClaim": {"claimName": "data"}}]}})
    assert reads_other_pods(
        {"spec": {"volumes": [{"name": "cache", "ephemeral": {"volumeClaimTemplate": {}}}]}}
    )


def test_only_pods_on_nodes_repel_others_and_their_end_makes_room() -> None:
    """Those that wait are not looked through for each other, nor is everything considered anew when one more
    comes."""
    cluster = JointCluster(nodes=1)
    apart = affinity("podAntiAffinity", "kubernetes.io/hostname", {"app": "w"})
    step = cluster.reconciler.allocation
    for number in range(3):
        cluster.claim(f"much-{number}", count=99)
        cluster.pod(f"p{number}", f"much-{number}", affinity=apart)
    cluster.settle()
    pods = step.placer.engine.index.pods
    assert (pods.repelling, pods.repelling_version) == ({}, 0)
    cluster.pod("runs", affinity=apart, nodeName="n0")
    cluster.claim("one")
    waits = pod("waits", ["one"])
    waits["metadata"]["labels"] = {"app": "w"}
    cluster.api.create(PODS, waits)
    cluster.settle()
    assert [*pods.repelling] == ["default/runs"]
    assert cluster.node_of("one") is None
    cluster.pod_ends("runs")
    cluster.settle()
    assert cluster.node_of("one") == "n0"
    assert (pods.repelling, pods.repelling_version) == ({}, 2)


def test_preferred_anti_affinity_keeps_nobody_away_and_has_nobody_considered_anew() -> None:
    cluster = JointCluster(nodes=1)
    term = affinity("podAntiAffinity", HOST, {"app": "w"})["podAntiAffinity"][REQUIRED][0]
    weighted = {"preferredDuringSchedulingIgnoredDuringExecution": [{"weight": 1, "podAffinityTerm": term}]}
    cluster.pod("runs", affinity={"podAntiAffinity": weighted}, nodeName="n0")
    cluster.settle()
    pods = cluster.reconciler.allocation.placer.engine.index.pods
    assert ([*pods.placed], pods.repelling, pods.repelling_version) == (["default/runs"], {}, 0)
    assert not reads_other_pods({"spec": {"affinity": {"podAntiAffinity": weighted}}})
    for kind in ("podAffinity", "podAntiAffinity"):
        assert reads_other_pods({"spec": {"affinity": affinity(kind, HOST, {})}})


def test_of_several_pods_that_repel_it_a_pod_is_told_of_the_same_one() -> None:
    """Whatever was tried in between: else it were planned again, and told another text, for nothing."""
    cluster = JointCluster(nodes=1)
    for name in ("a", "b"):
        cluster.pod(name, affinity=affinity("podAntiAffinity", HOST, {"app": "w"}), nodeName="n0")
    cluster.claim("one")
    waits = pod("waits", ["one"])
    waits["metadata"]["labels"] = {"app": "w"}
    cluster.api.create(PODS, waits)
    cluster.settle()
    queue, placer = cluster.reconciler.allocation.queue, cluster.reconciler.allocation.placer
    before = dict(queue.waiting)
    with placer.overlay(frozenset({objects.uid(cluster.api.get(PODS, "a"))})):
        assert [*placer.engine.index.pods.repelling] == ["default/b"]
    cluster.pod("another", affinity=affinity("podAntiAffinity", HOST, {"app": "x"}), nodeName="n0")
    cluster.settle()
    assert queue.waiting == before


def test_a_namespace_of_other_labels_is_repelled_no_longer() -> None:
    cluster = JointCluster(nodes=1)
    cluster.api.create(NAMESPACES, {"metadata": {"name": "default", "labels": {"team": "a"}}})
    apart = affinity("podAntiAffinity", HOST, {})
    apart["podAntiAffinity"][REQUIRED][0]["namespaceSelector"] = {"matchLabels": {"team": "a"}}
    cluster.pod("runs", affinity=apart, nodeName="n0")
    cluster.claim("one")
    cluster.pod("waits", "one")
    cluster.settle()
    assert cluster.node_of("one") is None
    cluster.api.edit(NAMESPACES, "default", lambda found: found["metadata"].update(labels={"team": "b"}))
    cluster.settle()
    assert cluster.node_of("one") == "n0"


def test_who_waits_is_told_of_a_pod_that_repels_it_since() -> None:
    cluster = JointCluster(nodes=1)
    apart = affinity("podAntiAffinity", "kubernetes.io/hostname", {"app": "w"})
    cluster.claim("much", count=99)
    waits = pod("waits", ["much"])
    waits["metadata"]["labels"] = {"app": "w"}
    cluster.api.create(PODS, waits)
    cluster.settle()
    cluster.claim("one")
    cluster.pod("p", "one", affinity=apart)
    cluster.settle()
    assert cluster.node_of("one") == "n0"
    cluster.pass_time(600)
    cluster.settle()
    words = "pod default/p there has anti-affinity to pods with app=w in its kubernetes.io/hostname"
    assert any(words in told.message for told in cluster.told)
