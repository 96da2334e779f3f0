"""The limiter of one node: the backend, and the comparison of its ledgers with what NVML says."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

from koordra.kubelet_plugin.isolation.limiter.backend import LimiterIsolation
from koordra.kubelet_plugin.isolation.limiter.device_time import TimeLender
from koordra.kubelet_plugin.isolation.limiter.processes import HostProcesses, nvml_processes
from koordra.kubelet_plugin.isolation.limiter.reconcile import Reconciler
from koordra.kubelet_plugin.isolation.limiter.unaccounted_memory import Contexts
from koordra.kubelet_plugin.nvidia_driver.nvml_session import NvmlLibrary
from koordra.metrics import Metrics
from koordra.node_state.disk import Disk
from koordra.node_state.granted_claims import ContainersOfClaims, claims_of_container
from koordra.node_state.prepared_claim import ref_of
from koordra.topology.machine import Machine


class NodeLimiter:
    """`declared`: bytes of a context as the operator says, None: as measured; `changed` is called when a
    verdict is another."""

    def __init__(
        self,
        state: Path,
        *,
        machine: Callable[[], Machine],
        declared: int | None,
        strict: bool,
        cores: bool,
        library: NvmlLibrary,
        metrics: Metrics,
        changed: Callable[[], None],
        disk: Disk,
    ) -> None:
        contexts = Contexts(
            state / "limiter" / "contexts.json", machine=machine, declared=declared, disk=disk
        )
        self.backend = LimiterIsolation(state, context_bytes=contexts.bytes_for, strict=strict, cores=cores)
        self.lender = TimeLender(self.backend.claims)
        self.comparison = Reconciler(
            self.backend.claims,
            contexts=contexts,
            metrics=metrics,
            processes=HostProcesses(
                self.backend.claims,
                claim_of=self.backend.broker.caller,
                held_by=partial(claims_of_container, state),
            ),
            lists=partial(nvml_processes, library=library),
            changed=changed,
            ref_of=partial(ref_of, state),
            containers=ContainersOfClaims(state),
        )
        self.backend.broker.on_call = self.comparison.wake
