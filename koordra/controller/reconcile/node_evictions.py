"""Evicts the pods that nodes ask to go (koordra/evictions.py): those that use more of a card than their
share, or that can open what is not theirs.

A node is believed only about itself. Of what it asks the controller serves

    pods that are on that node, by the uid that the node names
    for a share of a card: pods that use a claim with devices of that node

through the eviction API, so budgets hold; who may not go now is asked again, PAUSE seconds later, for as long
as the node wants it. Within WITHIN seconds no more than OF_NODE pods of a node are evicted: the cause of so
many is the node or the driver, and would hit their successors too. No more than IN_ALL in the cluster: there
it is a defect, of koordra's perhaps. The rest follows then. These counts begin anew with a new leader.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import KW_ONLY, dataclass, field
from functools import partial
from typing import Final

from koordra.api import names, objects
from koordra.api.kinds import PODS, RESOURCE_CLAIMS, Kind
from koordra.api.objects import Object
from koordra.api.resource_class import CONFIG_MAPS
from koordra.controller import claims as claims_of
from koordra.controller.allocation.writes import WriteOutcome, Writer
from koordra.controller.cache.pod_index import is_living
from koordra.controller.reconcile.reconcile_loop import run_passes
from koordra.controller.reporting import claim_events
from koordra.controller.reporting.claim_events import EventSink
from koordra.errors import ApiUnreachable, NotFound
from koordra.evictions import OF_HOOK, OF_PLUGIN, EvictionRequest, decode
from koordra.inert import inert
from koordra.logs import get_logger
from koordra.placement.request.claim_groups import claim_keys
from koordra.process.lifecycle import spawn

log = get_logger(__name__)

PERIOD: Final = 5.0
"""Seconds between two looks at what nodes ask."""
SELDOM: Final = 30.0
"""The same where no component is installed by which they could."""
PAUSE: Final = 30.0
WITHIN: Final = 600.0
OF_NODE: Final = 5
IN_ALL: Final = 50
TRIES: Final = 20
"""Evictions asked for in one look."""

Find = Callable[[Kind, str], Object | None]
_Wanted = tuple[str, str, EvictionRequest]
"""ConfigMap, node, request."""


@dataclass
class NodeEvictions:
    """`find` looks up by kind and key what is watched; `namespace` is koordra's own. `sync` is called by one
    thread."""

    writer: Writer
    _: KW_ONLY
    namespace: str
    find: Find
    clock: Callable[[], float]
    report: EventSink
    _tried: dict[str, float] = field(default_factory=dict)
    _told: dict[tuple[str, str], str] = field(default_factory=dict)
    """By node and uid, or node and ConfigMap, what was said last of a request that is not served."""
    _evicted: list[tuple[float, str]] = field(default_factory=list)

    def start(self, stop: threading.Event) -> threading.Thread:
        changed, name = threading.Event(), "node-evictions"
        run = partial(run_passes, self.sync, name=name, gather=0.0, changed=changed, stop=stop)
        return spawn(run, name=name, until=stop)

    def sync(self) -> float:
        """Serve what is asked for now; the seconds until the next look. Raises ApiError."""
        entries = list(self._entries())
        wanted = [one for name, data in entries for one in self._requests(name, data)]
        uids = {request.uid for _, _, request in wanted}
        keys = {(node, request.uid) for _, node, request in wanted}
        keys |= {(node, name) for name, data in entries for node in data}
        self._tried = {uid: at for uid, at in self._tried.items() if uid in uids}
        self._told = {key: text for key, text in self._told.items() if key in keys}
        now = self.clock()
        self._evicted = [one for one in self._evicted if one[0] > now - WITHIN]
        due = [one for one in wanted if self._tried.get(one[2].uid, now - PAUSE) <= now - PAUSE]
        left = TRIES
        for name, node, request in sorted(due, key=lambda one: self._tried.get(one[2].uid, 0.0)):
            pod = self._pod(name, node, request)
            if pod is not None and left and self._is_within_bounds(node, request):
                left -= 1
                self._tried[request.uid] = now
                self._evict(pod, node, request)
        return PERIOD if entries else SELDOM

    def _entries(self) -> Iterator[tuple[str, dict[str, str]]]:
        for name in (OF_PLUGIN, OF_HOOK):
            try:
                found = self.writer.api.get(CONFIG_MAPS, name, namespace=self.namespace)
            except NotFound:
                continue
            yield name, found.get("data") or {}

    def _requests(self, name: str, data: dict[str, str]) -> Iterator[_Wanted]:
        for node, entry in sorted(data.items()):
            try:
                yield from ((name, node, request) for request in decode(entry))
            except ValueError as error:
                self._tell((node, name), "eviction_request_unreadable", node=node, why=str(error))

    def _pod(self, name: str, node: str, request: EvictionRequest) -> Object | None:
        """The pod, if it is that node's to say that it should go."""
        pod = self.find(PODS, request.pod)
        if pod is None or objects.uid(pod) != request.uid or not is_living(pod) or objects.is_deleting(pod):
            return None
        there = str(objects.spec_of(pod).get("nodeName") or "")
        why = "" if there == node else f"it is on {f'node {there}' if there else 'no node'}"
        if not why and name == OF_PLUGIN and not self._has_devices_of(node, pod):
            why = "no claim of its has devices of that node"
        if not why:
            return pod
        self._tell((node, request.uid), "eviction_refused", node=node, pod=inert(request.pod), why=why)
        return None

    def _has_devices_of(self, node: str, pod: Object) -> bool:
        claims = (self.find(RESOURCE_CLAIMS, key) for key in claim_keys(pod))
        return any(
            (result.get("driver"), result.get("pool")) == (names.DRIVER, node)
            for claim in claims
            if claim is not None
            for result in claims_of.results(claim)
        )

    def _is_within_bounds(self, node: str, request: EvictionRequest) -> bool:
        of_node = Counter(node for _, node in self._evicted)[node]
        why = ""
        if of_node >= OF_NODE:
            why = f"{of_node} pods of the node were evicted in {WITHIN:.0f} s"
        elif len(self._evicted) >= IN_ALL:
            why = f"{len(self._evicted)} pods of the cluster were evicted in {WITHIN:.0f} s for their nodes"
        if why:
            self._tell((node, request.uid), "pod_not_evicted", node=node, pod=inert(request.pod), why=why)
        return not why

    def _evict(self, pod: Object, node: str, request: EvictionRequest) -> None:
        written = self.writer.evict(pod)
        if written.ok:
            self._evicted.append((self.clock(), node))
            log.warning("pod_evicted", pod=objects.key(pod), node=node, reason=inert(request.reason))
            self.report(claim_events.evicted_for_node(pod, why=request.reason))
        elif written.outcome is WriteOutcome.REFUSED:
            key, why = (node, request.uid), written.message
            if self._tell(key, "pod_not_evicted", node=node, pod=objects.key(pod), why=why):
                self.report(claim_events.node_eviction_waits(pod, why=f"{request.reason}: {why}"))
        elif written.outcome is not WriteOutcome.GONE:
            raise ApiUnreachable(written.message)

    def _tell(self, key: tuple[str, str], event: str, *, why: str, **what: str) -> bool:
        """Once, until something else is to be said of it."""
        if self._told.get(key) == why:
            return False
        self._told[key] = why
        log.warning(event, why=why, **what)
        return True
