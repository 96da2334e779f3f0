"""Roles: how many members each needs and may have, in which order they start, and roles within roles."""

from __future__ import annotations

import json
from collections import Counter

import pytest

from koordra.api import names, objects
from koordra.api.kinds import NODES, PODS
from koordra.api.objects import Object
from koordra.cli.cluster.object_text import gang_text
from koordra.controller.cache.fabrics import written_levels
from koordra.controller.explain.answer import answer
from koordra.controller.explain.leader_view import leader_view
from koordra.controller.explain.question import Question, Subject
from koordra.controller.gangs import events
from koordra.controller.gangs.declared.annotations import (
    COMMITTED,
    GANG,
    GANG_MAX,
    GANG_MIN,
    GANG_ROLE,
    GANG_ROLE_MAX,
    GANG_ROLE_MIN,
    GANG_ROLE_TOPOLOGY,
    GANG_SHRINK,
    GANG_START_AFTER,
    GANG_TIMEOUT,
)
from koordra.controller.gangs.phase import within_quota
from tests.fakes.joint_cluster import JointCluster

KOORDINATOR = "gang.scheduling.koordinator.sh/"


def cluster_of(racks: str, *, gpus: int = 1) -> JointCluster:
    """A node for each letter: the rack that it is in, in capitals of another row."""
    cluster = JointCluster(nodes=len(racks), gpus=gpus)
    for number, rack in enumerate(racks):
        labels = {"dc/rack": rack.lower(), "dc/row": "2" if rack.isupper() else "1"}
        cluster.api.edit(
            NODES, f"n{number}", lambda found, own=labels: found["metadata"]["labels"].update(own)
        )
    cluster.reconciler.cache.fabrics.written = written_levels("row=dc/row,rack=dc/rack")
    return cluster


def join(cluster: JointCluster, name: str, said: dict[str, str], *, count: int = 1) -> Object:
    claims = [name] if count else []
    for claim in claims:
        cluster.claim(claim, count=count)
    cluster.pod(name, *claims, gates=[names.JOINT_GATE])
    cluster.api.edit(PODS, name, lambda found: found["metadata"].update(annotations=said))
    return cluster.api.get(PODS, name)


def role(name: str, **said: str) -> dict[str, str]:
    return {GANG: "train", GANG_MIN: "2", GANG_ROLE: name, **said}


def went(cluster: JointCluster) -> list[str]:
    pods = cluster.api.all(PODS)
    return [objects.name(one) for one in pods if COMMITTED in objects.annotations_of(one)]


def ready(cluster: JointCluster, *pods: str) -> None:
    """Their containers say that they are."""
    for name in pods:
        if objects.spec_of(cluster.api.get(PODS, name)).get("resourceClaims"):
            cluster.scheduler_binds(name, name)
        else:
            cluster.api.edit(PODS, name, lambda found: found["spec"].update(nodeName="n0"))
        state = {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}
        cluster.api.edit(PODS, name, lambda found, own=state: found["status"].update(own))
    cluster.settle()


def told(cluster: JointCluster, reason: str) -> str:
    return " ".join(one.message for one in cluster.told if one.reason == reason)


# how many


def test_a_role_that_lacks_members_is_waited_for_although_the_gang_has_its_least() -> None:
    cluster = cluster_of("aaaa")
    for number in range(3):
        join(cluster, f"w{number}", role("workers", **{GANG_ROLE_MIN: "2"}))
    join(cluster, "p0", role("servers", **{GANG_ROLE_MIN: "2"}))
    cluster.settle()
    assert went(cluster) == []
    assert "4 of 4 members are there, of role servers 1 of 2 members" in told(cluster, events.GATHERING)
    join(cluster, "p1", role("servers", **{GANG_ROLE_MIN: "2"}))
    cluster.settle()
    assert len(went(cluster)) == 4


def test_where_there_is_no_room_for_all_each_role_gets_its_least() -> None:
    """Five want to start, for four is room: without a word on roles, whoever is first gets it."""
    cluster = cluster_of("aaaa")
    for number in range(3):
        join(cluster, f"a{number}", role("a", **{GANG_ROLE_MIN: "1"}))
    for number in range(3):
        join(cluster, f"b{number}", role("b", **{GANG_ROLE_MIN: "3"}))
    cluster.settle()
    assert [name for name in went(cluster) if name.startswith("b")] == ["b0", "b1", "b2"]
    assert len(went(cluster)) == 4


