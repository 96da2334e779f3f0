"""Templates that meet at an etcd meet at the job's own store, or it is said that they do not."""

from __future__ import annotations

import pytest

from koordra.api.objects import Object
from koordra.controller.training import pods, rendezvous
from koordra.controller.training.decisions import NewPod
from koordra.controller.training.training_job import read_job
from tests.unit.training.training_cluster import TrainingCluster, spec, template

AT = "train-000.train:29400"


@pytest.mark.parametrize(
    ("words", "meant"),
    [
        (
            ["torchrun", "--rdzv_backend=etcd", "--rdzv_endpoint=etcd:2379", "train.py", "--lr", "1"],
            ["torchrun", "--rdzv-backend=c10d", f"--rdzv-endpoint={AT}", "train.py", "--lr", "1"],
        ),
        (
            [
                "--rdzv-backend",
                "etcd-v2",
                "--rdzv-endpoint",
                "etcd:2379",
                "--rdzv-conf",
                "protocol=https",
                "x.py",
            ],
            ["--rdzv-backend=c10d", f"--rdzv-endpoint={AT}", "x.py"],
        ),
        (["torchrun", "--rdzv-backend", "c10d", "--rdzv-endpoint", "mine:1"],) * 2,
        (["torchrun", "--rdzv-backend=static", "etcd"],) * 2,
        (["--rdzv-backend"],) * 2,
        ([],) * 2,
    ],
    ids=["alnair", "spaces", "c10d", "static", "cut off", "nothing"],
)
@pytest.mark.parametrize("field", ["command", "args"])
def test_options_are_rewritten_where_they_name_an_etcd(
    field: str, words: list[str], meant: list[str]
) -> None:
    container: Object = {"name": "main", field: words}
    assert rendezvous.translated(container, endpoint=AT) == {"name": "main", field: meant}
    assert rendezvous.warning({"spec": {"containers": [container]}}) == ""


def test_the_environment_is_rewritten_too() -> None:
    env = [
        {"name": "PET_RDZV_BACKEND", "value": "etcd"},
        {"name": "PET_RDZV_ENDPOINT", "value": "etcd:2379"},
        {"name": "PET_RDZV_CONF", "value": "protocol=https"},
        {"name": "LR", "value": "1"},
    ]
    found = rendezvous.translated({"env": env}, endpoint=AT)["env"]
    assert {one["name"]: one["value"] for one in found} == {
        "PET_RDZV_BACKEND": "c10d",
        "PET_RDZV_ENDPOINT": AT,
        "LR": "1",
    }


def test_what_a_shell_reads_is_told() -> None:
    cluster, text = TrainingCluster(), "torchrun --rdzv_backend etcd --rdzv_endpoint etcd:2379 train.py"
    body = template()
    body["spec"]["containers"][0]["command"] = ["sh", "-c", text]
    cluster.job(template=body)
    cluster.settle()
    assert cluster.condition("Trouble")["reason"] == "NotTranslated"
    assert "container main names rdzv_backend etcd within a text" in cluster.condition("Trouble")["message"]
    assert cluster.state().value == "Running", "it is a warning"


def test_what_the_template_says_itself_stays() -> None:
    body = template()
    own = [{"name": "PET_RDZV_ENDPOINT", "value": "mine:1"}]
    body["spec"]["containers"][0]["env"] = own
    job = read_job({"metadata": {"name": "train", "uid": "u"}, "spec": spec(least=2, most=8, template=body)})
    env = pods.pod(job, NewPod(3, False, 0))["spec"]["containers"][0]["env"]
    assert [one for one in env if one["name"] == "PET_RDZV_ENDPOINT"] == own
    assert {"name": "PET_NNODES", "value": "2:8"} in env
