"""What a pod asked for before it was rewritten: the pod carries it, and its claim can be worked out again from it. Pure.

    annotation koordra.io/asked     {"koordra-devices": {"containers": {"main": {"limits": {"nvidia.com/gpu": "1"}}},
                                                         "schedulerName": "hami-scheduler"}}

One key for every entry of spec.resourceClaims that the rewriting added (another webhook may ask for more, and the pod is
rewritten again). Only what was taken out stands there.

Nobody has to believe it. `rewritten_again` puts the words back into the pod and rewrites it once more: what comes out is a template that
the pod's user could have had by asking, and it counts only if its name, a digest of its content, is the one in the pod's spec,
which nobody can change.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final

from koordra.api import names, objects
from koordra.api.classic.notes import Notes
from koordra.api.objects import Object
from koordra.api.pods import SIDES, amounts, containers, with_containers
from koordra.compat.rewrite import Rewritten, rewrite
from koordra.compat.settings import Settings
from koordra.errors import InvalidInput

ANNOTATION: Final = names.DOMAIN + "asked"


def with_original_request(before: Object, found: Rewritten) -> Object:
    """The rewritten pod with the annotation."""
    said = {**_read(found.pod), found.entry: _difference(before, found.pod)}
    metadata = dict(objects.metadata(found.pod))
    metadata["annotations"] = {
        **objects.annotations_of(found.pod),
        ANNOTATION: json.dumps(said, sort_keys=True, separators=(",", ":")),
    }
    return {**found.pod, "metadata": metadata}


def rewritten_again(pod: Object, entry: str, settings: Settings) -> Rewritten | None:
    """The rewriting that added the entry, done once more; None where the pod does not carry it or it cannot be read."""
    said = _read(pod).get(entry)
    if not isinstance(said, (dict, Mapping)):
        return None
    try:
        return rewrite(
            _restored(pod, entry, said),
            settings,
            Notes.about(pod),
            namespace=objects.metadata(pod).get("namespace") or None,
        )
    except InvalidInput:
        return None


def entries(pod: Mapping[str, Any]) -> list[str]:
    """The entries of spec.resourceClaims that the pod carries the words for."""
    return sorted(_read(pod))


def _read(pod: Mapping[str, Any]) -> dict[str, Any]:
    text = objects.annotations_of(pod).get(ANNOTATION)
    try:
        found = json.loads(text) if text else {}
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def _difference(before: Object, after: Object) -> Object:
    taken = {}
    old = {raw.get("name"): raw for raw in containers(before)}
    for now in containers(after):
        gone = {side: _gone(old.get(now.get("name"), {}), now, side) for side in SIDES}
        if any(gone.values()):
            taken[str(now.get("name"))] = {side: found for side, found in gone.items() if found}
    found: Object = {"containers": taken}
    scheduler = objects.spec_of(before).get("schedulerName")
    if scheduler and scheduler != objects.spec_of(after).get("schedulerName"):
        found["schedulerName"] = scheduler
    return found


def _gone(old: Mapping[str, Any], now: Mapping[str, Any], side: str) -> dict[str, str]:
    kept = amounts(now, side)
    return {name: str(value) for name, value in amounts(old, side).items() if name not in kept}


def _restored(pod: Object, entry: str, said: Mapping[str, Any]) -> Object:
    """The pod as it was before the entry was added."""
    taken = said.get("containers")
    words = taken if isinstance(taken, (dict, Mapping)) else {}
    spec = with_containers(objects.spec_of(pod), lambda raw: _container(raw, entry, words))
    spec["resourceClaims"] = [one for one in spec.get("resourceClaims") or () if one.get("name") != entry]
    if said.get("schedulerName"):
        spec["schedulerName"] = said["schedulerName"]
    return {**pod, "spec": spec}


def _container(raw: Object, entry: str, asked: Mapping[str, Any]) -> Object:
    resources = dict(raw.get("resources") or {})
    resources["claims"] = [one for one in resources.get("claims") or () if one.get("name") != entry]
    words = asked.get(str(raw.get("name")))
    for side in SIDES:
        found = words.get(side) if isinstance(words, (dict, Mapping)) else None
        if isinstance(found, (dict, Mapping)):
            resources[side] = {**(resources.get(side) or {}), **found}
    return {**raw, "resources": resources}
