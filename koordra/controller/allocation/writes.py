"""The controller's writes, each conditional and each safe to be the last one before a crash.

    allocate    1. metadata.finalizers += delete-protection      if the version is the one planned on
                2. status.allocation = plan + timestamp          if the version is the one answered by 1
    give back   status.allocation = null                         if the version is one that is unreserved
    ungate      remove spec.schedulingGates[i]                   if entry i is koordra's and the pod the same
    member      the same for a member of a gang, and mark it     if the pod's version is the one planned on

Killed after 1: a finalizer without an allocation, which kube-controller-manager takes off when the claim is
deleted. Killed after 2: the claims of the pod are allocated, the next controller lifts the gate. The
finalizer comes first because with it kube-controller-manager frees the claim after its last pod, with or
without koordra; a claim that is to be retained carries koordra's own instead (resource_class/elastic).
allocationTimestamp is written here because kube-scheduler would add it later, which the API server refuses as
a change of an immutable field: the pod would stay Pending for ever.

The server's answer is compared with what was sent: a server whose feature gates are off drops fields silently
(shareID, consumedCapacity), and an allocation without them is a different promise; it is taken back at once.

`may_write` is the lease's fence. It is asked before every request; an allocation that was answered after the
fence fell (the process was stopped in between) is taken back, since a successor may already have given the
devices to somebody else.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import KW_ONLY, dataclass, replace
from enum import StrEnum
from functools import partial
from typing import Any, Final, Protocol

from koordra.api import names, objects
from koordra.api.kinds import DEVICE_HOLDS, NODES, PODS, RESOURCE_CLAIMS, Kind
from koordra.api.objects import Fields, Object
from koordra.controller import claims as claims_of
from koordra.controller.cache import pod_index
from koordra.errors import ApiError, ApiUnreachable, Conflict, NotFound
from koordra.kube.client import JSON_PATCH, MERGE_PATCH


class WriteOutcome(StrEnum):
    """What became of a write.

    WRITTEN
    CONFLICT       somebody wrote first; `obj` is the object as it is now, where it could be read
    TAKEN          the claim is allocated already, or being deleted: the plan is void
    GONE
    DROPPED        the server did not keep all fields; the allocation was taken back
    REFUSED        the server refuses the content (422) or the writer (403); trying the same again is
                   pointless for a while
    IN_DOUBT       no answer to an allocation: it may have taken effect. `obj` is the claim as it was before,
                   `sent` what was sent
    UNREACHABLE    no answer, and no device depends on whether the write took effect: an allocation was not
                   sent yet, or taken back
    FENCED         the lease is about to end: nothing was sent
    """

    WRITTEN = "written"
    CONFLICT = "conflict"
    TAKEN = "taken"
    GONE = "gone"
    DROPPED = "dropped"
    REFUSED = "refused"
    IN_DOUBT = "in doubt"
    UNREACHABLE = "unreachable"
    FENCED = "fenced"


@dataclass(frozen=True, slots=True)
class WriteResult:
    """`obj` is the newest state known of the object, None when unknown; `message` is the server's or our own
    word, `code` the server's."""

    outcome: WriteOutcome
    obj: Object | None = None
    message: str = ""
    sent: Fields | None = None
    code: int = 0

    @property
    def ok(self) -> bool:
        return self.outcome is WriteOutcome.WRITTEN


_OUTCOMES: Final = (
    (NotFound, WriteOutcome.GONE),
    (Conflict, WriteOutcome.CONFLICT),
    (ApiUnreachable, WriteOutcome.UNREACHABLE),
)
"""Other errors are refusals."""
_OF_EVICTION: Final = {409: WriteOutcome.GONE, 429: WriteOutcome.REFUSED, 500: WriteOutcome.REFUSED}


class Api(Protocol):
    """What is asked of a KubeClient here."""

    def get(self, kind: Kind, name: str, *, namespace: str | None = None) -> Object: ...

    def list(
        self, kind: Kind, *, namespace: str | None = None, field_selector: str = ""
    ) -> tuple[list[Object], str]: ...

    def create(
        self,
        kind: Kind,
        body: Object,
        *,
        namespace: str | None = None,
        name: str | None = None,
        subresource: str | None = None,
    ) -> Object: ...

    def patch(
        self,
        kind: Kind,
        name: str,
        body: Any,
        *,
        namespace: str | None = None,
        subresource: str | None = None,
        content_type: str = MERGE_PATCH,
    ) -> Object: ...

    def delete(
        self, kind: Kind, name: str, *, namespace: str | None = None, uid: str | None = None
    ) -> None: ...


