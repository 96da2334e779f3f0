"""The operator's isolation policy in the allocator: a node that does not allow the wanted isolation is no
candidate."""

from __future__ import annotations

from typing import Any

import pytest

from koordra.placement import Plan, PlanError, plan
from tests.unit.allocator.machines import (
    claim,
    config,
    counters_of,
    cut_card,
    device_classes,
    gpu,
    node,
    place,
    pod,
    request,
    slice_of,
)

LIMITED = {"isolationNone": False, "isolationLimiter": True}
UNLIMITED = {"isolationNone": True}
SHARE = request("gpu", capacity={"memory": "20Gi"})
NONE_ON_LIMITER = (
    "isolation: requested none, the node allows only limiter; "
    "ask for limiter, or have its kubelet plugin started with --allowed-isolation none"
)
MPS_ON_AN_INSTANCE = (
    "isolation: requested mps, which is done to a whole card, and this is an MIG instance; "
    "leave isolation out, or ask for a share of a card"
)


def cluster(**nodes: dict[str, bool]) -> list[dict[str, Any]]:
    found = []
    for name, isolation in nodes.items():
        found += [node(name), slice_of([gpu(0, place=place(0), **isolation)], name=name)]
    return found


def planned(*objects: Any) -> Plan:
    flat = [entry for one in objects for entry in (one if isinstance(one, list) else [one])]
    return plan([*device_classes(), *flat])


def told(found: Plan) -> list[tuple[str, str]]:
    """What is told of devices."""
    return [(one.reason, one.detail) for one in found.unsatisfiable["default/c"] if one.device is not None]


def test_a_share_without_limits_goes_where_the_operator_allows_it() -> None:
    unlimited = claim("c", SHARE, configs=[config("GpuConfig", isolation="none")])
    found = planned(cluster(limited=LIMITED, open=UNLIMITED), unlimited)
    assert found.nodes["default/c"] == "open"
    refused = planned(cluster(limited=LIMITED), unlimited)
    assert told(refused) == [("BackendUnavailable", NONE_ON_LIMITER)]
    assert {(reason.node, reason.device) for reason in refused.unsatisfiable["default/c"]} == {
        ("limited", None),
        ("limited", "gpu-0"),
    }


def test_a_backend_that_no_node_has_is_waited_for() -> None:
    wanted = claim("c", SHARE, configs=[config("GpuConfig", isolation="mps")])
    assert (
        "BackendUnavailable",
        "isolation: requested mps, the node allows only none; ask for none, or have its kubelet plugin started with --allowed-isolation mps",
    ) in told(planned(cluster(a=LIMITED, b=UNLIMITED), wanted))
    assert planned(cluster(a=LIMITED, b={**LIMITED, "isolationMps": True}), wanted).nodes["default/c"] == "b"


def test_a_share_that_asks_for_nothing_gets_what_the_node_gives() -> None:
    assert "default/c" in planned(cluster(a=LIMITED), claim("c", SHARE)).allocations
    assert "default/c" in planned(cluster(a=UNLIMITED), claim("c", SHARE)).allocations
    assert told(planned(cluster(a={"isolationNone": False}), claim("c", SHARE)))[0][0] == "BackendUnavailable"


def test_an_instance_is_nobodys_client() -> None:
    """Also where the node allows MPS, for its other cards: it is said before anything is bound."""
    parts, counters = cut_card(0, [("1g.10gb", 0, 1, 1)], slices=8, compute=7, place=place(0))
    for part in parts:
        part["attributes"] |= {"isolationNone": {"bool": False}, "isolationMps": {"bool": True}}
    places, of_card = slice_of(parts, name="a"), counters_of([counters], name="a")
    for one in (places, of_card):
        one["spec"]["pool"] = {"name": "a", "generation": 1, "resourceSliceCount": 2}
    card = [node("a"), places, of_card]
    wanted = claim("c", request("gpu", "mig"), configs=[config("GpuConfig", isolation="mps")])
    assert told(planned(card, wanted)) == [("BackendUnavailable", MPS_ON_AN_INSTANCE)]
    assert "default/c" in planned(card, claim("c", request("gpu", "mig"))).allocations


