"""The fake libnvidia-ml.so.1 of native/test/nvml: built on the spot, fed with a machine, used by a process of
its own.

The real nvidia-ml-py loads it, so that what is tested is the path through ctypes, not a stand-in for it.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from koordra.kubelet_plugin.discovery.nvml_gpus import ARCHITECTURES
from koordra.topology.machine import Gpu, Machine
from tests.fakes.native import BUILT, ROOT, make

_CUDA_CORES = {"8.0": 64, "9.0": 128, "10.0": 128, "12.0": 128}
SOURCE = ROOT / "native" / "test" / "nvml"


def build() -> Path:
    """The folder with the library; skips where there is no compiler."""
    folder = BUILT / "nvml"
    make(SOURCE, out=folder)
    return folder


@dataclass
class FakeNvml:
    """One machine description and control file, and the environment that points the library at them; `world`:
    the folder of the fake driver whose processes it samples."""

    folder: Path
    library: Path
    world: Path | None = None

    @property
    def control(self) -> Path:
        return self.folder / "control"

    @property
    def node(self) -> Path:
        """What every process with an initialised NVML holds open, as the real one holds /dev/nvidiactl."""
        return self.folder / "nvidiactl"

    def holders(self) -> list[int]:
        """The processes that hold it now, one entry for each time that they opened it."""
        found = []
        for process in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(FileNotFoundError):  # it ends
                links = list((process / "fd").iterdir())
                found += [int(process.name) for link in links if _target(link) == str(self.node)]
        return sorted(found)

    @property
    def environment(self) -> dict[str, str]:
        return {
            **os.environ,
            "LD_LIBRARY_PATH": str(self.library),
            "KOORDRA_FAKE_NVML_MACHINE": str(self.folder / "machine"),
            "KOORDRA_FAKE_NVML_CONTROL": str(self.control),
            "KOORDRA_FAKE_NVML_NODE": str(self.node),
            "KOORDRA_FAKE_NVML_STATE": str(self.folder / "instances"),
            "PYTHONPATH": str(ROOT),
            **({"KOORDRA_FAKE_CUDA": str(self.world)} if self.world else {}),
        }

    def describe(self, machine: Machine, **changes: dict[str, str]) -> None:
        """What the library sees; ``changes`` replace lines of a GPU by its minor (``gpu0={"mig": "1
        1"}``)."""
        lines = [f"driver {machine.driver_version}", f"cuda {machine.cuda_version}"]
        for gpu in machine.gpus:
            lines += described(gpu, changes.get(f"gpu{gpu.minor}", {}))
        (self.folder / "machine").write_text("\n".join(lines) + "\n")

    def order(self, *orders: str) -> None:
        """Replaces the control file (error, lost); Xids are appended with ``xid``."""
        self.control.write_text("".join(f"{order}\n" for order in orders))

    def xid(self, bus_id: str, number: int) -> None:
        with self.control.open("a") as file:
            file.write(f"xid {nvml_bus_id(bus_id)} {number}\n")

    def processes(self, *lines: tuple[str, str, int, int | None]) -> None:
        """The control file becomes a list of processes: UUID of the GPU or MIG device, compute, mps or
        graphics, pid, bytes."""
        self.order(
            *(
                f"process {uuid} {kind} {pid} {'-' if used is None else used}"
                for uuid, kind, pid, used in lines
            )
        )

    def run(self, code: str, *arguments: str) -> Any:
        """What a fresh interpreter prints as JSON when it runs ``code`` against the library."""
        done = subprocess.run(
            [sys.executable, "-c", code, *arguments],
            env=self.environment,
            check=False,
            capture_output=True,
            text=True,
            timeout=600,
        )
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)


def _target(link: Path) -> str | None:
    try:
        return str(link.readlink())
    except OSError:  # closed, or its process has ended, since it was listed
        return None


def nvml_bus_id(bus_id: str) -> str:
    return bus_id.upper().rjust(len("00000000:00:00.0"), "0")


def described(gpu: Gpu, changes: dict[str, str]) -> Iterator[str]:
    """The lines of one GPU, in the format that native/test/nvml/machine.c documents."""
    numbers = {name: number for number, name in ARCHITECTURES.items()}
    facts = {
        "uuid": gpu.uuid,
        "minor": gpu.minor,
        "name": gpu.product_name,
        "memory": gpu.memory_bytes,
        "architecture": numbers.get(gpu.architecture or "", 0),
        "compute": (gpu.compute_capability or "0.0").replace(".", " "),
        "cores": gpu.multiprocessors and gpu.multiprocessors * _CUDA_CORES[gpu.compute_capability or ""],
        "mig": None if gpu.mig_enabled is None else f"{int(gpu.mig_enabled)} {int(gpu.mig_enabled)}",
        "fabric": f"{gpu.fabric.cluster} {gpu.fabric.clique} 3" if gpu.fabric else None,
        **changes,
    }
    yield f"gpu {nvml_bus_id(gpu.location.bus_id)}"
    yield from (f"{fact} {value}" for fact, value in facts.items() if value is not None)
    number = 0
    for link in gpu.nvlinks:
        for _ in range(link.links):
            kind = "switch" if link.to_switch else "gpu"
            yield f"link {number} {kind} {nvml_bus_id(link.peer) if link.peer else '-'}"
            number += 1
    slices = {}
    for index, profile in enumerate(gpu.mig_profiles):
        slices[profile.id] = profile.compute_slices
        engines = (profile.copy_engines, profile.decoders, profile.encoders)
        more = (profile.jpeg_engines, profile.ofa_engines)
        numbers_of = (profile.memory_bytes >> 20, profile.compute_slices, profile.most, *engines, *more)
        numbers_of += (profile.multiprocessors,)
        yield f"profile {index} {profile.id} {profile.name} {' '.join(map(str, numbers_of))}"
        yield from (f"placement {start} {size}" for start, size in profile.placements)
    for each in gpu.mig_instances:
        ids = (each.gpu_instance, each.compute_instance, each.profile_id, each.start, each.size)
        yield f"instance {' '.join(map(str, ids))} {slices.get(each.profile_id, 1)} {each.uuid}"
