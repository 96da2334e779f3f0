"""The kubelet double with a real (small) DRA driver behind gRPC sockets, and a control plane."""

from __future__ import annotations

import json
import shutil
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from koordra.api import kinds
from koordra.errors import NotFound
from koordra.kube.kubeconfig import new_client
from koordra_devcluster.container_runtime.nri_runtime import NriSettings
from koordra_devcluster.control_plane import ControlPlane
from koordra_devcluster.kubelet.kubelet import Kubelet, KubeletSettings
from koordra_devcluster.kubelet.node import NodeSettings
from tests.patience import PATIENCE
from tests.unit.devcluster.calling import eventually
from tests.unit.devcluster.fake_dra_plugin import DRIVER, FakeDriver
from tests.unit.devcluster.manifests import allocation, claim, claiming_pod, pod, resource_slice

PODS, CLAIMS, SLICES = kinds.PODS, kinds.RESOURCE_CLAIMS, kinds.RESOURCE_SLICES


class Bench:
    """One node under a control plane; paths are short, since a unix socket's path must be."""

    def __init__(self, folder: Path, plane: ControlPlane) -> None:
        self.folder = folder
        self.client = new_client(str(plane.kubeconfig))
        self.root = folder / "kubelet"
        self.kubelet: Kubelet
        self.stop: threading.Event
        self.drivers: list[FakeDriver] = []
        self.start_kubelet()

    def start_kubelet(self) -> None:
        settings = KubeletSettings(
            node=NodeSettings("n1", cpu="8", memory="16Gi"),
            directory=self.folder,
            kubelet_root=self.root,
            cdi_directories=[self.folder / "cdi"],
            nri_socket=self.folder / "nri.sock",
            nri=NriSettings(),
            wipe_after=0.5,
            call_timeout=PATIENCE,
        )
        self.stop = threading.Event()
        self.kubelet = Kubelet(self.client, settings)
        self.kubelet.start(self.stop)

    def stop_kubelet(self) -> None:
        """What kill -9 leaves: everything on disk."""
        self.stop.set()
        self.kubelet.close()

    def driver(self, **options: Any) -> FakeDriver:
        made = FakeDriver(self.root, **options)
        self.drivers.append(made)
        eventually(lambda: made.registrations)
        return made

    def allocated(self, name: str = "c") -> dict[str, Any]:
        """An allocated claim with the CDI file that its driver would write."""
        found = self.client.create(CLAIMS, claim(name))
        uid = found["metadata"]["uid"]
        edits = {"env": [f"CLAIM={name}"]}
        spec = {
            "cdiVersion": "0.5.0",
            "kind": "example.com/claim",
            "devices": [{"name": f"{uid}-gpu-0", "containerEdits": edits}],
        }
        (self.folder / "cdi").mkdir(exist_ok=True)
        (self.folder / "cdi" / f"{uid}.json").write_text(json.dumps(spec))
        return self.client.update(
            CLAIMS, {**found, "status": {"allocation": allocation("n1")}}, subresource="status"
        )

    def get(self, name: str = "p") -> dict[str, Any]:
        return self.client.get(PODS, name, namespace="default")

    def phase(self, name: str = "p") -> str:
        return str((self.get(name).get("status") or {}).get("phase"))

    def running(self, name: str = "p") -> dict[str, Any]:
        eventually(lambda: self.phase(name) == "Running")
        return self.get(name)

    def gone(self, name: str = "p") -> bool:
        try:
            self.get(name)
        except NotFound:
            return True
        return False

    def records(self) -> list[dict[str, Any]]:
        return [json.loads(path.read_text()) for path in (self.folder / "containers").glob("*.json")]

    def messages(self, reason: str) -> list[str]:
        return [event["message"] for event in self.client.list(kinds.EVENTS)[0] if event["reason"] == reason]


@pytest.fixture
def bench(stop: threading.Event) -> Iterator[Bench]:
    folder = Path(tempfile.mkdtemp(prefix="kd-"))
    plane = ControlPlane(folder / "plane", first_backoff=0.05)
    plane.start(stop)
    made = Bench(folder, plane)
    yield made
    for driver in made.drivers:
        driver.stop()
    made.stop_kubelet()
    stop.set()
    plane.close()
    shutil.rmtree(folder, ignore_errors=True)


