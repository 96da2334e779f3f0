"""Groups within groups, as KAI and Grove write them: each has its least and is packed in its own level."""

from __future__ import annotations

from typing import Any

import pytest

from koordra.api import objects
from koordra.api.kinds import NODES, PODS
from koordra.api.objects import Object
from koordra.controller.cache.changes import POD_GROUPS
from koordra.controller.gangs import events
from koordra.controller.gangs.declared.annotations import GANG_POLICY
from koordra.controller.gangs.declared.gang_ref import GangRef, Source, gang_of
from koordra.controller.gangs.declared.subgroups import MOST_LAYERS, MOST_SUBGROUPS, subgroups_of
from koordra.controller.gangs.declared.terms import TimeoutPolicy, terms_of
from tests.fakes.joint_cluster import JointCluster
from tests.unit.gangs.test_gang_roles import cluster_of, join, told, went

KIND_OF_GROUP = {
    Source.VOLCANO: "scheduling.volcano.sh",
    Source.KAI: "scheduling.run.ai",
    Source.GROVE: "scheduler.grove.io",
}
KIND_OF = {Source.KAI: "scheduling.run.ai", Source.GROVE: "scheduler.grove.io"}
ROW, RACK = "dc/row", "dc/rack"


def kai(name: str, least: int = 0, *, parent: str = "", needs: int | None = None, **levels: str) -> Object:
    return {
        "name": name,
        "minMember": least,
        **({"parent": parent} if parent else {}),
        **({"minSubGroup": needs} if needs is not None else {}),
        "topologyConstraint": {"topology": "net", **levels},
    }


def tree(source: Source, *, needs: int | None = None) -> Object:
    """Two replicas, each in one row, of a prefill and a decode group, each of two members in one rack."""
    if source is Source.KAI:
        replicas = [kai(f"r{number}", parent="all", requiredTopologyLevel=ROW) for number in range(2)]
        groups = [
            kai(f"r{number}-{part}", 2, parent=f"r{number}", requiredTopologyLevel=RACK)
            for number in range(2)
            for part in ("prefill", "decode")
        ]
        return {"minMember": 1, "subGroups": [*groups, kai("all", needs=needs), *replicas]}

    def level(word: str) -> Object:
        return {"packConstraint": {"required": word}}

    return {
        "podgroups": [
            {"name": f"r{number}-{part}", "minReplicas": 2, "topologyConstraint": level(RACK)}
            for number in range(2)
            for part in ("prefill", "decode")
        ],
        "topologyConstraintGroupConfigs": [
            {
                "name": f"r{number}",
                "podGroupNames": [f"r{number}-prefill", f"r{number}-decode"],
                "topologyConstraint": level(ROW),
            }
            for number in range(2)
        ],
    }


def group(cluster: JointCluster, source: Source, spec: dict[str, Any]) -> None:
    kind = next(one for one in POD_GROUPS if one.group == KIND_OF[source])
    metadata = {"name": "serve", "namespace": "default", "uid": "g"}
    cluster.caches.observe(
        kind, {"apiVersion": kind.api_version, "kind": kind.kind, "metadata": metadata, "spec": spec}
    )


def member(cluster: JointCluster, source: Source, part: str, number: int) -> str:
    name = f"{part}-{number}"
    join(cluster, name, {"pod-group-name": "serve"} if source is Source.KAI else {})
    labels = {
        "grove.io/podgang": "serve",
        "grove.io/podclique": part,
        "grove.io/podclique-pod-index": str(number),
    }
    if source is Source.KAI:
        labels = {"kai.scheduler/subgroup-name": part}
    cluster.api.edit(PODS, name, lambda found: found["metadata"].update(labels=labels))
    return name


def everybody(cluster: JointCluster, source: Source, *parts: str) -> None:
    for part in parts or ("r0-prefill", "r0-decode", "r1-prefill", "r1-decode"):
        for number in range(2):
            member(cluster, source, part, number)


