"""Older manifests to resource.k8s.io/v1: what `koordra convert` does, as one pure function.

    objects of all files ──> Sources: classes and parameters, found by what refers to them
         │
         └─ each object, by apiVersion and kind (the table below)
               classic v1alpha1, v1alpha2      v1alpha2        (parameters: class_parameters, selectors)
               v1alpha3, v1beta1, v1beta2      beta_versions
               pods and workloads              below: claims referred to directly, node affinity for
                                               suitableNodes
               anything else                   unchanged
                    │
                    └─ the translators, in order  ──> objects and notes

An object is converted whole or refused whole; every loss is a note with the field it concerns. Objects stay
in the order of the input. Parameters objects that went into a class or claim are left out, since v1 does not
know their kinds; a ConfigMap stays, since pods may read it too.

**The seam for legacy dialects** (pods that ask for extended resources: Koordinator, HAMi ...). A dialect is a
`Translator`:

    class Koordinator:
        name = "koordinator"
        def handles(self, obj): ...              # cheap; a Pod or a workload with signs of this dialect
        def translate(self, obj, notes): ...    # what replaces it: the rewritten pod, its templates

`convert(objects, translators=[...])` asks each translator in turn about every object that came out of the
table; the first that handles the object takes it, and what it returns is final (a second dialect in the same
pod is that translator's to refuse: `raise notes.refuse(field, problem, remedy)`). `notes.warn(field, problem,
remedy)` reports anything lost. Objects that two pods bring forth alike (same kind, namespace, name and
content, as content-addressed templates are) appear once; alike in name only is refused. koordra/compat makes
translators without importing anything but this module; koordra/cli/convert.py passes it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, Protocol

from koordra.api import objects
from koordra.api.classic import (
    beta_versions,
    between_drivers,
    driver_words,
    suitable_nodes,
    tied_claims,
    v1alpha2,
)
from koordra.api.classic.notes import Note, Notes, Refused, fresh_metadata
from koordra.api.classic.v1alpha2 import Reference, Sources, reference_to
from koordra.api.field_types import wrong_fields
from koordra.api.kinds import RESOURCE_GROUP
from koordra.api.objects import Object
from koordra.api.pods import at, pods_in, replaced, spelled
from koordra.api.reader import Reader
from koordra.errors import InvalidInput, InvalidManifest

__all__ = ["Conversion", "Note", "Notes", "Refused", "Translator", "convert"]


class Translator(Protocol):
    """One legacy dialect; see the module's text."""

    def handles(self, obj: Object) -> bool:
        """Whether the object is of this dialect."""

    def translate(self, obj: Object, notes: Notes) -> Sequence[Object]:
        """What stands in the object's place. Raises Refused (`notes.refuse`) or InvalidInput."""


@dataclass(frozen=True, slots=True)
class Conversion:
    """The converted objects in the order of the input, and the notes about them."""

    objects: tuple[Object, ...]
    notes: tuple[Note, ...]

    @property
    def refused(self) -> tuple[Note, ...]:
        return tuple(note for note in self.notes if note.refused)


Converter = Callable[[Object, Sources, Notes], list[Object]]

_parameters: Final = partial(
    v1alpha2.left_out, problem="nothing in the files refers to it; v1 has no such object"
)
_CLASSIC: Final[Mapping[str, Converter]] = {
    "ResourceClass": v1alpha2.device_class,
    "ResourceClaim": v1alpha2.claim,
    "ResourceClaimTemplate": v1alpha2.template,
    "ResourceClaimParameters": _parameters,
    "ResourceClassParameters": _parameters,
    "PodSchedulingContext": v1alpha2.left_out,
    "ResourceSlice": v1alpha2.left_out,
}
_STRUCTURED: Final[Mapping[str, Converter]] = {
    "DeviceClass": beta_versions.device_class,
    "ResourceClaim": partial(v1alpha2.claim, spec=beta_versions.claim_spec),
    "ResourceClaimTemplate": partial(v1alpha2.template, spec=beta_versions.claim_spec),
    "ResourceSlice": beta_versions.resource_slice,
    "DeviceTaintRule": beta_versions.taint_rule,
    "PodSchedulingContext": v1alpha2.left_out,
}
VERSIONS: Final[Mapping[str, Mapping[str, Converter]]] = {
    **dict.fromkeys(("v1alpha1", "v1alpha2"), _CLASSIC),
    **dict.fromkeys(("v1alpha3", "v1beta1", "v1beta2"), _STRUCTURED),
}
"""Version of resource.k8s.io -> kind -> converter. v1 is passed through."""

