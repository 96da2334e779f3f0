"""Debian's mpirun and torchrun, started by TrainingJobs on the devcluster: Open MPI starts its ranks by the
hostfile that koordra writes; PyTorch's elastic agents meet at replica 0, lose one, and go on with who is left
and whoever comes, with no step left out."""

from __future__ import annotations

import itertools
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from koordra.api import objects
from koordra.api.kinds import PODS, TRAINING_JOBS
from koordra.errors import KoordraError
from koordra.kube.kubeconfig import new_client
from tests.e2e.conftest import CACHE
from tests.e2e.debian import Unavailable, unpacked
from tests.patience import PATIENCE

pytestmark = pytest.mark.slow

PYTHON = "/usr/bin/python3.11"
"""For which Debian's suite has PyTorch."""

SSHD = """
import socketserver, subprocess, sys, socket

class Told(socketserver.StreamRequestHandler):
    def handle(self):
        words = self.rfile.readline().decode()
        done = subprocess.run(["sh", "-c", words], env={**__import__("os").environ, "AT": socket.gethostname()})
        self.wfile.write(b"%d\\n" % done.returncode)

socketserver.ThreadingTCPServer.allow_reuse_address = True
with socketserver.ThreadingTCPServer((socket.gethostname(), 2222), Told) as server:
    server.serve_forever()
"""
AGENT = """#!{python}
import socket, sys, time
for _ in range(600):
    try:
        line = socket.create_connection((sys.argv[1], 2222))
        break
    except OSError:
        time.sleep(0.2)
else:
    sys.exit(f"{{sys.argv[1]}} does not answer")
line.sendall((" ".join(sys.argv[2:]) + chr(10)).encode())
sys.exit(int(line.makefile().readline()))
"""
TRAIN = """
import os, pathlib, signal, time
import torch, torch.distributed as dist

STEPS, FALLS = 60, 20
here = pathlib.Path("/training")
dist.init_process_group("gloo")
rank, size = dist.get_rank(), dist.get_world_size()
done = here / "done"
step = torch.tensor([int(done.read_text()) if done.exists() else 0])
dist.broadcast(step, 0)
at = int(step)
while at < STEPS or (size < 3 and not (here / "again").exists()):
    together = torch.ones(1)
    dist.all_reduce(together)
    assert int(together) == size
    if rank == 0:
        with (here / "log").open("a") as log:
            log.write(f"{at} {size}\\n")
        (here / "new").write_text(str(at + 1))
        (here / "new").rename(done)
    dist.barrier()
    at += 1
    if at >= FALLS and size == 3 and rank == 2 and not (here / "fell").exists():
        (here / "fell").touch()
        os.kill(os.getppid(), signal.SIGKILL)
    if (here / "fell").exists() and size == 3 and rank == 0:
        (here / "again").touch()
    time.sleep(0.1)
print("ended", flush=True)
"""


def claims(cards: int) -> dict[str, Any]:
    request = {"name": "gpus", "exactly": {"deviceClassName": "gpu.koordra.io", "count": cards}}
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaimTemplate",
        "metadata": {"name": f"cards-{cards}"},
        "spec": {"spec": {"devices": {"requests": [request]}}},
    }


def template(
    *command: str, env: Mapping[str, str], folder: Path, cards: int = 1, **more: Any
) -> dict[str, Any]:
    """A pod that has `folder` as /training, and what Debian's packages look for where they look for it."""
    mounts = {"/training": folder, **more}
    spec: dict[str, Any] = {
        "containers": [
            {
                "name": "main",
                "image": "train",
                "command": list(command),
                "env": [{"name": name, "value": value} for name, value in env.items()],
                "volumeMounts": [{"name": f"v{at}", "mountPath": path} for at, path in enumerate(mounts)],
            }
        ],
        "volumes": [
            {"name": f"v{at}", "hostPath": {"path": str(path)}} for at, path in enumerate(mounts.values())
        ],
    }
    if cards:
        spec["resourceClaims"] = [{"name": "gpus", "resourceClaimTemplateName": f"cards-{cards}"}]
        spec["containers"][0]["resources"] = {"claims": [{"name": "gpus"}]}
    return {"spec": spec}


def job(name: str, **spec: Any) -> dict[str, Any]:
    return {
        "apiVersion": "koordra.io/v1alpha1",
        "kind": "TrainingJob",
        "metadata": {"name": name, "namespace": "default"},
        "spec": spec,
    }


