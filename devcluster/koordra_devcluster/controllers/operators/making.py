"""What the operators have in common: an owned object is made once, and an owner is told what the server did
not take."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from koordra.api.kinds import Kind
from koordra.api.objects import Fields, Object, metadata, namespace
from koordra.errors import ApiError, Conflict
from koordra.kube.client import KubeClient
from koordra_devcluster.controllers.recorder import Recorder
from koordra_devcluster.controllers.workloads.pods import pod_from, reference_to

SERVICES = Kind("", "v1", "services", "Service")


class Making:
    """`operator` is who the Events come from."""

    def __init__(self, client: KubeClient, operator: str) -> None:
        self.client = client
        self._recorder = Recorder(client, operator)

    def make(self, kind: Kind, owner: Object, body: Object) -> None:
        """There is one of that name afterwards. Raises ApiError after an Event that says why not."""
        own = {**metadata(body), "namespace": namespace(owner), "ownerReferences": [reference_to(owner)]}
        try:
            self.client.create(kind, {**body, **kind.type_meta, "metadata": own}, namespace=namespace(owner))
        except Conflict:
            return
        except ApiError as error:
            self._recorder.event(owner, "FailedCreate", f"Error creating: {error.message}", warning=True)
            raise

    def service(self, owner: Object, name: str, selector: Fields, *, early: bool = True) -> None:
        """A headless Service. `early`: names of pods that are not ready resolve."""
        spec = {"clusterIP": "None", "publishNotReadyAddresses": early, "selector": dict(selector)}
        self.make(SERVICES, owner, {"metadata": {"name": name}, "spec": spec})


def numbered_pod(
    template: Object,
    owner: Object,
    name: str,
    *,
    labels: Fields,
    annotations: Fields | None = None,
    subdomain: str = "",
    env: Iterable[tuple[str, str]] = (),
    **spec: Any,
) -> Object:
    """The pod of a replica: with a name of its own that is its host name too, where it has a subdomain."""
    pod = pod_from(template, owner, pod_name=name, labels=dict(labels), annotations=dict(annotations or {}))
    if subdomain:
        pod["spec"] = {"hostname": name, "subdomain": subdomain, **pod["spec"]}
    pod["spec"] = {**pod["spec"], **spec}
    variables = [{"name": key, "value": value} for key, value in env]
    for container in pod["spec"]["containers"]:
        if variables:
            container["env"] = [*(container.get("env") or ()), *variables]
    return pod
