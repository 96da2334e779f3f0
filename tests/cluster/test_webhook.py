"""The webhook as the API server meets it: new certificates, being away, being asked again, and peers that
hold on to it."""

from __future__ import annotations

import base64
import json
import socket
import ssl
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509

from koordra.api import kinds, names, objects
from koordra.api.objects import Object
from koordra.controller.webhook import keys
from koordra.controller.webhook.cert_rotation import CONFIGURATIONS, SECRET_NAME, SECRETS
from koordra.controller.webhook.cert_rotation import NAME as CONFIGURATION
from koordra.controller.webhook.server import MAX_CONNECTIONS
from koordra.errors import ApiError, Conflict, Invalid, NotFound
from koordra.kube.client import JSON_PATCH, KubeClient
from tests.cluster.installation import Installation
from tests.cluster.waiting import eventually

pytestmark = pytest.mark.cluster

SYSTEM = "koordra-system"
MUTATING = CONFIGURATIONS[0]
MANY = MAX_CONNECTIONS + 100
ROUND = 45.0
"""Seconds in which the webhook's keys are looked after a few times."""


def a_claim(name: str, *, scope: str) -> Object:
    """A pair; `scope` wrong makes the webhook refuse it."""
    body = {"apiVersion": "koordra.io/v1alpha1", "kind": "JointAllocation", "scope": scope}
    requests = [
        {"name": kind, "exactly": {"deviceClassName": of}}
        for kind, of in (("gpu", names.CLASS_GPU), ("nic", names.CLASS_NIC))
    ]
    config = [{"requests": ["gpu", "nic"], "opaque": {"driver": names.DRIVER, "parameters": body}}]
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaim",
        "metadata": {"name": name},
        "spec": {"devices": {"requests": requests, "config": config}},
    }


def verdict(client: KubeClient, namespace: str) -> str:
    """What becomes of a claim with a misspelt scope: `refused` by the webhook, or why it could not be
    asked."""
    try:
        client.create(kinds.RESOURCE_CLAIMS, a_claim("misspelt", scope="PCIESwitch"), namespace=namespace)
    except Invalid as error:
        assert "use one of PCIeSwitch" in error.message
        return "refused"
    except ApiError as error:
        return error.message
    client.delete(kinds.RESOURCE_CLAIMS, "misspelt", namespace=namespace)
    return "let through"


# --- certificates ---


def served(port: int) -> x509.Certificate:
    """The certificate that a new connection meets."""
    return x509.load_pem_x509_certificate(ssl.get_server_certificate(("127.0.0.1", port), timeout=5).encode())


def stored(client: KubeClient) -> keys.Keys:
    found = keys.from_secret_data(client.get(SECRETS, SECRET_NAME, namespace=SYSTEM)["data"])
    assert found is not None
    return found


def store(client: KubeClient, wanted: keys.Keys) -> None:
    """As a replica would; the controller's next round finds it."""

    def written() -> bool:
        secret = client.get(SECRETS, SECRET_NAME, namespace=SYSTEM)
        with suppress(Conflict):
            client.update(SECRETS, {**secret, "data": keys.to_secret_data(wanted)})
            return True
        return False

    eventually(written, "the Secret")


def bundles(client: KubeClient) -> list[bytes]:
    return [
        base64.b64decode(entry["clientConfig"].get("caBundle") or "")
        for kind in CONFIGURATIONS
        for entry in client.get(kind, CONFIGURATION)["webhooks"]
    ]


class Asking:
    """Asks the webhook over and over through the API server; `answers` are the different things it heard."""

    def __init__(self, client: KubeClient, namespace: str) -> None:
        self.answers: set[str] = set()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._ask, args=(client, namespace))

    def _ask(self, client: KubeClient, namespace: str) -> None:
        while not self._stop.wait(0.1):
            self.answers.add(verdict(client, namespace))

    def __enter__(self) -> Asking:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join(30)


def test_a_certificate_that_nears_its_end_is_replaced_and_nobody_notices(
    client: KubeClient, installed: Installation, namespace: str
) -> None:
    present, past = stored(client), datetime.now(UTC) - timedelta(days=61)
    names_of = sorted(keys.names_of(present.serving.certificate))
    old = keys.issue(present.authorities[0], names_of, now=past, lifetime=keys.SERVING_LIFETIME)
    with Asking(client, namespace) as asking:
        store(client, keys.Keys(old, present.authorities))
        eventually(
            lambda: (
                served(installed.webhook_port).not_valid_before_utc > datetime.now(UTC) - timedelta(hours=1)
                and stored(client).serving.certificate not in (old.certificate, present.serving.certificate)
            ),
            "a new certificate",
            timeout=ROUND,
        )
    assert asking.answers == {"refused"}
    assert stored(client).authorities == present.authorities


