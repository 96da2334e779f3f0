"""The Kubernetes API over plain dicts.

`koordra.kube.kubeconfig` finds the server and its credentials; requests and answers are JSON that this module
encodes and decodes itself, because the models of the `kubernetes` library refuse fields they do not know and
cost more than the request.

Of resource.k8s.io an older server may serve older versions only: after `negotiate` each kind is read and
written in the best version that the server has, and callers see v1 (koordra.api.kinds). A patch of a spec is
sent as it is; koordra patches metadata and status only, which have one shape.

How many requests are sent, and in which order those that have to wait, is said by `request_limit`; a 429 or
503 with Retry-After holds all of them back but Leases.

Every failure leaves as an `ApiError` of errors.py. `ApiUnreachable` means that nobody can say whether the
request took effect (connection lost, time-out, 429, 5xx): the caller reads again before it writes again.
Nothing is retried here.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any, Final
from urllib.parse import urlencode, urlsplit

import urllib3
from urllib3.exceptions import HTTPError

from koordra.api import kinds, objects
from koordra.api.kinds import RESOURCE_GROUP, Kind
from koordra.api.objects import Object
from koordra.errors import ApiUnreachable, Forbidden, Gone, NotFound
from koordra.kube.request_limit import LANES, Lane, RequestLimit
from koordra.kube.wire import decode, decode_status, encoded, lines, message_of, retry_after, status_error
from koordra.process.progress import resting, step

MERGE_PATCH: Final = "application/merge-patch+json"
JSON_PATCH: Final = "application/json-patch+json"

PAGE: Final = 500
"""Objects that a list is asked for at a time."""
WATCH_SECONDS: Final = 300
"""The least that a watch is asked to last. Each draws up to twice that, as client-go's do."""
_OVERLOAD: Final = (429, 503)
"""To an eviction a 429 is the answer of a disruption budget, and concerns nobody else."""

Query = Mapping[str, str] | None
"""Parameters of a URL; those that are empty are left out."""
Decode = Callable[[bytes], Any]


