"""Where a gang wants to be, by koordra's words and those of others; what cannot be meant is told, never
dropped."""

from __future__ import annotations

import json
from typing import Any

import pytest

from koordra.api.objects import Object
from koordra.controller.gangs.declared.admission import problems_of
from koordra.controller.gangs.declared.gang_ref import gang_of
from koordra.controller.gangs.declared.terms import Terms, terms_of
from koordra.controller.gangs.declared.topology_terms import PartTerms
from koordra.placement.gang import Slices

OWN = "koordra.io/gang"
PODSET = "kueue.x-k8s.io/podset-"
KAI = "kai.scheduler/"
GATHER = "gang.scheduling.koordinator.sh/network-topology-spec"


def pod(name: str, labels: dict[str, str] | None = None, **said: str) -> Object:
    annotations = {OWN: "train", f"{OWN}-min": "4", **said}
    metadata = {"name": name, "namespace": "team", "uid": name, "annotations": annotations}
    return {"kind": "Pod", "metadata": {**metadata, "labels": labels or {}}, "spec": {}}


def terms(*pods: Object, group: Object | None = None) -> Terms:
    ref = gang_of(pods[0])
    assert ref is not None
    groups = {} if group is None else {"scheduling.volcano.sh/team/train": {"spec": group}}
    found = terms_of(ref, pods, groups)
    assert found is not None
    return found


def four(**said: str) -> Terms:
    return terms(*(pod(f"w{number}", **said) for number in range(4)))


EVERYBODY = frozenset({"w0", "w1", "w2", "w3"})
MEANT: dict[str, tuple[dict[str, str], tuple[Any, Any, Any]]] = {
    "as it was": ({f"{OWN}-topology": "block"}, (("block",), (), ())),
    "both at once": (
        {f"{OWN}-topology": "block", f"{OWN}-topology-preferred": "nvlink"},
        (("block",), ("nvlink",), ()),
    ),
    "slices": (
        {f"{OWN}-slice-size": "2", f"{OWN}-slice-topology": "nvlink"},
        ((), (), (Slices(2, "nvlink"),)),
    ),
    "slices in layers": (
        {
            f"{OWN}-slice-size": "4, 2,1",
            f"{OWN}-slice-topology": "block,rack,",
            f"{OWN}-slice-topology-preferred": ",,node",
        },
        ((), (), (Slices(4, "block"), Slices(2, "rack"), Slices(1, None, "node"))),
    ),
    "Kueue, required": ({PODSET + "required-topology": "rack"}, (("rack",), (), ())),
    "Kueue, preferred": ({PODSET + "preferred-topology": "rack"}, ((), ("rack",), ())),
    "Kueue, unconstrained": ({PODSET + "unconstrained-topology": "true"}, ((), (), ())),
    "Kueue, slices": (
        {
            PODSET + "required-topology": "block",
            PODSET + "slice-required-topology": "rack",
            PODSET + "slice-size": "2",
        },
        (("block",), (), (Slices(2, "rack"),)),
    ),
    "Kueue, layers": (
        {
            PODSET
            + "slice-required-topology-constraints": '[{"topology":"block","size":4},{"topology":"rack","size":2}]'
        },
        ((), (), (Slices(4, "block"), Slices(2, "rack"))),
    ),
    "KAI": (
        {
            KAI + "topology-required-placement": "block",
            KAI + "topology-preferred-placement": "rack",
            KAI + "segment-size": "2",
            KAI + "segment-topology-required-placement": "rack",
            KAI + "segment-topology-preferred-placement": "node",
        },
        (("block",), ("rack",), (Slices(2, "rack", "node"),)),
    ),
    "Koordinator": (
        {
            GATHER: json.dumps(
                {
                    "gatherStrategy": [
                        {"layer": "SpineLayer", "strategy": "MustGather"},
                        {"layer": "BlockLayer", "strategy": "PreferGather", "podCountMultiple": 2},
                    ]
                }
            )
        },
        (("SpineLayer",), ("BlockLayer",), (Slices(2, None, "BlockLayer"),)),
    ),
    "Volcano, hard": (
        {"volcano.sh/network-topology-mode": "hard", "volcano.sh/network-topology-highest-tier": "2"},
        (("tier-2",), ("tier-1",), ()),
    ),
    "Volcano, soft": ({"volcano.sh/network-topology-mode": "soft"}, ((), ("tier-1",), ())),
}


@pytest.mark.parametrize(("said", "meant"), MEANT.values(), ids=list(MEANT))
def test_what_all_members_say(said: dict[str, str], meant: tuple[Any, Any, Any]) -> None:
    found = four(**said)
    assert found.problems == ()
    topology = found.topology
    parts = [part for part in topology.parts if part.slices]
    assert (topology.required, topology.preferred) == meant[:2]
    assert tuple(layer for part in parts for layer in part.slices) == meant[2]
    assert all(part.pods == EVERYBODY for part in parts)


