"""What a report needs beside the steps: versions, who else uses the GPUs, what the kernel and the driver
say."""

from __future__ import annotations

import os
import platform
import re
import shutil
import subprocess
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Final

from koordra.kubelet_plugin.selftest.report import Finding, allowed_environment, ok
from koordra.topology.machine import Machine

PACKAGES: Final = (
    "torch",
    "triton",
    "jax",
    "jaxlib",
    "cupy-cuda12x",
    "cupy-cuda13x",
    "numpy",
    "nvidia-ml-py",
)
_LOGGED: Final = re.compile(rb"NVRM|Xid|nvidia", re.IGNORECASE)
_MOST_LOG: Final = 1 << 20


def environment(root: Path) -> Finding:
    """The machine and what is installed, in words and as details."""
    installed = {name: found for name in PACKAGES if (found := _version(name))}
    system = _field(root / "etc/os-release", "PRETTY_NAME") or "unknown system"
    return ok(
        f"{system}, kernel {platform.release()}, Python {platform.python_version()}, uid {os.geteuid()}",
        packages=installed,
        environment=allowed_environment(),
        compiler=shutil.which("cc"),
        kernel=_text(root / "proc/version").strip(),
        driver=_text(root / "proc/driver/nvidia/version").strip(),
    )


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def _field(path: Path, name: str) -> str:
    for line in _text(path).splitlines():
        key, _, value = line.partition("=")
        if key == name:
            return value.strip('"')
    return ""


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


def partitioning(machine: Machine, root: Path) -> Finding:
    """MIG modes and instances, and whether an MPS daemon runs."""
    cards = [
        f"{gpu.name}: MIG "
        + ("not there" if gpu.mig_enabled is None else "on" if gpu.mig_enabled else "off")
        + (f", {len(gpu.mig_instances)} instances" if gpu.mig_instances else "")
        for gpu in machine.gpus
    ]
    mps = sorted(
        process.parent.name
        for process in root.glob("proc/[0-9]*/comm")
        if _text(process).startswith("nvidia-cuda-mps")
    )
    return ok("; ".join([*cards, f"MPS: {'processes ' + ', '.join(mps) if mps else 'does not run'}"]))


def told(program: str, *arguments: str) -> str | None:
    """What a program of the machine prints; None where there is none, or it fails."""
    path = shutil.which(program)
    if path is None:
        return None
    try:
        done = subprocess.run([path, *arguments], capture_output=True, check=False, timeout=30)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.decode(errors="replace") if done.returncode == 0 else None


def kernel_log(device: Path = Path("/dev/kmsg")) -> bytes:
    """The kernel's messages about the driver, Xids among them; empty where they may not be read."""
    found = []
    try:
        file = os.open(device, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return b""
    try:
        for _ in range(1 << 16):
            try:
                record = os.read(file, 8192)
            except BrokenPipeError:  # overwritten meanwhile; the next is there
                continue
            if not record:
                break
            if _LOGGED.search(record):
                found.append(record)
    except OSError:  # no more of them
        pass
    finally:
        os.close(file)
    return b"".join(found)[-_MOST_LOG:]
