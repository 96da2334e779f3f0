"""Claims of several shapes in pods of a real containerd: shared by containers and pods, looked at by an
administrator, with a NIC that goes into the pod's network and comes back.

The NIC's network interface is a veth under the NIC's name, a stand-in: containers get the real node,
environment and mounts, and the real interface moves between real network namespaces. RDMA links are proven
against a netlink double (unit tests), since the kernels of test machines have none.
"""

from __future__ import annotations

import contextlib
import json
import subprocess
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import grpc
import pytest

from koordra.api.kinds import EVENTS, NAMESPACES, PODS
from koordra.api.kinds import RESOURCE_CLAIMS as KIND
from koordra.api.resource_class import CONFIG_MAPS
from koordra.errors import ApiError
from koordra.kubelet_plugin.network import node_parts
from koordra.topology.machine import Nic
from tests.e2e.containerd import CGROUPS, Containerd, wait_until
from tests.e2e.cri import ContainerSpec, HostMount
from tests.e2e.node import KoordraNode, Prepared
from tests.e2e.test_containers import (
    ALLOWED,
    REFUSED,
    dns_label,
    node_of,
    opens,
    share_of,
    verbs_of,
    whole,
)
from tests.e2e.watched_node import BUNDLES
from tests.unit.api.test_authority import OPERATORS, document

pytestmark = pytest.mark.e2e


@pytest.fixture
def pods(containerd: Containerd, request: pytest.FixtureRequest) -> Iterator[Callable[..., str]]:
    """Makes pods of this test, removed with their containers."""
    made: list[str] = []

    def run(number: int = 0, **more: Any) -> str:
        made.append(containerd.cri.run_pod(f"{dns_label(request)}-{number}", **more))
        return made[-1]

    yield run
    for pod in made:
        containerd.cri.remove_pod(pod)


@pytest.fixture
def prepare(node: KoordraNode, request: pytest.FixtureRequest) -> Iterator[Callable[..., Prepared]]:
    claims: list[Prepared] = []

    def make(
        *results: dict[str, Any],
        config: Sequence[dict[str, Any]] = (),
        pods: Mapping[str, str] | None = None,
    ) -> Prepared:
        claims.append(
            node.prepare(
                f"{dns_label(request)[:40]}-{uuid.uuid4().hex[:6]}", results, config=config, pods=pods
            )
        )
        return claims[-1]

    yield make
    for claim in claims:
        node.unprepare(claim)


def test_a_claim_shared_by_two_containers_and_two_pods(
    containerd: Containerd, node: KoordraNode, pods: Callable[..., str], prepare: Callable[..., Prepared]
) -> None:
    """A second pod triggers no Prepare: the kubelet passes the same CDI ids."""
    mine, other = node.machine.gpus[0], node.machine.gpus[1]
    claim = prepare(share_of(mine))
    first, second = pods(0), pods(1)
    containers = [
        containerd.cri.run(pod, name, ContainerSpec(cdi=claim.all_cdi))
        for pod, name in ((first, "a"), (first, "b"), (second, "a"))
    ]
    for container in containers:
        assert ALLOWED in opens(containerd, container, node_of(mine))
        assert REFUSED in opens(containerd, container, node_of(other))


def test_two_shares_of_one_card_in_two_pods(
    containerd: Containerd, node: KoordraNode, pods: Callable[..., str], prepare: Callable[..., Prepared]
) -> None:
    card, other = node.machine.gpus[2], node.machine.gpus[3]
    for number, memory in enumerate(("40Gi", "30Gi")):
        claim = prepare(share_of(card, memory))
        container = containerd.cri.run(pods(number), "c", ContainerSpec(cdi=claim.all_cdi))
        assert ALLOWED in opens(containerd, container, node_of(card))
        assert REFUSED in opens(containerd, container, node_of(other))