def domains(cluster: JointCluster, label: str, prefix: str) -> set[str]:
    pods = [objects.name(one) for one in cluster.api.all(PODS) if objects.name(one).startswith(prefix)]
    nodes = [objects.labels_of(cluster.api.get(NODES, str(cluster.node_of(name)))) for name in pods]
    return {own[ROW] + (own[RACK] if label == RACK else "") for own in nodes}


@pytest.mark.parametrize("source", KIND_OF)
def test_each_group_is_packed_within_its_own_level_inside_of_the_one_around_it(source: Source) -> None:
    cluster = cluster_of("aabbAABB")
    group(cluster, source, tree(source))
    everybody(cluster, source)
    cluster.settle()
    assert len(went(cluster)) == 8
    for replica in ("r0", "r1"):
        assert len(domains(cluster, ROW, replica)) == 1
        assert len(domains(cluster, RACK, f"{replica}-prefill")) == 1
        assert len(domains(cluster, RACK, f"{replica}-decode")) == 1


@pytest.mark.parametrize("source", KIND_OF)
def test_nobody_starts_where_one_group_has_too_few_or_its_level_no_room(source: Source) -> None:
    cluster = cluster_of("aabbAABB")
    group(cluster, source, tree(source))
    everybody(cluster, source, "r0-prefill", "r0-decode", "r1-prefill")
    member(cluster, source, "r1-decode", 0)
    cluster.settle()
    assert went(cluster) == []
    assert "7 of 8 members are there, of role r1-decode 1 of 2 members" in told(cluster, events.GATHERING)
    split = cluster_of("aabbAAbB")
    group(split, source, tree(source))
    everybody(split, source)
    split.settle()
    assert went(split) == []


def test_of_optional_groups_as_many_are_needed_as_are_said() -> None:
    """One of two replicas is enough: room for one is room to start, and for a half of the other is none."""
    cluster = cluster_of("aabbAAb")
    group(cluster, Source.KAI, tree(Source.KAI, needs=1))
    everybody(cluster, Source.KAI)
    cluster.settle()
    started = {name.partition("-")[0] for name in went(cluster)}
    assert len(went(cluster)) == 4
    assert len(domains(cluster, ROW, min(started))) == 1


def test_an_optional_group_that_lacks_members_waits_as_a_whole() -> None:
    cluster = cluster_of("aab")
    groups = [kai(name, 2, requiredTopologyLevel=RACK) for name in ("r0", "r1")]
    group(cluster, Source.KAI, {"subGroups": groups, "minSubGroup": 1})
    everybody(cluster, Source.KAI, "r0")
    member(cluster, Source.KAI, "r1", 0)
    cluster.settle()
    assert went(cluster) == ["r0-0", "r0-1"]


def test_a_group_that_is_not_there_is_waited_for() -> None:
    cluster = cluster_of("aaaa")
    everybody(cluster, Source.GROVE, "r0-prefill")
    cluster.settle()
    assert "there is no pod group default/serve (grove)" in told(cluster, events.GATHERING)


def test_grove_ends_by_itself_a_gang_that_lacks_members() -> None:
    """After its terminationDelay, which is longer: koordra evicts nobody of it before, unless told to."""
    cluster = cluster_of("ab")
    group(cluster, Source.GROVE, tree(Source.GROVE))
    pods = [{"metadata": {"uid": "p"}}, {"metadata": {"uid": "q"}}]
    ref, groups = GangRef(Source.GROVE, "default", "serve"), cluster.reconciler.cache.pod_groups
    terms = terms_of(ref, pods, groups)
    assert terms is not None
    assert terms.policy is TimeoutPolicy.KEEP
    said = [{"metadata": {"uid": "p", "annotations": {GANG_POLICY: "Restart"}}}]
    restarted = terms_of(ref, said, groups)
    assert restarted is not None
    assert restarted.policy is TimeoutPolicy.RESTART


def test_an_annotation_of_that_name_alone_is_not_kais() -> None:
    metadata = {"name": "p", "namespace": "team", "annotations": {"pod-group-name": "x"}}
    assert gang_of({"kind": "Pod", "metadata": metadata, "spec": {}}) is None


