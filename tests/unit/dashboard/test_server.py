"""The dashboard over HTTP: who is let in, what is answered, and with which headers."""

from __future__ import annotations

import base64
import gzip
import http.client
import ssl
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from koordra.api.kinds import SUBJECT_ACCESS_REVIEWS, TOKEN_REVIEWS
from koordra.cli.cluster.dashboard.access import REMEMBERED, Tokens, is_loopback, require_own_name
from koordra.cli.cluster.dashboard.command import dashboard
from koordra.cli.cluster.dashboard.live import Live
from koordra.cli.cluster.dashboard.markup import POLICY
from koordra.cli.cluster.dashboard.server import DashboardServer
from koordra.controller.explain.endpoint import REVIEWS
from koordra.controller.webhook.keys import issue
from koordra.errors import ApiError, Forbidden, InvalidInput
from tests.patience import PATIENCE
from tests.unit.dashboard.scene import listed, small


@pytest.fixture(scope="module")
def live() -> Live:
    objects = listed(small())
    return Live(lambda: (1, objects), pause=lambda _: None)


@pytest.fixture
def served(live: Live) -> Iterator[Callable[..., DashboardServer]]:
    """Serves until the test ends."""
    started = []

    def serve(**more: Any) -> DashboardServer:
        more.setdefault("require", require_own_name)
        server = DashboardServer(("127.0.0.1", 0), live, **more)
        server.start()
        started.append(server)
        return server

    yield serve
    for server in started:
        server.close()


def ask(
    server: DashboardServer, path: str, method: str = "GET", **headers: str
) -> tuple[http.client.HTTPResponse, bytes]:
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=PATIENCE)
    try:
        connection.request(method, path, headers=headers)
        answer = connection.getresponse()
        return answer, answer.read()
    finally:
        connection.close()


def test_pages_come_with_headers_that_forbid_everything_else(served: Callable[..., DashboardServer]) -> None:
    answer, body = ask(served(), "/")
    assert answer.status == 200
    assert b"hgx-h100-0001" in body
    headers = {name.lower(): value for name, value in answer.getheaders()}
    assert headers["content-security-policy"] == POLICY
    assert headers["x-content-type-options"] == "nosniff"
    assert headers["referrer-policy"] == "no-referrer"
    assert headers["cache-control"] == "no-store"
    assert "server" not in headers


def test_a_page_is_compressed_for_who_takes_that(served: Callable[..., DashboardServer]) -> None:
    server = served()
    _, plain = ask(server, "/")
    answer, body = ask(server, "/", **{"Accept-Encoding": "gzip, br"})
    assert answer.getheader("Content-Encoding") == "gzip"
    assert gzip.decompress(body) == plain
    assert len(body) * 2 < len(plain)


@pytest.mark.parametrize("method", ["HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE", "STRANGE"])
def test_only_get_is_answered(served: Callable[..., DashboardServer], method: str) -> None:
    answer, body = ask(served(), "/", method)
    assert (answer.status, answer.getheader("Allow")) == (405, "GET")
    assert (body == b"") is (method == "HEAD")


@pytest.mark.parametrize(
    "path", ["/none", "/node/none", "/claim/default/%3Cscript%3E", "/pod/a/b/c", "//x", "/%"]
)
def test_what_is_not_there_is_404_in_a_page(served: Callable[..., DashboardServer], path: str) -> None:
    answer, body = ask(served(), path)
    assert answer.status == 404
    assert answer.getheader("Content-Security-Policy") == POLICY
    assert b"<script>" not in body


def test_a_defect_of_one_page_ends_no_other(
    served: Callable[..., DashboardServer], monkeypatch: pytest.MonkeyPatch
) -> None:
    server = served()

    def broken(_: Any) -> bytes:
        raise ZeroDivisionError("secret words")

    monkeypatch.setattr(server.live, "page", broken)
    answer, body = ask(server, "/waiting")
    assert (answer.status, b"secret" in body) == (500, False)
    monkeypatch.undo()
    assert ask(server, "/waiting")[0].status == 200


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("127.0.0.1:8910", 200),
        ("localhost", 200),
        ("LOCALHOST:1", 200),
        ("[::1]:8910", 200),
        ("evil.example", 403),
        ("127.0.0.1.evil.example", 403),
        ("localhost.evil.example:80", 403),
        ("10.0.0.7", 403),
        ("", 403),
    ],
)
def test_a_page_from_elsewhere_whose_name_means_this_machine_reads_nothing(
    served: Callable[..., DashboardServer], host: str, status: int
) -> None:
    answer, body = ask(served(), "/", Host=host)
    assert answer.status == status
    assert (b"hgx" in body) is (status == 200)


@pytest.mark.parametrize("host", ["127.0.0.1", "127.8.8.8", "::1", "localhost"])
def test_addresses_of_this_machine(host: str) -> None:
    assert is_loopback(host)


