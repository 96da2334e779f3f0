"""A node with a kubelet and a container runtime, on this machine: whoever runs the suite lends it by
KOORDRA_NODE=NAME[:KUBELET_ROOT:CDI_DIR[:NRI_SOCKET]], with an image of busybox. koordra's node side runs
there as processes, for a made-up machine whose device nodes no driver serves."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import pytest

from koordra.api import kinds, names, objects
from koordra.api.objects import Object
from koordra.errors import Invalid, NotFound
from koordra.imex.daemon import Daemon
from koordra.imex.supervisor import Supervisor
from koordra.kube.client import KubeClient
from koordra.kubelet_plugin.prepare.imex_membership import internal_ip
from koordra.node_state.disk import Disk
from koordra.node_state.imex import ImexFolder, supervising
from koordra.topology.presets import write_machine
from tests.cluster.installation import account_kubeconfig
from tests.cluster.waiting import eventually
from tests.e2e.node import device_nodes_can_be_made, unused_majors
from tests.fakes import driver_homes, imex_daemon

LENT = "KOORDRA_NODE"
SYSTEM = "koordra-system"


@dataclass(frozen=True)
class KubeletNode:
    """`image`: of busybox, on the node."""

    client: KubeClient
    name: str
    kubelet_root: Path
    cdi: Path
    nri: Path
    image: str

    @property
    def state(self) -> Path:
        return self.kubelet_root / "plugins" / names.DRIVER

    @property
    def address(self) -> str:
        return internal_ip(self.client.get(kinds.NODES, self.name))

    def log(self, namespace: str, pod: str) -> list[str]:
        """Of the pod's only container; nothing before it runs."""
        path = f"{kinds.PODS.path(namespace=namespace, name=pod)}/log"
        try:
            response = self.client._open("GET", path, headers={"Accept": "*/*"})
        except Invalid:
            return []
        try:
            return response.read().decode().splitlines()
        finally:
            response.release_conn()


def lent_node(client: KubeClient) -> KubeletNode:
    said = os.environ.get(LENT)
    if not said:
        pytest.skip(f"no node with a kubelet is lent ({LENT}=NAME[:KUBELET_ROOT:CDI_DIR[:NRI_SOCKET]])")
    name, *places = said.split(":")
    usual = ("/var/lib/kubelet", "/var/run/cdi", "/var/run/nri/nri.sock")
    root, cdi, nri = map(Path, (*places, *usual[len(places) :]))
    if not device_nodes_can_be_made(root):
        pytest.skip(f"no device nodes can be made in {root}")
    images = objects.status_of(client.get(kinds.NODES, name)).get("images") or ()
    found = [each for image in images for each in image["names"] if "busybox" in each and "@" not in each]
    if not found:
        pytest.skip(f"node {name} has no image of busybox")
    return KubeletNode(client, name, root, cdi, nri, found[0])


@contextmanager
def plugin_on(
    node: KubeletNode,
    kubeconfig: str,
    folder: Path,
    root: Path,
    options: Sequence[object],
    *,
    offers: Callable[[Object], bool],
    environment: Mapping[str, str] | None = None,
) -> Iterator[None]:
    """The kubelet plugin with the rights of its ServiceAccount, for the machine below `root`, until it has
    published a device that `offers` knows."""
    own = account_kubeconfig(
        node.client,
        kubeconfig,
        folder / "own",
        account="koordra-kubelet-plugin",
        bound_to=node.client.get(kinds.NODES, node.name),
    )
    places = ["--root", root, "--kubelet-root", node.kubelet_root, "--cdi-dir", node.cdi]
    places += ["--hook-dir", folder / "hook"]
    said = ["--node-name", node.name, "--kubeconfig", own, *options, *places]
    for old in _slices(node):  # of a machine before, which the kubelet deletes in its own time
        with suppress(NotFound):
            node.client.delete(kinds.RESOURCE_SLICES, objects.name(old))
    log = folder / "plugin.log"
    with log.open("wb") as sink:
        command = [sys.executable, "-m", "koordra", "kubelet-plugin", *map(str, said)]
        plugin = subprocess.Popen(
            command, stderr=sink, stdout=sink, env={**os.environ, **(environment or {})}
        )

    def published() -> bool:
        return any(offers(device) for one in _slices(node) for device in one["spec"].get("devices") or ())

    try:
        eventually(published, f"what the node offers; see {log}")
        yield
        assert plugin.poll() is None, log.read_text()[-3000:]
        assert "orbidden" not in log.read_text()
    finally:
        plugin.send_signal(signal.SIGTERM)
        plugin.wait(60)


