"""Who asks: the administrator of the cluster, or a ServiceAccount with a token that the server made for it.

Tokens of ServiceAccounts come from `serviceaccounts/token` (TokenRequest), may be bound to a Pod or a Node
or be for other audiences than this server, and are kept in memory: after a restart of the server they have to
be asked for again, as after the end of their life.
"""

from __future__ import annotations

import hmac
import secrets
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, Final

from koordra.api.objects import Object
from koordra_devcluster.apiserver.fields.schema import format_time

NODE_NAME: Final = "authentication.kubernetes.io/node-name"
POD_NAME: Final = "authentication.kubernetes.io/pod-name"
ADMINISTRATORS: Final = "system:masters"
_LIFETIME: Final = 3600
AUDIENCE: Final = "https://kubernetes.default.svc"
"""Of tokens that say nothing else: this server."""


@dataclass(frozen=True, slots=True)
class User:
    """As the API server shows users to webhooks and policies."""

    name: str
    groups: tuple[str, ...] = ()
    uid: str = ""
    extra: Mapping[str, tuple[str, ...]] = field(default_factory=dict, hash=False)

    @property
    def is_administrator(self) -> bool:
        return ADMINISTRATORS in self.groups

    def to_dict(self) -> Object:
        found: Object = {"username": self.name, "groups": list(self.groups)}
        if self.uid:
            found["uid"] = self.uid
        if self.extra:
            found["extra"] = {name: list(values) for name, values in self.extra.items()}
        return found


ANONYMOUS: Final = User("system:anonymous", ("system:unauthenticated",))
ADMINISTRATOR: Final = User("developer", (ADMINISTRATORS, "system:authenticated"))


class Tokens:
    """Tokens in, users out."""

    def __init__(self, administrator: str, *, now: Callable[[], datetime]) -> None:
        self._administrator = administrator
        self._now = now
        self._lock = threading.Lock()
        self._issued: dict[str, tuple[User, datetime, tuple[str, ...]]] = {}

    def user(self, token: str) -> User | None:
        """Whom this server lets in by it."""
        found = self.known(token, (AUDIENCE,))
        return found and found[0]

    def known(self, token: str, audiences: Sequence[str]) -> tuple[User, list[str]] | None:
        """Whose token it is, and for which of the audiences; None where it is for none of them."""
        if hmac.compare_digest(token.encode(), self._administrator.encode()):
            return (ADMINISTRATOR, [AUDIENCE]) if AUDIENCE in audiences else None
        with self._lock:
            found = self._issued.get(token)
        if found is None or found[1] <= self._now():
            return None
        meant = [one for one in audiences if one in found[2]]
        return (found[0], meant) if meant else None

    def issue(self, account: Object, request: Mapping[str, Any], *, node: str = "", pod: str = "") -> Object:
        """The answered TokenRequest. `node`, `pod`: what the token is bound to."""
        asked = request.get("spec") or {}
        seconds = int(asked.get("expirationSeconds") or _LIFETIME)
        audiences = [str(one) for one in asked.get("audiences") or ()] or [AUDIENCE]
        ends = self._now() + timedelta(seconds=seconds)
        token = secrets.token_urlsafe(24)
        with self._lock:
            self._issued[token] = (account_user(account, node=node, pod=pod), ends, tuple(audiences))
        spec: Object = {"audiences": audiences, "expirationSeconds": seconds}
        bound = asked.get("boundObjectRef")
        return {
            "kind": "TokenRequest",
            "apiVersion": "authentication.k8s.io/v1",
            "metadata": {"name": account["metadata"]["name"], "namespace": account["metadata"]["namespace"]},
            "spec": {**spec, **({"boundObjectRef": bound} if bound else {})},
            "status": {"token": token, "expirationTimestamp": format_time(ends)},
        }


def account_user(account: Object, *, node: str = "", pod: str = "") -> User:
    namespace, name = account["metadata"]["namespace"], account["metadata"]["name"]
    extra = {key: (value,) for key, value in ((NODE_NAME, node), (POD_NAME, pod)) if value}
    groups = ("system:serviceaccounts", f"system:serviceaccounts:{namespace}", "system:authenticated")
    return User(f"system:serviceaccount:{namespace}:{name}", groups, account["metadata"]["uid"], extra)
