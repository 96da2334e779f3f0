"""Switches the MIG mode of a card that nobody uses, by hand (`koordra node mig`) or where a claim waits for
it (switching.py), never in Prepare.

NVML's "success" is not the answer: the mode is switched where current and pending are the one that was asked
for. Ampere says that a reset is needed; a client in the way (a CUDA process, a monitoring daemon) leaves the
mode pending, which is then taken back: a card whose mode changes at the next reset, whoever does it, is worse
than one that was not switched.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from typing import Any, Final

from koordra.errors import NodeError

Reset = Callable[[], str | None]
"""Resets the card; why not, None where it was."""


Session = Callable[[], AbstractContextManager[Any]]
"""A session of NVML."""


def switch_mode(session: Session, card: str, *, on: bool, reset: Reset) -> str:
    """What was done, in words. Raises NodeError where the card has not the mode in the end; then it has the
    one that it had, with nothing pending, as far as the driver takes it back. No session is open during a
    reset, which it would keep from being made."""
    word = "on" if on else "off"
    with session() as nvml:
        wanted = nvml.NVML_DEVICE_MIG_ENABLE if on else nvml.NVML_DEVICE_MIG_DISABLE
        needs_reset = nvml.NVML_ERROR_RESET_REQUIRED
        with _told(nvml, card, word):
            handle = nvml.nvmlDeviceGetHandleByUUID(card)
            before, pending = nvml.nvmlDeviceGetMigMode(handle)
            if (before, pending) == (wanted, wanted):
                return f"the MIG mode of {card} is {word} already"
            status = nvml.nvmlDeviceSetMigMode(handle, wanted)
            if _switched(nvml, card, wanted):
                return f"the MIG mode of {card} is {word}"
            why = f"the driver says {_words(nvml).get(status, status)}"
    failed = reset() if status == needs_reset else ""
    with session() as nvml, _told(nvml, card, word):
        if status == needs_reset:
            if failed is None and _switched(nvml, card, wanted):
                return f"the MIG mode of {card} is {word}, after a reset"
            why = f"it needs a reset, {failed or 'after which it is as before'}"
        left = "nothing is pending" if _take_back(nvml, card, before) else _PENDING
    raise NodeError(f"the MIG mode of {card} was not switched {word}: {why}; {left}")


def settle_mode(session: Session, card: str) -> None:
    """Have nothing pending: somebody was killed while he switched the mode. Raises NodeError."""
    with session() as nvml, _told(nvml, card, "back"):
        current, pending = nvml.nvmlDeviceGetMigMode(nvml.nvmlDeviceGetHandleByUUID(card))
        if current != pending and not _take_back(nvml, card, current):
            raise NodeError(f"the MIG mode of {card}: {_PENDING}")


_PENDING: Final = "the change is pending, and the next reset makes it"


@contextmanager
def _told(nvml: Any, card: str, word: str) -> Iterator[None]:
    try:
        yield
    except nvml.NVMLError as error:
        raise NodeError(f"the MIG mode of {card} was not switched {word}: {error}") from error


def _take_back(nvml: Any, card: str, mode: int) -> bool:
    nvml.nvmlDeviceSetMigMode(nvml.nvmlDeviceGetHandleByUUID(card), mode)
    return _switched(nvml, card, mode)


def _switched(nvml: Any, card: str, mode: int) -> bool:
    # A reset may have made the handle void.
    return bool(nvml.nvmlDeviceGetMigMode(nvml.nvmlDeviceGetHandleByUUID(card)) == [mode, mode])


def _words(nvml: Any) -> Mapping[int, str]:
    return {
        nvml.NVML_ERROR_IN_USE: "that the card is in use",
        nvml.NVML_ERROR_RESET_REQUIRED: "that it needs a reset",
    }
