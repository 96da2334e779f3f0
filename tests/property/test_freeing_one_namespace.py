"""`koordra plan --defragment` moves nobody beside claims of another namespace on a card by MPS."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from itertools import product
from typing import Any

from hypothesis import event, example, given
from hypothesis import strategies as st

from koordra.placement.defragment.cluster import free, shape_of
from tests.long import examples
from tests.property.test_one_namespace import LIMITED, MPS, ROOM, SHARED, asking
from tests.unit.allocator import machines

Dict = dict[str, Any]
KINDS: Mapping[str, Dict] = {"limiter": LIMITED, "mps": MPS, "shared": SHARED}

Claim = tuple[str, int]
"""Its namespace, and Gi."""
Card = tuple[str, list[Claim]]
one_claim = st.tuples(st.sampled_from(["default", "team-a", "team-b"]), st.sampled_from([10, 20, 40, 80]))
one_card = st.tuples(st.sampled_from(["limiter", "mps", "mps", "shared"]), st.lists(one_claim, max_size=2))


def may_be(kind: str, claims: list[Claim]) -> bool:
    """A whole card is no share, and alone."""
    apart = len({namespace for namespace, _ in claims}) > 1
    return sum(memory for _, memory in claims) <= ROOM and not (kind == "mps" and apart)


one_node = st.lists(one_card.filter(lambda card: may_be(*card)), min_size=1, max_size=2)
nodes = st.lists(one_node, min_size=2, max_size=3)


def cluster(given_nodes: list[list[Card]]) -> tuple[list[Dict], dict[str, tuple[str, int, Claim]]]:
    """The objects; and of each pod its node, card and claim."""
    made, where = [*machines.device_classes()], dict[str, tuple[str, int, Claim]]()
    for at, cards in enumerate(given_nodes):
        name = f"node-{at}"
        devices = [
            machines.gpu(card, place=machines.place(card), **KINDS[kind])
            for card, (kind, _) in enumerate(cards)
        ]
        made += [machines.node(name), machines.slice_of(devices, name=name)]
        for card, number, (namespace, memory) in _claims(cards):
            own = f"c{at}-{card}-{number}"
            result = {"request": "gpu", "driver": "koordra.io", "pool": name, "device": f"gpu-{card}"}
            result |= {"shareID": own, "consumedCapacity": {"memory": f"{memory}Gi", "slots": "1"}}
            claim = machines.allocated(asking(own, namespace, memory), {"devices": {"results": [result]}})
            made += [claim, machines.pod(own, own, namespace=namespace, nodeName=name)]
            where[f"{namespace}/{own}"] = name, card, (namespace, memory)
    return made, where


def _claims(cards: list[Card]) -> Iterator[tuple[int, int, Claim]]:
    for card, (_, claims) in enumerate(cards):
        for number, claim in enumerate(claims):
            yield card, number, claim


@examples(250)
@given(nodes, st.integers(1, 2))
@example(
    [[("shared", [("team-a", 20)]), ("shared", [("default", 10)])], [("mps", []), ("mps", [("team-b", 80)])]],
    2,
)
def test_what_moves_is_beside_its_own(given_nodes: list[list[Card]], gpus: int) -> None:
    made, where = cluster(given_nodes)
    found = free(made, shape_of(f"gpus={gpus},nics=0,scope=Node"))
    event("freed" if found["freed"] else "not freed")
    if not found["freed"]:
        return
    event(f"{len(found['moves'])} moves")
    coming = defaultdict[str, list[Claim]](list)
    for move in found["moves"]:
        node, _, claim = where.pop(move["pod"])
        assert node == move["from"]
        coming[move["to"]].append(claim)
    freed = {(found["freed"]["node"], device) for device in found["freed"]["devices"]}
    for at, cards in enumerate(given_nodes):
        name = f"node-{at}"
        stay = [
            [claim for node, its, claim in where.values() if (node, its) == (name, card)]
            for card in range(len(cards))
        ]
        usable = [card for card in range(len(cards)) if (name, f"gpu-{card}") not in freed]
        assert all(not stay[card] for card in range(len(cards)) if card not in usable)
        assert any(
            all(
                may_be(
                    cards[card][0],
                    stay[card] + [one for one, its in zip(coming[name], to, strict=True) if its == card],
                )
                for card in usable
            )
            for to in product(usable, repeat=len(coming[name]))
        ), (name, found)


def test_two_of_one_namespace_move_to_one_card() -> None:
    """Of who moves first its namespace is known to who moves next."""
    first, second = [("team-a", 10), ("team-a", 10)], [("team-a", 20), ("team-a", 20)]
    made, _ = cluster([[("mps", first)], [("mps", second)]])
    moves = free(made, shape_of("gpus=1,nics=0,scope=Node"))["moves"]
    assert [(move["from"], move["to"]) for move in moves] == [("node-0", "node-1")] * 2
