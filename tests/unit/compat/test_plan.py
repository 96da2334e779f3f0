"""Converted pods of every dialect, planned on machines as their nodes publish them: the devices are those the
dialect means."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest
import yaml
from click.testing import CliRunner

from koordra.allocator.request.classes import shipped_classes
from koordra.allocator.request.templates import with_template_claims
from koordra.cli.convert import convert_command
from koordra.cli.plan import plan_command
from koordra.compat.settings import Settings
from koordra.compat.settings_document import with_document
from koordra.errors import InvalidManifest
from koordra.kubelet_plugin.publish.offering import WITHOUT_POLICY
from koordra.kubelet_plugin.publish.resource_slices import build_slices
from koordra.placement import plan
from tests.machines import catalogue
from tests.unit.allocator.machines import node
from tests.unit.compat.pods import Dict, asking, container, converted, pod
from tests.unit.compat.rows import HINT, JOINT, K, N, V

SAME_PCIE = '{"deviceTypes": ["gpu", "rdma"], "requiredScope": "SamePCIe"}'


@lru_cache
def cluster(
    name: str, *, mig: bool = False, vfs: bool = False, mig_on_demand: bool = False, model: str = ""
) -> str:
    """`mig_on_demand`: with one card, uncut; `model`: its name, if another than the machine's."""
    machine = catalogue.machine(name)
    if mig_on_demand:
        (card,) = machine.gpus[:1]
        machine = replace(
            machine, gpus=(replace(card, mig_instances=(), product_name=model or card.product_name),)
        )
    offering = replace(WITHOUT_POLICY, mig=mig, vfs=vfs, mig_on_demand=mig_on_demand)
    slices = build_slices(
        machine, node_name="node-1", node_uid=None, mode="joint", generation=1, offering=offering
    )
    return json.dumps([node("node-1"), *slices])


def objects(name: str, *manifests: Dict, settings: Settings | None = None, **published: Any) -> list[Dict]:
    conversion = converted(*manifests, settings=settings)
    assert not conversion.refused, conversion.refused
    made = [*json.loads(cluster(name, **published)), *conversion.objects]
    return [*with_template_claims(made), *shipped_classes()]  # type: ignore[list-item]


def named(manifest: Dict, name: str) -> Dict:
    return {**manifest, "metadata": {**manifest["metadata"], "name": name}}


def results(
    name: str, *manifests: Dict, settings: Settings | None = None, **published: Any
) -> dict[str, list[Dict]]:
    """Pod -> the devices it gets; a pod that waits is missing."""
    found = plan(objects(name, *manifests, settings=settings, **published))
    return {
        key.removeprefix("team/").removesuffix("-koordra-devices"): allocation["devices"]["results"]
        for key, allocation in found.allocations.items()
    }


def cards(found: list[Dict]) -> list[str]:
    return [entry["device"] for entry in found]


def attribute(name: str, device: str, key: str) -> Any:
    for entry in json.loads(cluster(name)):
        for published in entry.get("spec", {}).get("devices", ()):
            if published["name"] == device:
                return next(iter(published["attributes"][key].values()))
    raise AssertionError(device)


def test_two_aliyun_containers_lie_on_one_card() -> None:
    manifest = pod(
        container("a", ask={"aliyun.com/gpu-mem": 4}), container("b", ask={"aliyun.com/gpu-mem": 6})
    )
    found = results("t4x4-1nic", manifest)["p"]
    assert len(found) == 2
    assert len(set(cards(found))) == 1
    assert [entry["consumedCapacity"]["memory"] for entry in found] == ["4Gi", "6Gi"]


def test_what_does_not_fit_on_one_card_waits_with_aliyun() -> None:
    manifest = pod(
        container("a", ask={"aliyun.com/gpu-mem": 10}), container("b", ask={"aliyun.com/gpu-mem": 10})
    )
    assert results("t4x4-1nic", manifest) == {}


def test_two_hami_slices_lie_on_two_cards() -> None:
    manifest = asking({N + "gpu": 2, N + "gpumem": 3000, N + "gpucores": 30})
    found = results("t4x4-1nic", manifest)["p"]
    assert len(set(cards(found))) == 2
    assert {entry["consumedCapacity"]["memory"] for entry in found} == {"3000Mi"}
    assert {entry["consumedCapacity"]["cores"] for entry in found} == {"30"}


def test_hami_slices_of_more_cards_than_there_are_wait() -> None:
    assert results("t4x4-1nic", asking({N + "gpu": 5, N + "gpumem": 100})) == {}


