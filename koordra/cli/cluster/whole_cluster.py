"""Answers that are worked out from all objects of a cluster, as its controller does it."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from functools import cached_property
from typing import Final

from koordra.api import kinds
from koordra.api.objects import Object
from koordra.cli.cluster.cluster_objects import Listed, Source, latest_events, listed
from koordra.cli.output import Document
from koordra.cli.progress import progress
from koordra.controller.autoscale.node_groups import NodeGroup
from koordra.controller.autoscale.scale_up import ScaleUp, scale_up
from koordra.controller.cache.changes import NEEDED, OPTIONAL, Tables, tables_of
from koordra.controller.explain.forecast.forecast import Forecast, Terms, forecast
from koordra.controller.explain.forecast.refusals import refusals
from koordra.controller.explain.question import Question
from koordra.errors import ApiError, ApiUnreachable
from koordra.kube.client import KubeClient
from koordra.process.lifecycle import collect_seldom
from koordra.topology.network_topology import Levels

EVERYTHING: Final = (
    *(Source(kind) for kind in NEEDED),
    *(Source(kind, optional=True) for kind in (*OPTIONAL, kinds.EVENTS)),
)
"""What the controller decides from, as far as the caller may read it."""


class WholeCluster:
    """`found`: the objects, where they were read already."""

    def __init__(self, client: KubeClient, found: Listed | None, levels: Levels | None) -> None:
        collect_seldom()
        self._client = client
        self._found = found
        self._levels = levels

    def answer(self, question: Question) -> tuple[Document, dict[str, str]]:
        """The answer, and what the controller said last in Events, by uid. Raises NotFound."""
        forecast = self._forecast
        with progress(f"working out why: {question}", line=False):
            return dict(forecast.answer(question)[question.subject]), self._words

    def scale_up(self, groups: Sequence[NodeGroup]) -> ScaleUp:
        """What new nodes would do."""
        forecast = self._forecast
        with progress("working out what new nodes would do", line=False):
            return scale_up(self._tables, self._terms, groups, now=forecast, beyond=True)

    @cached_property
    def _objects(self) -> Listed:
        if self._found is not None:
            return self._found
        with progress("reading the cluster", line=False):
            return listed(self._client, EVERYTHING)

    @cached_property
    def _words(self) -> dict[str, str]:
        return latest_events(self._objects[kinds.EVENTS])

    @cached_property
    def _forecast(self) -> Forecast:
        with progress("taking the objects in", line=False):
            return forecast(self._tables, self._terms)

    @cached_property
    def _tables(self) -> Tables:
        return tables_of(obj for objects in self._objects.values() for obj in objects)

    @cached_property
    def _terms(self) -> Terms:
        now = datetime.now(UTC)
        refused = refusals(self._objects[kinds.EVENTS], now)
        return Terms(now, refused, levels=self._levels, read=self._read)

    def _read(self, kind: kinds.Kind, name: str, namespace: str) -> Object | None:
        """A job's object; None where the caller may not read it."""
        try:
            return self._client.get(kind, name, namespace=namespace)
        except ApiUnreachable:
            raise
        except ApiError:
            return None
