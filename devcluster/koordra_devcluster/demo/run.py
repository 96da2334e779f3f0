"""One run of the demo: bring the cluster up, apply, wait until nothing more can happen.

    made-up machines on disk ─> control plane ─> kubelets, koordra's processes ─> DeviceClasses, manifests
                             ─> settled?

The run is settled when everything that is expected to run does, or when every node publishes its devices and
`plan()` goes on saying, for a few seconds, that what is left cannot be placed. All the while processes that
die are started again.
"""

from __future__ import annotations

import contextlib
import os
import socket
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from koordra.api import objects
from koordra.api.objects import Object
from koordra.api.opaque.parameters import NO_ISOLATION
from koordra.errors import ApiError, ClusterError, KoordraError
from koordra.kube.client import KubeClient
from koordra.kube.kubeconfig import new_client
from koordra.kubelet_plugin.isolation.limiter.backend import LimiterIsolation
from koordra.topology import presets
from koordra_devcluster.demo import manifests, report
from koordra_devcluster.demo.jobs import Story
from koordra_devcluster.demo.processes import ProcessGroup, Program

HOPELESS_AFTER = 3.0
"""Seconds that plan() has to go on saying no before the run stops waiting for a claim."""

POLL = 0.25


@dataclass(frozen=True, slots=True)
class Layout:
    """Where everything of one run lies."""

    folder: Path
    nodes: tuple[str, ...]
    labels: Mapping[str, tuple[str, ...]] = field(default_factory=dict, hash=False)

    @property
    def kubeconfig(self) -> Path:
        return self.folder / "kubeconfig"

    @property
    def logs(self) -> Path:
        return self.folder / "logs"

    def node(self, name: str) -> Path:
        return self.folder / "nodes" / name

    @property
    def longest_socket(self) -> int:
        """Bytes of the longest path of a unix socket below; the kernel takes 107."""
        registration = "kubelet/plugins_registry/koordra.io-reg.sock"
        return max(len(os.fsencode(self.node(name) / registration)) for name in self.nodes)


@dataclass(frozen=True, slots=True)
class Outcome:
    """How the run ended: `missing` says, in sentences, what was expected and did not happen."""

    observation: report.Observation
    refused: Sequence[manifests.Refused]
    missing: Sequence[str]


class DemoStopped(KoordraError):
    """The person at the keyboard ended the run."""

    exit_code = 130


class Demo:
    """The cluster of one run. `say` prints progress; `stop` is set by Ctrl-C."""

    def __init__(
        self,
        layout: Layout,
        *,
        preset: str,
        timeout: float,
        stop: threading.Event,
        say: Callable[[str], None],
    ) -> None:
        self.layout = layout
        self.processes = ProcessGroup(layout.logs, say=say)
        self._preset = preset
        self._timeout = timeout
        self._stop = stop
        self._say = say
        self._started = time.monotonic()
        self._port = _free_port()
        self._said: set[str] = set()

    def up(self) -> KubeClient:
        """Write the machines and start every process; returns a client once the API server answers."""
        self.layout.logs.mkdir(parents=True, exist_ok=True)
        for name in self.layout.nodes:
            presets.write_machine(presets.load(self._preset), self.layout.node(name) / "machine", serial=name)
        for program in control_plane(self.layout, port=self._port):
            self.processes.start(program)
        client = self._wait_for_server()
        for program in node_programs(self.layout):
            self.processes.start(program)
        return client

    def apply(
        self, client: KubeClient, documents: Sequence[Object], *, classes: bool = True
    ) -> list[manifests.Refused]:
        """koordra's DeviceClasses, then what is to be shown. The API server may be killed meanwhile."""

        def rest() -> None:
            if self._elapsed() > self._timeout:
                raise ClusterError("the API server does not answer")
            self.rest(POLL)

        if classes:
            own = manifests.device_classes(manifests.deploy_folder())
            if refused := manifests.apply(client, own, rest=rest):
                raise ClusterError(f"koordra's own classes were refused: {refused[0].message}")
        return manifests.apply(client, documents, rest=rest)

    def wait(
        self, client: KubeClient, refused: Sequence[manifests.Refused], *, story: Story | None = None
    ) -> Outcome:
        """Until everything expected has happened, or cannot happen, or the time is over.

        `story`: what has to happen instead, one thing after the other; then a no of plan() is not the end."""
        hopeless_since: float | None = None
        while True:
            observation = self._observe(client)
            self._tell_new(observation)
            missing = report.outstanding(observation) if story is None else story.look(observation)
            complaints = [*report.broken_expectations(observation), *(entry.message for entry in refused)]
            if not missing:
                return Outcome(observation, refused, complaints)
            if story is not None or not self._all_publish(observation) or not _hopeless(observation):
                hopeless_since = None
            elif hopeless_since is None:
                hopeless_since = time.monotonic()
            elif time.monotonic() - hopeless_since > HOPELESS_AFTER:
                return Outcome(observation, refused, [*missing, *complaints])
            if self._elapsed() > self._timeout:
                return Outcome(
                    observation, refused, [*missing, *complaints, f"{self._timeout:.0f} s are over"]
                )
            self.rest(POLL if hopeless_since is None else 1.0)

    def wait_for(self, client: KubeClient, done: Callable[[report.Observation], bool]) -> None:
        """Until something is seen, or the time is over."""
        while self._elapsed() < self._timeout:
            observation = self._observe(client)
            self._tell_new(observation)
            if done(observation):
                return
            self.rest(POLL)

    def rest(self, seconds: float) -> None:
        """Pause, keeping the processes alive. Raises DemoStopped after Ctrl-C."""
        self.processes.supervise()
        if self._stop.wait(seconds):
            raise DemoStopped("stopped")

    def stay(self) -> None:
        """Keep everything running until Ctrl-C."""
        with contextlib.suppress(DemoStopped):
            while True:
                self.rest(0.5)

    def down(self) -> None:
        """End every process."""
        self.processes.stop()

    def say(self, text: str) -> None:
        """A line of progress with the seconds since the start."""
        self._say(f"{self._elapsed():5.1f} s  {text}")

    def _elapsed(self) -> float:
        return time.monotonic() - self._started

    def _wait_for_server(self) -> KubeClient:
        while self._elapsed() < self._timeout:
            if self.layout.kubeconfig.exists():
                with contextlib.suppress(ApiError):
                    client = new_client(str(self.layout.kubeconfig), user_agent="koordra-demo")
                    client.version()
                    return client
            self.rest(0.05)
        words = self.processes.last_words("control-plane")
        raise ClusterError(f"the API server did not come up; its last words:\n{words}")

    def _observe(self, client: KubeClient) -> report.Observation:
        """The cluster's objects; the API server may be on its way back after a restart."""
        while True:
            try:
                return report.observe(client)
            except ApiError as error:
                if self._elapsed() > self._timeout:
                    raise ClusterError(f"the API server does not answer: {error}") from error
                self.rest(POLL)

    def _all_publish(self, observation: report.Observation) -> bool:
        """A no counts only once every node has said what it has."""
        publishing = {entry["spec"].get("nodeName") for entry in observation.slices}
        return publishing.issuperset(self.layout.nodes)

    def _tell_new(self, observation: report.Observation) -> None:
        for line in _progress(observation):
            if line not in self._said:
                self._said.add(line)
                self.say(line)


