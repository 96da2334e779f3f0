"""deploy/examples/legacy-*: each manifest as it stands, on a cluster of processes with two nodes, to
containers that run.

The development cluster with koordra's own processes: controller with the webhook, kubelet plugins, NRI hooks.
What a container got is read from what its node prepared.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from koordra.api import kinds, names, objects
from koordra.api.objects import Object
from koordra.errors import ApiError, Conflict
from koordra.kube.client import KubeClient
from koordra.topology import presets
from koordra_devcluster.apiserver.resources import DEPLOYMENTS
from koordra_devcluster.demo import examples, manifests
from koordra_devcluster.demo import run as running
from koordra_devcluster.demo.needs import Needs
from koordra_devcluster.demo.processes import Program
from koordra_devcluster.demo.programs import Layout
from koordra_devcluster.demo.run import Demo
from tests.cluster.waiting import eventually
from tests.unit.limiter.native_build import build

pytestmark = pytest.mark.long

EXAMPLES = manifests.deploy_folder() / "examples"
FOLDERS = sorted(path.name for path in EXAMPLES.glob("legacy-*"))
LONG = 600.0


class LegacyDemo:
    """The demo's cluster with the webhook for legacy pods."""

    def __init__(self, folder: Path) -> None:
        self.layout = Layout(folder, ("node-a", "node-b"))
        self._demo = Demo(
            self.layout,
            machines=(presets.load("hgx-h100"),) * len(self.layout.nodes),
            needs=Needs(legacy=True),
            timeout=LONG,
            stop=threading.Event(),
            say=lambda _: None,
        )
        self.client = self._up()

    def _up(self) -> KubeClient:
        """With templates that live only for seconds after their last use."""
        before = running.node_programs
        running.node_programs = lambda *arguments, **more: _impatient(before(*arguments, **more))
        try:
            client = self._demo.up()
        finally:
            running.node_programs = before
        self.until(lambda: len(_published(client)) == 2, "the nodes' devices")
        return client

    def kill(self, program: str, *, stay_down: bool = False) -> None:
        """With `stay_down` until the next time that something is waited for here; else it is started again at
        once."""
        os.kill(self._demo.processes.pids()[program], signal.SIGKILL)
        if not stay_down:
            self._demo.processes.supervise()

    def until(self, look: Any, what: str) -> Any:
        def supervised() -> Any:
            self._demo.processes.supervise()
            try:
                return look()
            except ApiError:
                return None

        return eventually(supervised, what, timeout=LONG)

    def apply(self, deployment: Object) -> None:
        """There, also where an earlier try has left it."""
        with contextlib.suppress(Conflict):
            self.client.create(DEPLOYMENTS, deployment, namespace="default")

    def running(self, app: str, number: int) -> list[Object]:
        def look() -> list[Object] | None:
            found = [pod for pod in self.pods(app) if objects.status_of(pod).get("phase") == "Running"]
            return found if len(found) == number == len(self.pods(app)) else None

        found: list[Object] = self.until(look, f"{number} running pods of {app}")
        return found

    def pods(self, app: str) -> list[Object]:
        found, _ = self.client.list(kinds.PODS, namespace="default")
        return [pod for pod in found if objects.labels_of(pod).get("app") == app]

    def claim(self, pod: Object) -> Object:
        (name,) = objects.pod_claim_names(pod).values()
        return self.client.get(kinds.RESOURCE_CLAIMS, str(name), namespace="default")

    def environment(self, pod: Object) -> dict[str, dict[str, str]]:
        """request -> what the CDI file of the pod's claim tells its containers."""
        claim = self.claim(pod)
        folder = self.layout.node(pod["spec"]["nodeName"])
        (path,) = [path for path in (folder / "cdi").iterdir() if objects.uid(claim) in path.name]
        devices = json.loads(path.read_text())["devices"]
        found = {}
        for device, result in zip(devices, results(claim), strict=True):
            found[result["request"]] = dict(entry.split("=", 1) for entry in device["containerEdits"]["env"])
        return found

    def gone(self, *names_of: str) -> None:
        for name in names_of:
            self.client.delete(DEPLOYMENTS, name, namespace="default")

        def look() -> bool:
            claims, _ = self.client.list(kinds.RESOURCE_CLAIMS)
            templates, _ = self.client.list(kinds.RESOURCE_CLAIM_TEMPLATES)
            pods, _ = self.client.list(kinds.PODS)
            return not pods and not claims and not templates and not self._prepared()

        self.until(look, "nothing left: no pod, claim, template or CDI file")

    def _prepared(self) -> list[Path]:
        return [
            path for node in self.layout.nodes for path in (self.layout.node(node) / "cdi").glob("*claim*")
        ]

    def down(self) -> None:
        self._demo.down()


