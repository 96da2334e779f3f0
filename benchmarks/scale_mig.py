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
values         the card and place after which most is usable (placement/policy/mig_placement), with the mix
               known
koordra        the engine: with the mix known, and starting with nothing and learning from what arrives

All run in this process on the same requests; sizes are koordra's (mean of the card's memory slices and
compute). The first four are a plain look-up per card, which takes so little that churn is repeated for them,
with the same mix and 99 more orders of arrivals and ends: one order alone is off by a third of a percent
either way, which is as much as policies differ on some mixes.
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
from koordra.placement.policy.mig_placement import MigCardValues
from koordra.placement.policy.workload import Workload, expected
from koordra.simulation.machine_cluster import MachineCluster, PodPlacement
from koordra.topology import presets
from koordra.topology.presets.mig import cards, mig_profiles

NODES = 20
SEEDS = tuple(range(1001, 1011))
MACHINE, CARD = "hgx-h100", "H100-SXM5-80GB"
ORDERS = 100
PLAIN = ("first-fit", "best-fit", "kept places", "values")
POLICIES = (*PLAIN, "koordra", "koordra, learning")
_CHURN = 2500
_OFFERED = 1.1
_NOWHERE = 1 << 40


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
    """Cards in a row. `rank` of a state and the one after: the card with the least first number is taken, on
    it the place with the least second one; of equal ones the first."""

    def __init__(self, layout: Layout, count: int, rank: Callable[[int, int], tuple[int, int]]) -> None:
        states = layout.states
        self._layout = layout
        self._codes = [0] * count
        self._state = np.full(count, layout.state_of(0), dtype=np.int64)
        self._order = np.full((len(layout.profiles), len(states)), _NOWHERE, dtype=np.int64)
        self._place = np.zeros((len(layout.profiles), len(states)), dtype=np.int64)
        for number, profile in enumerate(layout.profiles):
            places = layout.places_of((profile,))
            for state, after in enumerate(states.after):
                fits = [(rank(state, then), at) for at, then in after.items() if places >> at & 1]
                if fits:
                    (self._order[number, state], _), self._place[number, state] = min(fits)

    def place(self, profile: int) -> Any:
        order = self._order[profile][self._state]
        at = int(order.argmin())
        if order[at] >= _NOWHERE:
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


class Mixes:
    """The requests of each seed, and who places them."""

    def __init__(self, nodes: int) -> None:
        kind = devices_of_pools(read_inventory(published()).pools({"metadata": {"name": "n"}})).kind
        layout = kind.layouts[0]
        assert layout is not None
        self.nodes, self.layout, self.cards = nodes, layout, nodes * kind.gpus
        self.sizes = [
            min(place.milli for place in layout.places if place.profile == profile)
            for profile in layout.profiles
        ]
        self.requests = [
            Request(0, 0, 0, 0, slices=(Slice((profile,), size),))
            for profile, size in zip(layout.profiles, self.sizes, strict=True)
        ]

    def parts(self, seed: int) -> np.ndarray[Any, Any]:
        return np.random.default_rng(seed).dirichlet(np.ones(len(self.sizes)))

    def known(self, seed: int) -> Workload:
        mix = [max(1, int(1000 * part)) for part in self.parts(seed)]
        return Workload(list(zip(self.requests, mix, strict=True)))

    def placer(self, policy: str, seed: int) -> Placer:
        if policy == "koordra":
            return Koordra(self.nodes, self.requests, self.known(seed))
        if policy == "koordra, learning":
            return Koordra(self.nodes, self.requests, None)
        return OneByOne(self.layout, self.cards, self._rank(policy, seed))

    def _rank(self, policy: str, seed: int) -> Callable[[int, int], tuple[int, int]]:
        states, places = self.layout.states, self.layout.places
        if policy == "values":
            usable = MigCardValues(expected(self.known(seed), {}).slices).table(self.layout)
            return lambda state, then: (usable[state] - usable[then], 0)
        left = [
            sum(place.milli for at, place in enumerate(places) if mask >> at & 1) for mask in states.possible
        ]
        return {
            "first-fit": lambda state, then: (0, 0),
            "best-fit": lambda state, then: (states.free[state], 0),
            "kept places": lambda state, then: (states.free[state], -left[then]),
        }[policy]

    def run(self, policy: str, seed: int) -> dict[str, Any]:
        """One policy with one mix; `orders`: churn with other orders, where that costs little."""
        parts = self.parts(seed)
        began = time.process_time()
        at_100, at_130, decisions = _fill(self.placer(policy, seed), parts, self.sizes, self.cards, seed)
        spent = time.process_time() - began
        more = range(1, ORDERS) if policy in PLAIN else ()
        first, *orders = [
            _churn(self.placer(policy, seed), parts, self.sizes, self.cards, at)
            for at in (seed, *(1000 * seed + order for order in more))
        ]
        found = {
            "alloc_pct_100": at_100,
            "alloc_pct_130": at_130,
            "churn_alloc_pct": first,
            "decision_us": 1e6 * spent / decisions,
        }
        rounded = {name: round(value, 2) for name, value in found.items()}
        return {
            "policy": policy,
            "seed": seed,
            **rounded,
            "orders": [round(each, 3) for each in (first, *orders)],
        }


def measure(nodes: int, seeds: tuple[int, ...]) -> dict[str, Any]:
    mixes = Mixes(nodes)
    return found_of(mixes, seeds, [mixes.run(policy, seed) for policy in POLICIES for seed in seeds])


def found_of(mixes: Mixes, seeds: tuple[int, ...], runs: list[dict[str, Any]]) -> dict[str, Any]:
    columns = ("alloc_pct_100", "alloc_pct_130", "churn_alloc_pct", "decision_us")
    return {
        "nodes": mixes.nodes,
        "cards": mixes.cards,
        "profiles": list(mixes.layout.profiles),
        "states_of_a_card": len(mixes.layout.states),
        "seeds": list(seeds),
        "runs": runs,
        "summary": [
            {
                "policy": policy,
                **{
                    f"{key}_mean": round(
                        float(np.mean([run[key] for run in runs if run["policy"] == policy])), 2
                    )
                    for key in columns
                },
            }
            for policy in dict.fromkeys(run["policy"] for run in runs)
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
            "\nThe first four are a plain look-up per card, without nodes, NICs, cores and memory.",
            "\n## While slices come and go, mix by mix",
            "\nThe first two in one order of arrivals, koordra with the mix known.",
            f"The others are means of {ORDERS} orders; +-: 95 % confidence.\n",
            table(
                ("seed", "best-fit, one order", "koordra, one order", "best-fit", "values", "more", "+-"),
                [_of_mix(found["runs"], seed) for seed in seeds],
            ),
        ]
    )


def _of_mix(runs: list[dict[str, Any]], seed: int) -> tuple[object, ...]:
    by = {run["policy"]: run for run in runs if run["seed"] == seed}
    best, values = (np.array(by[policy]["orders"]) for policy in ("best-fit", "values"))
    more = values - best
    error = 1.96 * float(more.std(ddof=1)) / len(more) ** 0.5
    one = [f"{by[policy]['orders'][0]:.2f}" for policy in ("best-fit", "koordra")]
    means = f"{best.mean():.2f}", f"{values.mean():.2f}", f"{more.mean():+.2f}"
    return seed, *one, *means, f"{error:.2f}"


if __name__ == "__main__":
    main()
