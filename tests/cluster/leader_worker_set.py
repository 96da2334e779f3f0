"""What the operator of LeaderWorkerSets makes and does, for clusters that have none (its 0.9: the
constructors of its two StatefulSets, its pod webhook, and its pod reconciler with RecreateGroupOnPodRestart).

    LeaderWorkerSet ─▶ StatefulSet NAME ─▶ leader NAME-0 ─▶ StatefulSet NAME-0, from 1 ─▶ worker NAME-0-1

The StatefulSets' pods are the cluster's. The webhook is a MutatingAdmissionPolicy; its group-key is the
leader's namespace and name, where the operator takes a digest of them.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any, Final

import pytest

from koordra.api import kinds, objects
from koordra.api.kinds import Kind
from koordra.api.objects import Object
from koordra.controller.gangs.declared.workload_kind import LWS
from koordra.errors import ApiError, Conflict, NotFound
from koordra.kube.client import KubeClient
from koordra_devcluster.apiserver.resources import STATEFUL_SETS
from tests.cluster.definitions import defined

_ADMISSION: Final = "admissionregistration.k8s.io"
POLICIES: Final = Kind(
    _ADMISSION, "v1", "mutatingadmissionpolicies", "MutatingAdmissionPolicy", namespaced=False
)
BINDINGS: Final = Kind(
    _ADMISSION, "v1", "mutatingadmissionpolicybindings", "MutatingAdmissionPolicyBinding", namespaced=False
)
SETS: Final = Kind("leaderworkerset.x-k8s.io", "v1", "leaderworkersets", "LeaderWorkerSet")
RESTART: Final = "RecreateGroupOnPodRestart"
_POLICY: Final = "koordra-test-leaderworkerset"

_LABEL: Final = """\
JSONPatch{{op: "add", path: "/metadata/labels/" + jsonpatch.escapeKey("{name}"), value: {value}}}"""
_TERM: Final = """\
Object.spec.affinity.{which}.requiredDuringSchedulingIgnoredDuringExecution{{
  topologyKey: object.metadata.annotations["{lws}exclusive-topology"],
  labelSelector: Object.spec.affinity.{which}.requiredDuringSchedulingIgnoredDuringExecution.labelSelector{{
    matchExpressions: [{expressions}]}}}}"""
_EXPRESSION: Final = """\
Object.spec.affinity.{which}.requiredDuringSchedulingIgnoredDuringExecution.labelSelector.matchExpressions{{
  key: "{lws}group-key", operator: "{operator}"{values}}}"""


def _term(which: str, *operators: str) -> str:
    expressions = ", ".join(
        _EXPRESSION.format(
            which=which,
            lws=LWS,
            operator=operator,
            values="" if operator == "Exists" else ", values: [variables.key]",
        )
        for operator in operators
    )
    return _TERM.format(which=which, lws=LWS, expressions=expressions)


def _webhook() -> Object:
    """Numbers by the pods' names; of leaders with exclusive-topology, terms that keep groups apart."""
    of_leader = [
        _LABEL.format(name=f"{LWS}group-index", value="variables.ordinal"),
        _LABEL.format(name=f"{LWS}group-key", value="variables.key"),
    ]
    affinity = f"""\
JSONPatch{{op: "add", path: "/spec/affinity", value: Object.spec.affinity{{
  podAffinity: Object.spec.affinity.podAffinity{{
    requiredDuringSchedulingIgnoredDuringExecution: [{_term("podAffinity", "In")}]}},
  podAntiAffinity: Object.spec.affinity.podAntiAffinity{{
    requiredDuringSchedulingIgnoredDuringExecution: [{_term("podAntiAffinity", "Exists", "NotIn")}]}}}}}}"""
    of_worker = _LABEL.format(name=f"{LWS}worker-index", value="variables.ordinal")
    is_leader = f'object.metadata.labels[?"{LWS}worker-index"].orValue("") == "0"'
    is_exclusive = f'"{LWS}exclusive-topology" in object.metadata.annotations'
    return {
        "matchConstraints": {
            "objectSelector": {"matchExpressions": [{"key": f"{LWS}name", "operator": "Exists"}]},
            "resourceRules": [
                {"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["pods"]}
            ],
        },
        "failurePolicy": "Fail",
        "reinvocationPolicy": "Never",
        "variables": [
            {"name": "parts", "expression": "object.metadata.name.split('-')"},
            {"name": "ordinal", "expression": "variables.parts[size(variables.parts) - 1]"},
            {"name": "key", "expression": "request.namespace + '-' + object.metadata.name"},
        ],
        "mutations": [
            {
                "patchType": "JSONPatch",
                "jsonPatch": {
                    "expression": f"{is_leader} ? [{', '.join(of_leader)}] + ({is_exclusive} ? [{affinity}] : []) "
                    f": [{of_worker}]"
                },
            }
        ],
    }


@contextmanager
def operator(client: KubeClient) -> Iterator[None]:
    """Its kind, and its webhook. Skips where the cluster cannot have that."""
    policy = {"apiVersion": POLICIES.api_version, "kind": POLICIES.kind, "metadata": {"name": _POLICY}}
    try:
        with suppress(Conflict):
            client.create(POLICIES, {**policy, "spec": _webhook()})
    except ApiError as error:
        if error.code == 404:
            pytest.skip(
                "this cluster has no MutatingAdmissionPolicy, which stands for the operator's webhook"
            )
        raise
    binding = {"apiVersion": BINDINGS.api_version, "kind": BINDINGS.kind, "metadata": {"name": _POLICY}}
    with suppress(Conflict):
        client.create(BINDINGS, {**binding, "spec": {"policyName": _POLICY}})
    with defined(client, [SETS]):
        yield
    for kind in (BINDINGS, POLICIES):
        with suppress(NotFound):
            client.delete(kind, _POLICY)


@dataclass(frozen=True)
class LeaderWorkerSet:
    """`template`: metadata and spec of all pods. `exclusive`: the node label of exclusive-topology."""

    client: KubeClient
    namespace: str
    name: str
    groups: int
    size: int
    template: Object
    exclusive: str = ""
    startup: str = "LeaderCreated"

    def create(self) -> None:
        template = {"size": self.size, "restartPolicy": RESTART, "workerTemplate": self.template}
        spec: Object = {
            "replicas": self.groups,
            "startupPolicy": self.startup,
            "leaderWorkerTemplate": template,
        }
        notes = {f"{LWS}exclusive-topology": self.exclusive} if self.exclusive else {}
        leaders = self.client.create(SETS, self._object(SETS, self.name, spec=spec, annotations=notes))
        labels = {f"{LWS}worker-index": "0", f"{LWS}name": self.name}
        spec = {
            "serviceName": self.name,
            "replicas": self.groups,
            "podManagementPolicy": "Parallel",
            "selector": {"matchLabels": labels},
            "template": self._template(labels, {}),
        }
        self.client.create(
            STATEFUL_SETS, self._object(STATEFUL_SETS, self.name, spec=spec, owner=leaders, labels=labels)
        )

    def delete(self) -> None:
        with suppress(NotFound):
            self.client.delete(SETS, self.name, namespace=self.namespace, propagation="Background")

    def reconcile(self) -> dict[str, Object]:
        """A step; its pods, by name."""
        found, _ = self.client.list(
            kinds.PODS, namespace=self.namespace, label_selector=f"{LWS}name={self.name}"
        )
        pods = {objects.name(pod): pod for pod in found}
        for name in [
            name for name, pod in pods.items() if objects.labels_of(pod)[f"{LWS}worker-index"] == "0"
        ]:
            leader = pods[name]
            workers = [pod for other, pod in pods.items() if other.startswith(f"{name}-")]
            if objects.is_deleting(leader):
                continue
            if any(objects.is_deleting(pod) and self._is_its(pod, leader) for pod in workers):
                self.client.delete(kinds.PODS, name, namespace=self.namespace, propagation="Foreground")
            elif self._may_have_workers(leader):
                self._make_workers(leader)
        return pods

    def _may_have_workers(self, leader: Object) -> bool:
        conditions = objects.status_of(leader).get("conditions") or ()
        ready = any(one["type"] == "Ready" and one["status"] == "True" for one in conditions)
        if self.startup == "LeaderReady" and not ready:
            return False
        return not self.exclusive or bool(objects.spec_of(leader).get("nodeName"))

    def _make_workers(self, leader: Object) -> None:
        name = objects.name(leader)
        told = objects.labels_of(leader)
        labels = {f"{LWS}{key}": told[f"{LWS}{key}"] for key in ("name", "group-index", "group-key")}
        template = self._template(labels, {f"{LWS}leader-name": name})
        if self.exclusive:
            node = self.client.get(kinds.NODES, leader["spec"]["nodeName"])
            place = {self.exclusive: objects.labels_of(node)[self.exclusive]}
            template["spec"]["nodeSelector"] = {**template["spec"].get("nodeSelector", {}), **place}
        spec = {
            "serviceName": self.name,
            "replicas": self.size - 1,
            "podManagementPolicy": "Parallel",
            "ordinals": {"start": 1},
            "selector": {"matchLabels": labels},
            "template": template,
        }
        with suppress(Conflict):
            self.client.create(
                STATEFUL_SETS, self._object(STATEFUL_SETS, name, spec=spec, owner=leader, labels=labels)
            )

    def _is_its(self, worker: Object, leader: Object) -> bool:
        """Whether the pod's StatefulSet is that of this leader, and not of the one before it."""
        try:
            found = self.client.get(STATEFUL_SETS, objects.name(leader), namespace=self.namespace)
        except NotFound:
            return False
        (maker,), (owner,) = (objects.metadata(one)["ownerReferences"] for one in (worker, found))
        return maker["uid"] == objects.uid(found) and owner["uid"] == objects.uid(leader)

    def _template(self, labels: dict[str, str], annotations: dict[str, str]) -> Object:
        metadata = self.template["metadata"]
        notes = {f"{LWS}size": str(self.size), **annotations}
        notes |= {f"{LWS}exclusive-topology": self.exclusive} if self.exclusive else {}
        return {
            "metadata": {
                "labels": {**metadata.get("labels", {}), **labels},
                "annotations": {**metadata.get("annotations", {}), **notes},
            },
            "spec": dict(self.template["spec"]),
        }

    def _object(self, kind: Kind, name: str, *, owner: Object | None = None, **more: Any) -> Object:
        told = {key: more.pop(key, {}) for key in ("labels", "annotations")}
        metadata: Object = {"name": name, "namespace": self.namespace, **told}
        if owner is not None:
            metadata["ownerReferences"] = [
                {
                    "apiVersion": owner["apiVersion"],
                    "kind": owner["kind"],
                    "name": objects.name(owner),
                    "uid": objects.uid(owner),
                    "controller": True,
                    "blockOwnerDeletion": True,
                }
            ]
        return {"apiVersion": kind.api_version, "kind": kind.kind, "metadata": metadata, **more}
