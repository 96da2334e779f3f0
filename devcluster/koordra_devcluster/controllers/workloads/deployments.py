"""Deployments: a ReplicaSet for each template, rolled over as the strategy says.

    no set for the template      ─> one is made, with the next revision; an old one that fits again is taken
                                    (rollback)
    replicas changed             ─> scaled at once, in the middle of a rollout in proportion
    RollingUpdate / Recreate     ─> rollout.py says what each set may have
    done                         ─> sets without pods beyond revisionHistoryLimit are removed
    status                       ─> counts, Available, Progressing (also after progressDeadlineSeconds
                                    without progress)

A paused Deployment is scaled, but does not roll.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from koordra.api import kinds
from koordra.api.objects import (
    Object,
    annotations_of,
    is_deleting,
    metadata,
    name,
    namespace,
    spec_of,
    status_of,
    uid,
)
from koordra.errors import Conflict, NotFound
from koordra.kube.client import KubeClient
from koordra_devcluster.apiserver.resources import DEPLOYMENTS, REPLICA_SETS
from koordra_devcluster.controllers.workloads import conditions, rollout
from koordra_devcluster.controllers.workloads import pods as pod_rules
from koordra_devcluster.controllers.workloads.owning import Ownership

_NOT_COPIED = ("kubectl.kubernetes.io/last-applied-configuration", rollout.REVISION, rollout.DESIRED, rollout.MOST,
               "deployment.kubernetes.io/revision-history", "deprecated.deployment.rollback.to")  # fmt: skip


@dataclass(slots=True)
class _Sets:
    """The Deployment's ReplicaSets at this moment. `new` is None until the template has one."""

    new: Object | None
    old: list[Object]

    @property
    def all(self) -> list[Object]:
        return [*([self.new] if self.new else []), *self.old]


