"""A job on the devcluster, whose processes are scripted; the plugin's recorder, `koordra profiler`, the
ConfigMap and the webhook, in koordra's own processes: the same job asks for as much again, and gets what the
first one used."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from koordra.api import kinds, names, objects
from koordra.api.objects import Object
from koordra.api.resource_class import CONFIG_MAPS
from koordra.kube.client import KubeClient
from koordra.topology import presets
from koordra_devcluster.demo.installation import Installation
from koordra_devcluster.demo.needs import Needs
from koordra_devcluster.demo.programs import Layout
from koordra_devcluster.demo.run import Demo
from koordra_devcluster.kubelet.pods import pod_address
from tests.fakes import nvml_library
from tests.fakes.driver_homes import MULTI_ARCH
from tests.patience import PATIENCE
from tests.unit.use.served_cluster import Served, plugin_pod

pytestmark = pytest.mark.slow

PODS = 16
USED, ASKED, ENOUGH = 3 << 30, "20Gi", "3584Mi"
"""Bytes of a pod's process; what each pod asks for; the first with a tenth more, in steps of 256 MiB."""
CGROUP = Path("/sys/fs/cgroup")
SHARE = "team-share"
LONGEST = 20 * PATIENCE
"""Seconds: a share is recommended after 600 of all pods together, and nodes serve profiles once a minute."""


def manifests() -> list[Object]:
    capacity = {"requests": {"memory": ASKED}}
    asks = {"name": "gpu", "exactly": {"deviceClassName": SHARE, "capacity": capacity}}
    domain = names.DOMAIN.removesuffix("/")
    gpu = f'device.driver == "{names.DRIVER}" && device.attributes["{domain}"].type == "gpu"'
    return [
        {
            "apiVersion": "resource.k8s.io/v1",
            "kind": "DeviceClass",
            "metadata": {"name": SHARE, "annotations": {names.APPLY_RECOMMENDATION: "Smaller"}},
            "spec": {"selectors": [{"cel": {"expression": gpu}}]},
        },
        {
            "apiVersion": "resource.k8s.io/v1",
            "kind": "ResourceClaimTemplate",
            "metadata": {"name": "share", "namespace": "default"},
            "spec": {"spec": {"devices": {"requests": [asks]}}},
        },
    ]


def job(name: str) -> Object:
    container = {
        "name": "main",
        "image": "train",
        "command": ["torchrun", "train.py"],
        "resources": {"claims": [{"name": "gpu"}]},
    }
    spec = {
        "containers": [container],
        "resourceClaims": [{"name": "gpu", "resourceClaimTemplateName": "share"}],
    }
    return {
        "apiVersion": kinds.TRAINING_JOBS.api_version,
        "kind": kinds.TRAINING_JOBS.kind,
        "metadata": {"name": name, "namespace": "default"},
        "spec": {
            "framework": "PyTorch",
            "minReplicas": PODS,
            "maxReplicas": PODS,
            "template": {"spec": spec},
        },
    }


class Run:
    """The cluster, with NVML doubled below it. `processes`: what stands for the pods' programs."""

    def __init__(self, folder: Path, nvml: nvml_library.FakeNvml) -> None:
        self.folder, self.nvml = folder, nvml
        layout, machine = Layout(folder, ("node-0",)), presets.load("hgx-h100")
        self.uuids = {gpu.name: gpu.uuid for gpu in machine.machine(serial="node-0").gpus}
        self.demo = Demo(
            layout,
            machines=[machine],
            needs=Needs(training=True, nodes=1),
            timeout=LONGEST,
            stop=threading.Event(),
            say=print,
        )
        library = layout.node("node-0") / "machine" / MULTI_ARCH / "libnvidia-ml.so.1"
        library.parent.mkdir(parents=True)
        shutil.copy(nvml.library / library.name, library)
        nvml.describe(machine.machine(serial="node-0"))
        nvml.order()
        self.client: KubeClient

    def plugin(self) -> tuple[str, int]:
        """The address of its pod, at which a plugin in a pod would be, and its port on this machine."""
        scraped = json.loads(self.demo.layout.prometheus.read_text())["scrape_configs"][0]["static_configs"]
        (port,) = (
            int(target.rpartition(":")[2])
            for one in scraped
            for target in one["targets"]
            if one["labels"]["job"] == "kubelet-plugin"
        )
        return pod_address(self.client.create(kinds.PODS, plugin_pod("node-0", port))), port

    def until(self, done: Callable[[], bool], what: str) -> None:
        for _ in range(round(LONGEST)):
            if done():
                return
            self.demo.rest(1.0)
        raise AssertionError(f"not seen: {what}; see {self.demo.layout.logs}")

    def running(self, name: str) -> list[Object]:
        """The pods of a job, once all run."""

        def found() -> list[Object]:
            pods, _ = self.client.list(kinds.PODS, namespace="default")
            return [
                pod
                for pod in pods
                if objects.name(pod).startswith(f"{name}-")
                and objects.status_of(pod).get("phase") == "Running"
            ]

        self.until(lambda: len(found()) == PODS, f"{PODS} pods of {name} run")
        return found()

    def claim_of(self, pod: Object) -> Object:
        (name,) = objects.pod_claim_names(pod).values()
        return self.client.get(kinds.RESOURCE_CLAIMS, str(name), namespace="default")

    def card_of(self, pod: Object) -> str:
        allocation = objects.status_of(self.claim_of(pod))["allocation"]
        (result,) = allocation["devices"]["results"]
        return str(self.uuids[result["device"]])

    def job(self, name: str) -> Object:
        return self.client.get(kinds.TRAINING_JOBS, name, namespace="default")


