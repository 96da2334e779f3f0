"""The right of deploy/kustomize/node-labels is exactly what the labels take: used, and nothing refused beside
it."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from koordra.api import kinds
from koordra.errors import ApiError
from koordra.kube.client import KubeClient
from koordra.kube.kubeconfig import new_client
from tests.cluster.installation import ROOT, Installation, free_port
from tests.cluster.test_peers import OWN_NODE, Plugin
from tests.cluster.waiting import eventually
from tests.patience import PATIENCE

pytestmark = pytest.mark.long

USER = "system:serviceaccount:koordra-system:koordra-kubelet-plugin"
LABEL = "nvidia.com/gpu.count"


@pytest.fixture
def folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="k-") as name:  # short: the names of sockets may not be long
        yield Path(name)


@pytest.fixture
def cluster(folder: Path) -> Iterator[KubeClient]:
    """A devcluster with an audit log, koordra and its node labels installed, and the Node of the plugin."""
    command = [sys.executable, "-m", "koordra", "devcluster", "control-plane", "--dir", str(folder / "state")]
    command += ["--kubeconfig", str(folder / "admin"), "--audit-log", str(folder / "audit.log")]
    server = subprocess.Popen(command, stderr=subprocess.DEVNULL)
    try:
        eventually((folder / "admin").exists, "the kubeconfig", timeout=240)
        client = new_client(str(folder / "admin"))
        eventually(lambda: _answers(client), "the API server", timeout=240)
        Installation(client, free_port(), more=("node-labels",)).apply()
        client.create(kinds.NODES, {"metadata": {"name": OWN_NODE}})
        yield client
    finally:
        server.terminate()
        server.wait(PATIENCE)


def _answers(client: KubeClient) -> bool:
    try:
        return bool(client.version())
    except ApiError:
        return False


def requests(folder: Path) -> list[dict[str, Any]]:
    lines = (json.loads(line) for line in (folder / "audit.log").read_text().splitlines())
    return [line for line in lines if line["user"] == USER]


def granted() -> set[tuple[str, str, str]]:
    return {
        (group, resource, verb)
        for obj in yaml.safe_load_all((ROOT / "node-labels" / "rbac.yaml").read_text())
        for rule in obj.get("rules") or ()
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    }


def test_the_right_is_exactly_what_is_used(cluster: KubeClient, folder: Path) -> None:
    plugin = Plugin(cluster, str(folder / "admin"), folder)
    try:
        eventually(lambda: plugin.label(LABEL) == "8", "the labels", timeout=240)
        cluster.patch(kinds.NODES, OWN_NODE, {"metadata": {"labels": {LABEL: None}}})
        eventually(lambda: plugin.label(LABEL) == "8", "the label that somebody took off", timeout=240)
    finally:
        plugin.end()
    seen = requests(folder)
    used = {(line["group"], line["resource"], line["verb"]) for line in seen}
    assert granted() - used == set(), "granted, but never used"
    assert [line for line in seen if line["code"] == 403] == []