def test_an_administrator_sees_a_card_that_is_in_use(
    containerd: Containerd, node: KoordraNode, pods: Callable[..., str], prepare: Callable[..., Prepared]
) -> None:
    card, other = node.machine.gpus[4], node.machine.gpus[5]
    holder = prepare(whole(card))
    look = {**whole(card, request="look"), "adminAccess": True}
    del look["shareID"]
    claim = prepare(look)
    pod = pods()
    for name, ids in (("holder", holder.all_cdi), ("admin", claim.all_cdi)):
        container = containerd.cri.run(pod, name, ContainerSpec(cdi=ids))
        assert ALLOWED in opens(containerd, container, node_of(card))
        assert REFUSED in opens(containerd, container, node_of(other))


def test_what_a_container_can_read_of_its_claim(
    containerd: Containerd, node: KoordraNode, pods: Callable[..., str], prepare: Callable[..., Prepared]
) -> None:
    """Device metadata (KEP 5304) where every driver puts it, and the NCCL topology of exactly its devices."""
    gpus = node.machine.gpus[:2]
    claim = prepare(share_of(gpus[0], request="a"), share_of(gpus[1], request="b"))
    container = containerd.cri.run(pods(), "c", ContainerSpec(cdi=claim.cdi["a"]))
    root = f"/var/run/kubernetes.io/dra-device-attributes/resourceclaims/{claim.name}"
    assert containerd.cri.shell(container, f"ls {root}").text.split() == ["a"]
    text = containerd.cri.shell(container, f"cat {root}/a/koordra.io-metadata.json").text
    decoder = json.JSONDecoder()
    newest, end = decoder.raw_decode(text)
    older, _ = decoder.raw_decode(text[end:].lstrip())
    assert (newest["apiVersion"], older["apiVersion"]) == (
        "metadata.resource.k8s.io/v1beta1",
        "metadata.resource.k8s.io/v1alpha1",
    )
    (device,) = newest["requests"][0]["devices"]
    assert device["name"] == gpus[0].name
    assert device["attributes"]["koordra.io/uuid"] == {"string": gpus[0].uuid}
    assert "Read-only" in containerd.cri.shell(container, f"echo x > {root}/a/koordra.io-metadata.json").text
    topology = containerd.cri.shell(container, "cat $NCCL_TOPO_FILE").text
    for gpu in gpus:
        assert gpu.location.bus_id in topology
    assert node.machine.gpus[2].location.bus_id not in topology


# A NIC in the pod's own network.


def test_a_claim_says_to_the_node_what_claims_may_say(
    containerd: Containerd, node: KoordraNode, pods: Callable[..., str]
) -> None:
    """Allocated by somebody who looks at no parameters, as kube-scheduler does, and past every webhook: the
    kubelet's call is refused in words, and no CDI device is there for a container to start with."""
    card = node.machine.gpus[1]
    asked = [document(*each) for each in (*OPERATORS, ("GpuConfig", "isolation"))]
    pod = pods()
    for number, said in enumerate(asked):
        opaque = {"driver": "koordra.io", "parameters": said}
        share = {**whole(card), "consumedCapacity": {"memory": "8Gi", "cores": "0", "slots": "1"}}
        config = [{"source": "FromClaim", "requests": [], "opaque": opaque}]
        name = f"says-{number}-{uuid.uuid4().hex[:6]}"
        uid = node.allocate(name, [share], config=config)
        told = node.call_prepare(name, uid).error
        limits = "isolation" in said
        assert ("the node allows only none" if limits else "is for the operator to say") in told, (said, told)
        with pytest.raises(grpc.RpcError, match="unresolvable CDI devices"):
            containerd.cri.run(pod, f"c{number}", ContainerSpec(cdi=(f"koordra.io/claim={uid}-gpu",)))
    assert not [path for path in node.state.rglob("*") if "says-" in path.name]


@pytest.fixture(scope="module")
def networked(containerd: Containerd, node: KoordraNode) -> Iterator[KoordraNode]:
    """The node's side with --pod-network, and a CNI that lets pods have a network of their own."""
    containerd.allow_own_networks()
    restart(node, ("--pod-network", "--root", str(node.root)))
    yield node
    restart(node, ())


