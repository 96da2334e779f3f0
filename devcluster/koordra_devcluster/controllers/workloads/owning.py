"""What a loop does to the objects of its kind's instances: find, adopt, release, create, delete. Every act
leaves an Event.

An object belongs to the controller in its owner references. One that no controller owns and that the selector
matches is adopted; one that is owned but no longer matches is released.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime

from koordra.api import kinds
from koordra.api.kinds import Kind
from koordra.api.objects import Object, is_deleting, labels_of, metadata, name, namespace, spec_of, uid
from koordra.errors import ApiError, Conflict, NotFound
from koordra.kube.client import KubeClient
from koordra_devcluster.apiserver.fields.schema import format_time
from koordra_devcluster.apiserver.storage.selectors import label_selector_matches
from koordra_devcluster.controllers.recorder import Recorder
from koordra_devcluster.controllers.workloads import pods as pod_rules

Clock = Callable[[], datetime]


def utc_now() -> datetime:
    return datetime.now(UTC)


class Ownership:
    """The objects that instances of one kind own. `component` is who the Events come from."""

    def __init__(self, client: KubeClient, component: str, now: Clock = utc_now) -> None:
        self.client = client
        self.now = now
        self.recorder = Recorder(client, component)

    def timestamp(self) -> str:
        return format_time(self.now())

    def fresh(self, kind: Kind, key: str) -> Object | None:
        """The object as the API server has it now."""
        place, _, called = key.partition("/")
        try:
            return self.client.get(kind, called, namespace=place)
        except NotFound:
            return None

    def owned(self, kind: Kind, owner: Object, *, adopt: bool = True) -> list[Object]:
        """Objects of `kind` that `owner` controls; orphans that its selector matches are adopted on the
        way."""
        selector = spec_of(owner).get("selector") or {}
        found: list[Object] = []
        for obj in self.client.list(kind, namespace=namespace(owner))[0]:
            matches = bool(selector) and label_selector_matches(selector, labels_of(obj))
            if pod_rules.is_controlled_by(obj, owner):
                if not matches and adopt and not is_deleting(owner):
                    self._release(kind, obj, owner)
                else:
                    found.append(obj)
            elif (
                matches
                and adopt
                and not is_deleting(owner)
                and not is_deleting(obj)
                and pod_rules.controller_of(obj) is None
                and self._adopt(kind, obj, owner)
            ):
                found.append(obj)
        return found

    def _adopt(self, kind: Kind, obj: Object, owner: Object) -> bool:
        references = [*(metadata(obj).get("ownerReferences") or ()), pod_rules.reference_to(owner)]
        return self._set_owners(kind, obj, references)

    def _release(self, kind: Kind, obj: Object, owner: Object) -> None:
        self._set_owners(
            kind, obj, [one for one in metadata(obj)["ownerReferences"] if one.get("uid") != uid(owner)]
        )

    def _set_owners(self, kind: Kind, obj: Object, references: list[Object]) -> bool:
        patch = {
            "metadata": {
                "uid": uid(obj),
                "resourceVersion": metadata(obj)["resourceVersion"],
                "ownerReferences": references or None,
            }
        }
        try:
            self.client.patch(kind, name(obj), patch, namespace=namespace(obj))
        except (NotFound, Conflict):
            return False
        return True

    def create_pod(self, owner: Object, pod: Object, *, told: str = "Created pod: {}") -> Object:
        """Raises ApiError after an Event that says why."""
        try:
            made = self.client.create(kinds.PODS, pod, namespace=namespace(owner))
        except Conflict:
            raise
        except ApiError as error:
            self.recorder.event(owner, "FailedCreate", f"Error creating: {error.message}", warning=True)
            raise
        self.recorder.event(owner, "SuccessfulCreate", told.format(name(made)))
        return made

    def delete_pod(self, owner: Object, pod: Object, *, told: str = "Deleted pod: {}") -> None:
        try:
            self.client.delete(kinds.PODS, name(pod), namespace=namespace(pod), uid=uid(pod))
        except NotFound:
            return
        self.recorder.event(owner, "SuccessfulDelete", told.format(name(pod)))

    def write_status(self, kind: Kind, obj: Object, wanted: Object) -> Object:
        """Only what changed is written; conditional on the version that was looked at."""
        if wanted == obj.get("status"):
            return obj
        return self.client.update(kind, {**obj, "status": wanted}, subresource="status")