_NAME: Final = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")
_LONGEST_NAME: Final = 253
_SOURCE_FIELDS: Final = ("resourceClaimName", "resourceClaimTemplateName")


def convert(
    found: Sequence[Object], *, translators: Sequence[Translator] = (), target: str = ""
) -> Conversion:
    """Every object in its v1 form, or a note that says why not. `target`: whose claims those of NVIDIA's
    classic driver become (nvidia_parameters.TARGETS, or dranet's for NICs), NVIDIA's own where it is not
    said."""
    sources = Sources.of(found, target="" if target == driver_words.DRANET else target)
    sources.to_driver = target
    sources.tied = tied_claims.tied_templates(found, sources)
    made: list[tuple[Object, list[Object], Notes]] = []
    for obj in found:
        notes = Notes.about(obj)
        made.append((obj, _one(obj, sources, notes, translators), notes))
    results: dict[Reference, Object] = {}
    reported: list[Note] = []
    for obj, parts, notes in made:
        if reference_to(obj) in sources.used and objects.group_of(obj):  # a ConfigMap may have other readers
            continue
        reported += notes.found
        for part in parts:
            _put(part, results, reported)
    return Conversion(tuple(results.values()), tuple(reported))


def _one(obj: Object, sources: Sources, notes: Notes, translators: Sequence[Translator]) -> list[Object]:
    """What stands in the place of one object; a refusal is added to its notes."""
    try:
        _check_name(obj, notes)
        converter = _converter(obj, notes)
        if converter in _STRUCTURED.values():
            for wrong in wrong_fields(obj, str(obj["kind"]), beta_versions.FIELD_TYPES):
                notes.found.append(Note(notes.object, *wrong, refused=True))
            if notes.found:
                return []
        made = [
            part for one in converter(obj, sources, notes) for part in _translated(one, notes, translators)
        ]
        if not sources.to_driver:
            return made
        return [part for one in made for part in between_drivers.converted(one, sources.to_driver, notes)]
    except InvalidInput as error:
        notes.found.append(
            Note(error.object or notes.object, error.field, error.problem, error.remedy, refused=True)
        )
    return []


def _converter(obj: Object, notes: Notes) -> Converter:
    if objects.group_of(obj) != RESOURCE_GROUP:
        return _with_claims
    version = str(obj["apiVersion"]).rpartition("/")[2]
    if version == "v1":
        return lambda obj, _sources, _notes: [obj]
    kinds = VERSIONS.get(version)
    if kinds is None:
        raise notes.refuse(
            "apiVersion",
            f"{version} is no version of {RESOURCE_GROUP} that is known",
            f"known are {', '.join(VERSIONS)} and v1",
        )
    converter = kinds.get(str(obj.get("kind")))
    if converter is None:
        raise notes.refuse(
            "kind", f"{RESOURCE_GROUP}/{version} has no such kind", f"kinds are {', '.join(kinds)}"
        )
    return converter


def _translated(obj: Object, notes: Notes, translators: Sequence[Translator]) -> Sequence[Object]:
    for translator in translators:
        if translator.handles(obj):
            return translator.translate(obj, notes)
    return [obj]


