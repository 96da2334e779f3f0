"""`caBundle` in the webhook configurations: without it the API server trusts nobody and every call fails.

Only the entries of koordra's own configurations are touched (that of legacy pods is installed by choice), and only when the bundle is another one. Each write is
conditional on the resourceVersion, since replicas inject side by side.
"""

from __future__ import annotations

import base64
from typing import Any, Final, Protocol

from koordra.api.kinds import Kind
from koordra.api.objects import Object, resource_version
from koordra.errors import Conflict, Invalid, NotFound
from koordra.logs import get_logger

log = get_logger(__name__)

_GROUP: Final = "admissionregistration.k8s.io"
CONFIGURATIONS: Final = (
    Kind(_GROUP, "v1", "mutatingwebhookconfigurations", "MutatingWebhookConfiguration", namespaced=False),
    Kind(_GROUP, "v1", "validatingwebhookconfigurations", "ValidatingWebhookConfiguration", namespaced=False),
)
NAME: Final = "koordra"
"""Of both configurations."""
LEGACY: Final = "koordra-legacy"
"""Of the mutating configuration for legacy pods."""


class Client(Protocol):
    """What is needed of koordra.kube.KubeClient."""

    def get(self, kind: Kind, name: str, *, namespace: str | None = None) -> Object: ...
    def patch(self, kind: Kind, name: str, body: Any, *, content_type: str) -> Object: ...


def inject(client: Client, bundle: bytes, *, legacy: bool = False) -> bool:
    """True once all configurations that exist carry the bundle. Raises ApiError."""
    encoded = base64.b64encode(bundle).decode()
    wanted = [(kind, NAME) for kind in CONFIGURATIONS] + ([(CONFIGURATIONS[0], LEGACY)] if legacy else [])
    carried = [
        _inject(client, kind, name, encoded) for kind, name in wanted
    ]  # all, also when the first failed
    return all(carried)


def _inject(client: Client, kind: Kind, name: str, bundle: str) -> bool:
    try:
        found = client.get(kind, name)
    except NotFound:
        return True
    steps = [
        {"op": "add", "path": f"/webhooks/{index}/clientConfig/caBundle", "value": bundle}
        for index, entry in enumerate(found.get("webhooks") or ())
        if (entry.get("clientConfig") or {}).get("caBundle") != bundle
    ]
    if not steps:
        return True
    unchanged = {"op": "test", "path": "/metadata/resourceVersion", "value": resource_version(found)}
    try:
        client.patch(kind, name, [unchanged, *steps], content_type="application/json-patch+json")
    except (Conflict, Invalid):  # somebody else was quicker: a failed `test` is a 422
        return False
    log.info("ca_bundle_injected", configuration=f"{kind}/{name}", entries=len(steps))
    return True
