"""What keeps a request off nodes is known to the fleet: the first node that `plan()` asks fits, and the models are the workload's."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from koordra.allocator.devices.inventory import Inventory, Usage
from koordra.allocator.features import Features
from koordra.allocator.placement import Placement
from koordra.allocator.request.requests import ResolvedClaim, resolve
from koordra.api.claims import DeviceClass, ResourceClaim
from koordra.placement import engine_for, plan, read_inventory
from koordra.placement.columns.state import Request
from koordra.placement.decide import Engine
from koordra.placement.node_filter import node_sets
from koordra.placement.node_filter.node_sets import MOST_SETS, NOWHERE
from koordra.placement.order.node_ranking import NodeRanking
from tests.unit.placement import fleets, mixed

Object = dict[str, Any]
COUNT = 80


@pytest.fixture(scope="module")
def published() -> list[Object]:
    return mixed.slices(COUNT)


@pytest.fixture
def inventory(published: list[Object]) -> Inventory:
    return read_inventory(published)


@pytest.fixture
def searched(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """The nodes that were searched."""
    found: list[str] = []
    search = Placement.on_node

    def counted(self: Placement, name: str, *given: Any, **named: Any) -> Any:
        found.append(name)
        return search(self, name, *given, **named)

    monkeypatch.setattr(Placement, "on_node", counted)
    return iter([found])


CLAIMS: dict[str, dict[str, Any]] = {
    "anything": {},
    "a model": {"selector": mixed.of_model("T4")},
    "two models": {"selector": mixed.of_model("T4", "V100"), "gpus": 2},
    "more memory than most cards have": {"memory": "60Gi"},
    "a model and its NIC": {"selector": mixed.of_model("H100"), "nics": 1},
    "a NIC of a sort": {"nics": 1, "of_nics": 'device.attributes["koordra.io"].linkLayer == "InfiniBand"'},
    "an architecture": {"selector": 'device.attributes["koordra.io"].architecture == "Volta"'},
    "a compute capability": {
        "selector": 'device.attributes["koordra.io"].cudaComputeCapability.isGreaterThan(semver("8.5.0"))'
    },
    "a zone": {"pod": {"nodeSelector": {"zone": "west"}}},
    "a zone and a model": {"pod": {"nodeSelector": {"zone": "west"}}, "selector": mixed.of_model("T4")},
    "an affinity": {
        "pod": mixed.affinity(
            [
                {"key": "zone", "operator": "NotIn", "values": ["east"]},
                {"key": "generation", "operator": "Gt", "values": ["2"]},
            ],
            [{"key": "nothing", "operator": "Exists"}],
        )
    },
    "what is set aside": {
        "pod": {"tolerations": mixed.TOLERATED, "nodeSelector": {"zone": "east", "generation": "1"}}
    },
    "a node by its label": {"pod": {"nodeSelector": {"kubernetes.io/hostname": mixed.name_of(77)}}},
    "a node by name": {
        "pod": mixed.affinity(
            [{"key": "metadata.name", "operator": "In", "values": [mixed.name_of(76)]}], fields=True
        )
    },
    "a cordoned node": {
        "pod": {
            "nodeSelector": {"kubernetes.io/hostname": mixed.name_of(0)},
            "tolerations": [{"operator": "Exists"}],
        }
    },
}


@pytest.mark.parametrize("case", CLAIMS)
def test_nodes_that_cannot_serve_a_claim_are_not_searched(
    case: str, inventory: Inventory, searched: Iterator[list[str]]
) -> None:
    (asked,) = searched
    found = plan(
        [*mixed.nodes(COUNT), *mixed.classes(), *mixed.claim("asked", **CLAIMS[case])], inventory=inventory
    )
    (best,) = found.nodes.values()
    assert best in asked
    assert len(asked) <= len(mixed.MACHINES), "one of every machine at most: nothing is in use"
    for name in list(asked):
        alone = plan(
            [
                *(node for node in mixed.nodes(COUNT) if node["metadata"]["name"] == name),
                *mixed.classes(),
                *mixed.claim("asked", **CLAIMS[case]),
            ],
            inventory=inventory,
        )
        assert alone.allocations
        assert alone.allocations == found.allocations or name != best


def test_searches_are_as_many_as_claims(inventory: Inventory, searched: Iterator[list[str]]) -> None:
    """A state of a node is searched once for a class at most, and claims leave one state each."""
    (asked,) = searched
    cases = [case for case in CLAIMS if "a node" not in case and "cordoned" not in case]
    wanted = [
        entry
        for number in range(5 * len(cases))
        for entry in mixed.claim(f"c{number:03}", **CLAIMS[cases[number % len(cases)]])
    ]
    found = plan([*mixed.nodes(COUNT), *mixed.classes(), *wanted], inventory=inventory)
    assert len(found.allocations) == 5 * len(cases)
    assert len(asked) <= (len(mixed.MACHINES) + len(found.allocations)) * len(cases)
    assert len(asked) <= 3 * len(found.allocations)


def test_what_nothing_serves_has_the_reasons_of_every_node(inventory: Inventory) -> None:
    found = plan(
        [*mixed.nodes(COUNT), *mixed.classes(), *mixed.claim("asked", selector=mixed.of_model("B200"))],
        inventory=inventory,
    )
    (reasons,) = found.unsatisfiable.values()
    assert len({reason.node for reason in reasons}) == COUNT


# --- requests -------------------------------------------------------------------------------------------------------


class Fleet:
    """A ranking over the mixed cluster, asked for requests."""

    def __init__(self, inventory: Inventory, nodes: list[Object]) -> None:
        by_name = {node["metadata"]["name"]: node for node in nodes}
        self.ranking = NodeRanking.of(by_name, inventory)
        self.ranking.settle(Usage(), {})

    def request(self, **said: Any) -> Request:
        found = self.ranking.request(*_asked(**said))
        assert found is not None
        return found

    def restriction(self, **said: Any) -> tuple[tuple[str, ...], int]:
        found = self.request(**said)
        return found.models, found.nodes

    def order(self, **said: Any) -> list[str]:
        return list(self.ranking.order(*_asked(**said)) or ())


def _asked(**said: Any) -> tuple[list[ResolvedClaim], list[Object]]:
    claim, pod = mixed.claim("asked", **said)
    classes = {entry["metadata"]["name"]: DeviceClass.from_dict(entry) for entry in mixed.classes()}
    resolved = resolve(
        ResourceClaim.from_dict(claim), position=0, classes=classes, features=Features.of(None)
    )
    return [resolved], [pod]


def in_use(nodes: list[Object]) -> list[Object]:
    """Without those that are cordoned, not ready or set aside."""
    return [
        node for node in nodes if not node["spec"] and node["status"]["conditions"][0]["status"] == "True"
    ]


def test_models_are_said_where_some_are_kept_out(inventory: Inventory) -> None:
    fleet = Fleet(inventory, in_use(mixed.nodes(COUNT)))
    assert fleet.request().models == ()
    assert fleet.restriction(selector=mixed.of_model("H100", "A100")) == (("A100", "H100"), -1)
    assert fleet.request(memory="60Gi").models == ("H100",)
    assert fleet.restriction(selector=mixed.of_model("T4", "A100", "H100", "V100")) == ((), -1)
    assert fleet.request(gpus=0, nics=1).models == ()


def test_models_follow_from_what_lasts_only(inventory: Inventory) -> None:
    """A zone where only one model stands makes a request one for that model; a cordon or an unready node does not."""
    nodes = mixed.nodes(COUNT)
    for number, node in enumerate(nodes):
        node["spec"].pop("taints", None)
        if mixed.model_of(number) == "T4":
            node["metadata"]["labels"]["zone"] = "edge"
            node["spec"]["unschedulable"] = True
        if mixed.model_of(number) == "V100":
            node["status"]["conditions"] = [{"type": "Ready", "status": "False"}]
            node["spec"]["taints"] = [{"key": "node.kubernetes.io/not-ready", "effect": "NoExecute"}]
        if mixed.model_of(number) == "H100":
            node["spec"]["taints"] = [mixed.SET_ASIDE]
    fleet = Fleet(inventory, nodes)
    assert fleet.request().models == ("A100", "T4", "V100")
    assert fleet.request(pod={"tolerations": mixed.TOLERATED}).models == ()
    assert fleet.restriction(pod={"nodeSelector": {"zone": "edge"}}) == (("T4",), NOWHERE)
    edge = fleet.request(
        pod={
            "nodeSelector": {"zone": "edge"},
            "tolerations": [{"key": "node.kubernetes.io/unschedulable", "operator": "Exists"}],
        }
    )
    assert edge.models == ("T4",)
    assert {mixed.model_of(int(name[-3:])) for name in fleet.order()} == {"A100"}


def test_a_tainted_device_bans_no_model_and_a_tainted_node_is_left_out(published: list[Object]) -> None:
    nodes = in_use(mixed.nodes(COUNT))
    inventory = read_inventory(published)

    def tainted(name: str, device: str | None) -> Object:
        selector = {"driver": "koordra.io", "pool": name} | ({"device": device} if device else {})
        return {
            "apiVersion": "resource.k8s.io/v1beta2",
            "kind": "DeviceTaintRule",
            "metadata": {"name": f"rule-{name}"},
            "spec": {"deviceSelector": selector, "taint": {"key": "broken", "effect": "NoSchedule"}},
        }

    by_model = {
        model: [
            node["metadata"]["name"]
            for node in nodes
            if mixed.model_of(int(node["metadata"]["name"][-3:])) == model
        ]
        for model in mixed.MACHINES
    }
    for name in by_model["T4"]:
        inventory.put(tainted(name, None))
    one = next(
        device["name"]
        for entry in published
        if entry["spec"]["nodeName"] == by_model["V100"][0]
        for device in entry["spec"]["devices"]
    )
    inventory.put(tainted(by_model["V100"][0], one))
    fleet = Fleet(inventory, nodes)
    assert fleet.request().models == ()
    assert not set(fleet.order()) & set(by_model["T4"])
    assert set(by_model["V100"]) <= set(fleet.order())
    assert by_model["V100"][0] not in fleet.order(gpus=8)
    tolerating = [{"key": "broken", "operator": "Exists"}]
    assert set(by_model["T4"]) <= set(fleet.order(tolerations=tolerating))
    assert fleet.restriction(tolerations=tolerating) == ((), -1)


def test_a_selector_that_fails_may_serve(inventory: Inventory) -> None:
    """The search tells of the error; the fleet keeps nothing from it."""
    fleet = Fleet(inventory, in_use(mixed.nodes(COUNT)))
    assert fleet.restriction(selector='device.attributes["koordra.io"].nowhere == "x"') == ((), -1)


def test_a_label_of_every_node_makes_no_sets(inventory: Inventory, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor does an attribute of every device. Both count as met, and the nodes are asked."""
    monkeypatch.setattr(node_sets, "MOST_CELLS", 40)
    fleet = Fleet(inventory, in_use(mixed.nodes(COUNT)))
    assert fleet.restriction(pod={"nodeSelector": {"rack": "r033"}}) == ((), -1)
    assert fleet.restriction(selector='device.attributes["koordra.io"].uuid == "x"') != ((), -1)
    assert fleet.request(pod={"nodeSelector": {"rack": "r033", "zone": "west"}}).nodes > NOWHERE
    found = plan(
        [
            *mixed.nodes(COUNT),
            *mixed.classes(),
            *mixed.claim("asked", pod={"nodeSelector": {"rack": "r033"}}),
        ],
        inventory=inventory,
    )
    assert list(found.nodes.values()) == [mixed.name_of(33)]


