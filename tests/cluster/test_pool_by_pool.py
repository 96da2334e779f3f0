"""A pool of one node passes to koordra and back as docs/migrate/pool-by-pool.md says, in its commands:
`koordra convert` and kubectl's drain, uncordon, apply and replace. The test is the node's kubelet and the
other stack."""

from __future__ import annotations

import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
import yaml

from koordra.api import kinds, objects
from koordra.api.objects import Object
from koordra.errors import ApiError, Conflict
from koordra.kube.client import KubeClient
from koordra_devcluster.apiserver.resources import DEPLOYMENTS, STATEFUL_SETS
from tests.cluster import nodes
from tests.cluster.waiting import eventually
from tests.cluster.without_kubelet import ends_deleted, runs

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.skipif(shutil.which("kubectl") is None, reason="there is no kubectl on this machine"),
]
NODE, TEAM = "koordra-test-pool", "koordra-test-pool"
RESOURCE = "nvidia.com/gpu"
LONG = 240.0
PODS = {"train": 2, "store": 2, "made": 1}
"""Of each workload."""


def workload(kind: kinds.Kind, name: str) -> Object:
    container = {"name": "main", "image": "image:1", "resources": {"limits": {RESOURCE: 1}}}
    labels = {"app": name}
    spec = {
        "replicas": PODS[name],
        "selector": {"matchLabels": labels},
        "template": {
            "metadata": {"labels": labels},
            "spec": {"nodeSelector": {"pool": NODE}, "containers": [container]},
        },
    }
    if kind is STATEFUL_SETS:
        spec["serviceName"] = name
    return {**kind.type_meta, "metadata": {"name": name, "namespace": TEAM}, "spec": spec}


class Pool:
    """What its owner does, and what he sees."""

    def __init__(self, client: KubeClient, kubeconfig: str, folder: Path) -> None:
        self.client, self._kubeconfig, self._folder = client, kubeconfig, folder

    def kubectl(self, *words: object) -> None:
        command = ["kubectl", "--kubeconfig", self._kubeconfig, *map(str, words)]
        subprocess.run(command, check=True, timeout=LONG)

    def file(self, name: str, *manifests: Object) -> tuple[Path, Path]:
        """The manifests, and converted."""
        own, converted = (self._folder / f"{name}{suffix}.yaml" for suffix in ("", "-converted"))
        own.write_text(yaml.safe_dump_all(manifests))
        command = [sys.executable, "-m", "koordra", "convert", "-f", str(own), "-o", "yaml"]
        with converted.open("w") as sink:
            subprocess.run(command, check=True, stdout=sink)
        return own, converted

    def other_stack(self, cards: int) -> None:
        amounts = {"cpu": "32", "memory": "256Gi", "pods": "110", RESOURCE: str(cards)}
        status = {"status": {"capacity": amounts, "allocatable": amounts}}
        self.client.patch(kinds.NODES, NODE, status, subresource="status")

    def koordra(self, folder: Path | None) -> None:
        """Its plugin publishes the node's devices, or is gone with them."""
        if folder:
            nodes.publish(self.client, self.client.get(kinds.NODES, NODE), folder)
            return
        for entry in self.client.list(kinds.RESOURCE_SLICES, field_selector=f"spec.nodeName={NODE}")[0]:
            self.client.delete(kinds.RESOURCE_SLICES, objects.name(entry))

    def pods(self, app: str) -> list[Object]:
        found, _ = self.client.list(kinds.PODS, namespace=TEAM, label_selector=f"app={app}")
        return [pod for pod in found if not objects.is_deleting(pod)]

    def run(self, converted: bool, *apps: str) -> None:
        """The pods of these workloads, each on the node, in koordra's words or those of the other stack."""

        def look() -> bool:
            found = [pod for app in apps for pod in self.pods(app)]
            return len(found) == sum(PODS[app] for app in apps) and all(
                _runs(pod) and (_claims(pod), _counts(pod)) == (converted, not converted) for pod in found
            )

        eventually(look, f"{', '.join(apps)} on the node, converted: {converted}", LONG)

    def wait(self, *apps: str) -> None:
        eventually(
            lambda: all(any(not _runs(pod) for pod in self.pods(app)) for app in apps),
            f"pods of {', '.join(apps)} that wait",
        )

    def drain(self) -> None:
        self.kubectl("drain", "--ignore-daemonsets", "--delete-emptydir-data", NODE)

    def uncordon(self) -> None:
        self.kubectl("uncordon", NODE)

    def is_empty(self) -> bool:
        """No claim has a device, and one says that the node is cordoned."""
        claims, _ = self.client.list(kinds.RESOURCE_CLAIMS, namespace=TEAM)
        events, _ = self.client.list(kinds.EVENTS, namespace=TEAM)
        told = {
            one["involvedObject"].get("uid") for one in events if "the node is cordoned" in one["message"]
        }
        free = not any(objects.status_of(claim).get("allocation") for claim in claims)
        return free and any(objects.uid(claim) in told for claim in claims)


