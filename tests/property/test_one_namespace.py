"""A card by MPS is for claims of one namespace: whatever comes and goes in whatever order, the allocator
places no claim where Prepare would refuse it for its neighbours, and leaves none waiting for which a card is
free."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import event, given
from hypothesis import strategies as st

from koordra.allocator.features import Features
from koordra.allocator.offer import Offer
from koordra.allocator.score import policy_of
from koordra.api import objects
from koordra.api.allocation import Allocation
from koordra.api.claims import ResourceClaim
from koordra.api.opaque.parameters import GpuConfig
from koordra.kubelet_plugin.isolation.backend import Card, Share
from koordra.kubelet_plugin.isolation.mps.backend import MpsIsolation
from koordra.kubelet_plugin.nvidia_driver.card_settings import CardSettings
from koordra.kubelet_plugin.nvidia_driver.driver_programs import DriverPrograms
from koordra.placement import plan
from koordra.placement.decide import Engine
from koordra.placement.gang.place import place_gang
from koordra.placement.gang.types import GangPlaced, GangRequest, NewMember
from koordra.placement.index import CLAIM, CLASS, NODE, SLICE, ClusterChange
from koordra.placement.request.claim_groups import ClaimGroup
from tests.long import examples
from tests.unit.allocator import machines

Dict = dict[str, Any]
LIMITED = {"isolationNone": False, "isolationLimiter": True}
MPS = {"isolationNone": False, "isolationMps": True}
SHARED = {**MPS, "mpsShared": True}
ROOM = 80

kinds = st.sampled_from([LIMITED, MPS, MPS, SHARED])
published = st.lists(st.lists(kinds, min_size=1, max_size=3), min_size=1, max_size=2)
namespaces = st.sampled_from(["team-a", "team-b", "team-c"])
steps = st.lists(
    st.one_of(
        st.tuples(
            st.just("ask"),
            namespaces,
            st.sampled_from([10, 30, 40, 80]),
            st.sampled_from(["", "mps", "Auto"]),
        ),
        st.tuples(st.just("gang"), namespaces, st.sampled_from([20, 40]), st.integers(2, 3)),
        st.tuples(st.just("free"), st.integers(0, 7)),
        st.tuples(st.just("publish"), st.integers(0, 1), st.lists(kinds, min_size=1, max_size=3)),
    ),
    min_size=2,
    max_size=14,
)


def prepares_rule(*, shared: bool) -> MpsIsolation:
    programs = DriverPrograms(lambda *_, **__: [])
    return MpsIsolation(Path("/nowhere"), programs, CardSettings(programs), shared=shared)


def share(key: str, card: str) -> Share:
    namespace = key.partition("/")[0]
    return Share(key, 0, card, f"GPU-{card}", 1, None, namespace=namespace, cards=(card,))


class World:
    """The cluster twice: in the engine, and as amounts by card that are counted here."""

    def __init__(self, published: list[list[Dict]]) -> None:
        self.engine = Engine(policy_of("koordra"), Features.of(None))
        self.cards: dict[tuple[str, str], Dict] = {}
        self.held: dict[str, dict[tuple[str, str], int]] = {}
        for one in machines.device_classes():
            self.engine.index.apply(ClusterChange(CLASS, objects.name(one), one))
        for at, cards in enumerate(published):
            self.engine.index.apply(ClusterChange(NODE, f"node-{at}", machines.node(f"node-{at}")))
            self.publish(at, cards)

    def publish(self, at: int, cards: list[Dict]) -> None:
        name = f"node-{at}"
        devices = [machines.gpu(n, place=machines.place(n), **kind) for n, kind in enumerate(cards)]
        one = machines.slice_of(devices, name=name)
        self.engine.index.apply(ClusterChange(SLICE, objects.name(one), one))
        self.cards = {card: kind for card, kind in self.cards.items() if card[0] != name}
        self.cards |= {(name, f"gpu-{n}"): kind for n, kind in enumerate(cards)}

    def on(self, card: tuple[str, str]) -> dict[str, int]:
        return {key: taken[card] for key, taken in self.held.items() if card in taken}

    def serves(self, card: tuple[str, str], namespace: str, memory: int, word: str) -> bool:
        kind, there = self.cards[card], self.on(card)
        if memory + sum(there.values()) > ROOM:
            return False
        if memory == ROOM and word != "mps":
            return True
        if word == "mps" and "isolationMps" not in kind:
            return False
        strangers = {key.partition("/")[0] for key in there} - {namespace}
        return kind is not MPS or not strangers

    def take(self, key: str, claim: Dict, allocation: Mapping[str, Any], word: str) -> None:
        found = Allocation.of_claim({**claim, "status": {"allocation": dict(allocation)}})
        assert found is not None
        (result,) = found.results
        card = (result.device.pool, result.device.device)
        memory = int(result.consumed["memory"]) >> 30
        assert memory + sum(self.on(card).values()) <= ROOM
        kind = self.cards[card]
        if kind is not LIMITED and (memory < ROOM or word == "mps"):
            mine, others = share(key, card[1]), [share(other, card[1]) for other in self.on(card)]
            on_card = Card(card[1], mine.uuid, (*others, mine))
            rule = prepares_rule(shared=kind is SHARED)
            assert rule.fits(mine, GpuConfig(), on_card) is None, (key, self.on(card))
        self.held.setdefault(key, {})[card] = memory
        self.engine.index.apply(ClusterChange(CLAIM, key, machines.allocated(claim, allocation)))

    def free(self, number: int) -> None:
        if self.held:
            key = sorted(self.held)[number % len(self.held)]
            del self.held[key]
            self.engine.index.apply(ClusterChange(CLAIM, key, None))


def asking(name: str, namespace: str, memory: int, word: str = "") -> Dict:
    wanted = machines.request("gpu", capacity={"memory": f"{memory}Gi"})
    configs = [machines.config("GpuConfig", isolation=word)] if word else []
    return machines.claim(name, wanted, namespace=namespace, configs=configs)


@examples(120)
@given(published, steps)
def test_allocator_and_prepare_say_the_same_of_neighbours(
    published: list[list[Dict]], steps: list[tuple[Any, ...]]
) -> None:
    world = World(published)
    for number, (name, *arguments) in enumerate(steps):
        if name == "publish":
            if arguments[0] < len(published) and not any(
                card[0] == f"node-{arguments[0]}" for taken in world.held.values() for card in taken
            ):
                world.publish(*arguments)
        elif name == "free":
            world.free(*arguments)
        elif name == "ask":
            namespace, memory, word = arguments
            claim = asking(f"c{number}", namespace, memory, word)
            decided = world.engine.decide(ClaimGroup((ResourceClaim.from_dict(claim),)))
            possible = any(world.serves(card, namespace, memory, word) for card in world.cards)
            assert isinstance(decided, Offer) is possible, (arguments, world.held)
            event("placed" if possible else "waits")
            if isinstance(decided, Offer):
                (allocation,) = decided.allocations(pin_to_node=True)
                world.take(f"{namespace}/c{number}", claim, allocation.to_dict(), word)
        else:
            gang(world, number, *arguments)


def gang(world: World, number: int, namespace: str, memory: int, count: int) -> None:
    claims = {f"{namespace}/c{number}-{n}": asking(f"c{number}-{n}", namespace, memory) for n in range(count)}
    members = tuple(
        NewMember(key, ClaimGroup((ResourceClaim.from_dict(claim),))) for key, claim in claims.items()
    )
    answer = place_gang(GangRequest(f"{namespace}/g{number}", members, count), world.engine)
    # By counting: the members are alike, and a card that may have one of them has as many as there is room.
    room = sum(
        (ROOM - sum(world.on(card).values())) // memory
        for card in world.cards
        if world.serves(card, namespace, memory, "")
    )
    assert isinstance(answer, GangPlaced) is (room >= count), (namespace, memory, count, world.held)
    event("gang placed" if room >= count else "gang waits")
    for one in answer.members if isinstance(answer, GangPlaced) else ():
        for key, allocation in one.allocations.items():
            world.take(key, claims[key], allocation, "")


@pytest.mark.parametrize("word", ["", "mps", "Auto"])
def test_why_it_waits_is_told_with_the_namespaces(word: str) -> None:
    others = []
    for n, namespace in enumerate(("team-b", "team-c")):
        one = asking(f"c{n}", namespace, 10)
        result = {
            "request": "gpu",
            "driver": "koordra.io",
            "pool": "node-0",
            "device": f"gpu-{n}",
            "shareID": f"s{n}",
            "consumedCapacity": {"memory": "10Gi", "slots": "1"},
        }
        others.append(machines.allocated(one, {"devices": {"results": [result]}}))
    devices = [machines.gpu(n, place=machines.place(n), **MPS) for n in range(2)]
    cluster = [*machines.device_classes(), machines.node("node-0"), machines.slice_of(devices, name="node-0")]
    found = plan([*cluster, *others, asking("c", "team-a", 10, word)])
    (told,) = [str(reason) for reason in found.unsatisfiable["team-a/c"] if reason.device]
    assert told == (
        "node-0 (2 devices) (request gpu): AlreadyAllocated: isolation mps: a fault of one client ends all of its card, so a card is "
        "for claims of one namespace, where its node's plugin has no --mps-shared; this one has claims of team-b, team-c"
    )
    assert plan([*cluster, *others, asking("c", "team-b", 10, word)]).nodes == {"team-b/c": "node-0"}


# --- what is kept of earlier answers ------------------------------------------------------------------------


def asks(world: World, *groups: Any) -> list[bool]:
    return [isinstance(world.engine.decide(group), Offer) for group in groups]


def group_of(namespace: str) -> ClaimGroup:
    return ClaimGroup((ResourceClaim.from_dict(asking("c", namespace, 10)),))


def held(world: World, namespace: str) -> None:
    """The first card has a share of a claim of the namespace alone."""
    for other in ("team-a", "team-b"):
        world.engine.index.apply(ClusterChange(CLAIM, f"{other}/held", None))
    result = {"request": "gpu", "driver": "koordra.io", "pool": "node-0", "device": "gpu-0"}
    result |= {"shareID": "s", "consumedCapacity": {"memory": "10Gi", "slots": "1"}}
    claim = machines.allocated(asking("held", namespace, 10), {"devices": {"results": [result]}})
    world.engine.index.apply(ClusterChange(CLAIM, f"{namespace}/held", claim))


def test_an_answer_holds_for_the_namespace_that_asked() -> None:
    world, groups = World([[MPS]]), [group_of("team-a"), group_of("team-b")]
    held(world, "team-a")
    assert asks(world, *groups, *groups) == [True, False, True, False]


def test_the_same_amounts_of_another_namespace_are_another_state() -> None:
    world, groups = World([[MPS]]), [group_of("team-a"), group_of("team-b")]
    for namespace, answers in (("team-a", [True, False]), ("team-b", [False, True])) * 2:
        held(world, namespace)
        assert asks(world, *groups) == answers


def test_what_was_resolved_before_there_was_such_a_card_is_resolved_again() -> None:
    world = World([[LIMITED]])
    groups = [world.engine.resolve(group_of(namespace)) for namespace in ("team-a", "team-b")]
    held(world, "team-a")
    assert asks(world, *groups) == [True, True]
    world.publish(0, [MPS])
    assert asks(world, *groups) == [True, False]
    world.publish(0, [SHARED])
    assert asks(world, *groups) == [True, True]
    world.publish(0, [MPS])
    assert asks(world, *reversed(groups)) == [False, True]


def test_preemption_and_moves_see_who_would_be_left() -> None:
    """As if a claim were gone: its namespace is, too."""
    world = World([[MPS]])
    held(world, "team-a")
    uid = objects.uid(asking("held", "team-a", 10))
    assert not world.engine.fits(group_of("team-b"), "node-0")
    assert world.engine.fits(group_of("team-b"), "node-0", without=frozenset({uid}))