def restart(node: KoordraNode, options: tuple[str, ...]) -> None:
    ready, synchronized = node.plugin.count("plugin_ready"), node.hook.count("nri_synchronized")
    for process in (node.hook, node.plugin):
        process.stop()
        process.options = options
        process.start()
    node.plugin.wait_for("plugin_ready", times=ready + 1)
    node.wait_hook_registered(times=synchronized + 1)


@pytest.fixture
def nic(networked: KoordraNode) -> Iterator[Nic]:
    """A NIC whose network interface really exists: a veth under its name."""
    found = networked.machine.nics[-1]
    assert found.netdev is not None
    if Path(f"/sys/class/net/{found.netdev}").exists():
        pytest.skip(f"this machine has an interface {found.netdev} of its own")
    made = subprocess.run(
        ["ip", "link", "add", found.netdev, "type", "veth", "peer", "name", f"{found.netdev}z"],
        check=False,
        capture_output=True,
        text=True,
    )
    if made.returncode != 0:
        pytest.skip(f"no veth can be made here: {made.stderr.strip()}")
    subprocess.run(["ip", "link", "set", found.netdev, "mtu", "1450", "up"], check=True)
    with_gid(networked, found)
    yield found
    subprocess.run(["ip", "link", "del", f"{found.netdev}z"], check=False, capture_output=True)


def with_gid(node: KoordraNode, nic: Nic, kind: str = "RoCE v2") -> None:
    """What the kernel adds to a port's table for the address 192.168.77.5 on the NIC, which the stand-in has
    not."""
    port = node.root / f"sys/class/infiniband/{nic.ib_device}/ports/1"
    for folder, text in (("gids", "0000:0000:0000:0000:0000:ffff:c0a8:4d05"), ("gid_attrs/types", kind)):
        (port / folder).mkdir(parents=True, exist_ok=True)
        (port / folder / "3").write_text(f"{text}\n")


@pytest.fixture
def pod_object(networked: KoordraNode) -> tuple[str, str]:
    """Name and uid of a Pod that the API knows, so that a claim can be reserved for it."""
    name = f"networked-{uuid.uuid4().hex[:6]}"
    manifest = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": "team-a"},
        "spec": {"nodeName": "e2e-node", "containers": [{"name": "c", "image": "busybox"}]},
    }
    return name, str(networked.api.create(PODS, manifest)["metadata"]["uid"])


def exclusive(nic: Nic) -> dict[str, Any]:
    return {
        "request": "nic",
        "driver": "koordra.io",
        "pool": "e2e-node",
        "device": nic.name,
        "shareID": "5c1f0000-0000-5000-8000-000000000077",
        "consumedCapacity": {"share": "100", "bandwidth": "0"},
    }


def rail(source: str = "FromClass", **fields: Any) -> dict[str, Any]:
    parameters = {
        "apiVersion": "koordra.io/v1alpha1",
        "kind": "RdmaConfig",
        "memlock": False,
        "mode": "Exclusive",
        "network": {"interface": "rail0", "addresses": ["192.168.77.5/24"], "mtu": 1400},
        **fields,
    }
    return {
        "source": source,
        "requests": [],
        "opaque": {"driver": "koordra.io", "parameters": parameters},
    }


def interfaces(containerd: Containerd, container: str) -> set[str]:
    lines = containerd.cri.shell(container, "cat /proc/net/dev").text.splitlines()[2:]
    return {line.partition(":")[0].strip() for line in lines}


