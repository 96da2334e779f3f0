"""koordra's NRI plugin: looks up what the kubelet plugin stored, asks the rules, answers the runtime.

Everything slow was done in Prepare. Here, a container without markers costs one stat (of guarded.json); one
with devices one more per claim. A refusal is answered with PERMISSION_DENIED, which fails the container's
creation with its message; the kubelet shows it as an event of the pod and tries again.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from pathlib import Path

from koordra._proto.nri import nri_pb2
from koordra.errors import CheckpointError, RemoteError
from koordra.logs import get_logger
from koordra.nri.adjust import NodeFacts, adjust, unguarded
from koordra.nri.events import applies_device_rules
from koordra.nri.grants import claim_markers
from koordra.nri.oci import Container, Refusal, adjustment_message, container_of
from koordra.nri.prepared import NodeState, PreparedClaim
from koordra.nri.stub import Plugin
from koordra.nri.ttrpc import Call, Code

log = get_logger(__name__)


class Hook(Plugin):
    """Sees every container that is created on the node. `exempt_namespaces` are the operator's."""

    def __init__(self, state: NodeState, *, exempt_namespaces: Iterable[str] = ()) -> None:
        self._state = state
        self._exempt = frozenset(exempt_namespaces)
        self._rules_apply = False

    def configure(self, request: nri_pb2.ConfigureRequest) -> None:
        """Learn what the runtime can do."""
        self._rules_apply = applies_device_rules(
            runtime_name=request.runtime_name,
            runtime_version=request.runtime_version,
            nri_version=request.NRI_version,
        )
        if not self._rules_apply:
            log.warning(
                "runtime_cannot_deny_devices", runtime=f"{request.runtime_name} {request.runtime_version}"
            )

    def create_container(
        self, request: nri_pb2.CreateContainerRequest, _call: Call
    ) -> nri_pb2.CreateContainerResponse:
        """Adjust the container, or refuse it (RemoteError)."""
        started = time.monotonic()
        container = container_of(request.pod, request.container)
        answer = adjust(container, self._facts(container), exempt=container.namespace in self._exempt)
        place = {"pod": f"{container.namespace}/{container.pod}", "container": container.name}
        if isinstance(answer, Refusal):
            log.warning("container_refused", **place, rule=answer.rule, reason=answer.message)
            raise RemoteError(Code.PERMISSION_DENIED, f"koordra refuses {answer.message}")
        took = round((time.monotonic() - started) * 1000, 2)
        log.debug(
            "container_adjusted", **place, env=len(answer.env), deny=len(answer.deny), milliseconds=took
        )
        return nri_pb2.CreateContainerResponse(adjust=adjustment_message(answer))

    def synchronize(
        self, pods: Sequence[nri_pb2.PodSandbox], containers: Sequence[nri_pb2.Container]
    ) -> Sequence[nri_pb2.ContainerUpdate]:
        """Name the containers that were created while no hook was registered."""
        by_id = {pod.id: pod for pod in pods}
        found = []
        for message in containers:
            container = container_of(by_id.get(message.pod_sandbox_id, nri_pb2.PodSandbox()), message)
            why = None if container.namespace in self._exempt else unguarded(container)
            if why is not None:
                found.append(f"{container}: {why}")
        log.info("nri_synchronized", pods=len(pods), containers=len(containers))
        if found:  # one line: on a node that had containers before koordra came, these are many
            log.warning("containers_unguarded", count=len(found), first=found[:3])
        return ()

    def _facts(self, container: Container) -> NodeFacts:
        claims: dict[str, PreparedClaim] = {}
        unreadable: dict[str, str] = {}
        for marker in claim_markers(container):
            try:
                claim = self._state.claim(marker)
            except CheckpointError as error:
                unreadable[marker] = str(error)
                continue
            if claim is not None:
                claims[marker] = claim
        guarded, problem = None, ""
        try:
            guarded = self._state.guarded()
        except CheckpointError as error:
            problem = str(error)
        return NodeFacts(claims, unreadable, guarded, guarded_problem=problem, rules_apply=self._rules_apply)


def open_hook(state_dir: Path, *, node_name: str, exempt_namespaces: Iterable[str]) -> Hook:
    """The hook on the kubelet plugin's state directory."""
    return Hook(NodeState(state_dir, node_name=node_name), exempt_namespaces=exempt_namespaces)
