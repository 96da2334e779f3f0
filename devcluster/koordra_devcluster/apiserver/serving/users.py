"""Who asks: the administrator of the cluster, or a ServiceAccount with a token that the server made for it.

Tokens of ServiceAccounts come from `serviceaccounts/token` (TokenRequest), may be bound to a Pod or a Node
and are kept in memory: after a restart of the server they have to be asked for again, as after the end of
their life.
"""

from __future__ import annotations

import hmac
import secrets
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, Final

from koordra.api.objects import Object
from koordra_devcluster.apiserver.fields.schema import format_time

NODE_NAME: Final = "authentication.kubernetes.io/node-name"
POD_NAME: Final = "authentication.kubernetes.io/pod-name"
ADMINISTRATORS: Final = "system:masters"
_LIFETIME: Final = 3600


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
        self._issued: dict[str, tuple[User, datetime]] = {}

    def user(self, token: str) -> User | None:
        if hmac.compare_digest(token.encode(), self._administrator.encode()):
            return ADMINISTRATOR
        with self._lock:
            found = self._issued.get(token)
        if found is None or found[1] <= self._now():
            return None
        return found[0]

    def issue(self, account: Object, request: Mapping[str, Any], *, node: str = "", pod: str = "") -> Object:
        """The answered TokenRequest. `node`, `pod`: what the token is bound to."""
        seconds = int((request.get("spec") or {}).get("expirationSeconds") or _LIFETIME)
        ends = self._now() + timedelta(seconds=seconds)
        token = secrets.token_urlsafe(24)
        with self._lock:
            self._issued[token] = (account_user(account, node=node, pod=pod), ends)
        spec = {"audiences": ["https://kubernetes.default.svc"], "expirationSeconds": seconds}
        bound = (request.get("spec") or {}).get("boundObjectRef")
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
