"""What a claim brings into a real container, and what no container gets without one.

"Cannot be opened" is always the kernel's word: EPERM from the device cgroup for a node made with mknod by
root inside the container. ENXIO is the sign of a node that may be opened and has no driver behind it.
"""

from __future__ import annotations

import json
import platform
import re
import subprocess
import sys
import uuid
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import grpc
import pytest

from koordra.api import names
from koordra.topology.location import DeviceNode
from koordra.topology.machine import Gpu, Nic
from tests.e2e.containerd import Containerd, wait_until
from tests.e2e.cri import ContainerSpec, HostDevice, HostMount
from tests.e2e.node import LIBRARY_TEXT, NODE, KoordraNode, Prepared
from tests.fakes import vllm_devices

pytestmark = pytest.mark.e2e

ALLOWED = "No such device or address"
REFUSED = "Operation not permitted"


def share_of(gpu: Gpu, memory: str = "10Gi", *, request: str = "gpu") -> dict[str, Any]:
    return _result(request, gpu.name, {"memory": memory, "cores": "25", "slots": "1"})


def whole(gpu: Gpu, *, request: str = "gpu") -> dict[str, Any]:
    return _result(
        request, gpu.name, {"memory": f"{(gpu.memory_bytes or 0) >> 20}Mi", "cores": "0", "slots": "1"}
    )


def share_of_nic(nic: Nic, *, request: str = "nic") -> dict[str, Any]:
    return _result(request, nic.name, {"share": "10", "bandwidth": "0"})


def _result(request: str, device: str, consumed: dict[str, str]) -> dict[str, Any]:
    return {
        "request": request,
        "driver": names.DRIVER,
        "pool": NODE,
        "device": device,
        "shareID": str(uuid.uuid4()),
        "consumedCapacity": consumed,
    }


def dns_label(request: pytest.FixtureRequest) -> str:
    return re.sub(r"[^a-z0-9]+", "-", request.node.name)[:50].strip("-")


@pytest.fixture
def pod(containerd: Containerd, node: KoordraNode, request: pytest.FixtureRequest) -> Iterator[str]:
    """A pod of this test, removed with its containers."""
    made = containerd.cri.run_pod(dns_label(request))
    yield made
    containerd.cri.remove_pod(made)


@pytest.fixture
def prepare(node: KoordraNode, request: pytest.FixtureRequest) -> Iterator[Callable[..., Prepared]]:
    """Claims of this test, unprepared when its pod is gone."""
    claims: list[Prepared] = []

    def make(*results: dict[str, Any], config: Sequence[dict[str, Any]] = ()) -> Prepared:
        claims.append(node.prepare(f"{dns_label(request)}-{len(claims)}", results, config=config))
        return claims[-1]

    yield make
    for claim in claims:
        node.unprepare(claim)


def environment(containerd: Containerd, container: str) -> dict[str, str]:
    output = containerd.cri.shell(container, "env")
    return dict(line.split("=", 1) for line in output.text.splitlines() if "=" in line)


def limits_of(env: dict[str, str]) -> list[int]:
    return sorted(int(value) for name, value in env.items() if name.startswith("KOORDRA_MEMORY_LIMIT_"))


def opens(containerd: Containerd, container: str, wanted: DeviceNode) -> str:
    """What opening the device says in the container, through a node that root makes there."""
    script = f"mknod /tmp/n{wanted.major}-{wanted.minor} c {wanted.major} {wanted.minor}; dd if=/tmp/n{wanted.major}-{wanted.minor} count=1"
    return containerd.cri.shell(container, script).text


def node_of(gpu: Gpu) -> DeviceNode:
    assert gpu.node is not None
    return gpu.node


def verbs_of(nic: Nic) -> DeviceNode:
    assert nic.verbs is not None
    return nic.verbs


def nic_beside(node: KoordraNode, gpu: Gpu) -> Nic:
    return next(nic for nic in node.machine.nics if nic.location.switches[0] == gpu.location.switches[0])


