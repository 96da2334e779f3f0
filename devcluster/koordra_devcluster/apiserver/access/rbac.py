"""RBAC: whether a user may do what is asked, from the Roles and bindings that are stored. Administrators may
do everything.

As in the real server: rules only allow, a ClusterRoleBinding counts everywhere, a RoleBinding (to a Role or a
ClusterRole) in its namespace. ServiceAccounts are subjects by kind or by the user name they have.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from koordra.api.kinds import Kind
from koordra.api.objects import Object
from koordra_devcluster.apiserver.resources import (
    CLUSTER_ROLE_BINDINGS,
    CLUSTER_ROLES,
    ROLE_BINDINGS,
    ROLES,
)
from koordra_devcluster.apiserver.serving.users import User
from koordra_devcluster.apiserver.status import Refusal
from koordra_devcluster.apiserver.storage.store import Store


@dataclass(frozen=True, slots=True)
class Access:
    """One question. `resource` with its subresource: `pods/binding`. `namespace` empty: cluster-wide."""

    verb: str
    group: str
    resource: str
    namespace: str = ""
    name: str = ""

    def __str__(self) -> str:
        """As the real server words a refusal."""
        where = f'in the namespace "{self.namespace}"' if self.namespace else "at the cluster scope"
        return f'cannot {self.verb} resource "{self.resource}" in API group "{self.group}" {where}'


def allows(store: Store, user: User, access: Access) -> bool:
    """Whether some rule allows it."""
    if user.is_administrator:
        return True
    return any(
        _matches(rule, access)
        for role in _roles(store, user, access.namespace)
        for rule in role.get("rules") or ()
    )


def refusal(user: User, access: Access) -> Refusal:
    full = (
        f"{access.resource.partition('/')[0]}.{access.group}"
        if access.group
        else access.resource.partition("/")[0]
    )
    name = f'"{access.name}" ' if access.name else ""
    return Refusal(403, "Forbidden", f'{full} {name}is forbidden: User "{user.name}" {access}')


def _roles(store: Store, user: User, namespace: str) -> Iterable[Object]:
    for _, entry in store.list(str(CLUSTER_ROLE_BINDINGS))[0]:
        if _binds(entry.object, user):
            yield from _role(store, entry.object, "")
    for (place, _), entry in store.list(str(ROLE_BINDINGS))[0]:
        if place == namespace and _binds(entry.object, user):
            yield from _role(store, entry.object, place)


def _role(store: Store, binding: Object, namespace: str) -> Iterable[Object]:
    reference = binding["roleRef"]
    kind: Kind = CLUSTER_ROLES if reference["kind"] == "ClusterRole" else ROLES
    entry = store.get(str(kind), ("" if kind == CLUSTER_ROLES else namespace, reference["name"]))
    if entry is not None:
        yield entry.object


def _binds(binding: Object, user: User) -> bool:
    for subject in binding.get("subjects") or ():
        match subject.get("kind"):
            case "ServiceAccount":
                place = subject.get("namespace") or binding["metadata"].get("namespace", "")
                if user.name == f"system:serviceaccount:{place}:{subject['name']}":
                    return True
            case "User":
                if user.name == subject["name"]:
                    return True
            case "Group":
                if subject["name"] in user.groups:
                    return True
    return False


def _matches(rule: Mapping[str, Any], access: Access) -> bool:
    names = rule.get("resourceNames") or ()
    return (
        _has(rule.get("verbs"), access.verb)
        and _has(rule.get("apiGroups"), access.group)
        and _has_resource(rule.get("resources") or (), access.resource)
        and (not names or access.name in names)
    )


def _has(listed: Any, wanted: str) -> bool:
    return "*" in (listed or ()) or wanted in (listed or ())


def _has_resource(listed: Iterable[str], wanted: str) -> bool:
    _, slash, subresource = wanted.partition("/")
    return any(one in ("*", wanted) or (slash and one == f"*/{subresource}") for one in listed)
