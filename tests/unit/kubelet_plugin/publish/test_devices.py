"""MIG instances and virtual functions in slices: who excludes whom, what the API allows, how large a node
is."""

from __future__ import annotations

import itertools
import json
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import yaml

from koordra.api.devices import ResourceSlice, read_device
from koordra.api.reader import Reader
from koordra.kubelet_plugin.prepare.device_guard import guard_of
from koordra.kubelet_plugin.publish.devices import gpu_counters, mig_devices, unhealthy
from koordra.kubelet_plugin.publish.offering import WITHOUT_POLICY
from koordra.kubelet_plugin.publish.resource_slices import build_slices
from koordra.kubelet_plugin.publish.slice_content import same_content
from koordra.topology.location import DeviceNode
from koordra.topology.machine import Gpu, Machine
from koordra.topology.partitions import mig_name
from koordra.topology.presets.facts import preset
from koordra.topology.presets.mig import cards
from tests.machines import catalogue
from tests.unit.kubelet_plugin.publish.test_resource_slices import LABEL, assert_device, plain

POLICIES: dict[str, dict[str, bool]] = {
    "plain": {},
    "mig": {"mig": True},
    "mig, all placements": {"mig": True, "mig_on_demand": True},
    "vfs": {"vfs": True},
    "everything": {"mig": True, "mig_on_demand": True, "vfs": True},
}


def node(
    *,
    gpus: int = 8,
    nics: int = 8,
    vfs: int = 0,
    card: str = "H100-SXM5-80GB",
    instances: list[Any] | None = None,
    mig: bool = True,
) -> Machine:
    listed: list[dict[str, Any]] = []
    for n in range(nics):
        above = f"pci00{n:02x}:00/00:01.0/01:00.0/02:01.0"
        listed.append(
            {"path": f"{above}/04:00.0", "numa": 0, "ib": f"mlx5_{n}", "vfs": vfs, "netdev": f"eth{n}"}
        )
        listed += [
            {"path": f"{above}/04:0{(vf + 1) // 8}.{(vf + 1) % 8}", "numa": 0, "device": "101e"}
            | {"ib": f"mlx5_{nics + vfs * n + vf}", "parent": f"{above}/04:00.0", "mad": False, "vfs": 0}
            for vf in range(vfs)
        ]
    document = {
        "schema": "koordra.io/machine/v1",
        "driver": {"version": "550.54.15", "cuda": 12040},
        "numa": [{"id": 0, "socket": 0, "cpus": "0-95"}],
        "gpu": {
            "product": "NVIDIA H100 80GB HBM3",
            "memory_mib": 81559,
            "architecture": "Hopper",
            "compute": "9.0",
        }
        | {"mig": mig, "mig_profiles": card, "mig_instances": instances or []},
        "nic": {"link_layer": "InfiniBand", "rate": 400, "vendor": "15b3", "device": "1021"},
        "gpus": [
            {"path": f"pci00{n:02x}:00/00:01.0/01:00.0/02:00.0/03:00.0", "numa": 0} for n in range(gpus)
        ],
        "nics": listed,
    }
    return preset(document, name="node").machine(serial="node")


SEVEN = [["1g.10gb", start] for start in range(7)]
MIXED = [["3g.40gb", 4], ["1g.10gb", 0], ["1g.10gb+me", 1]]


def slices(machine: Machine, **policy: Any) -> list[dict[str, Any]]:
    arguments: dict[str, Any] = {"node_name": "node-a", "node_uid": "uid", "mode": "joint", "generation": 1}
    offered = {name: policy.pop(name) for name in ("mig", "mig_on_demand", "vfs") if name in policy}
    return build_slices(machine, **{**arguments, **policy}, offering=replace(WITHOUT_POLICY, **offered))


def published(machine: Machine, **policy: Any) -> dict[str, dict[str, Any]]:
    return {
        device["name"]: device
        for one in slices(machine, **policy)
        for device in one["spec"].get("devices", ())
    }


def sets(machine: Machine, **policy: Any) -> dict[str, dict[str, int]]:
    return {
        entry["name"]: {name: int(counter["value"]) for name, counter in entry["counters"].items()}
        for one in slices(machine, **policy)
        for entry in one["spec"].get("sharedCounters", ())
    }


