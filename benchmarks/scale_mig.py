"""MIG slices on a cluster of cut cards: how much of it can be given out, against first fit and best fit.

Cards are eight to a node, each as an H100 in MIG mode publishes itself with every possible place. Requests
are single slices of one profile; their mix is drawn by chance for every seed (Dirichlet), from seeds that
nothing was tuned on. Two lives:

fill      slices until 130 % of the cards were asked for, none ever ends; allocated in % at 100 % and at 130 %
churn     slices that end by chance, at an offered load of 110 %; mean of what is allocated once the cluster
          is full

first-fit      the first place in published order, of the first card that has one: what kube-scheduler's
               allocator takes
best-fit       the card with the least left that has a place, and on it the first place in published order
kept places    the same card, but the place that makes least of the other places impossible
koordra        the engine: with the mix known, and starting with nothing and learning from what arrives

All run in this process on the same requests; sizes are koordra's (mean of the card's memory slices and
compute).
"""

from __future__ import annotations

import heapq
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any, Protocol

import numpy as np

from benchmarks._results import table, write
from koordra.kubelet_plugin.publish.offering import WITHOUT_POLICY
from koordra.kubelet_plugin.publish.resource_slices import build_slices
from koordra.placement import read_inventory
from koordra.placement.free_amounts.node_devices import devices_of_pools
from koordra.placement.free_amounts.state import Request
from koordra.placement.mig.layout import Layout, Slice
from koordra.placement.policy.learned_order import Learned
from koordra.placement.policy.workload import Workload, expected
from koordra.simulation.machine_cluster import MachineCluster, PodPlacement
from koordra.topology import presets
from koordra.topology.presets.mig import cards, mig_profiles

NODES = 20
SEEDS = tuple(range(1001, 1011))
MACHINE, CARD = "hgx-h100", "H100-SXM5-80GB"
_CHURN = 2500
_OFFERED = 1.1


def main() -> None:
    found = measure(NODES, SEEDS)
    text = _markdown(found)
    write("scale-mig", found, text)
    print(text)


def published() -> list[dict[str, Any]]:
    """What the kubelet plugin of a node of eight cut cards would publish."""
    machine = presets.load(MACHINE).machine(serial="a")
    profiles = mig_profiles({"mig_profiles": CARD})
    count = cards()[CARD]["multiprocessors"]
    gpus = tuple(
        replace(gpu, mig_enabled=True, mig_profiles=profiles, multiprocessors=count) for gpu in machine.gpus
    )
    return build_slices(
        replace(machine, gpus=gpus),
        node_name="n",
        node_uid="n",
        mode="joint",
        generation=1,
        offering=replace(WITHOUT_POLICY, mig=True, mig_on_demand=True),
    )


class Placer(Protocol):
    def place(self, profile: int) -> Any:
        """What to give back later; None where nothing fits."""

    def release(self, held: Any) -> None: ...


class OneByOne:
    """Cards in a row. `card` orders the cards that have a place (least first), `place` the places of one."""

    def __init__(
        self,
        layout: Layout,
        count: int,
        *,
        card: Callable[[int], int],
        place: Callable[[int, int], int],
    ) -> None:
        states = layout.states
        self._layout = layout
        self._codes = [0] * count
        self._state = np.full(count, layout.state_of(0), dtype=np.int64)
        self._order = np.full((len(layout.profiles), len(states)), 1 << 40, dtype=np.int64)
        self._place = np.zeros((len(layout.profiles), len(states)), dtype=np.int64)
        for number, profile in enumerate(layout.profiles):
            places = layout.places_of((profile,))
            for state, after in enumerate(states.after):
                fits = [(place(at, then), at) for at, then in after.items() if places >> at & 1]
                if fits:
                    self._order[number, state] = card(state)
                    self._place[number, state] = min(fits)[1]

    def place(self, profile: int) -> Any:
        order = self._order[profile][self._state]
        at = int(order.argmin())
        if order[at] >= 1 << 40:
            return None
        place = int(self._place[profile, self._state[at]])
        self._set(at, self._codes[at] | 1 << place)
        return at, place

    def release(self, held: Any) -> None:
        at, place = held
        self._set(at, self._codes[at] & ~(1 << place))

    def _set(self, at: int, code: int) -> None:
        self._codes[at] = code
        self._state[at] = self._layout.state_of(code)


class Koordra:
    """The engine. Without a workload it begins with an empty table and learns from what it is asked for."""

    def __init__(self, nodes: int, requests: list[Request], known: Workload | None) -> None:
        learned = None if known is None else Learned(expected(known, {}))
        self._cluster = MachineCluster(published(), nodes, learned=learned)
        self._requests, self._number = requests, 0

    def place(self, profile: int) -> Any:
        self._number += 1
        name, request = f"c{self._number}", self._requests[profile]
        named = f'device.attributes["koordra.io"].profile == "{request.slices[0].profiles[0]}"'
        body = {"deviceClassName": "mig.koordra.io", "selectors": [{"cel": {"expression": named}}]}
        claim = {
            "metadata": {"name": name, "namespace": "d", "uid": name},
            "spec": {"devices": {"requests": [{"name": "slice", "exactly": body}]}},
        }
        return self._cluster.take(claim, request)

    def release(self, held: PodPlacement) -> None:
        self._cluster.release(held)


