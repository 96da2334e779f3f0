"""Backend `none`: the share is accounted for, told to the container, and not enforced.

Cooperative programs and people read the figures from the environment: `KOORDRA_MEMORY_LIMIT_<UID>_<n>` in bytes and
`KOORDRA_CORES_RESERVED_<UID>_<n>` in percent (reserved and counted; no backend enforces cores); claim uid and the device's place in the claim are those of `KOORDRA_DEVICE_<UID>_<n>`,
so that the limits of two claims in one container stand side by side.
"""

from __future__ import annotations

from typing import Final

from koordra.api.opaque.parameters import GpuConfig
from koordra.kubelet_plugin.claims.container_edits import ContainerEdits
from koordra.kubelet_plugin.isolation.share import Share
from koordra.node_state.claim_ref import environment_name


class NoIsolation:
    name: Final = "none"

    def edits(self, share: Share, config: GpuConfig) -> ContainerEdits:
        del config
        env = []
        place = f"{environment_name(share.claim_uid)}_{share.index}"
        if share.memory_bytes is not None:
            env.append((f"KOORDRA_MEMORY_LIMIT_{place}", str(share.memory_bytes)))
        if share.cores is not None:
            env.append((f"KOORDRA_CORES_RESERVED_{place}", str(share.cores)))
        return ContainerEdits(env=tuple(env))

    def start(self, share: Share, config: GpuConfig) -> None:
        """Nothing runs on the node for it."""

    def stop(self, *, claim_uid: str, device: str) -> None:
        """Nothing ran."""
