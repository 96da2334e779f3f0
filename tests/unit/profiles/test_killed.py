"""`koordra profiler`, a process, killed with SIGKILL before everything that it writes, and after the last:
the next one ends up with what one that nobody killed has."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import yaml

from koordra.api.kinds import PODS, TRAINING_JOBS
from koordra.api.objects import Object
from koordra.api.resource_class import CONFIG_MAPS
from koordra.kubelet_plugin.sampling.pod_use import PodKey
from koordra.kubelet_plugin.sampling.profiles import Recording
from koordra.profiles.config_map import CONFIG_MAP
from koordra.profiles.store import open_store
from koordra_devcluster.apiserver.resources import CRDS
from tests.cluster.waiting import eventually
from tests.patience import PATIENCE
from tests.unit.compat.pods import asking
from tests.unit.profiles import test_command
from tests.unit.profiles.test_command import TRAINING, profile, served
from tests.unit.profiles.test_recommendation import HAMI, rewritten
from tests.unit.use.served_cluster import Cluster, Served

pytestmark = pytest.mark.long

WRAPPED = """
import os, signal, sys
import sqlalchemy
from koordra.cli.main import cli
from koordra.cli.cluster.use.profile import history
from koordra.kube.client import KubeClient

# What is written: statements of the store that are no questions, their commits, and patches of the API.
left = int(os.environ["DIES_AT"])

def writes():
    global left
    left -= 1
    if left == 0:
        os.kill(os.getpid(), signal.SIGKILL)

def statement(connection, cursor, text, *_):
    if not text.lstrip().upper().startswith(("SELECT", "PRAGMA")):
        writes()

sqlalchemy.event.listen(sqlalchemy.Engine, "before_cursor_execute", statement)
sqlalchemy.event.listen(sqlalchemy.Engine, "commit", lambda connection: writes())
patch = KubeClient.patch

def patched(*args, **named):
    writes()
    return patch(*args, **named)

KubeClient.patch = patched
step = history.History.step

def stepped(self):
    found = step(self)
    writes()
    print("step", file=sys.stderr, flush=True)
    return found

history.History.step = stepped
cli()
"""
"""Kept outside of koordra: `koordra profiler` with a count of what it writes."""


@dataclass
class Team:
    """A cluster with a TrainingJob of two pods that nodes have profiles of."""

    cluster: Cluster
    uids: dict[str, str] = field(default_factory=dict)
    seconds: int = 0

    def text(self, path: str) -> str | None:
        own = {
            PodKey("team", name, uid): profile(name, uid, seconds=self.seconds)
            for name, uid in self.uids.items()
        }
        return json.dumps(Recording("n0", own).document) if path == "/profiles" else None

    def forget(self) -> None:
        """What a profiler has written into the API."""
        client = self.cluster.client
        client.patch(TRAINING_JOBS, "train", {"metadata": {"annotations": None}}, namespace="team")
        body = {"status": {"profile": None}}
        client.patch(TRAINING_JOBS, "train", body, namespace="team", subresource="status")
        client.patch(CONFIG_MAPS, CONFIG_MAP, {"data": None}, namespace="koordra-system")

    def written(self, store: Path) -> dict[str, Any]:
        """By the profiler, everywhere, but for the time."""
        client = self.cluster.client
        job = client.get(TRAINING_JOBS, "train", namespace="team")
        told = dict((job.get("status") or {}).get("profile") or {})
        told.pop("updated", None)
        kept = open_store(f"sqlite:///{store}").of_job("team", "train")
        return {
            "profile": told,
            "annotations": job["metadata"].get("annotations"),
            "recommended": client.get(CONFIG_MAPS, CONFIG_MAP, namespace="koordra-system").get("data"),
            "kept": sorted((one.profile.pod, one.profile.until, one.template) for one in kept),
            "seconds": [one.profile.summaries for one in sorted(kept, key=lambda one: one.profile.pod)],
        }

    def profiler(self, store: Path, *, dies_at: int) -> int:
        """Its exit code: until it is killed by itself at that write, or, with 0, has done one step."""
        command = [sys.executable, "-c", WRAPPED, "profiler", "--kubeconfig", self.cluster.plane.kubeconfig]
        command += ["--store", f"sqlite:///{store}", "--metrics-address", ""]
        environment = {**os.environ, "DIES_AT": str(dies_at)}
        with subprocess.Popen(
            [*map(str, command)], env=environment, stderr=subprocess.PIPE, text=True
        ) as process:
            assert process.stderr is not None
            lines = []
            for line in process.stderr:
                lines.append(line)
                if line == "step\n":
                    process.send_signal(signal.SIGTERM)
            code = process.wait(PATIENCE)
            assert code in (0, -signal.SIGKILL), "".join(lines)
            return code


@pytest.fixture
def team(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Team]:
    monkeypatch.setattr(test_command, "START", int(time.time()) - 3600)  # what is old is forgotten
    cluster = Cluster(tmp_path)
    client, found = cluster.client, Team(cluster)
    client.create(CRDS, yaml.safe_load((TRAINING / "trainingjobs.yaml").read_text()))
    eventually(lambda: served(client), "TrainingJobs")
    client.create(CONFIG_MAPS, {"metadata": {"name": CONFIG_MAP}}, namespace="koordra-system")
    template = {"spec": {"containers": [{"name": "a", "image": "x"}]}}
    spec = {"framework": "PyTorch", "minReplicas": 2, "maxReplicas": 2, "template": template}
    job = client.create(TRAINING_JOBS, {"metadata": {"name": "train"}, "spec": spec}, namespace="team")
    owner = {
        "apiVersion": "koordra.io/v1alpha1",
        "kind": "TrainingJob",
        "name": "train",
        "uid": job["metadata"]["uid"],
        "controller": True,
    }
    for name in ("train-0", "train-1"):
        body: Object = rewritten(asking(HAMI))
        body["metadata"] |= {"name": name, "namespace": "team", "ownerReferences": [owner]}
        body["spec"].pop("resourceClaims", None)
        for raw in body["spec"]["containers"]:
            raw.pop("resources", None)
        made = client.create(PODS, body, namespace="team")
        found.uids[name] = made["metadata"]["uid"]
    with Served(found.text) as port:
        cluster.plugin("n0", port)
        yield found
    cluster.close()


def test_killed_at_any_write_it_loses_nothing_and_counts_nothing_twice(team: Team, tmp_path: Path) -> None:
    def killed(store: Path, *, write: int) -> bool:
        """At the write, after which the pods go on, and another profiler comes."""
        team.seconds = 1200
        code = team.profiler(store, dies_at=write)
        team.seconds = 1800
        assert team.profiler(store, dies_at=0) == 0
        return code != 0

    undisturbed = tmp_path / "undisturbed.db"
    assert not killed(undisturbed, write=0)
    wanted = team.written(undisturbed)
    assert [pod for pod, *_ in wanted["kept"]] == ["train-0", "train-1"]
    assert wanted["profile"]["templates"][0]["series"]["sm"]["seconds"] == 2 * 1800
    assert "koordra.io/recommended-share" in wanted["annotations"]
    assert "memory" in wanted["recommended"]["recommendations.json"]
    for write in range(1, 200):
        store = tmp_path / f"{write}.db"
        team.forget()
        alive = not killed(store, write=write)
        assert team.written(store) == wanted, write
        if alive:
            break
    assert 10 < write < 199  # statements, commits, and patches of the status, the annotation, the ConfigMap
