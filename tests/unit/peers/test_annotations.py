"""Annotations for readers of other stacks: byte for byte as those write them, from the allocation alone,
whatever stood there."""

from __future__ import annotations

import json
from typing import Any

import pytest

from koordra.api import names, objects
from koordra.api.kinds import PODS
from koordra.api.objects import Object
from koordra.compat.dialect.allocation import DIALECT_LABEL, UNIT
from koordra.controller.legacy.annotations import PeerAnnotations, allocated, devices_of, wanted
from koordra.errors import Forbidden
from tests.fakes.cluster import Cluster
from tests.fakes.kube_api import FakeKubeApi, Write
from tests.fakes.listing import Listing

AT = "2024-05-20T10:02:05Z"
UNIX = 1716199325


def published(name: str, kind: str, **fields: Any) -> Object:
    attributes: Object = {"type": {"string": kind}}
    for key, value in fields.items():
        if key != "memory":
            name_of = "resource.kubernetes.io/pciBusID" if key == "bus" else key
            attributes[name_of] = {"int" if isinstance(value, int) else "string": value}
    capacity = {"memory": {"value": fields["memory"]}} if "memory" in fields else {}
    return {"name": name, "attributes": attributes, "capacity": capacity}


SLICE: Object = {
    "metadata": {"name": "s"},
    "spec": {
        "driver": names.DRIVER,
        "nodeName": "n0",
        "pool": {"name": "n0"},
        "devices": [
            published("gpu-0", "gpu", uuid="GPU-0fc3eda5", minor=0, memory="23040Mi"),
            published("gpu-1", "gpu", uuid="GPU-76f93f2b", minor=1, memory="23040Mi"),
            published("nic-0", "nic", ibDevice="mlx5_1", bus="0000:1f:00.0"),
            published("vf-2", "vf", parent="nic-0", bus="0000:1f:00.2"),
        ],
    },
}


def result(request: str, device: str, **consumed: str) -> Object:
    body = {"request": request, "driver": names.DRIVER, "pool": "n0", "device": device}
    return {**body, "consumedCapacity": consumed} if consumed else body


def claim(*results: Object, unit: int = 0) -> Object:
    metadata: Object = {"name": "c", "namespace": "default", "uid": "c"}
    if unit:
        metadata["annotations"] = {UNIT: str(unit)}
    allocation = {"devices": {"results": list(results)}, "allocationTimestamp": AT}
    return {"metadata": metadata, "status": {"allocation": allocation}}


def pod(
    dialect: str, *containers: tuple[str, str], init: tuple[str, str] | None = None, **notes: str
) -> Object:
    """Containers by name, each with the request that it uses (empty: none)."""

    def container(name: str, request: str) -> Object:
        uses = {"claims": [{"name": "d", "request": request}]} if request else {}
        return {"name": name, "resources": uses}

    spec: Object = {
        "nodeName": "n0",
        "resourceClaims": [{"name": "d", "resourceClaimName": "c"}],
        "containers": [container(*entry) for entry in containers],
    }
    if init:
        spec["initContainers"] = [container(*init)]
    metadata = {"name": "p", "namespace": "default", "annotations": {DIALECT_LABEL: dialect, **notes}}
    return {"metadata": metadata, "spec": spec}


def written(found: Object, *results: Object, unit: int = 0) -> dict[str, str]:
    return wanted(found, [claim(*results, unit=unit)], devices_of([SLICE]))


def test_koordinator() -> None:
    """The text of koordinator's documentation, with a virtual function as its node agent reports them."""
    found = written(
        pod("koordinator", ("main", "")),
        result("gpu", "gpu-0", memory="11520Mi", cores="50"),
        result("rdma", "vf-2"),
    )
    assert found == {
        "scheduling.koordinator.sh/device-allocated": (
            '{"gpu":[{"minor":0,"resources":{"koordinator.sh/gpu-core":"50","koordinator.sh/gpu-memory":"11520Mi",'
            '"koordinator.sh/gpu-memory-ratio":"50"},"id":"GPU-0fc3eda5"}],'
            '"rdma":[{"minor":1,"resources":{"koordinator.sh/rdma":"1"},"id":"0000:1f:00.0",'
            '"extension":{"vfs":[{"minor":-1,"busID":"0000:1f:00.2"}]}}]}'
        )
    }


