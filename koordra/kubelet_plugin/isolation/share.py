"""One claim's part of one GPU, as an isolation backend sees it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Share:
    """`index` counts the claim's devices. `memory_bytes` None: all of the card. `cores`: percent reserved (accounting only), None: none."""

    claim_uid: str
    index: int
    device: str
    uuid: str
    memory_bytes: int | None
    cores: int | None
