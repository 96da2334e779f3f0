"""Node predicates that need more than one node and one pod: what else kube-scheduler would refuse. Pure.

    host ports            an ip/protocol/port that a pod on the node has already (0.0.0.0 clashes with every ip)
    inter-pod affinity    required terms of the pod; required anti-affinity of the pod, and of pods that run
    topology spread       DoNotSchedule constraints: matching pods in the node's domain, plus this one, minus the
                          least of all eligible domains, must not exceed maxSkew (minDomains, nodeAffinityPolicy,
                          nodeTaintsPolicy, matchLabelKeys as upstream)
    volumes               node affinity of the PersistentVolumes behind bound PersistentVolumeClaims;
                          ReadWriteOncePod volumes that another pod has
    suitable nodes        the selector that a converted class carries for koordra's own devices

Everything about one node and one pod alone (readiness, cordon, taints, labels, node affinity, room) is the
allocator's business. Soft terms (preferred, ScheduleAnyway) are not looked at: devices decide which of the
permitted nodes is best. What is missed here costs a round, never correctness: kube-scheduler says no, and the
node is left out for a while.

Sources: kube-scheduler plugins NodePorts, InterPodAffinity, PodTopologySpread, VolumeBinding, VolumeZone,
VolumeRestrictions.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from koordra.allocator.predicates import selector_matches
from koordra.allocator.reasons import Cause, Reason, reason_of
from koordra.api import objects
from koordra.api.classic import suitable_nodes
from koordra.api.kinds import DEVICE_CLASSES
from koordra.api.objects import Object
from koordra.controller import claims as claims_of
from koordra.controller.allocation.pod_terms import (
    clashes,
    counts_for_spread,
    host_ports,
    label_selector_matches,
    reads_other_pods,
    required_terms,
    volume_claim_names,
    with_label_keys,
)
from koordra.controller.cache.cluster_cache import ClusterCache
from koordra.controller.cache.groups import Group
from koordra.controller.cache.pod_index import is_living
from koordra.errors import InvalidManifest
from koordra.placement.index import NodeInfo

_DO_NOT_SCHEDULE: Final = "DoNotSchedule"
_ZONE_LABELS: Final = (
    "topology.kubernetes.io/zone",
    "topology.kubernetes.io/region",
    "failure-domain.beta.kubernetes.io/zone",
    "failure-domain.beta.kubernetes.io/region",
)


_Term = Mapping[str, Any]
"""Of affinity, or a constraint of topology spread."""
_Unsuitable = Iterable[tuple[str, str]]
"""Node -> what keeps the pod off it."""


class InterPodPredicates:
    """Over the cache and the nodes as they are at each question. Not thread-safe."""

    def __init__(self, cache: ClusterCache, nodes: Mapping[str, NodeInfo]) -> None:
        self._cache = cache
        self.nodes = nodes
        self._changed_classes = cache.follow(DEVICE_CLASSES)
        self._suitable: dict[str, Mapping[str, Any]] = {}
        """Node selectors of the classes that were converted from classic ones."""

    def of(self, group: Group) -> dict[str, Reason]:
        """Node -> the first thing that keeps some pod of the group off it."""
        found = dict[str, str]()
        for name, text in self._unsuitable_classes(group):
            found.setdefault(name, text)
        mine = {objects.uid(each) for each in group.pods}
        for pod in group.pods:
            for name, text in self._of_pod(pod, mine):
                found.setdefault(name, text if len(group.pods) == 1 else f"pod {objects.key(pod)}: {text}")
        return {name: reason_of(Cause.NODE_UNSUITABLE, found[name], name) for name in sorted(found)}

    def _of_pod(self, pod: Object, mine: set[str]) -> _Unsuitable:
        yield from self._repelled_by_existing(pod, mine)
        if not reads_other_pods(pod):
            return
        yield from self._port_clashes(host_ports(objects.spec_of(pod)), mine)
        yield from self._affinity_unmet(pod, required_terms(pod, "podAffinity"), mine)
        for term in required_terms(pod, "podAntiAffinity"):
            key, (domains,) = _key(term), self._domains(pod, [term], mine)
            text = f"required pod anti-affinity: a matching pod is in its {key}"
            yield from ((name, text) for name, labels in self._labels() if labels.get(key) in domains)
        spread = [
            constraint
            for constraint in objects.spec_of(pod).get("topologySpreadConstraints") or ()
            if constraint.get("whenUnsatisfiable", _DO_NOT_SCHEDULE) == _DO_NOT_SCHEDULE
        ]
        for constraint in spread:
            yield from self._uneven(pod, constraint, set(map(_key, spread)), mine)
        yield from self._volumes_unreachable(pod, mine)

    def _labels(self) -> Iterable[tuple[str, Mapping[str, str]]]:
        return ((name, objects.labels_of(info.node)) for name, info in self.nodes.items())

    def _port_clashes(self, ports: Sequence[tuple[str, str, int]], mine: set[str]) -> _Unsuitable:
        for name, info in self.nodes.items() if ports else ():
            for existing in info.guests:
                taken = [port for port in host_ports(objects.spec_of(existing)) if clashes(port, ports)]
                if taken and objects.uid(existing) not in mine:
                    _, protocol, number = taken[0]
                    yield name, f"host port {protocol}/{number} is taken by pod {objects.key(existing)}"
                    break

    # inter-pod affinity

    def _existing_pods(self, mine: set[str]) -> Iterable[tuple[Object, Mapping[str, str]]]:
        """Pods where they are, or where their devices will bring them, with the labels of the node."""
        for info in self.nodes.values():
            labels = objects.labels_of(info.node)
            for existing in info.guests:
                if objects.uid(existing) not in mine:
                    yield existing, labels

    def _affinity_unmet(self, pod: Object, terms: Sequence[_Term], mine: set[str]) -> _Unsuitable:
        if not terms:
            return
        keys, near = list(map(_key, terms)), self._domains(pod, terms, mine)
        # the first pod of a series that wants to be near itself
        is_first = not any(near) and all(self._selects(pod, term, pod) for term in terms)
        for name, labels in self._labels():
            for key, domains in zip(keys, near, strict=True):
                if is_first and key not in labels:
                    yield name, f"required pod affinity: the node has no label {key}"
                    break
                if not is_first and labels.get(key) not in domains:
                    yield name, f"required pod affinity: no matching pod in its {key}"
                    break

    def _domains(self, pod: Object, terms: Sequence[_Term], mine: set[str]) -> list[set[str]]:
        """Per term the domains of the pods that all terms mean; a pod that only some mean does not count."""
        found: list[set[str]] = [set() for _ in terms]
        for existing, labels in self._existing_pods(mine):
            if all(self._selects(pod, term, existing) for term in terms):
                for term, domains in zip(terms, found, strict=True):
                    if (domain := labels.get(_key(term))) is not None:
                        domains.add(domain)
        return found

    def _repelled_by_existing(self, pod: Object, mine: set[str]) -> _Unsuitable:
        """Running pods that demand that no such pod comes near them."""
        for node, existing in self._cache.pod_index.repelling.values():
            if node not in self.nodes or objects.uid(existing) in mine:
                continue
            labels = objects.labels_of(self.nodes[node].node)
            for term in required_terms(existing, "podAntiAffinity"):
                key = _key(term)
                if key in labels and self._selects(existing, term, pod):
                    text = f"pod {objects.key(existing)} there has anti-affinity to such pods in its {key}"
                    yield from ((name, text) for name, own in self._labels() if own.get(key) == labels[key])

    def _selects(self, owner: Object, term: Mapping[str, Any], other: Object) -> bool:
        """Whether a term of `owner` means the pod `other`."""
        if not label_selector_matches(with_label_keys(owner, term), objects.labels_of(other)):
            return False
        namespaces, by_label = term.get("namespaces") or (), term.get("namespaceSelector")
        if not namespaces and by_label is None:
            return objects.namespace(owner) == objects.namespace(other)
        if by_label is None or objects.namespace(other) in namespaces:
            return objects.namespace(other) in namespaces
        place = self._cache.namespaces.get(objects.namespace(other), {})
        return label_selector_matches(by_label, objects.labels_of(place))

    # topology spread

    def _uneven(self, pod: Object, constraint: _Term, keys: set[str], mine: set[str]) -> _Unsuitable:
        """`keys`: those of all constraints of the pod; a node that lacks one of them counts for none."""
        key = _key(constraint)
        selector = with_label_keys(pod, constraint)
        eligible = {
            name: labels[key]
            for name, info in self.nodes.items()
            if keys <= (labels := objects.labels_of(info.node)).keys()
            and counts_for_spread(info.node, pod, constraint)
        }
        counts: Counter[str] = Counter(dict.fromkeys(eligible.values(), 0))
        for name, domain in eligible.items():
            counts[domain] += sum(
                label_selector_matches(selector, objects.labels_of(existing))
                for existing in self.nodes[name].guests
                if objects.uid(existing) not in mine
                and is_living(existing)
                and objects.namespace(existing) == objects.namespace(pod)
            )
        least = min(counts.values(), default=0)
        if len(counts) < int(constraint.get("minDomains") or 1):
            least = 0
        itself = int(label_selector_matches(selector, objects.labels_of(pod)))
        most = int(constraint.get("maxSkew") or 1)
        for name, labels in self._labels():
            if key not in labels:
                yield name, f"topology spread: the node has no label {key}"
            elif (skew := counts.get(labels[key], 0) + itself - least) > most:
                yield name, f"topology spread over {key}: skew would be {skew}, at most {most} is allowed"

    # volumes

    def _volumes_unreachable(self, pod: Object, mine: set[str]) -> _Unsuitable:
        for claim_name in volume_claim_names(pod):
            claim = self._cache.volume_claims.get(f"{objects.namespace(pod)}/{claim_name}", {})
            volume = self._cache.volumes.get(str(objects.spec_of(claim).get("volumeName") or ""))
            if volume is None:
                continue
            spec = objects.spec_of(volume)
            required = (spec.get("nodeAffinity") or {}).get("required")
            zones = {name: value for name, value in objects.labels_of(volume).items() if name in _ZONE_LABELS}
            for name, info in self.nodes.items():
                labels = objects.labels_of(info.node)
                away = [key for key in zones.keys() & labels if labels[key] not in zones[key].split("__")]
                if required is not None and not selector_matches(required, info.node):
                    yield (
                        name,
                        f"volume {objects.name(volume)} cannot be reached from the node (nodeAffinity)",
                    )
                elif away:
                    yield name, f"volume {objects.name(volume)} is in {min(away)} {zones[min(away)]}"
            if "ReadWriteOncePod" in (spec.get("accessModes") or ()):
                for existing, _ in self._existing_pods(mine):
                    shares = objects.namespace(existing) == objects.namespace(pod)
                    if shares and claim_name in volume_claim_names(existing):
                        text = f"volume claim {claim_name} (ReadWriteOncePod) is used by pod {objects.key(existing)}"
                        yield from dict.fromkeys(self.nodes, text).items()
                        break

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


def _key(term: _Term) -> str:
    return str(term.get("topologyKey"))