def taken(device: dict[str, Any]) -> tuple[str, dict[str, int]]:
    (entry,) = device["consumesCounters"]
    return entry["counterSet"], {name: int(counter["value"]) for name, counter in entry["counters"].items()}


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("gpus", [0, 1, 8, 16])
def test_limits_of_the_api(gpus: int, policy: str) -> None:
    machine = node(gpus=gpus, nics=gpus, vfs=8, instances=MIXED)
    made = slices(machine, **POLICIES[policy])
    devices: set[str] = set()
    counter_sets: dict[str, Any] = {}
    for one in made:
        spec = one["spec"]
        assert ("devices" in spec) != ("sharedCounters" in spec)
        assert spec["pool"]["resourceSliceCount"] == len(made)
        assert len(spec.get("devices", ())) <= 64
        assert len(spec.get("sharedCounters", ())) <= 8
        for entry in spec.get("sharedCounters", ()):
            assert LABEL.fullmatch(entry["name"])
            assert entry["name"] not in counter_sets
            assert 0 < len(entry["counters"]) <= 32
            assert all(LABEL.fullmatch(name) for name in entry["counters"])
            counter_sets[entry["name"]] = entry["counters"]
        ResourceSlice.from_dict(one)
    for one in made:
        for device in one["spec"].get("devices", ()):
            assert device["name"] not in devices
            devices.add(device["name"])
            assert len(device.get("consumesCounters", ())) <= 2
            for entry in device.get("consumesCounters", ()):
                for name, counter in entry["counters"].items():
                    assert int(counter["value"]) <= int(counter_sets[entry["counterSet"]][name]["value"])
            if device.get("allowMultipleAllocations"):
                assert_device(device)
            else:
                assert all(
                    "requestPolicy" not in capacity for capacity in device.get("capacity", {}).values()
                )
                assert LABEL.fullmatch(device["name"])
    assert json.dumps(made) == json.dumps(slices(machine, **POLICIES[policy]))


PARTITIONED = [
    name
    for name in catalogue.NAMES
    if (made := catalogue.load(name).machine(serial=catalogue.SERIAL)).vfs
    or any(gpu.mig_instances for gpu in made.gpus)
]


@pytest.mark.parametrize("name", PARTITIONED)
def test_golden(name: str, golden: Callable[[str, str], None]) -> None:
    """What a node of this kind publishes where policy enables MIG and virtual functions."""
    machine = catalogue.load(name).machine(serial=catalogue.SERIAL)
    made = slices(machine, mig=True, vfs=True, generation=3, node_uid="uid-1")
    golden(f"../machines/{name}/slices-partitioned.yaml", yaml.safe_dump_all(made, sort_keys=False))


def test_without_a_policy_nothing_of_it_shows() -> None:
    machine = node(vfs=8, mig=False)
    assert len(slices(machine)) == 1
    assert not any("consumesCounters" in device for device in published(machine).values())
    assert {device["attributes"]["koordra.io/type"]["string"] for device in published(machine).values()} == {
        "gpu",
        "nic",
    }


def test_a_card_in_mig_mode_is_its_instances() -> None:
    found = published(node(gpus=1, nics=0, instances=MIXED), mig=True)
    card = "gpu-0000-03-00-0"
    assert list(found) == [f"{card}-mig-1g10gb-0", f"{card}-mig-1g10gb-me-1", f"{card}-mig-3g40gb-4"]
    values = plain(found[f"{card}-mig-3g40gb-4"])
    assert values["koordra.io/type"] == "mig"
    assert values["koordra.io/parent"] == card
    assert (values["koordra.io/profile"], values["koordra.io/placementStart"]) == ("3g.40gb", 4)
    assert values["koordra.io/uuid"].startswith("MIG-")
    assert values["resource.kubernetes.io/pcieRoot"] == "pci0000:00"
    assert found[f"{card}-mig-3g40gb-4"]["capacity"] == {
        "memory": {"value": "40448Mi"},
        "cores": {"value": "45"},
    }


def test_the_card_itself_takes_all_of_its_counters() -> None:
    machine = node(gpus=1, nics=0, mig=False)
    found = published(machine, mig=True)
    assert taken(found["gpu-0000-03-00-0"]) == (
        "gpu-0000-03-00-0",
        sets(machine, mig=True)["gpu-0000-03-00-0"],
    )


