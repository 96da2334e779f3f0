"""The checkpoint as it is found: read, or rebuilt from the files of the claims where it is lost
(claims/checkpoint.py)."""

from __future__ import annotations

from collections.abc import Callable

from koordra.errors import CheckpointError
from koordra.kubelet_plugin.cdi import claim_spec
from koordra.kubelet_plugin.claims.checkpoint import (
    Checkpoint,
    CheckpointFile,
    DamagedCheckpoint,
    OtherVersion,
    recovered,
)
from koordra.kubelet_plugin.claims.claim_record import ClaimRecord
from koordra.kubelet_plugin.prepare.claim_files import ClaimFiles
from koordra.logs import get_logger

log = get_logger(__name__)


class StoredClaims:
    """`pool` is the node's name, `boot_id` that of its boot. The caller holds the state lock."""

    def __init__(
        self, file: CheckpointFile, files: ClaimFiles, *, pool: str, boot_id: Callable[[], str]
    ) -> None:
        self._file, self._files = file, files
        self._pool, self._boot_id = pool, boot_id
        self.save = file.save

    def noted(self) -> tuple[ClaimRecord, ...]:
        """The claims of this boot, as they were read or written last: for any thread, at once."""
        return self._file.last.of_boot(self._boot_id())

    def load(self) -> Checkpoint:
        """The checkpoint; an empty one if there is none, or one of another version, and no claim has files.
        Raises CheckpointError."""
        try:
            checkpoint = self._file.load()
        except (DamagedCheckpoint, OtherVersion) as error:
            if isinstance(error, OtherVersion) and self._files.claims():
                raise
            return self._recovered(error)
        if checkpoint is None and self._files.claims():
            return self._recovered(
                CheckpointError(
                    f"{self._file.path} is missing, though claims are prepared on this node, so it is not known which "
                    "devices are in use and no claim is prepared; drain the node of pods that use koordra, remove what is left "
                    f"of {claim_spec.file_name('*')} in the CDI directory, and it starts anew"
                )
            )
        return checkpoint or Checkpoint()

    def _recovered(self, error: CheckpointError) -> Checkpoint:
        """A checkpoint rebuilt from the records for the hook; raises `error` while a claim with a file has
        none."""
        checkpoint = recovered(
            self._files.hook_records(),
            pool=self._pool,
            boot_id=self._boot_id(),
            networks=self._files.networks(),
        )
        if self._files.claims() - {record.ref.uid for record in checkpoint.claims}:
            raise error
        self.save(checkpoint)
        log.warning(
            "checkpoint_recovered",
            path=str(self._file.path),
            claims=len(checkpoint.claims),
            error=str(error),
        )
        return checkpoint
