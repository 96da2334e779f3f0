"""What the plugin remembers of switches of MIG modes: `mig-modes.json` in its state directory."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

from koordra.errors import NodeError
from koordra.logs import get_logger
from koordra.node_state.disk import Disk, reported
from koordra.node_state.strict_json import BOOLEAN, INTEGER, STRING, listed, load, record

log = get_logger(__name__)
FILE: Final = "mig-modes.json"
MODE: Final = 0o600


@dataclass(frozen=True, slots=True)
class CardMode:
    """Of one card, by UUID. `at`: when its mode was switched last, or refused, in seconds of the wall clock;
    `refused`: why the driver did not switch it, empty where it did; `begun`: a switch was begun and is not
    known to be over."""

    uuid: str
    at: int = 0
    refused: str = ""
    begun: bool = False


@dataclass(frozen=True, slots=True)
class ModeJournal:
    """`over`: the token of the last request that was carried out or given up: it is not taken up again."""

    over: str = ""
    cards: tuple[CardMode, ...] = ()

    def of(self, uuid: str) -> CardMode:
        return next((card for card in self.cards if card.uuid == uuid), CardMode(uuid))

    def with_card(self, card: CardMode) -> ModeJournal:
        others = (one for one in self.cards if one.uuid != card.uuid)
        return replace(self, cards=tuple(sorted((*others, card), key=lambda one: one.uuid)))


_JOURNAL: Final = record(
    ModeJournal,
    {
        "over": STRING,
        "cards": listed(
            record(CardMode, {"uuid": STRING, "at": INTEGER, "refused": STRING, "begun": BOOLEAN})
        ),
    },
)


@dataclass
class JournalFile:
    """On the disk before what it says is done."""

    state: Path
    disk: Disk
    journal: ModeJournal = field(default_factory=ModeJournal)

    def __post_init__(self) -> None:
        """One that cannot be read is told, and begun anew: a request is then perhaps carried out again, which
        changes nothing, or switched sooner than it would be."""
        try:
            data = self.disk.read(self.state / FILE)
            if data is not None:
                self.journal = _JOURNAL.read(load(data), "")
        except (OSError, ValueError) as error:
            log.warning("mig_modes_unreadable", error=str(error))

    def keep(self, journal: ModeJournal) -> None:
        """Raises NodeError."""
        if journal == self.journal:
            return
        data = json.dumps(_written(journal)).encode() + b"\n"
        with reported(NodeError, self.state / FILE, "written"):
            self.disk.replace(self.state / FILE, data, mode=MODE)
        self.journal = journal


def _written(journal: ModeJournal) -> Mapping[str, object]:
    found: Mapping[str, object] = _JOURNAL.write(journal)
    return found
