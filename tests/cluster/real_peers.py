"""NVIDIA's own device plugin and DRA driver on the lent node, with NVIDIA's own mock of NVML, where
KOORDRA_PEERS names a folder with the programs `nvidia-device-plugin` and `gpu-kubelet-plugin` and with
`libnvidia-ml.so.1` (pkg/gpu/mocknvml of NVIDIA's k8s-test-infra). They stand in for the stand-ins."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

import yaml

from koordra.topology.machine import Machine
from tests.fakes import driver_homes

PEERS: Final = "KOORDRA_PEERS"


def real_peers() -> Path | None:
    return Path(os.environ[PEERS]) if PEERS in os.environ else None


def mock_driver(peers: Path, root: Path, machine: Machine, cards: int) -> dict[str, str]:
    """The mock of NVML for the first `cards` of a made-up machine, in its tree; the environment that points
    at them."""
    library = root / driver_homes.MULTI_ARCH / "libnvidia-ml.so.1"
    library.unlink(missing_ok=True)
    shutil.copy(peers / "libnvidia-ml.so.1", library)
    driver_homes.program(root / "usr" / "bin", "nvidia-smi")
    devices = [
        {
            "index": at,
            "uuid": str(gpu.uuid),
            "minor_number": gpu.minor,
            "pci": {"bus_id": str(gpu.location.bus_id)},
        }
        for at, gpu in enumerate(machine.gpus[:cards])
    ]
    version = str(machine.driver_version)
    document = {
        "version": "1.0",
        "system": {"driver_version": version, "num_devices": cards, "cuda_version": "12.4",
                   "cuda_version_major": 12, "cuda_version_minor": 4},
        "device_defaults": {
            "name": "NVIDIA H100 80GB HBM3",
            "brand": "nvidia",
            "architecture": "hopper",
            "compute_capability": {"major": 9, "minor": 0},
            "memory": {"total_bytes": 80 << 30},
        },
        "devices": devices,
    }  # fmt: skip
    configuration = root / "mock-nvml.yaml"
    configuration.write_text(yaml.safe_dump(document))
    return {"MOCK_NVML_CONFIG": str(configuration), "LD_LIBRARY_PATH": str(library.parent)}


class Program:
    """A peer's node program as a process of its own."""

    def __init__(self, command: Sequence[object], environment: Mapping[str, str], log: Path) -> None:
        self._command = [str(word) for word in command]
        self._environment, self._log = {**os.environ, **environment}, log
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        with self._log.open("ab") as sink:
            self._process = subprocess.Popen(self._command, env=self._environment, stdout=sink, stderr=sink)

    def stop(self) -> None:
        if self._process is not None:
            self._process.terminate()
            self._process.wait(60)
            self._process = None

    end = stop

    @property
    def serves(self) -> bool:
        return self._process is not None

    def kubelet_restarted(self) -> bool:
        """It watches the kubelet's socket itself."""
        return True


def device_plugin(peers: Path, root: Path, environment: Mapping[str, str], log: Path) -> Program:
    command = [peers / "nvidia-device-plugin", "--pass-device-specs", f"--driver-root={root}"]
    command += [f"--dev-root={root}", f"--driver-root-ctr-path={root}", "--device-discovery-strategy=nvml"]
    return Program(command, environment, log)


def dra_driver(
    peers: Path,
    root: Path,
    environment: Mapping[str, str],
    log: Path,
    *,
    node: str,
    kubeconfig: str,
    kubelet_root: Path,
    cdi: Path,
) -> Program:
    hook = root / "usr" / "bin" / "nvidia-cdi-hook"
    hook.write_text("#!/bin/sh\n")
    hook.chmod(0o755)
    command = [
        peers / "gpu-kubelet-plugin",
        f"--node-name={node}",
        f"--kubeconfig={kubeconfig}",
        f"--cdi-root={cdi}",
    ]
    command += [f"--kubelet-plugins-directory-path={kubelet_root / 'plugins'}"]
    command += [f"--kubelet-registrar-directory-path={kubelet_root / 'plugins_registry'}"]
    command += [
        "--image-name=none",
        f"--nvidia-driver-root={root}",
        f"--container-driver-root={root}",
        f"--nvidia-cdi-hook-path={hook}",
    ]
    (kubelet_root / "plugins" / "gpu.nvidia.com").mkdir(parents=True, exist_ok=True)
    return Program(command, environment, log)