def test_labels_are_bounded(inventory: Inventory, monkeypatch: pytest.MonkeyPatch) -> None:
    """A storm of words about labels that no node has costs nothing but the words."""
    monkeypatch.setattr(node_sets, "MOST_READ", 12)
    fleet = Fleet(inventory, in_use(mixed.nodes(COUNT)))
    said = [{"nodeSelector": {f"label-{number}": "x"}} for number in range(40)]
    found = [fleet.restriction(pod=one) for one in said]
    assert [nodes for _, nodes in found].count(NOWHERE) == 12
    assert [nodes for _, nodes in found].count(-1) == 28
    version = fleet.ranking.sets.version
    assert [fleet.restriction(pod=one) for one in said] == found
    assert fleet.ranking.sets.version == version


def test_taints_that_come_and_go_use_nothing_up(
    inventory: Inventory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An autoscaler writes the time into a taint's value: cells without nodes go, and labels are read as before."""
    monkeypatch.setattr(node_sets, "MOST_CELLS", 40)
    fleet = Fleet(inventory, in_use(mixed.nodes(COUNT)))
    west = {"nodeSelector": {"zone": "west"}}
    before = set(fleet.order(pod=west))
    one = fleet.ranking.devices[0]
    for number in range(100):
        taint = {"key": "ToBeDeleted", "value": str(number), "effect": "NoSchedule"}
        node = {**one.node, "spec": {"taints": [taint, {**taint, "key": "x", "effect": "PreferNoSchedule"}]}}
        fleet.ranking.put(replace(one, node=node), Usage(), {})
        assert one.name not in fleet.order()
    fleet.ranking.put(one, Usage(), {})
    assert set(fleet.order(pod=west)) == before
    assert one.name in fleet.order()


def test_sets_are_bounded(inventory: Inventory, monkeypatch: pytest.MonkeyPatch) -> None:
    """When all numbers are used, a request is unrestricted; later the one that nobody asked for is used again."""
    fleet = Fleet(inventory, in_use(mixed.nodes(COUNT)))
    racks = [node["metadata"]["labels"]["rack"] for node in in_use(mixed.nodes(COUNT))]
    pairs = [{"rack": rack} for rack in racks] + [{"rack": rack, "zone": "west"} for rack in racks]
    numbers = [fleet.request(pod={"nodeSelector": said}).nodes for said in pairs]
    assert set(range(1, MOST_SETS)) <= set(numbers)
    assert max(numbers) == MOST_SETS - 1
    assert -1 in numbers
    late = {"rack": racks[-1]}
    assert fleet.request(pod={"nodeSelector": late}).nodes == -1
    kept = pairs[1]
    monkeypatch.setattr(node_sets, "_LONG_AGO", 3)
    for _ in range(4):
        assert fleet.request(pod={"nodeSelector": kept}).nodes == numbers[1]
    epoch = fleet.ranking.sets.epoch
    fleet.ranking.sets._answers.clear()
    assert fleet.request(pod={"nodeSelector": late}).nodes > NOWHERE
    assert fleet.ranking.sets.epoch > epoch
    assert fleet.order(pod={"nodeSelector": late}) == [f"node-{racks[-1][1:]}"]
    assert fleet.order(pod={"nodeSelector": kept}) == [f"node-{racks[1][1:]}"]


def test_a_new_sort_of_node_makes_requests_others(inventory: Inventory, published: list[Object]) -> None:
    nodes = in_use(mixed.nodes(COUNT))
    few = [node for node in nodes if mixed.model_of(int(node["metadata"]["name"][-3:])) in {"A100", "H100"}]
    fleet = Fleet(inventory, few)
    selector = mixed.of_model("A100", "H100")
    assert fleet.restriction(selector=selector) == ((), -1)
    other = NodeRanking.of({node["metadata"]["name"]: node for node in nodes}, inventory)
    new = next(one for one in other.devices if one.kind.model == "T4")
    fleet.ranking.put(new, Usage(), {})
    assert fleet.request(selector=selector).models == ("A100", "H100")
    assert fleet.ranking.key(new.name, fleet.request(selector=selector)) is None
    assert fleet.ranking.key(new.name, fleet.request(selector=mixed.of_model("T4"))) is not None
    assert fleets.drifted(fleet.ranking.fleet) == []


@pytest.mark.long
def test_a_kept_engine_follows_the_nodes(inventory: Inventory) -> None:
    """Labels, taints, cordons and readiness change from plan to plan; a kept engine plans as a fresh one."""
    kept, published = engine_for(), mixed.slices(COUNT)
    cases = list(CLAIMS)
    for turn in range(10):
        nodes = mixed.nodes(COUNT)
        for number, node in enumerate(nodes):
            if (number + turn) % 3 == 0:
                node["metadata"]["labels"]["zone"] = mixed.ZONES[turn % 3]
            if (number + turn) % 5 == 0:
                node["spec"]["taints"] = [mixed.SET_ASIDE]
            if (number + turn) % 7 == 0:
                node["spec"]["unschedulable"] = True
            if (number + turn) % 11 == 0:
                node["status"]["conditions"] = [{"type": "Ready", "status": "False"}]
        shown = [node for number, node in enumerate(nodes) if number % 9 != turn]
        wanted = [
            entry for number, case in enumerate(cases) for entry in mixed.claim(f"c{number}", **CLAIMS[case])
        ]
        found = plan([*shown, *published, *mixed.classes(), *wanted], engine=kept, report_errors=True)
        fresh = plan([*shown, *mixed.classes(), *wanted], inventory=inventory, report_errors=True)
        assert found.to_dict() == fresh.to_dict(), turn


def test_a_class_of_an_administrator_says_type_and_models(
    inventory: Inventory, searched: Iterator[list[str]]
) -> None:
    """What a class selects decides which nodes are searched, whatever it is called."""

    def of(name: str, *expressions: str) -> Object:
        selectors = [{"cel": {"expression": expression}} for expression in expressions]
        return {"kind": "DeviceClass", "metadata": {"name": name}, "spec": {"selectors": selectors}}

    own = 'device.driver == "koordra.io"'
    gold = of("gold", own, 'device.attributes["koordra.io"].type == "gpu"', mixed.of_model("H100", "V100"))
    anything = of("anything", own)
    (asked,) = searched
    for device_class, known in ((gold, True), (anything, False)):
        asked.clear()
        claim, pod = mixed.claim("asked", gpus=2)
        claim["spec"]["devices"]["requests"][0]["exactly"]["deviceClassName"] = device_class["metadata"][
            "name"
        ]
        found = plan([*mixed.nodes(COUNT), device_class, claim, pod], inventory=inventory)
        assert found.nodes
        if known:
            assert {mixed.model_of(int(name[-3:])) for name in asked} <= {"H100", "V100"}


def test_a_shared_claim_asks_its_node_alone(
    inventory: Inventory, searched: Iterator[list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A pod whose other claim is placed already can go nowhere else; other nodes are not even looked at."""
    nodes, (asked,) = mixed.nodes(COUNT), searched
    first = mixed.claim("first", pod={"nodeSelector": {"zone": "west"}})
    found = plan([*nodes, *mixed.classes(), *first], inventory=inventory)
    first[0]["status"] = {"allocation": found.allocations["d/first"]}
    second = mixed.claim("second")
    second[1]["spec"]["resourceClaims"].append({"name": "y", "resourceClaimName": "first"})
    asked.clear()
    looked = list[str]()
    refusals = Engine.refusals

    def counted(self: Engine, group: Any, info: Any, **given: Any) -> Any:
        looked.append(info.name)
        return refusals(self, group, info, **given)

    monkeypatch.setattr(Engine, "refusals", counted)
    again = plan([*nodes, *mixed.classes(), first[0], *second], inventory=inventory)
    assert again.nodes["d/second"] == found.nodes["d/first"]
    assert asked == looked == [found.nodes["d/first"]]
