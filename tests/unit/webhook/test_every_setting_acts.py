"""No setting of the webhook is a word without effect: it is served over an API server in memory with another
value, and found elsewhere, known by another certificate, or answers something else."""

from __future__ import annotations

import base64
import dataclasses
import http.client
import json
import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import pytest
from cryptography import x509

from koordra.api.kinds import DEVICE_CLASSES, RESOURCE_SLICES
from koordra.api.objects import Object
from koordra.controller.run import start_webhook
from koordra.controller.webhook import keys
from koordra.controller.webhook.cert_rotation import SECRETS, WebhookSettings
from koordra.controller.webhook.server import WebhookServer
from koordra.metrics import Metrics
from tests.fakes.streaming_api import StreamingApi
from tests.patience import PATIENCE
from tests.unit.allocator.machines import device_classes
from tests.unit.kubelet_plugin.running_plugin import wait_for
from tests.unit.quota.replicas import a_claim, a_slice, asks, with_config

LOCAL: Final = "127.0.0.1:0"


class Api(StreamingApi):
    """Has koordra's classes, and a node with a GPU."""

    def __init__(self) -> None:
        super().__init__()
        for one in device_classes():
            self.create(DEVICE_CLASSES, dict(one))
        self.create(RESOURCE_SLICES, a_slice("n0", "80Gi"))


@contextmanager
def served(settings: WebhookSettings) -> Iterator[tuple[Api, WebhookServer | None]]:
    api, stop = Api(), threading.Event()
    server = start_webhook(api, settings, metrics=Metrics(), stop=stop)  # type: ignore[arg-type]
    assert server is None or wait_for(server.is_ready)
    yield api, server
    stop.set()


def places(api: Api) -> set[str]:
    """Where it keeps its keys."""
    return {namespace for plural, namespace, _ in api.objects if plural == SECRETS.plural}


def names_of(server: WebhookServer) -> list[str]:
    """Those in the certificate that it serves with."""
    found: list[x509.Certificate] = []

    def shown() -> bool:
        try:
            pem = ssl.get_server_certificate(("127.0.0.1", server.port), timeout=PATIENCE)
        except OSError:
            return False
        found.append(x509.load_pem_x509_certificate(pem.encode()))
        return True

    assert wait_for(shown)
    names = found[-1].extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    return [str(one.value) for one in names]


def patched(server: WebhookServer, template: Object) -> list[Object]:
    """What a review of the new template changes."""
    review = {
        "apiVersion": "admission.k8s.io/v1",
        "kind": "AdmissionReview",
        "request": {
            "uid": "u",
            "operation": "CREATE",
            "kind": {"group": "resource.k8s.io", "version": "v1", "kind": "ResourceClaimTemplate"},
            "namespace": "team",
            "object": template,
        },
    }
    names_of(server)
    context = ssl._create_unverified_context()
    link = http.client.HTTPSConnection("127.0.0.1", server.port, context=context, timeout=PATIENCE)
    link.request("POST", "/mutate/claims", json.dumps(review), {"Content-Type": "application/json"})
    answer = json.loads(link.getresponse().read())["response"]
    link.close()
    return list(json.loads(base64.b64decode(answer.get("patch") or "") or "[]"))


def certificates(folder: Path) -> Path:
    made = keys.wanted(None, ["of-somebody-else"], now=datetime.now(UTC), trusted=False)
    for name, content in zip(("tls.crt", "tls.key"), made.serving.to_pem(), strict=True):
        (folder / name).write_bytes(content)
    return folder


SHARE: Final = with_config(a_claim("c", asks()), memoryPercent=25)
TEMPLATE: Final = {**SHARE, "kind": "ResourceClaimTemplate", "spec": {"spec": SHARE["spec"]}}
Seen = Callable[[Api, WebhookServer], Any]
CASES: Final[dict[str, tuple[Callable[[Path], Any], Seen]]] = {
    "namespace": (lambda _: "other", lambda api, _: wait_for(lambda: places(api)) and places(api)),
    "certificates": (certificates, lambda _, server: names_of(server)),
    "host": (lambda _: "outside.example", lambda _, server: "outside.example" in names_of(server)),
    "percent_bounds": (lambda _: True, lambda _, server: patched(server, TEMPLATE)),
}


@pytest.mark.parametrize("name", CASES)
def test_it_acts(tmp_path: Path, name: str) -> None:
    other, seen = CASES[name]
    usual, found = WebhookSettings(LOCAL), []
    for settings in (usual, dataclasses.replace(usual, **{name: other(tmp_path)})):
        with served(settings) as (api, server):
            assert server is not None
            found.append(seen(api, server))
    assert found[0] != found[1]


def test_without_an_address_nothing_is_served() -> None:
    with served(WebhookSettings()) as (_, server):
        assert server is None


def test_every_setting_is_tried() -> None:
    assert {each.name for each in dataclasses.fields(WebhookSettings)} == CASES.keys() | {"address"}
