"""Which replicas of a running elastic job are to move, and when that pays.

What moves: of the widest level of the network on which the job is in several domains, those in the domain
with the fewest of them, into domains that the job uses already; the node is the last level, so that scattered
replicas come together on fewer nodes. Replica 0 of ElasticPyTorch holds the rendezvous and stays where it is,
with all of its domain.

It pays (`pays`) if

    gain x (time for which the job has run)  >=  idle x 2 ^ (moves so far)

A domain fewer is taken to save `gain` of the job's time (migration.gainPercent, 5); a job is taken to run on
for as long as it has run; a move costs `idle` seconds in which all wait for a new round
(migration.idleSeconds, 60). So a job moves for the first time after 20 minutes, for the second after 40, and
n times in 20 x 2^(n-1) minutes at the most.

There has to be room for all that move while they have their old places: the controller's own passes over a
copy of the cluster say whether and where (`koordra.controller.explain.forecast`), after everybody who waits.
The new pods are kept to the nodes that were foretold.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Final

from koordra.api import names, objects
from koordra.api.kinds import NODES, PODS, RESOURCE_CLAIMS
from koordra.api.objects import Fields, Object
from koordra.controller.cache.changes import Tables
from koordra.controller.explain.forecast.forecast import forecast
from koordra.controller.explain.forecast.intake import Terms
from koordra.controller.training import pods
from koordra.controller.training.decisions import Decision, NewPod, move_of
from koordra.controller.training.members import Member, Phase
from koordra.controller.training.training_job import (
    LAUNCHER_SLOT,
    REPLICA_LABEL,
    Framework,
    Memory,
    Migration,
    TrainingJob,
)
from koordra.logs import get_logger
from koordra.topology.network_topology import DISCOVERED, Levels

log = get_logger(__name__)

SHARE: Final = 9.0
"""Of a forecast's time, for which none is made after it."""
PERIOD: Final = timedelta(seconds=60)
"""Between two looks for room."""
MOST_TRIED: Final = 3
"""Levels for which room is looked for at a time."""


@dataclass(frozen=True, slots=True)
class Move:
    """`level`: of which the job would use a domain fewer; `nodes`: of the domains that it uses besides."""

    level: str
    members: tuple[Member, ...]
    nodes: frozenset[str]


def pays(migration: Migration, *, ran: float, moves: int) -> bool:
    """`ran`: seconds."""
    return migration.gain * ran >= migration.idle * 2.0 ** min(moves, 64)


def pays_at(migration: Migration, *, began: datetime, moves: int) -> datetime | None:
    """When it does, None where never."""
    seconds = migration.idle * 2.0 ** min(moves, 64) / migration.gain if migration.gain else float("inf")
    return began + timedelta(seconds=seconds) if seconds < 10**9 else None


def moves_of(
    job: TrainingJob, members: Sequence[Member], paths: Mapping[str, tuple[str, ...]], levels: Sequence[str]
) -> Iterator[Move]:
    """By level, the widest first. `paths`: every node's domains, by `levels`; the node itself comes last."""
    workers = [one for one in members if one.slot != LAUNCHER_SLOT and one.phase is Phase.RUNNING]
    if any(one.node not in paths for one in workers):
        return
    places = {node: (*path, node) for node, path in paths.items()}
    for at, level in enumerate((*levels, "node")):
        of: dict[tuple[str, ...], list[Member]] = {}
        for one in workers:
            of.setdefault(places[one.node][: at + 1], []).append(one)
        may = {domain: here for domain, here in of.items() if not _stays(job, here)}
        if len(of) < 2 or not may:
            continue
        fewest = min(may, key=lambda domain: (len(may[domain]), domain))
        others = of.keys() - {fewest}
        nodes = frozenset(node for node, place in places.items() if place[: at + 1] in others)
        yield Move(level, tuple(may[fewest]), nodes)


def _stays(job: TrainingJob, members: Sequence[Member]) -> bool:
    return job.framework is Framework.ELASTIC_PYTORCH and any(one.slot == 0 for one in members)


