"""What is remembered of legacy pods and templates ends with them: users can write any number of these."""

from __future__ import annotations

from typing import Any

import pytest

from koordra.api import objects
from koordra.api.objects import Object
from koordra.controller.quota.usage import QuotaUsage
from tests.unit.legacy.cluster import Cluster
from tests.unit.legacy.test_quota import a_quota, pod


def memory(usage: QuotaUsage) -> dict[str, int]:
    tables: tuple[Any, ...] = (
        usage._amounts,
        usage._places,
        usage._waiting_for,
        usage._referring,
        usage._stored,
        usage._named,
    )
    names = ("amounts", "places", "waiting_for", "referring", "stored", "named")
    return {name: len(table) for name, table in zip(names, tables, strict=True) if table}


def shares(number: int) -> Object:
    """Each asks for another amount, which is another template."""
    return pod({"nvidia.com/gpu": "1", "nvidia.com/gpumem": str(1000 + number)})


def template_of(cluster: Cluster, stored: Object) -> Object:
    name = stored["spec"]["resourceClaims"][0]["resourceClaimTemplateName"]
    found = cluster.template("team", name)
    assert found is not None
    return found


@pytest.mark.parametrize("quota", [True, False])
@pytest.mark.parametrize("first", ["pod", "template"])
def test_pods_and_templates_that_have_gone_leave_nothing(quota: bool, first: str) -> None:
    cluster = Cluster()
    cluster.quotas = [a_quota({"requests.nvidia.com/gpu": "1000"})] if quota else []
    stored = [
        cluster.store(cluster.admitted(shares(number), uid=f"u{number}"), uid=f"p{number}")
        for number in range(20)
    ]
    assert memory(cluster.usage)["amounts"] == 20 or not quota
    for each in stored:
        template = template_of(cluster, each)
        told = [lambda t=template: cluster.usage.on_template("DELETED", t)]
        told.append(lambda p=each: cluster.usage.on_pod("DELETED", p))
        for tell in told if first == "template" else reversed(told):
            tell()
    cluster.now += 61
    assert memory(cluster.usage) == {}


def test_a_template_that_is_deleted_under_its_running_pod_is_counted_until_the_pod_ends() -> None:
    cluster = Cluster()
    cluster.quotas = [a_quota({"requests.nvidia.com/gpu": "1"})]
    stored = cluster.store(cluster.admitted(shares(0), uid="u0"))
    cluster.usage.on_template("DELETED", template_of(cluster, stored))
    cluster.usage.on_pod("MODIFIED", stored)
    assert "exceeded quota" in cluster.refused(shares(1), uid="u1")
    cluster.usage.on_pod("DELETED", stored)
    cluster.admitted(shares(1), uid="u1")


def test_a_template_of_two_namespaces_is_known_while_one_is_there() -> None:
    cluster = Cluster()
    stored = cluster.store(cluster.admitted(shares(0), uid="u0"))
    template = template_of(cluster, stored)
    other = {**template, "metadata": {**template["metadata"], "namespace": "other"}}
    cluster.usage.on_template("ADDED", other)
    cluster.usage.on_pod("DELETED", stored)
    cluster.usage.on_template("DELETED", template)
    assert memory(cluster.usage) == {"amounts": 1, "stored": 1}
    cluster.usage.on_template("DELETED", other)
    assert memory(cluster.usage) == {}


def test_a_pod_that_asks_for_nothing_of_ours_is_nothing_to_remember() -> None:
    usage = Cluster().usage
    for number in range(50):
        plain: Object = {"metadata": {"name": "p", "namespace": f"ephemeral-{number}"}, "spec": {}}
        usage.on_pod("ADDED", plain)
        usage.counted({"metadata": {"name": "q", "namespace": f"ephemeral-{number}"}, "spec": {}}, "x/y")
    assert memory(usage) == {}


def test_a_pod_that_comes_anew_under_its_name_is_counted_as_what_it_is_now() -> None:
    """The watch broke off in between."""
    cluster = Cluster()
    cluster.quotas = [a_quota({"requests.nvidia.com/gpu": "9"})]
    first = cluster.store(cluster.admitted(shares(0), uid="u0"), uid="p0")
    second = cluster.admitted(shares(1), uid="u1")
    second["metadata"]["name"] = objects.name(first)
    cluster.usage.on_template("DELETED", template_of(cluster, first))
    cluster.store(second, uid="p1")
    assert memory(cluster.usage)["amounts"] == 1
