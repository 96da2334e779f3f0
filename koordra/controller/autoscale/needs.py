"""Which nodes are wanted now: a forecast of what waits, cut to what may be asked for. Pure.

Not asked for are nodes on which nothing would run that has waited for `after` seconds, and what would give a
namespace more nodes of a group than `namespaceMax`: its pods, the latest first and with the rest of their
gang, are left out of the forecast.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from typing import Final

from koordra.allocator.reasons import Reason
from koordra.api import objects
from koordra.api.kinds import PODS, RESOURCE_CLAIMS
from koordra.controller import claims as claims_of
from koordra.controller.autoscale.node_groups import NodeGroup
from koordra.controller.autoscale.scale_up import ScaleUp, scale_up
from koordra.controller.cache.changes import Tables
from koordra.controller.cache.placeholders import created
from koordra.controller.explain.forecast.intake import Terms
from koordra.controller.gangs.declared.gang_ref import gang_of
from koordra.placement.request.claim_groups import claim_keys

Wanted = Mapping[str, Sequence[tuple[str, ...]]]
"""By group: the claims, by key, that each wanted node is to serve."""
MOST_NODES: Final = 1_000
"""New nodes that a forecast has, of all groups."""
MOST_TOLD: Final = 32
"""Claims of which it is said why no new node would serve them."""
_NOBODY: Final = frozenset[str]()


@dataclass(frozen=True, slots=True)
class Needs:
    """`waits`: claims, by key, that no node is asked for, and why; `ripe_in`: seconds until what is too young
    now has waited long enough, None where nothing is."""

    wanted: Wanted
    waits: Mapping[str, str]
    ripe_in: float | None


def needs_of(
    cluster: Tables,
    terms: Terms,
    groups: Sequence[NodeGroup],
    *,
    after: float,
    coming: Set[str] = _NOBODY,
) -> Needs:
    """`coming`: nodes that have not published their devices yet: they are what was asked for, so they do not
    count as there."""
    each = MOST_NODES // max(1, len(groups))
    room = {one.name: min(each, one.most - len(set(one.there(cluster)) - coming)) for one in groups}
    found = scale_up(cluster, terms, groups, room=room, told=MOST_TOLD)
    held = _held(cluster, groups, found)
    if held:
        found = scale_up(_without(cluster, held), terms, groups, room=room, told=MOST_TOLD)
    nodes = [(group, claims) for group in groups for claims in _by_node(group, found)]
    if held:  # others may have taken their place: what is still too much is cut
        nodes = [one for one in nodes if not _held(cluster, groups, found).keys() & {*one[1]}]
    waited = _waited(cluster, terms)
    wanted: dict[str, list[tuple[str, ...]]] = {}
    young = []
    for group, claims in nodes:
        longest = max((waited.get(key, 0.0) for key in claims), default=0.0)
        if longest >= after:
            wanted.setdefault(group.name, []).append(claims)
        else:
            young.append(after - longest)
    waits = {
        key: _in_a_word(groups, why[0])
        for key, why in found.waits.items()
        if why and waited.get(key, 0.0) >= after
    }
    return Needs(wanted, {**waits, **held}, min(young, default=None))


def _by_node(group: NodeGroup, found: ScaleUp) -> Iterator[tuple[str, ...]]:
    """The claims of each new node of the group."""
    of: dict[str | None, list[str]] = {}
    for key, fit in found.fits.items():
        of.setdefault(fit.planned.node, []).append(key)
    for number in range(found.counts[group.name]):
        yield tuple(sorted(of.get(group.called(number), ())))


def _held(cluster: Tables, groups: Sequence[NodeGroup], found: ScaleUp) -> dict[str, str]:
    """Claims, by key, whose nodes would be too many for their namespace, and why."""
    held: dict[str, str] = {}
    for group in groups:
        most = group.namespace_most
        if most is None:
            continue
        there = set(group.there(cluster))
        has: dict[str, set[str]] = {}
        for key, claim in cluster[RESOURCE_CLAIMS].items():
            if (node := claims_of.node_of(claim)) in there and node is not None:
                has.setdefault(_namespace(key), set()).add(node)
        for claims in sorted(_by_node(group, found), key=lambda keys: _since(cluster, keys)):
            for namespace in sorted({*map(_namespace, claims)}):
                number = len(has.setdefault(namespace, set()))
                if number < most:
                    has[namespace].add(f"new/{claims}")
                    continue
                why = f"namespace {namespace} has {number} nodes of group {group.name}, or asks for them, and may have {most}"
                held |= {key: why for key in claims if _namespace(key) == namespace}
    return held


def _without(cluster: Tables, held: Mapping[str, str]) -> Tables:
    """Without the pods of these claims, and their gangs."""
    pods = cluster[PODS]
    gone = {key for key, pod in pods.items() if held.keys() & {*claim_keys(pod)}}
    gangs = {gang for key in gone if (gang := gang_of(pods[key])) is not None}
    kept = {key: pod for key, pod in pods.items() if key not in gone and gang_of(pod) not in gangs}
    return {**cluster, PODS: kept}


def _waited(cluster: Tables, terms: Terms) -> dict[str, float]:
    """Seconds that the pods of claims have waited, the longest of each."""
    found: dict[str, float] = {}
    for pod in cluster[PODS].values():
        if not objects.spec_of(pod).get("nodeName"):
            age = (terms.now - created(pod)).total_seconds()
            found.update({key: max(age, found.get(key, age)) for key in claim_keys(pod)})
    return found


def _since(cluster: Tables, keys: Sequence[str]) -> tuple[str, ...]:
    """By which the nodes of older claims come first."""
    made = [str(objects.metadata(cluster[RESOURCE_CLAIMS][key]).get("creationTimestamp")) for key in keys]
    return (min(made, default=""), *keys)


def _in_a_word(groups: Sequence[NodeGroup], why: Reason) -> str:
    names = ", ".join(one.name for one in groups)
    return f"no new node of group {names} would serve it: {why}"


def _namespace(key: str) -> str:
    return key.partition("/")[0]
