"""Koordinator's Reservation becomes koordra's."""

from __future__ import annotations

from typing import Any

import pytest

from tests.unit.compat.pods import Dict, container, converted

K = "koordinator.sh/"


def held(**spec: Any) -> Dict:
    ask = spec.pop("ask", {K + "gpu": 200, K + "rdma": 100})
    pod = {"containers": [container(ask=ask, sides=("requests",))], **spec.pop("pod", {})}
    return {
        "apiVersion": "scheduling.koordinator.sh/v1alpha1",
        "kind": "Reservation",
        "metadata": {"name": "r", "uid": "1"},
        "spec": {
            "template": {"metadata": {"namespace": "team"}, "spec": pod},
            "owners": [{"labelSelector": {"matchLabels": {"app": "a"}}}],
            **spec,
        },
        "status": {"phase": "Available"},
    }


def test_devices_owners_and_time() -> None:
    found = converted(held(ttl="1h", allocateOnce=False, pod={"nodeName": "n1"}))
    (made,) = found.objects
    assert (made["apiVersion"], made["metadata"]) == (
        "koordra.io/v1alpha1",
        {"name": "r", "namespace": "team"},
    )
    spec = made["spec"]
    (claim,) = spec.pop("claims")
    assert [request["name"] for request in claim["devices"]["requests"]] == ["gpu", "rdma"]
    assert spec == {
        "owners": [{"labelSelector": {"matchLabels": {"app": "a"}}}],
        "allocateOnce": False,
        "ttl": "1h",
        "nodeSelector": {"kubernetes.io/hostname": "n1"},
    }


def test_what_koordinator_takes_where_nothing_is_said() -> None:
    owners = [
        {"object": {"kind": "Pod", "name": "p", "namespace": "team"}},
        {"controller": {"kind": "ReplicaSet", "name": "s", "namespace": "team"}},
    ]
    spec = converted(held(owners=owners)).objects[0]["spec"]
    assert (spec["ttl"], spec["allocateOnce"]) == ("24h", True)
    assert spec["owners"] == [{"pod": "p"}, {"controller": {"kind": "ReplicaSet", "name": "s"}}]


@pytest.mark.parametrize(
    ("more", "told"),
    [
        ({"ask": {"cpu": 1}}, "asks for no devices"),
        ({"ttl": "0s"}, "never ends"),
        ({"preAllocation": True}, "takes devices over"),
        ({"unschedulable": True}, "lets nobody in"),
        ({"taints": [{"key": "a"}]}, "lets only some"),
        ({"allocatePolicy": "Restricted"}, "write Aligned"),
        ({"owners": []}, "names nobody"),
        ({"owners": [{}]}, "describes nobody"),
        ({"owners": [{"object": {"kind": "Job", "name": "j"}}]}, "is no pod by its name"),
        (
            {
                "owners": [
                    {"object": {"name": "p", "namespace": "a"}},
                    {"object": {"name": "p", "namespace": "b"}},
                ]
            },
            "are of a, b",
        ),
        ({"pod": {"affinity": {"nodeAffinity": {}}}}, "write nodeSelector"),
        ({"reserved": 1}, "is no field of a Reservation"),
    ],
)
def test_what_koordra_keeps_otherwise_is_refused(more: dict[str, Any], told: str) -> None:
    found = converted(held(**more))
    (note,) = found.refused
    assert told in str(note)
    assert not found.objects
