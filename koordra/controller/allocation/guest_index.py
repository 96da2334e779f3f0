"""Pods on nodes by what the terms of other pods ask about them, and what waiting pods have to be told of.

    labels      namespace, label, value ─▶ pods         a term is held against those that have one label of it
    repelling   the same ─▶ required anti-affinity      a pod is held against the terms that may mean it
    ports, volumes ─▶ pods that have them

So a question costs the pods that may be meant and not all there are; and a change of a pod concerns those who
waiting pods that read it (`concerns_of`), by namespace, port or volume. Follows `NodePods`, overlays too.

A term that means pods of all namespaces is a tenant's word to everybody: of those of other namespaces
MOST_FOREIGN are held against a pod, the others are left to kube-scheduler.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final

from koordra.api import objects
from koordra.api.kinds import PERSISTENT_VOLUME_CLAIMS
from koordra.api.objects import Fields, Object
from koordra.api.tables import KeySets, set_or_drop
from koordra.controller.allocation.label_selectors import ANYWHERE, LabelSelector, Term, terms_of
from koordra.controller.cache.cluster_cache import ClusterCache
from koordra.controller.cache.pod_index import is_living
from koordra.effort import spend
from koordra.placement.holders.node_pods import NodePods, PlacedPod

MOST_FOREIGN: Final = 256
ANY_ADDRESS: Final = "0.0.0.0"
_ALL: Final = ("", "")
"""In place of a label and its value."""

Port = tuple[str, str, int]
"""Address, protocol and number."""
Concern = tuple[str, ...]
"""Something that changes and that waiting pods depend on."""


@dataclass(slots=True, eq=False)
class RepellingTerm:
    """`pods`: those on nodes that say so, with their nodes, by their keys."""

    term: Term
    namespace: str
    pods: dict[str, PlacedPod] = field(default_factory=dict)


class GuestIndex:
    """`touched`: what has changed, for the caller to empty. Not thread-safe."""

    def __init__(self, pods: NodePods, cache: ClusterCache) -> None:
        self._pods = pods
        self._namespaces = cache.namespaces
        self._of_label = KeySets()
        self._of_port = KeySets()
        self._of_volume = KeySets()
        self._terms: dict[bytes, RepellingTerm] = {}
        self._repelling: dict[tuple[str, str, str], dict[bytes, RepellingTerm]] = {}
        self.touched: set[Concern] = set()
        for key, placed in pods.placed.items():
            self._on_put(key, None, placed)
        pods.on_put.append(self._on_put)
        cache.listen(PERSISTENT_VOLUME_CLAIMS, lambda key, _before, _now: self.touched.add(("volume", key)))

    # questions

    def meant_by(self, terms: Sequence[Term], mine: Collection[str]) -> Iterator[PlacedPod]:
        """Pods on nodes, other than mine (by uid), that all of the terms mean."""
        if not terms:
            return
        keys = min((self._candidates(term.selector, term.scope) for term in terms), key=len)
        spend(len(keys) * len(terms) // 4)
        for placed in self._each(keys):
            pod = placed.pod
            if objects.uid(pod) not in mine and all(term.means(pod, self._namespaces) for term in terms):
                yield placed

    def alike(self, selector: Fields | None, namespace: str, mine: Collection[str]) -> Iterator[PlacedPod]:
        """Pods of the namespace, other than mine, that the selector chooses and that are to stay."""
        if selector is None:
            return
        chosen = LabelSelector.of(selector)
        for placed in self._each(self._candidates(chosen, frozenset([namespace]))):
            pod = placed.pod
            if objects.uid(pod) not in mine and is_living(pod) and chosen.matches(objects.labels_of(pod)):
                yield placed

    def repelling(self, pod: Object) -> list[RepellingTerm]:
        """Terms of pods on nodes that do not want to be near the pod."""
        place, labels = objects.namespace(pod), [_ALL, *objects.labels_of(pod).items()]
        near, foreign = dict[bytes, RepellingTerm](), dict[bytes, RepellingTerm]()
        for scope in (place, ANYWHERE):
            for label, value in labels:
                for content, found in self._repelling.get((scope, label, value), {}).items():
                    if found.namespace == place:
                        near[content] = found
                    elif len(foreign) < MOST_FOREIGN:
                        foreign[content] = found
        return [one for one in (*near.values(), *foreign.values()) if one.term.means(pod, self._namespaces)]

    def with_port(self, ports: Iterable[Port]) -> list[PlacedPod]:
        """Pods that have one of the ports, under whatever address."""
        wanted = {("port", protocol, str(number)) for _, protocol, number in ports}
        return list(self._each(sorted(set[str]().union(*(self._of_port.get(one, ()) for one in wanted)))))

    def with_volume(self, key: str) -> list[PlacedPod]:
        """Pods that use the PersistentVolumeClaim."""
        return list(self._each(sorted(self._of_volume.get(("volume", key), ()))))

    def _candidates(self, selector: LabelSelector | None, scope: frozenset[str] | None) -> Collection[str]:
        """Keys of the pods that one label leaves: the one that leaves the fewest."""
        if selector is None:
            return ()
        found: set[str] = set()
        for namespace in (ANYWHERE,) if scope is None else scope:
            least: Sequence[Collection[str]] = [self._of_label.get((namespace, *_ALL), ())]
            for label, values in selector.demanded:
                having = [self._of_label.get((namespace, label, value), ()) for value in values]
                least = min(least, having, key=lambda sets: sum(map(len, sets)))
            found.update(*least)
        return found

    def _each(self, keys: Iterable[str]) -> Iterable[PlacedPod]:
        return map(self._pods.placed.__getitem__, keys)

    # changes

    def _on_put(self, key: str, before: PlacedPod | None, now: PlacedPod | None) -> None:
        before, now = (one if one is not None and one.node else None for one in (before, now))
        if before is None and now is None:
            return
        if before is None or now is None or before.pod is not now.pod:
            had, has = self._facts(before), self._facts(now)
            self._of_label.move(key, had[0], has[0])
            self._of_port.move(key, had[1], has[1])
            self._of_volume.move(key, had[2], has[2])
            if had != has or _looks(before) != _looks(now):
                self._touch(before, now, (*had[1], *had[2], *has[1], *has[2]))
        elif before.node != now.node:
            _, ports, volumes = self._facts(now)
            self._touch(before, now, (*ports, *volumes))
        self._repel(key, before, now)

    def _facts(self, placed: PlacedPod | None) -> tuple[list[Concern], list[Concern], list[Concern]]:
        """Labels, ports and volumes under which the pod stands."""
        if placed is None:
            return [], [], []
        pod, place = placed.pod, objects.namespace(placed.pod)
        labels = [_ALL, *objects.labels_of(pod).items()]
        return (
            [(scope, label, value) for scope in (place, ANYWHERE) for label, value in labels],
            [("port", protocol, str(number)) for _, protocol, number in host_ports(objects.spec_of(pod))],
            [("volume", f"{place}/{name}") for name in volume_claim_names(pod)],
        )

    def _touch(self, before: PlacedPod | None, now: PlacedPod | None, more: Iterable[Concern]) -> None:
        for placed in filter(None, (before, now)):
            self.touched.add(("guests", objects.namespace(placed.pod)))
        self.touched.add(("guests", ANYWHERE))
        self.touched.update(more)

    def _repel(self, key: str, before: PlacedPod | None, now: PlacedPod | None) -> None:
        had = _repelling_terms(before)
        has = had if before and now and before.pod is now.pod else _repelling_terms(now)
        if had.keys() != has.keys() or _looks(before) != _looks(now):
            for term in (*had.values(), *has.values()):
                self.touched.update(("repelled", scope) for scope in term.scope or (ANYWHERE,))
        for content in had.keys() - has.keys():
            known = self._terms[content]
            del known.pods[key]
            if not known.pods:
                del self._terms[content]
                for bucket in _buckets(known.term):
                    del self._repelling[bucket][content]
                    set_or_drop(self._repelling, bucket, self._repelling[bucket])
        for content, term in has.items():
            assert now is not None
            if content not in self._terms:
                known = self._terms[content] = RepellingTerm(term, objects.namespace(now.pod))
                for bucket in _buckets(term):
                    self._repelling.setdefault(bucket, {})[content] = known
            self._terms[content].pods[key] = now


def _looks(placed: PlacedPod | None) -> tuple[str, str, bool] | None:
    return placed and (objects.uid(placed.pod), placed.node, is_living(placed.pod))


def _repelling_terms(placed: PlacedPod | None) -> dict[bytes, Term]:
    return {} if placed is None else {term.content: term for term in terms_of(placed.pod, "podAntiAffinity")}


def _buckets(term: Term) -> list[tuple[str, str, str]]:
    """Where a pod finds a term that may mean it: under one label that it must have."""
    if term.selector is None:
        return []
    label, values = min(term.selector.demanded, key=lambda one: len(one[1]), default=("", frozenset([""])))
    return [(scope, label, value) for scope in term.scope or (ANYWHERE,) for value in values]


def concerns_of(pod: Object) -> Iterator[Concern]:
    """What the predicates of a waiting pod depend on, besides nodes and their room."""
    place = objects.namespace(pod)
    yield from (("repelled", place), ("repelled", ANYWHERE))
    for kind in ("podAffinity", "podAntiAffinity"):
        for term in terms_of(pod, kind):
            yield from (("guests", scope) for scope in term.scope or (ANYWHERE,))
    spec = objects.spec_of(pod)
    if spec.get("topologySpreadConstraints"):
        yield "guests", place
    yield from (("port", protocol, str(number)) for _, protocol, number in host_ports(spec))
    yield from (("volume", f"{place}/{name}") for name in volume_claim_names(pod))


# what a pod's spec says that counts among several pods, as kube-scheduler reads it


def host_ports(spec: Fields) -> list[Port]:
    """(ip, protocol, port) of each host port the pod asks for; containers and restartable init containers."""
    found = []
    sidecars = [entry for entry in spec.get("initContainers") or () if entry.get("restartPolicy") == "Always"]
    for container in (*(spec.get("containers") or ()), *sidecars):
        for port in container.get("ports") or ():
            asked = port.get("hostPort") or (port.get("containerPort") if spec.get("hostNetwork") else 0)
            if (number := int(asked or 0)) > 0:
                found.append((port.get("hostIP") or ANY_ADDRESS, port.get("protocol") or "TCP", number))
    return found


def clashes(taken: Port, wanted: Sequence[Port]) -> bool:
    return any(
        taken[1:] == port[1:] and (taken[0] == port[0] or ANY_ADDRESS in (taken[0], port[0]))
        for port in wanted
    )


def volume_claim_names(pod: Fields) -> list[str]:
    """PersistentVolumeClaims by name; those of ephemeral volumes are named after pod and volume."""
    found = []
    for volume in objects.spec_of(pod).get("volumes") or ():
        if (volume.get("persistentVolumeClaim") or {}).get("claimName"):
            found.append(str(volume["persistentVolumeClaim"]["claimName"]))
        elif volume.get("ephemeral"):
            found.append(f"{objects.name(pod)}-{volume.get('name')}")
    return found