def _impatient(programs: list[Program]) -> list[Program]:
    return [
        Program(one.name, (*one.arguments, "--legacy-template-grace", "3"))
        if one.name == "controller"
        else one
        for one in programs
    ]


def _published(client: KubeClient) -> set[str]:
    return {
        one["spec"]["nodeName"] for one in client.list(kinds.RESOURCE_SLICES)[0] if one["spec"].get("devices")
    }


def results(claim: Object) -> list[Object]:
    found: list[Object] = claim["status"]["allocation"]["devices"]["results"]
    return found


def card(result: Object) -> tuple[str, str]:
    return result["pool"], result["device"]


@pytest.fixture(scope="module")
def demo() -> Iterator[LegacyDemo]:
    build()  # shares of HAMi and Alnair come with the limiter
    folder = Path(tempfile.mkdtemp(prefix="kl-"))  # short: unix sockets live in it
    demo = None
    try:
        demo = LegacyDemo(folder)
        yield demo
    finally:
        if demo is not None:
            demo.down()
        shutil.rmtree(folder, ignore_errors=True)


def test_examples_run_as_they_stand_and_leave_nothing(demo: LegacyDemo) -> None:
    deployments = {}
    for folder in FOLDERS:
        (path,) = examples.files(folder)
        assert (EXAMPLES / folder / "README.md").is_file()
        assert "koordra.io" not in path.read_text(), "nothing in it knows koordra"
        (deployments[folder],) = manifests.read(path)
        demo.apply(deployments[folder])
    for folder, deployment in deployments.items():
        pods = demo.running(objects.name(deployment), deployment["spec"]["replicas"])
        _WHAT[folder](demo, pods)
    demo.gone(*(objects.name(deployment) for deployment in deployments.values()))


def test_with_the_webhook_away_pods_come_later_and_their_owner_says_why(demo: LegacyDemo) -> None:
    """The controller, which is the webhook too, is killed before a Deployment comes, and again as its pods
    come."""
    (deployment,) = manifests.read(EXAMPLES / "legacy-alnair" / "four.yaml")
    name = objects.name(deployment)
    demo.kill("controller", stay_down=True)
    demo.apply(deployment)

    def told() -> bool:
        events, _ = demo.client.list(kinds.EVENTS, namespace="default")
        return any(
            event["reason"] == "FailedCreate" and "legacy.koordra.io" in event["message"] for event in events
        )

    eventually(told, "an Event that names the webhook", timeout=LONG)
    assert not demo.pods(name), "no pod is stored past the webhook"
    demo.until(lambda: demo.pods(name), "the first pod")
    demo.kill("controller")
    demo.running(name, 4)
    alnair(demo, demo.pods(name))
    demo.gone(name)


