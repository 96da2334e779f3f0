"""The kubelet plugin of one node, wired together.

Start, in this order: the machine watcher, whose first reading is the inventory; DeviceState.repair; the DRA
socket; the registration socket, upon which the kubelet calls; the loops. A thread that ends by itself ends
the process, which the kubelet restarts: better than a plugin that seems alive and does nothing.

Stop, in reverse, so that no stopped part is called: the registration, the DRA server, which finishes the
calls in progress, the cards, publishing. Slices and prepared claims stay, and containers run on.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Final

from koordra.api import kinds
from koordra.api.objects import Object
from koordra.errors import KoordraError
from koordra.kube.client import KubeClient
from koordra.kube.watch import WatchCache, negotiate
from koordra.kubelet_plugin.claims.claim_record import ClaimRecord, gpu_claims
from koordra.kubelet_plugin.discovery.machine_root import MachineRoot
from koordra.kubelet_plugin.discovery.watcher import MachineWatcher
from koordra.kubelet_plugin.dra import dra_service
from koordra.kubelet_plugin.dra.node_readings import NodeReadings, inventory_source
from koordra.kubelet_plugin.dra.plugin_metrics import PluginMetrics
from koordra.kubelet_plugin.dra.plugin_servers import GRACE, PluginServers
from koordra.kubelet_plugin.dra.restoring import keep_restoring
from koordra.kubelet_plugin.isolation.card_watch import CardWatch, node_backends
from koordra.kubelet_plugin.isolation.limiter.node_limiter import NodeLimiter
from koordra.kubelet_plugin.isolation.mig.backend import MigIsolation
from koordra.kubelet_plugin.isolation.mig.switching import ModeSwitcher
from koordra.kubelet_plugin.isolation.packages import backends
from koordra.kubelet_plugin.network.consumers import ClaimSource
from koordra.kubelet_plugin.network.interface_addresses import addresses_in_use
from koordra.kubelet_plugin.network.netlink_links import NetlinkLinks
from koordra.kubelet_plugin.network.network_decision import NetworkPolicy
from koordra.kubelet_plugin.network.node_parts import NetworkPools, NodeParts, PartsInUse
from koordra.kubelet_plugin.network.pod_network import PodNetworks
from koordra.kubelet_plugin.node_check.readings.host_files import HostFiles
from koordra.kubelet_plugin.node_check.readings.live_node import this_node
from koordra.kubelet_plugin.nvidia_driver.homes import HomeSource
from koordra.kubelet_plugin.nvidia_driver.nvml_session import NvmlLibrary
from koordra.kubelet_plugin.nvidia_driver.release import DriverRelease, ReleaseReport
from koordra.kubelet_plugin.prepare.claim_audit import KUBELET_CLAIMS, ClaimAudit
from koordra.kubelet_plugin.prepare.device_guard import DeviceGuardFile
from koordra.kubelet_plugin.prepare.device_state import DeviceState
from koordra.kubelet_plugin.prepare.driver_of_claims import DriverOfClaims
from koordra.kubelet_plugin.prepare.imex_loop import ImexLoop, why_not_offered
from koordra.kubelet_plugin.prepare.imex_membership import IMEX_WAITS, NO_IMEX, ImexMembership
from koordra.kubelet_plugin.prepare.lost_devices import absent_devices, made_on_demand
from koordra.kubelet_plugin.publish.allocation_mode import AllocationModeChange
from koordra.kubelet_plugin.publish.hand_over import HandOver
from koordra.kubelet_plugin.publish.node_slices import NodeChanges, node_slices
from koordra.kubelet_plugin.publish.peers_on_node import peers_on_node
from koordra.kubelet_plugin.publish.publisher import Publisher
from koordra.kubelet_plugin.settings import Settings
from koordra.kubelet_plugin.status.claim_status import ClaimStatusWriter
from koordra.kubelet_plugin.status.node_labels import NodeLabels
from koordra.kubelet_plugin.status.overuse_report import OveruseReporter, wanted_evictions
from koordra.logs import get_logger
from koordra.metrics import Metrics
from koordra.node_state.disk import Disk
from koordra.node_state.imex import ImexFolder
from koordra.process.lifecycle import spawn
from koordra.process.wakeable import Wakeable
from koordra.topology.machine import Machine

log = get_logger(__name__)
VERSIONS_WITHIN: Final = 3.0
"""Seconds for which the start waits for the served versions of resource.k8s.io; Unprepare needs none."""


class Driver:
    """One instance of the plugin. `watcher` makes the watcher of the machine below a root."""

    def __init__(
        self,
        settings: Settings,
        client: KubeClient,
        *,
        disk: Disk | None = None,
        watcher: Callable[[Path, HomeSource, NvmlLibrary], MachineWatcher] | None = None,
        metrics: Metrics | None = None,
    ) -> None:
        self._settings, self._client = settings, client
        disk, paths, homes = disk or Disk(), settings.paths, settings.homes
        self._nvml = NvmlLibrary(homes.nvml)
        made = watcher or partial(MachineWatcher.of, state=paths.state, disk=disk)
        self._watcher = partial(made, paths.root, homes, self._nvml)

        def records() -> Sequence[ClaimRecord]:
            return self._state.records()

        def addresses() -> frozenset[str]:
            return addresses_in_use(records())

        def machine() -> Machine:
            return self._inventory.current().machine

        parts = NodeParts(client, node=settings.node, namespace=settings.namespace, in_use=addresses)
        pools = NetworkPools(settings.network_pools, parts.of, of_host=NetlinkLinks().addresses)
        claims = ClaimSource(client, reads_networks=settings.pod_network, pools=pools)
        metrics = metrics or Metrics()
        self._metrics = PluginMetrics(metrics)
        self._guarded = DeviceGuardFile(paths.guarded, node=settings.node, disk=disk)
        self._networks = PodNetworks(paths.state, disk=disk, sys=paths.root / "sys")
        self._limiter = limiter = NodeLimiter(
            settings,
            client,
            machine=machine,
            nvml=self._nvml,
            networks=self._networks,
            metrics=metrics,
            changed=self._on_limits_change,
            records=records,
            noted=lambda: self._state.noted(),  # noqa: PLW0108  made below
            disk=disk,
        )
        self._mig = MigIsolation(
            self._nvml,
            machine=machine,
            root=lambda: MachineRoot(paths.root, homes.dev_folders(homes.now())),
            guard=self._guarded.add,
            offered=settings.offering.mig_on_demand,
        )
        known = backends(limiter.backend, *node_backends(settings), self._mig)
        self._inventory = inventory_source(settings, known)
        folder = ImexFolder(paths.state)
        imex = ImexMembership(
            client, node=settings.node, namespace=settings.namespace, folder=folder, disk=disk
        )
        self._state = DeviceState(
            node=settings.node,
            paths=paths,
            claims=claims,
            inventory=self._inventory.current,
            backends=known,
            disk=disk,
            consumers=claims.consumers,
            networks=self._networks if settings.pod_network else None,
            policy=NetworkPolicy(
                managed=settings.pod_network, refuses=settings.roce_without_network == "refuse"
            ),
            hook_program=settings.hook_program.path,
            imex=imex if settings.offering.imex else NO_IMEX,
            waits=IMEX_WAITS if settings.offering.imex else (),
            enlarged=limiter.enlarged,
        )
        calls = dra_service.Calls(self._state, self._metrics, self._on_call)
        cards = CardWatch(self._state.look_at_cards, self._on_limits_change)
        self._servers = PluginServers(settings, calls, self._metrics)
        self.answers, self.profiles = self._servers.answers, limiter.profiles.text
        self._publisher = Publisher(
            client,
            node=settings.node,
            build=self._slices,
            written=self._metrics.slice_writes.inc,
            in_order=self._metrics.slices_in_order.set_to_current_time,
            mode_change=AllocationModeChange(paths.state, disk=disk),
        )
        self._audit = ClaimAudit(
            self._state,
            claims,
            kubelet_claims=settings.kubelet_root / KUBELET_CLAIMS,
            on_change=self._on_held_change,
        )
        self._follower = DriverOfClaims(self._state, self._inventory.current)
        self._status = ClaimStatusWriter(
            client,
            records=self._state.remembered,
            attached=self._networks.ready,
            inventory=self._inventory.current,
            limited=limiter.comparison.verdict,
            resized=limiter.resizer.state,
            looks=lambda: cards.looks,
        )
        self._release = DriverRelease(
            paths.state,
            paths.root,
            nvml=self._nvml,
            claims=lambda: gpu_claims(records()),
            changed=self._on_release,
            disk=disk,
        )
        self._inventory.withhold(self._release.report.withheld)
        self._hand_over = HandOver(
            paths.state,
            claims=self._state.records,
            look=lambda kind, node: peers_on_node(
                settings.kubelet_root, kind, host=homes.host.here, node=node, answers=this_node().answers
            ),
            guard=self._guarded,
            leave=self._inventory.leave,
            changed=self._on_hand_over,
            disk=disk,
        )
        self._modes = ModeSwitcher.of(
            settings, self._nvml, self._inventory, claims=records, changed=self._on_held_change, disk=disk
        )
        self._labels = NodeLabels(client, node=settings.node, machine=machine)
        self._overuse = OveruseReporter(
            client,
            records=self._state.records,
            overused=lambda: limiter.comparison.overused,
            evictions=wanted_evictions(client, settings),
        )
        imex_loop = ImexLoop(
            self._state,
            imex,
            why_not=lambda: why_not_offered(HostFiles(homes.host.here), folder, homes.now().driver),
            offer=self._on_imex,
        )
        self._loops: dict[str, Wakeable] = {
            "publish": self._publisher,
            "audit-claims": self._audit,
            "write-claim-status": self._status,
            **limiter.loops,
            "watch-cards": cards,
            "report-overuse": self._overuse,
            "follow-driver": self._follower,
            "release-driver": self._release,
            "hand-over": self._hand_over,
            **({"switch-mig-modes": self._modes} if settings.offering.mig_on_demand else {}),
            **({"keep-node-parts": PartsInUse(pools, addresses)} if settings.pod_network else {}),
            **({"write-node-labels": self._labels} if settings.legacy_node_labels else {}),
            **({"keep-imex-domain": imex_loop} if settings.offering.imex else {}),
        }
        self._readings = NodeReadings(
            settings,
            guarded=self._guarded,
            inventory=self._inventory,
            records=self._state.records,
            metrics=self._metrics,
            feed=self._servers.feed,
            wakes=(self._publisher, self._labels, self._status, self._follower),
        )

    def run(self, stop: threading.Event) -> None:
        """Serve until `stop`. Raises NodeError for an unusable socket or state directory."""
        watcher = self._watcher()
        watch = partial(watcher.run, stop, self._readings.take)
        threads = [spawn(watch, name="watch-machine", until=stop)]
        asking = spawn(lambda: self._ask(stop), name="ask-versions")
        try:
            if self._readings.wait_for_first(stop):
                with self._servers.owned(stop) as alone:
                    if alone:
                        asking.join(timeout=VERSIONS_WITHIN)
                        self._serve(stop, threads)
        finally:
            stop.set()
            self._nvml.let_go(within=0.0)
            for part in self._loops.values():
                part.wake()
            for thread in (*threads, asking):
                thread.join(timeout=GRACE)
        log.info("plugin_stopped", node=self._settings.node)

    def _ask(self, stop: threading.Event) -> None:
        negotiate(self._client, stop)
        with suppress(KoordraError):  # else the watch shows it
            node = self._client.get(kinds.NODES, self._settings.node)
            self._hand_over.see_node(node)
            self._inventory.see_node(node)

    def _serve(self, stop: threading.Event, threads: list[threading.Thread]) -> None:
        """Serve until `stop`. Adds to `threads` those that end when woken; a watch ends with its stream."""
        self._state.repair()
        self._hand_over.start()
        with self._servers.serving(before_stop=lambda: self._nvml.let_go(within=0.0)) as socket:
            threads += [
                spawn(partial(part.run, stop), name=name, until=stop) for name, part in self._loops.items()
            ]
            self._publisher.follow(stop)
            node, changes = f"metadata.name={self._settings.node}", NodeChanges(self._on_node_change)
            WatchCache(self._client, kinds.NODES, field_selector=node, on_change=changes).start(stop)
            self._limiter.follow(stop)
            log.info("plugin_ready", node=self._settings.node, socket=socket)
            keep_restoring(
                stop,
                servers=self._servers,
                guarded=self._guarded,
                state=self._state,
                checked=self._when_checked,
            )
        self._state.suspend_cards()

    def _when_checked(self) -> None:
        if self._settings.pod_network:
            self._status.wake()  # the hook may have attached or detached a network

    def _on_call(self, call: str, done: bool) -> None:
        if done:
            self._status.wake()
            self._limiter.resizer.wake()
            self._count_claims()
        if not done or (call == "unprepare" and self._audit.held):
            # A refusal may mean that a device is held, an Unprepare that it no longer is.
            self._audit.wake()

    def _on_imex(self, why_not: str) -> None:
        if self._inventory.offer_imex(why_not):
            log.info("imex_channels", offered=not why_not, why=why_not)
            self._publisher.wake()

    def _on_limits_change(self) -> None:
        self._status.wake()
        self._overuse.wake()

    def _on_held_change(self) -> None:
        self._count_claims()
        self._publisher.wake()

    def _count_claims(self) -> None:
        self._metrics.observe_claims(self._state.records, held=len(self._audit.held))

    def _on_node_change(self, node: Object) -> None:
        self._release.see_node(node)
        self._hand_over.see_node(node)
        self._inventory.see_node(node)
        self._publisher.see_node(node)
        self._labels.wake()

    def _on_hand_over(self) -> None:
        self._metrics.observe_hand_over(self._hand_over.standings)
        self._publisher.wake()

    def _on_release(self, report: ReleaseReport) -> None:
        self._inventory.withhold(report.withheld)
        self._publisher.wake()

    def _slices(self, node: Object, generation: int) -> Sequence[Object]:
        self._modes.see_node(node)
        return node_slices(
            node,
            generation=generation,
            node_name=self._settings.node,
            mode=self._settings.mode,
            inventory=self._inventory.current(),
            held=self._audit.held,
            release=self._release.report.taint,
            standings=self._hand_over.standings,
            absent=absent_devices(self._state.remembered, self._inventory.current(), stuck=self._mig.stuck()),
            own=made_on_demand(self._state.remembered),
        )
