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

Everything about one node and one pod alone (readiness, cordon, taints, labels, node affinity, room) is the
allocator's business. Soft terms (preferred, ScheduleAnyway) are not looked at: devices decide which of the
permitted nodes is best. What is missed here costs a round, never correctness: kube-scheduler says no, and the
node is left out for a while.

Sources: kube-scheduler plugins NodePorts, InterPodAffinity, PodTopologySpread, VolumeBinding, VolumeZone,
VolumeRestrictions.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from koordra.allocator.predicates import (
    REQUIRED,
    requirement_matches,
    selector_matches,
    unmet_affinity,
    untolerated_taints,
)
from koordra.allocator.reasons import Cause, reason_of
from koordra.api import objects
from koordra.api.classic import suitable_nodes
from koordra.api.kinds import DEVICE_CLASSES, NAMESPACES
from koordra.api.objects import Fields, Object
from koordra.controller import claims as claims_of
from koordra.controller.cache.cluster_cache import ClusterCache
from koordra.controller.cache.groups import Group
from koordra.controller.cache.pod_index import is_living
from koordra.errors import InvalidManifest
from koordra.placement.decide import Excluded
from koordra.placement.index import ClusterIndex, NodeInfo

ANY_ADDRESS: Final = "0.0.0.0"
_DO_NOT_SCHEDULE: Final = "DoNotSchedule"
_ZONE_LABELS: Final = (
    "topology.kubernetes.io/zone",
    "topology.kubernetes.io/region",
    "failure-domain.beta.kubernetes.io/zone",
    "failure-domain.beta.kubernetes.io/region",
)


Port = tuple[str, str, int]
"""Address, protocol and number."""
_Term = Fields
"""Of affinity, or a constraint of topology spread."""
_Unsuitable = Iterable[tuple[str, str]]
"""Node -> what keeps the pod off it."""


class InterPodPredicates:
    """Over the cache and the nodes as they are at each question. Not thread-safe."""

    def __init__(self, cache: ClusterCache, index: ClusterIndex) -> None:
        self._cache = cache
        self._index = index
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
            yield from ((name, text) for name, info in self.nodes.items() if info.labels.get(key) in domains)
        spread = [
            constraint
            for constraint in objects.spec_of(pod).get("topologySpreadConstraints") or ()
            if constraint.get("whenUnsatisfiable", _DO_NOT_SCHEDULE) == _DO_NOT_SCHEDULE
        ]
        for constraint in spread:
            yield from self._uneven(pod, constraint, set(map(_key, spread)), mine)
        yield from self._volumes_unreachable(pod, mine)

    def _others(self, mine: set[str]) -> Iterable[tuple[NodeInfo, Object]]:
        """Other pods where they are, or where their devices will bring them."""
        for info in self.nodes.values():
            yield from ((info, pod) for pod in info.guests if objects.uid(pod) not in mine)

    def _port_clashes(self, ports: Sequence[Port], mine: set[str]) -> _Unsuitable:
        for info, existing in self._others(mine) if ports else ():
            for taken in host_ports(objects.spec_of(existing)):
                if clashes(taken, ports):
                    _, protocol, number = taken
                    yield info.name, f"host port {protocol}/{number} is taken by pod {objects.key(existing)}"

    # inter-pod affinity

    def _affinity_unmet(self, pod: Object, terms: Sequence[_Term], mine: set[str]) -> _Unsuitable:
        if not terms:
            return
        keys, near = list(map(_key, terms)), self._domains(pod, terms, mine)
        # the first pod of a series that wants to be near itself
        is_first = not any(near) and all(self._selects(pod, term, pod) for term in terms)
        for name, info in self.nodes.items():
            for key, domains in zip(keys, near, strict=True):
                if is_first and key not in info.labels:
                    yield name, f"required pod affinity: the node has no label {key}"
                elif not is_first and info.labels.get(key) not in domains:
                    yield name, f"required pod affinity: no matching pod in its {key}"

    def _domains(self, pod: Object, terms: Sequence[_Term], mine: set[str]) -> list[set[str]]:
        """Per term the domains of the pods that all terms mean; a pod that only some mean does not count."""
        found: list[set[str]] = [set() for _ in terms]
        for info, existing in self._others(mine):
            if all(self._selects(pod, term, existing) for term in terms):
                for term, domains in zip(terms, found, strict=True):
                    if (domain := info.labels.get(_key(term))) is not None:
                        domains.add(domain)
        return found

    def _repelled_by_existing(self, pod: Object, mine: set[str]) -> _Unsuitable:
        """Running pods that demand that no such pod comes near them."""
        for _, placed in sorted(self._index.pods.repelling.items()):  # the first one's words are told
            existing = placed.pod
            if objects.uid(existing) in mine or placed.node not in self.nodes:
                continue
            labels = self.nodes[placed.node].labels
            for term in required_terms(existing, "podAntiAffinity"):
                key = _key(term)
                if key in labels and self._selects(existing, term, pod):
                    text = f"pod {objects.key(existing)} there has anti-affinity to such pods in its {key}"
                    near = (name for name, info in self.nodes.items() if info.labels.get(key) == labels[key])
                    yield from ((name, text) for name in near)

    def _selects(self, owner: Fields, term: Fields, other: Fields) -> bool:
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
            name: info.labels[key]
            for name, info in self.nodes.items()
            if keys <= info.labels.keys() and counts_for_spread(info.node, pod, constraint)
        }
        counts = dict.fromkeys(eligible.values(), 0)
        for info, existing in self._others(mine):
            alike = is_living(existing) and objects.namespace(existing) == objects.namespace(pod)
            if alike and info.name in eligible:
                matches = label_selector_matches(selector, objects.labels_of(existing))
                counts[eligible[info.name]] += matches
        least = min(counts.values(), default=0)
        if len(counts) < int(constraint.get("minDomains") or 1):
            least = 0
        itself = int(label_selector_matches(selector, objects.labels_of(pod)))
        most = int(constraint.get("maxSkew") or 1)
        for name, info in self.nodes.items():
            if key not in info.labels:
                yield name, f"topology spread: the node has no label {key}"
            elif (skew := counts.get(info.labels[key], 0) + itself - least) > most:
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
                labels = info.labels
                away = [key for key in zones.keys() & labels if labels[key] not in zones[key].split("__")]
                if required is not None and not selector_matches(required, info.node):
                    yield (
                        name,
                        f"volume {objects.name(volume)} cannot be reached from the node (nodeAffinity)",
                    )
                elif away:
                    yield name, f"volume {objects.name(volume)} is in {min(away)} {zones[min(away)]}"
            if "ReadWriteOncePod" in (spec.get("accessModes") or ()):
                for _, existing in self._others(mine):
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