class Demo:
    def __init__(self, folder: Path, documents: list[dict[str, Any]]) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="kd-"))  # short, for the sockets below it
        manifest = folder / "job.yaml"
        manifest.write_text(yaml.safe_dump_all(documents))
        command = [sys.executable, "-m", "koordra", "demo", "-f", str(manifest), "--run-commands", "--keep"]
        self.log = folder / "demo.log"
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                [*command, "--timeout", "1800", "--dir", str(self.folder)], stdout=log, stderr=log
            )

    def ends(self, name: str) -> str:
        """The state in which the job has ended."""

        def look() -> str | None:
            assert self.process.poll() is None, self.log.read_text()[-2000:]
            try:
                client = new_client(str(self.folder / "kubeconfig"), timeout=PATIENCE)
                found = client.get(TRAINING_JOBS, name, namespace="default")
            except (KoordraError, OSError):
                return None
            state = str(objects.status_of(found).get("state"))
            return state if state in ("Complete", "Failed") else None

        return until(look, f"the end of {name}; it is {self.pods()}")

    def pods(self) -> dict[str, str]:
        try:
            found, _ = new_client(str(self.folder / "kubeconfig"), timeout=PATIENCE).list(PODS)
        except (KoordraError, OSError):
            return {}
        return {objects.name(pod): str(objects.status_of(pod).get("phase")) for pod in found}

    def output(self) -> str:
        """Of all containers."""
        return "\n".join(path.read_text() for path in self.folder.rglob("output/*.log"))

    def stop(self) -> None:
        self.process.send_signal(signal.SIGINT)
        try:
            self.process.wait(10 * PATIENCE)
        finally:
            self.process.kill()
            self.process.wait()
            shutil.rmtree(self.folder, ignore_errors=True)


def until(look: Callable[[], str | None], what: str) -> str:
    deadline = time.monotonic() + 40 * PATIENCE
    while time.monotonic() < deadline:
        if found := look():
            return found
        time.sleep(0.5)
    pytest.fail(f"{what}: not in time")


@pytest.fixture
def demos() -> Iterator[list[Demo]]:
    found: list[Demo] = []
    yield found
    for demo in found:
        demo.stop()


def debian(*packages: str) -> tuple[Path, dict[str, str]]:
    """The packages' files, and the environment in which programs find them."""
    try:
        root = unpacked(CACHE, packages, needed=True)
    except Unavailable as error:
        pytest.skip(f"no {packages}: {error}")
    libraries = {str(path.parent) for path in root.rglob("*.so*")}
    return root, {
        "PATH": f"{root}/usr/bin:{os.environ['PATH']}",
        "LD_LIBRARY_PATH": ":".join(sorted(libraries)),
        "PYTHONPATH": f"{root}/usr/lib/python3/dist-packages",
    }


def test_mpirun_starts_its_ranks_by_the_hostfile(tmp_path: Path, demos: list[Demo]) -> None:
    root, env = debian("openmpi-bin")
    (tmp_path / "sshd.py").write_text(SSHD)
    (tmp_path / "agent").write_text(AGENT.format(python=sys.executable))
    (tmp_path / "agent").chmod(0o755)
    env |= {"OPAL_PREFIX": f"{root}/usr", "OMPI_MCA_plm_rsh_agent": "/training/agent"}
    env |= {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
    says = "echo $OMPI_COMM_WORLD_RANK of $OMPI_COMM_WORLD_SIZE at $AT >/training/rank-$OMPI_COMM_WORLD_RANK"
    launch = template("mpirun.openmpi", "sh", "-c", says, env=env, folder=tmp_path, cards=0)
    worker = template(sys.executable, "/training/sshd.py", env=env, folder=tmp_path, cards=2)
    spec = {"framework": "MPI", "minReplicas": 2, "maxReplicas": 2, "template": worker, "launcher": launch}
    demos.append(demo := Demo(tmp_path, [claims(2), job("mpi", **spec)]))
    assert demo.ends("mpi") == "Complete", demo.output()
    said = [path.read_text().strip() for path in sorted(tmp_path.glob("rank-*"))]
    assert said == [
        "0 of 4 at mpi-000",
        "1 of 4 at mpi-000",
        "2 of 4 at mpi-001",
        "3 of 4 at mpi-001",
    ]


@pytest.mark.skipif(not Path(PYTHON).exists(), reason=f"there is no {PYTHON}")
def test_torchrun_goes_on_without_whom_it_lost_and_with_whom_it_gets(
    tmp_path: Path, demos: list[Demo]
) -> None:
    _, env = debian("python3-torch")
    (tmp_path / "train.py").write_text(TRAIN)
    env |= {"GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"}
    # Python 3.11 iterates over no member of a flag that is 0, which this PyTorch's default is.
    options = "--max_restarts=9 --redirects=1 --tee=1 --log_dir=/tmp"
    # A shell is the first process, which cannot be killed from within: its agent is to be.
    run = f"{PYTHON} -m torch.distributed.run {options} /training/train.py; exit $?"
    worker = template("sh", "-c", run, env=env, folder=tmp_path)
    spec = {"framework": "ElasticPyTorch", "minReplicas": 2, "maxReplicas": 3, "template": worker}
    demos.append(demo := Demo(tmp_path, [claims(1), job("train", **spec)]))
    assert demo.ends("train") == "Complete", demo.output()[-4000:]
    assert (demo.pods()["train-002-0"], demo.pods()["train-002-1"]) == ("Failed", "Succeeded")
    log = [tuple(map(int, line.split())) for line in (tmp_path / "log").read_text().splitlines()]
    steps = [step for step, _ in log]
    assert sorted(set(steps)) == list(range(max(steps) + 1)), "a step was left out"
    assert all(after in (before, before + 1) for before, after in itertools.pairwise(steps)), steps
    assert log[-1][1] == 3
