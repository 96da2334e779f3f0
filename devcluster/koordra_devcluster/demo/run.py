"""One run of the demo: bring the cluster up, apply, wait until nothing more can happen.

    made-up machines on disk ─> control plane ─> what is installed ─> kubelets, koordra's processes
                             ─> manifests ─> settled?

What is installed and with which arguments processes run follows from what the manifests need (needs.py).

The run is settled when what is expected has happened, or when every node publishes its devices and
`plan()` goes on saying, for a few seconds, that what is left cannot be placed. All the while processes that
die are started again.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from koordra.api import kinds, objects
from koordra.api.objects import Object
from koordra.errors import ApiError, ClusterError, KoordraError
from koordra.kube.client import KubeClient
from koordra.kube.kubeconfig import new_client
from koordra.topology import presets
from koordra_devcluster.demo import manifests, outcome, report
from koordra_devcluster.demo.installation import (
    Installation,
    free_port,
    own_definitions,
    put,
    service_of_this_machine,
)
from koordra_devcluster.demo.needs import Needs
from koordra_devcluster.demo.plan import Plan
from koordra_devcluster.demo.processes import ProcessGroup
from koordra_devcluster.demo.programs import Layout, control_plane, installed, node_programs, write_prometheus

HOPELESS_AFTER = 3.0
"""Seconds that plan() has to go on saying no before the run stops waiting for a claim."""

POLL = 0.25


@dataclass(frozen=True, slots=True)
class Ending:
    """How the run ended: `missing` says, in sentences, what was expected and did not happen."""

    observation: report.Observation
    refused: Sequence[manifests.Refused]
    missing: Sequence[str]


class DemoStopped(KoordraError):
    """The person at the keyboard ended the run."""

    exit_code = 130


class Demo:
    """The cluster of one run. `machines`: one for each node; `say` prints progress; `stop` is set by
    Ctrl-C."""

    def __init__(
        self,
        layout: Layout,
        *,
        machines: Sequence[presets.Preset],
        needs: Needs,
        timeout: float,
        stop: threading.Event,
        say: Callable[[str], None],
    ) -> None:
        self.layout = layout
        self.machines = dict(zip(layout.nodes, machines, strict=True))
        self.processes = ProcessGroup(layout.logs, say=say)
        self.webhook_port = free_port()
        self._needs = needs
        self._timeout = timeout
        self._stop = stop
        self._say = say
        self._started = time.monotonic()
        self._port = free_port()
        self._said: set[str] = set()

    def up(self) -> KubeClient:
        """Write the machines and start every process; returns a client once all that is needed answers."""
        self.layout.logs.mkdir(parents=True, exist_ok=True)
        for name, machine in self.machines.items():
            presets.write_machine(machine, self.layout.node(name) / "machine", serial=name)
        for program in control_plane(self.layout, port=self._port, needs=self._needs):
            self.processes.start(program)
        client = self._wait_for_server()
        installation = None
        if self._needs.webhook:
            installation = Installation(client, self.webhook_port, more=self._needs.components)
            installation.apply()
        for obj in service_of_this_machine(self.webhook_port):
            put(client, obj)
        programs = node_programs(
            self.layout, self.machines, needs=self._needs, webhook_port=self.webhook_port
        )
        write_prometheus(self.layout, programs)
        for program in programs:
            self.processes.start(program)
        if installation is not None:
            self.say("koordra's webhook, classes and definitions are installed")
            self._wait_until(installation.webhook_answers, "koordra's webhook")
        elif refused := self.apply(
            client, [*own_definitions(), *manifests.device_classes(manifests.deploy_folder())]
        ):
            raise ClusterError(f"koordra's own classes were refused: {refused[0].message}")
        return client

    def apply(self, client: KubeClient, documents: Sequence[Object]) -> list[manifests.Refused]:
        """What is to be shown. The API server may be killed meanwhile."""
        return manifests.apply(client, documents, rest=self._patiently, installed=installed(self._needs))

    def show(self, client: KubeClient, plan: Plan) -> Ending:
        """Apply what is planned, in its order, and wait for what has to come of it.

        An example's outcome is that of all its nodes: one that is late would be left out of a choice."""
        if plan.example:
            self.wait_for(client, self._all_publish)
        first = plan.first
        refused = self.apply(client, first) if first else []
        if first:
            kept = [one for one in first if one.get("kind") == kinds.RESERVATIONS.kind]
            self.wait_for(
                client,
                lambda seen: (
                    bool(seen.claims or kept)
                    and all(map(report.is_allocated, seen.claims))
                    and all(_is_kept(client, one) for one in kept)
                ),
            )
        refused += self.apply(client, [one for one in plan.documents if one not in first])
        return self.wait(client, refused, wanted=plan.example.outcome if plan.example else None)

    def wait(
        self,
        client: KubeClient,
        refused: Sequence[manifests.Refused],
        *,
        wanted: outcome.Outcome | None = None,
    ) -> Ending:
        """Until everything expected has happened, or cannot happen, or the time is over.

        `wanted`: what has to come of it instead; then a no of plan() is not the end."""
        hopeless_since: float | None = None
        while True:
            observation = self._observe(client)
            self._tell_new(observation)
            if wanted is None:
                missing = report.outstanding(observation) or self._unmade(observation)
                complaints = [*report.broken_expectations(observation), *(one.message for one in refused)]
            else:
                complaints = [one.message for one in refused]
                missing = outcome.differences(wanted, self.document(observation, refused))
                if not missing and not self._all_publish(observation):
                    missing = ["not every node publishes its devices"]
            if not missing:
                return Ending(observation, refused, complaints)
            comes = wanted is not None or not self._all_publish(observation) or self._unmade(observation)
            if comes or not _hopeless(observation):
                hopeless_since = None
            elif hopeless_since is None:
                hopeless_since = time.monotonic()
            elif time.monotonic() - hopeless_since > HOPELESS_AFTER:
                return Ending(observation, refused, [*missing, *complaints])
            if self._elapsed() > self._timeout:
                return Ending(
                    observation, refused, [*missing, *complaints, f"{self._timeout:.0f} s are over"]
                )
            self.rest(POLL if hopeless_since is None else 1.0)

    def _unmade(self, observation: report.Observation) -> list[str]:
        """An operator's objects have come to nothing before there is a pod."""
        return ["no pod was made yet"] if self._needs.operators and not observation.pods else []

    def document(
        self, observation: report.Observation, refused: Sequence[manifests.Refused]
    ) -> dict[str, Any]:
        """The report of this moment."""
        return report.document(
            observation,
            refused,
            nodes={name: machine.name for name, machine in self.machines.items()},
            folders=[self.layout.node(name) for name in self.layout.nodes],
        )

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

    def _patiently(self) -> None:
        if self._elapsed() > self._timeout:
            raise ClusterError("the API server does not answer")
        self.rest(POLL)

    def _wait_until(self, look: Callable[[], bool], what: str) -> None:
        while True:
            with contextlib.suppress(ApiError):
                if look():
                    return
            if self._elapsed() > self._timeout:
                self.processes.say_last_words("controller")
                raise ClusterError(f"{what} did not come up; the controller's last words are above")
            self.rest(POLL)

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
        self.processes.say_last_words("control-plane")
        raise ClusterError("the API server did not come up; its last words are above")

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
        f"{'node' if entry['spec'].get('nodeName') else 'pool'} {entry['spec']['pool']['name']} publishes {len(entry['spec']['devices'])} devices"
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


def _is_kept(client: KubeClient, reservation: Object) -> bool:
    place = objects.namespace(reservation)
    found = client.get(kinds.RESERVATIONS, objects.name(reservation), namespace=place)
    conditions = objects.status_of(found).get("conditions") or ()
    return any(one.get("type") == "Ready" and one.get("status") == "True" for one in conditions)
