"""The limiter of one node: the backend, what compares it with the node's sampler, and what changes limits
while programs run."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path

from koordra.api.objects import Object
from koordra.kubelet_plugin.claims.claim_record import ClaimRecord
from koordra.kubelet_plugin.isolation.limiter.backend import LimiterIsolation
from koordra.kubelet_plugin.isolation.limiter.device_time import TimeLender
from koordra.kubelet_plugin.isolation.limiter.reconcile import Reconciler
from koordra.kubelet_plugin.isolation.limiter.resize import ShareResizer, with_limits
from koordra.kubelet_plugin.isolation.limiter.seen_time import SeenTimes
from koordra.kubelet_plugin.isolation.limiter.unaccounted_memory import Contexts
from koordra.kubelet_plugin.sampling.host_processes import HostProcesses
from koordra.kubelet_plugin.sampling.sampler import NodeSampler
from koordra.metrics import Metrics
from koordra.node_state.disk import Disk
from koordra.node_state.granted_claims import GrantedContainers
from koordra.node_state.prepared_claim import ref_of
from koordra.topology.machine import Machine


class NodeLimiter:
    """`declared`: bytes of a context as the operator says, None: as measured; `sampler` makes the node's
    sampler of its processes; `changed` is called when a verdict is another."""

    def __init__(
        self,
        state: Path,
        *,
        machine: Callable[[], Machine],
        declared: int | None,
        strict: bool,
        cores: bool,
        granted: GrantedContainers,
        sampler: Callable[[HostProcesses], NodeSampler],
        metrics: Metrics,
        changed: Callable[[], None],
        records: Callable[[], Iterable[ClaimRecord]],
        holds: Callable[[], Iterable[Object] | None],
        disk: Disk,
    ) -> None:
        contexts = Contexts(
            state / "limiter" / "contexts.json", machine=machine, declared=declared, disk=disk
        )
        self.backend = LimiterIsolation(state, context_bytes=contexts.bytes_for, strict=strict, cores=cores)
        self.lender = TimeLender(self.backend.claims)
        processes = HostProcesses(
            self.backend.claims,
            claim_of=self.backend.broker.caller,
            last_caller=self.backend.broker.last_caller,
            held_by=granted.claims_of,
        )
        self.sampler = sampler(processes)
        times = SeenTimes(self.backend.claims)
        if cores:
            self.sampler.timed, self.sampler.on_time = times.cards, times.tell
        self.resizer = ShareResizer(
            self.backend.claims,
            records=records,
            holds=holds,
            cores=cores,
            changed=changed,
            written=self.lender.wake,
        )
        self.enlarged = partial(with_limits, self.backend.claims)
        """A claim's record with what its limits allow it, beyond its allocation."""
        self.comparison = Reconciler(
            self.backend.claims,
            contexts=contexts,
            metrics=metrics,
            processes=processes,
            lists=self.sampler.processes,
            changed=changed,
            ref_of=partial(ref_of, state),
            containers=granted.of_claims,
            over_time=lambda: times.over,
        )
        self.backend.broker.on_call = self.comparison.wake
