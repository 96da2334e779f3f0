"""The driver of a made-up machine, as far as it does something to cards: doubles of nvidia-smi and
nvidia-cuda-mps-control that outlive whoever calls them, and the fake NVML with one card in MIG mode.

koordra's plugin finds them as it does from its container: the host's root is under another path, and a
program is run in it (`chroot`), with what the plugin has in its state directory under the host's names.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

from koordra.topology.location import DeviceNode
from koordra.topology.machine import Gpu, Machine
from koordra.topology.presets.mig import cards, mig_profiles
from koordra.topology.presets.tree import MachineWriter
from tests.fakes import mps_control, nvml_library
from tests.fakes.driver_homes import MULTI_ARCH
from tests.fakes.nvml_library import FakeNvml

CUT = 0
"""Which of the cards is in MIG mode."""
CARD = "H100-SXM5-80GB"
_INSTANCES, _PARTS = 15, 8
_INSTANCES_OF = """
import contextlib, json, sys, pynvml
pynvml.nvmlInit()
card, found = pynvml.nvmlDeviceGetHandleByUUID(sys.argv[1]), []
for index in range(pynvml.nvmlDeviceGetMaxMigDeviceCount(card)):
    with contextlib.suppress(pynvml.NVMLError):
        found.append(pynvml.nvmlDeviceGetUUID(pynvml.nvmlDeviceGetMigDeviceHandleByIndex(card, index)))
print(json.dumps(found))
"""


class CardDriver:
    """`folder`: short and empty, and nobody's to remove but `remove`'s, since the host's root is mounted
    below it. `root` is the machine's, with a driver's libraries; `state` the plugin's directory, where
    containers and host must see what is mounted."""

    def __init__(self, folder: Path, root: Path, machine: Machine, *, state: Path) -> None:
        self.root, self.machine, self._state = root, self._cut(machine), state
        self.host, self.known = folder / "host", folder / "cards"
        # Free beside the nodes that the machine has (`Majors.driverless`).
        self.capabilities = max(node.major for gpu in machine.gpus if (node := gpu.node)) + 3
        self.nvml = FakeNvml(folder, nvml_library.build())
        self._before = {path: path.read_bytes() for path in (root / "nvml.json", root / "proc/devices")}

    @property
    def options(self) -> tuple[str, ...]:
        """Of the plugin."""
        return "--host-root", str(self.host), "--driver-root", f"{self.host}{self.root}"

    @property
    def environment(self) -> dict[str, str]:
        """Of the plugin, which loads the fake NVML."""
        return {key: value for key, value in self.nvml.environment.items() if "FAKE" in key}

    def install(self) -> None:
        self.known.mkdir()
        for gpu in self.machine.gpus:
            (self.known / str(gpu.uuid)).write_text(json.dumps({"mode": "DEFAULT", "timeslice": 0}))
        for name in ("nvidia-smi", "nvidia-cuda-mps-control"):
            program = self.root / "usr/bin" / name
            program.parent.mkdir(parents=True, exist_ok=True)
            words = f"exec {sys.executable} -S {mps_control.__file__} {self.known} {name}"
            program.write_text(f'#!/bin/sh\n{words} "$@"\n')
            program.chmod(0o755)
        self.nvml.describe(self.machine)
        self.nvml.order()
        library = (self.root / MULTI_ARCH / "libnvidia-ml.so.1").resolve()
        self._before[library] = library.read_bytes()
        shutil.copy(self.nvml.library / "libnvidia-ml.so.1", library)
        self._cut_card()
        self._mount()

    def remove(self) -> None:
        for file in self._state.glob("mps/cards/*/pipe/nvidia-cuda-mps-control.pid"):
            if Path(f"/proc/{file.read_text()}").exists():
                os.kill(int(file.read_text()), signal.SIGKILL)
        for mount in (self.host, self._state):
            subprocess.run(["umount", "--recursive", "--lazy", mount], check=True)
        self.host.rmdir()  # fails where the host is still there
        for path, content in self._before.items():
            path.write_bytes(content)
        shutil.rmtree(self.root / "proc/driver/nvidia-caps")
        for name in ("nvidia-smi", "nvidia-cuda-mps-control"):
            (self.root / "usr/bin" / name).unlink()
        shutil.rmtree(self.nvml.folder)

    def card(self, gpu: Gpu) -> dict[str, Any]:
        """How the driver keeps the card."""
        found: dict[str, Any] = json.loads((self.known / str(gpu.uuid)).read_text())
        return found

    def daemon(self, gpu: Gpu) -> int:
        """The process of the card's MPS daemon; 0 where there is none."""
        file = self._state / "mps/cards" / gpu.name / "pipe/nvidia-cuda-mps-control.pid"
        pid = int(file.read_text()) if file.exists() else 0
        return pid if pid and Path(f"/proc/{pid}").exists() else 0

    def instances(self) -> list[str]:
        """UUIDs of those of the card in MIG mode, as a program that asks NVML is told."""
        found: list[str] = self.nvml.run(_INSTANCES_OF, str(self.machine.gpus[CUT].uuid))
        return found

    def capability(self, minor: int) -> DeviceNode:
        return DeviceNode(f"/dev/nvidia-caps/nvidia-cap{minor}", self.capabilities, minor)

    @staticmethod
    def _cut(machine: Machine) -> Machine:
        profiles, count = mig_profiles({"mig_profiles": CARD}), cards()[CARD]["multiprocessors"]
        gpus = [
            replace(gpu, mig_enabled=True, mig_profiles=profiles, multiprocessors=count)
            if number == CUT
            else gpu
            for number, gpu in enumerate(machine.gpus)
        ]
        return replace(machine, gpus=tuple(gpus))

    def _cut_card(self) -> None:
        """What NVML and the kernel say of it. Its nodes are numbers: the driver makes none in advance."""
        written = self.nvml.folder / "cut"
        MachineWriter(written).write(self.machine)
        shutil.copy(written / "nvml.json", self.root / "nvml.json")
        listed = (self.root / "proc/devices").read_text()
        caps = f"Character devices:\n{self.capabilities} nvidia-caps\n"
        (self.root / "proc/devices").write_text(listed.replace("Character devices:\n", caps))
        lines = ["config 1", "monitor 2"]
        for instance in range(_INSTANCES):
            at = f"gpu{self.machine.gpus[CUT].minor}/gi{instance}"
            first = 3 + (self.machine.gpus[CUT].minor or 0) * 135 + instance * 9
            lines.append(f"{at}/access {first}")
            lines += [f"{at}/ci{part}/access {first + 1 + part}" for part in range(_PARTS)]
        folder = self.root / "proc/driver/nvidia-caps"
        folder.mkdir()
        (folder / "mig-minors").write_text("".join(f"{line}\n" for line in lines))

    def _mount(self) -> None:
        """The host's root under another path, as a pod's volume; and the state directory, where mounts are
        shared with the host, as in a pod by `mountPropagation: Bidirectional`."""
        self.host.mkdir()
        for words in (
            ["mount", "--rbind", "/", self.host],
            ["mount", "--make-rprivate", self.host],  # else what is unmounted here is on the host too
            ["mount", "--bind", self._state, self._state],
            ["mount", "--make-shared", self._state],
        ):
            subprocess.run(words, check=True)
