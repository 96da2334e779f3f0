"""Nodes that no kubelet backs, with the devices of made-up machines."""

from __future__ import annotations

import threading
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path

from koordra.api import kinds, names, objects
from koordra.api.objects import Object
from koordra.errors import ApiError, Conflict, NotFound
from koordra.kube.client import KubeClient
from koordra.kubelet_plugin.discovery.reading import discover
from koordra.kubelet_plugin.publish.offering import Offering
from koordra.kubelet_plugin.publish.resource_slices import build_slices
from koordra.topology import presets
from koordra.topology.presets import Preset

OF_THE_SUITE = {"koordra.io/test": "true"}


@contextmanager
def made_up(
    client: KubeClient,
    labels: Mapping[str, Mapping[str, str]],
    folder: Path,
    *,
    machines: Mapping[str, Preset] | None = None,
    offering: Offering | None = None,
) -> Iterator[None]:
    """Nodes with these labels, by name, and their machines: each a HGX H100 where nothing else is said."""
    for name, own in labels.items():
        remove_node(client, name)
        machine = (machines or {}).get(name)
        publish(client, add_node(client, name, own), folder / name, machine=machine, offering=offering)
    try:
        with kept_alive(client, labels):
            yield
    finally:
        for name in labels:
            remove_node(client, name)


@contextmanager
def kept_alive(client: KubeClient, nodes: Collection[str]) -> Iterator[None]:
    """The nodes' leases are renewed, as their kubelets would."""
    stop = threading.Event()

    def keep() -> None:
        while not stop.wait(5.0):
            for name in nodes:
                _renew(client, name)

    keeper = threading.Thread(target=keep, daemon=True)
    keeper.start()
    try:
        yield
    finally:
        stop.set()
        keeper.join(10)


def _renew(client: KubeClient, name: str) -> None:
    now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
    spec = {"holderIdentity": name, "leaseDurationSeconds": 40, "renewTime": now}
    body = {
        "apiVersion": "coordination.k8s.io/v1",
        "kind": "Lease",
        "metadata": {"name": name, "namespace": "kube-node-lease"},
        "spec": spec,
    }
    try:
        client.create(kinds.LEASES, body)
    except Conflict:
        client.patch(kinds.LEASES, name, {"spec": spec}, namespace="kube-node-lease")
    except ApiError:
        return


def add_node(client: KubeClient, name: str, labels: Mapping[str, str] = OF_THE_SUITE) -> Object:
    amounts = {"cpu": "32", "memory": "256Gi", "pods": "110"}
    labels = {"kubernetes.io/hostname": name, **labels}
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


def publish(
    client: KubeClient,
    node: Object,
    root: Path,
    *,
    machine: Preset | None = None,
    offering: Offering | None = None,
) -> list[Object]:
    """What the real discovery makes of a machine written to `root`, as slices that the API server gave
    back."""
    name = objects.name(node)
    presets.write_machine(machine or presets.load("hgx-h100"), root, serial=name)
    slices = build_slices(
        discover(root).machine,
        node_name=name,
        node_uid=objects.uid(node),
        mode=names.MODE_JOINT,
        generation=1,
        offering=offering or Offering(),
    )
    return [client.create(kinds.RESOURCE_SLICES, body) for body in slices]


def remove_node(client: KubeClient, name: str) -> None:
    for entry in client.list(kinds.RESOURCE_SLICES, field_selector=f"spec.nodeName={name}")[0]:
        client.delete(kinds.RESOURCE_SLICES, objects.name(entry))
    try:
        client.delete(kinds.NODES, name)
    except NotFound:
        return
