"""Components for distributions of Kubernetes whose kubelet or runtime keeps its files elsewhere."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.fakes.kustomized import built

CONTAINERD = "io.containerd.runtime.v2.task"
PLACES = {
    "k3s": ("/var/lib/kubelet", f"/run/k3s/containerd/{CONTAINERD}"),
    "microk8s": (
        "/var/snap/microk8s/common/var/lib/kubelet",
        f"/var/snap/microk8s/common/run/containerd/{CONTAINERD}",
    ),
    "k0s": ("/var/lib/k0s/kubelet", f"/run/k0s/containerd/{CONTAINERD}"),
    "openshift": ("/var/lib/kubelet", f"/run/containerd/{CONTAINERD}"),
}
"""Distribution -> the kubelet's root, the containers' bundles."""


def pod_of(documents: dict[tuple[str, str], dict[str, Any]], name: str) -> dict[str, Any]:
    found: dict[str, Any] = documents["DaemonSet", name]["spec"]["template"]["spec"]
    return found


def mounted(pod: dict[str, Any]) -> dict[str, str]:
    """Host path by path in the container."""
    paths = {volume["name"]: volume["hostPath"]["path"] for volume in pod["volumes"] if "hostPath" in volume}
    return {
        mount["mountPath"]: paths[mount["name"]]
        for mount in pod["containers"][0]["volumeMounts"]
        if mount["name"] in paths
    }


@pytest.mark.parametrize("beside", [(), ("pod-network",)], ids=str)
@pytest.mark.parametrize("name", PLACES)
def test_kubelet_and_state_are_at_one_path_inside_and_outside(
    tmp_path: Path, name: str, beside: tuple[str, ...]
) -> None:
    """Sockets and CDI files name the host's paths, so they have to be the pod's too."""
    kubelet, bundles = PLACES[name]
    documents = built(tmp_path, *beside, f"distribution/{name}")
    plugin, hook = pod_of(documents, "koordra-kubelet-plugin"), pod_of(documents, "koordra-nri")
    below = {path for path in mounted(plugin) if "kubelet" in path}
    assert below == {kubelet, f"{kubelet}/plugins/koordra.io", f"{kubelet}/plugins_registry"}
    assert all(mounted(plugin)[path] == path for path in below)
    env = {each["name"]: each.get("value") for each in plugin["containers"][0]["env"]}
    assert env.get("KOORDRA_KUBELET_ROOT", "/var/lib/kubelet") == kubelet
    state = f"{kubelet}/plugins/koordra.io"
    assert mounted(hook)[state] == state
    assert mounted(hook)[bundles] == bundles
    arguments = hook["containers"][0]["args"]
    if kubelet != "/var/lib/kubelet":
        assert f"--state-dir={state}" in arguments
    if bundles != f"/run/containerd/{CONTAINERD}":
        assert f"--bundles={bundles}/k8s.io" in arguments


def test_pod_networking_comes_on_top_of_base_and_leaves_what_others_add(tmp_path: Path) -> None:
    documents = built(tmp_path, "kubelet-plugin-evict", "nri/evict", "pod-network")
    assert ("Deployment", "koordra-controller") in documents
    plugin, hook = pod_of(documents, "koordra-kubelet-plugin"), pod_of(documents, "koordra-nri")
    assert plugin["hostNetwork"] is hook["hostNetwork"] is True
    assert plugin["containers"][0]["args"] == [
        "kubelet-plugin",
        "--metrics-address=:9401",
        "--host-root=/host",
        "--log-json",
        "--on-overuse=evict",
        "--pod-network",
        "--network-pools=/etc/koordra/network-pools/pools.yaml",
    ]
    assert not plugin["containers"][0].get("ports")


@pytest.mark.parametrize("name", PLACES)
def test_the_pod_that_driver_manager_waits_for_reads_the_plugins_report(tmp_path: Path, name: str) -> None:
    documents = built(tmp_path, "gpu-operator", f"distribution/{name}")
    kubelet, _ = PLACES[name]
    (path,) = mounted(pod_of(documents, "koordra-driver-client")).items()
    assert path == ("/var/lib/kubelet/plugins/koordra.io", f"{kubelet}/plugins/koordra.io")


def test_openshift_lets_each_account_do_what_its_pod_asks_for(tmp_path: Path) -> None:
    documents = built(tmp_path, "gpu-operator", "distribution/openshift")
    for name in ("koordra-kubelet-plugin", "koordra-nri", "koordra-driver-client"):
        constraints = documents["SecurityContextConstraints", name]
        pod = pod_of(documents, name)
        account = f"system:serviceaccount:koordra-system:{pod['serviceAccountName']}"
        assert constraints["users"] == [account]
        assert pod.get("hostPID", False) <= constraints["allowHostPID"]
        security = pod["containers"][0]["securityContext"]
        assert security.get("privileged", False) == constraints["allowPrivilegedContainer"]
        volumes = {kind for volume in pod["volumes"] for kind in volume if kind != "name"}
        assert volumes <= set(constraints["volumes"])
        template = documents["DaemonSet", name]["spec"]["template"]
        assert template["metadata"]["annotations"]["openshift.io/required-scc"] == name
