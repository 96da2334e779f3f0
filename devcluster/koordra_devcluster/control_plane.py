"""The control plane of the development cluster in one process: API server, claim loops, workloads, garbage,
scheduler, and the operators that are wanted.

The loops are threads that talk HTTP to the API server like anyone else, with the kubeconfig that it writes.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

from koordra.kube.kubeconfig import new_client
from koordra.kube.validation.classes import CompileCel
from koordra.logs import get_logger
from koordra.process import lifecycle
from koordra_devcluster.apiserver.resources import GENERIC_WORKLOAD, POD_GROUPS
from koordra_devcluster.apiserver.server import ApiServer
from koordra_devcluster.apiserver.validation.cel import accept_cel
from koordra_devcluster.controllers import claims, garbage, group_claims
from koordra_devcluster.controllers.informers import Informers
from koordra_devcluster.controllers.operators import loops as operator_loops
from koordra_devcluster.controllers.workloads import loops as workloads
from koordra_devcluster.scheduler import loop as scheduler

log = get_logger(__name__)


class _Loop(Protocol):
    def start(self, stop: threading.Event) -> None: ...


class ControlPlane:
    """`directory`: where the state lives. `first_backoff`: the scheduler's first backoff in seconds.

    `operators`: names of koordra_devcluster.controllers.operators."""

    def __init__(
        self,
        directory: Path,
        *,
        port: int = 0,
        kubeconfig: Path | None = None,
        compile_cel: CompileCel = accept_cel,
        first_backoff: float = 1.0,
        audit: Path | None = None,
        gates: frozenset[str] = frozenset(),
        operators: Sequence[str] = (),
    ) -> None:
        self._operators = operators
        self._has_groups = GENERIC_WORKLOAD in gates
        self.server = ApiServer(directory, port=port, compile_cel=compile_cel, audit=audit, gates=gates)
        self.kubeconfig = kubeconfig or directory / "kubeconfig"
        self._first_backoff = first_backoff

    def start(self, stop: threading.Event) -> None:
        """Serves, writes the kubeconfig and starts the loops; returns once they run."""
        self.server.start()
        self.server.write_kubeconfig(self.kubeconfig)
        operator = new_client(str(self.kubeconfig), user_agent="operators")
        operator_loops.install(operator, self._operators)
        watched = dict.fromkeys(
            (
                *claims.WATCHED,
                *garbage.WATCHED,
                *workloads.WATCHED,
                *scheduler.WATCHED,
                *operator_loops.watched(self._operators),
                *((POD_GROUPS,) if self._has_groups else ()),
            )
        )
        informers = Informers(
            new_client(str(self.kubeconfig), user_agent="devcluster-watches"), tuple(watched)
        )
        loops: tuple[_Loop, ...] = (
            claims.ClaimLoops(
                new_client(str(self.kubeconfig), user_agent="kube-controller-manager"),
                informers,
                groups=self._has_groups,
            ),
            garbage.GarbageLoops(
                new_client(str(self.kubeconfig), user_agent="kube-controller-manager"), informers
            ),
            workloads.WorkloadLoops(
                new_client(str(self.kubeconfig), user_agent="kube-controller-manager"), informers
            ),
            scheduler.Scheduler(
                new_client(str(self.kubeconfig), user_agent="kube-scheduler"),
                informers,
                first_backoff=self._first_backoff,
            ),
            operator_loops.OperatorLoops(operator, informers, self._operators),
        )
        if self._has_groups:
            manager = new_client(str(self.kubeconfig), user_agent="kube-controller-manager")
            loops = (*loops, group_claims.GroupClaimLoop(manager, informers))
        informers.start(stop)
        informers.wait_synced(stop)
        for one in loops:
            one.start(stop)
        lifecycle.spawn(lambda: self.server.expire_events(stop), name="expire-events")
        log.info("control_plane_ready", url=self.server.url, kubeconfig=str(self.kubeconfig))

    def close(self) -> None:
        self.server.close()
