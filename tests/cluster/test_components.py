"""What kustomize makes of base and its components is accepted by a cluster, strictly: their patches bring no
field that it does not know. (The objects that they add are seen to one by one in test_admission.py.)"""

from __future__ import annotations

from pathlib import Path

import pytest

from koordra.kube.client import KubeClient
from koordra_devcluster.demo.installation import WORKLOADS
from tests.cluster.installation import dry_run
from tests.unit.deploy.test_distributions import built

pytestmark = pytest.mark.cluster

COMPONENTS = (
    "gpu-operator",
    "kubelet-plugin-evict",
    "nic-functions",
    "nri/evict",
    "nri/koordinator",
    "nri/refuse-privileged",
    "nri/validate",
    "legacy",
    "elastic",
    "node-labels",
    "autoscale",
)


@pytest.mark.parametrize(
    ("bases", "components"),
    [
        (("base",), ()),
        *((("base",), (f"distribution/{name}",)) for name in ("k0s", "k3s", "microk8s", "openshift")),
        (("base",), COMPONENTS),
        (("controller-preemption",), ("driver-upgrade",)),
        (("cert-manager",), ()),
        (("migration",), ("distribution/microk8s",)),
        (
            ("base",),
            ("kubelet-plugin-evict", "kubelet-plugin-pod-network", "nri/pod-network", "nic-functions"),
        ),
    ],
    ids=str,
)
def test_the_workloads_of_each_combination_are_accepted(
    client: KubeClient, controller: None, tmp_path: Path, bases: tuple[str, ...], components: tuple[str, ...]
) -> None:
    del controller
    documents = built(tmp_path, *components, bases=bases).values()
    workloads = [each for each in documents if each["kind"] in WORKLOADS]
    assert workloads
    for each in workloads:
        dry_run(client, each)