def required_terms(pod: Fields, kind: str) -> Sequence[Fields]:
    """Required terms of podAffinity or podAntiAffinity."""
    return ((objects.spec_of(pod).get("affinity") or {}).get(kind) or {}).get(REQUIRED) or ()


def clashes(taken: Port, wanted: Sequence[Port]) -> bool:
    return any(
        taken[1:] == port[1:] and (taken[0] == port[0] or ANY_ADDRESS in (taken[0], port[0]))
        for port in wanted
    )


def label_selector_matches(selector: Fields | None, labels: Mapping[str, str]) -> bool:
    """meta/v1 LabelSelector; an empty one matches everything, None nothing."""
    if selector is None:
        return False
    named = selector.get("matchLabels") or {}
    return all(labels.get(key) == value for key, value in named.items()) and all(
        requirement_matches(entry, labels) for entry in selector.get("matchExpressions") or ()
    )


def with_label_keys(pod: Fields, term: Fields) -> Fields | None:
    """The term's selector with matchLabelKeys and mismatchLabelKeys of the pod; None selects nothing. Newer
    API servers have merged them into the selector already, which changes nothing here."""
    selector, labels = term.get("labelSelector"), objects.labels_of(pod)
    if selector is None:
        return None
    added = [
        {"key": key, "operator": operator, "values": [labels[key]]}
        for field_name, operator in (("matchLabelKeys", "In"), ("mismatchLabelKeys", "NotIn"))
        for key in term.get(field_name) or ()
        if key in labels
    ]
    return {**selector, "matchExpressions": [*(selector.get("matchExpressions") or ()), *added]}


def counts_for_spread(node: Fields, pod: Object, constraint: Fields) -> bool:
    spec = objects.spec_of(pod)
    if constraint.get("nodeAffinityPolicy", "Honor") == "Honor" and any(unmet_affinity(node, spec)):
        return False
    return constraint.get("nodeTaintsPolicy") != "Honor" or not any(untolerated_taints(node, spec))


def volume_claim_names(pod: Object) -> list[str]:
    """PersistentVolumeClaims by name; those of ephemeral volumes are named after pod and volume."""
    found = []
    for volume in objects.spec_of(pod).get("volumes") or ():
        if (volume.get("persistentVolumeClaim") or {}).get("claimName"):
            found.append(str(volume["persistentVolumeClaim"]["claimName"]))
        elif volume.get("ephemeral"):
            found.append(f"{objects.name(pod)}-{volume.get('name')}")
    return found


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
