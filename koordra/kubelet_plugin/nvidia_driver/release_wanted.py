"""Who wants the node's NVIDIA driver to be free, and how far: from the Node, and from the operator's request.
Pure.

NVIDIA's GPU Operator says on the Node what it is about to do.

**The label** ``nvidia.com/gpu-driver-upgrade-state`` (NVIDIA/k8s-operator-libs pkg/upgrade/consts.go), where
its upgrade policy is on:

    ===========================================  ============================================================
    cordon-, wait-for-jobs-required,             nothing new starts on the GPUs; what runs may end by itself
    validation-required
    pod-deletion-, drain-,                       claims' pods are evicted, then NVML is let go
    node-maintenance-required
    pod-restart-, post-maintenance-required      the same, NVML at once: the driver's pod is about to be
                                                 replaced
    anything else                                nothing is asked
    ===========================================  ============================================================

**The labels** ``nvidia.com/gpu.deploy.<component>`` hold ``paused-for-driver-upgrade`` while the driver's new
pod starts (NVIDIA/k8s-driver-manager cmd/driver-manager/main.go). That need not end in an upgrade: a driver
of the same version and configuration stays loaded, and workloads are to go on. So it makes koordra let go of
NVML, and evicts nobody. Without the upgrade policy (annotation ``nvidia.com/gpu-driver-upgrade-enabled``)
driver-manager cordons the node once it is to unload the driver, evicts the pods that it knows, which are not
koordra's, and gives up soon after, to try again minutes later. So paused and cordoned means evict, and
``after_pause`` keeps to that between its attempts.

**The request** of ``koordra node release-driver`` means all of it.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Final

from koordra.api import objects
from koordra.api.objects import Fields

PAUSED: Final = "paused-for-driver-upgrade"
DEPLOY_PREFIX: Final = "nvidia.com/gpu.deploy."
STATE_LABEL: Final = "nvidia.com/gpu-driver-upgrade-state"
POLICY_ANNOTATION: Final = "nvidia.com/gpu-driver-upgrade-enabled"

CLOSING: Final = frozenset({"cordon-required", "wait-for-jobs-required", "validation-required"})
EVICTING: Final = frozenset({"pod-deletion-required", "drain-required", "node-maintenance-required"})
UNLOADING: Final = frozenset({"pod-restart-required", "post-maintenance-required"})

BETWEEN_ATTEMPTS: Final = 600.0
"""Seconds for which a pause that evicted counts: driver-manager's pod starts again within 5 minutes."""


@dataclass(frozen=True, slots=True)
class ReleaseWanted:
    """`reason`: who asks, for people; empty: nobody does. Nothing new starts on the GPUs while somebody asks.
    `evict`: pods that hold claims go. `let_go`: NVML is closed at once, and not only when nobody is left.
    `tried_again`: who asks gives up soon, and asks again later."""

    reason: str = ""
    evict: bool = False
    let_go: bool = False
    tried_again: bool = False

    def __bool__(self) -> bool:
        return bool(self.reason)

    def __or__(self, other: ReleaseWanted) -> ReleaseWanted:
        """What both want."""
        return ReleaseWanted(
            "; ".join(filter(None, (self.reason, other.reason))),
            self.evict or other.evict,
            self.let_go or other.let_go,
            self.tried_again or other.tried_again,
        )


NOBODY: Final = ReleaseWanted()


def wanted_by_command() -> ReleaseWanted:
    return ReleaseWanted("koordra node release-driver", evict=True, let_go=True)


def wanted_by_node(node: Fields) -> ReleaseWanted:
    """What the Node's labels ask."""
    labels = objects.labels_of(node)
    state = str(labels.get(STATE_LABEL, ""))
    wanted = NOBODY
    if state in CLOSING | EVICTING | UNLOADING:
        wanted = ReleaseWanted(f"{STATE_LABEL}={state}", state not in CLOSING, state in UNLOADING)
    paused = sorted(
        key for key, value in labels.items() if key.startswith(DEPLOY_PREFIX) and PAUSED in str(value)
    )
    if paused:
        by_policy = objects.annotations_of(node).get(POLICY_ANNOTATION) == "true"
        unloading = bool(objects.spec_of(node).get("unschedulable")) and not by_policy
        wanted |= ReleaseWanted(f"{paused[0]} is paused", evict=unloading, let_go=True, tried_again=unloading)
    return wanted


@dataclass(frozen=True, slots=True)
class PauseMemory:
    """A pause that evicted: until when it counts, and which driver was loaded then."""

    until: float = 0.0
    loaded: str = ""


def after_pause(
    wanted: ReleaseWanted, memory: PauseMemory, *, loaded: str, now: float
) -> tuple[ReleaseWanted, PauseMemory]:
    """What is wanted between two attempts of driver-manager, and what to remember. Another driver that is
    loaded says that the upgrade has happened."""
    if wanted.tried_again:
        return wanted, PauseMemory(now + BETWEEN_ATTEMPTS, loaded)
    if now < memory.until and loaded in (memory.loaded, ""):
        return wanted | ReleaseWanted("driver-manager is about to try again", evict=True), memory
    return wanted, PauseMemory()


def loaded_driver(root: Path) -> str:
    """Tells one load of the kernel module from another, also of the same version; empty while there is none.
    The folder of a module is made when it is loaded, so its number is another each time."""
    try:
        return str((root / "sys/module/nvidia").stat().st_ino)
    except OSError:
        return ""
