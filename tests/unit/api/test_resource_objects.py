"""Slices, claims and allocations from and to plain dicts: what is read, what is refused and in which
words."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import pytest

from koordra.allocator.devices.inventory import Inventory
from koordra.allocator.features import Features
from koordra.api.allocation import Allocation
from koordra.api.claims import Constraint, DeviceClass, ResourceClaim, Toleration
from koordra.api.devices import Attribute, Device, DeviceID, DeviceTaintRule, ResourceSlice, Taint
from koordra.api.reader import LONGEST_CONTENT
from koordra.errors import InvalidManifest
from koordra.placement.node_class import NodeClass, NodeClasses

Dict = dict[str, Any]


def resource_slice(*devices: Dict, **spec: Any) -> Dict:
    pool = {"name": "node-1", "generation": 2, "resourceSliceCount": 1}
    body = {"driver": "koordra.io", "pool": pool, "nodeName": "node-1", "devices": list(devices), **spec}
    return {"kind": "ResourceSlice", "metadata": {"name": "slice-1"}, "spec": body}


def claim(*requests: Dict, **devices: Any) -> Dict:
    spec = {"devices": {"requests": list(requests), **devices}}
    return {"kind": "ResourceClaim", "metadata": {"name": "c", "namespace": "team-a"}, "spec": spec}


def test_a_device_is_read_with_all_it_says() -> None:
    device = {
        "name": "gpu-0",
        "attributes": {"model": {"string": "H100"}, "numa": {"ints": [0, 1]}, "new": {"duration": "1s"}},
        "capacity": {
            "memory": {
                "value": "80Gi",
                "requestPolicy": {"default": "80Gi", "validRange": {"min": "1Mi", "step": "1Mi"}},
            }
        },
        "consumesCounters": [{"counterSet": "card", "counters": {"slices": {"value": "8"}}}],
        "taints": [{"key": "k", "value": "v", "effect": "NoExecute", "timeAdded": "2026-01-01T00:00:00Z"}],
        "allowMultipleAllocations": True,
        "bindingConditions": ["Ready"],
        "someFutureField": {},
    }
    found = ResourceSlice.from_dict(resource_slice(device)).devices[0]
    assert found.attributes == {
        "model": Attribute("string", "H100"),
        "numa": Attribute("ints", (0, 1)),
        "new": Attribute("", None),
    }
    assert found.attributes["numa"].elements == {("int", 0), ("int", 1)}
    assert found.capacity["memory"].value == Decimal(80 * 1024**3)
    assert found.capacity["memory"].policy is not None
    assert found.consumes_counters == {"card": {"slices": Decimal(8)}}
    assert [str(taint) for taint in found.taints] == ["k=v:NoExecute"]
    assert found.allow_multiple_allocations


def test_v1beta1_keeps_the_device_under_basic() -> None:
    found = ResourceSlice.from_dict(
        resource_slice({"name": "d", "basic": {"attributes": {"a": {"bool": True}}}})
    )
    assert found.devices[0].attributes == {"a": Attribute("bool", True)}


@pytest.mark.parametrize(
    ("device", "words"),
    [
        ({}, "spec.devices[0].name: is missing"),
        (
            {"name": "d", "attributes": {"a": {"int": "1"}}},
            "spec.devices[0].attributes[a]: '1' is not of type int",
        ),
        ({"name": "d", "attributes": {"a": {"int": True}}}, "True is not of type int"),
        (
            {"name": "d", "capacity": {"m": {"value": "1 Gi"}}},
            "spec.devices[0].capacity[m].value: '1 Gi' is not a quantity",
        ),
        (
            {"name": "d", "capacity": {"m": {"value": "1", "requestPolicy": {"validRange": {"step": "0"}}}}},
            "is not above zero",
        ),
        ({"name": "d", "taints": {}}, "is not a list"),
        ({"name": "d", "allowMultipleAllocations": "yes"}, "is neither true nor false"),
    ],
)
def test_a_slice_that_cannot_be_meant_names_the_field(device: Dict, words: str) -> None:
    with pytest.raises(InvalidManifest) as error:
        ResourceSlice.from_dict(resource_slice(device))
    assert str(error.value).startswith("ResourceSlice slice-1: spec.devices[0]") or "is not a list" in str(
        error.value
    )
    assert words in str(error.value)


def test_defaults_of_the_api_server_may_be_absent() -> None:
    found = ResourceClaim.from_dict(
        {
            "metadata": {"name": "c"},
            "spec": {"devices": {"requests": [{"name": "gpu", "exactly": {"deviceClassName": "k"}}]}},
        }
    )
    alternative = found.requests[0].alternatives[0]
    assert (found.key, alternative.mode, alternative.count, found.uid) == ("default/c", "ExactCount", 1, "")


def test_requests_of_every_form() -> None:
    exact = {"name": "a", "exactly": {"deviceClassName": "k", "count": 2}}
    flat = {"name": "b", "deviceClassName": "k"}
    either = {
        "name": "c",
        "firstAvailable": [{"name": "x", "deviceClassName": "k"}, {"name": "y", "deviceClassName": "l"}],
    }
    found = ResourceClaim.from_dict(claim(exact, flat, either)).requests
    assert [[alternative.name for alternative in request.alternatives] for request in found] == [
        ["a"],
        ["b"],
        ["x", "y"],
    ]
    assert [request.prioritized for request in found] == [False, False, True]


@pytest.mark.parametrize(
    ("request_", "words"),
    [
        ({"exactly": {}}, "requests[0].name: is missing"),
        (
            {"name": "a", "exactly": {"count": -1}},
            "requests[0].exactly.count: -1 devices cannot be asked for",
        ),
        ({"name": "a", "exactly": {"count": "2"}}, "'2' is not a whole number"),
        (
            {"name": "a", "exactly": {}, "firstAvailable": [{"name": "x"}]},
            "has both exactly and firstAvailable",
        ),
        (
            {"name": "a", "exactly": {"tolerations": [{"operator": "Like"}]}},
            "'Like' is not an operator; use Exists or Equal",
        ),
        ({"name": "a", "exactly": {"tolerations": [{"effect": "Never"}]}}, "'Never' is not an effect"),
        (
            {"name": "a", "exactly": {"capacity": {"requests": {"memory": "lots"}}}},
            "capacity.requests[memory]: 'lots' is not a quantity",
        ),
    ],
)
def test_a_claim_that_cannot_be_meant_names_the_field(request_: Dict, words: str) -> None:
    with pytest.raises(InvalidManifest) as error:
        ResourceClaim.from_dict(claim(request_))
    assert str(error.value).startswith("ResourceClaim team-a/c: spec.devices.requests[0]")
    assert words in str(error.value)


@pytest.mark.parametrize(
    ("toleration", "taint", "tolerated"),
    [
        (Toleration("", "Exists", "", ""), Taint("k", "v"), True),
        (Toleration("k", "Exists", "", ""), Taint("k", "v"), True),
        (Toleration("k", "", "v", ""), Taint("k", "v"), True),
        (Toleration("k", "Equal", "w", ""), Taint("k", "v"), False),
        (Toleration("k", "Exists", "", "NoExecute"), Taint("k", "v", "NoSchedule"), False),
        (Toleration("l", "Exists", "", ""), Taint("k", "v"), False),
    ],
)
def test_tolerations(toleration: Toleration, taint: Taint, tolerated: bool) -> None:
    assert toleration.tolerates(taint) is tolerated


def test_constraints_cover_requests_and_subrequests() -> None:
    named = Constraint(("a", "b/x"), match_attribute="d/attr")
    assert named.covers("a", "any")
    assert named.covers("b", "x")
    assert not named.covers("b", "y")
    assert Constraint(match_attribute="d/attr").covers("anything")


def test_an_allocation_survives_the_round_trip() -> None:
    written = {
        "devices": {
            "results": [
                {
                    "request": "gpu",
                    "driver": "koordra.io",
                    "pool": "node-1",
                    "device": "gpu-0",
                    "shareID": "id-1",
                    "consumedCapacity": {"cores": "30", "memory": "20Gi"},
                },
                {
                    "request": "admin",
                    "driver": "koordra.io",
                    "pool": "node-1",
                    "device": "gpu-1",
                    "adminAccess": True,
                },
            ],
            "config": [{"source": "FromClaim", "opaque": {"driver": "koordra.io", "parameters": {}}}],
        },
        "nodeSelector": {"nodeSelectorTerms": [{}]},
    }
    found = Allocation.of_claim({"metadata": {"name": "c"}, "status": {"allocation": written}})
    assert found is not None
    assert found.results[0].device == DeviceID("koordra.io", "node-1", "gpu-0")
    assert found.to_dict() == written
    assert Allocation.of_claim({"metadata": {"name": "c"}}) is None


def test_taint_rules_match_what_they_name() -> None:
    rule = DeviceTaintRule.from_dict(
        {
            "metadata": {"name": "r"},
            "spec": {"deviceSelector": {"pool": "node-1"}, "taint": {"key": "k", "effect": "NoSchedule"}},
        }
    )
    assert rule.selects(driver="any", pool="node-1", device="any")
    assert not rule.selects(driver="any", pool="node-2", device="any")


def test_a_class_without_cel_is_kept_for_the_allocator_to_refuse() -> None:
    found = DeviceClass.from_dict({"metadata": {"name": "k"}, "spec": {"selectors": [{}]}})
    assert found.selectors == ("",)


@pytest.mark.parametrize(("padding", "kept"), [(100, True), (LONGEST_CONTENT, False)])
def test_specs_written_alike_are_read_once_unless_they_are_long(padding: int, kept: bool) -> None:
    """What is kept of tenants' claims is bounded in bytes, not in claims alone."""

    def read(name: str) -> ResourceClaim:
        opaque = {"driver": "other.example", "parameters": {"text": "x" * padding}}
        request = {"name": "gpu", "exactly": {"deviceClassName": "gpu.koordra.io"}}
        spec = {"devices": {"requests": [request], "config": [{"opaque": opaque}]}}
        return ResourceClaim.from_dict({"metadata": {"name": name, "namespace": "a"}, "spec": spec})

    one, other = read("one"), read("other")
    assert one.requests == other.requests
    assert (one.requests is other.requests) == kept
    assert bool(one.content) == kept


