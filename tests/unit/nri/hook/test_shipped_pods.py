"""The node's own programs keep working as their projects ship them, on runtimes that deny devices and on
those that cannot."""

from __future__ import annotations

import itertools
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from koordra._proto.nri import nri_pb2
from koordra.api import kinds
from koordra.cli.processes.nri import SYSTEM_NAMESPACES
from koordra.errors import ApiUnreachable, RemoteError
from koordra.metrics import Metrics
from koordra.node_state.reader import StateReader
from koordra.nri.hook.adjust import NodeShape
from koordra.nri.hook.ledger import Ledger
from koordra.nri.hook.plugin import HookPlugin, Settings
from koordra.nri.hook.privileged import PrivilegedPolicy
from koordra.nri.hook.system_pods import POD_RESOURCES, SystemPods
from koordra.nri.transport.ttrpc import Call
from tests.fakes.kube_api import FakeKubeApi
from tests.fakes.metric_samples import sample
from tests.fakes.shipped_pods import (
    CALICO,
    CSI_NFS,
    DCGM_EXPORTER,
    GPU_OPERATOR,
    NODE_EXPORTER,
    NODE_PROBLEM_DETECTOR,
    SHIPPED,
    ShippedContainer,
    ShippedPod,
)
from tests.unit.nri.node_state import GUARDED, NODE, NULL, guarded_json, write

CALL = Call("nri.pkg.api.v1alpha1.Plugin", "CreateContainer")
OLD, NEW = ("containerd", "2.1.9", ""), ("containerd", "2.2.1", "0.11.0")
PAIRS = [(pod, container) for pod in SHIPPED for container in pod.containers]


def as_containerd_makes_it(pod: ShippedPod, container: ShippedContainer) -> nri_pb2.CreateContainerRequest:
    """A privileged container gets every device of the host and a rule that opens all of them; the image's
    variables come before the pod's."""
    message = nri_pb2.CreateContainerRequest()
    message.pod.namespace, message.pod.name, message.pod.uid = pod.namespace, pod.name, f"uid-of-{pod.name}"
    message.pod.annotations["kubernetes.io/config.source"] = "api"
    if not pod.host_network:
        message.pod.linux.namespaces.add(type="network", path="/var/run/netns/cni-1")
    message.container.id, message.container.name = f"{pod.name}-{container.name}", container.name
    message.container.env.extend(f"{name}={value}" for name, value in (*container.image_env, *container.env))
    for source, destination in container.volumes:
        message.container.mounts.add(
            source=source, destination=destination, type="bind", options=["rbind", "rprivate", "rw"]
        )
    rules = message.container.linux.resources.devices
    rules.add(allow=container.privileged, access="rwm")
    if not container.privileged:
        rule = rules.add(allow=True, type="c", access="rwm")
        rule.major.value, rule.minor.value = NULL.major, NULL.minor
    for node in GUARDED.nodes if container.privileged else (NULL,):
        message.container.linux.devices.add(
            path=node.path, type=node.type, major=node.major, minor=node.minor
        )
    return message


def hook(
    folder: Path,
    *pods: ShippedPod,
    runtime: tuple[str, str, str] = OLD,
    labelled: frozenset[str] = frozenset(),
    **more: Any,
) -> HookPlugin:
    """Of a node with these pods, in the API too."""
    api = FakeKubeApi()
    for pod in pods:
        spec = {"priority": pod.priority, "priorityClassName": "system-node-critical" if pod.priority else ""}
        api.create(
            kinds.PODS,
            {
                "apiVersion": "v1",
                "kind": "Pod",
                "metadata": {"namespace": pod.namespace, "name": pod.name, "uid": f"uid-of-{pod.name}"},
                "spec": spec,
            },
        )
    write(folder / "guarded.json", guarded_json())
    system = SystemPods(
        frozenset(SYSTEM_NAMESPACES), labelled=lambda: labelled, client=more.pop("client", api)
    )
    made = HookPlugin(
        StateReader(folder, node_name=NODE), ledger=Ledger(folder), settings=Settings(system=system, **more)
    )
    name, version, nri = runtime
    made.configure(nri_pb2.ConfigureRequest(runtime_name=name, runtime_version=version, NRI_version=nri))
    return made


