"""Where what was learned outlives the controller: the ConfigMap `koordra-leftover-table` beside the Lease.

It is installed empty and only ever patched, so that the controller needs no right to make ConfigMaps. Read at
the start of a term; written within PERIOD when the table was made anew, so that a forecast goes by the table
that the controller goes by, and at the end of the term. A table that cannot be read or written costs nothing
but knowledge: a warning is logged once, and it is learned anew.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import UnionType
from typing import Any, Final

from koordra.api.resource_class import CONFIG_MAPS
from koordra.controller.allocation.learned.claim_durations import ClaimDurations
from koordra.errors import ApiError, InvalidManifest, KoordraError
from koordra.kube.client import KubeClient
from koordra.logs import get_logger
from koordra.placement.policy.durations import Durations
from koordra.placement.policy.learned_order import Learned, LearnedOrder
from koordra.placement.policy.workload import Workload
from koordra.placement.policy.workload_table import LearnedTable

log = get_logger(__name__)

NAME: Final = "koordra-leftover-table"
PERIOD: Final = 10.0
"""Seconds between two writes at least. A table is made anew when the count has grown by a quarter, so a
cluster writes some dozens of times in its life."""
SELDOM: Final = 600.0
"""The same for how long claims ran, of which every claim that ends says something, and after a write that was
refused."""
MOST_BYTES: Final = 512 << 10
"""Half of what a ConfigMap holds."""
MOST_CLASSES: Final = 2048
MOST_OF_DURATIONS: Final = 128 << 10
TABLE, WORKLOAD, DURATIONS = "table.json", "workload.json", "durations.json"
"""Keys in the ConfigMap; `koordra debug leftover-table` reads the first."""


@dataclass(slots=True)
class LeftoverStore:
    """One term's. `clock` is monotonic. `durations`: what claims that end say, from the term's watches."""

    client: KubeClient
    namespace: str
    may_write: Callable[[], bool]
    clock: Callable[[], float]
    _saved: int = 0
    _again: float = 0.0
    _warned: bool = False
    durations: ClaimDurations = field(default_factory=lambda: ClaimDurations(now=time.time))
    _durations_saved: int = 0
    _durations_again: float = 0.0

    def read(self) -> Learned | None:
        try:
            data = self.client.get(CONFIG_MAPS, NAME, namespace=self.namespace).get("data") or {}
            self.durations.resume(durations_of(data))
            found = learned_of(data)
        except KoordraError as error:
            self._warn_once("leftover_table_not_read", error)
            return None
        if found is not None:
            log.info("leftover_table_read", claims=found.table.pods)
        return found

    def save(self, leftovers: LearnedOrder, *, now: bool = False) -> float | None:
        """Write what was learned since the last time, if it is time (or `now`); else in how many seconds it
        is. None where nothing is to be written. How long claims ran is written seldom, and at the end."""
        if self.durations.version != self._durations_saved and (now or self.clock() >= self._durations_again):
            self._save_durations()
        if leftovers.epoch == self._saved or not self.may_write():
            return None
        if (pause := self._again - self.clock()) > 0 and not now:
            return pause
        self._again = self.clock() + PERIOD
        if not self._patch(data_of(leftovers.learned)):
            self._again = self.clock() + SELDOM
            return SELDOM
        self._saved = leftovers.epoch
        return None

    def _save_durations(self) -> None:
        self._durations_again = self.clock() + SELDOM
        version = self.durations.version
        if self.may_write() and self._patch({DURATIONS: durations_data(self.durations.to_document)}):
            self._durations_saved = version

    def _patch(self, data: Mapping[str, str]) -> bool:
        try:
            self.client.patch(CONFIG_MAPS, NAME, {"data": data}, namespace=self.namespace)
        except ApiError as error:
            self._warn_once("leftover_table_not_kept", error)
            return False
        return True

    def _warn_once(self, event: str, error: KoordraError) -> None:
        if not self._warned:
            log.warning(event, configmap=f"{self.namespace}/{NAME}", error=str(error))
        self._warned = True


def data_of(learned: Learned) -> dict[str, str]:
    """At most MOST_BYTES: of the classes the most frequent, and no table where that takes too much, since it
    is made from them."""
    table = _json(learned.table.to_document())
    if len(table) > MOST_BYTES // 2:
        table = _json(LearnedTable().to_document())
    most = MOST_CLASSES
    while len(counts := _json(_most_frequent(learned.of, most))) > MOST_BYTES // 2:
        most //= 2
    return {TABLE: table, WORKLOAD: counts}


def durations_data(document: Callable[[int], Any]) -> str:
    """At most MOST_OF_DURATIONS bytes: of the kinds of claims those that are counted most. `document`: of so
    many kinds."""
    most = MOST_CLASSES
    while len(text := _json(document(most))) > MOST_OF_DURATIONS:
        most //= 2
    return text


def durations_of(data: Mapping[str, Any]) -> Durations:
    """The other way. Raises InvalidManifest."""
    return Durations.from_document(_read(data.get(DURATIONS) or "{}", dict))


def _most_frequent(of: Mapping[str, Workload], most: int) -> dict[str, list[list[Any]]]:
    """As many classes, a like number of each namespace."""
    each = max(1, most // max(1, len(of)))
    largest = sorted(of, key=lambda name: (-of[name].count, name))[:most]
    return {name: of[name].to_document(each) for name in sorted(largest)}


def _json(document: Any) -> str:
    return json.dumps(document, separators=(",", ":"))


def learned_of(data: dict[str, Any]) -> Learned | None:
    """The other way; None where nothing was kept yet. Raises InvalidManifest."""
    if not data.get(TABLE):
        return None
    counts = _read(data.get(WORKLOAD) or "{}", dict | list)
    of = counts if isinstance(counts, dict) else {"": counts}  # before 0.2 nobody asked whose they were
    return Learned(
        LearnedTable.from_document(_read(data[TABLE], dict)),
        {name: Workload.from_document(document) for name, document in of.items()},
    )


def _read(text: str, wanted: type | UnionType) -> Any:
    try:
        found = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InvalidManifest(f"is no JSON: {error}", object=f"ConfigMap {NAME}") from error
    if not isinstance(found, wanted):
        raise InvalidManifest("is no table", object=f"ConfigMap {NAME}")
    return found