def test_devices_that_differ_in_their_uuid_alone_share_the_rest() -> None:
    def gpu(uuid: Dict, **more: Dict) -> Dict:
        return {"name": "gpu-0", "attributes": {"koordra.io/uuid": uuid, "model": {"string": "H100"}, **more}}

    def read(device: Dict) -> Device:
        return ResourceSlice.from_dict(resource_slice(device)).devices[0]

    one, other = read(gpu({"string": "GPU-1"})), read(gpu({"string": "GPU-2"}))
    assert one.attributes == {
        "koordra.io/uuid": Attribute("string", "GPU-1"),
        "model": Attribute("string", "H100"),
    }
    assert other.attributes["koordra.io/uuid"] == Attribute("string", "GPU-2")
    assert one.alike is other.alike is not None
    assert one.alike.attributes == {"model": Attribute("string", "H100")}
    assert read(gpu({"string": "GPU-1"}, rail={"int": 1})).alike is not one.alike
    assert read({"name": "gpu-0", "attributes": {"model": {"string": "H100"}}}) is one.alike
    with pytest.raises(InvalidManifest, match=r"devices\[0\]\.attributes\[koordra\.io/uuid\]"):
        read(gpu({"string": 7}))


def test_nodes_whose_devices_differ_in_their_uuids_alone_are_one_to_a_request() -> None:
    def node_class(*uuids: Dict) -> NodeClass | None:
        devices = [
            {"name": f"gpu-{at}", "attributes": {"koordra.io/uuid": one}} for at, one in enumerate(uuids)
        ]
        inventory = Inventory.of([resource_slice(*devices)], features=Features.of(None))
        return classes.class_of(inventory.pools({"metadata": {"name": "node-1"}}))

    classes = NodeClasses()
    apart = node_class({"string": "a"}, {"string": "b"})
    assert apart is node_class({"string": "c"}, {"string": "d"}) is not None
    assert node_class({"string": "c"}, {"string": "c"}) is not apart, "who shares a value"
    assert node_class({"string": "c"}, {"version": "1.0.0"}) is not apart, "and of which type it is"
    assert "uuid" in classes.identities
