"""koordra's NRI plugin: looks up what the kubelet plugin stored, applies the rules, answers the runtime.

Everything slow is done in Prepare. Here, a container without markers costs one stat (of guarded.json); one
with devices two more per claim, and one small file written (ledger). A refusal is answered with
PERMISSION_DENIED, which fails the container's creation with its message; the kubelet shows it as an event of
the pod and retries.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import InitVar, dataclass, field, replace
from functools import partial
from typing import Any, Final, Protocol

from koordra._proto.nri import nri_pb2
from koordra.api.opaque.isolation import IsolationPolicy
from koordra.errors import CheckpointError, KoordraError, RemoteError
from koordra.logs import get_logger
from koordra.metrics import Metrics, counter
from koordra.node_state.claim_network import AttachedNetwork, Sandbox
from koordra.node_state.prepared_claim import DeviceGuard
from koordra.node_state.reader import StateReader
from koordra.nri.hook.adjust import Annotated, NodeFacts, NodeShape, decide
from koordra.nri.hook.grants import Grants, claim_markers, grants_of
from koordra.nri.hook.koordinator.annotation import PodClaims, granted_by_annotation
from koordra.nri.hook.ledger import Ledger, granted_of
from koordra.nri.hook.node_devices import NodeDevices
from koordra.nri.hook.oci import RULES, Adjustment, Container, Refusal, adjustment_message, container_of
from koordra.nri.hook.privileged import SPARED, PrivilegedPolicy
from koordra.nri.hook.system_pods import SystemPods
from koordra.nri.hook.ungranted_access import claim_mounts, is_privileged
from koordra.nri.hook.validation import validate
from koordra.nri.stub import Plugin
from koordra.nri.transport.events import EventMethod, applies_device_rules
from koordra.nri.transport.ttrpc import Call, Code

PLUGIN_NAME = "koordra"

log = get_logger(__name__)


class SandboxNetworks(Protocol):
    """Attaches and detaches the NICs of pods: `koordra nri --pod-network` supplies what does it. Both raise
    KoordraError; `detach` may be called several times."""

    def attach(self, sandbox: Sandbox, /) -> None: ...

    def detach(self, sandbox: Sandbox, /) -> None: ...


def _sandbox(pod: nri_pb2.PodSandbox) -> Sandbox:
    return Sandbox(
        id=pod.id,
        pod_uid=pod.uid,
        pod=pod.name,
        namespace=pod.namespace,
        netns=next((space.path for space in pod.linux.namespaces if space.type == "network"), ""),
    )


REFUSALS: Final = counter(
    "koordra_nri_refusals_total",
    "Containers that were refused, by the rule that they break (docs/attacks.md)",
    rule=RULES,
)
ADJUSTED: Final = counter(
    "koordra_nri_adjusted_total",
    "Containers that were adjusted: granted devices, or none",
    devices=("granted", "none"),
)
UNCONFINED: Final = counter(
    "koordra_nri_unconfined_total",
    "Privileged containers that started although nothing could be denied to them: holders of all cards, or the system's",
    pods=("holder", "system"),
)
KOORDLET: Final = counter(
    "koordra_nri_koordlet_hooks_total", "Containers that koordlet's own hooks had changed"
)


@dataclass(frozen=True, slots=True)
class Settings:
    """The operator's settings. `koordinator`: its annotation is looked at, which needs `devices`, and this
    keeps the parts of cards that it names."""

    system: SystemPods = field(default_factory=SystemPods)
    validating: bool = False
    devices: NodeDevices | None = None
    koordinator: IsolationPolicy | None = None
    pod_claims: PodClaims | None = None
    shape: NodeShape = field(default_factory=NodeShape)


@dataclass(eq=False)
class HookPlugin(Plugin):
    """Handles every container that is created on the node. `changed` is called after one with devices, or
    with access that could not be denied. `rules_apply`: whether the runtime applies rules that deny devices;
    None before it has said what it is."""

    state: StateReader
    ledger: Ledger
    settings: Settings = field(default_factory=Settings)
    metrics: InitVar[Metrics | None] = None
    changed: Callable[[], None] = lambda: None
    networks: SandboxNetworks | None = None
    rules_apply: bool | None = None

    def __post_init__(self, metrics: Metrics | None) -> None:
        metrics = metrics or Metrics()
        self._refusals = metrics.counter(REFUSALS)
        self._adjusted = metrics.counter(ADJUSTED)
        self._unconfined = metrics.counter(UNCONFINED)
        self._koordlet = metrics.counter(KOORDLET)

    def handler(self, row: EventMethod) -> Callable[[Any, Call], Any] | None:
        """Validation and sandbox events are subscribed to only if the operator enables them."""
        if row.handler == "validate_container_adjustment" and not self.settings.validating:
            return None
        if row.handler.endswith("_pod_sandbox") and self.networks is None:
            return None
        return super().handler(row)

    def configure(self, request: nri_pb2.ConfigureRequest) -> None:
        about = f"{request.runtime_name} {request.runtime_version}"
        self.rules_apply = applies_device_rules(request)
        if not self.rules_apply:
            log.warning("runtime_cannot_deny_devices", runtime=about)
            if self.settings.validating:
                log.warning("runtime_cannot_validate", runtime=about)

    def create_container(
        self, request: nri_pb2.CreateContainerRequest, _call: Call
    ) -> nri_pb2.CreateContainerResponse:
        """Adjust the container, or refuse it (RemoteError)."""
        container = container_of(request.pod, request.container)
        place = {"pod": f"{container.namespace}/{container.pod}", "container": container.name}
        try:
            self._require_network(request.pod, container)
            facts = self._facts(container)
            adjustment, grants = self._decide(container, facts)
        except Refusal as refusal:
            self._refusals.labels(refusal.rule).inc()
            log.warning("container_refused", **place, rule=refusal.rule, reason=str(refusal))
            raise RemoteError(Code.PERMISSION_DENIED, f"koordra refuses {refusal}") from refusal
        if adjustment.taken_over:
            self._koordlet.inc()
            log.warning(
                "koordlet_hooks_active",
                **place,
                set=adjustment.taken_over,
                remedy="turn off koordlet's gpu and rdma hooks (--runtime-hooks) on nodes with koordra",
            )
        if grants.held:
            mounts = (*claim_mounts(container, self.settings.shape.private), *adjustment.mounts)
            granted = granted_of(
                container,
                grants,
                facts.guarded,
                env=adjustment.env,
                mounts=mounts,
                confined=adjustment.confined,
            )
            self.ledger.add(container.id, granted)
        if not adjustment.confined:
            self._unconfined.labels("holder" if grants.held else "system").inc()
            log.warning("container_not_confined", **place, holds=len(grants.held))
        if grants.held or not adjustment.confined:
            self.changed()
        self._adjusted.labels("granted" if grants.held else "none").inc()
        log.debug("container_adjusted", **place, env=len(adjustment.env), deny=len(adjustment.deny))
        return nri_pb2.CreateContainerResponse(adjust=adjustment_message(adjustment))

    def _decide(self, container: Container, facts: NodeFacts) -> tuple[Adjustment, Grants]:
        """Whether a pod is critical to the node is asked only where it decides. Raises Refusal."""
        rules = partial(decide, container, facts, annotated=self._annotated(container, facts.guarded))
        try:
            return rules(exempt=bool(self.settings.system.exempt(container)))
        except Refusal as refusal:
            asked = refusal.rule in SPARED and facts.shape.privileged is not PrivilegedPolicy.REFUSE
            if not (asked and is_privileged(container) and self.settings.system.starts(container)):
                raise
        adjustment, grants = rules(exempt=True)
        return replace(adjustment, confined=False), grants

    def run_pod_sandbox(self, request: nri_pb2.RunPodSandboxRequest, _call: Call) -> None:
        """Never raises: of a sandbox that a plugin refuses containerd leaves the pause process behind, one
        for each of the kubelet's tries (seen on 2.1). What is not attached here is tried again, and refused
        with words, with the first container of the claim; the claim's gate is closed until then."""
        if self.networks is not None:
            try:
                self.networks.attach(_sandbox(request.pod))
            except KoordraError as error:
                pod = f"{request.pod.namespace}/{request.pod.name}"
                log.error("pod_network_not_attached", pod=pod, error=str(error))

    def _require_network(self, pod: nri_pb2.PodSandbox, container: Container) -> None:
        """Raises Refusal for a container of a claim whose NICs cannot be put into its pod."""
        if self.networks is None or not claim_markers(container):
            return
        try:
            self.networks.attach(_sandbox(pod))
        except KoordraError as error:
            raise Refusal("NetworkNotAttached", f"{container}: the network of its pod: {error}") from error

    def stop_pod_sandbox(
        self, request: nri_pb2.StopPodSandboxRequest | nri_pb2.RemovePodSandboxRequest, _call: Call
    ) -> None:
        """Never raises, since a sandbox must always be able to end: Unprepare retries, and the kernel returns
        NICs of a namespace that ends."""
        pod = request.pod
        if self.networks is not None:
            try:
                self.networks.detach(_sandbox(pod))
            except KoordraError as error:
                log.error("pod_network_not_released", pod=f"{pod.namespace}/{pod.name}", error=str(error))

    remove_pod_sandbox = stop_pod_sandbox
    """Of a sandbox that was never stopped."""

    def remove_container(self, request: nri_pb2.RemoveContainerRequest, _call: Call) -> None:
        self.ledger.remove(request.container.id)

    def validate_container_adjustment(
        self, request: nri_pb2.ValidateContainerAdjustmentRequest, _call: Call
    ) -> nri_pb2.ValidateContainerAdjustmentResponse:
        container = container_of(request.pod, request.container)
        if self.settings.system.exempt(container):
            return nri_pb2.ValidateContainerAdjustmentResponse()
        try:
            facts = self._facts(container)
            validate(
                request,
                container,
                name=PLUGIN_NAME,
                grants=grants_of(container, claims=facts.claims, unreadable=facts.unreadable),
                guarded=facts.guarded,
                private=self.settings.shape.private,
            )
        except Refusal as refusal:
            self._refusals.labels("OtherPlugin").inc()
            log.warning("adjustment_rejected", reason=str(refusal))
            return nri_pb2.ValidateContainerAdjustmentResponse(
                reject=True, reason=f"koordra refuses {refusal}"
            )
        return nri_pb2.ValidateContainerAdjustmentResponse()

    def synchronize(
        self, pods: Sequence[nri_pb2.PodSandbox], containers: Sequence[nri_pb2.Container]
    ) -> Sequence[nri_pb2.ContainerUpdate]:
        """Wake the verification of containers that were created while no hook was registered."""
        self.ledger.retain(container.id for container in containers)
        for pod in pods:
            self.settings.system.note(pod.uid, pod.annotations)
        log.info("nri_synchronized", pods=len(pods), containers=len(containers))
        self.changed()
        return ()

    def _facts(self, container: Container) -> NodeFacts:
        claims, unreadable = self.state.claims(claim_markers(container))
        attached: dict[str, AttachedNetwork] = {}
        for marker, claim in claims.items():
            try:
                network = self.state.attached(claim.ref.uid)
                if network is not None:
                    attached[marker] = network
            except CheckpointError as error:
                unreadable[marker] = str(error)
        guarded, problem = None, ""
        try:
            guarded = self.state.guard()
        except CheckpointError as error:
            problem = str(error)
        return NodeFacts(
            claims,
            unreadable,
            guarded,
            guarded_problem=problem,
            rules_apply=bool(self.rules_apply),
            shape=self.settings.shape,
            attached=attached,
            minors=self._minors(container),
        )

    def _minors(self, container: Container) -> tuple[int, ...]:
        devices = self.settings.devices
        if self.rules_apply or devices is None or not is_privileged(container):
            return ()
        return devices.minors()

    def _annotated(self, container: Container, guarded: DeviceGuard | None) -> Annotated | None:
        """The grant by the pod's annotation; None for a pod with a claim of koordra's, whichever container
        has it. Raises Refusal."""
        node, policy = self.settings.devices, self.settings.koordinator
        if (
            node is None
            or policy is None
            or claim_markers(container)
            or self.ledger.holds_claim(container.pod_uid)
        ):
            return None
        try:
            found = granted_by_annotation(container, guarded=guarded, node=node, policy=policy)
        except Refusal:
            if self._has_claims(container):
                return None
            raise
        return None if found is None or self._has_claims(container) else found

    def _has_claims(self, container: Container) -> bool:
        claims = self.settings.pod_claims
        if claims is None:
            return False
        try:
            return claims.of_koordra(namespace=container.namespace, pod=container.pod, uid=container.pod_uid)
        except KoordraError as error:
            why = f"{container}: whether its pod has claims of koordra's is unknown: {error}"
            raise Refusal("UnknownClaims", why) from error
