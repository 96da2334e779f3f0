"""Every name that a peer's users write, and what becomes of it: the one table of the converters and of
docs/migrate/keys.md.

    hami, koordinator, volcano, others    dialects: what pods say, and what stands beside pods
    nvidia, nics                          device plugins of GPUs and NICs
    nvidia_dra, dranet                    DRA drivers: what claims and classes say

Read in the peers' sources. A row is a line of text: where the name stands, what happens to it, the name, what
it means, what becomes of it.

    y         is translated, is read by koordra too, or stays because it is about something else than devices
    warned    is lost, or works otherwise; the note says what to do instead
    refused   cannot be honoured, and the object is left out

What is said of a warned or refused name is the last column, up to the first semicolon the problem, then the
remedy, unless its dialect has said something about it already: what depends on the value is the dialect's to
say. So nothing that stands here is passed over in silence, and what does not stand here, under a peer's
domain, is reported as unknown.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from importlib import import_module
from typing import Final


class Place(StrEnum):
    """Where a name stands. FIELD is `Kind.group: path`, KIND `Kind.group`, SETTING a field of a file that an
    operator writes for the peer. Of a DRA driver (`convert --to koordra`): CLASS is a DeviceClass, ATTRIBUTE
    and CAPACITY are what selectors read of its devices, MATCH is what constraints name, PARAMETER `Kind:
    path` of an opaque configuration."""

    RESOURCE = "resource"
    ANNOTATION = "annotation"
    LABEL = "label"
    ENVIRONMENT = "environment"
    SCHEDULER = "schedulerName"
    KIND = "kind"
    FIELD = "field"
    SETTING = "setting"
    NODE = "node"
    CLASS = "class"
    ATTRIBUTE = "attribute"
    CAPACITY = "capacity"
    MATCH = "match"
    PARAMETER = "parameter"


class Treatment(StrEnum):
    TRANSLATED = "y"
    WARNED = "warned"
    REFUSED = "refused"


@dataclass(frozen=True, slots=True)
class Key:
    """`name` may hold one `*`. `peer` is the dialect's name where there is one."""

    peer: str
    place: Place
    treatment: Treatment
    name: str
    meaning: str
    becomes: str

    def covers(self, name: str) -> bool:
        """Users choose the names, so nothing dear is done with each."""
        head, star, tail = self.name.partition("*")
        if not star:
            return name == head
        return len(name) >= len(head) + len(tail) and name.startswith(head) and name.endswith(tail)

    @property
    def problem(self) -> str:
        return self.becomes.partition("; ")[0]

    @property
    def remedy(self) -> str:
        return self.becomes.partition("; ")[2]


def rows(peer: str, text: str) -> tuple[Key, ...]:
    """A line a row, columns between bars."""
    found = []
    for line in filter(str.strip, text.splitlines()):
        place, treatment, name, meaning, becomes = (part.strip() for part in line.split(" | "))
        found.append(Key(peer, Place(place), Treatment(treatment), name, meaning, becomes))
    return tuple(found)


PEERS: Final = ("hami", "koordinator", "volcano", "others", "nvidia", "nics", "nvidia_dra", "dranet")
KEYS: Final[tuple[Key, ...]] = tuple(
    key for peer in PEERS for key in import_module(f"{__name__}.{peer}").KEYS
)
_PATTERNS: Final = tuple(key for key in KEYS if "*" in key.name)
_EXACT: Final[dict[tuple[Place, str], list[Key]]] = {}
for _key in KEYS:
    if "*" not in _key.name:
        _EXACT.setdefault((_key.place, _key.name), []).append(_key)


def key_of(name: str, place: Place, peer: str = "") -> Key | None:
    """The row of a name, that of the peer where several have it; of two patterns the longer one."""
    found = _EXACT.get((place, name)) or [key for key in _PATTERNS if key.place is place and key.covers(name)]
    return min(found, key=lambda key: (-len(key.name), key.peer != peer), default=None)


def of_peer(peer: str, place: Place) -> tuple[Key, ...]:
    return tuple(key for key in KEYS if key.peer == peer and key.place == place)
