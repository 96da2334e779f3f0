"""The worked example of devices that are on no node (docs/extending.md) in the demo: the package is installed
beside every process of koordra's, and pods on two nodes reach the server of the devices on loopback."""

from __future__ import annotations

import shutil
import signal
import tempfile
from collections.abc import Iterator
from copy import deepcopy
from pathlib import Path

import pytest
import yaml

from tests.demo.test_demo import read_document, start, until
from tests.fakes import remote_gpu_server
from tests.patience import PATIENCE
from tests.unit.docs.worked_examples import worked_example
from tests.unit.kubelet_plugin.test_devices_on_no_node import PROGRAM, SECTION, install

pytestmark = pytest.mark.slow

STAYS = f"{PROGRAM}\nimport time\ntime.sleep(100_000)\n"


@pytest.fixture
def folder() -> Iterator[Path]:
    """With a short path, since unix sockets live in it."""
    folder = Path(tempfile.mkdtemp(prefix="kd-"))
    yield folder
    shutil.rmtree(folder, ignore_errors=True)


def manifests(names: tuple[str, ...]) -> str:
    cls, published, asked = yaml.safe_load_all(worked_example(SECTION, "yaml"))
    del published["spec"]["nodeSelector"]
    published["spec"]["allNodes"] = True
    found = [cls, published]
    for name in names:
        own = deepcopy(asked)
        own["metadata"]["name"] = name
        container = {
            "name": "main",
            "image": "none",
            "command": ["python3", "-c", STAYS],
            "resources": {"claims": [{"name": "gpu"}]},
        }
        spec = {
            "nodeSelector": {"kubernetes.io/hostname": name},
            "resourceClaims": [{"name": "gpu", "resourceClaimName": name}],
            "containers": [container],
        }
        pod = {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": name, "namespace": "default"},
            "spec": spec,
        }
        found += [own, pod]
    return yaml.safe_dump_all(found)


def test_pods_of_two_nodes_reach_their_shares_of_one_device(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(tmp_path / "site-packages")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "site-packages"))
    file = tmp_path / "manifests.yaml"
    file.write_text(manifests(("node-0", "node-1")))
    with remote_gpu_server.running() as address:
        monkeypatch.setenv("REMOTE_GPU_SERVER", address)
        demo = start(folder, "--keep", "--run-commands", "--nodes", "2", "-f", str(file))
        try:
            placed = {one["name"]: one for one in read_document(demo)["claims"]}
            reached = [f"remote-0 {16 << 30}\n"] * 2
            until(lambda: _printed(folder) == reached, "what the pods have reached")
        finally:
            demo.send_signal(signal.SIGINT)
            demo.communicate(timeout=3 * PATIENCE)
    assert {name: one["node"] for name, one in placed.items()} == {"node-0": "node-0", "node-1": "node-1"}
    assert {device["device"] for one in placed.values() for device in one["devices"]} == {"remote-0"}


def _printed(folder: Path) -> list[str]:
    return [path.read_text() for path in folder.glob("nodes/*/**/output/*.log")]
