"""Machines of any shape: what is written is found, and all ways to a level agree."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from koordra.api.devices import ResourceSlice
from koordra.kubelet_plugin.discovery.reading import discover
from koordra.kubelet_plugin.publish.resource_slices import build_slices
from koordra.topology import Scope, level_between, scope_key
from koordra.topology.graph import build
from koordra.topology.machine import Machine, pcie_level
from koordra.topology.machine import level as level_of_machine
from koordra.topology.presets.facts import preset
from koordra.topology.presets.tree import MachineWriter
from tests.long import examples
from tests.unit.topology.graph_levels import WORST, level

NUMA_NODES = 4


@st.composite
def machines(draw: st.DrawFn) -> Machine:
    """Up to three host bridges, on each devices that hang on the root bus, a root port or up to three nested
    switches."""
    gpus: list[dict[str, Any]] = []
    nics: list[dict[str, Any]] = []
    for root in range(draw(st.integers(1, 3))):
        bus = iter(range(1, 255))
        numa = draw(st.sampled_from([None, *range(NUMA_NODES)]))
        switch_chain: list[str] = []
        for _ in range(draw(st.integers(0, 3))):
            upper = f"/{next(bus):02x}:00.0/" if switch_chain else f"/00:01.0/{next(bus):02x}:00.0/"
            down = f"{next(bus):02x}:00.0"
            switch_chain.append("".join(switch_chain[-1:]) + upper + down)
        for index in range(draw(st.integers(0, 4))):
            above = draw(st.sampled_from(["", f"/00:{index + 2:02x}.0", *switch_chain]))
            if above in switch_chain:
                above = above[:-4] + f"{index + 1:02x}.0"
            here = f"00:1{index:x}.0" if not above else f"{next(bus):02x}:00.0"
            path = f"pci{root:04x}:00{above}/{here}"
            functions = [path, path[:-1] + "1"][: draw(st.integers(1, 2))]
            if draw(st.booleans()):
                gpus.append({"path": path, "numa": numa})
            else:
                nics += [
                    {"path": each, "numa": numa, "ib": f"mlx5_{len(nics) + n}"}
                    for n, each in enumerate(functions)
                ]
    pairs = [(a, b) for a in range(len(gpus)) for b in range(a)]
    linked = draw(st.lists(st.sampled_from(pairs), unique=True, max_size=4)) if pairs else []
    document = {
        "schema": "koordra.io/machine/v1",
        "driver": {"version": "550.54.15", "cuda": 12040},
        "numa": [{"id": n, "socket": n // 2, "cpus": f"{2 * n}-{2 * n + 1}"} for n in range(NUMA_NODES)],
        "gpu": {"product": "NVIDIA H100 80GB HBM3", "memory_mib": 81559},
        "nic": {"link_layer": "InfiniBand", "rate": 400},
        "gpus": gpus,
        "nics": nics,
        "nvlinks": [[a, b, 4] for a, b in linked],
    }
    return preset(document, name="random").machine(serial="random")


@examples(60)
@given(machines())
def test_what_is_written_is_found(machine: Machine) -> None:
    with tempfile.TemporaryDirectory() as directory:
        MachineWriter(Path(directory)).write(machine)
        found = discover(Path(directory))
    assert found.machine == machine
    expected = {"numaNode"} if any(machine.devices()) else {"sys/bus/pci/devices"}
    assert {problem.field for problem in found.problems} <= expected


@given(machines())
def test_tree_graph_and_attributes_agree(machine: Machine) -> None:
    graph = build(machine)
    (made,) = build_slices(machine, node_name="n", node_uid=None, mode="joint", generation=1)
    assert len(ResourceSlice.from_dict(made).devices) == len(list(machine.devices()))
    published = {
        device["name"]: {name: next(iter(value.values())) for name, value in device["attributes"].items()}
        for device in made["spec"]["devices"]
    }
    for a in machine.devices():
        for b in machine.devices():
            near = level_between(published[a.name], published[b.name])
            assert near is pcie_level(a, b)
            assert level(graph, a.location.bus_id, b.location.bus_id) == level_of_machine(a, b)
            for scope in Scope:
                key = scope_key(published[a.name], scope)
                if key is not None and key == scope_key(published[b.name], scope):
                    assert near <= WORST[scope]