@pytest.mark.parametrize(
    "wanted",
    [
        claim("c", request("gpu"), configs=[config("GpuConfig", isolation="none")]),
        claim("c", SHARE, configs=[config("GpuConfig", isolation="none", exclusive=True)]),
        claim("c", request("gpu", capacity={"cores": "30"}), configs=[config("GpuConfig", isolation="none")]),
    ],
    ids=["whole", "exclusive", "all-memory"],
)
def test_a_card_without_neighbours_is_no_share(wanted: dict[str, Any]) -> None:
    assert "default/c" in planned(cluster(a=LIMITED), wanted).allocations


def test_a_cluster_that_knows_no_amounts_gives_whole_cards() -> None:
    """Before 1.36, by default: nobody is beside the claim, which needs no isolation."""
    wanted = claim("c", request("gpu"), configs=[config("GpuConfig", isolation="none")])
    found = plan([*device_classes(), *cluster(a=LIMITED), wanted], features=())
    assert "default/c" in found.allocations


def test_with_admin_access_a_card_is_seen_and_not_shared() -> None:
    wanted = claim(
        "c",
        request("gpu", capacity={"memory": "20Gi"}, adminAccess=True),
        configs=[config("GpuConfig", isolation="none")],
    )
    assert "default/c" in planned(cluster(a=LIMITED), wanted).allocations


def of_class(**fields: Any) -> dict[str, Any]:
    gpus = next(one for one in device_classes() if one["metadata"]["name"] == "gpu.koordra.io")
    return {
        **gpus,
        "metadata": {"name": "gold.koordra.io"},
        "spec": {**gpus["spec"], "config": [config("GpuConfig", **fields)]},
    }


GOLD = request("gpu", "gold", capacity={"memory": "20Gi"})


def test_the_class_stands_above_the_claim() -> None:
    nodes = cluster(a=LIMITED, b={**LIMITED, "isolationMps": True}, c=UNLIMITED)
    asks = claim("c", GOLD, configs=[config("GpuConfig", isolation="none")])
    assert planned(nodes, of_class(isolation="mps"), asks).nodes["default/c"] == "b"
    assert planned(nodes, of_class(allowedIsolation=["mps"]), claim("c", GOLD)).nodes["default/c"] == "b"
    refused = told(planned(nodes, of_class(allowedIsolation=["mps", "limiter"]), asks))
    assert set(refused) == {
        (
            "BackendUnavailable",
            "isolation: requested none, the class allows only mps, limiter; ask for mps or limiter, or name a class that allows none",
        )
    }


def test_a_class_alone_allows_no_share_without_limits() -> None:
    """Where one tenant of a card is limited, all are: a class cannot say otherwise for a node's cards."""
    found = planned(cluster(a=LIMITED), of_class(allowedIsolation=["none"]), claim("c", GOLD))
    assert told(found) == [("BackendUnavailable", NONE_ON_LIMITER)]


def test_what_is_the_operators_to_say_is_refused_in_a_claim() -> None:
    wanted = claim("c", SHARE, configs=[config("GpuConfig", allowedIsolation=["none"])])
    with pytest.raises(PlanError, match="allowedIsolation: is for the operator to say"):
        planned(cluster(a=LIMITED), wanted)


def test_a_node_that_says_nothing_is_left_to_prepare() -> None:
    wanted = claim("c", SHARE, configs=[config("GpuConfig", isolation="none")])
    assert "default/c" in planned(cluster(a={}), wanted).allocations


