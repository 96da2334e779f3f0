"""What NVML samples of processes: the fake GPU works as the fake driver's processes make it work."""

from __future__ import annotations

import subprocess
from pathlib import Path

from koordra.kubelet_plugin.isolation.limiter import region
from tests.fakes.nvml_library import FakeNvml
from tests.fakes.nvml_library import build as build_nvml
from tests.unit.limiter.native_build import build, environment
from tests.unit.native.test_fake_nvml import MACHINE

CODE = """
import json, sys
import pynvml as nvml
nvml.nvmlInit()
def asked(call, *arguments):
    try:
        return [[each.pid, each.smUtil, each.timeStamp] for each in call(*arguments)]
    except nvml.NVMLError as error:
        return error.value
first, other = (nvml.nvmlDeviceGetHandleByUUID(uuid) for uuid in sys.argv[1:])
samples = asked(nvml.nvmlDeviceGetProcessUtilization, first, 0)
since = samples[0][2]
print(json.dumps([
    samples,
    asked(nvml.nvmlDeviceGetProcessUtilization, first, since),
    asked(nvml.nvmlDeviceGetProcessesUtilizationInfo, first, 0),
    asked(nvml.nvmlDeviceGetProcessUtilization, other, 0),
]))
"""
NOT_SUPPORTED, NOT_FOUND = 3, 6


def test_a_process_that_computes_is_sampled_on_its_gpu(tmp_path: Path) -> None:
    fake, built = FakeNvml(tmp_path, build_nvml()), build()
    fake.describe(MACHINE)
    uuid, other = (gpu.uuid for gpu in MACHINE.gpus[:2])
    regions = tmp_path / "regions"
    region.allow(regions / "claim", claim="claim", uuid=uuid, limit=1 << 30)
    tenant = str(built / "test" / "tenant")
    subprocess.run([tenant, "--world", str(tmp_path), uuid, str(8 << 30)], check=True)
    around = environment(built, regions=regions, world=tmp_path)
    with subprocess.Popen(
        [tenant, "4096", "launch", "400000000"], env=around, stdout=subprocess.DEVNULL
    ) as process:
        process.wait()
    fake.world = tmp_path
    sampled, later, informed, elsewhere = fake.run(CODE, uuid, other)
    ((pid, percent, stamp),) = sampled
    assert pid == process.pid
    assert 0 < percent <= 100
    assert stamp > 0
    assert later == NOT_FOUND
    assert informed == sampled
    assert elsewhere == NOT_SUPPORTED
