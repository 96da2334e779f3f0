"""NVML through nvidia-ml-py and ctypes, against the fake library: every fact, every error, lost cards,
Xids."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pynvml
import pytest

from koordra.topology.machine import Machine
from koordra.topology.presets.facts import preset
from koordra.topology.presets.tree import MachineWriter
from tests.fakes.nvml_library import FakeNvml, build, nvml_bus_id

MACHINE = preset(
    {
        "schema": "koordra.io/machine/v1",
        "driver": {"version": "550.54.15", "cuda": 12040},
        "numa": [{"id": 0, "socket": 0, "cpus": "0-3", "distances": [10]}],
        "gpu": {
            "product": "NVIDIA H100 80GB HBM3",
            "memory_mib": 81559,
            "architecture": "Hopper",
            "compute": "9.0",
        }
        | {"mig": False, "mig_profiles": "H100-SXM5-80GB"},
        "gpus": [
            {"path": "pci0000:10/10:01.0/11:00.0", "numa": 0},
            {"path": "pci0000:20/20:01.0/21:00.0", "numa": 0},
            {"path": "pci0000:30/30:01.0/31:00.0", "numa": 0, "mig": True}
            | {"mig_instances": [["3g.40gb", 4], ["1g.10gb", 0], ["1g.10gb+me", 1]]},
        ],
        "nvswitches": {"paths": ["pci0000:40/40:01.0/41:00.0"], "links": [18]},
        "nvlinks": [[0, 1, 4]],
    },
    name="fake",
).machine(serial="fake")
FIRST, SECOND, THIRD = (gpu.location.bus_id for gpu in MACHINE.gpus)


@pytest.fixture(scope="session")
def library() -> Path:
    return build()


@pytest.fixture
def fake(library: Path, tmp_path: Path) -> FakeNvml:
    made = FakeNvml(tmp_path, library)
    made.describe(with_links(MACHINE))
    return made


def with_links(machine: Machine) -> Machine:
    """The machine with peer access between the first two cards, and a fabric."""
    from dataclasses import replace

    from koordra.topology.partitions import FabricInfo

    first, second, third = machine.gpus
    fabric = FabricInfo("2b0c2cb5-0d8a-4d55-a3f0-3f8a4a0f3d11", 7)
    return replace(
        machine,
        gpus=(
            replace(first, fabric=fabric),
            replace(second, fabric=fabric),
            replace(third, fabric=None),
        ),
    )


DISCOVER = """
import json, sys, pathlib
from dataclasses import asdict
from koordra.kubelet_plugin.discovery.reading import discover
from koordra.kubelet_plugin.discovery.nvml_gpus import nvml_facts
found = discover(pathlib.Path(sys.argv[1]), nvml=nvml_facts)
print(json.dumps({"gpus": [asdict(gpu) | {"publishable": gpu.publishable} for gpu in found.machine.gpus],
                  "driver": found.machine.driver_version, "cuda": found.machine.cuda_version,
                  "problems": [[p.object, p.field, p.problem] for p in found.problems]}, default=list))
"""


def discovered(fake: FakeNvml, root: Path) -> Any:
    return fake.run(DISCOVER, str(root))


@pytest.fixture
def root(tmp_path: Path) -> Path:
    folder = tmp_path / "root"
    MachineWriter(folder).write(MACHINE)
    (folder / "nvml.json").unlink()
    return folder


def test_every_fact_comes_through_ctypes(fake: FakeNvml, root: Path) -> None:
    from dataclasses import asdict

    found = discovered(fake, root)
    assert (found["driver"], found["cuda"], found["problems"]) == ("550.54.15", 12040, [])
    expected = [asdict(gpu) | {"publishable": gpu.publishable} for gpu in with_links(MACHINE).gpus]
    assert without_modes(found["gpus"]) == without_modes(json.loads(json.dumps(expected, default=list)))


def without_modes(value: Any) -> Any:
    """Permissions of device nodes are those of files that the test made."""
    match value:
        case dict():
            return {key: without_modes(each) for key, each in value.items() if key != "mode"}
        case list():
            return [without_modes(each) for each in value]
    return value


CALLS = """
import json, sys, pathlib
import pynvml
from koordra.kubelet_plugin.discovery.nvml_gpus import nvml_facts
control, calls, codes = pathlib.Path(sys.argv[1]), json.loads(sys.argv[2]), json.loads(sys.argv[3])
def facts():
    found = nvml_facts()
    return [[[gpu.location.bus_id, gpu.uuid, gpu.minor, gpu.memory_bytes, gpu.mig_enabled, list(gpu.disputed), list(gpu.faults),
              [i.uuid for i in gpu.mig_instances]] for gpu in found.gpus],
            [[p.object, p.field] for p in found.problems]]