class KubeClient:
    """One API server. Safe to use from several threads. `pool` has the server's TLS settings, `credentials`
    the headers that each request carries. `timeout`: seconds after which a request (not a watch) is given up.
    `user_agent` names the component in audit logs."""

    def __init__(
        self,
        url: str,
        pool: urllib3.PoolManager,
        credentials: Callable[[], Mapping[str, str]],
        *,
        timeout: float,
        user_agent: str,
        limit: RequestLimit | None = None,
    ) -> None:
        self._url, self._pool, self._credentials = url, pool, credentials
        self.timeout = timeout
        self._user_agent = user_agent
        self._limit = limit or RequestLimit()
        self._served: dict[str, str] = {}

    @property
    def server(self) -> str:
        """The server's URL for messages: without the credentials that a kubeconfig may put into it."""
        return urlsplit(self._url)._replace(netloc=urlsplit(self._url).netloc.rpartition("@")[2]).geturl()

    def negotiate(self) -> Mapping[str, str]:
        """Ask which versions of resource.k8s.io are served: plural -> the best version. Used from now on.

        Raises ApiUnreachable, and NotFound where it has none of them. A server that will not say is spoken to
        in v1.
        """
        found: dict[str, str] = {}
        there_is_none = True
        for version in kinds.SERVED:
            try:
                answer = self._answer("GET", f"/apis/{RESOURCE_GROUP}/{version}")
            except NotFound:
                continue
            except Forbidden:
                answer = {}
            there_is_none = False
            for resource in answer.get("resources") or ():
                found.setdefault(str(resource.get("name")), version)
        self._served = found
        if there_is_none:
            raise NotFound(
                f"the API server has no {RESOURCE_GROUP} of {', '.join(kinds.SERVED)}; koordra needs Kubernetes 1.34 or "
                f"newer, or an older one with DynamicResourceAllocation and one of these turned on",
                code=404,
                reason="NotFound",
            )
        return found

    def _as_served(self, kind: Kind) -> Kind:
        version = self._served.get(kind.plural) if kind.group == RESOURCE_GROUP else None
        return replace(kind, version=version) if version else kind

    def get(
        self, kind: Kind, name: str, *, namespace: str | None = None, spare_within: float | None = None
    ) -> Object:
        """`spare_within`: it gives way to other requests, and is given up after so many seconds."""
        return self._send("GET", kind, name, namespace=namespace, spare_within=spare_within)

    def newest(
        self, kind: Kind, *, namespace: str | None = None, field_selector: str = "", label_selector: str = ""
    ) -> str:
        """The server's resourceVersion now; raises what a list of the kind would raise (NotFound, Forbidden,
        ...), at the cost of one object."""
        query = {"limit": "1", "fieldSelector": field_selector, "labelSelector": label_selector}
        path = self._as_served(kind).path(namespace=namespace)
        return objects.resource_version(self._answer("GET", path, query))

    def list(
        self,
        kind: Kind,
        *,
        namespace: str | None = None,
        field_selector: str = "",
        label_selector: str = "",
        each: Callable[[Object], Object] = lambda obj: obj,
    ) -> tuple[list[Object], str]:
        """All objects and the resourceVersion to watch from. Items carry apiVersion and kind; `each` says
        what is kept of one, before the next page is read.

        The pages are one moment of the server's history. When that is lost before the last page (410; etcd
        keeps five minutes), all is read anew in one answer, as client-go's pager does: pages of a later
        moment (the token that comes with the 410) would hide from a watch what happened in between.
        """
        items: list[Object] = []
        query = {"limit": str(PAGE), "fieldSelector": field_selector, "labelSelector": label_selector}
        served = self._as_served(kind)
        while True:
            try:
                page = self._answer("GET", served.path(namespace=namespace), query)
            except Gone:
                if not query.get("continue"):
                    raise
                items, query = [], {**query, "limit": "", "continue": ""}
                continue
            for item in page.get("items") or ():
                item.setdefault("apiVersion", served.api_version)
                item.setdefault("kind", kind.kind)
                items.append(each(kinds.to_v1(item)))
            query["continue"] = str(objects.metadata(page).get("continue") or "")
            if not query["continue"]:
                return items, objects.resource_version(page)

    def create(
        self,
        kind: Kind,
        body: Object,
        *,
        namespace: str | None = None,
        name: str | None = None,
        subresource: str | None = None,
        strict: bool = False,
    ) -> Object:
        """Create; raises Conflict (reason AlreadyExists) when the name is taken.

        With `name` and `subresource` the body goes to a subresource (`pods/<name>/binding`). `strict` has the
        server refuse unknown and duplicate fields, as kubectl does for what people write.
        """
        place = (namespace or objects.namespace(body)) if kind.namespaced else None
        query = {"fieldValidation": "Strict"} if strict else None
        return self._send(
            "POST", kind, name, namespace=place, subresource=subresource, body=body, query=query
        )

    def update(self, kind: Kind, body: Object, *, subresource: str | None = None) -> Object:
        """Replace the object (or its status); conditional on metadata.resourceVersion where the body carries
        one."""
        place = body["metadata"].get("namespace")
        return self._send(
            "PUT", kind, body["metadata"]["name"], namespace=place, subresource=subresource, body=body
        )

    def patch(
        self,
        kind: Kind,
        name: str,
        body: Any,
        *,
        namespace: str | None = None,
        subresource: str | None = None,
        content_type: str = MERGE_PATCH,
    ) -> Object:
        """Merge patch by default; put a resourceVersion into the patch to make it conditional. Bytes are sent
        as they are."""
        return self._send(
            "PATCH",
            kind,
            name,
            namespace=namespace,
            subresource=subresource,
            body=body,
            content_type=content_type,
        )

    def delete(
        self,
        kind: Kind,
        name: str,
        *,
        namespace: str | None = None,
        uid: str | None = None,
        resource_version: str | None = None,
        grace_period: int | None = None,
        propagation: str | None = None,
    ) -> None:
        """Delete; with `uid` only that very object, with `resource_version` only unchanged. Raises NotFound,
        and Conflict.

        `propagation`: what becomes of the objects it owns: Background (the default), Foreground or Orphan.
        """
        preconditions = {"uid": uid or None, "resourceVersion": resource_version or None}
        options = {
            "apiVersion": "v1",
            "kind": "DeleteOptions",
            "preconditions": objects.without_none(preconditions) or None,
            "gracePeriodSeconds": grace_period,
            "propagationPolicy": propagation,
        }
        self._send("DELETE", kind, name, namespace=namespace, body=objects.without_none(options))

    def watch(
        self,
        kind: Kind,
        *,
        resource_version: str,
        namespace: str | None = None,
        field_selector: str = "",
        label_selector: str = "",
    ) -> Iterator[tuple[str, Object]]:
        """(event type, object) from `resource_version` on, until the server ends the stream after one to two
        WATCH_SECONDS.

        BOOKMARK events are passed on: their object carries only a newer resourceVersion. Raises Gone when the
        history no longer reaches back, or cannot be told: what is there has to be listed again.
        ApiUnreachable: it can be watched from the last version that was seen.
        """
        seconds = round(WATCH_SECONDS * (1 + random.random()))
        query = {"watch": "true", "allowWatchBookmarks": "true", "timeoutSeconds": str(seconds)}
        query |= {"resourceVersion": resource_version, "fieldSelector": field_selector}
        query["labelSelector"] = label_selector
        served = self._as_served(kind)
        with resting():
            path = served.path(namespace=namespace)
            response = self._open("GET", path, query, read_timeout=seconds + 15.0)
        try:
            for line in lines(response):
                event = decode(line)
                kind_of_event, obj = str(event.get("type")), event.get("object") or {}
                if kind_of_event == "ERROR":
                    raise Gone(
                        message_of(obj), code=int(obj.get("code") or 500), reason=str(obj.get("reason", ""))
                    )
                obj.setdefault("apiVersion", served.api_version)
                obj.setdefault("kind", kind.kind)
                yield kind_of_event, kinds.to_v1(obj)
        except (HTTPError, OSError) as error:
            raise ApiUnreachable(f"watch of {kind} broke off: {error}") from error
        finally:
            response.close()
            response.release_conn()

    def read(self, path: str, *, headers: Mapping[str, str], within: float, decoded: Decode = decode) -> Any:
        """A GET of a path that names no object: what is behind a proxy. `within` seconds."""
        return self._answer("GET", path, headers=headers, timeout=within, decoded=decoded)

    @property
    def authorization(self) -> str:
        """`Bearer <token>` of who asks; empty for who has another credential."""
        return next((one for key, one in self._credentials().items() if key.lower() == "authorization"), "")

    def version(self) -> str:
        return str(self._answer("GET", "/version").get("gitVersion", ""))

    def _send(
        self,
        method: str,
        kind: Kind,
        name: str | None,
        *,
        namespace: str | None,
        subresource: str | None = None,
        body: Any = None,
        spare_within: float | None = None,
        **more: Any,
    ) -> Object:
        """A request about one object. Whole objects travel in the version that is served."""
        served = self._as_served(kind)
        if isinstance(body, dict) and objects.group_of(body) == served.group == RESOURCE_GROUP:
            body = kinds.from_v1(body, served.version)
        path = served.path(namespace=namespace, name=name, subresource=subresource)
        lane = LANES.get(kind, Lane.ORDINARY) if spare_within is None else Lane.SPARE
        return kinds.to_v1(self._answer(method, path, body=body, lane=lane, timeout=spare_within, **more))

    def _answer(
        self, method: str, path: str, query: Query = None, *, decoded: Decode = decode, **more: Any
    ) -> Any:
        response = self._open(method, path, query, **more)
        try:
            return decoded(response.read())
        except (HTTPError, OSError) as error:
            raise ApiUnreachable(f"{method} {path}: the answer broke off: {error}") from error
        finally:
            response.release_conn()

    def _open(
        self,
        method: str,
        path: str,
        query: Query = None,
        *,
        body: Any = None,
        content_type: str = "application/json",
        read_timeout: float | None = None,
        lane: Lane = Lane.ORDINARY,
        timeout: float | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> urllib3.BaseHTTPResponse:
        step()  # each request has a time limit
        left = self._limit.take(lane, within=min(timeout or self.timeout, self.timeout))
        given = {name: value for name, value in (query or {}).items() if value}
        url = f"{self._url}{path}" + (f"?{urlencode(given)}" if given else "")
        sent = {"Accept": "application/json", "User-Agent": self._user_agent, **(headers or {})}
        if body is not None:
            sent["Content-Type"] = content_type
        try:
            response = self._pool.request(
                method,
                url,
                body=body if body is None or isinstance(body, bytes) else encoded(body),
                headers={**sent, **self._credentials()},
                preload_content=False,
                timeout=urllib3.Timeout(
                    connect=left,
                    read=read_timeout or left,
                    total=None if read_timeout else left,
                ),
            )
            if response.status in _OVERLOAD and not path.endswith("/eviction"):
                self._limit.rest(retry_after(response))
            if response.status >= 300:
                raise status_error(response.status, decode_status(response.read()))
        except (HTTPError, OSError) as error:
            raise ApiUnreachable(f"{method} {self.server}{path}: {error}") from error
        return response
