"""Where in the fabric a gang wants to be, by the words of other systems. Pure.

    Kubernetes   PodGroup schedulingConstraints.topology[].key
    Kueue        podset-required-topology, -preferred-topology, -unconstrained-topology; podset-group-name;
                 podset-slice-required-topology with -slice-size, or -slice-required-topology-constraints
    Volcano      PodGroup networkTopology, subGroupPolicy; annotations network-topology-mode and -highest-tier
                 (KubeRay: labels, -highest-tier-allowed)
    Koordinator  network-topology-spec
    KAI, Grove   subgroups, each with its level (subgroups)
    KAI          topology-required-placement, -preferred-placement; segment-size with segment-topology-
                 required-placement, -preferred-placement; pod-index-label
    LeaderWorkerSet, JobSet
                 exclusive-topology: each group, or each Job, is in one domain of the label, where its
                 operator binds the pods that it makes after the first

A pod set of Kueue and a replica type of KAI are pods of one role of their workload. What is said and cannot
be kept is a problem of the gang.

Facts: the systems' sources (kubernetes/api of July 2026, Kueue 0.19, Volcano 1.16, Koordinator of July 2026,
KAI 0.17).
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import islice
from typing import Any, Final

from koordra.allocator.predicates import requirement_matches
from koordra.api import objects
from koordra.api.objects import Object
from koordra.controller.gangs.declared.annotations import whole_number
from koordra.controller.gangs.declared.gang_ref import KAI, KOORDINATOR, GangRef, Source, joined_groups
from koordra.controller.gangs.declared.member_index import workload_role
from koordra.controller.gangs.declared.said import Said
from koordra.controller.gangs.declared.subgroups import Subgroups, levels_of, required_domain
from koordra.controller.gangs.declared.topology_terms import (
    PartTerms,
    TopologyTerms,
    Wishes,
    by,
    checked,
    own_wishes,
    part_of,
)
from koordra.controller.gangs.declared.workload_kind import EXCLUSIVE, told
from koordra.placement.gang import Slices

PODSET: Final = "kueue.x-k8s.io/podset-"
VOLCANO: Final = "volcano.sh/network-topology-"
_GATHER: Final = KOORDINATOR + "network-topology-spec"
_GROUPS: Final = KOORDINATOR + "groups"
_LOWEST_TIER: Final = "tier-1"


def topology_terms(
    ref: GangRef, said: Said, spec: Mapping[str, Any], subgroups: Subgroups, *, least: int | None
) -> TopologyTerms:
    """What the pods, and the `spec` of their pod group, say."""
    wishes = Wishes(said.problems)
    own_wishes(said, wishes)
    wishes.add(required=required_domain(spec))
    _kueue(said.pods, wishes)
    _kai(said, wishes)
    _exclusive(said.pods, wishes)
    _koordinator(ref, said, wishes)
    wishes.add(*levels_of(ref, spec))
    for one in subgroups.all:
        group = one.subgroup
        if one.pods and (group.required or group.preferred or one.optional):
            part = part_of(group.name, one.pods, group.required, group.preferred)
            wishes.parts.append(replace(part, size=one.size if one.optional else None))
    _joined(ref, said)
    _volcano(said, spec if ref.source is Source.VOLCANO else {}, wishes)
    return wishes.terms(said.pods, least=least)


def _kueue(pods: Sequence[Object], wishes: Wishes) -> None:
    def pod_set(pod: Object) -> str:
        return objects.annotations_of(pod).get(PODSET + "group-name") or workload_role(pod)

    telling = [pod for pod in pods if any(name.startswith(PODSET) for name in objects.annotations_of(pod))]
    for name, own in by(telling, pod_set).items():
        said = Said(own, wishes.problems)
        required, preferred = (
            said.text(PODSET + "required-topology"),
            said.text(PODSET + "preferred-topology"),
        )
        unconstrained = said.text(PODSET + "unconstrained-topology") == "true"
        if sum(map(bool, (required, preferred, unconstrained))) > 1:
            wishes.problems.append(
                f"{PODSET}required-topology, -preferred-topology and -unconstrained-topology exclude each other: keep one"
            )
        slices = _kueue_slices(said)
        if required or preferred or slices:
            wishes.parts.append(part_of(name, own, required, preferred, slices))


def _kueue_slices(said: Said) -> tuple[Slices, ...]:
    level, size = said.text(PODSET + "slice-required-topology"), said.number(PODSET + "slice-size")
    name = PODSET + "slice-required-topology-constraints"
    layers = said.text(name)
    if layers is None:
        if (level is None) != (size is None):
            said.problems.append(
                f"{PODSET}slice-required-topology and {PODSET}slice-size come together: write both"
            )
        return (Slices(size, level),) if level and size else ()
    if level or size:
        said.problems.append(f"{name} excludes {PODSET}slice-required-topology and -slice-size: keep the one")
    found = []
    for layer in _listed(layers, name, said.problems):
        size, level = layer.get("size"), layer.get("topology")
        if not isinstance(size, int) or not level:
            said.problems.append(f'{name}: write each layer as {{"topology": a label, "size": a number}}')
            return ()
        found.append(Slices(size, str(level)))
    return checked(tuple(found), name, said.problems)


def _kai(said: Said, wishes: Wishes) -> None:
    wishes.add(
        said.text(KAI + "topology-required-placement"), said.text(KAI + "topology-preferred-placement")
    )
    telling = [pod for pod in said.pods if KAI + "segment-size" in objects.annotations_of(pod)]
    for name, own in by(telling, workload_role).items():
        segments = Said(own, wishes.problems)
        size = segments.number(KAI + "segment-size")
        required, preferred = (
            segments.text(KAI + f"segment-topology-{word}-placement") for word in ("required", "preferred")
        )
        if size and not (required or preferred):
            wishes.problems.append(
                f"{KAI}segment-size without a level: write {KAI}segment-topology-required-placement, or -preferred-placement"
            )
        elif size:
            part = part_of(name, own, slices=(Slices(size, required, preferred),))
            wishes.parts.append(replace(part, numbered_by=segments.text(KAI + "pod-index-label") or ""))


def _exclusive(pods: Sequence[Object], wishes: Wishes) -> None:
    for name, parts in EXCLUSIVE.items():

        def part(pod: Object, parts: tuple[str, ...] = parts) -> str:
            return " ".join(filter(None, (told(pod, label) for label in parts)))

        telling = [pod for pod in pods if objects.annotations_of(pod).get(name)]
        for of, own in by(telling, part).items():
            label = Said(own, wishes.problems).text(name) or ""
            wishes.labels.add(label)
            wishes.parts.append(part_of(of, own, label))


def _koordinator(ref: GangRef, said: Said, wishes: Wishes) -> None:
    """Of each gang for itself, where several are one."""
    own = KOORDINATOR + "name"
    for name, pods in by(
        said.pods, lambda pod: objects.annotations_of(pod).get(own, "") if ref.joined else ""
    ).items():
        text = Said(pods, wishes.problems).text(_GATHER)
        if text is not None:
            wishes.parts.append(_gathered(name, pods, text, wishes.problems))


def _gathered(name: str, pods: Sequence[Object], text: str, problems: list[str]) -> PartTerms:
    required, preferred, slices = list[str](), list[str](), list[Slices]()
    for layer in _listed(text, _GATHER, problems, key="gatherStrategy"):
        word, strategy, multiple = (layer.get(key) for key in ("layer", "strategy", "podCountMultiple"))
        if not word or strategy not in ("MustGather", "PreferGather"):
            problems.append(f"{_GATHER}: write a layer, and MustGather or PreferGather as its strategy")
            continue
        must = strategy == "MustGather"
        (required if must else preferred).append(str(word))
        if isinstance(multiple, int) and multiple > 1:
            slices.append(Slices(multiple, str(word) if must else None, None if must else str(word)))
    layers = checked(tuple(sorted(slices, key=lambda one: -one.size)), _GATHER, problems)
    part = part_of(name, pods, slices=layers)
    return replace(part, required=tuple(required), preferred=tuple(preferred))


def _joined(ref: GangRef, said: Said) -> None:
    """What is written of Koordinator's groups of gangs and cannot be meant."""
    if ref.source is not Source.KOORDINATOR:
        return
    told = {
        (annotations.get(_GROUPS, ""), annotations.get(KOORDINATOR + "name", ref.group))
        for pod in said.pods
        if (annotations := objects.annotations_of(pod))
    }
    found = (joined_groups(*one, ref.namespace).problem for one in sorted(told))
    said.problems.extend(islice(filter(None, found), 1))


