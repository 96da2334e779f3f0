"""Nodes that cannot serve a claim are not searched, and the models that a request may run on are the
workload's."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from koordra.allocator.group_search import GroupSearch
from koordra.api.claims import ResourceClaim
from koordra.placement import decide, engine_for, plan
from koordra.placement.index import CLASS, NODE, RULE, SLICE, ClusterChange
from koordra.placement.policy.learned_order import Learned
from koordra.placement.request.claim_groups import ClaimGroup
from tests.unit.placement import mixed

Object = dict[str, Any]
COUNT = 80


@pytest.fixture(scope="module")
def published() -> list[Object]:
    return mixed.slices(COUNT)


@pytest.fixture
def searched(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """The nodes that were searched."""
    found: list[str] = []
    search = GroupSearch.on_node

    def counted(self: GroupSearch, name: str, *given: Any, **named: Any) -> Any:
        found.append(name)
        return search(self, name, *given, **named)

    monkeypatch.setattr(GroupSearch, "on_node", counted)
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
    case: str, published: list[Object], searched: Iterator[list[str]]
) -> None:
    (asked,) = searched
    found = plan([*published, *mixed.nodes(COUNT), *mixed.classes(), *mixed.claim("asked", **CLAIMS[case])])
    (best,) = found.nodes.values()
    assert best in asked
    assert len(asked) <= len(mixed.MACHINES), "one of every machine at most: nothing is in use"
    for name in list(asked):
        alone = plan(
            [
                *published,
                *(node for node in mixed.nodes(COUNT) if node["metadata"]["name"] == name),
                *mixed.classes(),
                *mixed.claim("asked", **CLAIMS[case]),
            ],
        )
        assert alone.allocations
        assert alone.allocations == found.allocations or name != best


def test_searches_are_as_many_as_claims(published: list[Object], searched: Iterator[list[str]]) -> None:
    """A state of a node is searched once for a class at most, and claims leave one state each."""
    (asked,) = searched
    cases = [case for case in CLAIMS if "a node" not in case and "cordoned" not in case]
    wanted = [
        entry
        for number in range(5 * len(cases))
        for entry in mixed.claim(f"c{number:03}", **CLAIMS[cases[number % len(cases)]])
    ]
    found = plan([*published, *mixed.nodes(COUNT), *mixed.classes(), *wanted])
    assert len(found.allocations) == 5 * len(cases)
    assert len(asked) <= (len(mixed.MACHINES) + len(found.allocations)) * len(cases)
    assert len(asked) <= 3 * len(found.allocations)


def test_what_nothing_serves_has_a_reason_of_every_node(published: list[Object]) -> None:
    found = plan(
        [
            *published,
            *mixed.nodes(COUNT),
            *mixed.classes(),
            *mixed.claim("asked", selector=mixed.of_model("B200")),
        ],
    )
    (reasons,) = found.unsatisfiable.values()
    assert sum(reason.nodes for reason in reasons if reason.device is None) == COUNT


# --- requests -----------------------------------------------------------------------------------------------


class Cluster:
    """An engine that learns, on the mixed cluster."""

    def __init__(self, published: list[Object], nodes: list[Object]) -> None:
        self.engine = engine_for(learned=Learned())
        classes = {one["metadata"]["name"]: one for one in mixed.classes()}
        slices = {one["metadata"]["name"]: one for one in published}
        self.engine.index.sync(
            {CLASS: classes, SLICE: slices, NODE: {one["metadata"]["name"]: one for one in nodes}}
        )

    def apply(self, kind: str, obj: Object) -> None:
        self.engine.index.apply(ClusterChange(kind, obj["metadata"]["name"], obj))

    def models(self, **said: Any) -> tuple[str, ...]:
        self.engine.settle()
        claim, pod = mixed.claim("asked", **said)
        question = self.engine.resolve(ClaimGroup((ResourceClaim.from_dict(claim),), (pod,)))
        found = self.engine.order.request(question)
        assert found is not None
        return found.models


def in_use(nodes: list[Object]) -> list[Object]:
    """Without those that are cordoned, not ready or set aside."""
    return [
        node for node in nodes if not node["spec"] and node["status"]["conditions"][0]["status"] == "True"
    ]


def test_models_are_said_where_some_are_kept_out(published: list[Object]) -> None:
    cluster = Cluster(published, in_use(mixed.nodes(COUNT)))
    assert cluster.models() == ()
    assert cluster.models(selector=mixed.of_model("H100", "A100")) == ("A100", "H100")
    assert cluster.models(memory="60Gi") == ("H100",)
    assert cluster.models(selector=mixed.of_model("T4", "A100", "H100", "V100")) == ()
    assert cluster.models(gpus=0, nics=1) == ()


def test_models_follow_from_what_lasts_only(published: list[Object]) -> None:
    """A zone where only one model stands makes a request one for that model; a cordon or an unready node does
    not."""
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
    cluster = Cluster(published, nodes)
    assert cluster.models() == ("A100", "T4", "V100")
    assert cluster.models(pod={"tolerations": mixed.TOLERATED}) == ()
    assert cluster.models(pod={"nodeSelector": {"zone": "edge"}}) == ("T4",)
    tolerated = [{"key": "node.kubernetes.io/unschedulable", "operator": "Exists"}]
    assert cluster.models(pod={"nodeSelector": {"zone": "edge"}, "tolerations": tolerated}) == ("T4",)


def test_a_tainted_device_bans_no_model(published: list[Object]) -> None:
    nodes = in_use(mixed.nodes(COUNT))
    cluster = Cluster(published, nodes)
    for node in nodes:
        name = node["metadata"]["name"]
        if mixed.model_of(int(name[-3:])) == "T4":
            rule = {
                "apiVersion": "resource.k8s.io/v1beta2",
                "kind": "DeviceTaintRule",
                "metadata": {"name": f"rule-{name}"},
                "spec": {
                    "deviceSelector": {"driver": "koordra.io", "pool": name},
                    "taint": {"key": "broken", "effect": "NoSchedule"},
                },
            }
            cluster.apply(RULE, rule)
    assert cluster.models() == ()
    assert cluster.models(tolerations=[{"key": "broken", "operator": "Exists"}]) == ()


def test_a_selector_that_fails_may_serve(published: list[Object]) -> None:
    """The search tells of the error; nothing is kept from it."""
    cluster = Cluster(published, in_use(mixed.nodes(COUNT)))
    assert cluster.models(selector='device.attributes["koordra.io"].nowhere == "x"') == ()


def test_what_tells_single_devices_apart_bans_no_model(published: list[Object]) -> None:
    cluster = Cluster(published, in_use(mixed.nodes(COUNT)))
    assert cluster.models(selector='device.attributes["koordra.io"].uuid == "x"') == ()


def test_a_label_of_one_node_says_its_model(published: list[Object]) -> None:
    cluster = Cluster(published, in_use(mixed.nodes(COUNT)))
    assert cluster.models(pod={"nodeSelector": {"rack": "r033"}}) == (mixed.model_of(33),)
    assert cluster.models(pod={"nodeSelector": {"rack": "nowhere"}}) == ()
    asked = mixed.claim("asked", pod={"nodeSelector": {"rack": "r033"}})
    found = plan([*published, *mixed.nodes(COUNT), *mixed.classes(), *asked])
    assert list(found.nodes.values()) == [mixed.name_of(33)]


def test_taints_that_come_and_go_leave_the_answers_as_they_were(published: list[Object]) -> None:
    """An autoscaler writes the time into a taint's value, on the only node of a zone."""
    nodes = in_use(mixed.nodes(COUNT))
    nodes[0]["metadata"]["labels"]["zone"] = "alone"
    cluster, there = Cluster(published, nodes), {"pod": {"nodeSelector": {"zone": "alone"}}}
    before = cluster.models(**there)
    assert before == (mixed.model_of(int(nodes[0]["metadata"]["name"][-3:])),)
    for number in range(20):
        taint = {"key": "ToBeDeleted", "value": str(number), "effect": "NoSchedule"}
        cluster.apply(NODE, {**nodes[0], "spec": {"taints": [taint]}})
        assert cluster.models(**there) == ()
    cluster.apply(NODE, nodes[0])
    assert cluster.models(**there) == before


