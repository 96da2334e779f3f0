"""A cluster in memory for the tests of legacy pods: templates, quotas, time, and reviews as the API server
sends them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from koordra.allocator.request.classes import shipped_classes
from koordra.api import objects
from koordra.api.kinds import Kind
from koordra.compat.settings import Settings
from koordra.controller.legacy.admission import Admission
from koordra.controller.legacy.settings import in_a_cluster
from koordra.controller.legacy.templates import Templates
from koordra.controller.legacy.translation import Translations
from koordra.controller.quota.usage import QuotaUsage
from koordra.controller.webhook.review import AdmissionRequest, AdmissionResponse
from koordra.errors import ApiUnreachable, Conflict, NotFound

Object = dict[str, Any]


def pod(
    limits: Mapping[str, Any] | None = None,
    *,
    containers: list[Object] | None = None,
    name: str = "p",
    annotations: Mapping[str, str] | None = None,
    labels: Mapping[str, str] | None = None,
    generate: bool = False,
    **spec: Any,
) -> Object:
    """A pod as the API server sends it: defaults filled in, requests like limits."""
    made = containers or [container("main", limits or {})]
    metadata: Object = {"generateName": f"{name}-"} if generate else {"name": name}
    metadata["namespace"] = "team"
    if annotations:
        metadata["annotations"] = dict(annotations)
    if labels:
        metadata["labels"] = dict(labels)
    body = {"schedulerName": "default-scheduler", **spec, "containers": made}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": body}


def container(name: str, limits: Mapping[str, Any]) -> Object:
    texts = {key: str(value) for key, value in limits.items()}
    return {
        "name": name,
        "image": "x",
        "resources": {"limits": texts, "requests": dict(texts)} if texts else {},
    }


class Cluster:
    """What the webhook sees and does. `writes` lists what was asked of the API server."""

    def __init__(self, *known: Object, settings: Settings | None = None, grace: float = 600.0) -> None:
        self.known = {(one["kind"], objects.key(one)): one for one in known}
        self.extra_classes: dict[str, Object] = {}
        self.writes: list[str] = []
        self.now = 1_000_000.0
        self.away = False
        self.quotas: list[Object] = []
        self.settings = in_a_cluster(settings or Settings())
        self.usage = QuotaUsage(self.settings, clock=lambda: self.now)
        self.templates = Templates(self, known=self.known_template, now=lambda: self.now, grace=grace)
        self.counted: list[tuple[str, str]] = []
        self.admission = Admission(
            self.settings,
            self,
            self.templates,
            self.usage,
            lambda namespace: [quota for quota in self.quotas if objects.namespace(quota) == namespace],
            Translations(self.settings),
            count=lambda *what: self.counted.append(what),
        )

    # look-ups
    def claim(self, namespace: str, name: str) -> Object | None:
        return self.known.get(("ResourceClaim", f"{namespace}/{name}"))

    def for_review(self) -> Cluster:
        return self

    def known_template(self, key: str) -> Object | None:
        return self.template(*key.split("/"))

    def template(self, namespace: str, name: str) -> Object | None:
        return self.known.get(("ResourceClaimTemplate", f"{namespace}/{name}"))

    def classes(self) -> Mapping[str, Object]:
        return {**{objects.name(one): one for one in shipped_classes()}, **self.extra_classes}

    # the API
    def get(self, kind: Kind, name: str, *, namespace: str | None = None) -> Object:
        found = self.known.get((kind.kind, f"{namespace}/{name}"))
        if found is None:
            raise NotFound(f"{name} not found", code=404)
        return found

    def create(self, kind: Kind, body: Object, *, namespace: str | None = None) -> Object:
        self._answer()
        key = (kind.kind, objects.key(body))
        self.writes.append(f"create {objects.name(body)}")
        if key in self.known:
            raise Conflict("already exists", code=409)
        self.known[key] = as_stored(body)
        self.usage.on_template("ADDED", self.known[key])
        return self.known[key]

    def patch(self, kind: Kind, name: str, body: Any, *, namespace: str | None = None) -> Object:
        self._answer()
        found = self.get(kind, name, namespace=namespace)
        self.writes.append(f"patch {name}")
        metadata = found["metadata"]
        annotations = {**metadata.get("annotations", {}), **body["metadata"]["annotations"]}
        changed = {**found, "metadata": {**metadata, "annotations": annotations}}
        self.known[kind.kind, f"{namespace}/{name}"] = changed
        return changed

    def _answer(self) -> None:
        if self.away:
            raise ApiUnreachable("nobody answers")

    # reviews
    def ask(
        self, obj: Object, *, native: bool = False, dry_run: bool = False, uid: str = "u-1"
    ) -> AdmissionResponse:
        asked = AdmissionRequest(uid, "CREATE", "Pod", "team", json.loads(json.dumps(obj)), dry_run)
        return self.admission(asked, native)

    def admitted(self, obj: Object, **more: Any) -> Object:
        answer = self.ask(obj, **more)
        assert not answer.problems, answer.problems
        assert answer.object is not None
        return answer.object

    def refused(self, obj: Object, **more: Any) -> str:
        answer = self.ask(obj, **more)
        assert answer.problems
        return "; ".join(str(problem) for problem in answer.problems)

    def store(self, obj: Object, *, uid: str = "pod-1", **status: Any) -> Object:
        """The admitted pod in the watch."""
        stored = {**obj, "metadata": {**obj["metadata"], "uid": uid}, "status": status}
        stored["metadata"].setdefault("name", f"{stored['metadata'].get('generateName')}x")
        self.usage.on_pod("ADDED", stored)
        return stored


def as_stored(body: Object) -> Object:
    """With what an API server fills in."""
    found: Object = json.loads(json.dumps(body))
    for request in found["spec"]["spec"]["devices"]["requests"]:
        if "exactly" in request:
            request["exactly"].setdefault("allocationMode", "ExactCount")
    return found


def of_kind(cluster: Cluster, kind: str = "ResourceClaimTemplate") -> list[Object]:
    return [one for (found, _), one in sorted(cluster.known.items()) if found == kind]


def a_quota(hard: Mapping[str, str], *, used: Mapping[str, str] | None = None, **spec: Any) -> Object:
    return {
        "apiVersion": "v1",
        "kind": "ResourceQuota",
        "metadata": {"name": "gpus", "namespace": "team"},
        "spec": {"hard": dict(hard), **spec},
        "status": {"used": dict(used or {})},
    }
