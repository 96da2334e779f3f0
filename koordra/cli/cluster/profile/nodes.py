"""Profiles as every node's plugin has them, through the API server's proxy, and whose they are."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping

from koordra.api import objects
from koordra.api.kinds import PODS, RESOURCE_CLAIMS
from koordra.api.objects import Fields, Object
from koordra.cli.cluster.use.plugin_readings import read_documents
from koordra.errors import NotFound
from koordra.kube.client import KubeClient
from koordra.profiles.kept import KeptProfile, kept_of
from koordra.profiles.profile import PodProfile, read_pod


def read_profiles(client: KubeClient) -> tuple[list[PodProfile], dict[str, str]]:
    """Of all nodes, and by node why there are none of it. Of two plugins that overlap on a node the later
    profile of a pod counts."""
    texts, silent = read_documents(client, "/profiles")
    found = dict[str, PodProfile]()
    for pod, text in texts:
        node = str(objects.spec_of(pod).get("nodeName"))
        try:
            profiles = [read_pod(each) for each in json.loads(text)["pods"]]
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            silent[node] = f"its plugin's profiles cannot be read: {error!r}"
            continue
        for one in profiles:
            # A plugin speaks of its own node, whatever it says.
            if one.node == node and one.uid and (one.uid not in found or found[one.uid].until < one.until):
                found[one.uid] = one
    return list(found.values()), silent


def of_namespace(client: KubeClient, namespace: str, profiles: Iterable[PodProfile]) -> list[KeptProfile]:
    """Those of one namespace, with whose they are as far as the API still knows."""
    pods = {objects.uid(pod): pod for pod in client.list(PODS, namespace=namespace)[0]}
    specs = {
        objects.name(claim): objects.spec_of(claim)
        for claim in client.list(RESOURCE_CLAIMS, namespace=namespace)[0]
    }
    return [
        kept_of(one, pod, _specs(pod, specs) if pod else {})
        for one in profiles
        if one.namespace == namespace
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
