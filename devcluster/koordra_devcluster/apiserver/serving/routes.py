"""From a request (method, path, query, body) to an answer: the API server without HTTP.

/api /apis /version /openapi/v3 /healthz /readyz /livez    discovery and health
/api/v1/..., /apis/<group>/<version>/...                   [namespaces/<ns>/]<plural>[/<name>[/<subresource>]]
"""

from __future__ import annotations

import secrets
from collections.abc import Callable
from datetime import datetime
from typing import Any, Final
from urllib.parse import unquote

from koordra.api.objects import Object
from koordra_devcluster.apiserver.access import rbac
from koordra_devcluster.apiserver.fields.decoding import WriteOptions
from koordra_devcluster.apiserver.requests import (
    Request,
    Response,
    Target,
    access_of,
    body_of,
    content_type_of,
    deletion_options,
    flag,
    revision_of,
    selected,
    table_rows,
    target_of,
    within,
    write_options,
)
from koordra_devcluster.apiserver.resources import BY_PATH, GROUPS, Served
from koordra_devcluster.apiserver.serving import discovery, openapi, tables, watches
from koordra_devcluster.apiserver.serving.audit import Audit
from koordra_devcluster.apiserver.serving.reviews import REVIEWS, answered
from koordra_devcluster.apiserver.serving.service_proxy import passed_on
from koordra_devcluster.apiserver.serving.users import Tokens
from koordra_devcluster.apiserver.serving.watches import WatchOptions
from koordra_devcluster.apiserver.status import Refusal
from koordra_devcluster.apiserver.storage import patches, scale, selectors
from koordra_devcluster.apiserver.storage.registry import Registry, utc_now
from koordra_devcluster.apiserver.storage.store import Entry, encode

