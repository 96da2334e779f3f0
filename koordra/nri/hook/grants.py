"""Which devices a container was really given.

The runtime passes a plugin neither the claims of a container nor the names of its CDI devices. So the CDI
edits of a claim set markers, environment variables that hold the claim's nonce:

    KOORDRA_CLAIM_<UID>=<nonce>          once for the claim
    KOORDRA_CLAIM_<UID>_<n>=<nonce>      for the n-th device of the claim

The nonce is only in the CDI file and in the plugin's record, files of the node that no container may mount
(ungranted_access): the hook replaces the value of every marker, so that no container ever sees it. A marker
with another value, of a claim of another namespace, or of one that is not prepared here, was not set by the
node; the container is refused.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from koordra.api import names
from koordra.node_state.claim_network import AttachedNetwork
from koordra.node_state.claim_ref import MARKER_PREFIX
from koordra.node_state.prepared_claim import PreparedClaim, PreparedDevice
from koordra.nri.hook.oci import Container, Refusal
from koordra.topology.location import DeviceNode

MOST_CLAIMS: Final = 1024
"""Of a container, more than any has. Each marker is looked up on disk, and a pod may name them by the ten
thousand; those beyond are of no claim, and refused as such."""

GRANTED: Final = "granted"
"""The value of the markers inside the container."""


@dataclass(frozen=True, slots=True)
class Grant:
    """One device that the container holds, by one claim. `asked`: how much of it, where no claim says so (in
    percent, by name of the capacity)."""

    claim: PreparedClaim
    device: PreparedDevice
    asked: tuple[tuple[str, int], ...] = ()


@dataclass(frozen=True, slots=True)
class Grants:
    """Everything a container holds, in the order of its claims. `markers` are the names of its marker
    variables."""

    held: tuple[Grant, ...] = ()
    markers: tuple[str, ...] = ()

    @property
    def gpu(self) -> bool:
        return any(grant.device.type in names.GPU_TYPES for grant in self.held)

    @property
    def nic(self) -> bool:
        return any(grant.device.type in names.NIC_TYPES for grant in self.held)

    @property
    def memlock(self) -> bool:
        """Whether RDMA memory registration needs the memlock limit lifted."""
        return any(grant.claim.memlock and grant.device.type in names.NIC_TYPES for grant in self.held)

    @property
    def claims(self) -> frozenset[str]:
        return frozenset(grant.claim.ref.uid for grant in self.held)

    @property
    def devices(self) -> frozenset[str]:
        return frozenset(grant.device.device for grant in self.held)

    @property
    def nodes(self) -> frozenset[DeviceNode]:
        return frozenset(node for grant in self.held for node in grant.device.nodes)

    @property
    def uuids(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(grant.device.uuid for grant in self.held if grant.device.uuid))


def claim_markers(container: Container) -> tuple[str, ...]:
    """The marker variables that stand for claims, in the order they were set (a name counts once)."""
    variables = dict.fromkeys(name for name, _ in container.env if name.startswith(MARKER_PREFIX))
    return tuple(name for name in variables if _device_index(name, variables) is None)[:MOST_CLAIMS]


def grants_of(
    container: Container, *, claims: Mapping[str, PreparedClaim], unreadable: Mapping[str, str]
) -> Grants:
    """The grants that the container's markers prove. `claims` and `unreadable` (why) are by claim marker.
    Raises Refusal."""
    env = [(name, value) for name, value in container.env if name.startswith(MARKER_PREFIX)]
    variables = dict.fromkeys(name for name, _ in env)
    held: dict[str, list[tuple[int, Grant]]] = {}
    for name, value in env:
        index = _device_index(name, variables)
        marker = name if index is None else name.rpartition("_")[0]
        if marker in unreadable:
            raise Refusal(
                "UnreadableState", f"{container}: its claim cannot be verified: {unreadable[marker]}"
            )
        claim = claims.get(marker)
        if claim is None:
            raise _not_ours(container, name, "no such claim is prepared on this node", rule="UnknownClaim")
        if claim.ref.namespace != container.namespace:
            raise _not_ours(container, name, "the claim is of another namespace")
        if value != claim.nonce or (index is not None and index >= len(claim.devices)):
            raise _not_ours(container, name, "its value was not set by this node")
        devices = held.setdefault(marker, [])
        if index is not None:
            devices.append((index, Grant(claim, claim.devices[index])))
    in_order = (dict(sorted(devices, key=lambda item: item[0])).values() for devices in held.values())
    return Grants(held=tuple(grant for claim in in_order for grant in claim), markers=tuple(variables))


def check_nodes(container: Container, grants: Grants) -> None:
    """Refuse a container with genuine markers but without the device nodes that come with them.

    CDI sets a device's markers together with its nodes. A container with only the markers has copied them,
    from one that was created while no hook was registered and still shows its nonce.
    """
    there = {node.number for node in container.devices}
    for grant in grants.held:
        for node in grant.device.nodes:
            if node.number not in there:
                raise _not_ours(
                    container,
                    f"{grant.claim.marker}_{grant.claim.devices.index(grant.device)}",
                    f"{node} did not come with it",
                )


def check_network(
    container: Container, *, claims: Mapping[str, PreparedClaim], attached: Mapping[str, AttachedNetwork]
) -> None:
    """Refuse a container whose claim's network is in another pod; both mappings are by claim marker.

    A moved NIC is in one pod's network namespace. A pod that was added to the claim after Prepare has no
    Prepare of its own, and the claim's gate is open, so its container would start with the verbs node and
    without the network interface.
    """
    for marker, network in attached.items():
        if network.pod != container.pod_uid:
            raise Refusal(
                "NetworkElsewhere",
                f"{container}: the NIC of claim {claims[marker]} is in the network namespace of the pod with uid "
                f"{network.pod}, and it is in one pod at a time; give each pod a claim of its own "
                "(resourceClaimTemplateName in place of resourceClaimName), or end that pod first",
            )


def _device_index(name: str, names: Mapping[str, object]) -> int | None:
    """n of a device marker `<claim marker>_<n>`; None for a claim marker. CDI always sets both."""
    marker, _, index = name.rpartition("_")
    return int(index) if marker in names and index.isascii() and index.isdigit() and len(index) < 5 else None


def _not_ours(container: Container, name: str, why: str, *, rule: str = "ForgedMarker") -> Refusal:
    return Refusal(
        rule,
        f"{container}: variable {name} is reserved: {why}; remove it from the pod and its image, and name the "
        "claim under resources.claims of the container instead",
    )