answers = {}
for call in calls:
    for code in codes:
        control.write_text(f"error {call} {code}\\n")
        answers[f"{call} {code}"] = facts()
control.write_text("")
answers["afterwards"] = facts()
print(json.dumps(answers))
"""

ERRORS = sorted(
    value
    for name, value in vars(pynvml).items()
    if name.startswith("NVML_ERROR_") and isinstance(value, int) and value
)
UNSUPPORTED = {pynvml.NVML_ERROR_NOT_SUPPORTED, pynvml.NVML_ERROR_FUNCTION_NOT_FOUND}
USED = [
    "nvmlInitWithFlags", "nvmlShutdown", "nvmlSystemGetDriverVersion", "nvmlSystemGetCudaDriverVersion_v2",
    "nvmlDeviceGetCount_v2", "nvmlDeviceGetHandleByIndex_v2", "nvmlDeviceGetPciInfo_v3", "nvmlDeviceGetUUID",
    "nvmlDeviceGetMinorNumber", "nvmlDeviceGetName", "nvmlDeviceGetMemoryInfo_v2", "nvmlDeviceGetArchitecture",
    "nvmlDeviceGetCudaComputeCapability", "nvmlDeviceGetFieldValues", "nvmlDeviceGetNvLinkState",
    "nvmlDeviceGetNvLinkRemoteDeviceType", "nvmlDeviceGetNvLinkRemotePciInfo_v2",
    "nvmlDeviceGetGpuFabricInfoV", "nvmlDeviceGetMigMode", "nvmlDeviceGetGpuInstanceProfileInfoV",
    "nvmlDeviceGetGpuInstancePossiblePlacements_v2", "nvmlDeviceGetMaxMigDeviceCount",
    "nvmlDeviceGetMigDeviceHandleByIndex", "nvmlDeviceGetGpuInstanceId", "nvmlDeviceGetComputeInstanceId",
    "nvmlDeviceGetAttributes_v2", "nvmlDeviceGetGpuInstanceById", "nvmlGpuInstanceGetInfo",
]  # fmt: skip
QUIET_TOO = {
    "nvmlDeviceGetNvLinkState": {pynvml.NVML_ERROR_INVALID_ARGUMENT},
    "nvmlDeviceGetNvLinkRemoteDeviceType": {pynvml.NVML_ERROR_INVALID_ARGUMENT},
    "nvmlDeviceGetNvLinkRemotePciInfo_v2": {pynvml.NVML_ERROR_INVALID_ARGUMENT},
    "nvmlDeviceGetGpuInstanceProfileInfoV": {pynvml.NVML_ERROR_INVALID_ARGUMENT},
    "nvmlDeviceGetMigDeviceHandleByIndex": {pynvml.NVML_ERROR_INVALID_ARGUMENT, pynvml.NVML_ERROR_NOT_FOUND},
}
"""Call -> codes that are answers of this call ("there is no such link"), besides "not supported"."""


@pytest.mark.long
def test_every_error_of_every_call(fake: FakeNvml) -> None:
    """No error makes a card another card; each is reported, but for those that are answers, and passes
    again."""
    assert len(ERRORS) > 25
    answers = fake.run(CALLS, str(fake.control), json.dumps(USED), json.dumps(ERRORS))
    expected, _ = answers.pop("afterwards")
    true = {gpu[0]: gpu for gpu in expected}
    assert set(true) == {FIRST, SECOND, THIRD}
    assert len(answers) == len(USED) * len(ERRORS)
    for key, (gpus, problems) in answers.items():
        call, code = key.split()
        for bus_id, uuid, minor, memory, mig, doubtful, faults, instances in gpus:
            assert uuid in {true[bus_id][1], None}, key
            assert minor in {true[bus_id][2], None}, key
            assert memory in {true[bus_id][3], None}, key
            assert mig == true[bus_id][4] or (mig is None and (doubtful or int(code) in UNSUPPORTED)), key
            assert set(instances) <= {*true[bus_id][7], None}, key
            expected_fault = {15: {"GpuLost"}, 16: {"NeedsReset"}}.get(int(code), set())
            assert set(faults) <= expected_fault, key
        if call == "nvmlInitWithFlags":
            assert (gpus, problems) == ([], [["NVML", "library"]]), key
        elif call == "nvmlShutdown":
            assert problems == [], key
        else:
            silent = UNSUPPORTED | QUIET_TOO.get(call, set())
            quiet = int(code) in silent
            assert quiet or problems, key
            if call not in {"nvmlDeviceGetUUID", "nvmlDeviceGetGpuInstancePossiblePlacements_v2"} and quiet:
                assert not [name for name in problems if "MIG instance" not in name[1]], key


@pytest.mark.parametrize("number", [0, 1])
def test_a_lost_card_takes_nobody_with_it(fake: FakeNvml, root: Path, number: int) -> None:
    lost = MACHINE.gpus[number].location.bus_id
    fake.order(f"lost {nvml_bus_id(lost)}")
    found = discovered(fake, root)
    assert [gpu["publishable"] for gpu in found["gpus"]] == [number != 0, number != 1, False]
    # Its address is among what is lost, so nothing can be said of it by name; the others are blameless.
    assert [gpu["faults"] for gpu in found["gpus"]] == [[], [], []]
    assert {subject for subject, _, problem in found["problems"] if "lost" in problem.lower()} == {
        f"GPU index {number}"
    }
    fake.order()
    assert [gpu["publishable"] for gpu in discovered(fake, root)["gpus"]] == [True, True, False]


@pytest.mark.parametrize("number", [0, 1])
def test_a_card_that_is_lost_in_the_middle_is_faulty_and_its_neighbours_are_not(
    fake: FakeNvml, root: Path, number: int
) -> None:
    bus_id = nvml_bus_id(MACHINE.gpus[number].location.bus_id)
    fake.order(f"error nvmlDeviceGetName 15 {bus_id}")
    found = discovered(fake, root)
    assert [gpu["faults"] for gpu in found["gpus"]] == [
        ["GpuLost"] if each == number else [] for each in range(3)
    ]


def test_a_card_whose_mig_mode_cannot_be_read_is_not_offered(fake: FakeNvml, root: Path) -> None:
    fake.order(f"error nvmlDeviceGetMigMode 999 {nvml_bus_id(SECOND)}")
    assert [gpu["publishable"] for gpu in discovered(fake, root)["gpus"]] == [True, False, False]


def test_a_card_that_needs_a_reset_says_so(fake: FakeNvml, root: Path) -> None:
    fake.describe(with_links(MACHINE), gpu0={"fields": "230 1"}, gpu1={"fields": "230 0"})
    gpus = discovered(fake, root)["gpus"]
    assert [gpu["faults"] for gpu in gpus] == [["NeedsReset"], [], []]


@pytest.mark.parametrize(
    ("fields", "faults"),
    [
        ("230 2", ["NeedsReboot"]),
        ("230 4 144 1", ["NeedsDrainAndReset", "RowRemapPending"]),
        ("145 1", ["RowRemapFailed"]),
        ("31 1", ["PagesPending"]),
        ("230 0 144 0 145 0 31 0 4 3", []),
        ("230 99", ["NeedsReset"]),
    ],
)
def test_what_a_cards_memory_and_driver_ask_for_is_a_fault(
    fake: FakeNvml, root: Path, fields: str, faults: list[str]
) -> None:
    fake.describe(with_links(MACHINE), gpu0={"fields": fields})
    found = discovered(fake, root)
    assert [gpu["faults"] for gpu in found["gpus"]] == [faults, [], []]
    told = [problem for subject, field, problem in found["problems"] if field == "health"]
    assert sorted(text.partition(":")[0] for text in told) == faults


def test_errors_are_counted_and_no_fault(fake: FakeNvml, root: Path) -> None:
    fake.describe(with_links(MACHINE), gpu1={"fields": "3 7 4 5000000000 52 11 142 2"})
    gpus = discovered(fake, root)["gpus"]
    assert gpus[1]["errors"] == {
        "ecc_corrected": 7,
        "ecc_uncorrected": 5_000_000_000,
        "nvlink_replay": 11,
        "rows_remapped_corrected": 2,
    }
    assert [gpu["faults"] for gpu in gpus] == [[], [], []]


CLUSTER = "2b0c2cb5-0d8a-4d55-a3f0-3f8a4a0f3d11"


@pytest.mark.parametrize(
    ("state", "health", "faults", "joined"),
    [
        (0, 0, [], False),
        (1, 0, ["FabricNotReady"], False),
        (2, 0, ["FabricNotReady"], False),
        (3, 0, [], True),
        (3, 0b10_10_10_10, [], True),
        (3, 0b01, ["FabricDegraded"], True),
        (3, 0b01 << 4, ["FabricUnhealthy"], True),
        (3, 0b01 << 6, ["FabricUnhealthy"], True),
    ],
)
def test_a_card_whose_fabric_is_not_ready_is_faulty(
    fake: FakeNvml, root: Path, state: int, health: int, faults: list[str], joined: bool
) -> None:
    fake.describe(with_links(MACHINE), gpu0={"fabric": f"{CLUSTER} 7 {state} {health}"})
    gpu = discovered(fake, root)["gpus"][0]
    assert (gpu["faults"], gpu["fabric"] is not None) == (faults, joined)


def test_the_memory_that_the_driver_keeps_is_not_offered(fake: FakeNvml, root: Path) -> None:
    fake.describe(with_links(MACHINE), gpu0={"reserved": str(551 << 20)})
    first, second, _ = discovered(fake, root)["gpus"]
    assert second["memory_bytes"] - first["memory_bytes"] == 551 << 20


def test_a_driver_that_does_not_tell_it_offers_all(fake: FakeNvml, root: Path) -> None:
    fake.describe(with_links(MACHINE), gpu0={"reserved": str(551 << 20)})
    fake.order("error nvmlDeviceGetMemoryInfo_v2 13")
    first, second, _ = discovered(fake, root)["gpus"]
    assert first["memory_bytes"] == second["memory_bytes"]


def test_memory_that_cannot_be_read_is_not_guessed(fake: FakeNvml, root: Path) -> None:
    fake.describe(with_links(MACHINE), gpu0={"reserved": str(551 << 20)})
    fake.order(f"error nvmlDeviceGetMemoryInfo_v2 999 {nvml_bus_id(FIRST)}")
    first = discovered(fake, root)["gpus"][0]
    assert (first["memory_bytes"], first["publishable"]) == (None, False)


def test_an_instance_that_is_cut_further_is_left_out(fake: FakeNvml, root: Path) -> None:
    file = fake.folder / "machine"
    lines = file.read_text().splitlines()
    cut = next(line for line in lines if line.startswith("instance 1 0"))
    file.write_text("\n".join([*lines, cut.replace("instance 1 0", "instance 1 1")]) + "\n")
    found = discovered(fake, root)
    assert [each["gpu_instance"] for each in found["gpus"][2]["mig_instances"]] == [2, 3]
    assert any("several compute instances" in problem for _, _, problem in found["problems"])


def test_a_library_of_another_version_is_one_problem(fake: FakeNvml, root: Path) -> None:
    (fake.folder / "machine").unlink()
    found = discovered(fake, root)
    assert ["NVML", "library", "Driver Not Loaded"] in found["problems"]
    assert not any(gpu["publishable"] for gpu in found["gpus"])


HANDLES = """
import json, pynvml
pynvml.nvmlInit()
cards = [pynvml.nvmlDeviceGetHandleByIndex(index) for index in range(pynvml.nvmlDeviceGetCount())]
uuids = [pynvml.nvmlDeviceGetUUID(card) for card in cards]
ids = [pynvml.nvmlDeviceGetPciInfo(card).busId for card in cards]
mig = pynvml.nvmlDeviceGetMigDeviceHandleByIndex(cards[2], 0)
print(json.dumps({
    "by uuid": [pynvml.nvmlDeviceGetMinorNumber(pynvml.nvmlDeviceGetHandleByUUID(uuid)) for uuid in uuids],
    "by bus": [pynvml.nvmlDeviceGetMinorNumber(pynvml.nvmlDeviceGetHandleByPciBusId(bus)) for bus in ids],
    "v2": pynvml.nvmlDeviceGetMemoryInfo(cards[0], version=pynvml.nvmlMemory_v2).total,
    "parent": pynvml.nvmlDeviceGetMinorNumber(pynvml.nvmlDeviceGetDeviceHandleFromMigDeviceHandle(mig)),
    "ancestor": pynvml.nvmlDeviceGetTopologyCommonAncestor(cards[0], cards[1]),
}))
"""


def test_handles_lead_back_to_their_card(fake: FakeNvml) -> None:
    assert fake.run(HANDLES) == {
        "by uuid": [0, 1, 2],
        "by bus": [0, 1, 2],
        "v2": MACHINE.gpus[0].memory_bytes,
        "parent": 2,
        "ancestor": pynvml.NVML_TOPOLOGY_HOSTBRIDGE,
    }
