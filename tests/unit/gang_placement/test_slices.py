"""Slices and levels of the cluster's own: the racks of GB200, what a lost tray's replacement gets, names that
repeat."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

from koordra.placement.gang import (
    Fixed,
    GangAnswer,
    GangPlaced,
    GangRequest,
    GangUnsatisfiable,
    NewMember,
    Part,
    Slices,
    place_gang,
)
from koordra.topology.network_topology import DISCOVERED, Level, Levels
from tests.fakes.gang_engine import gang_engine, member
from tests.unit.allocator.machines import claim, device_classes, gpu, node, place, pod, request, slice_of

RACK = "nvidia.com/gpu.clique"


def racks(trays: int = 18, count: int = 2) -> dict[str, dict[str, str]]:
    return {f"r{rack}-t{at:02}": {RACK: f"cluster.{rack}"} for rack in range(count) for at in range(trays)}


def placed(
    nodes: Mapping[str, Mapping[str, str]],
    new: Iterable[int],
    *,
    fixed: Mapping[int, str] | None = None,
    least: int | None = None,
    slices: tuple[Slices, ...] = (),
    numbered: bool = True,
    levels: Levels = DISCOVERED,
    **asked: Any,
) -> GangAnswer:
    """Members of four GPUs each, numbered; those of `fixed` have all of their nodes."""
    found: list[dict[str, Any]] = [*device_classes()]
    stay = fixed or {}
    for name, labels in nodes.items():
        gpus = [] if name in stay.values() else [gpu(at, place=place(at)) for at in range(4)]
        found += [node(name, labels=dict(labels)), slice_of(gpus, name=name)]
    members: list[NewMember] = []
    for number in new:
        key = f"w{number}"
        members.append(member(key, [pod(key, key)], [claim(key, request("gpu", "gpu", 4))], index=number))
    keys = {
        f"w{number}": number if numbered else None for number in (*stay, *(one.index or 0 for one in members))
    }
    parts = (Part("train", keys, slices=slices),) if slices else ()
    gang = GangRequest(
        "train",
        members,
        len(members) + len(stay) if least is None else least,
        fixed=[Fixed(f"w{number}", at, index=number) for number, at in stay.items()],
        parts=parts,
        levels=levels,
        **asked,
    )
    return place_gang(gang, gang_engine(found))


def by(answer: GangAnswer, level: str) -> Counter[str]:
    assert isinstance(answer, GangPlaced)
    assert answer.proven
    return Counter(one.domains[level] for one in answer.members)


SIXTEEN = (Slices(16, "nvlink"),)


def test_32_trays_fill_one_rack_first_and_with_slices_of_16_take_16_of_each() -> None:
    assert sorted(by(placed(racks(), range(32)), "nvlink").values()) == [14, 18]
    answer = placed(racks(), range(32), slices=SIXTEEN)
    assert sorted(by(answer, "nvlink").values()) == [16, 16]
    assert isinstance(answer, GangPlaced)
    slices = [{one.domains["nvlink"] for one in answer.members if one.rank // 16 == at} for at in range(2)]
    assert [len(one) for one in slices] == [1, 1]


def test_what_no_rack_has_room_for_is_refused_with_the_slice_and_the_level() -> None:
    answer = placed(racks(trays=15), range(16), slices=SIXTEEN)
    assert isinstance(answer, GangUnsatisfiable)
    assert answer.most == 0


def test_where_slices_are_only_preferred_as_many_as_can_be_are_whole() -> None:
    answer = placed(racks(trays=6, count=3), range(16), slices=(Slices(4, preferred="nvlink"),))
    assert isinstance(answer, GangPlaced)
    assert answer.score.cut == (("nvlink", 4),)
    homes = [{one.domains["nvlink"] for one in answer.members if one.rank // 4 == at} for at in range(4)]
    assert sorted(map(len, homes)) == [1, 1, 1, 2]


def test_who_is_in_a_whole_slice_goes_where_one_fits_whatever_comes_first_in_the_fabric() -> None:
    nodes = {
        f"r{rack}-{at}": {RACK: f"cluster.{rack}"}
        for rack, trays in enumerate((3, 4, 1))
        for at in range(trays)
    }
    answer = placed(nodes, range(8), slices=(Slices(4, preferred="nvlink"),))
    assert isinstance(answer, GangPlaced)
    assert answer.score.cut == (("nvlink", 4),)
    homes = [{one.domains["nvlink"] for one in answer.members if one.rank // 4 == at} for at in range(2)]
    assert homes == [{"cluster.0", "cluster.2"}, {"cluster.1"}]


def test_a_lost_trays_replacement_gets_a_place_in_its_slices_rack_or_none() -> None:
    for numbered in (True, False):
        nodes = racks()
        trays = sorted(nodes)
        stay = {number: trays[number if number < 16 else number + 2] for number in range(32) if number != 20}
        answer = placed(nodes, [20], fixed=stay, slices=SIXTEEN, numbered=numbered)
        assert by(answer, "nvlink") == {"cluster.1": 1}
        gone = {name: labels for name, labels in nodes.items() if name in stay.values()}
        gone["r0-t17"] = nodes["r0-t17"]
        refused = placed(gone, [20], fixed=stay, slices=SIXTEEN, numbered=numbered)
        assert isinstance(refused, GangUnsatisfiable)
        assert "slice 1 of train is in nvlink cluster.1" in str(refused.reasons["w20"])


def test_a_slice_that_is_not_complete_waits_and_says_so() -> None:
    answer = placed(racks(), range(18), least=16, slices=SIXTEEN)
    assert isinstance(answer, GangPlaced)
    assert answer.left == ("w16", "w17")
    alone = placed(racks(), range(15), least=1, slices=SIXTEEN)
    assert isinstance(alone, GangUnsatisfiable)
    assert "slice 0 of train lacks 1 of 16 members" in str(alone.reasons["w0"])


OWN = Levels((Level("hall", ("dc/hall",)), Level("row", ("dc/row",)), Level("rack", ("dc/rack",))), "written")


def test_three_layers_of_slices_on_labels_of_ones_own() -> None:
    nodes = {
        f"{hall}-{row}-{rack}-{at}": {"dc/hall": hall, "dc/row": row, "dc/rack": rack}
        for hall in "ab"
        for row in "12"
        for rack in "xyz"
        for at in range(3)
    }
    layers = (Slices(8, "hall"), Slices(4, "dc/row"), Slices(2, "rack"))
    answer = placed(nodes, range(16), slices=layers, levels=OWN)
    assert isinstance(answer, GangPlaced)
    for size, levels in ((8, ("hall",)), (4, ("hall", "row")), (2, ("hall", "row", "rack"))):
        for first in range(0, 16, size):
            own = [one for one in answer.members if first <= one.rank < first + size]
            assert len({tuple(one.domains[level] for level in levels) for one in own}) == 1


def test_a_rack_is_a_rack_of_its_row_and_the_wish_comes_beside_the_demand() -> None:
    nodes = {
        f"{row}-{rack}-{at}": {"dc/row": row, "dc/rack": rack}
        for row, racks_of in (("1", "xy"), ("2", "x"))
        for rack in racks_of
        for at in range(2 if row == "1" else 3)
    }
    assert isinstance(placed(nodes, range(4), required="rack", levels=OWN), GangUnsatisfiable)
    row = placed(nodes, range(4), required="row", preferred="rack", levels=OWN)
    assert by(row, "row") == {"1": 4}
    assert by(row, "rack") == {"x": 2, "y": 2}
    assert by(placed(nodes, range(3), required="row", preferred="rack", levels=OWN), "rack") == {"x": 3}
