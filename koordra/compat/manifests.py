"""Legacy pods in files: the translator that koordra.api.classic.convert asks about every object, for `koordra
convert`.

An object is translated whole: a workload with several pod templates is converted if all of them can be. The
object comes first, its templates after it. A pod that stands in the status of an API object loses that
status, since it is a new pod.

Things beside pods that count devices by their legacy names (ResourceQuota, LimitRange, fields of other kinds)
cannot be converted; they are reported, since what they meant is lost. So are the kinds and fields of peers
that the table of names has as warned or refused, and kinds of theirs that it lacks.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from koordra.api import objects
from koordra.api.classic.notes import Notes, fresh_metadata
from koordra.api.objects import Object
from koordra.api.pods import SIDES, Path, at, pods_in, replaced, spelled
from koordra.compat import detection
from koordra.compat.dialects.koordinator.reservation import is_reservation, reservation
from koordra.compat.foreign_objects import is_of_a_peer, tell_object
from koordra.compat.rewrite import names_devices, rewrite
from koordra.compat.settings import Settings

_COUNTED: Final = (*SIDES, "hard", "max", "default", "defaultRequest", "min")


@dataclass(slots=True)
class LegacyPods:
    """`explained` collects a line for every container of every object that was translated."""

    settings: Settings = field(default_factory=Settings)
    explained: list[str] = field(default_factory=list)

    def handles(self, obj: Object) -> bool:
        pods = pods_in(obj)
        return (
            is_of_a_peer(obj)
            or any(names_devices(at(obj, path), self.settings) for path in pods)
            or bool(next(_counted(obj, self.settings, (), pods=pods), ""))
        )

    def translate(self, obj: Object, notes: Notes) -> Sequence[Object]:
        """Raises Refused or InvalidInput."""
        tell_object(obj, self.settings, notes)
        if is_reservation(obj):
            return [self._reservation(obj, notes)]
        changed, templates, lines = obj, [], []
        namespace = objects.metadata(obj).get("namespace")
        pods = pods_in(obj)
        for path in pods:
            found = rewrite(at(obj, path), self.settings, notes, namespace=namespace, where=spelled(path))
            if found.template is None:
                continue
            changed = replaced(changed, path, found.pod)
            templates += [found.template] if found.template not in templates else []
            lines += [f"{objects.describe(obj)}: {line}" for line in found.explained]
        told = {note.field for note in notes.found}
        for place in _counted(obj, self.settings, (), pods=pods):
            if place not in told:
                _tell_count(obj, place, notes)
        if not templates:
            return [obj]
        if "apiVersion" not in obj:
            notes.warn("apiVersion", "is missing; v1 is written")
            changed = {"apiVersion": "v1", **changed}
        self.explained += lines
        return [_fresh(changed), *templates]

    def _reservation(self, obj: Object, notes: Notes) -> Object:
        """Raises Refused or InvalidManifest."""
        found = rewrite(at(obj, ("spec", "template")) or {}, self.settings, notes, where="spec.template.")
        if found.template is None:
            raise notes.refuse(
                "spec.template",
                "asks for no devices, and koordra keeps nothing else",
                "leave it to Koordinator",
            )
        self.explained += [f"{objects.describe(obj)}: {line}" for line in found.explained]
        return reservation(obj, found.template, notes)


def _tell_count(obj: Object, place: str, notes: Notes) -> None:
    problem = "counts devices by a name that claims do not use"
    remedy = "bound requests.koordra.io/gpu, requests.koordra.io/gpu-memory, ... in a ResourceQuota (docs/quota.md)"
    if obj.get("kind") == "ResourceQuota":
        problem = "counts converted pods only where component legacy is installed"
    elif obj.get("kind") == "LimitRange":  # its limits of a Container are defaults as well
        problem = "is set in containers that do not ask by this name, or refuses their pods, and converted pods do not ask by it"
        remedy = f"take it out, and {remedy}"
    elif any(f".{side}[" in place for side in SIDES):
        problem, remedy = "asks for devices outside of a pod, and is not converted", "write a claim by hand"
    notes.warn(place, problem, remedy)


def _fresh(obj: Object) -> Object:
    """Without what an API server wrote: the object is to be made anew."""
    if "status" not in obj and not objects.resource_version(obj):
        return obj
    kept = {name: value for name, value in obj.items() if name != "status"}
    return {**kept, "metadata": fresh_metadata(obj)}


def _counted(value: Any, settings: Settings, path: Path, *, pods: Sequence[Path]) -> Iterator[str]:
    """Fields outside of `pods` in which an amount stands under a legacy name."""
    if len(path) > 14 or path in pods:
        return
    if isinstance(value, list):
        for index, entry in enumerate(value):
            yield from _counted(entry, settings, (*path, index), pods=pods)
    elif isinstance(value, Mapping):
        for key, entry in value.items():
            if not path and key in ("metadata", "status", "data"):
                continue
            if key in _COUNTED and isinstance(entry, Mapping):
                for name in entry:
                    if detection.dialects_with(
                        str(name).removeprefix("requests.").removeprefix("limits."), settings
                    ):
                        yield f"{spelled((*path, str(key))).rstrip('.')}[{name}]"
            else:
                yield from _counted(entry, settings, (*path, str(key)), pods=pods)
