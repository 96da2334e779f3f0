"""The worked example of docs/extending.md: devices that are on no node, published for all that have a label,
given out by the allocator, and made by a package's backend on whatever node the pod is. Their server is a
process on loopback; a program with a container's variables connects to it."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
import yaml

from koordra.allocator.devices.inventory import Inventory
from koordra.allocator.features import Features
from koordra.api.elastic.elastic_gpu import ELASTIC_CLAIMS, ELASTIC_CLASSES, GPUS
from koordra.api.kinds import NODES, RESOURCE_SLICES
from koordra.api.opaque.isolation_words import isolations
from koordra.controller.explain.device_rows import device_rows
from koordra.controller.explain.isolation import isolation_of
from koordra.errors import PrepareError
from koordra.kubelet_plugin.dra.dra_service import DraService
from koordra.kubelet_plugin.dra.health import held_devices
from koordra.kubelet_plugin.isolation.packages import backends
from koordra.kubelet_plugin.prepare.claim_audit import _still_allocated
from koordra.kubelet_plugin.prepare.lost_devices import absent_devices
from koordra.kubelet_plugin.publish.node_inventory import NodeInventory
from koordra.kubelet_plugin.status.claim_status import _entry
from koordra.placement import plan
from tests.fakes import remote_gpu_server
from tests.fakes.node_claims import GPU_0, claim, gpu, parameters, result, uid
from tests.unit.allocator import machines
from tests.unit.docs.worked_examples import PAGE, worked_example
from tests.unit.elastic.elastic_cluster import ElasticCluster
from tests.unit.kubelet_plugin.conftest import PluginNode, prepare, ref_of, refusal

Dict = dict[str, Any]
SECTION = "Devices that are on no node"
LABEL = {"example.com/remote-gpus": "yes"}
POOL = "isolation/remote"
PROGRAM = """
import os, socket
host, _, port = os.environ["REMOTE_GPU"].rpartition(":")
with socket.create_connection((host, int(port))) as server:
    server.sendall(f"use {os.environ['REMOTE_GPU_SESSION']}\\n".encode())
    print(server.makefile().readline().strip())
"""


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """As pip would have installed it."""
    site = tmp_path / "site-packages"
    install(site)
    monkeypatch.syspath_prepend(str(site))
    isolations.cache_clear()
    yield site
    sys.modules.pop("remote_gpu", None)
    isolations.cache_clear()


def install(site: Path) -> None:
    info = site / "remote_gpu-1.0.dist-info"
    info.mkdir(parents=True)
    (site / "remote_gpu.py").write_text(worked_example(SECTION, "python"))
    (info / "entry_points.txt").write_text("[koordra.isolation]\nremote = remote_gpu:Remote\n")
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: remote-gpu\nVersion: 1.0\n")


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    with remote_gpu_server.running() as address:
        monkeypatch.setenv("REMOTE_GPU_SERVER", address)
        yield address


@pytest.fixture
def nodes(package: Path, server: str, tmp_path: Path, inventory: NodeInventory) -> dict[str, PluginNode]:
    del package, server
    found = {}
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        node = found[name] = PluginNode(tmp_path / name, inventory)
        node.name, node.backends = name, backends()
    return found


def cluster(*names: str) -> list[Dict]:
    """Three nodes, of which two are labelled, the example's class and slice, and a claim with a pod for each
    of the names of nodes."""
    cls, published, asked = yaml.safe_load_all(worked_example(SECTION, "yaml"))
    found = [machines.node("a", labels=LABEL), machines.node("b", labels=LABEL), machines.node("c")]
    for number, name in enumerate(names):
        own = deepcopy(asked)
        own["metadata"] |= {"name": f"c{number}", "uid": uid(number)}
        pod = machines.pod(f"p{number}", f"c{number}")
        pod["spec"]["nodeSelector"] = {"kubernetes.io/hostname": name}
        found += [own, pod]
    return [*machines.device_classes(), cls, published, *found]


def allocated(number: int, objects: list[Dict]) -> Dict:
    """The claim as the controller writes it."""
    (own,) = (one for one in objects if one["metadata"].get("uid") == uid(number))
    return {**own, "status": {"allocation": plan(objects).allocations[f"default/c{number}"]}}


def environment(node: PluginNode, number: int) -> dict[str, str]:
    """Of a container with the claim's device, by the CDI file alone."""
    env = node.spec(uid(number))["devices"][0]["containerEdits"]["env"]
    return dict(one.partition("=")[::2] for one in env)


def use(env: dict[str, str]) -> str:
    return subprocess.run(
        [sys.executable, "-S", "-c", PROGRAM], env=env, check=True, capture_output=True, text=True
    ).stdout.strip()


