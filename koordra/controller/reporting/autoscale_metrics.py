"""What is asked for, for Prometheus. Groups are the operator's."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Set
from typing import Final

from koordra.controller.cache.placeholders import Ask, Stage
from koordra.metrics import Metrics, bounded, counter, gauge

_GROUP: Final = bounded("the groups of nodes in the operator's settings")
MADE: Final = "made"
NOT_NEEDED: Final = "not-needed"
USELESS: Final = "useless"
OUTCOMES: Final = (MADE, NOT_NEEDED, USELESS, *(stage.value for stage in Stage if stage is not Stage.ASKED))
NODES: Final = gauge(
    "koordra_controller_autoscale_nodes",
    "New nodes that are asked for: not there yet (asked), or without published devices (came)",
    group=_GROUP,
    stage=(Stage.ASKED.value, Stage.CAME.value),
)
ASKS: Final = counter(
    "koordra_controller_autoscale_asks_total",
    "New nodes asked for (made), and what became of it (docs/autoscaling.md)",
    group=_GROUP,
    outcome=tuple(one for one in OUTCOMES if one != Stage.CAME.value),
)
LEFT_OUT: Final = gauge(
    "koordra_controller_autoscale_left_out",
    "1 while a group is not asked for nodes since it did not deliver",
    group=_GROUP,
)


class AutoscaleMetrics:
    def __init__(self, metrics: Metrics) -> None:
        self._nodes = metrics.gauge(NODES)
        self._asks = metrics.counter(ASKS)
        self._left_out = metrics.gauge(LEFT_OUT)

    def count(self, group: str, outcome: str, number: int = 1) -> None:
        self._asks.labels(group, outcome).inc(number)

    def show(self, groups: Iterable[str], live: Mapping[Ask, Stage], left_out: Set[str]) -> None:
        stages = Counter((ask.group, stage) for ask, stage in live.items())
        for group in groups:
            for stage in (Stage.ASKED, Stage.CAME):
                self._nodes.labels(group, stage.value).set(stages[group, stage])
            self._left_out.labels(group).set(group in left_out)

    def hide(self, groups: Iterable[str]) -> None:
        """Somebody else leads."""
        self.show(groups, {}, frozenset())
