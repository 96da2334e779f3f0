"""A legacy pod's rewriting as it is stored in a cluster, and remembered: pods of one workload are translated once. Pure.

    pod ──> bare: what the rewriting may read, and nothing that differs from pod to pod of a workload ──> its text is the key
              │
              ├── known ──────> what was made of it then  ─┐
              └── not known ──> the bare pod is rewritten ─┴─> put onto this pod

The rewriting is given the bare pod and sees nothing else, so its result cannot depend on what the key lacks; and what is put onto
the pod are the parts of the bare pod that have changed. Left out are a pod's name and owner, volumes and their mounts (every
pod has the volume of its token under another name), affinity, ports and probes, labels and annotations that no dialect has.

Only what was translated is remembered. A refusal, a pod that asks for nothing and a pod of an odd shape are worked out each
time from the whole pod. Warnings are kept with what was made, and name the pod that gets them. The memory spares a review of a
known workload two fifths of its processor time (`python -m benchmarks admission`).

In native mode the claim is in standard terms, under a name of its own: the claim webhook translates claims of native namespaces
(webhook/native.py), also the template that is made for a legacy pod; so it is translated before it is named, and what is stored
is what the name promises. Where a request was split, containers use all of its parts.
"""

from __future__ import annotations

import json
import threading
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, Final

from koordra.api import names, objects
from koordra.api.classic.notes import Note, Notes
from koordra.api.objects import Object
from koordra.api.pods import CONTAINER_LISTS, with_containers
from koordra.compat.detection import LIKE_ANNOTATIONS
from koordra.compat.dialect import MOST_KEPT, Place, covering
from koordra.compat.dialects import DIALECTS
from koordra.compat.original_request import with_original_request
from koordra.compat.rewrite import DIALECT_LABEL, Rewritten, rewrite, template_name
from koordra.compat.settings import Settings
from koordra.controller.webhook import native
from koordra.controller.webhook.claims import devices_of, request_names
from koordra.errors import InvalidInput

DEFAULT_SCHEDULER: Final = "default-scheduler"
REMEMBERED: Final = 1024
"""Workloads; the one that was not asked for longest makes room."""
MOST_TEXT: Final = 8 * 1024 * 1024
"""Characters of all keys together: users write what is in them, megabytes in one pod if they like."""
LONGEST: Final = MOST_TEXT // 64
"""A pod that says more is worked out each time, so that one user cannot push everybody else out with a few."""
_OF_PODS: Final = ("nodeName", "schedulerName", "runtimeClassName", "overhead", "resourceClaims")
_OF_CONTAINERS: Final = (
    "name",
    "resources",
    "env",
    "command",
    "args",
    "securityContext",
    "restartPolicy",
)

Translation = tuple[Rewritten, tuple[InvalidInput, ...]]
"""The rewriting, and what cannot be said in native mode."""


def translated(
    pod: Object, settings: Settings, notes: Notes, *, classes: Mapping[str, Object] | None
) -> Translation:
    """The pod as it is to be stored but for its gate: with what was asked, the dialect, and a scheduler in place of one that is
    gone. With `classes` in native form; then also what cannot be said in native mode. Raises Refused, and InvalidInput."""
    found = rewrite(pod, settings, notes, namespace=objects.namespace(pod))
    if found.template is None:
        return found, ()
    if classes is not None:
        found, problems = in_native_form(found, classes)
        if problems:
            return found, problems
    stored = with_original_request(pod, found)
    stored["metadata"]["annotations"][DIALECT_LABEL] = found.dialect
    if pod["spec"].get("schedulerName"):
        stored["spec"] = {"schedulerName": DEFAULT_SCHEDULER, **stored["spec"]}
    return replace(found, pod=stored), ()


def in_native_form(found: Rewritten, classes: Mapping[str, Object]) -> Translation:
    """The rewriting with another template, and what cannot be said in native mode."""
    assert found.template is not None
    changed, problems, _ = native.translate(found.template, classes)
    if problems:
        return found, problems
    name = template_name(found.dialect, changed["spec"]["spec"])
    if name == objects.name(found.template):
        return found, ()
    template = {**changed, "metadata": {**found.template["metadata"], "name": name}}
    known = sorted(request_names(devices_of(template)[1]))

    def container(raw: Object) -> Object:
        resources = raw.get("resources") or {}
        if not resources.get("claims"):
            return raw
        claims: list[Object] = []
        for use in resources["claims"]:
            if use.get("name") != found.entry or use.get("request") in known:
                claims.append(use)
            else:
                parts = (part for part in known if part.rpartition("-")[0] == use["request"])
                claims += ({**use, "request": part} for part in parts)
        return {**raw, "resources": {**resources, "claims": claims}}

    spec = with_containers(found.pod["spec"], container)
    spec["resourceClaims"] = [
        {**entry, "resourceClaimTemplateName": name} if entry.get("name") == found.entry else entry
        for entry in spec["resourceClaims"]
    ]
    return replace(found, template=template, pod={**found.pod, "spec": spec}), ()


