"""An allocator that is simple enough to be obviously right, by which the controller's model judges what the
controller has left waiting.

It knows whole and shared cards with memory, counts, node selectors of the pod and cordons; it reads the same
objects and gives the same kind of answer as `koordra.placement.plan`, which judges a part of the schedules.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from koordra.allocator.reasons import Reason
from koordra.api.objects import Object
from koordra.quantity import parse

CARD = 80
_GI = 1024**3


@dataclass(frozen=True)
class ModelPlan:
    allocations: dict[str, dict[str, Any]] = field(default_factory=dict)
    unsatisfiable: dict[str, tuple[Reason, ...]] = field(default_factory=dict)
    undecided: dict[str, tuple[Reason, ...]] = field(default_factory=dict)
    levels: dict[str, str | None] = field(default_factory=dict)
    scores: dict[str, int] = field(default_factory=dict)
    nodes: dict[str, str] = field(default_factory=dict)


def read_model_inventory(objects: Iterable[Object]) -> dict[str, list[Object]]:
    """The usable cards of each node."""
    cards: dict[str, list[Object]] = {}
    for obj in objects:
        if obj["kind"] == "ResourceSlice":
            spec = obj["spec"]
            cards.setdefault(spec["nodeName"], []).extend(spec.get("devices") or ())
    return cards


def plan_model(
    objects: Iterable[Object],
    *,
    report_errors: bool = False,
    inventory: dict[str, list[Object]] | None = None,
) -> ModelPlan:
    """One group of pods (or one claim without any) at a time: all pending claims on one node, or none."""
    del report_errors
    by_kind: dict[str, list[Object]] = {}
    for obj in objects:
        by_kind.setdefault(obj["kind"], []).append(obj)
    if inventory is None:
        inventory = read_model_inventory(by_kind.get("ResourceSlice", ()))
    classes = {obj["metadata"]["name"] for obj in by_kind.get("DeviceClass", ())}
    used: dict[tuple[str, str], int] = {}
    pending: dict[str, Object] = {}
    pinned: dict[str, str] = {}
    for claim in by_kind.get("ResourceClaim", ()):
        key = f"default/{claim['metadata']['name']}"
        results = results_of(claim)
        if not results:
            pending[key] = claim
        for result in results:
            place = (result["pool"], result["device"])
            used[place] = used.get(place, 0) + amount_of(result)
            pinned[key] = result["pool"]
    pods = [pod for pod in by_kind.get("Pod", ()) if not pod["spec"].get("nodeName")]
    pods = [pod for pod in pods if pod["spec"].get("resourceClaims")]
    answer = ModelPlan()
    best: tuple[int, str] | None = None
    found: dict[str, list[tuple[str, int]]] = {}
    for node in sorted(by_kind.get("Node", ()), key=lambda obj: str(obj["metadata"]["name"])):
        name = node["metadata"]["name"]
        if any(not _suits(node, pod, pinned) for pod in pods):
            continue
        if not all(_classes_of(claim) <= classes for claim in pending.values()):
            continue
        offer = _place(name, pending, inventory.get(name, []), used)
        if offer is None:
            continue
        free = sum(CARD - used.get((name, card["name"]), 0) for card in inventory.get(name, []))
        if best is None or (free, name) < best:
            best, found = (free, name), offer
    if best is None:
        reason = Reason(None, None, None, "InsufficientCapacity", "no node has that much left")
        answer.unsatisfiable.update(dict.fromkeys(pending, (reason,)))
        return answer
    for key, cards in found.items():
        answer.allocations[key] = _allocation(pending[key], best[1], cards)
        answer.levels[key] = None
        answer.scores[key] = -best[0]
        answer.nodes[key] = best[1]
    return answer


def results_of(claim: Mapping[str, Any]) -> list[dict[str, Any]]:
    allocation = (claim.get("status") or {}).get("allocation") or {}
    return list((allocation.get("devices") or {}).get("results") or ())


def amount_of(result: Mapping[str, Any]) -> int:
    """GiB of memory that a result takes."""
    return _gib(result["consumedCapacity"]["memory"])


_KNOWN: dict[str, int] = {}


def _gib(text: str) -> int:
    if text not in _KNOWN:
        _KNOWN[text] = int(parse(text)) // _GI
    return _KNOWN[text]


def asked_of(claim: Mapping[str, Any]) -> tuple[int, int]:
    """(cards, GiB of each)."""
    exactly = claim["spec"]["devices"]["requests"][0]["exactly"]
    memory = ((exactly.get("capacity") or {}).get("requests") or {}).get("memory")
    return int(exactly.get("count") or 1), _gib(memory) if memory else CARD


def _classes_of(claim: Mapping[str, Any]) -> set[str]:
    return {request["exactly"]["deviceClassName"] for request in claim["spec"]["devices"]["requests"]}


def _suits(node: Object, pod: Object, pinned: Mapping[str, str]) -> bool:
    name = node["metadata"]["name"]
    if (node.get("spec") or {}).get("unschedulable"):
        return False
    for entry in pod["spec"].get("resourceClaims") or ():
        claim = _claim_name(pod, entry)
        if pinned.get(f"default/{claim}", name) != name:
            return False
    labels = node["metadata"].get("labels") or {}
    return all(labels.get(key) == value for key, value in (pod["spec"].get("nodeSelector") or {}).items())


def _claim_name(pod: Object, entry: Mapping[str, Any]) -> str | None:
    if entry.get("resourceClaimName"):
        return str(entry["resourceClaimName"])
    for status in (pod.get("status") or {}).get("resourceClaimStatuses") or ():
        if status["name"] == entry["name"]:
            return str(status["resourceClaimName"])
    return None


def _place(
    node: str, pending: Mapping[str, Object], cards: list[Object], used: Mapping[tuple[str, str], int]
) -> dict[str, list[tuple[str, int]]] | None:
    """First fit, the largest claims first; exact for what the model asks (shares of one size per claim)."""
    left = {card["name"]: CARD - used.get((node, card["name"]), 0) for card in cards if not _is_tainted(card)}
    found: dict[str, list[tuple[str, int]]] = {}
    for key in sorted(pending, key=lambda one: (-asked_of(pending[one])[1], one)):
        count, memory = asked_of(pending[key])
        chosen = sorted((free, name) for name, free in left.items() if free >= memory)[:count]
        if len(chosen) < count:
            return None
        for _, name in chosen:
            left[name] -= memory
        found[key] = [(name, memory) for _, name in chosen]
    return found


def _is_tainted(card: Mapping[str, Any]) -> bool:
    return any(taint["key"] != "koordra.io/joint" for taint in card.get("taints") or ())


def _allocation(claim: Object, node: str, cards: list[tuple[str, int]]) -> dict[str, Any]:
    request = claim["spec"]["devices"]["requests"][0]["name"]
    results = [
        {
            "request": request,
            "driver": "koordra.io",
            "pool": node,
            "device": card,
            "shareID": f"{claim['metadata']['uid']}-{index}",
            "consumedCapacity": {"memory": f"{memory}Gi"},
        }
        for index, (card, memory) in enumerate(cards)
    ]
    pinned = {"key": "metadata.name", "operator": "In", "values": [node]}
    return {
        "devices": {"results": results},
        "nodeSelector": {"nodeSelectorTerms": [{"matchFields": [pinned]}]},
    }
