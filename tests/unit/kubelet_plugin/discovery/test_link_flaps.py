"""A link that goes down again and again is faulty until it has been up for a while."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from koordra.kubelet_plugin.discovery.link_flaps import (
    FLAPS,
    LINK_FLAPPING,
    WITHIN,
    Flaps,
    after_reading,
    with_flaps,
)
from koordra.kubelet_plugin.discovery.machine_root import MachineRoot
from koordra.kubelet_plugin.discovery.rdma_devices import link_downs
from koordra.kubelet_plugin.publish.devices import unhealthy
from koordra.topology.machine import Machine
from tests.machines import catalogue

MACHINE = catalogue.load("hgx-h100").machine(serial="x")
FIRST = MACHINE.nics[0].name


def counting(downs: int | None) -> Machine:
    """Of the first NIC."""
    return replace(MACHINE, nics=(replace(MACHINE.nics[0], downs=downs), *MACHINE.nics[1:]))


def judged(history: Flaps, now: float) -> list[str]:
    found = with_flaps(history, MACHINE, now=now)
    return [nic.name for nic in found.nics if LINK_FLAPPING in nic.faults]


def seen(*counts: tuple[float, int | None]) -> Flaps:
    history: Flaps = {}
    for now, downs in counts:
        history = after_reading(history, counting(downs), now=now)
    return history


def test_what_was_counted_before_the_plugin_says_nothing() -> None:
    assert judged(seen((0.0, 4711)), 0.0) == []


def test_three_times_in_ten_minutes_is_a_fault_until_ten_minutes_have_passed() -> None:
    history = seen((0.0, 5), (10.0, 6), (20.0, 7), (300.0, 8))
    assert judged(history, 300.0) == [FIRST]
    assert judged(history, 10.0 + WITHIN - 1) == [FIRST]
    assert judged(history, 10.0 + WITHIN) == []


def test_a_link_that_came_up_between_two_looks_was_down_all_the_same() -> None:
    history = seen((0.0, 0), (5.0, FLAPS))
    assert judged(history, 5.0) == [FIRST]
    (nic,) = [nic for nic in with_flaps(history, MACHINE, now=5.0).nics if nic.faults]
    assert unhealthy(nic) == "LinkFlapping"
    down = replace(nic, ports=tuple(replace(port, active=False) for port in nic.ports))
    assert unhealthy(down) == "LinkDown.LinkFlapping"


def test_one_flap_a_day_is_none() -> None:
    assert judged(seen(*[(86400.0 * day, day) for day in range(30)]), 86400.0 * 29) == []


def test_a_driver_that_counts_anew_and_a_nic_that_is_gone_begin_anew() -> None:
    assert judged(seen((0.0, 5), (1.0, 7), (2.0, 0), (3.0, 1)), 3.0) == []
    assert seen((0.0, 5), (1.0, 9), (2.0, None)) == {}


@pytest.mark.parametrize(
    ("layers", "ports", "interface", "expected"),
    [
        (["InfiniBand"], [3], None, 3),
        (["InfiniBand"], [3], 9, 3),  # IPoIB may come and go
        (["InfiniBand", "InfiniBand"], [3, 4], None, 7),
        (["InfiniBand"], [None], 9, None),
        (["Ethernet"], [0], 5, 5),
        (["Ethernet"], [5], 5, 5),  # a driver that counts for both
        (["Ethernet"], [0], None, None),  # its interface is in a pod
        ([], [], 5, 5),
    ],
)
def test_one_counter_counts_wherever_the_interface_is(
    tmp_path: Path, layers: list[str], ports: list[int | None], interface: int | None, expected: int | None
) -> None:
    for number, (layer, count) in enumerate(zip(layers, ports, strict=True), start=1):
        port = tmp_path / f"ib/ports/{number}"
        (port / "counters").mkdir(parents=True)
        (port / "link_layer").write_text(f"{layer}\n")
        if count is not None:
            (port / "counters/link_downed").write_text(f"{count}\n")
    if interface is not None:
        (tmp_path / "net").mkdir()
        (tmp_path / "net/carrier_down_count").write_text(f"{interface}\n")
    assert link_downs(MachineRoot(tmp_path), "ib", "net" if interface is not None else "") == expected


def test_a_nic_that_comes_back_from_a_pod_is_not_flapping() -> None:
    """Its interface counts what it has counted all along."""
    assert judged(seen((0.0, 7), (10.0, None), (500.0, 8)), 500.0) == []


def test_the_others_are_left_alone() -> None:
    assert with_flaps(seen((0.0, 0), (5.0, 2)), MACHINE, now=5.0) is MACHINE