def answered(plugin: str, path: str) -> str:
    with urllib.request.urlopen(plugin + path, timeout=PATIENCE) as answer:
        text: str = answer.read().decode()
        return text


def container_of(pod: Object) -> str:
    (status,) = objects.status_of(pod)["containerStatuses"]
    return str(status["containerID"]).rpartition("/")[2]


@contextmanager
def programs(pods: list[Object]) -> Iterator[dict[str, int]]:
    """A process for each pod, in a cgroup as a kubelet's; pids by pod."""
    hierarchy = CGROUP if (CGROUP / "cgroup.procs").exists() else CGROUP / "systemd"
    top = Path(tempfile.mkdtemp(prefix="koordra-test-", dir=hierarchy))
    running: dict[str, subprocess.Popen[bytes]] = {}
    places = [top]
    try:
        for pod in pods:
            own = top / f"pod{objects.uid(pod)}"
            places += [own, own / container_of(pod)]
            places[-1].mkdir(parents=True)
            program = running[objects.name(pod)] = subprocess.Popen(["sleep", "infinity"])
            (places[-1] / "cgroup.procs").write_text(str(program.pid))
        yield {name: program.pid for name, program in running.items()}
    finally:
        for program in running.values():
            program.kill()
            program.wait()
        for place in reversed(places):
            place.rmdir()


@contextmanager
def profiler(run: Run) -> Iterator[None]:
    store = f"sqlite:///{run.folder / 'profiles.db'}"
    command = ["profiler", "--store", store, "--metrics-address", ""]
    with (run.demo.layout.logs / "profiler.log").open("wb") as log:
        own = [sys.executable, "-m", "koordra", *command, "--kubeconfig", str(run.demo.layout.kubeconfig)]
        process = subprocess.Popen(own, stderr=log)
    try:
        yield
    finally:
        process.terminate()
        assert process.wait(PATIENCE) == 0


@pytest.fixture
def run(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Iterator[Run]:
    if os.geteuid() != 0:
        pytest.skip("only root makes cgroups")
    nvml = nvml_library.FakeNvml(tmp_path_factory.mktemp("nvml"), nvml_library.build())
    for name, value in nvml.environment.items():
        monkeypatch.setenv(name, value)
    with tempfile.TemporaryDirectory(prefix="k") as folder:
        made = Run(Path(folder), nvml)
        try:
            made.client = made.demo.up()
            installation = Installation(made.client, made.demo.webhook_port, more=("training", "profiler"))
            installation.apply()
            made.until(installation.webhook_answers, "the webhook, by the configuration of the component")
            address, port = made.plugin()
            with Served(partial(answered, f"http://127.0.0.1:{port}"), (address, port)):
                yield made
        finally:
            made.demo.down()


def test_a_job_that_comes_again_gets_what_it_used(run: Run) -> None:
    assert not run.demo.apply(run.client, [*manifests(), job("train")])
    pods = run.running("train")
    with programs(pods) as pids, profiler(run):
        run.nvml.processes(*((run.card_of(pod), "compute", pids[objects.name(pod)], USED) for pod in pods))

        def recommended() -> dict[str, Any]:
            data = run.client.get(CONFIG_MAPS, "koordra-recommendations", namespace="koordra-system").get(
                "data"
            )
            found: dict[str, Any] = json.loads((data or {}).get("recommendations.json", "{}")).get(
                "default", {}
            )
            return found

        run.until(lambda: bool(recommended()), "a recommendation for the template")
        (one,) = recommended().values()
        assert (one["memory"], one["cores"]) == (3584 << 20, 0)
        run.until(
            lambda: names.RECOMMENDED_SHARE in objects.annotations_of(run.job("train")), "the annotation"
        )
        text = objects.annotations_of(run.job("train"))[names.RECOMMENDED_SHARE]
        assert text == f"asked memory {ASKED}, p99 used 3.0Gi, at most 3.0Gi: memory {ENOUGH} would do"
        profile = objects.status_of(run.job("train"))["profile"]
        assert profile["pods"] == PODS
        assert profile["templates"][0]["series"]["gpuMemory"]["peak"] == USED
    run.client.delete(kinds.TRAINING_JOBS, "train", namespace="default")
    assert not run.demo.apply(run.client, [job("again")])
    for pod in run.running("again"):
        claim = run.claim_of(pod)
        (request,) = objects.spec_of(claim)["devices"]["requests"]
        assert request["exactly"]["capacity"]["requests"] == {"memory": ENOUGH}
        (result,) = objects.status_of(claim)["allocation"]["devices"]["results"]
        assert result["consumedCapacity"]["memory"] == ENOUGH
        assert json.loads(objects.annotations_of(claim)[names.ASKED_SHARE])["memory"] == ASKED
