"""The ResourceClaim loops of kube-controller-manager, as observed on real clusters.

pod    ──> a claim for every template entry of spec.resourceClaims, also while the pod is gated:
           name `<pod>-<entry>-xxxxx`, annotation, owner; noted in pod.status.resourceClaimStatuses
       ──> a pod with a preset node is entered into reservedFor of its allocated claims
claim  ──> consumers that ended or vanished leave reservedFor
       ──> when that empties it and the builtin finalizer is there: allocation is cleared in the same write
       ──> a claim that was allocated but never reserved is left alone
       ──> a deleting claim without consumers: allocation cleared, then the builtin finalizer removed
       ──> a template claim without consumers whose pod ended or is gone: deleted
"""

from __future__ import annotations

import threading
from typing import Any

from koordra.api import kinds
from koordra.api.names import DELETE_PROTECTION, POD_CLAIM_NAME
from koordra.api.objects import (
    Object,
    annotations_of,
    is_deleting,
    key,
    metadata,
    name,
    pod_is_finished,
    spec_of,
    status_of,
    uid,
)
from koordra.errors import Forbidden, Invalid, NotFound
from koordra.kube.client import KubeClient
from koordra.logs import get_logger
from koordra.process import lifecycle
from koordra_devcluster.apiserver.resources import POD_GROUPS
from koordra_devcluster.controllers import group_claims
from koordra_devcluster.controllers.informers import Informers
from koordra_devcluster.controllers.recorder import Recorder
from koordra_devcluster.controllers.workqueue import WorkQueue

log = get_logger(__name__)

STRATEGIC_MERGE_PATCH = "application/strategic-merge-patch+json"
WATCHED = (kinds.PODS, kinds.RESOURCE_CLAIMS, kinds.RESOURCE_CLAIM_TEMPLATES)


def pod_is_done(pod: Object) -> bool:
    """No container will run (again): finished, or deleted before it got a node."""
    return pod_is_finished(pod) or (is_deleting(pod) and not spec_of(pod).get("nodeName"))


def owning_pod_uid(claim: Object) -> str | None:
    """uid of the pod that a claim was made for from a template."""
    for owner in metadata(claim).get("ownerReferences") or ():
        if owner.get("controller") and owner.get("kind") == "Pod":
            return str(owner.get("uid"))
    return None


def claim_for(pod: Object, entry: Object, template: Object) -> Object:
    """The claim that a template entry of a pod stands for, with name prefix, annotation and owner."""
    form = spec_of(template)
    wanted = form.get("metadata") or {}
    return {
        "apiVersion": kinds.RESOURCE_CLAIMS.api_version,
        "kind": "ResourceClaim",
        "metadata": {
            "generateName": f"{name(pod)}-{entry['name']}-",
            "namespace": metadata(pod)["namespace"],
            "annotations": {**(wanted.get("annotations") or {}), POD_CLAIM_NAME: entry["name"]},
            "labels": dict(wanted.get("labels") or {}),
            "ownerReferences": [
                {
                    "apiVersion": "v1",
                    "kind": "Pod",
                    "name": name(pod),
                    "uid": uid(pod),
                    "controller": True,
                    "blockOwnerDeletion": True,
                }
            ],
        },
        "spec": form.get("spec") or {},
    }


