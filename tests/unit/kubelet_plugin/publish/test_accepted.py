"""Slices against a second opinion: the validation of the API server's double, and plan(), which reads their
counters."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from koordra.kube.validation.field_errors import FieldErrors
from koordra.placement import plan
from koordra.topology.machine import Machine
from koordra_devcluster.apiserver.validation.slices import resource_slice
from tests.machines import catalogue
from tests.unit.kubelet_plugin.publish.test_devices import MIXED, POLICIES, node, slices


def refused(one: dict[str, Any]) -> list[str]:
    errors = FieldErrors()
    resource_slice(errors, one)
    return [str(error) for error in errors.found]


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("name", catalogue.NAMES)
def test_every_machine_is_accepted(name: str, policy: str) -> None:
    machine = catalogue.load(name).machine(serial=catalogue.SERIAL)
    for mode in ("joint", "native"):
        for one in slices(machine, mode=mode, **POLICIES[policy]):
            assert refused(one) == []


def test_a_large_node_is_accepted() -> None:
    for one in slices(node(gpus=16, nics=16, vfs=8), **POLICIES["everything"]):
        assert refused(one) == []


def claim(name: str, type_: str, *, selector: str = "true", count: int = 1) -> dict[str, Any]:
    wanted = f'device.attributes["koordra.io"].type == "{type_}" && {selector}'
    request = {
        "name": "device",
        "exactly": {
            "deviceClassName": "any",
            "allocationMode": "ExactCount",
            "count": count,
            "selectors": [{"cel": {"expression": wanted}}],
        },
    }
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaim",
        "metadata": {"name": name, "namespace": "default", "uid": f"uid-{name}"},
        "spec": {"devices": {"requests": [request]}},
    }


def pod_of(asked: dict[str, Any]) -> dict[str, Any]:
    """A pod for each claim: claims without one are planned together, all or none."""
    name = asked["metadata"]["name"]
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": "default", "uid": f"pod-{name}"},
        "spec": {"resourceClaims": [{"name": "claim", "resourceClaimName": name}], "containers": []},
    }


def profile(name: str) -> str:
    return f'device.attributes["koordra.io"].profile == "{name}"'


def placed(machine: Machine, *claims: dict[str, Any]) -> set[str]:
    """The claims that plan() serves from a node with this machine, in the order of their names."""
    objects: list[dict[str, Any]] = [
        {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "node-a"}},
        {
            "apiVersion": "resource.k8s.io/v1",
            "kind": "DeviceClass",
            "metadata": {"name": "any"},
            "spec": {"selectors": [{"cel": {"expression": 'device.driver == "koordra.io"'}}]},
        },
        *slices(machine, mode="native", mig=True, mig_on_demand=True, vfs=True),
        *claims,
        *map(pod_of, claims),
    ]
    return {name.partition("/")[2] for name in plan(objects, policy="FirstFit").allocations}


def test_two_halves_fill_a_card() -> None:
    machine = node(gpus=1, nics=0)
    halves = [claim(f"half-{n}", "mig", selector=profile("3g.40gb")) for n in range(2)]
    small = claim("small", "mig", selector=profile("1g.10gb"))
    assert placed(machine, *halves, small) == {"half-0", "half-1"}


def test_seven_slices_fill_a_card_and_only_one_has_media_engines() -> None:
    machine = node(gpus=1, nics=0)
    assert placed(machine, claim("seven", "mig", selector=profile("1g.10gb"), count=7)) == {"seven"}
    assert placed(machine, claim("eight", "mig", selector=profile("1g.10gb"), count=8)) == set()
    assert placed(machine, claim("media", "mig", selector=profile("1g.10gb+me"), count=2)) == set()


def test_instances_that_exist_and_places_beside_them() -> None:
    machine = node(gpus=1, nics=0, instances=MIXED)
    assert placed(
        machine, claim("all", "mig", count=3), claim("large", "mig", selector=profile("7g.80gb"))
    ) == {"all"}


def test_a_pf_and_its_virtual_functions_exclude_each_other() -> None:
    machine = node(gpus=0, nics=1, vfs=4)
    assert placed(machine, claim("a-pf", "nic"), claim("b-vf", "vf")) == {"a-pf"}
    assert placed(machine, claim("a-vf", "vf"), claim("b-pf", "nic")) == {"a-vf"}
    assert placed(machine, claim("vfs", "vf", count=4)) == {"vfs"}


def test_a_lost_card_that_a_claim_holds_a_share_of_is_accepted_and_given_to_nobody() -> None:
    machine = node(gpus=2, nics=0, mig=False)
    first, second = machine.gpus
    lost = replace(machine, gpus=(replace(first, uuid=None, faults=("GpuLost",)), second))
    share = {"driver": "koordra.io", "pool": "node-a", "device": first.name, "request": "device"}
    share |= {"shareID": "5c1f0000-0000-5000-8000-000000000001", "consumedCapacity": {"memory": "10Gi"}}
    held = claim("held", "gpu")
    held["status"] = {"allocation": {"devices": {"results": [share]}}}
    for mode in ("joint", "native"):
        shown = slices(lost, mode=mode, absent={first.name: ("GpuLost",)})
        assert [refused(one) for one in shown] == [[] for _ in shown]
    found = plan(
        [
            {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "node-a"}},
            {
                "apiVersion": "resource.k8s.io/v1",
                "kind": "DeviceClass",
                "metadata": {"name": "any"},
                "spec": {"selectors": [{"cel": {"expression": 'device.driver == "koordra.io"'}}]},
            },
            *shown,
            held,
            *(asked := [claim("new", "gpu"), claim("another", "gpu")]),
            *map(pod_of, asked),
        ],
        policy="FirstFit",
    )
    (allocation,) = found.allocations.values()
    assert [result["device"] for result in allocation["devices"]["results"]] == [second.name]
