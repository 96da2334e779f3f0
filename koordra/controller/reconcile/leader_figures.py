"""How things stand after a pass, in figures: claims, gangs, what waits, and the cluster's capacity.

Shown by the leader alone, after each of its passes: a replica that stands by, or whose term is over, has no
series of these, so that sums over all replicas are right and nothing old is shown. What a late worker of an
ended term still has to say is not taken (`show`).

Nodes have series of their own by choice (`--node-metrics`): some 20 for each sort of GPU and NIC of a node.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Final

from koordra.api.opaque.parameters import Scope
from koordra.controller.gangs.phase import GangPhase
from koordra.controller.reporting.capacity import NOT_ASKED, NOT_READY, READY, ClusterCapacity, told_apart
from koordra.controller.reporting.native_devices import STATES as NATIVE_STATES
from koordra.controller.reporting.native_devices import NativeDevices
from koordra.controller.reporting.waiting_groups import REASONS, Waiting, WaitingGroups
from koordra.metrics import Instrument, Label, Metrics, Rows, Table, bounded, gauge
from koordra.placement.free_amounts.capacity import (
    AMOUNT_STATES,
    BESIDE,
    DEVICE_STATES,
    Amounts,
    Measure,
    Most,
)

_MODEL: Final = bounded(
    "as the devices publish it; 64 models are told apart, those with the most devices, the rest is `other`"
)
_NODE: Final = bounded("the nodes that publish devices; --no-node-metrics: none")

CLAIMS: Final = gauge(
    "koordra_controller_claims",
    "Claims that have their devices, those whose write nobody has answered yet, and seats held for gangs that lost a member",
    state=("allocated", "in_doubt", "held"),
)
GANGS: Final = gauge(
    "koordra_controller_gangs", "Gangs by phase (docs/gangs.md)", phase=[phase.value for phase in GangPhase]
)
WAITING: Final = gauge(
    "koordra_controller_waiting_groups",
    "What waits for devices, by the reason that its Events have: pods that are planned together, gangs, pods that cannot be planned for",
    reason=REASONS,
)
OLDEST: Final = gauge(
    "koordra_controller_waiting_oldest_seconds",
    "Age of the oldest pod among what waits for this reason; 0 where nothing does",
    reason=REASONS,
)
SEAT_END: Final = gauge(
    "koordra_controller_held_seat_end_timestamp_seconds",
    "When the held seat of a gang is given up that is given up first, in Unix time; none while no seat is held",
)
QUOTA_USED: Final = gauge(
    "koordra_controller_quota_used_ratio",
    "How far a line of a ResourceQuota on devices is used",
    namespace=bounded(
        "those with a ResourceQuota on koordra's names, or of another stack that koordra counts"
    ),
    quota=bounded("those ResourceQuotas"),
    resource=bounded("the lines of these"),
)
REFUSED_NODES: Final = gauge(
    "koordra_controller_refused_nodes",
    "Nodes whose GPUs another device plugin or driver gives out too; koordra gives out none there",
)
NODES: Final = gauge(
    "koordra_cluster_nodes",
    "Nodes that publish devices; not_ready: cordoned, not Ready, or with an allocation that cannot be read",
    state=(READY, NOT_READY),
)
NATIVE: Final = gauge(
    "koordra_cluster_native_devices",
    "Devices of nodes in native mode, which kube-scheduler gives out; allocated: some claim has it, or a part of it",
    type=bounded("gpu, mig, nic, vf"),
    model=_MODEL,
    state=NATIVE_STATES,
)
LARGEST_SHARE: Final = gauge(
    "koordra_cluster_largest_share_ratio",
    "The largest part of one GPU that is free, of its memory and its cores alike",
    model=_MODEL,
)
LARGEST_SHARE_MEMORY: Final = gauge(
    "koordra_cluster_largest_share_memory_bytes", "The most memory that is free on one GPU", model=_MODEL
)
LARGEST_GPUS: Final = gauge(
    "koordra_cluster_largest_whole_gpus",
    "The most whole GPUs that are free on one node within one scope; nic: with no regard to NICs, with a free NIC there, with one for each",
    model=_MODEL,
    scope=[scope.value for scope in Scope],
    nic=BESIDE,
)
ALIGNED: Final = gauge(
    "koordra_cluster_aligned_claims",
    "Claims with GPUs and NICs by the narrowest scope that they are in together, and the one that they ask for",
    asked=(*(scope.value for scope in Scope), NOT_ASKED),
    achieved=[scope.value for scope in Scope],
)


def _sums(part: str, of: str, **node: Label) -> dict[Measure, Instrument]:
    """The sums over the cluster's nodes, or a node's own."""
    return {
        Measure.DEVICES: gauge(
            f"koordra_{part}_devices",
            f"Devices of {of} that koordra gives out; shared: a part of it is taken; blocked: another device of its card is in use",
            **node,
            type=bounded("gpu, mig, nic, vf"),
            model=_MODEL,
            state=DEVICE_STATES,
        ),
        Measure.SHARES: gauge(
            f"koordra_{part}_shares",
            f"Shares of GPUs and NICs of {of} that claims have",
            **node,
            type=bounded("gpu, nic"),
            model=_MODEL,
        ),
        Measure.MEMORY: gauge(
            f"koordra_{part}_gpu_memory_bytes",
            f"GPU memory of {of}; of MIG devices, which overlap, the most that can be had at once is free",
            **node,
            type=bounded("gpu, mig"),
            model=_MODEL,
            state=AMOUNT_STATES,
        ),
        Measure.CORES: gauge(
            f"koordra_{part}_gpu_cores",
            f"Cores of GPUs of {of}, 100 a GPU; of MIG devices the most that can be had at once is free",
            **node,
            type=bounded("gpu, mig"),
            model=_MODEL,
            state=AMOUNT_STATES,
        ),
        Measure.BANDWIDTH: gauge(
            f"koordra_{part}_nic_bandwidth_bytes_per_second",
            f"Bandwidth of NICs of {of}; a claim's share of a NIC is that share of its bandwidth",
            **node,
            model=_MODEL,
            state=AMOUNT_STATES,
        ),
    }


OF_CLUSTER: Final = {
    **_sums("cluster", "the cluster"),
    Measure.MIG: gauge(
        "koordra_cluster_mig_devices",
        "MIG devices by profile; free: can be taken, each by itself, though they may exclude each other",
        model=_MODEL,
        profile=bounded("the profiles that cards publish, as for models"),
        state=DEVICE_STATES,
    ),
}
OF_NODE: Final = _sums("node", "a node", node=_NODE)
MOST: Final = {
    Most.SHARE: LARGEST_SHARE,
    Most.MEMORY: LARGEST_SHARE_MEMORY,
    Most.CARDS: LARGEST_GPUS,
}

_NANO: Final = 1e9
_IN: Final[Mapping[str, float]] = {
    Measure.MEMORY: _NANO,
    Measure.CORES: _NANO,
    Measure.BANDWIDTH: 8 * _NANO,
    Most.SHARE: _NANO,
    Most.MEMORY: _NANO,
}
"""What one of the instrument's unit is in what is counted."""


