"""The pods of a run with their places and gangs, and what was told of them, for the report."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from koordra.api import objects
from koordra.api.allocation import Allocation
from koordra.api.objects import Object
from koordra.controller.gangs.declared.gang_ref import gang_of
from koordra.topology.pictures.job import member_of

BLOCK: Final = "fabric.koordra.io/block"
NODES_IN_BLOCK: Final = 4


def node_labels(names: Sequence[str]) -> dict[str, tuple[str, ...]]:
    """The demo's network: four nodes to a block."""
    return {name: (f"{BLOCK}=block-{number // NODES_IN_BLOCK + 1}",) for number, name in enumerate(names)}


def pods(found: Sequence[Object], claims: Sequence[Object], nodes: Iterable[Object]) -> list[dict[str, Any]]:
    """Every pod: where it is, and its gang and rank, where it is a member of one; gangs by rank."""
    blocks = {objects.name(node): objects.labels_of(node).get(BLOCK) for node in nodes}
    by_name = {objects.key(claim): claim for claim in claims}
    entries = [_pod(pod, by_name, blocks) for pod in found]
    return sorted(entries, key=lambda one: (one["gang"] or "", one["rank"] or 0, one["name"]))


def _pod(pod: Object, claims: Mapping[str, Object], blocks: Mapping[str, str | None]) -> dict[str, Any]:
    node, gang = objects.spec_of(pod).get("nodeName"), gang_of(pod)
    named = objects.pod_claim_names(pod).values()
    mine = [claims[key] for name in named if (key := f"{objects.namespace(pod)}/{name}") in claims]
    members = [
        place
        for claim in mine
        if (allocation := Allocation.of_claim(claim))
        and (place := member_of(allocation, claim=objects.key(claim)))
    ]
    return {
        "namespace": objects.namespace(pod),
        "name": objects.name(pod),
        "phase": str(objects.status_of(pod).get("phase") or "Pending"),
        "node": node,
        "block": blocks.get(str(node)),
        "gang": gang.name if gang else None,
        "rank": members[0].rank if members else None,
        "ended": _ended(pod),
    }


def _ended(pod: Object) -> str | None:
    """When the last of its containers ended, of a pod that is over."""
    states = [one.get("state") or {} for one in objects.status_of(pod).get("containerStatuses") or ()]
    times = [str((state.get("terminated") or {}).get("finishedAt") or "") for state in states]
    return max(times) if times and all(times) else None


def told(events: Iterable[Object]) -> list[dict[str, Any]]:
    """What was said of gangs, and what failed on nodes and in controllers, each once, in the order in which
    it was said first. Why claims wait is asked of `plan()`, not read here."""
    found: dict[tuple[str, str], str] = {}
    for event in sorted(events, key=lambda entry: str(entry.get("firstTimestamp") or "")):
        reason = str(event.get("reason", ""))
        if reason.startswith(("Gang", "Failed")) and reason != "FailedScheduling":
            found.setdefault((reason, event["message"]), str(event.get("firstTimestamp") or ""))
    return [{"at": at, "reason": reason, "message": message} for (reason, message), at in found.items()]
