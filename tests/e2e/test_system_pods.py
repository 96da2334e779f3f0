"""Pods of the node's own programs, with their manifests' volumes and variables, on a real containerd whose
runtime cannot deny devices to them (unless it is new enough)."""

from __future__ import annotations

import os
import signal
import tempfile
import uuid
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import grpc
import pytest

from koordra.api import kinds
from koordra.nri.hook.system_pods import POD_RESOURCES
from tests.e2e.conftest import runtime_of
from tests.e2e.containerd import Containerd, wait_until
from tests.e2e.cri import ContainerSpec, HostMount, compile_proto
from tests.e2e.node import Process
from tests.e2e.test_containers import ALLOWED, REFUSED, environment, node_of, opens
from tests.e2e.watched_node import WatchedNode
from tests.fakes.shipped_pods import (
    CALICO,
    CSI_NFS,
    DCGM_EXPORTER,
    GPU_OPERATOR,
    KUBE_PROXY,
    MULTUS,
    NODE_PROBLEM_DETECTOR,
    ShippedContainer,
    ShippedPod,
)

pytestmark = pytest.mark.e2e


@pytest.fixture(scope="module")
def containerd(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Containerd]:
    """One of its own, whose only hook is that of this module's node."""
    modules = compile_proto(tmp_path_factory.mktemp("cri"))
    with tempfile.TemporaryDirectory(prefix="k") as folder:
        runtime = Containerd(runtime_of(request.config), Path(folder), modules)
        try:
            runtime.start()
            yield runtime
        finally:
            runtime.clean_up()


@pytest.fixture(scope="module")
def node(containerd: Containerd) -> Iterator[WatchedNode]:
    with tempfile.TemporaryDirectory(prefix="k") as folder:
        koordra = WatchedNode(Path(folder), containerd)
        try:
            koordra.start()
            yield koordra
        finally:
            koordra.stop()


Run = Callable[[ShippedPod, ShippedContainer], str]


@pytest.fixture
def run(containerd: Containerd, node: WatchedNode) -> Iterator[Run]:
    """Starts a container as its project ships it. A folder of the host that is not on this machine is one of
    the test's own."""
    pods: list[str] = []
    with tempfile.TemporaryDirectory(prefix="k") as stand_ins:

        def start(pod: ShippedPod, container: ShippedContainer) -> str:
            name = f"{pod.name}-{uuid.uuid4().hex[:6]}"
            uid = node.make_pod(name, namespace=pod.namespace, priority=pod.priority)
            pods.append(
                containerd.cri.run_pod(
                    name, namespace=pod.namespace, privileged=container.privileged, uid=uid
                )
            )
            mounts = []
            for source, destination in container.volumes:
                here = Path(source)
                if not here.exists():
                    here = Path(f"{stand_ins}{source}")
                    here.mkdir(parents=True, exist_ok=True)
                if not destination.startswith(("/sys", "/dev", "/lib")):
                    mounts.append(HostMount(str(here), destination))
            spec = ContainerSpec(
                mounts=mounts,
                repeated_env=(*container.image_env, *container.env),
                privileged=container.privileged,
            )
            return containerd.cri.run(pods[-1], container.name, spec)

        yield start
        for pod in pods:
            containerd.cri.remove_pod(pod)


PRIVILEGED = [
    (pod, next(each for each in reversed(pod.containers) if each.privileged))
    for pod in (KUBE_PROXY, CALICO, MULTUS, CSI_NFS, NODE_PROBLEM_DETECTOR, *GPU_OPERATOR)
]


@pytest.mark.parametrize(("pod", "container"), PRIVILEGED, ids=[pod.name for pod, _ in PRIVILEGED])
def test_it_starts_and_sees_the_nodes_devices(
    containerd: Containerd, node: WatchedNode, run: Run, pod: ShippedPod, container: ShippedContainer
) -> None:
    started = run(pod, container)
    assert ALLOWED in opens(containerd, started, node_of(node.machine.gpus[0]))
    asked = dict((*container.image_env, *container.env))
    assert environment(containerd, started).items() >= asked.items()


def test_of_critical_priority_it_starts_elsewhere_and_is_reported(
    containerd: Containerd, node: WatchedNode, run: Run
) -> None:
    elsewhere = replace(CSI_NFS, namespace="storage")
    before = node.metric('koordra_nri_unconfined_total{pods="system"}')
    run(elsewhere, CSI_NFS.containers[-1])
    assert node.metric('koordra_nri_unconfined_total{pods="system"}') == before + 1

    def told() -> bool:
        events, _ = node.api.list(kinds.EVENTS, namespace="storage")
        return [(event["reason"], event["type"]) for event in events] == [("NotConfined", "Normal")]

    wait_until(told, "the Event", log=node.hook.log)
    with pytest.raises(grpc.RpcError, match="it is privileged"):
        run(replace(elsewhere, priority=0), CSI_NFS.containers[-1])


