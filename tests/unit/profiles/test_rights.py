"""The rights of the component `profiler`: exactly what it uses, and of a TrainingJob's status its profile
alone."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from koordra.api.kinds import NAMESPACES, PODS, RESOURCE_CLAIMS, TRAINING_JOBS
from koordra.api.resource_class import CONFIG_MAPS
from koordra.cli.cluster.use.profile.history import History
from koordra.errors import Forbidden
from koordra.kube.client import KubeClient
from koordra.kube.kubeconfig import new_client
from koordra.kubelet_plugin.sampling.pod_use import PodKey
from koordra.kubelet_plugin.sampling.profiles import Recording
from koordra.profiles.config_map import CONFIG_MAP, Recommended, read_recommended
from koordra.profiles.profile import PodProfile
from koordra.profiles.store import open_store
from tests.cluster.installation import account_kubeconfig
from tests.fakes.admission_policy import ACCOUNTS, policies, refusal
from tests.patience import PATIENCE
from tests.unit.compat.pods import container, pod
from tests.unit.deploy.test_rbac import ROOT, Cluster, granted
from tests.unit.profiles.test_command import START, profile
from tests.unit.use.served_cluster import Served, serve_plugin

ACCOUNT = "koordra-profiler"
PROFILE = {"pods": 1}
REMEMBERED: dict[str, Any] = {
    "state": "Running",
    "range": "1-2",
    "replicas": 1,
    "running": 1,
    "completionTime": "2026-11-29T00:00:00Z",
    "releases": [{"at": "2026-11-29T00:00:00Z", "until": "2026-11-29T00:01:00Z"}],
    "moves": {"count": 1, "last": "2026-11-29T00:00:00Z"},
    "conditions": [{"type": "Short", "status": "True"}],
}


def said(before: dict[str, Any], after: dict[str, Any], *, account: str = ACCOUNT) -> str:
    policy = policies(ROOT / "profiler" / "policy.yaml")["koordra-profiler-writes"]
    old, new = ({"metadata": {"name": "j"}, **({"status": one} if one else {})} for one in (before, after))
    return refusal(policy, old, new, account=account) or ""


def test_every_field_of_the_status_is_kept_from_it_but_the_profile() -> None:
    assert said({}, {"profile": PROFILE}) == ""
    assert said(REMEMBERED, {**REMEMBERED, "profile": PROFILE}) == ""
    for name, value in REMEMBERED.items():
        without = {key: one for key, one in REMEMBERED.items() if key != name}
        for before, after in (
            (REMEMBERED, without),
            (without, REMEMBERED),
            ({}, {name: value}),
            ({name: value}, {"profile": PROFILE}),
        ):
            assert "status.profile alone" in said(before, after), name
    assert said(REMEMBERED, {}, account="koordra-controller") == ""


def test_of_the_job_it_is_kept_from_all_but_its_annotation() -> None:
    policy = policies(ROOT / "profiler" / "policy.yaml")["koordra-profiler-annotates"]
    own, notes = "koordra.io/recommended-share", {"a": "b"}
    there: dict[str, Any] = {"metadata": {"name": "j", "annotations": notes}, "spec": {"maxReplicas": 1}}

    def refused(*, account: str = ACCOUNT, spec: Any = None, **metadata: Any) -> bool:
        new = {"metadata": {**there["metadata"], **metadata}, "spec": spec or there["spec"]}
        said = refusal(policy, there, new, account=account)
        assert said in (None, "koordra's profiler may write its own annotation alone")
        return said is not None

    assert not refused(annotations={**notes, own: "text"})
    assert not refused(spec={"maxReplicas": 9}, account="koordra-controller")
    for changed in (
        {"spec": {"maxReplicas": 9}},
        {"annotations": {"a": "c"}},
        {"annotations": {own: "text"}},
        {"annotations": {**notes, "koordra.io/gang": "g"}},
        {"labels": {"x": "y"}},
        {"finalizers": ["x/y"]},
        {"ownerReferences": [{"uid": "u"}]},
    ):
        assert refused(**changed), changed


def test_the_policy_knows_every_field_of_the_status() -> None:
    crd = yaml.safe_load((ROOT / "training" / "trainingjobs.yaml").read_text())
    (version,) = crd["spec"]["versions"]
    known = version["schema"]["openAPIV3Schema"]["properties"]["status"]["properties"]
    assert set(known) == {*REMEMBERED, "profile"}


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    found = Cluster(tmp_path, more=("training", "profiler"))
    yield found
    found.server.terminate()
    found.server.wait(PATIENCE)


@pytest.mark.long
def test_the_rights_are_exactly_what_is_used(cluster: Cluster, tmp_path: Path) -> None:
    client = cluster.client
    client.create(NAMESPACES, {"metadata": {"name": "team"}})
    body = {
        "framework": "PyTorch",
        "minReplicas": 1,
        "maxReplicas": 1,
        "template": {"spec": {"containers": [container()]}},
    }
    job = client.create(TRAINING_JOBS, {"metadata": {"name": "train"}, "spec": body}, namespace="team")
    claim = {
        "metadata": {"name": "c"},
        "spec": {
            "devices": {"requests": [{"name": "gpu", "exactly": {"deviceClassName": "gpu.koordra.io"}}]}
        },
    }
    client.create(RESOURCE_CLAIMS, claim, namespace="team")
    owner = {
        "apiVersion": "koordra.io/v1alpha1",
        "kind": "TrainingJob",
        "name": "train",
        "uid": job["metadata"]["uid"],
        "controller": True,
    }
    own = pod(container(), resourceClaims=[{"name": "gpu", "resourceClaimName": "c"}])
    own["metadata"] |= {"name": "train-0", "ownerReferences": [owner]}
    made = client.create(PODS, own, namespace="team")
    used: PodProfile = profile("train-0", made["metadata"]["uid"])
    document = json.dumps(Recording("n0", {PodKey("team", "train-0", used.uid): used}).document)
    path = account_kubeconfig(client, str(cluster.kubeconfig), tmp_path / "own", account=ACCOUNT)
    profiler: KubeClient = new_client(str(path))
    with Served(lambda path: document if path == "/profiles" else None) as port:
        serve_plugin(client, "n0", port)
        store = open_store(f"sqlite:///{tmp_path / 'profiles.db'}")
        history = History(profiler, store, lambda: float(START))
        assert history.attempt().at_most == 60
    (kept,) = store.of_job("team", "train")
    assert list(kept.claims) == ["c"]
    job = client.get(TRAINING_JOBS, "train", namespace="team")
    assert job["status"]["profile"]["pods"] == 1
    assert "memory 12544Mi / cores 25" in job["metadata"]["annotations"]["koordra.io/recommended-share"]
    found = client.get(CONFIG_MAPS, CONFIG_MAP, namespace="koordra-system")
    assert read_recommended(found) == {"team": {kept.template: Recommended(12544 << 20, 25, START + 3600)}}
    lines = [json.loads(line) for line in cluster.audit.read_text().splitlines()]
    asked = {
        (one["group"], one["resource"], one["verb"]) for one in lines if one["user"] == ACCOUNTS + ACCOUNT
    }
    assert asked - {("resource.k8s.io", "", "get"), ("", "", "get")} == granted("profiler")
    forged = {"status": {"state": "Complete"}}
    with pytest.raises(Forbidden, match=r"status\.profile alone"):
        profiler.patch(TRAINING_JOBS, "train", forged, namespace="team", subresource="status")
    with pytest.raises(Forbidden, match="its own annotation alone"):
        profiler.patch(TRAINING_JOBS, "train", {"spec": {"maxReplicas": 9}}, namespace="team")
    with pytest.raises(Forbidden):
        profiler.list(PODS, namespace="team")
