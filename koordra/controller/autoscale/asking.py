"""Nodes are asked for in the leader's term, in a thread of its own: for what waits without a place for some
seconds, and would fit on new nodes, placeholders are made (asks), and they go when they are not needed.

    read what is asked for     from the API, in every pass: who leads next, or comes back, goes on from there
    judge it                   done, expired, misfit: the placeholder goes; who failed is left out for a while
                               (left_out), and the next group is asked
    forecast                   nodes that are wanted now (needs), with the devices that are there
    make, drop                 until as many are asked for as are wanted, and no more

A forecast costs as much as planning everything anew, and halving numbers takes several: after one that took a
second none begins for nine.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from contextlib import suppress
from dataclasses import KW_ONLY, dataclass, field, replace
from datetime import UTC, datetime
from functools import cache, partial
from typing import Final

from koordra.api import objects
from koordra.api.kinds import DEVICE_CLASSES, NODES, PODS, RESOURCE_CLAIMS
from koordra.api.objects import Object
from koordra.controller import claims as claims_of
from koordra.controller.allocation.reserved.quotas import Quotas
from koordra.controller.allocation.writes import Writer
from koordra.controller.autoscale.asks import asked_for, changes_of, placeholder, published_nodes, stage_of
from koordra.controller.autoscale.left_out import Standings
from koordra.controller.autoscale.needs import Needs, Wanted, needs_of
from koordra.controller.autoscale.node_groups import NodeGroup
from koordra.controller.autoscale.quotas import QuotasAsTheyAre
from koordra.controller.autoscale.settings import AutoscaleSettings
from koordra.controller.cache.changes import Tables
from koordra.controller.cache.placeholders import (
    ASKED_FOR,
    GROUP,
    NAMESPACE,
    Ask,
    Stage,
    ask_of,
    created,
    is_ask,
)
from koordra.controller.claims import Owner
from koordra.controller.explain.forecast.intake import Terms
from koordra.controller.reconcile.reconcile_loop import run_passes
from koordra.controller.reporting import claim_events
from koordra.controller.reporting.autoscale_metrics import MADE, NOT_NEEDED, USELESS, AutoscaleMetrics
from koordra.controller.reporting.claim_events import ClaimEvent, EventSink
from koordra.controller.settings import Settings
from koordra.errors import Conflict, Forbidden, Invalid, NotFound
from koordra.kube.client import KubeClient
from koordra.logs import get_logger
from koordra.placement.request.claim_groups import claim_keys
from koordra.process.lifecycle import spawn

log = get_logger(__name__)

PERIOD: Final = 10.0
"""Seconds between two looks where something waits or is asked for."""
SELDOM: Final = 30.0
GATHER: Final = 5.0
SHARE: Final = 9.0
_FAILURES: Final = {
    Stage.EXPIRED: "no node came within {within:g} s, or it published no devices: look at the autoscaler's Events, at its "
    "limits, and whether `labels`, `taints` and `resources` are those of its nodes",
    Stage.MISFIT: "node {node} was there, has room for a whole node of the group, and does not serve what waits: cordon "
    "it, or raise the group's `resources`",
}
_USELESS: Final = (
    "a node came for claim {claim} and does not serve it: is `machine` what the group's nodes are?"
)


@dataclass
class NodeAsking:
    """`observe`: everything that the controller has read; `terms`: what forecasts go by, at any time; `clock`
    is monotonic, `now` the wall clock."""

    client: KubeClient
    settings: AutoscaleSettings
    _: KW_ONLY
    observe: Callable[[], Tables]
    terms: Terms
    clock: Callable[[], float]
    now: Callable[[], datetime]
    may_write: Callable[[], bool]
    report: EventSink
    metrics: AutoscaleMetrics
    _rest_until: float = 0.0
    _told: dict[str, str] = field(default_factory=dict)
    """By key of a claim, what was told of it last."""
    _refused: dict[str, str] = field(default_factory=dict)
    """By group, why the API server refused a placeholder last."""

    def __post_init__(self) -> None:
        self._standings = Standings(self.client, self.may_write)
        self._groups = {group.name: group for group in self.settings.groups}

    def sync(self) -> float:
        """Ask for what is wanted now; the seconds until the next look. Raises ApiError."""
        now, cluster = self.now(), self.observe()
        found = self.client.list(PODS, namespace=NAMESPACE, label_selector=GROUP)[0]
        asks = [ask_of(pod) for pod in found]
        cluster = {**cluster, PODS: {key: pod for key, pod in cluster[PODS].items() if not is_ask(key)}}
        published = published_nodes(cluster)
        live = {
            ask: stage for ask in asks if (stage := self._judged(ask, cluster, published, now)) is not None
        }
        pause = SELDOM
        if self._groups and (live or _waiting(cluster)):
            pause = self._asked(cluster, live, published, now)
        else:
            self._told.clear()
            for name in self._groups:
                self._is_well(name)
        self.metrics.show(self._groups, live, {name for name in self._groups if self._is_left_out(name, now)})
        return pause

    def _is_left_out(self, group: str, now: datetime) -> bool:
        return self._standings.of(group).is_left_out(now)

    def _judged(self, ask: Ask, cluster: Tables, published: Set[str], now: datetime) -> Stage | None:
        """How far it is; None where it is over."""
        stage = stage_of(ask, cluster, published, within=self.settings.within, now=now)
        if ask.group in self._groups and stage in (Stage.ASKED, Stage.CAME):
            return stage
        if not self.may_write():
            return None
        self._drop(ask)
        if ask.group in self._groups:
            standing = self._standings.of(ask.group)
            if stage is Stage.DONE:
                uids = [objects.uid(one) for key in ask.claims if (one := cluster[RESOURCE_CLAIMS].get(key))]
                self._standings.put(ask.group, standing.delivered(tuple(uids), now))
            elif stage in _FAILURES and not standing.is_left_out(now):
                why = _FAILURES[stage].format(within=self.settings.within, node=ask.node)
                self._fail(ask.group, why, ask.claims, cluster, now)
            self.metrics.count(ask.group, stage.value)
        return None

    def _fail(self, group: str, why: str, claims: Iterable[str], cluster: Tables, now: datetime) -> None:
        standing = self._standings.of(group).failed(why, now)
        self._standings.put(group, standing)
        pause = standing.until - now.timestamp()
        log.warning("node_group_failed", group=group, why=why, left_out_for=pause)
        for key, claim, pods in _with_pods(claims, cluster):
            said = claim_events.nodes_not_coming(claim, pods, group=group, why=why, pause=pause)
            self._tell(key, said)

    def _asked(self, cluster: Tables, live: dict[Ask, Stage], published: Set[str], now: datetime) -> float:
        """Ask for what is wanted, and for no more."""
        if (rest := self._rest_until - self.clock()) > 0:
            return rest
        began = self.clock()
        groups = [group for name, group in self._groups.items() if not self._is_left_out(name, now)]
        there = {node for group in groups for node in group.there(cluster)} - published
        coming = {node for node in there if _age(cluster[NODES][node], now) < 2 * self.settings.within}
        needs = needs_of(
            cluster,
            replace(self.terms, now=now, read=cache(self.terms.read)),
            groups,
            after=self.settings.after,
            coming=coming,
        )
        self._rest_until = self.clock() + SHARE * (self.clock() - began)
        failed = [group for group in groups if self._is_useless(group, needs, live, cluster, now)]
        for name, group in self._groups.items():
            wanted = () if group in failed else needs.wanted.get(name, ())
            self._change(group, wanted, live)
        waits = needs.waits if len(groups) == len(self._groups) and not failed else {}
        self._tell_all(
            {group.name: needs.wanted.get(group.name, ()) for group in groups if group not in failed},
            waits,
            cluster,
        )
        if failed:
            return 0.0
        return PERIOD if needs.ripe_in is None else min(PERIOD, max(needs.ripe_in, 1.0))

    def _is_useless(
        self, group: NodeGroup, needs: Needs, live: Mapping[Ask, Stage], cluster: Tables, now: datetime
    ) -> bool:
        """Whether nodes came for a claim that still, or again, would want one."""
        wanted = [key for claims in needs.wanted.get(group.name, ()) for key in claims]
        standing = self._standings.of(group.name)
        if any(ask.group == group.name for ask in live):
            return False
        if now.timestamp() - standing.came > self.settings.cooldown:
            return False
        again = [key for key in wanted if objects.uid(cluster[RESOURCE_CLAIMS][key]) in standing.served]
        if not again:
            self._is_well(group.name)
            return False
        self.metrics.count(group.name, USELESS)
        self._fail(group.name, _USELESS.format(claim=again[0]), wanted, cluster, now)
        return True

    def _is_well(self, group: str) -> None:
        """It delivered, since it failed last."""
        standing = self._standings.of(group)
        if standing.failures and standing.served:
            self._standings.put(group, standing.is_well())

    def _change(self, group: NodeGroup, wanted: Sequence[tuple[str, ...]], live: dict[Ask, Stage]) -> None:
        own = [ask for ask in live if ask.group == group.name]
        came = {ask.uid for ask in own if live[ask] is Stage.CAME}
        changes = changes_of(group, wanted, own, came)
        for ask in changes.drop:
            if self.may_write():
                self._drop(ask)
                self.metrics.count(group.name, NOT_NEEDED)
                del live[ask]
        for ask, claims in changes.mark:
            if self.may_write():
                self._mark(ask, claims)
        for number, claims in changes.make:
            if self.may_write() and (made := self._make(group, number, claims)) is not None:
                self.metrics.count(group.name, MADE)
                live[made] = Stage.ASKED

    def _make(self, group: NodeGroup, number: int, claims: Sequence[str]) -> Ask | None:
        """None where it cannot be made now."""
        body = placeholder(group, number, claims, image=self.settings.image)
        try:
            made = self.client.create(PODS, body, namespace=NAMESPACE)
        except Conflict:
            return None  # it was made, and nobody heard of it: the next pass finds it
        except (Forbidden, Invalid, NotFound) as error:
            if self._refused.get(group.name) != error.message:
                log.error("placeholder_refused", group=group.name, error=str(error))
            self._refused[group.name] = error.message
            return None
        log.info("node_asked", group=group.name, placeholder=objects.name(made), claims=asked_for(claims))
        return ask_of(made)

    def _mark(self, ask: Ask, claims: Sequence[str]) -> None:
        body = {"metadata": {"uid": ask.uid, "annotations": {ASKED_FOR: asked_for(claims)}}}
        with suppress(NotFound, Conflict):
            self.client.patch(PODS, ask.name, body, namespace=NAMESPACE)

    def _drop(self, ask: Ask) -> None:
        with suppress(NotFound, Conflict):
            self.client.delete(PODS, ask.name, namespace=NAMESPACE, uid=ask.uid)
        log.info("node_not_asked", group=ask.group, placeholder=ask.name)

    def _tell_all(self, wanted: Wanted, waits: Mapping[str, str], cluster: Tables) -> None:
        for name, nodes in wanted.items():
            machine, keys = self._groups[name].machine, [key for claims in nodes for key in claims]
            for key, claim, pods in _with_pods(keys, cluster):
                said = claim_events.nodes_asked(claim, pods, number=len(nodes), group=name, machine=machine)
                self._tell(key, said)
        for key, claim, pods in _with_pods(waits, cluster):
            self._tell(key, claim_events.no_node_helps(claim, pods, why=waits[key]))
        self._told = {key: told for key, told in self._told.items() if key in cluster[RESOURCE_CLAIMS]}

    def _tell(self, key: str, event: ClaimEvent) -> None:
        """Once, until something else is to be said."""
        if self._told.get(key) != event.message:
            self._told[key] = event.message
            self.report(event)


def _waiting(cluster: Tables) -> bool:
    """Whether any claim of koordra's waits."""
    classes = cluster[DEVICE_CLASSES]
    return any(
        not claims_of.is_allocated(claim) and claims_of.owner(claim, classes) is Owner.KOORDRA
        for claim in cluster[RESOURCE_CLAIMS].values()
    )