def test_a_label_on_the_namespace_is_followed(containerd: Containerd, node: WatchedNode, run: Run) -> None:
    """Of dcgm-exporter's plain manifest, which names no priority."""
    plain = replace(DCGM_EXPORTER, priority=0)
    (container,) = plain.containers
    assert environment(containerd, run(plain, container))["NVIDIA_VISIBLE_DEVICES"] == "void"
    node.api.patch(kinds.NAMESPACES, "monitoring", {"metadata": {"labels": {"koordra.io/exempt": "true"}}})
    node.hook.wait_for("exempt_namespaces")
    assert environment(containerd, run(plain, container))["NVIDIA_VISIBLE_DEVICES"] == "all"


def test_dcgm_exporter_keeps_what_its_image_asks_of_nvidias_runtime(
    containerd: Containerd, node: WatchedNode, run: Run
) -> None:
    """In any namespace. Nothing is taken away; a device comes from that runtime alone, which is not here."""
    elsewhere = replace(DCGM_EXPORTER, namespace="metrics")
    folder = node.kubelet_root / "pod-resources"
    folder.mkdir(exist_ok=True)
    container = replace(elsewhere.containers[0], volumes=[(str(folder), POD_RESOURCES)])
    started = run(elsewhere, container)
    assert environment(containerd, started)["NVIDIA_VISIBLE_DEVICES"] == "all"
    assert REFUSED in opens(containerd, started, node_of(node.machine.gpus[0]))


def test_while_the_api_is_away_the_network_still_starts(
    containerd: Containerd, node: WatchedNode, run: Run
) -> None:
    """Every pod of these tests is on the host's network."""
    elsewhere = replace(CALICO, namespace="network", priority=0)
    with pytest.raises(grpc.RpcError, match="it is privileged"):
        run(elsewhere, CALICO.containers[-1])
    before = node.metric('koordra_nri_drift_found_total{kind="ForeignDevice"}')
    node.control_plane.stop()
    stopped = True
    try:
        pod = containerd.cri.run_pod("away", namespace="network", privileged=True)
        try:
            containerd.cri.run(pod, "calico-node", ContainerSpec(privileged=True))
            node.hook.wait_for("priority_unknown")
            restart(node.control_plane)
            stopped = False

            def told() -> bool:
                events, _ = node.api.list(kinds.EVENTS, namespace="network")
                return ("away", "IsolationDrift") in {
                    (event["involvedObject"]["name"], event["reason"]) for event in events
                }

            wait_until(told, "the Event, once the server says that it is nobody's", log=node.hook.log)
            assert node.metric('koordra_nri_drift_found_total{kind="ForeignDevice"}') > before
        finally:
            containerd.cri.remove_pod(pod)
    finally:
        if stopped:
            restart(node.control_plane)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP], ids=["dead", "hanging"])
def test_without_an_answer_of_the_hook_it_starts(
    containerd: Containerd, node: WatchedNode, run: Run, number: signal.Signals
) -> None:
    """containerd waits two seconds for a plugin, drops it, and goes on."""
    process, times = node.hook._process, node.hook.count("nri_synchronized")
    assert process is not None
    os.kill(process.pid, number)
    try:
        for pod in (KUBE_PROXY, CSI_NFS):
            run(pod, pod.containers[-1])
    finally:
        if number is signal.SIGSTOP:
            os.kill(process.pid, signal.SIGCONT)
        else:
            process.wait()
            node.hook.start()
        node.wait_hook_registered(times=times + 1)


def restart(control_plane: Process) -> None:
    ready = control_plane.count("control_plane_ready")
    control_plane.start()
    control_plane.wait_for("control_plane_ready", times=ready + 1)


def test_what_runs_is_listed_when_the_hook_starts(
    containerd: Containerd, node: WatchedNode, run: Run
) -> None:
    run(KUBE_PROXY, KUBE_PROXY.containers[0])
    listed = node.hook.count("privileged_pods")
    times = node.hook.count("nri_synchronized")
    node.hook.stop()
    node.hook.start()
    node.wait_hook_registered(times=times + 1)
    node.hook.wait_for("privileged_pods", times=listed + 1)
    lines = [line for line in node.hook.log.read_text().splitlines() if "privileged_pods" in line]
    assert "kube-system/kube-proxy-" in lines[-1]
