"""Which faults of a device end the pods that use it. Pure.

A faulty device is tainted, so that nothing new is placed on it; what runs goes on, since many faults leave
running programs alone, and their owners know best. `--drain-on GpuLost,Xid79,NeedsReboot` names the faults
with which that is not so: then the taint's effect is NoExecute, and kube-controller-manager (1.36; 1.33 and
later with the gate DRADeviceTaints) deletes the pods that use the device and do not tolerate it. It deletes,
so their disruption budgets do not count.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from koordra.errors import InvalidInput
from koordra.kubelet_plugin.discovery.gpu_faults import NO_FAULT

ALL: Final = "all"
FAULTS: Final = (
    "GpuLost",
    "NeedsReset",
    "NeedsDrainAndReset",
    "NeedsBusReset",
    "NeedsReboot",
    "NeedsP2PDrain",
    "NeedsIMEXRecovery",
    "RowRemapPending",
    "RowRemapFailed",
    "PagesPending",
    "FabricNotReady",
    "FabricFailed",
    "FabricUnhealthy",
    "FabricDegraded",
    "UvmMissing",
    "InstanceGone",
    "LinkDown",
    "LinkStateUnknown",
    "LinkFlapping",
)
"""Every fault that a device can have, besides `Xid<number>`."""

_XID: Final = re.compile(r"Xid([1-9][0-9]{0,4})", re.ASCII)


@dataclass(frozen=True, slots=True)
class DrainPolicy:
    """`faults` with which the pods on a device are ended; `ALL` among them means each."""

    faults: frozenset[str] = frozenset()

    def ends_pods(self, faults: Iterable[str]) -> bool:
        found = set(faults)
        return bool(found) and (ALL in self.faults or bool(found & self.faults))


def drain_policy(text: str) -> DrainPolicy:
    """Of the command line: words between commas. Raises InvalidInput for a word that is no fault."""
    words = frozenset(text.replace(",", " ").split())
    for word in sorted(words):
        xid = _XID.fullmatch(word)
        if xid and int(xid[1]) in NO_FAULT:
            raise InvalidInput(
                f"{word} never makes a card faulty: programs cause it, or it needs no more than their restart",
                field="--drain-on",
                remedy=f"leave {word} out",
            )
        if word not in (ALL, *FAULTS) and not xid:
            raise InvalidInput(
                f"{word!r} is no fault of a device",
                field="--drain-on",
                remedy=f"write {ALL}, Xid and a number, or of {', '.join(FAULTS)}",
            )
    return DrainPolicy(words)