def test_what_an_h100_has() -> None:
    assert gpu_counters(node(gpus=1).gpus[0]) == {
        **{f"memory-slice-{n}": 1 for n in range(8)},
        "compute-slices": 7,
        "copy-engines": 8,
        "decoders": 7,
        "jpeg-engines": 7,
        "ofa-engines": 1,
    }


def possible(gpu: Gpu) -> dict[tuple[str, int], dict[str, int]]:
    return {
        (device.profile.name, device.start): device.counters for device in mig_devices(gpu, on_demand=True)
    }


@pytest.mark.parametrize("card", cards())
def test_counters_allow_what_the_card_allows(card: str) -> None:
    """As many of one profile as the card holds, and no two that overlap in memory."""
    gpu = node(gpus=1, card=card).gpus[0]
    totals, places = gpu_counters(gpu), possible(gpu)

    def fits(chosen: tuple[tuple[str, int], ...]) -> bool:
        used: Counter[str] = Counter()
        for place in chosen:
            used.update(places[place])
        return all(count <= totals[name] for name, count in used.items())

    for profile in gpu.mig_profiles:
        own = [place for place in places if place[0] == profile.name]
        assert len(own) == len(profile.placements)
        most = max(
            count
            for count in range(len(own) + 1)
            if any(fits(chosen) for chosen in itertools.combinations(own, count))
        )
        # The counters know no "at most one of +me" but through its engines, which the table has.
        assert most == profile.most, profile.name
    sizes = {profile.name: dict(profile.placements) for profile in gpu.mig_profiles}
    for one, other in itertools.combinations(places, 2):
        spans = [set(range(start, start + sizes[name][start])) for name, start in (one, other)]
        if spans[0] & spans[1]:
            assert not fits((one, other))
    assert fits(tuple((name, start) for name, start in places if name == gpu.mig_profiles[-2].name))


@pytest.mark.parametrize(
    "change",
    [
        {"disputed": ("migMode",)},
        {"uuid": None},
        {"node": None},
        {"mig_profiles": ()},
    ],
)
def test_instances_of_a_doubtful_card_are_not_offered(change: dict[str, Any]) -> None:
    machine = node(gpus=1, nics=0, instances=SEVEN)
    doubtful = replace(machine, gpus=(replace(machine.gpus[0], **change),))
    assert published(doubtful, mig=True) == {}
    assert guard_of(doubtful, node_name="n").devices[-1].nodes == machine.gpus[0].mig_instances[-1].nodes


def test_an_instance_without_identity_or_nodes_is_not_offered() -> None:
    machine = node(gpus=1, nics=0, instances=SEVEN)
    gpu = machine.gpus[0]
    first, second, *rest = gpu.mig_instances
    broken = (replace(first, uuid=None), replace(second, nodes=second.nodes[:1]), *rest)
    found = published(replace(machine, gpus=(replace(gpu, mig_instances=broken),)), mig=True)
    assert [name[-1] for name in found] == ["2", "3", "4", "5", "6"]


SMS = {"1g.10gb": 12, "1g.20gb": 19, "2g.20gb": 24, "3g.40gb": 45, "4g.40gb": 48, "7g.80gb": 100}


def test_cores_are_a_part_of_the_multiprocessors() -> None:
    """An H100 has 132, and in MIG mode not all of them can be given out: seven times 1g.10gb are 112."""
    (gpu,) = node(gpus=1, nics=0).gpus
    found = {part.profile.name: part.cores for part in mig_devices(gpu, on_demand=True)}
    assert SMS.items() <= found.items()
    unknown = replace(gpu, multiprocessors=None)
    assert {part.cores for part in mig_devices(unknown, on_demand=True) if part.size == 1} == {14}