def test_the_node_is_there_and_ready(bench: Bench) -> None:
    node = bench.client.get(kinds.NODES, "n1")
    assert node["status"]["allocatable"] == {"cpu": "8", "memory": "16Gi", "pods": "110"}
    assert {one["type"]: one["status"] for one in node["status"]["conditions"]}["Ready"] == "True"
    lease = eventually(lambda: bench.client.list(kinds.LEASES)[0])[0]
    assert (lease["metadata"]["name"], lease["spec"]["holderIdentity"]) == ("n1", "n1")


def test_a_plain_pod_runs_and_ends(bench: Bench) -> None:
    bench.client.create(PODS, pod("p"))
    found = bench.running()
    assert found["status"]["containerStatuses"][0]["ready"] is True
    (record,) = bench.records()
    assert (record["pod"]["name"], record["container"], record["state"]) == ("p", "main", "running")
    bench.client.delete(PODS, "p", namespace="default")
    eventually(bench.gone)
    assert bench.records() == []


def test_a_pod_that_sleeps_a_while_succeeds(bench: Bench) -> None:
    container = {"name": "main", "image": "x", "command": ["sleep", "0.3"]}
    bench.client.create(PODS, pod("p", containers=[container], restartPolicy="Never"))
    eventually(lambda: bench.phase() == "Succeeded")


def test_a_claim_from_the_driver_to_the_container_and_back(bench: Bench) -> None:
    driver = bench.driver()
    uid = bench.allocated()["metadata"]["uid"]
    bench.client.create(PODS, claiming_pod("p", claim="c", request="gpu"))
    bench.running()
    assert (driver.prepared, driver.used) == ([[uid]], ["v1"])
    (record,) = bench.records()
    assert (record["cdiDevices"], record["env"]) == ([f"example.com/claim={uid}-gpu-0"], {"CLAIM": "c"})
    bench.client.delete(PODS, "p", namespace="default")
    eventually(bench.gone)
    assert driver.unprepared == [[uid]]


def test_a_shared_claim_is_prepared_once(bench: Bench) -> None:
    driver = bench.driver()
    bench.allocated()
    for name in ("p", "q"):
        bench.client.create(PODS, claiming_pod(name, claim="c"))
        bench.running(name)
    assert len(driver.prepared) == 1
    bench.client.delete(PODS, "p", namespace="default")
    eventually(bench.gone)
    assert driver.unprepared == []
    bench.client.delete(PODS, "q", namespace="default")
    eventually(lambda: bench.gone("q"))
    assert len(driver.unprepared) == 1


def test_an_older_driver_is_spoken_to_in_v1beta1(bench: Bench) -> None:
    driver = bench.driver(versions=["v1beta1.DRAPlugin"])
    bench.allocated()
    bench.client.create(PODS, claiming_pod("p", claim="c"))
    bench.running()
    assert driver.used == ["v1beta1"]


@pytest.mark.parametrize(
    "options", [{"versions": ["v9.DRAPlugin"]}, {"type_": "CSIPlugin"}], ids=["version", "type"]
)
def test_a_plugin_that_cannot_be_used_is_told_so(bench: Bench, options: dict[str, Any]) -> None:
    driver = bench.driver(**options)
    assert driver.registrations[0].plugin_registered is False
    assert driver.registrations[0].error


def test_an_error_of_the_driver_is_said_and_tried_again(bench: Bench) -> None:
    driver = bench.driver()
    driver.error = "card is on fire"
    bench.allocated()
    bench.client.create(PODS, claiming_pod("p", claim="c"))
    (message,) = eventually(lambda: bench.messages("FailedPrepareDynamicResources"))
    assert "NodePrepareResources failed for ResourceClaim c: card is on fire" in message
    assert bench.phase() == "Pending"
    driver.error = ""
    bench.running()


def test_a_pod_waits_for_its_driver(bench: Bench) -> None:
    bench.allocated()
    bench.client.create(PODS, claiming_pod("p", claim="c"))
    eventually(
        lambda: any(
            f"DRA driver {DRIVER} is not registered" in one
            for one in bench.messages("FailedPrepareDynamicResources")
        )
    )
    bench.driver()
    bench.running()


def test_without_its_driver_a_pod_stays_in_terminating(bench: Bench) -> None:
    driver = bench.driver()
    bench.allocated()
    bench.client.create(PODS, claiming_pod("p", claim="c"))
    bench.running()
    driver.stop()
    bench.client.delete(PODS, "p", namespace="default")
    eventually(lambda: bench.messages("FailedUnprepareDynamicResources"))
    assert not bench.gone()
    assert [record["state"] for record in bench.records()] == ["exited"]
    again = bench.driver()
    eventually(bench.gone)
    assert len(again.unprepared) == 1