def test_a_gpu_claim_brings_environment_device_node_and_driver_library(
    containerd: Containerd, node: KoordraNode, pod: str, prepare: Callable[..., Prepared]
) -> None:
    mine, neighbour = node.machine.gpus[:2]
    claim = prepare(share_of(mine))
    container = containerd.cri.run(pod, "c", ContainerSpec(cdi=claim.all_cdi))

    env = environment(containerd, container)
    assert env["NVIDIA_VISIBLE_DEVICES"] == "void"
    assert "CUDA_VISIBLE_DEVICES" not in env
    assert limits_of(env) == [10 << 30]
    assert env["FROM_IMAGE"] == "yes"
    markers = {name: value for name, value in env.items() if name.startswith("KOORDRA_CLAIM_")}
    assert markers
    # The nonce never reaches the tenant.
    nonce = json.loads((node.state / "prepared" / f"{claim.uid}.json").read_text())["nonce"]
    assert nonce not in containerd.cri.shell(container, "env; cat /proc/1/environ").text
    assert set(markers.values()) == {"granted"}

    listed = containerd.cri.shell(container, "ls -l /dev")
    assert f"{node_of(mine).major}, " in listed.text
    assert [line.split()[-1] for line in listed.text.splitlines() if "nvidia" in line] == [
        "nvidia-modeset",
        "nvidia-uvm",
        "nvidia-uvm-tools",
        "nvidia0",
        "nvidiactl",
    ]
    assert ALLOWED in containerd.cri.shell(container, "dd if=/dev/nvidia0 count=1").text
    assert ALLOWED in containerd.cri.shell(container, "dd if=/dev/nvidiactl count=1").text

    folder = f"/usr/lib/{platform.machine()}-linux-gnu"
    for path in (
        f"{folder}/libcuda.so.1",
        "/usr/lib64/libcuda.so.1",
        f"{folder}/libcuda.so.{node.machine.driver_version}",
    ):
        assert containerd.cri.shell(container, f"cat {path}").text == LIBRARY_TEXT
    assert "Read-only file system" in containerd.cri.shell(container, f"echo x > {folder}/libcuda.so.1").text

    assert ALLOWED in opens(containerd, container, node_of(mine))
    assert REFUSED in opens(containerd, container, node_of(neighbour))


def test_a_pair_brings_the_nic_and_no_other(
    containerd: Containerd, node: KoordraNode, pod: str, prepare: Callable[..., Prepared]
) -> None:
    gpu = node.machine.gpus[2]
    mine = nic_beside(node, gpu)
    other = next(nic for nic in node.machine.nics if nic.location.bus_id != mine.location.bus_id)
    # Root without CAP_SYS_RESOURCE cannot raise RLIMIT_MEMLOCK, so the container that runs does without.
    claim = prepare(whole(gpu), share_of_nic(mine), config=[rdma_config(memlock=False)])
    container = containerd.cri.run(pod, "c", ContainerSpec(cdi=claim.all_cdi))

    env = environment(containerd, container)
    assert env["NCCL_IB_HCA"] == f"={mine.ib_device}:1"
    assert env["UCX_NET_DEVICES"] == f"{mine.ib_device}:1"
    listed = containerd.cri.shell(container, "ls /dev/infiniband").text.split()
    assert listed == ["rdma_cm", verbs_of(mine).path.rpartition("/")[2]]
    assert ALLOWED in containerd.cri.shell(container, f"dd if={verbs_of(mine).path} count=1").text
    assert REFUSED in opens(containerd, container, verbs_of(other))
    assert memlock_limits(containerd, container) == []


def test_a_nic_lifts_the_limit_of_locked_memory(
    containerd: Containerd, node: KoordraNode, pod: str, prepare: Callable[..., Prepared]
) -> None:
    """In the OCI spec: starting the container needs a root that may raise the limit."""
    claim = prepare(share_of_nic(node.machine.nics[0]))
    container = containerd.cri.create(pod, "c", ContainerSpec(cdi=claim.all_cdi))
    assert memlock_limits(containerd, container) == [(1 << 64) - 1]


