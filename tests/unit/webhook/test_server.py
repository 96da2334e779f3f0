"""Reviews over TLS as the API server sends them: answers, patches, a change of certificates, bad peers, and
how long it takes."""

from __future__ import annotations

import base64
import http.client
import json
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from typing import Any, ClassVar

import pytest

from koordra.api import names
from koordra.controller.webhook import handlers, keys, review
from koordra.controller.webhook.review import AdmissionResponse
from koordra.controller.webhook.server import WebhookServer, counted_connections
from koordra.errors import InvalidInput
from koordra.metrics import Metrics
from koordra.process import progress
from koordra.process.connections import ConnectionPhase
from koordra.process.watchdog import Watchdog
from tests.fakes.clock import Clock
from tests.fakes.metric_samples import sample
from tests.patience import PATIENCE
from tests.unit.webhook.cluster import Known, claim, parameters, pod, request, template

KEYS = keys.wanted(None, ("127.0.0.1",), now=datetime.now(UTC), trusted=False)
GPU = claim([request("gpu")], name="gpu")
FOREIGN = claim([request("disk", "disk.example.com")], name="disk")
DISK = {"kind": "DeviceClass", "metadata": {"name": "disk.example.com"}, "spec": {}}
ON_A = {
    "kind": "DeviceClass",
    "metadata": {
        "name": "a.koordra.io",
        "annotations": {
            "koordra.io/suitable-nodes": '{"nodeSelectorTerms":[{"matchExpressions":[{"key":"zone","operator":"In","values":["a"]}]}]}'
        },
    },
    "spec": {},
}
KNOWN = Known(
    GPU, FOREIGN, DISK, ON_A, template(GPU, "gpu"), claim([request("gpu", "a.koordra.io")], name="on-a")
)


@pytest.fixture
def metrics() -> Metrics:
    return Metrics()


@pytest.fixture
def server(metrics: Metrics) -> Iterator[WebhookServer]:
    server = WebhookServer(("127.0.0.1", 0), handlers.paths(KNOWN), metrics=metrics)
    server.use(*KEYS.serving.to_pem())
    server.start()
    yield server
    for caller in Caller.opened:
        caller.connection.close()
    Caller.opened.clear()
    server.close()


class Caller:
    """One kept connection, as the API server has. Closed when the test ends."""

    opened: ClassVar[list[Caller]] = []

    def __init__(self, port: int, bundle: bytes = KEYS.bundle) -> None:
        context = ssl.create_default_context(cadata=bundle.decode())
        self.connection = http.client.HTTPSConnection("127.0.0.1", port, context=context, timeout=PATIENCE)
        self.opened.append(self)

    def post(self, path: str, body: bytes) -> tuple[int, Any]:
        self.connection.request("POST", path, body, {"Content-Type": "application/json"})
        answer = self.connection.getresponse()
        text = answer.read()
        return answer.status, json.loads(text) if text[:1] == b"{" else text.decode()

    def ask(self, path: str, obj: dict[str, Any], operation: str = "CREATE") -> dict[str, Any]:
        code, answer = self.post(path, asked(obj, operation))
        assert code == 200
        found: dict[str, Any] = answer["response"]
        assert found["uid"] == "u-1"
        return found


def test_what_is_got_by_the_beginning_of_its_path(metrics: Metrics) -> None:
    def get(path: str, header: Callable[[str], str | None]) -> tuple[int, bytes]:
        if path == "/words/broken":
            raise ZeroDivisionError
        return 418, json.dumps({"path": path, "header": header("x-word")}).encode()

    server = WebhookServer(("127.0.0.1", 0), {}, metrics=metrics, gets={"/words/": get})
    server.use(*KEYS.serving.to_pem())
    server.start()
    connection = Caller(server.port).connection

    def got(path: str) -> tuple[int, str]:
        connection.request("GET", path, headers={"X-Word": "hello"})
        answer = connection.getresponse()
        return answer.status, answer.read().decode()

    assert got("/words/a%20b?c=d") == (418, '{"path": "/words/a%20b", "header": "hello"}')
    assert got("/words/broken") == (500, "internal error\n")
    assert got("/word") == (404, "nothing is served here\n")
    assert got("/healthz") == (200, "ok\n")
    server.close()


def asked(obj: dict[str, Any], operation: str = "CREATE") -> bytes:
    request = {
        "uid": "u-1",
        "kind": {"group": "", "version": "v1", "kind": obj["kind"]},
        "namespace": "team",
        "operation": operation,
        "object": obj,
    }
    return json.dumps(
        {"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": request}
    ).encode()


def patched(response: dict[str, Any]) -> list[dict[str, Any]]:
    return json.loads(base64.b64decode(response["patch"])) if "patch" in response else []


