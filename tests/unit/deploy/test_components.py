"""Components go on top of base, each alone, every two of them and all at once; those that do not go together
are an error of kustomize's that names them. The Helm chart renders the same objects."""

from __future__ import annotations

import itertools
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from koordra.allocator.predicates import selector_matches
from tests.fakes.chart import left_to_the_leader, of_components
from tests.fakes.kustomized import (
    COMPONENTS,
    DISTRIBUTIONS,
    PATCHED,
    ROOT,
    WORKLOADS,
    Objects,
    Refused,
    built,
    defects,
    in_order,
)
from tests.unit.allocator.machines import node

PAIRS = [in_order(pair) for pair in itertools.combinations(COMPONENTS, 2)]
TWO_DISTRIBUTIONS = "testing value /metadata/annotations/koordra.io~1distribution failed"
BROUGHT_TWICE = (
    "already registered id: ClusterRole.v1.rbac.authorization.k8s.io/koordra-controller-driver-upgrade"
)
KUSTOMIZATIONS = sorted(ROOT.rglob("kustomization.yaml"))


def refusal(pair: tuple[str, ...]) -> str | None:
    """With which words these two do not go together."""
    if set(pair) <= set(DISTRIBUTIONS):
        return TWO_DISTRIBUTIONS
    return BROUGHT_TWICE if set(pair) == {"driver-upgrade", "gpu-operator"} else None


def unordered(value: Any) -> Any:
    """Lists as sets: in which order components append to arguments and mounts means nothing."""
    if isinstance(value, dict):
        return {key: unordered(each) for key, each in value.items()}
    if isinstance(value, list):
        return sorted((unordered(each) for each in value), key=repr)
    return value


def judged(folder: Path, *components: str) -> Objects:
    objects = built(folder, *components)
    assert not defects(objects)
    assert of_components(*components) == left_to_the_leader(objects)
    return objects


@pytest.mark.parametrize("path", KUSTOMIZATIONS, ids=lambda path: path.parent.relative_to(ROOT).as_posix())
def test_everything_on_top_of_base_is_a_component_that_brings_nothing_of_base(path: Path) -> None:
    found = yaml.safe_load(path.read_text())
    name = path.parent.relative_to(ROOT).as_posix()
    base = yaml.safe_load((ROOT / "base" / "kustomization.yaml").read_text())
    part_of_base = {"base", *(entry.removeprefix("../") for entry in base["resources"])}
    if name in part_of_base:
        assert found["kind"] == "Kustomization"
        return
    assert (found["apiVersion"], found["kind"]) == ("kustomize.config.k8s.io/v1alpha1", "Component")
    assert not [entry for entry in found.get("resources", ()) if entry.startswith("..")]


@pytest.mark.parametrize("name", COMPONENTS)
def test_each_alone(tmp_path: Path, name: str) -> None:
    judged(tmp_path, name)


@pytest.mark.long
def test_every_two(tmp_path: Path) -> None:
    """What they add to base together is what each adds; they refuse each other with words or not at all."""
    alone = {name: built(tmp_path / f"of-{i}", name, bases=PATCHED) for i, name in enumerate(COMPONENTS)}
    for number, pair in enumerate(PAIRS):
        words = refusal(pair)
        try:
            objects = built(tmp_path / str(number), *pair, bases=PATCHED)
        except Refused as refused:
            assert words is not None, (pair, refused)
            assert words in str(refused)
            continue
        assert words is None, pair
        assert not defects(objects), pair
        first, second = pair
        assert objects.keys() == alone[first].keys() | alone[second].keys(), pair


@pytest.mark.parametrize("distribution", ["", *DISTRIBUTIONS], ids=str)
def test_all_at_once_and_in_any_order(tmp_path: Path, distribution: str) -> None:
    names = [name for name in COMPONENTS if name not in (*DISTRIBUTIONS, "driver-upgrade")]
    last = [distribution] if distribution else []
    forth = judged(tmp_path / "forth", *sorted(names), *last)
    back = built(tmp_path / "back", *reversed(names), *last)
    assert unordered(forth) == unordered(back)


@pytest.mark.parametrize("late", ["gpu-operator", "imex"])
@pytest.mark.parametrize("distribution", DISTRIBUTIONS)
def test_a_distribution_that_does_not_come_last_is_refused(
    tmp_path: Path, distribution: str, late: str
) -> None:
    with pytest.raises(Refused, match=re.escape("koordra.io~1distribution")):
        built(tmp_path, distribution, late, bases=PATCHED)


def test_what_is_wrong_is_told(tmp_path: Path) -> None:
    """Of what the judge looks at, each once."""
    objects = built(tmp_path, "legacy", "nri/evict")
    del objects["ServiceAccount", "koordra-nri"]
    controller = objects["Deployment", "koordra-controller"]["spec"]["template"]["spec"]
    controller["volumes"].append({"name": "x", "configMap": {"name": "y"}})
    objects["PodDisruptionBudget", "koordra-controller"]["spec"]["selector"]["matchLabels"]["a"] = "b"
    (container,) = controller["containers"]
    container["args"] += ["--log-json", "--no-such-word=1"]
    container["volumeMounts"].append({"name": "z", "mountPath": "/tmp"})
    assert {word.partition(": ")[2] for word in defects(objects)} == {
        "--log-json twice",
        "no ConfigMap y",
        "no ServiceAccount koordra-nri",
        "no option --no-such-word",
        "no volume z",
        "selects no pod",
        "mounted twice: /tmp",
        "volume x is mounted nowhere",
    }


def test_no_cluster_keeps_its_pods_from_their_priority() -> None:
    """GKE lets pods of these classes be made only where a quota counts them."""
    objects = of_components("dashboard", "gpu-operator", "imex", "profiler")
    workloads = [obj for (kind, _), obj in objects.items() if kind in WORKLOADS]
    named = {obj["spec"]["template"]["spec"].get("priorityClassName") for obj in workloads} - {None}
    spec = objects["ResourceQuota", "koordra-critical-pods"]["spec"]
    (scope,) = spec["scopeSelector"]["matchExpressions"]
    assert named == set(scope["values"])
    assert spec["hard"] == {"pods": "1M"}


NFD = "feature.node.kubernetes.io/"


@pytest.mark.parametrize(
    ("labels", "runs"),
    [
        ({}, False),
        ({"kubernetes.io/os": "linux", "nvidia.com/gpu.present": "false"}, False),
        ({f"{NFD}pci-8086.present": "true"}, False),
        ({"koordra.io/devices": "true"}, True),
        ({"nvidia.com/gpu.present": "true"}, True),
        ({f"{NFD}pci-0302_10de.present": "true"}, True),
        ({f"{NFD}pci-15b3.present": "true"}, True),
        ({"nvidia.com/gpu.present": "true", "koordra.io/devices": "false"}, False),
        ({"nvidia.com/gpu.present": "true", "koordra.io/devices": "true"}, True),
    ],
    ids=str,
)
def test_what_runs_on_nodes_leaves_those_without_devices_alone(labels: dict[str, str], runs: bool) -> None:
    objects = of_components("imex")
    daemon_sets = [obj for (kind, _), obj in objects.items() if kind == "DaemonSet"]
    assert len(daemon_sets) == 3
    for obj in daemon_sets:
        required = "requiredDuringSchedulingIgnoredDuringExecution"
        wanted = obj["spec"]["template"]["spec"]["affinity"]["nodeAffinity"][required]
        assert selector_matches(wanted, node(labels=labels)) is runs
