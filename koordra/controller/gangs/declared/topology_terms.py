"""Where in the fabric a gang wants to be: levels, parts and slices, by koordra's words. Those of others are
in `topology_of_others`; all that are said count together. Pure.

    annotation                                  says
    ------------------------------------------  --------------------------------------------------------------
    gang-topology, -preferred                   the level in one domain of which the whole gang must be, or is
                                                better
    gang-role                                   which part of the gang the pod is in
                                                (serve/decode: a role inside of serve)
    gang-role-topology, -preferred              the same of that part; several levels: of the roles that it is
                                                inside of, too, the outer first
    gang-slice-size                             the members that say so (of a role) are cut into slices of so
                                                many; up to three sizes, the outer first: 16,4
    gang-slice-topology, -preferred             a level for each size, may be empty: block,nvlink
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Final

from koordra.api import objects
from koordra.api.objects import Object
from koordra.controller.gangs.declared.annotations import (
    GANG_ROLE,
    GANG_ROLE_TOPOLOGY,
    GANG_ROLE_TOPOLOGY_PREFERRED,
    GANG_SLICE_SIZE,
    GANG_SLICE_TOPOLOGY,
    GANG_SLICE_TOPOLOGY_PREFERRED,
    GANG_TOPOLOGY,
    GANG_TOPOLOGY_PREFERRED,
    whole_number,
)
from koordra.controller.gangs.declared.member_index import role_of_pod
from koordra.controller.gangs.declared.said import Said
from koordra.placement.gang import Slices

MOST_LAYERS: Final = 3
_OF_ROLE: Final = (GANG_ROLE_TOPOLOGY, GANG_ROLE_TOPOLOGY_PREFERRED)
_OF_SLICES: Final = (GANG_SLICE_SIZE, GANG_SLICE_TOPOLOGY, GANG_SLICE_TOPOLOGY_PREFERRED)


@dataclass(frozen=True, slots=True)
class PartTerms:
    """Pods, by uid, that stand together. Of several levels that are required the narrowest holds, and so of
    those preferred. `size`: how many it is to have; `numbered_by`: the label that numbers its pods, where it
    is not the workload's own number."""

    name: str
    pods: frozenset[str]
    required: tuple[str, ...] = ()
    preferred: tuple[str, ...] = ()
    slices: tuple[Slices, ...] = ()
    size: int | None = None
    numbered_by: str = ""


@dataclass(frozen=True, slots=True)
class TopologyTerms:
    """Of the gang as a whole, and of its parts: those that contain others come first. `least`: what the parts
    make the least number of members; `labels`: levels that need not be ordered, since their text alone
    counts."""

    required: tuple[str, ...] = ()
    preferred: tuple[str, ...] = ()
    parts: tuple[PartTerms, ...] = ()
    least: int | None = None
    labels: frozenset[str] = frozenset()

    @property
    def words(self) -> frozenset[str]:
        """Every level that is named."""
        layers = [layer for part in self.parts for layer in part.slices]
        named = [*self.required, *self.preferred]
        named += [word for part in self.parts for word in (*part.required, *part.preferred)]
        named += [word for layer in layers for word in (layer.required, layer.preferred) if word]
        return frozenset(named)


ANYWHERE: Final = TopologyTerms()


@dataclass(slots=True)
class Wishes:
    """What is said, as it is gathered."""

    problems: list[str]
    required: list[str] = field(default_factory=list)
    preferred: list[str] = field(default_factory=list)
    parts: list[PartTerms] = field(default_factory=list)
    least: int | None = None
    labels: set[str] = field(default_factory=set)

    def add(self, required: str | None = None, preferred: str | None = None) -> None:
        self.required += [required] if required else []
        self.preferred += [preferred] if preferred else []

    def terms(self, pods: Sequence[Object], *, least: int | None) -> TopologyTerms:
        """Together: what a part says that is the whole gang, is the gang's."""
        everybody = frozenset(map(objects.uid, pods))
        parts = list[PartTerms]()
        for said in sorted(self.parts, key=lambda one: (-len(one.pods), one.name)):
            part = said
            if said.pods == everybody:
                self.required += said.required
                self.preferred += said.preferred
                self._check_least(said, least)
                part = replace(said, required=(), preferred=())
                if not part.slices and part.size is None:
                    continue
            crossing = next((other for other in parts if _cross(part, other)), None)
            if crossing is not None:
                self.problems.append(
                    f"its parts {part.name or 'of slices'} and {crossing.name or 'of slices'} share some of their pods and "
                    "not all: let one be inside the other"
                )
            parts.append(part)
        required, preferred, labels = tuple(self.required), tuple(self.preferred), frozenset(self.labels)
        return TopologyTerms(required, preferred, tuple(parts), self.least, labels)

    def _check_least(self, part: PartTerms, least: int | None) -> None:
        outer = part.slices[0] if part.slices else None
        if least is not None and outer is not None and outer.required and least % outer.size:
            self.problems.append(
                f"it needs {least} members, which slices of {outer.size} do not make up: let the one be a multiple of the "
                "other"
            )