def answer(plugin: HookPlugin, pod: ShippedPod, container: ShippedContainer) -> nri_pb2.ContainerAdjustment:
    return plugin.create_container(as_containerd_makes_it(pod, container), CALL).adjust


@pytest.mark.parametrize("runtime", [OLD, NEW], ids=["cannot-deny", "denies"])
@pytest.mark.parametrize(("pod", "container"), PAIRS, ids=lambda value: getattr(value, "name", ""))
def test_it_starts_where_it_is_shipped_to(
    tmp_path: Path, pod: ShippedPod, container: ShippedContainer, runtime: tuple[str, str, str]
) -> None:
    answer(hook(tmp_path, pod, runtime=runtime), pod, container)


@pytest.mark.parametrize("runtime", [OLD, NEW], ids=["cannot-deny", "denies"])
@pytest.mark.parametrize("pod", GPU_OPERATOR, ids=str)
def test_nvidias_operator_is_left_alone(
    tmp_path: Path, pod: ShippedPod, runtime: tuple[str, str, str]
) -> None:
    """Its pods get the cards by NVIDIA's runtime, and by being privileged."""
    plugin = hook(tmp_path, pod, runtime=runtime)
    for container in pod.containers:
        assert answer(plugin, pod, container) == nri_pb2.ContainerAdjustment()


@pytest.mark.parametrize(
    ("pod", "container"),
    [(pod, each) for pod, each in PAIRS if pod.priority and each.privileged],
    ids=lambda value: getattr(value, "name", ""),
)
def test_of_critical_priority_it_starts_in_any_namespace(
    tmp_path: Path, pod: ShippedPod, container: ShippedContainer
) -> None:
    elsewhere = replace(pod, namespace="somewhere")
    answer(hook(tmp_path, elsewhere), elsewhere, container)
    with pytest.raises(RemoteError, match=r"it is privileged|hostPath volume"):
        answer(hook(tmp_path / "refusing", replace(elsewhere, priority=0)), elsewhere, container)


@pytest.mark.parametrize("runtime", [OLD, NEW], ids=["cannot-deny", "denies"])
def test_dcgm_exporter_keeps_the_cards_of_nvidias_runtime(
    tmp_path: Path, runtime: tuple[str, str, str]
) -> None:
    (container,) = DCGM_EXPORTER.containers
    plugin = hook(tmp_path, DCGM_EXPORTER, runtime=runtime)
    assert answer(plugin, DCGM_EXPORTER, container) == nri_pb2.ContainerAdjustment()


_EMPTY_DIR = "/var/lib/kubelet/pods/uid/volumes/kubernetes.io~empty-dir/pod-resources"
PASSING_FOR_A_MONITOR = {
    "of no priority": replace(DCGM_EXPORTER, priority=0),
    "with a folder of the same name": replace(
        DCGM_EXPORTER,
        containers=[replace(DCGM_EXPORTER.containers[0], volumes=[(_EMPTY_DIR, POD_RESOURCES)])],
    ),
    "with the kubelet's whole folder": replace(
        DCGM_EXPORTER,
        containers=[replace(DCGM_EXPORTER.containers[0], volumes=[("/var/lib/kubelet",) * 2])],
    ),
}


@pytest.mark.parametrize("pod", PASSING_FOR_A_MONITOR.values(), ids=list(PASSING_FOR_A_MONITOR))
def test_who_passes_for_a_monitor_gets_no_card(tmp_path: Path, pod: ShippedPod) -> None:
    changed = answer(hook(tmp_path, pod), pod, pod.containers[0])
    assert [f"{entry.key}={entry.value}" for entry in changed.env] == ["NVIDIA_VISIBLE_DEVICES=void"]


