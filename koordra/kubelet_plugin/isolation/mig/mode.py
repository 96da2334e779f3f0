"""Switches the MIG mode of a card that nobody uses; by hand alone (`koordra node mig`), never in Prepare.

NVML's "success" is not the answer: the mode is switched where current and pending are the one that was asked
for. Ampere says that a reset is needed; a client in the way (a CUDA process, a monitoring daemon) leaves the
mode pending, which is then taken back: a card whose mode changes at the next reset, whoever does it, is worse
than one that was not switched.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from koordra.errors import NodeError

Reset = Callable[[], str | None]
"""Resets the card; why not, None where it was."""


def switch_mode(nvml: Any, card: str, *, on: bool, reset: Reset) -> str:
    """What was done, in words. Raises NodeError where the card has not the mode in the end; then it has the
    one that it had, with nothing pending, as far as the driver takes it back."""
    wanted = nvml.NVML_DEVICE_MIG_ENABLE if on else nvml.NVML_DEVICE_MIG_DISABLE
    word = "on" if on else "off"
    try:
        handle = nvml.nvmlDeviceGetHandleByUUID(card)
        before, pending = nvml.nvmlDeviceGetMigMode(handle)
        if (before, pending) == (wanted, wanted):
            return f"the MIG mode of {card} is {word} already"
        status = nvml.nvmlDeviceSetMigMode(handle, wanted)
        if _switched(nvml, card, wanted):
            return f"the MIG mode of {card} is {word}"
        why = f"the driver says {_words(nvml).get(status, status)}"
        if status == nvml.NVML_ERROR_RESET_REQUIRED:
            failed = reset()
            if failed is None and _switched(nvml, card, wanted):
                return f"the MIG mode of {card} is {word}, after a reset"
            why = f"it needs a reset, {failed or 'after which it is as before'}"
        taken_back = nvml.nvmlDeviceSetMigMode(handle, before) is not None and _switched(nvml, card, before)
    except nvml.NVMLError as error:
        raise NodeError(f"the MIG mode of {card} was not switched {word}: {error}") from error
    left = "nothing is pending" if taken_back else "the change is pending, and the next reset makes it"
    raise NodeError(f"the MIG mode of {card} was not switched {word}: {why}; {left}")


def _switched(nvml: Any, card: str, mode: int) -> bool:
    # A reset may have made the handle void.
    return bool(nvml.nvmlDeviceGetMigMode(nvml.nvmlDeviceGetHandleByUUID(card)) == [mode, mode])


def _words(nvml: Any) -> Mapping[int, str]:
    return {
        nvml.NVML_ERROR_IN_USE: "that the card is in use",
        nvml.NVML_ERROR_RESET_REQUIRED: "that it needs a reset",
    }
