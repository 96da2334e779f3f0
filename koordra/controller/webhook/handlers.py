"""From a path and a review to an answer. Pure but for the look-ups.

The mode of an object is given by the path for namespaces labelled native; else by its own annotation or label
koordra.io/allocation-mode, for a pod by its node selector too; else it is joint.

A pod is held by the gate until its claims are written, and kept to suitable nodes. It is koordra's business
when one of its claims is: the claim or template is looked up, its classes say so. Then, in joint mode, the
gate koordra.io/joint-allocation is added, so that kube-scheduler does not try before there is something to
find, and any later "Unschedulable" is an answer to the allocation. A pod whose claim or template is not known
yet is left ungated: that works too, only with one futile scheduling cycle. In native mode there is no gate.
Members of gangs are always held. Nothing is gated that is bound already, or that koordra could not let go
again.

Pods that ask in the terms of other schedulers and device plugins are decided in
`controller/legacy/admission.py`, behind a path of their own, which calls `admitted` of this module for the
gate and the suitable nodes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial, reduce
from typing import Final

from koordra.api import names, objects
from koordra.api.objects import Object
from koordra.controller import claims as claims_of
from koordra.controller.claims import Owner
from koordra.controller.gangs.declared.admission import must_be_held, refusals
from koordra.controller.resource_class.reconcile import on_suitable_nodes
from koordra.controller.webhook import daemons, native
from koordra.controller.webhook.claims import AskedDevices
from koordra.controller.webhook.lookups import KnownObjects, ReviewLookups, claim_of_template
from koordra.controller.webhook.review import AdmissionRequest, AdmissionResponse

_CLAIMS: Final = ("ResourceClaim", "ResourceClaimTemplate")


Amend = Callable[[Object], Object]
"""Gives the very same object where nothing is to be changed."""


def mutate_claims(
    asked: AdmissionRequest,
    lookups: KnownObjects,
    in_native: bool,
    amends: Sequence[Amend] = (),
) -> AdmissionResponse:
    if asked.operation != "CREATE" or asked.kind not in _CLAIMS:
        return AdmissionResponse()
    if not objects.is_native(asked.object, in_native):
        amended = reduce(lambda obj, amend: amend(obj), amends, asked.object)
        return AdmissionResponse(object=None if amended is asked.object else amended)
    changed, problems, warnings = native.translate(asked.object, lookups.classes())
    return AdmissionResponse(problems, changed, warnings)


def mutate_pods(asked: AdmissionRequest, lookups: KnownObjects, in_native: bool) -> AdmissionResponse:
    if asked.operation != "CREATE" or asked.kind != "Pod":
        return AdmissionResponse()
    native_pod = objects.is_native(asked.object, in_native)
    if not native_pod and (found := refusals(asked.object)):
        return AdmissionResponse(found)
    warnings = () if native_pod else _of_extended_resources(asked.object, lookups)
    return AdmissionResponse(
        object=admitted(asked.object, lookups, native=native_pod),
        warnings=(*warnings, *daemons.warnings(asked.object, lookups)),
    )


def validate(
    asked: AdmissionRequest,
    lookups: KnownObjects,
    in_native: bool,
    isolations: Callable[[], frozenset[str] | None] = lambda: None,
) -> AdmissionResponse:
    """The parameters, and in native mode whether they can be said at all (an update reaches no mutating
    webhook). `isolations`: what keeps shares on some node now, None where that is not known."""
    if asked.operation == "DELETE" or asked.kind not in (*_CLAIMS, "DeviceClass"):
        return AdmissionResponse()
    devices, classes = AskedDevices.of(asked.object), lookups.classes()
    found, warnings = devices.problems(), devices.warnings()
    if asked.kind in _CLAIMS:
        refused, overruled = devices.isolation_answers(classes)
        found, warnings = (
            [
                *found,
                *refused,
                *devices.several_cards(classes),
                *devices.resize_problems(asked.object, classes),
            ],
            [*warnings, *overruled, *devices.absent_isolations(classes, isolations())],
        )
        if not found and objects.is_native(asked.object, in_native):
            found += native.translate(asked.object, classes).problems
    return AdmissionResponse(tuple(found), warnings=tuple(warnings))


HANDLERS: Final = {"/mutate/claims": mutate_claims, "/mutate/pods": mutate_pods, "/validate": validate}


def paths(
    lookups: KnownObjects,
    *amends: Amend,
    isolations: Callable[[], frozenset[str] | None] = lambda: None,
) -> dict[str, Callable[[AdmissionRequest], AdmissionResponse]]:
    """Path -> the decision, for the server. `amends`: of claims and templates in joint mode, one after the
    other."""
    handlers: dict[str, Callable[..., AdmissionResponse]] = {
        **HANDLERS,
        "/validate": partial(validate, isolations=isolations),
        "/mutate/claims": partial(mutate_claims, amends=amends),
    }
    return {
        f"{prefix}{path}": partial(handler, lookups=lookups, in_native=bool(prefix))
        for path, handler in handlers.items()
        for prefix in ("", "/native")
    }


def admitted(pod: Object, lookups: KnownObjects, *, native: bool, made: Object | None = None) -> Object:
    """The pod as it should be stored; the very same one where it is none of koordra's business. `made`: a
    template that is being made, which the watch does not show yet."""
    if objects.spec_of(pod).get("nodeName"):
        return pod
    claims = _claims(pod, lookups.for_review(), made)
    classes = lookups.classes()
    ours = [claim for claim in claims if claims_of.owner(claim, classes) is Owner.KOORDRA]
    unknown = len(claims) < len(objects.spec_of(pod).get("resourceClaims") or ())
    placed = on_suitable_nodes(pod, ours, classes)
    waits = must_be_held(pod, has_ours=bool(ours), has_unknown=unknown) or not all(
        map(claims_of.is_allocated, ours)
    )
    return _gated(placed) if waits and not native else placed


def _of_extended_resources(pod: Object, lookups: KnownObjects) -> tuple[str, ...]:
    """That joint nodes have none of them for kube-scheduler, which says of each node only `Insufficient`."""
    return tuple(
        f"{resource}: only nodes labelled {names.MODE_LABEL}=native give it; on all others spec.resourceClaims "
        f"with a ResourceClaimTemplate of deviceClassName: {name} does"
        for resource, name in claims_of.extended_resources(pod, lookups.classes()).items()
    )


def _claims(pod: Object, lookups: ReviewLookups, made: Object | None) -> list[Object]:
    """The pod's claims that are known, those of templates as they will be made."""
    namespace = objects.namespace(pod)
    found = []
    for entry in objects.spec_of(pod).get("resourceClaims") or ():
        named = entry if isinstance(entry, Mapping) else {}
        claim, template = named.get("resourceClaimName"), named.get("resourceClaimTemplateName")
        if claim:
            found.append(lookups.claim(namespace, str(claim)))
        elif template:
            is_made = made is not None and objects.key(made) == f"{namespace}/{template}"
            found.append(claim_of_template(made if is_made else lookups.template(namespace, str(template))))
    return [claim for claim in found if claim is not None]


def _gated(pod: Object) -> Object:
    spec = objects.spec_of(pod)
    gates = list(spec.get("schedulingGates") or ())
    if any(gate.get("name") == names.JOINT_GATE for gate in gates if isinstance(gate, Mapping)):
        return pod
    return {**pod, "spec": {**spec, "schedulingGates": [*gates, {"name": names.JOINT_GATE}]}}
