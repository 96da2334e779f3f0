"""What is asked of a live node, besides reading its files: programs, sockets, the driver and the kernel.

Every question has a time limit, is asked of this machine only, and has the answer None where nobody answers.
A captured machine is asked nothing.
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from koordra.errors import NodeError, PrepareError
from koordra.kubelet_plugin.isolation.mps.daemon import protocol_of
from koordra.kubelet_plugin.network.rdma_links import NetlinkRdma
from koordra.kubelet_plugin.node_check.readings.container_runtime.cri_client import RuntimeAnswer, ask_runtime
from koordra.kubelet_plugin.nvidia_driver.driver_programs import DriverPrograms, on_host
from koordra.kubelet_plugin.nvidia_driver.homes import HomeSource, HostRoot

_SECONDS: Final = 5.0
_NVML_SECONDS: Final = 30.0
"""A driver that initialises several cards without nvidia-persistenced takes its time."""
_NVML_PROGRAM: Final = "koordra.kubelet_plugin.node_check.readings.nvml_answers"
_NUMBER: Final = re.compile(r"\b([0-9]+\.[0-9]+(?:\.[0-9]+)?)", re.ASCII)


@dataclass(frozen=True, slots=True)
class LiveNode:
    """`runtime`: a CRI socket -> its answer; `program_version`: the root, and a program's path below it ->
    the number in what `--version` prints; `nvml`: the library to load, None for the usual one -> the document
    that nvml_answers prints; `mps_protocol`: the root -> the newest version of MPS's protocol that its driver
    has; `rdma_exclusive`: whether RDMA devices belong to network namespaces; `answers`:
    whether somebody accepts connections on a unix socket."""

    runtime: Callable[[Path], RuntimeAnswer | None]
    program_version: Callable[[Path, str], str | None]
    nvml: Callable[[Path | None], str | None]
    mps_protocol: Callable[[Path], str | None]
    rdma_exclusive: Callable[[], bool | None]
    answers: Callable[[Path], bool | None]


def this_node() -> LiveNode:
    return LiveNode(
        runtime=ask_runtime,
        program_version=_program_version,
        nvml=_nvml,
        mps_protocol=_mps_protocol,
        rdma_exclusive=_rdma_exclusive,
        answers=_answers,
    )


def no_node() -> LiveNode:
    """A machine that cannot be asked."""
    return LiveNode(
        runtime=lambda _socket: None,
        program_version=lambda _root, _path: None,
        nvml=lambda _library: None,
        mps_protocol=lambda _root: None,
        rdma_exclusive=lambda: None,
        answers=lambda _socket: None,
    )


def _program_version(root: Path, path: str) -> str | None:
    """Run in the host's own root: inside a pod its libraries are below another folder."""
    command = [f"/{path}", "--version"]
    if root != Path("/"):
        command = ["chroot", str(root), *command]
    found = _NUMBER.search(output_of(command, seconds=_SECONDS) or "")
    return found[1] if found else None


def _nvml(library: Path | None) -> str | None:
    """In a process of its own: a driver in trouble hangs in the kernel, where no thread can be ended, and the
    handle of a process that has ended keeps no driver from being unloaded."""
    command = [sys.executable, "-P", "-m", _NVML_PROGRAM, *([str(library)] if library else [])]
    return output_of(command, seconds=_NVML_SECONDS)


def _mps_protocol(root: Path) -> str | None:
    """Asked as the plugin asks: it prints its help, and starts nothing."""
    homes = HomeSource(HostRoot(root, Path("/")), root=root)
    try:
        return protocol_of(DriverPrograms(on_host(homes)))
    except PrepareError:
        return None


def output_of(command: list[str], *, seconds: float) -> str | None:
    """What the command prints. One that does not end in time is killed with all that it started, and not
    waited for: if it hangs in the kernel, it does not even die."""
    try:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            errors="replace",
            start_new_session=True,
        )
    except OSError:
        return None
    try:
        output: str = process.communicate(timeout=seconds)[0]
    except subprocess.TimeoutExpired:
        return None
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.communicate(timeout=1.0)
    return output if process.returncode == 0 else None


def _rdma_exclusive() -> bool | None:
    try:
        return NetlinkRdma().exclusive()
    except NodeError:
        return None


def _answers(path: Path) -> bool | None:
    """None where that cannot be told."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as peer:
        peer.settimeout(_SECONDS)
        try:
            peer.connect(str(path))
        except (ConnectionRefusedError, FileNotFoundError):
            return False
        except OSError:
            return None
    return True