def _volcano(said: Said, spec: Mapping[str, Any], wishes: Wishes) -> None:
    wished = dict(objects.fields(spec.get("networkTopology")))
    of = (objects.annotations_of, objects.labels_of)
    mode = next(filter(None, (said.text(VOLCANO + "mode", read) for read in of)), None)
    tiers = (VOLCANO + "highest-tier", VOLCANO + "highest-tier-allowed")
    highest = next(filter(None, (said.text(name, read) for name in tiers for read in of)), None)
    wished |= ({"mode": mode} if mode else {}) | ({"highestTierAllowed": highest} if highest else {})
    wishes.add(*_tiers(wished, "networkTopology", said.problems))
    for number, policy in enumerate(objects.mappings(spec.get("subGroupPolicy"))):
        name = str(policy.get("name") or number)
        own = [pod for pod in said.pods if _selects(objects.fields(policy.get("labelSelector")), pod)]
        levels = _tiers(
            objects.fields(policy.get("networkTopology")), f"subGroupPolicy {name}", said.problems
        )
        size = policy.get("subGroupSize")
        for values, pods in by(own, partial(_values, objects.texts(policy.get("matchLabelKeys")))).items():
            part = part_of(f"{name} {values}".strip(), pods, *levels)
            wishes.parts.append(replace(part, size=size if isinstance(size, int) else None))
        least = policy.get("minSubGroups")
        if isinstance(least, int) and isinstance(size, int):
            wishes.least = max(wishes.least or 0, least * size)


