"""The largest claim, pod and namespace that the API server takes cost a pass a constant times what a plain
claim does: calls of functions, counted, on the controller's own path. Somebody else's claim, which is the
youngest, has its devices after the first pass."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from koordra.api import names, objects
from koordra.api.kinds import PODS, RESOURCE_CLAIMS
from koordra.api.objects import Object
from koordra.controller.allocation.placer import MOST_CLAIMS
from koordra.controller.gangs.declared.annotations import GANG, GANG_MIN
from tests.fakes.effort import calls
from tests.fakes.joint_cluster import claim, pod
from tests.long import mostly_long
from tests.property.test_pass_cost import HOST, INNOCENT, TENANT, Cluster, unlike_cards, with_others

NODES, CARDS = 12, 8
MOST = 100
"""Times the median. The largest measured is 68, of 256 claims that are all placed; without a bound it is
thousands."""

Fill = Callable[[Cluster], None]


def put(cluster: Cluster, *claims: Object, **spec: Any) -> None:
    """The claims, and one pod that uses them."""
    for made in claims:
        cluster.api.create(RESOURCE_CLAIMS, made)
    waits = pod("largest", [objects.name(made) for made in claims], created="2026-11-20T00:00:00Z", **spec)
    waits["metadata"]["namespace"] = TENANT
    cluster.api.create(PODS, waits)


def plain(cluster: Cluster) -> None:
    put(cluster, claim("c", namespace=TENANT))


def with_requests(selectors: int, characters: int, **more: Any) -> Object:
    """32 requests with 8 alternatives, of selectors that are all different."""
    made = claim("c", namespace=TENANT)

    def one(number: int) -> Object:
        texts = [f"device.driver != '{number}-{n}-{'x' * characters}'" for n in range(selectors)]
        own: Object = {"selectors": [{"cel": {"expression": text}} for text in texts]} if texts else {}
        return {"name": f"a{number}", "deviceClassName": "gpu.koordra.io", "count": 1, **own, **more}

    requests = [
        {"name": f"r{request}", "firstAvailable": [one(8 * request + number) for number in range(8)]}
        for request in range(32)
    ]
    made["spec"]["devices"] = {"requests": requests}
    return made


def many_selectors(cluster: Cluster) -> None:
    put(cluster, with_requests(32, 60))


def long_selectors(cluster: Cluster) -> None:
    put(cluster, with_requests(1, 5_000))


def constraints_and_configuration(cluster: Cluster) -> None:
    made = with_requests(0, 0, capacity={"requests": {"memory": "30Gi"}})
    made["spec"]["devices"]["constraints"] = [{"distinctAttribute": "koordra.io/uuid"}] * 32
    made["spec"]["devices"]["config"] = [
        {"opaque": {"driver": "tpu.example.org", "parameters": {"note": f"{each}-" + "x" * 10_000}}}
        for each in range(32)
    ]
    put(cluster, made)


def terms_and_containers(cluster: Cluster) -> None:
    """Beside 200 pods that all of its terms mean."""
    for each in range(200):
        guest = pod(f"g{each}", [], nodeName=f"m{each % NODES}")
        guest["metadata"] |= {"namespace": TENANT, "labels": {"app": "x"}}
        cluster.api.create(PODS, guest)
    keys = [{"key": f"k{each}", "operator": "NotIn", "values": ["a", "b"]} for each in range(40)]
    terms = [
        {
            "topologyKey": f"{HOST}-{each}",
            "labelSelector": {"matchExpressions": keys},
            "namespaceSelector": {},
        }
        for each in range(500)
    ]
    put(
        cluster,
        claim("c", namespace=TENANT),
        affinity={"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": terms}},
        tolerations=[{"key": f"t{each}", "operator": "Exists"} for each in range(2_000)],
        containers=[
            {
                "name": f"c{each}",
                "ports": [{"hostPort": each + 1}],
                "resources": {"requests": {"cpu": "1m"}},
            }
            for each in range(2_000)
        ],
    )


def most_claims(cluster: Cluster) -> None:
    made = [claim(f"c{each}", namespace=TENANT, memory="1Mi") for each in range(MOST_CLAIMS)]
    put(cluster, *made)


def too_many_claims(cluster: Cluster) -> None:
    made = [claim(f"c{each}", namespace=TENANT, memory="1Mi") for each in range(4 * MOST_CLAIMS)]
    put(cluster, *made)


def claims_that_are_alike(cluster: Cluster) -> None:
    for each in range(2_000):
        cluster.ask(f"c{each}", age=each % 50, count=CARDS + 1)


def claims_that_are_all_different(cluster: Cluster) -> None:
    for each in range(2_000):
        selectors = [f"device.driver != 'x{each}'"]
        cluster.ask(f"c{each}", age=each % 50, count=CARDS + 1, selectors=selectors)


def gang(cluster: Cluster, name: str, members: int, **asked: Any) -> None:
    """`selectors`: of each member, by its number."""
    selectors = asked.pop("selectors", None)
    for each in range(members):
        made = claim(f"{name}-{each}", namespace=TENANT, **asked)
        if selectors:
            exactly = made["spec"]["devices"]["requests"][0]["exactly"]
            exactly["selectors"] = [{"cel": {"expression": selectors(each)}}]
        cluster.api.create(RESOURCE_CLAIMS, made)
        waits = pod(
            f"{name}-{each}", [f"{name}-{each}"], gates=[names.JOINT_GATE], created="2026-11-20T00:00:00Z"
        )
        waits["metadata"] |= {
            "namespace": TENANT,
            "annotations": {GANG: name, GANG_MIN: str(members)},
        }
        cluster.api.create(PODS, waits)


def gang_of_which_no_two_ask_the_same(cluster: Cluster) -> None:
    gang(cluster, "g", 40, selectors=lambda each: f"device.driver != 'x{each}'")


def gang_that_reads_what_no_two_nodes_share(cluster: Cluster) -> None:
    """Each node is one of a kind to it."""
    for each in range(NODES):
        held = claim(f"held-{each}", namespace=TENANT, memory="1Gi")
        cluster.api.create(RESOURCE_CLAIMS, held)
        guest = pod(f"held-{each}", [f"held-{each}"], nodeSelector={HOST: f"m{each}"})
        guest["metadata"]["namespace"] = TENANT
        cluster.api.create(PODS, guest)
    cluster.one_pass()
    gang(cluster, "g", 12, selectors=lambda each: f"device.attributes['koordra.io'].uuid != 'x{each}'")


def gang_as_large_as_the_cluster(cluster: Cluster) -> None:
    gang(cluster, "g", 2_000)


def gangs_that_are_all_different(cluster: Cluster) -> None:
    for number in range(150):
        gang(cluster, f"g{number}", 12, count=3, selectors=lambda _each, n=number: f"device.driver != 'x{n}'")


LARGEST: list[Fill] = [
    gang_of_which_no_two_ask_the_same,
    gangs_that_are_all_different,
    constraints_and_configuration,
    long_selectors,
    terms_and_containers,
    too_many_claims,
    many_selectors,
    most_claims,
    claims_that_are_alike,
    claims_that_are_all_different,
    gang_that_reads_what_no_two_nodes_share,
    gang_as_large_as_the_cluster,
]


def most_calls(fill: Fill) -> int:
    """Of the first passes that have to do with these objects. What it takes to read them in is not counted:
    that is what the API server lets people write."""
    cluster = with_others(nodes=0)
    unlike_cards(cluster, NODES)
    fill(cluster)
    cluster.ask("welcome", INNOCENT, memory="1Gi", age=59)
    cluster.caches.deliver()
    cluster.reconciler.cache.apply(cluster.caches.changes())
    found = []
    for _ in range(3):
        found.append(calls(cluster.reconciler.reconcile))
        assert cluster.has("welcome", INNOCENT)
        cluster.caches.deliver()
        cluster.pass_time(2.0)
    return max(found)


@pytest.fixture(scope="module")
def median() -> int:
    return most_calls(plain)


@pytest.mark.parametrize("fill", mostly_long(LARGEST, fast=4), ids=lambda fill: fill.__name__)
def test_the_largest_costs_a_constant_times_the_median(fill: Fill, median: int) -> None:
    assert most_calls(fill) <= MOST * median
