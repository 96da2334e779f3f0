"""The limiter of one node: the backend, the node's sampler, what compares the two, and what changes limits
while programs run."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from functools import partial

from koordra.api import kinds
from koordra.api.opaque.share_limits import RESIZED_ON, label_of
from koordra.kube.client import KubeClient
from koordra.kube.watch import WatchCache
from koordra.kubelet_plugin.claims.claim_record import ClaimRecord
from koordra.kubelet_plugin.isolation.limiter.backend import LimiterIsolation
from koordra.kubelet_plugin.isolation.limiter.device_time import TimeLender
from koordra.kubelet_plugin.isolation.limiter.reconcile import Reconciler
from koordra.kubelet_plugin.isolation.limiter.resize import ShareResizer, with_limits
from koordra.kubelet_plugin.isolation.limiter.seen_time import SeenTimes
from koordra.kubelet_plugin.isolation.limiter.unaccounted_memory import Contexts
from koordra.kubelet_plugin.network.pod_network import PodNetworks
from koordra.kubelet_plugin.nvidia_driver.homes import HostRoot
from koordra.kubelet_plugin.nvidia_driver.nvml_session import NvmlLibrary
from koordra.kubelet_plugin.sampling.cgroups import CgroupReader
from koordra.kubelet_plugin.sampling.host_processes import HostProcesses
from koordra.kubelet_plugin.sampling.nvml_cards import NvmlCards
from koordra.kubelet_plugin.sampling.port_reader import PortReader
from koordra.kubelet_plugin.sampling.profiles import ProfileRecorder
from koordra.kubelet_plugin.sampling.sampler import NodeSampler
from koordra.kubelet_plugin.settings import Settings
from koordra.metrics import Metrics
from koordra.node_state.disk import Disk
from koordra.node_state.granted_claims import GrantedContainers
from koordra.node_state.prepared_claim import ref_of
from koordra.process.wakeable import Wakeable
from koordra.topology.machine import Machine


class NodeLimiter:
    """`records` are the prepared claims, `noted` the same without waiting; `changed` is called when a verdict
    is another."""

    def __init__(
        self,
        settings: Settings,
        client: KubeClient,
        *,
        machine: Callable[[], Machine],
        nvml: NvmlLibrary,
        networks: PodNetworks,
        metrics: Metrics,
        changed: Callable[[], None],
        records: Callable[[], Iterable[ClaimRecord]],
        noted: Callable[[], Iterable[ClaimRecord]],
        disk: Disk,
    ) -> None:
        state, cores = settings.paths.state, settings.limiter_cores
        contexts = Contexts(
            state / "limiter" / "contexts.json",
            machine=machine,
            declared=settings.limiter_context,
            disk=disk,
        )
        self.backend = LimiterIsolation(
            state, context_bytes=contexts.bytes_for, strict=settings.limiter_strict, cores=cores
        )
        granted = GrantedContainers(state)
        processes = HostProcesses(
            self.backend.claims,
            claim_of=self.backend.broker.caller,
            last_caller=self.backend.broker.last_caller,
            held_by=granted.claims_of,
        )
        sampler = NodeSampler(
            NvmlCards(nvml),
            processes,
            machine=machine,
            granted=granted,
            metrics=metrics,
            ports=PortReader(settings.paths.root, attached=networks.attached),
            cgroups=CgroupReader((settings.host or HostRoot(settings.paths.root, settings.paths.root)).here),
            records=noted,
        )
        times = SeenTimes(self.backend.claims)
        if cores:
            sampler.timed, sampler.on_time = times.cards, times.tell
        self._resized = WatchCache(
            client,
            kinds.DEVICE_HOLDS,
            label_selector=f"{RESIZED_ON}={label_of(settings.node)}",
            on_change=lambda _event, _hold: self.resizer.wake(),
        )
        lender = TimeLender(self.backend.claims)
        self.resizer = ShareResizer(
            self.backend.claims,
            records=records,
            holds=lambda: self._resized.objects() if self._resized.wait_synced(0) else None,
            cores=cores,
            changed=changed,
            written=lender.wake,
        )
        self.enlarged = partial(with_limits, self.backend.claims)
        """A claim's record with what its limits allow it, beyond its allocation."""
        self.comparison = Reconciler(
            self.backend.claims,
            contexts=contexts,
            metrics=metrics,
            processes=processes,
            lists=sampler.processes,
            changed=changed,
            ref_of=partial(ref_of, state),
            containers=granted.of_claims,
            over_time=lambda: times.over,
        )
        self.backend.broker.on_call = self.comparison.wake
        self.profiles = ProfileRecorder(state, node=settings.node, samples=sampler.samples, disk=disk)
        self.loops: dict[str, Wakeable] = {
            "sample-node": sampler,
            "record-profiles": self.profiles,
            "compare-limiters": self.comparison,
            "resize-shares": self.resizer,
            **({"lend-device-time": lender} if cores else {}),
        }

    def follow(self, stop: threading.Event) -> None:
        """Watch for what is held for this node's shares, until `stop`."""
        self._resized.start_when_served(stop)
