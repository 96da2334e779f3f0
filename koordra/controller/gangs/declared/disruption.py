"""How a PodGroup of Kubernetes may be disrupted, and how urgent it is. Pure.

    spec                 1.36                 1.37                       here
    -------------------  -------------------  -------------------------  ------------------------------------
    disruptionMode       PodGroup             {all: {}}                  all end together, whatever for
                         Pod (the default)    {single: {}}               who is beyond the least ends alone
    priority             filled in from priorityClassName                counts instead of its pods'
    preemptionPolicy     -                    Never                      takes nobody's place

Kubernetes takes any pod of a group with `Pod`, also one that the others cannot do without. Here those that
the least is made of end together: a gang of which one is taken waits for it with the devices of the rest. A
server fills in the default only where it has the field (gate WorkloadAwarePreemption); a group that does not
say how it may be disrupted is koordra's to treat: as a whole, and for another gang down to its least.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final


class DisruptionMode(StrEnum):
    SINGLE = "single"
    ALL = "all"


_WORDS: Final = {"Pod": DisruptionMode.SINGLE, "PodGroup": DisruptionMode.ALL}


@dataclass(frozen=True, slots=True)
class Disruption:
    """`mode` and `priority` are None where the group says nothing."""

    mode: DisruptionMode | None = None
    priority: int | None = None
    preempts: bool = True


NOT_SAID: Final = Disruption()


def disruption_of(spec: Mapping[str, Any]) -> Disruption:
    """`spec`: of a PodGroup of scheduling.k8s.io."""
    said, priority = spec.get("disruptionMode"), spec.get("priority")
    mode = _WORDS.get(said) if isinstance(said, str) else None
    if isinstance(said, Mapping):
        mode = next((one for one in DisruptionMode if one.value in said), None)
    return Disruption(
        mode,
        priority if isinstance(priority, int) and not isinstance(priority, bool) else None,
        spec.get("preemptionPolicy") != "Never",
    )