@dataclass(slots=True)
class Mover:
    """`terms`: what forecasts go by, now."""

    now: Callable[[], datetime]
    clock: Callable[[], float]
    terms: Callable[[], Terms]
    levels: Levels = DISCOVERED
    _rest_until: float = 0.0

    def with_move(
        self, job: TrainingJob, members: Sequence[Member], decision: Decision, cluster: Tables
    ) -> Decision:
        """The decision about a settled job, with a move where one pays and has room."""
        migration, memory, now = job.migration, decision.memory, self.now()
        began = min((one.created for one in members if one.phase is Phase.RUNNING), default=now)
        if migration is None or not job.framework.is_elastic:
            return decision
        if not pays(migration, ran=(now - began).total_seconds(), moves=memory.moves):
            return _looking(decision, pays_at(migration, began=began, moves=memory.moves))
        if self.clock() < self._rest_until:
            return _looking(decision, now + PERIOD)
        labels = {name: objects.labels_of(node) for name, node in cluster[NODES].items()}
        found = list(moves_of(job, members, self.levels.paths(labels), self.levels.names))
        for move in found[:MOST_TRIED]:
            began_at = self.clock()
            nodes = room_for(job, move, cluster, self.terms())
            self._rest_until = self.clock() + SHARE * (self.clock() - began_at)
            if nodes is not None:
                log.info("training_job_moves", job=f"{job.namespace}/{job.name}", level=move.level)
                made = tuple(move_of(members, one, nodes, now=now) for one in move.members)
                return replace(decision, memory=_moved(memory, now), make=made)
        return _looking(decision, now + PERIOD) if found else decision


def _moved(memory: Memory, now: datetime) -> Memory:
    return replace(memory, moves=memory.moves + 1, moved=now)


def _looking(decision: Decision, at: datetime | None) -> Decision:
    looks = [look for look in (decision.look, at) if look is not None]
    return replace(decision, look=min(looks, default=None))


def room_for(job: TrainingJob, move: Move, cluster: Tables, terms: Terms) -> tuple[str, ...] | None:
    """The nodes that all who move would get beside everybody, None where not all would, or where a claim of
    theirs is not their own."""
    added_pods, added_claims = dict[str, Object](), dict[str, Object]()
    for member in move.members:
        old = cluster[PODS].get(f"{job.namespace}/{member.name}")
        names_of = {} if old is None else objects.pod_claim_names(old)
        templated = objects.mappings(objects.spec_of(old or {}).get("resourceClaims"))
        if old is None or any(one.get("resourceClaimName") for one in templated):
            return None
        pod = _twin(old, sorted(move.nodes))
        for entry, name in names_of.items():
            claim = None if name is None else cluster[RESOURCE_CLAIMS].get(f"{job.namespace}/{name}")
            if claim is None:
                return None
            twin = _twin_claim(claim, pod)
            added_claims[objects.key(twin)] = twin
            statuses = pod["status"]["resourceClaimStatuses"]
            statuses.append({"name": entry, "resourceClaimName": objects.name(twin)})
        added_pods[objects.key(pod)] = pod
    tables = {
        **cluster,
        PODS: {**cluster[PODS], **added_pods},
        RESOURCE_CLAIMS: {**cluster[RESOURCE_CLAIMS], **added_claims},
    }
    planned = forecast(tables, terms).planned
    if not added_claims or not added_claims.keys() <= planned.keys():
        return None
    nodes = {planned[key].node for key in added_claims}
    return tuple(sorted(node for node in nodes if node))


_MOVED: Final = "-moved"


def _twin(pod: Object, nodes: Sequence[str]) -> Object:
    """The pod as it would wait, kept to these nodes."""
    metadata, spec = objects.metadata(pod), objects.spec_of(pod)
    annotations = objects.annotations_of(pod)
    new = NewPod(0, moved=True, attempt=0, keep_to=tuple(nodes))
    return {
        **pod,
        "metadata": {
            **objects.without(metadata, "resourceVersion", "labels", "annotations"),
            "name": objects.name(pod) + _MOVED,
            "uid": objects.uid(pod) + _MOVED,
            "labels": objects.without(objects.labels_of(pod), REPLICA_LABEL),
            "annotations": {
                key: value for key, value in annotations.items() if not key.startswith(pods.GATE_DOMAIN)
            },
        },
        "spec": {
            **objects.without(spec, "nodeName"),
            "schedulingGates": [{"name": names.JOINT_GATE}],
            "affinity": pods.with_nodes(objects.fields(spec.get("affinity")), new),
        },
        "status": {"phase": "Pending", "resourceClaimStatuses": []},
    }


def _twin_claim(claim: Object, pod: Fields) -> Object:
    metadata = objects.metadata(claim)
    owner = {"apiVersion": "v1", "kind": "Pod", "name": objects.name(pod), "uid": objects.uid(pod)}
    return {
        **objects.without(claim, "status"),
        "metadata": {
            **objects.without(metadata, "resourceVersion", "finalizers"),
            "name": objects.name(claim) + _MOVED,
            "uid": objects.uid(claim) + _MOVED,
            "ownerReferences": [{**owner, "controller": True}],
        },
    }
