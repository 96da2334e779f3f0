"""Calling an admission webhook: one POST over TLS, trusted by the webhook's caBundle.

A webhook is named by `url`. The other way, a Service, needs a network of pods, which this cluster does not
have; such a call fails, and the webhook's failurePolicy says what that means.
"""

from __future__ import annotations

import base64
import http.client
import json
import ssl
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit

from koordra.api.objects import Object


class CallFailed(Exception):
    """Nobody answered, or with something that is no review; the text says what happened."""


def call(webhook: Mapping[str, Any], request: Object) -> Object:
    """The `response` of the review. Raises CallFailed."""
    configuration = webhook.get("clientConfig") or {}
    url = configuration.get("url")
    if not url:
        service = configuration.get("service") or {}
        place = f"{service.get('name')}.{service.get('namespace')}"
        raise CallFailed(
            f"failed to call webhook: Service {place} has no network in the development cluster; use a url"
        )
    review = {"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": request}
    body = json.dumps(review, separators=(",", ":")).encode()
    answer = _post(url, body, configuration.get("caBundle") or "", float(webhook.get("timeoutSeconds") or 10))
    response = answer.get("response")
    if not isinstance(response, dict) or response.get("uid") != request["uid"]:
        raise CallFailed("received invalid webhook response: expected response.uid to be that of the request")
    return response


def patch_of(response: Mapping[str, Any]) -> list[Any]:
    """The JSON patch of a mutating webhook's response."""
    found = json.loads(base64.b64decode(response["patch"]))
    return found if isinstance(found, list) else []


def _post(url: str, body: bytes, bundle: str, timeout: float) -> Object:
    where = urlsplit(url)
    try:
        trusted = base64.b64decode(bundle).decode() if bundle else None
        context = ssl.create_default_context(cadata=trusted)
        connection = http.client.HTTPSConnection(
            where.hostname or "", where.port or 443, timeout=timeout, context=context
        )
        try:
            connection.request("POST", where.path or "/", body, {"Content-Type": "application/json"})
            answer = connection.getresponse()
            text = answer.read()
        finally:
            connection.close()
        decoded = json.loads(text) if answer.status == 200 else None
    except (OSError, ValueError, http.client.HTTPException) as error:
        raise CallFailed(f'failed to call webhook: Post "{url}": {error}') from error
    if not isinstance(decoded, dict):
        raise CallFailed(f"the server rejected our request: status {answer.status}: {text[:200]!r}")
    return decoded
