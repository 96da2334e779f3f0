"""What a dialect is to the rest: its names, and a function from a pod to what it asks for.

`pod_view`     the pod that is translated, and what its containers ask for
`vgpu`         what HAMi and Volcano vGPU have in common
`charges`      how quotas count a claim;  `allocation`  what a pod was given

All that a dialect is written with can be imported from here. A `Name` is a resource, annotation, label, environment variable, scheduler name or configuration field. `sign`: whether
it shows which dialect a pod speaks; `result` marks what only the dialect's own scheduler may write: such annotations are
never believed, and are taken out. docs/migrate/<peer>.md prints the tables of names, which code and messages share.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from fnmatch import fnmatchcase
from functools import lru_cache, partial
from typing import Final

from koordra.compat.dialect import charges
from koordra.compat.dialect.allocation import (
    NANOSECONDS,
    Allocated,
    Card,
    Held,
    NodeCards,
    Variables,
    memory_limits,
)
from koordra.compat.dialect.charges import Charge
from koordra.compat.dialect.pod_view import REQUESTS_FIRST, Container, ContainerRequest, PodView
from koordra.compat.normalized_request import (
    GIB,
    LEAST,
    MIB,
    WHOLE,
    Joint,
    Memory,
    Nics,
    NormalizedRequest,
    Phase,
    Share,
    Together,
    percent_of,
)
from koordra.compat.settings import Section, Settings, memory_unit_section, number_section

__all__ = [
    "GIB",
    "LEAST",
    "MIB",
    "MIG",
    "MOST_KEPT",
    "NANOSECONDS",
    "REQUESTS_FIRST",
    "WHOLE",
    "Allocated",
    "Card",
    "Charge",
    "Container",
    "ContainerRequest",
    "Dialect",
    "Held",
    "Joint",
    "Memory",
    "Name",
    "Nics",
    "NormalizedRequest",
    "Phase",
    "Place",
    "PodView",
    "Settings",
    "Share",
    "Together",
    "Variables",
    "annotation",
    "asking_containers",
    "charges",
    "covering",
    "environment",
    "exclusively",
    "hint",
    "label",
    "memory_limits",
    "memory_unit_section",
    "mig_shares",
    "number_section",
    "on_nodes",
    "percent_of",
    "profile_of",
    "resource",
    "scheduler",
    "setting",
    "split_list",
    "warn_of_environment",
    "written",
]

MOST_KEPT: Final = 1 << 15


class Place(StrEnum):
    RESOURCE = "resource"
    ANNOTATION = "annotation"
    LABEL = "label"
    ENVIRONMENT = "environment"
    SCHEDULER = "schedulerName"
    SETTING = "setting"
    NODE = "node"


@dataclass(frozen=True, slots=True)
class Name:
    """`key` may hold `*`. A `soft` sign decides only where nothing else does, and contradicts nobody (a label of the same
    project about something else). A variable
    that is `warned` is warned about where a container that asks for devices uses it; one that is `provided` is set by koordra's
    plugin, and warned about where the kubelet would have to put it in (`$(NAME)`), which it does before the plugin is asked."""

    place: Place
    key: str
    meaning: str
    becomes: str
    result: bool = False
    sign: bool = True
    soft: bool = False
    warned: bool = False
    provided: bool = False

    def covers(self, key: str) -> bool:
        return key == self.key or ("*" in self.key and fnmatchcase(key, self.key))


@lru_cache(maxsize=MOST_KEPT)
def covering(dialect: Dialect, key: str, place: Place) -> tuple[Name, ...]:
    """The names that mean this one. Every pod asks the same, so answers are kept; users choose what they ask about, so a bounded number
    of them."""
    return tuple(name for name in dialect.of(place) if name.covers(key))


resource = partial(Name, Place.RESOURCE)
annotation = partial(Name, Place.ANNOTATION)
label = partial(Name, Place.LABEL)
scheduler = partial(Name, Place.SCHEDULER, sign=False)
setting = partial(Name, Place.SETTING, sign=False)
on_nodes = partial(Name, Place.NODE, sign=False)


def hint(key: str, place: Place, meaning: str, becomes: str) -> Name:
    """A soft sign."""
    return Name(place, key, meaning, becomes, soft=True)


def written(key: str, meaning: str) -> Name:
    return Name(
        Place.ANNOTATION, key, meaning, "taken out with a warning; never believed", result=True, sign=False
    )


def environment(key: str, meaning: str, becomes: str, *, warned: bool = True, provided: bool = False) -> Name:
    return Name(
        Place.ENVIRONMENT,
        key,
        meaning,
        becomes,
        sign=False,
        warned=warned and not provided,
        provided=provided,
    )


@dataclass(frozen=True, slots=True, eq=False)
class Dialect:
    """Everything that is one dialect's alone.

    name, title       the word in messages and templates; the peer's name
    parse             a pod -> what it asks for; raises Refused for what koordra cannot honour
    isolation         of its shares, where neither the pod nor the operator says one
    charges           name of a resource -> how a claim is counted under it by quotas; those among `bytes` are amounts of memory
    charges_partitions   whether MIG instances count under these names too
    environment       the variables of a container: (cards of a request, cards of the pod, bytes of a unit)
    annotations       what the dialect's scheduler wrote on pods that it had placed
    memory_unit       bytes of a unit of memory, where that is a setting: claims carry it in an annotation
    node_labels       labels that its node programs published and pods select by; an empty one is not written
    publishers        beginnings of resources that the dialect's node programs publish, and who they are
    schedulers        names that pods give; taken out in a cluster, and where True always (nothing else has that name)
    asking            beginnings of annotations that ask by themselves
    extended_resources   whether a DeviceClass' extendedResourceName says all that a pod of it can say
    opt_out           a label and its value: such a pod is left as it is
    like_resources, like_annotations   beginnings under which an unknown name is taken for a misspelt one
    sections          of an operator's settings: name -> reader of the settings with what it says
    device_config     field of a device-config.yaml -> the resource that it names in the cluster
    """

    name: str
    title: str
    names: tuple[Name, ...]
    parse: Callable[[PodView], NormalizedRequest]
    isolation: str | None = None
    charges: Mapping[str, Charge] = field(default_factory=dict)
    charges_partitions: bool = False
    bytes: frozenset[str] = frozenset()
    environment: Callable[[Sequence[Card], Sequence[Card], int], Variables] | None = None
    annotations: Callable[[Allocated], dict[str, str]] | None = None
    memory_unit: Callable[[Settings], int] | None = None
    node_labels: Mapping[str, Callable[[NodeCards], str]] = field(default_factory=dict)
    publishers: tuple[tuple[str, str], ...] = ()
    schedulers: Mapping[str, bool] = field(default_factory=dict)
    asking: tuple[str, ...] = ()
    extended_resources: bool = False
    opt_out: tuple[str, str] = ("", "")
    like_resources: tuple[str, ...] = ()
    like_annotations: tuple[str, ...] = ()
    sections: Mapping[str, Section] = field(default_factory=dict)
    device_config: Mapping[str, str] = field(default_factory=dict)

    def of(self, *places: Place) -> tuple[Name, ...]:
        return tuple(name for name in self.names if name.place in places)

    def normalized(self, view: PodView) -> NormalizedRequest:
        """What the pod asks for; asking for no card is asking for nothing. Raises Refused."""
        found = self.parse(replace(view, dialect=self.name))
        return replace(
            found,
            dialect=self.name,
            shares=tuple(share for share in found.shares if share.count > 0),
            isolation=found.isolation or view.settings.isolation.get(self.name, self.isolation),
        )


def split_list(view: PodView, key: str, *, strip: bool = True) -> tuple[str, ...] | None:
    """The entries of a comma list, None where the annotation is absent or blank. Raises Refused for `,` alone."""
    value = view.annotations.get(key) or ""
    if not value.strip():
        return None
    entries = tuple(entry.strip() if strip else entry for entry in value.split(","))
    kept = tuple(entry for entry in entries if entry.strip())
    if not kept:
        raise view.refuse(key, f"{value!r} names nothing", "write names with commas between them")
    return kept


def asking_containers(view: PodView, normalized: NormalizedRequest) -> list[Container]:
    """Those that ask for devices, or see the pod's."""
    asking = {*(share.container for share in normalized.shares), *normalized.users}
    return [container for container in view.containers if container.name in asking]


