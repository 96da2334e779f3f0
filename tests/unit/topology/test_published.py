"""A node as it is seen from a laptop: from ResourceSlices and claims alone."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from koordra.api import names
from koordra.kubelet_plugin.publish.offering import Offering
from koordra.kubelet_plugin.publish.resource_slices import build_slices
from koordra.topology.fabrics import links_between_published, published_links
from koordra.topology.machine import Machine, NvLink, level, pcie_level
from koordra.topology.partitions import PublishedFabrics
from koordra.topology.pictures.document import document
from koordra.topology.pictures.svg import svg
from koordra.topology.pictures.text import matrix
from koordra.topology.pictures.usage import MachineUsage, usage_of_claims
from koordra.topology.published import machine_of_slices
from tests.machines import catalogue


def slices(
    machine: Machine, *, generation: int = 1, mig: bool = False, vfs: bool = False
) -> list[dict[str, Any]]:
    """As the node publishes them."""
    return build_slices(
        machine,
        node_name="node-a",
        node_uid=None,
        mode="joint",
        generation=generation,
        offering=Offering(mig=mig, vfs=vfs),
    )


@pytest.mark.parametrize("name", catalogue.NAMES)
def test_levels_are_those_of_the_node(name: str) -> None:
    there = catalogue.machine(name)
    seen, offered = machine_of_slices(slices(there))
    on_node = {device.name: device for device in there.devices()}
    assert {gpu.name for gpu in seen.gpus} == {gpu.name for gpu in there.gpus if gpu.publishable}
    assert {device.name for device in seen.devices()} <= offered.keys()
    for a in seen.devices():
        for b in seen.devices():
            assert pcie_level(a, b) is pcie_level(on_node[a.name], on_node[b.name])
            assert level(a, b) == level(on_node[a.name], on_node[b.name])
            assert (a.location.numa, a.location.socket) == (
                on_node[a.name].location.numa,
                on_node[a.name].location.socket,
            )


def test_published_widths() -> None:
    mesh = catalogue.machine("v100x8-sxm2")
    widths = published_links(mesh.gpus)["0000:06:00.0"]
    assert widths == {names.ATTR_NVLINKS: 6, names.ATTR_NVLINK_PEERS: "0,1,1,2,2,0,0,0"}
    fabric = published_links(catalogue.machine("hgx-h100").gpus)
    assert fabric["0000:0f:00.0"] == {names.ATTR_NVLINKS: 18}
    assert published_links(catalogue.machine("t4x4-1nic").gpus)["0000:3b:00.0"] == {}
    domain = {names.ATTR_NVLINK_DOMAIN: "nvlink-0"}
    assert links_between_published(domain, domain) == 1
    assert links_between_published(domain, {}) == 0


def test_inferred_places_stay_marked() -> None:
    there = catalogue.machine("vm-flat")
    made = slices(there)
    for one in made:
        for device in one["spec"]["devices"]:
            device["attributes"][names.ATTR_INFERRED] = {"string": "numaNode,pcieRoot,pcieSwitch"}
    seen, _ = machine_of_slices(made)
    assert seen.gpus[0].location.inferred == there.gpus[0].location.inferred
    assert "PIX*" in matrix(seen)


def test_only_the_newest_generation_of_this_driver_counts() -> None:
    there = catalogue.machine("mig-a100")
    old, new = slices(there), slices(catalogue.machine("no-gpu"), generation=2)
    foreign = [{**old[0], "spec": {**old[0]["spec"], "driver": "gpu.example.com"}}]
    seen, offered = machine_of_slices([*old, *new, *foreign])
    assert not seen.gpus
    assert offered.keys() == {"nic-0000-18-00-0", "nic-0000-af-00-0"}
    assert offered["nic-0000-18-00-0"]["share"] == 100
    assert machine_of_slices([]) == (Machine(published_fabrics=PublishedFabrics()), {})


def claim(name: str, *devices: str, pool: str = "node-a", driver: str = "koordra.io") -> dict[str, Any]:
    results = [{"request": "r", "driver": driver, "pool": pool, "device": device} for device in devices]
    return {
        "metadata": {"namespace": "team", "name": name},
        "status": {"allocation": {"devices": {"results": results}}},
    }


def test_who_holds_what() -> None:
    claims = [
        claim("b", "gpu-0000-07-00-0", "nic-0000-0c-00-0"),
        claim("a", "gpu-0000-07-00-0", "gpu-0000-07-00-0"),
        claim("elsewhere", "gpu-0000-0f-00-0", pool="node-b"),
        claim("foreign", "gpu-0000-0f-00-0", driver="gpu.example.com"),
        {"metadata": {"namespace": "team", "name": "pending"}},
    ]
    held = usage_of_claims(claims, pool="node-a", capacities={}).holders
    assert held == {"gpu-0000-07-00-0": ("team/a", "team/b"), "nic-0000-0c-00-0": ("team/b",)}
    machine = catalogue.machine("dgx-a100")
    usage = MachineUsage(holders=held)
    assert "held by team/a, team/b" in matrix(machine, usage)
    listed = {device["name"]: device["holders"] for device in document(machine, usage)["devices"]}
    assert listed["gpu-0000-07-00-0"] == ["team/a", "team/b"]
    assert listed["gpu-0000-0f-00-0"] == []
    assert ">team/a, team/b</text>" in svg(machine, usage)


def test_a_partitioned_card_is_held_through_its_instances() -> None:
    machine = catalogue.machine("mig-a100")
    card = machine.gpus[0]
    usage = MachineUsage(
        holders={f"{card.name}-mig-1g5gb-3": ("team/a",), f"{card.name}-mig-1g5gb-0": ("team/b",)}
    )
    assert usage.holders_of(card) == ("team/b", "team/a")
    assert usage.is_offered(card)
    assert usage.holders_of(machine.gpus[2]) == ()


def test_a_partitioned_card_is_seen_through_its_instances() -> None:
    there = catalogue.machine("mig-a100")
    seen, offered = machine_of_slices(slices(there, mig=True))
    cut = {
        gpu.name: [instance.start for instance in gpu.mig_instances] for gpu in seen.gpus if gpu.mig_enabled
    }
    assert cut == {
        gpu.name: [instance.start for instance in gpu.mig_instances] for gpu in there.gpus if gpu.mig_enabled
    }
    assert "MIG: 7 x 1g.5gb" in matrix(seen, MachineUsage(offered=offered))
    assert "not offered" not in matrix(seen, MachineUsage(offered=offered))
    assert pcie_level(seen.gpus[0], seen.nics[0]) is pcie_level(there.gpus[0], there.nics[0])


def test_virtual_functions_are_found_at_their_physical_one() -> None:
    there = catalogue.machine("nic-2-ports-8-vfs")
    seen, _ = machine_of_slices(slices(there, vfs=True))
    assert [(vf.name, vf.parent, vf.vf_index) for vf in seen.vfs] == [
        (vf.name, vf.parent, vf.vf_index) for vf in there.vfs
    ]


def test_rails_and_nvlink_domains_are_those_that_the_node_tells() -> None:
    """A card that is not offered is not seen from here; the numbers of the others must not shift."""
    there = catalogue.machine("gpu16-nic16")
    dead = tuple(replace(gpu, memory_bytes=None) if n < 2 else gpu for n, gpu in enumerate(there.gpus))
    on_node = {one["name"]: one for one in document(replace(there, gpus=dead))["devices"]}
    seen, offered = machine_of_slices(slices(replace(there, gpus=dead)))
    from_here = document(seen, MachineUsage(offered=offered))["devices"]
    assert [one["rail"] for one in from_here if one["type"] == "nic"] == list(range(16))
    assert {one["name"] for one in from_here} < set(on_node)
    for one in from_here:
        for field in ("rail", "nvlinkDomain", "inferred"):
            assert one.get(field) == on_node[one["name"]].get(field), (one["name"], field)


def test_nvlink_domains_keep_their_numbers() -> None:
    there = catalogue.machine("v100x8-sxm2")
    pairs = {0: 1, 1: 0, 2: 3, 3: 2}
    gpus = tuple(
        replace(gpu, nvlinks=(NvLink(there.gpus[pairs[n]].location.bus_id, 2, to_switch=False),))
        for n, gpu in enumerate(there.gpus[:4])
    )
    bridged = replace(there, gpus=(replace(gpus[0], uuid=None), replace(gpus[1], uuid=None), *gpus[2:]))
    seen, _ = machine_of_slices(slices(bridged))
    assert [gpu["nvlinkDomain"] for gpu in document(seen)["devices"][:2]] == ["nvlink-1"] * 2


def test_a_partitioned_card_shows_why_it_is_out_of_work() -> None:
    there = catalogue.machine("mig-a100")
    sick = replace(there, gpus=tuple(replace(gpu, faults=("Xid48",)) for gpu in there.gpus))
    seen, offered = machine_of_slices(slices(sick, mig=True))
    assert {gpu.faults for gpu in seen.gpus} == {("Xid48",)}
    assert matrix(seen, MachineUsage(offered=offered)).count("unhealthy: Xid48") == len(seen.gpus)
