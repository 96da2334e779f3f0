"""Admission of the annotation by which a running claim asks for other limits."""

from __future__ import annotations

import json
from typing import Any

import pytest

from koordra.api.objects import Object
from koordra.api.opaque.resize import ANNOTATION
from koordra.controller.webhook.claims import AskedDevices
from tests.unit.reservations.test_resizes import REFUSED, resizable


def claim(wish: Any, *, template: bool = False) -> Object:
    text = wish if isinstance(wish, str) else json.dumps(wish)
    exactly = {"deviceClassName": "share", "capacity": {"requests": {"memory": "16Gi", "cores": "30"}}}
    inner: Object = {
        "metadata": {"annotations": {ANNOTATION: text}},
        "spec": {"devices": {"requests": [{"name": "gpu", "exactly": exactly}]}},
    }
    if template:
        return {"kind": "ResourceClaimTemplate", "metadata": {"name": "t"}, "spec": inner}
    return {"kind": "ResourceClaim", **inner}


def problems(obj: Object, bounds: Object | None = None) -> list[str]:
    classes = {"share": resizable(bounds)}
    return [str(one) for one in AskedDevices.of(obj).resize_problems(obj, classes)]


@pytest.mark.parametrize("template", [False, True])
@pytest.mark.parametrize(("wish", "why"), REFUSED)
def test_a_wish_beyond_the_class_is_refused(wish: Any, why: str, template: bool) -> None:
    (said,) = problems(claim(wish, template=template))
    assert why.removeprefix("Infeasible: ").removeprefix("request gpu: ") in said
    assert f"metadata.annotations[{ANNOTATION}]" in said


def test_a_wish_within_the_class_is_taken() -> None:
    assert (
        problems(claim({"gpu": {"memory": "60Gi", "cores": 5, "coresPolicy": "Elastic", "priority": 10}}))
        == []
    )
    assert problems(claim({"gpu": {"memory": "16Gi"}}), bounds={}) == [], "it stays as it is"
    (said,) = problems(claim({"gpu": {"memory": "17Gi"}}), bounds={})
    assert "its class does not allow to change it (GpuConfig.resize.memory)" in said


def test_a_claim_without_the_annotation_is_none_of_its_business() -> None:
    obj = claim({})
    obj["metadata"] = {}
    assert problems(obj) == []
