"""Groups within groups: the subgroups of KAI's PodGroup, the pod groups of Grove's PodGang, and what is in a
CompositePodGroup of Kubernetes. Pure.

    KAI     subGroups[] {name, parent, minMember, minSubGroup, topologyConstraint {requiredTopologyLevel,
            preferredTopologyLevel}}; a pod is in the one that its label kai.scheduler/subgroup-name names
    Grove   podgroups[] {name, minReplicas, topologyConstraint.packConstraint {required, preferred}}, and
            topologyConstraintGroupConfigs[] {name, podGroupNames, topologyConstraint}, which are around
            several; a pod is in the one that its label grove.io/podclique names
    Kubernetes   CompositePodGroups {schedulingPolicy.gang.minGroupCount, schedulingConstraints}; with `basic`
            each in it starts by itself; and PodGroups {schedulingPolicy.gang.minCount} of which there are
            pods. As long as fewer of them have any than are needed, those that are missing are waited for

A subgroup without others in it needs so many members. Where fewer of those in one are needed than there are
(minSubGroup), the gang needs as many members as the smallest have, and none of them by itself.

Facts: KAI 0.17, Grove 0.1-alpha.12, kubernetes/api 1.37-beta, KEP 6012 of July 2026.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from koordra.api import objects
from koordra.api.kinds import COMPOSITE
from koordra.api.objects import Fields, Object
from koordra.controller import claims as claims_of
from koordra.controller.gangs.declared.gang_ref import GangRef, Source, composites_around, least_groups
from koordra.controller.gangs.declared.workload_kind import GROVE

MOST_SUBGROUPS: Final = 1024
MOST_LAYERS: Final = 8
_LEAF_OF: Final = {Source.KAI: "kai.scheduler/subgroup-name", Source.GROVE: GROVE + "podclique"}


@dataclass(frozen=True, slots=True)
class Subgroup:
    """`least`: members of those that nothing is in; `needs`: how many of those in it, None for all."""

    name: str
    parent: str = ""
    least: int = 0
    needs: int | None = None
    required: str | None = None
    preferred: str | None = None


@dataclass(frozen=True, slots=True)
class SubgroupTerms:
    """With its pods, by uid; `size`: the least that it has; `optional`: the gang may do without it."""

    subgroup: Subgroup
    pods: tuple[Object, ...]
    size: int
    optional: bool


class Subgroups(NamedTuple):
    """`least`: members that they need together. `problem`: what cannot be meant of them, in words."""

    all: tuple[SubgroupTerms, ...] = ()
    least: int = 0
    problem: str = ""


def subgroups_of(
    ref: GangRef, pods: Sequence[Object], spec: Mapping[str, Any], pod_groups: Mapping[str, Object]
) -> Subgroups:
    """The outer ones first. `spec`: of the gang's pod group; `pod_groups` as in the cache."""
    found_in = _said(ref, spec) if ref.part != COMPOSITE else _in_composite(ref, pods, pod_groups)
    said = {one.name: one for one in found_in}
    chains = {name: chain for name in said if (chain := _chain(name, said))}
    if len(found_in) > MOST_SUBGROUPS:
        return Subgroups(problem=f"its pod group has {len(found_in)} groups: {MOST_SUBGROUPS} at most")
    if astray := sorted(said.keys() - chains.keys()):
        return Subgroups(
            problem=f"group {astray[0][:60]} is in itself, or more than {MOST_LAYERS} deep in others"
        )
    needed = least_groups(spec) if ref.part == COMPOSITE else _number(spec.get("minSubGroup"))
    whole = Subgroup("", needs=needed)
    inner: dict[str, list[str]] = {name: [] for name in ("", *chains)}
    for name, chain in chains.items():
        inner[chain[1] if len(chain) > 1 else ""].append(name)
    sizes, optional = dict[str, int](), dict[str, bool]()
    for name in sorted(chains, key=lambda name: -len(chains[name])):
        own = sorted(sizes[one] for one in inner[name])
        sizes[name] = sum(own[: said[name].needs]) if own else said[name].least
    for name in ("", *sorted(chains, key=lambda name: (len(chains[name]), name))):
        needs = (said[name] if name else whole).needs
        for one in inner[name]:
            optional[one] = optional.get(name, False) or (needs is not None and needs < len(inner[name]))
    inside: dict[str, list[Object]] = {name: [] for name in chains}
    for pod in pods:
        leaf = _pod_group(pod) or objects.labels_of(pod).get(_LEAF_OF.get(ref.source, ""), "")
        for name in chains.get(leaf, ()):
            inside[name].append(pod)
    found = tuple(
        SubgroupTerms(said[name], tuple(inside[name]), sizes[name], optional[name]) for name in optional
    )
    return Subgroups(found, sum(sorted(sizes[name] for name in inner[""])[: whole.needs]))


