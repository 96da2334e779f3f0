"""From a request (method, path, query, body) to an answer: the API server without HTTP.

/api /apis /version /openapi/v3 /healthz /readyz /livez     discovery and health
/api/v1/..., /apis/<group>/<version>/...                    [namespaces/<ns>/]<plural>[/<name>[/<subresource>]]
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Final

import yaml

from koordra.api.objects import Object
from koordra.devcluster.apiserver import (
    discovery,
    openapi,
    patches,
    protobuf,
    rbac,
    selectors,
    status,
    tables,
    watches,
)
from koordra.devcluster.apiserver.audit import Audit
from koordra.devcluster.apiserver.decoding import WriteOptions
from koordra.devcluster.apiserver.rbac import Access
from koordra.devcluster.apiserver.registry import Registry, utc_now
from koordra.devcluster.apiserver.resources import BY_PATH, GROUPS, Served
from koordra.devcluster.apiserver.status import Refusal
from koordra.devcluster.apiserver.store import Entry, encode
from koordra.devcluster.apiserver.users import ADMINISTRATOR, Tokens, User
from koordra.devcluster.apiserver.watches import WatchOptions

DEFAULT_WATCH_SECONDS: Final = 1800.0
_HEALTH: Final = frozenset({"healthz", "readyz", "livez"})


@dataclass(frozen=True, slots=True)
class Request:
    """One HTTP request, decoded. Header names are lower case."""

    method: str
    path: str
    query: Mapping[str, str] = field(default_factory=dict)
    headers: Mapping[str, str] = field(default_factory=dict)
    body: bytes = b""
    user: User = ADMINISTRATOR


@dataclass(frozen=True, slots=True)
class Response:
    """`stream`: lines of a watch instead of a body."""

    code: int
    body: bytes = b""
    content_type: str = "application/json"
    headers: tuple[tuple[str, str], ...] = ()
    stream: Iterator[bytes] | None = None


@dataclass(frozen=True, slots=True)
class Target:
    """What a resource path names. `name` empty: the collection; `namespace` None: all namespaces."""

    served: Served
    namespace: str | None
    name: str
    subresource: str

    @property
    def key(self) -> tuple[str, str]:
        return (self.namespace or "", self.name)


class Api:
    """The whole API as one function."""

    def __init__(
        self,
        registry: Registry,
        *,
        now: Callable[[], datetime] = utc_now,
        tokens: Tokens | None = None,
        audit: Audit | None = None,
    ) -> None:
        self.registry = registry
        self.tokens = tokens or Tokens(secrets.token_urlsafe(24), now=now)
        self._now = now
        self._audit = audit

    def handle(self, request: Request) -> Response:
        """Never raises for anything a client can send: refusals become Status answers."""
        try:
            response = self._route(request)
        except Refusal as refusal:
            response = Response(refusal.code, encode(refusal.to_status()))
        if self._audit is not None and (target := self._target(request.path)) is not None:
            self._audit.write(_access(target, request), request.user, request.headers, response.code)
        return response

    def _route(self, request: Request) -> Response:
        parts = [part for part in request.path.split("/") if part]
        if parts and parts[0] in _HEALTH:
            return Response(200, b"ok", "text/plain; charset=utf-8")
        if (document := self._document(parts, request)) is not None:
            return document
        target = self._target(request.path)
        if target is None:
            raise Refusal(404, "NotFound", "the server could not find the requested resource")
        access = _access(target, request)
        if not rbac.allows(self.registry.store, request.user, access):
            raise rbac.refusal(request.user, access)
        return self._resource(target, request)

    def _target(self, path: str) -> Target | None:
        return _target([part for part in path.split("/") if part], self.registry.kinds.at)

    def _document(self, parts: list[str], request: Request) -> Response | None:
        accept, kinds = request.headers.get("accept", ""), self.registry.kinds.everything()
        if parts in (["api"], ["apis"]) and "as=APIGroupDiscoveryList" in accept and "v=v2" in accept:
            return Response(
                200, encode(discovery.aggregated(kinds, core=parts == ["api"])), discovery.AGGREGATED
            )
        if parts == ["openapi", "v2"] and openapi.V2_PROTOBUF in accept.replace("@", "."):
            return Response(200, openapi.V2_EMPTY_PROTOBUF, openapi.V2_PROTOBUF)
        found: Object | None = None
        match parts:
            case ["version"]:
                found = discovery.version()
            case ["api"]:
                found = discovery.core_versions()
            case ["apis"]:
                found = discovery.group_list(kinds)
            case ["apis", group]:
                found = discovery.group(group, kinds)
            case ["api", version]:
                found = discovery.resource_list("", version, kinds)
            case ["apis", group, version]:
                found = discovery.resource_list(group, version, kinds)
            case ["openapi", "v2"]:
                found = openapi.V2_EMPTY
            case ["openapi", "v3"]:
                found = openapi.index(self.registry.kinds.served())
            case ["openapi", "v3", "api", version] if ("", version) in GROUPS:
                found = openapi.document("", version)
            case ["openapi", "v3", "apis", group, version] if (group, version) in GROUPS:
                found = openapi.document(group, version)
            case ["openapi", "v3", "apis", group, version]:
                found = openapi.custom_document(group, version, self.registry.kinds.served())
        return None if found is None else Response(200, encode(found))

    def _resource(self, target: Target, request: Request) -> Response:
        method = request.method
        if target.subresource:
            return self._subresource(target, request)
        if method == "GET" and target.name:
            return self._shown(target, request, self.registry.get(target.served, target.key))
        if method == "GET":
            return self._watch(target, request) if _flag(request, "watch") else self._list(target, request)
        if method == "POST" and not target.name:
            options = _write_options(request)
            entry = self.registry.create(target.served, target.namespace or "", _body(request), options)
            return self._shown(target, request, entry, code=201, options=options)
        if method in ("PUT", "PATCH") and target.name:
            return self._write(target, request)
        if method == "DELETE":
            return self._delete(target, request)
        raise _method_not_allowed(request)

    def _subresource(self, target: Target, request: Request) -> Response:
        known = {name: verbs for name, _, verbs in target.served.subresources}
        if target.subresource not in known or not target.name:
            raise Refusal(404, "NotFound", "the server could not find the requested resource")
        options = _write_options(request)
        match target.subresource, request.method:
            case "status", "GET":
                return self._shown(target, request, self.registry.get(target.served, target.key))
            case "status", "PUT" | "PATCH":
                return self._write(target, request)
            case "token", "POST":
                return _json(self._token(target, request), 201)
            case "binding", "POST":
                return _json(self.registry.bind(target.served, target.key, _body(request), options), 201)
            case "eviction", "POST":
                deletion = _body(request).get("deleteOptions") or {}
                self.registry.delete(target.served, target.key, deletion, dry_run=options.dry_run)
                return _json(
                    {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "code": 201},
                    201,
                )
            case "finalize", "PUT":
                entry = self.registry.finalize(target.served, target.key, _body(request), options)
                return self._shown(target, request, entry)
        raise _method_not_allowed(request)

    def _token(self, target: Target, request: Request) -> Object:
        """serviceaccounts/token: a token, bound to a Pod or Node where the request says so."""
        account, body = self.registry.get(target.served, target.key).object, _body(request)
        bound = (body.get("spec") or {}).get("boundObjectRef") or {}
        node, pod = (bound.get("name", ""), "") if bound.get("kind") == "Node" else ("", "")
        if bound.get("kind") == "Pod":
            entry = self.registry.get(
                BY_PATH[("", "v1", "pods")], (target.namespace or "", bound.get("name", ""))
            )
            node, pod = (entry.object.get("spec") or {}).get("nodeName", ""), bound.get("name", "")
        return self.tokens.issue(account, body, node=node, pod=pod)

    def _write(self, target: Target, request: Request) -> Response:
        options = _write_options(request)
        served, key, subresource = target.served, target.key, target.subresource
        if request.method == "PUT":
            entry = self.registry.update(served, key, _body(request), options, subresource=subresource)
        else:
            content_type = request.headers.get("content-type", "").partition(";")[0].strip()
            entry = self.registry.patch(
                served, key, _body(request), options, content_type=content_type, subresource=subresource
            )
        return self._shown(target, request, entry, options=options)

    def _delete(self, target: Target, request: Request) -> Response:
        options = _deletion_options(request)
        dry_run = "All" in (options.get("dryRun") or ()) or request.query.get("dryRun") == "All"
        if target.name:
            return _json(
                self.registry.delete(target.served, target.key, options, dry_run=dry_run, user=request.user)
            )
        entries = self.registry.delete_collection(
            target.served, target.namespace, _selected(target.served, request), options, dry_run=dry_run
        )
        return self._listed(target, request, entries, self.registry.store.revision)

    def _list(self, target: Target, request: Request) -> Response:
        entries, revision = self.registry.select(
            target.served, target.namespace, _selected(target.served, request)
        )
        return self._listed(target, request, entries, revision)

    def _listed(self, target: Target, request: Request, entries: list[Entry], revision: int) -> Response:
        kind = target.served.kind
        include = _as_table(request)
        if include:
            objects = (entry.object for entry in entries)
            return _json(
                tables.table(target.served, objects, self._now(), revision=str(revision), include=include)
            )
        head = encode(
            {
                "kind": f"{kind.kind}List",
                "apiVersion": kind.api_version,
                "metadata": {"resourceVersion": str(revision)},
            }
        )
        return Response(
            200, head[:-1] + b',"items":[' + b",".join(entry.encoded for entry in entries) + b"]}"
        )

    def _shown(
        self,
        target: Target,
        request: Request,
        entry: Entry,
        *,
        code: int = 200,
        options: WriteOptions | None = None,
    ) -> Response:
        warnings = tuple(("Warning", f'299 - "{one}"') for one in (options.warnings if options else ()))
        include = _as_table(request)
        if include and request.method == "GET":
            version = entry.object["metadata"]["resourceVersion"]
            return _json(
                tables.table(target.served, [entry.object], self._now(), revision=version, include=include)
            )
        return Response(code, entry.encoded, headers=warnings)

    def _watch(self, target: Target, request: Request) -> Response:
        served, registry = target.served, self.registry
        selected = selectors.both(_selected(served, request), _within(target))
        since = _revision(request)
        initial = _flag(request, "sendInitialEvents")
        options = WatchOptions(
            timeout=float(request.query.get("timeoutSeconds") or DEFAULT_WATCH_SECONDS),
            bookmarks=_flag(request, "allowWatchBookmarks"),
            initial_events=initial,
            as_table=_as_table(request),
        )
        if since is not None and since > registry.store.revision:
            message = f"Too large resource version: {since}, current: {registry.store.revision}"
            raise Refusal(504, "Timeout", message, retry_after=1)
        try:
            subscription = registry.store.follow(served.stored, None if initial or not since else since)
        except Refusal as refusal:
            return Response(200, stream=iter([watches.failed(refusal)]))
        lines = watches.stream(
            served,
            subscription,
            selected,
            options,
            shown=lambda entry: registry.shown(served, entry),
            now=self._now,
        )
        return Response(200, stream=lines)


def _access(target: Target, request: Request) -> Access:
    """What a request wants, in the words of RBAC."""
    kind, name = target.served.kind, target.name
    match request.method:
        case "GET" | "HEAD":
            verb = "get" if name else "watch" if _flag(request, "watch") else "list"
        case "DELETE":
            verb = "delete" if name else "deletecollection"
        case method:
            verb = {"POST": "create", "PUT": "update", "PATCH": "patch"}.get(method, method.lower())
    resource = f"{kind.plural}/{target.subresource}" if target.subresource else kind.plural
    return Access(verb, kind.group, resource, target.namespace or "", name)


def _target(parts: list[str], custom: Callable[[str, str, str], Served | None]) -> Target | None:
    if parts[:1] == ["api"] and len(parts) >= 3:
        group, version, rest = "", parts[1], parts[2:]
    elif parts[:1] == ["apis"] and len(parts) >= 4:
        group, version, rest = parts[1], parts[2], parts[3:]
    else:
        return None
    namespace: str | None = None

    def at(plural: str) -> Served | None:
        return BY_PATH.get((group, version, plural)) or custom(group, version, plural)

    if rest[0] == "namespaces" and len(rest) >= 3 and at(rest[2]) is not None:
        namespace, rest = rest[1], rest[2:]
    served = at(rest[0])
    if served is None or len(rest) > 3 or (namespace is not None) > served.kind.namespaced:
        return None
    if served.kind.namespaced and namespace is None and len(rest) > 1:
        return None
    name, subresource = [*rest[1:], "", ""][:2]
    return Target(served, namespace, name, subresource)


def _within(target: Target) -> selectors.Predicate:
    if target.namespace is None and not target.name:
        return selectors.everything
    return lambda obj: target.namespace in (None, obj["metadata"].get("namespace"))


def _selected(served: Served, request: Request) -> selectors.Predicate:
    chosen: selectors.Predicate = selectors.everything
    if request.query.get("labelSelector"):
        chosen = selectors.labels(request.query["labelSelector"])
    if request.query.get("fieldSelector"):
        chosen = selectors.both(chosen, selectors.fields(served.stored, request.query["fieldSelector"]))
    return chosen


def _revision(request: Request) -> int | None:
    """resourceVersion of a watch; None and 0 mean "from the current state"."""
    text = request.query.get("resourceVersion", "")
    if not text:
        return None
    if not text.isdigit():
        raise status.bad_request(f'invalid resource version "{text}"')
    return int(text)


def _flag(request: Request, name: str) -> bool:
    return request.query.get(name, "").lower() in ("1", "true")


def _as_table(request: Request) -> str:
    """What a table's rows should carry, or "" when the client did not ask for a table first."""
    first = request.headers.get("accept", "").partition(",")[0].replace(" ", "")
    if "as=Table" not in first or "g=meta.k8s.io" not in first or "v=v1beta1" in first:
        return ""
    return request.query.get("includeObject") or "Metadata"


