"""The shares of claims are made by their backends, and undone; what the backends write down is in the
checkpoint.

    PrepareStarted is on the disk ─> the cards of backends that keep whole cards ─> the shares, in order

Undone in reverse order: the shares, then each card that has no share of its backend any more. A card that has
some left is told of the one that went.

One backend at a time does something to a card. `isolated_shares` refuses a share beside those of another kind
before anything is touched; what is left of a backend whose last share could not be undone is undone before
another one begins.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from koordra.api import names
from koordra.api.opaque.parameters import GpuConfig
from koordra.errors import KoordraError, PrepareError
from koordra.kubelet_plugin.claims.checkpoint import CardRecord, Checkpoint
from koordra.kubelet_plugin.claims.claim_record import ClaimRecord, State
from koordra.kubelet_plugin.isolation.backend import (
    Card,
    Held,
    IsolationBackend,
    Keep,
    Realised,
    Share,
)
from koordra.kubelet_plugin.isolation.packages import ForeignBackend
from koordra.kubelet_plugin.publish.node_inventory import NodeInventory
from koordra.logs import get_logger
from koordra.node_state.strict_json import Pairs
from koordra.quantity import parse

log = get_logger(__name__)


@dataclass(frozen=True, slots=True)
class IsolatedShare:
    """A share that a backend must make before a container starts; of a claim's several shares of one card the
    first one's `config` counts."""

    backend: IsolationBackend
    share: Share
    config: GpuConfig


def share_of(record: ClaimRecord, index: int, inventory: NodeInventory) -> Share:
    """What devices[index] of the claim is for a backend."""
    device = record.devices[index]
    same = [
        at for at, each in enumerate(record.devices) if each.device == device.device and not each.admin_access
    ]
    own = _share(record, [index], inventory)
    return replace(own, of_card=_share(record, same, inventory)) if len(same) > 1 else own


def _share(record: ClaimRecord, indices: Sequence[int], inventory: NodeInventory) -> Share:
    """The claim's devices of these places, all of one card, as one share."""
    device = record.devices[indices[0]]
    consumed = [
        dict(record.devices[index].consumed) if record.devices[index].share_id else {} for index in indices
    ]
    memory = sum(parse(each.get(names.CAPACITY_MEMORY, "0")) for each in consumed)
    published = inventory.published.get(device.device)
    whole = published.capacity[names.CAPACITY_MEMORY].value if published else memory + 1
    cores = sum(int(parse(each.get(names.CAPACITY_CORES, "0"))) for each in consumed)
    limited = all(names.CAPACITY_MEMORY in each for each in consumed) and memory < whole
    return Share(
        claim_uid=record.ref.uid,
        index=indices[0],
        device=device.device,
        uuid=device.uuid or "",
        memory_bytes=int(memory) if limited else None,
        cores=cores if 0 < cores < 100 else None,
        namespace=record.ref.namespace,
        journal=device.journal,
        cards=tuple(dict.fromkeys(each.device for each in record.devices if each.uuid is not None)),
    )


def shares_on(
    claims: Iterable[ClaimRecord], device: str, isolation: str, inventory: NodeInventory
) -> tuple[Share, ...]:
    """The shares of the card that a backend keeps."""
    return tuple(
        share_of(claim, index, inventory)
        for claim in claims
        for index, each in enumerate(claim.devices)
        if (each.device, each.isolation) == (device, isolation)
    )


@dataclass(slots=True)
class Journal:
    """The checkpoint while backends work on one claim's shares; `save` puts it on the disk."""

    checkpoint: Checkpoint
    save: Callable[[Checkpoint], None]

    def put(self, checkpoint: Checkpoint) -> None:
        self.save(checkpoint)
        self.checkpoint = checkpoint

    def of_share(self, uid: str, index: int) -> Keep:
        def keep(journal: Pairs) -> None:
            record = self.checkpoint.get(uid)
            if record is not None and record.devices[index].journal != journal:
                self.put(self.checkpoint.with_claim(record.with_journal(index, journal)))

        return keep

    def of_card(self, device: str) -> Keep:
        def keep(journal: Pairs) -> None:
            card = self.checkpoint.card(device)
            if card is not None and card.journal != journal:
                self.put(self.checkpoint.with_card(replace(card, journal=journal)))

        return keep


