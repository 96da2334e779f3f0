"""v1beta1 and v1beta2 at the border: what comes in is v1, what goes out is what the server serves."""

from __future__ import annotations

from typing import Any

import pytest

from koordra.api.kinds import from_v1, to_v1

GROUP = "resource.k8s.io"

CLAIM_V1: dict[str, Any] = {
    "apiVersion": f"{GROUP}/v1",
    "kind": "ResourceClaim",
    "metadata": {"name": "c"},
    "spec": {
        "devices": {
            "requests": [
                {"name": "gpu", "exactly": {"deviceClassName": "gpu.koordra.io", "count": 2}},
                {"name": "nic", "firstAvailable": [{"name": "a", "deviceClassName": "nic.koordra.io"}]},
            ],
            "constraints": [{"matchAttribute": "koordra.io/pcieSwitch"}],
        }
    },
    "status": {"allocation": {"devices": {"results": [{"device": "gpu-0"}]}}},
}
CLAIM_BETA: dict[str, Any] = {
    **CLAIM_V1,
    "apiVersion": f"{GROUP}/v1beta1",
    "spec": {
        "devices": {
            "requests": [
                {"name": "gpu", "deviceClassName": "gpu.koordra.io", "count": 2},
                {"name": "nic", "firstAvailable": [{"name": "a", "deviceClassName": "nic.koordra.io"}]},
            ],
            "constraints": [{"matchAttribute": "koordra.io/pcieSwitch"}],
        }
    },
}
BODY: dict[str, Any] = {"attributes": {"type": {"string": "gpu"}}, "capacity": {"memory": {"value": "80Gi"}}}
SLICE_V1: dict[str, Any] = {
    "apiVersion": f"{GROUP}/v1",
    "kind": "ResourceSlice",
    "metadata": {"name": "s"},
    "spec": {"driver": "koordra.io", "nodeName": "n", "devices": [{"name": "gpu-0", **BODY}]},
}
SLICE_BETA: dict[str, Any] = {
    **SLICE_V1,
    "apiVersion": f"{GROUP}/v1beta1",
    "spec": {"driver": "koordra.io", "nodeName": "n", "devices": [{"name": "gpu-0", "basic": BODY}]},
}


def _template(claim: dict[str, Any]) -> dict[str, Any]:
    return {**claim, "kind": "ResourceClaimTemplate", "spec": {"spec": claim["spec"]}}


@pytest.mark.parametrize(
    ("new", "old"),
    [(CLAIM_V1, CLAIM_BETA), (SLICE_V1, SLICE_BETA), (_template(CLAIM_V1), _template(CLAIM_BETA))],
    ids=["claim", "slice", "template"],
)
def test_v1beta1_has_other_shapes(new: dict[str, Any], old: dict[str, Any]) -> None:
    assert to_v1(old) == new
    assert from_v1(new, "v1beta1") == old
    assert to_v1(new) is new


def test_v1beta2_has_the_same_shapes() -> None:
    old = {**CLAIM_V1, "apiVersion": f"{GROUP}/v1beta2"}
    assert to_v1(old) == CLAIM_V1
    assert from_v1(CLAIM_V1, "v1beta2") == old


def test_other_groups_are_left_alone() -> None:
    pod = {"apiVersion": "v1", "kind": "Pod", "spec": {}}
    assert to_v1(pod) is pod
