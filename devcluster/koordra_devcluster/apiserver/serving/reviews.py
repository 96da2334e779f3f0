"""TokenReview and SubjectAccessReview: questions that are put to the server and answered, not stored."""

from __future__ import annotations

from typing import Any, Final

from koordra.api import kinds
from koordra.api.objects import Object
from koordra_devcluster.apiserver.access import rbac
from koordra_devcluster.apiserver.resources import Served
from koordra_devcluster.apiserver.serving.users import AUDIENCE, Tokens, User
from koordra_devcluster.apiserver.storage.store import Store

REVIEWS: Final = {
    (kind.group, kind.version, kind.plural): Served(kind, kind.kind)
    for kind in (kinds.TOKEN_REVIEWS, kinds.SUBJECT_ACCESS_REVIEWS)
}


def answered(served: Served, review: Object, *, tokens: Tokens, store: Store) -> Object:
    spec = review.get("spec") or {}
    status = _whose(spec, tokens) if served.kind == kinds.TOKEN_REVIEWS else _may(spec, store)
    return {**review, **served.kind.type_meta, "status": status}


def _whose(spec: Object, tokens: Tokens) -> Object:
    audiences = spec.get("audiences") or ()
    found = tokens.known(str(spec.get("token") or ""), audiences or (AUDIENCE,))
    if found is None:
        return {"user": {}, "error": "[invalid bearer token]"}
    user, meant = found
    return {"authenticated": True, "user": user.to_dict(), **({"audiences": meant} if audiences else {})}


def _may(spec: Object, store: Store) -> Object:
    user = User(str(spec.get("user") or ""), tuple(spec.get("groups") or ()))
    asked: dict[str, Any] = spec.get("resourceAttributes") or {}
    resource = "/".join(filter(None, (asked.get("resource"), asked.get("subresource"))))
    access = rbac.Access(
        str(asked.get("verb")),
        str(asked.get("group") or ""),
        resource,
        str(asked.get("namespace") or ""),
        str(asked.get("name") or ""),
    )
    return {"allowed": rbac.allows(store, user, access)}
