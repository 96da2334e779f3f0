"""Claims that cannot be meant are told so, once, and disturb nobody."""

from __future__ import annotations

import pytest

from koordra.api import names, objects
from koordra.api.kinds import DEVICE_CLASSES, RESOURCE_CLAIMS
from koordra.controller.happenings import ALLOCATED
from tests.fakes.joint_cluster import JointCluster, claim


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ({"device_class": "nonsense.koordra.io"}, "DeviceClass nonsense.koordra.io does not exist"),
        ({"memory": "0"}, "memory"),
        ({"count": 99}, "99"),
    ],
)
def test_bad_claims_are_told_what_is_wrong_and_disturb_nobody(asked: dict[str, object], said: str) -> None:
    cluster = JointCluster()
    cluster.claim("bad", **asked)
    cluster.claim("good")
    cluster.pod("p", "bad", priority=1000)
    cluster.pod("q", "good")
    cluster.settle(passes=4)
    assert cluster.allocation("good") is not None
    told = [happening for happening in cluster.told if happening.reason != ALLOCATED]
    assert len(told) == 1, "told once"
    assert said in told[0].message
    assert [objects.name(about) for about in told[0].about] == ["bad", "p"]
    assert told[0].warning


def test_malformed_cel_and_unknown_parameters_are_told_on_the_claim() -> None:
    cluster = JointCluster()
    selector = claim("cel")
    selector["spec"]["devices"]["requests"][0]["exactly"]["selectors"] = [{"cel": {"expression": "device.("}}]
    parameters = claim("opaque")
    parameters["spec"]["devices"]["config"] = [
        {
            "opaque": {
                "driver": "koordra.io",
                "parameters": {"apiVersion": "koordra.io/v1alpha1", "kind": "GpuConfig", "isolatoin": "none"},
            }
        }
    ]
    for entry in (selector, parameters):
        cluster.api.create(RESOURCE_CLAIMS, entry)
        cluster.pod(f"p-{objects.name(entry)}", objects.name(entry))
    cluster.settle()
    told = {objects.name(happening.about[0]): happening for happening in cluster.told}
    assert told["cel"].reason == "SelectorError"
    assert "isolatoin" in told["opaque"].message
    assert "isolation" in told["opaque"].message


def test_two_drivers_in_one_claim_are_refused_with_the_remedy() -> None:
    cluster = JointCluster()
    cluster.api.create(DEVICE_CLASSES, {"metadata": {"name": "tpu.example.org"}, "spec": {}})
    mixed = claim("mixed")
    mixed["spec"]["devices"]["requests"].append(
        {"name": "tpu", "exactly": {"deviceClassName": "tpu.example.org", "count": 1}}
    )
    cluster.api.create(RESOURCE_CLAIMS, mixed)
    cluster.pod("p", "mixed")
    cluster.settle()
    assert cluster.reasons() == ["ForeignDriver"]
    assert "tpu.example.org" in cluster.told[0].message


def test_a_class_that_appears_later_unlocks_the_claim() -> None:
    cluster = JointCluster()
    cluster.api.delete(DEVICE_CLASSES, names.CLASS_GPU)
    cluster.claim("a")
    cluster.pod("p", "a")
    cluster.settle()
    assert cluster.reasons() == ["SelectorMismatch"]
    from tests.fakes.joint_cluster import device_class

    cluster.api.create(DEVICE_CLASSES, device_class(names.CLASS_GPU, "gpu"))
    cluster.settle()
    assert cluster.allocation("a") is not None