def measure(nodes: int, seeds: tuple[int, ...]) -> dict[str, Any]:
    kind = devices_of_pools(read_inventory(published()).pools({"metadata": {"name": "n"}})).kind
    layout = kind.layouts[0]
    assert layout is not None
    sizes = [
        min(place.milli for place in layout.places if place.profile == profile) for profile in layout.profiles
    ]
    requests = [
        Request(0, 0, 0, 0, slices=(Slice((profile,), size),))
        for profile, size in zip(layout.profiles, sizes, strict=True)
    ]
    cards, weights = nodes * kind.gpus, [place.milli for place in layout.places]
    possible = [
        sum(weight for at, weight in enumerate(weights) if mask >> at & 1) for mask in layout.states.possible
    ]
    free = layout.states.free

    def placers(mix: list[int]) -> dict[str, Callable[[], Placer]]:
        known = Workload(list(zip(requests, mix, strict=True)))
        return {
            "first-fit": lambda: OneByOne(layout, cards, card=lambda _: 0, place=lambda _, __: 0),
            "best-fit": lambda: OneByOne(layout, cards, card=free.__getitem__, place=lambda _, __: 0),
            "kept places": lambda: OneByOne(
                layout, cards, card=free.__getitem__, place=lambda _, then: -possible[then]
            ),
            "koordra": lambda: Koordra(nodes, requests, known),
            "koordra, learning": lambda: Koordra(nodes, requests, None),
        }

    rows: dict[str, list[dict[str, float]]] = {}
    for seed in seeds:
        generator = np.random.default_rng(seed)
        parts = generator.dirichlet(np.ones(len(sizes)))
        for name, make in placers([max(1, int(1000 * part)) for part in parts]).items():
            began = time.process_time()
            at_100, at_130, decisions = _fill(make(), parts, sizes, cards, seed)
            spent = time.process_time() - began
            rows.setdefault(name, []).append(
                {
                    "seed": seed,
                    "alloc_pct_100": at_100,
                    "alloc_pct_130": at_130,
                    "churn_alloc_pct": _churn(make(), parts, sizes, cards, seed),
                    "decision_us": 1e6 * spent / decisions,
                }
            )
    return {
        "nodes": nodes,
        "cards": cards,
        "profiles": list(layout.profiles),
        "states_of_a_card": len(layout.states),
        "seeds": list(seeds),
        "runs": [
            {"policy": name, **{k: round(v, 2) for k, v in run.items()}}
            for name, runs in rows.items()
            for run in runs
        ],
        "summary": [
            {
                "policy": name,
                **{
                    f"{key}_mean": round(float(np.mean([run[key] for run in runs])), 2)
                    for key in ("alloc_pct_100", "alloc_pct_130", "churn_alloc_pct", "decision_us")
                },
            }
            for name, runs in rows.items()
        ],
    }


def _fill(
    placer: Placer, parts: np.ndarray[Any, Any], sizes: list[int], cards: int, seed: int
) -> tuple[float, float, int]:
    generator = np.random.default_rng(seed + 1)
    asked, got, at_100, decisions = 0, 0, -1, 0
    for profile in generator.choice(len(sizes), size=12 * cards, p=parts).tolist():
        asked += sizes[profile]
        decisions += 1
        if placer.place(profile) is not None:
            got += sizes[profile]
        if at_100 < 0 and asked >= 1000 * cards:
            at_100 = got
        if asked >= 1300 * cards:
            break
    return at_100 / cards / 10, got / cards / 10, decisions


def _churn(placer: Placer, parts: np.ndarray[Any, Any], sizes: list[int], cards: int, seed: int) -> float:
    """Mean percent allocated in the second half."""
    generator = np.random.default_rng(seed + 2)
    lives = generator.exponential(_OFFERED * cards * 1000 / float(np.dot(parts, sizes)), size=_CHURN)
    ends: list[tuple[float, int, int, Any]] = []
    got, seen = 0, []
    for turn, profile in enumerate(generator.choice(len(sizes), size=_CHURN, p=parts).tolist()):
        while ends and ends[0][0] <= turn:
            _, _, size, held = heapq.heappop(ends)
            placer.release(held)
            got -= size
        held = placer.place(profile)
        if held is not None:
            got += sizes[profile]
            heapq.heappush(ends, (turn + float(lives[turn]), turn, sizes[profile], held))
        if turn >= _CHURN // 2:
            seen.append(got)
    return float(np.mean(seen)) / cards / 10


def _markdown(found: dict[str, Any]) -> str:
    rows = [
        (
            one["policy"],
            one["alloc_pct_100_mean"],
            one["alloc_pct_130_mean"],
            one["churn_alloc_pct_mean"],
            one["decision_us_mean"],
        )
        for one in found["summary"]
    ]
    seeds = found["seeds"]
    about = (
        f"\n{found['cards']} cards in {found['nodes']} nodes, {len(found['profiles'])} profiles,"
        f" {len(seeds)} mixes drawn by chance (seeds {seeds[0]}..{seeds[-1]});"
        " allocated in % of the cards, mean over the mixes:\n"
    )
    return "\n".join(
        [
            "# MIG slices on cut cards",
            about,
            table(("policy", "at 100 %", "at 130 %", "while slices come and go", "µs per decision"), rows),
            "\nThe first three are a plain look-up per card, without nodes, NICs, cores and memory.",
        ]
    )


if __name__ == "__main__":
    main()
