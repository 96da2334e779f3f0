"""Groups of nodes as operators and people write them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from koordra.api import names
from koordra.cli.what_if.node_groups import node_groups, settings_from_file
from koordra.controller.autoscale.node_groups import node_with_slices
from koordra.controller.autoscale.settings import AutoscaleSettings
from koordra.errors import InvalidInput, InvalidManifest

GROUP = {"name": "h100", "machine": "t4x4-1nic", "max": 4}


def written(tmp_path: Path, *groups: dict[str, Any], **more: Any) -> str:
    file = tmp_path / "groups.yaml"
    file.write_text(yaml.safe_dump({"groups": [*groups], **more}))
    return str(file)


def test_a_word_says_a_group() -> None:
    (found,) = node_groups(["h100=t4x4-1nic:8,example.com/rack=a,pool=gpu"])
    assert (found.name, found.machine, found.most) == ("h100", "t4x4-1nic", 8)
    assert found.labels == {"example.com/rack": "a", "pool": "gpu"}


def test_a_file_says_more(tmp_path: Path) -> None:
    taint = {"key": "example.com/gpu", "effect": "NoSchedule"}
    more = {"labels": {"pool": "g"}, "taints": [taint], "resources": {"cpu": 90, "memory": "1Ti"}}
    (found,) = node_groups([written(tmp_path, {**GROUP, **more})])
    node, *slices = node_with_slices("new", found)
    assert node["spec"]["taints"] == [taint]
    assert node["metadata"]["labels"] == {"pool": "g", "kubernetes.io/hostname": "new"}
    allocatable = node["status"]["allocatable"]
    assert (allocatable["cpu"], allocatable["memory"], allocatable["pods"]) == ("90", "1Ti", "110")
    assert {one["spec"]["nodeName"] for one in slices} == {"new"}


def test_a_group_in_native_mode_publishes_as_its_nodes_do() -> None:
    (found,) = node_groups([f"a=t4x4-1nic:1,{names.MODE_LABEL}=native"])
    (first, *_) = found.slices[0]["spec"]["devices"]
    assert not first.get("taints")


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("a=t4x4-1nic", "is no group of nodes; write NAME=MACHINE:MAX"),
        ("a=t4x4-1nic:x", "is no group of nodes"),
        ("A=t4x4-1nic:1", "is no group of nodes"),
        ("a=t4x4-1nic:0", "0 is not a whole number from 1 to 1000"),
        ("a=t4x4-1nic:1001", "1001 is not a whole number"),
        ("a=nobodys:1", "there is no machine 'nobodys'"),
        ("a=t4x4-1nic:1,rack", "'rack' is no label; write LABEL=VALUE"),
        ("a=t4x4-1nic:1,ra ck=1", "'ra ck' is not the key of a label"),
        ("a=t4x4-1nic:1,rack=-", "'-' is not the value of a label"),
        ("nosuch.yaml", "cannot be read"),
        ("", "is no group of nodes"),
    ],
)
def test_a_word_that_cannot_be_meant_is_told(text: str, problem: str) -> None:
    with pytest.raises(InvalidInput) as told:
        node_groups([text])
    assert problem in str(told.value)


@pytest.mark.parametrize(
    ("changed", "problem"),
    [
        ({"name": ""}, "name: is missing"),
        ({"name": "A"}, "'A' is not a name of a group"),
        ({"name": "x" * 41}, "is not a name of a group"),
        ({"machine": None}, "machine: is missing"),
        ({"max": None}, "max: is missing"),
        ({"max": "4"}, "'4' is not a whole number"),
        ({"most": 4}, "most: there is no such field"),
        ({"labels": {"a": 1}}, "1 is not the value of a label"),
        ({"labels": []}, "labels: is not an object"),
        ({"taints": [{"key": "a", "effect": "Never"}]}, "'Never' is not allowed"),
        ({"taints": [{"effect": "NoSchedule"}]}, "key: is missing"),
        ({"taints": [{"key": "a", "effect": "NoSchedule", "x": 1}]}, "x: there is no such field"),
        ({"resources": {"cpu": "many"}}, "resources[cpu]"),
    ],
)
def test_a_file_that_cannot_be_meant_is_told(tmp_path: Path, changed: dict[str, Any], problem: str) -> None:
    with pytest.raises(InvalidManifest) as told:
        node_groups([written(tmp_path, {**GROUP, **changed})])
    assert problem in str(told.value)
    assert "groups.yaml" in str(told.value)


def test_names_stand_once(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="there is another group 'h100'"):
        node_groups([written(tmp_path, GROUP, GROUP)])
    with pytest.raises(InvalidInput, match="there are two groups 'h100'"):
        node_groups([written(tmp_path, GROUP), "h100=t4x4-1nic:1"])


def test_a_file_without_groups_is_told(tmp_path: Path) -> None:
    with pytest.raises(InvalidManifest, match="groups: names no group"):
        node_groups([written(tmp_path)])


def asked(tmp_path: Path, *groups: dict[str, Any], **more: Any) -> AutoscaleSettings:
    return settings_from_file(Path(written(tmp_path, *groups, **more)))


SIZED = {**GROUP, "labels": {"pool": "g"}, "resources": {"cpu": "8"}}


def test_what_the_controller_asks_by(tmp_path: Path) -> None:
    found = asked(tmp_path, SIZED, after=0, within=60, cooldown=5, image="example.com/pause")
    assert (found.after, found.within, found.cooldown, found.image) == (0, 60, 5, "example.com/pause")
    assert [one.name for one in found.groups] == ["h100"]
    default = asked(tmp_path, SIZED)
    assert (default.after, default.within, default.cooldown) == (30, 900, 600)
    assert not asked(tmp_path).groups, "then nothing is asked for"


@pytest.mark.parametrize(
    ("groups", "more", "problem"),
    [
        (
            [{**SIZED, "labels": {}}],
            {},
            "groups[0].labels: are missing: nodes of the group are known by them",
        ),
        ([SIZED, {**SIZED, "name": "b", "resources": {}}], {}, "groups[1].resources: are missing"),
        ([{**SIZED, "resources": {"pods": "9"}}], {}, "groups[0].resources: are missing"),
        ([SIZED], {"within": 0}, "within: 0 is not a whole number"),
        ([SIZED], {"after": "1"}, "after: '1' is not a whole number"),
        ([SIZED], {"cooldown": -1}, "cooldown: -1 is not a whole number"),
        ([SIZED], {"groupes": []}, "groupes: there is no such field"),
    ],
)
def test_what_the_controller_cannot_ask_by(
    tmp_path: Path, groups: list[dict[str, Any]], more: dict[str, Any], problem: str
) -> None:
    with pytest.raises(InvalidManifest) as told:
        asked(tmp_path, *groups, **more)
    assert problem in str(told.value)


def test_several_documents_are_none(tmp_path: Path) -> None:
    file = tmp_path / "two.yaml"
    file.write_text("groups: []\n---\ngroups: []\n")
    with pytest.raises(InvalidManifest, match="has 2 documents"):
        settings_from_file(file)


def test_what_is_shipped_asks_for_nothing(tmp_path: Path) -> None:
    """And the example in it is one."""
    folder = Path(__file__).parents[3] / "deploy" / "kustomize" / "autoscale"
    (shipped,) = yaml.safe_load_all((folder / "settings.yaml").read_text())
    text = shipped["data"]["settings.yaml"]
    file = tmp_path / "settings.yaml"
    file.write_text(text)
    assert settings_from_file(file) == AutoscaleSettings(groups=[])
    file.write_text(text.replace("groups: []", "groups:").replace("\n# ", "\n"))
    (group,) = settings_from_file(file).groups
    assert (group.name, group.most, group.namespace_most) == ("h100", 8, 4)