def test_places_are_published_where_instances_are_made_on_demand() -> None:
    """The same devices with an instance of koordra's and without; and none where another's is in the way."""
    empty = node(gpus=1, nics=0, instances=[])
    assert published(empty, mig=True) == {}
    every = published(empty, mig=True, mig_on_demand=True)
    assert len(every) == sum(len(profile.placements) for profile in empty.gpus[0].mig_profiles)
    assert not any("koordra.io/uuid" in device["attributes"] for device in every.values())
    cut = node(gpus=1, nics=0, instances=[("3g.40gb", 4), ("1g.10gb", 0)])
    mine = {"3g.40gb/4:4", "1g.10gb/0:1"}
    own = {f"{cut.gpus[0].uuid}/{one}" for one in mine}
    assert published(cut, mig=True, mig_on_demand=True, own=own) == every

    left = published(cut, mig=True, mig_on_demand=True, own={one for one in own if "1g" in one})
    assert "gpu-0000-03-00-0-mig-3g40gb-4" in left, "it is there, and may be given out as it is"
    spans = {name: taken(device)[1] for name, device in left.items() if not name.endswith("3g40gb-4")}
    assert spans
    assert not any(f"memory-slice-{at}" in span for span in spans.values() for at in range(4, 8))


@pytest.mark.parametrize("listed", [((9, 4, 4),), None])
def test_slices_of_an_instance_that_is_no_mig_device_are_not_offered(listed: Any) -> None:
    """Somebody's GPU instance without a compute instance; and where the driver does not list them, none
    is."""
    empty = node(gpus=1, nics=0, instances=[])
    halved = replace(empty, gpus=(replace(empty.gpus[0], mig_halves=listed),))
    found = published(halved, mig=True, mig_on_demand=True, own=set())
    assert bool(found) == bool(listed)
    assert all(
        not taken(device)[1].keys() & {f"memory-slice-{at}" for at in range(4, 8)}
        for device in found.values()
    )
    mine = {f"{empty.gpus[0].uuid}/3g.40gb/4:4"}
    assert len(published(halved, mig=True, mig_on_demand=True, own=mine)) == (25 if listed else 0)


def test_a_faulty_card_taints_its_instances() -> None:
    machine = node(gpus=1, nics=0, instances=SEVEN)
    faulty = replace(machine, gpus=(replace(machine.gpus[0], faults=("NeedsReset", "Xid48")),))
    for device in published(faulty, mig=True, mode="native").values():
        assert device["taints"] == [
            {"key": "koordra.io/unhealthy", "value": "NeedsReset.Xid48", "effect": "NoSchedule"}
        ]


def test_a_virtual_function_takes_one_function_and_its_pf_all() -> None:
    machine = node(gpus=0, nics=1, vfs=8)
    found = published(machine, vfs=True)
    pf = "nic-0000-04-00-0"
    assert list(found) == [pf, *(f"{pf}-vf-{n}" for n in range(8))]
    assert sets(machine, vfs=True) == {pf: {"functions": 8}}
    assert taken(found[pf]) == (pf, {"functions": 8})
    assert taken(found[f"{pf}-vf-3"]) == (pf, {"functions": 1})
    values = plain(found[f"{pf}-vf-3"])
    assert (values["koordra.io/type"], values["koordra.io/parent"]) == ("vf", pf)
    assert values["koordra.io/model"] == "ConnectX-7"
    assert "allowMultipleAllocations" not in found[f"{pf}-vf-3"]
    assert "consumesCounters" not in published(machine)[pf]


def test_virtual_functions_stand_behind_their_pf() -> None:
    assert list(published(node(gpus=0, nics=3, vfs=2), vfs=True)) == [
        f"nic-00{n:02x}-04-00-0{part}" for n in range(3) for part in ("", "-vf-0", "-vf-1")
    ]


def test_devices_are_read_back_as_they_were_written() -> None:
    machine = node(gpus=1, nics=1, vfs=2, instances=MIXED)
    for name, raw in published(machine, **POLICIES["everything"]).items():
        device = read_device(Reader(raw, object="slice"))
        assert device.name == name
        assert set(device.consumes_counters) <= {"gpu-0000-03-00-0", "nic-0000-04-00-0"}


def test_names_of_instances() -> None:
    assert mig_name("gpu-0000-1f-00-0", "1g.10gb", 4) == "gpu-0000-1f-00-0-mig-1g10gb-4"
    written = {
        mig_name("g", profile, 0) for profile in ("1g.24gb", "1g.24gb+me", "1g.24gb-me", "1g.24gb+me.all")
    }
    assert len(written) == 4


