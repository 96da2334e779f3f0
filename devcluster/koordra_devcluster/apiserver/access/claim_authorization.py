"""Who may write which part of a claim's status (DRAResourceClaimGranularStatusAuthorization, on since 1.36).

Besides `resourceclaims/status` the writer needs, on resources that are no objects:

    allocation, reservedFor   the verb of the request on `resourceclaims/binding`, cluster-wide
    devices                   `associated-node:<verb>` (a token bound to the claim's node) or
                              `arbitrary-node:<verb>` on `resourceclaims/driver`, by the name of each driver
                              whose entries change, while the claim is allocated
"""

from __future__ import annotations

from typing import Final

from koordra.api import kinds
from koordra.api.objects import Object
from koordra.kube.validation.field_errors import FieldErrors
from koordra_devcluster.apiserver.access import rbac
from koordra_devcluster.apiserver.access.rbac import Access
from koordra_devcluster.apiserver.serving.users import NODE_NAME, User
from koordra_devcluster.apiserver.status import invalid
from koordra_devcluster.apiserver.storage.store import Store

GROUP: Final = "resource.k8s.io"


def check_claim_status(store: Store, new: Object, old: Object, *, user: User, verb: str) -> None:
    """Raises Refusal 422 naming what the user may not change, in the real server's words."""
    before, after = old.get("status") or {}, new.get("status") or {}
    errors = FieldErrors()
    if any(before.get(field) != after.get(field) for field in ("allocation", "reservedFor")):
        said = _refused(store, user, Access(verb, GROUP, "resourceclaims/binding"))
        if said:
            needs = f'requires resource="resourceclaims/binding", verb="{verb}" permission: {said}'
            errors.forbidden("status.allocation", f"changing status.allocation or status.reservedFor {needs}")
    node = _node(after)
    here = ["associated-node"] if node and user.extra.get(NODE_NAME) == (node,) else []
    verbs = [f"{prefix}:{verb}" for prefix in (*here, "arbitrary-node")]
    for driver in sorted(_changed_drivers(before, after)) if after.get("allocation") else ():
        namespace = new["metadata"]["namespace"]
        wanted = (Access(each, GROUP, "resourceclaims/driver", namespace, driver) for each in verbs)
        refused = [_refused(store, user, access) for access in wanted]
        if all(refused):
            needs = f'requires resource="resourceclaims/driver", verb="[{" ".join(verbs)}]" permission'
            errors.forbidden("status.devices", f"changing status.devices {needs}: {refused[0]}")
    if errors.found:
        raise invalid(kinds.RESOURCE_CLAIMS, new["metadata"]["name"], errors.found)


def _refused(store: Store, user: User, access: Access) -> str:
    """Why not; empty where it is allowed."""
    return "" if rbac.allows(store, user, access) else rbac.refusal(user, access).message


def _changed_drivers(before: Object, after: Object) -> set[str]:
    old, new = before.get("devices") or [], after.get("devices") or []
    changed = [one for one in old if one not in new] + [one for one in new if one not in old]
    return {str(one.get("driver")) for one in changed}


def _node(status: Object) -> str:
    """Of an allocation that names its node, and says no more of it."""
    selector = (status.get("allocation") or {}).get("nodeSelector") or {}
    match selector.get("nodeSelectorTerms"):
        case [{"matchFields": [{"key": "metadata.name", "operator": "In", "values": [node]}], **more}]:
            return "" if more.get("matchExpressions") else str(node)
    return ""