KAI_REF = GangRef(Source.KAI, "team", "serve")


CIRCLE = [kai("a", parent="b"), kai("b", parent="a"), kai("c", 2)]
DEEP = [kai("d0"), *(kai(f"d{number}", 1, parent=f"d{number - 1}") for number in range(1, MOST_LAYERS + 1))]
MANY = [kai(f"m{number}", 1) for number in range(MOST_SUBGROUPS + 1)]


@pytest.mark.parametrize(
    ("groups", "words"),
    [
        (CIRCLE, f"group a is in itself, or more than {MOST_LAYERS} deep in others"),
        (DEEP, f"group d{MOST_LAYERS} is in itself, or more than {MOST_LAYERS} deep in others"),
        (DEEP[:-1], ""),
        (MANY, f"its pod group has {MOST_SUBGROUPS + 1} groups: {MOST_SUBGROUPS} at most"),
        (MANY[:-1], ""),
    ],
    ids=["a circle", "too deep", "deep", "too many", "many"],
)
def test_groups_that_cannot_be_meant_refuse_the_gang(groups: list[Object], words: str) -> None:
    cluster = cluster_of("a")
    group(cluster, Source.KAI, {"minMember": 1, "subGroups": groups})
    member(cluster, Source.KAI, groups[-1]["name"], 0)
    cluster.settle()
    refused = told(cluster, events.REFUSED)
    assert words in refused
    assert bool(refused) == bool(words)


@pytest.mark.parametrize(
    "spec", [{"subGroups": 1}, {"subGroups": [1, {}]}, {"subGroups": [{"minMember": "x"}]}]
)
def test_what_is_no_tree_has_no_groups_that_need_anybody(spec: dict[str, Any]) -> None:
    assert subgroups_of(KAI_REF, [], spec, {}).least == 0


def test_the_least_is_that_of_the_smallest_that_are_needed() -> None:
    groups = [kai("a", 5), kai("b", 2), kai("c", 3)]
    assert subgroups_of(KAI_REF, [], {"subGroups": groups}, {}).least == 10
    found = subgroups_of(KAI_REF, [], {"subGroups": groups, "minSubGroup": 2}, {})
    assert (found.least, {one.optional for one in found.all}) == (5, {True})


@pytest.mark.parametrize("odd", [None, 3, "x", [1, {}, [2]], {"x": [3]}], ids=repr)
@pytest.mark.parametrize(
    ("domain", "name"),
    [
        ("scheduling.volcano.sh", "networkTopology"),
        ("scheduling.volcano.sh", "subGroupPolicy"),
        ("scheduling.run.ai", "subGroups"),
        ("scheduling.run.ai", "topologyConstraint"),
        ("scheduler.grove.io", "podgroups"),
        ("scheduler.grove.io", "topologyConstraintGroupConfigs"),
    ],
)
def test_fields_of_the_wrong_type_are_as_left_out(domain: str, name: str, odd: object) -> None:
    """No server takes them; a CRD may be there without its schema."""
    source = next(one for one, of in KIND_OF_GROUP.items() if domain == of)
    metadata = {"uid": "p", "namespace": "team", "name": "p"}
    spec = {"minMember": 1, name: odd}
    inner: list[dict[str, Any]] = [spec]
    inner += [{"minMember": 1, name: [{"name": "a", field: odd}]} for field in FIELDS]
    for said in inner:
        groups = {f"{domain}/team/serve": {"metadata": {"name": "serve"}, "spec": said}}
        found = terms_of(GangRef(source, "team", "serve"), [{"metadata": metadata, "spec": {}}], groups)
        assert found is not None


FIELDS = (
    "parent",
    "minMember",
    "minSubGroup",
    "minReplicas",
    "topologyConstraint",
    "podGroupNames",
    "labelSelector",
    "networkTopology",
    "matchLabelKeys",
    "subGroupSize",
    "minSubGroups",
)
