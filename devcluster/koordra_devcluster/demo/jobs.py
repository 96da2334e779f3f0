"""`koordra demo --jobs`: three gangs for six nodes in two blocks, and what has to be seen of them.

    pretrain   four nodes; starts as a whole, ends after a while
    finetune   three nodes; as long as pretrain runs it has nothing, then all
    elastic    one node at the least; starts on what is left, and grows to three

The story is over when pretrain has ended, finetune runs, elastic has grown, and everything that was to be
seen on the way was seen: finetune with nothing while pretrain ran, elastic with fewer members than in the
end. What was not seen is what is missing.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from koordra.api import objects
from koordra.api.objects import Object
from koordra.controller.gangs.annotations import gang_of
from koordra_devcluster.demo.report import Observation

FIRST, SECOND, ELASTIC = "pretrain", "finetune", "elastic"
SIZES: Final[Mapping[str, int]] = {FIRST: 4, SECOND: 3, ELASTIC: 3}
BLOCK: Final = "fabric.koordra.io/block"
NODES: Final = 6
EXAMPLE: Final = "three-jobs"


def node_labels(names: Sequence[str]) -> dict[str, tuple[str, ...]]:
    """Two blocks of the same size."""
    half = (len(names) + 1) // 2
    return {
        name: (f"{BLOCK}={'block-1' if number < half else 'block-2'}",) for number, name in enumerate(names)
    }


@dataclass(slots=True)
class Story:
    """What was seen so far."""

    waited: bool = False
    """finetune had all its pods and none of its claims, while pretrain ran on all its nodes."""
    started_small: int | None = None
    """Members that elastic had at first."""
    halves: list[str] = field(default_factory=list)
    """Jobs that were seen with a part of what they need to start."""

    def look(self, observation: Observation) -> list[str]:
        """What has still to be seen, as sentences."""
        members = {name: members_of(observation, name) for name in SIZES}
        placed = {
            name: [pod for pod in pods if nodes_of(observation, pod) and _phase(pod) != "Succeeded"]
            for name, pods in members.items()
        }
        running = {name: [pod for pod in pods if _phase(pod) == "Running"] for name, pods in members.items()}
        ended = [pod for pod in members[FIRST] if _phase(pod) == "Succeeded"]
        if (
            len(placed[FIRST]) == SIZES[FIRST]
            and len(members[SECOND]) == SIZES[SECOND]
            and not placed[SECOND]
        ):
            self.waited = True
        if self.started_small is None and running[ELASTIC] and not ended:
            self.started_small = len(running[ELASTIC])
        self._see_halves(placed)
        missing = [f"job {FIRST} has not ended"] if len(ended) < SIZES[FIRST] else []
        missing += [
            f"{len(running[name])} of {SIZES[name]} pods of job {name} run"
            for name in (SECOND, ELASTIC)
            if len(running[name]) < SIZES[name]
        ]
        return missing + self.unseen()

    def unseen(self) -> list[str]:
        """What belongs to the story and was not seen."""
        found = [] if self.waited else [f"job {SECOND} was not seen waiting with nothing while {FIRST} ran"]
        if self.started_small is None:
            found.append(f"job {ELASTIC} was not seen running beside {FIRST}")
        elif self.started_small >= SIZES[ELASTIC]:
            found.append(f"job {ELASTIC} was not seen with fewer pods than in the end")
        return found

    def _see_halves(self, placed: Mapping[str, Sequence[Object]]) -> None:
        """Allocations are written one by one, so a part may be seen for a moment; pods that run are no
        moment."""
        if len(placed[SECOND]) < SIZES[SECOND] and any(_phase(pod) == "Running" for pod in placed[SECOND]):
            self.halves.append(SECOND)


def members_of(observation: Observation, job: str) -> list[Object]:
    """The job's pods, by completion index."""
    found = [pod for pod in observation.pods if (mark := gang_of(pod)) is not None and mark.name == job]
    return sorted(found, key=_index)


def nodes_of(observation: Observation, pod: Object) -> str | None:
    """Where the pod's devices are."""
    for claim in observation.claims:
        if objects.name(claim) in objects.pod_claim_names(pod).values():
            results = (objects.status_of(claim).get("allocation") or {}).get("devices", {}).get("results")
            if results:
                return str(results[0]["pool"])
    return None


def document(observation: Observation, events: Iterable[Object], nodes: Iterable[Object]) -> dict[str, Any]:
    """The jobs, where their pods are, and what was told of them."""
    blocks = {objects.name(node): objects.labels_of(node).get(BLOCK) for node in nodes}
    jobs = []
    for name in SIZES:
        pods = []
        for pod in members_of(observation, name):
            node = objects.spec_of(pod).get("nodeName")
            ran = _phase(pod) in {"Running", "Succeeded"}
            pods.append(
                {
                    "pod": objects.name(pod),
                    "index": _index(pod),
                    "rank": _rank(observation, pod),
                    "node": node,
                    "block": blocks.get(str(node)),
                    "phase": _phase(pod),
                    "gpus": 8 if ran else 0,
                    "nics": 8 if ran else 0,
                }
            )
        jobs.append({"name": name, "size": SIZES[name], "pods": pods})
    return {"jobs": jobs, "events": _told(events), "blocks": blocks}


def _told(events: Iterable[Object]) -> list[dict[str, Any]]:
    """What was said of gangs, each once, in the order in which it was said first."""
    found: dict[tuple[str, str], str] = {}
    for event in sorted(events, key=lambda entry: str(entry.get("firstTimestamp") or "")):
        if str(event.get("reason", "")).startswith("Gang"):
            found.setdefault((event["reason"], event["message"]), str(event.get("firstTimestamp") or ""))
    return [{"at": at, "reason": reason, "message": message} for (reason, message), at in found.items()]


def _rank(observation: Observation, pod: Object) -> int | None:
    for claim in observation.claims:
        if objects.name(claim) in objects.pod_claim_names(pod).values():
            for entry in (objects.status_of(claim).get("allocation") or {}).get("devices", {}).get(
                "config"
            ) or ():
                parameters = (entry.get("opaque") or {}).get("parameters") or {}
                if parameters.get("kind") == "GangMember":
                    return int(parameters["rank"])
    return None


def _index(pod: Object) -> int:
    return int(objects.labels_of(pod).get("batch.kubernetes.io/job-completion-index") or 0)


def _phase(pod: Object) -> str:
    return str(objects.status_of(pod).get("phase") or "")