def test_a_nic_goes_into_the_pod_and_comes_back(
    containerd: Containerd,
    networked: KoordraNode,
    nic: Nic,
    prepare: Callable[..., Prepared],
    pod_object: tuple[str, str],
) -> None:
    name, pod_uid = pod_object
    claim = prepare(exclusive(nic), config=[rail()], pods={name: pod_uid})
    host = Path(f"/sys/class/net/{nic.netdev}")
    pod = containerd.cri.run_pod(name, own_network=True, uid=pod_uid)
    try:
        container = containerd.cri.run(pod, "c", ContainerSpec(cdi=claim.all_cdi))
        assert "rail0" in interfaces(containerd, container)
        assert not host.exists()
        assert ALLOWED in containerd.cri.shell(container, f"dd if={verbs_of(nic).path} count=1").text
        assert REFUSED in opens(containerd, container, verbs_of(networked.machine.nics[0]))
        said = containerd.cri.shell(container, "cat /run/koordra.io/network/*.json").text
        assert json.loads(said)["devices"][0]["addresses"] == ["192.168.77.5/24"]

        def reported() -> bool:
            status = networked.api.get(KIND, claim.name, namespace="team-a")["status"]
            return any(
                entry.get("networkData", {}).get("interfaceName") == "rail0"
                for entry in status.get("devices", ())
            )

        wait_until(reported, "status.devices says what is in the pod", log=networked.plugin.log)
        # A pod without the claim sees nothing of it.
        other = containerd.cri.run_pod(f"{name}-other", own_network=True)
        try:
            stranger = containerd.cri.run(other, "c", ContainerSpec())
            assert "rail0" not in interfaces(containerd, stranger)
        finally:
            containerd.cri.remove_pod(other)
    finally:
        containerd.cri.remove_pod(pod)
    assert host.exists()
    assert (host / "mtu").read_text().strip() == "1450"
    networked.unprepare(claim)
    left = [path for path in networked.state.rglob("*") if claim.uid in path.name]
    assert not left
    assert not [path for top in CGROUPS.glob("*/k8s.io") for path in top.iterdir() if path.name == pod]


POOLS = """
schema: koordra.io/network-pools/v1
pools:
  - name: rails
    perNode: 25
    networks:
      - {cidr: 192.168.77.0/24, exclude: [192.168.77.0/30, 192.168.77.4/32, 192.168.77.6/31, 192.168.77.8/29,
         192.168.77.16/28, 192.168.77.32/27, 192.168.77.64/26]}
"""
"""This node's part has one address, 192.168.77.5."""


@pytest.fixture
def pooled(networked: KoordraNode, tmp_path: Path) -> Iterator[KoordraNode]:
    """The plugin with pools of addresses."""
    with contextlib.suppress(ApiError):
        namespace = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "koordra-system"}}
        networked.api.create(NAMESPACES, namespace)
    parts = {"name": node_parts.NAME, "namespace": "koordra-system"}
    networked.api.create(CONFIG_MAPS, {"apiVersion": "v1", "kind": "ConfigMap", "metadata": parts})
    (tmp_path / "pools.yaml").write_text(POOLS)
    before = networked.plugin.options
    networked.restart_plugin(*before, "--network-pools", str(tmp_path / "pools.yaml"))
    yield networked
    networked.restart_plugin(*before)
    networked.api.delete(CONFIG_MAPS, node_parts.NAME, namespace="koordra-system")


def test_an_address_of_a_pool_is_kept_over_kills_and_given_up_with_its_claim(
    containerd: Containerd,
    pooled: KoordraNode,
    nic: Nic,
    prepare: Callable[..., Prepared],
    pod_object: tuple[str, str],
) -> None:
    name, pod_uid = pod_object
    of_class = rail(network={"pool": "rails"})
    claim = prepare(exclusive(nic), config=[of_class], pods={name: pod_uid})
    found = pooled.api.get(CONFIG_MAPS, node_parts.NAME, namespace="koordra-system")
    assert found["data"] == {"192.168.77.0-25": "e2e-node"}

    def start(container: str, pod: str) -> str:
        made = containerd.cri.run(pod, container, ContainerSpec(cdi=claim.all_cdi))
        return containerd.cri.shell(made, "ip -4 -o addr show").text

    pod = containerd.cri.run_pod(name, own_network=True, uid=pod_uid)
    try:
        assert "192.168.77.5/24" in start("c", pod)
        ready = pooled.plugin.count("plugin_ready")
        pooled.plugin.kill()
        pooled.plugin.start()
        pooled.plugin.wait_for("plugin_ready", times=ready + 1)
        assert pooled.call_prepare(claim.name, claim.uid).error == ""  # a kubelet that was restarted, too
        assert "192.168.77.5/24" in start("d", pod)
    finally:
        containerd.cri.remove_pod(pod)
    # The pod is made anew: its claim is, and has, the same.
    pod = containerd.cri.run_pod(name, own_network=True, uid=pod_uid)
    try:
        assert "192.168.77.5/24" in start("c", pod)
        beside = next(each for each in pooled.machine.nics if each.netdev and each.name != nic.name)
        other = pooled.allocate(
            f"{claim.name}-other", [exclusive(beside)], config=[of_class], pods={name: pod_uid}
        )
        assert "PoolExhausted" in pooled.call_prepare(f"{claim.name}-other", other).error
    finally:
        containerd.cri.remove_pod(pod)
    pooled.unprepare(claim)
    assert pooled.call_prepare(f"{claim.name}-other", other).error == ""
    pooled.unprepare(Prepared(f"{claim.name}-other", other, {}))


