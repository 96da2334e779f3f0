"""Which gang a pod says it belongs to. Pure.

The first of these that a pod carries counts:

    source        the pod says                                           how many are needed
    ------------  -----------------------------------------------------  -----------------------------------
    koordra       annotation (or label) koordra.io/gang                  annotation koordra.io/gang-min
    kubernetes    spec.schedulingGroup.podGroupName (1.36)               PodGroup, schedulingPolicy.gang.
                                                                         minCount
                  spec.workloadRef (1.35)                                Workload, podGroups[].policy.gang.
                                                                         minCount
    koordinator   annotation gang.scheduling.koordinator.sh/name         annotation .../min-available
    coscheduling  label scheduling.x-k8s.io/pod-group                    PodGroup, minMember
                  label pod-group.scheduling.sigs.k8s.io, or .../name    PodGroup, or label
                                                                         .../min-available
    volcano       annotation scheduling.k8s.io/group-name                PodGroup, minMember
    kueue         label kueue.x-k8s.io/pod-group-name                    annotation .../pod-group-total-count
    grove         label grove.io/podgang                                 PodGang, podgroups[].minReplicas
    kai           annotation pod-group-name, beside labels               PodGroup, minMember
                  kai.scheduler/...

A gang never crosses namespaces: its name is looked up in the pod's own. Where its replicas are gangs of their
own (gang_by), each is called by the name and what the replica's labels say: `serve:0`. Gangs of Koordinator's
that are bound to each other (`groups`) are one, with a role for each: `a+b`. So are the PodGroups that a
CompositePodGroup (1.37, alpha, KEP 6012; preview) wants together, by whatever of its fields: of several
around each other the outermost that wants it. The others of them count for nothing.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import lru_cache
from typing import Any, Final, NamedTuple

from koordra.api import objects
from koordra.api.kinds import COMPOSITE
from koordra.api.objects import Fields, Object
from koordra.controller import claims as claims_of
from koordra.controller.gangs.declared.annotations import GANG
from koordra.controller.gangs.declared.gang_by import replica_of
from koordra.controller.gangs.declared.workload_kind import GROVE, is_ahead

KOORDINATOR: Final = "gang.scheduling.koordinator.sh/"
_COSCHEDULING: Final = "scheduling.x-k8s.io/pod-group"
COSCHEDULING_OLD: Final = "pod-group.scheduling.sigs.k8s.io"
_VOLCANO: Final = ("scheduling.k8s.io/group-name", "scheduling.volcano.sh/group-name")
_GROUPS: Final = KOORDINATOR + "groups"
MOST_JOINED: Final = 16
NO_GROUPS: Final[Mapping[str, Object]] = {}
MOST_AROUND: Final = 4
"""CompositePodGroups around each other, as the KEP has it."""
_LONGEST_GROUPS: Final = 4096
KAI: Final = "kai.scheduler/"
KUEUE: Final = "kueue.x-k8s.io/pod-group-"


class Source(StrEnum):
    KOORDRA = "koordra"
    KUBERNETES = "kubernetes"
    KOORDINATOR = "koordinator"
    COSCHEDULING = "coscheduling"
    VOLCANO = "volcano"
    KUEUE = "kueue"
    GROVE = "grove"
    KAI = "kai"


_NAMED_BY: Final = (
    (Source.KOORDINATOR, (KOORDINATOR + "name",), (KOORDINATOR + "name",)),
    (Source.COSCHEDULING, (), (_COSCHEDULING, COSCHEDULING_OLD, COSCHEDULING_OLD + "/name")),
    (Source.VOLCANO, _VOLCANO, ()),
    (Source.KUEUE, (), (KUEUE + "name",)),
    (Source.GROVE, (), (GROVE + "podgang",)),
    (Source.KAI, ("pod-group-name",), ()),
)
"""Annotations, and labels, by which pods of a system name their group."""


@dataclass(frozen=True, slots=True)
class GangRef:
    """A pod's word about its gang. `group` as the pod names it; `part`: the group within a Workload of 1.35,
    or the word COMPOSITE where `group` is a CompositePodGroup;
    `replica`: which of them, where each is a gang of its own; `joined`: several groups, none of which starts
    before all can, of which `group` is the first."""

    source: Source
    namespace: str
    group: str
    part: str = ""
    replica: tuple[str, ...] = ()
    joined: tuple[str, ...] = ()

    @property
    def groups(self) -> tuple[str, ...]:
        return self.joined or (self.group,)

    @property
    def name(self) -> str:
        """In its namespace. No two gangs of one source share one: colons and plus signs that stand in a
        group's name are written otherwise."""
        return ":".join(["+".join(map(_quoted, self.groups)), *self.replica])

    @property
    def key(self) -> str:
        """`namespace/name`, for people. Two gangs of one name, by the words of different systems, are two
        gangs."""
        whose = "" if self.source is Source.KOORDRA else f" ({self.source.value})"
        return f"{self.namespace}/{self.name}" + (f"/{self.part}" if self.part else "") + whose


def _quoted(group: str) -> str:
    return group.replace("%", "%25").replace(":", "%3A").replace("+", "%2B")


