"""koordra installed from deploy/kustomize, the workloads left out: who installs runs koordra's programs
itself, as processes.

The webhook configurations name a Service, which needs a network of pods; here they name the process's address
instead. All else is applied as it is shipped.
"""

from __future__ import annotations

import base64
import http.client
import json
import random
import socket
import ssl
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from koordra.api import objects
from koordra.api.kinds import Kind
from koordra.api.objects import Object
from koordra.errors import ApiUnreachable, Conflict
from koordra.kube.client import KubeClient
from koordra_devcluster.demo import manifests

ROOT: Final = manifests.deploy_folder() / "kustomize"
WORKLOADS: Final = frozenset({"Deployment", "DaemonSet", "Job"})
WEBHOOKS: Final = frozenset({"MutatingWebhookConfiguration", "ValidatingWebhookConfiguration"})
_ORDER: Final = ("Namespace", "CustomResourceDefinition", "ServiceAccount")

_CLUSTER_WIDE: Final = frozenset(
    {
        "Namespace",
        "ClusterRole",
        "PriorityClass",
        "ClusterRoleBinding",
        "CustomResourceDefinition",
        "DeviceClass",
        "ResourceClass",
        "ElasticGPUClass",
        "ElasticGPU",
        "GPU",
        "MutatingWebhookConfiguration",
        "ValidatingWebhookConfiguration",
        "ValidatingAdmissionPolicy",
        "ValidatingAdmissionPolicyBinding",
    }
)


def free_port() -> int:
    """A free port of this machine, below those that the kernel gives to clients, that no other process of
    this function takes while the asking one lives.

    Whoever asks binds it seconds later, and a suite starts dozens of clusters beside each other. The name
    of an abstract socket is the claim: the kernel gives it to one process of a network namespace, as it
    does a port, and takes it back at the process's end (unix(7))."""
    while True:
        port = random.randint(15000, 29999)
        claim = socket.socket(socket.AF_UNIX)
        try:
            claim.bind(f"\0koordra-devcluster/port/{port}")
            with socket.socket() as probe:
                probe.bind(("127.0.0.1", port))
        except OSError:
            claim.close()
            continue
        claim.detach()  # open until the process ends
        return port


def kind_of(obj: Object) -> Kind:
    """The resource of a manifest. Plurals of the kinds that are shipped are regular, or end in y."""
    group, _, version = str(obj["apiVersion"]).rpartition("/")
    name = str(obj["kind"])
    plural = name.lower()
    if not name.endswith("Parameters"):
        plural = (
            f"{plural[:-1]}ies"
            if plural.endswith("y")
            else f"{plural}es"
            if plural.endswith("ss")
            else f"{plural}s"
        )
    return Kind(group, version, plural, name, namespaced=name not in _CLUSTER_WIDE)


def documents(*, folders: tuple[str, ...] | None = None) -> Iterator[tuple[Path, Object]]:
    """Every manifest below deploy/kustomize, or in those folders of it, with its file; patches and
    kustomizations are none."""
    for path in sorted(ROOT.rglob("*.yaml")):
        if path.name == "kustomization.yaml":
            continue
        if folders is not None and str(path.parent.relative_to(ROOT)) not in folders:
            continue
        for obj in manifests.read(path):
            if "apiVersion" in obj and "kind" in obj and "$patch" not in json.dumps(obj):
                yield path, obj


def service_of_this_machine(port: int) -> list[Object]:
    """The webhook's Service as it is shipped, and behind it the process of this machine that listens on the
    port: so the controller is asked through the API server, as in a cluster."""
    (service,) = (obj for _, obj in documents(folders=("webhook",)) if obj["kind"] == "Service")
    own = service["metadata"]
    labels = {"kubernetes.io/service-name": own["name"]}
    endpoint_slice: Object = {
        "apiVersion": "discovery.k8s.io/v1",
        "kind": "EndpointSlice",
        "metadata": {"name": f"{own['name']}-local", "namespace": own["namespace"], "labels": labels},
        "addressType": "IPv4",
        "endpoints": [{"addresses": ["127.0.0.1"], "conditions": {"ready": True}}],
        "ports": [{"name": service["spec"]["ports"][0]["name"], "port": port, "protocol": "TCP"}],
    }
    return [service, endpoint_slice]


