"""services/proxy of the double: which endpoint is asked, what goes there, and what is answered where nobody
is."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from koordra_devcluster.apiserver.requests import Request
from koordra_devcluster.apiserver.serving.users import User
from tests.unit.devcluster.calling import Caller

SERVICES = "/api/v1/namespaces/default/services"
SLICES = "/apis/discovery.k8s.io/v1/namespaces/default/endpointslices"
ANNA = User("anna", ("system:authenticated",))


class _Behind(BaseHTTPRequestHandler):
    """Says what has come."""

    def do_GET(self) -> None:
        said = {"path": self.path, "headers": {name.lower(): value for name, value in self.headers.items()}}
        body = json.dumps(said).encode()
        self.send_response(418 if self.path.startswith("/teapot") else 200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        del format, args


@pytest.fixture
def port() -> Iterator[int]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Behind)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield server.server_address[1]
    server.shutdown()
    server.server_close()
    thread.join()


@pytest.fixture
def call(api: Caller, port: int) -> Caller:
    call = api
    ports = [{"name": "web", "port": 80}, {"name": "away", "port": 81}]
    call.ok("POST", SERVICES, {"metadata": {"name": "shop"}, "spec": {"ports": ports}})
    call.ok("POST", SERVICES, {"metadata": {"name": "empty"}, "spec": {"ports": ports}})
    for name, ready, number in (("a", True, port), ("b", False, 1)):
        body = {
            "metadata": {"name": name, "labels": {"kubernetes.io/service-name": "shop"}},
            "addressType": "IPv4",
            "endpoints": [{"addresses": ["127.0.0.1"], "conditions": {"ready": ready}}],
            "ports": [{"name": "web", "port": number}],
        }
        call.ok("POST", SLICES, body)
    return call


@pytest.mark.parametrize("name", ["shop:web", "shop:80", "http:shop:web", "http%3Ashop%3A80"])
def test_a_request_goes_to_an_endpoint_that_is_ready(call: Caller, name: str) -> None:
    for _ in range(8):
        said = call.ok("GET", f"{SERVICES}/{name}/proxy/explain/claim?deep=yes", x_own="kept")
        assert said["path"] == "/explain/claim?deep=yes"
        assert said["headers"]["x-own"] == "kept"


def test_the_callers_credential_goes_no_further_and_an_answer_comes_back_as_it_is(call: Caller) -> None:
    said = call.ok("GET", f"{SERVICES}/shop:web/proxy", authorization="Bearer secret")
    assert said["path"] == "/"
    assert "authorization" not in said["headers"]
    assert call("GET", f"{SERVICES}/shop:web/proxy/teapot")[0] == 418


@pytest.mark.parametrize(
    ("name", "code", "words"),
    [
        ("empty:web", 503, 'no endpoints available for service "empty:web"'),
        ("shop", 503, 'no endpoints available for service "shop"'),
        ("shop:away", 503, 'no endpoints available for service "shop:away"'),
        ("shop:82", 503, 'no service port 82 found for service "shop"'),
        ("nobody:web", 404, 'services "nobody" not found'),
        ("ftp:shop:web", 400, 'invalid service request "ftp:shop:web"'),
        ("shop:", 400, 'invalid service request "shop:"'),
        ("https:shop:web", 503, "error trying to reach service"),
    ],
)
def test_where_nobody_is_behind_it_the_real_servers_words_are_said(
    call: Caller, name: str, code: int, words: str
) -> None:
    assert words in call.refused(code, "GET", f"{SERVICES}/{name}/proxy/x")["message"]


def test_who_may_is_said_by_verb_and_whole_name(call: Caller) -> None:
    rbac = "/apis/rbac.authorization.k8s.io/v1/namespaces/default"
    rule = {
        "apiGroups": [""],
        "resources": ["services/proxy"],
        "resourceNames": ["shop:web"],
        "verbs": ["get"],
    }
    call.ok("POST", f"{rbac}/roles", {"metadata": {"name": "r"}, "rules": [rule]})
    binding = {
        "metadata": {"name": "b"},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "r"},
        "subjects": [{"kind": "User", "name": "anna", "apiGroup": "rbac.authorization.k8s.io"}],
    }

    def asked(method: str, name: str) -> int:
        return call.api.handle(Request(method, f"{SERVICES}/{name}/proxy/x", user=ANNA)).code

    assert asked("GET", "shop:web") == 403
    call.ok("POST", f"{rbac}/rolebindings", binding)
    assert asked("GET", "shop:web") == 200
    assert (asked("POST", "shop:web"), asked("GET", "shop:80"), asked("GET", "empty:web")) == (403, 403, 403)


def test_tokens_are_for_the_audiences_that_they_were_asked_for(call: Caller) -> None:
    path = "/api/v1/namespaces/default/serviceaccounts/default/token"

    def reviewed(token: str, *audiences: str) -> dict[str, Any]:
        spec = {"token": token, "audiences": list(audiences)}
        found = call.ok("POST", "/apis/authentication.k8s.io/v1/tokenreviews", {"spec": spec})
        status: dict[str, Any] = found["status"]
        return status

    own = call.ok("POST", path, {"spec": {"audiences": ["shop"]}})["status"]["token"]
    assert call.api.tokens.user(own) is None, "this server lets nobody in by it"
    assert not reviewed(own).get("authenticated")
    found = reviewed(own, "bank", "shop")
    assert (found["authenticated"], found["audiences"]) == (True, ["shop"])
    assert found["user"]["username"] == "system:serviceaccount:default:default"
    plain = call.ok("POST", path, {"spec": {}})["status"]["token"]
    assert reviewed(plain)["authenticated"]
    assert not reviewed(plain, "shop").get("authenticated")
