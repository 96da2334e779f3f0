"""Containers that come and change while their pod runs, on cgroup version 1 and 2.

On version 2 a BPF program of the container's cgroup decides which devices may be opened (runc makes it from
the spec's rules); what this machine mounts does not matter (cgroup2.py). Whatever happens to the pod, a
container opens the cards of its own claims and no other.
"""

from __future__ import annotations

import tempfile
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from koordra.topology.machine import Gpu
from tests.e2e import cgroup2
from tests.e2e.conftest import runtimes
from tests.e2e.containerd import Containerd, wait_until
from tests.e2e.cri import ContainerSpec, HostMount, compile_proto
from tests.e2e.node import Prepared
from tests.e2e.test_containers import ALLOWED, REFUSED, dns_label, environment, node_of, opens, share_of
from tests.e2e.watched_node import WatchedNode

pytestmark = pytest.mark.e2e


@pytest.fixture(scope="module", params=["sid", "newer"])
def containerd(
    request: pytest.FixtureRequest, version2: bool, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Containerd]:
    modules = compile_proto(tmp_path_factory.mktemp("cri"))
    with tempfile.TemporaryDirectory(prefix="k") as folder:
        found = request.config.stash[runtimes][request.param]
        runtime = Containerd(found, Path(folder), modules, version2=version2)
        try:
            runtime.start()
            yield runtime
        finally:
            runtime.clean_up()


@pytest.fixture(scope="module", params=[False, True], ids=["cgroup1", "cgroup2"])
def version2(request: pytest.FixtureRequest) -> bool:
    if request.param and cgroup2.problem():
        pytest.skip(cgroup2.problem())
    return bool(request.param)


@pytest.fixture(scope="module")
def node(containerd: Containerd) -> Iterator[WatchedNode]:
    with tempfile.TemporaryDirectory(prefix="k") as folder:
        watched = WatchedNode(Path(folder), containerd)
        try:
            watched.start()
            yield watched
        finally:
            watched.stop()


@pytest.fixture
def pod(containerd: Containerd, node: WatchedNode, request: pytest.FixtureRequest) -> Iterator[str]:
    made = containerd.cri.run_pod(dns_label(request))
    yield made
    containerd.cri.remove_pod(made)


@pytest.fixture
def claim(node: WatchedNode, request: pytest.FixtureRequest) -> Iterator[Prepared]:
    """A share of the first card."""
    made = node.prepare(f"{dns_label(request)}-{uuid.uuid4().hex[:8]}", [share_of(node.machine.gpus[0])])
    yield made
    node.unprepare(made)


@pytest.fixture
def opened(containerd: Containerd, node: WatchedNode) -> Callable[[str], list[Gpu]]:
    """The cards that a container opens, by nodes that root makes in it."""

    def ask(container: str) -> list[Gpu]:
        said = {gpu.name: opens(containerd, container, node_of(gpu)) for gpu in node.machine.gpus}
        assert all(ALLOWED in each or REFUSED in each for each in said.values()), said
        return [gpu for gpu in node.machine.gpus if ALLOWED in said[gpu.name]]

    return ask


def found_nothing(node: WatchedNode) -> None:
    """After a whole round of verification that began now."""
    rounds = node.metric("koordra_nri_verification_seconds_count")
    wait_until(lambda: node.metric("koordra_nri_verification_seconds_count") >= rounds + 2, "a whole round")
    assert node.metric("koordra_nri_verified_containers") >= 1
    for kind in ("ForeignDevice", "EnvChanged", "ForgedMarker", "HookMissed", "DeviceMissing"):
        assert node.metric(f'koordra_nri_drift{{kind="{kind}"}}') == 0, kind


Opened = Callable[[str], list[Gpu]]


def test_the_runtime_is_on_the_version_that_is_meant(
    containerd: Containerd, pod: str, version2: bool
) -> None:
    container = containerd.cri.run(pod, "c", ContainerSpec())
    group = containerd.cri.shell(container, "grep :devices: /proc/1/cgroup").text
    assert (container in group) != version2, group