class LeaderFigures:
    """`show` is the worker's, `hide` the lease's; both may be called by any thread. `clock`: Unix time."""

    def __init__(
        self, metrics: Metrics, *, node_metrics: bool, clock: Callable[[], float] = time.time
    ) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._claims, self._gangs = metrics.table(CLAIMS), metrics.table(GANGS)
        self._waiting, self._oldest = metrics.table(WAITING), metrics.table(OLDEST)
        self._seat_end, self._quotas = metrics.table(SEAT_END), metrics.table(QUOTA_USED)
        self._refused, self._nodes = metrics.table(REFUSED_NODES), metrics.table(NODES)
        self._aligned, self._native = metrics.table(ALIGNED), metrics.table(NATIVE)
        self._sums = {measure: metrics.table(declared) for measure, declared in OF_CLUSTER.items()}
        self._most = {most: metrics.table(declared) for most, declared in MOST.items()}
        self._of_node = metrics.node_tables(OF_NODE.values()) if node_metrics else None
        self._shown: ClusterCapacity | None = None
        self.hide()

    @contextmanager
    def shown(self, term: threading.Event) -> Iterator[bool]:
        """Whether figures may be set now: not once the term is over. They are all shown together."""
        with self._lock:
            yield not term.is_set()

    def hide(self) -> None:
        with self._lock:
            for table in self._tables():
                table.hide()
            if self._of_node is not None:
                self._of_node.clear()
            self._shown = None

    def _tables(self) -> Iterable[Table]:
        yield from (self._claims, self._gangs, self._waiting, self._oldest, self._refused, self._nodes)
        yield from (
            self._aligned,
            self._native,
            self._seat_end,
            self._quotas,
            *self._sums.values(),
            *self._most.values(),
        )

    def set(
        self,
        *,
        claims: Mapping[str, int],
        gangs: Mapping[str, int],
        waiting: WaitingGroups,
        seat_end: float | None,
        quotas: Callable[[], Rows],
        refused_nodes: int,
        native: NativeDevices,
        capacity: ClusterCapacity | None,
    ) -> None:
        """While `shown`. Without a capacity, while it is not known yet, it stays as it was. `quotas` is asked
        at each scrape: what they count comes between passes, too."""
        self._claims.set({(state,): number for state, number in claims.items()})
        self._gangs.set({(phase,): number for phase, number in gangs.items()})
        found = waiting.figures()
        self._waiting.set({(reason,): each.number for reason, each in found.items()})
        self._oldest.follow(lambda: self._ages(found))
        self._seat_end.hide()
        if seat_end is not None:
            self._seat_end.set({(): seat_end})
        self._quotas.follow(quotas)
        self._refused.set({(): refused_nodes})
        self._native.set(dict(native.counts()))
        if capacity is not None:
            self._set_capacity(capacity)

    def _ages(self, found: Mapping[str, Waiting]) -> Rows:
        now = self._clock()
        return {(reason,): max(0.0, now - each.oldest) for reason, each in found.items()}

    def _set_capacity(self, capacity: ClusterCapacity) -> None:
        is_new, self._shown = self._shown is not capacity, capacity
        if not is_new and not capacity.changed:
            return
        _spread(capacity.sums(), self._sums)
        _spread(capacity.most(), self._most)
        self._aligned.set(capacity.aligned())
        self._nodes.set({(state,): number for state, number in capacity.ready().items()})
        if self._of_node is not None:
            for name in capacity.nodes.keys() | capacity.changed if is_new else capacity.changed:
                figures = capacity.nodes.get(name)
                self._of_node.put(
                    name, None if figures is None else _rows(told_apart(figures.capacity.amounts))
                )
        capacity.changed.clear()


def _spread(amounts: Amounts, tables: Mapping[Measure, Table] | Mapping[Most, Table]) -> None:
    for of, table in tables.items():
        unit = _IN.get(of, 1.0)
        table.set({key[1:]: amount / unit for key, amount in amounts.items() if key[0] == of})


def _rows(amounts: Amounts) -> tuple[Rows, ...]:
    """As OF_NODE has them."""
    found: dict[str, dict[tuple[str, ...], float]] = {measure: {} for measure in OF_NODE}
    for key, amount in amounts.items():
        if key[0] in found:
            found[key[0]][key[1:]] = amount / _IN.get(key[0], 1.0)
    return tuple(found.values())
