"""A pod's containers as the dialects read them: when they run, and what stands in limits and requests.

An extended resource is a whole number, and the API server wants limits and requests alike. Manifests in files have not met
the API server yet: a dialect that reads limits first takes them where the two differ, one that reads requests takes those;
the difference is told.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from koordra.api.classic.notes import Notes
from koordra.api.objects import Object
from koordra.api.pods import CONTAINER_LISTS, SIDES, amounts, resource_names
from koordra.compat.normalized_request import Phase
from koordra.errors import InvalidQuantity
from koordra.quantity import to_int

LIMITS_FIRST: Final = ("limits", "requests")
REQUESTS_FIRST: Final = ("requests", "limits")


@dataclass(frozen=True, slots=True)
class Container:
    """`where` is the field of the container in its object."""

    name: str
    phase: Phase
    where: str
    raw: Mapping[str, Any]

    def asked(self, side: str) -> Mapping[str, Any]:
        """`limits` or `requests`."""
        return amounts(self.raw, side)

    def resources(self) -> list[str]:
        """Every name in limits and requests, each once."""
        return resource_names(self.raw)

    def field(self, name: str) -> str:
        side = "limits" if name in self.asked("limits") else "requests"
        return f"{self.where}.resources.{side}[{name}]"

    def environment(self) -> dict[str, str]:
        """Variables with a plain value."""
        found = self.raw.get("env")
        entries = found if isinstance(found, list) else []
        return {
            str(entry.get("name")): str(entry["value"])
            for entry in entries
            if isinstance(entry, (dict, Mapping)) and entry.get("value") is not None
        }

    def mentions(self, text: str) -> bool:
        """Whether command, arguments or variables use the text, as `$(NAME)`, in a script or as a variable's name."""
        words = [
            *_texts(self.raw.get("command")),
            *_texts(self.raw.get("args")),
            *self._variables(),
        ]
        return any(text in word for word in words)

    def _variables(self) -> Iterator[str]:
        yield from self.environment().values()
        found = self.raw.get("env")
        yield from (str(entry.get("name")) for entry in found or () if isinstance(entry, (dict, Mapping)))

    @property
    def privileged(self) -> bool:
        context = self.raw.get("securityContext")
        return isinstance(context, (dict, Mapping)) and context.get("privileged") is True


def _texts(raw: object) -> Iterator[str]:
    if isinstance(raw, list):
        yield from (str(entry) for entry in raw)


def containers_of(spec: Mapping[str, Any], *, where: str, notes: Notes) -> tuple[Container, ...]:
    """Init containers and sidecars first, as in the pod. Raises Refused where the shape is wrong."""
    found: list[Container] = []
    for group in CONTAINER_LISTS:
        entries = spec.get(group)
        for index, raw in enumerate(entries if isinstance(entries, list) else ()):
            here = f"{where}.{group}[{index}]"
            if not isinstance(raw, (dict, Mapping)):
                raise notes.refuse(here, "is not an object", "write name, image and resources")
            _check_shape(raw, here, notes)
            found.append(Container(str(raw.get("name") or ""), _phase(group, raw), here, raw))
    return tuple(found)


def _phase(group: str, raw: Mapping[str, Any]) -> Phase:
    if group == "containers":
        return Phase.APP
    return Phase.SIDECAR if raw.get("restartPolicy") == "Always" else Phase.INIT


def _check_shape(raw: Mapping[str, Any], here: str, notes: Notes) -> None:
    resources = raw.get("resources")
    if resources is None:
        return
    if not isinstance(resources, (dict, Mapping)):
        raise notes.refuse(f"{here}.resources", "is not an object", "write limits and requests")
    for side in SIDES:
        if resources.get(side) is not None and not isinstance(resources[side], Mapping):
            raise notes.refuse(f"{here}.resources.{side}", "is not an object", 'write it like {"cpu": "1"}')
    claims = resources.get("claims")
    if claims is not None and not isinstance(claims, list):
        raise notes.refuse(f"{here}.resources.claims", "is not a list", "write a list of names")


def amount(
    container: Container, name: str, *, notes: Notes, sides: Sequence[str] = LIMITS_FIRST
) -> int | None:
    """What the container asks for under the name, None where it does not. Raises Refused for what is no whole number.

    The first of `sides` that has the name counts.
    """
    if not name:
        return None
    values = [
        (f"{container.where}.resources.{side}[{name}]", container.asked(side)[name])
        for side in sides
        if name in container.asked(side)
    ]
    if not values:
        return None
    numbers = [_whole(value, field, notes) for field, value in values]
    if len(set(numbers)) > 1:
        notes.warn(
            values[1][0],
            f"{values[1][1]} differs from {sides[0]}, which count here: {values[0][1]}",
            "the API server wants both alike",
        )
    return numbers[0]


def only_limit(container: Container, name: str, *, notes: Notes) -> int | None:
    """As `amount`, for dialects that read limits alone. Raises Refused where the name stands in requests only."""
    if name in container.asked("requests") and name not in container.asked("limits"):
        raise notes.refuse(
            container.field(name),
            "stands in requests only, which this dialect does not read",
            "write it in limits",
        )
    return amount(container, name, notes=notes)


def _whole(value: object, field: str, notes: Notes) -> int:
    try:
        number = to_int(value)  # type: ignore[arg-type]
    except InvalidQuantity as error:
        raise notes.refuse(field, error.problem, "write a whole number") from error
    if number < 0:
        raise notes.refuse(field, f"{value} is negative", "write a whole number from 0 up")
    return number


def without(container: Object, names: frozenset[str]) -> Object:
    """The container with these names out of limits and requests; empty halves go too."""
    resources = dict(container["resources"]) if isinstance(container.get("resources"), Mapping) else {}
    for side in SIDES:
        if isinstance(resources.get(side), Mapping):
            kept = {key: value for key, value in resources[side].items() if key not in names}
            if len(kept) == len(resources[side]):
                continue
            if kept:
                resources[side] = kept
            else:
                del resources[side]
    return {**container, "resources": resources}