def test_a_force_deleted_pod_is_cleaned_up(bench: Bench) -> None:
    driver = bench.driver()
    bench.allocated()
    bench.client.create(PODS, claiming_pod("p", claim="c"))
    bench.running()
    bench.client.delete(PODS, "p", namespace="default", grace_period=0)
    eventually(lambda: driver.unprepared)
    eventually(lambda: bench.records() == [])


def test_a_container_that_cannot_be_made_says_why(bench: Bench) -> None:
    bench.driver()
    uid = bench.allocated()["metadata"]["uid"]
    path = bench.folder / "cdi" / f"{uid}.json"
    content = path.read_text()
    path.unlink()
    bench.client.create(PODS, claiming_pod("p", claim="c"))

    def waiting() -> dict[str, Any] | None:
        statuses = (bench.get().get("status") or {}).get("containerStatuses") or [{}]
        found: dict[str, Any] = (statuses[0].get("state") or {}).get("waiting") or {}
        return found if found.get("reason") == "CreateContainerError" else None

    assert "unresolvable CDI devices" in eventually(waiting)["message"]
    path.write_text(content)
    bench.running()


def test_containers_run_on_while_the_kubelet_is_away(bench: Bench) -> None:
    driver = bench.driver()
    bench.allocated()
    bench.client.create(PODS, claiming_pod("p", claim="c"))
    bench.running()
    before = bench.records()
    bench.stop_kubelet()
    bench.client.create(PODS, pod("q", nodeName="n1"))
    bench.start_kubelet()
    bench.running("q")
    assert [
        record for record in bench.records() if record["container"] == "main" and record["pod"]["name"] == "p"
    ] == before
    assert len(driver.prepared) == 1
    bench.client.delete(PODS, "p", namespace="default")
    eventually(bench.gone)
    assert len(driver.unprepared) == 1


def test_pods_that_vanished_meanwhile_are_cleaned_up(bench: Bench) -> None:
    driver = bench.driver()
    bench.allocated()
    bench.client.create(PODS, claiming_pod("p", claim="c"))
    bench.running()
    bench.stop_kubelet()
    bench.client.delete(PODS, "p", namespace="default", grace_period=0)
    bench.start_kubelet()
    eventually(lambda: driver.unprepared)
    eventually(lambda: bench.records() == [])


def published(bench: Bench, name: str, **spec: Any) -> None:
    bench.client.create(SLICES, resource_slice(**spec) | {"metadata": {"name": name}})


def slices(bench: Bench) -> set[str]:
    return {one["metadata"]["name"] for one in bench.client.list(SLICES)[0]}


def test_a_starting_kubelet_deletes_the_slices_of_its_node(bench: Bench) -> None:
    bench.stop_kubelet()
    published(bench, "mine")
    published(bench, "other", nodeName="n2")
    published(bench, "all", nodeName=None, allNodes=True)
    bench.start_kubelet()
    eventually(lambda: slices(bench) == {"other", "all"})


@pytest.mark.parametrize("how", ["stop", "crash"])
def test_slices_of_a_driver_that_went_away_are_wiped_after_a_while(bench: Bench, how: str) -> None:
    driver = bench.driver()
    published(bench, "mine")
    published(bench, "foreign", driver="other.example.com")
    getattr(driver, how)()
    eventually(lambda: slices(bench) == {"foreign"})


def test_a_driver_that_comes_back_in_time_keeps_its_slices(bench: Bench) -> None:
    """Their end is set and called off again; it is too far away to come meanwhile."""
    drivers = bench.kubelet.drivers
    drivers.wipe_after = 100 * PATIENCE
    driver = bench.driver()
    published(bench, "mine")
    driver.stop()
    eventually(lambda: drivers._timers)
    bench.driver()
    eventually(lambda: not drivers._timers)
    assert slices(bench) == {"mine"}


def test_two_instances_overlap_and_the_newest_is_used(bench: Bench) -> None:
    old = bench.driver()
    new = bench.driver(suffix="-2")
    bench.allocated()
    bench.client.create(PODS, claiming_pod("p", claim="c"))
    bench.running()
    assert (len(old.prepared), len(new.prepared)) == (0, 1)
    new.stop()
    bench.client.delete(PODS, "p", namespace="default")
    eventually(bench.gone)
    assert len(old.unprepared) == 1