def test_nccl_and_ucx_read_what_the_class_says_and_the_image_too(
    containerd: Containerd,
    networked: KoordraNode,
    nic: Nic,
    prepare: Callable[..., Prepared],
    pod_object: tuple[str, str],
    tmp_path: Path,
) -> None:
    """NCCL reads /etc/nccl.conf, of which the first line of a name counts. A read-only root, a user that is
    not root, and a file that is a volume of the pod: the volume stays as it is."""
    name, pod_uid = pod_object
    of_class = rail(fabric={"trafficClass": 106, "serviceLevel": 3})
    of_claim = rail("FromClaim", network={"interface": "rail1", "mtu": 1300})
    claim = prepare(exclusive(nic), config=[of_class, of_claim], pods={name: pod_uid})
    volume = tmp_path / "nccl.conf"
    volume.write_text("NCCL_IB_TC=0\nNCCL_DEBUG=INFO\n")
    pod = containerd.cri.run_pod(name, own_network=True, uid=pod_uid)
    try:
        plain = containerd.cri.run(pod, "c", ContainerSpec(cdi=claim.all_cdi, read_only_root=True, user=1000))
        lines = containerd.cri.shell(plain, "cat /etc/nccl.conf").text.splitlines()
        ours = ["NCCL_IB_TC=106", "NCCL_IB_SL=3", "NCCL_SOCKET_IFNAME==eth0"]
        assert lines[1:] == ours
        said = containerd.cri.shell(plain, "cat $UCX_CONFIG_DIR/ucx.conf").text.splitlines()
        assert said[1:] == ["UCX_IB_TRAFFIC_CLASS=106", "UCX_IB_SL=3"]
        mounts = [HostMount(str(volume), "/etc/nccl.conf")]
        joined = containerd.cri.run(pod, "d", ContainerSpec(cdi=claim.all_cdi, mounts=mounts))
        text = containerd.cri.shell(joined, "cat /etc/nccl.conf").text
        assert text.splitlines()[1:] == [*ours, "NCCL_IB_TC=0", "NCCL_DEBUG=INFO"]
        assert volume.read_text() == "NCCL_IB_TC=0\nNCCL_DEBUG=INFO\n"
    finally:
        containerd.cri.remove_pod(pod)


def test_a_pod_whose_nic_has_no_routable_address_does_not_start(
    containerd: Containerd,
    networked: KoordraNode,
    nic: Nic,
    prepare: Callable[..., Prepared],
    pod_object: tuple[str, str],
) -> None:
    """RoCE version 1 is not routed: no container is made, with words. The interface waits in the pod; once
    the address is there the same pod goes on, and at its end the host has its interface back."""
    name, pod_uid = pod_object
    claim = prepare(exclusive(nic), config=[rail()], pods={name: pod_uid})
    with_gid(networked, nic, "IB/RoCE v1")
    pod = containerd.cri.run_pod(name, own_network=True, uid=pod_uid)
    try:
        with pytest.raises(grpc.RpcError, match=f"NoRoutableGID: {nic.ib_device} has no RoCE v2 address"):
            containerd.cri.run(pod, "c", ContainerSpec(cdi=claim.all_cdi))
        with_gid(networked, nic)
        container = containerd.cri.run(pod, "d", ContainerSpec(cdi=claim.all_cdi))
        assert "rail0" in interfaces(containerd, container)
    finally:
        containerd.cri.remove_pod(pod)
    assert (Path(f"/sys/class/net/{nic.netdev}") / "mtu").read_text().strip() == "1450"