DEFAULT_WATCH_SECONDS: Final = 1800.0
_HEALTH: Final = frozenset({"healthz", "readyz", "livez"})


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
        if self._audit is not None and (target := self._named(request.path)) is not None:
            self._audit.write(access_of(target, request), request.user, request.headers, response.code)
        return response

    def _route(self, request: Request) -> Response:
        parts = [part for part in request.path.split("/") if part]
        if parts and parts[0] in _HEALTH:
            return Response(200, b"ok", "text/plain; charset=utf-8")
        if (document := self._document(parts, request)) is not None:
            return document
        target = self._named(request.path)
        if target is None:
            raise Refusal(404, "NotFound", "the server could not find the requested resource")
        access = access_of(target, request)
        if not rbac.allows(self.registry.store, request.user, access):
            raise rbac.refusal(request.user, access)
        return self._resource(target, request)

    def _named(self, path: str) -> Target | None:
        return target_of([unquote(part) for part in path.split("/") if part], self._at)

    def _at(self, group: str, version: str, plural: str) -> Served | None:
        return REVIEWS.get((group, version, plural)) or self.registry.kinds.at(group, version, plural)

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
        if target.served in REVIEWS.values():
            if method != "POST" or target.name:
                raise _method_not_allowed(request)
            found = answered(target.served, body_of(request), tokens=self.tokens, store=self.registry.store)
            return _json(found, 201)
        if target.subresource:
            return self._subresource(target, request)
        if method == "GET" and target.name:
            return self._shown(target, request, self.registry.get(target.served, target.key))
        if method == "GET":
            return self._watch(target, request) if flag(request, "watch") else self._list(target, request)
        if method == "POST" and not target.name:
            options = write_options(request)
            entry = self.registry.create(target.served, target.namespace or "", body_of(request), options)
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
        if target.subresource == "proxy":
            return passed_on(self.registry.store, target, request)
        options = write_options(request)
        match target.subresource, request.method:
            case "status", "GET":
                return self._shown(target, request, self.registry.get(target.served, target.key))
            case "status", "PUT" | "PATCH":
                return self._write(target, request)
            case "token", "POST":
                return _json(self._token(target, request), 201)
            case "scale", "GET":
                return _json(scale.of(self.registry.get(target.served, target.key).object))
            case "scale", "PUT" | "PATCH":
                return _json(self._scale(target, request, options))
            case "binding", "POST":
                return _json(self.registry.bind(target.served, target.key, body_of(request), options), 201)
            case "eviction", "POST":
                self.registry.evict(target.served, target.key, body_of(request), options)
                return _json(
                    {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "code": 201},
                    201,
                )
            case "finalize", "PUT":
                entry = self.registry.finalize(target.served, target.key, body_of(request), options)
                return self._shown(target, request, entry)
        raise _method_not_allowed(request)

    def _scale(self, target: Target, request: Request, options: WriteOptions) -> Object:
        body, content_type = body_of(request), content_type_of(request)

        def change(obj: Object) -> Object:
            if request.method == "PUT":
                return scale.applied(obj, body)
            return scale.applied(obj, patches.apply(content_type, scale.of(obj), body, "Scale"))

        return scale.of(self.registry.scale(target.served, target.key, change, options).object)

    def _token(self, target: Target, request: Request) -> Object:
        """serviceaccounts/token: a token, bound to a Pod or Node where the request says so."""
        account, body = self.registry.get(target.served, target.key).object, body_of(request)
        bound = (body.get("spec") or {}).get("boundObjectRef") or {}
        node, pod = (bound.get("name", ""), "") if bound.get("kind") == "Node" else ("", "")
        if bound.get("kind") == "Pod":
            entry = self.registry.get(
                BY_PATH[("", "v1", "pods")], (target.namespace or "", bound.get("name", ""))
            )
            node, pod = (entry.object.get("spec") or {}).get("nodeName", ""), bound.get("name", "")
        return self.tokens.issue(account, body, node=node, pod=pod)

    def _write(self, target: Target, request: Request) -> Response:
        options = write_options(request)
        served, key, subresource = target.served, target.key, target.subresource
        if request.method == "PUT":
            entry = self.registry.update(served, key, body_of(request), options, subresource=subresource)
        else:
            content_type = content_type_of(request)
            entry = self.registry.patch(
                served, key, body_of(request), options, content_type=content_type, subresource=subresource
            )
        return self._shown(target, request, entry, options=options)

    def _delete(self, target: Target, request: Request) -> Response:
        options = deletion_options(request)
        dry_run = "All" in (options.get("dryRun") or ()) or request.query.get("dryRun") == "All"
        if target.name:
            return _json(
                self.registry.delete(target.served, target.key, options, dry_run=dry_run, user=request.user)
            )
        entries = self.registry.delete_collection(
            target.served, target.namespace, selected(target.served, request), options, dry_run=dry_run
        )
        return self._listed(target, request, entries, self.registry.store.revision)

    def _list(self, target: Target, request: Request) -> Response:
        entries, revision = self.registry.select(
            target.served, target.namespace, selected(target.served, request)
        )
        return self._listed(target, request, entries, revision)

    def _listed(self, target: Target, request: Request, entries: list[Entry], revision: int) -> Response:
        kind = target.served.kind
        include = table_rows(request)
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
        include = table_rows(request)
        if include and request.method == "GET":
            version = entry.object["metadata"]["resourceVersion"]
            return _json(
                tables.table(target.served, [entry.object], self._now(), revision=version, include=include)
            )
        return Response(code, entry.encoded, headers=warnings)

    def _watch(self, target: Target, request: Request) -> Response:
        served, registry = target.served, self.registry
        chosen = selectors.both(selected(served, request), within(target))
        since = revision_of(request)
        initial = flag(request, "sendInitialEvents")
        options = WatchOptions(
            timeout=float(request.query.get("timeoutSeconds") or DEFAULT_WATCH_SECONDS),
            bookmarks=flag(request, "allowWatchBookmarks"),
            initial_events=initial,
            as_table=table_rows(request),
        )
        if since is not None and since > registry.store.revision:
            message = f"Too large resource version: {since}, current: {registry.store.revision}"
            raise Refusal(504, "Timeout", message)
        try:
            subscription = registry.store.follow(served.stored, None if initial or not since else since)
        except Refusal as refusal:
            return Response(200, stream=iter([watches.failed(refusal)]))
        lines = watches.stream(
            served,
            subscription,
            chosen,
            options,
            shown=lambda entry: registry.shown(served, entry),
            now=self._now,
        )
        return Response(200, stream=lines)


def _json(body: Any, code: int = 200) -> Response:
    return Response(code, encode(body))


def _method_not_allowed(request: Request) -> Refusal:
    return Refusal(
        405,
        "MethodNotAllowed",
        f"the server does not allow this method on the requested resource: {request.method}",
    )
