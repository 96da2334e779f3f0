"""The memory that a process's first CUDA context takes on a card, so that it can be reserved before there is one.

The first context takes hundreds of MiB that no call names, and it cannot be measured from inside: the free memory of a card can
only be queried with a context. So the node decides what to reserve for one:

    --limiter-context 600Mi   that much, on every card
    --limiter-context auto    what was measured on such a card with this driver; before that, what is usual for the card's
                              architecture, rounded up

Measured is what NVML reports for a process with one context beyond its ledger, in two readings in a row; the smallest value
counts, since modules come on top. A process's own ledger is believed only between LEAST and MOST, so that a false one can shift
others' reserve by no more; `unseen` corrects what the reserve gets wrong. The values survive a restart of the plugin in
<state>/limiter/contexts.json, by card model, MIG or not, and driver.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Final

from koordra.logs import get_logger
from koordra.node_state.disk import Disk
from koordra.topology.machine import Gpu, Machine

log = get_logger(__name__)

MIB: Final = 1 << 20
LEAST: Final = 32 * MIB
MOST: Final = 2048 * MIB

USUAL: Final = {
    "Pascal": 256 * MIB,
    "Volta": 384 * MIB,
    "Turing": 256 * MIB,
    "Ampere": 512 * MIB,
    "Ada": 512 * MIB,
    "Hopper": 640 * MIB,
    "Blackwell": 768 * MIB,
}
"""Rounded up from commonly observed values, with lazily loaded modules; none was measured for koordra."""

UNKNOWN: Final = 768 * MIB
"""A card of another architecture: no less than any of those."""


class Contexts:
    """`machine` is the node's, asked for at each use; `declared` None learns, else it is the figure for every card."""

    def __init__(
        self,
        file: Path,
        *,
        machine: Callable[[], Machine],
        declared: int | None = None,
        disk: Disk | None = None,
    ) -> None:
        self._file = file
        self._machine = machine
        self._declared = declared
        self._disk = disk or Disk()
        self._lock = threading.Lock()
        self._learned: dict[str, int] | None = None

    def bytes_for(self, uuid: str) -> int:
        """What to keep for a context on the GPU or MIG instance with this UUID."""
        if self._declared is not None:
            return self._declared
        gpu, key = _card(self._machine(), uuid)
        with self._lock:
            learned = self._known().get(key)
        return learned if learned is not None else USUAL.get(gpu.architecture or "" if gpu else "", UNKNOWN)

    def learn(self, uuid: str, seen: int) -> bool:
        """A process with one context was seen to have this much for it and its modules; whether that is news."""
        if self._declared is not None or not LEAST <= seen <= MOST:
            return False
        gpu, key = _card(self._machine(), uuid)
        with self._lock:
            known = self._known()
            if gpu is None or known.get(key, MOST + 1) <= seen:
                return False
            known[key] = seen
            try:
                self._disk.replace(
                    self._file,
                    json.dumps(known, indent=1, sort_keys=True).encode(),
                    mode=0o644,
                    durable=False,
                )
            except OSError as error:
                log.warning("context_figures_not_kept", file=str(self._file), error=str(error))
        log.info("context_measured", card=key, bytes=seen)
        return True

    def _known(self) -> dict[str, int]:
        if self._learned is None:
            try:
                read = json.loads(self._disk.read(self._file) or b"{}")
                self._learned = {
                    str(key): int(value) for key, value in read.items() if LEAST <= int(value) <= MOST
                }
            except (OSError, ValueError, TypeError, AttributeError) as error:
                log.warning("context_figures_unreadable", file=str(self._file), error=str(error))
                self._learned = {}
        return self._learned


def _card(machine: Machine, uuid: str) -> tuple[Gpu | None, str]:
    wanted = _digits(uuid)
    for gpu in machine.gpus:
        kinds = {_digits(gpu.uuid): ""} | {_digits(each.uuid): " MIG" for each in gpu.mig_instances}
        if wanted in kinds:
            return (
                gpu,
                f"{gpu.product_name or gpu.architecture}{kinds[wanted]}, driver {machine.driver_version}",
            )
    return None, "unknown"


def _digits(uuid: str | None) -> str:
    return (uuid or "").partition("-")[2].lower()