@pytest.mark.parametrize("host", ["", "0.0.0.0", "::", "10.0.0.1", "host.example", "localhost.example"])
def test_addresses_that_others_reach(host: str) -> None:
    assert not is_loopback(host)


class Reviews:
    """The API server's: `known` tokens and whose they are, and the users that may list everything."""

    def __init__(self) -> None:
        self.known = {"good": "ann", "poor": "bob"}
        self.asked: list[Any] = []

    def create(self, kind: Any, body: Any) -> Any:
        self.asked.append((kind, body["spec"]))
        if kind == TOKEN_REVIEWS:
            name = self.known.get(body["spec"]["token"])
            return {"status": {"authenticated": name is not None, "user": {"username": name}}}
        assert kind == SUBJECT_ACCESS_REVIEWS
        asked = body["spec"]["resourceAttributes"]
        return {"status": {"allowed": body["spec"]["user"] == "ann" or asked["resource"] == "nodes"}}


def header(**values: str) -> Callable[[str], str | None]:
    return lambda name: values.get(name.replace("-", "_"))


def test_a_token_is_asked_for_and_who_may_not_see_everything_sees_nothing() -> None:
    reviews, time = Reviews(), [0.0]
    tokens = Tokens(reviews, clock=lambda: time[0])  # type: ignore[arg-type]
    basic = base64.b64encode(b"any:good").decode()
    for headers in (
        {"Authorization": "Bearer good"},
        {"Authorization": f"Basic {basic}"},
        {"X_Koordra_Authorization": "Bearer good"},
    ):
        tokens.require(header(**headers))
    assert [kind for kind, _ in reviews.asked].count(TOKEN_REVIEWS) == 1  # remembered
    listed_ = [
        (spec["resourceAttributes"]["verb"], spec["resourceAttributes"]["resource"])
        for kind, spec in reviews.asked[1:]
    ]
    assert listed_ == [("list", "nodes"), ("list", "pods"), ("list", "resourceclaims")]
    with pytest.raises(Forbidden, match="bob may not list pods"):
        tokens.require(header(Authorization="Bearer poor"))
    for headers in (
        {},
        {"Authorization": "Bearer"},
        {"Authorization": "Basic !"},
        {"Authorization": "Digest good"},
        {"Authorization": "Bearer " + "x" * 20_000},
        {"Authorization": "Bearer bad"},
    ):
        with pytest.raises(Forbidden) as refused:
            tokens.require(header(**headers))
        assert refused.value.code == 401
    time[0] += REMEMBERED
    asked = len(reviews.asked)
    del reviews.known["good"]
    with pytest.raises(Forbidden):
        tokens.require(header(Authorization="Bearer good"))
    assert len(reviews.asked) == asked + 1


def test_strangers_cannot_have_the_api_server_asked_without_end() -> None:
    reviews = Reviews()
    tokens = Tokens(reviews, clock=lambda: 0.0)  # type: ignore[arg-type]
    refused = []
    for number in range(200):
        with pytest.raises(ApiError) as error:
            tokens.require(header(Authorization=f"Bearer {number}"))
        refused.append(error.value.code)
    assert len(reviews.asked) == 2 * REVIEWS
    assert refused[-1] == 429


def test_a_browser_is_asked_for_a_token_over_https(
    served: Callable[..., DashboardServer], tmp_path: Path
) -> None:
    life = {"now": datetime.now(UTC), "lifetime": timedelta(days=1)}
    authority = issue(None, ["authority"], **life)  # type: ignore[arg-type]
    certificate, key = issue(authority, ["localhost"], **life).to_pem()  # type: ignore[arg-type]
    (tmp_path / "ca.crt").write_bytes(authority.to_pem()[0])
    (tmp_path / "tls.crt").write_bytes(certificate)
    (tmp_path / "tls.key").write_bytes(key)
    server = served(
        require=Tokens(Reviews()).require,  # type: ignore[arg-type]
        certificate=(tmp_path / "tls.crt", tmp_path / "tls.key"),
    )
    trust = ssl.create_default_context(cafile=str(tmp_path / "ca.crt"))
    trust.check_hostname = False
    for headers, status in (({}, 401), ({"Authorization": "Bearer good"}, 200)):
        connection = http.client.HTTPSConnection("127.0.0.1", server.port, context=trust, timeout=PATIENCE)
        connection.request("GET", "/", headers=headers)
        answer = connection.getresponse()
        assert answer.status == status
        assert bool(answer.getheader("WWW-Authenticate")) is (status == 401)
        assert (b"hgx" in answer.read()) is (status == 200)
        connection.close()


def test_an_address_that_others_reach_needs_https() -> None:
    found = CliRunner().invoke(dashboard, ["--address", ":8910"])
    assert isinstance(found.exception, InvalidInput)
    assert "--certificates" in str(found.exception)
