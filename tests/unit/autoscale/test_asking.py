"""Nodes are asked for, as many as are wanted and no more, and whoever leads goes on from what the API has."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import timedelta

import pytest

from koordra.api import objects
from koordra.api.kinds import NODES, PODS, RESOURCE_CLAIMS
from koordra.api.objects import Object
from koordra.api.resource_class import CONFIG_MAPS
from koordra.controller.allocation.reserved.quotas import Gangs, NoQuotas
from koordra.controller.autoscale.asking import SHARE
from koordra.controller.autoscale.left_out import NAME
from koordra.controller.autoscale.quotas import QuotasAsTheyAre
from koordra.controller.autoscale.settings import AutoscaleSettings
from koordra.controller.cache.placeholders import ASKED_FOR, NAMESPACE
from koordra.controller.cache.pod_index import PodClaims
from koordra.controller.explain.forecast.forecast import forecast
from koordra.controller.explain.forecast.intake import Terms
from koordra.controller.explain.question import Question, Subject
from koordra.errors import ApiUnreachable, Forbidden
from tests.fakes.kube_api import Killed, Write
from tests.unit.autoscale.world import World, group


def test_nodes_are_asked_for_come_and_serve() -> None:
    world = World(group())
    world.wants(2, 1, 1)
    world.look()
    assert world.asked() == {"g": ["g-0", "g-1"]}
    assert world.events()[0] == "NodesAsked: claim c0: asked for 2 new nodes of group g (2 GPUs)"
    world.look()
    assert world.asked() == {"g": ["g-0", "g-1"]}, "a need is asked for once"
    came = world.nodes_come()
    world.look()
    assert len(world.placeholders()) == 2, "they keep the nodes until these have published"
    world.publish(came)
    world.look()
    assert not world.placeholders()
    assert all(world.cluster.node_of(f"c{at}") in came for at in range(3))
    world.look()
    assert not world.placeholders()
    assert len([one for one in world.told if one.reason == "NodesAsked"]) == 3, "told once of each claim"


def test_a_placeholder_is_a_node_of_the_group() -> None:
    taint = {"key": "example.com/gpu", "value": "a", "effect": "NoSchedule"}
    world = World(group(taints=[taint]))
    world.wants(1)
    world.api.edit(
        PODS,
        "c0",
        lambda pod: pod["spec"].update(tolerations=[{"key": "example.com/gpu", "operator": "Exists"}]),
    )
    world.look()
    (pod,) = world.placeholders()
    spec = pod["spec"]
    assert spec["nodeSelector"] == {"pool": "g"}
    assert spec["containers"][0]["resources"]["requests"] == {"cpu": "7", "memory": "60Gi"}
    assert spec["tolerations"] == [{**taint, "operator": "Equal"}]
    assert spec["priorityClassName"] == "koordra-placeholder"
    assert "resourceClaims" not in spec
    assert objects.annotations_of(pod)[ASKED_FOR] == "default/c0"


def test_what_waits_for_a_moment_is_not_asked_for() -> None:
    world = World(group(), after=600.0)
    world.wants(1)
    world.look()
    assert not world.placeholders()
    world.look(600.0)
    assert len(world.placeholders()) == 1


def test_asks_go_with_their_need() -> None:
    world = World(group())
    world.wants(2, 2)
    world.look()
    world.api.delete(PODS, "c0", namespace="default")
    world.look()
    assert world.asked() == {"g": ["g-1"]}
    world.api.delete(PODS, "c1", namespace="default")
    world.look()
    assert not world.placeholders()


def test_another_need_takes_over_what_was_asked() -> None:
    world = World(group())
    world.wants(2)
    world.look()
    world.api.delete(PODS, "c0", namespace="default")
    world.wants(2, name="d")
    world.look()
    (pod,) = world.placeholders()
    assert (objects.name(pod), objects.annotations_of(pod)[ASKED_FOR]) == ("g-0", "default/d0")


def test_no_more_than_the_group_may_have() -> None:
    world = World(group(most=3))
    world.node(world.groups["g"], "old")
    world.publish(["old"])
    world.wants(2, 2, 2, 2, 2)
    world.look()
    assert len(world.placeholders()) == 2
    came = world.nodes_come()
    world.look()
    assert len(world.placeholders()) == 2, "nodes that are on their way count once"
    world.publish(came)
    world.look()
    assert not world.placeholders()
    assert len(world.api.all(NODES)) == 3


def test_a_gang_is_asked_for_as_a_whole() -> None:
    world = World(group(most=8))
    world.gang(3)
    world.look()
    assert len(world.placeholders()) == 3
    small = World(group(most=2))
    small.gang(3)
    small.look()
    assert not small.placeholders()
    assert "NoNodeHelps" in small.events()[0]


@pytest.mark.parametrize("step", range(6))
def test_a_crash_asks_for_nothing_twice(step: int) -> None:
    """Killed before or after any of its writes, the next leader asks for the rest."""
    world = World(group())
    world.wants(2, 2, 2)
    before, at = step % 2 == 0, step // 2
    seen = len(world.api.writes)

    def fault(write: Write) -> None:
        own = [one for one in world.api.writes[seen:] if one.name.startswith("g-")]
        if write.name.startswith("g-") and len(own) == at + 1:
            raise Killed

    world.api.before, world.api.after = (fault, world.api.after) if before else (world.api.before, fault)
    with pytest.raises(Killed):
        world.look()
    world.api.before = world.api.after = lambda _write: None
    world.start_again()
    world.look()
    assert world.asked() == {"g": ["g-0", "g-1", "g-2"]}
    came = world.nodes_come()
    world.publish(came)
    world.look()
    assert not world.placeholders()


def test_an_answer_that_is_lost_is_no_second_ask() -> None:
    world = World(group())
    world.wants(2)

    def lost(write: Write) -> None:
        if write.name == "g-0":
            raise ApiUnreachable("no answer")

    world.api.after = lost
    with pytest.raises(ApiUnreachable):
        world.look()
    world.api.after = lambda _write: None
    world.look()
    assert world.asked() == {"g": ["g-0"]}


def test_who_does_not_lead_writes_nothing() -> None:
    world = World(group())
    world.wants(2)
    world.cluster.settle()
    world.leading = False
    seen = len(world.api.writes)
    world.look()
    assert [one for one in world.api.writes[seen:] if one.name.startswith("g-")] == []


def test_a_node_that_does_not_come_has_its_group_left_out_and_the_next_one_asked() -> None:
    world = World(group("a"), group("b"), within=300.0)
    world.wants(2)
    world.look()
    assert world.asked() == {"a": ["a-0"]}
    world.look(600.0)
    assert (
        "NodesNotComing: claim c0: group a is not asked for nodes for 60 s: no node came within 300 s"
        in world.events()[1]
    )
    world.look()
    assert world.asked() == {"b": ["b-0"]}
    world.start_again()
    world.look()
    assert world.asked() == {"b": ["b-0"]}, "the next leader knows it"


def test_a_group_is_left_out_for_longer_each_time() -> None:
    world = World(group(), within=60.0)
    world.wants(2)
    pauses = []
    for _ in range(8):
        while not world.placeholders():
            world.look(50.0)
        world.look(120.0)
        standing = json.loads(world.api.get(CONFIG_MAPS, NAME, namespace=NAMESPACE)["data"]["g"])
        pauses.append(round(standing["until"] - world.now.timestamp()))
    assert pauses == [60, 120, 240, 480, 960, 1920, 3600, 3600]


def test_a_node_without_devices_is_waited_for_and_given_up() -> None:
    world = World(group(), within=300.0)
    world.wants(2)
    world.look()
    world.nodes_come()
    world.look(400.0)
    assert len(world.placeholders()) == 1
    world.look(400.0)
    assert not world.placeholders()
    assert "it published no devices" in world.events()[1]


def test_a_node_that_came_and_does_not_serve_is_the_last_one() -> None:
    """Its machine is not what the group says: 1 GPU instead of 2."""
    world = World(group())
    world.wants(2)
    world.look()
    came = world.nodes_come()
    world.publish(came, gpus=1)
    world.look()
    world.look()
    assert not world.placeholders()
    assert "is `machine` what the group's nodes are?" in world.events()[-1]
    world.look()
    assert not world.placeholders()
    assert len(world.api.all(NODES)) == 1


def test_a_placeholder_on_a_node_that_was_there_tells_that_it_is_too_small() -> None:
    world = World(group())
    world.node(world.groups["g"], "old")
    world.publish(["old"], gpus=1)
    world.wants(2)
    world.now += timedelta(seconds=60)
    world.look()
    (pod,) = world.placeholders()
    world.bind(pod, "old")
    world.look()
    assert not world.placeholders()
    assert "node old was there, has room for a whole node" in world.events()[-1]


def test_a_group_that_delivers_is_well_again() -> None:
    world = World(group(), within=60.0)
    world.wants(2)
    world.look()
    world.look(120.0)
    while not world.placeholders():
        world.look(30.0)
    world.publish(world.nodes_come())
    world.look()
    world.look()
    standing = json.loads(world.api.get(CONFIG_MAPS, NAME, namespace=NAMESPACE)["data"]["g"])
    assert (standing["failures"], standing["until"]) == (0, 0.0)


def test_a_standing_that_cannot_be_read_is_none() -> None:
    world = World(group())
    world.api.edit(CONFIG_MAPS, NAME, lambda one: one.update(data={"g": "{"}), namespace=NAMESPACE)
    world.wants(2)
    world.look()
    assert len(world.placeholders()) == 1


def test_a_refused_placeholder_is_no_loop() -> None:
    world = World(group())
    world.wants(2, 2)

    def refuse(write: Write) -> None:
        if write.name == "g-1" and write.verb == "create":
            raise Forbidden("exceeded quota", code=403)

    world.api.before = refuse
    world.look()
    assert world.asked() == {"g": ["g-0"]}


def test_a_namespace_has_no_more_nodes_than_it_may() -> None:
    world = World(group(namespace_most=2))
    world.wants(2, 2, 2)
    world.look()
    assert len(world.placeholders()) == 2
    assert [
        one
        for one in world.events()
        if "NoNodeHelps: claim c2: namespace default has 2 nodes of group g" in one
    ]
    world.publish(world.nodes_come())
    world.look()
    world.look()
    assert not world.placeholders()
    assert world.cluster.node_of("c2") is None


def test_a_gang_beyond_a_namespaces_nodes_is_not_asked_for_in_part() -> None:
    world = World(group(namespace_most=2))
    world.gang(3)
    world.look()
    assert not world.placeholders()


def test_a_quota_is_no_reason_for_a_node() -> None:
    world = World(group())
    world.wants(2, 2)

    class Bound(NoQuotas):
        def is_bounding(self) -> bool:
            return True

        def held(self, members: Sequence[PodClaims], gangs: Gangs) -> Mapping[str, str]:
            del gangs
            return {objects.uid(one.pod): "3 of 2" for one in members if objects.name(one.pod) == "c1"}

        def on_hold(self, event: str, hold: Object, /) -> None:
            raise AssertionError(f"a forecast holds nothing: {event} {hold}")

    quotas = QuotasAsTheyAre(Bound())
    quotas.on_hold("ADDED", {})
    world.terms = Terms(world.now, quotas=quotas)
    world.start_again()
    world.look()
    assert len(world.placeholders()) == 1
    assert (
        "NoNodeHelps: claim c1: no new node of group g would serve it: everywhere: QuotaExceeded: 3 of 2"
        in world.events()
    )


def test_forecasts_take_a_tenth_of_the_time() -> None:
    world = World(group())
    world.wants(2)
    began, clock = world.now.timestamp(), world.asking.clock
    times = iter((0.0, 0.0))
    world.asking.clock = lambda: began + next(times, 20.0)
    world.look()
    assert world.asking._rest_until == began + 20 + SHARE * 20
    world.asking.clock = clock
    world.asking._rest_until = world.now.timestamp() + 100
    world.api.delete(PODS, "c0", namespace="default")
    world.look()
    assert len(world.placeholders()) == 1
    world.look(100.0)
    assert not world.placeholders()


def test_explain_tells_of_it() -> None:
    world = World(group())
    world.wants(2)
    world.look()
    world.cluster.caches.deliver()
    told = forecast(world.cluster.caches.cluster(), Terms(world.now))
    claim = told.answer(Question(Subject.CLAIM, "default", "c0"))["claim"]
    assert (
        claim["waits"] == "a new node of group g is asked for (no node came yet; pod koordra-autoscale/g-0)"
    )
    (came,) = world.nodes_come()
    world.cluster.caches.deliver()
    told = forecast(world.cluster.caches.cluster(), Terms(world.now))
    claim = told.answer(Question(Subject.CLAIM, "default", "c0"))["claim"]
    assert f"node {came} came, and has not published its devices" in claim["waits"]


def test_figures() -> None:
    world = World(group())
    world.wants(2, 2)
    world.look()
    world.nodes_come(1)
    world.look()
    text = world.metrics.text()
    assert 'koordra_controller_autoscale_nodes{group="g",stage="asked"} 1.0' in text
    assert 'koordra_controller_autoscale_nodes{group="g",stage="came"} 1.0' in text
    assert 'koordra_controller_autoscale_asks_total{group="g",outcome="made"} 2.0' in text
    assert 'koordra_controller_autoscale_left_out{group="g"} 0.0' in text


def test_a_group_that_is_taken_away_takes_its_asks_along() -> None:
    world = World(group())
    world.wants(2)
    world.look()
    assert world.placeholders()
    world.settings = AutoscaleSettings()
    world.start_again()
    world.look()
    assert not world.placeholders()


def test_others_claims_are_nobodys_need() -> None:
    world = World(group())
    world.api.create(RESOURCE_CLAIMS, {"metadata": {"name": "x"}, "spec": {"devices": {"requests": []}}})
    world.look()
    assert not world.placeholders()
