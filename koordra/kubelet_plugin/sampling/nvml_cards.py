"""What NVML says of cards while programs run: who is on them, who computed how long, how they are.

A card is named by its UUID; a MIG instance is one too, with process lists of its own. Each answer stands by
itself: one that fails, or is not supported (utilisation on MIG instances and most vGPUs, bytes of a process
under confidential computing), is None, and nothing else is lost with it. A call that never returns holds the
thread that made it, and nobody else: the watchdog (koordra.process.watchdog) tells which. The process goes
on, since it serves claims that need no GPU, and the next one would hang as well.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Final, TypeVar

from koordra.errors import NodeError
from koordra.kubelet_plugin.discovery.nvml_query import NvmlQuery
from koordra.kubelet_plugin.nvidia_driver.nvml_session import BY_NAME, NvmlLibrary, NvmlUnavailable

_COMPUTING: Final = ("nvmlDeviceGetComputeRunningProcesses", "nvmlDeviceGetMPSComputeRunningProcesses")
_DRAWING: Final = "nvmlDeviceGetGraphicsRunningProcesses"
_SAMPLED: Final = ("nvmlDeviceGetProcessUtilization", "nvmlDeviceGetProcessesUtilizationInfo")
"""The second since R550, where the first may be gone."""
_MOST_SAMPLES: Final = 8192
REASONS: Final = {
    0x4: "power_cap",
    0x8: "hardware",
    0x10: "sync_boost",
    0x20: "software_thermal",
    0x40: "hardware_thermal",
    0x80: "power_brake",
}
"""Why clocks are lower than they might be (nvmlClocksEventReason*), without idleness and what somebody
set."""
_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class CardProcesses:
    """Bytes by pid (None: not reported by the driver), and which of them compute. `through_mps`: an MPS
    server computes for others, and is charged for what they use."""

    used: Mapping[int, int | None] = field(default_factory=dict)
    computing: frozenset[int] = frozenset()
    through_mps: bool = False


@dataclass(frozen=True, slots=True)
class Utilisation:
    """What the driver sampled of one process: kernels of it ran in `percent` of a sampling period that ended
    at `at`, in microseconds of the driver's clock."""

    pid: int
    at: int
    percent: int


@dataclass(frozen=True, slots=True)
class CardState:
    """What is not known is None. `busy`: part of the last period in which any kernel ran; `throttled`: of
    REASONS."""

    busy: float | None = None
    memory_used: int | None = None
    watts: float | None = None
    throttled: frozenset[str] | None = None


class NvmlCards:
    """Raises NodeError where NVML cannot be used at all. For any thread."""

    def __init__(self, library: NvmlLibrary = BY_NAME) -> None:
        self._library = library

    def processes(self, uuids: Iterable[str]) -> dict[str, CardProcesses]:
        """A card that does not answer is left out."""
        return self._asked(uuids, _processes)

    def states(self, uuids: Iterable[str]) -> dict[str, CardState]:
        return self._asked(uuids, _state)

    def utilisations(self, since: Mapping[str, int]) -> dict[str, tuple[Utilisation, ...]]:
        """By card, what was sampled after the instant of the driver's clock (0: all that it keeps); without
        those cards of which the driver tells nothing."""
        return self._asked(since, lambda nvml, handle, uuid: _utilisations(nvml, handle, since[uuid]))

    def _asked(self, uuids: Iterable[str], ask: Callable[[Any, Any, str], _T | None]) -> dict[str, _T]:
        with self._session() as nvml:
            found = {}
            for uuid in uuids:
                handle = _handle(nvml, uuid)
                answer = ask(nvml, handle, uuid) if handle is not None else None
                if answer is not None:
                    found[uuid] = answer
            return found

    @contextmanager
    def _session(self) -> Iterator[Any]:
        try:
            with self._library.session() as nvml:
                yield nvml
        except NvmlUnavailable as error:
            raise NodeError(f"NVML cannot be asked for processes: {error}") from error


def _processes(nvml: Any, handle: Any, _uuid: str) -> CardProcesses | None:
    used: dict[int, int | None] = {}
    computing: set[int] = set()
    through_mps = False
    for name in (*_COMPUTING, _DRAWING):
        try:
            listed = getattr(nvml, name)(handle)
        except nvml.NVMLError as error:
            unknown = nvml.NVML_ERROR_NOT_SUPPORTED, nvml.NVML_ERROR_FUNCTION_NOT_FOUND
            if getattr(error, "value", None) not in unknown or name == _COMPUTING[0]:
                return None
            continue
        except (ValueError, TypeError, AttributeError):  # a garbled answer, or bindings that are too old
            return None
        through_mps = through_mps or (name == _COMPUTING[1] and bool(listed))
        for process in listed:
            # A process that computes and draws is in both lists, with the same bytes.
            figures = used.get(process.pid, 0), process.usedGpuMemory
            used[process.pid] = None if None in figures else max(figures)
            if name != _DRAWING:
                computing.add(process.pid)
    return CardProcesses(used, frozenset(computing), through_mps)


def _utilisations(nvml: Any, handle: Any, since: int) -> tuple[Utilisation, ...] | None:
    for name in _SAMPLED:
        try:
            answer = getattr(nvml, name)(handle, since)
        except nvml.NVMLError as error:
            code = getattr(error, "value", None)
            if code in (nvml.NVML_ERROR_NOT_FOUND, nvml.NVML_SUCCESS):  # nobody did anything since
                return ()
            if code in (nvml.NVML_ERROR_NOT_SUPPORTED, nvml.NVML_ERROR_FUNCTION_NOT_FOUND):
                continue
            return None
        except (ValueError, TypeError, AttributeError):
            return None
        found = (
            Utilisation(int(each.pid), int(each.timeStamp), int(each.smUtil))
            for each in answer[:_MOST_SAMPLES]
        )
        return tuple(each for each in found if each.at > since and each.percent <= 100)
    return None


def _state(nvml: Any, handle: Any, uuid: str) -> CardState:
    card = NvmlQuery(nvml, [], uuid, handle=handle)
    rates = card.ask("busy", "nvmlDeviceGetUtilizationRates")
    memory = card.ask("memory", "nvmlDeviceGetMemoryInfo")
    milliwatts = card.ask("power", "nvmlDeviceGetPowerUsage")
    reasons = card.ask("throttled", "nvmlDeviceGetCurrentClocksEventReasons")
    if reasons is None:  # before R535
        reasons = card.ask("throttled", "nvmlDeviceGetCurrentClocksThrottleReasons")
    return CardState(
        busy=rates.gpu / 100 if rates is not None and rates.gpu <= 100 else None,
        memory_used=int(memory.used) if memory is not None else None,
        watts=milliwatts / 1000 if milliwatts is not None else None,
        throttled=None
        if reasons is None
        else frozenset(word for bit, word in REASONS.items() if reasons & bit),
    )


def _handle(nvml: Any, uuid: str) -> Any:
    """The limiter's regions do not distinguish a GPU from a MIG instance; NVML does."""
    rest = uuid.partition("-")[2]
    for spelling in (f"GPU-{rest}", f"MIG-{rest}"):
        try:
            return nvml.nvmlDeviceGetHandleByUUID(spelling.encode())
        except nvml.NVMLError:
            continue
    return None