@dataclass(frozen=True)
class Writer:
    """`now`: the wall clock as RFC 3339 in whole seconds, UTC. `unanswered` is called when nobody can say
    whether a write took effect. Errors never leave; they are outcomes."""

    api: Api
    _: KW_ONLY
    may_write: Callable[[], bool]
    now: Callable[[], str]
    unanswered: Callable[[], object] = lambda: None

    def allocate(self, claim: Object, allocation: Fields) -> WriteResult:
        """Write an AllocationResult (without timestamp) to a claim that has none."""
        if claims_of.is_allocated(claim) or objects.is_deleting(claim):
            return WriteResult(WriteOutcome.TAKEN, claim)
        protected = self._protect(claim)
        if not protected.ok or protected.obj is None:
            return protected
        return self.allocate_protected(protected.obj, {**allocation, "allocationTimestamp": self.now()})

    def allocate_protected(self, claim: Object, allocation: Fields) -> WriteResult:
        """The second write alone: `claim` carries the finalizer, `allocation` its timestamp. Also repeats a
        write in doubt."""
        written = self._patch_claim(claim, {"status": {"allocation": allocation}})
        if written.outcome is WriteOutcome.UNREACHABLE:
            return WriteResult(WriteOutcome.IN_DOUBT, claim, written.message, sent=allocation)
        if not written.ok or written.obj is None:
            return written
        missing = dropped_fields(allocation, claims_of.allocation(written.obj) or {})
        if missing:
            self.give_back(written.obj)
            text = f"the API server did not keep {', '.join(missing)}; a feature gate of DRA is off"
            return WriteResult(WriteOutcome.DROPPED, None, text)
        if not self.may_write():
            self._patch_claim(written.obj, _no_allocation(written.obj), fenced=False)
            return WriteResult(WriteOutcome.FENCED, None, "the lease ended during the write")
        return written

    def give_back(self, claim: Object) -> WriteResult:
        """Take an allocation back that nobody has reserved."""
        if not claims_of.is_allocated(claim) or claims_of.reserved_for(claim):
            return WriteResult(WriteOutcome.TAKEN, claim)
        return self._patch_claim(claim, _no_allocation(claim))

    def ungate(self, pod: Object) -> WriteResult:
        gates = pod_index.gates(pod)
        if names.JOINT_GATE not in gates:
            return WriteResult(WriteOutcome.TAKEN, pod)
        path = f"/spec/schedulingGates/{gates.index(names.JOINT_GATE)}"
        steps = [
            {"op": "test", "path": "/metadata/uid", "value": objects.uid(pod)},
            {"op": "test", "path": f"{path}/name", "value": names.JOINT_GATE},
            {"op": "remove", "path": path},
        ]
        return self._send(PODS, pod, steps, content_type=JSON_PATCH)

    def ungate_member(self, pod: Object, annotations: Mapping[str, str]) -> WriteResult:
        """Remove koordra's gate and write annotations, in one write that holds only for this version of the
        pod."""
        rest = [
            gate
            for gate in objects.spec_of(pod).get("schedulingGates") or ()
            if gate.get("name") != names.JOINT_GATE
        ]
        return self.hold(pod, annotations, spec={"schedulingGates": rest or None})

    def hold(self, pod: Object, annotations: Mapping[str, str], **change: Any) -> WriteResult:
        """Annotations for this version of the pod; afterwards no earlier write that depends on that version
        can land."""
        return self._send(
            PODS, pod, {"metadata": {**_this_version(pod), "annotations": dict(annotations)}, **change}
        )

    def evict(self, pod: Object) -> WriteResult:
        """Ask for the pod's end through the eviction API. A PodDisruptionBudget says no with 429, two of them
        with 500, which is an answer: REFUSED, not now. Nobody else has to wait for it."""
        name, namespace = objects.name(pod), objects.namespace(pod)
        body = {
            "apiVersion": "policy/v1",
            "kind": "Eviction",
            "metadata": {"name": name, "namespace": namespace},
            "deleteOptions": {"preconditions": {"uid": objects.uid(pod)}},
        }
        create = partial(self.api.create, PODS, body, namespace=namespace, name=name, subresource="eviction")
        written = self._ask(create, pod)
        return replace(written, outcome=_OF_EVICTION.get(written.code, written.outcome))

    def annotate(self, node: Object, annotation: str, text: str | None) -> WriteResult:
        body = {"metadata": {"annotations": {annotation: text}, "uid": objects.uid(node)}}
        return self._send(NODES, node, body)

    def create_hold(self, hold: Object) -> WriteResult:
        create = partial(self.api.create, DEVICE_HOLDS, hold, namespace=objects.namespace(hold))
        return self._ask(create, hold)

    def change_hold(self, hold: Object) -> WriteResult:
        return self._send(DEVICE_HOLDS, hold, {"metadata": _this_version(hold), "spec": hold["spec"]})

    def write_status(self, kind: Kind, obj: Object, status: Fields) -> WriteResult:
        return self._send(kind, obj, {"metadata": _this_version(obj), "status": status}, subresource="status")

    def delete_hold(self, hold: Object) -> WriteResult:
        def delete() -> Object:
            where = objects.namespace(hold)
            self.api.delete(DEVICE_HOLDS, objects.name(hold), namespace=where, uid=objects.uid(hold))
            return hold

        return self._ask(delete, hold)

    def find(self, kind: Kind, name: str, namespace: str) -> Object | None:
        """An object as it is now; None where there is none, or it is not ours to know. Raises
        ApiUnreachable."""
        try:
            return self.api.get(kind, name, namespace=namespace)
        except ApiUnreachable:
            raise
        except ApiError:
            return None

    def read_again(self, claim: Object) -> WriteResult:
        """The claim as it is now; GONE when it, or this incarnation of it, does not exist any more."""
        try:
            found = self.api.get(RESOURCE_CLAIMS, objects.name(claim), namespace=objects.namespace(claim))
        except ApiError as error:
            is_gone = isinstance(error, NotFound)
            return WriteResult(
                WriteOutcome.GONE if is_gone else WriteOutcome.UNREACHABLE, None, error.message
            )
        if objects.uid(found) != objects.uid(claim):
            return WriteResult(WriteOutcome.GONE, None, "the claim was deleted and made anew")
        return WriteResult(WriteOutcome.WRITTEN, found)

    def _protect(self, claim: Object) -> WriteResult:
        finalizers = objects.finalizers_of(claim)
        if names.DELETE_PROTECTION in finalizers or names.RETAIN_FINALIZER in finalizers:
            return WriteResult(WriteOutcome.WRITTEN, claim)
        return self._patch_claim(claim, {"metadata": {"finalizers": [*finalizers, names.DELETE_PROTECTION]}})

    def _patch_claim(self, claim: Object, change: Fields, *, fenced: bool = True) -> WriteResult:
        """A merge patch, of the status or of the rest, that holds only for this version of this claim."""
        subresource = "status" if "status" in change else None
        body = {**change, "metadata": {**change.get("metadata", {}), **_this_version(claim)}}
        written = self._send(RESOURCE_CLAIMS, claim, body, subresource=subresource, fenced=fenced)
        if written.outcome is not WriteOutcome.CONFLICT:
            return written
        again = self.read_again(claim)
        outcome = WriteOutcome.GONE if again.outcome is WriteOutcome.GONE else WriteOutcome.CONFLICT
        return WriteResult(outcome, again.obj, written.message)

    def _send(
        self,
        kind: Kind,
        obj: Object,
        body: Any,
        *,
        subresource: str | None = None,
        content_type: str = MERGE_PATCH,
        fenced: bool = True,
    ) -> WriteResult:
        patch = partial(
            self.api.patch,
            kind,
            objects.name(obj),
            body,
            namespace=objects.namespace(obj) if kind.namespaced else None,
            subresource=subresource,
            content_type=content_type,
        )
        return self._ask(patch, obj, fenced=fenced)

    def _ask(self, request: Callable[[], Object], obj: Object, *, fenced: bool = True) -> WriteResult:
        if fenced and not self.may_write():
            return WriteResult(WriteOutcome.FENCED, obj, "the lease is about to end")
        try:
            return WriteResult(WriteOutcome.WRITTEN, request())
        except ApiError as error:
            outcome = next((one for kind, one in _OUTCOMES if isinstance(error, kind)), WriteOutcome.REFUSED)
            if outcome is WriteOutcome.UNREACHABLE:
                self.unanswered()
            return WriteResult(outcome, None, error.message, code=error.code)


