"""Isolation backends that write down what they are asked for."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from koordra.api.opaque.parameters import GpuConfig
from koordra.errors import PrepareError
from koordra.kubelet_plugin.claims.claim_record import ContainerEdits
from koordra.kubelet_plugin.isolation.backend import (
    Capabilities,
    Card,
    Held,
    IsolationBackend,
    Keep,
    Realised,
    Share,
)
from koordra.node_state.strict_json import Pairs


def keep_nothing(journal: Pairs) -> None:
    del journal


@dataclass
class RecordingBackend(IsolationBackend):
    """`refuse` is an error to raise from prepare."""

    name: str = "limiter"  # type: ignore[misc]
    running: list[tuple[str, str]] = field(default_factory=list)
    shares: list[Share] = field(default_factory=list)
    refuse: str = ""

    def prepare(self, share: Share, config: GpuConfig, keep: Keep) -> Realised:
        self.shares.append(share)
        if self.refuse:
            raise PrepareError(self.refuse)
        if (share.claim_uid, share.device) not in self.running:
            self.running.append((share.claim_uid, share.device))
        limit = f"{share.memory_bytes} {config.priority}"
        return Realised(ContainerEdits(env=((f"LIMIT_{share.index}", limit),)))

    def unprepare(self, share: Share) -> None:
        if (share.claim_uid, share.device) in self.running:
            self.running.remove((share.claim_uid, share.device))


class JournalledBackend(IsolationBackend):
    """Makes something of a card, and of each share something that it finds again by its journal alone, step
    by step: written down, made, finished. `made` and `cards` outlive the plugin; `step` is called between any
    two steps, and may end it."""

    name = "mps"
    capabilities = Capabilities(per_card=True)

    def __init__(
        self, made: dict[str, str], cards: dict[str, str], step: Callable[[str], None] = lambda step: None
    ) -> None:
        self.made, self.cards, self._step = made, cards, step
        self.resumed: list[Held | None] = []

    def card_start(self, card: Card, config: GpuConfig | None, keep: Keep) -> None:
        del config
        before = dict(card.journal).get("before")
        if before is None:
            before = self.cards.get(card.device, "default")
            self._step("card: look")
            keep((("before", before),))
        self._step("card: set")
        self.cards[card.device] = f"mps for {len(card.shares)}"

    def card_stop(self, card: Card) -> None:
        self._step("card: restore")
        before = dict(card.journal).get("before")
        if before is not None:
            self.cards[card.device] = before

    def prepare(self, share: Share, config: GpuConfig, keep: Keep) -> Realised:
        name = dict(share.journal).get("name")
        if name is None:
            name = f"{share.claim_uid}/{share.device}"
            self._step("share: write down")
            keep((("name", name),))
        self._step("share: make")
        self.made.setdefault(name, "half")
        keep((("name", name), ("half", "yes")))
        self._step("share: finish")
        self.made[name] = "whole"
        return Realised(ContainerEdits(env=(("MADE", name),)), uuid=f"MADE-{share.index}")

    def unprepare(self, share: Share) -> None:
        self._step("share: undo")
        self.made.pop(dict(share.journal).get("name", ""), None)

    def resume(self, held: Held | None) -> None:
        self.resumed.append(held)

    def verify(self, card: Card) -> str | None:
        return None if self.cards.get(card.device, "").startswith("mps") else f"{card.device} is lost"


class UnjournalledBackend(IsolationBackend):
    """Writes nothing down, as the limiter: what it makes of a share it finds again by the claim and the
    device."""

    name = "limiter"

    def __init__(self, made: dict[str, str], step: Callable[[str], None]) -> None:
        self.made, self._step = made, step

    def prepare(self, share: Share, config: GpuConfig, keep: Keep) -> Realised:
        del config, keep
        self._step("share: make")
        self.made[f"{share.claim_uid}/{share.device}"] = "whole"
        return Realised()

    def unprepare(self, share: Share) -> None:
        self._step("share: undo")
        self.made.pop(f"{share.claim_uid}/{share.device}", None)
