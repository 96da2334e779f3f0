"""The plugin's checkpoint: the claims that this node has prepared, or is preparing, and the cards on which an
isolation backend did something for them.

    {"version": "v2", "checksum": "sha256:...", "data": {"cards": [...], "claims": [...]}}     cards: if any

The checksum covers the canonical JSON of `data`. A file that cannot be read, parsed or verified, or is of
another version, is a CheckpointError: it is then unknown which devices are in use, so nothing may be prepared
(recovery, below). The unreadable bytes are kept once, in a file named after their digest. A file of another
version is not damaged: the koordra that wrote it can read it, so it stays as it is, and nothing is prepared,
until that koordra is back or no claim is left on the node.

A node may have a hundred claims of many mounts each, and every call reads and writes the whole file. So the
bytes read or written last are cached with their decoded form, and the encoded text of each unchanged claim is
reused. The disk remains authoritative, since another instance of the plugin may have written in between.

**Recovery.** Every claim that a container may hold also has a record for the NRI hook, `prepared/<uid>.json`,
which is written before the kubelet is answered and removed only by Unprepare. If the checkpoint is damaged or
missing, claims are recovered from these records: in State.RECOVERED, since they say which devices a claim
holds, not how much of each.

A recovered claim holds the default amount of each capacity of its devices, for a GPU all of its memory, so
nothing can be given out twice. Its files and its containers stay; the next Prepare or Unprepare of the claim
makes it an ordinary one again. Recovery is complete when every claim that has a file of any kind has a
record; until then Prepare fails closed. Records for the hook carry no boot id, so all of them count as this
boot's: they go when the kubelet unprepares them, or as orphans (prepare/claim_audit.py).
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from koordra.errors import CheckpointError
from koordra.kubelet_plugin.claims.claim_record import CLAIM_RECORD, ClaimRecord, DeviceRecord, State
from koordra.node_state import prepared_claim, strict_json
from koordra.node_state.claim_network import ClaimNetwork
from koordra.node_state.disk import Disk, NotAFile, reported
from koordra.node_state.strict_json import PAIR, STRING, Pairs, later, listed

VERSION: Final = "v2"
MODE: Final = 0o600

Texts = Mapping[str, tuple[ClaimRecord, str]]
"""By a claim's uid: the record, and its text."""


@dataclass(frozen=True, slots=True)
class CardRecord:
    """A card on which an isolation backend did something, and what it wrote down to undo it."""

    device: str
    uuid: str
    isolation: str
    journal: Pairs = ()


@dataclass(frozen=True, slots=True)
class Checkpoint:
    claims: tuple[ClaimRecord, ...] = ()
    cards: tuple[CardRecord, ...] = ()

    def get(self, uid: str) -> ClaimRecord | None:
        return next((claim for claim in self.claims if claim.ref.uid == uid), None)

    def with_claim(self, record: ClaimRecord) -> Checkpoint:
        claims = [*self.without(record.ref.uid).claims, record]
        return replace(self, claims=tuple(sorted(claims, key=lambda claim: claim.ref.uid)))

    def without(self, uid: str) -> Checkpoint:
        return replace(self, claims=tuple(claim for claim in self.claims if claim.ref.uid != uid))

    def card(self, device: str) -> CardRecord | None:
        return next((card for card in self.cards if card.device == device), None)

    def with_card(self, record: CardRecord) -> Checkpoint:
        cards = [*self.without_card(record.device).cards, record]
        return replace(self, cards=tuple(sorted(cards, key=lambda card: card.device)))

    def without_card(self, device: str) -> Checkpoint:
        return replace(self, cards=tuple(card for card in self.cards if card.device != device))

    def of_boot(self, boot_id: str) -> tuple[ClaimRecord, ...]:
        """The claims that hold devices now."""
        return tuple(claim for claim in self.claims if claim.boot_id == boot_id)


class DamagedCheckpoint(CheckpointError):
    """The file was read, and its bytes are no checkpoint: it is recovered. A disk that cannot be read is left
    alone."""


class OtherVersion(CheckpointError):
    """The file is of a version that this program does not know."""


