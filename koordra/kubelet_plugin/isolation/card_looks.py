"""Looks at the cards on which isolation backends did something. Claims are prepared meanwhile, but for those
of the card that is looked at: the state lock is held to read and write the checkpoint, and not for a look."""

from __future__ import annotations

from collections.abc import Callable

from koordra.errors import CheckpointError
from koordra.kubelet_plugin.claims.checkpoint import Checkpoint
from koordra.kubelet_plugin.isolation.realisation import CardLook, Journal, Realisation
from koordra.logs import get_logger
from koordra.node_state.locks import StateLock

log = get_logger(__name__)


def look_at_cards(
    realisation: Realisation, journal: Callable[[], Journal], lock: StateLock
) -> dict[str, CardLook]:
    """By device; cards that no claim has are given back. `journal` has the checkpoint as it is on the disk.
    Raises CheckpointError."""

    def load() -> Checkpoint:
        with lock.held():
            return journal().checkpoint

    def forget(device: str) -> None:
        with lock.held():
            found = journal()
            found.put(found.checkpoint.without_card(device))

    looks = {card.device: realisation.look(card.device, load, forget) for card in load().cards}
    return {device: look for device, look in looks.items() if look is not None}


def suspend_cards(realisation: Realisation, journal: Callable[[], Journal], lock: StateLock) -> None:
    """The plugin ends: the cards are left as they may be without it. Never raises: what fails is logged."""

    def load() -> Checkpoint:
        with lock.held():
            return journal().checkpoint

    try:
        for card in load().cards:
            realisation.suspend(card.device, load)
    except CheckpointError as error:
        log.error("cards_not_suspended", error=str(error))
