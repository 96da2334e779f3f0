"""What the containers of a gang get and read, where a real kubelet and container runtime start them, and
koordra's plugin prepares their claims."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from koordra.api import kinds, names, objects
from koordra.api.kinds import Kind
from koordra.api.opaque.imex import ImexDomain
from koordra.controller.gangs.declared.annotations import GANG, GANG_MIN, LIVE_ENV, LIVE_HOSTS, LIVE_RUNNING
from koordra.imex.config_files import PORT
from koordra.kube.client import KubeClient
from koordra.kubelet_plugin.publish.offering import Offering
from koordra.node_state.imex import ImexFolder, decode_domain
from koordra.topology import presets
from tests.cluster.kubelet_node import KubeletNode, koordra_on, lent_node, running
from tests.cluster.nodes import made_up
from tests.cluster.test_gangs import PATIENCE
from tests.cluster.test_joint_allocation import Workload, request
from tests.cluster.waiting import eventually
from tests.cluster.without_kubelet import events_of

pytestmark = pytest.mark.cluster

CONFIG_MAPS = Kind("", "v1", "configmaps", "ConfigMap")
REFRESHED_WITHIN = 240.0
"""Where nobody says otherwise the kubelet's sync period is a minute."""
SHOW = "while :; do for name in hosts running env; do echo $name; cat /run/gang/$name; done; echo end; sleep 1; done"
CHANNEL = "/dev/nvidia-caps-imex-channels/channel0"
OTHER = "koordra-test-tray"
CLIQUE = "7b968a6d-c8aa-45e1-9e07-e1e51be99c31.32766"


