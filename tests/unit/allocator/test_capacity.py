"""From what is asked to what is consumed: policies, defaults, rounding, spelling."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import pytest

from koordra.allocator.devices.capacity import Demand, Unmet, demand_of, spell
from koordra.api.claims import Alternative
from koordra.api.devices import Device, read_device
from koordra.api.reader import Reader
from koordra.quantity import parse

RANGE = {"default": "2Gi", "validRange": {"min": "1Gi", "max": "8Gi", "step": "512Mi"}}
VALUES = {"default": "50G", "validValues": ["25G", "50G", "100G"]}
FRACTION = {"default": "0.5", "validRange": {"min": "0.25", "step": "0.25"}}


def device(name: str, value: str, policy: dict[str, Any] | None) -> Device:
    capacity = {name: {"value": value, **({"requestPolicy": policy} if policy else {})}}
    return read_device(
        Reader({"name": "d", "capacity": capacity, "allowMultipleAllocations": True}, object="s")
    )


def demand(found: Device, asked: dict[str, str] | None, **options: Any) -> Demand | Unmet:
    wanted = Alternative(
        "r",
        "c",
        capacity=None if asked is None else {name: parse(value) for name, value in asked.items()},
        capacity_spelled=asked or {},
    )
    return demand_of(wanted, found, driver="koordra.io", **options)


@pytest.mark.parametrize(
    ("policy", "value", "asked", "consumed"),
    [
        (None, "16Gi", None, "16Gi"),
        (None, "16Gi", "3Gi", "3Gi"),
        (RANGE, "16Gi", None, "2Gi"),
        (RANGE, "16Gi", "100Mi", "1Gi"),
        (RANGE, "16Gi", "1.1Gi", "1536Mi"),
        (RANGE, "16Gi", "8Gi", "8Gi"),
        (VALUES, "200G", "26G", "50G"),
        (VALUES, "200G", None, "50G"),
        (FRACTION, "4", "0.3", "500m"),
    ],
)
def test_amounts(policy: dict[str, Any] | None, value: str, asked: str | None, consumed: str) -> None:
    found = demand(device("memory", value, policy), None if asked is None else {"memory": asked})
    assert isinstance(found, Demand)
    assert found.spelled == {"memory": consumed}
    assert found.amounts == {"memory": parse(consumed)}


@pytest.mark.parametrize(
    ("policy", "asked", "why"),
    [
        (RANGE, {"memory": "9Gi"}, "memory: requested 9Gi, at most 8Gi per request"),
        (VALUES, {"memory": "101G"}, "memory: requested 94.1Gi, allowed are"),
        (None, {"memory": "17Gi"}, "memory: requested 17Gi, the device has 16Gi"),
        (None, {"cores": "1"}, "cores: requested 1, the device has no capacity of that name"),
        (None, {"other.io/memory": "1Gi"}, "the device has no capacity of that name"),
    ],
)
def test_what_a_device_can_never_give(policy: dict[str, Any] | None, asked: dict[str, str], why: str) -> None:
    found = demand(device("memory", "16Gi" if policy is not VALUES else "200G", policy), asked)
    assert isinstance(found, Unmet)
    assert why in found.detail


@pytest.mark.parametrize(
    ("published", "asked"), [("memory", "koordra.io/memory"), ("koordra.io/memory", "memory")]
)
def test_a_bare_name_means_the_drivers_domain(published: str, asked: str) -> None:
    found = demand(device(published, "16Gi", None), {asked: "1Gi"})
    assert isinstance(found, Demand)
    assert found.amounts == {published: parse("1Gi")}


def test_percent_and_whole() -> None:
    half = demand(device("memory", "16Gi", RANGE), None, memory_percent=50)
    everything = demand(
        device("share", "100", {"default": "10", "validRange": {"min": "1", "max": "100"}}),
        {"share": "5"},
        whole=frozenset({"share"}),
    )
    assert isinstance(half, Demand)
    assert isinstance(everything, Demand)
    assert (half.spelled, everything.spelled) == ({"memory": "8Gi"}, {"share": "100"})


def test_cores_of_the_claim_go_before_those_that_its_class_works_out() -> None:
    cores = device("cores", "100", {"default": "0", "validRange": {"min": "0", "step": "1"}})
    own, given = demand(cores, {"cores": "5"}, cores=Decimal(31)), demand(cores, None, cores=Decimal(31))
    assert isinstance(own, Demand)
    assert isinstance(given, Demand)
    assert (own.amounts, given.amounts) == ({"cores": 5}, {"cores": 31})


def test_whole_numbers_where_fractions_are_not_enabled() -> None:
    found = demand(
        device("memory", "10", {"default": "1", "validRange": {"min": "1", "step": "2"}}),
        {"memory": "1.5"},
        fractional=False,
    )
    assert isinstance(found, Demand)
    assert found.amounts == {"memory": Decimal(3)}


@pytest.mark.parametrize(
    ("amount", "form", "text"),
    [
        ("0", "1Gi", "0"),
        ("1024", "4", "1024"),
        ("2048", "1Ki", "2Ki"),
        ("120000000000", "50G", "120G"),
        ("0.5", "1", "500m"),
        ("0.0005", "1", "500u"),
    ],
)
def test_spelling_keeps_the_form(amount: str, form: str, text: str) -> None:
    assert spell(parse(amount), form) == text