def test_without_its_network_the_container_does_not_start(
    containerd: Containerd,
    networked: KoordraNode,
    nic: Nic,
    pods: Callable[..., str],
    prepare: Callable[..., Prepared],
    pod_object: tuple[str, str],
) -> None:
    """Nobody attached anything: the claim is another pod's. NRI would let it pass; the missing mount does
    not."""
    claim = prepare(exclusive(nic), config=[rail()], pods=dict([pod_object]))
    pod = pods(own_network=True)
    with pytest.raises(grpc.RpcError) as refused:
        containerd.cri.run(pod, "c", ContainerSpec(cdi=claim.all_cdi))
    assert "network.json" in str(refused.value)
    assert Path(f"/sys/class/net/{nic.netdev}").exists()


def test_the_hook_is_killed_while_the_nic_is_in_the_pod(
    containerd: Containerd,
    networked: KoordraNode,
    nic: Nic,
    prepare: Callable[..., Prepared],
    pod_object: tuple[str, str],
) -> None:
    """Nobody hears of the sandbox's end: the interface is back all the same once the claim is unprepared."""
    name, pod_uid = pod_object
    claim = prepare(exclusive(nic), config=[rail()], pods={name: pod_uid})
    pod = containerd.cri.run_pod(name, own_network=True, uid=pod_uid)
    containerd.cri.run(pod, "c", ContainerSpec(cdi=claim.all_cdi))
    synchronized = networked.hook.count("nri_synchronized")
    networked.hook.kill()
    networked.unprepare(claim)
    assert (Path(f"/sys/class/net/{nic.netdev}") / "mtu").read_text().strip() == "1450"
    containerd.cri.remove_pod(pod)
    networked.hook.start()
    networked.wait_hook_registered(times=synchronized + 1)


def test_a_second_pod_of_a_claim_whose_nic_has_moved_does_not_start_while_the_hook_is_away(
    containerd: Containerd,
    networked: KoordraNode,
    nic: Nic,
    prepare: Callable[..., Prepared],
    pod_object: tuple[str, str],
) -> None:
    """No Prepare for a second pod, no hook to refuse it, and the claim's gate is open: what is left is that
    its network namespace has no such interface. A container of the first pod starts anew without the hook all
    the same."""
    name, pod_uid = pod_object
    claim = prepare(exclusive(nic), config=[rail()], pods={name: pod_uid})
    first = containerd.cri.run_pod(name, own_network=True, uid=pod_uid)
    second = containerd.cri.run_pod(f"{name}-second", own_network=True)
    try:
        containerd.cri.run(first, "c", ContainerSpec(cdi=claim.all_cdi))
        synchronized = networked.hook.count("nri_synchronized")
        networked.hook.kill()
        with pytest.raises(grpc.RpcError) as refused:
            containerd.cri.run(second, "c", ContainerSpec(cdi=claim.all_cdi))
        assert "/proc/sys/net/ipv4/conf/rail0" in str(refused.value)
        assert f"/run/koordra.io/network/{claim.uid}.in-one-pod-at-a-time/rail0" in str(refused.value)
        again = containerd.cri.run(first, "again", ContainerSpec(cdi=claim.all_cdi))
        assert "rail0" in interfaces(containerd, again)
        networked.hook.start()
        networked.wait_hook_registered(times=synchronized + 1)
        with pytest.raises(grpc.RpcError, match="network namespace of the pod with uid"):
            containerd.cri.run(second, "d", ContainerSpec(cdi=claim.all_cdi))
    finally:
        for pod in (second, first):
            containerd.cri.remove_pod(pod)


