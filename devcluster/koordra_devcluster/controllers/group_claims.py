"""Claims of PodGroups (KEP 5729; in Kubernetes behind DRAWorkloadResourceClaims, here with GenericWorkload).

PodGroup ──> a claim for every template entry of spec.resourceClaims: name `<group>-<entry>-xxxxx`,
             annotation, owner; noted in its status.resourceClaimStatuses; it goes with the group
pod      ──> an entry that is the same as its group's (name and template) means the group's claim, which its
             status names; no claim is made for it
scheduler ─> such a claim is reserved once, for the group: however many pods there are

Claims that a group names by resourceClaimName are reserved for its pods here.
"""

from __future__ import annotations

import threading
from typing import Final

from koordra.api import kinds
from koordra.api.names import POD_CLAIM_NAME
from koordra.api.objects import Fields, Object, annotations_of, key, metadata, name, spec_of, status_of, uid
from koordra.errors import NotFound
from koordra.kube.client import KubeClient
from koordra.process import lifecycle
from koordra_devcluster.apiserver.resources import POD_GROUPS
from koordra_devcluster.controllers.informers import Informers
from koordra_devcluster.controllers.workloads.pods import reference_to
from koordra_devcluster.controllers.workqueue import WorkQueue

RESOURCE: Final = "podgroups"
_ENTRY: Final = ("name", "resourceClaimName", "resourceClaimTemplateName")


def group_name(pod: Object) -> str | None:
    """The PodGroup that the pod is in."""
    return (spec_of(pod).get("schedulingGroup") or {}).get("podGroupName")


def shared_entry(pod_entry: Fields, group: Object) -> bool:
    """Whether a pod's entry means the group's claim: all of it is the same."""
    return any(
        all(pod_entry.get(field) == one.get(field) for field in _ENTRY)
        for one in spec_of(group).get("resourceClaims") or ()
    )


def noted_claim(group: Object, entry: str) -> str | None:
    """Name of the claim that was made for an entry of the group."""
    made = status_of(group).get("resourceClaimStatuses") or ()
    return next((one.get("resourceClaimName") for one in made if one["name"] == entry), None)


def owning_group(claim: Object, pod: Object) -> Fields | None:
    """The reference to the pod's group, for which the claim was made."""
    for owner in metadata(claim).get("ownerReferences") or ():
        if owner.get("kind") == POD_GROUPS.kind and owner.get("name") == (group_name(pod) or ""):
            found: Fields = owner
            return found
    return None


def consumer(claim: Object, pod: Object) -> Object:
    """Whom reservedFor names for the pod."""
    group = owning_group(claim, pod)
    if group is None:
        return {"resource": "pods", "name": name(pod), "uid": uid(pod)}
    return {"apiGroup": POD_GROUPS.group, "resource": RESOURCE, "name": group["name"], "uid": group["uid"]}


class GroupClaimLoop:
    """Over shared informers that watch PodGroups and claims."""

    def __init__(self, client: KubeClient, informers: Informers) -> None:
        self._client = client
        self._informers = informers
        self._groups = WorkQueue("claims-of-groups", self._sync)
        informers.listen(POD_GROUPS, lambda _event, group, /: self._groups.add(key(group)))
        informers.listen(kinds.RESOURCE_CLAIM_TEMPLATES, self._template_changed)

    def start(self, stop: threading.Event) -> None:
        """Call once the informers are synced."""
        lifecycle.spawn(lambda: self._groups.run(stop), name="claims-of-groups")

    def _template_changed(self, _event: str, _template: Object, /) -> None:
        for group in self._informers.objects(POD_GROUPS):
            self._groups.add(key(group))

    def _sync(self, group_key: str) -> None:
        place, _, called = group_key.partition("/")
        try:
            group = self._client.get(POD_GROUPS, called, namespace=place)
        except NotFound:
            return
        made = list(status_of(group).get("resourceClaimStatuses") or ())
        for entry in spec_of(group).get("resourceClaims") or ():
            if entry.get("resourceClaimTemplateName") and noted_claim(group, entry["name"]) is None:
                claim = self._claim_of(group, entry)
                if claim is not None:
                    made.append({"name": entry["name"], "resourceClaimName": name(claim)})
        if made != list(status_of(group).get("resourceClaimStatuses") or ()):
            body = {**group, "status": {**status_of(group), "resourceClaimStatuses": made}}
            self._client.update(POD_GROUPS, body, subresource="status")

    def _claim_of(self, group: Object, entry: Fields) -> Object | None:
        """It may have been made before a note of it was."""
        place = str(metadata(group)["namespace"])
        for claim in self._client.list(kinds.RESOURCE_CLAIMS, namespace=place)[0]:
            owners = {one.get("uid") for one in metadata(claim).get("ownerReferences") or ()}
            if uid(group) in owners and annotations_of(claim).get(POD_CLAIM_NAME) == entry["name"]:
                return claim
        try:
            template = self._client.get(
                kinds.RESOURCE_CLAIM_TEMPLATES, entry["resourceClaimTemplateName"], namespace=place
            )
        except NotFound:
            return None  # its creation wakes this loop
        form = spec_of(template)
        wanted = form.get("metadata") or {}
        owner = reference_to({**POD_GROUPS.type_meta, **group})
        body = {
            **kinds.RESOURCE_CLAIMS.type_meta,
            "metadata": {
                "generateName": f"{name(group)}-{entry['name']}-",
                "namespace": place,
                "labels": dict(wanted.get("labels") or {}),
                "annotations": {**(wanted.get("annotations") or {}), POD_CLAIM_NAME: entry["name"]},
                "ownerReferences": [owner],
            },
            "spec": form.get("spec") or {},
        }
        return self._client.create(kinds.RESOURCE_CLAIMS, body, namespace=place)
