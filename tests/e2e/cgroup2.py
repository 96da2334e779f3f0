"""cgroup version 2 for a runtime under test, on machines whose hierarchies are of version 1.

Where version 1 is mounted, the kernel still has version 2's hierarchy, and device programs (BPF) work in it.
So the runtime gets a mount namespace of its own, in which /sys/fs/cgroup is version 2 alone: containerd and
runc then behave as on a current distribution. Where version 2 is mounted already, nothing is changed.

Controllers that version 1 holds are missing in version 2, and the limits that containerd always asks for (the
weight of a pod's processor) cannot be written. So this file, run as a program, stands before runc:

    cgroup2.py RUNC ARGUMENTS...    runc with these arguments, without limits for which there is no controller

It never touches the rules of devices.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

MOUNT: Final = Path("/sys/fs/cgroup")
_ENTER: Final = (
    f'[ "$(stat -f -c %T {MOUNT})" = cgroup2fs ] || '
    f'{{ umount -R {MOUNT} && mount -t cgroup2 none {MOUNT}; }} && exec "$@"'
)
_CONTROLLERS: Final = {
    "cpu": "cpu",
    "memory": "memory",
    "pids": "pids",
    "blockIO": "io",
    "hugepageLimits": "hugetlb",
    "rdma": "rdma",
}
"""What a field of an OCI spec's `linux.resources` needs."""


def inside(command: Sequence[object]) -> list[str]:
    """The command, in a mount namespace whose only cgroup hierarchy is of version 2."""
    return ["unshare", "--mount", "sh", "-c", _ENTER, "sh", *map(str, command)]


def problem() -> str:
    """Why there can be no version 2 here; empty where it can be had."""
    done = subprocess.run(inside(["true"]), capture_output=True, text=True, check=False)
    return f"cgroup version 2 cannot be mounted: {done.stderr.strip()}" if done.returncode else ""


def runc_in(folder: Path, runc: Path) -> Path:
    """A program in the folder that is runc behind this file."""
    path = folder / "runc-on-cgroup2"
    path.write_text(f'#!/bin/sh\nexec {sys.executable} -IS {__file__} {runc} "$@"\n')
    path.chmod(0o755)
    return path


def _possible(resources: Mapping[str, Any]) -> dict[str, Any]:
    there = (MOUNT / "cgroup.controllers").read_text().split()
    return {name: limits for name, limits in resources.items() if _CONTROLLERS.get(name) in (None, *there)}


def _main(runc: str, *arguments: str) -> None:
    if "create" in arguments:
        path = Path(arguments[arguments.index("--bundle") + 1]) / "config.json"
        spec = json.loads(path.read_text())
        spec["linux"]["resources"] = _possible(spec["linux"].get("resources") or {})
        path.write_text(json.dumps(spec))
    elif "update" in arguments:
        resources = json.dumps(_possible(json.load(sys.stdin))).encode()
        reading, writing = os.pipe()
        os.write(writing, resources)
        os.close(writing)
        os.dup2(reading, sys.stdin.fileno())
    os.execv(runc, [runc, *arguments])


if __name__ == "__main__":
    _main(*sys.argv[1:])