class ClaimLoops:
    """Both loops over shared informers (kinds: WATCHED; `groups`: and PodGroups)."""

    def __init__(self, client: KubeClient, informers: Informers, *, groups: bool = False) -> None:
        self._client = client
        self._has_groups = groups
        self._informers = informers
        self._recorder = Recorder(client, "resource-claim-controller")
        self._pods = WorkQueue("claims-of-pods", self._sync_pod)
        self._claims = WorkQueue("claims", self._sync_claim)
        self._created: dict[tuple[str, str], str] = {}
        informers.listen(kinds.PODS, self._pod_changed)
        informers.listen(kinds.RESOURCE_CLAIMS, self._claim_changed)
        informers.listen(kinds.RESOURCE_CLAIM_TEMPLATES, self._template_changed)
        if groups:
            informers.listen(POD_GROUPS, self._group_changed)

    def start(self, stop: threading.Event) -> None:
        """Call once the informers are synced."""
        lifecycle.spawn(lambda: self._pods.run(stop), name="claims-of-pods")
        lifecycle.spawn(lambda: self._claims.run(stop), name="claims")

    # --- what wakes the loops ---

    def _pod_changed(self, event: str, pod: Object, /) -> None:
        if event != "DELETED":
            if spec_of(pod).get("resourceClaims"):
                self._pods.add(key(pod))
            if not pod_is_done(pod):
                return
        for claim in self._informers.objects(kinds.RESOURCE_CLAIMS):
            consumers = {entry.get("uid") for entry in status_of(claim).get("reservedFor") or ()}
            if uid(pod) in consumers or owning_pod_uid(claim) == uid(pod):
                self._claims.add(key(claim))

    def _claim_changed(self, event: str, claim: Object, /) -> None:
        self._claims.add(key(claim))
        owner = owning_pod_uid(claim)
        for pod in self._informers.objects(kinds.PODS):
            if (event == "DELETED" and uid(pod) == owner) or (
                spec_of(pod).get("nodeName") and not pod_is_done(pod) and name(claim) in _claim_names(pod)
            ):
                self._pods.add(key(pod))

    def _template_changed(self, event: str, template: Object, /) -> None:
        if event == "ADDED":
            for pod in self._informers.objects(kinds.PODS):
                if any(
                    entry.get("resourceClaimTemplateName") == name(template)
                    for entry in spec_of(pod).get("resourceClaims") or ()
                ):
                    self._pods.add(key(pod))

    # --- pods ---

    def _sync_pod(self, pod_key: str) -> None:
        pod = self._informers.get(kinds.PODS, pod_key)
        if pod is None or pod_is_done(pod) or is_deleting(pod):
            return
        made: list[Object] = []
        group = self._group_of(pod)
        if group is None:
            return
        for entry in spec_of(pod).get("resourceClaims") or ():
            if entry.get("resourceClaimTemplateName"):
                if group_claims.shared_entry(entry, group):
                    claim_name = group_claims.noted_claim(group, entry["name"])
                else:
                    claim_name = self._ensure_claim(pod, entry)
                if claim_name is not None:
                    made.append({"name": entry["name"], "resourceClaimName": claim_name})
        if made and made != [one for one in status_of(pod).get("resourceClaimStatuses") or () if one in made]:
            self._client.patch(
                kinds.PODS,
                name(pod),
                {"metadata": {"uid": uid(pod)}, "status": {"resourceClaimStatuses": made}},
                namespace=metadata(pod)["namespace"],
                subresource="status",
                content_type=STRATEGIC_MERGE_PATCH,
            )
        if spec_of(pod).get("nodeName"):
            self._reserve(pod)

    def _group_of(self, pod: Object) -> Object | None:
        """The pod's PodGroup, nothing where it has none, or the server has no such kind; None until it is
        seen: only then is it known whose claims the pod's are."""
        named = group_claims.group_name(pod)
        if not named or not self._has_groups:
            return {}
        return self._informers.get(POD_GROUPS, f"{metadata(pod)['namespace']}/{named}")

    def _group_changed(self, _event: str, group: Object, /) -> None:
        for pod in self._informers.objects(kinds.PODS):
            if group_claims.group_name(pod) == name(group):
                self._pods.add(key(pod))

    def _ensure_claim(self, pod: Object, entry: Object) -> str | None:
        """Name of the claim of a template entry; it is created where there is none."""
        for claim in self._informers.objects(kinds.RESOURCE_CLAIMS):
            if (
                owning_pod_uid(claim) == uid(pod)
                and annotations_of(claim).get(POD_CLAIM_NAME) == entry["name"]
            ):
                self._created.pop((uid(pod), entry["name"]), None)
                return name(claim)
        known = self._created.get((uid(pod), entry["name"]))
        if known is not None and self._exists(pod, known):
            return known
        namespace = metadata(pod)["namespace"]
        try:
            template = self._client.get(
                kinds.RESOURCE_CLAIM_TEMPLATES, entry["resourceClaimTemplateName"], namespace=namespace
            )
            claim = self._client.create(
                kinds.RESOURCE_CLAIMS, claim_for(pod, entry, template), namespace=namespace
            )
        except (NotFound, Invalid, Forbidden) as error:
            problem = f"PodResourceClaim {entry['name']}: failed to create ResourceClaim: {error.message}"
            self._recorder.event(pod, "FailedResourceClaimCreation", problem, warning=True)
            raise
        self._created[(uid(pod), entry["name"])] = name(claim)
        log.info("claim_created", claim=key(claim), pod=key(pod))
        return name(claim)

    def _exists(self, pod: Object, claim_name: str) -> bool:
        try:
            self._client.get(kinds.RESOURCE_CLAIMS, claim_name, namespace=metadata(pod)["namespace"])
        except NotFound:
            return False
        return True

    def _reserve(self, pod: Object) -> None:
        """A pod that was given its node by someone other than the scheduler still has to be a consumer."""
        namespace = metadata(pod)["namespace"]
        for claim_name in _claim_names(pod):
            claim = self._informers.get(kinds.RESOURCE_CLAIMS, f"{namespace}/{claim_name}")
            if claim is None or is_deleting(claim) or status_of(claim).get("allocation") is None:
                continue
            reserved = list(status_of(claim).get("reservedFor") or ())
            consumer = group_claims.consumer(claim, pod)
            if any(entry.get("uid") == consumer["uid"] for entry in reserved):
                continue
            reserved.append(consumer)
            self._write_status(claim, {**status_of(claim), "reservedFor": reserved})

    # --- claims ---

    def _sync_claim(self, claim_key: str) -> None:
        claim = self._informers.get(kinds.RESOURCE_CLAIMS, claim_key)
        if claim is None:
            return
        reserved = list(status_of(claim).get("reservedFor") or ())
        valid = [entry for entry in reserved if self._is_live(claim, entry)]
        protected = DELETE_PROTECTION in (metadata(claim).get("finalizers") or ())
        if len(valid) < len(reserved):
            claim = self._release(claim, valid, deallocate=not valid and protected)
        if valid:
            return
        if is_deleting(claim) and protected:
            if status_of(claim).get("allocation") is not None:
                claim = self._release(claim, [], deallocate=True)
            self._unprotect(claim)
        elif not is_deleting(claim) and self._is_orphan(claim):
            self._client.delete(
                kinds.RESOURCE_CLAIMS, name(claim), namespace=metadata(claim)["namespace"], uid=uid(claim)
            )

    def _is_live(self, claim: Object, entry: dict[str, Any]) -> bool:
        """Whether a consumer still needs the claim. Pods and PodGroups are known; all else is kept."""
        if entry.get("resource") == group_claims.RESOURCE and self._has_groups:
            group = self._informers.get(POD_GROUPS, f"{metadata(claim)['namespace']}/{entry.get('name')}")
            return group is not None and uid(group) == entry.get("uid")
        if entry.get("resource") != "pods" or entry.get("apiGroup"):
            return True
        pod = self._pod(metadata(claim)["namespace"], str(entry.get("name")))
        return pod is not None and uid(pod) == entry.get("uid") and not pod_is_done(pod)

    def _pod(self, namespace: str, pod_name: str) -> Object | None:
        """From the copy; a pod that is missing there may only be new, so the server is asked."""
        cached = self._informers.get(kinds.PODS, f"{namespace}/{pod_name}")
        if cached is not None:
            return cached
        try:
            return self._client.get(kinds.PODS, pod_name, namespace=namespace)
        except NotFound:
            return None

    def _release(self, claim: Object, reserved: list[Object], *, deallocate: bool) -> Object:
        wanted = {**status_of(claim), "reservedFor": reserved}
        if deallocate:
            wanted = {}
            log.info("claim_deallocated", claim=key(claim))
        return self._write_status(claim, wanted)

    def _write_status(self, claim: Object, wanted: Object) -> Object:
        """Conditional on the version that was looked at."""
        return self._client.update(kinds.RESOURCE_CLAIMS, {**claim, "status": wanted}, subresource="status")

    def _unprotect(self, claim: Object) -> None:
        kept = [one for one in metadata(claim).get("finalizers") or () if one != DELETE_PROTECTION]
        self._client.update(
            kinds.RESOURCE_CLAIMS, {**claim, "metadata": {**metadata(claim), "finalizers": kept}}
        )

    def _is_orphan(self, claim: Object) -> bool:
        """A template claim whose pod is done or gone."""
        owner = owning_pod_uid(claim)
        if owner is None:
            return False
        pod_name = next(one["name"] for one in metadata(claim)["ownerReferences"] if one.get("uid") == owner)
        pod = self._pod(metadata(claim)["namespace"], pod_name)
        return pod is None or uid(pod) != owner or pod_is_done(pod)


def _claim_names(pod: Object) -> set[str]:
    entries = [
        *(spec_of(pod).get("resourceClaims") or ()),
        *(status_of(pod).get("resourceClaimStatuses") or ()),
    ]
    return {entry["resourceClaimName"] for entry in entries if entry.get("resourceClaimName")}
