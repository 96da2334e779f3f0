"""Groups of nodes that grow and shrink on any API server, as cluster-autoscaler does it.

    pods that kube-scheduler finds no node for, with no gate, no claims and a priority of -10 at least ─▶ as
    many new nodes as do not fit on those that are on their way, up to the group's size
    a node that is to go ─▶ tainted, drained by evictions, gone with its ResourceSlices

Which pods those are is decided as the autoscaler does, whoever made them. Nothing happens by itself: tests
make the steps.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from typing import Final

from koordra.api import kinds, objects
from koordra.api.objects import Object
from koordra.controller.autoscale.node_groups import NodeGroup, node_with_slices
from koordra.errors import ApiError, NotFound
from koordra.kube.client import KubeClient

CUTOFF: Final = -10
TO_BE_DELETED: Final = "ToBeDeletedByClusterAutoscaler"


class GrowingGroups:
    """`made`: nodes by name, with their group."""

    def __init__(self, client: KubeClient, groups: Sequence[NodeGroup]) -> None:
        self._client = client
        self._groups = groups
        self.made: dict[str, NodeGroup] = {}
        self._number = 0

    def grow(self) -> list[str]:
        """The nodes that are made now; their devices are not published yet."""
        pods = self._client.list(kinds.PODS)[0]
        used = {objects.spec_of(pod).get("nodeName") for pod in pods}
        found = []
        for group in self._groups:
            wanting = [pod for pod in pods if _is_unschedulable(pod) and _wants(pod, group)]
            there = [name for name, of in self.made.items() if of is group]
            coming = [name for name in there if name not in used]
            number = min(len(wanting) - len(coming), group.most - len(there))
            found += [self._add(group) for _ in range(number)]
        return found

    def publish(self, name: str) -> None:
        """koordra's plugin has come up on the node."""
        for one in list(node_with_slices(name, self.made[name]))[1:]:
            self._client.create(kinds.RESOURCE_SLICES, one)

    def taint(self, name: str) -> None:
        taint = {"key": TO_BE_DELETED, "value": "1", "effect": "NoSchedule"}
        self._client.patch(kinds.NODES, name, {"spec": {"taints": [taint]}})

    def drain(self, name: str) -> list[str]:
        """Evict who is there, but for pods of DaemonSets; those that may not go now."""
        refused = []
        for pod in self._client.list(kinds.PODS, field_selector=f"spec.nodeName={name}")[0]:
            owners = objects.metadata(pod).get("ownerReferences") or ()
            if any(owner.get("kind") == "DaemonSet" for owner in owners):
                continue
            body = {
                "apiVersion": "policy/v1",
                "kind": "Eviction",
                "metadata": {"name": objects.name(pod), "namespace": objects.namespace(pod)},
            }
            try:
                self._client.create(
                    kinds.PODS,
                    body,
                    namespace=objects.namespace(pod),
                    name=objects.name(pod),
                    subresource="eviction",
                )
            except NotFound:
                continue
            except ApiError as error:
                refused.append(f"{objects.key(pod)}: {error.message}")
        return refused

    def remove(self, name: str) -> None:
        for entry in self._client.list(kinds.RESOURCE_SLICES, field_selector=f"spec.nodeName={name}")[0]:
            with suppress(NotFound):
                self._client.delete(kinds.RESOURCE_SLICES, objects.name(entry))
        with suppress(NotFound):
            self._client.delete(kinds.NODES, name)
        self.made.pop(name, None)

    def _add(self, group: NodeGroup) -> str:
        self._number += 1
        name = f"{group.name}-node-{self._number}"
        node = next(node_with_slices(name, group))
        del node["metadata"]["uid"]
        now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        ready = {"reason": "KubeletReady", "lastHeartbeatTime": now, "lastTransitionTime": now}
        status: Mapping[str, Object] = {
            **node["status"],
            "capacity": group.resources,
            "conditions": [{**condition, **ready} for condition in node["status"]["conditions"]],
        }
        self._client.create(kinds.NODES, objects.without(node, "status"))
        self._client.patch(kinds.NODES, name, {"status": status}, subresource="status")
        taints = objects.spec_of(node).get("taints")
        self._client.patch(
            kinds.NODES, name, {"spec": {"taints": taints}}
        )  # not that of a node without kubelet
        self.made[name] = group
        return name


def _is_unschedulable(pod: Object) -> bool:
    spec = objects.spec_of(pod)
    if spec.get("nodeName") or spec.get("schedulingGates") or spec.get("resourceClaims"):
        return False
    if int(spec.get("priority") or 0) < CUTOFF or objects.is_deleting(pod):
        return False
    conditions = objects.status_of(pod).get("conditions") or ()
    return any(
        (one.get("type"), one.get("status"), one.get("reason")) == ("PodScheduled", "False", "Unschedulable")
        for one in conditions
    )


def _wants(pod: Object, group: NodeGroup) -> bool:
    wanted = objects.spec_of(pod).get("nodeSelector") or {}
    return bool(wanted) and wanted.items() <= group.labels.items()
