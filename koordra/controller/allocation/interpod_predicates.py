"""Node predicates that need more than one node and one pod: what else kube-scheduler would refuse. Pure.

    host ports            an ip/protocol/port that a pod on the node has already (0.0.0.0 clashes with every
                          ip)
    inter-pod affinity    required terms of the pod; required anti-affinity of the pod, and of pods that run
    topology spread       DoNotSchedule constraints: matching pods in the node's domain, plus this one, minus
                          the least of all eligible domains, must not exceed maxSkew (minDomains,
                          nodeAffinityPolicy, nodeTaintsPolicy, matchLabelKeys as upstream)
    volumes               node affinity of the PersistentVolumes behind bound PersistentVolumeClaims;
                          ReadWriteOncePod volumes that another pod has
    suitable nodes        the selector that a converted class carries for koordra's own devices

The pods of a group have to be on one node, so each of them is held against those before it, too.

Everything about one node and one pod alone (readiness, cordon, taints, labels, node affinity, room) is the
allocator's business. Soft terms (preferred, ScheduleAnyway) are not looked at: devices decide which of the
permitted nodes is best. What is missed here costs a round, never correctness: kube-scheduler says no, and the
node is left out for a while.

Sources: kube-scheduler plugins NodePorts, InterPodAffinity, PodTopologySpread, VolumeBinding, VolumeZone,
VolumeRestrictions.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import chain, combinations
from typing import Final

from koordra.allocator.predicates import selector_matches, unmet_affinity, untolerated_taints
from koordra.allocator.reasons import Cause, reason_of
from koordra.api import objects
from koordra.api.classic import suitable_nodes
from koordra.api.kinds import DEVICE_CLASSES, NAMESPACES
from koordra.api.objects import Fields, Object
from koordra.controller import claims as claims_of
from koordra.controller.allocation.guest_index import (
    GuestIndex,
    Port,
    clashes,
    host_ports,
    volume_claim_names,
)
from koordra.controller.allocation.label_selectors import (
    MOST_TERMS,
    Term,
    label_selector_matches,
    required_terms,
    terms_of,
    with_label_keys,
)
from koordra.controller.cache.cluster_cache import ClusterCache
from koordra.controller.cache.groups import Group
from koordra.errors import InvalidManifest
from koordra.placement.decide import Excluded
from koordra.placement.index import ClusterIndex

_DO_NOT_SCHEDULE: Final = "DoNotSchedule"
_ZONE_LABELS: Final = (
    "topology.kubernetes.io/zone",
    "topology.kubernetes.io/region",
    "failure-domain.beta.kubernetes.io/zone",
    "failure-domain.beta.kubernetes.io/region",
)

MOST_TOGETHER: Final = 32
"""Pods of a group that are held against each other. The pods of common charts share a claim by twos and
threes."""

_Constraint = Fields
"""Of topology spread."""
_Unsuitable = Iterable[tuple[str, str]]
"""Node -> what keeps the pod off it."""


class InterPodPredicates:
    """Over the cache and the nodes as they are at each question. Not thread-safe."""

    def __init__(self, cache: ClusterCache, index: ClusterIndex) -> None:
        self._cache = cache
        self._guests = GuestIndex(index.pods, cache)
        self.touched = self._guests.touched
        """What has changed that pods may read (`concerns_of`); the caller empties it."""
        self.nodes = index.nodes
        self.version = 0
        """Goes up when a term may mean pods of other namespaces than before."""
        cache.listen(NAMESPACES, self._on_namespace)
        self._changed_classes = cache.follow(DEVICE_CLASSES)
        self._suitable: dict[str, Fields] = {}
        """Node selectors of the classes that were converted from classic ones."""

    def _on_namespace(self, _key: str, before: Object | None, now: Object | None) -> None:
        self.version += objects.labels_of(before or {}) != objects.labels_of(now or {})

    def of(self, group: Group) -> Excluded:
        """Node -> the first thing that keeps some pod of the group off it."""
        found = dict[str, str]()
        for name, text in chain(self._unsuitable_classes(group), self._kept_apart(group)):
            found.setdefault(name, text)
        mine = {objects.uid(each) for each in group.pods}
        for at, pod in enumerate(group.pods):
            beside = group.pods[:at] if at < MOST_TOGETHER else ()
            for name, text in self._of_pod(pod, mine, beside):
                found.setdefault(name, text if len(group.pods) == 1 else f"pod {objects.key(pod)}: {text}")
        return {name: reason_of(Cause.NODE_UNSUITABLE, found[name], name) for name in sorted(found)}

    def _kept_apart(self, group: Group) -> _Unsuitable:
        """Nodes that two pods of the group may not share."""
        pods = group.pods[:MOST_TOGETHER]
        if len(pods) == 1 or not any(map(reads_other_pods, pods)):
            return
        terms = {objects.uid(pod): list(terms_of(pod, "podAntiAffinity")) for pod in pods}
        everywhere, of_label = list[str](), dict[str, str]()
        for pod, other in combinations(pods, 2):
            both, ports = f"pods {objects.key(pod)} and {objects.key(other)} share claims", _ports(pod)
            everywhere += [
                f"{both}, and host port {protocol}/{number} is asked for by both"
                for address, protocol, number in _ports(other)
                if clashes((address, protocol, number), ports)
            ]
            everywhere += [
                f"{both}, and volume claim {name} (ReadWriteOncePod) is used by both"
                for name in volume_claim_names(pod)
                if name in volume_claim_names(other) and _is_of_one_pod(self._volume(pod, name))
            ]
            for one, two in ((pod, other), (other, pod)):
                for term in terms[objects.uid(one)]:
                    if term.means(two, self._cache.namespaces):
                        text = f"{both}, and required pod anti-affinity keeps them out of one {term.key}"
                        of_label.setdefault(term.key, text)
            if everywhere:
                yield from dict.fromkeys(self.nodes, everywhere[0]).items()
                return
        for label, text in of_label.items():
            yield from ((name, text) for name, info in self.nodes.items() if label in info.labels)

    def _of_pod(self, pod: Object, mine: set[str], beside: Sequence[Object]) -> _Unsuitable:
        yield from self._repelled_by_existing(pod, mine)
        if not reads_other_pods(pod):
            return
        yield from self._port_clashes(_ports(pod), mine)
        yield from self._affinity_unmet(pod, list(terms_of(pod, "podAffinity")), mine)
        for term in terms_of(pod, "podAntiAffinity"):
            (domains,) = self._domains([term], mine)
            # one example for all domains, so that nodes are told together
            such = f", such as {min(domains.values())}," if domains else ""
            text = f"required pod anti-affinity: a pod with {term.selector}{such} is in its {term.key}"
            yield from (
                (name, text) for name, info in self.nodes.items() if info.labels.get(term.key) in domains
            )
        spread = [
            constraint
            for constraint in objects.spec_of(pod).get("topologySpreadConstraints") or ()
            if constraint.get("whenUnsatisfiable", _DO_NOT_SCHEDULE) == _DO_NOT_SCHEDULE
        ][:MOST_TERMS]
        for constraint in spread:
            yield from self._uneven(pod, constraint, set(map(_key, spread)), mine, beside)
        yield from self._volumes_unreachable(pod, mine)

    def _port_clashes(self, ports: Sequence[Port], mine: set[str]) -> _Unsuitable:
        for placed in self._guests.with_port(ports) if ports else ():
            if placed.node in self.nodes and objects.uid(placed.pod) not in mine:
                for taken in _ports(placed.pod):
                    if clashes(taken, ports):
                        _, protocol, number = taken
                        text = f"host port {protocol}/{number} is taken by pod {objects.key(placed.pod)}"
                        yield placed.node, text

    # inter-pod affinity

    def _affinity_unmet(self, pod: Object, terms: Sequence[Term], mine: set[str]) -> _Unsuitable:
        if not terms:
            return
        near = self._domains(terms, mine)
        # the first pod of a series that wants to be near itself
        is_first = not any(near) and all(term.means(pod, self._cache.namespaces) for term in terms)
        for name, info in self.nodes.items():
            for term, domains in zip(terms, near, strict=True):
                if is_first and term.key not in info.labels:
                    yield name, f"required pod affinity: the node has no label {term.key}"
                elif not is_first and info.labels.get(term.key) not in domains:
                    yield name, f"required pod affinity: no pod with {term.selector} is in its {term.key}"

    def _domains(self, terms: Sequence[Term], mine: set[str]) -> list[dict[str, str]]:
        """Per term the domains of the pods that all terms mean, each with the first of these pods by name; a
        pod that only some mean does not count."""
        first = dict[str, str]()
        for placed in self._guests.meant_by(terms, mine):
            key = objects.key(placed.pod)
            first[placed.node] = min(key, first.get(placed.node, key))
        found: list[dict[str, str]] = [{} for _ in terms]
        for at in first.keys() & self.nodes.keys():
            for term, domains in zip(terms, found, strict=True):
                if (domain := self.nodes[at].labels.get(term.key)) is not None:
                    domains[domain] = min(first[at], domains.get(domain, first[at]))
        return found

    def _repelled_by_existing(self, pod: Object, mine: set[str]) -> _Unsuitable:
        """Running pods that demand that no such pod comes near them."""
        domains: dict[str, dict[str, tuple[str, str]]] = {}
        """By topology key and domain: the first pod that says so, and of which pods."""
        for found in self._guests.repelling(pod):
            of, such = domains.setdefault(found.term.key, {}), str(found.term.selector)
            for key, placed in found.pods.items():
                info = self.nodes.get(placed.node)
                domain = None if info is None else info.labels.get(found.term.key)
                if domain is not None and objects.uid(placed.pod) not in mine:
                    of[domain] = min((key, such), of.get(domain, (key, such)))
        for name, info in self.nodes.items() if domains else ():
            near = [(of[at], key) for key, of in domains.items() if (at := info.labels.get(key)) in of]
            if near:
                (existing, selector), key = min(near)
                yield name, f"pod {existing} there has anti-affinity to pods with {selector} in its {key}"

    # topology spread

    def _uneven(
        self,
        pod: Object,
        constraint: _Constraint,
        keys: set[str],
        mine: set[str],
        beside: Sequence[Object],
    ) -> _Unsuitable:
        """`keys`: those of all constraints of the pod; a node that lacks one of them counts for none.
        `beside`: pods that come to whatever node this one comes to."""
        key = _key(constraint)
        selector = with_label_keys(pod, constraint)
        eligible = {
            name: info.labels[key]
            for name, info in self.nodes.items()
            if keys <= info.labels.keys() and counts_for_spread(info.node, pod, constraint)
        }
        counts = dict.fromkeys(eligible.values(), 0)
        for placed in self._guests.alike(selector, objects.namespace(pod), mine):
            if placed.node in eligible:
                counts[eligible[placed.node]] += 1
        enough = len(counts) >= int(constraint.get("minDomains") or 1)
        lowest = sorted(counts.values())[:2]
        itself = int(label_selector_matches(selector, objects.labels_of(pod)))
        more = sum(label_selector_matches(selector, objects.labels_of(one)) for one in beside)
        most = int(constraint.get("maxSkew") or 1)
        for name, info in self.nodes.items():
            if key not in info.labels:
                yield name, f"topology spread: the node has no label {key}"
                continue
            known = counts.get(info.labels[key], 0)
            here = known + (more if name in eligible else 0)
            without = lowest[1:] if lowest[:1] == [known] else lowest[:1]
            least = min([here, *without]) if enough and counts else 0
            if (skew := here + itself - least) > most:
                yield name, f"topology spread over {key}: skew would be {skew}, at most {most} is allowed"

    # volumes

    def _volumes_unreachable(self, pod: Object, mine: set[str]) -> _Unsuitable:
        for claim_name in volume_claim_names(pod)[: 4 * MOST_TERMS]:
            volume = self._volume(pod, claim_name)
            if volume is None:
                continue
            spec = objects.spec_of(volume)
            required = (spec.get("nodeAffinity") or {}).get("required")
            zones = {name: value for name, value in objects.labels_of(volume).items() if name in _ZONE_LABELS}
            for name, info in self.nodes.items():
                labels = info.labels
                away = [key for key in zones.keys() & labels if labels[key] not in zones[key].split("__")]
                if required is not None and not selector_matches(required, info.node):
                    yield (
                        name,
                        f"volume {objects.name(volume)} cannot be reached from the node (nodeAffinity)",
                    )
                elif away:
                    yield name, f"volume {objects.name(volume)} is in {min(away)} {zones[min(away)]}"
            if _is_of_one_pod(volume):
                for placed in self._guests.with_volume(f"{objects.namespace(pod)}/{claim_name}"):
                    if placed.node in self.nodes and objects.uid(placed.pod) not in mine:
                        other = objects.key(placed.pod)
                        text = f"volume claim {claim_name} (ReadWriteOncePod) is used by pod {other}"
                        yield from dict.fromkeys(self.nodes, text).items()
                        break

    def _volume(self, pod: Object, claim_name: str) -> Object | None:
        claim = self._cache.volume_claims.get(f"{objects.namespace(pod)}/{claim_name}", {})
        return self._cache.volumes.get(str(objects.spec_of(claim).get("volumeName") or ""))

    # classes that were converted from classic ones

    def _unsuitable_classes(self, group: Group) -> _Unsuitable:
        for name in self._changed_classes:
            self._suitable.pop(name, None)
            try:
                selector = suitable_nodes.of_device_class(self._cache.classes.get(name, {}))
            except InvalidManifest:
                selector = {}  # one that cannot be read suits no node, which is said, rather than all
            if selector is not None:
                self._suitable[name] = selector
        self._changed_classes.clear()
        if not self._suitable:
            return
        named = dict.fromkeys(name for claim in group.pending for name in claims_of.class_names(claim))
        for class_name in [name for name in named if name in self._suitable]:
            for name, info in self.nodes.items():
                if not selector_matches(self._suitable[class_name], info.node):
                    yield name, f"DeviceClass {class_name}: the node is not among its suitable nodes"


def _key(constraint: _Constraint) -> str:
    return str(constraint.get("topologyKey"))


def _ports(pod: Fields) -> list[Port]:
    return host_ports(objects.spec_of(pod))


def _is_of_one_pod(volume: Object | None) -> bool:
    return "ReadWriteOncePod" in (objects.spec_of(volume or {}).get("accessModes") or ())


def counts_for_spread(node: Fields, pod: Object, constraint: Fields) -> bool:
    spec = objects.spec_of(pod)
    if constraint.get("nodeAffinityPolicy", "Honor") == "Honor" and any(unmet_affinity(node, spec)):
        return False
    return constraint.get("nodeTaintsPolicy") != "Honor" or not any(untolerated_taints(node, spec))


def reads_other_pods(pod: Object) -> bool:
    """Whether it matters to the pod where other pods are, or their volumes. What it only prefers does not."""
    spec = objects.spec_of(pod)
    return bool(
        required_terms(pod, "podAffinity")
        or required_terms(pod, "podAntiAffinity")
        or spec.get("topologySpreadConstraints")
        or volume_claim_names(pod)
        or host_ports(spec)
    )
