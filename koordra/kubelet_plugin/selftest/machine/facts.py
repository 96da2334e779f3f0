"""What a report needs beside the steps: versions, who else uses the GPUs, what the kernel and the driver
say."""

from __future__ import annotations

import json
import os
import platform
import re
import shutil
from pathlib import Path
from typing import Final

from koordra.kubelet_plugin.selftest.container import without_spec
from koordra.kubelet_plugin.selftest.program_runs import ended
from koordra.kubelet_plugin.selftest.report import Finding, allowed_environment, ok, problem
from koordra.topology.machine import Machine

_INSTALLED: Final = """\
import json, platform, re
from importlib.metadata import distributions
found = {str(each.metadata["Name"]): each.version for each in distributions()}
wanted = re.compile("torch|triton|jax|cupy|numba|numpy|nvidia")
print(json.dumps([platform.python_version(), {name: found[name] for name in sorted(found) if wanted.match(name)}]))
"""
_LOGGED: Final = re.compile(rb"NVRM|Xid|nvidia", re.IGNORECASE)
_MOST_LOG: Final = 1 << 20


def environment(root: Path, python: str, folder: Path) -> Finding:
    """The machine, and what the interpreter of the programs has installed, in words and as details."""
    end = ended(without_spec(folder, (python, "-c", _INSTALLED), {}), folder=folder, deadline=60.0)
    try:
        version, packages = json.loads(end.output)
    except ValueError:
        return problem(f"{python} is no Python: {end.errors.strip()[-300:]}", "name another with --python")
    system = _field(root / "etc/os-release", "PRETTY_NAME") or "unknown system"
    return ok(
        f"{system}, kernel {platform.release()}, Python {version}, uid {os.geteuid()}",
        packages=packages,
        environment=allowed_environment(),
        compiler=shutil.which("cc"),
        kernel=_text(root / "proc/version").strip(),
        driver=_text(root / "proc/driver/nvidia/version").strip(),
    )


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