def test_koordinator_whole_cards_and_a_nic() -> None:
    found = written(
        pod("koordinator", ("main", "")),
        result("gpu", "gpu-1"),
        result("gpu", "gpu-0", memory="23040Mi", cores="0"),
        result("rdma", "nic-0", share="100"),
    )
    body = json.loads(found["scheduling.koordinator.sh/device-allocated"])
    assert [entry["minor"] for entry in body["gpu"]] == [0, 1]
    for entry in body["gpu"]:
        assert entry["resources"] == {
            "koordinator.sh/gpu-core": "100",
            "koordinator.sh/gpu-memory": "23040Mi",
            "koordinator.sh/gpu-memory-ratio": "100",
        }
    assert body["rdma"] == [{"minor": 1, "resources": {"koordinator.sh/rdma": "100"}, "id": "0000:1f:00.0"}]


def test_hami_counts_every_container_init_first() -> None:
    found = written(
        pod("hami", ("side", ""), ("main", "main"), init=("prepare", "main")),
        result("main", "gpu-0", memory="3000Mi"),
        result("main", "gpu-1", memory="3000Mi", cores="30"),
    )
    both = "GPU-0fc3eda5,NVIDIA,3000,0:GPU-76f93f2b,NVIDIA,3000,30:"
    assert found == {
        "hami.io/vgpu-devices-allocated": f"{both};;{both};",
        "hami.io/vgpu-node": "n0",
        "hami.io/vgpu-time": str(UNIX),
        "hami.io/bind-time": str(UNIX),
        "hami.io/bind-phase": "success",
    }


def test_volcano_separates_containers_and_does_not_end_them() -> None:
    found = written(
        pod("volcano-vgpu", ("a", "a"), ("b", "b")),
        result("a", "gpu-0", memory="1126Mi"),
        result("b", "gpu-1", memory="1000Mi", cores="20"),
    )
    assert found["volcano.sh/vgpu-ids-new"] == "GPU-0fc3eda5,NVIDIA,1126,0:;GPU-76f93f2b,NVIDIA,1000,20:"


def test_old_volcano() -> None:
    found = written(pod("volcano-gpu", ("a", "a")), result("a", "gpu-1"), result("a", "gpu-0"))
    assert found == {
        "volcano.sh/gpu-index": "0,1",
        "volcano.sh/predicate-time": f"{UNIX}000000000",
        "volcano.sh/gpu-assigned": "true",
    }


@pytest.mark.parametrize(("unit", "of_pod", "of_card"), [(0, "5", "22"), (1 << 20, "5120", "23040")])
def test_aliyun_counts_in_the_units_of_the_pod(unit: int, of_pod: str, of_card: str) -> None:
    found = written(
        pod("aliyun", ("a", "a"), ("b", "b")),
        result("a", "gpu-1", memory="2Gi"),
        result("b", "gpu-1", memory="3Gi"),
        unit=unit,
    )
    assert found == {
        "ALIYUN_COM_GPU_MEM_IDX": "1",
        "ALIYUN_COM_GPU_MEM_POD": of_pod,
        "ALIYUN_COM_GPU_MEM_DEV": of_card,
        "ALIYUN_COM_GPU_MEM_ASSIGNED": "true",
        "ALIYUN_COM_GPU_MEM_ASSUME_TIME": f"{UNIX}000000000",
    }


@pytest.mark.parametrize("unit", ["²", "٣", "9" * 5000, "-1", "0", "MiB", ""])
def test_a_unit_that_cannot_be_read_is_a_gibibyte(unit: str) -> None:
    """A user may have written it; it must not end the pass for everybody."""
    given = claim(result("a", "gpu-1", memory="2Gi"))
    given["metadata"]["annotations"] = {UNIT: unit}
    found = wanted(pod("aliyun", ("a", "a")), [given], devices_of([SLICE]))
    assert found["ALIYUN_COM_GPU_MEM_POD"] == "2"