def test_two_claims_that_differ_in_isolation_alone_are_two_questions() -> None:
    """What a node answered to the one is no answer to the other."""
    nodes = cluster(limited=LIMITED, open=UNLIMITED)
    asks = {
        word: claim(word, SHARE, configs=[config("GpuConfig", isolation=word)])
        for word in ("limiter", "none")
    }
    for first, second in (("limiter", "none"), ("none", "limiter")):
        pods = [pod(f"p{at}", word) for at, word in enumerate((first, second))]
        found = planned(nodes, asks[first], asks[second], pods)
        assert found.nodes == {"default/limiter": "limited", "default/none": "open"}, first


MPS = {"isolationNone": False, "isolationMps": True}
SLICED = {"isolationNone": False, "isolationTimeslicing": True}


def written_words(found: Plan) -> list[Any]:
    """What the allocator wrote into the allocation, after what the claim says."""
    (allocation,) = found.allocations.values()
    entries = allocation["devices"]["config"]
    return [(one.get("requests"), one["opaque"]["parameters"].get("isolation")) for one in entries]


@pytest.mark.parametrize(
    ("node", "word"),
    [
        (MPS, "mps"),
        (LIMITED, "limiter"),
        (SLICED, "timeslicing"),
        (UNLIMITED, "none"),
        ({**LIMITED, "isolationHamiCore": True}, "limiter"),
        ({**LIMITED, "isolationMig": True}, "limiter"),
    ],
)
def test_auto_is_the_first_that_the_node_has(node: dict[str, bool], word: str) -> None:
    found = planned(cluster(a=node), claim("c", SHARE, configs=[config("GpuConfig", isolation="Auto")]))
    assert written_words(found) == [(None, "Auto"), (["gpu"], word)]


def test_auto_goes_by_the_order_of_the_class_and_by_nothing_else() -> None:
    auto = config("GpuConfig", isolation="Auto")
    both = {**LIMITED, "isolationHamiCore": True}
    hami = of_class(allowedIsolation=["hami-core", "limiter"], defaultIsolation="Auto")
    found = planned(cluster(a=both), hami, claim("c", GOLD))
    assert written_words(found)[-1] == (["gpu"], "hami-core")
    only = of_class(allowedIsolation=["mps", "timeslicing"])
    refused = planned(cluster(a=both, b=UNLIMITED), only, claim("c", GOLD, configs=[auto]))
    assert {detail.partition(";")[0] for _, detail in told(refused)} == {
        "isolation: requested Auto (mps, timeslicing), the node allows only limiter, hami-core",
        "isolation: requested Auto (mps, timeslicing), the node allows only none",
    }
    assert {reason for reason, _ in told(refused)} == {"BackendUnavailable"}
    found = planned(cluster(a=both, b=SLICED), only, claim("c", GOLD, configs=[auto]))
    assert found.nodes["default/c"] == "b"


def test_auto_of_a_class_leaves_it_to_the_claim_to_name_one() -> None:
    nodes = cluster(a=LIMITED, b=MPS)
    lax = of_class(isolation="Auto", allowedIsolation=["limiter", "mps"])
    wanted = claim("c", GOLD, configs=[config("GpuConfig", isolation="mps")])
    assert planned(nodes, lax, wanted).nodes["default/c"] == "b"
    assert written_words(planned(cluster(b=MPS), lax, claim("c", GOLD)))[-1] == (["gpu"], "mps")


def test_auto_of_a_whole_card_is_nothing() -> None:
    wanted = claim("c", request("gpu"), configs=[config("GpuConfig", isolation="Auto")])
    assert written_words(planned(cluster(a=MPS), wanted)) == [(None, "Auto")]


def test_auto_where_the_class_gives_instances_alone_is_no_share() -> None:
    only = of_class(allowedIsolation=["mig"], defaultIsolation="Auto")
    ((reason, detail), *_) = told(planned(cluster(a=LIMITED), only, claim("c", GOLD)))
    assert reason == "BackendUnavailable"
    assert detail.endswith("--allowed-isolation mig")