def test_nobody_starts_where_a_role_does_not_get_its_least() -> None:
    cluster = cluster_of("aa")
    join(cluster, "a0", role("a", **{GANG_ROLE_MIN: "1"}))
    join(cluster, "b0", role("b", **{GANG_ROLE_MIN: "1"}), count=2)
    join(cluster, "a1", role("a", **{GANG_ROLE_MIN: "1"}))
    cluster.settle()
    assert went(cluster) == []
    assert "role b needs 1 of its 1 members" in told(cluster, events.WAITING)


def test_a_gang_whose_roles_come_to_need_less_is_looked_at_again() -> None:
    cluster = cluster_of("aa")
    for name in ("a0", "a1", "b0"):
        join(
            cluster,
            name,
            role(name[0], **({GANG_ROLE_MIN: "1"} if name == "b0" else {})),
            count=1 + (name == "b0"),
        )
    cluster.settle()
    assert went(cluster) == []
    cluster.api.edit(PODS, "b0", lambda found: found["metadata"]["annotations"].pop(GANG_ROLE_MIN))
    cluster.settle()
    assert went(cluster) == ["a0", "a1"]


def test_a_role_has_no_more_than_its_most() -> None:
    cluster = cluster_of("aaaaaa")
    for number in range(3):
        join(cluster, f"a{number}", role("a", **{GANG_ROLE_MAX: "1"}))
        join(cluster, f"b{number}", role("b"))
    cluster.settle()
    assert sorted(Counter(name[0] for name in went(cluster)).items()) == [("a", 1), ("b", 3)]
    ready(cluster, *went(cluster))
    cluster.settle()
    assert sorted(Counter(name[0] for name in went(cluster)).items()) == [("a", 1), ("b", 3)]


def test_members_that_a_role_needs_do_not_make_room_for_others() -> None:
    cluster = cluster_of("aaaa")
    elastic = {GANG_SHRINK: "ForOthers"}
    for number in range(2):
        join(cluster, f"a{number}", role("a", **elastic))
    for number in range(2):
        join(cluster, f"b{number}", role("b", **{GANG_ROLE_MIN: "2", **elastic}))
    cluster.settle()
    ready(cluster, "a0", "a1", "b0", "b1")
    for number in range(2):
        join(cluster, f"x{number}", {GANG: "other", GANG_MIN: "2"})
    cluster.settle()
    asked = [write.name for write in cluster.api.writes if write.subresource == "eviction"]
    assert sorted(set(asked)) == ["a0", "a1"]


@pytest.mark.parametrize(
    ("said", "words"),
    [
        ({GANG_ROLE: "", GANG_ROLE_MIN: "1"}, "name the role that the pods are in"),
        (
            {GANG_ROLE: "a", GANG_ROLE_MIN: "2", GANG_ROLE_MAX: "1"},
            f"{GANG_ROLE_MAX} is 1 and {GANG_ROLE_MIN} is 2",
        ),
        ({GANG_ROLE: "a", GANG_ROLE_MIN: "few"}, "write a number from 1 on"),
        ({GANG_ROLE: "a", GANG_START_AFTER: "a"}, "its roles wait for each other"),
        ({GANG_ROLE: "a", GANG_START_AFTER: ",".join(map(str, range(17)))}, "names 17 roles: 16 at most"),
        ({GANG_ROLE: "a/b/c", GANG_ROLE_TOPOLOGY: "row,rack"}, "one for each of the 3 layers of role a/b/c"),
    ],
)
def test_what_cannot_be_meant_is_told(said: dict[str, str], words: str) -> None:
    cluster = cluster_of("aa")
    for number in range(2):
        join(cluster, f"w{number}", {GANG: "train", GANG_MIN: "2", **said})
    cluster.settle()
    assert words in told(cluster, events.REFUSED)


def test_roles_that_disagree_about_the_one_around_them_are_told() -> None:
    cluster = cluster_of("aa")
    join(cluster, "x0", role("all/x", **{GANG_ROLE_TOPOLOGY: "row,rack"}))
    join(cluster, "y0", role("all/y", **{GANG_ROLE_TOPOLOGY: "rack,rack"}))
    cluster.settle()
    assert "its members disagree about the levels of role all" in told(cluster, events.REFUSED)