def _age(obj: Object, now: datetime) -> float:
    return (now - created(obj)).total_seconds()


def _with_pods(keys: Iterable[str], cluster: Tables) -> Iterator[tuple[str, Object, list[Object]]]:
    """The claims that are there, with the pods that use them."""
    wanted = {key for key in keys if key in cluster[RESOURCE_CLAIMS]}
    users: dict[str, list[Object]] = {}
    for pod in cluster[PODS].values() if wanted else ():
        for key in wanted.intersection(claim_keys(pod)):
            users.setdefault(key, []).append(pod)
    for key in sorted(wanted):
        yield key, cluster[RESOURCE_CLAIMS][key], users.get(key, [])


def start_asking(
    client: KubeClient,
    settings: Settings,
    *,
    observe: Callable[[], Tables],
    writer: Writer,
    quotas: Quotas,
    report: EventSink,
    metrics: AutoscaleMetrics,
    changed: threading.Event,
    stop: threading.Event,
) -> None:
    """Until `stop`, in its own thread, where the operator has said something of it: with no group named what
    was asked for before goes. `changed` is set when what `observe` gives has changed."""
    if settings.autoscale is None:
        return
    groups, now = settings.autoscale.groups, partial(datetime.now, UTC)
    terms = Terms(
        now(),
        quotas=QuotasAsTheyAre(quotas),
        starves_after=settings.starves_after,
        levels=settings.levels,
        scoring=settings.scoring,
        read=writer.find,
    )
    asking = NodeAsking(
        client,
        settings.autoscale,
        observe=observe,
        terms=terms,
        clock=time.monotonic,
        now=now,
        may_write=writer.may_write,
        report=report,
        metrics=metrics,
    )

    def run() -> None:
        try:
            run_passes(asking.sync, name="autoscale", gather=GATHER, changed=changed, stop=stop)
        finally:
            metrics.hide([group.name for group in groups])

    spawn(run, name="autoscale", until=stop)
