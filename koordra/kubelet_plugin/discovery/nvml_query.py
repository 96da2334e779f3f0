"""Calls of NVML, one at a time, and the facts that a source reports about GPUs.

NVML fails call by call: a card that fell off the bus still has an index, a virtual machine has no NVLink, an
old driver no MIG profile names. Each call is therefore guarded on its own; a failed one returns None and,
unless it is just unsupported, reports a problem.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from koordra.topology.location import BUS_ID
from koordra.topology.machine import Gpu
from koordra.topology.problems import Problem

UUID = re.compile(r"GPU-[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}", re.ASCII)
_NVML_BUS_ID = re.compile(r"([0-9a-f]{4,8}):([0-9a-f]{2}):([0-9a-f]{2})(?:\.([0-7]))?", re.ASCII)


@dataclass(frozen=True, slots=True)
class NvmlFacts:
    """``cuda_version`` is NVML's number, 12040 for CUDA 12.4.

    ``gpus`` are as NVML knows them, None where it gave no credible answer: of their locations only the bus
    id, MIG instances without their device nodes. ``disputed`` names required facts that could not be read: a
    card whose MIG mode is unknown is not offered whole.
    """

    driver_version: str | None = None
    cuda_version: int | None = None
    gpus: tuple[Gpu, ...] = ()
    problems: tuple[Problem, ...] = ()


GpuFactsSource = Callable[[], NvmlFacts]
"""All GPUs now. Never raises; what cannot be read is in ``problems``."""


@dataclass
class NvmlQuery:
    """Calls about one subject, a card for example, through the library (a module with pynvml's functions).

    ``problems`` are those of the whole reading, ``faults`` those that the answers show of the card,
    ``failed`` the names of the calls that failed.
    """

    nvml: Any
    problems: list[Problem]
    subject: str = "NVML"
    bus_id: str = ""
    handle: Any = None
    faults: set[str] = field(default_factory=set)
    failed: set[str] = field(default_factory=set)

    def ask(self, name: str, call: str, *arguments: Any, quiet: tuple[int, ...] = ()) -> Any:
        """The answer of NVML's function of that name to the handle, if there is one, and the arguments; None
        if it fails.

        ``quiet`` are error codes that are answers too, besides "not supported".
        """
        nvml = self.nvml
        try:
            function = getattr(nvml, call)
            return function(*arguments) if self.handle is None else function(self.handle, *arguments)
        except nvml.NVMLError as error:
            code = getattr(error, "value", None)
            if code in (nvml.NVML_ERROR_NOT_SUPPORTED, nvml.NVML_ERROR_FUNCTION_NOT_FOUND, *quiet):
                return None
            self.problem(name, f"NVML answers {error}", "check dmesg for Xid errors and nvidia-smi -q")
            if code == nvml.NVML_ERROR_GPU_IS_LOST:
                self.faults.add("GpuLost")
            elif code == nvml.NVML_ERROR_RESET_REQUIRED:
                self.faults.add("NeedsReset")
        except (UnicodeDecodeError, ValueError, TypeError, AttributeError) as error:
            self.problem(name, f"NVML's answer is garbled ({error})", "check the driver's installation")
        self.failed.add(name)
        return None

    def problem(self, name: str, problem: str, remedy: str) -> None:
        self.problems.append(Problem(self.subject, name, problem, remedy))


def normal_bus_id(text: str) -> str | None:
    """NVML's ``00000000:1B:00.0`` as sysfs writes it: ``0000:1b:00.0`` (a large domain keeps its digits)."""
    matched = _NVML_BUS_ID.fullmatch(text.strip().lower())
    if not matched:
        return None
    domain, bus, device, function = matched.groups()
    written = f"{int(domain, 16):04x}:{bus}:{device}.{function or '0'}"
    return written if BUS_ID.fullmatch(written) else None


def bus_id_of(pci: Any) -> str | None:
    """The address in NVML's answer, None without one."""
    return normal_bus_id(text(pci.busId) or "") if pci is not None else None


def matching(pattern: re.Pattern[str], text: str | None) -> str | None:
    """The text, if it is of that form."""
    return text if text is not None and pattern.fullmatch(text) else None


def text(value: Any) -> str | None:
    """NVML strings are bytes in older bindings and str in newer ones."""
    if isinstance(value, bytes):
        value = value.decode("ascii", errors="replace")
    return value.strip() or None if isinstance(value, str) else None
