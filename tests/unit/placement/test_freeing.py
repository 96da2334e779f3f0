"""`koordra plan --defragment` on standard objects: claims that plan() has placed, some of which have gone."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from koordra.allocator.request.classes import shipped_classes
from koordra.cli.plan import plan_command as command
from koordra.errors import InvalidInput
from koordra.kubelet_plugin.publish.resource_slices import build_slices
from koordra.placement import plan
from koordra.placement.decide import Engine
from koordra.placement.defragment.cluster import free, shape_of
from koordra.topology import presets

NODES = ("a", "b")


def _slices() -> list[dict[str, Any]]:
    made = []
    for name in NODES:
        machine = presets.load("dgx-a100").machine(serial=name)
        made += build_slices(machine, node_name=name, node_uid=name, mode="joint", generation=1)
    return [{"kind": "ResourceSlice", **entry} for entry in made]


def _claim(number: int, gpus: int) -> dict[str, Any]:
    return {
        "kind": "ResourceClaim",
        "metadata": {"name": f"c{number}", "namespace": "d", "uid": f"u{number}"},
        "spec": {
            "devices": {
                "requests": [
                    {"name": "gpu", "exactly": {"deviceClassName": "gpu.koordra.io", "count": gpus}},
                    {"name": "nic", "exactly": {"deviceClassName": "nic.koordra.io", "count": 1}},
                ]
            }
        },
    }


def _pod(number: int) -> dict[str, Any]:
    return {
        "kind": "Pod",
        "metadata": {"name": f"p{number}", "namespace": "d", "uid": f"q{number}"},
        "spec": {
            "containers": [{"name": "c", "resources": {"requests": {"cpu": "1"}}}],
            "resourceClaims": [{"name": "x", "resourceClaimName": f"c{number}"}],
        },
    }


@pytest.fixture(scope="module")
def placed() -> list[dict[str, Any]]:
    """Two nodes with eight GPUs each; three claims that hold one GPU or two, spread over both."""
    slices, pods = _slices(), [_pod(number) for number in range(3)]
    claims = [_claim(number, gpus) for number, gpus in enumerate((1, 2, 1))]
    found = plan([*slices, *claims, *pods, *shipped_classes()], policy="Spread")
    objects: list[dict[str, Any]] = [*slices, *shipped_classes()]
    for claim, pod in zip(claims, pods, strict=True):
        key = f"d/{claim['metadata']['name']}"
        objects.append({**claim, "status": {"allocation": found.allocations[key]}})
        objects.append({**pod, "spec": {**pod["spec"], "nodeName": found.nodes[key]}})
    assert set(found.nodes.values()) == set(NODES)
    return objects


def test_the_node_with_fewer_pods_is_emptied(placed: list[dict[str, Any]]) -> None:
    found = free(placed, shape_of("gpus=8,nics=8,scope=Node"))
    assert len(found["moves"]) == 1
    assert found["proven"]
    move = found["moves"][0]
    assert move["from"] == found["freed"]["node"] != move["to"]
    assert len(found["freed"]["devices"]) == 16
    assert found["cost"]["atLeastPods"] == 1


def test_a_shape_that_is_free_needs_no_move(placed: list[dict[str, Any]]) -> None:
    found = free(placed, shape_of("gpus=2,nics=1,scope=PCIeSwitch"))
    assert found["moves"] == []


def test_the_command(placed: list[dict[str, Any]], tmp_path: Path) -> None:
    file = tmp_path / "objects.json"
    file.write_text(json.dumps({"kind": "List", "items": placed}))
    run = CliRunner().invoke(command, ["-f", str(file), "--defragment", "gpus=8,nics=8,scope=Node"])
    assert run.exit_code == 0, run.output
    assert "no fewer moves would do" in run.output
    told = CliRunner().invoke(
        command, ["-f", str(file), "--defragment", "gpus=8,nics=8,scope=Node", "-o", "json"]
    )
    assert json.loads(told.stdout)["cost"]["pods"] == 1


@pytest.mark.parametrize("text", ["gpus=x", "", "gpus=2,scope=Rack", "cards=2", "gpus=0"])
def test_what_is_no_shape(text: str) -> None:
    with pytest.raises(InvalidInput, match="is no shape"):
        shape_of(text)


MACHINES = {"a": "dgx-a100", "h": "hgx-h100"}


def _one_each(*, of_claims: bool, of_pods: bool) -> list[dict[str, Any]]:
    """A pod on each of two nodes of different models; `of_claims`, `of_pods`: who of them asks for the model
    where it is."""
    made = [*shipped_classes()]
    for name, kind in MACHINES.items():
        machine = presets.load(kind).machine(serial=name)
        slices = build_slices(machine, node_name=name, node_uid=name, mode="joint", generation=1)
        made += [{"kind": "ResourceSlice", **entry} for entry in slices]
        made.append({"kind": "Node", "metadata": {"name": name, "labels": {"kind": kind}}})
    claims, pods = [_claim(number, 1) for number in range(2)], [_pod(number) for number in range(2)]
    found = plan([*made, *claims, *pods], exclude={"d/p0": {"h": "other"}, "d/p1": {"a": "other"}})
    for claim, pod, node in zip(claims, pods, MACHINES, strict=True):
        claim["status"] = {"allocation": found.allocations[f"d/{claim['metadata']['name']}"]}
        pod["spec"]["nodeName"] = node
        if of_claims:
            model = {"a": "A100", "h": "H100"}[node]
            selector = f'device.attributes["koordra.io"].?model.orValue("") in ["{model}", ""]'
            exactly = claim["spec"]["devices"]["requests"][0]["exactly"]
            exactly["selectors"] = [{"cel": {"expression": selector}}]
        if of_pods:
            pod["spec"]["nodeSelector"] = {"kind": MACHINES[node]}
    return [*made, *claims, *pods]


@pytest.mark.parametrize(("of_claims", "of_pods"), [(True, False), (False, True)])
def test_pods_move_only_where_the_engine_would_place_them(of_claims: bool, of_pods: bool) -> None:
    """By free amounts alone each pod could go to the other node; what it asks for is not there."""
    wanted = shape_of("gpus=8,nics=8,scope=Node")
    anywhere = free(_one_each(of_claims=False, of_pods=False), wanted)
    assert len(anywhere["moves"]) == 1
    assert free(_one_each(of_claims=of_claims, of_pods=of_pods), wanted)["freed"] is None


def test_the_engine_decides_where_each_pod_goes(
    placed: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    decided: list[str] = []
    decide = Engine.decide

    def counted(self: Engine, group: Any, **given: Any) -> Any:
        decided.extend(claim.key for claim in group.claims)
        return decide(self, group, **given)

    monkeypatch.setattr(Engine, "decide", counted)
    found = free(placed, shape_of("gpus=8,nics=8,scope=Node"))
    assert len(decided) == len(found["moves"]) == 1
