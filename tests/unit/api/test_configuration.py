"""Whose word counts where class and claim speak of one request: field by field."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

from koordra.api.opaque.configuration import Configuration, Entry, configuration, covers
from koordra.api.opaque.driver_capabilities import DriverCapability
from koordra.api.opaque.parameters import CoresPolicy, GpuConfig, RdmaConfig, RdmaMode
from koordra.api.opaque.rdma_fabric import RdmaFabric
from koordra.api.opaque.rdma_network import RdmaNetwork

ALONE, SHARED = RdmaConfig(RdmaMode.EXCLUSIVE), RdmaConfig(RdmaMode.SHARED)


def given(*parameters: Any) -> list[Entry]:
    return [Entry((), each, of_class=True) for each in parameters]


def asked(*parameters: Any, requests: tuple[str, ...] = ()) -> list[Entry]:
    return [Entry(requests, each) for each in parameters]


@pytest.mark.parametrize(
    ("entries", "expected"),
    [
        ([], RdmaConfig()),
        (asked(ALONE), ALONE),
        (given(SHARED) + asked(ALONE), SHARED),
        (
            given(ALONE) + asked(RdmaConfig(network=RdmaNetwork(mtu=9000))),
            RdmaConfig(RdmaMode.EXCLUSIVE, network=RdmaNetwork(mtu=9000)),
        ),
        (given(RdmaConfig(memlock=False)) + asked(SHARED), RdmaConfig(RdmaMode.SHARED, memlock=False)),
        (asked(RdmaConfig(memlock=False)) + given(SHARED), RdmaConfig(RdmaMode.SHARED, memlock=False)),
        (
            given(RdmaConfig(network=RdmaNetwork(vlan=7, mtu=1400)), RdmaConfig(fabric=RdmaFabric(106)))
            + asked(RdmaConfig(network=RdmaNetwork(interface="rail0"))),
            RdmaConfig(network=RdmaNetwork(interface="rail0", vlan=7, mtu=1400), fabric=RdmaFabric(106)),
        ),
        (
            given(RdmaConfig(network=RdmaNetwork(pool="a")), RdmaConfig(network=RdmaNetwork(vlan=7))),
            RdmaConfig(network=RdmaNetwork(vlan=7)),
        ),
        (asked(RdmaConfig(fabric=RdmaFabric(106))), RdmaConfig()),
    ],
)
def test_the_class_stands_above_the_claim_where_a_network_is_at_stake(
    entries: list[Entry], expected: RdmaConfig
) -> None:
    """Whatever the order of the entries of class and claim."""
    for each in (
        entries,
        [one for one in entries if not one.of_class] + [one for one in entries if one.of_class],
    ):
        assert Configuration.of(each).rdma("nic") == expected


def test_an_entry_about_something_else_takes_nothing_away() -> None:
    entries = [
        *given(GpuConfig(numa_affinity=True, driver_capabilities=frozenset({DriverCapability.COMPUTE}))),
        *given(GpuConfig(priority=3)),
        *asked(GpuConfig(priority=7), requests=("gpu",)),
        *asked(GpuConfig(priority=5, cores_policy=CoresPolicy.HARD)),
    ]
    expected = GpuConfig(
        cores_policy=CoresPolicy.HARD,
        priority=7,
        numa_affinity=True,
        driver_capabilities=frozenset({DriverCapability.COMPUTE}),
    )
    for order in itertools.permutations(entries):
        # Entries of one rank count in their order, which nothing here depends on.
        assert Configuration.of(order).gpu("gpu/part") == expected


@pytest.mark.parametrize(
    ("named", "request_name", "about"),
    [
        ((), "gpu", True),
        (("gpu",), "gpu", True),
        (("gpu",), "gpu/part", True),
        (("gpu/part",), "gpu/part", True),
        (("gpu/part",), "gpu/whole", False),
        (("gpu/part",), "gpu", False),
        (("gp",), "gpu", False),
        (("part",), "gpu/part", False),
    ],
)
def test_which_requests_an_entry_is_about(named: tuple[str, ...], request_name: str, about: bool) -> None:
    assert covers(named, request_name) is about


def test_what_is_of_another_driver_or_says_where_a_member_stands_is_no_parameter() -> None:
    member: dict[str, Any] = {"kind": "GangMember", "apiVersion": "koordra.io/v1alpha1", "gang": "train"}
    member |= dict.fromkeys(("rank", "nodeRank", "localRank"), 0) | dict.fromkeys(
        ("size", "nodes", "localSize"), 1
    )
    own = {"kind": "GpuConfig", "apiVersion": "koordra.io/v1alpha1", "priority": 1}
    entries: list[Any] = [
        {"source": "FromClaim", "opaque": {"driver": "gpu.example.com", "parameters": {"kind": "Other"}}},
        {"source": "FromClaim", "opaque": None},
        7,
        {"source": "FromClaim", "opaque": {"driver": "koordra.io", "parameters": member}},
        {"source": "FromClass", "requests": ["gpu"], "opaque": {"driver": "koordra.io", "parameters": own}},
    ]
    found = configuration(entries, claim="c")
    assert found.entries == (Entry(("gpu",), GpuConfig(priority=1), of_class=True),)
    assert found.member is not None
    assert found.member.gang == "train"