def test_tke_and_elastic_gpu_name_the_cards_of_each_container() -> None:
    results = (result("b", "gpu-1"), result("b", "gpu-0"))
    found = written(pod("tke", ("a", ""), ("b", "b")), *results)
    assert found["tencent.com/predicate-gpu-idx-1"] == "0,1"
    assert "tencent.com/predicate-gpu-idx-0" not in found
    found = written(pod("elastic-gpu", ("a", ""), ("b", "b")), *results)
    assert found == {"elasticgpu.io/container-b": "0,1", "elasticgpu.io/assumed": "true"}


@pytest.mark.parametrize("dialect", ["plain", "alnair", "", "nonsense"])
def test_dialects_that_left_nothing(dialect: str) -> None:
    assert written(pod(dialect, ("a", "a")), result("a", "gpu-0")) == {}


def test_a_device_that_is_not_published_writes_nothing() -> None:
    assert written(pod("hami", ("a", "a")), result("a", "gone")) == {}


# which pods, and what stands there already


def cluster(*pods: Object, claims: tuple[Object, ...] = ()) -> Cluster:
    return Cluster(slices=[SLICE], claims=claims or [claim(result("a", "gpu-0", memory="3000Mi"))], pods=pods)


KEY = "hami.io/vgpu-devices-allocated"


def test_what_a_user_wrote_changes_nothing_and_is_replaced() -> None:
    api = FakeKubeApi()
    forged = {KEY: "GPU-76f93f2b,NVIDIA,23040,100:;", "hami.io/vgpu-node": "n9"}
    stored = api.create(PODS, pod("hami", ("a", "a"), **forged))
    seen = Listing(cluster(stored))
    writer = PeerAnnotations(api, seen, may_write=lambda: True)
    assert writer.sync() == 1
    found = objects.annotations_of(api.get(PODS, "p"))
    assert found[KEY] == "GPU-0fc3eda5,NVIDIA,3000,0:;"
    assert found["hami.io/vgpu-node"] == "n0"
    seen.seen = cluster(api.get(PODS, "p"))
    assert writer.sync() == 0
    api.edit(PODS, "p", lambda obj: obj["metadata"]["annotations"].update({KEY: "other"}))
    seen.seen = cluster(api.get(PODS, "p"))
    assert writer.sync() == 1
    assert objects.annotations_of(api.get(PODS, "p"))[KEY] == "GPU-0fc3eda5,NVIDIA,3000,0:;"


@pytest.mark.parametrize(
    "change",
    [
        lambda obj: obj["spec"].pop("nodeName"),
        lambda obj: obj["metadata"].update(deletionTimestamp=AT),
        lambda obj: obj.update(status={"phase": "Succeeded"}),
        lambda obj: obj["metadata"]["annotations"].pop(DIALECT_LABEL),
        lambda obj: obj["spec"]["resourceClaims"].append({"name": "e", "resourceClaimName": "missing"}),
    ],
)
def test_other_pods_are_left_alone(change: Any) -> None:
    api = FakeKubeApi()
    body = pod("hami", ("a", "a"))
    change(body)
    stored = api.create(PODS, body)
    assert PeerAnnotations(api, Listing(cluster(stored)), may_write=lambda: True).sync() == 0


def test_a_refusal_is_not_repeated_and_stops_nobody_else() -> None:
    api = FakeKubeApi()
    one = api.create(PODS, pod("hami", ("a", "a")))
    body = pod("hami", ("a", "a"))
    body["metadata"]["name"] = "q"
    two = api.create(PODS, body)

    def refuse(write: Write) -> None:
        if write.name == "p":
            raise Forbidden("only the scheduler may", code=403)

    api.before = refuse
    writer = PeerAnnotations(api, Listing(cluster(one, two)), may_write=lambda: True)
    assert writer.sync() == 1
    writes = len(api.writes)
    assert writer.sync() == 0
    assert len(api.writes) == writes


def test_nothing_is_read_back() -> None:
    """No code of koordra's asks for one of these annotations but to compare it with what it writes."""
    given = pod("hami", ("a", "a"), **{KEY: "GPU-76f93f2b,NVIDIA,1,1:;"})
    plain = pod("hami", ("a", "a"))
    assert written(given, result("a", "gpu-0")) == written(plain, result("a", "gpu-0"))
    assert allocated(given, [claim(result("a", "gpu-0"))], devices_of([SLICE])) == allocated(
        plain, [claim(result("a", "gpu-0"))], devices_of([SLICE])
    )
