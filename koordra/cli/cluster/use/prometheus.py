"""A Prometheus, asked directly or through the API server's proxy of its Service."""

from __future__ import annotations

import json
import math
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping
from typing import Any, Final
from urllib.parse import urlencode, urlsplit

from koordra.api import objects
from koordra.api.kinds import SERVICES
from koordra.cli.cluster.use.readings import Reading
from koordra.errors import ApiError, ApiUnreachable, Forbidden, InvalidInput, NotFound
from koordra.kube.client import KubeClient

WITHIN: Final = 30.0
OPERATED: Final = "operated-prometheus=true"
"""Label of the Service that a Prometheus Operator makes for its Prometheus."""
NONE: Final = "none"


class Prometheus:
    """`ask`: the answer to a path of its HTTP API. `where`: for people."""

    def __init__(self, ask: Callable[[str], Any], where: str) -> None:
        self._ask, self.where = ask, where

    def query(self, expression: str) -> list[Reading]:
        """The instant vector now. Raises ApiError where it does not answer, or not with one."""
        answer = self._ask(f"/api/v1/query?{urlencode({'query': expression})}")
        try:
            if answer["status"] != "success":
                raise ApiUnreachable(f"{self.where}: {answer.get('error') or answer['status']}")
            return [_reading(one) for one in answer["data"]["result"]]
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise ApiUnreachable(f"{self.where} does not answer as Prometheus does") from error

    def query_range(
        self, expression: str, *, since: float, until: float, step: float
    ) -> list[tuple[Mapping[str, str], list[tuple[float, float]]]]:
        """Labels and (Unix time, value) of each series. Raises ApiError as `query`."""
        asked = {"query": expression, "start": f"{since:.3f}", "end": f"{until:.3f}", "step": f"{step:g}s"}
        answer = self._ask(f"/api/v1/query_range?{urlencode(asked)}")
        try:
            if answer["status"] != "success":
                raise ApiUnreachable(f"{self.where}: {answer.get('error') or answer['status']}")
            return [
                (one["metric"], [(float(at), float(value)) for at, value in one["values"]])
                for one in answer["data"]["result"]
            ]
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise ApiUnreachable(f"{self.where} does not answer as Prometheus does") from error


def _reading(one: Any) -> Reading:
    labels = {str(name): str(value) for name, value in one["metric"].items()}
    value = float(one["value"][1])
    return Reading(labels.pop("__name__", ""), labels, 0.0 if math.isnan(value) else value)


def prometheus(client: KubeClient, named: str) -> Prometheus | None:
    """`named`: a URL, NAMESPACE/SERVICE[:PORT], `none`, or nothing: then the Prometheus Operator's own, where
    there is exactly one that may be seen. Raises InvalidInput."""
    if named == NONE:
        return None
    if urlsplit(named).scheme in ("http", "https"):
        return Prometheus(lambda path: _got(named.rstrip("/") + path), named)
    namespace, slash, service = named.partition("/")
    if named and not (slash and namespace and service and "/" not in service):
        raise InvalidInput(f"{named!r} is neither a URL nor NAMESPACE/SERVICE[:PORT]", object="--prometheus")
    if not named:
        found = _operated(client)
        if len(found) != 1:
            return None
        namespace, service = found[0]
    name, _, port = service.partition(":")
    path = SERVICES.path(namespace=namespace, name=f"{name}:{port or 9090}", subresource="proxy")
    return Prometheus(
        lambda asked: client.read(path + asked, headers={}, within=WITHIN), f"Prometheus {namespace}/{name}"
    )


def _operated(client: KubeClient) -> list[tuple[str, str]]:
    try:
        found, _ = client.list(SERVICES, label_selector=OPERATED)
    except (Forbidden, NotFound):
        return []
    return [(objects.namespace(one), objects.name(one)) for one in found]


def _got(url: str) -> Any:
    try:
        with urllib.request.urlopen(url, timeout=WITHIN) as answer:
            return json.load(answer)
    except urllib.error.HTTPError as error:
        raise ApiError(f"{url.partition('?')[0]}: {error.code} {error.reason}", code=error.code) from error
    except (OSError, ValueError) as error:
        raise ApiUnreachable(f"{url.partition('?')[0]}: {error}") from error
