"""Kinds of other systems on a cluster that has none of these systems: their definitions, and nobody behind
them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

from koordra.api.kinds import Kind
from koordra.api.objects import Object
from koordra.errors import ApiError, Conflict, NotFound
from koordra.kube.client import KubeClient
from koordra_devcluster.apiserver.resources import CRDS
from tests.cluster.waiting import eventually

_ANY: Object = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}


@contextmanager
def defined(client: KubeClient, wanted: Iterable[Kind]) -> Iterator[None]:
    """The kinds are served, with whatever fields; those that the cluster did not have go at the end."""
    missing = [kind for kind in wanted if not _is_served(client, kind)]
    for kind in missing:
        with suppress(Conflict):
            client.create(CRDS, _definition(kind))
    try:
        for kind in missing:
            eventually(lambda kind=kind: _is_served(client, kind), f"{kind.plural}.{kind.group}")  # type: ignore[misc]
        yield
    finally:
        for kind in missing:
            with suppress(NotFound):
                client.delete(CRDS, f"{kind.plural}.{kind.group}")


def _is_served(client: KubeClient, kind: Kind) -> bool:
    try:
        client.list(kind)
    except ApiError:
        return False
    return True


def _definition(kind: Kind) -> Object:
    version: dict[str, Any] = {"name": kind.version, "served": True, "storage": True}
    version["schema"] = {
        "openAPIV3Schema": {"type": "object", "properties": {"spec": _ANY, "status": _ANY}},
    }
    return {
        "apiVersion": CRDS.api_version,
        "kind": CRDS.kind,
        "metadata": {
            "name": f"{kind.plural}.{kind.group}",
            "annotations": {"api-approved.kubernetes.io": "unapproved, a test's"},
        },
        "spec": {
            "group": kind.group,
            "names": {"kind": kind.kind, "plural": kind.plural, "singular": kind.kind.lower()},
            "scope": "Namespaced" if kind.namespaced else "Cluster",
            "versions": [version],
        },
    }
