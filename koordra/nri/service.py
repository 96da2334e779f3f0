"""The hook's process, wired together.

    1. metrics and probes
    2. Koordinator mode: the cluster protects the annotation, or this process ends
       (koordinator.admission_policy)
    3. the node's lock: another hook of this node ends first                              (node_state.locks)
    4. verification in a thread of its own
       (verify.verification)
    5. registration with the runtime, repeated until `stop`                               (stub)

Ready means that a runtime has synchronized with this process, or that it stands by: another hook of this node
has the lock. In an update the newer one therefore is ready at once, the older one is ended, and the lock
changes hands.

A hook that hangs refuses: while it is registered, what it does not answer in time is answered with an error
in its place (transport.ttrpc_server). One that is ended leaves the node without a hook until its successor
has registered, and what is created meanwhile is isolated by nobody. Whoever can make a handler hang, or the
verification by what runs, must not be able to have that. So neither probe follows the watchdog: `/healthz`
would have the kubelet restart the container; `/readyz` would have an update delete the older pod before the
newer one stands by, as DaemonSets do with pods that are not ready. A thread that is stuck is told by
`koordra_stuck_threads`, by its stacks in the log, by the answer's text at `/healthz`, and by `late` among
`koordra_nri_requests_total`; a verification that is stuck by koordra_nri_last_verification_timestamp_seconds,
too. To restart it is for the operator, who drains the node first. A hook that has lost the runtime isolates
nothing any more: it dials again, and ends only if a thread that does that has died.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable, Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from koordra.api.opaque.isolation import IsolationPolicy
from koordra.evictions import EvictionRequests
from koordra.kube.client import KubeClient
from koordra.kube.stuck_event import StuckEvents
from koordra.logs import get_logger
from koordra.metrics import Metrics
from koordra.node_state.locks import HOOK_LOCK, node_lock
from koordra.node_state.reader import StateReader
from koordra.nri.hook import cgroups
from koordra.nri.hook.adjust import NodeShape
from koordra.nri.hook.cgroups import RdmaLimit, has_controller
from koordra.nri.hook.koordinator import admission_policy
from koordra.nri.hook.koordinator.annotation import PodClaims
from koordra.nri.hook.ledger import Ledger
from koordra.nri.hook.node_devices import NodeDevices
from koordra.nri.hook.plugin import PLUGIN_NAME, HookPlugin, SandboxNetworks, Settings
from koordra.nri.hook.privileged import PrivilegedPolicy
from koordra.nri.hook.system_pods import POD_RESOURCES, LabelledNamespaces, SystemPods
from koordra.nri.hook.ungranted_access import PRIVATE
from koordra.nri.stub import Stub
from koordra.nri.transport.instrumentation import MetricsObserver
from koordra.nri.verify.api_reporter import ApiReporter
from koordra.nri.verify.bundles import Bundles
from koordra.nri.verify.verification import Enforcing, Verification
from koordra.process.lifecycle import spawn
from koordra.process.metrics_server import serve
from koordra.process.watchdog import Watchdog

SWITCH_S: Final = 0.0005
"""Seconds after which the verification thread yields the interpreter to one that answers; Python's default of
5 ms is the whole latency target."""

log = get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Options:
    """The command line. `client` None: no access to the API; `quick_client`: what it answers a container is
    waiting for."""

    node_name: str
    state_dir: Path
    socket_path: Path
    plugin_index: str
    exempt: frozenset[str]
    root: Path = Path("/")
    bundles: Path | None = None
    proc: Path = Path("/proc")
    cgroups: Path = Path("/sys/fs/cgroup")
    validating: bool = False
    koordinator_scheduler: str | None = None
    koordinator_isolation: str = "hami-core"
    rdma_limit: RdmaLimit | None = None
    privileged: PrivilegedPolicy = PrivilegedPolicy.REPORT
    evictions: EvictionRequests | None = None
    verify_period: float = 60.0
    metrics_address: str = ""
    client: KubeClient | None = None
    quick_client: KubeClient | None = None
    networks: SandboxNetworks | None = None
    enforcing: Enforcing = lambda _uid: None

    @property
    def koordinator(self) -> IsolationPolicy | None:
        """What keeps parts of cards in Koordinator mode; None outside of it."""
        kept = IsolationPolicy((self.koordinator_isolation,))
        return None if self.koordinator_scheduler is None else kept


def run(options: Options, stop: threading.Event) -> None:
    """Run the node's hook until `stop`. Raises KoordraError if it cannot start."""
    sys.setswitchinterval(SWITCH_S)
    metrics = Metrics()
    watchdog = Watchdog(metrics, told=told_of_stuck(options))  # it tells, and ends nothing
    watchdog.start(stop)
    observer = MetricsObserver(metrics)
    standby = threading.Event()
    server = serve(
        metrics,
        options.metrics_address,
        ready=lambda: observer.ready or standby.is_set(),
        stuck=lambda: watchdog.stuck,
    )
    try:
        if options.koordinator_scheduler is not None and options.client is not None:
            admission_policy.require(options.client, scheduler=options.koordinator_scheduler)

        def waiting() -> None:
            log.info("nri_instance_lock_waiting")
            standby.set()

        with node_lock(options.state_dir, stop, waiting=waiting) as alone:
            standby.clear()
            if alone:
                _serve(options, stop, metrics=metrics, observer=observer)
    finally:
        if server is not None:
            server.close()


