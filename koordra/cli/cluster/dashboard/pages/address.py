"""Which page an address is, and what makes it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final
from urllib.parse import parse_qsl, unquote

from koordra.cli.cluster.dashboard.fleet import CardState, Filter, Fleet
from koordra.cli.cluster.dashboard.pages.find import find_page
from koordra.cli.cluster.dashboard.pages.fleet import fleet_page
from koordra.cli.cluster.dashboard.pages.gangs import gang_page, gangs_page
from koordra.cli.cluster.dashboard.pages.machine import node_page
from koordra.cli.cluster.dashboard.pages.objects import claim_page, pod_page
from koordra.cli.cluster.dashboard.pages.waiting import waiting_page
from koordra.cli.cluster.dashboard.snapshot import Snapshot
from koordra.errors import NotFound

LONGEST: Final = 2048
"""Characters of an address."""
_LONGEST_FILTER: Final = 1000
"""Characters: a block is named by its domain on each level."""


@dataclass(frozen=True, slots=True)
class OfFleet:
    """Addresses that are equal are of one page."""

    shown: Filter

    def make(self, fleet: Fleet) -> bytes:
        return fleet_page(fleet, self.shown)


@dataclass(frozen=True, slots=True)
class OfSnapshot:
    """`words`: what the page is about, as `_PAGES` takes it."""

    page: str
    words: tuple[str, ...] = ()

    def make(self, snapshot: Snapshot) -> bytes:
        return _PAGES[self.page](snapshot, *self.words)


Address = OfFleet | OfSnapshot
_PAGES: Final[Mapping[str, Callable[..., bytes]]] = {
    "waiting": waiting_page,
    "gangs": gangs_page,
    "find": find_page,
    "node": node_page,
    "claim": claim_page,
    "pod": pod_page,
    "gang": gang_page,
}


def address_of(target: str) -> Address:
    """`target`: path and query of a request. Raises NotFound."""
    path, _, query = target.partition("?")
    if len(target) > LONGEST:
        raise _nothing()
    try:
        fields = dict(parse_qsl(query, max_num_fields=16))
    except ValueError:
        raise _nothing() from None
    match [unquote(one) for one in path.split("/")[1:]]:
        case [""]:
            return OfFleet(_filter(fields))
        case ["waiting" | "gangs" as what]:
            return OfSnapshot(what)
        case ["find"]:
            return OfSnapshot("find", (fields.get("q", "").strip(),))
        case ["node", name] if name:
            return OfSnapshot("node", (name,))
        case ["claim" | "pod" | "gang" as what, namespace, name] if namespace and name:
            return OfSnapshot(what, (namespace, name))
    raise _nothing()


def _filter(fields: dict[str, str]) -> Filter:
    """A state that there is none of is none."""
    state = fields.get("state", "")
    return Filter(
        fields.get("model", "")[:_LONGEST_FILTER],
        fields.get("block", "")[:_LONGEST_FILTER],
        state if state in {one.value for one in CardState} else "",
    )


def _nothing() -> NotFound:
    return NotFound("there is no such page", code=404, reason="NotFound")
