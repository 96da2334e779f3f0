"""Certificates over the years: bootstrap, renewal, the change of authorities, two replicas at once."""

from __future__ import annotations

import base64
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from koordra.controller.webhook import cert_rotation, keys
from koordra.controller.webhook.cert_rotation import SECRETS, Served, refresh_files, refresh_secret
from koordra.errors import Conflict, NodeError, NotFound

NOW = datetime(2026, 11, 21, 12, tzinfo=UTC)
NAMES = ("koordra-webhook.koordra-system.svc", "127.0.0.1")


def test_the_first_keys_serve_every_name_and_are_signed_by_the_bundle() -> None:
    made = keys.wanted(None, NAMES, now=NOW, trusted=False)
    assert keys.names_of(made.serving.certificate) == set(NAMES)
    (authority,) = made.authorities
    assert keys.is_signed_by(made.serving.certificate, authority.certificate)
    assert keys.Pair.of_pem(*made.serving.to_pem()) == made.serving
    assert made.bundle == authority.to_pem()[0]
    assert keys.wanted(made, NAMES, now=NOW + timedelta(days=1), trusted=True) is made


def test_keys_survive_the_secret() -> None:
    made = keys.wanted(None, NAMES, now=NOW, trusted=False)
    assert keys.from_secret_data(keys.to_secret_data(made)) == made


@pytest.mark.parametrize("broken", ["tls.crt", "tls.key", "authority-0.crt", "authority-0.key", "ca.crt"])
def test_a_damaged_secret_is_made_anew(broken: str) -> None:
    data = keys.to_secret_data(keys.wanted(None, NAMES, now=NOW, trusted=False))
    data[broken] = base64.b64encode(b"not a certificate").decode()
    found = keys.from_secret_data(data)
    made = keys.wanted(found, NAMES, now=NOW, trusted=False)
    assert (found is None) == (broken != "ca.crt")
    assert keys.is_signed_by(made.serving.certificate, made.authorities[0].certificate)


@pytest.mark.parametrize("part", ["tls.crt", "authority-0.key"])
def test_a_key_on_a_curve_that_is_not_known_is_made_anew(part: str) -> None:
    """What escaped here would end the thread that keeps the keys."""
    data = keys.to_secret_data(keys.wanted(None, NAMES, now=NOW, trusted=False))
    first, *lines, last, _ = base64.b64decode(data[part]).split(b"\n")
    curve, unknown = (bytes.fromhex(f"06082a8648ce3d0301{number}") for number in ("07", "06"))
    der = base64.b64decode(b"".join(lines)).replace(curve, unknown)
    foreign = b"\n".join([first, base64.b64encode(der), last, b""])
    assert keys.from_secret_data(data | {part: base64.b64encode(foreign).decode()}) is None


def test_a_key_of_another_certificate_is_made_anew() -> None:
    one, other = (keys.to_secret_data(keys.wanted(None, NAMES, now=NOW, trusted=False)) for _ in range(2))
    assert keys.from_secret_data(one | {"authority-0.key": other["authority-0.key"]}) is None


def test_a_serving_certificate_is_renewed_after_two_thirds() -> None:
    first = keys.wanted(None, NAMES, now=NOW, trusted=False)
    assert keys.wanted(first, NAMES, now=NOW + timedelta(days=59), trusted=True) is first
    second = keys.wanted(first, NAMES, now=NOW + timedelta(days=61), trusted=True)
    assert second.serving != first.serving
    assert second.authorities == first.authorities


def test_other_names_need_another_certificate() -> None:
    first = keys.wanted(None, NAMES, now=NOW, trusted=False)
    second = keys.wanted(first, (*NAMES, "another"), now=NOW, trusted=True)
    assert keys.names_of(second.serving.certificate) == {*NAMES, "another"}


def test_a_new_authority_signs_only_when_it_is_trusted() -> None:
    """At no moment does the server present what the bundle of the moment before would not accept."""
    old = keys.wanted(None, NAMES, now=NOW, trusted=False)
    late = NOW + keys.AUTHORITY_LIFETIME * 0.7
    announced = keys.wanted(old, NAMES, now=late, trusted=True)
    predecessor, successor = announced.authorities
    assert (predecessor,) == old.authorities
    assert announced.bundle == predecessor.to_pem()[0] + successor.to_pem()[0]
    for found in (
        announced,
        keys.wanted(announced, NAMES, now=late + timedelta(hours=1), trusted=False),
        keys.wanted(announced, NAMES, now=late + timedelta(minutes=1), trusted=True),
    ):
        assert keys.is_signed_by(found.serving.certificate, predecessor.certificate)
    changed = keys.wanted(announced, NAMES, now=late + timedelta(hours=1), trusted=True)
    assert keys.is_signed_by(changed.serving.certificate, successor.certificate)
    assert changed.authorities == announced.authorities
    assert keys.from_secret_data(keys.to_secret_data(announced)) == announced
    assert keys.from_secret_data(keys.to_secret_data(changed)) == changed
    restarted = keys.wanted(changed, NAMES, now=late + timedelta(hours=1, minutes=1), trusted=False)
    assert restarted is changed
    ended = keys.wanted(announced, NAMES, now=NOW + keys.AUTHORITY_LIFETIME, trusted=False)
    assert ended.authorities == (successor,)


