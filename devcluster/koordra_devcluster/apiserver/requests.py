"""A request to the API server taken apart: what it names, what it wants, its options and its body."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from koordra.api.kinds import PODS
from koordra.api.objects import Object
from koordra.errors import InvalidManifest
from koordra.yaml_text import read_document
from koordra_devcluster.apiserver import status
from koordra_devcluster.apiserver.access.rbac import Access
from koordra_devcluster.apiserver.fields.decoding import WriteOptions
from koordra_devcluster.apiserver.resources import SERVICES, Served
from koordra_devcluster.apiserver.serving import protobuf
from koordra_devcluster.apiserver.serving.users import ADMINISTRATOR, User
from koordra_devcluster.apiserver.status import Refusal
from koordra_devcluster.apiserver.storage import patches, selectors


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
    """What a resource path names. `name` empty: the collection; `namespace` None: all namespaces. `path`:
    what follows a subresource that passes requests on."""

    served: Served
    namespace: str | None
    name: str
    subresource: str
    path: str = ""

    @property
    def key(self) -> tuple[str, str]:
        return (self.namespace or "", self.name)


def access_of(target: Target, request: Request) -> Access:
    """What a request wants, in the words of RBAC."""
    kind, name = target.served.kind, target.name
    match request.method:
        case "GET" | "HEAD" if name:
            verb = "get"
        case "GET" | "HEAD":
            verb, name = "watch" if flag(request, "watch") else "list", _selected_name(request)
        case "DELETE":
            verb = "delete" if name else "deletecollection"
        case method:
            verb = {"POST": "create", "PUT": "update", "PATCH": "patch"}.get(method, method.lower())
    resource = f"{kind.plural}/{target.subresource}" if target.subresource else kind.plural
    return Access(verb, kind.group, resource, target.namespace or "", name)


def _selected_name(request: Request) -> str:
    """Of the one object that a list or watch selects: the name that RBAC judges it by."""
    terms = dict(
        term.split("=", 1) for term in request.query.get("fieldSelector", "").split(",") if "=" in term
    )
    return terms.get("metadata.name", "").removeprefix("=")


def target_of(parts: list[str], kinds: Callable[[str, str, str], Served | None]) -> Target | None:
    if parts[:1] == ["api"] and len(parts) >= 3:
        group, version, rest = "", parts[1], parts[2:]
    elif parts[:1] == ["apis"] and len(parts) >= 4:
        group, version, rest = parts[1], parts[2], parts[3:]
    else:
        return None
    namespace: str | None = None

    def at(plural: str) -> Served | None:
        return kinds(group, version, plural)

    if rest[0] == "namespaces" and len(rest) >= 3 and at(rest[2]) is not None:
        namespace, rest = rest[1], rest[2:]
    served = at(rest[0])
    if served is None or (namespace is not None) > served.kind.namespaced:
        return None
    path = ""
    if served.kind in (SERVICES, PODS) and rest[2:3] == ["proxy"]:
        path, rest = "/".join(rest[3:]), rest[:3]
    if len(rest) > 3:
        return None
    if served.kind.namespaced and namespace is None and len(rest) > 1:
        return None
    name, subresource = [*rest[1:], "", ""][:2]
    return Target(served, namespace, name, subresource, path)


def within(target: Target) -> selectors.Predicate:
    if target.namespace is None and not target.name:
        return selectors.everything
    return lambda obj: target.namespace in (None, obj["metadata"].get("namespace"))


def selected(served: Served, request: Request) -> selectors.Predicate:
    chosen: selectors.Predicate = selectors.everything
    if request.query.get("labelSelector"):
        chosen = selectors.labels(request.query["labelSelector"])
    if request.query.get("fieldSelector"):
        chosen = selectors.both(chosen, selectors.fields(served.stored, request.query["fieldSelector"]))
    return chosen


def revision_of(request: Request) -> int | None:
    """resourceVersion of a watch; None and 0 mean "from the current state"."""
    text = request.query.get("resourceVersion", "")
    if not text:
        return None
    if not text.isdigit():
        raise status.bad_request(f'invalid resource version "{text}"')
    return int(text)


def flag(request: Request, name: str) -> bool:
    return request.query.get(name, "").lower() in ("1", "true")


def table_rows(request: Request) -> str:
    """What a table's rows should carry, or "" when the client did not ask for a table first."""
    first = request.headers.get("accept", "").partition(",")[0].replace(" ", "")
    if "as=Table" not in first or "g=meta.k8s.io" not in first or "v=v1beta1" in first:
        return ""
    return request.query.get("includeObject") or "Metadata"


def write_options(request: Request) -> WriteOptions:
    dry_run = request.query.get("dryRun", "")
    if dry_run not in ("", "All"):
        raise status.bad_request(f'invalid dryRun value "{dry_run}": supported values: "All"')
    return WriteOptions(
        dry_run=dry_run == "All",
        field_validation=request.query.get("fieldValidation") or "Warn",
        user=request.user,
        verb="patch" if request.method == "PATCH" else "update",
    )


def deletion_options(request: Request) -> Object:
    options = body_of(request) if request.body else {}
    if "gracePeriodSeconds" in request.query:
        options = options | {"gracePeriodSeconds": int(request.query["gracePeriodSeconds"])}
    return options


def body_of(request: Request) -> Any:
    """The JSON body (apply patches may be YAML)."""
    content_type = content_type_of(request)
    if content_type == protobuf.CONTENT_TYPE:
        return protobuf.decode(request.body)
    try:
        return json.loads(request.body)
    except ValueError as error:
        if content_type in (patches.APPLY_PATCH, "application/yaml"):
            try:
                return read_document(request.body.decode(), source="the body")
            except (InvalidManifest, UnicodeDecodeError) as problem:
                raise status.bad_request(f"error decoding YAML: {problem}") from problem
        if content_type not in ("", "application/json", *patches.CONTENT_TYPES):
            raise Refusal(
                415,
                "UnsupportedMediaType",
                "the body of the request was in an unknown format - accepted media types include: application/json",
            ) from error
        raise status.bad_request(f"the body of the request is not JSON: {error}") from error


def content_type_of(request: Request) -> str:
    return request.headers.get("content-type", "").partition(";")[0].strip()
