"""Nodes that no kubelet backs, with the devices of made-up machines."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

from koordra.api import kinds, names, objects
from koordra.api.objects import Object
from koordra.errors import NotFound
from koordra.kube.client import KubeClient
from koordra.kubelet_plugin.discovery.reading import discover
from koordra.kubelet_plugin.publish.resource_slices import Offering, build_slices
from koordra.topology import presets


def add_node(client: KubeClient, name: str) -> Object:
    amounts = {"cpu": "32", "memory": "256Gi", "pods": "110"}
    labels = {"kubernetes.io/hostname": name, "koordra.io/test": "true"}
    client.create(
        kinds.NODES, {"apiVersion": "v1", "kind": "Node", "metadata": {"name": name, "labels": labels}}
    )
    ready = {"type": "Ready", "status": "True", "reason": "KubeletReady", "message": "test node"}
    now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    ready |= {"lastHeartbeatTime": now, "lastTransitionTime": now}
    status = {"status": {"capacity": amounts, "allocatable": amounts, "conditions": [ready]}}
    client.patch(kinds.NODES, name, status, subresource="status")
    # A new node is tainted "not ready" until its kubelet reports; there is none, and perhaps no node
    # controller.
    return client.patch(kinds.NODES, name, {"spec": {"taints": None}})


def publish(client: KubeClient, node: Object, root: Path) -> list[Object]:
    """What the real discovery makes of a machine written to `root`, as slices that the API server gave
    back."""
    name = objects.name(node)
    presets.write_machine(presets.load("hgx-h100"), root, serial=name)
    slices = build_slices(
        discover(root).machine,
        node_name=name,
        node_uid=objects.uid(node),
        mode=names.MODE_JOINT,
        generation=1,
        offering=Offering(),
    )
    return [client.create(kinds.RESOURCE_SLICES, body) for body in slices]


def remove_node(client: KubeClient, name: str) -> None:
    for entry in client.list(kinds.RESOURCE_SLICES, field_selector=f"spec.nodeName={name}")[0]:
        client.delete(kinds.RESOURCE_SLICES, objects.name(entry))
    try:
        client.delete(kinds.NODES, name)
    except NotFound:
        return
