"""Answers that are worked out from all objects of a cluster, as its controller does it."""

from __future__ import annotations

import gc
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from functools import cached_property
from typing import Final

from koordra.api import kinds
from koordra.api.objects import Object
from koordra.api.resource_class import CONFIG_MAPS
from koordra.cli.cluster.answers import with_later
from koordra.cli.cluster.cluster_objects import Listed, Piece, Source, latest_events, read_ahead
from koordra.cli.cluster.controller_answers import NAMESPACE
from koordra.cli.output import Document
from koordra.cli.progress import progress
from koordra.controller.allocation.learned.leftover_store import NAME, durations_of, learned_of
from koordra.controller.autoscale.node_groups import NodeGroup
from koordra.controller.autoscale.scale_up import ScaleUp, scale_up
from koordra.controller.cache.changes import NEEDED, OPTIONAL, in_order
from koordra.controller.cache.kept_fields import kept_of
from koordra.controller.explain.forecast.forecast import Forecast, foretold
from koordra.controller.explain.forecast.intake import Intake, Terms
from koordra.controller.explain.forecast.later import Later, fits_later
from koordra.controller.explain.forecast.refusals import refusals
from koordra.controller.explain.question import Question
from koordra.errors import ApiError, ApiUnreachable, InvalidManifest
from koordra.kube.client import KubeClient
from koordra.placement.candidates.node_scoring import ScoringStrategy
from koordra.placement.policy.learned_order import Learned
from koordra.process.lifecycle import collect_seldom
from koordra.topology.network_topology import Levels

EVERYTHING: Final = (
    Source(kinds.EVENTS, optional=True),
    *(Source(kind, optional=kind not in NEEDED) for kind in in_order((*NEEDED, *OPTIONAL))),
)
"""What the controller has said, and what it decides from, as far as the caller may read it."""


class WholeCluster:
    """`found`: the objects, where they were read already. `when`: whether answers say when what waits will
    fit."""

    def __init__(
        self,
        client: KubeClient,
        found: Listed | None,
        levels: Levels | None,
        *,
        scoring: ScoringStrategy | None = None,
        when: bool = False,
    ) -> None:
        collect_seldom()
        self._client = client
        self._found = found
        self._levels, self._scoring = levels, scoring
        self._when = when

    def answer(self, question: Question) -> tuple[Document, dict[str, str]]:
        """The answer, and what the controller said last in Events, by uid. Raises NotFound."""
        forecast, (_, words) = self._forecast, self._taken
        with progress(f"working out why: {question}", line=False):
            entry = dict(forecast.answer(question)[question.subject])
            return (with_later(entry, question.subject, self._later) if self._when else entry), words

    @cached_property
    def _later(self) -> Mapping[str, Later]:
        forecast = self._forecast
        with progress("working out when what waits will fit", line=False):
            return fits_later(forecast)

    def scale_up(self, groups: Sequence[NodeGroup]) -> ScaleUp:
        """What new nodes would do."""
        forecast, (taken, _) = self._forecast, self._taken
        with progress("working out what new nodes would do", line=False):
            return scale_up(taken.copy.given(), taken.terms, groups, now=forecast, beyond=True)

    @cached_property
    def _forecast(self) -> Forecast:
        taken, _ = self._taken
        with progress("working out what becomes of it", line=False):
            return foretold(taken)

    @cached_property
    def _taken(self) -> tuple[Intake, dict[str, str]]:
        with progress("reading the cluster", line=False):
            return self._take_in(self._pieces())

    def _take_in(self, pieces: Iterator[Piece]) -> tuple[Intake, dict[str, str]]:
        now, events = datetime.now(UTC), list[Object]()
        for piece in pieces:  # the Events, which come first
            if piece.every is not None:
                events = piece.every
                break
        kept = (self._read(CONFIG_MAPS, NAME, NAMESPACE) or {}).get("data") or {}
        terms = Terms(
            now,
            refusals(events, now),
            levels=self._levels,
            scoring=self._scoring,
            read=self._read,
            learned=_learned(kept),
        )
        taken = Intake(replace(terms, durations=durations_of(kept)) if self._when else terms)
        before = list[Object]()
        for kind, some, every in pieces:
            taken.take(kind, some)
            before += some
            if every is not None:
                taken.complete(kind, before, every)
                before.clear()
        gc.freeze()  # what was taken in stays until the end
        return taken, latest_events(events)

    def _pieces(self) -> Iterator[Piece]:
        if self._found is None:
            return read_ahead(self._client, EVERYTHING, trim=kept_of)
        return (Piece(one.kind, self._found[one.kind], self._found[one.kind]) for one in EVERYTHING)

    def _read(self, kind: kinds.Kind, name: str, namespace: str) -> Object | None:
        """A job's object; None where the caller may not read it."""
        try:
            return self._client.get(kind, name, namespace=namespace)
        except ApiUnreachable:
            raise
        except ApiError:
            return None


def _learned(kept: Object) -> Learned | None:
    """By which the controller goes; nothing where it kept nothing, or what nobody can read."""
    try:
        return learned_of(kept)
    except InvalidManifest:
        return None
