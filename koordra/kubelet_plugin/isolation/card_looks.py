"""Looks at the cards on which isolation backends did something. Claims are prepared meanwhile, but for those
of the card that is looked at: the state lock is held to read and write the checkpoint, and not for a look."""

from __future__ import annotations

from collections.abc import Callable

from koordra.kubelet_plugin.claims.checkpoint import Checkpoint
from koordra.kubelet_plugin.isolation.realisation import CardLook, Journal, Realisation
from koordra.node_state.locks import StateLock


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
