"""The plugin's checkpoint: which claims this node has prepared, or was about to.

    {"version": "v1", "checksum": "sha256:...", "data": {"claims": [...]}}

The checksum covers the canonical JSON of `data`. A file that cannot be read, parsed or verified, or has a version this program does not know, is a CheckpointError: what is prepared is
then unknown, so nothing more may be given out. The unreadable bytes are kept once beside it under their own digest.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from koordra.errors import CheckpointError
from koordra.kubelet_plugin.files import Disk
from koordra.kubelet_plugin.records import ClaimRecord, claim_from_dict, claim_to_dict

VERSION: Final = "v1"
MODE: Final = 0o600


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """All remembered claims, sorted by uid."""

    claims: tuple[ClaimRecord, ...] = ()

    def get(self, uid: str) -> ClaimRecord | None:
        return next((claim for claim in self.claims if claim.ref.uid == uid), None)

    def with_claim(self, record: ClaimRecord) -> Checkpoint:
        others = (claim for claim in self.claims if claim.ref.uid != record.ref.uid)
        return Checkpoint(_sorted([*others, record]))

    def without(self, uid: str) -> Checkpoint:
        return Checkpoint(tuple(claim for claim in self.claims if claim.ref.uid != uid))

    def of_boot(self, boot_id: str) -> tuple[ClaimRecord, ...]:
        """The claims that hold devices now."""
        return tuple(claim for claim in self.claims if claim.boot_id == boot_id)


class CheckpointFile:
    """The checkpoint on disk. The caller holds the state lock around `load` and `save`."""

    def __init__(self, path: Path, disk: Disk) -> None:
        self.path = path
        self._disk = disk

    def load(self) -> Checkpoint | None:
        """None where there is no file. Raises CheckpointError with what is wrong and what to do."""
        try:
            data = self._disk.read(self.path)
        except OSError as error:
            raise CheckpointError(f"{self.path} cannot be read: {error.strerror}; check the disk") from error
        if data is None:
            return None
        try:
            return decode(data)
        except CheckpointError as error:
            kept = self._keep(data)
            raise CheckpointError(
                f"{self.path} is unreadable ({error}), so it is not known which devices are in use and no claim is prepared; "
                f"a copy is kept as {kept}; drain the node of pods that use koordra, and it starts anew"
            ) from error

    def save(self, checkpoint: Checkpoint) -> None:
        """Raises CheckpointError; the old checkpoint then still stands."""
        try:
            self._disk.replace(self.path, encode(checkpoint), mode=MODE)
        except OSError as error:
            raise CheckpointError(
                f"{self.path} cannot be written: {error.strerror}; free space or make it writable, the call is repeated"
            ) from error

    def _keep(self, data: bytes) -> str:
        """Keep the bytes for whoever looks into it; the name is their digest, so retries make no further copies."""
        copy = self.path.with_name(f"{self.path.name}.unreadable-{hashlib.sha256(data).hexdigest()[:12]}")
        try:
            if self._disk.read(copy) is None:
                self._disk.replace(copy, data, mode=MODE)
        except OSError as error:
            return f"nothing ({error.strerror})"
        return str(copy)


def encode(checkpoint: Checkpoint) -> bytes:
    data = {"claims": [claim_to_dict(claim) for claim in _sorted(checkpoint.claims)]}
    document = {"version": VERSION, "checksum": _checksum(data), "data": data}
    return json.dumps(document, indent=1, sort_keys=True).encode() + b"\n"


def decode(data: bytes) -> Checkpoint:
    """Raises CheckpointError saying what is wrong with the bytes."""
    try:
        document = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise CheckpointError(f"not JSON: {error}") from error
    if not isinstance(document, dict) or document.keys() != {"version", "checksum", "data"}:
        raise CheckpointError("not a checkpoint")
    if document["version"] != VERSION:
        raise CheckpointError(f"version {document['version']!r}; this program knows {VERSION}")
    body = document["data"]
    if document["checksum"] != _checksum(body):
        raise CheckpointError("its checksum does not match")
    if not isinstance(body, dict) or body.keys() != {"claims"} or not isinstance(body["claims"], list):
        raise CheckpointError("it has no list of claims")
    claims = [claim_from_dict(claim) for claim in body["claims"]]
    if len({claim.ref.uid for claim in claims}) != len(claims):
        raise CheckpointError("a claim is in it twice")
    return Checkpoint(_sorted(claims))


def _checksum(data: Any) -> str:
    canonical = json.dumps(data, sort_keys=True, separators=(",", ":")).encode()
    return f"sha256:{hashlib.sha256(canonical).hexdigest()}"


def _sorted(claims: Iterable[ClaimRecord]) -> tuple[ClaimRecord, ...]:
    return tuple(sorted(claims, key=lambda claim: claim.ref.uid))
