"""What each alert is for, made to happen to the parts of koordra that count it: their metrics before and
after. Clocks are the parts' own arguments; what a part reads off the machine's is moved to minute 0."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final, cast
from unittest.mock import Mock

from koordra.api.kinds import RESOURCE_CLAIMS
from koordra.controller.reconcile.leader_figures import LeaderFigures
from koordra.controller.reporting.claim_events import CONFLICTS, ClaimEvent
from koordra.controller.reporting.metrics import ControllerMetrics
from koordra.controller.webhook import keys
from koordra.controller.webhook.server import WebhookServer
from koordra.errors import ApiError, ApiUnreachable, CheckpointError
from koordra.kube.client import KubeClient
from koordra.kubelet_plugin.dra.plugin_metrics import PluginMetrics
from koordra.kubelet_plugin.isolation.limiter import region
from koordra.kubelet_plugin.isolation.limiter.overtime import OverTime
from koordra.kubelet_plugin.isolation.limiter.overuse import Overuse
from koordra.kubelet_plugin.isolation.limiter.report import LimiterMetrics, overused, read_all, verdicts
from koordra.kubelet_plugin.node_check.at_start import NodeCheckAtStart
from koordra.kubelet_plugin.publish.publisher import Publisher
from koordra.kubelet_plugin.sampling.nvml_cards import CardProcesses
from koordra.metrics import Metrics
from koordra.node_state.reader import StateReader
from koordra.nri.hook.ledger import Ledger
from koordra.nri.transport.instrumentation import MetricsObserver
from koordra.nri.verify.verification import Verification
from koordra.process import lifecycle, progress
from koordra.process.progress import watched
from koordra.process.watchdog import LOOKS, Watchdog
from tests.e2e.prometheus import HEALTHY, UP
from tests.fakes import node_files
from tests.fakes.node_claims import NODE
from tests.fakes.sampled_node import MINE, OTHERS, Cards, Node, Proc, uuid
from tests.fakes.slice_api import FakeSliceApi
from tests.machines import catalogue
from tests.unit.controller.test_leader_figures import Shown
from tests.unit.gangs.test_seats import Jobs, JointCluster, seats
from tests.unit.limiter.test_report import GIB, UUID, counted, refused
from tests.unit.nri.node_state import guarded_json, write
from tests.unit.nri.verify.test_verify import FakeNode, spec


@dataclass
class World:
    """One process of a node."""

    folder: Path
    metrics: Metrics = field(default_factory=Metrics)
    job: str = "kubelet-plugin"
    text: str = ""
    """In place of metrics."""
    since: float = field(default_factory=time.time)
    """Unix time of minute 0."""
    goes_on: bool = False
    """Whether what is done again and again, and dated, is done each minute while all is well."""

    def texts(self) -> dict[str, str]:
        return {self.job: self.text or self.metrics.text()}


Cause = Callable[[World], Iterator[None]]
"""At its first yield all is well; at each further one the cause stands, a minute later each."""


def _waits(world: World) -> Iterator[None]:
    shown = Shown(nodes=1)
    world.metrics = shown.metrics
    shown.settle()
    yield
    shown.cluster.claim("big", count=9)
    shown.cluster.pod("big", "big")
    shown.settle()
    shown.now += 3600
    yield


def _leader(world: World) -> Iterator[None]:
    world.job, figures = "controller", ControllerMetrics(world.metrics)
    figures.leading.set(1)
    yield
    figures.leading.set(0)
    yield


def _down(job: str) -> Cause:
    def cause(world: World) -> Iterator[None]:
        """As Prometheus writes it of a target."""
        world.job, world.text = job, UP.format(1)
        yield
        world.text = UP.format(0)
        yield

    return cause


def _unregistered(world: World) -> Iterator[None]:
    world.job, hook = "nri", MetricsObserver(world.metrics)
    hook.connected(True)
    yield
    hook.connected(False)
    yield


def _stuck(world: World) -> Iterator[None]:
    before, progress.threads = progress.threads, {}
    dog = Watchdog(world.metrics, write_stacks=lambda: None)
    yield
    with watched("worker"):
        for _ in range(LOOKS + 1):
            dog.look()
    yield
    progress.threads = before


def _loop(world: World) -> Iterator[None]:
    Watchdog(world.metrics)
    lifecycle.count_failure(OSError())
    yield
    for _ in range(6):
        lifecycle.count_failure(OSError())
    yield


def _writes(world: World) -> Iterator[None]:
    world.job, figures = "controller", ControllerMetrics(world.metrics)
    yield
    for error in range(200):
        with suppress(ApiError), figures.request("patch", RESOURCE_CLAIMS, "status"):
            raise ApiError("no", code=500)
        if error % 20 == 19:
            yield


def _prepare(world: World) -> Iterator[None]:
    figures = PluginMetrics(world.metrics)
    yield
    for _ in range(5):
        with suppress(CheckpointError), figures.observe_call("prepare"):
            raise CheckpointError("no space left on device")
    yield


def _unhealthy(world: World) -> Iterator[None]:
    machine = catalogue.machine("hgx-h100")
    machine = replace(machine, gpus=machine.gpus[:2])
    node = Node(world.folder, machine, Cards(), Proc(world.folder / "proc"))
    node.grant(MINE, machine.gpus[0].name)
    node.step()
    world.metrics, figures = node.metrics, PluginMetrics(node.metrics)
    figures.observe_devices([], machine)
    yield
    ill = replace(machine, gpus=(replace(machine.gpus[0], faults=("Xid79", "NeedsReboot")), machine.gpus[1]))
    figures.observe_devices([], ill)
    yield


@contextmanager
def _share(world: World) -> Iterator[Callable[..., None]]:
    claim, report = world.folder / "claims" / "a", LimiterMetrics(world.metrics)
    region.allow(claim, claim="a", uuid=UUID, limit=GIB)

    def look(over: Overuse | OverTime | None = None) -> None:
        read = read_all(claim.parent)
        found = verdicts(read)
        if over is not None:
            found = {
                name: overused(over, before=replace(each, enforced=True)) for name, each in found.items()
            }
        report.observe(read, found.values())

    look()
    yield look


def _denied(world: World) -> Iterator[None]:
    with _share(world) as look:
        yield
        region_of = world.folder / "claims" / "a"
        counted(region_of, region.DENIED, 7)
        look()
        yield


def _over(over: Overuse | OverTime) -> Cause:
    def cause(world: World) -> Iterator[None]:
        with _share(world) as look:
            yield
            look(over)
            yield

    return cause


def _unlimited(world: World) -> Iterator[None]:
    with _share(world) as look:
        yield
        refused(world.folder / "claims" / "a")
        look()
        yield


def _stranger(world: World) -> Iterator[None]:
    machine = catalogue.machine("hgx-h100")
    node = Node(world.folder, machine, Cards(), Proc(world.folder / "proc"))
    node.grant(MINE, machine.gpus[0].name)
    node.proc.add(41, MINE)
    node.proc.add(42, OTHERS)
    node.cards.lists = {uuid(node): CardProcesses({41: GIB})}
    node.step()
    world.metrics = node.metrics
    yield
    node.cards.lists = {uuid(node): CardProcesses({41: GIB, 42: GIB})}
    node.step()
    yield


def _blind(world: World) -> Iterator[None]:
    node = Node(world.folder, catalogue.machine("hgx-h100"), Cards(), Proc(world.folder / "proc"))
    node.step()
    world.metrics = node.metrics
    yield
    node.cards.error = "Driver/library version mismatch"
    node.step()
    yield


def _seat(world: World) -> Iterator[None]:
    cluster = JointCluster(nodes=2, gpus=2)
    jobs = Jobs(cluster)
    world.job, figures = "controller", ControllerMetrics(world.metrics)
    shown = LeaderFigures(world.metrics, node_metrics=False)
    pods = jobs.start("train", 4)
    cluster.reconciler.count(figures, shown, term=Mock(is_set=lambda: False))
    yield
    jobs.lose(pods[0])
    cluster.settle()
    (until,) = filter(None, seats(cluster).values())
    world.since = datetime.fromisoformat(until).timestamp() - 60 * (HEALTHY + 1)
    cluster.reconciler.count(figures, shown, term=Mock(is_set=lambda: False))
    yield


def _quota(world: World) -> Iterator[None]:
    cluster = JointCluster(nodes=1, gpus=2)
    world.job, figures = "controller", ControllerMetrics(world.metrics)
    shown = LeaderFigures(world.metrics, node_metrics=False)
    quotas = cluster.reconciler.allocation.queue.quotas
    for used in (0.5, 0.95):
        quotas.used = lambda used=used: {("team", "gpus", "requests.koordra.io/gpu"): used}  # type: ignore[method-assign,misc]
        cluster.reconciler.count(figures, shown, term=Mock(is_set=lambda: False))
        yield


def _certificate(world: World) -> Iterator[None]:
    world.job, server = "controller", WebhookServer(("127.0.0.1", 0), {}, metrics=world.metrics)
    try:
        for days in (365, 3):
            server.use(
                *keys.issue(None, ("a",), now=datetime.now(UTC), lifetime=timedelta(days=days)).to_pem()
            )
            yield
    finally:
        server.server_close()


def _slices(world: World) -> Iterator[None]:
    api, figures = FakeSliceApi(NODE), PluginMetrics(world.metrics)
    world.goes_on, publisher = (
        True,
        Publisher(
            cast(KubeClient, api),
            node=NODE,
            build=lambda _node, _generation: [],
            in_order=figures.slices_in_order.set_to_current_time,
        ),
    )
    publisher.step()
    yield
    api.away = True
    with suppress(ApiUnreachable):
        publisher.step()
    yield


def _verification(folder: Path, metrics: Metrics) -> tuple[FakeNode, Verification]:
    node = FakeNode(folder / "node")
    write(folder / "guarded.json", guarded_json())
    state = StateReader(folder, node_name=NODE)
    return node, Verification(state, ledger=Ledger(folder), bundles=node.bundles, metrics=metrics)


def _drift(world: World) -> Iterator[None]:
    world.job, (node, verification) = "nri", _verification(world.folder, world.metrics)
    node.run("good", spec(env=["NVIDIA_VISIBLE_DEVICES=void"]), pid=1)
    verification.sync()
    yield
    node.run("early", spec(), pid=3)
    verification.sync()
    yield


def _unverified(world: World) -> Iterator[None]:
    world.job, (_node, verification) = "nri", _verification(world.folder, world.metrics)
    verification.sync()
    world.goes_on = True
    yield
    yield


def _conflict(world: World) -> Iterator[None]:
    world.job, figures = "controller", ControllerMetrics(world.metrics)
    yield
    figures(ClaimEvent(CONFLICTS[0], "", ()))
    yield


def _node_check(world: World) -> Iterator[None]:
    node = node_files.healthy(world.folder)
    check = NodeCheckAtStart(world.metrics, world.folder, cdi_folder="/var/run/cdi")
    check.run(live=node.live())
    yield
    node.nvml({"migPending": True})
    node.write("proc/locks", "")
    check.run(live=node.live())
    yield


CAUSES: Final[dict[str, list[Cause]]] = {
    "ClaimsWaitLong": [_waits],
    "ControllerDown": [_leader],
    "PluginDown": [_down("kubelet-plugin")],
    "HookDown": [_down("nri"), _unregistered],
    "ThreadStuck": [_stuck],
    "LoopFails": [_loop],
    "WritesFail": [_writes],
    "PrepareFails": [_prepare],
    "DeviceUnhealthy": [_unhealthy],
    "DeviceUnhealthyInUse": [_unhealthy],
    "LimiterDenials": [_denied],
    "ShareOverItsMemory": [_over(Overuse("a", UUID, 2 * GIB, GIB, 0))],
    "ShareOverItsTime": [_over(OverTime("a", UUID, 40.0, 60.0, 25.0))],
    "IsolationLost": [_unlimited],
    "StrangerOnGPU": [_stranger],
    "HeldSeatsEnd": [_seat],
    "QuotaNearEnd": [_quota],
    "CertificateNearEnd": [_certificate],
    "Conflicts": [_conflict],
    "SamplerBlind": [_blind],
    "SlicesStale": [_slices],
    "ContainerDrift": [_drift],
    "VerificationStale": [_unverified],
    "NodeCheckProblem": [_node_check],
}