def test_a_hami_pod_that_wants_the_card_alone_has_it_alone() -> None:
    alone = asking({N + "gpu": 4, N + "gpumem": 1000, N + "gpucores": 100})
    other = asking({N + "gpu": 1, N + "gpumem": 1000})
    assert list(results("t4x4-1nic", named(alone, "first"), named(other, "second"))) == ["first"]
    assert set(results("t4x4-1nic", named(other, "first"), named(alone, "second"))) == {"first"}


def test_hamis_percentage_is_of_the_card_that_is_chosen() -> None:
    (found,) = results("t4x4-1nic", asking({N + "gpu": 1, N + "gpumem-percentage": 50}))["p"]
    whole = results("t4x4-1nic", asking({N + "gpu": 1}))["p"][0]["consumedCapacity"]["memory"]
    assert (found["consumedCapacity"]["memory"], whole) == ("7680Mi", "15Gi")


def test_hamis_models_are_those_of_the_cards() -> None:
    for said, fits in (
        ("T4", True),
        ("tesla", True),
        ("a100,t4", True),
        ("A100", False),
        ("NVIDIA-Tesla", None),
    ):
        found = results("t4x4-1nic", asking({N + "gpu": 1}, annotations={N + "use-gputype": said}))
        assert fits is None or bool(found) == fits, said
        denied = results("t4x4-1nic", asking({N + "gpu": 1}, annotations={N + "nouse-gputype": said}))
        assert bool(denied) != bool(found), said


def test_hamis_uuids_are_those_of_the_cards() -> None:
    devices = [
        entry
        for found in json.loads(cluster("t4x4-1nic"))
        for entry in found.get("spec", {}).get("devices", ())
    ]
    gpus = [entry for entry in devices if entry["attributes"]["koordra.io/type"]["string"] == "gpu"]
    uuid = gpus[2]["attributes"]["koordra.io/uuid"]["string"]
    (found,) = results(
        "t4x4-1nic", asking({N + "gpumem": 10}, annotations={N + "use-gpuuuid": f"GPU-none, {uuid}"})
    )["p"]
    assert found["device"] == gpus[2]["name"]


def test_numa_bind_keeps_the_cards_of_a_container_on_one_numa_node() -> None:
    manifest = asking({N + "gpu": 4, N + "gpumem": 10}, annotations={N + "numa-bind": "true"})
    found = results("pcie-a100x8-2nic", manifest)["p"]
    assert len({attribute("pcie-a100x8-2nic", name, "koordra.io/numaNode") for name in cards(found)}) == 1
    assert (
        results(
            "pcie-a100x8-2nic",
            asking({N + "gpu": 5, N + "gpumem": 10}, annotations={N + "numa-bind": "true"}),
        )
        == {}
    )


def test_hamis_mig_mode_takes_instances_with_enough_memory() -> None:
    manifest = asking({N + "gpu": 1, N + "gpumem": 8000}, annotations={N + "vgpu-mode": "mig"})
    (found,) = results("mig-a100", manifest, mig=True)["p"]
    assert "-mig-" in found["device"]


def test_both_of_hamis_modes_take_a_share_or_an_instance() -> None:
    """Whichever mode the node has; two shares are on two cards, two instances may be on one."""
    both = {N + "vgpu-mode": "mig,hami-core"}
    manifest = asking({N + "gpu": 2, N + "gpumem": 8000}, annotations=both)
    shares = results("hgx-h100", manifest)["p"]
    assert [one["request"] for one in shares] == ["a/card", "a/card"]
    assert len(set(cards(shares))) == 2
    instances = results("mig-a100", manifest, mig=True, mig_on_demand=True)["p"]
    assert {one["request"] for one in instances} <= {"a/card", "a/instance"}
    assert any("-mig-" in name for name in cards(instances))


GEOMETRIES = """
nvidia:
  knownMigGeometries:
  - models: [A100-SXM4-40GB, A100-PCIE-40GB]
    allowedGeometries:
    - [{name: 1g.5gb, core: 14, memory: 5120, count: 7}]
    - [{name: 2g.10gb, core: 28, memory: 10240, count: 3}, {name: 1g.5gb, core: 14, memory: 5120, count: 1}]
    - [{name: 3g.20gb, core: 42, memory: 20480, count: 2}]
    - [{name: 7g.40gb, core: 100, memory: 40960, count: 1}]
"""


