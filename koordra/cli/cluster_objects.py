"""Reads the objects of a cluster that planning needs, for commands that ask the API server."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress

from koordra.api import kinds
from koordra.api.objects import Object
from koordra.controller.cache.changes import POD_GROUPS
from koordra.controller.cache.slice_index import joint_slices
from koordra.errors import Forbidden, NotFound
from koordra.kube.client import KubeClient

_NEEDED = (kinds.NODES, kinds.RESOURCE_SLICES, kinds.DEVICE_CLASSES, kinds.RESOURCE_CLAIMS, kinds.PODS)
_PREDICATES = (kinds.NAMESPACES, kinds.PERSISTENT_VOLUME_CLAIMS, kinds.PERSISTENT_VOLUMES, *POD_GROUPS)


def connect(kubeconfig: str | None) -> KubeClient:
    """A client that speaks the server's version of resource.k8s.io."""
    from koordra.kube.kubeconfig import new_client

    client = new_client(kubeconfig, user_agent="koordra-cli")
    client.negotiate()
    return client


def read_cluster(client: KubeClient) -> list[Object]:
    """Everything that a plan is made from, as the controller would show it to the allocator."""
    found = _listed(client, _NEEDED) + _readable(client, (kinds.DEVICE_TAINT_RULES,))
    slices = joint_slices([obj for obj in found if obj["kind"] == kinds.RESOURCE_SLICES.kind])
    return [obj for obj in found if obj["kind"] != kinds.RESOURCE_SLICES.kind] + slices


def read_devices(client: KubeClient) -> list[Object]:
    """Everything that says which devices there are and who has them, of koordra's joint and native nodes
    alike."""
    return _listed(client, (kinds.NODES, kinds.RESOURCE_SLICES, kinds.RESOURCE_CLAIMS)) + _readable(
        client, (kinds.DEVICE_TAINT_RULES,)
    )


def read_predicates(client: KubeClient) -> list[Object]:
    """The objects that predicates between pods, volumes and gangs are made of, as far as the caller may read
    them."""
    return _readable(client, _PREDICATES)


def _listed(client: KubeClient, wanted: Iterable[kinds.Kind]) -> list[Object]:
    return [obj for kind in wanted for obj in client.list(kind)[0]]


def _readable(client: KubeClient, wanted: Iterable[kinds.Kind]) -> list[Object]:
    """Without the kinds that the server does not have or the caller may not read."""
    found: list[Object] = []
    for kind in wanted:
        with suppress(NotFound, Forbidden):
            found += client.list(kind)[0]
    return found
