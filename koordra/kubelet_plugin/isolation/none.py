"""Backend `none`: cooperative programs and people read the share's figures from the environment.

`KOORDRA_MEMORY_LIMIT_<UID>_<n>` is in bytes, `KOORDRA_CORES_RESERVED_<UID>_<n>` in percent (reserved and
counted; a backend that enforces them has them there, too). Claim uid and the device's place in the claim are
those of `KOORDRA_DEVICE_<UID>_<n>`, so that the limits of two claims in one container stand side by side.
"""

from __future__ import annotations

from typing import Final

from koordra.api.opaque.parameters import GpuConfig
from koordra.kubelet_plugin.claims.claim_record import ContainerEdits
from koordra.kubelet_plugin.isolation.backend import IsolationBackend, Keep, Realised, Share
from koordra.node_state.claim_ref import environment_name


class NoIsolation(IsolationBackend):
    name: Final = "none"

    def prepare(self, share: Share, config: GpuConfig, keep: Keep) -> Realised:
        del config, keep
        return Realised(figures(share))

    def unprepare(self, share: Share) -> None:
        """Nothing was made."""


def figures(share: Share) -> ContainerEdits:
    suffix = f"{environment_name(share.claim_uid)}_{share.index}"
    return ContainerEdits(
        env=tuple(
            (f"KOORDRA_{name}_{suffix}", str(value))
            for name, value in {"MEMORY_LIMIT": share.memory_bytes, "CORES_RESERVED": share.cores}.items()
            if value is not None
        )
    )
