"""Helm installs the chart on the devcluster, changes it, goes back and takes it away; what the controller has
written meanwhile stays, and nothing hangs or is left but koordra's own kinds."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from koordra.api import objects
from koordra.api.kinds import Kind
from koordra.api.objects import Object
from koordra.api.resource_class import CONFIG_MAPS
from koordra.controller.quota.scope import WEBHOOKS, selector
from koordra.errors import NotFound
from koordra.kube.client import KubeClient
from koordra.kube.kubeconfig import new_client
from koordra_devcluster.control_plane import ControlPlane
from koordra_devcluster.demo.installation import kind_of
from tests.cluster.waiting import eventually
from tests.fakes.chart import CHART, helm, rendered

pytestmark = pytest.mark.long
PLACE = "koordra-system"
LEGACY: dict[str, Any] = {"components": ["legacy"]}
ELASTIC: dict[str, Any] = {"components": ["elastic", "imex"], "controller": {"replicas": 3}}
AUTHORITY = "Q0E="


@pytest.fixture
def plane(tmp_path: Path) -> Iterator[ControlPlane]:
    stop = threading.Event()
    plane = ControlPlane(tmp_path / "plane")
    plane.start(stop)
    yield plane
    stop.set()
    plane.server.close()


def kind_and_place(obj: Object) -> tuple[Kind, str | None]:
    place = objects.metadata(obj).get("namespace")
    return replace(kind_of(obj), namespaced=place is not None), place


def stored(client: KubeClient, obj: Object) -> Object | None:
    kind, place = kind_and_place(obj)
    try:
        return client.get(kind, objects.name(obj), namespace=place)
    except NotFound:
        return None


def test_a_life_of_the_chart(plane: ControlPlane) -> None:
    client = new_client(str(plane.kubeconfig), user_agent="koordra-test")
    legacy, elastic = rendered(**LEGACY), rendered(**ELASTIC)

    def is_there(wanted: dict[tuple[str, str], Object], unwanted: dict[tuple[str, str], Object]) -> None:
        assert not [name for name, obj in wanted.items() if stored(client, obj) is None]
        gone = [obj for name, obj in unwanted.items() if name not in wanted and not is_kept(obj)]
        eventually(
            lambda: not [one for one in gone if stored(client, one)], "the end of what is no longer named"
        )

    # The double takes no protobuf, in which Helm stores its Secrets.
    with helm().Config(
        kubeconfig_path=str(plane.kubeconfig), namespace=PLACE, storage_driver="memory"
    ) as releases:
        assert releases.install(str(CHART), "koordra", LEGACY, create_namespace=True)["status"] == "deployed"
        is_there(legacy, {})
        as_the_controller_does(client)
        assert releases.upgrade(str(CHART), "koordra", ELASTIC)["revision"] == 2
        is_there(elastic, legacy)
        assert replicas(client) == 3
        assert_kept(client)
        releases.rollback("koordra", version=1)
        is_there(legacy, elastic)
        assert replicas(client) == 2
        assert_kept(client)
        releases.uninstall("koordra")
        is_there({}, {**legacy, **elastic})
    left = [obj for obj in (*legacy.values(), *elastic.values()) if stored(client, obj)]
    assert {obj["kind"] for obj in left} == {"CustomResourceDefinition"}
    assert all(is_kept(obj) for obj in left)


def replicas(client: KubeClient) -> object:
    found = stored(client, rendered()["Deployment", "koordra-controller"])
    return found and found["spec"]["replicas"]


def is_kept(obj: Object) -> bool:
    return objects.annotations_of(obj).get("helm.sh/resource-policy") == "keep"


VALIDATING = Kind(
    "admissionregistration.k8s.io",
    "v1",
    "validatingwebhookconfigurations",
    "ValidatingWebhookConfiguration",
    namespaced=False,
)


def as_the_controller_does(client: KubeClient) -> None:
    found = client.get(VALIDATING, "koordra")
    for entry in found["webhooks"]:
        entry["clientConfig"]["caBundle"] = AUTHORITY
        if entry["name"] in WEBHOOKS:
            entry["namespaceSelector"] = selector(["team"])
    client.update(VALIDATING, found)
    client.patch(CONFIG_MAPS, "koordra-quota", {"data": {"record": "x"}}, namespace=PLACE)


def assert_kept(client: KubeClient) -> None:
    found = client.get(VALIDATING, "koordra")
    assert {entry["clientConfig"].get("caBundle") for entry in found["webhooks"]} == {AUTHORITY}
    narrowed = [entry["namespaceSelector"] for entry in found["webhooks"] if entry["name"] in WEBHOOKS]
    assert narrowed == [selector(["team"])] * 2
    assert client.get(CONFIG_MAPS, "koordra-quota", namespace=PLACE)["data"] == {"record": "x"}
