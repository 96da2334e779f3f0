"""A claim that has a share by MPS has no other card: the allocator finds devices exactly where trying
everything finds some, and Prepare takes what it finds."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from itertools import combinations, product
from pathlib import Path
from typing import Any

import pytest
from hypothesis import event, example, given
from hypothesis import strategies as st

from koordra.api.opaque.parameters import GpuConfig
from koordra.kubelet_plugin.isolation.backend import Card, Share
from koordra.kubelet_plugin.isolation.mps.backend import MpsIsolation
from koordra.kubelet_plugin.nvidia_driver.card_settings import CardSettings
from koordra.kubelet_plugin.nvidia_driver.driver_programs import DriverPrograms
from koordra.placement import plan
from tests.long import examples
from tests.unit.allocator import machines

Dict = dict[str, Any]
CARDS = {
    "limiter": {"isolationNone": False, "isolationLimiter": True},
    "mps": {"isolationNone": False, "isolationMps": True},
}
ROOM = 80

Asked = tuple[int, int, str]
"""Devices (0: all), Gi of memory, isolation."""
Taken = list[tuple[int, int, str]]
"""Of each device of a claim: the card, the memory, what keeps it."""

asked = st.tuples(
    st.sampled_from([1, 1, 1, 2, 0]), st.sampled_from([20, 40, 60, 80]), st.sampled_from(["", "mps", "Auto"])
)
claims = st.lists(st.lists(asked, min_size=1, max_size=3), min_size=1, max_size=2)
nodes = st.lists(st.sampled_from(sorted(CARDS)), min_size=1, max_size=4)


def word_on(kind: str, memory: int, said: str) -> str | None:
    """What keeps it there; None where it may not be there."""
    if memory == ROOM and said in ("", "Auto"):
        return "none"
    word = kind if said in ("", "Auto") else said
    return word if word == kind else None


def ways(kinds: list[str], requests: list[Asked]) -> Iterator[Taken]:
    """Every way to give a claim its cards, whatever others have."""
    each = []
    for count, memory, said in requests:
        words = {card: word for card, kind in enumerate(kinds) if (word := word_on(kind, memory, said))}
        # All devices of the class that could hold the amount: one that may not be had is in the way.
        sets = [tuple(range(len(kinds)))] if count == 0 else combinations(range(len(kinds)), count)
        each.append(
            [[(card, memory, words[card]) for card in cards] for cards in sets if words.keys() >= set(cards)]
        )
    for chosen in product(*each):
        taken = [one for of_request in chosen for one in of_request]
        cards = {card for card, _, _ in taken}
        if len(cards) == 1 or all(word != "mps" for _, _, word in taken):
            yield taken


def fits(kinds: list[str], asking: list[list[Asked]]) -> bool:
    for chosen in product(*(list(ways(kinds, requests)) for requests in asking)):
        used = Counter[int]()
        for card, memory, _ in (one for taken in chosen for one in taken):
            used[card] += memory
        if max(used.values()) <= ROOM:
            return True
    return False


def claim(name: str, requests: list[Asked]) -> Dict:
    bodies, configs = [], []
    for at, (count, memory, said) in enumerate(requests):
        amount = {"memory": f"{memory}Gi"}
        body = machines.request(f"r{at}", count=count, capacity=amount)
        if count == 0:
            del body["exactly"]["count"]
            body["exactly"]["allocationMode"] = "All"
        bodies.append(body)
        if said:
            configs.append(machines.config("GpuConfig", requests=[f"r{at}"], isolation=said))
    return machines.claim(name, *bodies, configs=configs)


def cluster(kinds: list[str]) -> list[Dict]:
    devices = [machines.gpu(n, place=machines.place(n), **CARDS[kind]) for n, kind in enumerate(kinds)]
    return [*machines.device_classes(), machines.node(), machines.slice_of(devices)]


def prepare_takes(kinds: list[str], requests: list[Asked], results: list[Dict]) -> bool:
    programs = DriverPrograms(lambda *_, **__: [])
    rule = MpsIsolation(Path("/nowhere"), programs, CardSettings(programs))
    cards = tuple(dict.fromkeys(result["device"] for result in results))
    for result in results:
        _, memory, said = requests[int(result["request"].removeprefix("r"))]
        card = result["device"]
        if word_on(kinds[int(card.removeprefix("gpu-"))], memory, said) == "mps":
            share = Share("c", 0, card, f"GPU-{card}", memory << 30, None, namespace="default", cards=cards)
            if rule.fits(share, GpuConfig(), Card(card, share.uuid, (share,))) is not None:
                return False
    return True


@examples(250)
@given(nodes, claims)
@example(
    ["mps", "limiter", "limiter"], [[(1, 60, ""), (1, 60, "")]]
)  # cards of which one is by MPS are not alike
@example(["mps", "mps"], [[(1, 20, "")], [(1, 20, ""), (1, 60, "")]])  # nor are those of two claims
def test_a_claim_by_mps_has_one_card(kinds: list[str], asking: list[list[Asked]]) -> None:
    """Claims of one pod."""
    found = [claim(f"c{at}", requests) for at, requests in enumerate(asking)]
    pod = machines.pod("p", *(one["metadata"]["name"] for one in found))
    answer = plan([*cluster(kinds), *found, pod])
    possible = fits(kinds, asking)
    assert (len(answer.allocations) == len(found)) is possible, answer.unsatisfiable
    event("placed" if possible else "waits")
    for at, requests in enumerate(asking) if possible else ():
        results = answer.allocations[f"default/c{at}"]["devices"]["results"]
        assert prepare_takes(kinds, requests, results)


ONE_BY_ONE = [(1, 60, "mps"), (1, 60, "mps")]


@pytest.mark.parametrize(
    "requests", [[(2, 20, "mps")], [(0, 20, "mps")], ONE_BY_ONE, [(2, 20, "")], [(2, 20, "Auto")]]
)
def test_it_is_told_why_several_cards_cannot_be_had(requests: list[Asked]) -> None:
    found = plan([*cluster(["mps", "mps"]), claim("c", requests)])
    (told,) = [one for one in found.unsatisfiable["default/c"] if one.reason == "BackendUnavailable"]
    assert told.detail == (
        "isolation mps: the shares of a claim would be of several cards, and a process is the client of one MPS daemon, which is one "
        "card's; make a claim for each card, for containers of their own, or ask for whole cards"
    )
