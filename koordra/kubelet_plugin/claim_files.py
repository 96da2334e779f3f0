"""The files of one claim, and where the node keeps them.

    <cdi>/koordra.io-claim_<uid>.json        read by the container runtime (cdi.py)
    <state>/prepared/<uid>.json              read by the NRI hook (prepared.py)

Both are made from the claim's record and can be made again at any time. Only files with exactly our own names are ever
removed; the CDI directory belongs to everybody.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from koordra.errors import CDIError, CheckpointError, NodeError
from koordra.kubelet_plugin import cdi, prepared
from koordra.kubelet_plugin.files import TEMPORARY, Disk
from koordra.kubelet_plugin.records import ClaimRecord
from koordra.logs import get_logger

log = get_logger(__name__)


@dataclass(frozen=True, slots=True)
class NodePaths:
    """`root`: the machine ("/" but for tests and the demo); `state`: the plugin's own directory; `cdi`: dynamic CDI specs."""

    root: Path
    state: Path
    cdi: Path

    @property
    def checkpoint(self) -> Path:
        return self.state / "checkpoint.json"

    @property
    def guarded(self) -> Path:
        return self.state / prepared.GUARDED_FILE

    @property
    def prepared(self) -> Path:
        return self.state / prepared.DIRECTORY

    @property
    def lock(self) -> Path:
        return self.state / "state.lock"

    def cdi_file(self, uid: str) -> Path:
        return self.cdi / cdi.file_name(uid)

    def prepared_file(self, uid: str) -> Path:
        return self.prepared / prepared.file_name(uid)


class ClaimFiles:
    """Writes and removes them. The caller holds the state lock."""

    def __init__(self, paths: NodePaths, disk: Disk) -> None:
        self._paths = paths
        self._disk = disk

    def write(self, record: ClaimRecord) -> None:
        """Raises CDIError or CheckpointError, after which one file, both or none may be there."""
        uid = record.ref.uid
        spec = cdi.encode(record, root=self._paths.root)
        with _reported(CDIError, self._paths.cdi_file(uid), "written"):
            self._disk.replace(self._paths.cdi_file(uid), spec, mode=cdi.MODE)
        with _reported(CheckpointError, self._paths.prepared_file(uid), "written"):
            self._disk.replace(self._paths.prepared_file(uid), prepared.encode(record), mode=prepared.MODE)

    def remove(self, uid: str) -> None:
        """Remove what is there, the CDI file first: from then on no container can be given the devices."""
        with _reported(CDIError, self._paths.cdi_file(uid), "removed"):
            self._disk.remove(self._paths.cdi_file(uid))
        with _reported(CheckpointError, self._paths.prepared_file(uid), "removed"):
            self._disk.remove(self._paths.prepared_file(uid))

    def complete(self, uid: str) -> bool:
        """Whether both files of the claim are there."""
        return uid in self.recorded() and cdi.file_name(uid) in self._cdi_names()

    def claims(self) -> set[str]:
        """The uids of all claims that have a file."""
        found = {cdi.claim_of_file(name) for name in self._cdi_names()}
        return self.recorded() | {uid for uid in found if uid is not None}

    def _cdi_names(self) -> list[str]:
        with _reported(CDIError, self._paths.cdi, "listed"):
            return list(self._disk.names(self._paths.cdi))

    def recorded(self) -> set[str]:
        """The uids of all claims that have a record for the hook; unlike the CDI directory it survives a reboot."""
        with _reported(CheckpointError, self._paths.prepared, "listed"):
            found = {prepared.claim_of_file(name) for name in self._disk.names(self._paths.prepared)}
        return {uid for uid in found if uid is not None}

    def remove_stale(self, keep: set[str]) -> None:
        """Remove our files of claims that are not in `keep`, and what a kill left half written."""
        with _reported(CDIError, self._paths.cdi, "cleaned up"):
            for name in self._disk.names(self._paths.cdi):
                self._remove_unless_kept(
                    self._paths.cdi / name, cdi.claim_of_file(name.removesuffix(TEMPORARY)), keep
                )
        with _reported(CheckpointError, self._paths.prepared, "cleaned up"):
            for name in self._disk.names(self._paths.prepared):
                uid = prepared.claim_of_file(name.removesuffix(TEMPORARY))
                self._remove_unless_kept(self._paths.prepared / name, uid, keep)

    def _remove_unless_kept(self, path: Path, uid: str | None, keep: set[str]) -> None:
        if uid is not None and (path.name.endswith(TEMPORARY) or uid not in keep):
            self._disk.remove(path)
            log.info("stale_file_removed", path=str(path))


@contextmanager
def _reported(kind: type[NodeError], path: Path, verb: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise kind(
            f"{path} cannot be {verb}: {error.strerror}; free space or make it writable, the call is repeated"
        ) from error