def control_plane(layout: Layout, *, port: int) -> list[Program]:
    """The API server and its loops, on a port that stays the same when they are started again."""
    arguments = ("devcluster", "control-plane", "--dir", str(layout.folder), "--port", str(port))
    return [Program("control-plane", (*arguments, "--kubeconfig", str(layout.kubeconfig)))]


def node_programs(layout: Layout) -> list[Program]:
    """The controller, and for each node its kubelet, koordra's kubelet plugin and koordra's NRI hook."""
    access = ("--kubeconfig", str(layout.kubeconfig))
    programs = [Program("controller", ("controller", "--no-leader-elect", *access))]
    for name in layout.nodes:
        folder = layout.node(name)
        state = folder / "kubelet" / "plugins" / "koordra.io"
        # Without it, a container created before the hook has registered would be made without the hook.
        required = ("--required-nri-plugin", "koordra")
        labels = tuple(part for label in layout.labels.get(name, ()) for part in ("--label", label))
        kubelet = (
            "devcluster",
            "kubelet",
            "--node-name",
            name,
            "--dir",
            str(folder),
            *access,
            *required,
            *labels,
        )
        # Without the limiter's libraries (make native) the demo's operator allows shares that nothing limits.
        isolation = () if LimiterIsolation(state).installed else ("--allowed-isolation", NO_ISOLATION)
        plugin = (
            "kubelet-plugin",
            "--node-name",
            name,
            "--root",
            str(folder / "machine"),
            *isolation,
            *access,
        )
        places = ("--kubelet-root", str(folder / "kubelet"), "--cdi-dir", str(folder / "cdi"))
        hook = ("nri", "--node-name", name, "--state-dir", str(state), "--socket", str(folder / "nri.sock"))
        programs += [
            Program(f"kubelet-{name}", kubelet),
            Program(f"kubelet-plugin-{name}", (*plugin, *places)),
            Program(f"nri-{name}", hook),
        ]
    return programs


def _hopeless(observation: report.Observation) -> bool:
    """True when plan() says no to every claim that is not allocated, and nothing else is under way."""
    if any(
        report.is_allocated(claim)
        and any(
            pod.get("status", {}).get("phase") == "Pending" for pod in report.consumers(observation, claim)
        )
        for claim in observation.claims
        if not report.may_wait(observation, claim)
    ):
        return False
    return all(entry["reasons"] for entry in report.waiting(observation, ()))


def _progress(observation: report.Observation) -> list[str]:
    slices = [
        f"node {entry['spec']['pool']['name']} publishes {len(entry['spec']['devices'])} devices"
        for entry in observation.slices
        if entry["spec"].get("devices")
    ]
    claims = [
        f"claim {claim['namespace']}/{claim['name']} allocated on {claim['node']}"
        for claim in report.placed(observation)
    ]
    pods = [
        f"pod {objects.key(pod)} runs"
        for pod in observation.pods
        if objects.status_of(pod).get("phase") == "Running"
    ]
    return slices + claims + pods


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
