"""A TrainingJob, read: what its spec says, and what its status remembers. Pure.

    framework        elastic   who launches           complete when
    ---------------  --------  ---------------------  ------------------------------------------
    PyTorch          no        torchrun, static       every worker has ended well
    ElasticPyTorch   yes       torchrun, c10d         one worker has ended well, and none runs
    ElasticHorovod   yes       horovodrun (launcher)  the launcher has ended well
    MPI              no        mpirun (launcher)      the launcher has ended well

A static rendezvous counts its ranks at the start, and MPI reads its hostfile once: neither can take a worker
in, or let one go, while it runs. The CRD refuses other numbers of replicas for them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Final

from koordra.api import objects
from koordra.api.objects import Fields, Object
from koordra.errors import InvalidManifest

JOB_LABEL: Final = "koordra.io/training-job"
"""On pods: name of their TrainingJob. They belong to it by their controller reference alone."""
ROLE_LABEL: Final = "koordra.io/training-role"
REPLICA_LABEL: Final = "koordra.io/training-replica"
REPLACES: Final = "koordra.io/training-replaces"
"""Annotation of a pod that a replica moves to: the name of the pod that it takes the place of."""
UNTIL: Final = "koordra.io/training-until"
"""Annotation of a pod that is kept off, or to, some nodes: if it waits longer, it is made anew without."""
WORKER: Final = "worker"
LAUNCHER: Final = "launcher"
LAUNCHER_SLOT: Final = -1
MOST_REPLICAS: Final = 512
"""Also by how much the number of a moved replica differs from where it was."""
MOST_RELEASES: Final = 16


class Framework(StrEnum):
    PYTORCH = "PyTorch"
    ELASTIC_PYTORCH = "ElasticPyTorch"
    ELASTIC_HOROVOD = "ElasticHorovod"
    MPI = "MPI"

    @property
    def is_elastic(self) -> bool:
        return self in (Framework.ELASTIC_PYTORCH, Framework.ELASTIC_HOROVOD)

    @property
    def has_launcher(self) -> bool:
        return self in (Framework.ELASTIC_HOROVOD, Framework.MPI)


class State(StrEnum):
    WAITING = "Waiting"
    PENDING = "Pending"
    RUNNING = "Running"
    MIGRATING = "Migrating"
    COMPLETE = "Complete"
    FAILED = "Failed"

    @property
    def is_final(self) -> bool:
        return self in (State.COMPLETE, State.FAILED)


@dataclass(frozen=True, slots=True)
class Migration:
    """When a move pays (`moves`). `idle`: seconds for which the whole job waits while one goes on; `gain`:
    the part of its time that a domain of the network fewer is taken to save."""

    idle: float
    gain: float


@dataclass(frozen=True, slots=True)
class Release:
    """Places that were given up because their pods did not come up. `slots`: which; none means all of the
    job's. `nodes`: where they were, which new pods keep off for a while. Nothing is made before `until`."""

    at: datetime
    until: datetime
    slots: tuple[int, ...] = ()
    nodes: tuple[str, ...] = ()

    def covers(self, slot: int) -> bool:
        return not self.slots or slot in self.slots


@dataclass(frozen=True, slots=True)
class Memory:
    """What the job's status says that its pods may not tell any more. `ended`: the final state, None before.
    `moved`: of the last move."""

    ended: State | None = None
    releases: tuple[Release, ...] = ()
    moves: int = 0
    moved: datetime | None = None


@dataclass(frozen=True, slots=True)
class TrainingJob:
    """`template`, `launcher`: pod templates as they were written. `pending`: seconds after which a pod that
    has its place and does not run is given up. `gang`: further words for the gang, by annotation."""

    name: str
    namespace: str
    uid: str
    framework: Framework
    least: int
    most: int
    template: Fields
    launcher: Fields | None
    backoff_limit: int
    pending: float
    migration: Migration | None = None
    gang: Mapping[str, str] = field(default_factory=dict)

    @property
    def slots(self) -> Sequence[int]:
        """The replicas that the job wants to have, the launcher first."""
        first = (LAUNCHER_SLOT,) if self.framework.has_launcher else ()
        return (*first, *range(self.most))

    @property
    def gang_min(self) -> int:
        return self.least + self.framework.has_launcher


_GANG_WORDS: Final = {
    "topology": "koordra.io/gang-topology",
    "preferredTopology": "koordra.io/gang-topology-preferred",
    "shrink": "koordra.io/gang-shrink",
}


def read_job(obj: Object) -> TrainingJob:
    """Of an object that the CRD has let in, with its defaults. Raises InvalidManifest for another one (the
    CRD is older, or was changed)."""
    try:
        return _read(obj)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise InvalidManifest(
            f"is no TrainingJob that can be read: {error}",
            object=objects.describe(obj),
            field="spec",
            remedy="apply deploy/kustomize/training, and the job anew",
        ) from error


def _read(obj: Object) -> TrainingJob:
    spec = objects.spec_of(obj)
    migration = objects.fields(spec.get("migration"))
    return TrainingJob(
        objects.name(obj),
        objects.namespace(obj),
        objects.uid(obj),
        Framework(spec["framework"]),
        int(spec["minReplicas"]),
        int(spec["maxReplicas"]),
        spec["template"],
        spec.get("launcher"),
        int(spec.get("backoffLimit", 6)),
        float(spec.get("pendingSeconds", 600)),
        Migration(float(migration.get("idleSeconds", 60)), float(migration.get("gainPercent", 5)) / 100)
        if migration.get("policy") == "WhenItPays"
        else None,
        {
            name: str(spec[word])
            for word, name in _GANG_WORDS.items()
            if spec.get(word) not in (None, "", "Never")
        },
    )


def read_memory(obj: Object) -> Memory:
    """Only koordra writes the status; one that cannot be read counts as not there."""
    try:
        return _read_memory(obj)
    except (KeyError, TypeError, ValueError):
        return Memory()


def _read_memory(obj: Object) -> Memory:
    status = objects.status_of(obj)
    state = status.get("state")
    moves = objects.fields(status.get("moves"))
    releases = tuple(
        Release(
            time_of(one["at"]),
            time_of(one["until"]),
            tuple(one.get("replicas") or ()),
            tuple(one.get("nodes") or ()),
        )
        for one in objects.mappings(status.get("releases"))
    )
    return Memory(
        State(state) if state in (State.COMPLETE, State.FAILED) else None,
        releases,
        int(moves.get("count", 0)),
        time_of(moves["last"]) if moves.get("last") else None,
    )


def memory_fields(memory: Memory) -> Object:
    """As the status has them; None where there is nothing to remember."""
    releases = [
        objects.without_none(
            {
                "at": text_of(one.at),
                "until": text_of(one.until),
                "replicas": list(one.slots) or None,
                "nodes": list(one.nodes) or None,
            }
        )
        for one in memory.releases[-MOST_RELEASES:]
    ]
    moves = None if memory.moved is None else {"count": memory.moves, "last": text_of(memory.moved)}
    return {"releases": releases or None, "moves": moves}


def time_of(text: str) -> datetime:
    return datetime.fromisoformat(text)


def text_of(time: datetime) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ")
