"""Owners, namespaces and default service accounts: what other loops of kube-controller-manager do.

An object goes when every owner it names is gone (same kind, name and uid). An owner that is deleted with
propagationPolicy Foreground stays until those that block it are gone; with Orphan, they lose their reference
to it instead. A terminating namespace loses its contents and then its own finalizer. A new namespace gets the
service account `default`.
"""

from __future__ import annotations

import threading
from functools import partial
from typing import Final

from koordra.api import kinds
from koordra.api.kinds import Kind
from koordra.api.objects import Object, is_deleting, metadata, name, uid
from koordra.errors import Conflict, NotFound
from koordra.kube.client import KubeClient
from koordra.process import lifecycle
from koordra_devcluster.apiserver.resources import (
    CASCADING,
    CONTROLLER_REVISIONS,
    CRDS,
    EVENTS_V1,
    JOBS,
    REPLICA_SETS,
    SERVED,
)
from koordra_devcluster.apiserver.storage import custom
from koordra_devcluster.apiserver.storage.deletion import FOREGROUND, ORPHAN
from koordra_devcluster.controllers.informers import Informers
from koordra_devcluster.controllers.workqueue import WorkQueue

OWNED: Final = (
    kinds.PODS,
    kinds.RESOURCE_CLAIMS,
    kinds.RESOURCE_SLICES,
    kinds.RESOURCE_CLAIM_TEMPLATES,
    kinds.DEVICE_CLASSES,
    kinds.SERVICES,
    REPLICA_SETS,
    JOBS,
    CONTROLLER_REVISIONS,
)
OWNERS: Final = (kinds.NODES, *sorted(CASCADING, key=str))
WATCHED: Final = tuple(dict.fromkeys((*OWNED, *OWNERS, kinds.NAMESPACES)))
CONTENTS: Final = tuple(
    served.kind for served in SERVED if served.kind.namespaced and served.kind != EVENTS_V1
)
LOOK_AGAIN: Final = 0.5
"""Seconds after which an owner of a kind that is not watched is looked for again."""


