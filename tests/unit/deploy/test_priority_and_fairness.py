"""Where the API server puts koordra's requests: Leases with the other leaders', Events with everybody's, the
rest into levels of koordra's own; nobody else's anywhere."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest
import yaml

ROOT: Final = Path(__file__).resolve().parents[3] / "deploy" / "kustomize"
FOLDER: Final = ROOT / "priority-and-fairness"
BUILT_IN: Final = {"leader-election", "workload-low"}
"""Levels that every API server makes itself."""
OURS: Final = ("koordra-controller", "koordra-kubelet-plugin", "koordra-nri")


def documents(*folders: Path) -> list[dict[str, Any]]:
    paths = [path for folder in folders for path in sorted(folder.rglob("*.yaml"))]
    return [obj for path in paths for obj in yaml.safe_load_all(path.read_text()) if isinstance(obj, dict)]


def of_kind(kind: str) -> list[dict[str, Any]]:
    return [obj for obj in documents(FOLDER) if obj["kind"] == kind]


def level(
    account: str, verb: str, group: str, resource: str, namespace: str, of: str = "koordra-system"
) -> str:
    """Of the first flow that matches, as the API server takes it; empty: none of these."""
    for flow in sorted(of_kind("FlowSchema"), key=lambda one: one["spec"]["matchingPrecedence"]):
        for rules in flow["spec"]["rules"]:
            accounts = [subject["serviceAccount"] for subject in rules["subjects"]]
            if {"name": account, "namespace": of} not in accounts:
                continue
            for rule in rules["resourceRules"]:
                wanted = ((verb, "verbs"), (group, "apiGroups"), (resource, "resources"))
                in_place = (
                    {namespace, "*"} & set(rule.get("namespaces", ()))
                    if namespace
                    else rule.get("clusterScope", False)
                )
                if in_place and all({value, "*"} & set(rule[field]) for value, field in wanted):
                    return str(flow["spec"]["priorityLevelConfiguration"]["name"])
    return ""


def granted() -> Iterator[tuple[str, str, str, str, str]]:
    """Everything that the shipped roles allow koordra's accounts."""
    shipped = documents(ROOT)
    roles = {(obj["kind"], obj["metadata"]["name"]): obj for obj in shipped if obj["kind"].endswith("Role")}
    for binding in shipped:
        if not binding["kind"].endswith("RoleBinding"):
            continue
        role = roles.get((binding["roleRef"]["kind"], binding["roleRef"]["name"]))
        namespace = binding["metadata"].get("namespace", "")
        for subject in binding.get("subjects", ()):
            for rule in role["rules"] if role and subject["name"] in OURS else ():
                for group in rule.get("apiGroups", ()):
                    for resource in rule["resources"]:
                        for verb in rule["verbs"]:
                            yield subject["name"], verb, group, resource, namespace or "team"
                            yield subject["name"], verb, group, resource, namespace


def test_what_koordra_may_do_has_a_level_of_its_own_and_the_rest_has_its_place() -> None:
    seen = set(granted())
    assert len(seen) > 50
    for account, verb, group, resource, namespace in seen:
        found = level(account, verb, group, resource, namespace)
        if resource == "leases":
            assert found == "leader-election", (verb, namespace)
        elif (group, resource) == ("", "events") and namespace:
            assert found == "workload-low"
        else:
            own = "koordra-controller" if account == "koordra-controller" else "koordra-nodes"
            assert found == own, (account, verb, group, resource, namespace)


@pytest.mark.parametrize(
    ("account", "of"),
    [("default", "koordra-system"), ("koordra-controller", "team"), ("koordra-nri", "kube-system")],
)
def test_nobody_else_gets_in(account: str, of: str) -> None:
    assert not level(account, "get", "", "pods", "team", of)
    assert not level(account, "update", "coordination.k8s.io", "leases", "koordra-system", of)


def test_only_koordra_s_own_lease_is_among_the_leaders() -> None:
    assert (
        level("koordra-controller", "update", "coordination.k8s.io", "leases", "team") == "koordra-controller"
    )
    assert (
        level("koordra-kubelet-plugin", "update", "coordination.k8s.io", "leases", "koordra-system")
        == "koordra-nodes"
    )


def test_levels_exist_queue_and_neither_starve_nor_are_starved() -> None:
    levels = {obj["metadata"]["name"]: obj["spec"] for obj in of_kind("PriorityLevelConfiguration")}
    named = {obj["spec"]["priorityLevelConfiguration"]["name"] for obj in of_kind("FlowSchema")}
    assert named == BUILT_IN | levels.keys()
    for spec in levels.values():
        limited = spec["limited"]
        assert spec["type"] == "Limited"
        assert 0 < limited["nominalConcurrencyShares"] <= 40  # the scheduler's
        assert limited["lendablePercent"] > 0
        assert limited["borrowingLimitPercent"] <= 100
        queuing = limited["limitResponse"]["queuing"]
        assert queuing["handSize"] <= queuing["queues"]


def test_base_brings_them() -> None:
    base = yaml.safe_load((ROOT / "base" / "kustomization.yaml").read_text())
    assert "../priority-and-fairness" in base["resources"]