# in which order


def started_after(cluster: JointCluster, *, late: int = 2) -> None:
    join(cluster, "head", role("head"))
    for number in range(late):
        join(cluster, f"w{number}", role("workers", **{GANG_START_AFTER: "head"}))


def test_gates_are_lifted_in_order_while_all_places_are_held() -> None:
    cluster = cluster_of("aaa")
    started_after(cluster)
    cluster.settle()
    assert went(cluster) == ["head"]
    assert None not in [cluster.node_of(name) for name in ("head", "w0", "w1")]
    cluster.claim("other"), cluster.pod("other", "other", gates=[names.JOINT_GATE])
    cluster.settle()
    assert cluster.node_of("other") is None
    ready(cluster, "head")
    assert went(cluster) == ["head", "w0", "w1"]


def test_a_pod_whose_turn_has_not_come_is_told_for_whom_it_waits() -> None:
    cluster = cluster_of("aaa")
    started_after(cluster)
    cluster.settle()
    assert "their gates are lifted in the order of their roles" in told(cluster, events.STARTS)
    view = leader_view(cluster.reconciler)
    found = answer(view, Question(Subject.POD, "default", "w0"))["pod"]
    assert found["waits"] == f"it has its devices, and starts once head is Ready ({GANG_START_AFTER})"
    pods = answer(view, Question(Subject.GANG, "default", "train"))["gang"]["pods"]
    assert [(one["name"], bool(one["waits"])) for one in pods] == [
        ("head", False),
        ("w0", True),
        ("w1", True),
    ]
    text = gang_text(answer(view, Question(Subject.GANG, "default", "train"))["gang"])
    assert "w0, w1: it has its devices, and starts once head is Ready" in text
    assert answer(view, Question(Subject.POD, "default", "head"))["pod"]["waits"] is None


def test_the_order_survives_the_controller_and_takes_its_time() -> None:
    """Workers whose turn has not come are no lost members: the gang is not restarted for them."""
    cluster = cluster_of("aaa")
    join(cluster, "head", role("head", **{GANG_TIMEOUT: "10s", GANG_MIN: "3"}))
    for number in range(2):
        join(
            cluster,
            f"w{number}",
            role("workers", **{GANG_START_AFTER: "head", GANG_TIMEOUT: "10s", GANG_MIN: "3"}),
        )
    cluster.settle()
    cluster.scheduler_binds("head", "head")
    cluster.start_again()
    for _ in range(3):
        cluster.settle()
        cluster.pass_time(60)
    assert not [write for write in cluster.api.writes if write.subresource == "eviction"]
    assert went(cluster) == ["head"]
    assert cluster.node_of("w1") is not None


def test_a_role_that_others_start_after_is_never_left_out() -> None:
    """Two of three fit: were it the workers, they would hold devices and wait for a head without any."""
    cluster = cluster_of("aa")
    for number in range(2):
        join(cluster, f"a{number}", role("workers", **{GANG_START_AFTER: "head"}))
    join(cluster, "head", role("head"))
    cluster.settle()
    assert went(cluster) == ["head"]
    ready(cluster, "head")
    assert went(cluster) == ["a0", "head"]


def test_a_role_that_comes_last_is_told_until_it_is_there() -> None:
    """Of an elastic gang there are enough members without it: it is neither refused nor started."""
    cluster = cluster_of("aaa")
    for number in range(2):
        join(cluster, f"w{number}", role("workers", **{GANG_START_AFTER: "head"}))
    cluster.settle()
    words = f"of role 'head', which {GANG_START_AFTER} names, nobody (roles that are there: workers)"
    assert words in told(cluster, events.GATHERING)
    assert not told(cluster, events.REFUSED)
    assert (went(cluster), cluster.node_of("w0")) == ([], None)
    join(cluster, "head", role("head"))
    cluster.settle()
    assert went(cluster) == ["head"]
    ready(cluster, "head")
    assert went(cluster) == ["head", "w0", "w1"]


