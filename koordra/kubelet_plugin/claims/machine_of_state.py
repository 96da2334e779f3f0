"""Which machine the state directory is of: a disk, or an image of one, may come to another machine under the
same node's name.

The machine is known by its UUID in the firmware's tables (/sys/class/dmi/id/product_uuid); one that has none
is never taken for another. Claims that another machine prepared hold nothing here, whatever the boot id says.
They are remembered until the kubelet unprepares them, so that a different card under an old name is refused
and told (prepare/lost_devices.py).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Final

from koordra.errors import CheckpointError
from koordra.kubelet_plugin.claims.checkpoint import MODE, Checkpoint
from koordra.kubelet_plugin.claims.claim_record import NO_BOOT
from koordra.logs import get_logger
from koordra.node_state.disk import Disk, reported

log = get_logger(__name__)

FILE: Final = "machine"
_PRODUCT: Final = "sys/class/dmi/id/product_uuid"
_LONGEST: Final = 64


def taken_over(
    checkpoint: Checkpoint, *, save: Callable[[Checkpoint], None], state: Path, root: Path, disk: Disk
) -> Checkpoint:
    """The checkpoint as the machine below `root` may use it. The directory is this machine's only once the
    claims of another one are saved as nobody's. Raises CheckpointError."""
    try:
        here = (root / _PRODUCT).read_bytes().strip()[:_LONGEST]
    except OSError:
        return checkpoint
    with reported(CheckpointError, state / FILE, "read or written"):
        before = (disk.read(state / FILE) or b"").strip()
        if not here or here == before:
            return checkpoint
        if before:
            machine = before.decode("ascii", "replace")
            log.warning("state_of_another_machine", machine=machine, claims=len(checkpoint.claims))
            checkpoint = Checkpoint(tuple(replace(claim, boot_id=NO_BOOT) for claim in checkpoint.claims))
            save(checkpoint)
        disk.replace(state / FILE, here + b"\n", mode=MODE)
    return checkpoint
