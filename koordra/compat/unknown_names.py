"""Names that begin like a dialect's and are none: a slip of the pen must not turn a normalized into silence.

    resource     `koordinator.sh/gpu-shared` (the name has a dot), `nvidia.com/gpucore`: it stays in the container, where no node
                 offers it and the pod would wait for ever
    annotation   `nvidia.com/use-gputpye`, `hami.io/gpu-scheduler-polcy`: nobody reads it

Both are warnings that say which name may have been meant. Names of a dialect that koordra does not serve under any name
(`volcano.sh/vgpu-priority`) are told in the same way.
"""

from __future__ import annotations

from collections.abc import Sequence
from difflib import get_close_matches

from koordra.api.classic.notes import Notes
from koordra.compat import detection
from koordra.compat.dialect import Dialect, PodView
from koordra.compat.dialect.vocabulary import Place
from koordra.compat.settings import Settings


def strange(resource: str, dialects: Sequence[Dialect], settings: Settings) -> bool:
    """Whether a resource begins like one of a dialect and is none."""
    beginnings = tuple(beginning for dialect in dialects for beginning in dialect.like_resources)
    return resource.startswith(beginnings) and not any(
        detection.has_resource(dialect, resource, settings) for dialect in dialects
    )


def tell_resources(view: PodView, dialects: Sequence[Dialect], settings: Settings, notes: Notes) -> None:
    for container in view.containers:
        for name in container.resources():
            if strange(name, dialects, settings):
                known = _names(dialects, Place.RESOURCE)
                notes.warn(
                    container.field(name),
                    "is no name that koordra reads, and stays: the pod waits until a node offers it",
                    _meant(name, known, "take it out"),
                )


def is_like_one(annotation: str, dialects: Sequence[Dialect]) -> bool:
    """Whether an annotation begins like one of a dialect."""
    return annotation.startswith(
        tuple(beginning for dialect in dialects for beginning in dialect.like_annotations)
    )


def tell_annotations(view: PodView, dialects: Sequence[Dialect], notes: Notes) -> None:
    like = [key for key in view.annotations if is_like_one(key, dialects)]
    if not like:
        return
    written = {key for dialect in dialects for key in dialect.vocabulary.results(like)}
    known = _names(dialects, Place.ANNOTATION)
    for key in like:
        if key not in written and key not in known:
            notes.warn(
                view.field(key), "is no name that koordra reads, and asks for nothing", _meant(key, known)
            )


def _names(dialects: Sequence[Dialect], place: Place) -> list[str]:
    return [name.key for dialect in dialects for name in dialect.vocabulary.of(place) if "*" not in name.key]


def _meant(name: str, known: Sequence[str], otherwise: str = "") -> str:
    """`did you mean ...?`, comparing what stands behind the slash."""
    domain, _, rest = name.partition("/")
    beside = [key.partition("/")[2] for key in known if key.startswith(f"{domain}/")]
    found = get_close_matches(rest.lower(), beside, n=1, cutoff=0.75)
    return f"did you mean {domain}/{found[0]}?" if found else otherwise
