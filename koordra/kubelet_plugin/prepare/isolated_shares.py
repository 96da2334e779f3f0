"""What keeps each share of a claim's GPUs, by the operator's policy, class and claim
(koordra.api.opaque.isolation). Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import TypeAlias

from koordra.api import names
from koordra.api.opaque.configuration import Configuration
from koordra.api.opaque.isolation import IsolationPolicy, are_apart, is_share
from koordra.api.opaque.isolation_words import AUTO, backend_of
from koordra.api.opaque.parameters import GpuConfig
from koordra.errors import PrepareError
from koordra.kubelet_plugin.claims.checkpoint import CardRecord
from koordra.kubelet_plugin.claims.claim_record import ClaimRecord, DeviceRecord
from koordra.kubelet_plugin.isolation.backend import Card, IsolationBackend, Share
from koordra.kubelet_plugin.isolation.mig.backend import MigIsolation
from koordra.kubelet_plugin.isolation.shares import IsolatedShare, share_of, shares_on
from koordra.kubelet_plugin.prepare.identified_devices import Prepared
from koordra.kubelet_plugin.publish.node_inventory import NodeInventory
from koordra.quantity import parse
from koordra.topology.machine import Gpu

Fits: TypeAlias = Callable[[IsolationBackend, Share, GpuConfig, Card], str | None]
"""A backend's own `fits`, as the caller makes calls of backends."""


def isolated_shares(
    record: ClaimRecord,
    config: Configuration,
    *,
    inventory: NodeInventory,
    backends: Mapping[str, IsolationBackend],
    holders: Iterable[ClaimRecord],
    prepared: Prepared,
    cards: Mapping[str, CardRecord],
    fits: Fits,
) -> list[IsolatedShare | None]:
    """The backend's part in each device; None for one that is neither a GPU nor a backend's own, or is
    allocated with adminAccess. A
    prepared device keeps its isolation: a policy is about what starts. Raises PrepareError."""
    found: list[IsolatedShare | None] = []
    others = [holder for holder in holders if holder.ref.uid != record.ref.uid]
    for index, device in enumerate(record.devices):
        if (device.uuid is None and not device.pool) or device.admin_access:
            found.append(None)
            continue
        kept = prepared.get(device.assignment)
        decided = _own(record, device, config) or (kept and kept.isolation)
        word = decided or _decided(record, device, config, inventory, others)
        backend = backends.get(word)
        if backend is None or (device.pool and not backend.capabilities.pool):
            raise PrepareError(
                f"{record.ref}: BackendUnavailable: isolation {word!r} is not available on this node; "
                f"available: {', '.join(sorted(backends))}"
            )
        share = share_of(record, index, inventory)
        first = next(
            each.request for each in record.devices if each.device == device.device and not each.admin_access
        )
        if kept is None:
            card = _card(share, word, others, inventory, cards.get(share.device))
            refused = fits(backend, share, config.gpu(first), card)
            if refused is not None:
                raise PrepareError(f"{record.ref}: BackendUnavailable: {device.device}: {refused}")
        else:
            share = replace(share, journal=kept.journal)
        found.append(IsolatedShare(backend, share, config.gpu(first)))
    return found


def _own(record: ClaimRecord, device: DeviceRecord, config: Configuration) -> str | None:
    """The backend whose own the device is; None for one of the node. Raises PrepareError where another one is
    asked for."""
    word, asked = backend_of(device.pool), config.isolation(device.request).word
    if word is not None and asked not in (None, AUTO, word):
        raise PrepareError(
            f"{record.ref}: BackendUnavailable: {device.device}: isolation: requested {asked}, and the device is {word}'s own"
        )
    return word


def _decided(
    record: ClaimRecord,
    device: DeviceRecord,
    config: Configuration,
    inventory: NodeInventory,
    others: Iterable[ClaimRecord],
) -> str:
    """The isolation that the operator's policy, class and claim make of it; raises PrepareError where they
    refuse it, and where one of the others has a share of the other kind on the card. An instance that is made
    on demand is kept by the hardware."""
    asked, policy = config.isolation(device.request), _policy_of(device, inventory)
    share, instance = _may_be_shared(device, inventory), device.type == names.TYPE_MIG
    refused = asked.refusal(policy, share=share, instance=instance)
    if refused is not None:
        raise PrepareError(f"{record.ref}: BackendUnavailable: {device.device}: {refused}")
    if inventory.offering.mig_on_demand and instance:
        return MigIsolation.name
    word = asked.on(policy, share=share)
    neighbours = (
        (other.isolation, holder.ref)
        for holder in (others if share else ())
        for other in holder.devices
        if other.device == device.device and other.isolation and _may_be_shared(other, inventory)
    )
    for theirs, holder in neighbours:
        if are_apart(word, theirs):
            raise PrepareError(
                f"{record.ref}: BackendUnavailable: {device.device}: isolation: requested {word}, and "
                f"{holder} has a share with {theirs}; a card is kept in one way at a time"
            )
    return word


def _policy_of(device: DeviceRecord, inventory: NodeInventory) -> IsolationPolicy:
    """That of the card, as it is published with it."""
    card = inventory.place(device.device)
    if not isinstance(card, Gpu):
        return inventory.offering.isolation
    policy = inventory.offering.policy_of(card)
    return policy if device.type == names.TYPE_MIG else policy.of_shares


def _card(
    share: Share, word: str, claims: Iterable[ClaimRecord], inventory: NodeInventory, card: CardRecord | None
) -> Card:
    shares = (*shares_on(claims, share.device, word, inventory), share)
    journal = card.journal if card is not None and card.isolation == word else ()
    return Card(share.device, share.uuid, shares, journal)


def _may_be_shared(device: DeviceRecord, inventory: NodeInventory) -> bool:
    """A device that is given out once only is nobody else's."""
    consumed = {name: parse(amount) for name, amount in device.consumed}
    return device.share_id is not None and is_share(consumed, inventory.published[device.device].capacity)