def _tiers(wished: Mapping[str, Any], where: str, problems: list[str]) -> tuple[str | None, str | None]:
    """Required and preferred: up to the highest tier that is allowed, and the lowest that fits."""
    if not wished:
        return None, None
    mode, allowed = str(wished.get("mode") or "hard"), wished.get("highestTierAllowed")
    if mode not in ("hard", "soft"):
        problems.append(f"{where}: its mode is {mode[:40]!r}: write hard or soft")
    named = str(wished.get("highestTierName") or "")
    tier = None if allowed is None else whole_number(str(allowed))
    if allowed is not None and tier is None:
        problems.append(f"{where}: its highest tier is {str(allowed)[:40]!r}: write a number")
    required = named or (None if tier is None else f"tier-{tier}")
    return (required if mode == "hard" else None), _LOWEST_TIER


def _values(keys: Sequence[str], pod: Object) -> str:
    return "/".join(objects.labels_of(pod).get(key, "") for key in keys)


def _selects(selector: Mapping[str, Any], pod: Object) -> bool:
    labels = objects.labels_of(pod)
    exact = all(
        labels.get(key) == value for key, value in objects.fields(selector.get("matchLabels")).items()
    )
    return exact and all(
        requirement_matches(one, labels) for one in objects.mappings(selector.get("matchExpressions"))
    )


def _listed(text: str, where: str, problems: list[str], *, key: str = "") -> list[Mapping[str, Any]]:
    """A JSON list of objects, or one under a key."""
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        found = None
    if key and isinstance(found, dict):
        found = found.get(key)
    if not isinstance(found, list) or not all(isinstance(one, dict) for one in found):
        problems.append(f"{where} is {text[:60]!r}: write a JSON list of objects")
        return []
    return found
