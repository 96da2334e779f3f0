"""`koordra controller` as a process: help, bad configuration, start and orderly end."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from pathlib import Path

import pytest

from koordra.api.kinds import LEASES
from koordra.api.objects import spec_of
from koordra.errors import NotFound
from koordra.kube.kubeconfig import new_client
from koordra_devcluster.control_plane import ControlPlane
from tests.cluster.installation import free_port
from tests.patience import PATIENCE

pytestmark = pytest.mark.long

COMMAND = [sys.executable, "-m", "koordra", "controller"]


def test_a_missing_kubeconfig_is_named(tmp_path: Path) -> None:
    missing = tmp_path / "nowhere"
    ended = subprocess.run(
        [*COMMAND, "--kubeconfig", str(missing)], capture_output=True, text=True, timeout=120, check=False
    )
    assert ended.returncode == 2
    assert str(missing) in ended.stderr
    assert "--kubeconfig" in ended.stderr
    assert "Traceback" not in ended.stderr


def test_it_takes_the_lease_and_releases_it_on_sigterm(tmp_path: Path) -> None:
    stop = threading.Event()
    plane = ControlPlane(tmp_path)
    plane.start(stop)
    client = new_client(str(plane.kubeconfig))

    def holder() -> str | None:
        try:
            lease = client.get(LEASES, "koordra-controller", namespace="koordra-system")
        except NotFound:
            return None
        return str(spec_of(lease).get("holderIdentity"))

    arguments = ["--kubeconfig", str(plane.kubeconfig), "--identity", "me", "--log-json"]
    running = subprocess.Popen([*COMMAND, *arguments], stderr=subprocess.PIPE, text=True)
    try:
        deadline = time.monotonic() + 120
        while holder() != "me":
            assert running.poll() is None
            assert time.monotonic() < deadline
            time.sleep(0.1)
        running.send_signal(signal.SIGTERM)
        _, said = running.communicate(timeout=PATIENCE)
    finally:
        running.kill()
        running.wait()
        stop.set()
    assert running.returncode == 0
    assert holder() == ""
    plane.close()
    assert '"event": "controller_stopped"' in said


@pytest.mark.parametrize("flag", ["--leader-elect=false", "--no-leader-elect"])
def test_one_replica_needs_no_lease_and_tells_metrics_and_readiness(tmp_path: Path, flag: str) -> None:
    stop = threading.Event()
    plane = ControlPlane(tmp_path)
    plane.start(stop)
    client = new_client(str(plane.kubeconfig))
    address = f"127.0.0.1:{free_port()}"
    arguments = ["--kubeconfig", str(plane.kubeconfig), flag, "--metrics-address", address]
    running = subprocess.Popen([*COMMAND, *arguments], stderr=subprocess.DEVNULL)

    def answers(path: str) -> tuple[int, str]:
        try:
            with urllib.request.urlopen(f"http://{address}{path}", timeout=PATIENCE) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            return error.code, ""
        except OSError:
            return 0, ""

    try:
        deadline = time.monotonic() + 120
        while answers("/readyz")[0] != 200:
            assert running.poll() is None
            assert time.monotonic() < deadline
            time.sleep(0.1)
        text = answers("/metrics")[1]
    finally:
        running.terminate()
        running.wait(PATIENCE)
        stop.set()
    assert "koordra_controller_leading 1.0" in text
    assert 'koordra_controller_conflicts_total{reason="ForeignWriter"} 0.0' in text
    with pytest.raises(NotFound):
        client.get(LEASES, "koordra-controller", namespace="koordra-system")
    plane.close()