def own_definitions() -> list[Object]:
    """Of koordra's own kinds."""
    return [obj for _, obj in documents(folders=("crds",))]


def shipped(more: tuple[str, ...] = ()) -> list[Object]:
    """What every cluster with koordra has: base and what it lists, in an order that works."""
    found = [
        obj
        for _, obj in documents(
            folders=(
                "base",
                "crds",
                "policies",
                "gangs",
                "reservations",
                "webhook",
                "controller",
                "kubelet-plugin",
                "nri",
                *more,
            )
        )
    ]
    return sorted(found, key=lambda obj: _ORDER.index(obj["kind"]) if obj["kind"] in _ORDER else len(_ORDER))


class Installation:
    """What was applied; `webhook_port` is where the suite's controller serves, `more` are components besides
    base."""

    def __init__(self, client: KubeClient, webhook_port: int, more: tuple[str, ...] = ()) -> None:
        self.client = client
        self.webhook_port = webhook_port
        self.applied = [self._adapted(obj) for obj in shipped(more) if obj["kind"] not in WORKLOADS]

    def apply(self) -> None:
        """Created, or replaced by what is shipped; unknown fields are refused."""
        for obj in self.applied:
            if obj["kind"] not in WEBHOOKS:
                put(self.client, obj)

    def webhook_answers(self) -> bool:
        """Whether the webhook serves and every configuration carries its certificate's authority."""
        if not _is_served(self.webhook_port):
            return False
        try:
            self._apply_webhooks()
        except ApiUnreachable:  # a busy machine
            return False
        found = [
            self.client.get(kind_of(obj), objects.name(obj))
            for obj in self.applied
            if obj["kind"] in WEBHOOKS
        ]
        return all(
            base64.b64decode(entry["clientConfig"].get("caBundle") or "")
            for one in found
            for entry in one["webhooks"]
        )

    def _apply_webhooks(self) -> None:
        """Made where they are missing. Those that an earlier, killed run left name a port where nobody
        listens: replaced."""
        for obj in self.applied:
            if obj["kind"] in WEBHOOKS:
                try:
                    self.client.create(kind_of(obj), obj, strict=True)
                except Conflict:
                    current = self.client.get(kind_of(obj), objects.name(obj))
                    if _addresses(current) != _addresses(obj):
                        put(self.client, obj)

    def _adapted(self, obj: Object) -> Object:
        if obj["kind"] not in WEBHOOKS:
            return obj
        entries = []
        for entry in obj["webhooks"]:
            path = entry["clientConfig"]["service"]["path"]
            url = f"https://127.0.0.1:{self.webhook_port}{path}"
            entries.append({**entry, "clientConfig": {"url": url}})
        return {**obj, "webhooks": entries}


def _addresses(configuration: Object) -> list[str | None]:
    return [entry["clientConfig"].get("url") for entry in configuration["webhooks"]]


def put(client: KubeClient, obj: Object) -> None:
    """Created, or replaced; unknown fields are refused."""
    kind, place = kind_of(obj), objects.metadata(obj).get("namespace")
    try:
        client.create(kind, obj, namespace=place, strict=True)
    except Conflict:
        current = client.get(kind, objects.name(obj), namespace=place)
        metadata = {**obj["metadata"], "resourceVersion": objects.resource_version(current)}
        client.update(kind, {**current, **obj, "metadata": metadata})


def _is_served(port: int) -> bool:
    context = ssl.create_default_context()
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    connection = http.client.HTTPSConnection("127.0.0.1", port, timeout=5, context=context)
    try:
        connection.request("GET", "/readyz")
        return connection.getresponse().status == 200
    except OSError:
        return False
    finally:
        connection.close()
