"""Admission by policies and webhooks: what administrators have said about objects before they are stored.

    create          mutating webhooks ──> defaults, validation ──> policies ──> validating webhooks ──> stored
    update, delete                        defaults, validation ──> policies ──> validating webhooks ──> stored

A policy or webhook is asked when its rules, selectors and match conditions fit. What cannot be asked or fails
is refused or ignored as its failurePolicy says. Mutating webhooks are called for creations only (koordra has
no others). Nobody is asked about policies and webhook configurations themselves, as in the real server.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from koordra.api.kinds import NAMESPACES, Kind
from koordra.api.objects import Object
from koordra.errors import SelectorError
from koordra_devcluster.apiserver.access import cel_policies, rbac, webhook_calls
from koordra_devcluster.apiserver.access.rbac import Access
from koordra_devcluster.apiserver.resources import (
    MUTATING_WEBHOOKS,
    POLICIES,
    POLICY_BINDINGS,
    VALIDATING_WEBHOOKS,
    Served,
)
from koordra_devcluster.apiserver.serving.users import ADMINISTRATOR, User
from koordra_devcluster.apiserver.status import Refusal
from koordra_devcluster.apiserver.storage.patches import json_patch
from koordra_devcluster.apiserver.storage.selectors import label_selector_matches
from koordra_devcluster.apiserver.storage.store import Store

_UNASKED: Final = "admissionregistration.k8s.io"
_CODES: Final = {"Unauthorized": 401, "Forbidden": 403, "Invalid": 422, "RequestEntityTooLarge": 413}


@dataclass(frozen=True, slots=True)
class Attempt:
    """One write about to happen. `new` is None for a deletion, `old` for a creation."""

    served: Served
    operation: str
    namespace: str
    name: str
    new: Object | None
    old: Object | None
    subresource: str = ""
    user: User = ADMINISTRATOR
    dry_run: bool = False
    uid: str = field(default_factory=lambda: str(uuid.uuid4()))

    def request(self) -> Object:
        """The `request` of CEL and of an AdmissionReview, without the objects."""
        kind = self.served.kind
        found: Object = {
            "uid": self.uid,
            "kind": {"group": kind.group, "version": kind.version, "kind": kind.kind},
            "resource": {"group": kind.group, "version": kind.version, "resource": kind.plural},
            "name": self.name,
            "operation": self.operation,
            "userInfo": self.user.to_dict(),
            "dryRun": self.dry_run,
        }
        if self.namespace:
            found["namespace"] = self.namespace
        if self.subresource:
            found["subResource"] = self.subresource
        return found

    def values(self) -> Object:
        """What CEL expressions see."""
        return {"object": self.new, "oldObject": self.old, "request": self.request()}


class AdmissionChain:
    """Asks the policies and webhooks of a store. `param_kinds` finds what a policy's paramKind names."""

    def __init__(self, store: Store, param_kinds: Callable[[], Iterable[Served]]) -> None:
        self._store = store
        self._param_kinds = param_kinds

    def mutate(self, attempt: Attempt) -> Object:
        """The object as the mutating webhooks leave it. Raises Refusal.

        A webhook that changes the object has those before it asked once more that want it (reinvocationPolicy
        IfNeeded). One that was not concerned the first time is not asked the second time either, as in
        Kubernetes.
        """
        obj, again = attempt.new or {}, set[str]()
        for is_second in (False, True):
            asked: list[str] = []
            for identity, webhook in self._entries(MUTATING_WEBHOOKS):
                current = Attempt(**{**_fields(attempt), "new": obj})
                if (is_second and identity not in again) or not self._is_meant(webhook, current):
                    continue
                response = self._call(webhook, current)
                before = obj
                if response.get("patch") is not None:
                    obj = json_patch(obj, webhook_calls.patch_of(response))
                if obj != before:
                    again.update(asked)
                if webhook.get("reinvocationPolicy") == "IfNeeded":
                    asked.append(identity)
            if not again:
                break
        return obj

    def judge(self, attempt: Attempt, warnings: list[str]) -> None:
        """Raises the Refusal of the first policy or validating webhook that says no."""
        if attempt.served.kind.group == _UNASKED:
            return
        for binding in self._all(POLICY_BINDINGS):
            self._policy(binding, attempt, warnings)
        for _, webhook in self._entries(VALIDATING_WEBHOOKS):
            if self._is_meant(webhook, attempt):
                warnings.extend(self._call(webhook, attempt).get("warnings") or ())

    def concerns(self, served: Served) -> bool:
        """Whether anybody at all may have to be asked; a quick no for clusters without policies and
        webhooks."""
        kinds = (POLICY_BINDINGS, VALIDATING_WEBHOOKS, MUTATING_WEBHOOKS)
        return served.kind.group != _UNASKED and any(self._store.list(str(kind))[0] for kind in kinds)

    # --- policies ---

    def _policy(self, binding: Object, attempt: Attempt, warnings: list[str]) -> None:
        entry = self._store.get(str(POLICIES), ("", binding["spec"]["policyName"]))
        if entry is None:
            return
        policy = entry.object
        spec = policy["spec"]
        if not (
            self._constraints_match(spec.get("matchConstraints") or {}, attempt)
            and self._constraints_match(binding["spec"].get("matchResources") or {}, attempt, everything=True)
        ):
            return
        problem: tuple[str, str] | None = None
        try:
            if not self._conditions_match(spec.get("matchConditions") or (), attempt):
                return
            for params in self._params(policy, binding):
                problem = problem or self._violated(spec, attempt, params)
        except SelectorError as error:
            if spec.get("failurePolicy") == "Ignore":
                return
            problem = (str(error), "Invalid")
        if problem is not None:
            self._deny(policy, binding, attempt, problem, warnings)

    def _violated(self, spec: Object, attempt: Attempt, params: Object | None) -> tuple[str, str] | None:
        """(message, reason) of the first validation that does not hold."""
        values = {**attempt.values(), "params": params, "variables": {}}
        for variable in spec.get("variables") or ():
            try:
                values["variables"][variable["name"]] = self._evaluate(
                    variable["expression"], values, attempt
                )
            except SelectorError:
                continue  # as in Kubernetes, a variable that fails hurts those who read it
        for validation in spec.get("validations") or ():
            if self._evaluate(validation["expression"], values, attempt) is True:
                continue
            message = validation.get("message") or f"failed expression: {validation['expression'].strip()}"
            if validation.get("messageExpression"):
                message = str(self._evaluate(validation["messageExpression"], values, attempt))
            return message, validation.get("reason") or "Invalid"
        return None

    def _params(self, policy: Object, binding: Object) -> list[Object | None]:
        wanted, reference = policy["spec"].get("paramKind"), binding["spec"].get("paramRef")
        if not wanted or not reference:
            return [None]
        served = next(
            (
                one
                for one in self._param_kinds()
                if (one.kind.api_version, one.kind.kind) == (wanted["apiVersion"], wanted["kind"])
            ),
            None,
        )
        found: list[Object | None] = []
        for (namespace, name), entry in self._store.list(served.stored)[0] if served else ():
            labels = entry.object["metadata"].get("labels") or {}
            is_named = reference.get("name") == name and reference.get("namespace", "") in ("", namespace)
            selector = reference.get("selector")
            if is_named or (selector is not None and label_selector_matches(selector, labels)):
                found.append(entry.object)
        if not found and reference.get("parameterNotFoundAction") == "Deny":
            raise SelectorError("no params found for policy binding with `Deny` parameterNotFoundAction")
        return found

    def _deny(
        self, policy: Object, binding: Object, attempt: Attempt, problem: tuple[str, str], warnings: list[str]
    ) -> None:
        message, reason = problem
        text = (
            f"ValidatingAdmissionPolicy '{policy['metadata']['name']}' with binding "
            f"'{binding['metadata']['name']}' denied request: {message}"
        )
        if "Deny" in (binding["spec"].get("validationActions") or ()):
            kind = attempt.served.kind
            raise Refusal(_CODES.get(reason, 422), reason, f'{kind} "{attempt.name}" is forbidden: {text}')
        warnings.append(f"Validation failed for {text}")

    # --- webhooks ---

    def _entries(self, kind: Kind) -> list[tuple[str, Object]]:
        """Every webhook of every configuration, with an identity; the API server asks in the order of
        names."""
        return [
            (f"{configuration['metadata']['name']}/{webhook['name']}", webhook)
            for configuration in sorted(self._all(kind), key=lambda one: str(one["metadata"]["name"]))
            for webhook in configuration.get("webhooks") or ()
        ]

    def _is_meant(self, webhook: Object, attempt: Attempt) -> bool:
        """Whether the webhook's rules, selectors and conditions match."""
        if attempt.served.kind.group == _UNASKED:
            return False
        selectors = {
            name: webhook[name] for name in ("namespaceSelector", "objectSelector") if webhook.get(name)
        }
        constraints = {"resourceRules": webhook.get("rules") or (), **selectors}
        return self._constraints_match(constraints, attempt) and self._is_asked(webhook, attempt)

    def _is_asked(self, webhook: Object, attempt: Attempt) -> bool:
        try:
            return self._conditions_match(webhook.get("matchConditions") or (), attempt)
        except SelectorError as error:
            if webhook.get("failurePolicy", "Fail") == "Ignore":
                return False
            raise Refusal(403, "Forbidden", f'webhook "{webhook["name"]}": {error}') from error

    def _call(self, webhook: Object, attempt: Attempt) -> Object:
        request = {**attempt.request(), "object": attempt.new, "oldObject": attempt.old}
        try:
            response = webhook_calls.call(webhook, request)
        except webhook_calls.CallFailed as error:
            if webhook.get("failurePolicy", "Fail") == "Ignore":
                return {}
            message = f'Internal error occurred: failed calling webhook "{webhook["name"]}": {error}'
            raise Refusal(500, "InternalError", message) from error
        if not response.get("allowed"):
            told = response.get("status") or {}
            why = told.get("message")
            message = f'admission webhook "{webhook["name"]}" denied the request'
            text = f"{message}: {why}" if why else f"{message} without explanation"
            raise Refusal(int(told.get("code") or 403), str(told.get("reason") or "Forbidden"), text)
        return response

    # --- matching ---

    def _constraints_match(
        self, constraints: Mapping[str, Any], attempt: Attempt, *, everything: bool = False
    ) -> bool:
        rules = constraints.get("resourceRules")
        if rules is None and everything:
            return True
        if not any(_rule_matches(rule, attempt) for rule in rules or ()):
            return False
        labels = ((attempt.new or attempt.old or {}).get("metadata") or {}).get("labels") or {}
        if not label_selector_matches(constraints.get("objectSelector") or {}, labels):
            return False
        if not attempt.namespace:
            return True
        place = self._store.get(str(NAMESPACES), ("", attempt.namespace))
        of_namespace = (place.object["metadata"].get("labels") or {}) if place else {}
        return label_selector_matches(constraints.get("namespaceSelector") or {}, of_namespace)

    def _conditions_match(self, conditions: Iterable[Object], attempt: Attempt) -> bool:
        return all(
            self._evaluate(condition["expression"], attempt.values(), attempt) is True
            for condition in conditions
        )

    def _evaluate(self, expression: str, values: Mapping[str, Any], attempt: Attempt) -> Any:
        def check(group: str, resource: str, namespace: str, verb: str) -> bool:
            return rbac.allows(self._store, attempt.user, Access(verb, group, resource, namespace))

        return cel_policies.evaluate(expression, values, check=check)

    def _all(self, kind: Kind) -> list[Object]:
        return [entry.object for _, entry in self._store.list(str(kind))[0]]


def _fields(attempt: Attempt) -> dict[str, Any]:
    return {name: getattr(attempt, name) for name in Attempt.__slots__}


def _rule_matches(rule: Mapping[str, Any], attempt: Attempt) -> bool:
    kind = attempt.served.kind
    resource = f"{kind.plural}/{attempt.subresource}" if attempt.subresource else kind.plural
    scope = rule.get("scope") or "*"
    names = rule.get("resourceNames") or ()
    return (
        _has(rule.get("apiGroups"), kind.group)
        and _has(rule.get("apiVersions"), kind.version)
        and _has(rule.get("operations"), attempt.operation)
        and any(
            one in ("*/*", resource) or (one == "*" and not attempt.subresource)
            for one in rule.get("resources") or ()
        )
        and (scope == "*" or (scope == "Namespaced") is kind.namespaced)
        and (not names or attempt.name in names)
    )


def _has(listed: Any, wanted: str) -> bool:
    return "*" in (listed or ()) or wanted in (listed or ())
