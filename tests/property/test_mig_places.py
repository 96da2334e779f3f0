"""MIG slices against an oracle that tries everything: no two of a card overlap, nothing that fits is refused,
and what is left is the best that there is, for every sequence of up to seven slices on every card that there
is a table for.

The oracle knows the rules of NVIDIA's MIG User Guide and the tables, and nothing of koordra's counters: two
instances share no memory slice, and together they have no more compute slices and engines than the whole
card's profile, and no profile occurs more often than the table says.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from typing import Any, NamedTuple

import pytest

from koordra.kubelet_plugin.publish.offering import WITHOUT_POLICY
from koordra.kubelet_plugin.publish.resource_slices import build_slices
from koordra.placement import engine_for, plan
from koordra.topology import presets
from koordra.topology.partitions import mig_name
from koordra.topology.presets.mig import cards, mig_profiles
from tests.long import mostly_long
from tests.unit.allocator import machines

Dict = dict[str, Any]
MOST = 7
CARDS = ["A30-24GB", "A100-SXM4-40GB"]
CARDS += sorted(cards().keys() - {*CARDS}) if "KOORDRA_EXAMPLES" in os.environ else []
"""`make soak` tries them all."""
ENGINES = ("compute_slices", "copy_engines", "decoders", "encoders", "jpeg_engines", "ofa_engines")


class Place(NamedTuple):
    profile: str
    start: int
    size: int


Card = frozenset[Place]


class Oracle:
    def __init__(self, card: str) -> None:
        profiles = mig_profiles({"mig_profiles": card})
        self.profiles = {profile.name: profile for profile in profiles}
        self.whole = max(profiles, key=lambda one: (one.placements[0][1], one.multiprocessors))
        self.places = [Place(one.name, *where) for one in profiles for where in one.placements]
        self.slices = max(place.start + place.size for place in self.places)

    def is_legal(self, taken: Card) -> bool:
        used = [at for place in taken for at in range(place.start, place.start + place.size)]
        found = [self.profiles[place.profile] for place in taken]
        return (
            len(used) == len(set(used))
            and all(sum(getattr(one, kind) for one in found) <= self._most(kind) for kind in ENGINES)
            and all(found.count(one) <= one.most for one in found)
        )

    @cache  # noqa: B019  (one for each card, for as long as the tests run)
    def _most(self, kind: str) -> int:
        """NVML names no totals: the card has what its whole profile has, or what so many instances have."""
        return max(getattr(one, kind) * one.most for one in self.profiles.values())

    @cache  # noqa: B019
    def open_places(self, taken: Card) -> tuple[Place, ...]:
        return tuple(one for one in self.places if one not in taken and self.is_legal(taken | {one}))

    def left(self, taken: Card) -> tuple[int, ...]:
        """How many places are open, by size, the largest first: the card is the better, the more of its
        largest places there are, and where that is the same, of the next."""
        sizes = [self._size(one.profile) for one in self.open_places(taken)]
        return tuple(sizes.count(size) for size in sorted({*map(self._size, self.profiles)}, reverse=True))

    def _size(self, profile: str) -> int:
        one = self.profiles[profile]
        return one.compute_slices * self.slices + one.placements[0][1] * self.whole.compute_slices


def named(profile: str) -> Dict:
    return {"cel": {"expression": f'device.attributes["koordra.io"].profile == "{profile}"'}}


class Node:
    """One card in MIG mode, as the plugin publishes it."""

    def __init__(self, card: str) -> None:
        machine = presets.load("hgx-h100").machine(serial="a")
        known = cards()[card].get("multiprocessors")
        gpu = replace(
            machine.gpus[0],
            mig_enabled=True,
            mig_profiles=mig_profiles({"mig_profiles": card}),
            mig_instances=(),
            multiprocessors=known,
        )
        self.gpu, self._engine = gpu, engine_for()
        self._asked = {
            profile.name: machines.claim(
                "c", machines.request("slice", "mig", selectors=[named(profile.name)])
            )
            for profile in gpu.mig_profiles
        }
        self.objects = [
            machines.node(),
            *machines.device_classes(),
            *build_slices(
                replace(machine, gpus=(gpu,), nics=()),
                node_name="node-1",
                node_uid=None,
                mode="joint",
                generation=1,
                offering=replace(WITHOUT_POLICY, mig=True, mig_on_demand=True),
            ),
        ]

    def place(self, taken: Card, profile: str) -> Place | None:
        results = [
            {"request": "r", "driver": "koordra.io", "pool": "node-1", "device": self._name(one)}
            for one in taken
        ]
        held = machines.allocated(
            machines.claim("held", machines.request("r", "mig")), {"devices": {"results": results}}
        )
        found = plan([*self.objects, *([held] if taken else []), self._asked[profile]], engine=self._engine)
        allocation = found.allocations.get("default/c")
        if allocation is None:
            return None
        (device,) = machines.devices_of(allocation)
        return next(
            Place(profile, *where)
            for where in dict(self._placements())[profile]
            if self._name(Place(profile, *where)) == device
        )

    def _placements(self) -> Iterator[tuple[str, tuple[tuple[int, int], ...]]]:
        for one in self.gpu.mig_profiles:
            yield one.name, one.placements

    def _name(self, place: Place) -> str:
        return mig_name(self.gpu.name, place.profile, place.start)


def judge(oracle: Oracle, node: Node, taken: Card, profile: str) -> Card | None:
    """The card after one more slice; what was wrong fails."""
    found = [one for one in oracle.open_places(taken) if one.profile == profile]
    chosen = node.place(taken, profile)
    if chosen is None:
        assert not found, (sorted(taken), profile)
        return None
    assert chosen in found, (sorted(taken), chosen)
    best = max(oracle.left(taken | {one}) for one in found)
    assert oracle.left(taken | {chosen}) == best, (sorted(taken), chosen)
    return taken | {chosen}


@pytest.mark.parametrize("card", mostly_long(CARDS))
def test_every_sequence_leaves_the_best_that_there_is(card: str) -> None:
    oracle, node = Oracle(card), Node(card)
    seen = {Card()}
    todo = [Card()]
    while todo:
        taken = todo.pop()
        for profile in oracle.profiles if len(taken) < MOST else ():
            then = judge(oracle, node, taken, profile)
            if then is not None and then not in seen:
                seen.add(then)
                todo.append(then)
    assert len(seen) > len(oracle.profiles)
    assert max(map(len, seen)) == max(one.most for one in oracle.profiles.values())