def test_an_authority_that_nears_its_end_hands_over_and_nobody_notices(
    client: KubeClient, installed: Installation, namespace: str
) -> None:
    """First its successor is announced; it signs when every API server has had the time to hear of it."""
    present, now = stored(client), datetime.now(UTC)
    due = keys.issue(
        None, ["koordra-webhook"], now=now - timedelta(days=2600), lifetime=keys.AUTHORITY_LIFETIME
    )
    with Asking(client, namespace) as asking:
        store(client, keys.Keys(present.serving, (*present.authorities, due)))
        eventually(
            lambda: all(one.count(b"BEGIN CERTIFICATE") == 3 for one in bundles(client)),
            "a successor beside both",
            timeout=ROUND,
        )
        eventually(
            lambda: keys.is_signed_by(served(installed.webhook_port), due.certificate),
            "a certificate from the trusted one",
            timeout=ROUND,
        )
        # Ten minutes later; the controller still announces this one before it lets it sign.
        settled = keys.issue(
            None,
            ["koordra-webhook"],
            now=datetime.now(UTC) - keys.SETTLE - timedelta(minutes=1),
            lifetime=keys.AUTHORITY_LIFETIME,
        )
        store(client, keys.Keys(stored(client).serving, (*present.authorities, due, settled)))
        eventually(
            lambda: keys.is_signed_by(served(installed.webhook_port), settled.certificate),
            "a certificate from the successor",
            timeout=ROUND,
        )
    assert asking.answers == {"refused"}
    assert due in stored(client).authorities


def test_lost_keys_are_made_anew(client: KubeClient, installed: Installation, namespace: str) -> None:
    before = stored(client)
    client.delete(SECRETS, SECRET_NAME, namespace=SYSTEM)
    eventually(
        lambda: _is_there(client) and stored(client).authorities != before.authorities,
        "new keys",
        timeout=ROUND,
    )
    eventually(
        lambda: set(bundles(client)) == {stored(client).bundle}, "the new authority trusted", timeout=ROUND
    )
    eventually(lambda: verdict(client, namespace) == "refused", "an answer of the webhook")
    assert keys.is_signed_by(served(installed.webhook_port), stored(client).authorities[0].certificate)


def _is_there(client: KubeClient) -> bool:
    try:
        client.get(SECRETS, SECRET_NAME, namespace=SYSTEM)
    except NotFound:
        return False
    return True


# --- being away ---


@pytest.fixture
def away(client: KubeClient, controller: None) -> Iterator[None]:
    """Nobody answers at the webhook's address."""
    del controller
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        port = closed.getsockname()[1]
        before = {
            kind: [one["clientConfig"]["url"] for one in client.get(kind, CONFIGURATION)["webhooks"]]
            for kind in CONFIGURATIONS
        }
        for kind, urls in before.items():
            _set_urls(
                client,
                kind,
                [f"https://127.0.0.1:{port}/{url.rpartition(':')[2].partition('/')[2]}" for url in urls],
            )
        yield
        for kind, urls in before.items():
            _set_urls(client, kind, urls)


def _set_urls(client: KubeClient, kind: kinds.Kind, urls: list[str]) -> None:
    steps = [
        {"op": "replace", "path": f"/webhooks/{number}/clientConfig/url", "value": url}
        for number, url in enumerate(urls)
    ]
    client.patch(kind, CONFIGURATION, steps, content_type=JSON_PATCH)


def test_without_the_webhook_claims_wait_and_all_else_goes_on(
    client: KubeClient, away: None, namespace: str
) -> None:
    """Parameters that nobody checked are not stored; pods and plain claims need nobody."""
    del away
    told = eventually(
        lambda: text if "failed calling webhook" in (text := verdict(client, namespace)) else None,
        "a refusal",
    )
    assert "claims.koordra.io" in told
    plain = a_claim("plain", scope="PCIeSwitch")
    del plain["spec"]["devices"]["config"]
    plain["spec"]["devices"]["requests"].pop()
    client.create(kinds.RESOURCE_CLAIMS, plain, namespace=namespace)
    pod = a_pod("ungated", "plain")
    made = client.create(kinds.PODS, pod, namespace=namespace)
    assert not made["spec"].get("schedulingGates")

    def placed() -> str | None:
        return client.get(kinds.PODS, "ungated", namespace=namespace)["spec"].get("nodeName")

    eventually(placed, "the ungated pod's node")


def a_pod(name: str, *claims: str) -> Object:
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name},
        "spec": {
            "nodeSelector": {"koordra.io/test": "true"},
            "resourceClaims": [
                {"name": f"c{n}", "resourceClaimName": claim} for n, claim in enumerate(claims)
            ],
            "containers": [{"name": "main", "image": "busybox"}],
        },
    }