REFUSED: dict[str, tuple[dict[str, str], str]] = {
    "a size without a level": (
        {f"{OWN}-slice-size": "2"},
        "koordra.io/gang-slice-size is '2': name a level for each size",
    ),
    "a level without a size": (
        {f"{OWN}-slice-topology": "rack"},
        "koordra.io/gang-slice-topology without koordra.io/gang-slice-size",
    ),
    "sizes that do not divide": (
        {f"{OWN}-slice-size": "4,3", f"{OWN}-slice-topology": "block,rack"},
        "each size has to divide the one before",
    ),
    "four layers": (
        {f"{OWN}-slice-size": "8,4,2,1", f"{OWN}-slice-topology": "a,b,c,d"},
        "write 3 numbers from 1 on at most",
    ),
    "no number": (
        {f"{OWN}-slice-size": "two", f"{OWN}-slice-topology": "rack"},
        "write 3 numbers from 1 on at most",
    ),
    "more levels than sizes": (
        {f"{OWN}-slice-size": "2", f"{OWN}-slice-topology": "block,rack"},
        "name a level for each size",
    ),
    "a least number that slices do not make up": (
        {f"{OWN}-slice-size": "3", f"{OWN}-slice-topology": "rack"},
        "it needs 4 members, which slices of 3 do not make up",
    ),
    "a role's level without a role": (
        {f"{OWN}-role-topology": "rack"},
        "koordra.io/gang-role-topology without koordra.io/gang-role",
    ),
    "Kueue, two of three": (
        {PODSET + "required-topology": "rack", PODSET + "preferred-topology": "rack"},
        "exclude each other",
    ),
    "Kueue, half a slice": (
        {PODSET + "slice-required-topology": "rack"},
        "kueue.x-k8s.io/podset-slice-required-topology and kueue.x-k8s.io/podset-slice-size come together",
    ),
    "Kueue, layers that are none": (
        {PODSET + "slice-required-topology-constraints": "rack"},
        "write a JSON list of objects",
    ),
    "Kueue, a layer without a size": (
        {PODSET + "slice-required-topology-constraints": '[{"topology":"rack"}]'},
        "write each layer as",
    ),
    "KAI, a segment anywhere": ({KAI + "segment-size": "2"}, "kai.scheduler/segment-size without a level"),
    "Koordinator, no JSON": ({GATHER: "{"}, "write a JSON list of objects"),
    "Koordinator, an unknown strategy": (
        {GATHER: '{"gatherStrategy":[{"layer":"x","strategy":"MayGather"}]}'},
        "MustGather or PreferGather",
    ),
    "Volcano, an unknown mode": ({"volcano.sh/network-topology-mode": "firm"}, "write hard or soft"),
    "Volcano, no tier": ({"volcano.sh/network-topology-highest-tier": "top"}, "write a number"),
}


@pytest.mark.parametrize(("said", "problem"), REFUSED.values(), ids=list(REFUSED))
def test_what_cannot_be_meant_is_a_problem_of_the_gang_and_of_the_pod(
    said: dict[str, str], problem: str
) -> None:
    assert any(problem in one for one in four(**said).problems)
    assert any(problem in one for one in problems_of(pod("w0", **said)))


def test_members_of_a_role_stand_together_and_the_others_do_not_mind() -> None:
    heads = [pod("h", **{f"{OWN}-role": "router"})]
    prefill = [
        pod(
            f"p{at}", **{f"{OWN}-role": "prefill", f"{OWN}-role-topology": "rack", f"{OWN}-topology": "block"}
        )
        for at in range(2)
    ]
    decode = [
        pod(
            f"d{at}",
            **{
                f"{OWN}-role": "decode",
                f"{OWN}-role-topology-preferred": "rack",
                f"{OWN}-slice-size": "2",
                f"{OWN}-slice-topology": "node",
            },
        )
        for at in range(4)
    ]
    found = terms(*heads, *prefill, *decode)
    assert found.problems == ()
    assert found.topology.required == ("block",)
    assert set(found.topology.parts) == {
        PartTerms("prefill", frozenset({"p0", "p1"}), ("rack",)),
        PartTerms("decode", frozenset({"d0", "d1", "d2", "d3"}), (), ("rack",), (Slices(2, "node"),)),
    }


def test_pod_sets_of_kueue_are_apart_but_for_those_of_one_group() -> None:
    def of(name: str, kind: str, **more: str) -> Object:
        labels = {
            "training.kubeflow.org/job-name": "j",
            "training.kubeflow.org/replica-type": kind,
            "training.kubeflow.org/replica-index": name[-1],
        }
        return pod(name, labels, **{PODSET + "required-topology": "rack", **more})

    pods = [of("m0", "master"), of("w0", "worker"), of("w1", "worker")]
    parts = terms(*pods).topology.parts
    assert {part.pods for part in parts} == {frozenset({"m0"}), frozenset({"w0", "w1"})}
    joined = [
        of(name, kind, **{PODSET + "group-name": "g"}) for name, kind in (("m0", "master"), ("w0", "worker"))
    ]
    together = terms(*joined).topology
    assert (together.required, together.parts) == (("rack",), ())