def _this_version(obj: Object) -> dict[str, str]:
    """The metadata by which a write holds only for this version of this very object."""
    return {"resourceVersion": objects.resource_version(obj), "uid": objects.uid(obj)}


def _no_allocation(claim: Object) -> dict[str, Any]:
    """status.devices must not name devices that are not allocated, so it goes too where there is any."""
    status: dict[str, Any] = {"allocation": None}
    if objects.status_of(claim).get("devices"):
        status["devices"] = None
    return {"status": status}


def dropped_fields(sent: Any, stored: Any, path: str = "allocation") -> list[str]:
    """Paths that were sent and are not in what the server stored. Values are not compared: defaulting may
    add, not drop."""
    if sent == stored:
        return []
    if isinstance(sent, Mapping):
        if not isinstance(stored, Mapping):
            return [path]
        return [
            lost
            for name, value in sent.items()
            if value not in (None, [], {})
            for lost in (
                [f"{path}.{name}"]
                if name not in stored
                else dropped_fields(value, stored[name], f"{path}.{name}")
            )
        ]
    if isinstance(sent, list):
        if not isinstance(stored, list) or len(stored) < len(sent):
            return [path]
        return [
            lost
            for index, (one, other) in enumerate(zip(sent, stored, strict=False))
            for lost in dropped_fields(one, other, f"{path}[{index}]")
        ]
    return []