def _write_options(request: Request) -> WriteOptions:
    dry_run = request.query.get("dryRun", "")
    if dry_run not in ("", "All"):
        raise status.bad_request(f'invalid dryRun value "{dry_run}": supported values: "All"')
    return WriteOptions(
        dry_run=dry_run == "All",
        field_validation=request.query.get("fieldValidation") or "Warn",
        user=request.user,
        verb="patch" if request.method == "PATCH" else "update",
    )


def _deletion_options(request: Request) -> Object:
    options = _body(request) if request.body else {}
    if "gracePeriodSeconds" in request.query:
        options = options | {"gracePeriodSeconds": int(request.query["gracePeriodSeconds"])}
    return options


def _body(request: Request) -> Any:
    """The JSON body (apply patches may be YAML)."""
    content_type = request.headers.get("content-type", "").partition(";")[0].strip()
    if content_type == protobuf.CONTENT_TYPE:
        return protobuf.decode(request.body)
    try:
        return json.loads(request.body)
    except ValueError as error:
        if content_type in (patches.APPLY_PATCH, "application/yaml"):
            try:
                return yaml.safe_load(request.body)
            except yaml.YAMLError as problem:
                raise status.bad_request(f"error decoding YAML: {problem}") from problem
        if content_type not in ("", "application/json", *patches.CONTENT_TYPES):
            raise Refusal(
                415,
                "UnsupportedMediaType",
                "the body of the request was in an unknown format - accepted media types include: application/json",
            ) from error
        raise status.bad_request(f"the body of the request is not JSON: {error}") from error


def _json(body: Any, code: int = 200) -> Response:
    return Response(code, encode(body))


def _method_not_allowed(request: Request) -> Refusal:
    return Refusal(
        405,
        "MethodNotAllowed",
        f"the server does not allow this method on the requested resource: {request.method}",
    )
