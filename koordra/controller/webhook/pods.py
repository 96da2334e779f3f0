"""Pods as they are created: held by the gate until their claims are written, and kept to suitable nodes. Pure.

A pod is koordra's business when one of its claims is: the claim or template is looked up, its classes tell. Then, in joint
mode, the gate koordra.io/joint-allocation is added, so that kube-scheduler does not try before there is something to find,
and any later "Unschedulable" is an answer to the allocation. A pod whose claim or template is not known yet is left ungated:
that works too, only with one futile scheduling cycle. In native mode there is no gate. Members of gangs are always held.

Nothing is gated that is bound already, or that koordra could not let go again.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from koordra.api import names, objects
from koordra.api.objects import Object
from koordra.controller import claims as claims_of
from koordra.controller.claims import Owner
from koordra.controller.gangs.admission import must_be_held
from koordra.controller.resource_class.nodes import on_suitable_nodes


class Lookups(Protocol):
    """What the webhook knows of the cluster; None is "there is none"."""

    def claim(self, namespace: str, name: str) -> Object | None: ...
    def template(self, namespace: str, name: str) -> Object | None: ...
    def classes(self) -> Mapping[str, Object]: ...


def admitted(pod: Object, lookups: Lookups, *, native: bool) -> Object:
    """The pod as it should be stored; the very same one where it is none of koordra's business."""
    claims = _claims(pod, lookups)
    classes = lookups.classes()
    ours = [claim for claim in claims if claims_of.owner(claim, classes) is Owner.KOORDRA]
    if objects.spec_of(pod).get("nodeName"):
        return pod
    unknown = len(claims) < len(objects.spec_of(pod).get("resourceClaims") or ())
    if not native and must_be_held(pod, has_ours=bool(ours), has_unknown=unknown):
        return _gated(on_suitable_nodes(pod, ours, classes) if ours else pod)
    if not ours:
        return pod
    placed = on_suitable_nodes(pod, ours, classes)
    if native or all(claims_of.is_allocated(claim) for claim in ours):
        return placed
    return _gated(placed)


def _claims(pod: Object, lookups: Lookups) -> list[Object]:
    """The pod's claims that are known, those of templates as they will be made."""
    namespace = objects.namespace(pod)
    found = []
    for entry in objects.spec_of(pod).get("resourceClaims") or ():
        if not isinstance(entry, Mapping):
            continue
        claim = _claim(entry, namespace, lookups)
        if claim is not None:
            found.append(claim)
    return found


def _claim(entry: Mapping[str, Any], namespace: str, lookups: Lookups) -> Object | None:
    if entry.get("resourceClaimName"):
        return lookups.claim(namespace, str(entry["resourceClaimName"]))
    if not entry.get("resourceClaimTemplateName"):
        return None
    template = lookups.template(namespace, str(entry["resourceClaimTemplateName"]))
    if template is None:
        return None
    inner = objects.spec_of(template)
    return {"kind": "ResourceClaim", "metadata": inner.get("metadata") or {}, "spec": inner.get("spec") or {}}


def _gated(pod: Object) -> Object:
    spec = objects.spec_of(pod)
    gates = list(spec.get("schedulingGates") or ())
    if any(gate.get("name") == names.JOINT_GATE for gate in gates if isinstance(gate, Mapping)):
        return pod
    return {**pod, "spec": {**spec, "schedulingGates": [*gates, {"name": names.JOINT_GATE}]}}
