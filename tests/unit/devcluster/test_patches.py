"""JSON patch, merge patch, strategic merge, apply."""

from __future__ import annotations

from typing import Any

import pytest

from koordra_devcluster.apiserver.status import Refusal
from koordra_devcluster.apiserver.storage import patches


@pytest.mark.parametrize(
    ("document", "operations", "expected"),
    [
        ({"a": 1}, [{"op": "add", "path": "/b", "value": 2}], {"a": 1, "b": 2}),
        ({"a": [1, 2]}, [{"op": "add", "path": "/a/1", "value": 9}], {"a": [1, 9, 2]}),
        ({"a": [1]}, [{"op": "add", "path": "/a/-", "value": 2}], {"a": [1, 2]}),
        ({"a": 1, "b": 2}, [{"op": "remove", "path": "/a"}], {"b": 2}),
        ({"a": 1}, [{"op": "replace", "path": "/a", "value": {"x": 1}}], {"a": {"x": 1}}),
        ({"a/b": 1, "c~d": 2}, [{"op": "remove", "path": "/a~1b"}, {"op": "remove", "path": "/c~0d"}], {}),
        ({"a": 1}, [{"op": "move", "from": "/a", "path": "/b"}], {"b": 1}),
        ({"a": [1]}, [{"op": "copy", "from": "/a", "path": "/b"}], {"a": [1], "b": [1]}),
        ({"a": 1}, [{"op": "test", "path": "/a", "value": 1}], {"a": 1}),
    ],
)
def test_json_patch(document: Any, operations: Any, expected: Any) -> None:
    assert patches.json_patch(document, operations) == expected


@pytest.mark.parametrize(
    ("operations", "code"),
    [
        ([{"op": "remove", "path": "/x"}], 422), ([{"op": "test", "path": "/a", "value": 2}], 422),
        ([{"op": "replace", "path": "/x", "value": 1}], 422), ([{"op": "add", "path": "/l/5", "value": 1}], 422),
        ([{"op": "add", "path": "/x"}], 400), ([{"op": "sing", "path": "/a"}], 400), ({}, 400),
        ([{"op": "remove", "path": "a"}], 400), ([{"op": "remove", "path": ""}], 400),
    ],
)  # fmt: skip
def test_json_patches_that_fail(operations: Any, code: int) -> None:
    with pytest.raises(Refusal) as refused:
        patches.json_patch({"a": 1, "l": []}, operations)
    assert refused.value.code == code


def test_a_json_patch_does_not_touch_its_input() -> None:
    document = {"a": {"b": [1]}}
    patches.json_patch(document, [{"op": "add", "path": "/a/b/-", "value": 2}])
    assert document == {"a": {"b": [1]}}


def test_merge_patch_replaces_lists_and_removes_nulls() -> None:
    document = {"a": {"b": 1, "c": 2}, "l": [1, 2]}
    assert patches.merge_patch(document, {"a": {"b": None, "d": 3}, "l": [3]}) == {
        "a": {"c": 2, "d": 3},
        "l": [3],
    }


def pod_with(**spec: Any) -> dict[str, Any]:
    return {"spec": spec}


@pytest.mark.parametrize(
    ("document", "patch", "expected"),
    [
        (
            pod_with(containers=[{"name": "a", "image": "1"}, {"name": "b", "image": "1"}]),
            pod_with(containers=[{"name": "b", "image": "2"}]),
            pod_with(containers=[{"name": "a", "image": "1"}, {"name": "b", "image": "2"}]),
        ),
        (
            pod_with(schedulingGates=[{"name": "x"}, {"name": "y"}]),
            pod_with(schedulingGates=[{"$patch": "delete", "name": "x"}]),
            pod_with(schedulingGates=[{"name": "y"}]),
        ),
        (
            pod_with(tolerations=[{"key": "a"}]),
            pod_with(tolerations=[{"key": "b"}]),
            pod_with(tolerations=[{"key": "b"}]),
        ),
        (
            pod_with(containers=[{"name": "a", "env": [{"name": "X", "value": "1"}]}]),
            pod_with(containers=[{"name": "a", "env": [{"name": "Y", "value": "2"}]}]),
            pod_with(
                containers=[{"name": "a", "env": [{"name": "X", "value": "1"}, {"name": "Y", "value": "2"}]}]
            ),
        ),
        (
            {"metadata": {"finalizers": ["a", "b"]}},
            {"metadata": {"$deleteFromPrimitiveList/finalizers": ["a"], "finalizers": ["c"]}},
            {"metadata": {"finalizers": ["b", "c"]}},
        ),
        (
            {"metadata": {"labels": {"a": "1", "b": "2"}}},
            {"metadata": {"labels": {"a": None}}},
            {"metadata": {"labels": {"b": "2"}}},
        ),
    ],
)
def test_strategic_merge(document: Any, patch: Any, expected: Any) -> None:
    assert patches.strategic_merge(document, patch, "Pod") == expected


def test_conditions_merge_by_type() -> None:
    document = {
        "status": {"conditions": [{"type": "Ready", "status": "False"}, {"type": "Other", "status": "True"}]}
    }
    patch = {"status": {"conditions": [{"type": "Ready", "status": "True"}]}}
    merged = patches.strategic_merge(document, patch, "Pod")
    assert merged["status"]["conditions"] == [
        {"type": "Ready", "status": "True"},
        {"type": "Other", "status": "True"},
    ]


def test_lists_with_several_keys_merge_only_when_applied() -> None:
    devices = [{"driver": "d", "pool": "p", "device": "x", "data": {"a": 1}}]
    more = [{"driver": "d", "pool": "p", "device": "y"}]
    document, patch = {"status": {"devices": devices}}, {"status": {"devices": more}}
    assert patches.strategic_merge(document, patch, "ResourceClaim")["status"]["devices"] == more
    applied = patches.strategic_merge(document, patch, "ResourceClaim", apply_keys=True)
    assert applied["status"]["devices"] == devices + more


def test_unknown_forms_are_refused() -> None:
    with pytest.raises(Refusal) as refused:
        patches.apply("text/html", {}, {}, "Pod")
    assert refused.value.code == 415
    with pytest.raises(Refusal):
        patches.apply(patches.MERGE_PATCH, {}, [], "Pod")
