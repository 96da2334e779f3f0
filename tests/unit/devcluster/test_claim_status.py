"""status of ResourceClaims: write-once allocation, reservations, devices."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from tests.unit.devcluster.calling import CLAIMS, Caller
from tests.unit.devcluster.manifests import allocation, claim

POD = {"resource": "pods", "name": "p", "uid": "u1"}
DEVICE = {"driver": "gpu.example.com", "pool": "n1", "device": "gpu-0"}
SHARE = "aaaaaaaa-aaaa-aaaa-aaaa-aaaaaaaaaaaa"


def status_of(api: Caller, name: str, status: dict[str, Any]) -> dict[str, Any]:
    """The claim after its status was replaced."""
    current = api.ok("GET", f"{CLAIMS}/{name}")
    return api.ok("PUT", f"{CLAIMS}/{name}/status", current | {"status": status})


def refused(api: Caller, name: str, status: dict[str, Any], text: str) -> None:
    current = api.ok("GET", f"{CLAIMS}/{name}")
    refusal = api.refused(422, "PUT", f"{CLAIMS}/{name}/status", current | {"status": status})
    assert text in refusal["message"]


@pytest.fixture
def pending(api: Caller) -> Caller:
    api.ok("POST", CLAIMS, claim("a"))
    return api


@pytest.fixture
def allocated(pending: Caller) -> Caller:
    status_of(pending, "a", {"allocation": allocation()})
    return pending


def test_an_allocation_is_written_once(allocated: Caller) -> None:
    refused(allocated, "a", {"allocation": allocation("n2")}, "status.allocation: Invalid value")
    refused(allocated, "a", {"allocation": allocation("n2")}, "field is immutable")
    status_of(allocated, "a", {})
    status_of(allocated, "a", {"allocation": allocation("n2")})


def test_a_timestamp_cannot_be_added_later(pending: Caller) -> None:
    status_of(pending, "a", {"allocation": allocation(timestamp=False)})
    refused(pending, "a", {"allocation": allocation()}, "field is immutable")


def test_a_reservation_needs_an_allocation(pending: Caller) -> None:
    refused(
        pending,
        "a",
        {"reservedFor": [POD]},
        "status.reservedFor: Forbidden: may not be specified when `allocated` is not set",
    )


def test_an_allocation_stays_while_somebody_is_reserved(allocated: Caller) -> None:
    status_of(allocated, "a", {"allocation": allocation(), "reservedFor": [POD]})
    refused(allocated, "a", {"reservedFor": [POD]}, "status.reservedFor: Forbidden")
    patch = {"status": {"allocation": None}}
    allocated.refused(422, "PATCH", f"{CLAIMS}/a/status", patch, content_type="application/merge-patch+json")
    assert status_of(allocated, "a", {})["status"] == {}


def test_a_deleting_claim_takes_no_new_consumer(allocated: Caller) -> None:
    allocated.patch(f"{CLAIMS}/a", {"metadata": {"finalizers": ["example.com/keep"]}})
    status_of(allocated, "a", {"allocation": allocation(), "reservedFor": [POD]})
    allocated.ok("DELETE", f"{CLAIMS}/a")
    other = POD | {"uid": "u2", "name": "q"}
    refused(
        allocated,
        "a",
        {"allocation": allocation(), "reservedFor": [POD, other]},
        "new entries may not be added",
    )
    status_of(allocated, "a", {"allocation": allocation()})


@pytest.mark.parametrize(
    ("reserved", "text"),
    [
        ([POD, POD], "status.reservedFor[1].uid: Duplicate value"),
        ([{"resource": "pods", "name": "p"}], "status.reservedFor[0].uid: Required value"),
        ([{"name": "p", "uid": "u"}], "status.reservedFor[0].resource: Required value"),
        (
            [POD | {"uid": f"u{number}"} for number in range(257)],
            "Too many: 257: must have at most 256 items",
        ),
    ],
)
def test_broken_reservations_are_named(allocated: Caller, reserved: list[dict[str, Any]], text: str) -> None:
    refused(allocated, "a", {"allocation": allocation(), "reservedFor": reserved}, text)


def broken_allocation(**change: Any) -> dict[str, Any]:
    found = allocation()
    found["devices"]["results"][0] |= change
    return found


def test_allocation_and_share_id_of_a_share(pending: Caller) -> None:
    share = broken_allocation(shareID=SHARE, consumedCapacity={"memory": "20480Mi"})
    written = status_of(pending, "a", {"allocation": share})
    assert written["status"]["allocation"]["devices"]["results"][0]["consumedCapacity"] == {"memory": "20Gi"}


@pytest.mark.parametrize(
    ("wrong", "text"),
    [
        (broken_allocation(request="nic"), "results[0].request: Invalid value"),
        (broken_allocation(driver="Bad"), "results[0].driver: Invalid value"),
        (broken_allocation(pool=""), "results[0].pool: Required value"),
        (broken_allocation(device="a.b"), "results[0].device: Invalid value"),
        (broken_allocation(shareID="1"), "results[0].shareID: Invalid value"),
        (broken_allocation(shareID=SHARE.upper()), "results[0].shareID: Invalid value"),
        (allocation() | {"nodeSelector": {"nodeSelectorTerms": []}}, "must have at least one node selector term"),
        (allocation() | {"devices": {"results": allocation()["devices"]["results"] * 33}}, "Too many: 33"),
        (
            allocation() | {"devices": {"config": [{"opaque": {"driver": "d", "parameters": {}}}]}},
            "status.allocation.devices.config[0].source: Required value",
        ),
        (
            allocation() | {"devices": {"config": [{"source": "Elsewhere", "opaque": {"driver": "d", "parameters": {}}}]}},
            'source: Unsupported value: "Elsewhere"',
        ),
    ],
)  # fmt: skip
def test_broken_allocations_are_named(pending: Caller, wrong: dict[str, Any], text: str) -> None:
    refused(pending, "a", {"allocation": wrong}, text)


def test_what_the_real_server_does_not_check_is_accepted(pending: Caller) -> None:
    """Devices that do not exist, twice the same device, another claim's device: correctness is the
    writer's."""
    pending.ok("POST", CLAIMS, claim("b"))
    for name in ("a", "b"):
        status_of(pending, name, {"allocation": allocation(device="no-such-device")})


