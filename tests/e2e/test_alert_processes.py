"""Alerts about koordra's own processes and what the API server has to say: their causes are made to happen to
controller, kubelet plugin and hook as they run, against a devcluster, and what their endpoints say then is
what the shipped rules are asked of in promtool. Of minutes that an alert waits only scrapes are made.
(Slow: a cluster and three processes; every alert is shown by its part alone in test_monitoring.py.)"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import pytest

from koordra.api import kinds, names, objects
from koordra.api.objects import Object
from koordra.topology import presets
from koordra_devcluster.apiserver.resources import CLUSTER_ROLES
from koordra_devcluster.kubelet.drivers import V1, connect
from tests.cluster.installation import account_kubeconfig, free_port
from tests.cluster.nodes import add_node
from tests.cluster.test_peers import stand_in_on
from tests.cluster.waiting import eventually
from tests.e2e.prometheus import HEALTHY, UP, alert_case, ask
from tests.fakes.nri_runtime import FakeRuntime
from tests.patience import PATIENCE
from tests.unit.deploy.test_rbac import Cluster, a_claim, a_pod

pytestmark = [pytest.mark.e2e, pytest.mark.slow]

NODE = "hgx"
TEAM = "default"


@dataclass
class Target:
    """A process with its endpoint."""

    job: str
    command: list[str]
    log: Path
    port: int = field(default_factory=free_port)

    def __post_init__(self) -> None:
        command = [sys.executable, "-m", "koordra", *self.command]
        command += ["--metrics-address", f"127.0.0.1:{self.port}"]
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(command, stdout=log, stderr=log)

    def text(self) -> str:
        """As Prometheus has it of a scrape, one that fails included."""
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/metrics", timeout=PATIENCE) as answer:
                said: str = answer.read().decode()
                return said + UP.format(1)
        except OSError:
            return UP.format(0)

    def scraped(self) -> dict[str, str]:
        return {self.job: self.text()}

    def until(self, wanted: Callable[[str], bool], what: str) -> dict[str, str]:
        """The first scrape that has it."""

        def look() -> str | None:
            text = self.text()
            return text if wanted(text) else None

        return {self.job: eventually(look, f"{what}; see {self.log}")}

    def end(self) -> None:
        self.process.kill()
        self.process.wait(PATIENCE)


def value(text: str, start: str) -> float:
    """The sum of the series whose line begins so."""
    return sum(float(line.split()[-1]) for line in text.splitlines() if line.startswith(start))


@dataclass
class Scene:
    """A cluster with a node whose plugin and hook run."""

    folder: Path
    cluster: Cluster
    cases: list[object] = field(default_factory=list)

    def __post_init__(self) -> None:
        client, folder = self.cluster.client, self.folder
        add_node(client, NODE)
        presets.write_machine(presets.load("hgx-h100"), folder / "root", serial=NODE)
        admin, state = str(self.cluster.kubeconfig), folder / "kubelet" / "plugins" / names.DRIVER
        bound = client.create(kinds.PODS, stand_in_on(NODE), namespace="koordra-system")
        own = {
            account: account_kubeconfig(client, admin, folder / account, account=account, bound_to=to)
            for account, to in (
                ("koordra-controller", None),
                ("koordra-kubelet-plugin", bound),
                ("koordra-nri", None),
            )
        }
        self.cdi = folder / "cdi"
        node = ["--node-name", NODE, "--root", str(folder / "root")]
        self.plugin = Target(
            "kubelet-plugin",
            [
                *("kubelet-plugin", *node, "--kubeconfig", str(own["koordra-kubelet-plugin"])),
                *("--kubelet-root", str(folder / "kubelet"), "--cdi-dir", str(self.cdi)),
                *("--allowed-isolation", "none"),
            ],
            folder / "plugin.log",
        )
        webhook = f"127.0.0.1:{self.cluster.installation.webhook_port}"
        self.controller = Target(
            "controller",
            [
                *("controller", "--kubeconfig", str(own["koordra-controller"])),
                *("--webhook-address", webhook, "--webhook-host", "127.0.0.1"),
            ],
            folder / "controller.log",
        )
        self.socket = state / "dra.sock"
        self.runtime = FakeRuntime(folder / "nri.sock")
        self.hook = Target(
            "nri",
            [*("nri", *node, "--state-dir", str(state), "--socket", str(self.runtime.path))],
            folder / "hook.log",
        )
        self.runtime.accept().handshake()

    def fires(self, name: str, before: Mapping[str, str], *stands: Mapping[str, str], **more: object) -> None:
        self.cases.append(alert_case(name, before, stands, number=len(self.cases), **more))  # type: ignore[arg-type]

    def end(self) -> None:
        for target in (self.hook, self.plugin, self.controller):
            target.end()
        self.runtime.stop()


@pytest.fixture
def scene(tmp_path: Path) -> Iterator[Scene]:
    cluster = Cluster(tmp_path)
    with tempfile.TemporaryDirectory(prefix="k-") as folder:  # short: sockets are made below it
        made = Scene(Path(folder), cluster)
        yield made
        made.end()
    cluster.server.kill()
    cluster.server.wait(PATIENCE)


def test_alerts_fire_for_what_happens_to_processes(scene: Scene, tmp_path: Path, binaries: Path) -> None:
    client, controller, plugin, hook = scene.cluster.client, scene.controller, scene.plugin, scene.hook
    leads = controller.until(lambda text: "koordra_controller_leading 1.0" in text, "a leader")
    eventually(scene.cluster.installation.webhook_answers, "the webhook")
    well = {
        **plugin.until(
            lambda text: value(text, "koordra_plugin_slices_in_order_timestamp") > 0, "the node's slices"
        ),
        **hook.until(lambda text: "koordra_nri_registered 1.0" in text, "the hook at the runtime"),
    }

    # A claim that no node can serve waits.
    client.create(kinds.RESOURCE_CLAIMS, a_claim("big", count=9), namespace=TEAM)
    client.create(kinds.PODS, a_pod("big", resourceClaimName="big"), namespace=TEAM)
    waits = controller.until(
        lambda text: value(text, "koordra_controller_waiting_oldest") > 0, "a waiting pod"
    )
    aged = {"controller": _older(waits["controller"], 1800)}
    scene.fires("ClaimsWaitLong", leads, aged)

    # A quota that is used up.
    hard = {"hard": {"requests.koordra.io/gpu": "2"}}
    client.create(kinds.NAMESPACES, {"metadata": {"name": "team"}})
    client.create(kinds.RESOURCE_QUOTAS, {"metadata": {"name": "gpus"}, "spec": hard}, namespace="team")
    for name in ("one", "two"):
        client.create(kinds.RESOURCE_CLAIMS, a_claim(name), namespace="team")
    full = controller.until(
        lambda text: value(text, "koordra_controller_quota_used_ratio") >= 0.9, "the quota's use"
    )
    scene.fires("QuotaNearEnd", leads, full)

    # A class of somebody else's lets kube-scheduler give out what koordra gives out.
    client.create(kinds.RESOURCE_CLAIMS, a_claim("mine"), namespace=TEAM)
    client.create(kinds.PODS, a_pod("mine", resourceClaimName="mine"), namespace=TEAM)

    def allocation() -> Object | None:
        claim = client.get(kinds.RESOURCE_CLAIMS, "mine", namespace=TEAM)
        return objects.status_of(claim).get("allocation")

    eventually(allocation, "an allocation")
    anything = {"selectors": [{"cel": {"expression": "true"}}]}
    client.create(kinds.DEVICE_CLASSES, {"metadata": {"name": "anything"}, "spec": anything})
    both = controller.until(
        lambda text: value(text, "koordra_controller_conflicts_total") > 0, "the conflict"
    )
    scene.fires("Conflicts", leads, both)

    # The node's disk lets no CDI file be written.
    scene.cdi.write_text("")
    kubelet = connect(names.DRIVER, str(scene.socket), [V1])
    uid = objects.uid(client.get(kinds.RESOURCE_CLAIMS, "mine", namespace=TEAM))
    for _ in range(5):
        (answer,) = kubelet.prepare([(TEAM, "mine", uid)]).values()
        assert answer.error
    scene.cdi.unlink()
    scene.fires("PrepareFails", well, plugin.scraped())

    # RBAC of another version: the controller may not write claims; each that comes is refused, once.
    role = client.get(CLUSTER_ROLES, "koordra-controller")
    for rule in role["rules"]:
        if set(rule["resources"]) & {"resourceclaims", "resourceclaims/status"}:
            rule["verbs"] = [verb for verb in rule["verbs"] if verb not in ("patch", "update")]
    client.update(CLUSTER_ROLES, role)
    refused = 'koordra_controller_write_errors_total{code="403"'
    stands, seen = [], value(controller.text(), refused)
    for number in range(16):
        client.create(kinds.RESOURCE_CLAIMS, a_claim(f"w{number}", count=1), namespace=TEAM)
        client.create(kinds.PODS, a_pod(f"w{number}", resourceClaimName=f"w{number}"), namespace=TEAM)
        stands.append(controller.until(partial(_beyond, refused, seen), "a refused write"))
        seen = value(stands[-1]["controller"], refused)
    scene.fires("WritesFail", leads, *stands)

    # Processes end; the runtime goes away.
    scene.runtime.stop()
    lost = hook.until(lambda text: "koordra_nri_registered 0.0" in text, "the hook without a runtime")
    scene.fires("HookDown", well, lost)
    hook.end()
    scene.fires("HookDown", well, hook.scraped())

    # The API server is away: nobody knows whether slices are right.
    scene.cluster.server.kill()
    away_since = time.time()
    unsure = plugin.until(lambda text: value(text, "koordra_loop_failures_total") > 0, "a loop that fails")
    scene.fires("SlicesStale", {}, unsure, since=away_since - 60 * HEALTHY)
    controller.end()
    scene.fires("ControllerDown", leads, controller.scraped())
    plugin.end()
    scene.fires("PluginDown", well, plugin.scraped())

    ask(tmp_path, binaries, scene.cases)  # type: ignore[arg-type]


def _beyond(start: str, seen: float, text: str) -> bool:
    return value(text, start) > seen


def _older(text: str, seconds: float) -> str:
    """The same, so many seconds later: ages grow with the clock."""
    name = "koordra_controller_waiting_oldest_seconds{"
    return "".join(
        f"{line.rpartition(' ')[0]} {float(line.split()[-1]) + seconds}\n"
        if line.startswith(name) and float(line.split()[-1])
        else f"{line}\n"
        for line in text.splitlines()
    )
