"""The components for upgrades of the GPU driver: the rights are those that are used, and driver-manager finds
what it waits for."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

from koordra.cli.node.group import COMMANDS
from koordra.kubelet_plugin.nvidia_driver.release_wanted import DEPLOY_PREFIX
from tests.fakes.driver_manager import CLIENT

ROOT = Path(__file__).resolve().parents[3] / "deploy" / "kustomize"
WAITED_FOR = 300
"""Seconds that driver-manager waits (defaultGracePeriod)."""


def documents(path: str) -> list[dict[str, Any]]:
    return list(yaml.safe_load_all((ROOT / path).read_text()))


def test_the_controller_may_evict_and_read_budgets_and_nobody_else_may_anything() -> None:
    role, binding = documents("driver-upgrade/rbac.yaml")
    assert [(rule["resources"], rule["verbs"]) for rule in role["rules"]] == [
        (["pods/eviction"], ["create"]),
        (["poddisruptionbudgets"], ["list"]),
    ]
    assert [subject["name"] for subject in binding["subjects"]] == ["koordra-controller"]
    plugin, _ = documents("kubelet-plugin/rbac.yaml")
    granted = [
        (resource, verb)
        for rule in plugin["rules"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    ]
    assert ("pods/eviction", "create") not in granted
    assert ("nodes", "patch") not in granted


def test_the_gpu_operators_component_brings_the_rights_and_nothing_of_base() -> None:
    (found,) = documents("gpu-operator/kustomization.yaml")
    assert (found["kind"], found["components"]) == ("Component", ["../driver-upgrade"])
    assert found["resources"] == ["daemonset.yaml"]


def test_driver_manager_finds_the_pod_that_it_waits_for() -> None:
    _, daemon_set = documents("gpu-operator/daemonset.yaml")
    pod = daemon_set["spec"]["template"]["spec"]
    assert pod["nodeSelector"] == {CLIENT: "true"}
    assert CLIENT.startswith(DEPLOY_PREFIX)
    assert pod["terminationGracePeriodSeconds"] > WAITED_FOR
    (container,) = pod["containers"]
    assert container["args"][0] == "node"
    assert container["args"][1] in COMMANDS


def test_that_pod_may_nothing_and_the_plugin_stays_where_it_is() -> None:
    _, daemon_set = documents("gpu-operator/daemonset.yaml")
    pod = daemon_set["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    assert pod["automountServiceAccountToken"] is False
    assert pod["serviceAccountName"] not in str(documents("driver-upgrade/rbac.yaml"))
    assert container["securityContext"]["capabilities"] == {"drop": ["ALL"]}
    assert all(mount.get("readOnly") for mount in container["volumeMounts"])
    (plugin,) = documents("kubelet-plugin/daemonset.yaml")
    assert CLIENT not in plugin["spec"]["template"]["spec"]["nodeSelector"]  # or no pod with claims could end
