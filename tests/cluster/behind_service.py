"""The suite's controller behind the Service of its webhook, so that it is reached through the API server's
proxy (services/proxy).

The double passes requests on to processes of this machine. A real server passes them on to addresses of pods
alone and never to the loopback's own: there a Pod that no kubelet backs stands for the controller, with an
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

from koordra.api import kinds
from koordra.api.objects import Object
from koordra.errors import NotFound
from koordra.kube.client import KubeClient
from koordra_devcluster.demo.installation import put, service_of_this_machine
from tests.cluster.waiting import NODES

ADDRESS: Final = "192.0.2.77"
NAME: Final = "koordra-controller-stand-in"
NAMESPACE: Final = "koordra-system"


@contextmanager
def behind_service(client: KubeClient, port: int) -> Iterator[None]:
    """While this lasts, the Service koordra-webhook leads to the port."""
    service, endpoints = service_of_this_machine(port)
    if "koordra-devcluster" in client.version():
        put(client, endpoints)
        yield
        return
    own = [f"{ADDRESS}/32", "dev", "lo"]
    added = subprocess.run(["ip", "address", "add", *own], capture_output=True, text=True, check=False)
    if added.returncode and "File exists" not in added.stderr:
        pytest.skip(f"the loopback device gets no address for a pod: {added.stderr.strip()}")
    try:
        with _handed_on(port) as mine:
            _stand_in(client, service, mine)
            yield
    finally:
        with contextlib.suppress(NotFound):
            client.delete(kinds.PODS, NAME, namespace=NAMESPACE, grace_period=0)
        subprocess.run(["ip", "address", "del", *own], check=False)


def _stand_in(client: KubeClient, service: Object, port: int) -> None:
    ports = [{"name": service["spec"]["ports"][0]["targetPort"], "containerPort": port}]
    pod: Object = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": NAME, "namespace": NAMESPACE, "labels": service["spec"]["selector"]},
        "spec": {
            "nodeName": NODES[0],
            "automountServiceAccountToken": False,
            "tolerations": [{"operator": "Exists"}],
            "containers": [{"name": "main", "image": "none.test/none:1", "ports": ports}],
        },
    }
    with contextlib.suppress(NotFound):  # of an earlier, killed run
        client.delete(kinds.PODS, NAME, namespace=NAMESPACE, grace_period=0)
    client.create(kinds.PODS, pod)
    status = {
        "phase": "Running",
        "podIP": ADDRESS,
        "podIPs": [{"ip": ADDRESS}],
        "conditions": [{"type": "Ready", "status": "True"}],
    }
    client.patch(kinds.PODS, NAME, {"status": status}, namespace=NAMESPACE, subresource="status")


@contextmanager
def _handed_on(port: int) -> Iterator[int]:
    """A port of ADDRESS whose connections lead to that one of 127.0.0.1."""
    with socket.create_server((ADDRESS, 0)) as listening:

        def accept() -> None:
            with contextlib.suppress(OSError):
                while True:
                    come, _ = listening.accept()
                    gone = socket.create_connection(("127.0.0.1", port))
                    for one, other in ((come, gone), (gone, come)):
                        threading.Thread(target=_pour, args=(one, other), daemon=True).start()

        threading.Thread(target=accept, daemon=True).start()
        yield int(listening.getsockname()[1])
        with contextlib.suppress(OSError):
            listening.shutdown(socket.SHUT_RDWR)


def _pour(one: socket.socket, other: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while some := one.recv(1 << 16):
            other.sendall(some)
        other.shutdown(socket.SHUT_WR)