def test_a_pod_with_a_claim_of_koordras_is_gated(server: WebhookServer) -> None:
    caller = Caller(server.port)
    for reference in ({"resourceClaimName": "gpu"}, {"resourceClaimTemplateName": "gpu"}):
        response = caller.ask("/mutate/pods", pod(reference))
        assert response["allowed"] is True
        assert patched(response) == [
            {"op": "add", "path": "/spec/schedulingGates", "value": [{"name": names.JOINT_GATE}]}
        ]


@pytest.mark.parametrize(
    "obj",
    [
        pod({"resourceClaimName": "disk"}),
        pod({"resourceClaimName": "unknown"}),
        pod({"resourceClaimName": "gpu"}, nodeName="node-1"),
        pod({"resourceClaimName": "gpu"}, schedulingGates=[{"name": names.JOINT_GATE}]),
        pod({"resourceClaimName": "gpu"}, nodeSelector={names.MODE_LABEL: "native"}),
    ],
)
def test_other_pods_are_left_alone(server: WebhookServer, obj: dict[str, Any]) -> None:
    assert patched(Caller(server.port).ask("/mutate/pods", obj)) == []


def test_who_asks_for_a_class_as_an_extended_resource_is_told_where_that_works(server: WebhookServer) -> None:
    of = "deviceclass.resource.kubernetes.io/"
    limits = {of + "gpu.koordra.io": "1", of + "gpu.example.com": "1", "cpu": "1"}
    obj = pod(containers=[{"name": "main", "image": "x", "resources": {"limits": limits}}])
    (warning,) = Caller(server.port).ask("/mutate/pods", obj)["warnings"]
    assert warning == (
        f"{of}gpu.koordra.io: only nodes labelled koordra.io/allocation-mode=native give it; on all others "
        "spec.resourceClaims with a ResourceClaimTemplate of deviceClassName: gpu.koordra.io does"
    )
    native = {**obj, "spec": {**obj["spec"], "nodeSelector": {names.MODE_LABEL: "native"}}}
    for path, sent in (("/mutate/pods", native), ("/native/mutate/pods", obj)):
        assert "warnings" not in Caller(server.port).ask(path, sent)


def test_a_pod_in_native_mode_gets_suitable_nodes_and_no_gate(server: WebhookServer) -> None:
    (step,) = patched(Caller(server.port).ask("/native/mutate/pods", pod({"resourceClaimName": "on-a"})))
    assert step["path"] == "/spec/affinity"
    gated = patched(Caller(server.port).ask("/mutate/pods", pod({"resourceClaimName": "on-a"})))
    assert [one["path"] for one in gated] == ["/spec/affinity", "/spec/schedulingGates"]


def test_bad_parameters_are_refused_with_words_to_act_on(server: WebhookServer, metrics: Metrics) -> None:
    bad = claim([request("gpu")], [parameters("GpuConfig", memoryPercent=0)])
    response = Caller(server.port).ask("/validate", bad)
    assert response["allowed"] is False
    assert response["status"]["code"] == 422
    assert (
        "ResourceClaim team/c: spec.devices.config[0].opaque.parameters.memoryPercent"
        in response["status"]["message"]
    )
    labels = {"path": "/validate", "outcome": "refused"}
    assert sample(metrics, "koordra_webhook_requests_total", labels) == 1


def test_claims_are_translated_in_native_namespaces_only(server: WebhookServer) -> None:
    pair = claim(
        [request("gpu"), request("nic", "nic.koordra.io")], [parameters("JointAllocation", scope="PCIeRoot")]
    )
    caller = Caller(server.port)
    assert patched(caller.ask("/mutate/claims", pair)) == []
    assert [step["path"] for step in patched(caller.ask("/native/mutate/claims", pair))] == [
        "/spec/devices/constraints"
    ]
    marked = {**pair, "metadata": {**pair["metadata"], "annotations": {names.MODE_LABEL: "native"}}}
    assert patched(caller.ask("/mutate/claims", marked))
    kept = {**pair, "metadata": {**pair["metadata"], "annotations": {names.MODE_LABEL: "joint"}}}
    assert not patched(caller.ask("/native/mutate/claims", kept))


@pytest.mark.parametrize(
    "body", [b"", b"{", b"[]", b'{"request":1}', b'{"request":{"uid":3}}', b"[" * 100000]
)
def test_what_is_no_review_is_a_400(server: WebhookServer, body: bytes) -> None:
    caller = Caller(server.port)
    assert caller.post("/validate", body)[0] == 400
    assert caller.post("/nowhere", asked(GPU))[0] == 404
    assert caller.ask("/validate", GPU)["allowed"] is True


