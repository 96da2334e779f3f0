"""A pod as the dialects read it: its containers, when they run, and what stands in limits and requests.

An extended resource is a whole number, and the API server wants limits and requests alike. Manifests in files
have not met the API server yet: a dialect that reads limits first takes them where the two differ, one that
reads requests takes those; the difference is a warning.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final

from koordra.api.classic.notes import Notes, Refused
from koordra.api.objects import Fields, Object
from koordra.api.pods import CONTAINER_LISTS, SIDES, amounts, resource_names
from koordra.compat.normalized_request import ContainerPhase, Share
from koordra.compat.settings import Settings
from koordra.errors import InvalidQuantity
from koordra.quantity import to_int

LIMITS_FIRST: Final = ("limits", "requests")
REQUESTS_FIRST: Final = ("requests", "limits")


@dataclass(frozen=True)
class Container:
    """`where` is the field of the container in its object."""

    name: str
    phase: ContainerPhase
    where: str
    raw: Fields

    def asked(self, side: str) -> Fields:
        return amounts(self.raw, side)

    @cached_property
    def resources(self) -> list[str]:
        return resource_names(self.raw)

    def field(self, name: str) -> str:
        return f"{self.where}.resources.{'limits' if name in self.asked('limits') else 'requests'}[{name}]"

    @cached_property
    def _variables(self) -> list[Fields]:
        return [entry for entry in self.raw.get("env") or () if isinstance(entry, (dict, Mapping))]

    @cached_property
    def environment(self) -> dict[str, str]:
        """Variables with a plain value."""
        plain = {str(entry.get("name")): entry.get("value") for entry in self._variables}
        return {name: str(value) for name, value in plain.items() if value is not None}

    @cached_property
    def _text(self) -> str:
        lists = (self.raw.get("command"), self.raw.get("args"))
        words = [str(word) for listed in lists if isinstance(listed, list) for word in listed]
        names = [str(entry.get("name")) for entry in self._variables]
        return "\0".join((*words, *names, *self.environment.values()))

    def mentions(self, text: str) -> bool:
        """Whether command, arguments or variables use the text, as `$(NAME)`, in a script or as a variable's
        name."""
        return text in self._text

    @property
    def privileged(self) -> bool:
        context = self.raw.get("securityContext")
        return isinstance(context, (dict, Mapping)) and context.get("privileged") is True


@dataclass(frozen=True, slots=True)
class PodView:
    """A pod, or the pod template of a workload, while it is translated. `where` is the field of its spec,
    `meta` of its metadata; `dialect` the one that it speaks, once that is known. What is lost is a warning in
    `notes`."""

    containers: tuple[Container, ...]
    annotations: Mapping[str, str]
    labels: Mapping[str, str]
    spec: Fields
    where: str
    meta: str
    settings: Settings
    notes: Notes
    dialect: str = ""

    def field(self, key: str) -> str:
        return f"{self.meta}.annotations[{key}]"

    def warn(self, key: str, problem: str, remedy: str = "") -> None:
        self.notes.warn(self.field(key), problem, remedy)

    def refuse(self, key: str, problem: str, remedy: str = "") -> Refused:
        """The exception to raise, about an annotation."""
        return self.notes.refuse(self.field(key), problem, remedy)

    def requests(self, sides: Sequence[str] = LIMITS_FIRST) -> list[ContainerRequest]:
        return [ContainerRequest(container, self, sides) for container in self.containers]

    def shares(
        self, share_of: Callable[[ContainerRequest], Share | None], sides: Sequence[str] = LIMITS_FIRST
    ) -> tuple[Share, ...]:
        return tuple(share for each in self.requests(sides) if (share := share_of(each)) is not None)


@dataclass(frozen=True, slots=True)
class ContainerRequest:
    """What a container asks for under the dialect's names of the tables; of the two `sides` the first that
    has a name counts."""

    container: Container
    pod: PodView
    sides: Sequence[str]

    def name(self, key: str) -> str:
        """The cluster's name for a name of the tables."""
        return self.pod.settings.name(key, self.pod.dialect)

    def has(self, key: str, side: str | None = None) -> bool:
        return self.name(key) in (self.container.asked(side) if side else self.container.resources)

    def field(self, key: str) -> str:
        return self.container.field(self.name(key))

    def warn(self, key: str, problem: str, remedy: str = "") -> None:
        self.pod.notes.warn(self.field(key), problem, remedy)

    def refuse(self, key: str, problem: str, remedy: str = "") -> Refused:
        """The exception to raise."""
        return self.pod.notes.refuse(self.field(key), problem, remedy)

    def share(self, count: int, **fields: Any) -> Share:
        return Share(self.container.name, self.container.phase, count, where=self.container.where, **fields)

    def amount(self, key: str) -> int | None:
        """None where the container does not ask. Raises Refused for what is no whole number."""
        name, container = self.name(key), self.container
        if name not in container.resources:
            return None
        values = [
            (f"{container.where}.resources.{side}[{name}]", container.asked(side)[name])
            for side in self.sides
            if name in container.asked(side)
        ]
        numbers = [self._whole(value, field) for field, value in values]
        if len(set(numbers)) > 1:
            self.pod.notes.warn(
                values[1][0],
                f"{values[1][1]} differs from {self.sides[0]}, which count here: {values[0][1]}",
                "the API server wants both alike",
            )
        return numbers[0]

    def limit(self, key: str) -> int | None:
        """As `amount`, for dialects that read limits alone. Raises Refused where the name stands in requests
        only."""
        if self.has(key, "requests") and not self.has(key, "limits"):
            raise self.refuse(
                key, "stands in requests only, which this dialect does not read", "write it in limits"
            )
        return self.amount(key)

    def _whole(self, value: object, field: str) -> int:
        try:
            number = to_int(value)  # type: ignore[arg-type]
        except InvalidQuantity as error:
            raise self.pod.notes.refuse(field, error.problem, "write a whole number") from error
        if number < 0:
            raise self.pod.notes.refuse(field, f"{value} is negative", "write a whole number from 0 up")
        return number


