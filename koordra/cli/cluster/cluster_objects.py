"""The objects of a cluster that planning looks at, read through a kubeconfig, for commands that look."""

from __future__ import annotations

from typing import TYPE_CHECKING

from koordra.api import kinds
from koordra.api.objects import Object
from koordra.controller.cache.changes import POD_GROUPS
from koordra.errors import ApiUnreachable, Forbidden, NotFound
from koordra.kube import KubeClient

if TYPE_CHECKING:
    from koordra.controller.cache.changes import Cluster

_NEEDED = (kinds.NODES, kinds.RESOURCE_SLICES, kinds.DEVICE_CLASSES, kinds.RESOURCE_CLAIMS, kinds.PODS)
_OPTIONAL = (kinds.DEVICE_TAINT_RULES,)
_AROUND = (kinds.NAMESPACES, kinds.PERSISTENT_VOLUME_CLAIMS, kinds.PERSISTENT_VOLUMES, *POD_GROUPS)
"""What obstacles between pods and volumes are made of; without the right to read them they are not seen."""


def connect(kubeconfig: str | None) -> KubeClient:
    """A client that speaks the server's version of resource.k8s.io."""
    client = KubeClient(kubeconfig, user_agent="koordra-cli")
    client.negotiate()
    return client


def read_cluster(client: KubeClient) -> list[Object]:
    """Everything that a plan is made from, as the controller would show it to the allocator."""
    from koordra.controller.cache.slice_index import joint_slices

    found: list[Object] = []
    for kind in (*_NEEDED, *_OPTIONAL):
        try:
            items, _ = client.list(kind)
        except ApiUnreachable:
            raise
        except (NotFound, Forbidden):
            if kind in _NEEDED:
                raise
            continue
        found += joint_slices(items) if kind is kinds.RESOURCE_SLICES else items
    return found


def read_devices(client: KubeClient) -> list[Object]:
    """Everything that says which devices there are and who has them, of koordra's joint and native nodes alike."""
    found = [
        entry
        for kind in (kinds.NODES, kinds.RESOURCE_SLICES, kinds.RESOURCE_CLAIMS)
        for entry in client.list(kind)[0]
    ]
    try:
        return found + client.list(kinds.DEVICE_TAINT_RULES)[0]
    except ApiUnreachable:
        raise
    except (NotFound, Forbidden):
        return found


def read_around(client: KubeClient) -> list[Object]:
    """What else the controller looks at, as far as one may read it."""
    found: list[Object] = []
    for kind in _AROUND:
        try:
            found += client.list(kind)[0]
        except ApiUnreachable:
            raise
        except (NotFound, Forbidden):
            continue
    return found


def as_cluster(found: list[Object]) -> Cluster:
    """The objects by kind, as the controller's planning takes them."""
    from koordra.controller.cache.changes import Cluster

    def of(kind: str) -> list[Object]:
        return [obj for obj in found if obj.get("kind") == kind]

    return Cluster(
        nodes=of("Node"),
        slices=of("ResourceSlice"),
        classes=of("DeviceClass"),
        taint_rules=of("DeviceTaintRule"),
        claims=of("ResourceClaim"),
        pods=of("Pod"),
        namespaces=of("Namespace"),
        volume_claims=of("PersistentVolumeClaim"),
        volumes=of("PersistentVolume"),
        pod_groups=[*of("PodGroup"), *of("Workload")],
    )
