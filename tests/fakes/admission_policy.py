"""What a shipped ValidatingAdmissionPolicy says to a write, evaluated as the development cluster does."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

from koordra.api.objects import Object
from koordra_devcluster.apiserver.access import cel_policies

ACCOUNTS = "system:serviceaccount:koordra-system:"
NODE_NAME = "authentication.kubernetes.io/node-name"


def policies(path: Path) -> dict[str, Object]:
    """Those of a file, by name."""
    found = (
        obj for obj in yaml.safe_load_all(path.read_text()) if obj["kind"] == "ValidatingAdmissionPolicy"
    )
    return {obj["metadata"]["name"]: obj["spec"] for obj in found}


def refusal(
    policy: Object,
    old: Object | None,
    new: Object | None,
    *,
    account: str,
    node: str | None = None,
    decides: bool = False,
) -> str | None:
    """The message of the first validation that says no; None where none does, or the policy does not concern
    the writer. `account`: a ServiceAccount of koordra's, or a whole user name;
    `decides`: RBAC lets it do what the policy asks for."""
    user: Object = {"username": account if ":" in account else ACCOUNTS + account}
    if node is not None:
        user["extra"] = {NODE_NAME: [node]}
    operation = "CREATE" if old is None else "DELETE" if new is None else "UPDATE"
    request = {"operation": operation, "userInfo": user}
    values: dict[str, Any] = {"object": new, "oldObject": old, "request": request, "variables": {}}

    def said(expression: str) -> Any:
        return cel_policies.evaluate(expression, values, check=lambda *_: decides)

    if not all(said(one["expression"]) is True for one in policy.get("matchConditions") or ()):
        return None
    for variable in policy.get("variables") or ():
        values["variables"][variable["name"]] = said(variable["expression"])
    for validation in policy["validations"]:
        if said(validation["expression"]) is not True:
            text = validation.get("messageExpression")
            return str(said(text) if text else validation["message"])
    return None
