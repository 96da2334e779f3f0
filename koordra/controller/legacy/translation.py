"""A legacy pod's rewriting as it is stored, and remembered: pods of one workload are translated once. Pure.

    pod ──> bare: what the rewriting may read, and nothing that differs from pod to pod of a workload ──> its text is the key
              │
              ├── known ──────> what was made of it then  ─┐
              └── not known ──> the bare pod is rewritten ─┴─> put onto this pod

The rewriting is given the bare pod and sees nothing else, so its result cannot depend on what the key lacks; and what is put onto
the pod are the parts of the bare pod that have changed. Left out are a pod's name and owner, volumes and their mounts (every
pod has the volume of its token under another name), affinity, ports and probes, labels and annotations that no dialect has.

Only what was translated is remembered. A refusal, a pod that asks for nothing and a pod of an odd shape are worked out each
time from the whole pod. Warnings are kept with what was made, and name the pod that gets them.

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
from koordra.compat import original_request
from koordra.compat.rewrite import Rewritten, is_read, rewrite, template_name
from koordra.compat.settings import Settings
from koordra.controller.webhook import native
from koordra.controller.webhook.claims import devices_of, request_names
from koordra.errors import InvalidInput


def in_native_form(
    found: Rewritten, classes: Mapping[str, Object]
) -> tuple[Rewritten, tuple[InvalidInput, ...]]:
    """The rewriting with another template, and what cannot be said in native mode."""
    assert found.template is not None
    translated = native.translate(found.template, classes)
    if translated.problems:
        return found, translated.problems
    spec = translated.object["spec"]["spec"]
    name = template_name(found.dialect, spec)
    if name == objects.name(found.template):
        return found, ()
    template = {**translated.object, "metadata": {**found.template["metadata"], "name": name}}
    _, devices = devices_of(template)
    known = sorted(request_names(devices))
    return replace(found, template=template, pod=_renamed(found.pod, found.entry, name, known)), ()


def _renamed(pod: Object, entry: str, template: str, known: list[str]) -> Object:
    spec = with_containers(pod["spec"], lambda raw: _container(raw, entry, known))
    entries = [
        {**one, "resourceClaimTemplateName": template} if one.get("name") == entry else one
        for one in spec["resourceClaims"]
    ]
    return {**pod, "spec": {**spec, "resourceClaims": entries}}


def _container(raw: Object, entry: str, known: list[str]) -> Object:
    resources = raw.get("resources") or {}
    if not resources.get("claims"):
        return raw
    claims = []
    for one in resources["claims"]:
        if one.get("name") != entry or one.get("request") in known:
            claims.append(one)
        else:
            claims += [
                {**one, "request": part} for part in known if part.rpartition("-")[0] == one["request"]
            ]
    return {**raw, "resources": {**resources, "claims": claims}}


DIALECT: Final = names.DOMAIN + "dialect"
"""Annotation on a rewritten pod: the dialect it came in."""
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
_NO_ANNOTATIONS: Final[Mapping[str, str]] = {}


@dataclass(frozen=True, slots=True)
class Translated:
    """`found.pod` is the pod as it is to be stored but for its gate. `problems`: what cannot be said in native mode."""

    found: Rewritten
    problems: tuple[InvalidInput, ...] = ()


def translated(
    pod: Object, settings: Settings, notes: Notes, *, classes: Mapping[str, Object] | None
) -> Translated:
    """With `classes` in native form. Raises Refused, and InvalidInput."""
    found = rewrite(pod, settings, notes, namespace=objects.namespace(pod))
    if found.template is None:
        return Translated(found)
    if classes is not None:
        found, problems = in_native_form(found, classes)
        if problems:
            return Translated(found, problems)
    return Translated(replace(found, pod=_finished(pod, found)))


def _finished(before: Object, found: Rewritten) -> Object:
    """What was asked, the dialect, and a scheduler in place of one that is gone."""
    pod = original_request.with_original_request(before, found)
    metadata = {
        **pod["metadata"],
        "annotations": {**pod["metadata"]["annotations"], DIALECT: found.dialect},
    }
    spec = dict(pod["spec"])
    if before["spec"].get("schedulerName"):
        spec.setdefault("schedulerName", DEFAULT_SCHEDULER)
    return {**pod, "metadata": metadata, "spec": spec}


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

    def of(self, pod: Object, notes: Notes, *, classes: Mapping[str, Object] | None = None) -> Translated:
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
                once = translated({**bare, "metadata": metadata}, self._settings, own, classes=classes)
            except InvalidInput:
                return translated(pod, self._settings, notes, classes=classes)
            if once.found.template is None or once.problems:
                return translated(pod, self._settings, notes, classes=classes)
            made = _Made(bare, once.found, tuple(own.found), classes)
            self._keep(key, made)
        for note in made.notes:
            notes.warn(note.field, note.problem, note.remedy)
        return Translated(replace(made.found, pod=_put_on(pod, made)))

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


@lru_cache(maxsize=4096)
def _is_read(key: str) -> bool:
    return key.startswith(names.DOMAIN) or is_read(key)


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
    there = metadata.get("annotations") or _NO_ANNOTATIONS
    annotations = {key: value for key, value in there.items() if key not in said or key in now}
    annotations.update(now)
    return {**pod, "metadata": {**metadata, "annotations": annotations}, "spec": spec}


def _whole(raw: Mapping[str, Any], now: Mapping[str, Any]) -> Object:
    """A container with what it has besides."""
    return {**{key: value for key, value in raw.items() if key not in _OF_CONTAINERS}, **now}
