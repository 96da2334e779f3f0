"""The suite's controller behind the Service of its webhook, and processes of this machine in the place of
pods, so that they are reached through the API server's proxy (services/proxy, pods/proxy).

The double passes requests on to processes of this machine. A real server passes them on to addresses of pods
alone and never to the loopback's own: there a Pod that no kubelet backs stands for the process, with an
address of TEST-NET-1 that the loopback device has meanwhile, and what comes there is handed on.
"""

from __future__ import annotations

import contextlib
import socket
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

import pytest

from koordra.api import kinds, objects
from koordra.api.objects import Object
from koordra.errors import NotFound
from koordra.kube.client import KubeClient
from koordra_devcluster.demo.installation import put, service_of_this_machine
from tests.cluster.waiting import NODES

ADDRESS: Final = "192.0.2.77"
NAME: Final = "koordra-controller-stand-in"
IMAGE: Final = "none.test/none:1"
NAMESPACE: Final = "koordra-system"


@contextmanager
def behind_service(client: KubeClient, port: int) -> Iterator[None]:
    """While this lasts, the Service koordra-webhook leads to the port."""
    service, endpoints = service_of_this_machine(port)
    if "koordra-devcluster" in client.version():
        put(client, endpoints)
        yield
        return
    with reached(client, port) as (address, mine):
        ports = [{"name": service["spec"]["ports"][0]["targetPort"], "containerPort": mine}]
        pod: Object = {
            "metadata": {"name": NAME, "labels": service["spec"]["selector"]},
            "spec": {"nodeName": NODES[0], "containers": [{"name": "main", "image": IMAGE, "ports": ports}]},
        }
        with standing_in(client, pod, address):
            yield


@contextmanager
def reached(client: KubeClient, port: int) -> Iterator[tuple[str, int]]:
    """The pod's address, and the port of it, by which the API server's proxy comes to a port of this
    machine."""
    if "koordra-devcluster" in client.version():
        yield "127.0.0.1", port
        return
    own = [f"{ADDRESS}/32", "dev", "lo"]
    added = subprocess.run(["ip", "address", "add", *own], capture_output=True, text=True, check=False)
    if added.returncode and "File exists" not in added.stderr:
        pytest.skip(f"the loopback device gets no address for a pod: {added.stderr.strip()}")
    try:
        with _handed_on(port) as mine:
            yield ADDRESS, mine
    finally:
        subprocess.run(["ip", "address", "del", *own], check=False)


@contextmanager
def standing_in(client: KubeClient, pod: Object, address: str) -> Iterator[None]:
    """A pod of koordra's that no kubelet backs, and that runs with this address."""
    name = objects.name(pod)
    spec = {**pod["spec"], "automountServiceAccountToken": False, "tolerations": [{"operator": "Exists"}]}
    with contextlib.suppress(NotFound):  # of an earlier, killed run
        client.delete(kinds.PODS, name, namespace=NAMESPACE, grace_period=0)
    client.create(kinds.PODS, {**pod, "spec": spec}, namespace=NAMESPACE)
    status = {
        "phase": "Running",
        "podIP": address,
        "podIPs": [{"ip": address}],
        "conditions": [{"type": "Ready", "status": "True"}],
    }
    client.patch(kinds.PODS, name, {"status": status}, namespace=NAMESPACE, subresource="status")
    try:
        yield
    finally:
        with contextlib.suppress(NotFound):
            client.delete(kinds.PODS, name, namespace=NAMESPACE, grace_period=0)


@contextmanager
def _handed_on(port: int) -> Iterator[int]:
    """A port of ADDRESS whose connections lead to that one of 127.0.0.1."""
    with socket.create_server((ADDRESS, 0)) as listening:

        def accept() -> None:
            with contextlib.suppress(OSError):
                while True:
                    come, _ = listening.accept()
                    threading.Thread(target=_hand_on, args=(come, port), daemon=True).start()

        threading.Thread(target=accept, daemon=True).start()
        yield int(listening.getsockname()[1])
        with contextlib.suppress(OSError):
            listening.shutdown(socket.SHUT_RDWR)


def _hand_on(come: socket.socket, port: int) -> None:
    with come, contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port)) as gone:
        back = threading.Thread(target=_pour, args=(gone, come), daemon=True)
        back.start()
        _pour(come, gone)
        back.join()


def _pour(one: socket.socket, other: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while some := one.recv(1 << 16):
            other.sendall(some)
        other.shutdown(socket.SHUT_WR)
