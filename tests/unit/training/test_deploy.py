"""deploy/kustomize/training: what the CRD refuses and in which words, what its policy lets the controller
make, and that its rights are exactly what is used."""

from __future__ import annotations

import contextlib
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from koordra.api import objects
from koordra.api.kinds import PODS, SERVICES, TRAINING_JOBS
from koordra.api.objects import Object
from koordra.controller.training import pods
from koordra.controller.training.decisions import NewPod
from koordra.controller.training.training_job import read_job
from koordra_devcluster.apiserver.access import cel_policies
from tests.cluster.installation import ROOT, account_kubeconfig
from tests.cluster.waiting import eventually
from tests.fakes.admission_policy import policies, refusal
from tests.patience import PATIENCE
from tests.unit.deploy.test_rbac import Cluster, granted
from tests.unit.training.training_cluster import spec, template

FOLDER = ROOT / "training"
(CRD,) = yaml.safe_load_all((FOLDER / "trainingjobs.yaml").read_text())
SCHEMA = CRD["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
POLICY = policies(FOLDER / "policies.yaml")["koordra-training-pods"]


def refusals(schema: Any, value: Any, before: Any = None) -> list[str]:
    """Messages of the rules that say no, of the value and of what is in it."""
    found = []
    for rule in schema.get("x-kubernetes-validations") or ():
        if "oldSelf" in rule["rule"] and before is None:
            continue
        expression = rule["rule"].replace("oldSelf", "oldObject").replace("self", "object")
        values = {"object": value, "oldObject": before}
        said = cel_policies.evaluate(expression, values, check=lambda *_: False)
        if said is not True:
            found.append(rule["message"])
    for name, inner in (schema.get("properties") or {}).items():
        if isinstance(value, dict) and name in value:
            found += refusals(inner, value[name], (before or {}).get(name))
    return found


def job(name: str = "train", **fields: Any) -> Object:
    return {"metadata": {"name": name}, "spec": spec(**fields)}


@pytest.mark.parametrize(
    "fine",
    [
        job(),
        job(framework="PyTorch", least=4, most=4),
        job(framework="MPI", least=4, most=4),
        job(framework="ElasticHorovod", migration={"policy": "WhenItPays"}),
        job("a" * 40),
    ],
    ids=str,
)
def test_what_is_let_in(fine: Object) -> None:
    assert refusals(SCHEMA, fine) == []
    assert refusals(SCHEMA, fine, fine) == []


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        (job(least=3, most=2), "minReplicas is more than maxReplicas"),
        (
            job(framework="PyTorch", least=1, most=2),
            "set minReplicas to maxReplicas, or framework to ElasticPyTorch",
        ),
        (job(framework="MPI", least=1, most=2), "MPI is never elastic, mpirun reads its hostfile once"),
        (job(launcher=template()), "ElasticHorovod and MPI have one, and no other framework"),
        (
            job(framework="PyTorch", least=1, most=1, migration={"policy": "WhenItPays"}),
            "leave migration out",
        ),
        (job("a" * 41), "at most 40 lower case letters"),
        (job("7"), "a letter first"),
        (job("a.b"), "at most 40 lower case letters, digits and dashes"),
        (
            job(template={"metadata": {"annotations": {"gate.koordra.io/gang": "x"}}, "spec": {}}),
            "annotations of gate.koordra.io are the controller's own",
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_is_refused(wrong: Object, words: str) -> None:
    (message,) = refusals(SCHEMA, wrong)
    assert words in message


@pytest.mark.parametrize(
    "change",
    [
        {"minReplicas": 2},
        {"framework": "ElasticHorovod", "launcher": template()},
        {"topology": "rack"},
        {"shrink": "ForOthers"},
    ],
    ids=str,
)
def test_what_all_pods_have_agreed_on_does_not_change(change: Object) -> None:
    old = job(least=1, most=4)
    new = {**old, "spec": {**old["spec"], **change}}
    (message,) = refusals(SCHEMA, new, old)
    assert "agreed by all pods of the job and cannot change" in message
    assert refusals(SCHEMA, {**old, "spec": {**old["spec"], "maxReplicas": 8}}, old) == []


def test_the_policy_lets_the_controller_make_what_belongs_to_jobs_and_nothing_else() -> None:
    read = read_job({"metadata": {"name": "train", "namespace": "team", "uid": "u"}, "spec": spec()})
    own, service = pods.pod(read, NewPod(0, False, 0)), pods.service(read)
    stray: Object = {
        "metadata": {"name": "x", "ownerReferences": [{"kind": "Job", "apiVersion": "batch/v1"}]}
    }
    marked = {**own, "metadata": {**own["metadata"], "annotations": {"gate.koordra.io/gang": "train"}}}
    account = "koordra-controller"
    for one in (own, service):
        assert refusal(POLICY, None, one, account=account) is None
        assert refusal(POLICY, one, None, account=account) is None
    for old, new in ((None, stray), (stray, None)):
        words = refusal(POLICY, old, new, account=account)
        assert words is not None
        assert "only pods and Services of TrainingJobs" in words
    assert "gate.koordra.io" in str(refusal(POLICY, None, marked, account=account))
    assert refusal(POLICY, None, stray, account="system:serviceaccount:team:default") is None


class Training(Cluster):
    """With the component installed; the controller serves TrainingJobs."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder, more=("training", "gangs"))

    @contextlib.contextmanager
    def serving(self) -> Iterator[None]:
        path = account_kubeconfig(
            self.client, str(self.kubeconfig), self.folder / "own", account="koordra-controller"
        )
        command = [
            sys.executable,
            "-m",
            "koordra",
            "controller",
            "--kubeconfig",
            str(path),
            "--training-jobs",
        ]
        with (self.folder / "log").open("ab") as log:
            process = subprocess.Popen(command, stderr=log)
        try:
            yield
        finally:
            process.terminate()
            process.wait(PATIENCE)


@pytest.mark.long
def test_the_rights_are_exactly_what_is_used(tmp_path: Path) -> None:
    cluster = Training(tmp_path)
    client, own = cluster.client, granted("training") - _edit()
    try:
        with cluster.serving():
            body = job(least=1, most=2)
            body["spec"]["template"]["spec"]["containers"] = [{"name": "main", "image": "x"}]
            del body["spec"]["template"]["spec"]["resourceClaims"]
            client.create(TRAINING_JOBS, body, namespace="default")
            eventually(lambda: len(_pods(client)) == 2, "the pods")
            assert client.get(SERVICES, "train", namespace="default")["spec"]["clusterIP"] == "None"
            client.patch(TRAINING_JOBS, "train", {"spec": {"maxReplicas": 1}}, namespace="default")
            eventually(lambda: len(_pods(client)) == 1, "one pod fewer")
            client.delete(PODS, _pods(client)[0], namespace="default")
            eventually(lambda: ("", "services", "get") in cluster.used(), "the Service made a second time")
            used = cluster.used()
    finally:
        cluster.server.terminate()
        cluster.server.wait(PATIENCE)
    unseen = {("koordra.io", "trainingjobs", "get")}  # of gangs with seats: tests/unit/gangs/test_seats.py
    assert own - used == unseen, "granted, but never used"
    refused = {(line["group"], line["resource"]) for line in cluster.requests() if line["code"] == 403}
    assert not refused & {(group, resource) for group, resource, _ in own}


def _edit() -> set[tuple[str, str, str]]:
    """Of the role for tenants."""
    return {("koordra.io", "trainingjobs", verb) for verb in ("create", "delete", "patch", "update")}


def _pods(client: Any) -> list[str]:
    return [objects.name(pod) for pod in client.list(PODS, namespace="default")[0]]