def test_a_template_deleted_while_nobody_looks_is_made_again(demo: LegacyDemo) -> None:
    """A pod is stored, the controller dies, the template goes before kube-controller-manager's part has made
    the claim."""
    (deployment,) = manifests.read(EXAMPLES / "legacy-hami" / "vgpus.yaml")
    name = objects.name(deployment)
    deployment["spec"]["replicas"] = 0
    demo.apply(deployment)
    made = demo.client.create(kinds.PODS, _pod_of(deployment), namespace="default")
    template = made["spec"]["resourceClaims"][0]["resourceClaimTemplateName"]
    demo.running(name, 1)
    demo.client.delete(kinds.PODS, "single", namespace="default", grace_period=0)
    demo.until(lambda: not demo.pods(name), "the pod's end")
    demo.kill("controller", stay_down=True)
    demo.client.delete(kinds.RESOURCE_CLAIM_TEMPLATES, template, namespace="default")
    rewritten = {
        **made,
        "metadata": {key: made["metadata"][key] for key in ("name", "labels", "annotations")},
    }
    rewritten["spec"] = {key: value for key, value in made["spec"].items() if key != "nodeName"}
    demo.client.create(kinds.PODS, rewritten, namespace="default")
    demo.running(name, 1)
    assert demo.client.get(kinds.RESOURCE_CLAIM_TEMPLATES, template, namespace="default")
    demo.client.delete(kinds.PODS, "single", namespace="default", grace_period=0)
    demo.gone(name)


def _pod_of(deployment: Object) -> Object:
    template = deployment["spec"]["template"]
    metadata = {**template["metadata"], "name": "single"}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": template["spec"]}


def plain(demo: LegacyDemo, pods: list[Object]) -> None:
    cards = [card(result) for pod in pods for result in results(demo.claim(pod))]
    assert len(set(cards)) == len(cards) == 4


def hami(demo: LegacyDemo, pods: list[Object]) -> None:
    (pod,) = pods
    one, other = results(demo.claim(pod))
    assert card(one) != card(other)
    env = demo.environment(pod)["main"]
    assert env["CUDA_DEVICE_MEMORY_LIMIT_0"] == env["CUDA_DEVICE_MEMORY_LIMIT_1"] == "8000m"
    assert "CUDA_DEVICE_SM_LIMIT" not in env, "nothing enforces it"


def koordinator(demo: LegacyDemo, pods: list[Object]) -> None:
    (pod,) = pods
    gpu, nic = results(demo.claim(pod))
    slices, _ = demo.client.list(kinds.RESOURCE_SLICES)
    roots = {
        (entry["spec"]["nodeName"], device["name"]): device["attributes"].get(names.STANDARD_PCIE_ROOT)
        for entry in slices
        for device in entry["spec"].get("devices") or ()
    }
    assert roots[card(gpu)] == roots[card(nic)] is not None


def aliyun(demo: LegacyDemo, pods: list[Object]) -> None:
    (pod,) = pods
    one, other = results(demo.claim(pod))
    assert card(one) == card(other)
    env = demo.environment(pod)
    assert {name: env[name]["ALIYUN_COM_GPU_MEM_CONTAINER"] for name in env} == {"one": "4", "other": "6"}
    assert {env[name]["ALIYUN_COM_GPU_MEM_POD"] for name in env} == {"10"}


def alnair(demo: LegacyDemo, pods: list[Object]) -> None:
    found = [result for pod in pods for result in results(demo.claim(pod))]
    assert len(found) == 4
    assert len({card(result) for result in found}) == 1
    for result in found:
        assert {"cores": "25", "memory": "10Gi"}.items() <= result["consumedCapacity"].items()


def consumed(memory: str, cores: str) -> Any:
    def check(demo: LegacyDemo, pods: list[Object]) -> None:
        (pod,) = pods
        (result,) = results(demo.claim(pod))
        assert {"cores": cores, "memory": memory}.items() <= result["consumedCapacity"].items()

    return check


_WHAT = {
    "legacy-plain": plain,
    "legacy-hami": hami,
    "legacy-koordinator": koordinator,
    "legacy-aliyun": aliyun,
    "legacy-alnair": alnair,
    "legacy-elastic-gpu": consumed("4Gi", "10"),
    "legacy-tke": consumed("4Gi", "20"),
    "legacy-volcano": consumed("4Gi", "50"),
}
