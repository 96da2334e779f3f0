"""What an operator decides about the controller."""

from __future__ import annotations

from dataclasses import dataclass, field

from koordra.controller.allocation.reservations import STARVES_AFTER
from koordra.controller.autoscale.settings import AutoscaleSettings
from koordra.controller.cache.fabrics import written_levels
from koordra.controller.cache.immediate_claims import MOST_DEVICES, ImmediateRules
from koordra.controller.legacy.settings import LegacySettings
from koordra.controller.reconcile.leadership import LeaseTimes
from koordra.placement.candidates.node_scoring import ScoringStrategy, written_strategy
from koordra.topology.network_topology import Levels


@dataclass(frozen=True, slots=True)
class Settings:
    """`identity` is unique among living processes. Without `leader_elect` this process must be the only
    replica. `starves_after` and `preemption` as in reservations.py and preemption.py. `legacy`: templates of
    rewritten pods are kept (controller/legacy). `elastic_gpu`: Elastic
    GPU's objects are served; `training_jobs`: TrainingJobs are. `learn_from_profiles`: the learned table
    is made of what profiles foresee (allocation/learned/foreseen). `peer_annotations`: pods of the shim get
    the annotations that their old stack's readers look for. `node_metrics`: each node has series of its own
    (reconcile/leader_figures). `immediate_annotation` and `immediate_devices` as in
    cache/immediate_claims; `topology_levels` as in cache/fabrics, empty: nobody says; `scoring_strategy` as
    in placement/candidates/node_scoring, empty: nodes are not weighed. `autoscale`:
    the groups of nodes that may be asked for (controller/autoscale); None: nobody looks."""

    identity: str
    leader_elect: bool = True
    lease_namespace: str = "koordra-system"
    times: LeaseTimes = field(default_factory=LeaseTimes)
    starves_after: float = STARVES_AFTER
    preemption: bool = False
    legacy: LegacySettings | None = None
    elastic_gpu: bool = False
    training_jobs: bool = False
    learn_from_profiles: bool = False
    peer_annotations: bool = False
    node_metrics: bool = True
    immediate_annotation: bool = False
    immediate_devices: int = MOST_DEVICES
    topology_levels: str = ""
    scoring_strategy: str = ""
    autoscale: AutoscaleSettings | None = None

    def __post_init__(self) -> None:
        """Raises InvalidInput for what cannot be read, before anything starts."""
        _ = self.levels, self.scoring

    @property
    def immediate(self) -> ImmediateRules:
        return ImmediateRules(self.immediate_annotation, self.immediate_devices)

    @property
    def levels(self) -> Levels | None:
        """Raises InvalidInput."""
        return written_levels(self.topology_levels) if self.topology_levels else None

    @property
    def scoring(self) -> ScoringStrategy | None:
        """Raises InvalidInput."""
        return written_strategy(self.scoring_strategy) if self.scoring_strategy else None