def test_nothing_is_kept_of_an_authority_that_has_been_replaced() -> None:
    old = keys.wanted(None, NAMES, now=NOW, trusted=False)
    late = NOW + keys.AUTHORITY_LIFETIME * 0.7
    announced = keys.wanted(old, NAMES, now=late, trusted=True)
    waiting = keys.wanted(announced, NAMES, now=late + timedelta(days=1), trusted=False)
    assert waiting.authorities == announced.authorities
    changed = keys.wanted(waiting, NAMES, now=late + timedelta(days=2), trusted=True)
    left = keys.wanted(changed, NAMES, now=late + timedelta(days=2) + keys.SETTLE, trusted=True)
    assert left.serving == changed.serving
    assert left.authorities == announced.authorities[1:]
    assert keys.to_secret_data(left).keys() == keys.to_secret_data(old).keys()
    assert keys.from_secret_data(keys.to_secret_data(left)) == left
    assert keys.wanted(left, NAMES, now=late + timedelta(days=3), trusted=False) is left


class Secrets:
    """Secrets and webhook configurations in memory, conditional writes included."""

    def __init__(self) -> None:
        self.stored: dict[str, dict[str, Any]] = {}
        self.version = 0
        self.patches = 0

    def get(self, kind: Any, name: str, *, namespace: str | None = None) -> dict[str, Any]:
        del namespace
        if f"{kind}/{name}" not in self.stored:
            raise NotFound("not there", code=404)
        return self.stored[f"{kind}/{name}"]

    def create(self, kind: Any, body: dict[str, Any]) -> dict[str, Any]:
        if f"{kind}/{body['metadata']['name']}" in self.stored:
            raise Conflict("exists", code=409, reason="AlreadyExists")
        return self._store(kind, body)

    def update(self, kind: Any, body: dict[str, Any]) -> dict[str, Any]:
        there = self.get(kind, body["metadata"]["name"])
        if there["metadata"]["resourceVersion"] != body["metadata"]["resourceVersion"]:
            raise Conflict("modified", code=409)
        return self._store(kind, body)

    def patch(self, kind: Any, name: str, body: Any, *, content_type: str) -> dict[str, Any]:
        assert content_type == "application/json-patch+json"
        found = self.get(kind, name)
        if body[0]["value"] != found["metadata"]["resourceVersion"]:
            raise Conflict("modified", code=409)
        for step in body[1:]:
            found["webhooks"][int(step["path"].split("/")[2])]["clientConfig"]["caBundle"] = step["value"]
        self.patches += 1
        return self._store(kind, found)

    def _store(self, kind: Any, body: dict[str, Any]) -> dict[str, Any]:
        self.version += 1
        stored = {**body, "metadata": {**body["metadata"], "resourceVersion": str(self.version)}}
        self.stored[f"{kind}/{body['metadata']['name']}"] = stored
        return stored


def refreshed(client: Any) -> Served:
    return refresh_secret(client, "koordra-system", "tls", NAMES, now=NOW, trusted=b"")


def test_replicas_end_up_with_the_same_keys() -> None:
    client = Secrets()
    first = refreshed(client)
    assert refreshed(client) == first
    assert client.stored[f"{SECRETS}/tls"]["type"] == "kubernetes.io/tls"


def test_a_replica_that_is_second_takes_the_keys_of_the_first() -> None:
    client, slow = Secrets(), Secrets()
    reads = iter([NotFound("not yet", code=404)])

    def late(kind: Any, name: str, *, namespace: str | None = None) -> dict[str, Any]:
        error = next(reads, None)
        if error is not None:
            raise error
        return client.get(kind, name, namespace=namespace)

    first = refreshed(client)
    slow.get = late  # type: ignore[method-assign]
    slow.create = client.create  # type: ignore[method-assign]
    assert refreshed(slow) == first


def test_the_bundle_reaches_every_entry_once() -> None:
    client = Secrets()
    for kind in cert_rotation.CONFIGURATIONS:
        entries = [{"name": name, "clientConfig": {}} for name in ("a", "b")]
        client.create(kind, {"metadata": {"name": cert_rotation.NAME}, "webhooks": entries})
    assert cert_rotation.inject(client, b"bundle")
    assert client.patches == 2
    assert cert_rotation.inject(client, b"bundle")
    assert client.patches == 2
    for kind in cert_rotation.CONFIGURATIONS:
        found = client.get(kind, cert_rotation.NAME)
        assert {entry["clientConfig"]["caBundle"] for entry in found["webhooks"]} == {
            base64.b64encode(b"bundle").decode()
        }


def test_without_configurations_there_is_nothing_to_inject() -> None:
    assert cert_rotation.inject(Secrets(), b"bundle")


def test_files_of_cert_manager_are_read_each_time(tmp_path: Any) -> None:
    with pytest.raises(NodeError, match=r"tls\.crt"):
        refresh_files(tmp_path)
    made = keys.wanted(None, NAMES, now=NOW, trusted=False)
    certificate, key = made.serving.to_pem()
    (tmp_path / "tls.crt").write_bytes(certificate)
    (tmp_path / "tls.key").write_bytes(key)
    assert refresh_files(tmp_path) == Served((certificate, key), b"")