def _cross(part: PartTerms, other: PartTerms) -> bool:
    return bool(part.pods & other.pods) and not part.pods <= other.pods


def own_wishes(said: Said, wishes: Wishes) -> None:
    """By koordra's annotations."""
    wishes.add(said.text(GANG_TOPOLOGY), said.text(GANG_TOPOLOGY_PREFERRED))
    roles = by(said.pods, _role)
    levels: dict[str, set[tuple[str | None, str | None]]] = {}
    slices: dict[str, tuple[Slices, ...]] = {}
    for role, pods in roles.items():
        own = Said(pods, wishes.problems)
        required, preferred = (_by_layer(own, name, role) for name in _OF_ROLE)
        if (required or preferred) and not role:
            wishes.problems.append(
                f"{GANG_ROLE_TOPOLOGY} without {GANG_ROLE}: name the role that the pods are in"
            )
        for layer in sorted(required.keys() | preferred.keys()):
            levels.setdefault(layer, set()).add((required.get(layer), preferred.get(layer)))
        slices[role] = _own_slices(own)
    for role, said_of in levels.items():
        if len(said_of) > 1:
            wishes.problems.append(f"its members disagree about the levels of role {role}")
        inside = [pod for other in roles if is_inside(other, role) for pod in roles[other]]
        wishes.parts.append(part_of(role, inside, *min(said_of, key=str), slices.pop(role, ())))
    for role, layers in slices.items():
        if layers:
            inside = [pod for pod in roles[role] if _says(pod, *_OF_SLICES)]
            wishes.parts.append(part_of(role, inside, slices=layers))


def is_inside(role: str, outer: str) -> bool:
    return role == outer or bool(outer and role.startswith(f"{outer}/"))


def _by_layer(said: Said, name: str, role: str) -> dict[str, str]:
    """Levels of the role and of those that it is inside of (`serve/decode` of `serve`): one level is the
    role's own, several are the outer first."""
    text = said.text(name)
    if text is None:
        return {}
    named = role.split("/") if role and "/" in role else [role]
    levels = [one.strip() for one in text.split(",")]
    if len(levels) == 1:
        return {role: levels[0]} if levels[0] else {}
    if len(levels) != len(named):
        said.problems.append(
            f"{name} is {text[:40]!r}: write one level, or one for each of the {len(named)} layers of role {role}"
        )
        return {}
    layers = ["/".join(named[: at + 1]) for at in range(len(named))]
    return {layer: level for layer, level in zip(layers, levels, strict=True) if level}


def _own_slices(said: Said) -> tuple[Slices, ...]:
    size, required, preferred = (said.text(name) for name in _OF_SLICES)
    if size is None:
        if required or preferred:
            said.problems.append(
                f"{GANG_SLICE_TOPOLOGY} without {GANG_SLICE_SIZE}: say how many make a slice"
            )
        return ()
    sizes = [whole_number(one.strip()) or 0 for one in size.split(",")]
    levels = [
        [one.strip() or None for one in text.split(",")] if text else [None] * len(sizes)
        for text in (required, preferred)
    ]
    if any(len(own) != len(sizes) for own in levels) or not any(map(any, levels)):
        said.problems.append(
            f"{GANG_SLICE_SIZE} is {size[:40]!r}: name a level for each size, in {GANG_SLICE_TOPOLOGY} or "
            f"{GANG_SLICE_TOPOLOGY_PREFERRED}"
        )
        return ()
    found = tuple(Slices(*layer) for layer in zip(sizes, *levels, strict=True))
    return checked(found, f"{GANG_SLICE_SIZE} is {size[:40]!r}", said.problems)


def checked(layers: tuple[Slices, ...], where: str, problems: list[str]) -> tuple[Slices, ...]:
    """The layers, outer first, where they can be meant."""
    sizes = [layer.size for layer in layers]
    if not all(0 < size <= 100_000 for size in sizes) or len(sizes) > MOST_LAYERS:
        problems.append(f"{where}: write {MOST_LAYERS} numbers from 1 on at most, the outer slices first")
        return ()
    if any(outer % inner for outer, inner in pairwise(sizes)):
        problems.append(f"{where}: each size has to divide the one before")
        return ()
    return layers


def part_of(
    name: str,
    pods: Iterable[Object],
    required: str | None = None,
    preferred: str | None = None,
    slices: tuple[Slices, ...] = (),
) -> PartTerms:
    return PartTerms(
        name,
        frozenset(map(objects.uid, pods)),
        (required,) if required else (),
        (preferred,) if preferred else (),
        slices,
    )


def by(pods: Iterable[Object], key: Callable[[Object], str]) -> dict[str, list[Object]]:
    found: dict[str, list[Object]] = {}
    for pod in pods:
        found.setdefault(key(pod), []).append(pod)
    return found


def _role(pod: Object) -> str:
    """Nobody is asked what his workload calls him who says no level of it."""
    return role_of_pod(pod) if _says(pod, GANG_ROLE, *_OF_ROLE) else ""


def _says(pod: Object, *names: str) -> bool:
    return any(name in objects.annotations_of(pod) for name in names)