def test_a_program_reaches_its_share_from_whatever_node_it_is_on(
    nodes: dict[str, PluginNode], server: str
) -> None:
    objects = cluster("a", "b")
    used = {}
    for number, name in enumerate(nodes):
        record = prepare(nodes[name], allocated(number, objects))
        env = environment(nodes[name], number)
        assert env["REMOTE_GPU"] == server
        used[name] = env
        assert use(env) == f"remote-0 {16 << 30}"
        assert not record.devices[0].edits.device_nodes
    assert used["a"]["REMOTE_GPU_SESSION"] != used["b"]["REMOTE_GPU_SESSION"]
    nodes["a"].plugin().unprepare(ref_of(allocated(0, objects)))
    assert use(used["a"]) == "unknown session"
    assert use(used["b"]) == f"remote-0 {16 << 30}", "another node's share stays"


def test_an_elastic_gpu_class_names_them(nodes: dict[str, PluginNode]) -> None:
    page = PAGE.parent / "migrate" / "elastic-gpu.md"
    cls, asked = yaml.safe_load_all(worked_example("Remote GPUs", "yaml", page=page))
    _, published, _ = yaml.safe_load_all(worked_example(SECTION, "yaml"))
    found = ElasticCluster(nodes=2)
    found.api.edit(NODES, "n1", lambda own: own["metadata"]["labels"].update(LABEL))
    found.api.create(RESOURCE_SLICES, published)
    for kind, body in ((ELASTIC_CLASSES, cls), (ELASTIC_CLAIMS, asked)):
        found.api.create(kind, body)
    found.settle()
    found.pod("p", "from-afar")
    found.settle()
    assert found.phase("from-afar") == ("Bound", "Bound")
    (own,) = found.bindings()
    spec, pinned = own["spec"], {"key": "metadata.name", "operator": "In", "values": ["n1"]}
    assert own["status"]["phase"] == "Bound"
    assert spec["gpuShare"] == {"gpuName": "remote-0", "index": "", "uuid": ""}
    assert spec["capacity"]["elasticgpu.io/gpu-memory"] == str(16 << 10)
    assert "nodeName" not in spec
    assert spec["nodeAffinity"]["required"]["nodeSelectorTerms"] == [{"matchFields": [pinned]}]
    assert {own["spec"]["nodeName"] for own in found.api.all(GPUS)} == {"n0", "n1"}, "cards of nodes alone"
    claimed = deepcopy(found.claim("from-afar"))
    claimed["metadata"]["uid"] = uid(0)
    prepare(nodes["a"], claimed)
    assert use(environment(nodes["a"], 0)) == f"remote-0 {16 << 30}"


def test_an_elastic_gpu_of_one_that_is_gone_has_failed(package: Path) -> None:
    del package
    _, published, _ = yaml.safe_load_all(worked_example(SECTION, "yaml"))
    found = ElasticCluster()
    found.api.edit(NODES, "n0", lambda own: own["metadata"]["labels"].update(LABEL))
    found.api.create(RESOURCE_SLICES, published)
    found.elastic_class(parameters={"isolation": "remote"})
    found.elastic_claim(core=None)
    found.pod("p", "a")
    found.settle()
    found.runs("p", "a")
    found.api.delete(RESOURCE_SLICES, "remote-gpus")
    found.settle()
    assert found.phase() == ("Lost", "DeviceGone")
    (own,) = found.bindings()
    assert (own["status"]["phase"], own["status"]["reason"]) == ("Failed", "DeviceGone")
    assert "nodeName" not in own["spec"]


def test_without_the_package_the_class_is_refused() -> None:
    found = ElasticCluster()
    found.elastic_class(parameters={"isolation": "remote"})
    found.settle()
    (condition,) = found.api.get(ELASTIC_CLASSES, "shares")["status"]["conditions"]
    assert (condition["status"], condition["reason"]) == ("False", "InvalidClass")
    assert "remote" in condition["message"]


def test_capacity_is_counted_over_all_nodes_and_labels_say_which() -> None:
    found = plan(cluster("a", "b", "a"))
    given = {key: one["devices"]["results"][0] for key, one in found.allocations.items()}
    assert {one["pool"] for one in given.values()} == {POOL}
    assert {key: found.nodes[key] for key in given} == {"default/c0": "a", "default/c1": "b"}
    (short,) = (one for one in found.unsatisfiable["default/c2"] if one.device == "remote-0")
    assert short.detail == (
        "memory: requested 16Gi, free 8Gi of 40Gi, in use by ResourceClaims default/c0, default/c1"
    )
    assert plan(cluster("c")).unsatisfiable, "it has no label"


def test_it_is_shown_once_and_of_no_node() -> None:
    objects = cluster("a")
    taken = [allocated(0, objects) if one["metadata"].get("uid") == uid(0) else one for one in objects]
    (row,) = device_rows(taken)
    assert (row["node"], row["pool"], row["name"], row["state"]) == (None, POOL, "remote-0", "Shared")
    assert row["capacity"]["memory"] == {"total": "40Gi", "free": "24Gi"}
    assert row["holders"] == ["default/c0"]
    inventory = Inventory.of(objects, features=Features.of(None))
    (node,) = (one for one in objects if one["metadata"]["name"] == "a")
    (told,) = isolation_of(taken[-2], {one.id: one for one in inventory.pools(node)[0].devices})
    assert (told["type"], told["isolation"]) == ("remote-gpu", "remote")
    assert (told["enforced"], told["accounted"]) == (["memory 16Gi, by remote"], [])


