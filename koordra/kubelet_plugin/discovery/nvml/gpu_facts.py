"""The facts that a source reports about GPUs, before they are merged with sysfs."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Protocol

from koordra.kubelet_plugin.discovery.result import Problem
from koordra.topology.machine import BUS_ID, NvLink
from koordra.topology.partitions import Fabric, MigInstance, MigProfile

UUID = re.compile(r"GPU-[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}", re.ASCII)
_NVML_BUS_ID = re.compile(r"([0-9a-f]{4,8}):([0-9a-f]{2}):([0-9a-f]{2})(?:\.([0-7]))?", re.ASCII)


@dataclass(frozen=True, slots=True)
class GpuFacts:
    """One GPU as its source describes it; None where it gave no credible answer.

    ``mig_instances`` lack their device nodes, which are read from sysfs. ``peers`` are bus ids. ``faults``
    are reasons to place nothing on the card (``GpuLost``, ``NeedsReset``). ``recovered`` is True if the
    driver reports that the card needs no recovery, None if it does not report that. ``doubtful`` names
    required facts that could not be read: a card whose MIG mode is unknown is not offered whole.
    """

    bus_id: str
    uuid: str | None = None
    minor: int | None = None
    product_name: str | None = None
    memory_bytes: int | None = None
    architecture: str | None = None
    compute_capability: str | None = None
    mig_enabled: bool | None = None
    nvlinks: tuple[NvLink, ...] = ()
    mig_profiles: tuple[MigProfile, ...] = ()
    mig_instances: tuple[MigInstance, ...] = ()
    fabric: Fabric | None = None
    peers: tuple[str, ...] | None = None
    faults: tuple[str, ...] = ()
    recovered: bool | None = None
    doubtful: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class NvmlFacts:
    """``cuda_version`` is NVML's number, 12040 for CUDA 12.4."""

    driver_version: str | None = None
    cuda_version: int | None = None
    gpus: tuple[GpuFacts, ...] = ()
    problems: tuple[Problem, ...] = ()


class GpuFactsSource(Protocol):
    """A source of the GPUs of a machine."""

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