def _runs(pod: Object) -> bool:
    return objects.status_of(pod).get("phase") == "Running" and objects.spec_of(pod)["nodeName"] == NODE


def _claims(pod: Object) -> bool:
    return bool(objects.spec_of(pod).get("resourceClaims"))


def _counts(pod: Object) -> bool:
    (container,) = objects.spec_of(pod)["containers"]
    return RESOURCE in (container.get("resources", {}).get("limits") or {})


@pytest.fixture
def pool(client: KubeClient, kubeconfig: str, controller: None, tmp_path: Path) -> Iterator[Pool]:
    del controller
    nodes.remove_node(client, NODE)
    nodes.add_node(client, NODE, {"pool": NODE})
    # The suite's webhook rewrites other stacks' pods, where nobody says otherwise.
    with suppress(Conflict):
        client.create(
            kinds.NAMESPACES, {"metadata": {"name": TEAM, "labels": {"koordra.io/legacy-pods": "ignore"}}}
        )
    found = Pool(client, kubeconfig, tmp_path)
    with nodes.kept_alive(client, [NODE]), kubelet(client):
        yield found
        for kind in (DEPLOYMENTS, STATEFUL_SETS):
            for entry in client.list(kind, namespace=TEAM)[0]:
                client.delete(kind, objects.name(entry), namespace=TEAM)
        eventually(lambda: not client.list(kinds.PODS, namespace=TEAM)[0], "the pods' end")
    nodes.remove_node(client, NODE)
    client.delete(kinds.NAMESPACES, TEAM)


@contextmanager
def kubelet(client: KubeClient) -> Iterator[None]:
    """Pods on the node run, and deleted ones end."""
    stop = threading.Event()

    def keep() -> None:
        while not stop.wait(0.2):
            with suppress(ApiError):
                for pod in client.list(kinds.PODS, namespace=TEAM)[0]:
                    if objects.spec_of(pod).get("nodeName") and objects.status_of(pod)["phase"] == "Pending":
                        runs(client, pod)
                ends_deleted(client, TEAM)

    keeper = threading.Thread(target=keep, daemon=True)
    keeper.start()
    try:
        yield
    finally:
        stop.set()
        keeper.join(10)


def test_a_pool_passes_to_koordra_and_back(pool: Pool, tmp_path: Path) -> None:
    own, converted = pool.file("own", workload(DEPLOYMENTS, "train"), workload(STATEFUL_SETS, "store"))
    made, made_converted = pool.file("made", workload(DEPLOYMENTS, "made"))
    pool.other_stack(8)
    pool.kubectl("apply", "-f", own)
    pool.kubectl("create", "-f", made)
    pool.run(False, *PODS)

    pool.drain()
    pool.other_stack(0)
    pool.koordra(tmp_path / "machine")
    pool.uncordon()
    pool.wait(*PODS)
    pool.kubectl("apply", "-f", converted)
    pool.kubectl("apply", "-f", made_converted)
    pool.run(True, "train")
    eventually(
        lambda: any(_claims(pod) and _counts(pod) for pod in pool.pods("made")), "a pod that asks for both"
    )
    pool.wait("made", "store")
    assert [_claims(pod) for pod in pool.pods("store")] == [False], "it waits for the pod that it has"
    pool.kubectl("replace", "-f", made_converted)
    pool.kubectl("delete", "pod", "-n", TEAM, "store-0")
    pool.run(True, *PODS)

    pool.kubectl("apply", "-f", own)
    pool.kubectl("replace", "-f", made)
    pool.drain()
    eventually(pool.is_empty, "the end of the claims")
    pool.koordra(None)
    pool.other_stack(8)
    pool.uncordon()
    pool.run(False, *PODS)
    pool.kubectl("delete", "resourceclaimtemplates", "-A", "-l", "koordra.io/dialect=plain")
    assert not pool.client.list(kinds.RESOURCE_CLAIM_TEMPLATES, namespace=TEAM)[0]
