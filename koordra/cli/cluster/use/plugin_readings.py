"""The series of every node's kubelet plugin, through the API server's proxy of its pod: no Prometheus is
needed, and nobody but the API server reaches the nodes. Needs `list` of pods and `get` of pods/proxy in
koordra-system. Nodes are asked side by side; one that does not answer is named."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Final

from koordra.api import objects
from koordra.api.kinds import PODS
from koordra.api.objects import Object
from koordra.cli.cluster.use.readings import Reading
from koordra.errors import ApiError
from koordra.kube.client import KubeClient
from koordra.metrics import samples

NAMESPACE: Final = "koordra-system"
PLUGINS: Final = "app.kubernetes.io/component=kubelet-plugin"
PORT: Final = 9401
AT_ONCE: Final = 8
WITHIN: Final = 10.0


@dataclass(frozen=True, slots=True)
class PluginReadings:
    """`silent`: why a node's plugin did not answer; `since`: when each began to count, as the API has it."""

    readings: tuple[Reading, ...]
    silent: Mapping[str, str]
    since: Mapping[str, str]


def read_plugins(client: KubeClient, names: Collection[str]) -> PluginReadings:
    """The samples of these series, of every node. Raises ApiError where the pods cannot be listed."""
    texts, silent = read_documents(client, "/metrics")
    readings = tuple(
        Reading(name, labels, value, node)
        for pod, text in texts
        for node in (_node(pod),)
        for name, labels, value in samples(text, names)
    )
    return PluginReadings(readings, silent, {_node(pod): _started(pod) for pod, _ in texts})


def read_documents(client: KubeClient, path: str) -> tuple[list[tuple[Object, str]], dict[str, str]]:
    """What each plugin's pod serves at the path; and by node why one did not answer. Raises ApiError where
    the pods cannot be listed."""
    pods, _ = client.list(PODS, namespace=NAMESPACE, label_selector=PLUGINS)
    running = [pod for pod in pods if objects.status_of(pod).get("phase") == "Running"]
    with ThreadPoolExecutor(AT_ONCE, thread_name_prefix="read-plugin") as pool:
        answers = list(pool.map(lambda pod: _answer(client, pod, path), running))
    found = [(pod, text) for pod, (text, _) in zip(running, answers, strict=True) if text is not None]
    answered = {_node(pod) for pod, _ in found}  # of two plugins that overlap one is enough
    silent = {_node(pod): error for pod, (text, error) in zip(running, answers, strict=True) if text is None}
    return found, {node: error for node, error in silent.items() if node not in answered}


def _node(pod: Object) -> str:
    return str(objects.spec_of(pod).get("nodeName"))


def _answer(client: KubeClient, pod: Object, path: str) -> tuple[str | None, str]:
    named = f"{objects.name(pod)}:{_port(pod)}"
    path = PODS.path(namespace=NAMESPACE, name=named, subresource="proxy") + path
    try:
        accepts = {"Accept": "text/plain, application/json"}
        return client.read(path, headers=accepts, within=WITHIN, decoded=_text), ""
    except ApiError as error:
        return None, str(error)


def _text(data: bytes) -> str:
    return data.decode(errors="replace")


def _port(pod: Object) -> int:
    """Of --metrics-address."""
    for argument in _arguments(pod):
        name, _, address = argument.partition("=")
        port = address.rpartition(":")[2]
        if name == "--metrics-address" and port.isdecimal():
            return int(port)
    return PORT


def _arguments(pod: Object) -> Iterator[str]:
    for container in objects.spec_of(pod).get("containers") or ():
        yield from map(str, container.get("args") or ())


def _started(pod: Object) -> str:
    statuses: list[Any] = objects.status_of(pod).get("containerStatuses") or []
    started = [
        str(((one.get("state") or {}).get("running") or {}).get("startedAt") or "") for one in statuses
    ]
    return max(started, default="") or str(objects.status_of(pod).get("startTime") or "")
