"""Levels and scopes on small trees, from paths and from published attributes."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest

from koordra.api.opaque.parameters import Scope
from koordra.topology import Level, level_between, scope_key, together
from tests.unit.topology.graph_levels import WORST, level_on_paths

ROOT_A, ROOT_B = "pci0000:10", "pci0000:20"
PORT = "0000:10:01.0"
UP = "0000:11:00.0"

ON_SWITCH_1 = (ROOT_A, PORT, UP, "0000:12:00.0", "0000:13:00.0")
ON_SWITCH_2 = (ROOT_A, PORT, UP, "0000:12:01.0", "0000:14:00.0")
CARD_PORT_1 = (ROOT_A, PORT, UP, "0000:12:02.0", "0000:15:00.0")
CARD_PORT_2 = (ROOT_A, PORT, UP, "0000:12:02.0", "0000:15:00.1")
NESTED = (ROOT_A, PORT, UP, "0000:12:03.0", "0000:16:00.0", "0000:17:00.0", "0000:18:00.0")
NESTED_BESIDE = (ROOT_A, PORT, UP, "0000:12:03.0", "0000:16:00.0", "0000:17:01.0", "0000:19:00.0")
NESTED_OTHER = (ROOT_A, PORT, UP, "0000:12:04.0", "0000:1a:00.0", "0000:1b:00.0", "0000:1c:00.0")
OTHER_PORT = (ROOT_A, "0000:10:02.0", "0000:1d:00.0")
OTHER_PORT_2 = (ROOT_A, "0000:10:02.0", "0000:1d:00.1")
FLAT_1 = (ROOT_A, "0000:10:1b.0")
FLAT_2 = (ROOT_A, "0000:10:1c.0")
OTHER_ROOT = (ROOT_B, "0000:20:01.0", "0000:21:00.0")


def attributes(path: tuple[str, ...], *, numa: int | None = 0, socket: int | None = 0) -> dict[str, Any]:
    """What a device with this path publishes: upstream ports are every second bridge from the root port
    on."""
    switches = path[2:-1:2]
    published: dict[str, Any] = {
        "resource.kubernetes.io/pcieRoot": path[0],
        "resource.kubernetes.io/pciBusID": path[-1],
        "koordra.io/numaNode": numa,
        "koordra.io/socket": socket,
    }
    if switches:
        published["koordra.io/pcieSwitch"] = switches[0]
    if len(switches) > 1:
        published["koordra.io/pciePath"] = "/".join(switches)
    return {name: value for name, value in published.items() if value is not None}


@pytest.mark.parametrize(
    ("a", "b", "expected"),
    [
        pytest.param(ON_SWITCH_1, ON_SWITCH_1, Level.X, id="itself"),
        pytest.param(ON_SWITCH_1, ON_SWITCH_2, Level.PIX, id="two ports of one switch"),
        pytest.param(CARD_PORT_1, CARD_PORT_2, Level.PIX, id="two functions of a card on a switch"),
        pytest.param(NESTED, NESTED_BESIDE, Level.PIX, id="two ports of one nested switch"),
        pytest.param(OTHER_PORT, OTHER_PORT_2, Level.PIX, id="two functions of a card on a root port"),
        pytest.param(ON_SWITCH_1, NESTED, Level.PXB, id="switch and a switch nested in it"),
        pytest.param(NESTED, NESTED_OTHER, Level.PXB, id="two nested switches of one board"),
        pytest.param(ON_SWITCH_1, OTHER_PORT, Level.PHB, id="two root ports of one host bridge"),
        pytest.param(FLAT_1, FLAT_2, Level.PHB, id="flat bus of a virtual machine"),
        pytest.param(FLAT_1, ON_SWITCH_1, Level.PHB, id="root bus and switch"),
        pytest.param(ON_SWITCH_1, OTHER_ROOT, Level.NODE, id="two host bridges of a NUMA node"),
    ],
)
def test_level_on_one_numa_node(a: tuple[str, ...], b: tuple[str, ...], expected: Level) -> None:
    assert level_on_paths(a, b, same_numa=True) is expected
    assert level_on_paths(b, a, same_numa=True) is expected
    assert level_between(attributes(a), attributes(b)) is expected
    assert level_between(attributes(b), attributes(a)) is expected


@pytest.mark.parametrize(("numa_a", "numa_b"), [(0, 1), (0, None), (None, None)])
def test_other_or_unknown_numa_node_is_sys(numa_a: int | None, numa_b: int | None) -> None:
    a, b = attributes(ON_SWITCH_1, numa=numa_a), attributes(OTHER_ROOT, numa=numa_b)
    assert level_between(a, b) is Level.SYS
    assert level_on_paths(ON_SWITCH_1, OTHER_ROOT, same_numa=False) is Level.SYS


def test_unknown_numa_node_does_not_part_what_one_switch_joins() -> None:
    a, b = attributes(ON_SWITCH_1, numa=None), attributes(ON_SWITCH_2, numa=None)
    assert level_between(a, b) is Level.PIX


def test_nothing_published_is_far() -> None:
    assert level_between({}, {}) is Level.SYS
    assert level_between({"koordra.io/numaNode": 0}, {"numaNode": 0}) is Level.NODE


def test_levels_are_ordered_near_to_far() -> None:
    assert [str(level) for level in sorted(Level)] == ["X", "NV", "PIX", "PXB", "PHB", "NODE", "SYS"]


def test_scope_keys() -> None:
    device = attributes(NESTED, numa=1, socket=0)
    assert [scope_key(device, scope) for scope in Scope] == [UP, ROOT_A, "1", "0", "node"]
    assert [scope_key({}, scope) for scope in Scope] == [None, None, None, None, "node"]
    assert scope_key(device, Scope.NUMA_NODE) == "1"


def test_a_device_without_the_answer_is_together_with_nobody() -> None:
    flat = attributes(FLAT_1)
    assert not together([flat], Scope.PCIE_SWITCH)
    assert not together([flat, attributes(FLAT_2)], Scope.PCIE_SWITCH)
    assert together([flat, attributes(FLAT_2)], Scope.PCIE_ROOT)
    assert together([{}, {}], Scope.NODE)


def test_devices_together_in_a_scope_are_never_beyond_its_worst_level() -> None:
    paths = [ON_SWITCH_1, ON_SWITCH_2, CARD_PORT_2, NESTED, NESTED_OTHER, OTHER_PORT, FLAT_1, OTHER_ROOT]
    devices = [attributes(path, numa=numa) for path in paths for numa in (0, 1)]
    checked = 0
    for a in devices:
        for b in devices:
            for scope in Scope:
                if together([a, b], scope):
                    assert level_between(a, b) <= WORST[scope]
                    checked += 1
    assert checked > len(devices) * len(Scope)


def test_libraries_that_are_slow_to_import_are_imported_by_those_who_need_them() -> None:
    """networkx by pictures; kubernetes by who opens a connection, which neither the hook nor a plan of
    manifests does."""
    modules = (
        "koordra.controller.run",
        "koordra.kubelet_plugin.driver",
        "koordra.nri.service",
        "koordra.cli.plan",
        "koordra.cli.cluster.devices",
        "koordra.cli.cluster.claims",
    )
    probe = (
        f"import sys, {', '.join(modules)}; print(sorted({{'kubernetes', 'networkx'}} & {{*sys.modules}}))"
    )
    done = subprocess.run([sys.executable, "-c", probe], check=True, capture_output=True, text=True)
    assert done.stdout == "[]\n"
