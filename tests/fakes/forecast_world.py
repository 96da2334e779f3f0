"""A cluster to which manifests are applied, with koordra's controller in it: its webhook's handlers, its
reconciler over watches that lag, and the other writers of a real cluster as far as placements depend on them.

kube-controller-manager makes claims of templates; kube-scheduler binds pods whose claims have their devices;
owners make the pods of their workloads. All of a wave is there before the controller's first pass sees any
of it.
"""

from __future__ import annotations

import copy
import random
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from koordra.allocator.request.templates import with_template_claims
from koordra.api import kinds, names, objects
from koordra.api.kinds import PODS, RESOURCE_CLAIM_TEMPLATES, RESOURCE_CLAIMS, RESOURCE_QUOTAS, Kind
from koordra.cli.what_if.workload_pods import workload_pods
from koordra.compat.settings import Settings
from koordra.controller import claims as claims_of
from koordra.controller.allocation.writes import Writer
from koordra.controller.legacy.admission import Admission
from koordra.controller.legacy.settings import in_a_cluster
from koordra.controller.legacy.templates import Templates
from koordra.controller.legacy.translation import Translations
from koordra.controller.quota.claim_usage import ClaimUsage
from koordra.controller.quota.held_back import HeldBack
from koordra.controller.quota.held_seats import HeldSeats
from koordra.controller.quota.published import PublishedDevices
from koordra.controller.quota.usage import QuotaUsage
from koordra.controller.quota.webhook import PATH, ClaimQuota
from koordra.controller.reconcile.reconciler import Reconciler
from koordra.controller.webhook.handlers import paths
from koordra.controller.webhook.lookups import ReviewLookups
from koordra.controller.webhook.review import AdmissionRequest
from koordra.errors import NotFound
from koordra.placement.request.claim_groups import claim_keys
from tests.fakes.kube_api import KINDS, FakeCaches, FakeKubeApi

Dict = dict[str, Any]
SETTINGS: Final = in_a_cluster(Settings())
BEGINS: Final = datetime(2026, 11, 21, tzinfo=UTC)
QUIET: Final = 30.0
"""Seconds without a write after which nothing is to come."""
_KIND: Final[Mapping[str, Kind]] = {kind.kind: kind for kind in (*KINDS, RESOURCE_QUOTAS)}
_REVIEWED: Final = {
    "Pod": ("/mutate/legacy", "/mutate/pods"),
    **dict.fromkeys(
        ("DeviceClass", "ResourceClaimTemplate", "ResourceClaim"), ("/mutate/claims", "/validate")
    ),
}
_ORDER: Final = (
    *("Namespace", "ResourceQuota", "DeviceClass", "ResourceClaimTemplate", "ResourceClaim"),
    *("Reservation", "Pod"),
)