def test_an_interface_that_is_taken_away_from_a_running_pod_is_told(
    containerd: Containerd,
    networked: KoordraNode,
    nic: Nic,
    prepare: Callable[..., Prepared],
    pod_object: tuple[str, str],
) -> None:
    """The card is pulled, or somebody deletes its interface: the container runs on, and the API says what it
    lacks."""
    name, pod_uid = pod_object
    options = networked.hook.options
    synchronized = networked.hook.count("nri_synchronized")
    networked.hook.stop()
    networked.hook.options = (
        *("--pod-network", "--verify-period", "1", "--bundles", str(containerd.folder / BUNDLES)),
        *("--kubeconfig", str(networked.kubeconfig), "--on-drift", "evict"),
        *("--root", str(networked.root)),
    )
    networked.hook.start()
    networked.wait_hook_registered(times=synchronized + 1)
    claim = prepare(exclusive(nic), config=[rail()], pods={name: pod_uid})
    pod = containerd.cri.run_pod(name, own_network=True, uid=pod_uid)
    in_sysfs = networked.root / f"sys/bus/pci/devices/{nic.location.bus_id}/net"
    away = in_sysfs.with_name("net-away")

    def condition() -> str | None:
        status = networked.api.get(KIND, claim.name, namespace="team-a")["status"]
        return next(
            (
                each["status"]
                for entry in status.get("devices", ())
                for each in entry.get("conditions", ())
                if each["type"] == "InterfacePresent"
            ),
            None,
        )

    try:
        container = containerd.cri.run(pod, "c", ContainerSpec(cdi=claim.all_cdi))
        assert "rail0" in interfaces(containerd, container)
        subprocess.run(["ip", "link", "del", f"{nic.netdev}z"], check=True)  # the other end of the stand-in
        in_sysfs.rename(away)
        wait_until(lambda: condition() == "False", "the claim says so", log=networked.hook.log)
        (event,) = (
            event
            for event in networked.api.list(EVENTS, namespace="team-a")[0]
            if event["reason"] == "NetworkDrift" and event["involvedObject"]["name"] == name
        )
        assert event["message"].startswith("InterfaceMissing: container c of pod")
        assert f"{nic.name} is held and its network interface rail0 is not in the pod" in event["message"]
        assert networked.api.get(PODS, name, namespace="team-a")["metadata"]["uid"] == pod_uid
        assert networked.hook.count("eviction_requested") == 0
        containerd.cri.remove_pod(pod)
        wait_until(lambda: condition() == "True", "and that it is over", log=networked.hook.log)
    finally:
        containerd.cri.remove_pod(pod)
        if away.exists():
            away.rename(in_sysfs)
        synchronized = networked.hook.count("nri_synchronized")
        networked.hook.stop()
        networked.hook.options = options
        networked.hook.start()
        networked.wait_hook_registered(times=synchronized + 1)


@pytest.mark.slow
def test_the_plugin_is_killed_at_many_moments_of_prepare_and_unprepare(
    containerd: Containerd, node: KoordraNode, pods: Callable[..., str]
) -> None:
    """SIGKILL at moments spread over the calls: afterwards the kubelet's next try succeeds, and nothing is
    left."""
    import threading

    for number in range(20):
        gpu = node.machine.gpus[number % 8]
        name = f"killed-{number}"
        uid = node.allocate(name, [whole(gpu)])
        died = threading.Timer(0.002 * number, node.plugin.kill)
        died.start()
        for _ in range(3):
            try:
                answer = node.call_prepare(name, uid)
                if not answer.error:
                    break
            except grpc.RpcError:
                died.join()
                ready = node.plugin.count("plugin_ready")
                node.plugin.start()
                node.plugin.wait_for("plugin_ready", times=ready + 1)
        died.join()
        if node.plugin._process is None:
            ready = node.plugin.count("plugin_ready")
            node.plugin.start()
            node.plugin.wait_for("plugin_ready", times=ready + 1)
        answer = node.call_prepare(name, uid)
        assert answer.error == ""
        ids = tuple(each for device in answer.devices for each in device.cdi_device_ids)
        container = containerd.cri.run(pods(number), "c", ContainerSpec(cdi=ids))
        assert ALLOWED in opens(containerd, container, node_of(gpu))
        node.unprepare(Prepared(name, uid, {"gpu": ids}))
        assert not [path for path in node.state.rglob("*") if uid in path.name]
