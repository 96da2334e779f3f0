"""What a pod asked for before it was rewritten: the pod carries it, and its claim can be worked out again
from it. Pure.

    annotation koordra.io/asked    {"koordra-devices": {
                                       "containers": {"main": {"limits": {"nvidia.com/gpu": "1"}}},
                                       "schedulerName": "hami-scheduler"}}

One key for every entry of spec.resourceClaims that the rewriting added (another webhook may ask for more, and
the pod is rewritten again). Only what was taken out stands there.

Nobody has to believe it. `rewritten_again` puts the words back into the pod and rewrites it once more: what
comes out is a template that the pod's user could have had by asking, and it counts only if its name, a digest
of its content, is the one in the pod's spec, which nobody can change.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final

from koordra.api import names, objects
from koordra.api.classic.notes import Notes
from koordra.api.objects import Fields, Object
from koordra.api.pods import SIDES, amounts, containers, with_containers
from koordra.compat.rewrite import Native, Rewritten, rewrite
from koordra.compat.settings import Settings

ANNOTATION: Final = names.DOMAIN + "asked"


def with_original_request(before: Object, found: Rewritten) -> Object:
    said = {**_read(found.pod), found.entry: _taken_out(before, found)}
    text = json.dumps(said, sort_keys=True, separators=(",", ":"))
    annotations = {**objects.annotations_of(found.pod), ANNOTATION: text}
    return {**found.pod, "metadata": {**objects.metadata(found.pod), "annotations": annotations}}


def rewritten_again(
    pod: Object, entry: str, settings: Settings, native: Native | None = None
) -> Rewritten | None:
    """The rewriting that added the entry, done once more; None where the pod does not carry it. Raises
    InvalidInput, and whatever comes of what users write into the annotation."""
    said = _read(pod).get(entry)
    if not isinstance(said, (dict, Mapping)):
        return None
    namespace = objects.metadata(pod).get("namespace") or None
    return rewrite(
        _restored(pod, entry, said), settings, Notes.about(pod), namespace=namespace, native=native
    )


def as_written(pod: Object) -> Object:
    """The pod in its user's words, as far as it carries them."""
    for entry, said in _read(pod).items():
        if isinstance(said, Mapping):
            pod = _restored(pod, entry, said)
    return pod


def entries(pod: Fields) -> list[str]:
    """The entries of spec.resourceClaims that the pod carries the words for."""
    return sorted(_read(pod))


def _read(pod: Fields) -> dict[str, Any]:
    text = objects.annotations_of(pod).get(ANNOTATION)
    try:
        found = json.loads(text) if text else {}
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def _taken_out(before: Object, found: Rewritten) -> Object:
    taken = {}
    for raw in containers(before):
        gone = {
            side: {name: str(value) for name, value in amounts(raw, side).items() if name in found.resources}
            for side in SIDES
        }
        if any(gone.values()):
            taken[str(raw.get("name"))] = {side: asked for side, asked in gone.items() if asked}
    said: Object = {"containers": taken}
    scheduler = objects.spec_of(before).get("schedulerName")
    if scheduler and scheduler != objects.spec_of(found.pod).get("schedulerName"):
        said["schedulerName"] = scheduler
    return said


def _restored(pod: Object, entry: str, said: Fields) -> Object:
    """The pod as it was before the entry was added."""
    spec = with_containers(
        objects.spec_of(pod), lambda raw: _container(raw, entry, _mapping(said.get("containers")))
    )
    spec["resourceClaims"] = [one for one in spec.get("resourceClaims") or () if one.get("name") != entry]
    if said.get("schedulerName"):
        spec["schedulerName"] = said["schedulerName"]
    return {**pod, "spec": spec}


def _container(raw: Object, entry: str, asked: Fields) -> Object:
    resources = dict(raw.get("resources") or {})
    resources["claims"] = [one for one in resources.get("claims") or () if one.get("name") != entry]
    words = _mapping(asked.get(str(raw.get("name"))))
    for side in SIDES:
        if found := _mapping(words.get(side)):
            resources[side] = {**(resources.get(side) or {}), **found}
    return {**raw, "resources": resources}


def _mapping(value: object) -> Fields:
    return value if isinstance(value, (dict, Mapping)) else {}
