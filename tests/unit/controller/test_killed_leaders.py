"""Failover under load, with real processes: controllers are killed (SIGKILL) with 1,000 claims in flight, at
any line.

A control plane (API server, claim loops, scheduler), 125 nodes of eight GPUs, 1,000 pods with a claim of one
GPU each: all cards are needed. Two controllers run, and a new process follows each that died. Leaders are
killed

    while they write         after a drawn number of claims, and a drawn part of a second
    while they begin         a drawn time after they took the Lease: they list, or plan for the first time

twice as `koordra controller` ships, which costs 20 seconds of waiting each time, and thirty times with a
shorter Lease (tests/fakes/short_lease_controller). Meanwhile a watch of the claims sees every version of
each:

    no card is ever in two claims at once, no claim moves under its pod, and in the end all are allocated and
    bound

`KOORDRA_CLAIMS=80` makes it small, for a look at the test itself; `KOORDRA_KILLS=200` kills more often, and
`KOORDRA_SEED` draws other moments.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import pytest

from koordra.api import names, objects
from koordra.api.kinds import DEVICE_CLASSES, LEASES, NODES, PODS, RESOURCE_CLAIMS, RESOURCE_SLICES
from koordra.api.objects import Object
from koordra.controller.run import LEASE_NAME
from koordra.errors import ApiError
from koordra.kube.client import KubeClient
from koordra.kube.kubeconfig import new_client
from koordra.kube.watch import WatchCache
from tests.fakes.joint_cluster import claim, device_class, gpu_slice, node, pod
from tests.fakes.model_planner import results_of

CLAIMS = int(os.environ.get("KOORDRA_CLAIMS", "1000"))
KILLS = int(os.environ.get("KOORDRA_KILLS", "30"))
SEED = int(os.environ.get("KOORDRA_SEED", "6"))
ROOT = Path(__file__).resolve().parents[3]
SHIPPED = ("koordra", "controller")
SHORT_LEASE = ("tests.fakes.short_lease_controller",)
CARDS = 8
PATIENCE = 600.0
"""Seconds without any progress, and for an answer of the API server."""


class Held:
    """Who holds which card, kept by every version of every claim in the order in which the server tells
    it."""

    def __init__(self, client: KubeClient) -> None:
        self.cards: dict[str, tuple[str, str]] = {}
        self.wrong: list[str] = []
        self._holders: dict[tuple[str, str], str] = {}
        self._reserved: set[str] = set()
        self.seen = 0
        self._cache = WatchCache(client, RESOURCE_CLAIMS, on_change=self._saw)

    def follow(self, stop: threading.Event) -> None:
        threading.Thread(target=self._cache.run, args=(stop,), daemon=True).start()
        assert self._cache.wait_synced(PATIENCE)

    def reaches(self, number: float) -> bool:
        return len(self.cards) >= number

    def versions(self) -> int:
        """How many of claims were seen."""
        return self.seen

    def _saw(self, event: str, obj: Object, /) -> None:
        self.seen += 1
        name, before = objects.name(obj), self.cards.pop(objects.name(obj), None)
        if before is not None and self._holders.get(before) == name:
            del self._holders[before]
        for result in results_of(obj) if event != "DELETED" else ():
            card = (result["pool"], result["device"])
            other = self._holders.setdefault(card, name)
            if other != name:
                self.wrong.append(f"{card} is given to {name} while {other} has it")
            self.cards[name] = card
        if name in self._reserved and self.cards.get(name) != before:
            self.wrong.append(f"{name} was moved under its pod")
        if objects.status_of(obj).get("reservedFor"):
            self._reserved.add(name)


class Controllers:
    """Processes by their identity in the Lease; `program` is what Python runs."""

    def __init__(self, kubeconfig: Path, folder: Path, program: tuple[str, ...]) -> None:
        self.kubeconfig, self.folder, self.program = kubeconfig, folder, program
        self.client = new_client(str(kubeconfig))
        self.running: dict[str, subprocess.Popen[bytes]] = {}
        self.started = 0

    def start(self) -> None:
        self.started += 1
        name = f"controller-{self.started}"
        command = [sys.executable, "-m", *self.program, "--kubeconfig", str(self.kubeconfig)]
        with (self.folder / f"{name}.log").open("wb") as log:
            self.running[name] = subprocess.Popen(
                [*command, "--identity", name], stderr=log, stdout=log, cwd=ROOT
            )

    def leader(self) -> str:
        """Who holds the Lease and lives; empty while nobody does."""
        for name, process in self.running.items():
            assert process.poll() is None, f"{name} ended by itself, see {self.folder}"
        holder = str(objects.spec_of(self.lease()).get("holderIdentity") or "")
        return holder if holder in self.running else ""

    def lease(self) -> Object:
        """As it is written now; empty where the server does not say."""
        try:
            return self.client.get(LEASES, LEASE_NAME, namespace="koordra-system")
        except ApiError:
            return {}

    def kill(self, name: str) -> None:
        found = self.running.pop(name)
        found.send_signal(signal.SIGKILL)
        assert found.wait(PATIENCE) == -signal.SIGKILL

    def end(self) -> None:
        for found in self.running.values():
            found.kill()
            found.wait()


@dataclass(frozen=True)
class Killed:
    """Who was killed, how many claims had their devices then, and what it was doing."""

    name: str
    at: int
    how: str


class Killer:
    """Waits for a leader and for a moment that it draws, and kills it."""

    def __init__(self, controllers: Controllers, held: Held, *, kills: int) -> None:
        self.controllers, self.held, self.kills = controllers, held, kills
        self.random = random.Random(SEED)
        self.dead: list[Killed] = []

    def kill_one(self) -> None:
        eventually(self.controllers.leader, "a leader", moves=self.controllers.lease)
        name, before = self.controllers.leader(), len(self.held.cards)
        begins = self.random.random() < 0.3
        if begins:
            time.sleep(self.random.uniform(0, 2.0))
        else:
            until = before + self.random.randrange(1, max(2, CLAIMS // self.kills))
            reached = partial(self.held.reaches, min(until, CLAIMS))
            eventually(reached, f"{until} claims", moves=self.held.versions, pause=0.002)
            time.sleep(self.random.uniform(0, 0.05))
        at = len(self.held.cards)
        if at < CLAIMS:
            self.controllers.kill(name)
            self.dead.append(Killed(name, at, "begins" if begins else "writes"))
            self.controllers.start()

    def kill_all(self) -> None:
        while len(self.dead) < self.kills and not self.held.reaches(CLAIMS):
            self.kill_one()


def eventually(
    condition: Callable[[], object],
    what: str,
    *,
    moves: Callable[[], object] = lambda: None,
    pause: float = 0.05,
) -> None:
    """Until the condition holds. A machine that is busy takes long, so that the time alone says nothing: it
    fails when for PATIENCE seconds nothing `moves`."""
    last, deadline = None, time.monotonic() + PATIENCE
    while not condition():
        if (now := moves()) != last:
            last, deadline = now, time.monotonic() + PATIENCE
        assert time.monotonic() < deadline, f"did not happen, and nothing moves any more: {what}"
        time.sleep(pause)


@pytest.fixture
def kubeconfig(tmp_path: Path) -> Iterator[Path]:
    """A control plane in a process of its own, with nodes and cards."""
    path = tmp_path / "kubeconfig"
    command = [
        sys.executable,
        "-m",
        "koordra",
        "devcluster",
        "control-plane",
        "--dir",
        str(tmp_path / "state"),
    ]
    with (tmp_path / "control-plane.log").open("wb") as log:
        plane = subprocess.Popen([*command, "--kubeconfig", str(path)], stderr=log, stdout=log)
    try:
        eventually(path.exists, "the kubeconfig")
        client = new_client(str(path), timeout=PATIENCE)
        eventually(lambda: _answers(client), "the API server")
        client.create(DEVICE_CLASSES, device_class(names.CLASS_GPU, "gpu"))
        for number in range(CLAIMS // CARDS):
            body = node(f"node-{number:03d}")
            made = client.create(NODES, body)
            client.update(NODES, {**made, "status": body["status"]}, subresource="status")
            client.create(RESOURCE_SLICES, gpu_slice(f"node-{number:03d}", CARDS))
        yield path
    finally:
        plane.kill()
        plane.wait()


def _answers(client: KubeClient) -> bool:
    try:
        return bool(client.version())
    except ApiError:
        return False


@pytest.mark.slow
@pytest.mark.parametrize(("program", "kills"), [(SHIPPED, 2), (SHORT_LEASE, KILLS)], ids=["shipped", "often"])
def test_a_thousand_claims_outlive_killed_controllers(
    kubeconfig: Path, tmp_path: Path, program: tuple[str, ...], kills: int
) -> None:
    client, stop = new_client(str(kubeconfig), timeout=PATIENCE), threading.Event()
    controllers, held = Controllers(kubeconfig, tmp_path, program), Held(new_client(str(kubeconfig)))
    held.follow(stop)
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda number: _ask(client, number), range(CLAIMS)))
    started = time.monotonic()
    killer = Killer(controllers, held, kills=kills)
    try:
        controllers.start()
        controllers.start()
        killer.kill_all()
        eventually(lambda: held.reaches(CLAIMS), "all allocated", moves=held.versions)
        eventually(lambda: not unbound(client), "all bound", moves=lambda: len(unbound(client)))
    finally:
        stop.set()
        controllers.end()
    told = ", ".join(f"{one.at} ({one.how})" for one in killer.dead)
    print(
        f"{len(killer.dead)} leaders killed in {time.monotonic() - started:.0f} s, claims allocated by then: {told}"
    )
    assert not held.wrong
    assert len(killer.dead) > kills // 2, "the claims were allocated before many had been killed"
    assert len({one.name for one in killer.dead}) == len(killer.dead)
    claims = {objects.name(entry): results_of(entry)[0] for entry in client.list(RESOURCE_CLAIMS)[0]}
    assert len({(one["pool"], one["device"]) for one in claims.values()}) == CLAIMS
    for entry in client.list(PODS)[0]:
        assert _node_of(entry) == claims[objects.name(entry)]["pool"]


def _ask(client: KubeClient, number: int) -> None:
    name = f"c{number:04d}"
    client.create(RESOURCE_CLAIMS, claim(name))
    client.create(PODS, pod(name, [name], gates=[names.JOINT_GATE] if number % 2 else []))


def unbound(client: KubeClient) -> list[Object]:
    return [entry for entry in client.list(PODS)[0] if not _node_of(entry)]


def _node_of(entry: Object) -> str:
    return str(objects.spec_of(entry).get("nodeName") or "")
