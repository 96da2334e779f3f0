"""The plugin's checkpoint: the claims that this node has prepared, or is preparing.

    {"versions": {"v1": {"checksum": "sha256:...", "data": {"claims": [...]}},
                  "v2": {"checksum": "sha256:...", "data": {"claims": [...]}}}}

Every save writes the current form and the one before it, so that the plugin can be updated **and downgraded
by one version** without a drain: a program reads the newest version that it knows and ignores the others.
After a downgrade the older program writes only what it knows, and newer sections are lost.

A checksum covers the canonical JSON of its `data`. A file that cannot be read, parsed or verified, or has no
known version, is a CheckpointError: it is then unknown which devices are in use, so nothing may be prepared
(recovery, below). The unreadable bytes are kept once, in a file named after their digest.

A node may have a hundred claims of many mounts each, and every call reads and writes the whole file. So the
bytes read or written last are cached with their decoded form, and the encoded text of each unchanged claim is
reused. The disk remains authoritative, since another instance of the plugin may have written in between.

The form before `versions` existed, `{"version": "v1", "checksum", "data"}`, is read.

**Recovery.** The checkpoint holds everything twice (two versions), and every claim that a container may hold also has a record
for the NRI hook, `prepared/<uid>.json`, which is written before the kubelet is answered and removed only by Unprepare. If the
checkpoint is damaged or missing, claims are recovered from:

    a section of the checkpoint that is intact    the claim, complete
    otherwise its record for the hook             State.RECOVERED: which devices it holds, not how much of each

A recovered claim holds the default amount of each capacity of its devices, for a GPU all of its memory, so nothing can be
given out twice. Its files and its containers stay; the next Prepare or Unprepare of the claim makes it an ordinary one again.
Recovery is complete when every claim that has a file of any kind has a record; until then Prepare fails closed. Records for
the hook carry no boot id, so all of them count as this boot's: they go when the kubelet unprepares them, or as orphans
(prepare/claim_audit.py).
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from koordra.errors import CheckpointError, NodeError
from koordra.kubelet_plugin.claims.claim_record import (
    CURRENT,
    OLDER,
    ClaimRecord,
    DeviceRecord,
    State,
    claim_from_dict,
    claim_to_dict,
)
from koordra.node_state import prepared_claim
from koordra.node_state.disk import Disk

VERSIONS: Final[Mapping[str, int]] = {"v2": CURRENT, "v1": OLDER}
"""Versions that this program reads and writes, newest first."""
MODE: Final = 0o600

Texts = dict[tuple[str, int], tuple[ClaimRecord, str]]
"""By a claim's uid and a version of its form: the record that was written, and its text."""


@dataclass(frozen=True, slots=True)
class Checkpoint:
    claims: tuple[ClaimRecord, ...] = ()

    def get(self, uid: str) -> ClaimRecord | None:
        return next((claim for claim in self.claims if claim.ref.uid == uid), None)

    def with_claim(self, record: ClaimRecord) -> Checkpoint:
        return Checkpoint(_sorted([*self.without(record.ref.uid).claims, record]))

    def without(self, uid: str) -> Checkpoint:
        return Checkpoint(tuple(claim for claim in self.claims if claim.ref.uid != uid))

    def of_boot(self, boot_id: str) -> tuple[ClaimRecord, ...]:
        """The claims that hold devices now."""
        return tuple(claim for claim in self.claims if claim.boot_id == boot_id)


@contextmanager
def reported(
    kind: type[NodeError],
    path: Path,
    verb: str,
    *,
    remedy: str = "free space or make it writable, the call is repeated",
) -> Iterator[None]:
    """An OSError about the file becomes an error of this kind, with a remedy."""
    try:
        yield
    except OSError as error:
        raise kind(f"{path} cannot be {verb}: {error.strerror}; {remedy}") from error


class CheckpointFile:
    """The checkpoint on disk. The caller holds the state lock around `load` and `save`."""

    def __init__(self, path: Path, disk: Disk) -> None:
        self.path = path
        self._disk = disk
        self._last: tuple[bytes, Checkpoint] = b"", Checkpoint()
        self._texts: Texts = {}

    def load(self) -> Checkpoint | None:
        """None where there is no file. Raises CheckpointError with what is wrong and what to do."""
        data = self._read()
        if data is None:
            return None
        if data == self._last[0]:
            return self._last[1]
        try:
            found = decode(data)
        except CheckpointError as error:
            raise CheckpointError(
                f"{self.path} is unreadable ({error}), so it is not known which devices are in use and no claim is prepared; "
                f"a copy is kept as {self._keep(data)}; drain the node of pods that use koordra, and it starts anew"
            ) from error
        self._last = data, found
        return found

    def intact(self) -> tuple[ClaimRecord, ...]:
        """The claims of the newest intact section of an unreadable file; empty if there is none."""
        data = self._read()
        return () if data is None else intact_claims(data)

    def save(self, checkpoint: Checkpoint) -> None:
        """Raises CheckpointError; the old checkpoint then still stands."""
        data = encode(checkpoint, texts=self._texts)
        current = {claim.ref.uid for claim in checkpoint.claims}
        self._texts = {place: text for place, text in self._texts.items() if place[0] in current}
        with reported(CheckpointError, self.path, "written"):
            self._disk.replace(self.path, data, mode=MODE)
        self._last = data, Checkpoint(_sorted(checkpoint.claims))

    def _read(self) -> bytes | None:
        with reported(CheckpointError, self.path, "read", remedy="check the disk"):
            return self._disk.read(self.path)

    def _keep(self, data: bytes) -> str:
        """Save a copy for debugging. It is named after the digest, so retries make no further copies."""
        copy = self.path.with_name(f"{self.path.name}.unreadable-{hashlib.sha256(data).hexdigest()[:12]}")
        try:
            if self._disk.read(copy) is None:
                self._disk.replace(copy, data, mode=MODE)
        except OSError as error:
            return f"nothing ({error.strerror})"
        return str(copy)


