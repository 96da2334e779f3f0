"""A legacy pod's rewriting as it is stored in a cluster, and remembered: pods of one workload are translated
once. Pure.

    pod ──> bare: what the rewriting may read, and nothing that differs from pod to pod of a workload
              │   ──> its text is the key
              │
              ├── known ──────> what was made of it then  ─┐
              └── not known ──> the bare pod is rewritten ─┴─> put onto this pod

The rewriting is given the bare pod and sees nothing else, so its result cannot depend on what the key lacks;
and what is put onto the pod are the parts of the bare pod that have changed. Left out are a pod's name and
owner, volumes and their mounts (every pod has the volume of its token under another name), ports and
probes, labels and annotations that no dialect has, and an affinity that asks for no label of an old stack.

A refusal, a pod that asks for nothing, one of an odd shape and one of a native namespace, where the classes
of now have a say, are worked out each time from the whole pod. Warnings are kept with what was made, and name
the pod that gets them. The memory spares a review of a known workload two fifths of its processor time
(`python -m benchmarks admission`).

In native mode the claim is in standard terms, under a name of its own: the claim webhook translates claims of
native namespaces (webhook/native.py), also the template that is made for a legacy pod; so it is translated
before it is named, and what is stored is what the name promises. Where a request was split, containers use
all of its parts.
"""

from __future__ import annotations

import json
from collections.abc import Container, Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache, partial
from typing import Final

from koordra.api import names, objects
from koordra.api.classic.notes import Note, Notes
from koordra.api.objects import Fields, Object
from koordra.api.pods import CONTAINER_LISTS
from koordra.compat.detection import DOMAINS, is_written, kept_by_name, signs_of
from koordra.compat.dialect.allocation import DIALECT_LABEL
from koordra.compat.keys import Place, key_of
from koordra.compat.original_request import with_original_request
from koordra.compat.remaining_names import selects_by
from koordra.compat.rewrite import Native, Rewritten, rewrite
from koordra.compat.settings import Settings
from koordra.controller.webhook import native
from koordra.errors import InvalidInput

DEFAULT_SCHEDULER: Final = "default-scheduler"
REMEMBERED: Final = 1024
"""Workloads; the one that was not asked for longest makes room."""
LONGEST: Final = 16 * 1024
"""Characters of a bare pod. Users write what is in it, megabytes if they like: one that says more is worked
out each time."""
_OF_PODS: Final = (
    "nodeName",
    "nodeSelector",
    "schedulerName",
    "runtimeClassName",
    "overhead",
    "resourceClaims",
)
_OF_CONTAINERS: Final = (
    "name",
    "resources",
    "env",
    "command",
    "args",
    "securityContext",
    "restartPolicy",
)


def translated(
    pod: Object, settings: Settings, notes: Notes, *, classes: Mapping[str, Object] | None
) -> Rewritten:
    """The pod as it is to be stored but for its gate: with what was asked, the dialect, and a scheduler in
    place of one that is gone. With `classes` in native form; then also what cannot be said in native mode.
    Raises Refused, and InvalidInput."""
    found = rewrite(pod, settings, notes, namespace=objects.namespace(pod), native=native_form(classes))
    if found.template is None:
        return found
    stored = with_original_request(pod, found)
    stored["metadata"]["annotations"][DIALECT_LABEL] = found.dialect
    if pod["spec"].get("schedulerName"):
        stored["spec"] = {"schedulerName": DEFAULT_SCHEDULER, **stored["spec"]}
    return replace(found, pod=stored)


def native_form(classes: Mapping[str, Object] | None) -> Native | None:
    return None if classes is None else partial(native.translate, classes=classes)


@dataclass(frozen=True, slots=True)
class _Bare:
    """What the rewriting may read of a pod; `text` is all of it, and tells two apart."""

    text: str
    pod: Object = field(compare=False)


class Translations:
    """`translated` with a memory. Safe to use from several threads."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._remembered = lru_cache(maxsize=REMEMBERED)(self._translated)

    def of(self, pod: Object, notes: Notes, *, classes: Mapping[str, Object] | None = None) -> Rewritten:
        """What `translated` gives."""
        bare = bare_of(pod) if classes is None else None
        if bare is not None and len(text := json.dumps(bare, separators=(",", ":"))) <= LONGEST:
            try:
                found, warned = self._remembered(_Bare(text, bare))
            except InvalidInput:
                found, warned = Rewritten(pod), []  # worked out again, in words that name the pod
            if found.template is not None:
                for note in warned:
                    notes.warn(note.field, note.problem, note.remedy)
                return replace(found, pod=_put_on(pod, bare, found.pod))
        return translated(pod, self._settings, notes, classes=classes)

    def _translated(self, bare: _Bare) -> tuple[Rewritten, list[Note]]:
        notes = Notes("")
        return translated(bare.pod, self._settings, notes, classes=None), notes.found


def bare_of(pod: Object) -> Object | None:
    """What the rewriting may read of a pod; None where the pod has not the shape of one."""
    spec, metadata = pod.get("spec"), pod.get("metadata")
    if not isinstance(spec, dict) or not isinstance(metadata, dict):
        return None
    bare: Object = {key: spec[key] for key in _OF_PODS if key in spec}
    # Each pod of a DaemonSet has the affinity to its own node.
    if selects_by(bare) is None and selects_by(spec) is not None:
        bare["affinity"] = spec["affinity"]
    for group in CONTAINER_LISTS:
        if group in spec:
            listed = spec[group]
            if not isinstance(listed, list) or not all(isinstance(raw, dict) for raw in listed):
                return None
            bare[group] = [{key: raw[key] for key in _OF_CONTAINERS if key in raw} for raw in listed]
    kept: Object = {"namespace": objects.namespace(pod)}
    for kind in ("annotations", "labels"):
        said = metadata.get(kind)
        if said is not None and not isinstance(said, dict):
            return None
        kept[kind] = {
            key: value for key, value in (said or {}).items() if _is_read(key) or not isinstance(value, str)
        }
    return {"metadata": kept, "spec": bare}


@kept_by_name
def _is_read(key: str) -> bool:
    """Whether an annotation or label of that name may say something to the rewriting."""
    return (
        key.startswith((names.DOMAIN, *DOMAINS))
        or is_written(key)
        or any(key_of(key, place) for place in (Place.ANNOTATION, Place.LABEL))
        or any(any(signs_of(key, kind)) for kind in ("annotations", "labels"))
    )


def _put_on(pod: Object, bare: Object, made: Object) -> Object:
    """The pod with what became of its bare parts."""
    spec = _put(pod["spec"], bare["spec"], made["spec"])
    for group in CONTAINER_LISTS:
        if group in spec:
            pairs = zip(pod["spec"][group], spec[group], strict=True)
            spec[group] = [_put(raw, _OF_CONTAINERS, now) for raw, now in pairs]
    metadata = pod["metadata"]
    said = metadata.get("annotations") or {}
    annotations = _put(said, bare["metadata"]["annotations"], made["metadata"]["annotations"])
    return {**pod, "metadata": {**metadata, "annotations": annotations}, "spec": spec}


def _put(whole: Fields, bare: Container[str], made: Fields) -> Object:
    return {**{key: value for key, value in whole.items() if key not in bare}, **made}