def test_a_privileged_monitor_is_denied_the_cards_like_others(tmp_path: Path) -> None:
    pod = replace(DCGM_EXPORTER, containers=[replace(DCGM_EXPORTER.containers[0], privileged=True)])
    changed = answer(hook(tmp_path, pod, runtime=NEW), pod, pod.containers[0])
    assert len(changed.linux.resources.devices) == len(GUARDED.nodes)


def test_a_monitor_waits_for_the_api_and_is_asked_again(tmp_path: Path) -> None:
    """It is never refused; without cards it ends, and the kubelet starts it again."""
    (container,) = DCGM_EXPORTER.containers
    plugin = hook(tmp_path, DCGM_EXPORTER)
    real = plugin.settings.system.client
    plugin.settings.system.client = Away()  # type: ignore[assignment]
    assert [entry.value for entry in answer(plugin, DCGM_EXPORTER, container).env] == ["void"]
    plugin.settings.system.client = real
    assert list(answer(plugin, DCGM_EXPORTER, container).env) == []


class Away:
    """The API server does not answer."""

    def get(self, *_: object, **__: object) -> object:
        raise ApiUnreachable("no route to host")


def test_in_a_labelled_namespace_it_keeps_the_cards_of_nvidias_runtime(tmp_path: Path) -> None:
    """As its plain manifest is, without a priority."""
    (container,) = DCGM_EXPORTER.containers
    plain = replace(DCGM_EXPORTER, priority=0)
    assert list(answer(hook(tmp_path, plain, labelled=frozenset({"monitoring"})), plain, container).env) == []


def test_an_image_and_a_pod_that_both_ask_for_all_cards_are_not_refused(tmp_path: Path) -> None:
    pod = GPU_OPERATOR[3]
    elsewhere = replace(
        pod, namespace="team", containers=[replace(pod.containers[0], privileged=False, volumes=())]
    )
    changed = answer(hook(tmp_path), elsewhere, elsewhere.containers[0])
    assert [f"{entry.key}={entry.value}" for entry in changed.env] == ["NVIDIA_VISIBLE_DEVICES=void,="]


def test_a_runtime_that_denies_still_denies_what_is_critical(tmp_path: Path) -> None:
    """Priority saves from refusal and from nothing else: any pod may name the class where no quota is set."""
    elsewhere = replace(CALICO, namespace="somewhere")
    changed = answer(hook(tmp_path, elsewhere, runtime=NEW), elsewhere, elsewhere.containers[0])
    assert len(changed.linux.resources.devices) == len(GUARDED.nodes)


@pytest.mark.parametrize("pod", [CSI_NFS, CALICO, NODE_PROBLEM_DETECTOR], ids=str)
def test_refusing_is_the_operators_choice(tmp_path: Path, pod: ShippedPod) -> None:
    shape = NodeShape(privileged=PrivilegedPolicy.REFUSE)
    answer(hook(tmp_path, pod, shape=shape), pod, pod.containers[-1])
    elsewhere = replace(pod, namespace="somewhere")
    with pytest.raises(RemoteError, match="it is privileged"):
        answer(hook(tmp_path / "other", elsewhere, shape=shape), elsewhere, pod.containers[-1])


def test_node_exporter_is_no_matter_of_privilege(tmp_path: Path) -> None:
    (container,) = NODE_EXPORTER.containers
    changed = answer(hook(tmp_path), NODE_EXPORTER, container)
    assert [entry.key for entry in changed.env] == ["NVIDIA_VISIBLE_DEVICES"]


def test_what_is_spared_is_counted(tmp_path: Path) -> None:
    elsewhere = replace(CALICO, namespace="somewhere")
    plugin, metrics = hook(tmp_path, elsewhere), Metrics()
    plugin.__post_init__(metrics)
    woken = itertools.count()
    plugin.changed = lambda: next(woken) and None
    answer(plugin, elsewhere, elsewhere.containers[0])
    assert sample(metrics, "koordra_nri_unconfined_total", {"pods": "system"}) == 1
    assert next(woken) == 1
