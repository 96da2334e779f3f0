"""The second version of MPS's protocol: a server for the clients of each user is started on demand, and all
servers have the same limits. Commands are lines on the standard input of nvidia-cuda-mps-control.

So the daemon's limits are those of the largest share on the card, and each container's own come by its
environment, which may only lower them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from koordra.errors import PrepareError
from koordra.kubelet_plugin.isolation.backend import Share
from koordra.kubelet_plugin.isolation.mps.daemon import CONTROL, ControlDaemon, mebibytes

MULTI_USER: Final = "--multiuser-server"


class OneServer(ControlDaemon):
    __slots__ = ()
    needs_the_card = False

    def start(self) -> None:
        """Containers run as many users, and without multi-user servers those of another user than the first
        would wait without a word: a control that knows the option is started with it."""
        known = self.programs.run(CONTROL, "-h")
        self._start(*((MULTI_USER,) if MULTI_USER in known else ()))

    def keep(self, shares: Sequence[Share]) -> None:
        """For the servers to come, and for what comes to those that are there."""
        threads, memory = _largest(shares)
        self._said(f"set_default_active_thread_percentage {threads}")
        for server in self._servers():
            self._said(f"set_active_thread_percentage {server} {threads}")
        if memory is None:
            return
        self._said(f"set_default_device_pinned_mem_limit 0 {mebibytes(memory)}")
        for server in self._servers():
            self._said(f"set_device_pinned_mem_limit {server} 0 {mebibytes(memory)}")

    @property
    def answers(self) -> bool:
        try:
            self._servers()
        except PrepareError:
            return False
        return True

    def states(self) -> Mapping[str, str]:
        return {str(server): self._said(f"get_server_status {server}").strip() for server in self._servers()}

    def quit(self) -> None:
        if self.answers:
            self._said("quit")

    def sockets(self, share: Share) -> Path:
        del share
        return self.pipe

    def variables(self, share: Share) -> tuple[tuple[str, str], ...]:
        kept, found = share.kept, list[tuple[str, str]]()
        if kept.memory_bytes is not None:
            found.append(("CUDA_MPS_PINNED_DEVICE_MEM_LIMIT", f"0={mebibytes(kept.memory_bytes)}"))
        if kept.cores is not None:
            found.append(("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE", str(kept.cores)))
        return tuple(found)

    def _servers(self) -> list[int]:
        """Their process ids."""
        answer = self._said("get_server_list")
        try:
            return [int(word) for word in answer.split()]
        except ValueError as error:
            raise PrepareError(f"{CONTROL}: get_server_list answered {answer.strip()[:80]!r}") from error

    def _said(self, command: str) -> str:
        return self._asked(said=f"{command}\n")


def _largest(shares: Sequence[Share]) -> tuple[int, int | None]:
    """What no client of the card may exceed: percent of its multiprocessors, bytes of its memory (None: all
    of it)."""
    kept = [share.kept for share in shares]
    memory = [share.memory_bytes for share in kept if share.memory_bytes is not None]
    threads = max((100 if share.cores is None else share.cores for share in kept), default=100)
    return threads, max(memory) if memory and len(memory) == len(kept) else None
