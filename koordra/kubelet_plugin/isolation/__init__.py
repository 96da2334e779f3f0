"""How a container is kept within its share of a GPU: backends behind one interface. The files of a backend stand in one folder.

    share      one share of one GPU, as a backend sees it
    none       the share is accounted for, and not enforced
    limiter/   a memory limit inside the container, by a library in front of the driver's

Class, claim and the operator's policy make a word of it (koordra.api.opaque.isolation), which is a backend's name. A backend answers with container edits, which is pure,
and may have something to start on the node for it, which must be idempotent and undone by `stop`. Prepare calls `edits`,
then `start` between the two steps of the checkpoint; Unprepare and roll-back call `stop`, also for shares that never started.

Third parties register a backend as an entry point of the group `koordra.isolation`; its name is the entry point's, and the
object is called without arguments to make the backend.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from importlib.metadata import entry_points
from typing import Protocol

from koordra.api.opaque.parameters import ISOLATION_ENTRY_POINTS, GpuConfig
from koordra.kubelet_plugin.claims.container_edits import ContainerEdits
from koordra.kubelet_plugin.isolation.none import NoIsolation
from koordra.kubelet_plugin.isolation.share import Share

__all__ = ["Backend", "Backends", "Share", "backends"]


class Backend(Protocol):
    """What a backend does for one share of one GPU."""

    @property
    def name(self) -> str:
        """The word in `GpuConfig.isolation`."""

    def edits(self, share: Share, config: GpuConfig) -> ContainerEdits:
        """What the container gets. Pure; raises PrepareError for a share it cannot keep."""

    def start(self, share: Share, config: GpuConfig) -> None:
        """Make the node ready for the share. Idempotent; raises PrepareError."""

    def stop(self, *, claim_uid: str, device: str) -> None:
        """Undo `start`. Idempotent, also for a share that was never started; raises PrepareError."""


@dataclass(frozen=True, slots=True)
class Backends:
    """The backends of this node, by name."""

    known: Mapping[str, Backend]

    def get(self, name: str) -> Backend | None:
        return self.known.get(name)

    def names(self) -> str:
        return ", ".join(sorted(self.known))


def backends(*built_in: Backend) -> Backends:
    """The built-in backends and those that other packages have registered; a built-in name cannot be taken over. `built_in`
    are those that need to know something of the node."""
    known: dict[str, Backend] = {
        entry.name: entry.load()() for entry in entry_points(group=ISOLATION_ENTRY_POINTS)
    }
    return Backends({**known, **{each.name: each for each in built_in}, NoIsolation.name: NoIsolation()})
