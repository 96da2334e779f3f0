"""Which nodes' cards would have to be cut for a gang that fits nowhere as they are."""

from __future__ import annotations

import pytest

from koordra.allocator.features import Features
from koordra.allocator.score import policy_of
from koordra.api import objects
from koordra.api.claims import ResourceClaim
from koordra.placement.decide import Engine
from koordra.placement.gang.place import place_gang
from koordra.placement.gang.types import GangPlaced, GangRequest, NewMember
from koordra.placement.index import CLASS, NODE, SLICE, ClusterChange
from koordra.placement.mig.mode_switch import ModeSwitch, gang_switches
from koordra.placement.request.claim_groups import ClaimGroup
from tests.unit.allocator.machines import (
    claim,
    counters_of,
    cut_card,
    device_classes,
    node,
    place,
    request,
    slice_of,
)

NODES = 5
NEEDED = {"key": "koordra.io/mig-mode", "value": "needed", "effect": "NoSchedule"}


@pytest.fixture
def engine() -> Engine:
    """Each node has one card, which would have one large instance if it were cut."""
    found = Engine(policy_of("koordra"), Features.of(None))
    for one in device_classes():
        found.index.apply(ClusterChange(CLASS, objects.name(one), one))
    for number in range(NODES):
        name = f"node-{number}"
        parts, counters = cut_card(0, [("7g.80gb", 0, 8, 7)], slices=8, compute=7, place=place(0))
        for part in parts:
            part["taints"] = [*part.get("taints", ()), NEEDED]
            part["attributes"]["parent"] = {"string": "gpu-0"}
        both = slice_of(parts, name=name), counters_of([counters], name=name)
        for one in both:
            one["spec"]["pool"] = {"name": name, "generation": 1, "resourceSliceCount": 2}
            found.index.apply(ClusterChange(SLICE, objects.name(one), one))
        found.index.apply(ClusterChange(NODE, name, node(name)))
    return found


def asked(members: int) -> GangRequest:
    groups = [
        ClaimGroup((ResourceClaim.from_dict(claim(f"c{number}", request("gpu", "mig"))),))
        for number in range(members)
    ]
    return GangRequest("g", tuple(NewMember(f"m{n}", group) for n, group in enumerate(groups)), members)


def switches(engine: Engine, members: int, *declined: str) -> tuple[ModeSwitch, ...]:
    gang = asked(members)
    assert not isinstance(place_gang(gang, engine), GangPlaced)
    found = gang_switches(engine, lambda: place_gang(gang, engine), declined)
    assert not isinstance(place_gang(gang, engine), GangPlaced), "nothing of what was tried is left"
    return found


@pytest.mark.parametrize("members", [1, 2, 3, 5])
def test_each_member_gets_a_card_of_its_own_and_no_other_card_is_touched(
    engine: Engine, members: int
) -> None:
    found = switches(engine, members)
    assert len({switch.node for switch in found}) == members
    assert all(switch.cards == {"gpu-0": True} for switch in found)


def test_what_is_declined_is_left_alone_and_what_does_not_do_asks_for_nothing(engine: Engine) -> None:
    assert {switch.node for switch in switches(engine, 2, "node-0", "node-1", "node-2")} == {
        "node-3",
        "node-4",
    }
    assert switches(engine, 3, "node-0", "node-1", "node-2") == ()
    assert switches(engine, NODES + 1) == ()