def told_of_stuck(options: Options) -> Callable[[Collection[str]], object]:
    if options.client is None:
        return lambda _stuck: None
    effect = (
        "Containers that koordra's NRI hook does not answer are refused, and what is created past it is not found "
        "meanwhile; its log has the stacks. To restart it, delete its pod"
    )
    return StuckEvents(options.client, node=options.node_name, program="nri", effect=effect)


def _serve(options: Options, stop: threading.Event, *, metrics: Metrics, observer: MetricsObserver) -> None:
    state = StateReader(options.state_dir, node_name=options.node_name)
    bundles = options.bundles
    ledger = Ledger(
        options.state_dir, runs=lambda name: bundles is not None and (bundles / name / "config.json").exists()
    )
    devices = NodeDevices(options.root)
    system = system_pods(options, stop)
    settings = Settings(
        system=system,
        validating=options.validating,
        devices=devices,
        koordinator=options.koordinator,
        pod_claims=PodClaims(options.client) if options.client is not None else None,
        shape=node_shape(options, rdma_devices=devices.rdma_devices()),
    )
    plugin = HookPlugin(state, settings=settings, ledger=ledger, metrics=metrics, networks=options.networks)
    plugin.changed = _verify(options, stop, plugin=plugin, metrics=metrics)
    Stub(
        plugin,
        name=PLUGIN_NAME,
        index=options.plugin_index,
        socket_path=options.socket_path,
        observer=observer,
    ).run(stop)


def system_pods(options: Options, stop: threading.Event) -> SystemPods:
    if options.client is None:
        return SystemPods(listed=options.exempt)
    labelled = LabelledNamespaces(options.client, options.state_dir)
    labelled.start(stop)
    # The state is below the kubelet's folder, wherever that is.
    own = str(options.state_dir.absolute().parent.parent / Path(POD_RESOURCES).name)
    trusted = options.privileged is PrivilegedPolicy.REPORT
    return SystemPods(
        listed=options.exempt,
        labelled=labelled,
        client=options.quick_client,
        pod_resources=frozenset({POD_RESOURCES, own}) if trusted else frozenset(),
    )


def _verify(
    options: Options, stop: threading.Event, *, plugin: HookPlugin, metrics: Metrics
) -> Callable[[], None]:
    if options.bundles is None:
        return lambda: None
    client = options.client
    verification = Verification(
        # A reader of its own: its cache is not thread-safe.
        StateReader(options.state_dir, node_name=options.node_name),
        ledger=plugin.ledger,
        bundles=Bundles(options.bundles, proc=options.proc, cgroups=options.cgroups),
        metrics=metrics,
        system=plugin.settings.system,
        private=private_paths(options),
        reporter=None
        if client is None
        else ApiReporter(client, node=options.node_name, evictions=options.evictions),
        enforcing=options.enforcing,
        since=first_start(options.state_dir),
        rules_apply=lambda: plugin.rules_apply,
    )
    spawn(lambda: verification.run(stop, period=options.verify_period), name="verification", until=stop)
    return verification.wake


def first_start(state_dir: Path, *, now: Callable[[], float] = time.time) -> float:
    """When a hook first held this node's lock (Unix time): the file stays, and nothing is ever written to it.

    A time in the future means that the clock was ahead then (a machine that booted without the time): it is
    set to now, or every container until then would count as older than the hook.
    """
    path = state_dir / HOOK_LOCK
    since, today = path.stat().st_mtime, now()
    if since <= today:
        return since
    log.warning("first_start_time_corrected", first_start=since, now=today)
    os.utime(path, (today, today))
    return today


def node_shape(options: Options, *, rdma_devices: tuple[str, ...]) -> NodeShape:
    limit = options.rdma_limit
    if limit is not None and not has_controller(options.cgroups):
        log.warning("rdma_limit_impossible", why="no cgroup hierarchy of version 2 with the rdma controller")
        limit = None
    return NodeShape(
        online=_cpuset(Path("/sys/devices/system/cpu/online")),
        memory_nodes=_cpuset(Path("/sys/devices/system/node/has_memory")),
        rdma_devices=rdma_devices,
        rdma_limit=limit,
        private=private_paths(options),
        privileged=options.privileged,
    )


def private_paths(options: Options) -> tuple[str, ...]:
    """The paths of this node that no container may mount."""
    return tuple(
        dict.fromkeys((*PRIVATE, str(options.state_dir.absolute()), str(options.socket_path.absolute())))
    )


def _cpuset(path: Path) -> frozenset[int]:
    try:
        return cgroups.numbers(path.read_text())
    except (OSError, ValueError):
        return frozenset()
