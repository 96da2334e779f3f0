"""NVML in a limited container: the share is what a program sees, of each GPU by its UUID, and the rest is as it was."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from koordra.kubelet_plugin.isolation import limiter_region
from koordra.kubelet_plugin.isolation.limiter_region import Allowance
from koordra.topology.presets import write_machine
from tests.fakes import nvml_library
from tests.fakes.nvml_library import FakeNvml

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
    limiter_region.allow(
        tmp_path / "regions" / "c", claim="c", allowance=Allowance(uuid=str(first.uuid), limit=GIB)
    )
    limiter_region.tell_unseen(tmp_path / "regions" / "c", str(first.uuid), 100 << 20)
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
