"""An instance that is made for a claim, and a share by MPS, where a real kubelet and container runtime start
the pods that the controller has placed: made with the claim and gone with it."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from koordra.api import kinds, names, objects
from koordra.api.objects import Object
from koordra.kube.client import KubeClient
from koordra.topology.presets import write_machine
from tests.cluster.kubelet_node import KubeletNode, lent_node, plugin_on, running
from tests.cluster.test_joint_allocation import Workload, request
from tests.cluster.waiting import eventually
from tests.e2e.card_driver import CardDriver
from tests.e2e.node import unused_majors
from tests.fakes import driver_homes

pytestmark = pytest.mark.cluster

SHOW = "env; echo caps $(ls /dev/nvidia-caps); echo pipe $(ls /run/koordra/mps/pipe); echo end; sleep 1000000"


@pytest.fixture(scope="module")
def node(client: KubeClient, controller: None) -> KubeletNode:
    del controller
    return lent_node(client)


@pytest.fixture(scope="module")
def driver(
    node: KubeletNode, kubeconfig: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[CardDriver]:
    folder = tmp_path_factory.mktemp("node")
    root = folder / "machine"
    machine = write_machine("hgx-h100", root, serial=node.name, device_major=unused_majors(5))
    driver_homes.libraries(root / driver_homes.MULTI_ARCH, str(machine.driver_version))
    node.state.mkdir(parents=True, exist_ok=True)
    made = CardDriver(Path(tempfile.mkdtemp(prefix="k")), root, machine, state=node.state)
    made.install()
    options = [*made.options, "--allowed-isolation", "mps,mig", "--mig-on-demand"]
    try:
        with plugin_on(
            node, kubeconfig, folder, root, options, offers=_is_a_place, environment=made.environment
        ):
            yield made
    finally:
        made.remove()


def _is_a_place(device: Object) -> bool:
    return "-mig-" in device["name"]


def shown(node: KubeletNode, namespace: str, pod: str) -> list[str]:
    """What its container has said, once it has said all of it."""
    running(node.client, namespace, pod)

    def look() -> list[str]:
        lines = node.log(namespace, pod)
        return lines if "end" in lines else []

    return eventually(look, f"what {pod} has")


def start(node: KubeletNode, namespace: str, name: str) -> None:
    container = {
        "name": "main",
        "image": node.image,
        "imagePullPolicy": "IfNotPresent",
        "command": ["sh", "-c", SHOW],
        "resources": {"claims": [{"name": "devices"}]},
    }
    spec = {
        "restartPolicy": "Never",
        "terminationGracePeriodSeconds": 0,
        "nodeSelector": {"kubernetes.io/hostname": node.name},
        "resourceClaims": [{"name": "devices", "resourceClaimName": name}],
        "containers": [container],
    }
    node.client.create(kinds.PODS, {"metadata": {"name": name}, "spec": spec}, namespace=namespace)


def end(node: KubeletNode, namespace: str, name: str) -> None:
    node.client.delete(kinds.PODS, name, namespace=namespace)

    def gone() -> bool:
        return name not in map(objects.name, node.client.list(kinds.PODS, namespace=namespace)[0])

    eventually(gone, f"the end of {name}")


def test_an_instance_lives_as_long_as_its_claims_pod(
    node: KubeletNode, driver: CardDriver, namespace: str
) -> None:
    asked = request("slice", names.CLASS_MIG, memory="18Gi", cores="19")
    Workload(node.client, namespace).claim("slice", [asked])
    start(node, namespace, "slice")
    (caps,) = (line.split()[1:] for line in shown(node, namespace, "slice") if line.startswith("caps"))
    assert len(caps) == 2
    assert len(driver.instances()) == 1
    claim = node.client.get(kinds.RESOURCE_CLAIMS, "slice", namespace=namespace)
    (result,) = claim["status"]["allocation"]["devices"]["results"]
    assert result["device"].endswith("-mig-1g20gb-6")
    end(node, namespace, "slice")
    eventually(lambda: not driver.instances(), "the end of the instance")


def test_a_share_by_mps_has_a_daemon_as_long_as_its_pod(
    node: KubeletNode, driver: CardDriver, namespace: str
) -> None:
    parameters = {"apiVersion": "koordra.io/v1alpha1", "kind": "GpuConfig", "isolation": "mps"}
    config = [{"opaque": {"driver": names.DRIVER, "parameters": parameters}}]
    asked = request("share", names.CLASS_GPU, memory="10Gi", cores="30")
    Workload(node.client, namespace).claim("share", [asked], config)
    start(node, namespace, "share")
    said = shown(node, namespace, "share")
    assert "CUDA_MPS_PIPE_DIRECTORY=/run/koordra/mps/pipe" in said
    assert "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT=0=10240M" in said
    assert "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE=30" in said
    assert any(line.startswith("pipe") and "control" in line for line in said)
    (kept,) = (gpu for gpu in driver.machine.gpus if driver.daemon(gpu))
    assert driver.card(kept)["mode"] == "EXCLUSIVE_PROCESS"
    end(node, namespace, "share")
    eventually(lambda: not driver.daemon(kept), "the daemon's end")
    eventually(lambda: driver.card(kept)["mode"] == "DEFAULT", "the card as it was")