class Deployments:
    def __init__(self, client: KubeClient) -> None:
        self._own = Ownership(client, "deployment-controller")
        self._client = client

    def sync(self, key: str) -> float | None:
        deployment = self._own.fresh(DEPLOYMENTS, key)
        if deployment is None:
            return None
        found = rollout.by_age(self._own.owned(REPLICA_SETS, deployment))
        new = next((one for one in found if rollout.same_template(one, deployment)), None)
        sets = _Sets(new, [one for one in found if one is not new])
        if is_deleting(deployment):
            return self._write_status(deployment, sets)
        paused = bool(spec_of(deployment).get("paused"))
        if paused or self._is_scaling(deployment, sets):
            if not paused:
                self._take_revision(deployment, sets)
            self._scale_in_proportion(deployment, sets)
        elif (spec_of(deployment).get("strategy") or {}).get("type") == "Recreate":
            self._recreate(deployment, sets)
        else:
            self._roll(deployment, sets)
        if self._is_complete(deployment, sets) and not paused:
            self._forget_old(deployment, sets)
        return self._write_status(deployment, sets)

    # --- sets ---

    def _is_scaling(self, deployment: Object, sets: _Sets) -> bool:
        """Whether spec.replicas changed since the sets were last scaled."""
        asked = str(spec_of(deployment).get("replicas", 1))
        return any(
            rollout.wanted(one) and annotations_of(one).get(rollout.DESIRED) not in (None, asked)
            for one in sets.all
        )

    def _take_revision(self, deployment: Object, sets: _Sets) -> None:
        """The new set, with the highest revision; the Deployment's own annotation follows."""
        following = max((rollout.revision(one) for one in sets.old), default=0) + 1
        if sets.new is None:
            sets.new = self._create_set(deployment, sets, following)
        elif rollout.revision(sets.new) < following:
            annotations = {rollout.REVISION: str(following)}
            sets.new = self._annotate(REPLICA_SETS, sets.new, annotations)
        text = str(rollout.revision(sets.new))
        if annotations_of(deployment).get(rollout.REVISION) != text:
            changed = self._annotate(DEPLOYMENTS, deployment, {rollout.REVISION: text})
            deployment["metadata"] = changed["metadata"]

    def _annotate(self, kind: kinds.Kind, obj: Object, annotations: dict[str, str]) -> Object:
        patch = {"metadata": {"uid": uid(obj), "annotations": annotations}}
        return self._client.patch(kind, name(obj), patch, namespace=namespace(obj))

    def _create_set(self, deployment: Object, sets: _Sets, revision: int) -> Object:
        template = copy.deepcopy(dict(spec_of(deployment)["template"]))
        digest = pod_rules.template_hash(template, int(status_of(deployment).get("collisionCount", 0)))
        labels = {**(metadata(template).get("labels") or {}), rollout.HASH_LABEL: digest}
        template["metadata"] = {**metadata(template), "labels": labels}
        selector = copy.deepcopy(dict(spec_of(deployment)["selector"]))
        selector["matchLabels"] = {**(selector.get("matchLabels") or {}), rollout.HASH_LABEL: digest}
        allowed = rollout.limits(deployment)
        replicas = self._first_replicas(deployment, sets, allowed)
        body: Object = {
            "apiVersion": REPLICA_SETS.api_version,
            "kind": "ReplicaSet",
            "metadata": {
                "name": f"{name(deployment)}-{digest}",
                "namespace": namespace(deployment),
                "labels": labels,
                "annotations": {
                    **{
                        key: text
                        for key, text in annotations_of(deployment).items()
                        if key not in _NOT_COPIED
                    },
                    **_scale_notes(allowed),
                    rollout.REVISION: str(revision),
                },
                "ownerReferences": [pod_rules.reference_to(deployment)],
            },
            "spec": {"replicas": replicas, "selector": selector, "template": template},
        }
        if spec_of(deployment).get("minReadySeconds"):
            body["spec"]["minReadySeconds"] = spec_of(deployment)["minReadySeconds"]
        try:
            made = self._client.create(REPLICA_SETS, body, namespace=namespace(deployment))
        except Conflict:
            self._count_collision(deployment)
            raise
        if replicas:
            self._tell_scaled(deployment, made, 0, replicas)
        return made

    def _first_replicas(self, deployment: Object, sets: _Sets, allowed: rollout.Limits) -> int:
        if (spec_of(deployment).get("strategy") or {}).get("type") == "Recreate":
            return 0 if self._pods_of(sets.old) else allowed.replicas
        return max(0, min(allowed.most - sum(map(rollout.wanted, sets.old)), allowed.replicas))

    def _count_collision(self, deployment: Object) -> None:
        """The name is taken by a set of another template, or another owner: the next hash takes another
        way."""
        count = int(status_of(deployment).get("collisionCount", 0)) + 1
        self._own.write_status(DEPLOYMENTS, deployment, {**status_of(deployment), "collisionCount": count})

    def _scale_in_proportion(self, deployment: Object, sets: _Sets) -> None:
        allowed = rollout.limits(deployment)
        active = [one for one in sets.all if rollout.wanted(one)]
        if len(active) <= 1:
            only = active[0] if active else sets.new
            if only is not None:
                self._scale(deployment, sets, only, allowed.replicas)
            return
        for one in active:
            count = rollout.proportions(allowed, active).get(uid(one), rollout.wanted(one))
            self._scale(deployment, sets, one, count)

    def _roll(self, deployment: Object, sets: _Sets) -> None:
        self._take_revision(deployment, sets)
        assert sets.new is not None
        allowed = rollout.limits(deployment)
        changed = rollout.scaled(allowed, sets.new, [one for one in sets.old if rollout.wanted(one)])
        by_uid = {uid(one): one for one in sets.all}
        for set_uid, count in changed.items():
            self._scale(deployment, sets, by_uid[set_uid], count)

    def _recreate(self, deployment: Object, sets: _Sets) -> None:
        for one in [one for one in sets.old if rollout.wanted(one)]:
            self._scale(deployment, sets, one, 0)
        if self._pods_of(sets.old):
            return
        self._take_revision(deployment, sets)
        assert sets.new is not None
        self._scale(deployment, sets, sets.new, rollout.limits(deployment).replicas)

    def _pods_of(self, sets: Sequence[Object]) -> bool:
        """Whether a pod of these sets may still run."""
        owners = {uid(one) for one in sets}
        if not owners:
            return False
        pods, _ = self._client.list(kinds.PODS, namespace=namespace(sets[0]))
        return any(
            (pod_rules.controller_of(pod) or {}).get("uid") in owners
            and pod_rules.phase(pod) not in ("Succeeded", "Failed")
            for pod in pods
        )

    def _scale(self, deployment: Object, sets: _Sets, one: Object, count: int) -> None:
        """Also writes what the count was worked out from, so that a later change of replicas is seen."""
        notes = _scale_notes(rollout.limits(deployment))
        noted = all(annotations_of(one).get(key) == text for key, text in notes.items())
        before = rollout.wanted(one)
        if before == count and noted:
            return
        body = {
            **one,
            "metadata": {**metadata(one), "annotations": {**annotations_of(one), **notes}},
            "spec": {**spec_of(one), "replicas": count},
        }
        changed = self._client.update(REPLICA_SETS, body)
        if sets.new is one:
            sets.new = changed
        else:
            sets.old[sets.old.index(one)] = changed
        if before != count:
            self._tell_scaled(deployment, one, before, count)

    def _tell_scaled(self, deployment: Object, one: Object, before: int, count: int) -> None:
        way = "up" if count > before else "down"
        message = f"Scaled {way} replica set {name(one)} from {before} to {count}"
        self._own.recorder.event(deployment, "ScalingReplicaSet", message)

    def _forget_old(self, deployment: Object, sets: _Sets) -> None:
        keep = int(spec_of(deployment).get("revisionHistoryLimit", 10))
        idle = [one for one in sets.old if not is_deleting(one) and _is_idle(one)]
        for one in sorted(idle, key=rollout.revision)[: max(0, len(idle) - keep)]:
            try:
                self._client.delete(REPLICA_SETS, name(one), namespace=namespace(one), uid=uid(one))
            except NotFound:
                continue

    # --- status ---

    def _is_complete(self, deployment: Object, sets: _Sets) -> bool:
        """The newest template has all the pods, all available, and no other set has any."""
        replicas = rollout.limits(deployment).replicas
        new = sets.new
        return (
            new is not None
            and rollout.counted(new) == replicas
            and rollout.counted(new, "availableReplicas") == replicas
            and all(not rollout.counted(one) for one in sets.old)
        )

    def _write_status(self, deployment: Object, sets: _Sets) -> float | None:
        counts = {
            "replicas": sum(rollout.counted(one) for one in sets.all),
            "updatedReplicas": rollout.counted(sets.new) if sets.new else 0,
            "readyReplicas": sum(rollout.counted(one, "readyReplicas") for one in sets.all),
            "availableReplicas": sum(rollout.counted(one, "availableReplicas") for one in sets.all),
        }
        total = sum(map(rollout.wanted, sets.all))
        counts["unavailableReplicas"] = max(0, total - counts["availableReplicas"])
        wanted: Object = {field: count for field, count in counts.items() if count}
        wanted["terminatingReplicas"] = sum(rollout.counted(one, "terminatingReplicas") for one in sets.all)
        wanted["observedGeneration"] = metadata(deployment).get("generation", 1)
        if status_of(deployment).get("collisionCount"):
            wanted["collisionCount"] = status_of(deployment)["collisionCount"]
        wanted["conditions"], again = self._conditions(deployment, sets, wanted)
        self._own.write_status(DEPLOYMENTS, deployment, wanted)
        return again

    def _conditions(
        self, deployment: Object, sets: _Sets, wanted: Object
    ) -> tuple[list[Object], float | None]:
        now = self._own.timestamp()
        enough = int(wanted.get("availableReplicas", 0)) >= rollout.limits(deployment).least_available
        found = conditions.replaced(
            status_of(deployment).get("conditions") or (),
            "Available",
            "True" if enough else "False",
            reason="MinimumReplicasAvailable" if enough else "MinimumReplicasUnavailable",
            message=f"Deployment {'has' if enough else 'does not have'} minimum availability.",
            now=now,
            updated="lastUpdateTime",
        )
        return self._progressing(deployment, sets, wanted, found)

    def _progressing(
        self, deployment: Object, sets: _Sets, wanted: Object, found: list[Object]
    ) -> tuple[list[Object], float | None]:
        """How the rollout goes. Progress is any more of the new pods, or any fewer of the old ones."""
        new, limit = sets.new, float(spec_of(deployment).get("progressDeadlineSeconds", 600))
        earlier = conditions.found(found, "Progressing")
        about = f'ReplicaSet "{name(new)}"' if new else f'Deployment "{name(deployment)}"'
        if self._is_complete(deployment, sets):
            told = ("True", "NewReplicaSetAvailable", f"{about} has successfully progressed.")
            return self._told(found, *told), None
        if spec_of(deployment).get("paused"):
            return self._told(found, "Unknown", "DeploymentPaused", "Deployment is paused"), None
        if earlier.get("reason") == "NewReplicaSetAvailable" and _only_new(wanted):
            return found, None
        started = earlier.get("reason") in ("ReplicaSetUpdated", "ProgressDeadlineExceeded")
        if not started or _progressed(status_of(deployment), wanted):
            told = ("True", "ReplicaSetUpdated", f"{about} is progressing.")
            return self._told(found, *told, anew=True), limit
        since = datetime.fromisoformat(str(earlier["lastUpdateTime"]))
        left = limit - (self._own.now() - since).total_seconds()
        if left > 0 or earlier.get("status") != "True":
            return found, max(left, 1.0) if left > 0 else None
        told = ("False", "ProgressDeadlineExceeded", f"{about} has timed out progressing.")
        return self._told(found, *told), None

    def _told(
        self, found: list[Object], status: str, reason: str, message: str, *, anew: bool = False
    ) -> list[Object]:
        """The Progressing condition set; `anew`: its update time moves even when nothing else does."""
        now = self._own.timestamp()
        told = conditions.replaced(
            found, "Progressing", status, reason=reason, message=message, now=now, updated="lastUpdateTime"
        )
        if not anew:
            return told
        return [one | {"lastUpdateTime": now} if one["type"] == "Progressing" else one for one in told]


def _only_new(status: Mapping[str, Any]) -> bool:
    return int(status.get("replicas", 0)) == int(status.get("updatedReplicas", 0))


def _progressed(before: Mapping[str, Any], now: Mapping[str, Any]) -> bool:
    def old(status: Mapping[str, Any]) -> int:
        return int(status.get("replicas", 0)) - int(status.get("updatedReplicas", 0))

    more = any(
        int(now.get(field, 0)) > int(before.get(field, 0))
        for field in ("updatedReplicas", "readyReplicas", "availableReplicas")
    )
    return more or old(now) < old(before)


def _scale_notes(allowed: rollout.Limits) -> dict[str, str]:
    return {rollout.DESIRED: str(allowed.replicas), rollout.MOST: str(allowed.most)}


def _is_idle(one: Object) -> bool:
    return not rollout.wanted(one) and not rollout.counted(one)