def _slices(node: KubeletNode) -> list[Object]:
    own = f"spec.nodeName={node.name},spec.driver={names.DRIVER}"
    return node.client.list(kinds.RESOURCE_SLICES, field_selector=own)[0]


@contextmanager
def koordra_on(node: KubeletNode, kubeconfig: str, folder: Path) -> Iterator[None]:
    """The plugin for a tray of NVL72, and what `koordra imex` does, with the double of NVIDIA's daemon."""
    root = folder / "machine"
    machine = write_machine("gb200-nvl72", root, serial=node.name, device_major=unused_majors(5))
    driver_homes.libraries(root / driver_homes.MULTI_ARCH, str(machine.driver_version))
    driver_homes.program(root / "usr" / "bin", "nvidia-imex")
    stop, state = threading.Event(), ImexFolder(node.state)
    supervisor = threading.Thread(target=_supervise, args=(node, state, stop))
    supervisor.start()
    options = ["--allowed-isolation", "none", "--imex"]
    try:
        with plugin_on(
            node,
            kubeconfig,
            folder,
            root,
            options,
            offers=lambda device: device["name"] == names.IMEX_DEVICE,
        ):
            yield
    finally:
        stop.set()
        supervisor.join()


def _supervise(node: KubeletNode, folder: ImexFolder, stop: threading.Event) -> None:
    folder.path.mkdir(parents=True, exist_ok=True)

    def command(name: str, arguments: Sequence[str]) -> list[str]:
        double = str(Path(imex_daemon.__file__))
        return [
            "env",
            f"IMEX_ADDRESS={node.address}",
            sys.executable,
            double,
            str(folder.path),
            name,
            *arguments,
        ]

    with supervising(folder, stop) as alone:
        if alone:
            Supervisor(folder, Daemon(command, folder.path), Disk(), time.monotonic).run(stop)


@contextmanager
def pod_of(node: KubeletNode, name: str, labels: Mapping[str, str], *arguments: str) -> Iterator[str]:
    """A pod of koordra's on the network of this machine, as which the API server and the kubelet know a
    process of koordra's that runs beside it; its name."""
    name = f"koordra-test-{name}"
    container = {
        "name": "main",
        "image": node.image,
        "imagePullPolicy": "IfNotPresent",
        "command": ["sh", "-c", "sleep 1000000", "koordra"],
        "args": list(arguments),
    }
    spec = {
        "nodeName": node.name,
        "hostNetwork": True,
        "terminationGracePeriodSeconds": 0,
        "tolerations": [{"operator": "Exists"}],
        "containers": [container],
    }
    metadata = {"name": name, "labels": dict(labels)}
    with suppress(NotFound):  # of an earlier, killed run
        node.client.delete(kinds.PODS, name, namespace=SYSTEM, grace_period=0)
    node.client.create(kinds.PODS, {"metadata": metadata, "spec": spec}, namespace=SYSTEM)
    try:
        running(node.client, SYSTEM, name)
        yield name
    finally:
        node.client.delete(kinds.PODS, name, namespace=SYSTEM, grace_period=0)


def running(client: KubeClient, namespace: str, *pods: str) -> list[Object]:
    """These pods, once all of them run."""

    def look() -> list[Object] | None:
        found = [client.get(kinds.PODS, name, namespace=namespace) for name in pods]
        return found if all(objects.status_of(pod).get("phase") == "Running" for pod in found) else None

    return eventually(look, f"{', '.join(pods)} running", timeout=240.0)
