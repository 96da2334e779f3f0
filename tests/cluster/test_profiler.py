"""What `koordra profiler` reads and writes with its own account, judged by the cluster's API server: profiles
through its proxy of the plugin's pod, what is recommended, which the webhook gives where a class says so, and
nothing else of TrainingJobs."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from koordra.api import names, objects
from koordra.api.kinds import DEVICE_CLASSES, PODS, RESOURCE_CLAIMS, TRAINING_JOBS
from koordra.api.objects import Object
from koordra.api.resource_class import CONFIG_MAPS
from koordra.cli.cluster.use.profile.history import History
from koordra.errors import Forbidden, Invalid
from koordra.kube.client import KubeClient
from koordra.kube.kubeconfig import new_client
from koordra.kubelet_plugin.sampling.pod_use import PodKey
from koordra.kubelet_plugin.sampling.profiles import Recording
from koordra.profiles.applied import SMALLER
from koordra.profiles.config_map import CONFIG_MAP, read_recommended
from koordra.profiles.store import open_store
from tests.cluster.behind_service import NAMESPACE, reached, standing_in
from tests.cluster.installation import account_kubeconfig
from tests.cluster.test_gangs import PATIENCE, pod_spec
from tests.cluster.test_joint_allocation import request
from tests.cluster.test_training import Training
from tests.cluster.waiting import NODES, eventually
from tests.cluster.without_kubelet import ends_deleted
from tests.unit.profiles.test_command import START, profile
from tests.unit.use.served_cluster import Served, plugin_pod

pytestmark = pytest.mark.cluster

ACCOUNT = "koordra-profiler"
CLASS = "koordra-test-share"


class Shares(Training):
    def starts(self, job: str) -> Object:
        """The pod of a TrainingJob of one, with a share of a card; it runs."""
        one = {"framework": "PyTorch", "minReplicas": 1, "maxReplicas": 1}
        self.job(job, template={"spec": pod_spec("share")}, **one)
        eventually(lambda: self.running(job), f"the pod of {job}", timeout=PATIENCE)
        (found,) = self.pods(job).values()
        return found

    def asked(self, pod: Object) -> Object:
        (name,) = objects.pod_claim_names(pod).values()
        claim = self.client.get(RESOURCE_CLAIMS, str(name), namespace=self.namespace)
        amounts: Object = claim["spec"]["devices"]["requests"][0]["exactly"]["capacity"]["requests"]
        return amounts


@pytest.fixture
def shares(client: KubeClient, namespace: str) -> Iterator[Shares]:
    training = Shares(client, namespace)
    like = client.get(DEVICE_CLASSES, names.CLASS_GPU)
    client.create(DEVICE_CLASSES, {"metadata": {"name": CLASS}, "spec": like["spec"]})
    training.template("share", [request("gpu", CLASS, memory="40Gi", cores="50")])
    yield training
    for job in client.list(TRAINING_JOBS, namespace=namespace)[0]:
        client.delete(TRAINING_JOBS, objects.name(job), namespace=namespace, propagation="Background")
    eventually(lambda: ends_deleted(client, namespace), "no pods left", timeout=PATIENCE)
    client.delete(DEVICE_CLASSES, CLASS)


@pytest.fixture
def profiler(client: KubeClient, kubeconfig: str, tmp_path: Path) -> KubeClient:
    own = account_kubeconfig(client, kubeconfig, tmp_path / "own", account=ACCOUNT)
    return new_client(str(own), user_agent=ACCOUNT)


def test_what_a_job_used_is_kept_recommended_and_given_to_the_next(
    client: KubeClient, profiler: KubeClient, shares: Shares, tmp_path: Path
) -> None:
    pod, place = shares.starts("used"), shares.namespace
    used = profile(objects.name(pod), objects.uid(pod), node=NODES[0], place=place)
    document = json.dumps(Recording(NODES[0], {PodKey(place, used.pod, used.uid): used}).document)
    store = open_store(f"sqlite:///{tmp_path / 'profiles.db'}")
    with (
        Served(lambda path: document if path == "/profiles" else None) as port,
        reached(client, port) as (address, mine),
        standing_in(client, plugin_pod(NODES[0], mine), address),
    ):
        History(profiler, store, lambda: float(START)).attempt()
    (kept,) = store.of_job(place, "used")
    assert list(kept.claims) == list(objects.pod_claim_names(pod).values())
    job = client.get(TRAINING_JOBS, "used", namespace=place)
    assert job["status"]["profile"]["pods"] == 1
    assert "memory 12544Mi / cores 25" in job["metadata"]["annotations"]["koordra.io/recommended-share"]
    found = client.get(CONFIG_MAPS, CONFIG_MAP, namespace=NAMESPACE)
    recommended = read_recommended(found)[place][kept.template]
    assert (recommended.memory, recommended.cores) == (12544 << 20, 25)

    applied = {"metadata": {"annotations": {names.APPLY_RECOMMENDATION: SMALLER}}}
    client.patch(DEVICE_CLASSES, CLASS, applied)
    assert shares.asked(pod) == {"memory": "40Gi", "cores": "50"}
    assert shares.asked(shares.starts("again")) == {"memory": "12544Mi", "cores": "25"}


def test_it_changes_and_reads_nothing_else(profiler: KubeClient, shares: Shares) -> None:
    shares.starts("kept")
    place, complete = shares.namespace, {"status": {"state": "Complete"}}
    with pytest.raises((Forbidden, Invalid), match=r"status\.profile alone"):
        profiler.patch(TRAINING_JOBS, "kept", complete, namespace=place, subresource="status")
    with pytest.raises((Forbidden, Invalid), match="its own annotation alone"):
        profiler.patch(TRAINING_JOBS, "kept", {"metadata": {"labels": {"a": "b"}}}, namespace=place)
    with pytest.raises(Forbidden):
        profiler.list(PODS, namespace=place)
    with pytest.raises(Forbidden):
        profiler.get(CONFIG_MAPS, "koordra-quota", namespace=NAMESPACE)
