"""Whom a gang's record belongs to: the object at the top of what makes its pods.

    pod ─controller─▶ Job ─controller─▶ JobSet        (also where a TrainJob made it: it suspends this one)
    pod ─controller─▶ StatefulSet ─controller─▶ pod (leader) ─controller─▶ StatefulSet ─▶ LeaderWorkerSet

A JobSet that restarts makes its Jobs anew, a LeaderWorkerSet the pods that own the workers: what belonged to
one of those would be gone with it. What stands above is read of the kinds below alone; of any other the
first that is met is the top.

A Job or JobSet that has ended, or is suspended (by Kueue, or by its user), makes no pods: nothing is held for
it. Its pods are deleted as it is suspended, so what they had is free at once; what was held before is given
up within LOOK_AGAIN seconds.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from koordra.api import objects
from koordra.api.kinds import Kind
from koordra.api.objects import Fields, Object
from koordra.api.tables import BoundedCache
from koordra.controller.allocation.pass_context import PassContext
from koordra.controller.gangs.membership import Gang
from koordra.controller.gangs.seats.recorded import controller_of

LOOK_AGAIN: Final = 15.0
"""Seconds between two looks at the owner of what is held."""

JOBSET: Final = "JobSet"
OWNED: Final = {
    kind.kind: kind
    for kind in (
        Kind("batch", "v1", "jobs", "Job"),
        Kind("jobset.x-k8s.io", "v1alpha2", "jobsets", JOBSET),
        Kind("apps", "v1", "statefulsets", "StatefulSet"),
        Kind("apps", "v1", "replicasets", "ReplicaSet"),
    )
}
"""Kinds that others make for their own purposes, or that say whether they go on; the controller may read
them."""
_MOST: Final = 8
"""Steps up; nobody's workloads are that deep."""

_ENDED: Final = frozenset({"Complete", "Completed", "Failed", "SuccessCriteriaMet", "FailureTarget"})
"""Conditions of Jobs, and of JobSets."""

Read = Callable[[Kind, str, str], Object | None]
"""(kind, name, namespace)."""


def is_over(owner: Fields, namespace: str, *, read: Read) -> bool:
    """Whether the Job or JobSet makes no pods any more: it has ended, or is suspended. Of other kinds nobody
    knows. Raises as `read` does."""
    kind = OWNED.get(str(owner.get("kind")))
    job = None if kind is None else read(kind, str(owner.get("name")), namespace)
    if job is None or objects.uid(job) != owner.get("uid"):
        return False
    conditions = objects.status_of(job).get("conditions") or ()
    ended = any(one.get("type") in _ENDED and one.get("status") == "True" for one in conditions)
    return ended or objects.spec_of(job).get("suspend") is True


def job_of(pod: Object, *, read: Read, pod_of: Callable[[str], Object | None]) -> Fields | None:
    """The owner reference to it, None where nobody makes the pod. `pod_of` by uid. Raises as `read` does."""
    found, here = controller_of(pod), objects.namespace(pod)
    for _ in range(_MOST):
        if found is None:
            return None
        if found.get("kind") == JOBSET:
            break
        kind, name = OWNED.get(str(found.get("kind"))), str(found.get("name"))
        if found.get("kind") == "Pod":
            above = pod_of(str(found.get("uid")))
        else:
            above = None if kind is None else read(kind, name, here)
        if above is None or objects.uid(above) != found.get("uid"):
            break
        higher = controller_of(above)
        if higher is None:
            break
        found = higher
    return {
        name: found[name]
        for name in ("apiVersion", "kind", "name", "uid")
        if found is not None and name in found
    }


class JobOwners:
    """Of the gangs that have seats. Not thread-safe."""

    def __init__(self, context: PassContext) -> None:
        self._context = context
        self._jobs = BoundedCache[str, Fields | None](4096)
        """By uid of a pod's controller."""
        self._look_at: dict[str, float] = {}
        """By gang for which something is held: when its owner is looked at again."""

    def forget(self, gang: str) -> None:
        self._look_at.pop(gang, None)

    def look_at(self, gang: str) -> float:
        """When its owner is to be looked at again."""
        return self._look_at[gang]

    def make_no_pods(self, gang: str, hold: Fields, *, look: bool) -> bool:
        """Whether nobody makes lost members again; looked at now and then, and if it is `look`, now. Raises
        ApiUnreachable."""
        clock = self._context.clock()
        if not look and clock < self._look_at.get(gang, 0.0):
            return False
        self._look_at[gang] = clock + LOOK_AGAIN
        owners = objects.metadata(hold).get("ownerReferences") or ()
        read, namespace = self._context.writer.owner_of, objects.namespace(hold)
        return any(is_over(owner, namespace, read=read) for owner in owners)

    def job_of(self, gang: Gang) -> Fields | None:
        """Whom the gang's record belongs to, None where nobody makes its pods. Raises ApiUnreachable."""
        entries = self._context.cache.pod_index.entries
        for member in gang.members:
            maker = controller_of(member.pod)
            if maker is not None:
                uid = str(maker.get("uid"))
                if uid not in self._jobs:
                    self._jobs[uid] = job_of(
                        member.pod,
                        read=self._context.writer.owner_of,
                        pod_of=lambda one: entries[one].pod if one in entries else None,
                    )
                return self._jobs[uid]
        return None