def rdma_config(*, memlock: bool) -> dict[str, Any]:
    parameters = {"apiVersion": "koordra.io/v1alpha1", "kind": "RdmaConfig", "memlock": memlock}
    return {
        "source": "FromClaim",
        "requests": [],
        "opaque": {"driver": names.DRIVER, "parameters": parameters},
    }


def memlock_limits(containerd: Containerd, container: str) -> list[int]:
    process = json.loads(containerd.cri.oci_spec(container))["runtimeSpec"]["process"]
    return [limit["hard"] for limit in process.get("rlimits") or () if limit["type"] == "RLIMIT_MEMLOCK"]


def test_requests_are_given_to_containers_one_by_one(
    containerd: Containerd, node: KoordraNode, pod: str, prepare: Callable[..., Prepared]
) -> None:
    """A container that names one request of the claim gets that one; the kubelet passes only its CDI ids."""
    first, second = node.machine.gpus[0], node.machine.gpus[1]
    claim = prepare(share_of(first, request="a"), share_of(second, request="b"))
    container = containerd.cri.run(pod, "c", ContainerSpec(cdi=claim.cdi["b"]))
    assert REFUSED in opens(containerd, container, node_of(first))
    assert ALLOWED in opens(containerd, container, node_of(second))


def test_two_claims_of_one_container_are_joined(
    containerd: Containerd, node: KoordraNode, pod: str, prepare: Callable[..., Prepared]
) -> None:
    """CDI alone lets the last one win; the hook joins them."""
    first, second = node.machine.gpus[0], node.machine.gpus[1]
    nics = nic_beside(node, first), next(nic for nic in node.machine.nics if nic != nic_beside(node, first))
    quiet = [rdma_config(memlock=False)]
    claims = (
        prepare(share_of(first), share_of_nic(nics[0]), config=quiet),
        prepare(share_of(second, "20Gi"), share_of_nic(nics[1]), config=quiet),
    )
    spec = ContainerSpec(cdi=[device for claim in claims for device in claim.all_cdi])
    container = containerd.cri.run(pod, "c", spec)
    env = environment(containerd, container)
    assert limits_of(env) == [10 << 30, 20 << 30]
    assert env["UCX_NET_DEVICES"] == ",".join(f"{nic.ib_device}:1" for nic in nics)
    for gpu in (first, second):
        assert ALLOWED in opens(containerd, container, node_of(gpu))


def test_vllm_counts_the_cards_of_its_container(
    containerd: Containerd,
    node: KoordraNode,
    pod: str,
    prepare: Callable[..., Prepared],
) -> None:
    """What reads CUDA_VISIBLE_DEVICES as vLLM does, in the environment of a container whose image wants all
    cards."""
    second, first = node.machine.gpus[2], node.machine.gpus[1]
    claim = prepare(whole(second), whole(first))
    spec = ContainerSpec(cdi=claim.all_cdi, env={"NVIDIA_VISIBLE_DEVICES": "all"})
    env = environment(containerd, containerd.cri.run(pod, "vllm", spec))
    assert {name for name in env if "VISIBLE_DEVICES" in name} == {"NVIDIA_VISIBLE_DEVICES"}
    command = [sys.executable, vllm_devices.__file__, "2"]
    assert subprocess.run(command, env=env, capture_output=True, check=True).stdout == b"0,1\n"


def test_a_privileged_pod_with_the_whole_node_starts_and_is_told_nothing(
    containerd: Containerd, node: KoordraNode, prepare: Callable[..., Prepared]
) -> None:
    """On every runtime; there is no card of anybody else."""
    claim = prepare(*(whole(gpu) for gpu in node.machine.gpus))
    sandbox = containerd.cri.run_pod("whole-node", privileged=True)
    try:
        spec = ContainerSpec(cdi=claim.all_cdi, privileged=True)
        container = containerd.cri.run(sandbox, "c", spec)
        assert "CUDA_VISIBLE_DEVICES" not in environment(containerd, container)
        assert all(ALLOWED in opens(containerd, container, node_of(gpu)) for gpu in node.machine.gpus)
    finally:
        containerd.cri.remove_pod(sandbox)


