"""Preparing and unpreparing: the kubelet's checks, batching, sharing, checkpoint; and what a pod's status
says."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from koordra._proto.dra import dra_v1_pb2
from koordra.errors import CheckpointError, NotFound, PrepareError
from koordra_devcluster.kubelet import pods as pod_rules
from koordra_devcluster.kubelet.claim_cache import ClaimCache
from koordra_devcluster.kubelet.drivers import ClaimReference
from koordra_devcluster.kubelet.pods import Problem
from koordra_devcluster.kubelet.resources import ResourceManager
from tests.unit.devcluster.manifests import allocation, claim, claiming_pod

NOW = datetime(2026, 11, 21, 12, 0, tzinfo=UTC)


class Driver:
    """Answers every claim with one device; `extra` and `skip` break the rule of exactly one answer."""

    def __init__(self, name: str = "d") -> None:
        self.name = name
        self.calls: list[tuple[str, list[str]]] = []
        self.error = ""
        self.skip = False
        self.extra = False

    def prepare(self, claims: Sequence[ClaimReference]) -> Mapping[str, Any]:
        self.calls.append(("prepare", [uid for _, _, uid in claims]))
        device = dra_v1_pb2.Device(
            request_names=["gpu"], pool_name="n", device_name="g", cdi_device_ids=[f"{self.name}/x=y"]
        )
        return self._answers(
            claims, dra_v1_pb2.NodePrepareResourceResponse(devices=[device], error=self.error)
        )

    def unprepare(self, claims: Sequence[ClaimReference]) -> Mapping[str, Any]:
        self.calls.append(("unprepare", [uid for _, _, uid in claims]))
        return self._answers(claims, dra_v1_pb2.NodeUnprepareResourceResponse(error=self.error))

    def _answers(self, claims: Sequence[ClaimReference], answer: Any) -> dict[str, Any]:
        found = {} if self.skip else {uid: answer for _, _, uid in claims}
        return found | ({"unknown": answer} if self.extra else {})


class Node:
    """Claims of an imaginary API, drivers, and the manager over them."""

    def __init__(self, folder: Path) -> None:
        self.claims: dict[str, dict[str, Any]] = {}
        self.drivers = {"gpu.example.com": Driver(), "nic.example.com": Driver("nic")}
        self.path = folder / "dra_manager_state"
        self.manager = self.restart()

    def restart(self) -> ResourceManager:
        self.manager = ResourceManager(ClaimCache(self.path), get_claim=self._get, driver=self._driver)
        return self.manager

    def _get(self, _namespace: str, name: str) -> dict[str, Any]:
        if name not in self.claims:
            raise NotFound(f'resourceclaims.resource.k8s.io "{name}" not found', code=404)
        return self.claims[name]

    def _driver(self, name: str) -> Driver:
        if name not in self.drivers:
            raise PrepareError(f"DRA driver {name} is not registered")
        return self.drivers[name]

    def allocated(
        self, name: str, *consumers: str, drivers: Sequence[str] = ("gpu.example.com",)
    ) -> dict[str, Any]:
        found = claim(name)
        found["metadata"]["uid"] = f"uid-{name}"
        results = [allocation(driver=driver)["devices"]["results"][0] for driver in drivers]
        found["status"] = {
            "allocation": {"devices": {"results": results}},
            "reservedFor": [{"resource": "pods", "name": uid, "uid": uid} for uid in consumers],
        }
        self.claims[name] = found
        return found

    @property
    def gpu(self) -> Driver:
        return self.drivers["gpu.example.com"]


@pytest.fixture
def node(tmp_path: Path) -> Node:
    return Node(tmp_path)


def pod(uid: str = "p1", name: str = "c", **fields: Any) -> dict[str, Any]:
    body = claiming_pod(uid, claim=name, **fields)
    body["metadata"]["uid"] = uid
    return body


def test_a_claim_is_prepared_once_for_all_its_pods(node: Node) -> None:
    node.allocated("c", "p1", "p2")
    node.manager.prepare(pod("p1"))
    node.manager.prepare(pod("p1"))
    node.manager.prepare(pod("p2"))
    assert node.gpu.calls == [("prepare", ["uid-c"])]
    node.manager.unprepare("p1")
    assert len(node.gpu.calls) == 1
    node.manager.unprepare("p2")
    assert node.gpu.calls[1:] == [("unprepare", ["uid-c"])]
    node.manager.unprepare("p2")
    assert len(node.gpu.calls) == 2
    assert node.manager.pods() == set()


def test_all_claims_of_a_pod_go_into_one_request_per_driver(node: Node) -> None:
    node.allocated("c", "p1", drivers=("gpu.example.com", "nic.example.com"))
    node.allocated("d", "p1")
    body = pod()
    body["spec"]["resourceClaims"].append({"name": "more", "resourceClaimName": "d"})
    node.manager.prepare(body)
    assert node.gpu.calls == [("prepare", ["uid-c", "uid-d"])]
    assert node.drivers["nic.example.com"].calls == [("prepare", ["uid-c"])]


def test_containers_get_the_devices_of_the_requests_they_name(node: Node) -> None:
    node.allocated("c", "p1")
    body = pod()
    node.manager.prepare(body)

    def ids(*references: dict[str, str]) -> list[str]:
        return node.manager.cdi_devices(body, {"name": "x", "resources": {"claims": list(references)}})

    assert ids({"name": "devices"}) == ["d/x=y"]
    assert ids({"name": "devices", "request": "gpu"}) == ["d/x=y"]
    assert ids({"name": "devices", "request": "nic"}) == []
    assert ids({"name": "devices", "request": "gpu"}, {"name": "devices"}) == ["d/x=y"]
    assert node.manager.cdi_devices(body, {"name": "x"}) == []


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (lambda found: found.update(status={}), "not allocated"),
        (lambda found: found["status"].update(reservedFor=[]), "is not allowed to use resource claim"),
        (lambda found: found["status"]["allocation"]["devices"]["results"][0].update(driver="x.io"), "DRA driver x.io is not registered"),
    ],
)  # fmt: skip
def test_claims_that_are_not_ready_are_not_prepared(node: Node, change: Any, text: str) -> None:
    change(node.allocated("c", "p1"))
    with pytest.raises(PrepareError, match=text):
        node.manager.prepare(pod())
    assert node.gpu.calls == []


def test_a_missing_claim_and_a_missing_name(node: Node) -> None:
    with pytest.raises(PrepareError, match=r"failed to fetch ResourceClaim default/c"):
        node.manager.prepare(pod())
    body = claiming_pod(template="t")
    body["metadata"]["uid"] = "p1"
    with pytest.raises(PrepareError, match="has not been created yet"):
        node.manager.prepare(body)


def test_a_template_claim_of_another_pod_is_refused(node: Node) -> None:
    node.allocated("c", "p1")
    body = claiming_pod(template="t")
    body["metadata"]["uid"] = "p1"
    body["status"] = {"resourceClaimStatuses": [{"name": "devices", "resourceClaimName": "c"}]}
    with pytest.raises(PrepareError, match="pod is not owner"):
        node.manager.prepare(body)
    node.claims["c"]["metadata"]["ownerReferences"] = [{"uid": "p1", "controller": True}]
    node.manager.prepare(body)


def test_a_claim_made_anew_under_its_old_name_is_refused(node: Node) -> None:
    node.allocated("c", "p1")
    node.manager.prepare(pod("p1"))
    node.allocated("c", "p2")["metadata"]["uid"] = "another"
    with pytest.raises(PrepareError, match="deleted and created again"):
        node.manager.prepare(pod("p2"))


def test_every_claim_must_be_answered_exactly_once(node: Node) -> None:
    node.allocated("c", "p1")
    node.gpu.skip = True
    with pytest.raises(PrepareError, match="NodePrepareResources skipped 1 ResourceClaims"):
        node.manager.prepare(pod())
    node.gpu.skip, node.gpu.extra = False, True
    with pytest.raises(PrepareError, match="returned result for unknown claim UID unknown"):
        node.manager.prepare(pod())
    node.gpu.extra = False
    node.manager.prepare(pod())
    node.gpu.skip = True
    with pytest.raises(PrepareError, match="NodeUnprepareResources skipped"):
        node.manager.unprepare("p1")
    assert node.manager.pods() == {"p1"}


def test_a_failed_prepare_is_tried_again_and_its_claim_unprepared(node: Node) -> None:
    node.allocated("c", "p1")
    node.gpu.error = "card is on fire"
    with pytest.raises(
        PrepareError, match="NodePrepareResources failed for ResourceClaim c: card is on fire"
    ):
        node.manager.prepare(pod())
    node.gpu.error = ""
    node.manager.prepare(pod())
    assert [call for call, _ in node.gpu.calls] == ["prepare", "prepare"]
    node.manager.unprepare("p1")
    assert node.gpu.calls[-1][0] == "unprepare"


def test_after_a_restart_claims_are_known_but_prepared_again(node: Node) -> None:
    node.allocated("c", "p1", "p2")
    node.manager.prepare(pod("p1"))
    manager = node.restart()
    assert manager.pods() == {"p1"}
    assert manager.cdi_devices(pod("p1"), pod("p1")["spec"]["containers"][0]) == ["d/x=y"]
    manager.prepare(pod("p2"))
    assert [call for call, _ in node.gpu.calls] == ["prepare", "prepare"]
    node.claims.clear()
    manager.unprepare("p1")
    manager.unprepare("p2")
    assert node.gpu.calls[-1] == ("unprepare", ["uid-c"])


def test_a_damaged_checkpoint_is_not_trusted(node: Node) -> None:
    node.allocated("c", "p1")
    node.manager.prepare(pod())
    node.path.write_text(node.path.read_text().replace("uid-c", "uid-x"))
    with pytest.raises(CheckpointError, match="corrupted"):
        ClaimCache(node.path)
    node.path.write_text("{")
    with pytest.raises(CheckpointError, match="cannot be read"):
        ClaimCache(node.path)


# --- what a pod's status says ---


def record(state: str, **fields: Any) -> dict[str, Any]:
    return {
        "id": "abc", "container": "main", "state": state, "attempt": 0, "createdAt": 1.0, "startedAt": 1.0,
        "finishedAt": 2.0, "exitCode": None, **fields,
    }  # fmt: skip


def status(records: list[dict[str, Any]], problem: Problem | None = None, **spec: Any) -> dict[str, Any]:
    body = pod(**spec)
    body["metadata"]["generation"] = 3
    body["status"] = {
        "resourceClaimStatuses": ["kept"],
        "conditions": [{"type": "PodScheduled", "status": "True"}],
    }
    return pod_rules.pod_status(body, records, problem, NOW)


def ready(found: dict[str, Any]) -> str:
    return str(next(one["status"] for one in found["conditions"] if one["type"] == "Ready"))


def test_a_running_pod() -> None:
    found = status([record("running")])
    assert (found["phase"], ready(found), found["observedGeneration"]) == ("Running", "True", 3)
    assert found["containerStatuses"][0]["containerID"] == "devcluster://abc"
    assert found["resourceClaimStatuses"] == ["kept"]
    assert {"type": "PodScheduled", "status": "True"} in found["conditions"]


def test_a_pod_that_cannot_start_says_why() -> None:
    found = status([], Problem("CreateContainerError", "unresolvable CDI devices"))
    assert (found["phase"], ready(found)) == ("Pending", "False")
    waiting = found["containerStatuses"][0]["state"]["waiting"]
    assert waiting == {"reason": "CreateContainerError", "message": "unresolvable CDI devices"}


@pytest.mark.parametrize(("code", "phase"), [(0, "Succeeded"), (1, "Failed")])
def test_a_finished_pod(code: int, phase: str) -> None:
    found = status([record("exited", exitCode=code)], restartPolicy="Never")
    assert (found["phase"], ready(found)) == (phase, "False")
    assert found["containerStatuses"][0]["state"]["terminated"]["exitCode"] == code


def test_an_exited_container_that_starts_again_is_not_the_end() -> None:
    assert status([record("exited", exitCode=0)], restartPolicy="Always")["phase"] == "Pending"


def test_what_the_runtime_is_asked_for() -> None:
    body = pod(
        volumes=[{"name": "h", "hostPath": {"path": "/host"}}, {"name": "e", "emptyDir": {}}], nodeName="n1"
    )
    container = {
        "name": "main", "image": "i", "command": ["a"], "args": ["b"],
        "env": [{"name": "A", "value": "1"}, {"name": "N", "valueFrom": {"fieldRef": {"fieldPath": "spec.nodeName"}}}],
        "volumeMounts": [{"name": "h", "mountPath": "/m", "readOnly": True}, {"name": "e", "mountPath": "/e"}],
        "securityContext": {"privileged": True},
    }  # fmt: skip
    config = pod_rules.container_config(body, container, ["x/y=z"])
    assert (list(config.command), config.env) == (["a", "b"], {"A": "1", "N": "n1"})
    assert [(one.destination, one.source, one.options[-1]) for one in config.mounts] == [
        ("/m", "/host", "ro")
    ]
    assert (config.privileged, config.cdi_devices) == (True, ["x/y=z"])
