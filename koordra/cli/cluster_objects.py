"""The objects of a cluster that planning looks at, read through a kubeconfig, for commands that look."""

from __future__ import annotations

from koordra.api import kinds
from koordra.api.objects import Object
from koordra.errors import ApiUnreachable, Forbidden, NotFound
from koordra.kube import KubeClient

_NEEDED = (kinds.NODES, kinds.RESOURCE_SLICES, kinds.DEVICE_CLASSES, kinds.RESOURCE_CLAIMS, kinds.PODS)
_OPTIONAL = (kinds.DEVICE_TAINT_RULES,)


def connect(kubeconfig: str | None) -> KubeClient:
    """A client that speaks the server's version of resource.k8s.io."""
    client = KubeClient(kubeconfig, user_agent="koordra-cli")
    client.negotiate()
    return client


def read_cluster(client: KubeClient) -> list[Object]:
    """Everything that a plan is made from, as the controller would show it to the allocator."""
    from koordra.controller.snapshot import joint_slices

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