def test_two_shares_of_one_card_and_a_third_that_does_not_fit(
    containerd: Containerd, node: KoordraNode, pod: str, prepare: Callable[..., Prepared]
) -> None:
    card = node.machine.gpus[3]
    claims = prepare(share_of(card, "40Gi")), prepare(share_of(card, "30Gi"))
    containers = [
        containerd.cri.run(pod, f"c{index}", ContainerSpec(cdi=claim.all_cdi))
        for index, claim in enumerate(claims)
    ]
    for container, memory in zip(containers, (40 << 30, 30 << 30), strict=True):
        assert limits_of(environment(containerd, container)) == [memory]
        assert ALLOWED in opens(containerd, container, node_of(card))
    answer = node.call_prepare("too-much", node.allocate("too-much", [share_of(card, "20Gi")]))
    assert "InsufficientCapacity" in answer.error
    assert "70Gi in use" in answer.error


def test_what_the_pod_says_of_its_own_devices_stays(
    containerd: Containerd, node: KoordraNode, pod: str, prepare: Callable[..., Prepared]
) -> None:
    gpu, nic = node.machine.gpus[0], nic_beside(node, node.machine.gpus[0])
    claim = prepare(share_of(gpu), share_of_nic(nic), config=[rdma_config(memlock=False)])
    own = {"CUDA_VISIBLE_DEVICES": "0", "NCCL_IB_HCA": "mlx5", "UCX_NET_DEVICES": f"{nic.ib_device}:1,eth0"}
    container = containerd.cri.run(pod, "own", ContainerSpec(cdi=claim.all_cdi, env=own))
    assert environment(containerd, container).items() >= own.items()
    foreign = ContainerSpec(cdi=claim.all_cdi, env={"NCCL_IB_HCA": "=mlx5_99"})
    with pytest.raises(grpc.RpcError, match="NCCL_IB_HCA names mlx5_99"):
        containerd.cri.create(pod, "foreign", foreign)


def test_without_a_claim_there_is_nothing(containerd: Containerd, node: KoordraNode, pod: str) -> None:
    container = containerd.cri.run(pod, "c", ContainerSpec(env={"NVIDIA_VISIBLE_DEVICES": "all"}))
    assert environment(containerd, container)["NVIDIA_VISIBLE_DEVICES"] == "void"
    assert "nvidia" not in containerd.cri.shell(container, "ls /dev").text
    for wanted in (
        node_of(node.machine.gpus[0]),
        node.machine.gpu_control[0],
        verbs_of(node.machine.nics[0]),
    ):
        assert REFUSED in opens(containerd, container, wanted)


@pytest.mark.parametrize("marker", ["unknown claim", "wrong nonce"])
def test_a_forged_marker_is_refused(
    containerd: Containerd, node: KoordraNode, pod: str, prepare: Callable[..., Prepared], marker: str
) -> None:
    claim = prepare(share_of(node.machine.gpus[0]))
    uid = claim.uid if marker == "wrong nonce" else str(uuid.uuid4())
    name = f"KOORDRA_CLAIM_{uid.upper().replace('-', '_')}"
    forged = {name: "0" * 32, f"{name}_0": "0" * 32}
    with pytest.raises(grpc.RpcError) as caught:
        containerd.cri.create(pod, "c", ContainerSpec(env=forged))
    assert "KOORDRA_CLAIM_" in str(caught.value)