def test_what_nobody_is_given_is_guarded() -> None:
    management = (DeviceNode("/dev/nvidia-caps/nvidia-cap1", 511, 1),)
    machine = replace(node(gpus=1, nics=0, instances=MIXED), gpu_management=management)
    entries = {entry.name: entry for entry in guard_of(machine, node_name="n").devices}
    assert [each.path for each in entries["gpu-management"].nodes] == ["/dev/nvidia-caps/nvidia-cap1"]
    assert len(entries["gpu-0000-03-00-0-mig-3g40gb-4"].nodes) == 2
    assert {entry.type for entry in entries.values()} == {"gpu"}


class TestContent:
    def test_nothing_is_not_the_wanted_content(self) -> None:
        assert not same_content([], slices(node(gpus=1)))

    def test_the_same_machine_has_it_in_any_generation(self) -> None:
        old, new = slices(node(gpus=1), generation=7), slices(node(gpus=1), generation=1)
        assert same_content(old, new)

    def test_when_the_api_server_saw_a_taint_first_is_no_change(self) -> None:
        """It answers with the time of each taint. A plugin that starts again must not write all slices for
        that."""
        old, new = slices(node(gpus=2), generation=7), slices(node(gpus=2), generation=1)
        for device in old[0]["spec"]["devices"]:
            device["taints"] = [{**taint, "timeAdded": "2026-01-01T00:00:00Z"} for taint in device["taints"]]
        assert same_content(old, new)
        del old[0]["spec"]["devices"][0]["taints"]
        assert not same_content(old, new)

    @pytest.mark.parametrize(
        "changed",
        [
            slices(node(gpus=2)),
            slices(node(gpus=1), mode="native"),
            slices(node(gpus=1, vfs=2), vfs=True),
            slices(node(gpus=1), node_uid="another"),
            [],
        ],
    )
    def test_a_change_is_seen(self, changed: list[dict[str, Any]]) -> None:
        assert not same_content(slices(node(gpus=1), generation=7), changed)

    def test_a_half_written_pool_is_written_anew(self) -> None:
        machine = node(gpus=8, nics=8, vfs=8)
        new = slices(machine, vfs=True)
        old = [*slices(machine, vfs=True, generation=4)[:1], *slices(machine, vfs=True, generation=5)[1:]]
        assert not same_content(old, new)
        assert not same_content(slices(machine, vfs=True, generation=4)[:1], new)


# Bytes of JSON of a node's slices, upper bounds. A fleet of 10,000 plain nodes of 8 GPUs and 8 NICs is some
# 200 MB.
BUDGET = {
    "plain": 20_000,
    "mig": 85_000,
    "mig, all placements": 265_000,
    "vfs": 80_000,
    "everything": 325_000,
}


@pytest.mark.parametrize("policy", POLICIES)
def test_size_of_a_node(policy: str, record_property: Callable[[str, object], None]) -> None:
    """8 GPUs and 8 NICs; in MIG mode with seven instances a card, or empty cards and every placement; 8 VFs a
    NIC."""
    machine = node(mig=POLICIES[policy].get("mig", False), instances=SEVEN if policy == "mig" else [], vfs=8)
    made = slices(machine, **POLICIES[policy])
    size = len(json.dumps(made, separators=(",", ":")))
    record_property("bytes", size)
    devices = sum(len(one["spec"].get("devices", ())) for one in made)
    print(
        f"\n{policy}: {devices} devices, {len(made)} slices, {size} bytes, {len(yaml.safe_dump_all(made))} as YAML"
    )
    assert size <= BUDGET[policy]


def test_a_taint_names_whole_faults_only() -> None:
    """A label's value has 63 characters."""
    card = node(gpus=1, nics=0).gpus[0]
    numbers = (48, 63, 64, 74, 79, 95, 119, 120, 136, 140, 143, 145)
    value = unhealthy(replace(card, faults=("NeedsReset", *(f"Xid{number}" for number in numbers))))
    assert value == "NeedsReset.Xid48.Xid63.Xid64.Xid74.Xid79.Xid95.Xid119.Xid120"
    assert unhealthy(replace(card, faults=("A" * 62, "Xid1"))) == "A" * 62
