"""The workload loops, and that of their disruption budgets, over shared informers: which change wakes which
loop."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from functools import partial
from typing import Final

from koordra.api import kinds
from koordra.api.kinds import Kind
from koordra.api.objects import Object, key, labels_of, metadata, namespace, spec_of
from koordra.kube.client import KubeClient
from koordra.process import lifecycle
from koordra_devcluster.apiserver.resources import DEPLOYMENTS, JOBS, REPLICA_SETS, STATEFUL_SETS
from koordra_devcluster.apiserver.storage.eviction import covers
from koordra_devcluster.apiserver.storage.selectors import label_selector_matches
from koordra_devcluster.controllers.informers import Informers
from koordra_devcluster.controllers.workloads.budgets import DisruptionBudgets
from koordra_devcluster.controllers.workloads.deployments import Deployments
from koordra_devcluster.controllers.workloads.jobs import FIRST_BACKOFF, Jobs
from koordra_devcluster.controllers.workloads.pods import controller_of
from koordra_devcluster.controllers.workloads.replicasets import ReplicaSets
from koordra_devcluster.controllers.workloads.statefulsets import StatefulSets
from koordra_devcluster.controllers.workqueue import WorkQueue

WATCHED: Final = (
    kinds.PODS,
    DEPLOYMENTS,
    REPLICA_SETS,
    STATEFUL_SETS,
    JOBS,
    kinds.POD_DISRUPTION_BUDGETS,
)
OWNERS: Final = WATCHED[1:-1]
Sync = Callable[[str], float | None]


class WorkloadLoops:
    """Deployments, ReplicaSets, StatefulSets, Jobs and PodDisruptionBudgets (kinds: WATCHED).
    `first_backoff`: of a Job's failed pods."""

    def __init__(
        self, client: KubeClient, informers: Informers, *, first_backoff: float = FIRST_BACKOFF
    ) -> None:
        loops: Mapping[Kind, Sync] = {
            DEPLOYMENTS: Deployments(client).sync,
            REPLICA_SETS: ReplicaSets(client).sync,
            STATEFUL_SETS: StatefulSets(client).sync,
            JOBS: Jobs(client, first_backoff=first_backoff).sync,
            kinds.POD_DISRUPTION_BUDGETS: DisruptionBudgets(client).sync,
        }
        self._informers = informers
        self._queues = {kind: WorkQueue(kind.plural, sync) for kind, sync in loops.items()}
        for kind in loops:
            informers.listen(kind, partial(self._changed, kind))
        informers.listen(REPLICA_SETS, self._dependent_changed)
        informers.listen(kinds.PODS, self._dependent_changed)
        informers.listen(kinds.PODS, self._covered_changed)

    def start(self, stop: threading.Event) -> None:
        """Call once the informers are synced."""
        for kind, queue in self._queues.items():
            lifecycle.spawn(partial(queue.run, stop), name=f"loop-{kind.plural}")

    def _changed(self, kind: Kind, _event: str, obj: Object, /) -> None:
        self._queues[kind].add(key(obj))

    def _dependent_changed(self, _event: str, obj: Object, /) -> None:
        """Wakes the controller of a pod or ReplicaSet; an orphan wakes those that may adopt it."""
        owner = controller_of(obj)
        if owner is not None:
            self._wake_owner(owner, namespace(obj))
        elif metadata(obj).get("labels"):
            self._wake_adopters(obj)

    def _covered_changed(self, _event: str, pod: Object, /) -> None:
        for budget in self._informers.objects(kinds.POD_DISRUPTION_BUDGETS):
            if namespace(budget) == namespace(pod) and covers(budget, pod):
                self._queues[kinds.POD_DISRUPTION_BUDGETS].add(key(budget))

    def _wake_owner(self, owner: Object, place: str) -> None:
        for kind, queue in self._queues.items():
            if (owner.get("apiVersion"), owner.get("kind")) == (kind.api_version, kind.kind):
                queue.add(f"{place}/{owner['name']}")
                self._wake_grandparent(kind, f"{place}/{owner['name']}")

    def _wake_grandparent(self, kind: Kind, owner_key: str) -> None:
        """A Deployment that recreates waits for the pods of its ReplicaSets to end."""
        parent = self._informers.get(kind, owner_key) if kind == REPLICA_SETS else None
        owner = controller_of(parent) if parent else None
        if parent is not None and owner is not None and owner.get("kind") == DEPLOYMENTS.kind:
            self._queues[DEPLOYMENTS].add(f"{namespace(parent)}/{owner['name']}")

    def _wake_adopters(self, obj: Object) -> None:
        for kind, queue in self._queues.items():
            for candidate in self._informers.objects(kind) if kind in OWNERS else ():
                selector = spec_of(candidate).get("selector") or {}
                if (
                    selector
                    and namespace(candidate) == namespace(obj)
                    and label_selector_matches(selector, labels_of(obj))
                ):
                    queue.add(key(candidate))
