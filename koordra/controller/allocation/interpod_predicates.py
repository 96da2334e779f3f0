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
from dataclasses import dataclass
from typing import Any, Final

from koordra.allocator.predicates import selector_matches
from koordra.allocator.reasons import Cause, Reason
from koordra.api import objects
from koordra.api.classic.suitable_nodes import SUITABLE_NODES
from koordra.api.kinds import DEVICE_CLASSES
from koordra.api.objects import Object
from koordra.controller import claims as claims_of
from koordra.controller.allocation.pod_terms import (
    REQUIRED,
    clashes,
    counts_for_spread,
    host_ports,
    label_selector_matches,
    parsed_selector,
    volume_claim_names,
    with_label_keys,
)
from koordra.controller.cache.cluster_cache import ClusterCache
from koordra.controller.cache.groups import Group
from koordra.controller.cache.pod_claims import is_living
from koordra.placement.index import NodeInfo

_DO_NOT_SCHEDULE: Final = "DoNotSchedule"
_ZONE_LABELS: Final = (
    "topology.kubernetes.io/zone",
    "topology.kubernetes.io/region",
    "failure-domain.beta.kubernetes.io/zone",
    "failure-domain.beta.kubernetes.io/region",
)


@dataclass(frozen=True, slots=True)
class _ExistingPod:
    """A pod where it is, or where its devices will bring it."""

    pod: Object
    node: Mapping[str, str]
    """The labels of its node."""


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
        found: dict[str, str] = {}
        for name, text in self._unsuitable_classes(group):
            found.setdefault(name, text)
        for pod in group.pods:
            for name, text in self._of_pod(pod, group):
                found.setdefault(name, text if len(group.pods) == 1 else f"pod {objects.key(pod)}: {text}")
        cause = Cause.NODE_UNSUITABLE.value
        return {name: Reason(name, None, None, cause, found[name]) for name in sorted(found)}

    def _of_pod(self, pod: Object, group: Group) -> Iterable[tuple[str, str]]:
        spec = objects.spec_of(pod)
        mine = {objects.uid(each) for each in group.pods}
        yield from self._repelled_by_existing(pod, mine)
        if not reads_other_pods(pod):
            return
        ports = host_ports(spec)
        if ports:
            yield from self._port_clashes(ports, mine)
        affinity = spec.get("affinity") or {}
        yield from self._affinity_unmet(pod, (affinity.get("podAffinity") or {}).get(REQUIRED) or (), mine)
        repelled = (affinity.get("podAntiAffinity") or {}).get(REQUIRED) or ()
        yield from self._repelled(pod, repelled, mine)
        spread = [
            constraint
            for constraint in spec.get("topologySpreadConstraints") or ()
            if constraint.get("whenUnsatisfiable", _DO_NOT_SCHEDULE) == _DO_NOT_SCHEDULE
        ]
        keys = {str(constraint.get("topologyKey")) for constraint in spread}
        for constraint in spread:
            yield from self._uneven(pod, constraint, keys, mine)
        if spec.get("volumes"):
            yield from self._volumes_unreachable(pod, mine)

    # host ports

    def _port_clashes(
        self, ports: Sequence[tuple[str, str, int]], mine: set[str]
    ) -> Iterable[tuple[str, str]]:
        for name, info in self.nodes.items():
            for existing in info.guests:
                if objects.uid(existing) in mine:
                    continue
                taken = next(
                    (port for port in host_ports(objects.spec_of(existing)) if clashes(port, ports)), None
                )
                if taken is not None:
                    yield name, f"host port {taken[1]}/{taken[2]} is taken by pod {objects.key(existing)}"
                    break

    # inter-pod affinity

    def _existing_pods(self, mine: set[str]) -> Iterable[_ExistingPod]:
        for info in self.nodes.values():
            labels = objects.labels_of(info.node)
            for existing in info.guests:
                if objects.uid(existing) not in mine:
                    yield _ExistingPod(existing, labels)

    def _affinity_unmet(
        self, pod: Object, terms: Sequence[Mapping[str, Any]], mine: set[str]
    ) -> Iterable[tuple[str, str]]:
        if not terms:
            return
        near = self._domains_of_companions(pod, terms, mine)
        if not any(near) and all(self._selects(pod, term, pod) for term in terms):
            near = []  # the first pod of a series that wants to be near itself
        for name, info in self.nodes.items():
            labels = objects.labels_of(info.node)
            for term, domains in zip(terms, near, strict=False):
                if labels.get(str(term.get("topologyKey"))) not in domains:
                    yield name, f"required pod affinity: no matching pod in its {term.get('topologyKey')}"
                    break
            else:
                lacking = [
                    str(term.get("topologyKey")) for term in terms if term.get("topologyKey") not in labels
                ]
                if lacking:
                    yield name, f"required pod affinity: the node has no label {lacking[0]}"

    def _domains_of_companions(
        self, pod: Object, terms: Sequence[Mapping[str, Any]], mine: set[str]
    ) -> list[set[str]]:
        """Per term the domains of the pods that all terms mean; a pod that only some mean does not count."""
        found: list[set[str]] = [set() for _ in terms]
        for existing in self._existing_pods(mine):
            if all(self._selects(pod, term, existing.pod) for term in terms):
                for term, domains in zip(terms, found, strict=True):
                    if (domain := existing.node.get(str(term.get("topologyKey")))) is not None:
                        domains.add(domain)
        return found

    def _domains(self, pod: Object, term: Mapping[str, Any], mine: set[str]) -> set[str]:
        key = str(term.get("topologyKey"))
        return {
            existing.node[key]
            for existing in self._existing_pods(mine)
            if key in existing.node and self._selects(pod, term, existing.pod)
        }

    def _repelled(
        self, pod: Object, terms: Sequence[Mapping[str, Any]], mine: set[str]
    ) -> Iterable[tuple[str, str]]:
        for term in terms:
            key, domains = str(term.get("topologyKey")), self._domains(pod, term, mine)
            for name, info in self.nodes.items():
                if objects.labels_of(info.node).get(key) in domains:
                    yield name, f"required pod anti-affinity: a matching pod is in its {key}"

    def _repelled_by_existing(self, pod: Object, mine: set[str]) -> Iterable[tuple[str, str]]:
        """Running pods that demand that no such pod comes near them."""
        for term, existing in self._repelling():
            key = str(term.get("topologyKey"))
            if objects.uid(existing.pod) in mine or key not in existing.node:
                continue
            if not self._selects(existing.pod, term, pod):
                continue
            for name, info in self.nodes.items():
                if objects.labels_of(info.node).get(key) == existing.node[key]:
                    yield (
                        name,
                        f"pod {objects.key(existing.pod)} there has anti-affinity to such pods in its {key}",
                    )

    def _repelling(self) -> Iterable[tuple[Mapping[str, Any], _ExistingPod]]:
        """Required terms of anti-affinity, and whose they are."""
        for name, existing in self._cache.pod_index.repelling.values():
            info = self.nodes.get(name)
            if info is None:
                continue
            affinity = objects.spec_of(existing).get("affinity") or {}
            for term in (affinity.get("podAntiAffinity") or {}).get(REQUIRED) or ():
                yield term, _ExistingPod(existing, objects.labels_of(info.node))

    def _selects(self, owner: Object, term: Mapping[str, Any], other: Object) -> bool:
        """Whether a term of `owner` means the pod `other`."""
        selector = with_label_keys(owner, term)
        if selector is None or not label_selector_matches(selector, objects.labels_of(other)):
            return False
        namespaces, by_label = term.get("namespaces") or (), term.get("namespaceSelector")
        if not namespaces and by_label is None:
            return objects.namespace(owner) == objects.namespace(other)
        if objects.namespace(other) in namespaces:
            return True
        if by_label is None:
            return False
        where = self._cache.namespaces.get(objects.namespace(other))
        labels = {} if where is None else objects.labels_of(where)
        return label_selector_matches(by_label, labels)

    # topology spread

    def _uneven(
        self, pod: Object, constraint: Mapping[str, Any], keys: set[str], mine: set[str]
    ) -> Iterable[tuple[str, str]]:
        """`keys`: those of all constraints of the pod; a node that lacks one of them counts for none."""
        key = str(constraint.get("topologyKey"))
        selector = with_label_keys(pod, constraint)
        eligible = {
            name: labels[key]
            for name, info in self.nodes.items()
            if keys <= (labels := objects.labels_of(info.node)).keys()
            and counts_for_spread(info.node, pod, constraint)
        }
        counts: Counter[str] = Counter(dict.fromkeys(eligible.values(), 0))
        for name, domain in eligible.items():
            for existing in self.nodes[name].guests:
                if objects.uid(existing) in mine or not is_living(existing):
                    continue
                if objects.namespace(existing) != objects.namespace(pod) or selector is None:
                    continue
                counts[domain] += label_selector_matches(selector, objects.labels_of(existing))
        least = min(counts.values(), default=0)
        if len(counts) < int(constraint.get("minDomains") or 1):
            least = 0
        itself = int(selector is not None and label_selector_matches(selector, objects.labels_of(pod)))
        most = int(constraint.get("maxSkew") or 1)
        for name, info in self.nodes.items():
            labels = objects.labels_of(info.node)
            if key not in labels:
                yield name, f"topology spread: the node has no label {key}"
            elif (skew := counts.get(labels[key], 0) + itself - least) > most:
                yield name, f"topology spread over {key}: skew would be {skew}, at most {most} is allowed"

    # volumes

    def _volumes_unreachable(self, pod: Object, mine: set[str]) -> Iterable[tuple[str, str]]:
        for claim_name in volume_claim_names(pod):
            volume = self._volume_of(f"{objects.namespace(pod)}/{claim_name}")
            if volume is None:
                continue
            spec = objects.spec_of(volume)
            required = (spec.get("nodeAffinity") or {}).get("required")
            zones = {name: value for name, value in objects.labels_of(volume).items() if name in _ZONE_LABELS}
            for name, info in self.nodes.items():
                labels = objects.labels_of(info.node)
                away = [
                    key
                    for key, value in zones.items()
                    if key in labels and labels[key] not in value.split("__")
                ]
                if required is not None and not selector_matches(required, info.node):
                    yield (
                        name,
                        f"volume {objects.name(volume)} cannot be reached from the node (nodeAffinity)",
                    )
                elif away:
                    yield name, f"volume {objects.name(volume)} is in {away[0]} {zones[away[0]]}"
            if "ReadWriteOncePod" in (spec.get("accessModes") or ()):
                yield from self._in_use(pod, claim_name, mine)

    def _in_use(self, pod: Object, claim_name: str, mine: set[str]) -> Iterable[tuple[str, str]]:
        for existing in self._existing_pods(mine):
            if objects.namespace(existing.pod) == objects.namespace(pod) and claim_name in volume_claim_names(
                existing.pod
            ):
                for name in self.nodes:
                    yield (
                        name,
                        f"volume claim {claim_name} (ReadWriteOncePod) is used by pod {objects.key(existing.pod)}",
                    )
                return

    def _volume_of(self, claim_key: str) -> Object | None:
        claim = self._cache.volume_claims.get(claim_key)
        bound = None if claim is None else objects.spec_of(claim).get("volumeName")
        return self._cache.volumes.get(str(bound)) if bound else None

    # classes that were converted from classic ones

    def _unsuitable_classes(self, group: Group) -> Iterable[tuple[str, str]]:
        for name in self._changed_classes:
            found = self._cache.classes.get(name)
            text = "" if found is None else objects.annotations_of(found).get(SUITABLE_NODES, "")
            self._suitable.pop(name, None)
            if text:
                self._suitable[name] = parsed_selector(text)
        self._changed_classes.clear()
        if not self._suitable:
            return
        named = dict.fromkeys(name for claim in group.pending for name in claims_of.class_names(claim))
        for class_name in [name for name in named if name in self._suitable]:
            for name, info in self.nodes.items():
                if not selector_matches(self._suitable[class_name], info.node):
                    yield name, f"DeviceClass {class_name}: the node is not among its suitable nodes"


def reads_other_pods(pod: Mapping[str, Any]) -> bool:
    """Whether it matters to the pod where other pods and volumes are."""
    spec = objects.spec_of(pod)
    affinity = spec.get("affinity") or {}
    return bool(
        affinity.get("podAffinity")
        or affinity.get("podAntiAffinity")
        or spec.get("topologySpreadConstraints")
        or spec.get("volumes")
        or host_ports(spec)
    )