def test_a_model_that_comes_makes_requests_others(published: list[Object]) -> None:
    nodes = in_use(mixed.nodes(COUNT))
    few = [node for node in nodes if mixed.model_of(int(node["metadata"]["name"][-3:])) in {"A100", "H100"}]
    cluster, selector = Cluster(published, few), mixed.of_model("A100", "H100")
    assert cluster.models(selector=selector) == ()
    cluster.apply(
        NODE, next(node for node in nodes if mixed.model_of(int(node["metadata"]["name"][-3:])) == "T4")
    )
    assert cluster.models(selector=selector) == ("A100", "H100")
    assert cluster.models(selector=mixed.of_model("T4")) == ("T4",)


@pytest.mark.long
def test_a_kept_engine_follows_the_nodes(published: list[Object]) -> None:
    """Labels, taints, cordons and readiness change from plan to plan; a kept engine plans as a fresh one."""
    kept = engine_for()
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
        fresh = plan([*published, *shown, *mixed.classes(), *wanted], report_errors=True)
        assert found.to_dict() == fresh.to_dict(), turn


def test_a_class_of_an_administrator_says_type_and_models(
    published: list[Object], searched: Iterator[list[str]]
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
        found = plan([*published, *mixed.nodes(COUNT), device_class, claim, pod])
        assert found.nodes
        if known:
            assert {mixed.model_of(int(name[-3:])) for name in asked} <= {"H100", "V100"}


def test_a_shared_claim_asks_its_node_alone(
    published: list[Object], searched: Iterator[list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A pod whose other claim is placed already can go nowhere else; other nodes are not even looked at."""
    nodes, (asked,) = mixed.nodes(COUNT), searched
    first = mixed.claim("first", pod={"nodeSelector": {"zone": "west"}})
    found = plan([*published, *nodes, *mixed.classes(), *first])
    first[0]["status"] = {"allocation": found.allocations["d/first"]}
    second = mixed.claim("second")
    second[1]["spec"]["resourceClaims"].append({"name": "y", "resourceClaimName": "first"})
    asked.clear()
    looked = list[str]()
    refusals = decide.refusals

    def counted(index: Any, group: Any, info: Any, **given: Any) -> Any:
        looked.append(info.name)
        return refusals(index, group, info, **given)

    monkeypatch.setattr(decide, "refusals", counted)
    again = plan([*published, *nodes, *mixed.classes(), first[0], *second])
    assert again.nodes["d/second"] == found.nodes["d/first"]
    assert asked == looked == [found.nodes["d/first"]]