@pytest.mark.parametrize("model", ["NVIDIA A100-PCIE-40GB", "NVIDIA A100-SXM4-40GB"])
def test_hamis_documented_example_of_dynamic_mig_comes_out(model: str) -> None:
    """An uncut A100 of 40 GB: two vGPUs of 8000 MB are two 2g.10gb of it; a third gets the third, and the 1g
    that is left serves what is smaller (HAMi: docs/develop/dynamic-mig.md)."""
    settings = with_document(Settings(), yaml.safe_load(GEOMETRIES), source="device-config.yaml")
    mode = {N + "vgpu-mode": "mig"}
    pods = [
        named(asking({N + "gpu": count, N + "gpumem": memory}, annotations=mode), name)
        for name, count, memory in (("a", 2, 8000), ("b", 1, 8000), ("c", 1, 4000), ("d", 1, 4000))
    ]
    found = results("mig-a100", *pods, settings=settings, mig=True, mig_on_demand=True, model=model)
    profiles = {
        pod: [name.rpartition("-mig-")[2].partition("-")[0] for name in cards(found[pod])] for pod in found
    }
    assert profiles == {"a": ["2g10gb", "2g10gb"], "b": ["2g10gb"], "c": ["1g5gb"]}


def test_plain_profiles_are_instances_of_that_profile() -> None:
    (found,) = results("mig-a100", asking({N + "mig-1g.5gb": 1}), mig=True)["p"]
    assert "-mig-1g5gb-" in found["device"]


def test_a_koordinator_joint_pod_gets_gpu_and_nic_under_one_root() -> None:
    for name in ("dgx-a100", "hgx-h100"):
        manifest = asking({N + "gpu": 1, K + "rdma": 100}, annotations={JOINT: SAME_PCIE})
        found = results(name, manifest)["p"]
        assert [entry["request"] for entry in found] == ["gpu", "rdma"]
        assert (
            len({attribute(name, device, "resource.kubernetes.io/pcieRoot") for device in cards(found)}) == 1
        )


def test_koordinators_nics_cover_the_roots_of_the_gpus() -> None:
    manifest = asking({N + "gpu": 8, K + "rdma": 1}, annotations={JOINT: SAME_PCIE})
    found = results("hgx-h100", manifest)["p"]
    roots = [
        {
            attribute("hgx-h100", entry["device"], "resource.kubernetes.io/pcieRoot")
            for entry in found
            if entry["device"].startswith(kind)
        }
        for kind in ("gpu-", "nic-")
    ]
    assert roots[0] == roots[1]


def test_koordinators_virtual_functions_are_of_different_nics() -> None:
    hint = {"rdma": {"vfSelector": {}, "allocateStrategy": "RequestsAsCount"}}
    one, two = (asking({K + "rdma": count}, annotations={HINT: json.dumps(hint)}) for count in (1, 2))
    (found,) = results("nic-2-ports-8-vfs", one, vfs=True)["p"]
    assert "-vf-" in found["device"]
    assert results("nic-2-ports-8-vfs", one) == {}, "a node without virtual functions"
    assert results("nic-2-ports-8-vfs", two, vfs=True) == {}, "the node has one NIC"


def test_koordinators_halves_share_a_card_and_bytes_do() -> None:
    half = asking({K + "gpu": 50})
    found = results("t4x4-1nic", *(named(half, f"p{number}") for number in range(8)))
    assert len(found) == 8
    assert len({name for devices in found.values() for name in cards(devices)}) == 4
    assert len(results("t4x4-1nic", *(named(half, f"p{number}") for number in range(9)))) == 8


def test_koordinators_apply_for_all_takes_every_nic() -> None:
    manifest = asking({K + "rdma": 5}, annotations={HINT: '{"rdma": {"allocateStrategy": "ApplyForAll"}}'})
    found = results("dgx-a100", manifest)["p"]
    nics = [
        entry
        for part in json.loads(cluster("dgx-a100"))
        for entry in part.get("spec", {}).get("devices", ())
        if entry["name"].startswith("nic-")
    ]
    assert len(found) == len(nics) > 1


def test_four_alnair_pods_share_one_card() -> None:
    manifest = asking({"alnair/vgpu-memory": 3, "alnair/vgpu-compute": 25})
    found = results("t4x4-1nic", *(named(manifest, f"p{number}") for number in range(4)))
    assert len(found) == 4
    assert len({name for devices in found.values() for name in cards(devices)}) == 1


