"""A large cluster: `plan()` misses nothing, searches only what could be best, and remembers what it
searched."""

from __future__ import annotations

import gc
import weakref
from typing import Any

import pytest

from koordra.allocator.request.classes import shipped_classes
from koordra.allocator.search.solution import CostPair
from koordra.api.claims import ResourceClaim
from koordra.errors import PlanError
from koordra.kubelet_plugin.publish.resource_slices import build_slices
from koordra.placement import engine_for, plan
from koordra.placement.candidates.candidate_list import ResultCache
from koordra.placement.candidates.cost_bound import CostBound
from koordra.placement.index import CLASS, NODE, ClusterChange
from koordra.placement.policy.learned_order import Learned
from koordra.placement.policy.workload_table import LearnedTable, PerGpuDemand
from koordra.placement.request.claim_groups import ClaimGroup
from koordra.topology import presets

Object = dict[str, Any]
COUNT = 70


@pytest.fixture(scope="module")
def cluster() -> list[Object]:
    """Seventy nodes of one machine; the last one has another model name."""
    machine = presets.load("dgx-a100").machine(serial="a")
    made = build_slices(machine, node_name="n", node_uid="n", mode="joint", generation=1)
    found: list[Object] = list(shipped_classes())
    for number in range(COUNT):
        name = f"node-{number:03}"
        found.append(
            {
                "kind": "Node",
                "metadata": {"name": name},
                "status": {"allocatable": {"cpu": "64", "memory": "512Gi", "pods": "100"}},
            }
        )
        for index, entry in enumerate(made):
            spec = {**entry["spec"], "nodeName": name, "pool": {**entry["spec"]["pool"], "name": name}}
            if number == COUNT - 1:
                spec["devices"] = [_renamed(device) for device in spec["devices"]]
            found.append({"kind": "ResourceSlice", "metadata": {"name": f"{name}-{index}"}, "spec": spec})
    return found


def _renamed(device: Object) -> Object:
    attributes = {**device["attributes"]}
    if attributes["koordra.io/type"]["string"] == "gpu":
        attributes["koordra.io/model"] = {"string": "SPECIAL"}
    return {**device, "attributes": attributes}


def _claim(number: int, *, gpus: int = 1, nics: int = 1, selector: str = "") -> list[Object]:
    gpu: Object = {"deviceClassName": "gpu.koordra.io", "count": gpus}
    if selector:
        gpu["selectors"] = [{"cel": {"expression": selector}}]
    requests = [{"name": "gpu", "exactly": gpu}]
    if nics:
        requests.append({"name": "nic", "exactly": {"deviceClassName": "nic.koordra.io", "count": nics}})
    name = f"c{number:03}"
    return [
        {
            "kind": "ResourceClaim",
            "metadata": {"name": name, "namespace": "d", "uid": name},
            "spec": {"devices": {"requests": requests}},
        },
        {
            "kind": "Pod",
            "metadata": {"name": name, "namespace": "d", "uid": f"p{name}"},
            "spec": {
                "containers": [{"name": "c", "resources": {"requests": {"cpu": "4"}}}],
                "resourceClaims": [{"name": "x", "resourceClaimName": name}],
            },
        },
    ]


def test_claims_are_packed_and_paired(cluster: list[Object]) -> None:
    asked = [entry for number in range(24) for entry in _claim(number)]
    found = plan([*cluster, *asked])
    assert len(found.allocations) == 24
    assert set(found.levels.values()) <= {"PIX", "PXB"}
    assert len(set(found.nodes.values())) == 3
    devices = [
        (result["pool"], result["device"])
        for allocation in found.allocations.values()
        for result in allocation["devices"]["results"]
        if "shareID" not in result
    ]
    assert len(devices) == len(set(devices))


def test_remembering_changes_nothing(cluster: list[Object], monkeypatch: pytest.MonkeyPatch) -> None:
    asked = [
        entry
        for number in range(18)
        for entry in _claim(number, gpus=1 + number % 3, nics=number % 2, selector="true" * (number % 4 == 0))
    ]
    remembered = plan([*cluster, *asked]).to_dict()
    monkeypatch.setattr(ResultCache, "saying", lambda *_: None)
    assert plan([*cluster, *asked]).to_dict() == remembered


def test_the_order_of_objects_does_not_matter(cluster: list[Object]) -> None:
    asked = [entry for number in range(6) for entry in _claim(number, gpus=1 + number % 2)]
    assert plan([*cluster, *asked]).to_dict() == plan([*asked, *cluster][::-1]).to_dict()


def test_a_node_that_only_a_selector_can_find_is_found(cluster: list[Object]) -> None:
    found = plan([*cluster, *_claim(0, selector='device.attributes["koordra.io"].model == "SPECIAL"')])
    assert set(found.nodes.values()) == {f"node-{COUNT - 1:03}"}


def test_what_does_not_fit_has_a_reason_of_every_node(cluster: list[Object]) -> None:
    found = plan([*cluster, *_claim(0, gpus=9)])
    (reasons,) = found.unsatisfiable.values()
    assert sum(reason.nodes for reason in reasons if reason.device is None) == COUNT


