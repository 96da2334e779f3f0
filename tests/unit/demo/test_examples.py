"""Every folder of deploy/examples can be named, needs what its kinds say, has nothing wrong in it, and its
README shows what comes of it."""

from __future__ import annotations

import shutil
import textwrap
from pathlib import Path

import pytest

from koordra.errors import InvalidInput
from koordra_devcluster.demo import checks, examples, manifests
from koordra_devcluster.demo.needs import Needs
from koordra_devcluster.demo.plan import listed, planned
from koordra_devcluster.demo.programs import installed

OPERATED = {
    "job-jobset": ("jobset",),
    "job-kueue": ("kueue",),
    "kueue-shares": ("kueue",),
    "job-training-operator": ("training-operator",),
    "job-volcano": ("volcano",),
    "rdma": ("multus",),
}


@pytest.mark.parametrize("name", examples.names())
def test_an_example_is_whole_and_says_what_comes_of_it(name: str) -> None:
    example = examples.load(name)
    assert example.documents
    needs = Needs.of(example.documents)
    assert needs.operators == OPERATED.get(name, ())
    assert needs.legacy is (name.startswith("legacy-") or name == "elastic-gpu")
    assert needs.elastic is (name == "elastic-gpu")
    assert needs.resource_classes is name.startswith("resource-class")
    assert needs.reservations is (name == "reservation")
    assert checks.problems(example.documents, installed=installed(needs), gates=needs.gates) == []
    told = (examples.folder() / name / examples.FILE).read_text()
    readme = (examples.folder() / name / "README.md").read_text()
    assert readme.startswith(f"# {example.title}\n")
    assert f"    koordra demo --example {name}\n" in readme
    outcome = textwrap.dedent(told.partition("outcome:\n")[2])
    assert outcome
    assert readme.endswith(f"```yaml\n{outcome}```\n"), "the README ends with the outcome of example.yaml"


def _containers(value: object) -> list[dict[str, object]]:
    if isinstance(value, list):
        return [found for each in value for found in _containers(each)]
    if not isinstance(value, dict):
        return []
    return [value] * ("image" in value) + [found for each in value.values() for found in _containers(each)]


@pytest.mark.parametrize(
    "path", sorted(manifests.deploy_folder().glob("examples/*/*.yaml")), ids=lambda p: p.stem
)
def test_images_are_pinned_and_pulled_once(path: Path) -> None:
    for container in _containers(manifests.read(path)):
        _, _, tag = str(container["image"]).partition(":")
        assert tag not in ("", "latest"), container["image"]
        assert container["imagePullPolicy"] == "IfNotPresent"


def test_examples_are_listed_with_their_titles() -> None:
    assert [line.split()[0] for line in listed().splitlines()] == ["EXAMPLE", *examples.names()]
    assert "A claim that waits, and says why" in listed()


def test_a_wrong_name_is_told_the_right_one() -> None:
    with pytest.raises(InvalidInput, match="write three-jobs"):
        examples.load("three-job")
    with pytest.raises(InvalidInput, match="the examples are does-not-fit, "):
        examples.load("xxxxxxxxxxxx")


def test_options_that_exclude_each_other() -> None:
    with pytest.raises(InvalidInput, match="exclude each other"):
        planned([Path("a.yaml")], example="rdma", nodes=None, preset="hgx-h100")
    with pytest.raises(InvalidInput, match="an example has nodes of its own"):
        planned([], example="rdma", nodes=2, preset="hgx-h100")
    with pytest.raises(InvalidInput, match=r"use one of aws-.*, hgx-h100, "):
        planned([], example=None, nodes=2, preset="hgx")


def test_without_a_name_the_demos_own_are_shown() -> None:
    plan = planned([], example=None, nodes=None, preset="hgx-h100")
    assert (len(plan.machines), len(plan.documents)) == (2, 2 * len(manifests.EXAMPLES))
    assert plan.first == []


def test_what_goes_first_is_named() -> None:
    plan = planned([], example="three-jobs", nodes=None, preset="hgx-h100")
    assert [one["metadata"]["name"] for one in plan.first] == ["whole-node", "pretrain"]
    assert len(plan.machines) == 6


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("schema: koordra.io/example/v2", "schema: is not koordra.io/example/v1"),
        ("schema: koordra.io/example/v1\nnode: [a]", "node: is no field of an example"),
        (
            "schema: koordra.io/example/v1\nnodes: [a.yaml]\noutcome: {pods: [{name: p}]}",
            "nodes: there is no machine",
        ),
    ],
)
def test_a_description_that_is_wrong_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, words: str
) -> None:
    shutil.copytree(examples.folder() / "rdma", tmp_path / "mine")
    (tmp_path / "mine" / examples.FILE).write_text(text)
    monkeypatch.setattr(examples, "folder", lambda: tmp_path)
    with pytest.raises(InvalidInput) as caught:
        examples.load("mine")
    assert words in str(caught.value)
    assert "example.yaml" in str(caught.value)


def test_a_file_of_gangs_has_a_node_for_each_member(tmp_path: Path) -> None:
    """-f with the file of an example needs no flag."""
    for name, nodes in (("job-indexed", 4), ("job-training-operator", 7), ("gpu-share-with-nic", 2)):
        plan = planned(examples.files(name), example=None, nodes=None, preset="hgx-h100")
        assert len(plan.machines) == nodes
