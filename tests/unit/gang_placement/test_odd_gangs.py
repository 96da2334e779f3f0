"""Gangs on the edge: nobody to place, ranks that are held, classes that differ in CPU only, hostile names."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from koordra.api.opaque.gang_member import GangMember, decode_gang_member
from koordra.errors import InvalidParameters
from koordra.kubelet_plugin.cdi.device_edits import variables
from koordra.placement.gang import Fixed, GangPlaced, GangRequest, GangUnsatisfiable, gang_members, node_fit
from koordra.placement.gang.node_search import NodeSearch
from koordra.placement.index import NodeInfo
from tests.fakes import gang_engine
from tests.unit.allocator.machines import claim, pod, request
from tests.unit.gang_placement.clusters import answered, cluster, placed, workers


def test_a_gang_of_which_all_are_placed_asks_for_nothing() -> None:
    answer = answered(cluster(a=2), GangRequest("g", [], 1, fixed=(Fixed("f", "a-0", rank=0),)))
    assert isinstance(answer, GangPlaced)
    assert (answer.members, answer.size) == ((), 1)


def test_a_gang_without_anybody_and_with_a_minimum_does_not_fit() -> None:
    answer = answered(cluster(a=2), GangRequest("g", [], 2, fixed=(Fixed("f", "a-0", rank=0),)))
    assert isinstance(answer, GangUnsatisfiable)
    assert answer.most == 1


def test_no_new_member_gets_the_rank_of_one_that_stays() -> None:
    stays = Fixed("f", "a-0", rank=1, index=0)
    answer = placed(cluster(a=2, b=2), GangRequest("g", workers(3, 8)[1:], 3, fixed=(stays,)))
    assert sorted(one.rank for one in answer.members) == [0, 2]


def test_classes_that_ask_the_same_of_devices_are_one_question(monkeypatch: pytest.MonkeyPatch) -> None:
    """However they differ in CPU, so many members are asked for once."""
    searched: list[int] = []
    search = NodeSearch.search

    def counted(self: NodeSearch, info: NodeInfo, alike: Any, rails: Any) -> Any:
        searched.append(sum(len(own) for _, own in alike))
        return search(self, info, alike, rails)

    monkeypatch.setattr(NodeSearch, "search", counted)
    monkeypatch.setattr(node_fit, "table_of", lambda *_, **__: None)
    members = workers(8, 1)
    for number, member in enumerate(members):
        spec: Any = member.group.pods[0]["spec"]
        spec["containers"] = [{"name": "c", "resources": {"requests": {"cpu": str(number % 4 + 1)}}}]
    answer = placed(cluster(a=1), GangRequest("g", members, 8))
    devices = [
        result["device"]
        for one in answer.members
        for allocation in one.allocations.values()
        for result in allocation["devices"]["results"]
    ]
    assert len(devices) == len(set(devices)) == 16
    assert sorted(searched) == list(range(1, 9))


@pytest.mark.parametrize(
    "host", ["a\nb", "a,evil", "a:8", "", "a b", "-a", "x\u2028y", "$(reboot)", "a" * 300]
)
def test_a_hostile_host_is_refused(host: str) -> None:
    entry = GangMember("g", 0, 1, hosts=(host,), slots=(8,)).to_dict()
    with pytest.raises(InvalidParameters):
        decode_gang_member(entry, object="claim", field="f")


def test_slots_below_nothing_are_refused() -> None:
    entry = GangMember("g", 0, 1, hosts=("a",), slots=(-1,)).to_dict()
    with pytest.raises(InvalidParameters):
        decode_gang_member(entry, object="claim", field="f")


def test_a_level_named_like_a_variable_does_not_replace_it() -> None:
    member = GangMember(
        "g", 3, 4, domains={"hosts": "evil", "rank": "9", "block": "b"}, hosts=("a",), slots=(8,)
    )
    found = variables(member, "uid")
    names = [name for name, _ in found]
    assert len(names) == len(set(names))
    assert dict(found)["KOORDRA_RANK"] == "3"
    assert dict(found)["KOORDRA_HOSTS"] == "a:8"
    assert dict(found)["KOORDRA_BLOCK"] == "b"


def test_of_five_thousand_members_hosts_are_left_out_and_ranks_are_not() -> None:
    hosts = tuple(f"worker-{number}.job" for number in range(5000))
    entry = GangMember("g", 4999, 5000, leader=hosts[0], hosts=hosts, slots=(8,) * 5000).to_dict()
    read = decode_gang_member(entry, object="claim", field="f")
    assert (read.rank, read.size, read.hosts, read.leader) == (4999, 5000, (), "worker-0.job")


def test_hosts_beside_a_lost_member_are_told_with_their_ranks() -> None:
    """Rank 1 is lost; rank 3 is placed meanwhile."""
    stay = tuple(Fixed(f"default/f{rank}", f"a-{rank}", rank=rank, index=rank) for rank in (0, 2))
    member = replace(workers(4, 8)[3], index=3, rank=3)
    answer = placed(cluster(a=4), GangRequest("g", [member], 3, fixed=stay))
    told = [one["opaque"]["parameters"] for one in gang_members("g", answer, fixed=stay).values()]
    assert [(one["rank"], one["hostRanks"], len(one["hosts"])) for one in told] == [(3, [0, 2, 3], 3)]
    whole = placed(cluster(a=4), GangRequest("g", workers(4, 8), 4))
    assert not any("hostRanks" in one["opaque"]["parameters"] for one in gang_members("g", whole).values())


def test_pods_of_a_later_wave_take_the_ranks_of_those_that_ended() -> None:
    """An Indexed Job of 8 completions, 4 at a time: index 0 has ended, index 4 comes."""
    stay = tuple(Fixed(f"default/f{index}", "a-0", rank=index, index=index) for index in (1, 2, 3))
    member = replace(workers(5, 2)[4], index=4)
    answer = placed(cluster(a=2), GangRequest("g", [member], 4, fixed=stay))
    assert [one.rank for one in answer.members] == [0]
    assert answer.size == 4


def everybodys(kind: str) -> list[dict[str, Any]]:
    """A class, and two devices of it that are on no node. Of the others its selector says no and is no
    error: else no node would have a table of it (member_device_sets)."""
    chosen = '"far" in device.attributes["koordra.io"]'
    attributes = {"koordra.io/type": {"string": kind}, "koordra.io/far": {"bool": True}}
    return [
        {
            "apiVersion": "resource.k8s.io/v1",
            "kind": "DeviceClass",
            "metadata": {"name": "far"},
            "spec": {"selectors": [{"cel": {"expression": chosen}}]},
        },
        {
            "apiVersion": "resource.k8s.io/v1",
            "kind": "ResourceSlice",
            "metadata": {"name": "far"},
            "spec": {
                "driver": "koordra.io",
                "allNodes": True,
                "pool": {"name": "isolation/far", "generation": 1, "resourceSliceCount": 1},
                "devices": [{"name": f"far-{at}", "attributes": attributes} for at in range(2)],
            },
        },
    ]


@pytest.mark.parametrize("kind", ["remote-gpu", "gpu"])
def test_devices_that_are_on_no_node_are_given_to_no_member_and_keep_nobody_away(kind: str) -> None:
    """Each node would give the same ones to its members."""
    objects = [*cluster(a=2), *everybodys(kind)]
    asked = request("far")
    asked["exactly"]["deviceClassName"] = "far"
    members = [
        gang_engine.member(f"default/w{at}", [pod(f"w{at}", f"w{at}")], [claim(f"w{at}", asked)], index=at)
        for at in range(2)
    ]
    answer = answered(objects, GangRequest("g", members, 2))
    assert isinstance(answer, GangUnsatisfiable)
    assert answer.most == 0
    gang = GangRequest("g", workers(2, 8), 2)
    beside, alone = (
        placed(all_of, gang) for all_of in ([*cluster(a=2), *everybodys("remote-gpu")], cluster(a=2))
    )
    assert beside.members == alone.members
    assert beside.score == alone.score