# --- being asked again ---


@pytest.fixture
def adding_claims(client: KubeClient, controller: None, tmp_path: Path) -> Iterator[None]:
    """Another mutating webhook, asked after koordra's, that gives a pod one claim more."""
    del controller
    now = datetime.now(UTC)
    authority = keys.issue(None, ["koordra-test"], now=now, lifetime=timedelta(days=1))
    pair = keys.issue(authority, ["127.0.0.1"], now=now, lifetime=timedelta(days=1))
    (tmp_path / "pair").write_bytes(b"".join(reversed(pair.to_pem())))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(tmp_path / "pair")
    server = ThreadingHTTPServer(("127.0.0.1", 0), _AddsAClaim)
    server.daemon_threads = True
    server.socket = context.wrap_socket(server.socket, server_side=True)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    rule = {
        "apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["pods"],
    }  # fmt: skip
    entry = {
        "name": "adds-claims.koordra-test.example",
        "admissionReviewVersions": ["v1"],
        "sideEffects": "None",
        "failurePolicy": "Fail",
        "rules": [rule],
        "matchConditions": [
            {
                "name": "asks",
                "expression": 'has(object.metadata.generateName) && object.metadata.generateName == "koordra-test-more-"',
            }
        ],
        "clientConfig": {
            "url": f"https://127.0.0.1:{server.server_address[1]}/",
            "caBundle": base64.b64encode(authority.to_pem()[0]).decode(),
        },
    }
    body = {
        "apiVersion": MUTATING.api_version,
        "kind": MUTATING.kind,
        "metadata": {"name": "koordra-test-zz"},
        "webhooks": [entry],
    }
    with suppress(NotFound):
        client.delete(MUTATING, "koordra-test-zz")
    client.create(MUTATING, body)
    yield
    client.delete(MUTATING, "koordra-test-zz")
    server.shutdown()
    server.server_close()


class _AddsAClaim(BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))["request"]
        claims = asked["object"]["spec"].get("resourceClaims") or []
        more = {"name": "more", "resourceClaimName": "ours"}
        step = {"op": "add", "path": "/spec/resourceClaims", "value": [*claims, more]}
        response: dict[str, Any] = {"uid": asked["uid"], "allowed": True}
        if more not in claims:
            response |= {
                "patchType": "JSONPatch",
                "patch": base64.b64encode(json.dumps([step]).encode()).decode(),
            }
        body = json.dumps(
            {"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "response": response}
        )
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body.encode())

    def log_message(self, format: str, *args: object) -> None:
        del format, args


def test_a_pod_that_another_webhook_gave_a_claim_is_gated_after_all(
    client: KubeClient, adding_claims: None, namespace: str
) -> None:
    del adding_claims
    foreign, ours = a_claim("foreign", scope=""), a_claim("ours", scope="")
    for claim in (foreign, ours):
        del claim["spec"]["devices"]["config"]
        claim["spec"]["devices"]["requests"].pop()
    foreign["spec"]["devices"]["requests"][0]["exactly"]["deviceClassName"] = "other.example.com"
    much = {"requests": {"memory": "100Ti"}}  # never placed, so that the gate stays to be seen
    ours["spec"]["devices"]["requests"][0]["exactly"]["capacity"] = much
    for claim in (foreign, ours):
        client.create(kinds.RESOURCE_CLAIMS, claim, namespace=namespace)
    before = client.create(kinds.PODS, a_pod("koordra-test-plain", "foreign"), namespace=namespace)
    assert not before["spec"].get("schedulingGates")

    def asked_twice() -> Object | None:
        """The API server may learn of a new configuration a moment later."""
        made = client.create(
            kinds.PODS,
            {**a_pod("", "foreign"), "metadata": {"generateName": "koordra-test-more-"}},
            namespace=namespace,
        )
        if len(made["spec"]["resourceClaims"]) == 2:
            return made
        client.delete(kinds.PODS, objects.name(made), namespace=namespace, grace_period=0)
        return None

    made = eventually(asked_twice, "the other webhook")
    assert made["spec"]["schedulingGates"] == [{"name": names.JOINT_GATE}]


# --- peers that hold on ---


def test_silent_connections_do_not_keep_the_api_server_out(
    client: KubeClient, installed: Installation, namespace: str
) -> None:
    """More of them than the webhook keeps."""
    port = installed.webhook_port
    silent = [socket.create_connection(("127.0.0.1", port), timeout=20) for _ in range(MANY)]
    began = time.monotonic()
    answers = {verdict(client, namespace) for _ in range(20)}
    for one in silent:
        one.close()
    assert answers == {"refused"}
    assert time.monotonic() - began < 60
