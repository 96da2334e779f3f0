"""From a path and a review to an answer. Pure but for the look-ups.

Which mode an object is in: the path says it for namespaces labelled native; else its own annotation or label
koordra.io/allocation-mode, for a pod its node selector too; else joint.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from koordra.api import names, objects
from koordra.api.objects import Object
from koordra.controller.gangs.admission import refusals
from koordra.controller.webhook import claims, isolation, native, pods
from koordra.controller.webhook.pods import Lookups
from koordra.controller.webhook.review import Answer, Asked

Handler = Callable[[Asked, Lookups, bool], Answer]

_CLAIMS: Final = ("ResourceClaim", "ResourceClaimTemplate")


def mutate_claims(asked: Asked, lookups: Lookups, in_native: bool) -> Answer:
    obj = _typed(asked)
    if asked.operation != "CREATE" or asked.kind not in _CLAIMS or not is_native(obj, in_native):
        return Answer()
    translated = native.translate(obj, lookups.classes())
    return Answer(translated.problems, translated.object, translated.warnings)


def mutate_pods(asked: Asked, lookups: Lookups, in_native: bool) -> Answer:
    if asked.operation != "CREATE" or asked.kind != "Pod":
        return Answer()
    native_pod = is_native(asked.object, in_native)
    if not native_pod and (found := refusals(asked.object)):
        return Answer(found)
    return Answer(object=pods.admitted(asked.object, lookups, native=native_pod))


def validate(asked: Asked, lookups: Lookups, in_native: bool) -> Answer:
    """The parameters, and in native mode whether they can be said at all (an update reaches no mutating webhook)."""
    if asked.operation == "DELETE" or asked.kind not in (*_CLAIMS, "DeviceClass"):
        return Answer()
    obj = _typed(asked)
    found = claims.problems(obj)
    told = list(claims.warnings(obj))
    if asked.kind in _CLAIMS:
        refused, overruled = isolation.answers(obj, lookups.classes())
        found, told = [*found, *refused], [*told, *overruled]
    if not found and asked.kind in _CLAIMS and is_native(obj, in_native):
        found = list(native.translate(obj, lookups.classes()).problems)
    return Answer(tuple(found), warnings=tuple(told))


PATHS: Final[Mapping[str, tuple[Handler, bool]]] = {
    "/mutate/claims": (mutate_claims, False),
    "/native/mutate/claims": (mutate_claims, True),
    "/mutate/pods": (mutate_pods, False),
    "/native/mutate/pods": (mutate_pods, True),
    "/validate": (validate, False),
    "/native/validate": (validate, True),
}
"""Path -> (handler, whether the namespace is native)."""


def answer(path: str, asked: Asked, lookups: Lookups) -> Answer | None:
    """None where nothing is served at the path."""
    found = PATHS.get(path)
    return found[0](asked, lookups, found[1]) if found else None


def is_native(obj: Mapping[str, Any], in_native: bool) -> bool:
    """Whether the object is meant for native nodes."""
    places: list[Mapping[str, Any]] = [objects.annotations_of(obj), objects.labels_of(obj)]
    if obj.get("kind") == "Pod" or "containers" in objects.spec_of(obj):
        selector = objects.spec_of(obj).get("nodeSelector")
        places += [selector] if isinstance(selector, Mapping) else []
    for place in places:
        if place.get(names.MODE_LABEL) in (names.MODE_NATIVE, names.MODE_JOINT):
            return bool(place[names.MODE_LABEL] == names.MODE_NATIVE)
    return in_native


def _typed(asked: Asked) -> Object:
    """The object with its kind, which the API server may leave out."""
    return {**asked.object, "kind": asked.object.get("kind") or asked.kind}
