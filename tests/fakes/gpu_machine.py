"""A machine with one GPU on this one: a made-up machine with a driver's files, behind which the fake
libcuda and the fake libnvidia-ml of native/test stand, with nvidia-smi. Programs that are given its
environment compute on it."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from dataclasses import dataclass, replace
from pathlib import Path

from koordra.topology.machine import Gpu, Machine
from koordra.topology.presets import write_machine
from tests.fakes import nvidia_smi
from tests.fakes.native import BUILT, ROOT, make
from tests.fakes.nvml_library import SOURCE as NVML_SOURCE
from tests.fakes.nvml_library import FakeNvml
from tests.machines import catalogue

LIBRARIES = f"usr/lib/{platform.machine()}-linux-gnu"


def build() -> None:
    """Everything native that such a machine needs; skips where there is no compiler."""
    make(ROOT / "native", "python-programs", "bench-gpu", out=BUILT)
    make(NVML_SOURCE, out=BUILT / "nvml")


@dataclass
class GpuMachine:
    """`folder` holds the machine's root, the fake driver's memory, and what the fake NVML is told."""

    folder: Path
    machine: Machine

    @classmethod
    def make(cls, folder: Path, kind: str = "h200-vm") -> GpuMachine:
        made = cls(folder, write_machine(catalogue.load(kind), folder / "root", serial="selftest"))
        made._install_driver()
        gpu = made.machine.gpus[0]
        (folder / "memory").mkdir()
        made.set_driver(uuid=gpu.uuid or "", memory=gpu.memory_bytes or 0)
        made.nvml.describe(made.machine)
        made.nvml.order()
        return made

    @property
    def root(self) -> Path:
        return self.folder / "root"

    @property
    def gpu(self) -> Gpu:
        return self.machine.gpus[0]

    @property
    def nvml(self) -> FakeNvml:
        return FakeNvml(self.folder, BUILT / "nvml")

    def give(self, gpu: Gpu) -> None:
        """Only this card is in /dev, and known to the driver's libraries, as in a container that was given
        it."""
        for other in self.machine.gpus:
            if other != gpu:
                (self.root / f"dev/nvidia{other.minor}").unlink()
        self.set_driver(uuid=gpu.uuid or "", memory=gpu.memory_bytes or 0)
        self.nvml.describe(replace(self.machine, gpus=(gpu,)))

    def set_driver(self, *, uuid: str, memory: int) -> None:
        """What libcuda says of its one card."""
        subprocess.run(
            [BUILT / "test" / "tenant", "--world", self.folder / "memory", uuid, str(memory)], check=True
        )

    @property
    def environment(self) -> dict[str, str]:
        return {
            **os.environ,
            "PATH": f"{self.root / 'usr/bin'}:{os.environ['PATH']}",
            "LD_LIBRARY_PATH": str(self.root / LIBRARIES),
            "KOORDRA_FAKE_CUDA": str(self.folder / "memory"),
            "KOORDRA_FAKE_NVML_MACHINE": str(self.folder / "machine"),
            "KOORDRA_FAKE_NVML_CONTROL": str(self.nvml.control),
        }

    def _install_driver(self) -> None:
        libraries = self.root / LIBRARIES
        libraries.mkdir(parents=True)
        for name, built in (
            ("libcuda.so", "test/driver/libcuda.so.1"),
            ("libnvidia-ml.so", "nvml/libnvidia-ml.so.1"),
        ):
            real = f"{name}.{self.machine.driver_version}"
            (libraries / real).write_bytes((BUILT / built).read_bytes())
            (libraries / f"{name}.1").symlink_to(real)
        program = self.root / "usr/bin/nvidia-smi"
        program.parent.mkdir(parents=True)
        program.write_text(f"#!{sys.executable}\n{Path(nvidia_smi.__file__).read_text()}")
        program.chmod(0o755)
