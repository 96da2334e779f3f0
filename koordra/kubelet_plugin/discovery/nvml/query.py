"""The facts that a source reports about GPUs, before they are merged with sysfs; single NVML calls and their failures.

NVML fails call by call: a card that fell off the bus still has an index, a virtual machine has no NVLink, an old driver no
MIG profile names. Each call is therefore guarded on its own; a failed one returns None and, unless it is just unsupported,
reports a problem.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Protocol

from koordra.kubelet_plugin.discovery.result import Problem
from koordra.topology.machine import BUS_ID, Gpu

UUID = re.compile(r"GPU-[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}", re.ASCII)
_NVML_BUS_ID = re.compile(r"([0-9a-f]{4,8}):([0-9a-f]{2}):([0-9a-f]{2})(?:\.([0-7]))?", re.ASCII)


@dataclass(frozen=True, slots=True)
class NvmlFacts:
    """``cuda_version`` is NVML's number, 12040 for CUDA 12.4.

    ``gpus`` are as NVML knows them, None where it gave no credible answer: of their locations only the bus id, MIG instances
    without their device nodes. ``disputed`` names required facts that could not be read: a card whose MIG mode is unknown is
    not offered whole.
    """

    driver_version: str | None = None
    cuda_version: int | None = None
    gpus: tuple[Gpu, ...] = ()
    problems: tuple[Problem, ...] = ()


class GpuFactsSource(Protocol):
    def read(self) -> NvmlFacts:
        """All GPUs now. Never raises; what cannot be read is in ``problems``."""
        ...


def normal_bus_id(text: str) -> str | None:
    """NVML's ``00000000:1B:00.0`` as sysfs writes it: ``0000:1b:00.0`` (a large domain keeps its digits)."""
    matched = _NVML_BUS_ID.fullmatch(text.strip().lower())
    if not matched:
        return None
    domain, bus, device, function = matched.groups()
    written = f"{int(domain, 16):04x}:{bus}:{device}.{function or '0'}"
    return written if BUS_ID.fullmatch(written) else None


_REMEDY = "check dmesg for Xid errors and nvidia-smi -q"


@dataclass
class NvmlQuery:
    """One reading: the library (a module with pynvml's functions), and the problems so far."""

    nvml: Any
    problems: list[Problem] = field(default_factory=list)

    def ask(
        self,
        subject: str,
        name: str,
        call: Callable[[], Any],
        *,
        quiet: tuple[int, ...] = (),
        failed: Callable[[int], None] | None = None,
    ) -> Any:
        """The answer, or None. ``quiet`` are error codes that are answers too, besides "not supported".

        ``failed`` is called with every other code.
        """
        nvml = self.nvml
        try:
            return call()
        except nvml.NVMLError as error:
            code = getattr(error, "value", None)
            if code not in (nvml.NVML_ERROR_NOT_SUPPORTED, nvml.NVML_ERROR_FUNCTION_NOT_FOUND, *quiet):
                self.problem(subject, name, f"NVML answers {error}")
                if failed:
                    failed(code or nvml.NVML_ERROR_UNKNOWN)
        except (UnicodeDecodeError, ValueError, TypeError, AttributeError) as error:
            self.problem(
                subject, name, f"NVML's answer is garbled ({error})", "check the driver's installation"
            )
            if failed:
                failed(nvml.NVML_ERROR_UNKNOWN)
        return None

    def problem(self, subject: str, name: str, problem: str, remedy: str = _REMEDY) -> None:
        self.problems.append(Problem(subject, name, problem, remedy))


@dataclass
class CardQuery:
    """Calls about one card; collects the faults that the answers show."""

    query: NvmlQuery
    bus_id: str
    handle: Any
    faults: set[str] = field(default_factory=set)

    @property
    def nvml(self) -> Any:
        return self.query.nvml

    def ask(
        self,
        name: str,
        call: Callable[..., Any],
        *arguments: Any,
        quiet: tuple[int, ...] = (),
        failed: Callable[[int], None] | None = None,
    ) -> Any:
        """``call(handle, *arguments)``."""

        def on_error(code: int) -> None:
            fault = {
                self.nvml.NVML_ERROR_GPU_IS_LOST: "GpuLost",
                self.nvml.NVML_ERROR_RESET_REQUIRED: "NeedsReset",
            }.get(code)
            if fault:
                self.faults.add(fault)
            if failed:
                failed(code)

        return self.query.ask(
            f"GPU {self.bus_id}", name, lambda: call(self.handle, *arguments), quiet=quiet, failed=on_error
        )

    def problem(self, name: str, problem: str, remedy: str) -> None:
        self.query.problem(f"GPU {self.bus_id}", name, problem, remedy)


def text(value: Any) -> str | None:
    """NVML strings are bytes in older bindings and str in newer ones."""
    if isinstance(value, bytes):
        value = value.decode("ascii", errors="replace")
    return value.strip() or None if isinstance(value, str) else None