def warn_of_environment(view: PodView, normalized: NormalizedRequest, dialect: Dialect) -> None:
    """Variables that the dialect's plugin used to set, and that a container of the pod reads or sets itself."""
    for container in asking_containers(view, normalized):
        for name in dialect.of(Place.ENVIRONMENT):
            if name.warned and container.mentions(name.key):
                view.notes.warn(container.where, f"uses {name.key} ({name.meaning})", name.becomes)
            if name.provided and container.mentions(f"$({name.key}"):
                view.notes.warn(
                    container.where,
                    f"has $({name.key}...) where the kubelet puts values in: it does not know this one",
                    "read the variable inside the container (sh -c)",
                )


MIG: Final = "nvidia.com/mig-"


def mig_shares(view: PodView) -> tuple[Share, ...]:
    """MIG instances by profile (`nvidia.com/mig-1g.5gb`)."""
    shares = []
    for request in view.requests():
        for name in request.container.resources:
            if name.startswith(MIG):
                count, profile = request.amount(name) or 0, profile_of(name)
                if not profile:
                    raise request.refuse(
                        name,
                        "is no MIG profile that koordra gives out",
                        "profiles are like 1g.5gb or 1g.10gb.me",
                    )
                shares.append(request.share(count, distinct=False, profile=profile))
    return tuple(shares)


def profile_of(name: str) -> str:
    """`1g.10gb+me` of `nvidia.com/mig-1g.10gb.me`; "" where it is none (compute instances have no device of their own)."""
    found = re.fullmatch(r"([1-9]g\.[1-9][0-9]*gb)((?:\.[a-z0-9]+)*)", name.removeprefix(MIG))
    if found is None:
        return ""
    return found[1] + (f"+{found[2][1:]}" if found[2] else "")


def exclusively(share: Share) -> Share:
    """Nobody else on the card; a share of all its memory is that already."""
    return share if share.memory.whole or share.partition else replace(share, exclusive=True)
