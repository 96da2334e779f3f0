"""How the driver has a card: its compute mode, which says who may begin a CUDA context on it, and its
time-slice. Both go by nvidia-smi; a time-slice has no other door.

    DEFAULT             any number of processes
    EXCLUSIVE_PROCESS   one process; with MPS that is its server
    PROHIBITED          none
"""

from __future__ import annotations

from enum import StrEnum
from typing import Final

from koordra.errors import PrepareError
from koordra.kubelet_plugin.nvidia_driver.driver_programs import DriverPrograms, ProgramFailed
from koordra.logs import get_logger

log = get_logger(__name__)

SMI: Final = "nvidia-smi"
_GONE: Final = 6, 9, 15
"""Of nvidia-smi's return codes (its manual, "Return value"): it finds no such card, the driver is not loaded,
the card has fallen off the bus."""


class ComputeMode(StrEnum):
    """As nvidia-smi takes them; it answers `Exclusive_Process`."""

    DEFAULT = "DEFAULT"
    EXCLUSIVE_PROCESS = "EXCLUSIVE_PROCESS"
    PROHIBITED = "PROHIBITED"


class CardSettings:
    """Every call raises PrepareError. Cards are named by their UUIDs."""

    def __init__(self, programs: DriverPrograms) -> None:
        self._programs = programs

    @property
    def unavailable(self) -> str | None:
        """Why cards cannot be set; None where they can."""
        return self._programs.why_not(SMI)

    def compute_mode(self, uuid: str) -> ComputeMode:
        answer = self._programs.run(SMI, "-i", uuid, "--query-gpu=compute_mode", "--format=csv,noheader")
        try:
            return ComputeMode(answer.strip().upper())
        except ValueError:
            raise PrepareError(
                f"nvidia-smi says that {uuid} has the compute mode {answer.strip()!r}"
            ) from None

    def set_compute_mode(self, uuid: str, mode: ComputeMode) -> None:
        """Sets it, and looks whether it is set."""
        if self.compute_mode(uuid) is mode:
            return
        self._programs.run(SMI, "-i", uuid, "-c", mode)
        found = self.compute_mode(uuid)
        if found is not mode:
            raise PrepareError(f"{uuid} was to have the compute mode {mode}, and has {found}")

    def restore(self, uuid: str, mode: ComputeMode, *, time_slice: int | None = None) -> None:
        """As it was. A card that is gone took its settings with it, and holds no claim back."""
        try:
            if time_slice is not None:
                self.set_time_slice(uuid, time_slice)
            self.set_compute_mode(uuid, mode)
        except ProgramFailed as error:
            if error.code not in _GONE:
                raise
            log.warning("card_is_gone", uuid=uuid, error=str(error))

    def set_time_slice(self, uuid: str, number: int) -> None:
        """0 default, 1 short, 2 medium, 3 long; how long they are is the driver's, by model."""
        self._programs.run(SMI, "compute-policy", "-i", uuid, "--set-timeslice", str(number))