def test_peers_that_say_nothing_or_nonsense_hold_up_nobody(server: WebhookServer) -> None:
    silent = [socket.create_connection(("127.0.0.1", server.port)) for _ in range(20)]
    silent[0].sendall(b"GET / HTTP/1.0\r\n\r\n")
    assert Caller(server.port).ask("/validate", GPU)["allowed"] is True
    for connection in silent:
        connection.close()


def test_a_peer_that_trickles_is_cut_off(metrics: Metrics) -> None:
    """A byte now and then keeps every read alive; what counts is the time of the whole."""
    clock = Clock()
    server = WebhookServer(
        ("127.0.0.1", 0),
        handlers.paths(KNOWN),
        metrics=metrics,
        connections=counted_connections(metrics, clock=clock.monotonic),
    )
    server.use(*KEYS.serving.to_pem())
    server.start()
    head = Caller(server.port).connection
    head.connect()
    body = Caller(server.port).connection
    body.connect()
    body.sock.sendall(b"POST /validate HTTP/1.1\r\nHost: x\r\nContent-Length: 1000\r\n\r\n")
    for connection in (head, body):
        assert _is_cut_off(connection.sock, b"P" if connection is head else b"{", clock)
    assert Caller(server.port).ask("/validate", GPU)["allowed"] is True
    assert sample(metrics, "koordra_webhook_connections_closed_total", {"reason": "slow"}) == 2
    server.close()


def _is_cut_off(sock: socket.socket, letter: bytes, clock: Clock) -> bool:
    """Goes on trickling until the server has had enough."""
    deadline = time.monotonic() + PATIENCE
    while time.monotonic() < deadline:
        clock.now += 1.0
        try:
            sock.settimeout(0.05)
            sock.sendall(letter)
            if sock.recv(1) == b"":
                return True
        except TimeoutError:
            continue
        except OSError:
            return True
    return False


def test_at_the_cap_those_go_that_never_asked(metrics: Metrics) -> None:
    server = WebhookServer(
        ("127.0.0.1", 0),
        handlers.paths(KNOWN),
        metrics=metrics,
        connections=counted_connections(metrics, most=5),
    )
    server.use(*KEYS.serving.to_pem())
    server.start()
    kept = Caller(server.port)
    assert kept.ask("/validate", GPU)["allowed"] is True
    silent = [socket.create_connection(("127.0.0.1", server.port)) for _ in range(40)]
    assert Caller(server.port).ask("/validate", GPU)["allowed"] is True
    assert kept.ask("/validate", GPU)["allowed"] is True
    assert sample(metrics, "koordra_webhook_connections") <= 5
    for connection in silent:
        connection.close()
    server.close()


def test_connections_by_the_clock() -> None:
    """Who is displaced, who is too slow, and who is turned away when all are at work."""
    clock, metrics = Clock(0.0), Metrics()
    connections = counted_connections(metrics, most=3, clock=lambda: clock.now)
    pairs = [socket.socketpair() for _ in range(5)]

    def ended(number: int) -> bool:
        pairs[number][1].settimeout(0)
        try:
            return pairs[number][1].recv(1) == b""
        except BlockingIOError:
            return False

    socks = [ours for ours, _ in pairs]
    assert all(map(connections.admit, socks[:3]))
    connections.enter(socks[0], ConnectionPhase.ANSWERING)
    connections.enter(socks[0], ConnectionPhase.IDLE)
    clock.now = 1.0
    assert connections.admit(socks[3])
    assert (ended(0), ended(1), ended(2)) == (False, True, False)
    for number in (0, 2, 3):
        connections.enter(socks[number], ConnectionPhase.ANSWERING)
    assert not connections.admit(socks[4])
    connections.enter(socks[2], ConnectionPhase.READING)
    clock.now = 11.5
    connections.sweep()
    assert (ended(0), ended(2), ended(3)) == (False, True, False)
    closed = "koordra_webhook_connections_closed_total"
    assert [sample(metrics, closed, {"reason": reason}) for reason in ("displaced", "refused", "slow")] == [
        1,
        1,
        1,
    ]
    connections.leave(socks[1])
    for pair in pairs:
        for end in pair:
            end.close()


def test_a_claim_of_another_shape_is_refused_in_words(server: WebhookServer) -> None:
    found = Caller(server.port).ask("/validate", {**GPU, "spec": {"devices": 3}})
    assert found["allowed"] is False
    assert "ResourceClaim team/gpu: spec.devices: is not an object" in found["status"]["message"]


def test_a_new_certificate_is_used_by_the_next_connection(server: WebhookServer) -> None:
    old = Caller(server.port)
    assert old.ask("/validate", GPU)["allowed"] is True
    fresh = keys.wanted(None, ("127.0.0.1",), now=datetime.now(UTC), trusted=False)
    server.use(*fresh.serving.to_pem())
    assert old.ask("/validate", GPU)["allowed"] is True
    assert Caller(server.port, fresh.bundle).ask("/validate", GPU)["allowed"] is True
    with pytest.raises(ssl.SSLCertVerificationError):
        Caller(server.port).ask("/validate", GPU)


