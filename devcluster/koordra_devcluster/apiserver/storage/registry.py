"""The verbs over the store: create, update, patch, delete, with conflicts, status separation and graceful
deletion.

Each write is a function from the current object to the new one, so that a check and the write it guards
cannot be separated (`writing`).
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any, Final

from koordra.api import kinds
from koordra.api.kinds import Kind
from koordra.api.objects import Object
from koordra.kube.validation import metadata as metadata_rules
from koordra.kube.validation.classes import CompileCel
from koordra.kube.validation.field_errors import FieldErrors
from koordra_devcluster.apiserver import status
from koordra_devcluster.apiserver.access import admission
from koordra_devcluster.apiserver.access.claim_authorization import check_claim_status
from koordra_devcluster.apiserver.access.judging import AdmissionChain
from koordra_devcluster.apiserver.fields.decoding import WriteOptions, decode
from koordra_devcluster.apiserver.fields.schema import format_time
from koordra_devcluster.apiserver.resources import BY_PATH, CRDS, EVENTS_V1, PRIORITY_CLASSES, Served
from koordra_devcluster.apiserver.serving.users import ADMINISTRATOR, User
from koordra_devcluster.apiserver.status import Refusal
from koordra_devcluster.apiserver.storage import deletion, events, eviction, patches
from koordra_devcluster.apiserver.storage.custom import CustomKinds, strategy_of
from koordra_devcluster.apiserver.storage.parts import (
    body_of,
    check_precondition,
    generated_name,
    place,
    same_place,
    spec_only,
    status_only,
)
from koordra_devcluster.apiserver.storage.selectors import Predicate
from koordra_devcluster.apiserver.storage.store import Entry, Key, Store
from koordra_devcluster.apiserver.storage.strategies import Rules, Strategy, duplicate
from koordra_devcluster.apiserver.storage.writing import Change, Writing
from koordra_devcluster.apiserver.validation.cel import accept_cel
from koordra_devcluster.apiserver.validation.metadata import validate_update

_WAIT_FOR_ACCOUNT: Final = 2.0
_BUDGETS: Final = BY_PATH["policy", "v1", "poddisruptionbudgets"]


def utc_now() -> datetime:
    return datetime.now(UTC)


class Registry:
    """All verbs for all served kinds."""

    def __init__(
        self,
        store: Store,
        *,
        now: Callable[[], datetime] = utc_now,
        compile_cel: CompileCel = accept_cel,
        gates: frozenset[str] = frozenset(),
    ) -> None:
        self.store = store
        self._now = now
        self._compile_cel = compile_cel
        self.kinds = CustomKinds(store, gates)
        self.chain = AdmissionChain(store, self.kinds.everything)
        self._writing = Writing(store, self.chain)

    # --- reading ---

    def get(self, served: Served, key: Key) -> Entry:
        """Raises Refusal 404."""
        entry = self.store.get(served.stored, key)
        if entry is None:
            raise status.not_found(served.kind, key[1])
        return self.shown(served, entry)

    def select(self, served: Served, namespace: str | None, selected: Predicate) -> tuple[list[Entry], int]:
        found, revision = self.store.list(served.stored)
        entries = [
            entry for (place, _), entry in found if namespace in (None, place) and selected(entry.object)
        ]
        return [self.shown(served, entry) for entry in entries], revision

    def shown(self, served: Served, entry: Entry) -> Entry:
        """The entry as this resource's API version shows it."""
        if served.kind == EVENTS_V1:
            return Entry(events.from_core(entry.object))
        if served.schema is not None and entry.object.get("apiVersion") != served.kind.api_version:
            return Entry({**entry.object, "apiVersion": served.kind.api_version})
        return entry

    # --- writing ---

    def create(self, served: Served, namespace: str, body: Any, options: WriteOptions) -> Entry:
        obj = decode(served, body, options)
        return self._create(served, namespace, obj, options)

    def _create(self, served: Served, namespace: str, obj: Object, options: WriteOptions) -> Entry:
        metadata = obj.setdefault("metadata", {})
        if metadata.get("resourceVersion"):
            raise status.bad_request("resourceVersion should not be set on objects to be created")
        place(served.kind, metadata, namespace)
        self._admit(served, obj, namespace)
        obj = self._writing.mutated(served, obj, namespace, options)
        metadata, uid = obj["metadata"], str(uuid.uuid4())
        generated = not metadata.get("name") and bool(metadata.get("generateName"))
        for attempt in range(8):
            if generated:
                metadata["name"] = generated_name(metadata["generateName"])
            try:
                return self._write(
                    served,
                    (namespace, metadata.get("name", "")),
                    lambda old: self._new(served, obj, old, uid),
                    options,
                    operation="CREATE",
                )
            except Refusal as refusal:
                if not (generated and refusal.reason == "AlreadyExists" and attempt < 7):
                    raise
        raise AssertionError("unreachable")

    def _new(self, served: Served, obj: Object, old: Object | None, uid: str) -> Object:
        """`uid`: one and the same for validating webhooks and for what is stored."""
        rules, plan = self._rules(), strategy_of(served)
        name = obj["metadata"].get("name", "")
        if old is not None:
            raise status.already_exists(served.kind, name)
        obj["metadata"] |= {"uid": uid, "creationTimestamp": format_time(rules.now)}
        for absent in (
            "deletionTimestamp",
            "deletionGracePeriodSeconds",
            "selfLink",
            "generation",
            "managedFields",
        ):
            obj["metadata"].pop(absent, None)
        if plan.has_generation:
            obj["metadata"]["generation"] = 1
        if plan.has_status and not plan.keeps_status:
            obj["status"] = {}
        plan.default(obj, rules)
        plan.prepare(obj, rules)
        errors = FieldErrors()
        metadata_rules.validate(errors, obj["metadata"], label_names=plan.label_names)
        plan.validate(errors, obj, rules)
        _raise(served.kind, name, errors)
        return obj

    def update(
        self, served: Served, key: Key, body: Any, options: WriteOptions, *, subresource: str = ""
    ) -> Entry:
        obj = decode(served, body, options)
        same_place(served.kind, obj.setdefault("metadata", {}), key)
        return self._write(
            served,
            key,
            lambda old: self._replaced(
                served, key, duplicate(obj), old, subresource=subresource, options=options
            ),
            options,
            operation="UPDATE",
            subresource=subresource,
        )

    def patch(
        self,
        served: Served,
        key: Key,
        patch: Any,
        options: WriteOptions,
        *,
        content_type: str,
        subresource: str = "",
    ) -> Entry:
        """Any of the four patches; an apply patch creates what does not exist."""
        if (
            content_type == patches.APPLY_PATCH
            and not subresource
            and self.store.get(served.stored, key) is None
        ):
            obj = decode(served, patch, options)
            same_place(served.kind, obj.setdefault("metadata", {}), key)
            return self._create(served, key[0], obj, options)

        def change(old: Object | None) -> Object | None:
            if old is None:
                raise status.not_found(served.kind, key[1])
            current = self.shown(served, Entry(old)).object
            patched = patches.apply(content_type, duplicate(current), patch, served.type_name)
            obj = decode(served, patched, options, patched=True)
            same_place(served.kind, obj.setdefault("metadata", {}), key)
            return self._replaced(served, key, obj, old, subresource=subresource, options=options)

        return self._write(served, key, change, options, operation="UPDATE", subresource=subresource)

    def _replaced(
        self,
        served: Served,
        key: Key,
        obj: Object,
        old: Object | None,
        *,
        subresource: str,
        options: WriteOptions,
    ) -> Object | None:
        """What the stored object becomes; None when its last finalizer went."""
        if old is None:
            raise status.not_found(served.kind, key[1])
        rules, plan = self._rules(), strategy_of(served)
        check_precondition(served.kind, obj["metadata"], old["metadata"])
        if served.kind == kinds.LEASES and not obj["metadata"].get("resourceVersion"):
            errors = FieldErrors()
            errors.invalid("metadata.resourceVersion", "0x0", "must be specified for an update")
            _raise(served.kind, key[1], errors)
        new = status_only(obj, old) if subresource == "status" else spec_only(obj, old, plan)
        plan.default(new, rules)
        if new == old:
            return old
        self._check_update(served, plan, new, old, subresource)
        if subresource == "status" and served.kind == kinds.RESOURCE_CLAIMS:
            check_claim_status(self.store, new, old, user=options.user, verb=options.verb)
        if body_of(new) != body_of(old) and old["metadata"].get("generation"):
            new["metadata"]["generation"] = old["metadata"]["generation"] + 1
        return None if deletion.may_go(served.kind, new) else new

    def _check_update(
        self, served: Served, plan: Strategy, new: Object, old: Object, subresource: str
    ) -> None:
        rules, errors = self._rules(), FieldErrors()
        validate_update(errors, new["metadata"], old["metadata"])
        check = plan.validate_status if subresource == "status" else plan.validate_update
        check(errors, new, old, rules)
        _raise(served.kind, new["metadata"]["name"], errors)

    def delete(
        self,
        served: Served,
        key: Key,
        options: Object,
        *,
        dry_run: bool = False,
        user: User = ADMINISTRATOR,
    ) -> Object:
        """The object that is now waiting to go, or a success Status when it is gone."""
        removed: list[Object] = []

        def change(old: Object | None) -> Object | None:
            if old is None:
                raise status.not_found(served.kind, key[1])
            deletion.check_preconditions(served.kind, options, old["metadata"])
            waiting = deletion.waiting(served.kind, old, options, self._now())
            if waiting is None:
                removed.append(old)
            return waiting

        entry = self._write(served, key, change, WriteOptions(dry_run=dry_run, user=user), operation="DELETE")
        if removed and served.kind == CRDS and not dry_run:
            self._remove_objects_of(removed[0])
        if not removed or served.kind == kinds.PODS:
            return self.shown(served, entry).object
        return deletion.success(served.kind, removed[0])

    def delete_collection(
        self,
        served: Served,
        namespace: str | None,
        selected: Predicate,
        options: Object,
        *,
        dry_run: bool = False,
    ) -> list[Entry]:
        entries, _ = self.select(served, namespace, selected)
        for entry in entries:
            metadata = entry.object["metadata"]
            try:
                self.delete(
                    served, (metadata.get("namespace", ""), metadata["name"]), options, dry_run=dry_run
                )
            except Refusal as refusal:
                if refusal.code != 404:
                    raise
        return entries

    # --- subresources with a body of their own ---

    def scale(
        self, served: Served, key: Key, change: Callable[[Object], Object], options: WriteOptions
    ) -> Entry:
        """<workload>/scale: `change` puts the replicas that a Scale asks for into the workload."""

        def write(old: Object | None) -> Object | None:
            if old is None:
                raise status.not_found(served.kind, key[1])
            new = change(duplicate(old))
            return self._replaced(served, key, new, old, subresource="", options=options)

        return self._write(served, key, write, options, operation="UPDATE", subresource="scale")

    def bind(self, served: Served, key: Key, body: Object, options: WriteOptions) -> Object:
        """pods/binding: sets the node, once, and the PodScheduled condition."""

        def change(old: Object | None) -> Object:
            if old is None:
                raise status.not_found(served.kind, key[1])
            return admission.bound(served.kind, key, body, old, self._now())

        self._write(served, key, change, options)
        return {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "code": 201}

    def evict(self, served: Served, key: Key, body: Object, options: WriteOptions) -> None:
        """pods/eviction: a deletion that the pod's disruption budget may refuse."""
        budgets, _ = self.select(_BUDGETS, key[0], lambda _: True)
        budget = eviction.budget_to_charge(self.get(served, key).object, [one.object for one in budgets])
        if budget is not None:
            place = (key[0], budget["metadata"]["name"])
            self.update(_BUDGETS, place, eviction.charged(budget), options, subresource="status")
        self.delete(served, key, body.get("deleteOptions") or {}, dry_run=options.dry_run)

    def finalize(self, served: Served, key: Key, body: Object, options: WriteOptions) -> Entry:
        """namespaces/finalize: takes spec.finalizers from the body; the namespace goes with the last one."""

        def change(old: Object | None) -> Object | None:
            if old is None:
                raise status.not_found(served.kind, key[1])
            check_precondition(served.kind, body.get("metadata") or {}, old["metadata"])
            remaining = (body.get("spec") or {}).get("finalizers") or []
            new = old | {"spec": {"finalizers": remaining} if remaining else {}}
            gone = (
                old["metadata"].get("deletionTimestamp")
                and not remaining
                and not old["metadata"].get("finalizers")
            )
            return None if gone else new

        return self._write(served, key, change, options)

    # --- inner parts ---

    def _write(
        self,
        served: Served,
        key: Key,
        change: Change,
        options: WriteOptions,
        *,
        operation: str = "",
        subresource: str = "",
    ) -> Entry:
        written = self._writing.write(
            served, key, change, options, operation=operation, subresource=subresource
        )
        return self.shown(served, written)

    def _remove_objects_of(self, definition: Object) -> None:
        """A definition takes its objects with it, and nobody watches them any more."""
        spec = definition["spec"]
        stored = f"{spec['names']['plural']}.{spec['group']}"
        for key, _ in self.store.list(stored)[0]:
            self.store.mutate(stored, key, lambda _old: None)
        self.store.end_watches(stored)

    def _rules(self) -> Rules:
        return Rules(self._now(), self._compile_cel, self.kinds.gates)

    def _admit(self, served: Served, obj: Object, namespace: str) -> None:
        """What admission plugins of the real server check: the namespace, the service account, admin
        access."""
        if not served.kind.namespaced:
            return
        place = self.store.get("namespaces", ("", namespace))
        admission.check_namespace(served.kind, obj, namespace, place.object if place else None)
        if served.kind == kinds.PODS:
            found, _ = self.store.list(str(PRIORITY_CLASSES))
            classes = {key[1]: entry.object for key, entry in found}
            admission.set_priority(obj, admission.priority_class(obj, classes))
            account = admission.service_account(obj)
            deadline = time.monotonic() + (_WAIT_FOR_ACCOUNT if account == "default" else 0)
            while self.store.get("serviceaccounts", (namespace, account)) is None:
                if time.monotonic() >= deadline:
                    raise admission.no_service_account(obj, namespace, account)
                time.sleep(0.05)


def _raise(kind: Kind, name: str, errors: FieldErrors) -> None:
    if errors.found:
        raise status.invalid(kind, name, errors.found)
