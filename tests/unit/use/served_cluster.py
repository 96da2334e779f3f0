"""A devcluster's API server that passes on to the plugins of nodes, which are HTTP servers of the test."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from click.testing import CliRunner, Result

from koordra.api import names
from koordra.api.kinds import NAMESPACES, PODS, RESOURCE_CLAIMS
from koordra.api.objects import Object
from koordra.cli.main import cli
from koordra.kube.client import KubeClient
from koordra.kube.kubeconfig import new_client
from koordra_devcluster.control_plane import ControlPlane
from tests.fakes.joint_cluster import claim


def allocated(name: str, *devices: str, manager: str = "koordra-controller") -> Object:
    results = [
        {"request": "gpu", "driver": names.DRIVER, "pool": "n0", "device": device} for device in devices
    ]
    made = claim(name)
    made["metadata"] |= {
        "namespace": "team",
        "managedFields": [{"manager": manager, "fieldsV1": {"f:status": {"f:allocation": {}}}}],
    }
    return {**made, "status": {"allocation": {"devices": {"results": results}}}}


@dataclass
class Served:
    """An HTTP server of this machine: what it answers, by path. `address`: where; of port 0 any that is
    free."""

    answers: Callable[[str], str | None]
    address: tuple[str, int] = ("127.0.0.1", 0)

    def __enter__(self) -> int:
        answers = self.answers

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                found = answers(self.path)
                self.send_response(404 if found is None else 200)
                self.end_headers()
                self.wfile.write((found or "").encode())

            def log_message(self, *_: Any) -> None:
                pass

        self.server = ThreadingHTTPServer(self.address, Handler)
        threading.Thread(target=self.server.serve_forever, daemon=True).start()
        return int(self.server.server_address[1])

    def __exit__(self, *_: object) -> None:
        self.server.shutdown()
        self.server.server_close()


def plugin_pod(node: str, port: int) -> Object:
    """Of a node's plugin."""
    name = f"koordra-kubelet-plugin-{node}"
    return {
        "metadata": {
            "name": name,
            "namespace": "koordra-system",
            "labels": {"app.kubernetes.io/component": "kubelet-plugin"},
        },
        "spec": {
            "nodeName": node,
            "containers": [{"name": "plugin", "image": "x", "args": [f"--metrics-address=:{port}"]}],
        },
    }


def serve_plugin(client: KubeClient, node: str, port: int) -> None:
    """As if a kubelet ran it; this machine serves the port."""
    made = client.create(PODS, plugin_pod(node, port))
    status = {"phase": "Running", "podIP": "127.0.0.1", "startTime": "2026-11-28T10:00:00Z"}
    client.update(PODS, {**made, "status": status}, subresource="status")


class Cluster:
    """`plugins`: by node, the port of its plugin on this machine."""

    def __init__(self, folder: Path) -> None:
        self.stop = threading.Event()
        self.plane = ControlPlane(folder)
        self.plane.start(self.stop)
        self.client: KubeClient = new_client(str(self.plane.kubeconfig))
        for name in ("team", "monitoring"):
            self.client.create(NAMESPACES, {"metadata": {"name": name}})

    def plugin(self, node: str, port: int) -> None:
        serve_plugin(self.client, node, port)

    def claim(self, name: str) -> None:
        body = allocated(name, "gpu-a")
        status = body.pop("status")
        status["allocation"]["nodeSelector"] = None
        made = self.client.create(RESOURCE_CLAIMS, body, namespace="team")
        self.client.update(RESOURCE_CLAIMS, {**made, "status": status}, subresource="status")

    def run(self, *arguments: str) -> Result:
        access = ["--kubeconfig", str(self.plane.kubeconfig)]
        return CliRunner().invoke(cli, [arguments[0], *access, *arguments[1:]])

    def close(self) -> None:
        self.stop.set()
        self.plane.close()