def _check_name(obj: Object, notes: Notes) -> None:
    called: Any = objects.metadata(obj).get("name")
    if called is None and objects.metadata(obj).get("generateName"):
        return
    if not isinstance(called, str) or not called:
        raise notes.refuse("metadata.name", "is missing", "give the object a name")
    if objects.group_of(obj) != RESOURCE_GROUP:
        return
    if len(called) > _LONGEST_NAME or not _NAME.fullmatch(called):
        raise notes.refuse(
            "metadata.name",
            f"{called[:40]!r} is not a name that v1 allows ({len(called)} characters)",
            f"use at most {_LONGEST_NAME} lower-case letters, digits, '-' and '.'",
        )


def _put(part: Object, results: dict[Reference, Object], reported: list[Note]) -> None:
    """Adds an object; one that is there is added once, one that differs from its namesake is refused."""
    who = reference_to(part)
    if not objects.name(part):
        who = (*who[:3], f"{objects.metadata(part).get('generateName')}{len(results)}")
    if results.setdefault(who, part) != part:
        reported.append(
            Note(
                objects.describe(part),
                "metadata.name",
                "two different objects have it",
                "rename one of them",
                refused=True,
            )
        )


def _with_claims(obj: Object, sources: Sources, notes: Notes) -> list[Object]:
    """A pod or workload with every `source` flattened; the same object where nothing of it is classic."""
    changed, templates = obj, list[Object]()
    for path in pods_in(obj):
        place = (*path, "spec")
        read = notes.read(at(obj, place), spelled(place).rstrip("."))
        spec = _pod_spec(read, obj, sources, notes)
        for tie in tied_claims.ties_of(spec.get("resourceClaims") or (), objects.namespace(obj), sources):
            spec, template = tied_claims.untied(spec, tie, obj, target=sources.target, notes=notes)
            sources.use(tie.parameters, *tie.instances.values())
            templates += [template] if template not in templates else []
        if spec is not read.data:
            fresh = {**objects.without(changed, "status"), "metadata": fresh_metadata(obj)}
            changed = replaced(fresh, place, spec)
    return [changed, *templates]


def _pod_spec(read: Reader, obj: Object, sources: Sources, notes: Notes) -> Any:
    entries = list(read.each("resourceClaims"))
    made = [_pod_claim(entry) for entry in entries]
    result = read.data
    if any("source" in entry.data for entry in entries):
        result = {**result, "resourceClaims": made}
    nodes = _suitable_nodes(made, obj, sources)
    if nodes:
        result = suitable_nodes.require(result, nodes)
        notes.warn(
            read.place("affinity"), "node affinity is added for the suitableNodes of the pod's classes"
        )
    return result


def _pod_claim(read: Reader) -> Object:
    if "source" not in read.data:
        return dict(read.data)
    source = read.inner("source")
    source.only(*_SOURCE_FIELDS, problem="is no field of source")
    given = {name: value for name in _SOURCE_FIELDS if (value := source.text(name))}
    if len(given) != 1:
        raise source.wrong(
            "names both a claim and a template" if given else "names neither a claim nor a template",
            f"write exactly one of {' and '.join(_SOURCE_FIELDS)}",
        )
    kept = objects.without(read.data, "source")
    twice = [name for name in _SOURCE_FIELDS if kept.get(name)]
    if twice and {name: kept[name] for name in twice} != given:
        raise read.wrong("and source say different things", "keep one of the two forms", at=twice[0])
    return {**kept, **given}


def _suitable_nodes(entries: list[Object], obj: Object, sources: Sources) -> list[Object]:
    """The node selectors of the classic classes that the pod's claims ask for, each once."""
    found: list[Object] = []
    for entry in entries:
        for name, kind in zip(_SOURCE_FIELDS, ("ResourceClaim", "ResourceClaimTemplate"), strict=True):
            claim = str(entry.get(name) or "")
            of = sources.class_of_claim(claim, kind=kind, namespace=objects.namespace(obj))
            raw = (sources.classes.get(of) or {}).get("suitableNodes")
            with suppress(InvalidManifest):  # the class itself is refused, with the same words
                selector = suitable_nodes.checked(Reader(raw, object=of, field="suitableNodes"))
                if selector not in found:
                    found.append(selector)
    return found