class ForecastWorld:
    """`refused`: objects that the webhook refused, by kind and key, and in which words."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(f"world {seed}")
        self.api = FakeKubeApi()
        self.now = 1000.0
        self.turn_clock(BEGINS)
        self.refused: dict[tuple[str, str], str] = {}
        self._usage = QuotaUsage(SETTINGS, clock=lambda: self.now)
        self._published = PublishedDevices()
        self._claims = ClaimUsage(self._usage, self._published)
        self._claim_quota = ClaimQuota(self._usage, self._claims, self._quotas, None)
        self._seats = HeldSeats(self._usage.known)
        templates = Templates(
            self.api,  # type: ignore[arg-type]
            known=lambda key: self.known(RESOURCE_CLAIM_TEMPLATES, key),
            now=lambda: self.now,
            grace=600.0,
        )
        legacy = Admission(SETTINGS, self, templates, self._usage, self._quotas, Translations(SETTINGS))
        self._answers = paths(self) | {
            PATH: self._claim_quota,
            "/mutate/legacy": lambda asked: legacy(asked, False),
            "/native/mutate/legacy": lambda asked: legacy(asked, True),
        }
        self.start_controller()

    def start_controller(self) -> None:
        """A new process."""
        self.caches = FakeCaches(self.api)
        self.caches.deliver()
        self.reconciler = Reconciler(
            self.caches,  # type: ignore[arg-type]
            Writer(self.api, may_write=lambda: True, now=self._wall_clock),
            clock=lambda: self.now,
            quotas=HeldBack(self._usage, self._seats, self._quotas, self.known, self._claims.amounts),
        )

    def turn_clock(self, to: datetime) -> None:
        """What people call the present moment from now on."""
        self._epoch = to - timedelta(seconds=self.now)

    def _wall_clock(self) -> str:
        return f"{(self._epoch + timedelta(seconds=self.now)).strftime('%Y-%m-%dT%H:%M:%S')}Z"

    # applying

    def store(self, stored: Iterable[Dict]) -> None:
        for obj in stored:
            kind = _KIND[obj["kind"]]
            self._heard(kind, self.api.create(kind, obj, namespace=objects.metadata(obj).get("namespace")))

    def _heard(self, kind: Kind, stored: Dict) -> None:
        if kind is kinds.RESOURCE_SLICES:
            self._published.on_slice("ADDED", stored)
        elif kind is kinds.DEVICE_CLASSES:
            self._claims.on_class("ADDED", stored)
        elif kind is RESOURCE_CLAIMS:
            self._claims.on_claim("ADDED", stored)

    def apply(self, manifests: Iterable[Dict], *, created: str) -> None:
        """One `kubectl apply`: all within a second; the webhook answers for each, and owners make pods."""
        given = list(manifests)
        made, _ = workload_pods(given, SETTINGS)
        for obj in sorted(map(dict, (*given, *made)), key=lambda one: _turn(one["kind"])):
            if obj["kind"] in _ORDER:
                metadata = {**obj["metadata"], "creationTimestamp": created}
                self._create(_KIND[obj["kind"]], copy.deepcopy({**obj, "metadata": metadata}))
        self._make_claims()

    def _create(self, kind: Kind, obj: Dict) -> None:
        place = objects.namespace(obj)
        native = objects.labels_of(self.known(kinds.NAMESPACES, place) or {}).get(names.MODE_LABEL)
        prefix = "/native" if native == names.MODE_NATIVE else ""
        for path in _REVIEWED.get(kind.kind, ()):
            review = AdmissionRequest(objects.name(obj), "CREATE", kind.kind, place, obj)
            said = self._answers[prefix + path](review)
            if said.problems:
                self.refused[kind.kind, objects.key(obj)] = "; ".join(map(str, said.problems))
                return
            obj = obj if said.object is None else said.object
        obj["metadata"] = {**obj["metadata"], "uid": self._uid()}
        if kind is RESOURCE_CLAIMS and self._is_over(obj):
            return
        stored = self.api.create(kind, obj, namespace=place)
        self._heard(kind, stored)
        if kind is PODS:
            self._usage.on_pod("ADDED", stored)

    def _is_over(self, claim: Dict) -> bool:
        review = AdmissionRequest(
            objects.uid(claim), "CREATE", RESOURCE_CLAIMS.kind, objects.namespace(claim), claim
        )
        if problems := self._answers[PATH](review).problems:
            self.refused[RESOURCE_CLAIMS.kind, planned_key(claim)] = str(problems[0])
        return bool(problems)

    def _make_claims(self) -> None:
        """As kube-controller-manager does, of the templates that there are, under names that nobody can
        foretell, in the order in which the pods came."""
        pods = sorted(self.api.all(PODS), key=lambda pod: int(pod["metadata"]["resourceVersion"]))
        given = [*pods, *self.api.all(RESOURCE_CLAIM_TEMPLATES)]
        called, over = dict[str, str](), set[str]()
        made = [obj for obj in with_template_claims(given) if obj not in given]
        for claim in (dict(one) for one in made if one["kind"] == RESOURCE_CLAIMS.kind):
            name = objects.name(claim)
            called[name] = f"{name}-{self.random.randrange(16**5):05x}"
            claim["metadata"] = {**claim["metadata"], "name": called[name], "uid": self._uid()}
            if self._is_over(claim):
                over.add(called[name])
            else:
                self._heard(
                    RESOURCE_CLAIMS,
                    self.api.create(RESOURCE_CLAIMS, claim, namespace=objects.namespace(claim)),
                )
        for pod in (one for one in made if one["kind"] == PODS.kind):
            status = copy.deepcopy(dict(pod["status"]))
            for entry in status["resourceClaimStatuses"]:
                entry["resourceClaimName"] = called.get(
                    entry["resourceClaimName"], entry["resourceClaimName"]
                )
            status["resourceClaimStatuses"] = [
                entry for entry in status["resourceClaimStatuses"] if entry["resourceClaimName"] not in over
            ]
            self._edit_pod(pod, status=status)

    def _uid(self) -> str:
        return f"{self.random.randrange(16**12):012x}"

    def _edit_pod(self, pod: Mapping[str, Any], **parts: Dict) -> None:
        self.api.edit(
            PODS, objects.name(pod), lambda found: found.update(parts), namespace=objects.namespace(pod)
        )

    # the webhook's look-ups

    def classes(self) -> Mapping[str, Dict]:
        return {objects.name(one): one for one in self.api.all(kinds.DEVICE_CLASSES)}

    def known(self, kind: Kind, key: str) -> Dict | None:
        place, _, name = key.rpartition("/")
        try:
            return self.api.get(kind, name, namespace=place or None)
        except NotFound:
            return None

    def ask(self, kind: Kind, namespace: str, name: str) -> Dict | None:
        return self.known(kind, f"{namespace}/{name}")

    def for_review(self) -> ReviewLookups:
        return ReviewLookups(self)

    def _quotas(self, namespace: str) -> list[Dict]:
        return [one for one in self.api.all(RESOURCE_QUOTAS) if objects.namespace(one) == namespace]

    # the course of things

    def come_to_rest(self) -> None:
        self.caches.deliver()
        quiet = 0.0
        while quiet <= QUIET:
            before = len(self.api.history)
            pause = self.reconciler.reconcile()
            if self.random.random() < 0.7:
                self._schedule()
            if len(self.api.history) > before:
                quiet = 0.0
                self._deliver()
                continue
            self._schedule()
            self.caches.deliver()
            if len(self.api.history) == before:
                if pause is None:
                    return
                quiet += max(pause, 0.5)
                self.now += max(pause, 0.5)

    def _deliver(self) -> None:
        """Some of what happened, of some kinds."""
        for kind in self.random.sample(KINDS, len(KINDS)):
            if self.random.random() < 0.7:
                self.caches.deliver(kind, events=self.random.choice((None, None, 1, 2)))

    def _schedule(self) -> None:
        """kube-scheduler binds pods that are free to go and have all of their devices on one node."""
        for pod in self.api.all(PODS):
            keys = claim_keys(pod)
            found = [self.known(RESOURCE_CLAIMS, key) for key in keys]
            nodes = {claims_of.node_of(one) if one else None for one in found}
            lacking = None in objects.pod_claim_names(pod).values()
            held = pod["spec"].get("nodeName") or pod["spec"].get("schedulingGates")
            if not (held or lacking or None in nodes) and len(nodes) == 1:
                self._bind(pod, keys, str(nodes.pop()))

    def _bind(self, pod: Dict, keys: Sequence[str], node: str) -> None:
        place, name = objects.namespace(pod), objects.name(pod)
        consumer = {"resource": "pods", "name": name, "uid": objects.uid(pod)}

        def reserve(claim: Dict) -> None:
            claim["status"].setdefault("reservedFor", []).append(consumer)

        for key in keys:
            self.api.edit(RESOURCE_CLAIMS, key.partition("/")[2], reserve, namespace=place)
        self.api.edit(PODS, name, lambda found: found["spec"].update(nodeName=node), namespace=place)

    # looking

    def objects(self) -> list[Dict]:
        """As `kubectl get -A` has them."""
        return [dict(obj) for kind in _KIND.values() for obj in self.api.all(kind)]

    def allocations(self) -> dict[str, Dict]:
        """By claim, as a plan calls it."""
        return {
            planned_key(one): dict(found)
            for one in self.api.all(RESOURCE_CLAIMS)
            if (found := claims_of.allocation(one)) is not None
        }


def planned_key(claim: Mapping[str, Any]) -> str:
    """The claim as a plan calls it: one that was made from a template after its pod and entry."""
    entry = objects.annotations_of(claim).get(names.POD_CLAIM_NAME)
    owners = objects.metadata(claim).get("ownerReferences") or ({},)
    name = f"{owners[0].get('name')}-{entry}" if entry else objects.name(claim)
    return f"{objects.namespace(claim)}/{name}"


def _turn(kind: str) -> int:
    return _ORDER.index(kind) if kind in _ORDER else len(_ORDER)
