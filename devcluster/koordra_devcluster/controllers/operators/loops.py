"""The operators' loops over shared informers: an object of theirs that comes or changes wakes the one that
makes its pods."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Final

from koordra.api.kinds import Kind
from koordra.api.objects import Object, is_deleting, key, labels_of, name, namespace, spec_of
from koordra.errors import Conflict, NotFound
from koordra.kube.client import KubeClient
from koordra.process import lifecycle
from koordra_devcluster.apiserver.resources import CRDS, JOBS
from koordra_devcluster.controllers.informers import Informers
from koordra_devcluster.controllers.operators import QUEUE, jobset, training, volcano
from koordra_devcluster.controllers.operators.definitions import (
    JOB_SETS,
    MPI_JOBS,
    PYTORCH_JOBS,
    VOLCANO_JOBS,
    definitions,
)
from koordra_devcluster.controllers.operators.making import Making
from koordra_devcluster.controllers.workqueue import WorkQueue

Sync = Callable[[Making, Object], None]


def _admit(making: Making, job: Object) -> None:
    """Kueue lets a Job of a queue start: there is room."""
    if QUEUE in labels_of(job) and spec_of(job).get("suspend"):
        started = {"spec": {"suspend": False}}
        making.client.patch(JOBS, name(job), started, namespace=namespace(job))


_SYNCS: Final[Mapping[str, Mapping[Kind, Sync]]] = {
    "jobset": {JOB_SETS: jobset.sync},
    "kueue": {JOBS: _admit},
    "training-operator": {PYTORCH_JOBS: training.sync_pytorch, MPI_JOBS: training.sync_mpi},
    "volcano": {VOLCANO_JOBS: volcano.sync},
    "multus": {},
}


def install(client: KubeClient, operators: Sequence[str]) -> None:
    """Their definitions; what is there already stays."""
    for definition in (one for operator in operators for one in definitions(operator)):
        try:
            client.create(CRDS, definition)
        except Conflict:
            continue


def watched(operators: Sequence[str]) -> list[Kind]:
    return [kind for operator in operators for kind in _SYNCS[operator]]


class OperatorLoops:
    """One queue for each kind. The kinds are served: `install` comes first."""

    def __init__(self, client: KubeClient, informers: Informers, operators: Sequence[str]) -> None:
        self._client = client
        self._queues = {
            kind: WorkQueue(
                f"{operator}-{kind.plural}", partial(self._work, kind, sync, Making(client, operator))
            )
            for operator in operators
            for kind, sync in _SYNCS[operator].items()
        }
        for kind in self._queues:
            informers.listen(kind, partial(self._changed, kind))

    def start(self, stop: threading.Event) -> None:
        for kind, queue in self._queues.items():
            lifecycle.spawn(partial(queue.run, stop), name=f"operator-{kind.plural}")

    def _changed(self, kind: Kind, _event: str, obj: Object, /) -> None:
        self._queues[kind].add(key(obj))

    def _work(self, kind: Kind, sync: Sync, making: Making, called: str) -> None:
        place, _, own = called.partition("/")
        try:
            obj = self._client.get(kind, own, namespace=place)
        except NotFound:
            return
        if not is_deleting(obj):
            sync(making, {**obj, **kind.type_meta})
