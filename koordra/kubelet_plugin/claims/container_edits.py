"""Changes to a container: environment, device nodes, mounts, hooks. The part of CDI's containerEdits that
koordra uses."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TypeVar

from koordra.topology.machine import DeviceNode

_T = TypeVar("_T")

READ_ONLY = ("ro", "nosuid", "nodev", "rbind", "rprivate")
"""Mount options of everything koordra mounts, as nvidia-ctk writes them."""


@dataclass(frozen=True, slots=True, order=True)
class Mount:
    """A bind mount of a host file; `host_path` is the path as the runtime sees it, root prefix included."""

    host_path: str
    container_path: str
    options: tuple[str, ...] = READ_ONLY


@dataclass(frozen=True, slots=True, order=True)
class Hook:
    """A program of the host that the runtime runs at one of CDI's hook points (`createContainer`,
    `createRuntime`, ...); if it fails, the container does not start. `arguments` start with the program's own
    name, as argv does."""

    name: str
    path: str
    arguments: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ContainerEdits:
    """`env` holds (name, value) pairs; of a repeated name the last one counts."""

    env: tuple[tuple[str, str], ...] = ()
    device_nodes: tuple[DeviceNode, ...] = ()
    mounts: tuple[Mount, ...] = ()
    hooks: tuple[Hook, ...] = ()

    def __add__(self, other: ContainerEdits) -> ContainerEdits:
        """The union; nodes, mounts and hooks are deduplicated, and the later value of a variable wins."""
        return ContainerEdits(
            env=tuple(dict([*self.env, *other.env]).items()),
            device_nodes=_once([*self.device_nodes, *other.device_nodes]),
            mounts=_once([*self.mounts, *other.mounts]),
            hooks=_once([*self.hooks, *other.hooks]),
        )


NO_EDITS = ContainerEdits()


def _once(values: Iterable[_T]) -> tuple[_T, ...]:
    return tuple(dict.fromkeys(values))
