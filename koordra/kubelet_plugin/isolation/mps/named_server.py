"""The third version of MPS's protocol (docs.nvidia.com/deploy/mps, "MPS v3 Interface" and "MPS v3
Namespaces"; driver 615): one named server, in which each claim is a namespace with limits of its own.

    <card>/v3/control                 of the daemon; in no container
    <card>/v3/k/<namespace>/control   what the claim's containers are clients of, and all that they see

So what a program does with its variables gives it nothing of a neighbour's part but, as NVIDIA measured it,
memory: a variable for a card that it does not have lifts the limit of its own memory. The limits hold for
each process.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from koordra.errors import PrepareError
from koordra.kubelet_plugin.isolation.backend import Share
from koordra.kubelet_plugin.isolation.mps.daemon import CONTROL, ControlDaemon, mebibytes
from koordra.node_state.layout import mps_namespace

SERVER: Final = "k"
"""Short, as the path of a socket has to be."""
_DEFAULT: Final = "default"
_ROWS: Final = "--format=csv,noheader"


class NamedServer(ControlDaemon):
    __slots__ = ()
    needs_the_card = True

    def start(self) -> None:
        """For clients of any user: the server is root's then. A daemon whose server has ended goes on."""
        if not self._runs:
            self._start("-p", "3", "-m")

    @property
    def answers(self) -> bool:
        """Clients of a daemon without the server would run without MPS."""
        return self._runs and SERVER in self.states()

    def keep(self, shares: Sequence[Share]) -> None:
        """A namespace without limits would have the whole card: one that cannot be given its limits is
        removed again. Servers that end by themselves (a card that is not there) are made again."""
        if SERVER not in self.states():
            self._asked("server", "create", SERVER, "--uid=0", f"--allowed-devices={self.uuid}")
            if SERVER not in self.states():
                raise PrepareError(
                    f"{CONTROL}: server {SERVER} has ended; {self.log / SERVER}/server.log says why"
                )
        wanted = {mps_namespace(share.claim_uid): share for share in shares}
        there = {row[0] for row in self._rows("namespace", "list", f"--server={SERVER}")} - {_DEFAULT}
        for name in sorted(there - wanted.keys()):
            self._remove(name)
        for name, share in sorted(wanted.items()):
            if name not in there:
                self._asked("namespace", "create", name, f"--server={SERVER}")
            try:
                self._asked("namespace", "set", name, f"--server={SERVER}", *_limits(share))
            except PrepareError:
                if name not in there:
                    self._remove(name)
                raise

    def states(self) -> Mapping[str, str]:
        """Of a row the name is the first column, the status the fourth."""
        return {row[0]: row[3] for row in self._rows("server", "list") if len(row) > 3}

    def quit(self) -> None:
        if self._runs:
            self._asked("-q")

    def sockets(self, share: Share) -> Path:
        return self.pipe / SERVER / mps_namespace(share.claim_uid)

    def variables(self, share: Share) -> tuple[tuple[str, str], ...]:
        """None: the limits are the server's to keep."""
        del share
        return ()

    @property
    def _runs(self) -> bool:
        try:
            self.states()
        except PrepareError:
            return False
        return True

    def _remove(self, namespace: str) -> None:
        self._asked("namespace", "delete", namespace, f"--server={SERVER}", "--force")

    def _rows(self, *command: str) -> list[list[str]]:
        answer = self._asked(*command, _ROWS)
        return [[word.strip() for word in line.split(",")] for line in answer.splitlines() if line.strip()]


def _limits(share: Share) -> tuple[str, ...]:
    kept = share.kept
    memory = () if kept.memory_bytes is None else (f"--pinned-memory-limit={mebibytes(kept.memory_bytes)}",)
    return (f"--active-thread-percentage={100 if kept.cores is None else kept.cores}", *memory)
