"""services/proxy and pods/proxy: a request passed on to one of the endpoints of a Service, or to a pod, as
the real server does it.

    .../namespaces/NS/services/[SCHEME:]NAME[:PORT]/proxy[/PATH]
    .../namespaces/NS/pods/[SCHEME:]NAME[:PORT]/proxy[/PATH]                      PORT: a number

SCHEME is http or https, whose certificate is not checked; PORT is a port's name, or one of the Service's
numbers. The caller's Authorization goes no further. The endpoints are those of the EndpointSlices that carry
the Service's name. A real server passes on to addresses of pods alone, and never to the loopback; here there
is no network of pods, and endpoints are processes of this machine.
"""

from __future__ import annotations

import http.client
import random
import ssl
from collections.abc import Iterator, Mapping
from typing import Final
from urllib.parse import quote, urlencode

from koordra.api.kinds import PODS
from koordra.api.objects import Object
from koordra_devcluster.apiserver.requests import Request, Response, Target
from koordra_devcluster.apiserver.resources import ENDPOINT_SLICES, SERVICES
from koordra_devcluster.apiserver.status import Refusal, bad_request, not_found
from koordra_devcluster.apiserver.storage.store import Store

SERVICE_NAME: Final = "kubernetes.io/service-name"
"""Label of an EndpointSlice: whose it is."""
WITHIN: Final = 30.0
_NOT_PASSED_ON: Final = frozenset(
    {
        "authorization",
        "connection",
        "content-length",
        "host",
        "keep-alive",
        "proxy-authenticate",
        "proxy-authorization",
        "te",
        "trailer",
        "transfer-encoding",
        "upgrade",
    }
)


def passed_on(store: Store, target: Target, request: Request) -> Response:
    """The endpoint's answer. Raises Refusal where there is none to ask."""
    scheme, name, port = _named(target.name)
    if target.served.kind == PODS:
        host, number = _pod(store, target.namespace or "", name, port)
    else:
        host, number = _endpoint(store, target.namespace or "", name, port, named=target.name)
    headers = {name: value for name, value in request.headers.items() if name not in _NOT_PASSED_ON}
    headers |= {"X-Forwarded-Uri": request.path, "X-Forwarded-Proto": "http"}
    path = "/" + quote(target.path) + (f"?{urlencode(request.query)}" if request.query else "")
    connection: http.client.HTTPConnection = http.client.HTTPConnection(host, number, timeout=WITHIN)
    if scheme == "https":
        connection = http.client.HTTPSConnection(host, number, timeout=WITHIN, context=_unverified())
    try:
        connection.request(request.method, path, request.body or None, headers)
        answer = connection.getresponse()
        kind = answer.headers.get("Content-Type", "application/octet-stream")
        return Response(answer.status, answer.read(), kind)
    except (OSError, http.client.HTTPException) as error:
        raise _unavailable(f"error trying to reach service: {error}") from error
    finally:
        connection.close()


def _named(name: str) -> tuple[str, str, str]:
    """(scheme, Service, port) of `NAME`, `NAME:PORT` or `SCHEME:NAME:PORT`, the port of the last perhaps
    empty."""
    match name.split(":"):
        case [service] if service:
            return "", service, ""
        case [service, port] if service and port:
            return "", service, port
        case ["" | "http" | "https" as scheme, service, port] if service:
            return scheme, service, port
    raise bad_request(f'invalid service request "{name}"')


def _pod(store: Store, namespace: str, name: str, port: str) -> tuple[str, int]:
    entry = store.get(str(PODS), (namespace, name))
    if entry is None:
        raise not_found(PODS, name)
    address = (entry.object.get("status") or {}).get("podIP")
    if not address:
        raise bad_request("address not allowed")
    return str(address), int(port) if port.isdecimal() else 80


def _endpoint(store: Store, namespace: str, service: str, port: str, *, named: str) -> tuple[str, int]:
    """Address and port of one that is ready, whichever."""
    entry = store.get(str(SERVICES), (namespace, service))
    if entry is None:
        raise not_found(SERVICES, service)
    if port.isdecimal():
        port = _name_of(entry.object, int(port))
    found = [
        (str(address), int(one["port"]))
        for slice_ in _slices(store, namespace, service)
        for one in slice_.get("ports") or ()
        if (one.get("name") or "") == port and one.get("port")
        for endpoint in slice_.get("endpoints") or ()
        if (endpoint.get("conditions") or {}).get("ready") is not False
        for address in endpoint.get("addresses") or ()
    ]
    if not found:
        raise _unavailable(f'no endpoints available for service "{named}"')
    return random.choice(found)


def _name_of(service: Object, number: int) -> str:
    for one in service["spec"].get("ports") or ():
        if one.get("port") == number:
            return str(one.get("name") or "")
    raise _unavailable(f'no service port {number} found for service "{service["metadata"]["name"]}"')


def _slices(store: Store, namespace: str, service: str) -> Iterator[Object]:
    for (place, _), entry in store.list(str(ENDPOINT_SLICES))[0]:
        labels: Mapping[str, str] = entry.object["metadata"].get("labels") or {}
        if place == namespace and labels.get(SERVICE_NAME) == service:
            yield entry.object


def _unavailable(message: str) -> Refusal:
    return Refusal(503, "ServiceUnavailable", message)


def _unverified() -> ssl.SSLContext:
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    return context