@pytest.fixture(scope="module")
def node(
    client: KubeClient, kubeconfig: str, controller: None, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[KubeletNode]:
    del controller
    found = lent_node(client)
    with koordra_on(found, kubeconfig, tmp_path_factory.mktemp("node")):
        yield found


class Pods(Workload):
    """Bare pods of gang `train`, on the node."""

    def __init__(self, node: KubeletNode, namespace: str) -> None:
        super().__init__(node.client, namespace)
        self.node = node
        self.made: list[str] = []

    def member(self, name: str, least: int, *, template: str = "", command: str = SHOW, on: str = "") -> None:
        container: dict[str, Any] = {
            "name": "main",
            "image": self.node.image,
            "imagePullPolicy": "IfNotPresent",
            "command": ["sh", "-c", command],
            "volumeMounts": [{"name": "gang", "mountPath": "/run/gang"}],
        }
        shown = {"hosts": LIVE_HOSTS, "running": LIVE_RUNNING, "env": LIVE_ENV}
        items = [
            {"path": path, "fieldRef": {"fieldPath": f"metadata.annotations['{annotation}']"}}
            for path, annotation in shown.items()
        ]
        spec: dict[str, Any] = {
            "restartPolicy": "Never",
            "terminationGracePeriodSeconds": 0,
            "nodeSelector": {"kubernetes.io/hostname": on or self.node.name},
            "containers": [container],
            "volumes": [{"name": "gang", "downwardAPI": {"items": items}}],
        }
        if template:
            spec["resourceClaims"] = [{"name": "devices", "resourceClaimTemplateName": template}]
            container["resources"] = {"claims": [{"name": "devices"}]}
        metadata = {"name": name, "annotations": {GANG: "train", GANG_MIN: str(least)}}
        self.client.create(kinds.PODS, {"metadata": metadata, "spec": spec}, namespace=self.namespace)
        self.made.append(name)

    def shown(self, pod: str) -> dict[str, list[str]]:
        """The lines of each file, as its container read them last."""
        lines = self.node.log(self.namespace, pod)
        if "end" not in lines:
            return {}
        last = len(lines) - lines[::-1].index("end") - 1
        begin = last - lines[:last][::-1].index("hosts") - 1
        found: dict[str, list[str]] = {}
        for line in lines[begin:last]:
            if line in ("hosts", "running", "env"):
                found[line] = []
            else:
                found[next(reversed(found))].append(line)
        return found

    def reads(self, pod: str, *hosts: str) -> dict[str, str]:
        """The variables, once the files say that these are the members with GPUs, and all of them run."""

        def look() -> dict[str, list[str]] | None:
            found = self.shown(pod)
            listed = found.get("hosts") == [f"{host} slots=1" for host in hosts]
            return found if listed and found["running"] == [f"{host}:1" for host in hosts] else None

        found = eventually(look, f"files of {pod} with {hosts}", timeout=REFRESHED_WITHIN)
        return dict(line.split("=", 1) for line in found["env"])

    def end(self, *pods: str) -> None:
        """As their kubelet ends them, so that their claims are unprepared."""
        for name in pods or self.made:
            if self.client.list(kinds.PODS, namespace=self.namespace, field_selector=f"metadata.name={name}")[
                0
            ]:
                self.client.delete(kinds.PODS, name, namespace=self.namespace)

        def gone() -> bool:
            there = map(objects.name, self.client.list(kinds.PODS, namespace=self.namespace)[0])
            return not set(there) & set(pods or self.made)

        eventually(gone, "the pods' end")


@pytest.fixture
def pods(node: KubeletNode, namespace: str) -> Iterator[Pods]:
    found = Pods(node, namespace)
    found.template("gpu", [request("gpu", names.CLASS_GPU)])
    found.template("channel", [request("gpu", names.CLASS_GPU), request("imex", names.CLASS_IMEX)])
    yield found
    found.end()


def test_files_of_running_pods_follow_the_gang(pods: Pods) -> None:
    """A launcher without a claim reads them as the workers do."""
    pods.member("launcher", 3)
    for number in range(2):
        pods.member(f"worker-{number}", 3, template="gpu")
    running(pods.client, pods.namespace, "launcher", "worker-0", "worker-1")
    told = pods.reads("launcher", "worker-0", "worker-1")
    assert told["KOORDRA_GANG"] == "train"
    assert told["KOORDRA_LEADER"] == "worker-0"
    of_worker = pods.reads("worker-1", "worker-0", "worker-1")
    assert (of_worker["KOORDRA_RANK"], of_worker["KOORDRA_LEADER"]) == ("1", "worker-0")

    pods.member("worker-2", 3, template="gpu")
    running(pods.client, pods.namespace, "worker-2")
    grown = pods.reads("launcher", "worker-0", "worker-1", "worker-2")
    assert int(grown["KOORDRA_GANG_SIZE"]) == int(told["KOORDRA_GANG_SIZE"]) + 1
    pods.reads("worker-0", "worker-0", "worker-1", "worker-2")

    pods.end("worker-2")
    shrunk = pods.reads("launcher", "worker-0", "worker-1")
    assert shrunk == told


@pytest.fixture
def other(client: KubeClient, controller: None, tmp_path: Path) -> Iterator[socket.socket]:
    """A tray of the same clique without a kubelet, at an address of the loopback; where its IMEX daemon would
    listen."""
    del controller
    machines = {OTHER: presets.load("gb200-nvl72")}
    with (
        made_up(client, {OTHER: {}}, tmp_path, machines=machines, offering=Offering(imex=True)),
        socket.socket() as daemon,
    ):
        daemon.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        daemon.bind((f"127.{os.getpid() % 200 + 20}.7.7", PORT))
        address = {"type": "InternalIP", "address": daemon.getsockname()[0]}
        client.patch(kinds.NODES, OTHER, {"status": {"addresses": [address]}}, subresource="status")
        yield daemon


def test_a_container_gets_its_channel_once_the_daemons_of_all_nodes_are_there(
    pods: Pods, other: socket.socket
) -> None:
    show = f"while :; do [ -c {CHANNEL} ] && echo channel; sleep 1; done"
    pods.member("tray-0", 2, template="channel", command=show)
    pods.member("tray-1", 2, template="channel", command=show, on=OTHER)

    def waits() -> bool:
        pod = pods.client.get(kinds.PODS, "tray-0", namespace=pods.namespace)
        told = [event["message"] for event in events_of(pods.client, pod)]
        return any("ImexDomainNotReady" in each and f"waits for {OTHER}" in each for each in told)

    eventually(waits, "the Event that says whose daemon is missing", timeout=PATIENCE)
    domain = ImexFolder(pods.node.state).domain
    assert {one.name for one in decode_domain(domain.read_bytes()).nodes} == {pods.node.name, OTHER}
    assert not pods.node.log(pods.namespace, "tray-0")

    other.listen()
    running(pods.client, pods.namespace, "tray-0")
    eventually(lambda: "channel" in pods.node.log(pods.namespace, "tray-0"), "the channel in the container")

    pods.client.delete(kinds.PODS, "tray-1", namespace=pods.namespace, grace_period=0)
    pods.end()
    eventually(lambda: not domain.exists(), "the end of the domain on the node")
    maps = ImexDomain(f"gang {pods.namespace}/train", CLIQUE).object_name
    eventually(
        lambda: maps not in map(objects.name, pods.client.list(CONFIG_MAPS, namespace="koordra-system")[0]),
        "the end of the domain's ConfigMap",
    )
