"""Labels of removed stacks: what a machine says, and that nobody else's label is ever touched."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from koordra.api import objects
from koordra.api.kinds import NODES
from koordra.kubelet_plugin.discovery.reading import discover
from koordra.kubelet_plugin.publish.node_slices import label_value
from koordra.kubelet_plugin.status.node_labels import KEYS, OURS, NodeLabels, change, labels_of
from koordra.topology import presets
from koordra.topology.machine import Machine
from koordra_devcluster.demo import manifests
from tests.fakes.kube_api import FakeKubeApi

Golden = Any


def machine(name: str, folder: Path) -> Machine:
    presets.write_machine(presets.load(name), folder, serial="labels")
    return discover(folder).machine


@pytest.fixture(scope="module")
def hgx(tmp_path_factory: pytest.TempPathFactory) -> Machine:
    return machine("hgx-h100", tmp_path_factory.mktemp("hgx"))


def test_what_an_hgx_h100_says(hgx: Machine, golden: Golden) -> None:
    golden("peers/node-labels-hgx-h100.yaml", yaml.safe_dump(labels_of(hgx)))


def test_a_tray_says_which_clique_it_is_in(tmp_path: Path) -> None:
    found = labels_of(machine("gb200-nvl72", tmp_path))
    assert found["nvidia.com/gpu.clique"] == "7b968a6d-c8aa-45e1-9e07-e1e51be99c31.32766"


def test_a_machine_without_cards_says_nothing() -> None:
    assert labels_of(Machine()) == {}


def test_what_differs_between_cards_is_left_out(hgx: Machine) -> None:
    other = replace(hgx.gpus[0], product_name="NVIDIA A10", memory_bytes=24 << 30)
    found = labels_of(replace(hgx, gpus=(other, *hgx.gpus[1:])))
    assert found["nvidia.com/gpu.count"] == "8"
    assert (
        not {"nvidia.com/gpu.product", "nvidia.com/gpu.memory", "aliyun.accelerator/nvidia_name"}
        & found.keys()
    )


def test_every_value_is_a_value_of_a_label(hgx: Machine) -> None:
    """One that is not would make the API server refuse all of them."""
    odd = replace(hgx.gpus[0], product_name="NVIDIA (engineering sample) " + "x" * 80, architecture="?")
    found = labels_of(replace(hgx, gpus=(odd,), driver_version="550.54.15 (beta build)"))
    assert found["nvidia.com/cuda.driver-version.full"] == "550.54.15-beta-build"
    assert "nvidia.com/gpu.family" not in found
    for value in found.values():
        assert re.fullmatch(r"[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?", value), value


def test_labels_that_start_programs_are_not_written() -> None:
    started = {"gpu", "gpushare", "nvidia-device-enable", "nvidia.com/gpu.present"}
    assert not started & set(KEYS)
    assert not [key for key in KEYS if key.startswith("nvidia.com/gpu.deploy.")]


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("NVIDIA H100 80GB HBM3", "NVIDIA-H100-80GB-HBM3"),
        ("Quadro RTX 6000/8000", "Quadro-RTX-6000-8000"),
        ("-odd- ", "odd"),
        ("x" * 80, "x" * 63),
    ],
)
def test_values_are_values_of_labels(text: str, value: str) -> None:
    assert label_value(text) == value


def node(labels: dict[str, str], ours: object = None) -> dict[str, Any]:
    annotations = {} if ours is None else {OURS: ours if isinstance(ours, str) else json.dumps(ours)}
    return {"metadata": {"name": "n", "labels": labels, "annotations": annotations}}


COUNT, MEMORY = "nvidia.com/gpu.count", "nvidia.com/gpu.memory"


@pytest.mark.parametrize(
    ("before", "wanted", "setting", "remove", "foreign"),
    [
        (node({}), {COUNT: "8"}, {COUNT: "8"}, (), ()),
        (node({COUNT: "4"}), {COUNT: "8"}, {}, (), (COUNT,)),
        (node({COUNT: "8"}), {COUNT: "8"}, {}, (), ()),
        (node({COUNT: "4"}, {COUNT: "4"}), {COUNT: "8"}, {COUNT: "8"}, (), ()),
        (node({COUNT: "5"}, {COUNT: "4"}), {COUNT: "8"}, {}, (), (COUNT,)),
        (node({COUNT: "4"}, {COUNT: "4"}), {}, {}, (COUNT,), ()),
        (node({COUNT: "5"}, {COUNT: "4"}), {}, {}, (), ()),
        (node({}, {COUNT: "4"}), {COUNT: "4"}, {COUNT: "4"}, (), ()),
        (node({"team": "ml"}, {"team": "ml"}), {}, {}, (), ()),
        (node({COUNT: "4"}, "not json"), {COUNT: "8", MEMORY: "1"}, {MEMORY: "1"}, (), (COUNT,)),
    ],
)
def test_only_what_is_ours_is_changed(
    before: dict[str, Any],
    wanted: dict[str, str],
    setting: dict[str, str],
    remove: tuple[str, ...],
    foreign: tuple[str, ...],
) -> None:
    found = change(before, wanted)
    assert (dict(found.set), found.remove, found.foreign) == (setting, remove, foreign)


def test_the_node_gets_them_once_and_loses_them_with_the_cards(hgx: Machine) -> None:
    api = FakeKubeApi()
    api.create(NODES, {"metadata": {"name": "n", "labels": {"team": "ml", MEMORY: "1"}}, "spec": {}})
    seen = [hgx]
    labels = NodeLabels(api, node="n", machine=lambda: seen[0])
    assert labels.sync()
    found = objects.labels_of(api.get(NODES, "n"))
    assert (found["team"], found[MEMORY], found[COUNT]) == ("ml", "1", "8")
    assert not labels.sync()
    seen[0] = Machine()
    assert labels.sync()
    assert objects.labels_of(api.get(NODES, "n")) == {"team": "ml", MEMORY: "1"}
    assert OURS not in objects.annotations_of(api.get(NODES, "n"))


def test_the_policy_names_the_same_labels() -> None:
    path = manifests.deploy_folder() / "kustomize" / "node-labels" / "policy.yaml"
    policy = next(
        obj for obj in yaml.safe_load_all(path.read_text()) if obj["kind"] == "ValidatingAdmissionPolicy"
    )
    (ours,) = [entry["expression"] for entry in policy["spec"]["variables"] if entry["name"] == "ours"]
    assert tuple(json.loads(ours)) == KEYS
