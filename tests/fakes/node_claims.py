"""Allocated ResourceClaims as the API server would return them, and a source that serves them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from koordra.api import names
from koordra.api.objects import Object
from koordra.api.opaque.isolation import IsolationPolicy
from koordra.errors import ApiError, NotFound

NODE = "node-a"
GPU_0, GPU_1, GPU_2 = "gpu-0000-0f-00-0", "gpu-0000-2d-00-0", "gpu-0000-44-00-0"
NIC_0, NIC_0B, NIC_1, NIC_2 = "nic-0000-0c-00-0", "nic-0000-0c-00-1", "nic-0000-2a-00-0", "nic-0000-41-00-0"
"""Devices of the HGX H100 preset: NIC_n (and NIC_0B) share a PCIe switch with GPU_n."""
ANY_ISOLATION = IsolationPolicy(("none", "limiter", "mps"))
"""For tests about something else: shares without limits unless the claim asks for them."""
WHOLE = "81559Mi"
"""Memory of one of its cards."""


def result(
    request: str,
    device: str,
    *,
    share: str | None = "5c1f0000-0000-5000-8000-000000000001",
    consumed: Mapping[str, str] | None = None,
    driver: str = names.DRIVER,
    pool: str = NODE,
    admin: bool | None = None,
) -> dict[str, Any]:
    """One entry of devices.results; a share of the device unless `share` is None."""
    found: dict[str, Any] = {"request": request, "driver": driver, "pool": pool, "device": device}
    if share is not None:
        found["shareID"] = share
    if consumed is not None:
        found["consumedCapacity"] = dict(consumed)
    if admin is not None:
        found["adminAccess"] = admin
    return found


def gpu(request: str, device: str, memory: str = WHOLE, *, cores: str = "0", **more: Any) -> dict[str, Any]:
    """A share of a GPU; all of its memory unless said otherwise."""
    return result(request, device, consumed={"memory": memory, "cores": cores, "slots": "1"}, **more)


def nic(request: str, device: str, percent: str = "100", **more: Any) -> dict[str, Any]:
    return result(request, device, consumed={"share": percent, "bandwidth": "0"}, **more)


def parameters(
    kind: str, *, requests: Sequence[str] = (), source: str = "FromClaim", **fields: Any
) -> dict[str, Any]:
    """One entry of devices.config with koordra's opaque parameters."""
    return {
        "source": source,
        "requests": list(requests),
        "opaque": {
            "driver": names.DRIVER,
            "parameters": {"apiVersion": "koordra.io/v1alpha1", "kind": kind, **fields},
        },
    }


def claim(
    number: int, *results: dict[str, Any], config: Sequence[dict[str, Any]] = (), name: str | None = None
) -> Object:
    """Claim `team-a/claim-<number>` with a uid made of its number; not allocated when there are no
    results."""
    found: Object = {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaim",
        "metadata": {"namespace": "team-a", "name": name or f"claim-{number}", "uid": uid(number)},
        "spec": {},
        "status": {},
    }
    if results:
        found["status"]["allocation"] = {"devices": {"results": list(results), "config": list(config)}}
    return found


def uid(number: int) -> str:
    return f"0c1a{number:04x}-7d1e-4c5a-9b9f-2f6a5c3d4e5f"


class FakeClaims:
    """Serves claims by name, or fails like an API server that is away."""

    def __init__(self, *claims: Object) -> None:
        self.claims: dict[tuple[str, str], Object] = {}
        self.away: ApiError | None = None
        for obj in claims:
            self.put(obj)

    def put(self, obj: Object) -> None:
        self.claims[obj["metadata"]["namespace"], obj["metadata"]["name"]] = obj

    def get(self, namespace: str, name: str) -> Object:
        if self.away is not None:
            raise self.away
        try:
            return self.claims[namespace, name]
        except KeyError:
            raise NotFound(f'resourceclaims "{name}" not found', code=404, reason="NotFound") from None