def test_a_claim_that_asks_for_spread_is_not_ranked(cluster: list[Object]) -> None:
    first, second = _claim(0), _claim(1)
    for claim in (first[0], second[0]):
        parameters = {
            "apiVersion": "koordra.io/v1alpha1",
            "kind": "PlacementPolicy",
            "node": "Spread",
        }
        claim["spec"]["devices"]["config"] = [{"opaque": {"driver": "koordra.io", "parameters": parameters}}]
    found = plan([*cluster, *first, *second])
    assert len(set(found.nodes.values())) == 2


@pytest.mark.long
def test_a_bound_hides_no_node(cluster: list[Object], monkeypatch: pytest.MonkeyPatch) -> None:
    """Without bounds every node that could serve a claim is searched; the answers are the same."""
    asked = [
        entry
        for number in range(30)
        for entry in _claim(number, gpus=8 if number % 3 else 1, nics=number % 2)
    ]
    bounded = plan([*cluster, *asked])
    monkeypatch.setattr(CostBound, "least", lambda *_: CostPair())
    assert plan([*cluster, *asked]) == bounded


def test_what_a_node_would_waste_follows_its_state(cluster: list[Object]) -> None:
    """Nodes in one state cost the same; one whose cores are gone costs less to take GPUs of; a node that goes
    changes no other."""
    stranded = LearnedTable(pods=1, cores=(PerGpuDemand(8000, 1_000_000),))
    engine = engine_for(learned=Learned(stranded))
    pod = {
        "kind": "Pod",
        "metadata": {"name": "full", "namespace": "d"},
        "spec": {
            "nodeName": "node-000",
            "containers": [{"name": "c", "resources": {"requests": {"cpu": "62"}}}],
        },
    }
    asked = _claim(0)

    def least_on(name: str, *others: Object, without: str = "") -> int:
        shown = [entry for entry in cluster if entry["metadata"]["name"] != without]
        plan([*shown, *others], engine=engine)
        engine.settle()
        group = ClaimGroup((ResourceClaim.from_dict(asked[0]),), (asked[1],))
        return engine.order.least(engine.resolve(group), engine.index.nodes[name], alone=False)

    usual = least_on("node-000")
    assert least_on("node-001") == usual
    assert least_on("node-000", pod) < usual
    assert least_on("node-001", pod) == usual
    assert least_on("node-002", without="node-001") == usual


@pytest.mark.long
def test_a_kept_engine_plans_as_a_fresh_one(cluster: list[Object]) -> None:
    """Claims come and go, a node goes and comes back, slices and classes change: what is kept follows."""
    shown, kept, held = list(cluster), engine_for(), list[Object]()
    for turn in range(12):
        pending = [
            entry
            for number in range(6 * turn, 6 * turn + 6)
            for entry in _claim(number, gpus=1 + number % 3, nics=number % 2)
        ]
        there = [entry for entry in shown if turn % 4 != 3 or entry["metadata"]["name"] != "node-001"]
        found = plan([*there, *held, *pending], engine=kept)
        assert found.to_dict() == plan([*there, *held, *pending]).to_dict(), turn
        held += _held(pending, found)
        if turn % 3 == 2:
            del held[: 2 * 5]
        if turn == 5:
            at = next(at for at, entry in enumerate(shown) if entry["kind"] == "ResourceSlice")
            changed = shown[at]
            pool = {**changed["spec"]["pool"], "generation": 2, "resourceSliceCount": 1}
            half = [_renamed(device) for device in changed["spec"]["devices"]]
            shown[at] = {**changed, "spec": {**changed["spec"], "pool": pool, "devices": half}}
        if turn == 7:
            at = next(at for at, entry in enumerate(shown) if entry["kind"] == "DeviceClass")
            labeled = {**shown[at]["metadata"], "labels": {"seen": "again"}}
            shown[at] = {**shown[at], "metadata": labeled}


def _held(pending: list[Object], found: Any) -> list[Object]:
    made = []
    for entry in pending:
        key = f"d/{entry['metadata']['name']}"
        if entry["kind"] == "ResourceClaim":
            made.append({**entry, "status": {"allocation": found.allocations[key]}})
        else:
            made.append({**entry, "spec": {**entry["spec"], "nodeName": found.nodes[key]}})
    return made


def test_a_kept_engine_is_of_one_policy(cluster: list[Object]) -> None:
    with pytest.raises(PlanError, match="another policy"):
        plan([*cluster, *_claim(0)], engine=engine_for(), policy="Spread")


def test_nodes_that_are_gone_are_not_kept_by_lists_of_candidates(cluster: list[Object]) -> None:
    """Pods that choose nodes have a list of nodes each; clusters that grow and shrink give every node another
    name."""

    class Node(dict[str, Any]):
        """A dict that can be referred to weakly."""

    engine, (claim, pod) = engine_for(), _claim(0)
    pod["spec"]["nodeSelector"] = {"zone": "a"}
    group = ClaimGroup((ResourceClaim.from_dict(claim),), (pod,))
    for one in cluster:
        if one["kind"] == "DeviceClass":
            engine.index.apply(ClusterChange(CLASS, one["metadata"]["name"], one))
    seen = []
    for number in range(9):
        node = Node(metadata={"name": f"n-{number}", "labels": {"zone": "a"}})
        seen.append(weakref.ref(node))
        engine.index.apply(ClusterChange(NODE, f"n-{number}", node))
        del node
        if number:
            engine.index.apply(ClusterChange(NODE, f"n-{number - 1}", None))
        engine.decide(group)
    gc.collect()
    assert [number for number, node in enumerate(seen) if node() is not None] == [8]