def test_a_quota_holds_only_whom_it_holds_while_a_role_is_lost() -> None:
    cluster = cluster_of("aa")
    started_after(cluster, late=1)
    cluster.settle()
    ready(cluster, "head")
    ready(cluster, "w0")
    cluster.pod_ends("head", "head")
    for name in ("w1", "w2", "w3"):
        join(cluster, name, role("workers", **{GANG_START_AFTER: "head"}))
    cluster.settle()
    gangs = cluster.reconciler.allocation.gangs
    status = gangs.statuses["default/train"]
    held = objects.uid(cluster.api.get(PODS, "w2"))
    free = within_quota(gangs.all["default/train"], status, {held: "beyond its quota"})
    assert [member.key for member in status.plan] == ["default/w2", "default/w3"]
    assert [member.key for member in free.plan] == ["default/w3"]


def test_nobody_starts_after_a_head_that_was_lost_before_it_was_ready() -> None:
    cluster = cluster_of("aaa")
    join(cluster, "store", role("store", **{GANG_MIN: "3"}))
    join(cluster, "head", role("head", **{GANG_MIN: "3"}))
    join(cluster, "w0", role("workers", **{GANG_START_AFTER: "head", GANG_MIN: "3"}))
    cluster.settle()
    ready(cluster, "store")
    cluster.scheduler_binds("head", "head")
    cluster.pod_ends("head", "head")
    cluster.claim("other"), cluster.pod("other", "other", gates=[names.JOINT_GATE])
    cluster.settle()
    join(cluster, "again", role("head", **{GANG_MIN: "3"}))
    cluster.settle()
    assert (cluster.node_of("again"), went(cluster)) == (None, ["store"])
    cluster.pod_ends("other", "other")
    cluster.settle()
    ready(cluster, "again")
    assert went(cluster) == ["again", "store", "w0"]


def test_roles_start_one_after_the_other_and_one_that_ended_has_started() -> None:
    cluster = cluster_of("aaa")
    join(cluster, "load", role("load", **{GANG_MIN: "3"}))
    join(cluster, "head", role("head", **{GANG_START_AFTER: "load", GANG_MIN: "3"}))
    join(cluster, "w0", role("workers", **{GANG_START_AFTER: "load, head", GANG_MIN: "3"}))
    cluster.settle()
    assert went(cluster) == ["load"]
    ready(cluster, "load")
    assert went(cluster) == ["head", "load"]
    cluster.api.edit(PODS, "load", lambda found: found["status"].update(phase="Succeeded"))
    cluster.settle()
    assert went(cluster) == ["head", "load"]
    ready(cluster, "head")
    assert went(cluster) == ["head", "load", "w0"]


def test_who_comes_to_others_of_his_role_that_have_started_starts() -> None:
    """The order is that of the start: what it began with may be long gone."""
    cluster = cluster_of("aaa")
    started_after(cluster, late=1)
    cluster.settle()
    ready(cluster, "head")
    ready(cluster, "w0")
    cluster.api.edit(PODS, "head", lambda found: found["status"].update(phase="Succeeded"))
    cluster.pod_ends("head", "head")
    join(cluster, "w1", role("workers", **{GANG_START_AFTER: "head"}))
    cluster.settle()
    assert went(cluster) == ["w0", "w1"]


def test_workers_that_are_made_again_start_after_a_head_that_has_ended_well() -> None:
    cluster = cluster_of("aaa")
    started_after(cluster)
    cluster.settle()
    ready(cluster, "head")
    ready(cluster, "w0")
    cluster.api.edit(PODS, "head", lambda found: found["status"].update(phase="Succeeded"))
    cluster.pod_ends("w0", "w0")
    cluster.pod_ends("w1", "w1")
    for name in ("w2", "w3"):
        join(cluster, name, role("workers", **{GANG_START_AFTER: "head"}))
    cluster.settle()
    assert went(cluster) == ["head", "w2", "w3"]


# roles within roles


def test_roles_are_packed_within_their_own_level_and_within_the_role_around_them() -> None:
    """Two replicas of a served model, each of a prefill and a decode role: a replica in one row, each of its
    roles in one rack; the gang over both."""
    cluster = cluster_of("aabbAABB", gpus=1)
    for replica in (0, 1):
        for part in ("prefill", "decode"):
            for number in range(2):
                said = {
                    GANG: "serve",
                    GANG_MIN: "8",
                    GANG_ROLE: f"replica-{replica}/{part}",
                    GANG_ROLE_TOPOLOGY: "row,rack",
                }
                join(cluster, f"{part}-{replica}-{number}", said)
    cluster.settle()
    assert len(went(cluster)) == 8
    rows, racks = {}, {}
    for one in cluster.api.all(PODS):
        labels = objects.labels_of(cluster.api.get(NODES, str(cluster.node_of(objects.name(one)))))
        inner = objects.annotations_of(one)[GANG_ROLE]
        rows.setdefault(inner.partition("/")[0], set()).add(labels["dc/row"])
        racks.setdefault(inner, set()).add((labels["dc/row"], labels["dc/rack"]))
    assert {len(found) for found in rows.values()} == {1}
    assert {len(found) for found in racks.values()} == {1}