def test_devices_of_a_driver_must_be_allocated(allocated: Caller) -> None:
    good = {"allocation": allocation(), "devices": [DEVICE | {"data": {"x": 1}}]}
    assert status_of(allocated, "a", good)["status"]["devices"][0]["data"] == {"x": 1}
    other = DEVICE | {"device": "gpu-1"}
    refused(allocated, "a", good | {"devices": [other]}, "must be an allocated device in the claim")
    refused(allocated, "a", good | {"devices": [DEVICE, DEVICE]}, "status.devices[1]: Duplicate value")


def test_a_shared_devices_entry_needs_its_share_id(pending: Caller) -> None:
    share = broken_allocation(shareID=SHARE)
    status_of(pending, "a", {"allocation": share})
    refused(
        pending, "a", {"allocation": share, "devices": [DEVICE]}, "must be an allocated device in the claim"
    )
    status_of(pending, "a", {"allocation": share, "devices": [DEVICE | {"shareID": SHARE}]})


@pytest.mark.parametrize(
    ("extra", "text"),
    [
        ({"data": {"x": "y" * 10241}}, "data: Too long: may not be more than 10240 bytes"),
        ({"data": [1]}, "must be a valid JSON object"),
        ({"networkData": {"ips": ["10.0.0.1"]}}, "must be a valid address in CIDR form"),
        ({"networkData": {"ips": ["10.0.0.1/24"] * 17}}, "ips: Too many: 17"),
        ({"networkData": {"interfaceName": "x" * 257}}, "interfaceName: Too long"),
    ],
)
def test_broken_device_status_is_named(allocated: Caller, extra: dict[str, Any], text: str) -> None:
    refused(allocated, "a", {"allocation": allocation(), "devices": [copy.deepcopy(DEVICE) | extra]}, text)
