"""The operator's topology overlay on a reading: gaps of sysfs are filled in, contradictions become problems.

Virtual machines and some boards hide switches and NUMA nodes. The overlay (topology/overlay.py: an NCCL
topology XML, or koordra's own YAML) fills such gaps and never overrides what the machine reports.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from koordra.kubelet_plugin.discovery.result import Discovery, Problem
from koordra.topology import overlay
from koordra.topology.machine import Machine


def apply_overlay(found: Discovery, places: Mapping[str, overlay.Place], *, file: str) -> Discovery:
    """`found` with the overlay applied; problems that it answers are dropped, contradictions are added."""
    machine, contradictions = overlay.apply(found.machine, places)
    open_problems = _unanswered(found.problems, machine)
    added = [
        Problem(
            one.device,
            one.field,
            f"the machine says {one.machine}, the overlay {one.overlay}",
            f"correct {file}; the machine is believed",
        )
        for one in contradictions
    ]
    return Discovery(machine=machine, problems=tuple(sorted({*open_problems, *added})))


def _unanswered(problems: Iterable[Problem], machine: Machine) -> list[Problem]:
    known = {
        f"PCI device {device.location.bus_id}"
        for device in machine.devices()
        if device.location.numa is not None
    }
    return [problem for problem in problems if not (problem.field == "numaNode" and problem.object in known)]
