"""Reports drift to the Kubernetes API: a breach of a container's grants, a missing interface of its NIC, or a
notice for the pod's author.

                a breach                                                 InterfaceMissing      a notice
    Event       on the pod, reason IsolationDrift, one per difference    NetworkDrift          its kind
    condition   `Isolated: False` in status.devices of every device      `InterfacePresent:    `NotConfined:
                that the container holds; True again when it is gone     False`                True`
    eviction    of the pod is asked for, where the operator chose        never                 never
                `--on-drift evict` (koordra/evictions.py)

Not evicted: pods older than koordra's first hook on the node, which could not be adjusted (the node's own
daemons among them).

A pod that is already gone is no error. The condition is written by a conditional merge patch of
status.devices alone, as the kubelet plugin does (status/claim_status.py says why). That needs, since
Kubernetes 1.36, the verb `associated-node:patch` on `resourceclaims/driver` of koordra.io, with a token bound
to a pod of this node.
"""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final

from koordra.api import kinds, names, objects
from koordra.api.device_status import device_key, merged_entry
from koordra.api.objects import Object
from koordra.errors import Conflict, Invalid, NotFound
from koordra.evictions import EvictionRequest, EvictionRequests
from koordra.inert import inert
from koordra.kube.client import KubeClient
from koordra.kube.wall_clock import utc_now
from koordra.logs import get_logger
from koordra.nri.hook.ledger import GrantedDevice
from koordra.nri.verify.drift import Finding

COMPONENT: Final = f"{names.FIELD_COMPONENT}-nri"
ISOLATION_DRIFT: Final = "IsolationDrift"
"""a running container has, or can open, what is not its own (docs/nri.md)"""
NETWORK_DRIFT: Final = "NetworkDrift"
"""the network interface of a NIC that a container holds is not in its pod"""
_EVENTS: Final = {"breach": ISOLATION_DRIFT, "InterfaceMissing": NETWORK_DRIFT}
"""Reason of the Event by the drift's subject; otherwise its kind."""
_CONDITIONS: Final = {
    "breach": ("Isolated", "False"),
    "InterfaceMissing": ("InterfacePresent", "False"),
    "NotConfined": ("NotConfined", "True"),
}
"""Type of the condition by the drift's subject, and its status while the drift is there."""
_LONGEST_MESSAGE: Final = 1000
_ATTEMPTS: Final = 4

log = get_logger(__name__)


@dataclass(eq=False)
class ApiReporter:
    """Writes to the API as the hook of one node. Raises ApiError if the call should be repeated. `evictions`:
    where the end of pods is asked for, if it is."""

    client: KubeClient
    node: str
    evictions: EvictionRequests | None = None
    now: Callable[[], str] = utc_now
    _to_go: dict[tuple[str, str], EvictionRequest] = field(default_factory=dict)
    """By finding."""

    def found(self, finding: Finding, /) -> None:
        self._event(finding)
        self._conditions(finding, gone=False)
        container = finding.container
        if finding.drift.breach and not finding.predates_hook and container.pod and container.pod_uid:
            self._to_go[finding.key] = EvictionRequest(
                container.namespace, container.pod, container.pod_uid, finding.drift.kind
            )

    def gone(self, finding: Finding, /) -> None:
        self._to_go.pop(finding.key, None)
        self._conditions(finding, gone=True)

    def ask_for_evictions(self) -> None:
        """Of the pods of all findings that are not gone; after each look at the containers."""
        if self.evictions is not None:
            self.evictions.want(self._to_go.values())

    def _event(self, finding: Finding) -> None:
        container, now = finding.container, self.now()
        if not container.namespace or not container.pod:
            return  # not a pod's: started past the kubelet
        digest = hashlib.sha256("/".join(map(str, finding.key)).encode()).hexdigest()[:16]
        body = {
            "apiVersion": kinds.EVENTS.api_version,
            "kind": kinds.EVENTS.kind,
            "metadata": {"namespace": container.namespace, "name": f"{container.pod[:200]}.{digest}"},
            "involvedObject": {
                "apiVersion": "v1",
                "kind": "Pod",
                "namespace": container.namespace,
                "name": container.pod,
                "uid": container.pod_uid,
                "fieldPath": f"spec.containers{{{container.name}}}",
            },
            "reason": _EVENTS.get(finding.drift.subject, finding.drift.kind),
            "message": inert(f"{finding.drift.kind}: {finding.drift.message}")[:_LONGEST_MESSAGE],
            # That a pod of the node's own is not confined is nothing to mend.
            "type": "Normal"
            if finding.drift.kind == "NotConfined" and not finding.drift.devices
            else "Warning",
            "count": 1,
            "firstTimestamp": now,
            "lastTimestamp": now,
            "source": {"component": COMPONENT, "host": self.node},
            "reportingComponent": COMPONENT,
            "reportingInstance": self.node,
        }
        with contextlib.suppress(Conflict, NotFound):  # reported before, or the namespace is gone
            self.client.create(kinds.EVENTS, body, namespace=container.namespace)

    def _conditions(self, finding: Finding, *, gone: bool) -> None:
        kind, status = _CONDITIONS.get(finding.drift.subject, ("", ""))
        condition = {
            "type": kind,
            "status": status,
            "reason": finding.drift.kind,
            "message": inert(finding.drift.message)[:_LONGEST_MESSAGE],
        }
        if gone:
            condition["status"] = "True" if status == "False" else "False"
            condition |= {"reason": "Verified", "message": "the container is gone or as it should be"}
        for device in finding.drift.devices if kind else ():
            if device.claim_name:  # else given by Koordinator's scheduler
                self._condition(device, condition)

    def _condition(self, device: GrantedDevice, condition: dict[str, Any]) -> None:
        for attempt in range(_ATTEMPTS):
            try:
                claim = self.client.get(
                    kinds.RESOURCE_CLAIMS, device.claim_name, namespace=device.claim_namespace
                )
                devices = with_condition(claim, device, pool=self.node, condition=condition, now=self.now())
                if devices is not None:
                    self.client.patch(
                        kinds.RESOURCE_CLAIMS,
                        device.claim_name,
                        {
                            "metadata": {"resourceVersion": objects.resource_version(claim)},
                            "status": {"devices": devices},
                        },
                        namespace=device.claim_namespace,
                        subresource="status",
                    )
            except Conflict:
                if attempt + 1 < _ATTEMPTS:
                    continue
                raise
            except NotFound:
                return
            except Invalid as error:  # a server without status.devices, or with another opinion on it
                log.warning("condition_refused", claim=device.claim_name, error=str(error))
            return


def with_condition(
    claim: Object, device: GrantedDevice, *, pool: str, condition: dict[str, Any], now: str
) -> list[Object] | None:
    """`status.devices` with the condition on the device; None if it has it, or this is another claim."""
    status = objects.status_of(claim)
    results = ((status.get("allocation") or {}).get("devices") or {}).get("results") or ()
    entry: Object = {"driver": names.DRIVER, "pool": pool, "device": device.device}
    if device.share_id:
        entry["shareID"] = device.share_id
    key = device_key(entry)
    if objects.uid(claim) != device.claim_uid or key not in map(device_key, results):
        return None
    before = {device_key(each): each for each in status.get("devices") or ()}
    entry |= {"conditions": [condition]}
    after = before | {key: merged_entry(before.get(key, {}), entry, now=now)}
    return None if after == before else list(after.values())
