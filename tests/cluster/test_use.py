"""`koordra top` and `koordra usage` where a real kubelet and container runtime run the pods: read from the
node's plugin through the API server's proxy, with the rights that docs/monitoring.md names and no others."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tempfile
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from koordra.api import kinds, names, objects
from koordra.api.objects import Object
from koordra.errors import Conflict
from koordra.kube.client import KubeClient
from koordra.metrics import samples
from koordra.topology.presets import write_machine
from koordra_devcluster.apiserver.resources import ROLE_BINDINGS, ROLES
from tests.cluster.installation import account_kubeconfig, free_port
from tests.cluster.kubelet_node import SYSTEM, KubeletNode, lent_node, plugin_on, pod_of, running
from tests.cluster.test_card_backends import end, start
from tests.cluster.test_joint_allocation import Workload, request
from tests.cluster.waiting import eventually
from tests.e2e.card_driver import CardDriver
from tests.e2e.node import unused_majors
from tests.fakes import driver_homes
from tests.patience import PATIENCE

pytestmark = pytest.mark.cluster

RBAC = "rbac.authorization.k8s.io"
READ_PLUGINS = (("pods", "list"), ("pods/proxy", "get"))
PLUGIN = {"app.kubernetes.io/name": "koordra", "app.kubernetes.io/component": "kubelet-plugin"}


@dataclass(frozen=True)
class Watched:
    """A node with plugin and hook; `text`: what the plugin's endpoint says now."""

    node: KubeletNode
    driver: CardDriver
    port: int

    def text(self) -> str:
        address = f"http://{self.node.address}:{self.port}/metrics"
        with urllib.request.urlopen(address, timeout=PATIENCE) as answer:
            found: str = answer.read().decode()
            return found


@contextmanager
def hook_on(node: KubeletNode, kubeconfig: str, folder: Path, root: Path) -> Iterator[None]:
    own = account_kubeconfig(
        node.client,
        kubeconfig,
        folder / "hook-own",
        account="koordra-nri",
        bound_to=node.client.get(kinds.NODES, node.name),
    )
    command = [sys.executable, "-m", "koordra", "nri", "--node-name", node.name, "--kubeconfig", own]
    command += ["--state-dir", node.state, "--socket", node.nri, "--root", root]
    command += ["--metrics-address", f"127.0.0.1:{(port := free_port())}"]
    log = folder / "hook.log"
    with log.open("wb") as sink:
        hook = subprocess.Popen([*map(str, command)], stderr=sink, stdout=sink)

    def registered() -> bool:
        assert hook.poll() is None, log.read_text()[-3000:]
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=PATIENCE) as answer:
                return "koordra_nri_registered 1.0" in answer.read().decode()
        except OSError:
            return False

    try:
        eventually(registered, f"the hook at {node.nri}; see {log}")
        yield
        assert "orbidden" not in log.read_text()
    finally:
        hook.terminate()
        hook.wait(60)


@pytest.fixture(scope="module")
def watched(
    client: KubeClient, controller: None, kubeconfig: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Watched]:
    del controller
    node, folder, port = lent_node(client), tmp_path_factory.mktemp("node"), free_port()
    root = folder / "machine"
    machine = write_machine("hgx-h100", root, serial=node.name, device_major=unused_majors(5))
    driver_homes.libraries(root / driver_homes.MULTI_ARCH, str(machine.driver_version))
    node.state.mkdir(parents=True, exist_ok=True)
    driver = CardDriver(Path(tempfile.mkdtemp(prefix="k")), root, machine, state=node.state)
    driver.install()
    options = [*driver.options, "--allowed-isolation", "none", "--metrics-address", f"{node.address}:{port}"]
    places = plugin_on(
        node,
        kubeconfig,
        folder,
        root,
        options,
        offers=lambda device: device["name"].startswith("gpu-"),
        environment=driver.environment,
    )

    try:
        with (
            places,
            hook_on(node, kubeconfig, folder, root),
            pod_of(node, "plugin", PLUGIN, f"--metrics-address=:{port}"),
        ):
            yield Watched(node, driver, port)
    finally:
        driver.remove()


def reader(
    client: KubeClient, kubeconfig: str, path: Path, namespace: str, rights: tuple[tuple[str, str], ...]
) -> Path:
    """The namespace's default account, which may read claims there, and this of koordra's namespace."""
    _give(client, namespace, namespace, "resource.k8s.io", (("resourceclaims", "list"),))
    _give(client, SYSTEM, namespace, "", rights)
    return account_kubeconfig(client, kubeconfig, path, account="default", namespace=namespace)


