"""One MPS control daemon: the daemon of one card, and commands to it.

It starts itself into the background (`-d`) and listens on the socket `control` in its pipe directory; a
server for the clients of each user is started by it on demand. CUDA_VISIBLE_DEVICES of the daemon names the
card. Commands are lines on the standard input of nvidia-cuda-mps-control with the same pipe directory.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from koordra.errors import PrepareError
from koordra.kubelet_plugin.nvidia_driver.driver_programs import DriverPrograms

CONTROL: Final = "nvidia-cuda-mps-control"
_MIB: Final = 1 << 20
MULTI_USER: Final = "--multiuser-server"


@dataclass(frozen=True, slots=True)
class Limits:
    """What no client of the card may exceed: percent of its multiprocessors, bytes of its memory (None: all
    of it)."""

    threads: int
    memory_bytes: int | None


@dataclass(frozen=True, slots=True)
class MpsDaemon:
    """`pipe`, `log` and `shm` are folders, the last one the /dev/shm of its servers, which clients map; every
    call raises PrepareError."""

    programs: DriverPrograms
    uuid: str
    pipe: Path
    log: Path
    shm: Path

    def start(self) -> None:
        """Containers run as many users, and without multi-user servers those of another user than the first
        would wait without a word: a control that knows the option is started with it."""
        known = self.programs.run(CONTROL, "-h")
        options = (MULTI_USER,) if MULTI_USER in known else ()
        env = {**self._env, "CUDA_VISIBLE_DEVICES": self.uuid}
        self.programs.run(CONTROL, "-d", *options, env=env, shm=self.shm)

    @property
    def answers(self) -> bool:
        try:
            self.servers()
        except PrepareError:
            return False
        return True

    def servers(self) -> list[int]:
        """The process ids of its servers."""
        answer = self._said("get_server_list")
        try:
            return [int(word) for word in answer.split()]
        except ValueError as error:
            raise PrepareError(f"{CONTROL}: get_server_list answered {answer.strip()[:80]!r}") from error

    def state(self, server: int) -> str:
        """ACTIVE, or FAULT after a fatal error of a client: it takes no new ones until all have ended."""
        return self._said(f"get_server_status {server}").strip()

    def limit(self, limits: Limits) -> None:
        """For the servers to come, and for what comes to those that are there."""
        self._said(f"set_default_active_thread_percentage {limits.threads}")
        for server in self.servers():
            self._said(f"set_active_thread_percentage {server} {limits.threads}")
        if limits.memory_bytes is None:
            return
        memory = mebibytes(limits.memory_bytes)
        self._said(f"set_default_device_pinned_mem_limit 0 {memory}")
        for server in self.servers():
            self._said(f"set_device_pinned_mem_limit {server} 0 {memory}")

    def quit(self) -> None:
        """One that is gone already has ended."""
        if self.answers:
            self._said("quit")

    def _said(self, command: str) -> str:
        return self.programs.run(CONTROL, env=self._env, said=f"{command}\n")

    @property
    def _env(self) -> Mapping[str, str]:
        return {"CUDA_MPS_PIPE_DIRECTORY": str(self.pipe), "CUDA_MPS_LOG_DIRECTORY": str(self.log)}


def mebibytes(amount: int) -> str:
    """As CUDA reads it: `4096M`; never more than the amount."""
    return f"{max(1, amount // _MIB)}M"