@dataclass(frozen=True, slots=True)
class _Made:
    """`bare` became `found.pod`; `classes` are those of native mode, by identity."""

    bare: Object
    found: Rewritten
    notes: tuple[Note, ...]
    classes: Mapping[str, Object] | None


class Translations:
    """`translated` with a memory. Safe to use from several threads."""

    def __init__(self, settings: Settings, *, most: int = REMEMBERED) -> None:
        self._settings = settings
        self._most = most
        self._lock = threading.Lock()
        self._made: OrderedDict[str, _Made] = OrderedDict()
        self._text = 0

    def of(self, pod: Object, notes: Notes, *, classes: Mapping[str, Object] | None = None) -> Translation:
        """What `translated` gives."""
        bare = bare_of(pod)
        key = (
            ""
            if bare is None
            else json.dumps((objects.namespace(pod), classes is not None, bare), separators=(",", ":"))
        )
        if bare is None or len(key) > LONGEST:
            return translated(pod, self._settings, notes, classes=classes)
        made = self._known(key, classes)
        if made is None:
            own = Notes(notes.object)
            try:
                metadata = {**bare["metadata"], "namespace": objects.namespace(pod)}
                found, problems = translated(
                    {**bare, "metadata": metadata}, self._settings, own, classes=classes
                )
            except InvalidInput:
                return translated(pod, self._settings, notes, classes=classes)
            if found.template is None or problems:
                return translated(pod, self._settings, notes, classes=classes)
            made = _Made(bare, found, tuple(own.found), classes)
            self._keep(key, made)
        for note in made.notes:
            notes.warn(note.field, note.problem, note.remedy)
        return replace(made.found, pod=_put_on(pod, made)), ()

    def _known(self, key: str, classes: Mapping[str, Object] | None) -> _Made | None:
        with self._lock:
            made = self._made.get(key)
            if made is None or made.classes is not classes:
                return None
            self._made.move_to_end(key)
            return made

    def _keep(self, key: str, made: _Made) -> None:
        with self._lock:
            if key not in self._made:
                self._text += len(key)
            self._made[key] = made
            while len(self._made) > self._most or self._text > MOST_TEXT:
                self._text -= len(self._made.popitem(last=False)[0])


def bare_of(pod: Object) -> Object | None:
    """What the rewriting may read of a pod; None where the pod has not the shape of one."""
    spec, metadata = pod.get("spec"), pod.get("metadata")
    if not isinstance(spec, dict) or not isinstance(metadata, dict):
        return None
    bare: Object = {key: spec[key] for key in _OF_PODS if key in spec}
    for group in CONTAINER_LISTS:
        if group in spec:
            listed = spec[group]
            if not isinstance(listed, list) or not all(isinstance(raw, dict) for raw in listed):
                return None
            bare[group] = [{key: raw[key] for key in _OF_CONTAINERS if key in raw} for raw in listed]
    kept: Object = {}
    for kind in ("annotations", "labels"):
        said = metadata.get(kind)
        if said is not None and not isinstance(said, dict):
            return None
        kept[kind] = {
            key: value for key, value in (said or {}).items() if _is_read(key) or not isinstance(value, str)
        }
    return {"metadata": kept, "spec": bare}


@lru_cache(maxsize=MOST_KEPT)
def _is_read(key: str) -> bool:
    """Whether an annotation or label of that name may say something to the rewriting."""
    return key.startswith((names.DOMAIN, *LIKE_ANNOTATIONS)) or any(
        covering(dialect, key, place) for dialect in DIALECTS for place in (Place.ANNOTATION, Place.LABEL)
    )


def _put_on(pod: Object, made: _Made) -> Object:
    """The pod with what became of its bare parts."""
    before, after = made.bare["spec"], made.found.pod["spec"]
    spec = {key: value for key, value in pod["spec"].items() if key not in before or key in after}
    for key, value in after.items():
        if key in CONTAINER_LISTS:
            spec[key] = [_whole(raw, now) for raw, now in zip(pod["spec"][key], value, strict=True)]
        else:
            spec[key] = value
    metadata = pod["metadata"]
    said, now = made.bare["metadata"]["annotations"], made.found.pod["metadata"]["annotations"]
    there = metadata.get("annotations") or {}
    annotations = {key: value for key, value in there.items() if key not in said or key in now}
    annotations.update(now)
    return {**pod, "metadata": {**metadata, "annotations": annotations}, "spec": spec}


def _whole(raw: Mapping[str, Any], now: Mapping[str, Any]) -> Object:
    """A container with what it has besides."""
    return {**{key: value for key, value in raw.items() if key not in _OF_CONTAINERS}, **now}
