"""StatefulSets: pods with names that stay, made and removed in order.

    pods         `<set>-<ordinal>`, label with its ordinal and revision, host name and subdomain; claims for
                 volumes if asked
    OrderedReady one at a time: the next pod comes when all before it are running and available; the last one
                 goes first
    Parallel     all at once
    revisions    a ControllerRevision per template; from the last ordinal down to partition, a pod of an old
                 revision is deleted (and made anew) when all others are available.  OnDelete: only made anew
                 when somebody deletes it

A pod that ended is deleted and made again.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

from koordra.api import kinds
from koordra.api.objects import (
    Object,
    is_deleting,
    labels_of,
    metadata,
    name,
    namespace,
    pod_is_finished,
    spec_of,
    status_of,
    uid,
)
from koordra.errors import Conflict, NotFound
from koordra.kube.client import KubeClient
from koordra_devcluster.apiserver.resources import CONTROLLER_REVISIONS, STATEFUL_SETS
from koordra_devcluster.controllers.workloads import pods as pod_rules
from koordra_devcluster.controllers.workloads.owning import Ownership

REVISION_LABEL = "controller-revision-hash"


class StatefulSets:
    def __init__(self, client: KubeClient) -> None:
        self._own = Ownership(client, "statefulset-controller")
        self._client = client

    def sync(self, key: str) -> float | None:
        found = self._own.fresh(STATEFUL_SETS, key)
        if found is None:
            return None
        pods = {
            ordinal: pod
            for pod in self._own.owned(kinds.PODS, found)
            if (ordinal := _ordinal(found, pod)) is not None
        }
        revisions = self._revisions(found)
        update = revisions[-1]
        current = _current(found, pods, revisions)
        if not is_deleting(found):
            self._act(found, pods, current=current, update=update)
        self._forget_old(found, pods, revisions, {name(current), name(update)})
        return self._write_status(found, pods, current=current, update=update)

    # --- revisions ---

    def _revisions(self, owner: Object) -> list[Object]:
        """All revisions, oldest first; the last one is that of the present template."""
        data = {"spec": {"template": {**spec_of(owner)["template"], "$patch": "replace"}}}
        known = sorted(self._own.owned(CONTROLLER_REVISIONS, owner), key=lambda one: int(one["revision"]))
        same = [one for one in known if one.get("data") == data]
        if not same:
            return [
                *known,
                self._new_revision(owner, data, (len(known) and int(known[-1]["revision"]) + 1) or 1),
            ]
        latest = same[-1]
        if latest is known[-1]:
            return known
        number = int(known[-1]["revision"]) + 1
        moved = self._client.update(CONTROLLER_REVISIONS, {**latest, "revision": number})
        return [*(one for one in known if one is not latest), moved]

    def _new_revision(self, owner: Object, data: Object, number: int) -> Object:
        digest = pod_rules.template_hash(data, int(status_of(owner).get("collisionCount", 0)))
        template_labels = metadata(spec_of(owner)["template"]).get("labels") or {}
        body = {
            "apiVersion": CONTROLLER_REVISIONS.api_version,
            "kind": "ControllerRevision",
            "metadata": {
                "name": f"{name(owner)}-{digest}",
                "namespace": namespace(owner),
                "labels": {**template_labels, "controller.kubernetes.io/hash": digest},
                "ownerReferences": [pod_rules.reference_to(owner)],
            },
            "data": data,
            "revision": number,
        }
        return self._client.create(CONTROLLER_REVISIONS, body, namespace=namespace(owner))

    def _forget_old(
        self, owner: Object, pods: Mapping[int, Object], revisions: list[Object], live: set[str]
    ) -> None:
        used = live | {labels_of(pod).get(REVISION_LABEL, "") for pod in pods.values()}
        unused = [one for one in revisions if name(one) not in used]
        keep = int(spec_of(owner).get("revisionHistoryLimit", 10))
        for one in unused[: max(0, len(unused) - keep)]:
            try:
                self._client.delete(CONTROLLER_REVISIONS, name(one), namespace=namespace(owner), uid=uid(one))
            except NotFound:
                continue

    # --- pods ---

    def _act(self, owner: Object, pods: dict[int, Object], *, current: Object, update: Object) -> None:
        """One step where order matters, all steps where it does not; a change of a pod brings the next
        look."""
        ordered = spec_of(owner).get("podManagementPolicy", "OrderedReady") == "OrderedReady"
        wanted = _ordinals(owner)
        for ordinal in wanted:
            pod = pods.get(ordinal)
            if pod is not None and pod_is_finished(pod) and not is_deleting(pod):
                self._delete(owner, pod)
                if ordered:
                    return
            elif pod is None:
                pods[ordinal] = self._create(owner, ordinal, current=current, update=update)
                if ordered:
                    return
            elif ordered and not self._is_settled(owner, pod):
                return
        surplus = sorted((ordinal for ordinal in pods if ordinal not in wanted), reverse=True)
        for ordinal in surplus:
            if not is_deleting(pods[ordinal]):
                self._delete(owner, pods[ordinal])
            if ordered:
                return
        self._update(owner, pods, update)

    def _update(self, owner: Object, pods: Mapping[int, Object], update: Object) -> None:
        """The highest ordinal of an old revision goes, if all above it are settled."""
        strategy = spec_of(owner).get("updateStrategy") or {}
        if strategy.get("type", "RollingUpdate") != "RollingUpdate":
            return
        partition = int((strategy.get("rollingUpdate") or {}).get("partition", 0))
        for ordinal in sorted((one for one in _ordinals(owner) if one >= partition), reverse=True):
            pod = pods.get(ordinal)
            if pod is None or is_deleting(pod):
                return
            if labels_of(pod).get(REVISION_LABEL) != name(update):
                self._delete(owner, pod)
                return
            if not self._is_settled(owner, pod):
                return

    def _is_settled(self, owner: Object, pod: Object) -> bool:
        """Running and available, and not going."""
        seconds = int(spec_of(owner).get("minReadySeconds", 0))
        running = pod_rules.phase(pod) == "Running" and not is_deleting(pod)
        return running and pod_rules.available_in(pod, seconds, self._own.now()) == 0

    def _create(self, owner: Object, ordinal: int, *, current: Object, update: Object) -> Object:
        revision = update if self._gets_update(owner, ordinal, current) else current
        template = revision["data"]["spec"]["template"]
        pod_name = f"{name(owner)}-{ordinal}"
        labels = {
            "apps.kubernetes.io/pod-index": str(ordinal),
            "statefulset.kubernetes.io/pod-name": pod_name,
            REVISION_LABEL: name(revision),
        }
        pod = pod_rules.pod_from(template, owner, pod_name=pod_name, labels=labels)
        pod["metadata"]["generateName"] = f"{name(owner)}-"
        pod["spec"] |= {"hostname": pod_name}
        if spec_of(owner).get("serviceName"):
            pod["spec"]["subdomain"] = spec_of(owner)["serviceName"]
        self._claim_volumes(owner, pod)
        told = f"Create Pod {{}} in StatefulSet {name(owner)} successful"
        return self._own.create_pod(owner, pod, told=told)

    def _gets_update(self, owner: Object, ordinal: int, current: Object) -> bool:
        """A new pod below the partition keeps the current revision."""
        strategy = spec_of(owner).get("updateStrategy") or {}
        del current
        return ordinal >= int((strategy.get("rollingUpdate") or {}).get("partition", 0))

    def _claim_volumes(self, owner: Object, pod: Object) -> None:
        """A PersistentVolumeClaim per template of the set; it outlives the pod."""
        volumes: list[Object] = pod["spec"].setdefault("volumes", [])
        for template in spec_of(owner).get("volumeClaimTemplates") or ():
            claim = copy.deepcopy(template)
            claim_name = f"{name(template)}-{metadata(pod)['name']}"
            claim["metadata"] = {
                **metadata(template),
                "name": claim_name,
                "namespace": namespace(owner),
                "labels": {**labels_of(template), **(spec_of(owner)["selector"].get("matchLabels") or {})},
            }
            claim |= {"apiVersion": "v1", "kind": "PersistentVolumeClaim"}
            claim.pop("status", None)
            with suppress(Conflict):
                self._client.create(kinds.PERSISTENT_VOLUME_CLAIMS, claim, namespace=namespace(owner))
            volumes[:] = [one for one in volumes if one.get("name") != name(template)]
            volumes.append({"name": name(template), "persistentVolumeClaim": {"claimName": claim_name}})

    def _delete(self, owner: Object, pod: Object) -> None:
        told = f"Delete Pod {{}} in StatefulSet {name(owner)} successful"
        self._own.delete_pod(owner, pod, told=told)

    # --- status ---

    def _write_status(
        self, owner: Object, pods: Mapping[int, Object], *, current: Object, update: Object
    ) -> float | None:
        seconds = int(spec_of(owner).get("minReadySeconds", 0))
        made = [pod for pod in pods.values() if not pod_is_finished(pod)]
        running = [pod for pod in made if pod_rules.phase(pod) == "Running"]
        waits = [pod_rules.available_in(pod, seconds, self._own.now()) for pod in running]
        of_update = _of_revision([pod for pod in made if not is_deleting(pod)], update)
        of_current = _of_revision([pod for pod in made if not is_deleting(pod)], current)
        replicas = int(spec_of(owner).get("replicas", 1))
        if of_update == len(made) == replicas == sum(wait == 0 for wait in waits):
            current, of_current = update, of_update
        counts = {
            "replicas": len(made),
            "readyReplicas": sum(wait is not None for wait in waits),
            "availableReplicas": sum(wait == 0 for wait in waits),
            "currentReplicas": of_current,
            "updatedReplicas": of_update,
        }
        always = ("replicas", "availableReplicas")
        wanted: Object = {field: count for field, count in counts.items() if count or field in always}
        wanted |= {
            "collisionCount": int(status_of(owner).get("collisionCount", 0)),
            "currentRevision": name(current),
            "updateRevision": name(update),
            "observedGeneration": metadata(owner).get("generation", 1),
        }
        self._own.write_status(STATEFUL_SETS, owner, wanted)
        pending = [wait for wait in waits if wait]
        return min(pending) if pending else None


def _ordinals(owner: Object) -> range:
    first = int((spec_of(owner).get("ordinals") or {}).get("start", 0))
    return range(first, first + int(spec_of(owner).get("replicas", 1)))


def _ordinal(owner: Object, pod: Object) -> int | None:
    prefix, _, text = name(pod).rpartition("-")
    return int(text) if prefix == name(owner) and text.isdigit() else None


def _of_revision(pods: Sequence[Object], revision: Object) -> int:
    return sum(labels_of(pod).get(REVISION_LABEL) == name(revision) for pod in pods)


def _current(owner: Object, pods: Mapping[int, Any], revisions: Sequence[Object]) -> Object:
    """The revision that pods below the partition have; the newest one where there is no other."""
    del pods
    wanted = status_of(owner).get("currentRevision")
    return next((one for one in revisions if name(one) == wanted), revisions[-1])
