"""Replicas of the webhook over one API server, each with watches that lag as the test says."""

from __future__ import annotations

from typing import Any

from koordra.api.resource_class import CONFIG_MAPS
from koordra.compat.settings import Settings
from koordra.controller.quota.claim_usage import ClaimUsage
from koordra.controller.quota.published import PublishedDevices
from koordra.controller.quota.record import NAME, QuotaRecord
from koordra.controller.quota.unreviewed import Unreviewed
from koordra.controller.quota.usage import QuotaUsage
from koordra.controller.quota.webhook import ClaimQuota
from koordra.controller.webhook.review import AdmissionRequest, AdmissionResponse
from tests.fakes.kube_api import FakeKubeApi
from tests.unit.allocator.machines import device_classes

Object = dict[str, Any]
GIB = 1 << 30


def a_claim(name: str, *requests: Object, uid: str = "", **more: Any) -> Object:
    metadata = {"name": name, "namespace": "team", "uid": uid or f"uid-{name}", **more}
    numbered = [{"name": f"r{at}", **one} for at, one in enumerate(requests)]
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaim",
        "metadata": metadata,
        "spec": {"devices": {"requests": numbered}},
    }


def asks(device_class: str = "gpu.koordra.io", *, count: int = 1, **capacity: str) -> Object:
    found: Object = {"deviceClassName": device_class, "allocationMode": "ExactCount", "count": count}
    return {"exactly": found | ({"capacity": {"requests": capacity}} if capacity else {})}


def with_config(claim: Object, **parameters: Any) -> Object:
    body = {"apiVersion": "koordra.io/v1alpha1", "kind": "GpuConfig", **parameters}
    claim["spec"]["devices"]["config"] = [{"opaque": {"driver": "koordra.io", "parameters": body}}]
    return claim


def a_quota(name: str = "gpus", **hard: str) -> Object:
    lines = {f"requests.koordra.io/{key.replace('_', '-')}": value for key, value in hard.items()}
    return {"kind": "ResourceQuota", "metadata": {"name": name, "namespace": "team"}, "spec": {"hard": lines}}


def a_slice(name: str, *memory: str, product: str = "H100") -> Object:
    devices = [
        {
            "name": f"gpu-{at}",
            "allowMultipleAllocations": True,
            "attributes": {
                "koordra.io/type": {"string": "gpu"},
                "koordra.io/productName": {"string": product},
                "koordra.io/allocator": {"string": "controller"},
                "koordra.io/uuid": {"string": f"{name}-{at}"},
            },
            "capacity": {"memory": {"value": each}, "cores": {"value": "100"}},
        }
        for at, each in enumerate(memory)
    ]
    spec = {"driver": "koordra.io", "pool": {"name": name, "generation": 1}, "devices": devices}
    return {"kind": "ResourceSlice", "metadata": {"name": name}, "spec": spec}


class Server:
    """The API server: claims that were admitted are stored; `now` is everybody's wall clock."""

    def __init__(self, *quotas: Object) -> None:
        self.api = FakeKubeApi()
        self.api.create(CONFIG_MAPS, {"metadata": {"name": NAME, "namespace": "koordra-system"}})
        self.quotas = list(quotas)
        self.now = 1_000_000.0
        self.claims: dict[str, Object] = {}
        self.lists = 0

    def list(self, *_: object, **__: object) -> tuple[list[Object], str]:
        """The claims."""
        self.lists += 1
        return list(self.claims.values()), "1"


class Replica:
    """One webhook. It knows of the server's claims what was `shown` to it."""

    def __init__(self, server: Server, *slices: Object) -> None:
        self.server = server
        self.usage = QuotaUsage(Settings(), clock=lambda: server.now)
        self.published = PublishedDevices()
        self.claims = ClaimUsage(self.usage, self.published)
        for one in device_classes():
            self.claims.on_class("ADDED", dict(one))
        for one in slices:
            self.published.on_slice("ADDED", one)
        record = QuotaRecord(server.api, "koordra-system", self.usage, lambda: server.now)  # type: ignore[arg-type]
        fresh = Unreviewed(server, self.claims, lambda _: 1, clock=lambda: server.now)  # type: ignore[arg-type]
        self.decide = ClaimQuota(self.usage, self.claims, lambda _: server.quotas, record, fresh.read)

    def review(self, claim: Object, *, dry_run: bool = False) -> AdmissionResponse:
        asked = AdmissionRequest("review", "CREATE", "ResourceClaim", "team", claim, dry_run)
        return self.decide(asked)

    def admits(self, claim: Object, **more: bool) -> bool:
        return not self.review(claim, **more).problems

    def refuses(self, claim: Object) -> str:
        answer = self.review(claim)
        assert answer.problems, "admitted"
        return str(answer.problems[0])

    def shown(self, *claims: Object, event: str = "ADDED") -> None:
        for claim in claims:
            self.claims.on_claim(event, claim)