def encode(
    checkpoint: Checkpoint, *, versions: Mapping[str, int] = VERSIONS, texts: Texts | None = None
) -> bytes:
    """Canonical JSON. `texts` caches the encoded claims between calls."""
    known = {} if texts is None else texts
    claims = _sorted(checkpoint.claims)
    sections = []
    for name, version in sorted(versions.items()):
        data = f'{{"claims":[{",".join(_text(claim, version, known) for claim in claims)}]}}'
        sections.append(f'"{name}":{{"checksum":"{_digest(data)}","data":{data}}}')
    return f'{{"versions":{{{",".join(sections)}}}}}\n'.encode()


def _text(claim: ClaimRecord, version: int, known: Texts) -> str:
    place = claim.ref.uid, version
    record, text = known.get(place, (None, ""))
    if record is not claim:
        text = _canonical(claim_to_dict(claim, version=version))
        known[place] = claim, text
    return text


def decode(data: bytes, *, versions: Mapping[str, int] = VERSIONS) -> Checkpoint:
    """Decode the newest known version. Raises CheckpointError saying what is wrong with the bytes."""
    sections = _sections(data)
    name = next((name for name in versions if name in sections), None)
    if name is None:
        found = ", ".join(sorted(map(str, sections))) or "none"
        raise CheckpointError(f"it has versions {found}; this program knows {', '.join(versions)}")
    return _decode_section(sections[name], version=versions[name])


def intact_claims(data: bytes) -> tuple[ClaimRecord, ...]:
    """The claims of the newest known section that is intact, though others may not be."""
    for name, version in VERSIONS.items():
        with suppress(CheckpointError):
            return _decode_section(_sections(data).get(name), version=version).claims
    return ()


def _sections(data: bytes) -> Mapping[str, Any]:
    try:
        document = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise CheckpointError(f"not JSON: {error}") from error
    if isinstance(document, dict) and document.keys() == {"version", "checksum", "data"}:
        return {str(document["version"]): {"checksum": document["checksum"], "data": document["data"]}}
    if (
        not isinstance(document, dict)
        or document.keys() != {"versions"}
        or not isinstance(document["versions"], dict)
    ):
        raise CheckpointError("not a checkpoint")
    return document["versions"]


def _decode_section(section: object, *, version: int) -> Checkpoint:
    if not isinstance(section, dict) or section.keys() != {"checksum", "data"}:
        raise CheckpointError("its section is not one")
    body = section["data"]
    if section["checksum"] != _digest(_canonical(body)):
        raise CheckpointError("its checksum does not match")
    if not isinstance(body, dict) or body.keys() != {"claims"} or not isinstance(body["claims"], list):
        raise CheckpointError("it has no list of claims")
    claims = [claim_from_dict(claim, version=version) for claim in body["claims"]]
    if len({claim.ref.uid for claim in claims}) != len(claims):
        raise CheckpointError("a claim is in it twice")
    return Checkpoint(_sorted(claims))


def _canonical(data: Any) -> str:
    return json.dumps(data, sort_keys=True, separators=(",", ":"))


def _digest(text: str) -> str:
    return f"sha256:{hashlib.sha256(text.encode()).hexdigest()}"


def _sorted(claims: Iterable[ClaimRecord]) -> tuple[ClaimRecord, ...]:
    return tuple(sorted(claims, key=lambda claim: claim.ref.uid))


def recover_records(
    intact: Iterable[ClaimRecord], *, for_hook: Mapping[str, bytes], pool: str, boot_id: str
) -> tuple[ClaimRecord, ...]:
    """The claims of a whole section, and those that only have a record for the hook (uid -> bytes of the
    file)."""
    found = {record.ref.uid: record for record in intact}
    for uid in for_hook.keys() - found.keys():
        record = recover_record(uid, for_hook[uid], pool=pool, boot_id=boot_id)
        if record is not None:
            found[uid] = record
    return _sorted(found.values())


def recover_record(uid: str, data: bytes, *, pool: str, boot_id: str) -> ClaimRecord | None:
    """The claim behind a record for the hook; None when the record is damaged too."""
    try:
        claim = prepared_claim.decode(data)
    except ValueError:
        return None
    record = ClaimRecord(
        ref=claim.ref,
        pool=pool,
        nonce=claim.nonce,
        boot_id=boot_id,
        state=State.RECOVERED,
        devices=tuple(
            DeviceRecord(
                identity=device.uuid or "",
                **{field: getattr(device, field) for field in prepared_claim.KEPT_FIELDS},
            )
            for device in claim.devices
        ),
        memlock=claim.memlock,
    )
    return record if claim.ref.uid == uid and record.ref.valid and record.devices else None