class Realisation:
    """`backends` by name; `inventory` as it is now. The caller holds the state lock."""

    def __init__(
        self, backends: Mapping[str, IsolationBackend], inventory: Callable[[], NodeInventory]
    ) -> None:
        self._backends = backends
        self._inventory = inventory

    def realise(self, journal: Journal, shares: Sequence[IsolatedShare]) -> dict[int, Realised]:
        """Make the shares of a claim that is in the journal's checkpoint; by index of the device. Raises
        PrepareError and CheckpointError, after which `undo` is due."""
        for each in shares:
            if each.backend.capabilities.per_card:
                self._start_card(journal, each)
        return {
            each.share.index: each.backend.prepare(
                each.share, each.config, journal.of_share(each.share.claim_uid, each.share.index)
            )
            for each in shares
        }

    def _start_card(self, journal: Journal, wanted: IsolatedShare) -> None:
        share, name = wanted.share, wanted.backend.name
        record = journal.checkpoint.card(share.device)
        if record is not None and (record.isolation, record.uuid) != (name, share.uuid):
            self._stop_card(record)
            record = None
        if record is None:
            record = CardRecord(share.device, share.uuid, name)
            journal.put(journal.checkpoint.with_card(record))
        card = self._card(record, journal.checkpoint)
        wanted.backend.card_start(card, wanted.config, journal.of_card(share.device))

    def undo(self, journal: Journal, record: ClaimRecord) -> None:
        """Undo the claim's shares, then the cards that nobody has left; of these the journal's checkpoint
        knows no more, which the caller saves. Raises PrepareError."""
        others = journal.checkpoint.without(record.ref.uid)
        held = {
            device.device for claim in others.of_boot(self._inventory().boot_id) for device in claim.devices
        }
        for index, device in enumerate(record.devices):
            if record.state is State.RECOVERED:
                free = [Card(device.device, device.uuid or "")] if device.device not in held else []
                self.undo_everywhere(record.ref.uid, [device.device], cards=free)
            elif backend := self._backends.get(device.isolation or ""):
                backend.unprepare(share_of(record, index, self._inventory()))
        for device in record.devices:
            card = others.card(device.device)
            if card is None or card.isolation != device.isolation:
                continue
            left = self._card(card, others)
            if left.shares:
                self._tell(left, card, journal)
            else:
                self._stop_card(card)
                journal.checkpoint = journal.checkpoint.without_card(card.device)

    def undo_everywhere(self, uid: str, devices: Iterable[str], *, cards: Iterable[Card] = ()) -> None:
        """Undo a claim of which it is not known who kept it, and `cards` that nobody has then: undoing what
        was never made is allowed. One of another package that does not keep to that holds no claim back."""
        for backend in self._backends.values():
            try:
                for device in devices:
                    backend.unprepare(Share(uid, 0, device, uuid="", memory_bytes=None, cores=None))
                for card in cards if backend.capabilities.per_card else ():
                    backend.card_stop(card)
            except PrepareError as error:
                if not isinstance(backend, ForeignBackend):
                    raise
                log.error("isolation_not_undone", uid=uid, backend=backend.name, error=str(error))

    def resume(self, checkpoint: Checkpoint | None) -> Checkpoint | None:
        """At the start: undo the cards that no claim has, and let the backends go on with the others; what is
        left of the checkpoint. Never raises: what fails is logged."""
        if checkpoint is not None:
            checkpoint, failed = self._without_idle(checkpoint)
            for device, error in failed.items():
                log.error("card_not_stopped", device=device, error=error)
        for backend in self._backends.values():
            try:
                backend.resume(self._held(backend.name, checkpoint) if checkpoint else None)
            except KoordraError as error:
                log.error("isolation_not_resumed", backend=backend.name, error=str(error))
        return checkpoint

    def verify(self, journal: Journal) -> dict[str, str]:
        """By device, what is wrong with how its card is kept. One that no claim has, and that could not be
        undone (a driver that comes after the plugin), is undone."""
        checkpoint, failed = self._without_idle(journal.checkpoint)
        if checkpoint != journal.checkpoint:
            journal.put(checkpoint)
        found = {
            device: f"no claim has it any more, and it is not as it was: {error}"
            for device, error in failed.items()
        }
        for record in (each for each in checkpoint.cards if each.device not in failed):
            backend = self._backends.get(record.isolation)
            try:
                card = self._card(record, checkpoint)
                problem = (
                    backend.verify(card)
                    if backend
                    else f"this node has no backend {record.isolation} any more"
                )
            except KoordraError as error:
                problem = str(error)
            if problem:
                found[record.device] = problem
        return found

    def _without_idle(self, checkpoint: Checkpoint) -> tuple[Checkpoint, dict[str, str]]:
        """Undo the cards that no claim has; what is left of the checkpoint, and by device why one stays."""
        failed = {}
        for record in checkpoint.cards:
            if self._card(record, checkpoint).shares:
                continue
            try:
                self._stop_card(record)
                checkpoint = checkpoint.without_card(record.device)
            except KoordraError as error:
                failed[record.device] = str(error)
        return checkpoint, failed

    def _held(self, name: str, checkpoint: Checkpoint) -> Held:
        inventory = self._inventory()
        cards = (self._card(card, checkpoint) for card in checkpoint.cards if card.isolation == name)
        return Held(
            shares=tuple(
                share_of(claim, index, inventory)
                for claim in checkpoint.of_boot(inventory.boot_id)
                for index, device in enumerate(claim.devices)
                if device.isolation == name
            ),
            cards=tuple(card for card in cards if card.shares),
            unknown=frozenset(
                device.device
                for claim in checkpoint.of_boot(inventory.boot_id)
                for device in claim.devices
                if claim.state is State.RECOVERED
            ),
        )

    def _card(self, record: CardRecord, checkpoint: Checkpoint) -> Card:
        inventory = self._inventory()
        claims = checkpoint.of_boot(inventory.boot_id)
        shares = shares_on(claims, record.device, record.isolation, inventory)
        return Card(record.device, record.uuid, shares, record.journal)

    def _stop_card(self, record: CardRecord) -> None:
        backend = self._backends.get(record.isolation)
        if backend is None:
            raise PrepareError(
                f"BackendUnavailable: {record.device} is kept by isolation {record.isolation!r}, which this node does not have any more; "
                "install it again until the card is free"
            )
        backend.card_stop(Card(record.device, record.uuid, (), record.journal))

    def _tell(self, card: Card, record: CardRecord, journal: Journal) -> None:
        """A share went and others are left; they are kept as before where the backend cannot follow now."""
        backend = self._backends.get(record.isolation)
        try:
            if backend is not None:
                backend.card_start(card, None, journal.of_card(card.device))
        except KoordraError as error:
            log.error("card_not_adjusted", device=card.device, error=str(error))
