"""What a dialect is to the rest: its names, and a function from a pod to what it asks for.

`pod_view`     the pod that is translated, and what its containers ask for
`vgpu`         what HAMi and Volcano vGPU have in common
`charges`      how quotas count a claim;  `allocation`  what a pod was given

All that a dialect is written with can be imported from here. What each name means and what becomes of it
stands in `compat.keys`, which is held to the names of the code.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from typing import Final

from koordra.api.opaque.isolation import ONE_CARD, is_one_card
from koordra.compat.dialect import charges
from koordra.compat.dialect.allocation import (
    NANOSECONDS,
    Allocated,
    Device,
    Granted,
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
    ContainerPhase,
    Joint,
    Memory,
    Nics,
    NormalizedRequest,
    Share,
    Sharing,
    percent_of,
)
from koordra.compat.settings import Section, Settings, memory_unit_section, number_section

__all__ = [
    "GIB",
    "LEAST",
    "MIB",
    "MIG",
    "NANOSECONDS",
    "REQUESTS_FIRST",
    "WHOLE",
    "Allocated",
    "Charge",
    "Container",
    "ContainerPhase",
    "ContainerRequest",
    "Device",
    "Dialect",
    "Granted",
    "Joint",
    "Memory",
    "Nics",
    "NormalizedRequest",
    "PodView",
    "Settings",
    "Share",
    "Sharing",
    "Variables",
    "asking_containers",
    "charges",
    "covers",
    "exclusively",
    "memory_limits",
    "memory_unit_section",
    "mig_shares",
    "number_section",
    "percent_of",
    "profile_of",
    "split_list",
    "warn_of_environment",
]


@dataclass(frozen=True, slots=True, eq=False)
class Dialect:
    """Everything that is one dialect's alone. Names of resources, annotations and labels may hold `*`.

    name, title       the word in messages and templates; the peer's name
    parse             a pod -> what it asks for; raises Refused for what koordra cannot honour
    isolation         of its shares, where neither the pod nor the operator says one
    resources         name -> how a claim is counted under it by quotas, None: it is not; those among `bytes`
                      are amounts of memory
    charges_partitions   whether MIG instances count under these names too
    annotations, labels   names by which a pod shows that it speaks the dialect
    soft_annotations, soft_labels   of the same project about something else: they decide only where nothing
                                    else does, and contradict nobody
    written           annotations that only the dialect's own scheduler may write: they are never believed,
                      and are taken out
    provided_variables   beginnings of those that koordra's plugin sets: the kubelet cannot put them in for
                         `$(NAME)`, which it does before the plugin is asked
    environment       the variables that a container gets
    allocation_annotations   what the dialect's scheduler wrote on pods that it had placed
    memory_unit       bytes of a unit of memory, where that is a setting: claims carry it in an annotation
    node_labels       labels that its node programs published and pods select by; an empty one is not written
    publishers        beginnings of resources that the dialect's node programs publish, and who they are
    schedulers        names that pods give; taken out in a cluster, and where True always (they place pods
                      with devices, and do nothing else)
    asking            beginnings of annotations that ask by themselves
    extended_resources   whether a DeviceClass' extendedResourceName says all that a pod of it can say
    opt_out           a label and its value: such a pod is left as it is
    like_resources    beginnings under which an unknown name is taken for a misspelt one
    domains           beginnings of annotations and labels: one that `compat.keys` lacks is reported
    sections          of an operator's settings: name -> reader of the settings with what it says
    device_config     field of a device-config.yaml -> the resource that it names in the cluster; the same
                      fields stand in the `device_section` of an operator's settings
    """

    name: str
    title: str
    parse: Callable[[PodView], NormalizedRequest]
    resources: Mapping[str, Charge | None]
    isolation: str | None = None
    charges_partitions: bool = False
    bytes: frozenset[str] = frozenset()
    annotations: tuple[str, ...] = ()
    labels: tuple[str, ...] = ()
    soft_annotations: tuple[str, ...] = ()
    soft_labels: tuple[str, ...] = ()
    written: tuple[str, ...] = ()
    provided_variables: tuple[str, ...] = ()
    environment: Callable[[Granted], Variables] | None = None
    allocation_annotations: Callable[[Allocated], dict[str, str]] | None = None
    memory_unit: Callable[[Settings], int] | None = None
    node_labels: Mapping[str, Callable[[NodeCards], str]] = field(default_factory=dict)
    publishers: tuple[tuple[str, str], ...] = ()
    schedulers: Mapping[str, bool] = field(default_factory=dict)
    asking: tuple[str, ...] = ()
    extended_resources: bool = False
    opt_out: tuple[str, str] = ("", "")
    like_resources: tuple[str, ...] = ()
    domains: tuple[str, ...] = ()
    sections: Mapping[str, Section] = field(default_factory=dict)
    device_config: Mapping[str, str] = field(default_factory=dict)
    device_section: str = ""

    def normalized(self, view: PodView) -> NormalizedRequest:
        """What the pod asks for; asking for no card is asking for nothing. Raises Refused."""
        found = self.parse(replace(view, dialect=self.name))
        shares = tuple(share for share in found.shares if share.count > 0)
        isolation = found.isolation or view.settings.isolation.get(self.name, self.isolation)
        for share in shares if is_one_card(isolation) else ():
            if share.count > 1 and not share.partition and not share.whole:
                problem = f"asks for {share.count} cards by isolation {isolation}, and {ONE_CARD}"
                raise view.notes.refuse(share.where, problem, "ask for one card, or for whole cards")
        return replace(found, dialect=self.name, shares=shares, isolation=isolation)


def covers(patterns: Iterable[str], key: str) -> bool:
    """Whether one of the names means it."""
    return any(fnmatchcase(key, pattern) for pattern in patterns)


def split_list(view: PodView, key: str, *, strip: bool = True) -> tuple[str, ...] | None:
    """The entries of a comma list, None where the annotation is absent or blank. Refused for `,` alone."""
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
    """Variables that koordra's plugin sets too late for what a container does with them."""
    for container in asking_containers(view, normalized):
        for name in dialect.provided_variables:
            if container.mentions(f"$({name}"):
                view.notes.warn(
                    container.where,
                    f"has $({name}...) where the kubelet puts values in: it does not know this one",
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
    """`1g.10gb+me` of `nvidia.com/mig-1g.10gb.me`; "" where it is none (compute instances have no device of
    their own)."""
    found = re.fullmatch(r"([1-9]g\.[1-9][0-9]*gb)((?:\.[a-z0-9]+)*)", name.removeprefix(MIG))
    if found is None:
        return ""
    return found[1] + (f"+{found[2][1:]}" if found[2] else "")


def exclusively(share: Share) -> Share:
    """Nobody else on the card; a share of all its memory is that already."""
    return share if share.memory.whole or share.partition else replace(share, exclusive=True)