def test_a_role_around_others_that_does_not_fit_in_its_level_keeps_everybody() -> None:
    cluster = cluster_of("aaAA")
    for part in ("x", "y", "z"):
        join(cluster, part, role(f"all/{part}", **{GANG_ROLE_TOPOLOGY: "row,", GANG_MIN: "3"}))
    cluster.settle()
    assert went(cluster) == []


# gangs that Koordinator binds to each other


def bound(name: str, least: int, **more: str) -> dict[str, str]:
    words = {
        "name": name,
        "min-available": str(least),
        "groups": json.dumps(["default/a", "default/b"]),
        **more,
    }
    return {KOORDINATOR + word: text for word, text in words.items()}


def test_gangs_that_are_bound_to_each_other_start_together_or_not_at_all() -> None:
    cluster = cluster_of("aaa")
    for number in range(2):
        join(cluster, f"a{number}", bound("a", 2))
    cluster.settle()
    assert went(cluster) == []
    assert "of role b 0 of 1 members" in told(cluster, events.GATHERING)
    for number in range(2):
        join(cluster, f"b{number}", bound("b", 2))
    cluster.settle()
    assert went(cluster) == []
    assert "3 of 4 members fit" in told(cluster, events.WAITING)
    cluster = cluster_of("aaaa")
    for name in ("a0", "a1", "b0", "b1"):
        join(cluster, name, bound(name[0], 2))
    cluster.settle()
    assert went(cluster) == ["a0", "a1", "b0", "b1"]


def test_each_of_the_gangs_that_are_bound_has_its_least_and_its_own_level() -> None:
    level = {
        "network-topology-spec": json.dumps({"gatherStrategy": [{"layer": "rack", "strategy": "MustGather"}]})
    }
    cluster = cluster_of("aabb")
    for number in range(3):
        join(cluster, f"a{number}", bound("a", 1))
    for number in range(2):
        join(cluster, f"b{number}", bound("b", 2, **level))
    cluster.settle()
    assert [name for name in went(cluster) if name.startswith("b")] == ["b0", "b1"]
    racks = {
        objects.labels_of(cluster.api.get(NODES, str(cluster.node_of(name))))["dc/rack"]
        for name in ("b0", "b1")
    }
    assert len(racks) == 1


def test_volcano_says_how_many_of_each_task_are_needed() -> None:
    from koordra.controller.cache.changes import POD_GROUPS

    cluster = cluster_of("aaaa")
    kind = next(one for one in POD_GROUPS if one.group == "scheduling.volcano.sh")
    group = {"minMember": 2, "minTaskMember": {"ps": 1, "worker": 3}}
    cluster.caches.observe(
        kind,
        {
            "apiVersion": "scheduling.volcano.sh/v1beta1",
            "kind": "PodGroup",
            "metadata": {"name": "train", "namespace": "default", "uid": "g"},
            "spec": group,
        },
    )
    for task, number in (("ps", 0), ("ps", 1), ("worker", 0), ("worker", 1), ("worker", 2)):
        said = {
            "scheduling.k8s.io/group-name": "train",
            "volcano.sh/task-spec": task,
            "volcano.sh/task-index": str(number),
        }
        join(cluster, f"{task}{number}", said)
    cluster.settle()
    assert sorted(Counter(name.rstrip("012") for name in went(cluster)).items()) == [("ps", 1), ("worker", 3)]


def test_an_elastic_gang_grows_by_roles_up_to_the_most_of_all() -> None:
    cluster = cluster_of("aaa")
    for name in ("a0", "b0"):
        join(cluster, name, role(name[0], **{GANG_MAX: "3"}))
    cluster.settle()
    ready(cluster, "a0", "b0")
    for name in ("a1", "b1"):
        join(cluster, name, role(name[0], **{GANG_MAX: "3"}))
    cluster.settle()
    assert len(went(cluster)) == 3