@pytest.mark.parametrize(
    ("annotation", "told_apart"),
    [
        ("leaderworkerset.sigs.k8s.io/exclusive-topology", "leaderworkerset.sigs.k8s.io/group-index"),
        ("alpha.jobset.sigs.k8s.io/exclusive-topology", "jobset.sigs.k8s.io/job-index"),
    ],
)
def test_each_group_or_job_is_in_one_domain_of_the_label_that_it_has_for_itself(
    annotation: str, told_apart: str
) -> None:
    pods = [pod(f"w{number}", {told_apart: str(number // 2)}, **{annotation: "pool"}) for number in range(4)]
    found = terms(*pods).topology
    assert [(part.pods, part.required) for part in found.parts] == [
        (frozenset({"w0", "w1"}), ("pool",)),
        (frozenset({"w2", "w3"}), ("pool",)),
    ]
    assert found.labels == {"pool"}, "whoever has ordered it"
    assert terms(*pods[:2]).topology.required == ("pool",)


def volcano(name: str, **labels: str) -> Object:
    found = pod(name, labels)
    found["metadata"]["annotations"] = {"scheduling.k8s.io/group-name": "train"}
    return found


def test_volcanos_pod_group_says_tiers_and_subgroups_by_label() -> None:
    pods = [volcano(f"w{at}", replica=str(at // 2), kind="worker") for at in range(4)]
    policy = {
        "name": "replicas",
        "labelSelector": {"matchLabels": {"kind": "worker"}},
        "matchLabelKeys": ["replica"],
        "subGroupSize": 2,
        "minSubGroups": 2,
        "networkTopology": {"mode": "hard", "highestTierAllowed": 1},
    }
    group = {
        "minMember": 2,
        "networkTopology": {"mode": "hard", "highestTierName": "spine"},
        "subGroupPolicy": [policy],
    }
    found = terms(*pods, volcano("launcher"), group=group)
    assert found.problems == ()
    assert found.least == 4
    assert found.topology.required == ("spine",)
    assert [(part.name, part.pods, part.required, part.size) for part in found.topology.parts] == [
        ("replicas 0", frozenset({"w0", "w1"}), ("tier-1",), 2),
        ("replicas 1", frozenset({"w2", "w3"}), ("tier-1",), 2),
    ]


def bound(groups: str, *, name: str = "a", least: str = "1") -> Object:
    found = pod(f"{name}0")
    prefix = "gang.scheduling.koordinator.sh/"
    said = {"name": name, "min-available": least, "groups": groups}
    found["metadata"]["annotations"] = {prefix + word: text for word, text in said.items()}
    return found


@pytest.mark.parametrize(
    ("groups", "remedy"),
    [
        ('["team/a"]', ""),
        ('["team/a", "team/b"]', ""),
        ('["a", "b"]', ""),
        ("a,b", "write a JSON list such as"),
        ("[1]", "write a JSON list such as"),
        ('["team/a", "other/b"]', "names b of another namespace"),
        ('["team/b", "team/c"]', "does not name a, whose pod says so: all of them name all"),
        (json.dumps([f"team/{number}" for number in range(17)]), "names 17 gangs: 16 at most"),
        (json.dumps(["team/a"] * 1000), "letters: 4096 at most"),
    ],
)
def test_what_koordinators_groups_may_say(groups: str, remedy: str) -> None:
    found = terms(bound(groups)).problems
    assert [remedy in one for one in found] == ([True] if remedy else [])


def test_gangs_that_are_bound_to_each_other_are_one_with_a_role_for_each() -> None:
    both = '["team/a", "team/b"]'
    pods = [bound(both, least="2"), bound('["team/b", "team/a"]', name="b", least="3")]
    first, second = map(gang_of, pods)
    assert first == second
    assert first is not None
    assert first.key == "team/a+b (koordinator)"
    found = terms_of(first, pods, {})
    assert found is not None
    assert (found.least, [(role.name, role.least) for role in found.roles]) == (5, [("a", 2), ("b", 3)])
    lone = gang_of(bound("", name="a+b"))
    assert lone is not None
    assert lone.key == "team/a%2Bb (koordinator)"


def test_parts_that_cross_are_refused() -> None:
    pods = [
        pod("a", **{f"{OWN}-role": "r", f"{OWN}-role-topology": "rack"}),
        pod("b", **{f"{OWN}-role": "r", PODSET + "required-topology": "rack"}),
        pod("c", **{PODSET + "required-topology": "rack"}),
        pod("d"),
    ]
    (problem,) = terms(*pods).problems
    assert "share some of their pods and not all" in problem