def test_a_container_opens_its_own_card_and_no_other(
    containerd: Containerd, node: WatchedNode, pod: str, claim: Prepared, opened: Opened
) -> None:
    holder = containerd.cri.run(pod, "holder", ContainerSpec(cdi=claim.all_cdi, capabilities=("ALL",)))
    without = containerd.cri.run(pod, "without", ContainerSpec(capabilities=("ALL",)))
    assert opened(holder) == [node.machine.gpus[0]]
    assert opened(without) == []
    found_nothing(node)


def test_the_hosts_nodes_in_a_volume_open_nothing(
    containerd: Containerd, node: WatchedNode, pod: str, claim: Prepared
) -> None:
    spec = ContainerSpec(cdi=claim.all_cdi, mounts=[HostMount("/", "/host")])
    container = containerd.cri.run(pod, "c", spec)
    said = [
        containerd.cri.shell(container, f"dd if=/host{node.root}/dev/nvidia{minor} count=1").text
        for minor in range(2)
    ]
    assert ALLOWED in said[0]
    assert REFUSED in said[1]


def test_an_ephemeral_container_gets_nothing_of_the_claim(
    containerd: Containerd, node: WatchedNode, pod: str, claim: Prepared, opened: Opened
) -> None:
    """`kubectl debug --target`: it sees the other's processes, and through them its nodes."""
    holder = containerd.cri.run(pod, "holder", ContainerSpec(cdi=claim.all_cdi))
    spec = ContainerSpec(target=holder, capabilities=("ALL",), env={"NVIDIA_VISIBLE_DEVICES": "all"})
    debugger = containerd.cri.run(pod, "debugger", spec)
    assert environment(containerd, debugger)["NVIDIA_VISIBLE_DEVICES"] == "void"
    assert opened(debugger) == []
    through = containerd.cri.shell(debugger, "dd if=/proc/1/root/dev/nvidia0 count=1").text
    assert REFUSED in through
    assert opened(holder) == [node.machine.gpus[0]]
    found_nothing(node)


def test_a_resize_changes_no_device(
    containerd: Containerd, node: WatchedNode, pod: str, claim: Prepared, opened: Opened, version2: bool
) -> None:
    """Of a container of the claim and of one without."""
    spec = ContainerSpec(cdi=claim.all_cdi, capabilities=("ALL",), memory=64 << 20)
    holder = containerd.cri.run(pod, "holder", spec)
    without = containerd.cri.run(pod, "without", ContainerSpec(capabilities=("ALL",), memory=64 << 20))
    for memory in (128 << 20, 32 << 20):
        for container in (holder, without):
            containerd.cri.resize(container, memory=memory)
        assert opened(holder) == [node.machine.gpus[0]]
        assert opened(without) == []
        if not version2:
            limit = f"/sys/fs/cgroup/memory/k8s.io/{holder}/memory.limit_in_bytes"
            assert int(Path(limit).read_text()) == memory
    assert environment(containerd, holder)["NVIDIA_VISIBLE_DEVICES"] == "void"
    found_nothing(node)


def test_a_privileged_container_opens_its_own_card_and_no_other(
    containerd: Containerd, node: WatchedNode, claim: Prepared, opened: Opened
) -> None:
    """Where the runtime can deny (containerd 2.2): also after a resize, which sets the rules anew on
    version 1."""
    if containerd.runtime.suite != "newer":
        pytest.skip("this runtime drops the rules that deny")
    pod = containerd.cri.run_pod("privileged", privileged=True)
    try:
        spec = ContainerSpec(cdi=claim.all_cdi, privileged=True)
        holder = containerd.cri.run(pod, "holder", spec)
        assert opened(holder) == [node.machine.gpus[0]]
        assert opened(containerd.cri.run(pod, "without", ContainerSpec(privileged=True))) == []
        containerd.cri.resize(holder, memory=128 << 20)
        assert opened(holder) == [node.machine.gpus[0]]
        found_nothing(node)
    finally:
        containerd.cri.remove_pod(pod)
