"""What a claim amounts to under koordra's own names."""

from __future__ import annotations

from typing import Any

import pytest

from koordra.api import objects
from koordra.compat.quota_charges import OWN_CORES, OWN_COUNT, OWN_MEMORY, OWN_NIC_SHARE, OWN_NICS
from koordra.controller.quota.claims import amounts_of, with_percent_bounds
from koordra.controller.quota.published import PublishedDevices
from tests.unit.allocator.machines import device_classes
from tests.unit.quota.replicas import GIB, Object, a_claim, a_slice, asks, with_config

CLASSES = {objects.name(one): dict(one) for one in device_classes()}


def published(*slices: Object) -> PublishedDevices:
    found = PublishedDevices()
    for one in slices or (a_slice("n0", "80Gi", "80Gi"),):
        found.on_slice("ADDED", one)
    return found


def amounts(claim: Object, *slices: Object, **more: Any) -> dict[str, int | None]:
    return dict(amounts_of(claim, CLASSES | more, published(*slices).largest))


@pytest.mark.parametrize(
    ("request_", "gpus", "memory", "cores"),
    [
        (asks(), 1, 80 * GIB, 100),
        (asks(count=2), 2, 160 * GIB, 200),
        (asks(memory="10Gi"), 1, 10 * GIB, 0),
        (asks(memory="10Gi", cores="25", count=3), 3, 30 * GIB, 75),
    ],
)
def test_cards_and_shares(request_: Object, gpus: int, memory: int, cores: int) -> None:
    assert amounts(a_claim("c", request_)) == {OWN_COUNT: gpus, OWN_MEMORY: memory, OWN_CORES: cores}


def test_nics_and_gpus_add_up() -> None:
    found = amounts(
        a_claim("c", asks(count=2), asks("nic.koordra.io", count=2, share="25"), asks("vf.koordra.io"))
    )
    assert (found[OWN_COUNT], found[OWN_NICS], found[OWN_NIC_SHARE]) == (2, 3, 150)


def test_a_percentage_is_of_the_largest_card_that_the_selectors_leave() -> None:
    slices = a_slice("n0", "80Gi"), a_slice("n1", "24Gi", product="L4")
    share = with_config(a_claim("c", asks()), memoryPercent=50)
    assert amounts(share, *slices)[OWN_MEMORY] == 40 * GIB
    small = asks()
    expression = 'device.attributes["koordra.io"].productName == "L4"'
    small["exactly"]["selectors"] = [{"cel": {"expression": expression}}]
    assert amounts(with_config(a_claim("c", small), memoryPercent=50), *slices)[OWN_MEMORY] == 12 * GIB


def test_a_percentage_is_in_steps_as_it_is_allocated() -> None:
    card = a_slice("n0", "81559Mi")
    policy = {"default": "81559Mi", "validRange": {"min": "1Mi", "step": "1Mi"}}
    card["spec"]["devices"][0]["capacity"]["memory"]["requestPolicy"] = policy
    found = amounts(with_config(a_claim("c", asks()), memoryPercent=33), card)
    assert found[OWN_MEMORY] == (81559 * 33 // 100) << 20


def test_an_exclusive_share_counts_as_its_card() -> None:
    found = amounts(with_config(a_claim("c", asks(memory="1Gi")), exclusive=True))
    assert found == {OWN_COUNT: 1, OWN_MEMORY: 80 * GIB, OWN_CORES: 100}


def test_of_alternatives_the_largest_counts_by_each_name() -> None:
    several = [
        {"name": "big", **asks(memory="40Gi")["exactly"]},
        {"name": "many", **asks(memory="10Gi", cores="50", count=3)["exactly"]},
    ]
    found = amounts(a_claim("c", {"firstAvailable": several}))
    assert found == {OWN_COUNT: 3, OWN_MEMORY: 40 * GIB, OWN_CORES: 150}


def test_what_nobody_can_say_is_unsaid() -> None:
    every = asks()
    every["exactly"] = {"deviceClassName": "gpu.koordra.io", "allocationMode": "All"}
    assert amounts(a_claim("c", every))[OWN_COUNT] is None
    assert amounts(a_claim("c", asks()), {"metadata": {"name": "none"}, "spec": {}})[OWN_MEMORY] is None


def test_admin_access_and_other_drivers_count_nothing() -> None:
    admin = asks()
    admin["exactly"]["adminAccess"] = True
    assert amounts(a_claim("c", admin, asks("gpu.example.com"))) == {}


def test_a_class_of_ones_own_counts_by_the_type_that_it_selects() -> None:
    expression = 'device.driver == "koordra.io" && device.attributes["koordra.io"].type == "nic"'
    own = {"metadata": {"name": "fast"}, "spec": {"selectors": [{"cel": {"expression": expression}}]}}
    assert amounts(a_claim("c", asks("fast", count=2)), fast=own) == {OWN_NICS: 2, OWN_NIC_SHARE: 200}


def test_kinds_of_cards_come_and_go_with_their_nodes() -> None:
    found, classes = published(a_slice("n0", "24Gi"), a_slice("n1", "80Gi"), a_slice("n2", "80Gi")), ()
    assert found.largest(classes, ()) == 80 * GIB
    before = found.epoch
    found.on_slice("DELETED", a_slice("n1", "80Gi"))
    assert (found.largest(classes, ()), found.epoch) == (80 * GIB, before)
    found.on_slice("MODIFIED", a_slice("n2", "40Gi"))
    assert found.largest(classes, ()) == 40 * GIB
    assert found.epoch > before


def test_slices_of_like_nodes_share_what_is_kept_of_them() -> None:
    found = PublishedDevices()
    first = found.kept(a_slice("n0", "80Gi", "80Gi", "24Gi"))
    assert len(first["spec"]["devices"]) == 2
    found.on_slice("ADDED", first)
    again = found.kept(a_slice("n1", "80Gi"))
    assert any(again["spec"]["devices"][0] == one for one in first["spec"]["devices"])
    assert again["spec"]["devices"][0] is found.kept(a_slice("n2", "80Gi"))["spec"]["devices"][0]


@pytest.mark.parametrize("kind", ["ResourceClaim", "ResourceClaimTemplate"])
def test_a_percentage_is_bounded_in_the_words_that_kueue_reads(kind: str) -> None:
    claim = with_config(a_claim("c", asks(cores="10"), asks("nic.koordra.io")), memoryPercent=25)
    given = claim if kind == "ResourceClaim" else {**claim, "kind": kind, "spec": {"spec": claim["spec"]}}
    found = with_percent_bounds(given, CLASSES, published().largest)
    spec = found["spec"] if kind == "ResourceClaim" else found["spec"]["spec"]
    gpu, nic = spec["devices"]["requests"]
    assert gpu["exactly"]["capacity"]["requests"] == {"cores": "10", "memory": str(20 * GIB)}
    assert "capacity" not in nic["exactly"]
    assert with_percent_bounds(found, CLASSES, published().largest) is found, "a second pass changes nothing"