def levels_of(ref: GangRef, spec: Mapping[str, Any]) -> tuple[str | None, str | None]:
    """Required and preferred of the group as a whole."""
    return _levels(spec) if ref.source in _LEAF_OF else (None, None)


def _said(ref: GangRef, spec: Mapping[str, Any]) -> list[Subgroup]:
    if ref.source is Source.KAI:
        return [
            Subgroup(
                str(one.get("name")),
                str(one.get("parent") or ""),
                _number(one.get("minMember")) or 0,
                _number(one.get("minSubGroup")),
                *_levels(one),
            )
            for one in objects.mappings(spec.get("subGroups"))
        ]
    if ref.source is not Source.GROVE:
        return []
    around = {
        str(name): str(group.get("name"))
        for group in objects.mappings(spec.get("topologyConstraintGroupConfigs"))
        for name in objects.texts(group.get("podGroupNames"))
    }
    outer = [
        Subgroup(str(group.get("name")), "", 0, None, *_levels(group))
        for group in objects.mappings(spec.get("topologyConstraintGroupConfigs"))
    ]
    groups = objects.mappings(spec.get("podgroups"))
    return outer + [
        Subgroup(name, around.get(name, ""), _number(one.get("minReplicas")) or 0, None, *_levels(one))
        for one in groups
        if (name := str(one.get("name")))
    ]


def _in_composite(ref: GangRef, pods: Sequence[Object], pod_groups: Mapping[str, Object]) -> list[Subgroup]:
    found: dict[str, Subgroup] = {}
    needs = {"": 1}
    for name in sorted(set(map(_pod_group, pods))):
        group = pod_groups.get(f"{claims_of.POD_GROUPS}/{ref.namespace}/{name}", {})
        around = composites_around(group, pod_groups)
        names = [f"{COMPOSITE} {objects.name(one)}" for one in around]
        top = names.index(f"{COMPOSITE} {ref.group}") if f"{COMPOSITE} {ref.group}" in names else len(names)
        names[top:] = [""]
        gang = objects.fields(objects.fields(objects.spec_of(group).get("schedulingPolicy")).get("gang"))
        found[name] = Subgroup(
            name, names[0], _number(gang.get("minCount")) or 1, None, required_domain(objects.spec_of(group))
        )
        for at, outer in enumerate(around[: top + 1]):
            needs[names[at]] = least_groups(objects.spec_of(outer))
            if names[at]:
                found[names[at]] = Subgroup(
                    names[at], names[at + 1], 0, needs[names[at]], required_domain(objects.spec_of(outer))
                )
    for outer_name, least in sorted(needs.items()):
        missing = least - sum(one.parent == outer_name for one in found.values())
        if missing > 0:
            what = f"the groups that {outer_name or f'{COMPOSITE} {ref.group}'} lacks"
            found[what] = Subgroup(what, outer_name, missing)
    return list(found.values())


def required_domain(spec: Fields) -> str | None:
    """The level that a PodGroup of Kubernetes, or a CompositePodGroup, requires: there is one at most."""
    constraints = objects.fields(spec.get("schedulingConstraints"))
    keys = [str(one.get("key") or "") for one in objects.mappings(constraints.get("topology"))]
    return next(filter(None, keys), None)


def _pod_group(pod: Object) -> str:
    return str(objects.fields(objects.spec_of(pod).get("schedulingGroup")).get("podGroupName") or "")


def _levels(said: Fields) -> tuple[str | None, str | None]:
    constraint = objects.fields(said.get("topologyConstraint"))
    packed = objects.fields(constraint.get("packConstraint"))
    required = packed.get("required") or constraint.get("requiredTopologyLevel")
    preferred = packed.get("preferred") or constraint.get("preferredTopologyLevel")
    return (str(required) if required else None), (str(preferred) if preferred else None)


def _chain(name: str, known: Mapping[str, Subgroup]) -> list[str]:
    """The subgroup and those that it is in; nothing where that is a circle, or too deep."""
    found: list[str] = []
    while name in known:
        if name in found or len(found) == MOST_LAYERS:
            return []
        found.append(name)
        name = known[name].parent
    return found


def _number(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else None
