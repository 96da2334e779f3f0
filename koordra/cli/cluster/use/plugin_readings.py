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
    pods, _ = client.list(PODS, namespace=NAMESPACE, label_selector=PLUGINS)
    running = [pod for pod in pods if objects.status_of(pod).get("phase") == "Running"]
    with ThreadPoolExecutor(AT_ONCE, thread_name_prefix="read-plugin") as pool:
        answers = list(pool.map(lambda pod: _answer(client, pod), running))
    found = list[Reading]()
    silent, since = dict[str, str](), dict[str, str]()
    for pod, (text, error) in zip(running, answers, strict=True):
        node = str(objects.spec_of(pod).get("nodeName"))
        if text is None:
            silent[node] = error
        else:
            since[node] = _started(pod)
            found += [Reading(name, labels, value, node) for name, labels, value in samples(text, names)]
    for node in since:  # of two plugins that overlap one is enough
        silent.pop(node, None)
    return PluginReadings(tuple(found), silent, since)


def _answer(client: KubeClient, pod: Object) -> tuple[str | None, str]:
    named = f"{objects.name(pod)}:{_port(pod)}"
    path = PODS.path(namespace=NAMESPACE, name=named, subresource="proxy") + "/metrics"
    try:
        accepts = {"Accept": "text/plain"}
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
