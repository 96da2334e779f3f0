"""One MPS control daemon: the daemon of one card, and commands to it, by the second or the third version of
its protocol. Which one a driver has is asked of its program (`protocol_of`).

It starts itself into the background (`-d`) and listens on the socket `control` in its pipe directory.
CUDA_VISIBLE_DEVICES of the daemon names the card.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Final

from koordra.kubelet_plugin.isolation.backend import Share
from koordra.kubelet_plugin.nvidia_driver.driver_programs import DriverPrograms, ProgramFailed

CONTROL: Final = "nvidia-cuda-mps-control"
V2: Final = "2"
V3: Final = "3"
_MIB: Final = 1 << 20


@dataclass(frozen=True, slots=True)
class ControlDaemon(ABC):
    """`pipe`, `log` and `shm` are folders, the last one the /dev/shm of its servers, which clients map; every
    call raises PrepareError."""

    programs: DriverPrograms
    uuid: str
    pipe: Path
    log: Path
    shm: Path

    needs_the_card: ClassVar[bool]
    """`keep` begins a server at once, for which the card may not be PROHIBITED."""

    @property
    @abstractmethod
    def answers(self) -> bool:
        """Whether it can keep shares now."""

    @abstractmethod
    def start(self) -> None:
        """In its folders, which are there."""

    @abstractmethod
    def keep(self, shares: Sequence[Share]) -> None:
        """Keep these shares of the card to what they are, and no others."""

    @abstractmethod
    def states(self) -> Mapping[str, str]:
        """Of its servers, by name: FAULT after a fatal error of a client, when it takes no new ones until all
        have ended."""

    @abstractmethod
    def quit(self) -> None:
        """One that is gone already has ended."""

    @abstractmethod
    def sockets(self, share: Share) -> Path:
        """The folder of the socket that the share's containers are clients of."""

    @abstractmethod
    def variables(self, share: Share) -> tuple[tuple[str, str], ...]:
        """Of its containers, beside where the socket is."""

    def _asked(self, *arguments: str, said: str = "") -> str:
        return self.programs.run(CONTROL, *arguments, env=self._env, said=said)

    def _start(self, *options: str) -> None:
        env = {**self._env, "CUDA_VISIBLE_DEVICES": self.uuid}
        self.programs.run(CONTROL, "-d", *options, env=env, shm=self.shm)

    @property
    def _env(self) -> Mapping[str, str]:
        return {"CUDA_MPS_PIPE_DIRECTORY": str(self.pipe), "CUDA_MPS_LOG_DIRECTORY": str(self.log)}


def protocol_of(programs: DriverPrograms) -> str:
    """V3 where the driver's program lists what that has (driver 615, CUDA 13.4; docs.nvidia.com/deploy/mps,
    "MPS v3 Interface"). Raises PrepareError where it does not answer."""
    try:
        known = programs.run(CONTROL, "-p", "3", "-h").split()
    except ProgramFailed:
        return V2
    return V3 if {"server", "namespace"} <= set(known) else V2


def mebibytes(amount: int) -> str:
    """As CUDA reads it: `4096M`; never more than the amount."""
    return f"{max(1, amount // _MIB)}M"
