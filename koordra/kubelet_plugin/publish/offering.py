"""What a node offers of its machine, by the operator's decision; slices and Prepare both follow it. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from koordra.api.opaque.isolation import LIMITED, IsolationPolicy
from koordra.kubelet_plugin.publish.cni_resources import CniResource
from koordra.kubelet_plugin.publish.devices import WITHOUT_DRAIN
from koordra.kubelet_plugin.publish.drain_policy import DrainPolicy
from koordra.logs import get_logger
from koordra.topology.machine import Gpu

log = get_logger(__name__)

_RESET_TO_SWITCH: Final = frozenset({"Ampere"})
"""Architectures whose cards are reset when their MIG mode changes; later ones are not (NVIDIA's MIG User
Guide, "Enable MIG Mode")."""


@dataclass(frozen=True, slots=True)
class CardOffering:
    """Of one card. `shares`: the isolation policy of its shares. `whole`: it is offered whole while it is not
    in MIG mode; `instances`: in instances while it is. `switched`: koordra changes the mode itself, so that
    what the other mode has is offered too."""

    shares: IsolationPolicy
    whole: bool
    instances: bool
    switched: bool


@dataclass(frozen=True, slots=True)
class ModeSwitches:
    """How switches of MIG modes stand. `switching`: cards by device name, with the token of the request;
    `refused`: cards that the driver did not switch, of which the other mode is not to be had."""

    switching: Mapping[str, str] = field(default_factory=dict)
    refused: frozenset[str] = frozenset()


NO_SWITCHES: Final = ModeSwitches()


@dataclass(frozen=True, slots=True)
class Offering:
    """How many shares a card takes, whether the instances of cards in MIG mode (with `mig_on_demand` also
    those that can be made), the virtual functions of NICs and IMEX channels are offered, what isolates
    shares, by which names Multus finds NICs, and which faults of a device end its pods. `mig_reset`: cards
    that are reset for it have their MIG mode switched too; `mps_shared`: claims of several namespaces may be
    clients of one card; `mps_protocol`: the version that the driver has."""

    slots_per_gpu: int = 16
    mig: bool = False
    mig_on_demand: bool = False
    mig_reset: bool = False
    vfs: bool = False
    imex: bool = False
    isolation: IsolationPolicy = LIMITED
    cni: tuple[CniResource, ...] = ()
    drain: DrainPolicy = WITHOUT_DRAIN
    mps_shared: bool = False
    mps_protocol: int | None = None

    def on(self, backends: Sequence[str]) -> Offering:
        """The same, as far as a node with these isolation backends can offer it."""
        isolation = self.isolation.among(backends)
        if not isolation.allowed:
            log.warning("gpu_shares_refused", allowed=self.isolation.allowed, available=backends)
        return replace(self, isolation=isolation)

    def policy_of(self, gpu: Gpu) -> IsolationPolicy:
        return self.isolation.of_card(gpu.uuid, gpu.location.bus_id, gpu.name)

    def of_card(self, gpu: Gpu) -> CardOffering:
        """A card whose policy is `mig` alone is not offered whole. One with a policy of its own without
        `mig` has no instances; where the node's policy does not name `mig`, those of cards that somebody has
        put in MIG mode are offered."""
        policy = self.policy_of(gpu)
        shares, named = policy.of_shares, policy.has_instances
        can_be_cut = bool(gpu.mig_profiles) and gpu.mig_enabled is not None
        resets = gpu.architecture in _RESET_TO_SWITCH or gpu.architecture is None
        return CardOffering(
            shares,
            whole=bool(shares.allowed) or not named,
            instances=self.mig and (named or policy == replace(self.isolation, cards=())),
            switched=self.mig_on_demand and named and can_be_cut and (self.mig_reset or not resets),
        )


WITHOUT_POLICY: Final = Offering(isolation=IsolationPolicy())
"""Of a node that publishes no isolation policy."""
