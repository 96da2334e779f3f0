"""Two controllers, as real processes, and the worker of the leader stands still in a pass.

its health      503 once enough looks have seen no step; its stacks are in its log
its lease       is not renewed, so the other one takes it, and places what waits
its worker      comes back later, and its allocation is refused: no card is in two claims at any version
it itself       is well again, and leads when the other one ends
"""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from koordra.api import names, objects
from koordra.api.kinds import DEVICE_CLASSES, LEASES, NODES, PODS, RESOURCE_CLAIMS, RESOURCE_SLICES
from koordra.controller.run import LEASE_NAME
from koordra.errors import ApiError
from koordra.kube.client import KubeClient
from koordra.kube.kubeconfig import new_client
from koordra_devcluster.control_plane import ControlPlane
from koordra_devcluster.demo.installation import free_port
from tests.fakes.joint_cluster import claim, device_class, gpu_slice, node, pod
from tests.patience import PATIENCE
from tests.unit.controller.test_killed_leaders import Held

ROOT = Path(__file__).resolve().parents[3]


@dataclass
class Controller:
    """`stands`: while this file is there, its worker stands still."""

    name: str
    process: subprocess.Popen[bytes]
    port: int
    stands: Path
    log: Path

    @classmethod
    def start(cls, name: str, folder: Path, kubeconfig: Path) -> Controller:
        port, stands, log = free_port(), folder / f"{name}.stands", folder / f"{name}.log"
        command = [sys.executable, "-m", "tests.fakes.standing_controller", str(stands), "controller"]
        command += ["--kubeconfig", str(kubeconfig), "--identity", name]
        command += ["--metrics-address", f"127.0.0.1:{port}"]
        with log.open("wb") as out:
            process = subprocess.Popen(command, stdout=out, stderr=out, cwd=ROOT)
        return cls(name, process, port, stands, log)

    def health(self) -> int:
        assert self.process.poll() is None, self.log.read_text()[-4000:]
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/healthz", timeout=PATIENCE) as answer:
                return int(answer.status)
        except urllib.error.HTTPError as error:
            with error:
                return error.code
        except OSError:  # not yet
            return 0


def eventually(condition: Callable[[], object], what: str) -> None:
    deadline = time.monotonic() + 2 * PATIENCE
    while not condition():
        assert time.monotonic() < deadline, f"did not happen in time: {what}"
        time.sleep(0.1)


@pytest.fixture
def kubeconfig(tmp_path: Path) -> Iterator[Path]:
    """A control plane with two nodes of three cards."""
    stop, plane = threading.Event(), ControlPlane(tmp_path, first_backoff=0.1)
    plane.start(stop)
    client = new_client(str(plane.kubeconfig))
    client.create(DEVICE_CLASSES, device_class(names.CLASS_GPU, "gpu"))
    for name in ("n0", "n1"):
        made = client.create(NODES, node(name))
        client.update(NODES, {**made, "status": node(name)["status"]}, subresource="status")
        client.create(RESOURCE_SLICES, gpu_slice(name, 3))
    yield plane.kubeconfig
    stop.set()
    plane.close()


def allocated(by: Controller) -> list[str]:
    """The claims that it says it wrote the allocation of."""
    lines = by.log.read_text().splitlines()
    return [line.split("claim=default/")[1].split()[0] for line in lines if "claim_allocated" in line]


def leader(client: KubeClient) -> str:
    try:
        lease = client.get(LEASES, LEASE_NAME, namespace="koordra-system")
    except ApiError:
        return ""
    return str(objects.spec_of(lease).get("holderIdentity") or "")


@pytest.mark.long
def test_a_stuck_leader_is_followed_by_another_one_and_does_no_harm_when_it_comes_back(
    kubeconfig: Path, tmp_path: Path
) -> None:
    client, stop = new_client(str(kubeconfig)), threading.Event()
    held = Held(new_client(str(kubeconfig)))
    held.follow(stop)
    started: list[Controller] = []

    def start(name: str) -> Controller:
        started.append(Controller.start(name, tmp_path, kubeconfig))
        return started[-1]

    def ask(*wanted: str) -> None:
        for name in wanted:
            client.create(RESOURCE_CLAIMS, claim(name))
            client.create(PODS, pod(name, [name], gates=[names.JOINT_GATE]))

    try:
        one = start("one")
        eventually(lambda: leader(client) == "one", "one leads")
        two = start("two")
        ask("before")
        eventually(lambda: "before" in held.cards, "one allocates")
        eventually(lambda: two.health() == 200, "two answers")
        assert one.health() == 200

        one.stands.touch()
        ask("meanwhile-1", "meanwhile-2")
        eventually(lambda: one.health() == 503, "one is not well")
        told = one.log.read_text()
        for part in ("thread_stuck", "'worker'", "stands_still", "allocation_step.py"):
            assert part in told
        assert "meanwhile-1" not in held.cards
        eventually(lambda: leader(client) == "two", "two leads")
        eventually(lambda: {"meanwhile-1", "meanwhile-2"} <= held.cards.keys(), "two allocates")
        assert two.health() == 200

        one.stands.unlink()
        eventually(lambda: one.health() == 200, "one is well again")
        eventually(lambda: "reconcile_interrupted" in one.log.read_text(), "its write is refused")
        ask("after-1", "after-2")
        eventually(lambda: {"after-1", "after-2"} <= held.cards.keys(), "two goes on allocating")
        assert leader(client) == "two"

        two.process.send_signal(signal.SIGTERM)
        assert two.process.wait(PATIENCE) == 0
        started.remove(two)
        ask("last")
        eventually(lambda: "last" in held.cards, "one leads again")
        assert leader(client) == "one"
    finally:
        stop.set()
        for each in started:
            each.process.kill()
            each.process.wait()
    assert not held.wrong
    assert len(held.cards) == len(set(held.cards.values())) == 6
    by_one, by_two = allocated(one), allocated(two)
    assert sorted(by_one + by_two) == sorted(held.cards), "each of them once, by one of the two"
    assert by_one[0] == "before", by_one
    assert {"meanwhile-1", "meanwhile-2"} <= set(by_two), "not by the one that stood still over them"
