"""What kustomize makes of base and its components is accepted by a cluster, strictly: their patches bring no
field that it does not know. (The objects that they add are seen to one by one in test_admission.py.)"""

from __future__ import annotations

from pathlib import Path

import pytest

from koordra.kube.client import KubeClient
from koordra_devcluster.demo.installation import WORKLOADS
from tests.cluster.installation import dry_run
from tests.fakes.kustomized import COMPONENTS, DISTRIBUTIONS, built

pytestmark = pytest.mark.cluster

ALL = tuple(name for name in COMPONENTS if name not in (*DISTRIBUTIONS, "driver-upgrade"))


@pytest.mark.parametrize("distribution", ["", *DISTRIBUTIONS], ids=str)
@pytest.mark.parametrize("components", [(), ALL], ids=["base", "all"])
def test_the_workloads_of_each_combination_are_accepted(
    client: KubeClient, controller: None, tmp_path: Path, components: tuple[str, ...], distribution: str
) -> None:
    del controller
    documents = built(tmp_path, *components, *filter(None, [distribution])).values()
    workloads = [each for each in documents if each["kind"] in WORKLOADS]
    assert workloads
    for each in workloads:
        dry_run(client, each)
