"""Profiles as every node's plugin has them, through the API server's proxy, and whose they are."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping

from koordra.api import objects
from koordra.api.kinds import PODS, RESOURCE_CLAIMS
from koordra.api.objects import Fields, Object
from koordra.cli.cluster.use.plugin_readings import read_documents
from koordra.errors import NotFound
from koordra.kube.client import KubeClient
from koordra.profiles.kept import KeptProfile, kept_of
from koordra.profiles.profile import PodProfile, read_pod


class NodeProfiles:
    """What every node's plugin serves, read one after another; `silent`: by node why there is nothing of it,
    complete once all are read. A pod may come twice, where two plugins overlap on a node. Raises ApiError."""

    def __init__(self, client: KubeClient) -> None:
        self._texts, self.silent = read_documents(client, "/profiles")

    def __iter__(self) -> Iterator[PodProfile]:
        for pod, text in self._texts:
            node = str(objects.spec_of(pod).get("nodeName"))
            try:
                profiles = [read_pod(each) for each in json.loads(text)["pods"]]
            except (ValueError, TypeError, KeyError, AttributeError) as error:
                self.silent[node] = f"its plugin's profiles cannot be read: {error!r}"
                continue
            # A plugin speaks of its own node, whatever it says.
            yield from (one for one in profiles if one.node == node and one.uid)


def of_namespace(client: KubeClient, namespace: str, profiles: Iterable[PodProfile]) -> list[KeptProfile]:
    """Those of one namespace, with whose they are as far as the API still knows."""
    newest = dict[str, PodProfile]()
    for one in profiles:
        if one.namespace == namespace and (one.uid not in newest or newest[one.uid].until < one.until):
            newest[one.uid] = one
    pods = {objects.uid(pod): pod for pod in client.list(PODS, namespace=namespace)[0]}
    specs = {
        objects.name(claim): objects.spec_of(claim)
        for claim in client.list(RESOURCE_CLAIMS, namespace=namespace)[0]
    }
    return [
        kept_of(one, pod, _specs(pod, specs) if pod else {})
        for one in newest.values()
        for pod in (pods.get(one.uid),)
    ]


def of_pod(client: KubeClient, profile: PodProfile) -> KeptProfile | None:
    """None where the pod is gone. Raises ApiError."""
    try:
        pod = client.get(PODS, profile.pod, namespace=profile.namespace)
    except NotFound:
        return None
    if objects.uid(pod) != profile.uid:
        return None
    specs = dict[str, Fields]()
    for name in filter(None, objects.pod_claim_names(pod).values()):
        try:
            specs[name] = objects.spec_of(client.get(RESOURCE_CLAIMS, name, namespace=profile.namespace))
        except NotFound:
            continue
    return kept_of(profile, pod, specs)


def _specs(pod: Object, specs: Mapping[str, Fields]) -> dict[str, Fields]:
    wanted = objects.pod_claim_names(pod).values()
    return {name: specs[name] for name in wanted if name and name in specs}