def test_no_handshake_fails_while_certificates_are_replaced(server: WebhookServer) -> None:
    fresh = keys.wanted(None, ("127.0.0.1",), now=datetime.now(UTC), trusted=False)
    done = threading.Event()

    def replace() -> None:
        while not done.is_set():
            for pair in (fresh.serving, KEYS.serving):
                server.use(*pair.to_pem())

    replacing = threading.Thread(target=replace)
    replacing.start()
    try:
        served = {
            ssl.get_server_certificate(("127.0.0.1", server.port), timeout=PATIENCE) for _ in range(300)
        }
    finally:
        done.set()
        replacing.join()
    assert len(served) <= 2


def test_a_certificate_that_does_not_fit_its_key_leaves_the_old_one_serving(server: WebhookServer) -> None:
    """Files are read one after the other; a renewal in between gives a pair of two halves."""
    other = keys.wanted(None, ("127.0.0.1",), now=datetime.now(UTC), trusted=False).serving
    with pytest.raises(InvalidInput, match="cannot be used"):
        server.use(KEYS.serving.to_pem()[0], other.to_pem()[1])
    assert Caller(server.port).post("/validate", b"{")[0] == 400


def test_the_end_of_the_certificate_that_it_serves_with_is_told(
    server: WebhookServer, metrics: Metrics
) -> None:
    def told() -> float | None:
        return sample(metrics, "koordra_webhook_certificate_end_timestamp_seconds")

    assert told() == KEYS.serving.certificate.not_valid_after_utc.timestamp()
    later = keys.wanted(None, ("127.0.0.1",), now=datetime.now(UTC) + timedelta(days=5), trusted=False)
    certificate, key = later.serving.to_pem()
    server.use(certificate + KEYS.serving.to_pem()[0], key)  # with its chain, as cert-manager writes it
    assert told() == later.serving.certificate.not_valid_after_utc.timestamp()


@pytest.mark.parametrize("length", ["Content-Length: -1", "Content-Length: x", "Transfer-Encoding: chunked"])
def test_a_body_of_no_known_length_is_not_read(server: WebhookServer, length: str) -> None:
    caller = Caller(server.port).connection
    caller.connect()
    caller.sock.sendall(f"POST /validate HTTP/1.1\r\nHost: x\r\n{length}\r\n\r\n".encode())
    answer = http.client.HTTPResponse(caller.sock)
    answer.begin()
    assert answer.status == 411


def test_patches_lead_from_one_object_to_the_other() -> None:
    before = {"a": 1, "b/c": {"x": 1, "y": [1]}, "gone": 1}
    after = {"a": 1, "b/c": {"x": 2, "y": [1, 2], "z": None}, "new": {}}
    assert review.patch(before, after) == [
        {"op": "replace", "path": "/b~1c/x", "value": 2},
        {"op": "replace", "path": "/b~1c/y", "value": [1, 2]},
        {"op": "add", "path": "/b~1c/z", "value": None},
        {"op": "remove", "path": "/gone"},
        {"op": "add", "path": "/new", "value": {}},
    ]


def test_health_follows_every_thread_and_a_review_that_hangs_is_one(metrics: Metrics) -> None:
    """Each such review keeps a connection for ever; a few hundred of them, and no other gets in."""
    dog, begun, go = Watchdog(metrics, write_stacks=lambda: None), threading.Event(), threading.Event()

    def hangs(_asked: object) -> AdmissionResponse:
        begun.set()
        assert go.wait(PATIENCE)
        return AdmissionResponse()

    server = WebhookServer(("127.0.0.1", 0), {"/hangs": hangs}, metrics=metrics, well=dog.is_well)
    server.use(*KEYS.serving.to_pem())
    server.start()
    try:
        with ThreadPoolExecutor(1) as pool:
            answer = pool.submit(Caller(server.port).post, "/hangs", asked(pod({})))
            assert begun.wait(PATIENCE)
            assert health(server) == (200, b"ok\n")
            (hanging,) = (one for one in progress.threads.values() if one.name == "webhook /hangs")
            steps = hanging.steps
            while not dog.stuck:
                dog.look()
                health(server)  # the accepting thread makes a step
            assert dog.stuck == {"webhook /hangs"}
            assert hanging.steps == steps
            assert health(server)[0] == 503
            go.set()
            assert answer.result(PATIENCE)[0] == 200
            dog.look()
            assert health(server)[0] == 200
    finally:
        server.close()


def health(server: WebhookServer) -> tuple[int, bytes]:
    connection = Caller(server.port).connection
    connection.request("GET", "/healthz")
    answer = connection.getresponse()
    return answer.status, answer.read()
