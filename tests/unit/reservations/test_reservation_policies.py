"""Who may reserve what, by the policies and roles that are shipped."""

from __future__ import annotations

from pathlib import Path

import pytest

from koordra.api.objects import Object
from koordra_devcluster.apiserver.access import cel_policies
from tests.fakes.admission_policy import policies
from tests.unit.reservations.test_reservations import reservation

SHIPPED = Path(__file__).resolve().parents[3] / "deploy" / "kustomize" / "reservations" / "policies.yaml"


@pytest.mark.parametrize(
    ("priority", "may", "allowed"),
    [(None, False, True), (0, False, True), (5, False, False), (5, True, True)],
)
def test_a_priority_is_for_who_may_prioritize(priority: int | None, may: bool, allowed: bool) -> None:
    said = reservation() if priority is None else reservation(priority=priority)
    assert _says("koordra-reservation-priority", {"object": said}, may) is allowed


@pytest.mark.parametrize(("namespaces", "allowed"), [("default, other", True), ("other", False)])
@pytest.mark.parametrize("nested", [False, True])
def test_a_class_that_is_not_for_the_namespace_is_not_reserved(
    namespaces: str, allowed: bool, nested: bool
) -> None:
    said = reservation()
    (request,) = said["spec"]["claims"][0]["devices"]["requests"]
    if nested:
        request["firstAvailable"] = [{"name": "x", **request.pop("exactly")}]
    name = "gpu.koordra.io"
    params = {"metadata": {"name": name, "annotations": {"koordra.io/namespaces": namespaces}}}
    listed = [one.strip() for one in namespaces.split(",")]
    values = {"object": said, "params": params, "variables": {"allowed": listed}}
    assert _says("koordra-reservation-classes", values, False) is allowed
    other = {**params, "metadata": {**params["metadata"], "name": "else"}}
    assert _says("koordra-reservation-classes", {**values, "params": other}, False)


def _says(name: str, values: Object, may: bool) -> bool:
    policy = policies(SHIPPED)[name]
    request = {"operation": "CREATE", "namespace": "default"}
    return all(
        cel_policies.evaluate(one["expression"], {"request": request, **values}, check=lambda *_: may) is True
        for one in policy["validations"]
    )