class GarbageLoops:
    """Owner references, terminating namespaces and default service accounts over shared informers (kinds:
    WATCHED)."""

    def __init__(self, client: KubeClient, informers: Informers) -> None:
        self._client = client
        self._informers = informers
        self._custom: dict[tuple[str, str], Kind] = {}
        """That have been met: the objects of a definition that is gone are gone, too."""
        self._orphans = WorkQueue("garbage", self._sync_object)
        self._leaving = WorkQueue("leaving-owners", self._sync_owner)
        self._namespaces = WorkQueue("namespaces", self._sync_namespace)
        self._custom_objects = WorkQueue("custom-objects", self._sync_custom)
        for kind in OWNED:
            informers.listen(kind, partial(self._dependent_changed, kind))
        for kind in OWNERS:
            informers.listen(kind, partial(self._owner_changed, kind))
        informers.listen(kinds.NAMESPACES, lambda _event, obj, /: self._namespaces.add(name(obj)))

    def start(self, stop: threading.Event) -> None:
        lifecycle.spawn(lambda: self._orphans.run(stop), name="garbage")
        lifecycle.spawn(lambda: self._leaving.run(stop), name="leaving-owners")
        lifecycle.spawn(lambda: self._namespaces.run(stop), name="namespaces")
        lifecycle.spawn(lambda: self._custom_objects.run(stop), name="custom-objects")

    def _dependent_changed(self, kind: Kind, event: str, obj: Object, /) -> None:
        if event == "ADDED" and metadata(obj).get("ownerReferences"):
            self._orphans.add(_work_key(kind, obj))

    def _owner_changed(self, kind: Kind, event: str, owner: Object, /) -> None:
        if event != "DELETED":
            if _waits_for(owner):
                self._leaving.add(_work_key(kind, owner))
            return
        for dependent_kind, obj in self._dependents(owner):
            self._orphans.add(_work_key(dependent_kind, obj))
        if metadata(owner).get("namespace"):
            self._custom_objects.add(metadata(owner)["namespace"])

    def _dependents(self, owner: Object) -> list[tuple[Kind, Object]]:
        """What names `owner` among its owners, as far as this process has seen."""
        return [
            (kind, obj)
            for kind in OWNED
            for obj in self._informers.objects(kind)
            if any(one.get("uid") == uid(owner) for one in metadata(obj).get("ownerReferences") or ())
        ]

    def _sync_owner(self, work_key: str) -> float | None:
        """Foreground: dependents first. Orphan: dependents forget the owner. Then the finalizer goes."""
        plural, _, object_key = work_key.partition("|")
        kind = next(one for one in OWNERS if str(one) == plural)
        place, _, called = object_key.rpartition("/")
        try:
            owner = self._client.get(kind, called, namespace=place or None)
        except NotFound:
            return None
        finalizer = _waits_for(owner)
        if not finalizer:
            return None
        blocking = self._dependents(owner)
        for dependent_kind, obj in blocking:
            if finalizer == ORPHAN:
                self._forget_owner(dependent_kind, obj, owner)
            elif not is_deleting(obj):
                policy = "Foreground" if dependent_kind in CASCADING else None
                self._delete(dependent_kind, obj, policy=policy)
        if blocking:
            return LOOK_AGAIN
        kept = [one for one in metadata(owner).get("finalizers") or () if one != finalizer]
        patch = {"metadata": {"uid": uid(owner), "finalizers": kept or None}}
        self._client.patch(kind, called, patch, namespace=place or None)
        return None

    def _forget_owner(self, kind: Kind, obj: Object, owner: Object) -> None:
        kept = [one for one in metadata(obj).get("ownerReferences") or () if one.get("uid") != uid(owner)]
        patch = {"metadata": {"uid": uid(obj), "ownerReferences": kept or None}}
        try:
            self._client.patch(kind, name(obj), patch, namespace=metadata(obj).get("namespace"))
        except NotFound:
            return

    def _sync_object(self, work_key: str) -> float | None:
        plural, _, object_key = work_key.partition("|")
        kind = next(one for one in OWNED if str(one) == plural)
        obj = self._informers.get(kind, object_key)
        if obj is None or is_deleting(obj):
            return None
        owners = metadata(obj).get("ownerReferences") or ()
        if owners and not any(self._owner_lives(one, metadata(obj).get("namespace")) for one in owners):
            self._delete(kind, obj)
            return None
        watched = {(kind.api_version, kind.kind) for kind in OWNERS}
        unseen = any((one.get("apiVersion"), one.get("kind")) not in watched for one in owners)
        return LOOK_AGAIN if unseen else None

    def _sync_custom(self, namespace: str) -> None:
        """Objects of kinds that CustomResourceDefinitions made, which are not watched."""
        for definition in self._client.list(CRDS)[0]:
            for served in custom.of_definition(definition):
                if not served.kind.namespaced:
                    continue
                for obj in self._client.list(served.kind, namespace=namespace)[0]:
                    owners = metadata(obj).get("ownerReferences") or ()
                    if owners and not any(self._owner_lives(one, namespace) for one in owners):
                        self._delete(served.kind, obj)

    def _owner_lives(self, reference: Object, namespace: str | None) -> bool:
        kind = self._kind_of(str(reference.get("apiVersion")), str(reference.get("kind")))
        if kind is None:
            return True
        try:
            owner = self._client.get(
                kind, reference["name"], namespace=namespace if kind.namespaced else None
            )
        except NotFound:
            return False
        return uid(owner) == reference.get("uid")

    def _kind_of(self, api_version: str, kind: str) -> Kind | None:
        """Built in, or made by a CustomResourceDefinition, now or before."""
        for served in SERVED:
            if (served.kind.api_version, served.kind.kind) == (api_version, kind):
                return served.kind
        for definition in self._client.list(CRDS)[0]:
            for served in custom.of_definition(definition):
                self._custom[served.kind.api_version, served.kind.kind] = served.kind
        return self._custom.get((api_version, kind))

    def _sync_namespace(self, namespace: str) -> float | None:
        found = self._informers.get(kinds.NAMESPACES, namespace)
        if found is None:
            return None
        if not is_deleting(found):
            self._ensure_account(namespace)
            return None
        if self._remaining(namespace):
            return 0.3
        try:
            current = self._client.get(kinds.NAMESPACES, namespace)
            self._client.update(kinds.NAMESPACES, {**current, "spec": {}}, subresource="finalize")
        except NotFound:
            pass
        return None

    def _ensure_account(self, namespace: str) -> None:
        account = {
            "apiVersion": "v1",
            "kind": "ServiceAccount",
            "metadata": {"name": "default", "namespace": namespace},
        }
        try:
            self._client.create(kinds.SERVICE_ACCOUNTS, account, namespace=namespace)
        except Conflict:
            return

    def _remaining(self, namespace: str) -> int:
        """Deletes what is in the namespace; how many objects there still were."""
        found = 0
        for kind in CONTENTS:
            try:
                items, _ = self._client.list(kind, namespace=namespace)
            except NotFound:
                continue
            found += len(items)
            for obj in items:
                if not is_deleting(obj):
                    self._delete(kind, obj)
        return found

    def _delete(self, kind: Kind, obj: Object, *, policy: str | None = None) -> None:
        try:
            self._client.delete(
                kind,
                name(obj),
                namespace=metadata(obj).get("namespace"),
                uid=uid(obj),
                propagation=policy,
            )
        except NotFound:
            return


def _waits_for(owner: Object) -> str:
    """The finalizer with which an owner that is going waits for the garbage loop; "" where it does not."""
    held = metadata(owner).get("finalizers") or ()
    if not is_deleting(owner):
        return ""
    return next((one for one in (ORPHAN, FOREGROUND) if one in held), "")


def _work_key(kind: Kind, obj: Object) -> str:
    place = metadata(obj).get("namespace")
    return f"{kind}|{place}/{name(obj)}" if kind.namespaced else f"{kind}|{name(obj)}"
