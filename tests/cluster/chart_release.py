"""koordra installed by its chart on a lent node with a kubelet, as the images that are on it.

Whoever lends the node says what is on it: KOORDRA_IMAGE=NAME:TAG of this checkout's koordra, and for two
releases side by side KOORDRA_OTHER=NAME:TAG=CHECKOUT, another release's image and where its sources are.
KOORDRA_BUNDLES=DIR, where the runtime's folder of pods is not in its usual place.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from koordra.api import kinds, objects
from koordra.api.kinds import Kind
from koordra.api.objects import Object
from koordra.kube.client import KubeClient
from tests.cluster.kubelet_node import KubeletNode
from tests.cluster.waiting import eventually
from tests.fakes.chart import CHART, helm, rendered
from tests.fakes.moved_pods import Places, moved

PLACE = "koordra-system"
ROLLED_OUT_WITHIN = 600.0
DEPLOYMENTS = Kind("apps", "v1", "deployments", "Deployment")
DAEMON_SETS = Kind("apps", "v1", "daemonsets", "DaemonSet")
PROGRAMS: Mapping[str, tuple[Kind, str]] = {
    "controller": (DEPLOYMENTS, "koordra-controller"),
    "kubeletPlugin": (DAEMON_SETS, "koordra-kubelet-plugin"),
    "nri": (DAEMON_SETS, "koordra-nri"),
}
_OF_HELM = {
    "labels": {"app.kubernetes.io/managed-by": "Helm"},
    "annotations": {"meta.helm.sh/release-name": "koordra", "meta.helm.sh/release-namespace": PLACE},
}


@dataclass(frozen=True)
class Release:
    """A chart, with the node's pods on the machine that is made up, and its image. Shares are kept by
    nothing: the cards have no driver."""

    chart: Path
    values: Mapping[str, Any]

    def workload(self, program: str) -> Object:
        kind, name = PROGRAMS[program]
        return rendered(self.chart, **self.values)[kind.kind, name]


def _moved_chart(chart: Path, folder: Path, places: Places) -> Path:
    """A copy of the chart, as a component of deploy/kustomize/distribution would have it."""
    shutil.copytree(chart, folder)
    for name in ("kubelet-plugin", "nri"):
        path = folder / "files" / "kustomize" / name / "daemonset.yaml"
        daemon_set = yaml.safe_load(path.read_text())
        pod = daemon_set["spec"]["template"]["spec"]
        daemon_set["spec"]["template"]["spec"] = moved(pod, places)
        path.write_text(yaml.safe_dump(daemon_set))
    return folder


def lent_releases(node: KubeletNode, machine: Path) -> list[Release]:
    """This checkout's, and the other one if there is one."""
    said = os.environ.get("KOORDRA_IMAGE")
    if not said:
        pytest.skip("no image of koordra is on the lent node (KOORDRA_IMAGE=NAME:TAG)")
    helm()
    usual = "/run/containerd/io.containerd.runtime.v2.task/k8s.io"
    places = Places(
        machine=machine,
        kubelet=node.kubelet_root,
        cdi=node.cdi,
        nri=node.nri,
        bundles=Path(os.environ.get("KOORDRA_BUNDLES", usual)),
        hook=machine.parent / "hook",
    )
    other, _, checkout = os.environ.get("KOORDRA_OTHER", "").partition("=")
    lent = [(said, CHART)]
    if other:
        lent.append((other, Path(checkout) / "deploy" / "helm" / "koordra"))
    found = []
    for number, (image, chart) in enumerate(lent):
        repository, _, tag = image.rpartition(":")
        values = {
            "image": {"repository": repository, "tag": tag},
            "controller": {"replicas": 1},
            "kubeletPlugin": {"args": ["--allowed-isolation=none"]},
        }
        found.append(Release(_moved_chart(chart, machine.parent / f"chart-{number}", places), values))
    return found


def rolled_out(client: KubeClient) -> None:
    """Every program's pods are those of its template, and ready."""
    for kind, name in PROGRAMS.values():
        eventually(
            lambda kind=kind, name=name: _is_rolled_out(client, kind, name),
            f"{kind.kind} {name} to be rolled out",
            timeout=ROLLED_OUT_WITHIN,
        )


def _is_rolled_out(client: KubeClient, kind: Kind, name: str) -> bool:
    found = client.get(kind, name, namespace=PLACE)
    status = objects.status_of(found)
    if status.get("observedGeneration") != found["metadata"]["generation"]:
        return False
    if kind is DEPLOYMENTS:
        wanted = found["spec"]["replicas"]
        counts = [status.get(key, 0) for key in ("replicas", "updatedReplicas", "availableReplicas")]
    else:
        wanted = status.get("desiredNumberScheduled", 0)
        counts = [status.get(key, 0) for key in ("updatedNumberScheduled", "numberAvailable")]
    pods = [pod for pod in pods_of(client) if pod["metadata"]["name"].startswith(f"{name}-")]
    return wanted > 0 and counts == [wanted] * len(counts) and len(pods) == wanted


def pods_of(client: KubeClient) -> list[Object]:
    return client.list(kinds.PODS, namespace=PLACE)[0]


def replace_workload(client: KubeClient, release: Release, program: str) -> None:
    """The program becomes that of a release, applied as Helm would, whose fields they stay for its next
    upgrade; what else is installed stays."""
    kind, name = PROGRAMS[program]
    fields = client.get(kind, name, namespace=PLACE)["metadata"]["managedFields"]
    (manager,) = (one["manager"] for one in fields if one["operation"] == "Apply")
    wanted = release.workload(program)
    for key, own in _OF_HELM.items():
        wanted["metadata"][key] = {**wanted["metadata"].get(key, {}), **own}
    path = kind.path(namespace=PLACE, name=name)
    query = {"fieldManager": manager, "force": "true"}
    client._answer("PATCH", path, query=query, body=wanted, content_type="application/apply-patch+yaml")
