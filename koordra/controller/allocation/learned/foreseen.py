"""What jobs will ask for when they come again, for the learned table: behind --learn-from-profiles.

    ConfigMap koordra-recommendations   what pods of a template asked for of which class, and what would have
    DeviceClass, annotation             done; whether the class gives it
        └─▶ `LearnedOrder.foresee`

A share of a class that does not give what is recommended stays what it is. Without the ConfigMap the table is
made of what was asked; where it cannot be read, of what was read last.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from decimal import Decimal
from typing import Final

from koordra.api import names, objects
from koordra.api.objects import Object
from koordra.api.resource_class import CONFIG_MAPS
from koordra.errors import ApiError, NotFound
from koordra.kube.client import KubeClient
from koordra.logs import get_logger
from koordra.placement.policy.learned_order import ComesAgain, LearnedOrder
from koordra.profiles.applied import EITHER, SMALLER, amounts_by
from koordra.profiles.config_map import CONFIG_MAP, Known, read_recommended
from koordra.quantity import canonical, parse

log = get_logger(__name__)

PERIOD: Final = 600.0
"""Seconds; a table that is new has every node ranked anew."""


@dataclass(slots=True)
class Foreseen:
    """One term's. `clock` is monotonic."""

    client: KubeClient
    namespace: str
    clock: Callable[[], float]
    _due: float = float("-inf")

    def sync(self, order: LearnedOrder, classes: Iterable[Object]) -> float | None:
        """In how many seconds it is time again; None where the nodes do not tell yet by what to measure."""
        if not order.measures:
            return None
        if (pause := self._due - self.clock()) > 0:
            return pause
        self._due = self.clock() + PERIOD
        try:
            found = self.client.get(CONFIG_MAPS, CONFIG_MAP, namespace=self.namespace)
        except NotFound:
            found = {}
        except ApiError as error:
            log.warning("recommendations_not_read", error=str(error))
            return PERIOD
        named = {objects.name(one): one for one in classes}
        if order.foresee(coming_again(read_recommended(found), named)):
            log.info("leftover_table_learned", claims=order.table.pods, of="profiles")
        return PERIOD


def coming_again(known: Known, classes: Mapping[str, Object]) -> Iterator[ComesAgain]:
    """`classes`: DeviceClasses by name."""
    for namespace, of in sorted(known.items()):
        for _, one in sorted(of.items()):
            for device_class, memory, cores, pods in one.asked:
                word = objects.annotations_of(classes.get(device_class) or {}).get(names.APPLY_RECOMMENDATION)
                amounts = {names.CAPACITY_MEMORY: memory, names.CAPACITY_CORES: cores}
                asked = {name: canonical(amount) for name, amount in amounts.items() if amount}
                given = amounts_by(word, asked, one) if word in (SMALLER, EITHER) else {}
                before, after = (
                    {name: Decimal(parse(amount)) for name, amount in said.items()}
                    for said in (asked, {**asked, **given})
                )
                yield ComesAgain(namespace, before, after, pods)
