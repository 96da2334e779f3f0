"""What one reading of the machine gave."""

from __future__ import annotations

from dataclasses import dataclass

from koordra.kubelet_plugin.discovery.problems import Problem
from koordra.topology.machine import Machine


@dataclass(frozen=True, slots=True)
class Discovery:
    """What is there, and what could not be made certain (sorted, without repetitions)."""

    machine: Machine
    problems: tuple[Problem, ...]