def test_volcano_elastic_and_tke() -> None:
    for ask, consumed in (
        ({V + "vgpu-number": 2, V + "vgpu-memory": 1024, V + "vgpu-cores": 20}, ("1Gi", "20", 2)),
        ({V + "gpu-memory": 2048}, ("2Gi", "0", 1)),
        ({V + "gpu-number": 2}, ("15Gi", "0", 2)),
        ({"elasticgpu.io/gpu-core": 30, "elasticgpu.io/gpu-memory": 256}, ("256Mi", "30", 1)),
        ({"elasticgpu.io/gpu-core": 200}, ("15Gi", "100", 2)),
        ({"tencent.com/vcuda-core": 50, "tencent.com/vcuda-memory": 30}, ("7680Mi", "50", 1)),
        ({"tencent.com/vcuda-core": 100}, ("15Gi", "100", 1)),
        ({N + "gpu": 4}, ("15Gi", "0", 4)),
    ):
        found = results("t4x4-1nic", asking(ask))["p"]
        memory, cores, count = consumed
        assert len(set(cards(found))) == len(found) == count, ask
        assert {
            (entry["consumedCapacity"]["memory"], entry["consumedCapacity"]["cores"]) for entry in found
        } == {(memory, cores)}


def test_replicas_fill_a_card() -> None:
    settings = Settings(options={"plain": {"replicas": 4}})
    many = [named(asking({N + "gpu.shared": 1}), f"p{number}") for number in range(17)]
    assert len(results("t4x4-1nic", *many, settings=settings)) == 16


def test_limits_on_names_do_not_change_the_plan() -> None:
    settings = Settings(names=MappingProxyType({N + "gpu": "corp.example/gpu"}))
    found = results("t4x4-1nic", asking({"corp.example/gpu": 1}), settings=settings)
    assert len(found["p"]) == 1


def test_through_the_commands(tmp_path: Path) -> None:
    """What a person does: convert a file, plan what came out."""
    legacy, nodes = tmp_path / "legacy.json", tmp_path / "cluster.json"
    legacy.write_text(json.dumps(asking({N + "gpu": 2, N + "gpumem": 3000})))
    nodes.write_text("\n".join(json.dumps(entry) for entry in json.loads(cluster("t4x4-1nic"))))
    made = CliRunner().invoke(convert_command, ["-f", str(legacy), "-o", "json"], catch_exceptions=False)
    (tmp_path / "made.json").write_text(made.stdout)
    told = CliRunner().invoke(
        plan_command,
        ["-f", str(nodes), "-f", str(tmp_path / "made.json"), "-o", "json"],
        catch_exceptions=False,
    )
    (allocation,) = json.loads(told.stdout)["allocations"].values()
    assert len({entry["device"] for entry in allocation["devices"]["results"]}) == 2


def test_a_workload_stands_for_its_pods(tmp_path: Path) -> None:
    template = {
        "metadata": {"labels": {"app": "web"}},
        "spec": asking({N + "gpu": 2, N + "gpumem": 3000})["spec"],
    }
    stored = {"name": "old", "namespace": "team", "uid": "u1"}
    deployments = [
        {
            "apiVersion": "apps/v1",
            "kind": "Deployment",
            "metadata": metadata,
            "spec": {**more, "template": template},
        }
        for metadata, more in (
            ({"name": "web", "namespace": "team"}, {"replicas": 3}),
            ({"name": "none", "namespace": "team"}, {"replicas": 0}),
            (stored, {}),
        )
    ]
    made = [
        *converted(*deployments[:2]).objects,
        {**converted(deployments[2]).objects[0], "metadata": stored},
    ]
    path = tmp_path / "all.json"
    path.write_text("\n".join(json.dumps(entry) for entry in [*json.loads(cluster("t4x4-1nic")), *made]))
    told = CliRunner().invoke(plan_command, ["-f", str(path), "-o", "json"], catch_exceptions=False)
    assert list(json.loads(told.stdout)["allocations"]) == [
        f"team/deployment-web-{number}-koordra-devices" for number in range(3)
    ]
    assert told.stderr == "Deployment web: its 3 pods are planned, deployment-web-0 to deployment-web-2\n"


def test_a_pod_template_of_a_wrong_shape_is_told(tmp_path: Path) -> None:
    spec = {"containers": [{"name": "a"}], "resourceClaims": {"a": 1}}
    job = {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": "j"},
        "spec": {"template": {"spec": spec}},
    }
    path = tmp_path / "job.json"
    path.write_text(json.dumps(job))
    told = CliRunner().invoke(plan_command, ["-f", str(path)])
    assert isinstance(told.exception, InvalidManifest)
    assert "Job j: pod template: spec.resourceClaims: {'a': 1} is not a list" in str(told.exception)
