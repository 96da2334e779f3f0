"""Gangs on small clusters: packed, aligned, all or none, and why not."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest

from koordra.allocator.reasons import Cause, Reason
from koordra.placement.gang import GangPlaced, GangUndecided, GangUnsatisfiable, NewMember
from koordra.placement.gang import node_search as searching
from koordra.topology.pictures.job import jobs_of, svg, text_tree
from tests.fakes.gang_engine import member
from tests.unit.allocator.machines import allocated, claim, request
from tests.unit.gang_placement.clusters import (
    BLOCK,
    NVLINK,
    SPINE,
    GangRequest,
    answered,
    cluster,
    fixed,
    launcher,
    node_in,
    placed,
    workers,
    written,
)


def nodes_of(answer: GangPlaced) -> list[str]:
    return [one.node for one in answer.members]


def held(node: str, devices: Sequence[str]) -> dict[str, Any]:
    results = [{"request": "r", "driver": "koordra.io", "pool": node, "device": device} for device in devices]
    return allocated(claim(f"held-{node}", request("r")), {"devices": {"results": results}})


def test_a_gang_goes_into_the_smallest_number_of_blocks_and_ranks_follow_the_fabric() -> None:
    answer = placed(cluster(a=2, b=4), GangRequest("job", workers(4, 8), 4))
    assert nodes_of(answer) == ["b-0", "b-1", "b-2", "b-3"]
    assert [one.rank for one in answer.members] == [0, 1, 2, 3]
    assert [one.key for one in answer.members] == [f"default/w{index}" for index in range(4)]
    assert dict(answer.score.domains) == {"block": 1}
    assert answer.proven


def test_members_of_two_nodes_are_on_the_same_rails() -> None:
    """w0 and w1 fit only on nodes where different NICs are in use; what both have free is rails 2 and 3."""
    objects = [
        *cluster(a=2),
        held("a-0", [f"{kind}-{at}" for kind in ("gpu", "nic") for at in (0, 1, 4, 5, 6, 7)]),
        held("a-1", [f"{kind}-{at}" for kind in ("gpu", "nic") for at in (6, 7)]),
    ]
    answer = placed(objects, GangRequest("job", workers(2, 2), 2))
    assert answer.score.nodes == 1  # both fit on a-1
    apart, there = list[NewMember](), list[dict[str, Any]]()
    for at, one in enumerate(workers(2, 2)):
        # Another claim of the pod has its devices on a node, so that the pod has to be there.
        own = held(f"a-{at}", [])
        own["metadata"]["name"] = f"other-{at}"
        named = {"key": "metadata.name", "operator": "In", "values": [f"a-{at}"]}
        own["status"]["allocation"]["nodeSelector"] = {"nodeSelectorTerms": [{"matchFields": [named]}]}
        there.append(own)
        apart.append(replace(one, group=replace(one.group, allocated=(f"default/other-{at}",))))
    answer = placed([*objects, *there], GangRequest("job", apart, 2))
    assert {one.key: one.node for one in answer.members} == {"default/w0": "a-0", "default/w1": "a-1"}
    assert {one.rails for one in answer.members} == {("2", "3")}
    assert answer.score.rails == 2


def test_all_members_or_none_with_how_many_fit() -> None:
    answer = answered(cluster(a=3, b=4), GangRequest("job", workers(8, 8), 8))
    assert isinstance(answer, GangUnsatisfiable)
    assert answer.most == 7
    assert answer.text == "7 of 8 members fit"
    assert answer.reasons["default/w0"][0].reason == Cause.INSUFFICIENT_CAPACITY


def test_a_required_block_is_one_block_and_the_reason_names_it() -> None:
    objects = cluster(a=3, b=4)
    assert set(nodes_of(placed(objects, GangRequest("job", workers(4, 8), 4, required="block")))) == {
        f"b-{at}" for at in range(4)
    }
    answer = answered(objects, GangRequest("job", workers(5, 8), 5, required=BLOCK))
    assert isinstance(answer, GangUnsatisfiable)
    assert answer.most == 4
    assert answer.text == "4 of 5 members fit in one block"
    assert answer.reasons["default/w0"][0].reason == Cause.TOPOLOGY_SCOPE_UNMET


def test_a_level_that_is_not_there_is_told() -> None:
    objects = cluster(a=1)
    nowhere = answered(objects, GangRequest("job", workers(1, 8), 1, required="nvlink"))
    assert isinstance(nowhere, GangUnsatisfiable)
    assert "no node says which nvlink it is in" in nowhere.text
    unknown = answered(objects, GangRequest("job", workers(1, 8), 1, required="rack"))
    assert isinstance(unknown, GangUnsatisfiable)
    assert (
        "rack is no level of the fabric; levels are zone, super-core, core, spine, block, nvlink, nvlink-partition, node"
        in unknown.text
    )


def test_required_node_is_one_node() -> None:
    answer = placed(cluster(a=2), GangRequest("job", workers(4, 2), 4, required="node"))
    assert set(nodes_of(answer)) == {"a-0"}
    assert isinstance(
        answered(cluster(a=2), GangRequest("job", workers(5, 2), 5, required="node")), GangUnsatisfiable
    )


def test_an_elastic_gang_takes_what_there_is_and_grows_beside_its_members() -> None:
    members = workers(4, 8)
    objects = cluster(a=2)
    first = placed(objects, GangRequest("job", members, 2))
    assert first.left == ("default/w2", "default/w3")
    assert first.size == 2
    claims = written(first, members)
    more = [*objects, *node_in("a-2", {BLOCK: "a"}), *node_in("b-0", {BLOCK: "b"}), *claims]
    grown = placed(more, GangRequest("job", members[2:], 3, fixed=fixed(first, claims)))
    assert nodes_of(grown) == ["a-2", "b-0"]
    assert [one.rank for one in grown.members] == [2, 3]
    assert grown.size == 4
    only = placed(more, GangRequest("job", members[2:], 3, fixed=fixed(first, claims), required="block"))
    assert nodes_of(only) == ["a-2"]


def test_one_member_is_planned_again_beside_the_others_and_keeps_off_a_node() -> None:
    members = workers(3, 8)
    objects = cluster(a=4, b=4)
    first = placed(objects, GangRequest("job", members, 3))
    claims = written(first, members)
    stay = [one for one in fixed(first, claims) if one.key != "default/w1"]
    lost = next(one for one in first.members if one.key == "default/w1")
    why = Reason(lost.node, None, None, Cause.NODE_UNSUITABLE.value, "refused by the scheduler")
    again = replace(members[1], excluded={lost.node: why})
    kept = [entry for entry in claims if entry["metadata"]["name"] != "w1"]
    answer = placed([*objects, *kept], GangRequest("job", [again], 3, fixed=tuple(stay), required="block"))
    assert nodes_of(answer) == ["a-3"]
    assert [one.rank for one in answer.members] == [1]


def test_members_that_stay_in_two_blocks_cannot_be_in_one() -> None:
    members = workers(3, 8)
    first = placed(cluster(a=1, b=1), GangRequest("job", members[:2], 2))
    claims = written(first, members)
    answer = answered(
        [*cluster(a=2, b=2), *claims],
        GangRequest("job", members[2:], 3, fixed=fixed(first, claims), required="block"),
    )
    assert isinstance(answer, GangUnsatisfiable)
    assert "members that stay are in several domains of level block: a and b" in answer.text


def test_a_launcher_comes_last_and_stands_with_its_workers() -> None:
    answer = placed(cluster(a=2, b=2), GangRequest("job", [launcher(), *workers(2, 8)], 3))
    assert [one.key for one in answer.members] == ["default/w0", "default/w1", "default/launcher"]
    assert len({one.domains["block"] for one in answer.members}) == 1
    assert answer.score.nodes == 2
    assert answer.members[2].allocations == {}


def test_nvlink_domains_are_kept_whole() -> None:
    """Two racks of four trays: one is in use; a job of two goes there, a job of four gets the whole one."""
    racks = [
        entry
        for rack in ("r0", "r1")
        for at in range(4)
        for entry in node_in(f"{rack}-{at}", {SPINE: "s", NVLINK: rack}, gpus=4)
    ]
    used = [held("r1-0", [f"gpu-{at}" for at in range(4)])]
    assert set(nodes_of(placed([*racks, *used], GangRequest("job", workers(2, 4), 2)))) <= {
        "r1-1",
        "r1-2",
        "r1-3",
    }
    assert {node[:2] for node in nodes_of(placed([*racks, *used], GangRequest("job", workers(4, 4), 4)))} == {
        "r0"
    }


def test_preferred_scopes_climb_only_as_far_as_needed() -> None:
    objects = [
        *cluster(a=1),
        held("a-0", [f"nic-{at}" for at in range(4)] + [f"gpu-{at}" for at in range(4, 8)]),
    ]
    answer = placed(objects, GangRequest("job", workers(2, 2, scope="Preferred"), 2))
    assert answer.score.apart > 0
    assert {level for one in answer.members for level in one.levels.values()} == {"SYS"}


def test_the_order_of_objects_and_members_does_not_matter() -> None:
    objects = [*cluster(a=3, b=3), held("a-1", ["gpu-0"])]
    members = [*workers(5, 4), launcher()]
    first = placed(objects, GangRequest("job", members, 6))
    for seed in range(5):
        draw = random.Random(seed)
        draw.shuffle(objects)
        draw.shuffle(members)
        assert placed(objects, GangRequest("job", members, 6)) == first


def test_what_ran_out_of_budget_is_undecided_and_never_unsatisfiable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(searching, "BUDGET", 1)
    answer = answered(cluster(a=1), GangRequest("job", workers(5, 2), 5))
    assert isinstance(answer, GangUndecided | GangUnsatisfiable)
    if isinstance(answer, GangUnsatisfiable):
        pytest.skip("counting proved it without a search")
    assert answer.reasons["default/w0"][0].reason == Cause.SEARCH_LIMIT


def test_a_claim_that_is_wrong_is_everybodys_reason() -> None:
    members = workers(2, 8)
    wrong = claim("w0", {"name": "gpu", "exactly": {"deviceClassName": "nothing", "count": 8}})
    members[0] = member("default/w0", members[0].group.pods, [wrong], index=0)
    answer = answered(cluster(a=2), GangRequest("job", members, 2))
    assert isinstance(answer, GangUnsatisfiable)
    assert "nothing" in answer.text


def test_the_picture_of_a_job(golden: Callable[[str, str], None]) -> None:
    members = workers(4, 4)
    answer = placed(cluster(a=1, b=1), GangRequest("job", members, 4))
    jobs = jobs_of(written(answer, members, gang="llama"))
    golden("gang_placement/job.txt", "".join(map(text_tree, jobs)))
    golden("gang_placement/job.svg", svg(jobs))
