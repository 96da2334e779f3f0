"""One pod: its claims, the gang that it is in, and what it asked for."""

from __future__ import annotations

from collections.abc import Mapping

from koordra.api import names, objects
from koordra.api.objects import Object
from koordra.controller import claims as claims_of
from koordra.controller.cache import pod_index
from koordra.controller.cache.consumers import first_consumers
from koordra.controller.explain.claims import claim_entry
from koordra.controller.explain.other_words import asked_in_other_words, in_other_words
from koordra.controller.explain.view import ClusterView
from koordra.controller.gangs.phase import turn_of
from koordra.controller.reconcile.unplanned import why_full
from koordra.placement.request.claim_groups import MAX_CONSUMERS, claim_keys


def pod_document(view: ClusterView, pod: Object) -> Object:
    keys = claim_keys(pod)
    extended = claims_of.extended_resources(pod, view.cache.classes)
    claims = [view.cache.claims[key] for key in keys if key in view.cache.claims]
    gang, asked = view.gang_of(pod), None if extended else asked_in_other_words(pod)
    return {
        "namespace": objects.namespace(pod),
        "name": objects.name(pod),
        "uid": objects.uid(pod),
        "phase": str(objects.status_of(pod).get("phase") or "Pending"),
        "node": str(objects.spec_of(pod).get("nodeName") or "") or None,
        "gates": pod_index.gates(pod),
        "gang": gang and gang.key,
        "asked": asked,
        "claims": [in_other_words(claim_entry(view, claim), claim, pod, asked) for claim in claims],
        "lacks": claims_of.lacking(pod, view.cache.claims),
        "waits": _waits(view, pod, extended),
    }


def _full(view: ClusterView, pod: Object) -> list[Object]:
    """Claims of the pod that as many others have as can have one."""
    users = view.cache.pod_index.users
    crowded = [key for key in claim_keys(pod) if len(users.get(key, ())) > MAX_CONSUMERS]
    claims = [view.cache.claims[key] for key in crowded if key in view.cache.claims]
    groups = view.cache.pod_groups
    return [
        one for one in claims if objects.uid(pod) not in first_consumers(one, users[objects.key(one)], groups)
    ]


def _extended_text(view: ClusterView, extended: Mapping[str, str]) -> str:
    """`extended`: resources, and the classes that they are."""
    native = sum(
        objects.labels_of(node).get(names.MODE_LABEL) == names.MODE_NATIVE
        for node in view.cache.nodes.values()
    )
    named = ", ".join(f"{name} (DeviceClass {of})" for name, of in extended.items())
    where = f"{native} of {len(view.cache.nodes)} nodes are" if native else "no node is"
    return (
        f"it asks for {named}, of which kube-scheduler makes a claim and allocates it, on nodes in native mode alone (label "
        f"{names.MODE_LABEL}: {names.MODE_NATIVE}); {where}. On joint nodes a claim of its own is needed"
    )


def _waits(view: ClusterView, pod: Object, extended: Mapping[str, str]) -> str | None:
    """What the pod waits for that no claim of it says."""
    if view.beyond_quota.get(objects.uid(pod)):
        return f"it is beyond its quota: {view.beyond_quota[objects.uid(pod)]}"
    unmade = None in objects.pod_claim_names(pod).values() and not objects.pod_is_finished(pod)
    if unmade and (use := view.quotas.use(objects.namespace(pod))):
        return f"not all of its claims are made, and beyond a quota none is (Event FailedResourceClaimCreation): {use}"
    gates = [gate for gate in pod_index.gates(pod) if gate != names.JOINT_GATE]
    if gates:
        return f"it is held by the scheduling gate {', '.join(gates)} of somebody else"
    for claim in _full(view, pod):
        return why_full(claim, view.cache.pod_index.users[objects.key(claim)])
    if extended and not objects.spec_of(pod).get("nodeName"):
        return _extended_text(view, extended)
    if turn := _turn(view, pod):
        return turn
    if not objects.pod_claim_names(pod):
        return "it has no claims, so koordra gives it nothing and keeps it from nothing"
    scheduled = pod_index.pod_scheduled(pod)
    if scheduled.is_unschedulable and not pod_index.is_gated(pod):
        return f"kube-scheduler does not place it: {scheduled.message}"
    return None


def _turn(view: ClusterView, pod: Object) -> str:
    gang, uid = view.gang_of(pod), objects.uid(pod)
    if gang is None:
        return ""
    return next((turn_of(gang, member) for member in gang.members if member.uid == uid), "")
