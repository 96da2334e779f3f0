"""Prepare and Unprepare: a state machine that survives a crash at any point.

Prepare of one claim, under the state lock (two instances may overlap during an update), with its cards:

    read the claim from the API ─> decide (prepare_decision.py) ─> checkpoint: PrepareStarted
        ─> realise, journalled (isolation/realisation.py) ─> edits (claim_edits.py) ─> files (claim_files.py)
        ─> checkpoint: PrepareCompleted ─> answer

- Killed before the first checkpoint: nothing happened. Killed between the two: no container can have the
  devices, since the kubelet was not answered; the next Prepare, or the next start, rolls back, by what the
  backends wrote down, and starts over. Killed after the second: the kubelet retries and gets the same answer.
- A claim that is already prepared is decided again with its own nonce and must have the same results; its
  files are rewritten each time, since /run/cdi is empty after a reboot. It never returns to PrepareStarted:
  containers may be running.
- An error rolls back at once; if that fails too (full disk), the claim holds its devices until the next call.

Prepare checks again under the lock whether it is still wanted (calls_in_progress.py). Two Prepares of one
claim (two pods that share it) are answered one by one.

Unprepare undoes the shares and removes the files, then the record: killed in between, the claim still holds
its devices and the kubelet repeats the call. Unprepare of an unknown claim succeeds.

A record holds devices only in the boot it was written in. A record of an earlier boot, or one that was rolled
back, is kept until Unprepare, only to detect a different card under the old name.

An unreadable checkpoint, or one that is missing beside files of prepared claims, is rebuilt from what is left
(stored_claims.py). While some claim with a file has no record Prepare refuses. Unprepare undoes the claim in
every isolation backend for every device of the node, and removes its files; then it tries to recover again.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress

from koordra.api.objects import Object
from koordra.api.opaque.imex import ImexDomain
from koordra.errors import ApiError, CheckpointError, KoordraError, NotFound, PrepareError, one_by_one
from koordra.kubelet_plugin.cdi import container_files
from koordra.kubelet_plugin.claims.checkpoint import Checkpoint, CheckpointFile
from koordra.kubelet_plugin.claims.claim_record import ClaimRecord, State
from koordra.kubelet_plugin.isolation.backend import IsolationBackend
from koordra.kubelet_plugin.isolation.card_calls import CardCalls
from koordra.kubelet_plugin.isolation.card_looks import look_at_cards, suspend_cards
from koordra.kubelet_plugin.isolation.realisation import CardLook, Journal, Realisation
from koordra.kubelet_plugin.isolation.shares import cards_of
from koordra.kubelet_plugin.network.consumers import Claims, Consumers, holds_nics
from koordra.kubelet_plugin.network.network_decision import UNMANAGED, NetworkPolicy
from koordra.kubelet_plugin.network.pod_network import PodNetworks
from koordra.kubelet_plugin.prepare.calls_in_progress import CallsInProgress
from koordra.kubelet_plugin.prepare.claim_edits import finished
from koordra.kubelet_plugin.prepare.claim_files import ClaimFiles
from koordra.kubelet_plugin.prepare.imex_membership import NO_IMEX, DomainNotReady, Nodes, NoImex
from koordra.kubelet_plugin.prepare.prepare_decision import Decision, NodeView, decide
from koordra.kubelet_plugin.prepare.stored_claims import StoredClaims
from koordra.kubelet_plugin.publish.node_inventory import NodeInventory
from koordra.kubelet_plugin.settings import NodePaths
from koordra.logs import get_logger
from koordra.node_state.claim_ref import ClaimRef
from koordra.node_state.disk import Disk
from koordra.node_state.locks import CardLocks, StateLock

log = get_logger(__name__)


class DeviceState:
    """The node's prepared claims. Safe to call from several threads and processes. `networks` is set where
    koordra manages those of pods (`--pod-network`), which `policy` tells the decision; `hook_program` is
    where the node has the CDI hook (cdi/hook_program.py); `imex` where it may be in an IMEX domain, for
    which one call of Prepare waits as long as the `waits` are together, in seconds; `enlarged` is a prepared
    claim with what it was given beyond its allocation."""

    def __init__(
        self,
        *,
        node: str,
        paths: NodePaths,
        claims: Claims,
        inventory: Callable[[], NodeInventory],
        backends: Mapping[str, IsolationBackend],
        disk: Disk,
        lock: StateLock | None = None,
        calls: CardCalls | None = None,
        new_nonce: Callable[[], str] = lambda: secrets.token_hex(16),
        consumers: Callable[[Object], Consumers] | None = None,
        networks: PodNetworks | None = None,
        policy: NetworkPolicy = UNMANAGED,
        hook_program: Callable[[], str | None] = lambda: None,
        imex: NoImex = NO_IMEX,
        waits: Sequence[float] = (),
        enlarged: Callable[[ClaimRecord], ClaimRecord] = lambda record: record,
    ) -> None:
        self.node = node
        self._paths = paths
        self._consumers = consumers
        self._networks, self._policy = networks, policy
        self._hook_program = hook_program
        self._imex, self._waits = imex, waits
        self._claims = claims
        self._enlarged = enlarged
        self._inventory = inventory
        self._backends = backends
        self._lock = lock or StateLock(paths.lock)
        self._files = ClaimFiles(paths, disk)
        self._stored = StoredClaims(
            CheckpointFile(paths.checkpoint, disk),
            self._files,
            pool=node,
            boot_id=lambda: inventory().boot_id,
        )
        self.noted = self._stored.noted
        self._realisation = Realisation(backends, inventory, calls or CardCalls(CardLocks(paths.cards)))
        self._new_nonce = new_nonce
        self._calls = CallsInProgress()

    def prepare(self, ref: ClaimRef, *, awaited: Callable[[], bool] = lambda: True) -> ClaimRecord:
        """Prepare the claim's devices. Raises PrepareError, CheckpointError or CDIError; the call can be
        repeated. `awaited`: whether the kubelet still waits for the answer, made of the record's devices."""
        if not ref.valid:
            raise PrepareError(f"{ref}: uid {ref.uid[:80]!r}, name or namespace cannot be a claim's")
        with self._calls.of(ref, awaited) as require_wanted:
            for pause in self._waits:
                with suppress(DomainNotReady):
                    return self._prepare_once(ref, require_wanted)
                time.sleep(pause)
            return self._prepare_once(ref, require_wanted)

    def _prepare_once(self, ref: ClaimRef, require_wanted: Callable[[], None]) -> ClaimRecord:
        require_wanted()
        claim, consumers = self._fetch(ref)
        nodes = self._imex.told(ref, claim)
        with self._alone(ref, claim):
            require_wanted()
            return self._prepare(ref, claim, consumers, nodes)

    def _prepare(
        self, ref: ClaimRef, claim: Object, consumers: Consumers | None, nodes: Nodes
    ) -> ClaimRecord:
        inventory = self._inventory()
        checkpoint = self._stored.load()
        before = checkpoint.get(ref.uid)
        held = before if before and before.boot_id == inventory.boot_id else None
        if held is not None and held.state is State.STARTED:
            checkpoint, before, held = self._rolled_back(checkpoint, held), held.rolled_back(), None
        node = NodeView(
            pool=self.node,
            inventory=inventory,
            backends=self._backends,
            files=self._paths,
            holders=[self._enlarged(one) for one in checkpoint.of_boot(inventory.boot_id)],
            consumers=consumers,
            networks=self._policy,
            hook_program=self._hook_program(),
            imex_holders=checkpoint.claims,
            cards=checkpoint.cards,
            fits=self._realisation.fits,
        )
        nonce = held.nonce if held else self._new_nonce()
        decision = decide(ref, claim, node=node, nonce=nonce, before=before)
        if held is not None:
            record = self._renew(checkpoint, held, decision, node)
        else:
            checkpoint = self._imex.join(checkpoint, decision.record, nodes, save=self._stored.save)
            if not decision.record.devices:
                return decision.record
            record = self._prepare_new(checkpoint, decision, node)
        log.info("claim_prepared", claim=str(ref), uid=ref.uid, devices=[d.device for d in record.devices])
        return record

    def imex_domain(self, nodes: Callable[[ImexDomain], Nodes] | None = None) -> ImexDomain | None:
        """The domain that the node is in; what is left of another one goes. `nodes`: have it know these now.
        Raises CheckpointError, what `nodes` raises."""
        with self._lock.held():
            domain = self._imex.settle(self._stored.load().claims)
        if domain is not None and nodes is not None:
            found = nodes(domain)
            with self._lock.held():
                if self._imex.settle(self._stored.load().claims) == domain:
                    self._imex.enter(domain, found)
        return domain

    def unprepare(self, ref: ClaimRef, *, awaited: Callable[[], bool] = lambda: True) -> None:
        """Release the claim's devices; success for an unknown claim. Raises PrepareError, CheckpointError or
        CDIError. `awaited`: whether the kubelet still waits for the answer. One that it gave up may come to
        the lock after the claim was unprepared by another call, and prepared again."""
        if not ref.valid:
            log.warning("unprepare_invalid_claim", claim=str(ref), uid=ref.uid[:80])
            return
        self._calls.overtake(ref.uid)
        with self._alone(ref):
            if not awaited():
                raise PrepareError(f"{ref}: the kubelet gave this call up; nothing was unprepared by it")
            self._release_network(ref)
            try:
                checkpoint = self._stored.load()
            except CheckpointError as error:
                log.error("unprepare_without_checkpoint", claim=str(ref), uid=ref.uid, error=str(error))
                self._realisation.undo_everywhere(ref.uid, list(self._inventory().published))
                self._files.remove(ref.uid)
                with suppress(CheckpointError):
                    self._stored.load()
                return
            record = checkpoint.get(ref.uid)
            journal = Journal(checkpoint, self._stored.save)
            if record is not None:
                self._realisation.undo(journal, record)
            self._files.remove(ref.uid)
            if record is not None:
                journal.put(journal.checkpoint.without(ref.uid))
                self._imex.settle(journal.checkpoint.claims)
        log.info("claim_unprepared", claim=str(ref), uid=ref.uid, known=record is not None)

    def repair(self) -> None:
        """At every start: roll back incomplete claims, rewrite the files of prepared ones, remove stale ones.
        Never raises: what cannot be repaired now is logged, and the calls that depend on it fail."""
        with self._lock.held():
            try:
                checkpoint = self._stored.load()
            except CheckpointError as error:
                log.error("checkpoint_unreadable", error=str(error))
                self._realisation.resume(None)
                return
            boot_id = self._inventory().boot_id
            for record in checkpoint.of_boot(boot_id):
                try:
                    if record.state is State.STARTED:
                        checkpoint = self._rolled_back(checkpoint, record)
                    elif record.state is State.COMPLETED:
                        self._write_files(record)
                except KoordraError as error:
                    log.error("claim_not_repaired", uid=record.ref.uid, error=str(error))
            keep = {record.ref.uid for record in checkpoint.of_boot(boot_id)}
            try:
                self._files.remove_stale(keep)
            except KoordraError as error:
                log.error("stale_files_not_removed", error=str(error))
            self._realisation.resume(checkpoint)

    def restore_files(self) -> None:
        """Rewrite files of prepared claims that are missing or were changed, and the hook that they name: the
        kubelet does not prepare a running pod's claim again."""
        with self._lock.held(), one_by_one() as one:
            held = self._stored.load().of_boot(self._inventory().boot_id)
            with one():
                if held:
                    self._hook_program()
            for record in held:
                with one():
                    if record.state is State.COMPLETED and not self._files.unchanged(record):
                        contents = container_files.file_contents(record, self._inventory())
                        if names := [path.name for path in self._files.altered(record, contents)]:
                            self._files.write(record, contents)
                            log.warning("claim_files_restored", uid=record.ref.uid, files=names)

    def look_at_cards(self) -> dict[str, CardLook]:
        """By device, how the cards are kept. Raises CheckpointError."""
        return look_at_cards(self._realisation, self._journal, self._lock)

    def suspend_cards(self) -> None:
        suspend_cards(self._realisation, self._journal, self._lock)

    def _journal(self) -> Journal:
        return Journal(self._stored.load(), self._stored.save)

    def _load(self) -> Checkpoint:
        with self._lock.held():
            return self._stored.load()

    @contextmanager
    def _alone(self, ref: ClaimRef, claim: Object | None = None) -> Iterator[None]:
        """The state lock; before it the cards that the claim has, or is to have, so that nobody waits for
        another claim's cards. Raises PrepareError, CheckpointError."""
        record = None
        with self._lock.held(), suppress(CheckpointError):
            record = self._stored.load().get(ref.uid)
        with self._realisation.alone(cards_of(claim, record, self._inventory())), self._lock.held():
            yield

    def records(self) -> tuple[ClaimRecord, ...]:
        """The claims that hold devices of this node now. Raises CheckpointError."""
        return self._load().of_boot(self._inventory().boot_id)

    def remembered(self) -> tuple[ClaimRecord, ...]:
        """Those, and claims of earlier boots that are not unprepared yet. Raises CheckpointError."""
        return self._load().claims

    def _fetch(self, ref: ClaimRef) -> tuple[Object, Consumers | None]:
        try:
            claim = self._claims.get(ref.namespace, ref.name)
            pods_matter = holds_nics(claim) or self._inventory().has_closed_nodes
            return claim, self._consumers(claim) if self._consumers and pods_matter else None
        except NotFound as error:
            raise PrepareError(f"{ref}: it does not exist in the API") from error
        except ApiError as error:
            raise PrepareError(f"{ref}: it cannot be read from the API: {error}") from error

    def _prepare_new(self, checkpoint: Checkpoint, decision: Decision, node: NodeView) -> ClaimRecord:
        started = decision.record
        journal = Journal(checkpoint.with_claim(started), self._stored.save)
        try:
            # A failed save may still have replaced the checkpoint, so it is rolled back too.
            journal.save(journal.checkpoint)
            made = self._realisation.realise(journal, decision.shares)
            record = finished(decision, made, node=node, kept=journal.checkpoint).completed()
            self._write_files(record)
            journal.put(journal.checkpoint.with_claim(record))
        except KoordraError:
            try:
                self._rolled_back(journal.checkpoint, journal.checkpoint.get(started.ref.uid) or started)
            except KoordraError as error:
                log.error("rollback_failed", claim=str(started.ref), uid=started.ref.uid, error=str(error))
            raise
        return record

    def _renew(
        self, checkpoint: Checkpoint, held: ClaimRecord, decision: Decision, node: NodeView
    ) -> ClaimRecord:
        """The claim is prepared: same devices, files rewritten with what has changed on the node since."""
        if not held.has_devices_of(decision.record):
            raise PrepareError(
                f"{held.ref}: AlreadyAllocated: it is still prepared here with "
                f"{', '.join(device.device for device in held.devices)}, and its allocation now names "
                f"{', '.join(device.device for device in decision.record.devices)}; it is prepared anew once its old pod is gone"
            )
        journal = Journal(checkpoint, self._stored.save)
        made = self._realisation.realise(journal, decision.shares)
        renewed = finished(decision, made, node=node, kept=journal.checkpoint).completed()
        self._write_files(renewed)
        if renewed != journal.checkpoint.get(held.ref.uid):
            journal.put(journal.checkpoint.with_claim(renewed))
        return renewed

    def _rolled_back(self, checkpoint: Checkpoint, record: ClaimRecord) -> Checkpoint:
        """Undo an incomplete Prepare; the record is kept without devices."""
        journal = Journal(checkpoint, self._stored.save)
        self._realisation.undo(journal, record)
        self._release_network(record.ref)
        self._files.remove(record.ref.uid)
        journal.put(journal.checkpoint.with_claim(record.rolled_back()))
        log.info("claim_rolled_back", claim=str(record.ref), uid=record.ref.uid)
        return journal.checkpoint

    def _release_network(self, ref: ClaimRef) -> None:
        if self._networks is not None:
            self._networks.release_claim(ref.uid)

    def _write_files(self, record: ClaimRecord) -> None:
        self._files.write(record, container_files.file_contents(record, self._inventory()))
