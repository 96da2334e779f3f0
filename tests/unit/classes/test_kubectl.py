"""What an operator sees of ResourceClasses with kubectl, on the double's API server: columns, wide columns,
describe. The definitions are those that are shipped, the conditions those that the controller writes."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from koordra.api import objects
from koordra.api.kinds import DEVICE_CLASSES
from koordra.api.resource_class import CLASS_PARAMETERS, RESOURCE_CLASSES
from koordra.controller.resource_class.reconcile import ClassReconciler
from koordra.kube.client import KubeClient
from koordra.kube.kubeconfig import new_client
from koordra_devcluster.apiserver.resources import CRDS
from koordra_devcluster.apiserver.server import ApiServer
from koordra_devcluster.demo.installation import own_definitions

pytestmark = [
    pytest.mark.long,
    pytest.mark.skipif(shutil.which("kubectl") is None, reason="there is no kubectl on this machine"),
]


class Cluster:
    """The double's API server with koordra's definitions."""

    def __init__(self, folder: Path) -> None:
        self.server = ApiServer(folder)
        self.server.start()
        self.config = folder / "kubeconfig"
        self.server.write_kubeconfig(self.config)
        self.client: KubeClient = new_client(str(self.config))
        for definition in own_definitions():
            self.client.create(CRDS, definition, strict=True)

    def given(self, name: str, **fields: Any) -> None:
        body = {**RESOURCE_CLASSES.type_meta, "metadata": {"name": name}, **fields}
        self.client.create(RESOURCE_CLASSES, body, strict=True)

    def reconciled(self) -> None:
        """As the controller does it after a change."""
        listed = {
            kind: self.client.list(kind)[0] for kind in (RESOURCE_CLASSES, DEVICE_CLASSES, CLASS_PARAMETERS)
        }
        ClassReconciler(
            self.client, "koordra-system", now=lambda: "2026-11-28T12:00:00Z", may_write=lambda: True
        ).reconcile(
            listed[RESOURCE_CLASSES],
            {objects.name(one): one for one in listed[DEVICE_CLASSES]},
            {objects.key(one): one for one in listed[CLASS_PARAMETERS]},
        )

    def kubectl(self, *arguments: str) -> str:
        done = subprocess.run(
            ["kubectl", *arguments],
            capture_output=True,
            text=True,
            env={**os.environ, "KUBECONFIG": str(self.config)},
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    made = Cluster(tmp_path)
    yield made
    made.server.close()


def rows(text: str) -> list[list[str]]:
    return [line.split() for line in text.splitlines()]


def test_columns_say_what_a_class_is_and_how_it_is_doing(cluster: Cluster) -> None:
    reference = {"apiGroup": "koordra.io", "kind": "ResourceClassParameters", "name": "none"}
    cluster.given("good", deviceType="gpu", allocationMode="Immediate")
    cluster.given("lacking", deviceType="mig", parametersRef=reference)
    cluster.reconciled()
    head, good, lacking = rows(cluster.kubectl("get", "resourceclasses"))
    assert head == ["NAME", "DRIVER", "TYPE", "READY", "REASON", "AGE"]
    assert good[:-1] == ["good", "koordra.io", "gpu", "True", "Reconciled"]
    assert lacking[:-1] == ["lacking", "koordra.io", "mig", "False", "ParametersNotFound"]
    head, good, lacking = rows(cluster.kubectl("get", "resourceclasses", "-o", "wide"))
    assert head == ["NAME", "DRIVER", "TYPE", "READY", "REASON", "MODE", "PARAMETERS", "MESSAGE", "AGE"]
    assert good[5] == "Immediate"
    assert "none" in lacking
    assert "there is no ResourceClassParameters koordra-system/none" in " ".join(lacking)
    assert {"good", "lacking"} <= {
        row[0].partition("/")[2] for row in rows(cluster.kubectl("get", "koordra", "-o", "name"))
    }


def test_describe_shows_every_field_and_what_to_do(cluster: Cluster) -> None:
    cluster.given(
        "typo",
        deviceType="gpu",
        selectors=[{"cel": {"expression": "device.atributes"}}],
        suitableNodes={"nodeSelectorTerms": [{"matchExpressions": [{"key": "pool", "operator": "Exists"}]}]},
        policy={"placement": {"node": "Spread"}, "gpu": {"isolation": "limiter"}},
    )
    cluster.reconciled()
    told = cluster.kubectl("describe", "resourceclass", "typo")
    for words in (
        "Isolation:  limiter",
        "Node:  Spread",
        "Key:       pool",
        "InvalidSelector",
        "is no selector",
        "correct the expression",
        "NodesHonoured",
    ):
        assert words in told, told


def test_apply_edits_and_deletes_it(cluster: Cluster, tmp_path: Path) -> None:
    manifest = tmp_path / "class.yaml"
    text = "apiVersion: koordra.io/v1alpha1\nkind: ResourceClass\nmetadata: {name: mine}\ndeviceType: gpu\n"
    for device_type in ("gpu", "nic"):
        manifest.write_text(text.replace("gpu", device_type))
        cluster.kubectl("apply", "-f", str(manifest))
        cluster.reconciled()
        found = cluster.client.get(DEVICE_CLASSES, "mine")
        assert f'.type == "{device_type}"' in found["spec"]["selectors"][0]["cel"]["expression"]
    assert "allowedIsolation" in cluster.kubectl("explain", "resourceclass.policy.gpu")
    cluster.kubectl("delete", "resourceclass", "mine")
    assert cluster.client.list(RESOURCE_CLASSES)[0] == []
