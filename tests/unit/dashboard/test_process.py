"""`koordra dashboard` as a process, under the account that its component ships, on a devcluster with an
audit log: a browser is shown the cluster, SIGTERM ends it well, and of the account's rights none is missing
and none unused."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cluster.installation import account_kubeconfig
from tests.cluster.nodes import add_node, publish
from tests.cluster.waiting import eventually
from tests.patience import PATIENCE
from tests.unit.dashboard.test_browser import CHROMIUM, browse
from tests.unit.deploy.test_rbac import Cluster, granted

pytestmark = pytest.mark.long

USER = "system:serviceaccount:koordra-system:koordra-dashboard"
NOT_SERVED = {("", "persistentvolumes"), ("", "persistentvolumeclaims")}
"""By the double, as the kinds of GROUPS that are not these."""
GROUPS = {"", "batch", "resource.k8s.io", "koordra.io"}


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    cluster = Cluster(tmp_path, more=("dashboard",))
    publish(cluster.client, add_node(cluster.client, "hgx"), tmp_path / "hgx")
    yield cluster
    cluster.server.terminate()
    cluster.server.wait(PATIENCE)


def test_it_shows_the_cluster_with_exactly_the_rights_that_are_shipped(
    cluster: Cluster, tmp_path: Path
) -> None:
    own = account_kubeconfig(
        cluster.client, str(cluster.kubeconfig), tmp_path / "own", account="koordra-dashboard"
    )
    command = [sys.executable, "-m", "koordra", "dashboard", "--address", "127.0.0.1:0"]
    log = tmp_path / "dashboard.log"
    with log.open("w") as sink:
        process = subprocess.Popen([*command, "--kubeconfig", str(own)], stdout=sink, stderr=sink)
    try:
        said = eventually(
            lambda: re.search(r"^http://\S+", log.read_text(), re.MULTILINE) or process.poll(), "its address"
        )
        assert isinstance(said, re.Match), log.read_text()
        eventually(lambda: _unused(cluster) == set(), "a list and a watch of everything that it may read")
        if CHROMIUM is not None:
            document, complaints = browse(said[0], tmp_path, "--dump-dom")
            shown = re.sub(r"<[^>]*>", " ", document).split()
            assert shown[shown.index("H100") :][:3] == ["H100", "8", "8"], "all of them free"
            assert not complaints
        process.send_signal(signal.SIGTERM)
        assert process.wait(PATIENCE) == 0, log.read_text()
    finally:
        process.kill()
        process.wait(PATIENCE)
    assert [line for line in _requests(cluster) if line["code"] == 403] == []
    assert _used(cluster) <= granted("dashboard")


def _requests(cluster: Cluster) -> list[dict[str, object]]:
    lines = map(json.loads, cluster.audit.read_text().splitlines())
    return [line for line in lines if line["user"] == USER and line["resource"]]


def _used(cluster: Cluster) -> set[tuple[object, ...]]:
    return {(line["group"], line["resource"], line["verb"]) for line in _requests(cluster)}


def _unused(cluster: Cluster) -> set[tuple[str, str, str]]:
    unused = granted("dashboard") - _used(cluster)
    return {right for right in unused if right[0] in GROUPS and right[:2] not in NOT_SERVED}
