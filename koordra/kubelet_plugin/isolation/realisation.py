"""The shares of claims are made by their backends, and undone; what the backends write down is in the
checkpoint.

    PrepareStarted is on the disk ─> the cards of backends that keep whole cards ─> the shares, in order

Undone in reverse order: the shares, then each card that has no share of its backend any more. A card that has
some left is told of the one that went.

One backend at a time does something to a card. `isolated_shares` refuses a share beside those of another kind
before anything is touched; what is left of a backend whose last share could not be undone is undone before
another one begins. Every call goes by `CardCalls`, which knows what to do with one that does not return.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace

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
    UndoneLater,
)
from koordra.kubelet_plugin.isolation.card_calls import CardCalls
from koordra.kubelet_plugin.isolation.packages import ForeignBackend
from koordra.kubelet_plugin.isolation.shares import IsolatedShare, share_of, shares_on
from koordra.kubelet_plugin.publish.devices import whole_of
from koordra.kubelet_plugin.publish.node_inventory import NodeInventory
from koordra.logs import get_logger
from koordra.node_state.strict_json import Pairs

log = get_logger(__name__)


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


@dataclass(frozen=True, slots=True)
class CardLook:
    """How a card is kept: what is wrong, in words (None: nothing), and what its backend, of this name, says
    of it."""

    isolation: str
    problem: str | None = None
    status: Mapping[str, str] = field(default_factory=dict)


class Realisation:
    """`backends` by name; `inventory` as it is now. The caller holds the state lock, but for `look`."""

    def __init__(
        self,
        backends: Mapping[str, IsolationBackend],
        inventory: Callable[[], NodeInventory],
        calls: CardCalls,
    ) -> None:
        self._backends = backends
        self._inventory = inventory
        self._calls = calls

    def alone(self, devices: Iterable[str]) -> AbstractContextManager[None]:
        """Nobody else does anything to the cards of these devices; to be taken before the state lock. Raises
        PrepareError."""
        return self._calls.alone(devices)

    def fits(self, backend: IsolationBackend, share: Share, config: GpuConfig, card: Card) -> str | None:
        """As the backend's own."""
        what = f"isolation {backend.name}: fits of claim {share.claim_uid} on {share.device}"
        return self._calls.answer(share.device, what, lambda: backend.fits(share, config, card))

    def realise(self, journal: Journal, shares: Sequence[IsolatedShare]) -> dict[int, Realised]:
        """Make the shares of a claim that is in the journal's checkpoint; by index of the device. Raises
        PrepareError and CheckpointError, after which `undo` is due."""
        for each in shares:
            self._stop_left_over(journal, each)
            if each.backend.capabilities.per_card:
                self._start_card(journal, each)
        return {each.share.index: self._prepare(journal, each) for each in shares}

    def _prepare(self, journal: Journal, wanted: IsolatedShare) -> Realised:
        share, backend = wanted.share, wanted.backend
        what = f"isolation {backend.name}: prepare of claim {share.claim_uid} on {share.device}"
        keep = journal.of_share(share.claim_uid, share.index)
        return self._calls.kept(
            share.device, what, keep, lambda own: backend.prepare(share, wanted.config, own)
        )

    def _stop_left_over(self, journal: Journal, wanted: IsolatedShare) -> None:
        """What a backend was to undo later on the card, and what another one has left there."""
        for record in journal.checkpoint.cards:
            if whole_of(record.device) != whole_of(wanted.share.device):
                continue
            backend = self._backend_of(record)
            if not backend.capabilities.per_card or not self._card(record, journal.checkpoint).shares:
                self._stop_card(record)
                journal.put(journal.checkpoint.without_card(record.device))

    def _start_card(self, journal: Journal, wanted: IsolatedShare) -> None:
        share, name = wanted.share, wanted.backend.name
        record = journal.checkpoint.card(share.device)
        if record is not None and (record.isolation, record.uuid) != (name, share.uuid):
            self._stop_card(record)
            record = None
        if record is None:
            record = CardRecord(share.device, share.uuid, name)
            journal.put(journal.checkpoint.with_card(record))
        self._set_card(wanted.backend, self._card(record, journal.checkpoint), wanted.config, journal)

    def _set_card(
        self, backend: IsolationBackend, card: Card, config: GpuConfig | None, journal: Journal
    ) -> None:
        what = f"isolation {backend.name}: card_start of {card.device}"
        keep = journal.of_card(card.device)
        self._calls.kept(card.device, what, keep, lambda own: backend.card_start(card, config, own))

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
                share = share_of(record, index, self._inventory())
                try:
                    self._unprepare(backend, share)
                except UndoneLater as error:
                    log.warning("share_is_undone_later", claim=str(record.ref), error=str(error))
                    if journal.checkpoint.card(share.device) is None:
                        later = CardRecord(share.device, share.uuid, backend.name, share.journal)
                        journal.checkpoint = journal.checkpoint.with_card(later)
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
                    self._unprepare(backend, Share(uid, 0, device, uuid="", memory_bytes=None, cores=None))
                for card in cards if backend.capabilities.per_card else ():
                    self._stop(backend, card)
            except PrepareError as error:
                if not isinstance(backend, ForeignBackend):
                    raise
                log.error("isolation_not_undone", uid=uid, backend=backend.name, error=str(error))

    def resume(self, checkpoint: Checkpoint | None) -> None:
        """At the start: let the backends go on with what they keep, None where that is not known. Never
        raises: what fails is logged."""
        for backend in self._backends.values():
            held = self._held(backend.name, checkpoint) if checkpoint else None
            what = f"isolation {backend.name}: resume"
            try:
                self._calls.answer(what, what, lambda backend=backend, held=held: backend.resume(held))  # type: ignore[misc]
            except KoordraError as error:
                log.error("isolation_not_resumed", backend=backend.name, error=str(error))

    def look(
        self, device: str, load: Callable[[], Checkpoint], forget: Callable[[str], None]
    ) -> CardLook | None:
        """How the card is kept, once nobody else does anything to it; None for one that is not kept any more.
        `load` and `forget`, for a card that nobody has and that is as it was now, take the state lock. Raises
        what these raise."""
        isolation = said = ""
        try:
            with self._calls.alone([device]):
                checkpoint = load()
                record = checkpoint.card(device)
                if record is None:
                    return None
                isolation = record.isolation
                backend, card = self._backend_of(record), self._card(record, checkpoint)
                if not card.shares:
                    said = "no claim has it any more, and it is not as it was: "
                    self._stop_card(record)
                    forget(device)
                    return None
                problem = self._calls.answer(
                    device, f"isolation {isolation}: verify of {device}", lambda: backend.verify(card)
                )
                status = (
                    {}
                    if problem
                    else self._calls.answer(
                        device, f"isolation {isolation}: status of {device}", lambda: backend.status(card)
                    )
                )
                return CardLook(isolation, problem, status)
        except PrepareError as error:
            return CardLook(isolation, f"{said}{error}")

    def suspend(self, device: str, load: Callable[[], Checkpoint]) -> None:
        """The plugin ends. Never raises a PrepareError: what fails is logged."""
        try:
            with self._calls.alone([device]):
                checkpoint = load()
                record = checkpoint.card(device)
                if record is not None and (card := self._card(record, checkpoint)).shares:
                    backend, what = (
                        self._backend_of(record),
                        f"isolation {record.isolation}: suspend of {device}",
                    )
                    self._calls.answer(device, what, lambda: backend.suspend(card))
        except PrepareError as error:
            log.error("card_not_suspended", device=device, error=str(error))

    def _held(self, name: str, checkpoint: Checkpoint) -> Held:
        inventory = self._inventory()
        claims = checkpoint.of_boot(inventory.boot_id)
        return Held(
            shares=tuple(
                share_of(claim, index, inventory)
                for claim in claims
                for index, device in enumerate(claim.devices)
                if device.isolation == name
            ),
            cards=tuple(self._card(card, checkpoint) for card in checkpoint.cards if card.isolation == name),
            unknown=frozenset(
                device.device
                for claim in claims
                for device in claim.devices
                if claim.state is State.RECOVERED
            ),
        )

    def _card(self, record: CardRecord, checkpoint: Checkpoint) -> Card:
        inventory = self._inventory()
        claims = checkpoint.of_boot(inventory.boot_id)
        shares = shares_on(claims, record.device, record.isolation, inventory)
        return Card(record.device, record.uuid, shares, record.journal)

    def _backend_of(self, record: CardRecord) -> IsolationBackend:
        backend = self._backends.get(record.isolation)
        if backend is None:
            raise PrepareError(
                f"BackendUnavailable: {record.device} is kept by isolation {record.isolation!r}, which this node does not have any more; "
                "install it again until the card is free"
            )
        return backend

    def _unprepare(self, backend: IsolationBackend, share: Share) -> None:
        what = f"isolation {backend.name}: unprepare of claim {share.claim_uid} on {share.device}"
        self._calls.answer(share.device, what, lambda: backend.unprepare(share))

    def _stop_card(self, record: CardRecord) -> None:
        self._stop(self._backend_of(record), Card(record.device, record.uuid, (), record.journal))

    def _stop(self, backend: IsolationBackend, card: Card) -> None:
        what = f"isolation {backend.name}: card_stop of {card.device}"
        self._calls.answer(card.device, what, lambda: backend.card_stop(card))

    def _tell(self, card: Card, record: CardRecord, journal: Journal) -> None:
        """A share went and others are left; they are kept as before where the backend cannot follow now."""
        backend = self._backends.get(record.isolation)
        try:
            if backend is not None:
                self._set_card(backend, card, None, journal)
        except KoordraError as error:
            log.error("card_not_adjusted", device=card.device, error=str(error))
