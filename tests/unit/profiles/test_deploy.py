"""Which claims the component sends to the webhook, and that it serves them."""

from __future__ import annotations

from typing import Any

import pytest
import yaml

from koordra.api.objects import Object
from koordra.controller.webhook import cert_rotation, handlers
from koordra.controller.webhook.cert_rotation import SERVICE_NAME
from koordra_devcluster.apiserver.access import cel_policies
from tests.unit.deploy.test_rbac import ROOT
from tests.unit.webhook.test_recommended import Known, claim

DOCUMENT = yaml.safe_load((ROOT / "profiler" / "mutating.yaml").read_text())
(WEBHOOK,) = DOCUMENT["webhooks"]


def test_it_calls_what_is_served_and_what_it_says_nothing_of_is_stored() -> None:
    assert DOCUMENT["metadata"]["name"] == cert_rotation.SHARES
    service = WEBHOOK["clientConfig"]["service"]
    assert service["name"] == SERVICE_NAME
    assert service["path"] in handlers.paths(Known())
    assert WEBHOOK["failurePolicy"] == "Ignore"


def with_devices(**fields: Any) -> Object:
    found = claim()
    return {**found, "spec": {"devices": {**found["spec"]["devices"], **fields}}}


OURS = {"opaque": {"driver": "koordra.io", "parameters": {}}}
ANOTHERS = {"opaque": {"driver": "other.io", "parameters": {}}}


@pytest.mark.parametrize(
    ("asked", "comes"),
    [
        (claim(), True),
        (with_devices(config=[ANOTHERS]), True),
        (claim({}), False),
        (claim(owner=""), False),
        (with_devices(config=[ANOTHERS, OURS]), False),
        (with_devices(requests=[{"name": "a", "firstAvailable": []}]), False),
        ({**claim(), "spec": {}}, False),
    ],
)
def test_which_claims_come(asked: Object, comes: bool) -> None:
    values = {"object": asked, "variables": {}, "request": {"operation": "CREATE"}}
    said = [
        cel_policies.evaluate(one["expression"], values, check=lambda *_: False)
        for one in WEBHOOK["matchConditions"]
    ]
    assert all(one is True for one in said) is comes
    assert all(type(one) is bool for one in said)
