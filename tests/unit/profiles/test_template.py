"""Which pods are known as the same that ran before."""

from __future__ import annotations

from typing import Any

import pytest

from koordra.api.classic.notes import Notes
from koordra.compat.rewrite import rewrite
from koordra.compat.settings import Settings
from koordra.profiles.template import LENGTH, template_of
from tests.unit.compat.pods import Dict, asking, container, pod

RUNS = {"command": ["python", "train.py"], "args": ["--batch", "32"]}


def of_job(name: str, rank: int, *, env: Dict | None = None, **more: Any) -> Dict:
    said = {"RANK": str(rank), "MASTER_ADDR": f"{name}-0.{name}", "DATA": "/data", **(env or {})}
    made = pod(
        container(env=[{"name": key, "value": value} for key, value in said.items()], **{**RUNS, **more})
    )
    made["metadata"] |= {"name": f"{name}-{rank}", "ownerReferences": [{"name": name, "controller": True}]}
    return made


BASE = template_of(of_job("train", 0))


def test_it_is_short() -> None:
    assert len(BASE) == LENGTH


@pytest.mark.parametrize(
    "other",
    [
        of_job("train", 3),
        of_job("train-2026-11-30", 0),
        of_job("train", 0, ask={"nvidia.com/gpu": 8}),
        of_job("train", 0, volumeMounts=[{"name": "kube-api-access-x7k2p", "mountPath": "/var/run"}]),
        {**of_job("train", 0), "status": {"phase": "Running"}},
    ],
    ids=["rank", "name", "share", "filled in", "status"],
)
def test_the_same_job_is_known_again(other: Dict) -> None:
    assert template_of(other) == BASE


@pytest.mark.parametrize(
    "other",
    [
        of_job("train", 0, args=["--batch", "64"]),
        of_job("train", 0, command=["python", "other.py"]),
        of_job("train", 0, image="registry.example/app:2"),
        of_job("train", 0, env={"DATA": "/other"}),
        of_job("train", 0, env={"MORE": "1"}),
        of_job("train", 0, workingDir="/src"),
    ],
    ids=["args", "command", "image", "variable", "one more variable", "folder"],
)
def test_another_program_is_another(other: Dict) -> None:
    assert template_of(other) != BASE


def test_a_name_within_a_word_is_no_name() -> None:
    one = of_job("a", 0, env={"DATA": "/data/a"})
    assert template_of(one) == template_of(of_job("b", 0, env={"DATA": "/data/b"}))
    assert template_of(one) != template_of(of_job("b", 0, env={"DATA": "/dbtb/b"}))


def test_admission_changes_nothing() -> None:
    manifest = asking({"nvidia.com/gpumem": 4000}, priorityClassName="x")
    assert template_of(rewrite(manifest, Settings(), Notes("pod")).pod) == template_of(manifest)


@pytest.mark.parametrize(
    "spec",
    [
        None,
        [],
        "x",
        {"containers": "x"},
        {"containers": [5, {"env": 7}, {"env": ["x", {"name": 5}]}]},
        {"containers": [{"args": {"a": {1, 2}}}]},
    ],
)
def test_users_may_have_written_anything(spec: Any) -> None:
    assert len(template_of({"metadata": {"ownerReferences": [7, {}]}, "spec": spec})) == LENGTH