def _give(
    client: KubeClient, where: str, account_of: str, group: str, rights: tuple[tuple[str, str], ...]
) -> None:
    rules = [{"apiGroups": [group], "resources": [resource], "verbs": [verb]} for resource, verb in rights]
    meta = {"name": "koordra-test-reads-use", "namespace": where}
    subject = {"kind": "ServiceAccount", "name": "default", "namespace": account_of}
    role = {"kind": "Role", "name": meta["name"], "apiGroup": RBAC}
    body = {"apiVersion": f"{RBAC}/v1", "metadata": meta}
    for kind, made in (
        (ROLES, {**body, "kind": "Role", "rules": rules}),
        (ROLE_BINDINGS, {**body, "kind": "RoleBinding", "subjects": [subject], "roleRef": role}),
    ):
        try:
            client.create(kind, made)
        except Conflict:
            client.patch(kind, str(meta["name"]), {"rules": rules} if kind is ROLES else {}, namespace=where)


def process_of(pod: Object) -> int:
    """Of its container, as the kernel of this machine numbers it."""
    (status,) = objects.status_of(pod)["containerStatuses"]
    container = status["containerID"].rpartition("/")[2]
    for found in Path("/proc").glob("[0-9]*/cgroup"):
        with suppress(OSError):
            if container in found.read_text():
                return int(found.parent.name)
    raise AssertionError(f"no process of {container}")


def held_hours(text: str, namespace: str) -> dict[str, float]:
    """By kind, as the plugin has counted until now."""
    found = samples(text, ("koordra_namespace_gpu_seconds_total",))
    return {labels["kind"]: value / 3600 for _, labels, value in found if labels["namespace"] == namespace}


def koordra(kubeconfig: Path, *words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "koordra", *words, "--kubeconfig", str(kubeconfig), "-o", "json"]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_what_a_pod_was_granted_is_read_with_the_rights_that_are_named(
    client: KubeClient, watched: Watched, kubeconfig: str, namespace: str, tmp_path: Path
) -> None:
    Workload(client, namespace).claim("part", [request("gpu", names.CLASS_GPU, memory="20Gi", cores="25")])
    Workload(client, namespace).claim("whole", [request("gpu", names.CLASS_GPU)])
    for name in ("part", "whole"):
        start(watched.node, namespace, name)
    pods = running(client, namespace, "part", "whole")
    # Sampled every five seconds.
    eventually(lambda: watched.text().count("koordra_container_gpu_granted_cores{") >= 2, "both pods' grants")
    card = next(iter(re.findall(r'granted_cores{.*UUID="([^"]+)".*pod="part"', watched.text())))
    watched.driver.nvml.processes((card, "compute", process_of(pods[0]), 3 << 30))
    eventually(lambda: 'pod="part"} 3.221225472e+09' in watched.text(), "what the process has of the card")
    own = reader(client, kubeconfig, tmp_path / "own", namespace, READ_PLUGINS)
    top = koordra(own, "top", "-n", namespace, "--interval", "1")
    assert top.returncode == 0, top.stderr
    assert not top.stderr
    rows: dict[str, Any] = {row["pod"]: row for row in json.loads(top.stdout)["top"]}
    memory = {pod: row["memoryBytes"] for pod, row in rows.items()}
    assert {pod: (row["gpus"]["granted"], memory[pod]["granted"] >> 30) for pod, row in rows.items()} == {
        "part": (0.25, 20),
        "whole": (1.0, 79),
    }
    assert {pod: one["used"] for pod, one in memory.items()} == {"part": 3 << 30, "whole": 0}
    for pod, row in rows.items():
        assert (row["claim"], row["node"], row["allocatedBy"]) == (pod, watched.node.name, "koordra")
    before = held_hours(watched.text(), namespace)
    used = koordra(own, "usage")
    assert used.returncode == 0, used.stderr
    (said,) = (row for row in json.loads(used.stdout)["usage"] if row["namespace"] == namespace)
    after = held_hours(watched.text(), namespace)
    for kind in ("gpu", "share"):
        assert 0 < before[kind] <= said[f"{kind}Hours"] + 1e-4 <= after[kind] + 2e-4
    for name in ("part", "whole"):
        end(watched.node, namespace, name)


def test_who_may_not_reach_the_pods_is_told_which_node_is_not_known(
    client: KubeClient, watched: Watched, kubeconfig: str, namespace: str, tmp_path: Path
) -> None:
    own = reader(client, kubeconfig, tmp_path / "own", namespace, READ_PLUGINS[:1])
    told = koordra(own, "top", "-n", namespace, "--interval", "1")
    assert f"node {watched.node.name} is not known" in told.stderr
    assert "orbidden" in told.stderr
    assert json.loads(told.stdout)["top"] == []