def test_the_kubelet_and_the_status_are_told_its_own_pool(nodes: dict[str, PluginNode]) -> None:
    node, own = nodes["a"], allocated(0, cluster("a"))
    record = prepare(node, own)
    messages = type("Messages", (), {"Device": staticmethod(lambda **fields: fields)})
    (told,) = DraService(calls=None, messages=messages, with_share_id=False)._devices(record)  # type: ignore[arg-type]
    assert (told["pool_name"], told["device_name"]) == (POOL, "remote-0")
    assert told["cdi_device_ids"][0].startswith(f"koordra.io/claim={uid(0)}-remote-0")
    assert _entry(record, record.devices[0])["pool"] == POOL
    (metadata,) = json.loads(
        (node.paths.claim_folder(uid(0)) / "gpu.metadata.json").read_text().partition("\n}\n")[0] + "}"
    )["requests"]
    assert metadata["devices"] == [{"driver": "koordra.io", "pool": POOL, "name": "remote-0"}]


def test_nothing_of_the_node_is_told_of_it(nodes: dict[str, PluginNode]) -> None:
    node, own = nodes["a"], allocated(0, cluster("a"))
    record = prepare(node, own)
    plugin = node.plugin()
    assert held_devices(plugin.records) == []
    assert absent_devices(plugin.records, node.inventory) == {}
    assert _still_allocated(node.claims, record, node="a")  # type: ignore[arg-type]
    elsewhere = deepcopy(own)
    elsewhere["status"]["allocation"]["devices"]["results"][0]["pool"] = "isolation/other"
    node.claims.put(elsewhere)
    assert not _still_allocated(node.claims, record, node="a")  # type: ignore[arg-type]


def test_killed_after_any_step_the_session_is_one_and_ends(nodes: dict[str, PluginNode]) -> None:
    node, own = nodes["a"], allocated(0, cluster("a"))
    first = prepare(node, own)
    env = environment(node, 0)
    assert prepare(node, own).devices[0].journal == first.devices[0].journal
    assert environment(node, 0) == env
    node.paths.checkpoint.unlink()
    recovered = node.plugin()
    (record,) = recovered.records()
    assert (record.devices[0].pool, record.devices[0].type) == (POOL, "remote")
    recovered.unprepare(ref_of(own))
    assert not node.holders()


def test_without_its_server_nothing_is_prepared_and_the_claim_stays_to_be_undone(
    nodes: dict[str, PluginNode], monkeypatch: pytest.MonkeyPatch, server: str
) -> None:
    node, own = nodes["a"], allocated(0, cluster("a"))
    monkeypatch.setenv("REMOTE_GPU_SERVER", "127.0.0.1:1")
    node.claims.put(own)
    with pytest.raises(PrepareError, match="the server of remote GPUs does not answer"):
        node.plugin().prepare(ref_of(own))
    monkeypatch.setenv("REMOTE_GPU_SERVER", server)
    assert node.plugin().prepare(ref_of(own))


def remote(device: str = "remote-0", pool: str = POOL, **more: Any) -> Dict:
    return {**result("gpu", device, consumed={"memory": "1Gi"}, share="s"), "pool": pool, **more}


@pytest.mark.parametrize(
    ("given", "said", "why"),
    [
        (remote("gpu-7"), {}, "whose devices are called remote-..."),
        (remote("remote-/../x"), {}, "whose devices are called remote-..."),
        (remote(GPU_0), {}, "whose devices are called remote-..."),
        (remote("none-0", "isolation/none"), {}, "isolation 'none' is not available"),
        (remote("other-0", "isolation/other"), {}, "isolation 'other' is not available"),
        (remote("-0", "isolation/"), {}, "is of pool isolation/, and this node's is a"),
        (remote(), {"isolation": "none"}, "requested none, and the device is remote's own"),
        (remote(adminAccess=True), {}, "cannot be had with adminAccess"),
        (remote("remote-0", "b"), {}, "is of pool b, and this node's is a"),
    ],
)
def test_what_no_backend_here_makes_is_refused(
    nodes: dict[str, PluginNode], given: Dict, said: Dict, why: str
) -> None:
    own = claim(1, given, config=[parameters("GpuConfig", **said)] if said else [])
    assert why in refusal(nodes["a"], own)


def test_beside_a_card_of_the_node(nodes: dict[str, PluginNode]) -> None:
    node = nodes["a"]
    card = {**gpu("card", GPU_0), "pool": "a"}
    both = claim(1, card, remote(), config=[parameters("GpuConfig", isolation="Auto")])
    record = prepare(node, both)
    assert [one.type for one in record.devices] == ["gpu", "remote"]
    assert [record.pool_of(one) for one in record.devices] == ["a", POOL]
    assert record.devices[1].isolation == "remote"
    alone = {name: value for name, value in remote().items() if name != "shareID"}
    assert "this claim wants it alone" in refusal(node, claim(2, alone)), "of the node's own claims it knows"
