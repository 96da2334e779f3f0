"""NVML in a limited container: the share is what a program sees, of each GPU by its UUID, and the rest is as
it was."""

from __future__ import annotations

import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from koordra.kubelet_plugin.isolation.limiter import region
from koordra.topology.presets import write_machine
from tests.fakes import nvml_library
from tests.fakes.nvml_library import FakeNvml
from tests.unit.limiter.native_build import environment

GIB = 1 << 30

ASK = """
import json, pynvml
pynvml.nvmlInit()
seen = []
for index in (0, 1):
    device = pynvml.nvmlDeviceGetHandleByIndex(index)
    for version in (None, pynvml.nvmlMemory_v2):
        memory = pynvml.nvmlDeviceGetMemoryInfo(device, version=version)
        seen.append([memory.total, memory.free, memory.used])
print(json.dumps({"seen": seen, "count": pynvml.nvmlDeviceGetCount(), "driver": str(pynvml.nvmlSystemGetDriverVersion())}))
"""


@pytest.fixture
def nvml(tmp_path: Path) -> FakeNvml:
    return FakeNvml(tmp_path, nvml_library.build())


def test_memory_is_the_share(
    built: Path, nvml: FakeNvml, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine = write_machine("hgx-h100", tmp_path / "root", serial="limiter")
    nvml.describe(replace(machine))
    first, second = machine.gpus[:2]
    region.allow(tmp_path / "regions" / "c", claim="c", uuid=str(first.uuid), limit=GIB)
    region.write_unaccounted(tmp_path / "regions" / "c", str(first.uuid), 100 << 20)
    plain = nvml.run(ASK)
    # The fake library is the driver's; the limiter's is what the program finds.
    monkeypatch.setenv("KOORDRA_DRIVER_FOLDER", str(nvml.library))
    monkeypatch.setenv("KOORDRA_LIMITER_FOLDER", str(tmp_path / "regions"))
    limited = FakeNvml(tmp_path, built / "nvml-share").run(ASK)
    assert limited["seen"][0] == [GIB, GIB - (100 << 20), 100 << 20]
    assert limited["seen"][1] == limited["seen"][0]
    assert limited["seen"][2:] == plain["seen"][2:]
    assert limited["seen"][2][0] == second.memory_bytes
    assert (limited["count"], limited["driver"]) == (plain["count"], plain["driver"])


LISTS = """
import json, pynvml, sys
pynvml.nvmlInit()
seen = []
for index in (0, 1):
    device = pynvml.nvmlDeviceGetHandleByIndex(index)
    for ask in (
        pynvml.nvmlDeviceGetComputeRunningProcesses,
        pynvml.nvmlDeviceGetGraphicsRunningProcesses,
        pynvml.nvmlDeviceGetMPSComputeRunningProcesses,
    ):
        seen.append([[each.pid, each.usedGpuMemory] for each in ask(device)])
print(json.dumps(seen))
"""


@pytest.mark.parametrize("defect", [False, True], ids=["as shipped", "process_lists_unfiltered"])
def test_a_tenant_sees_the_processes_of_its_own_claim(
    built: Path, nvml: FakeNvml, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, defect: bool
) -> None:
    """3.2: process lists are not filtered. With the defect switched on, the neighbour shows."""
    machine = write_machine("hgx-h100", tmp_path / "root", serial="limiter")
    nvml.describe(machine)
    first, second = (str(gpu.uuid) for gpu in machine.gpus[:2])
    claim = tmp_path / "regions" / "c"
    region.allow(claim, claim="c", uuid=first, limit=GIB)
    program = str(built / "test" / "tenant")
    subprocess.run([program, "--world", str(tmp_path), first, str(8 * GIB)], check=True)
    with subprocess.Popen(
        [program, str(GIB), "stay"],
        env=environment(built, regions=tmp_path / "regions", world=tmp_path),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as own:
        assert own.stdout is not None
        assert own.stdout.readline()
        nvml.processes(
            *(
                (gpu, kind, pid, used)
                for gpu in (first, second)
                for kind in ("compute", "graphics", "mps")
                for pid, used in ((4242, 7), (own.pid, 9), (4243, None))
            )
        )
        monkeypatch.setenv("KOORDRA_DRIVER_FOLDER", str(nvml.library))
        monkeypatch.setenv("KOORDRA_LIMITER_FOLDER", str(tmp_path / "regions"))
        monkeypatch.setenv("KOORDRA_DEFECT", "process_lists_unfiltered" if defect else "")
        flavour = built / "defects" if defect else built
        seen = FakeNvml(tmp_path, flavour / "nvml-share").run(LISTS)
        all_of_them = [[4242, 7], [own.pid, 9], [4243, None]]
        assert seen[:3] == [all_of_them if defect else [[own.pid, 9]]] * 3
        assert seen[3:] == [all_of_them] * 3, "the second card is not shared: it is shown as it is"
        own.kill()
