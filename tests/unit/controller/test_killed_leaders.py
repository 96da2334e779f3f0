"""Failover under load, with real processes: `koordra controller` is killed (SIGKILL) with 1,000 claims in flight, twice.

A control plane (API server, claim loops, scheduler), 125 nodes of eight GPUs, 1,000 pods with a claim of one GPU each: all
cards are needed. Two controllers run; the leader is killed in the middle of its writes, and again when the second one has
got on. A new process follows each that died. Meanwhile a watch of the claims sees every version of each:

    no card is ever in two claims at once, no claim moves under its pod, and in the end all are allocated and bound

`KOORDRA_CLAIMS=80` makes it small, for a look at the test itself.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import pytest

from koordra.api import names, objects
from koordra.api.kinds import DEVICE_CLASSES, LEASES, NODES, PODS, RESOURCE_CLAIMS, RESOURCE_SLICES
from koordra.api.objects import Object
from koordra.controller.run import LEASE_NAME
from koordra.errors import ApiError, NotFound
from koordra.kube import KubeClient
from koordra.watch import WatchCache
from tests.fakes.joint_cluster import claim, device_class, gpu_slice, node, pod
from tests.fakes.model_planner import results_of

CLAIMS = int(os.environ.get("KOORDRA_CLAIMS", "1000"))
CARDS = 8
PATIENCE = 600.0


class Held:
    """Who holds which card, kept by every version of every claim in the order in which the server tells it."""

    def __init__(self, client: KubeClient) -> None:
        self.cards: dict[str, tuple[str, str]] = {}
        self.wrong: list[str] = []
        self._holders: dict[tuple[str, str], str] = {}
        self._reserved: set[str] = set()
        self._cache = WatchCache(client, RESOURCE_CLAIMS, on_change=self._saw)

    def follow(self, stop: threading.Event) -> None:
        threading.Thread(target=self._cache.run, args=(stop,), daemon=True).start()
        assert self._cache.wait_synced(60)

    def reaches(self, number: float) -> bool:
        return len(self.cards) >= number

    def _saw(self, event: str, obj: Object, /) -> None:
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
    """Processes by their identity in the Lease."""

    def __init__(self, kubeconfig: Path, client: KubeClient, folder: Path) -> None:
        self.kubeconfig, self.client, self.folder = kubeconfig, client, folder
        self.running: dict[str, subprocess.Popen[bytes]] = {}
        self.started = 0

    def start(self) -> None:
        self.started += 1
        name = f"controller-{self.started}"
        command = [sys.executable, "-m", "koordra", "controller", "--kubeconfig", str(self.kubeconfig)]
        with (self.folder / f"{name}.log").open("wb") as log:
            self.running[name] = subprocess.Popen([*command, "--identity", name], stderr=log, stdout=log)

    def leader(self) -> str:
        try:
            lease = self.client.get(LEASES, LEASE_NAME, namespace="koordra-system")
        except NotFound:
            return ""
        return str(objects.spec_of(lease).get("holderIdentity") or "")

    def kill_leader(self) -> str:
        name = self.leader()
        found = self.running.pop(name)
        found.send_signal(signal.SIGKILL)
        assert found.wait(30) == -signal.SIGKILL
        return name

    def end(self) -> None:
        for found in self.running.values():
            found.kill()
            found.wait()


def eventually(condition: Callable[[], object], what: str) -> None:
    deadline = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < deadline, f"did not happen in time: {what}"
        time.sleep(0.05)


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
        client = KubeClient(str(path))
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


@pytest.fixture
def controllers(kubeconfig: Path, tmp_path: Path) -> Iterator[Controllers]:
    found = Controllers(kubeconfig, KubeClient(str(kubeconfig)), tmp_path)
    yield found
    found.end()


@pytest.mark.slow
def test_a_thousand_claims_outlive_killed_controllers(kubeconfig: Path, controllers: Controllers) -> None:
    client, stop = KubeClient(str(kubeconfig)), threading.Event()
    held = Held(KubeClient(str(kubeconfig)))
    held.follow(stop)
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda number: _ask(client, number), range(CLAIMS)))
    controllers.start()
    eventually(controllers.leader, "a leader")
    controllers.start()
    dead = []
    for share in (0.2, 0.6):
        eventually(partial(held.reaches, CLAIMS * share), f"{share:.0%} of the claims")
        dead.append(controllers.kill_leader())
        at = len(held.cards)
        assert at < CLAIMS, "nothing is in flight any more"
        print(f"{dead[-1]} was killed with {at} of {CLAIMS} claims allocated")
        controllers.start()
    eventually(lambda: len(held.cards) == CLAIMS, "all allocated")
    eventually(lambda: all(map(_node_of, client.list(PODS)[0])), "all bound")
    stop.set()
    assert not held.wrong
    assert len(dead) == len({*dead, controllers.leader()}) - 1
    claims = {objects.name(entry): results_of(entry)[0] for entry in client.list(RESOURCE_CLAIMS)[0]}
    assert len({(one["pool"], one["device"]) for one in claims.values()}) == CLAIMS
    for entry in client.list(PODS)[0]:
        assert _node_of(entry) == claims[objects.name(entry)]["pool"]


def _ask(client: KubeClient, number: int) -> None:
    name = f"c{number:04d}"
    client.create(RESOURCE_CLAIMS, claim(name))
    client.create(PODS, pod(name, [name], gates=[names.JOINT_GATE] if number % 2 else []))


def _node_of(entry: Object) -> str:
    return str(objects.spec_of(entry).get("nodeName") or "")
