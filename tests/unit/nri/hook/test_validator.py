"""The validator: what other plugins may and may not change; and reporting to the API."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from koordra._proto.nri import nri_pb2
from koordra.api import kinds
from koordra.errors import Conflict, NotFound
from koordra.metrics import Metrics
from koordra.node_state.reader import StateReader
from koordra.nri.hook.adjust import NodeShape
from koordra.nri.hook.ledger import GrantedDevice, Ledger
from koordra.nri.hook.plugin import HookPlugin, Settings
from koordra.nri.hook.system_pods import SystemPods
from koordra.nri.transport.instrumentation import LATE, REGISTERED, MetricsObserver
from koordra.nri.transport.ttrpc import Call
from koordra.nri.verify.api_reporter import ApiReporter, with_condition
from koordra.nri.verify.drift import Drift, Finding
from tests.unit.nri.node_state import (
    GPU0,
    GPU1,
    NODE,
    NULL,
    UID,
    claim_json,
    container,
    gpu_json,
    guarded_json,
    markers,
    write,
)

CALL = Call("nri.pkg.api.v1alpha1.Plugin", "ValidateContainerAdjustment")


@pytest.fixture
def hook(tmp_path: Path) -> HookPlugin:
    write(tmp_path / "guarded.json", guarded_json())
    write(tmp_path / "prepared" / f"{UID}.json", claim_json(gpu_json()))
    settings = Settings(system=SystemPods(frozenset({"kube-system"})), validating=True)
    return HookPlugin(StateReader(tmp_path, node_name=NODE), settings=settings, ledger=Ledger(tmp_path))


def asked(
    change: Callable[[nri_pb2.ValidateContainerAdjustmentRequest], None],
    *,
    owner: str = "20-giver",
    namespace: str = "team",
    env: tuple[tuple[str, str], ...] = (),
) -> nri_pb2.ValidateContainerAdjustmentRequest:
    request = nri_pb2.ValidateContainerAdjustmentRequest()
    request.pod.namespace, request.pod.name = namespace, "train-0"
    request.container.name, request.container.id = "main", "c1"
    request.container.env.extend(f"{name}={value}" for name, value in env)
    change(request)
    adjust = request.adjust
    for field, keys in (
        (2, [mount.destination for mount in adjust.mounts]),
        (4, [device.path for device in adjust.linux.devices]),
        (5, [device.name for device in adjust.CDI_devices]),
        (6, [entry.key for entry in adjust.env]),
    ):
        for key in keys:
            request.owners.owners["c1"].compound[field].owners[key] = owner
    return request


def device(node: Any) -> Callable[[nri_pb2.ValidateContainerAdjustmentRequest], None]:
    def change(request: nri_pb2.ValidateContainerAdjustmentRequest) -> None:
        request.adjust.linux.devices.add(path=node.path, type="c", major=node.major, minor=node.minor)

    return change


def env(name: str) -> Callable[[nri_pb2.ValidateContainerAdjustmentRequest], None]:
    return lambda request: (request.adjust.env.add(key=name, value="all"), None)[1]


def cdi(name: str) -> Callable[[nri_pb2.ValidateContainerAdjustmentRequest], None]:
    return lambda request: (request.adjust.CDI_devices.add(name=name), None)[1]


def mount(source: str) -> Callable[[nri_pb2.ValidateContainerAdjustmentRequest], None]:
    return lambda request: (
        request.adjust.mounts.add(destination="/x", source=source, type="bind"),
        None,
    )[1]


def rule(major: int | None) -> Callable[[nri_pb2.ValidateContainerAdjustmentRequest], None]:
    def change(request: nri_pb2.ValidateContainerAdjustmentRequest) -> None:
        entry = request.adjust.linux.resources.devices.add(allow=True, type="c", access="rw")
        if major is not None:
            entry.major.value = major

    return change


@pytest.mark.parametrize(
    "change",
    [
        device(GPU0),
        device(GPU1),
        env("NVIDIA_VISIBLE_DEVICES"),
        env("KOORDRA_CLAIM_X"),
        cdi("nvidia.com/gpu=all"),
        cdi("koordra.io/claim=another"),
        mount("/dev/nvidia0"),
        mount("/run/nri"),
        rule(195),
        rule(None),
    ],
)
def test_what_another_plugin_may_not_add(
    hook: HookPlugin, change: Callable[[nri_pb2.ValidateContainerAdjustmentRequest], None]
) -> None:
    answer = hook.validate_container_adjustment(asked(change), CALL)
    assert answer.reject
    assert answer.reason.startswith("koordra refuses container main of pod team/train-0: NRI plugin ")
    exempt = hook.validate_container_adjustment(asked(change, namespace="kube-system"), CALL)
    assert not exempt.reject


@pytest.mark.parametrize("change", [device(GPU1), env("KOORDRA_CLAIM_X"), cdi("nvidia.com/gpu=all")])
def test_the_plugin_is_named_and_koordras_own_additions_pass(
    hook: HookPlugin, change: Callable[[nri_pb2.ValidateContainerAdjustmentRequest], None]
) -> None:
    assert "NRI plugin giver " in hook.validate_container_adjustment(asked(change), CALL).reason
    assert not hook.validate_container_adjustment(asked(change, owner="90-koordra"), CALL).reject


def test_koordras_own_mounts_pass(hook: HookPlugin) -> None:
    change = mount("/dev/nvidia0")
    assert not hook.validate_container_adjustment(asked(change, owner="90-koordra"), CALL).reject


@pytest.mark.parametrize(
    "change", [device(NULL), env("HTTP_PROXY"), cdi("vendor.example/net=0"), mount("/srv")]
)
def test_what_it_may(
    hook: HookPlugin, change: Callable[[nri_pb2.ValidateContainerAdjustmentRequest], None]
) -> None:
    assert not hook.validate_container_adjustment(asked(change), CALL).reject


def test_koordras_own_additions_and_held_devices_pass(hook: HookPlugin) -> None:
    assert not hook.validate_container_adjustment(
        asked(env("NVIDIA_VISIBLE_DEVICES"), owner="90-koordra"), CALL
    ).reject
    held = asked(device(GPU0), env=markers(0))
    assert not hook.validate_container_adjustment(held, CALL).reject


def test_validating_is_asked_for_only_when_it_is_turned_on(tmp_path: Path, hook: HookPlugin) -> None:
    assert hook.wanted_events() & 1 << 13
    plain = HookPlugin(StateReader(tmp_path, node_name=NODE), ledger=Ledger(tmp_path))
    assert not plain.wanted_events() & 1 << 13


# ----------------------------------------------------------------------------------------------- reporting

HELD = GrantedDevice("team", "train", UID, "gpu-0000-0f-00-0", "gpu", "share-1")
FINDING = Finding(container(id="c1", pod_uid="pod-1"), Drift("ForeignDevice", "it can open c 195:1", (HELD,)))


def claim_object() -> dict[str, Any]:
    result = {
        "driver": "koordra.io",
        "pool": NODE,
        "device": "gpu-0000-0f-00-0",
        "shareID": "share-1",
        "request": "gpu",
    }
    other = {"driver": "koordra.io", "pool": NODE, "device": "other", "conditions": [{"type": "Ready"}]}
    return {
        "metadata": {"name": "train", "namespace": "team", "uid": UID, "resourceVersion": "7"},
        "status": {"allocation": {"devices": {"results": [result]}}, "devices": [other]},
    }


class Api:
    """The part of a client that reporting uses."""

    def __init__(self, claim: dict[str, Any] | None) -> None:
        self.claim = claim
        self.created: list[tuple[str, str | None, Any]] = []
        self.updated: list[Any] = []
        self.conflicts = 1

    def create(self, kind: Any, body: Any, **place: Any) -> Any:
        self.created.append((kind.kind, place.get("subresource"), body))

    def get(self, kind: Any, name: str, *, namespace: str) -> Any:
        if self.claim is None or (kind, name, namespace) != (kinds.RESOURCE_CLAIMS, "train", "team"):
            raise NotFound("gone")
        return self.claim

    def patch(self, kind: Any, name: str, body: Any, **place: Any) -> None:
        """A merge patch that may change status.devices alone: the opaque parameters of an allocation are
        compared byte for byte."""
        assert (kind, name) == (kinds.RESOURCE_CLAIMS, "train")
        assert place == {"namespace": "team", "subresource": "status"}
        assert (body["metadata"], body["status"].keys()) == ({"resourceVersion": "7"}, {"devices"})
        if self.conflicts:
            self.conflicts -= 1
            raise Conflict("again")
        assert self.claim is not None
        self.claim = {**self.claim, "status": {**self.claim["status"], **body["status"]}}
        self.updated.append(self.claim)


def reporter(api: Api) -> ApiReporter:
    return ApiReporter(api, node=NODE, now=lambda: "2026-11-21T12:00:00Z")  # type: ignore[arg-type]


def test_a_breach_becomes_an_event_and_a_condition() -> None:
    api = Api(claim_object())
    reporter(api).found(FINDING)
    (event,) = api.created
    assert event[2]["reason"] == "IsolationDrift"
    assert event[2]["involvedObject"]["uid"] == "pod-1"
    assert event[2]["message"].startswith("ForeignDevice: ")
    (claim,) = api.updated
    other, mine = claim["status"]["devices"]
    assert other["conditions"] == [{"type": "Ready"}]
    assert mine["shareID"] == "share-1"
    assert [(each["type"], each["status"]) for each in mine["conditions"]] == [("Isolated", "False")]
    reporter(api).gone(FINDING)
    assert api.updated[-1]["status"]["devices"][1]["conditions"][0]["status"] == "True"
    assert len(api.created) == 1


def test_what_is_gone_is_left_alone() -> None:
    reporter(Api(None)).found(FINDING)
    claim = claim_object()
    claim["metadata"]["uid"] = "another"
    api = Api(claim)
    reporter(api).found(FINDING)
    assert api.updated == []
    assert (
        with_condition(claim_object(), HELD, pool="other-node", condition={"type": "Isolated"}, now="")
        is None
    )


def test_counting() -> None:
    metrics = Metrics()
    counted = MetricsObserver(metrics)
    assert not counted.ready
    counted.registration(REGISTERED)
    counted.connected(True)
    counted.answered("CreateContainer", LATE, 0.1)
    assert counted.ready
    counted.connected(False)
    assert not counted.ready
    text = metrics.text()
    assert 'koordra_nri_requests_total{method="CreateContainer",outcome="late"} 1.0' in text
    assert "koordra_nri_registered 0.0" in text
    assert "koordra_nri_disconnections_total 1.0" in text


def test_another_plugin_may_not_bring_the_state_wherever_the_node_keeps_it(tmp_path: Path) -> None:
    place = "/srv/koordra"
    settings = Settings(validating=True, shape=NodeShape(private=(place,)))
    hook = HookPlugin(StateReader(tmp_path, node_name=NODE), settings=settings, ledger=Ledger(tmp_path))

    def bring(request: nri_pb2.ValidateContainerAdjustmentRequest) -> None:
        request.adjust.mounts.add(destination="/d", source=f"{place}/prepared", options=["rbind"])

    assert hook.validate_container_adjustment(asked(bring), CALL).reject
