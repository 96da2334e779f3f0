"""Certificates over the years: bootstrap, renewal, the change of authorities, two replicas at once."""

from __future__ import annotations

import base64
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from koordra.controller.webhook import keys, run
from koordra.controller.webhook.run import SECRETS, Served, refresh_files, refresh_secret
from koordra.errors import Conflict, InvalidInput, NodeError, NotFound

NOW = datetime(2026, 11, 21, 12, tzinfo=UTC)
NAMES = ("koordra-webhook.koordra-system.svc", "127.0.0.1")


def test_the_first_keys_serve_every_name_and_are_signed_by_the_bundle() -> None:
    made = keys.wanted(None, NAMES, now=NOW, trusted=False)
    assert keys.names_of(made.serving.certificate) == set(NAMES)
    assert keys.is_signed_by(made.serving.certificate, made.authority.certificate)
    assert keys.fits(made.serving)
    assert made.bundle == made.authority.certificate
    assert keys.wanted(made, NAMES, now=NOW + timedelta(days=1), trusted=True) is made


def test_keys_survive_the_secret() -> None:
    made = keys.wanted(None, NAMES, now=NOW, trusted=False)
    assert keys.from_secret_data(keys.to_secret_data(made)) == made


@pytest.mark.parametrize("broken", ["tls.crt", "authority.key", "ca.crt"])
def test_a_damaged_secret_is_made_anew(broken: str) -> None:
    data = keys.to_secret_data(keys.wanted(None, NAMES, now=NOW, trusted=False))
    data[broken] = base64.b64encode(b"not a certificate").decode()
    found = keys.from_secret_data(data)
    made = keys.wanted(found, NAMES, now=NOW, trusted=False)
    assert keys.fits(made.authority)
    assert keys.is_signed_by(made.serving.certificate, made.authority.certificate)


def test_a_serving_certificate_is_renewed_after_two_thirds() -> None:
    first = keys.wanted(None, NAMES, now=NOW, trusted=False)
    assert keys.wanted(first, NAMES, now=NOW + timedelta(days=59), trusted=True) is first
    second = keys.wanted(first, NAMES, now=NOW + timedelta(days=61), trusted=True)
    assert second.serving != first.serving
    assert second.authority == first.authority


def test_other_names_need_another_certificate() -> None:
    first = keys.wanted(None, NAMES, now=NOW, trusted=False)
    second = keys.wanted(first, (*NAMES, "another"), now=NOW, trusted=True)
    assert keys.names_of(second.serving.certificate) == {*NAMES, "another"}


def test_a_new_authority_signs_only_when_it_is_trusted() -> None:
    """At no moment does the server present what the bundle of the moment before would not accept."""
    old = keys.wanted(None, NAMES, now=NOW, trusted=False)
    late = NOW + keys.AUTHORITY_LIFETIME * 0.7
    announced = keys.wanted(old, NAMES, now=late, trusted=True)
    assert announced.successor is not None
    assert announced.authority == old.authority
    assert announced.successor.certificate in announced.bundle
    waiting = keys.wanted(announced, NAMES, now=late + timedelta(hours=1), trusted=False)
    assert waiting.authority == old.authority
    early = keys.wanted(announced, NAMES, now=late + timedelta(minutes=1), trusted=True)
    assert early.authority == old.authority
    changed = keys.wanted(announced, NAMES, now=late + timedelta(hours=1), trusted=True)
    assert changed.authority == announced.successor
    assert keys.is_signed_by(changed.serving.certificate, announced.successor.certificate)
    assert old.authority.certificate in changed.bundle
    assert keys.from_secret_data(keys.to_secret_data(announced)) == announced
    assert keys.from_secret_data(keys.to_secret_data(changed)) == changed


def test_what_is_no_certificate_is_told() -> None:
    with pytest.raises(InvalidInput, match="not a PEM certificate"):
        keys.ends(b"x")


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
    for kind in run.CONFIGURATIONS:
        entries = [{"name": name, "clientConfig": {}} for name in ("a", "b")]
        client.create(kind, {"metadata": {"name": run.NAME}, "webhooks": entries})
    assert run.inject(client, b"bundle")
    assert client.patches == 2
    assert run.inject(client, b"bundle")
    assert client.patches == 2
    for kind in run.CONFIGURATIONS:
        found = client.get(kind, run.NAME)
        assert {entry["clientConfig"]["caBundle"] for entry in found["webhooks"]} == {
            base64.b64encode(b"bundle").decode()
        }


def test_without_configurations_there_is_nothing_to_inject() -> None:
    assert run.inject(Secrets(), b"bundle")


def test_files_of_cert_manager_are_read_each_time(tmp_path: Any) -> None:
    with pytest.raises(NodeError, match=r"tls\.crt"):
        refresh_files(tmp_path)
    made = keys.wanted(None, NAMES, now=NOW, trusted=False)
    (tmp_path / "tls.crt").write_bytes(made.serving.certificate)
    (tmp_path / "tls.key").write_bytes(made.serving.key)
    found = refresh_files(tmp_path)
    assert (found.pair, found.bundle) == (made.serving, b"")