def test_devices_and_mounts_from_the_host_do_not_get_around_it(
    containerd: Containerd, node: KoordraNode, pod: str
) -> None:
    host = str(node.root / "dev" / "nvidia0")
    with pytest.raises(grpc.RpcError):
        containerd.cri.create(pod, "a", ContainerSpec(devices=[HostDevice(host, "/dev/anything")]))
    # A directory of nodes that are guarded cannot be brought in either, whatever it is called.
    with pytest.raises(grpc.RpcError):
        containerd.cri.create(pod, "b", ContainerSpec(mounts=[HostMount("/dev", "/mnt")]))


def test_an_id_that_was_not_prepared_fails_the_container(
    containerd: Containerd, node: KoordraNode, pod: str
) -> None:
    del node
    with pytest.raises(grpc.RpcError) as caught:
        containerd.cri.create(
            pod, "c", ContainerSpec(cdi=[f"koordra.io/claim={uuid.uuid4()}-gpu-0000-0f-00-0"])
        )
    assert "unresolvable CDI devices" in str(caught.value)


def test_unprepared_claims_leave_no_file_and_no_device(
    containerd: Containerd, node: KoordraNode, pod: str
) -> None:
    claim = node.prepare("short-lived", [share_of(node.machine.gpus[4])])
    assert containerd.cri.run(pod, "a", ContainerSpec(cdi=claim.all_cdi))
    node.unprepare(claim)
    assert not [
        path for path in (*node.cdi.iterdir(), *(node.state / "prepared").iterdir()) if claim.uid in path.name
    ]
    with pytest.raises(grpc.RpcError) as caught:
        containerd.cri.create(pod, "b", ContainerSpec(cdi=claim.all_cdi))
    assert "unresolvable CDI devices" in str(caught.value)


def test_the_plugin_is_killed_and_the_container_never_notices(
    containerd: Containerd, node: KoordraNode, pod: str, prepare: Callable[..., Prepared]
) -> None:
    gpu = node.machine.gpus[5]
    claim = prepare(whole(gpu))
    container = containerd.cri.run(pod, "a", ContainerSpec(cdi=claim.all_cdi))
    node.plugin.kill()
    (node.cdi / f"koordra.io-claim_{claim.uid}.json").unlink()
    node.plugin.start()
    # As after a reboot with an empty /run: the next start and the next Prepare bring the file back.
    wait_until(
        (node.cdi / f"koordra.io-claim_{claim.uid}.json").exists, "the CDI file is back", log=node.plugin.log
    )
    answer = node.call_prepare(claim.name, claim.uid)
    assert [device.cdi_device_ids[0] for device in answer.devices] == list(claim.all_cdi)
    again = containerd.cri.run(pod, "b", ContainerSpec(cdi=claim.all_cdi))
    for each in (container, again):
        assert ALLOWED in containerd.cri.shell(each, f"dd if={node_of(gpu).path} count=1").text


def test_the_hook_is_killed_and_registers_again(containerd: Containerd, node: KoordraNode, pod: str) -> None:
    times = node.hook.count("nri_synchronized")
    node.hook.kill()
    node.hook.start()
    node.wait_hook_registered(times=times + 1)
    container = containerd.cri.run(pod, "c", ContainerSpec(env={"NVIDIA_VISIBLE_DEVICES": "all"}))
    assert environment(containerd, container)["NVIDIA_VISIBLE_DEVICES"] == "void"


def test_the_runtime_restarts_and_everything_goes_on(
    containerd: Containerd, node: KoordraNode, pod: str, prepare: Callable[..., Prepared]
) -> None:
    gpu, neighbour = node.machine.gpus[6], node.machine.gpus[7]
    claim = prepare(share_of(gpu))
    before = containerd.cri.run(pod, "a", ContainerSpec(cdi=claim.all_cdi))
    times = node.hook.count("nri_synchronized")
    containerd.stop()
    containerd.launch()
    node.wait_hook_registered(times=times + 1)
    after = containerd.cri.run(pod, "b", ContainerSpec(cdi=claim.all_cdi))
    for container in (before, after):
        assert ALLOWED in opens(containerd, container, node_of(gpu))
        assert REFUSED in opens(containerd, container, node_of(neighbour))