def gang_of(pod: Mapping[str, Any], pod_groups: Mapping[str, Object] = NO_GROUPS) -> GangRef | None:
    """The gang that the pod is in. None where it names none; and for the initializers of a TrainJob, which
    have ended before the others are made, so that the gang would wait for ever. `pod_groups` as in the cache:
    without them a PodGroup is never part of another one."""
    found = group_of(pod)
    if found is None or (found.source is Source.KOORDRA and is_ahead(pod)):
        return None
    if found.source is Source.KUBERNETES and not found.part and pod_groups:
        group = pod_groups.get(f"{claims_of.POD_GROUPS}/{found.namespace}/{found.group}", {})
        tops = [one for one in composites_around(group, pod_groups) if wants_together(objects.spec_of(one))]
        if tops:
            found = replace(found, group=objects.name(tops[-1]), part=COMPOSITE)
    replica = replica_of(pod, default=found.source is Source.KOORDRA)
    return replace(found, replica=replica.values) if replica.values else found


def composites_around(group: Fields, pod_groups: Mapping[str, Object]) -> list[Object]:
    """The CompositePodGroups around a PodGroup, the inner ones first, as far as they are there, and one more
    than there may be (MOST_AROUND)."""
    found, at = list[Object](), group
    while len(found) <= MOST_AROUND:
        name = objects.spec_of(at).get("parentCompositePodGroupName")
        key = f"{claims_of.POD_GROUPS}/{COMPOSITE}/{objects.namespace(at)}/{name}"
        if not name or key not in pod_groups:
            break
        at = pod_groups[key]
        found.append(at)
    return found


def wants_together(spec: Fields) -> bool:
    """Whether a CompositePodGroup wants its groups to start, or end, or be in one domain together."""
    return (
        least_groups(spec) != 1
        or "all" in objects.fields(spec.get("disruptionMode"))
        or bool(spec.get("schedulingConstraints"))
    )


def least_groups(spec: Fields) -> int:
    """How many groups of a CompositePodGroup start together; 1 where each starts by itself (`basic`)."""
    gang = objects.fields(objects.fields(spec.get("schedulingPolicy")).get("gang"))
    number = gang.get("minGroupCount", 1)
    return number if isinstance(number, int) and number > 0 else 1


def group_of(pod: Mapping[str, Any]) -> GangRef | None:
    """Whose gang the pod names, of whatever replica."""
    annotations, labels, spec = objects.annotations_of(pod), objects.labels_of(pod), objects.spec_of(pod)
    where = objects.namespace(pod)
    own = annotations.get(GANG) or labels.get(GANG)
    if own:
        return GangRef(Source.KOORDRA, where, own)
    group = (spec.get("schedulingGroup") or {}).get("podGroupName")
    if group:
        return GangRef(Source.KUBERNETES, where, str(group))
    workload = spec.get("workloadRef") or {}
    if workload.get("name"):
        parts = filter(None, [workload.get("podGroup"), workload.get("podGroupReplicaKey")])
        part = "/".join(map(str, parts))
        return GangRef(Source.KUBERNETES, where, str(workload["name"]), part)
    for source, in_annotations, in_labels in _NAMED_BY:
        named = [annotations.get(name) for name in in_annotations] + [labels.get(name) for name in in_labels]
        found = next(filter(None, named), None)
        if found and source is Source.KOORDINATOR:
            joined = joined_groups(annotations.get(KOORDINATOR + "groups", ""), found, where).names
            return GangRef(source, where, min((found, *joined)), joined=joined)
        if found and (source is not Source.KAI or any(name.startswith(KAI) for name in labels)):
            return GangRef(source, where, found)
    return None


class Joined(NamedTuple):
    """`names` of the groups, in order; none where the pod's own is alone. `problem`: why what is written
    cannot be meant."""

    names: tuple[str, ...] = ()
    problem: str = ""


def joined_groups(text: str, group: str, namespace: str) -> Joined:
    """Koordinator's `groups`: a JSON list of `namespace/name`."""
    if len(text) > _LONGEST_GROUPS:
        return Joined(problem=f"{_GROUPS} has {len(text)} letters: {_LONGEST_GROUPS} at most")
    return _joined(text, group, namespace) if text else Joined()


@lru_cache(1024)
def _joined(text: str, group: str, namespace: str) -> Joined:
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, list) or not all(isinstance(one, str) for one in found):
        return Joined(
            problem=f'{_GROUPS} is {text[:60]!r}: write a JSON list such as ["{namespace}/a", "{namespace}/b"]'
        )
    places = [name.rpartition("/")[::2] for name in found]
    if elsewhere := [name for place, name in places if place not in ("", namespace)]:
        return Joined(
            problem=f"{_GROUPS} names {elsewhere[0][:60]} of another namespace: a gang crosses none"
        )
    names = tuple(sorted({name for _, name in places}))
    if len(names) > MOST_JOINED:
        return Joined(problem=f"{_GROUPS} names {len(names)} gangs: {MOST_JOINED} at most")
    if names and group not in names:
        return Joined(
            problem=f"{_GROUPS} does not name {group[:60]}, whose pod says so: all of them name all"
        )
    return Joined(names if len(names) > 1 else ())
