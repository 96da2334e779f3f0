"""What it is worth that the fleet knows selectors: searches and time per claim, and the allocation ratio.

    time        2,000 nodes of four models in four zones, some set aside by a taint. Claims want a model, two
                models, more memory than some models have, a zone, a pool that is set aside. `plan()` with a
                fleet that knows what they may use, and with one that does not (it asks the nodes in the order
                of what is free), in one process: searches per claim, processor time per claim
    allocation  a cluster of 96 nodes of four models, filled to 130 % with shares and whole GPUs of which two
                in five may run on some models only. What comes is learned as it comes, from nothing: knowing
                which models a claim may use, and not knowing it

Both sides of either comparison decide on the same claims in the same order. Times are the processor's for
this thread.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import numpy as np

from benchmarks._results import table, write
from benchmarks.scale_dra import cluster_of
from koordra.allocator.group_search import GroupSearch
from koordra.allocator.offer import Offer
from koordra.allocator.request.classes import shipped_classes
from koordra.allocator.search.solution import CostPair
from koordra.api import names, objects
from koordra.api.claims import ResourceClaim
from koordra.placement import engine_for, plan
from koordra.placement.candidates.cost_bound import CostBound
from koordra.placement.manifests import Manifests
from koordra.placement.policy.learned_order import Learned
from koordra.placement.policy.request_models import RequestModels
from koordra.placement.request.claim_groups import ClaimGroup

Object = dict[str, Any]
COUNT, CLAIMS, SLOW_CLAIMS = 2000, 400, 20
SEEDS = range(5)
BLOCK = 12
ZONES = ("a", "b", "c", "d")
TAINT = {"key": "pool", "value": "own", "effect": "NoSchedule"}


class Model(NamedTuple):
    name: str
    memory: str


MODELS = (Model("T4", "16Gi"), Model("V100", "32Gi"), Model("A100", "40Gi"), Model("H100", "80Gi"))


def main() -> None:
    slices, nodes = _mixed(COUNT)
    times = [_timed(slices, nodes, wanted) for wanted in ("models", "nodes", "both")]
    ratios = [_ratios(mix, seed) for mix in MIXES for seed in SEEDS]
    text = _markdown(times, ratios)
    write("scale-selectors", {"nodes": COUNT, "claims": times, "allocation": ratios}, text)
    print(text)


# --- time ---------------------------------------------------------------------------------------------------


def _mixed(count: int, mix: tuple[int, ...] = (0, 1, 2, 3)) -> tuple[list[Object], list[Object]]:
    """Nodes of eight cards, a dozen of a model after the other; four zones of all models, every twentieth
    node set aside."""
    slices, nodes = cluster_of(count)
    for number, (entry, node) in enumerate(zip(slices, nodes, strict=True)):
        model = MODELS[mix[number // BLOCK % len(mix)]]
        entry["spec"]["devices"] = [_as_model(device, model) for device in entry["spec"]["devices"]]
        zone = ZONES[number // (BLOCK * len(mix)) % len(ZONES)]
        name = node["metadata"]["name"]
        node["metadata"]["labels"] = {"kubernetes.io/hostname": name, "zone": zone}
        if number % 20 >= 19:
            node["spec"] = {"taints": [TAINT]}
    return slices, nodes


def _as_model(device: Object, model: Model) -> Object:
    if device["attributes"][names.ATTR_TYPE]["string"] != names.TYPE_GPU:
        return device
    memory = {**device["capacity"]["memory"], "value": model.memory}
    memory["requestPolicy"] = {**memory["requestPolicy"], "default": model.memory}
    return {
        **device,
        "attributes": {**device["attributes"], names.ATTR_MODEL: {"string": model.name}},
        "capacity": {**device["capacity"], "memory": memory},
    }


def _of_model(*models: str) -> str:
    return " || ".join(f'device.attributes["koordra.io"].model == "{model}"' for model in models)


BY_MODELS: tuple[Object, ...] = (
    {"selector": _of_model("H100")},
    {"selector": _of_model("T4", "V100")},
    {"memory": "60Gi"},
    {"selector": _of_model("A100"), "gpus": 2},
)
BY_NODES: tuple[Object, ...] = (
    {"pod": {"nodeSelector": {"zone": "d"}}},
    {"pod": {"nodeSelector": {"zone": "b"}, "tolerations": [{"key": "pool", "operator": "Exists"}]}},
    {"pod": {"nodeSelector": {"zone": "c"}}, "gpus": 4},
)


def _timed(slices: list[Object], nodes: list[Object], wanted: str) -> Object:
    kinds = {
        "models": BY_MODELS,
        "nodes": BY_NODES,
        "both": tuple({**one, **other} for one in BY_MODELS for other in BY_NODES),
    }[wanted]
    rest: list[Object] = [*nodes, *shipped_classes()]

    def asked(count: int) -> list[Object]:
        return [entry for number in range(count) for entry in _claim(number, **kinds[number % len(kinds)])]

    found: Object = {"wanted": wanted}
    for how, count in (("known", CLAIMS), ("unknown", SLOW_CLAIMS)):
        with _searches() as searched, _knowing(how == "known"):
            kept = engine_for()
            plan([*slices, *rest, *_claim(9999)], engine=kept)
            searched.clear()
            claims = asked(count)
            began = time.thread_time()
            made = plan([*slices, *rest, *claims], engine=kept)
            spent = time.thread_time() - began
        assert len(made.allocations) == count
        found[how] = {
            "searches_per_claim": round(len(searched) / count, 2),
            "ms_per_claim": round(1000 * spent / count, 3),
        }
    return found


@contextmanager
def _searches() -> Iterator[list[str]]:
    """The nodes that `plan()` searches, or whose answer it remembers from one like it."""
    found: list[str] = []
    search = GroupSearch.on_node

    def counted(self: GroupSearch, name: str, *given: Any, **named: Any) -> Any:
        found.append(name)
        return search(self, name, *given, **named)

    GroupSearch.on_node = counted  # type: ignore[method-assign]
    try:
        yield found
    finally:
        GroupSearch.on_node = search  # type: ignore[method-assign]


@contextmanager
def _knowing(known: bool) -> Iterator[None]:
    """Without bounds every state of a node that its pods may use is searched."""
    least = CostBound.least
    if not known:
        CostBound.least = lambda _self, _info, _taken: CostPair()  # type: ignore[method-assign]
    try:
        yield
    finally:
        CostBound.least = least  # type: ignore[method-assign]


def _claim(
    number: int,
    *,
    gpus: int = 1,
    percent: int = 100,
    memory: str = "",
    selector: str = "",
    pod: Object | None = None,
    cpu: int = 2,
) -> list[Object]:
    name = f"c{number:05}"
    gpu: Object = {"deviceClassName": names.CLASS_GPU, "count": gpus}
    if selector:
        gpu["selectors"] = [{"cel": {"expression": selector}}]
    if memory:
        gpu["capacity"] = {"requests": {"memory": memory}}
    devices: Object = {"requests": [{"name": "gpu", "exactly": gpu}]}
    if percent < 100:
        parameters = {"apiVersion": "koordra.io/v1alpha1", "kind": "GpuConfig", "memoryPercent": percent}
        devices["config"] = [{"opaque": {"driver": names.DRIVER, "parameters": parameters}}]
    return [
        {
            "kind": "ResourceClaim",
            "metadata": {"name": name, "namespace": "d", "uid": name},
            "spec": {"devices": devices},
        },
        {
            "kind": "Pod",
            "metadata": {"name": name, "namespace": "d", "uid": f"p{name}"},
            "spec": {
                "containers": [{"name": "c", "resources": {"requests": {"cpu": str(cpu)}}}],
                "resourceClaims": [{"name": "x", "resourceClaimName": name}],
                **(pod or {}),
            },
        },
    ]


# --- allocation ---------------------------------------------------------------------------------------------

SHARES = (19, 32, 47, 50, 65, 81)
CONSTRAINED: tuple[tuple[str, ...], ...] = (("T4",), ("V100",), ("T4", "V100"), ("A100", "H100"), ("H100",))
"""What two in five claims name, equally often."""


MIXES: dict[str, tuple[int, ...]] = {"even": (0, 1, 2, 3), "uneven": (0, 1, 2, 2, 2, 2, 3, 3)}
"""As many nodes of each model; or an eighth T4 and V100 each, a half A100, a quarter H100."""


def _ratios(mix: str, seed: int) -> Object:
    """Percent of the GPUs that are given out when as much was asked for as there is, and 130 % of it."""
    slices, nodes = _mixed(96, MIXES[mix])
    for node in nodes:
        node.pop("spec", None)
    arrivals = []
    draw = np.random.default_rng(seed)
    asked, capacity = 0, 96 * 8 * 1000
    while asked < 1.3 * capacity:
        arrivals.append(_arrival(draw, len(arrivals)))
        asked += arrivals[-1][2]
    return {
        "models": mix,
        "seed": seed,
        "claims": len(arrivals),
        "known": _filled([*slices, *nodes], arrivals, capacity, known=True),
        "unknown": _filled([*slices, *nodes], arrivals, capacity, known=False),
    }


def _arrival(draw: np.random.Generator, number: int) -> tuple[Object, Object, int]:
    sort = draw.random()
    said: Object = {"cpu": int(draw.integers(1, 9))}
    if sort < 0.6:
        said["percent"] = int(SHARES[int(draw.integers(len(SHARES)))])
    elif sort > 0.92:
        said["gpus"] = int(draw.integers(2, 5))
    if draw.random() < 0.4:
        said["selector"] = _of_model(*CONSTRAINED[int(draw.integers(len(CONSTRAINED)))])
    claim, pod = _claim(number, **said)
    return claim, pod, said.get("gpus", 1) * said.get("percent", 100) * 10


def _filled(
    cluster: list[Object], arrivals: list[tuple[Object, Object, int]], capacity: int, *, known: bool
) -> Object:
    """The live path's own code; each claim is tried once. Where models are not known, all may be used as far
    as is learned."""
    engine = engine_for(learned=Learned())
    Manifests.of([*cluster, *shipped_classes()]).fill(engine.index)
    asked = given = 0
    at_100 = 0.0
    models = RequestModels.models
    if not known:
        RequestModels.models = lambda *_: ()  # type: ignore[method-assign]
    try:
        for claim, pod, share in arrivals:
            engine.settle()
            question = engine.resolve(ClaimGroup((ResourceClaim.from_dict(claim),), (pod,)))
            engine.order.observe(question, frozenset({claim["metadata"]["uid"]}))
            found = engine.decide(question)
            if isinstance(found, Offer):
                (allocation,) = found.allocations(pin_to_node=True)
                key = objects.key(claim)
                engine.index.assume(claim, allocation, key=key, node=found.node, pods=[pod])
                given += share
            asked += share
            if asked <= capacity:
                at_100 = 100 * given / capacity
    finally:
        RequestModels.models = models  # type: ignore[method-assign]
    return {"alloc_pct_100": round(at_100, 2), "alloc_pct_130": round(100 * given / capacity, 2)}


def _markdown(times: list[Object], ratios: list[Object]) -> str:
    rows = [
        (
            one["wanted"],
            *(
                one[how][what]
                for what in ("searches_per_claim", "ms_per_claim")
                for how in ("unknown", "known")
            ),
            round(one["unknown"]["ms_per_claim"] / one["known"]["ms_per_claim"], 1),
        )
        for one in times
    ]
    header = (
        "claims name",
        "searches per claim, unknown",
        "known",
        "ms per claim, unknown",
        "known",
        "times faster",
    )
    ways = [(how, at) for at in ("alloc_pct_100", "alloc_pct_130") for how in ("unknown", "known")]
    alloc = [(one["models"], one["seed"], *(one[how][at] for how, at in ways)) for one in ratios]
    for mix in MIXES:
        of_mix = [one for one in ratios if one["models"] == mix]
        alloc.append(
            (mix, "mean", *(round(float(np.mean([one[how][at] for one in of_mix])), 2) for how, at in ways))
        )
    return "\n".join(
        [
            "# Selectors",
            f"Claims that name models, nodes, or both, on {COUNT} nodes of four models; `plan()`, one thread.",
            "",
            table(header, rows),
            "",
            "Allocation in % of the GPUs of 96 nodes, two claims in five name models.",
            "",
            table(("models", "seed", "at 100 %, unknown", "known", "at 130 %, unknown", "known"), alloc),
        ]
    )
