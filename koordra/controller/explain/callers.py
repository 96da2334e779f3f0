"""Who asks, and whether they may: the API server is asked both, by TokenReview and SubjectAccessReview.

    claim   get that ResourceClaim
    pod     get that Pod, and ResourceClaims of its namespace
    gang    list Pods and ResourceClaims of its namespace
    node    get that Node, and list Pods and ResourceClaims of all namespaces
    all     list Nodes, Pods and ResourceClaims of all namespaces (the dashboard)

An answer about one's own claim names what stands in its Events too: nodes, devices, and who holds them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from koordra.api import objects
from koordra.api.kinds import (
    NODES,
    PODS,
    RESOURCE_CLAIMS,
    SUBJECT_ACCESS_REVIEWS,
    TOKEN_REVIEWS,
    Kind,
)
from koordra.api.objects import Object
from koordra.controller.explain.question import NOT_ALLOWED, Question, Subject
from koordra.errors import Forbidden
from koordra.kube.client import KubeClient


@dataclass(frozen=True, slots=True)
class Caller:
    """As the API server knows them."""

    user: Mapping[str, Any]

    @property
    def name(self) -> str:
        return str(self.user.get("username") or "")


def authenticated(client: KubeClient, token: str, audience: str = "") -> Caller:
    """Whose token it is: one for this audience, or for the API server itself. Raises Forbidden, and
    ApiUnreachable."""
    spec = {"token": token, **({"audiences": [audience]} if audience else {})}
    found = client.create(TOKEN_REVIEWS, {**TOKEN_REVIEWS.type_meta, "spec": spec})
    status = objects.status_of(found)
    # A server that knows nothing of audiences names none of them, and has judged something else.
    is_meant = not audience or audience in (status.get("audiences") or ())
    if status.get("authenticated") is not True or not is_meant:
        raise Forbidden("the API server does not know the caller's token", code=401, reason="Unauthorized")
    return Caller(objects.fields(status.get("user")))


def require(client: KubeClient, caller: Caller, accesses: Iterable[Object]) -> None:
    """Raises Forbidden with what is lacking, and ApiUnreachable."""
    for access in accesses:
        spec = {
            "user": caller.name,
            "groups": list(caller.user.get("groups") or ()),
            "uid": caller.user.get("uid") or "",
            "extra": dict(caller.user.get("extra") or {}),
            "resourceAttributes": access,
        }
        found = client.create(SUBJECT_ACCESS_REVIEWS, {**SUBJECT_ACCESS_REVIEWS.type_meta, "spec": spec})
        if objects.status_of(found).get("allowed") is not True:
            where = f" in namespace {access['namespace']}" if access.get("namespace") else ""
            text = f"{caller.name} may not {access['verb']} {access['resource']}{where}"
            raise Forbidden(text, code=403, reason=NOT_ALLOWED)


def needed(question: Question) -> Iterator[Object]:
    place = {"namespace": question.namespace}
    match question.subject:
        case Subject.CLAIM:
            yield _access("get", RESOURCE_CLAIMS, name=question.name, **place)
        case Subject.POD:
            yield _access("get", PODS, name=question.name, **place)
            yield _access("get", RESOURCE_CLAIMS, **place)
        case Subject.GANG:
            yield _access("list", PODS, **place)
            yield _access("list", RESOURCE_CLAIMS, **place)
        case Subject.NODE:
            yield _access("get", NODES, name=question.name)
            yield _access("list", PODS)
            yield _access("list", RESOURCE_CLAIMS)


def whole_cluster() -> Iterator[Object]:
    """To see everything that may be asked about."""
    for kind in (NODES, PODS, RESOURCE_CLAIMS):
        yield _access("list", kind)


def _access(verb: str, kind: Kind, **more: str) -> Object:
    return {"verb": verb, "group": kind.group, "version": kind.version, "resource": kind.plural, **more}