def view_of(pod: Object, settings: Settings, notes: Notes, *, where: str = "") -> PodView:
    """`where` is the field of the pod in the object that holds it, ending in a dot. Raises Refused where the
    shape is wrong."""
    spec = pod.get("spec")
    if not isinstance(spec, (dict, Mapping)):
        raise notes.refuse(f"{where}spec", "is not an object", "write containers")
    return PodView(
        containers=tuple(_containers(spec, where=f"{where}spec", notes=notes)),
        annotations=_texts(pod, "annotations", where, notes),
        labels=_texts(pod, "labels", where, notes),
        spec=spec,
        where=f"{where}spec",
        meta=f"{where}metadata",
        settings=settings,
        notes=notes,
    )


def _texts(pod: Fields, kind: str, where: str, notes: Notes) -> Mapping[str, str]:
    metadata = pod.get("metadata")
    found = (metadata.get(kind) if isinstance(metadata, (dict, Mapping)) else None) or {}
    if not isinstance(found, (dict, Mapping)):
        raise notes.refuse(f"{where}metadata.{kind}", "is not an object", "write names and texts")
    for key, value in found.items():
        if not isinstance(value, str):
            raise notes.refuse(
                f"{where}metadata.{kind}[{key}]", f"{value!r} is not a text", "put it in quotes"
            )
    return found


def _containers(spec: Fields, *, where: str, notes: Notes) -> Iterator[Container]:
    """Init containers and sidecars first, as in the pod."""
    for group in CONTAINER_LISTS:
        entries = spec.get(group)
        for index, raw in enumerate(entries if isinstance(entries, list) else ()):
            here, phase = f"{where}.{group}[{index}]", ContainerPhase.APP
            if not isinstance(raw, (dict, Mapping)):
                raise notes.refuse(here, "is not an object", "write name, image and resources")
            _check_resources(raw.get("resources") or {}, f"{here}.resources", notes)
            if group != "containers":
                phase = (
                    ContainerPhase.SIDECAR if raw.get("restartPolicy") == "Always" else ContainerPhase.INIT
                )
            yield Container(str(raw.get("name") or ""), phase, here, raw)


def _check_resources(resources: object, field: str, notes: Notes) -> None:
    if not isinstance(resources, (dict, Mapping)):
        raise notes.refuse(field, "is not an object", "write limits and requests")
    for side in SIDES:
        if resources.get(side) is not None and not isinstance(resources[side], Mapping):
            raise notes.refuse(f"{field}.{side}", "is not an object", 'write it like {"cpu": "1"}')
    claims = resources.get("claims")
    if claims is not None and not isinstance(claims, list):
        raise notes.refuse(f"{field}.claims", "is not a list", "write a list of names")


def without(container: Object, names: frozenset[str]) -> Object:
    """The container's resources with these names out of limits and requests; empty halves go too."""
    resources = dict(container["resources"]) if isinstance(container.get("resources"), Mapping) else {}
    for side in SIDES:
        if asked := amounts(container, side):
            resources[side] = {key: value for key, value in asked.items() if key not in names}
            if not resources[side]:
                del resources[side]
    return resources
