"""Who may write which part of a claim's status (DRAResourceClaimGranularStatusAuthorization, on since 1.36).

Besides `resourceclaims/status` the writer needs, on resources that are no objects:

    allocation, reservedFor   the verb of the request on `resourceclaims/binding`
    devices                   `associated-node:<verb>` (a token bound to the claim's node) or
                              `arbitrary-node:<verb>` on `resourceclaims/driver`, by the name of each driver
                              whose entries change
"""

from __future__ import annotations

from koordra.api import kinds
from koordra.api.objects import Object
from koordra_devcluster.apiserver.access import rbac
from koordra_devcluster.apiserver.access.rbac import Access
from koordra_devcluster.apiserver.serving.users import NODE_NAME, User
from koordra_devcluster.apiserver.status import FieldErrors, invalid
from koordra_devcluster.apiserver.storage.store import Store


def check_claim_status(store: Store, new: Object, old: Object, *, user: User, verb: str) -> None:
    """Raises Refusal 422 naming what the user may not change."""
    if user.is_administrator:
        return
    before, after = old.get("status") or {}, new.get("status") or {}
    errors = FieldErrors()
    namespace = new["metadata"]["namespace"]
    for field in ("allocation", "reservedFor"):
        if before.get(field) != after.get(field) and not _may(
            store, user, Access(verb, "resource.k8s.io", "resourceclaims/binding", namespace)
        ):
            errors.forbidden(
                f"status.{field}", f"changing {field} requires {verb} permission on resourceclaims/binding"
            )
    for driver in sorted(_changed_drivers(before, after)):
        prefixes = ["arbitrary-node"]
        if user.extra.get(NODE_NAME) and user.extra[NODE_NAME][0] in _nodes(after):
            prefixes.append("associated-node")
        wanted = [
            Access(f"{prefix}:{verb}", "resource.k8s.io", "resourceclaims/driver", namespace, driver)
            for prefix in prefixes
        ]
        if not any(_may(store, user, access) for access in wanted):
            errors.forbidden(
                "status.devices",
                f"changing devices of driver {driver} requires permission on resourceclaims/driver",
            )
    if errors.found:
        raise invalid(kinds.RESOURCE_CLAIMS, new["metadata"]["name"], errors.found)


def _may(store: Store, user: User, access: Access) -> bool:
    return rbac.allows(store, user, access)


def _changed_drivers(before: Object, after: Object) -> set[str]:
    old, new = before.get("devices") or [], after.get("devices") or []
    changed = [one for one in old if one not in new] + [one for one in new if one not in old]
    return {str(one.get("driver")) for one in changed}


def _nodes(status: Object) -> set[str]:
    selector = (status.get("allocation") or {}).get("nodeSelector") or {}
    return {
        str(value)
        for term in selector.get("nodeSelectorTerms") or ()
        for field in term.get("matchFields") or ()
        for value in field.get("values") or ()
    }