class CheckpointFile:
    """The checkpoint on disk. The caller holds the state lock around `load` and `save`; `last` is for any."""

    def __init__(self, path: Path, disk: Disk) -> None:
        self.path = path
        self._disk = disk
        self._last: tuple[bytes, Checkpoint] = b"", Checkpoint()
        self._texts: Texts = {}

    @property
    def last(self) -> Checkpoint:
        """As it was read or written last, by any thread; empty before."""
        return self._last[1]

    def load(self) -> Checkpoint | None:
        """None where there is no file. Raises DamagedCheckpoint, OtherVersion or CheckpointError with what is
        wrong and what to do."""
        try:
            with reported(CheckpointError, self.path, "read", remedy="check the disk"):
                data = self._disk.read(self.path)
        except CheckpointError as error:
            if isinstance(error.__cause__, NotAFile):
                raise DamagedCheckpoint(str(error)) from error
            raise
        if data is None:
            return None
        if data == self._last[0]:
            return self._last[1]
        try:
            found = decode(data)
        except (DamagedCheckpoint, OtherVersion) as error:
            other = "run the version of koordra that wrote it, or " if isinstance(error, OtherVersion) else ""
            raise type(error)(
                f"{self.path} is unreadable ({error}), so it is not known which devices are in use and no claim is prepared; "
                f"a copy is kept as {self._keep(data)}; {other}drain the node of pods that use koordra, and it starts anew"
            ) from error
        self._last = data, found
        return found

    def save(self, checkpoint: Checkpoint) -> None:
        """Raises CheckpointError; the old checkpoint then still stands."""
        self._texts = texts_of(checkpoint, known=self._texts)
        data = encode(self._texts, checkpoint.cards)
        with reported(CheckpointError, self.path, "written"):
            self._disk.replace(self.path, data, mode=MODE)
        self._last = data, checkpoint

    def _keep(self, data: bytes) -> str:
        """Save a copy for debugging. It is named after the digest, so retries make no further copies."""
        copy = self.path.with_name(f"{self.path.name}.unreadable-{hashlib.sha256(data).hexdigest()[:12]}")
        try:
            if self._disk.read(copy) is None:
                self._disk.replace(copy, data, mode=MODE)
        except OSError as error:
            return f"nothing ({error.strerror})"
        return str(copy)


def texts_of(checkpoint: Checkpoint, *, known: Texts) -> Texts:
    """The text of each claim; claims that are `known` are not encoded again."""
    texts = {}
    for claim in checkpoint.claims:
        text = known.get(claim.ref.uid)
        if text is None or text[0] is not claim:
            text = claim, _canonical(CLAIM_RECORD.write(claim))
        texts[claim.ref.uid] = text
    return texts


def encode(texts: Texts, cards: tuple[CardRecord, ...] = ()) -> bytes:
    """Canonical JSON."""
    held = f'"cards":{_canonical(_CARDS.write(cards))},' if cards else ""
    data = f'{{{held}"claims":[{",".join(text for _, text in texts.values())}]}}'
    return f'{{"checksum":"{_digest(data)}","data":{data},"version":"{VERSION}"}}\n'.encode()


_CARDS: Final = listed(
    strict_json.record(
        CardRecord, {"device": STRING, "uuid": STRING, "isolation": STRING, "journal": listed(PAIR)}
    )
)
_CHECKPOINT: Final = strict_json.record(
    Checkpoint, {"claims": listed(CLAIM_RECORD), "cards": later(_CARDS, ())}
)


def decode(data: bytes) -> Checkpoint:
    """Raises DamagedCheckpoint or OtherVersion saying what is wrong with the bytes."""
    try:
        document = strict_json.load(data)
    except ValueError as error:
        raise DamagedCheckpoint(f"not JSON: {error}") from error
    version = document.get("version") if isinstance(document, dict) else None
    if isinstance(version, str) and version != VERSION:  # what else is in it is that version's affair
        raise OtherVersion(f"it has version {version[:80]}; this program knows {VERSION}")
    if version != VERSION or document.keys() != {"version", "checksum", "data"}:
        raise DamagedCheckpoint("not a checkpoint")
    if document["checksum"] != _digest(_canonical(document["data"])):
        raise DamagedCheckpoint("its checksum does not match")
    try:
        checkpoint = _CHECKPOINT.read(document["data"], "data")
    except ValueError as error:
        raise DamagedCheckpoint(f"it is malformed: {error}") from error
    uids = {claim.ref.uid for claim in checkpoint.claims if claim.ref.valid}
    if len(uids) != len(checkpoint.claims):
        raise DamagedCheckpoint("a claim in it has no valid uid, or is in it twice")
    if len({card.device for card in checkpoint.cards}) != len(checkpoint.cards):
        raise DamagedCheckpoint("a card is in it twice")
    return checkpoint


def _canonical(data: Any) -> str:
    return json.dumps(data, sort_keys=True, separators=(",", ":"))


def _digest(text: str) -> str:
    return f"sha256:{hashlib.sha256(text.encode()).hexdigest()}"


def recovered(
    for_hook: Mapping[str, bytes],
    *,
    pool: str,
    boot_id: str,
    networks: Iterable[ClaimNetwork] = (),
) -> Checkpoint:
    """The claims that have a record for the hook (uid -> bytes of the file); a damaged one is left out.
    `networks` is what was planned for their pods' networks: the addresses there are in use."""
    plans = {network.uid: dict(network.plans) for network in networks}
    found = Checkpoint()
    for uid, data in for_hook.items():
        record = recover_record(uid, data, pool=pool, boot_id=boot_id)
        if record is not None:
            planned = plans.get(uid, {})
            devices = tuple(replace(each, network=planned.get(each.device)) for each in record.devices)
            found = found.with_claim(replace(record, devices=devices))
    return found


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
        devices=tuple(DeviceRecord(**device.common, identity=device.uuid or "") for device in claim.devices),
        memlock=claim.memlock,
    )
    return record if claim.ref.uid == uid and record.ref.valid and record.devices else None
