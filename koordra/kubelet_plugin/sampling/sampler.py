"""When a node is sampled, and by whom: one thread, for all cards, containers and ports.

    every PERIOD             all: processes and state of every card, how long kernels ran, what ports and
                             cgroups counted
    every BRISK, of cards    how long kernels ran: the limiter tells each claim what it has really had, by
    with enforced shares     which the launches of the next second are paced (isolation/limiter/seen_time)

Each is one question a card. Sampling takes LOAD of one processor's time at most, and WAIT of the time that
passes: after one of a thousand processes, or by a driver that is slow to answer, the pause is as much longer.
Where NVML cannot be used, that is logged once, and ports are sampled alone.

`samples` is what everybody else in this process reads of use. The limiter's comparison needs lists that are
newer than the ledger that it compares them with, and asks for them here (`processes`); they are not asked for
again for the next sample.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Final

from koordra.errors import NodeError
from koordra.kubelet_plugin.claims.claim_record import ClaimRecord
from koordra.kubelet_plugin.sampling import holdings, nic_counters, use
from koordra.kubelet_plugin.sampling.cgroups import CgroupReader
from koordra.kubelet_plugin.sampling.device_time import CardClock, SeenTime, seen_time
from koordra.kubelet_plugin.sampling.host_processes import HostProcesses, Process
from koordra.kubelet_plugin.sampling.nic_counters import Port, PortCounters
from koordra.kubelet_plugin.sampling.nvml_cards import CardProcesses, CardState, NvmlCards
from koordra.kubelet_plugin.sampling.port_reader import PortReader
from koordra.kubelet_plugin.sampling.sample import NOBODY, RecentSamples, Sample
from koordra.kubelet_plugin.sampling.use_metrics import UseMetrics
from koordra.logs import get_logger
from koordra.metrics import Metrics, counter, histogram
from koordra.node_state.granted_claims import GrantedContainers
from koordra.process.wakeable import Pause, Wakeable
from koordra.topology.machine import Machine

PERIOD: Final = 5.0
BRISK: Final = 0.15
"""A little less than the shortest period of a driver."""
LOAD: Final = 0.01
WAIT: Final = 0.2
LONGEST: Final = 30.0
_AS_JUST_NOW: Final = 1.0

SECONDS: Final = histogram(
    "koordra_sampler_seconds",
    "How long one sampling of the node took; device_time: of cards with enforced shares alone",
    of=("all", "device_time"),
)
FAILURES: Final = counter(
    "koordra_sampler_failures_total", "Samplings of the node for which NVML did not answer"
)

log = get_logger(__name__)


class NodeSampler(Wakeable):
    """`timed`: cards whose device time is wanted promptly; `on_time` is told what was
    seen of any card, with whose the pids are. All state belongs to the thread of `run`, or to the caller of
    `step`; `processes` and `samples` are for any."""

    failed = "node_not_sampled"

    def __init__(
        self,
        nvml: NvmlCards,
        processes: HostProcesses,
        *,
        machine: Callable[[], Machine],
        granted: GrantedContainers,
        metrics: Metrics,
        ports: PortReader,
        cgroups: CgroupReader,
        records: Callable[[], Iterable[ClaimRecord]] = tuple,
        clock: Callable[[], float] = time.monotonic,
        spent: Callable[[], float] = time.thread_time,
    ) -> None:
        super().__init__()
        self._nvml, self._owners, self._machine, self._granted = nvml, processes, machine, granted
        self._read_ports, self._read_cgroups = ports.read, cgroups.read
        self._records, self._clock, self._spent = records, clock, spent
        self.timed: Callable[[], Collection[str]] = tuple
        self.on_time: Callable[[str, SeenTime, Mapping[int, Process]], None] = lambda *_: None
        self.samples = RecentSamples()
        self._lists: dict[str, tuple[float, CardProcesses]] = {}
        self._clocks: dict[str, CardClock] = {}
        self._device_ns: dict[tuple[str, str], int] = {}
        self._told_of = set[str]()
        """Cards of which the driver has told who computed how long."""
        self._ports: dict[Port, PortCounters] = {}
        self._port_totals: dict[Port, dict[str, int]] = {}
        self._held_time = holdings.HeldTime()
        self._full_at = clock()
        self._blind = False
        self._seconds = metrics.histogram(SECONDS)
        self._failures = metrics.counter(FAILURES)
        self._report = UseMetrics(metrics)

    def processes(self, uuids: Iterable[str]) -> Mapping[str, CardProcesses]:
        """The cards' processes, now. Raises NodeError where NVML cannot be asked."""
        found = self._nvml.processes(uuids)
        now = self._clock()
        self._lists |= {uuid: (now, card) for uuid, card in found.items()}
        return found

    def step(self) -> Pause:
        began, spent = self._clock(), self._spent()
        full = began >= self._full_at
        timed = frozenset(self.timed())
        if full:
            self._full_at = began + PERIOD
            names = use.device_names(self._machine())
            self._see_time(frozenset(names) | timed)
            self._sample_all(names)
        elif timed:
            self._see_time(timed)
        ended = self._clock()
        self._seconds.labels("all" if full else "device_time").observe(ended - began)
        rest = max((self._spent() - spent) / LOAD, (ended - began) / WAIT)
        return self._pause(min(rest, LONGEST), timed=bool(timed) and not self._blind)

    def _pause(self, rest: float, *, timed: bool) -> Pause:
        least = max(BRISK, rest)
        due = max(self._full_at - self._clock(), 0.0)
        return Pause(least, max(least, BRISK if timed else due))

    def _see_time(self, uuids: Collection[str]) -> None:
        """How long kernels ran on these cards since they were asked for last."""
        if not uuids:
            return
        self._clocks = {uuid: self._clocks.get(uuid, CardClock()) for uuid in {*self._clocks, *uuids}}
        try:
            samples = self._nvml.utilisations({uuid: self._clocks[uuid].question for uuid in uuids})
        except NodeError as error:
            self._see_nothing(error)
            return
        self._blind = False
        if self._owners.all_seen:
            self._told_of |= samples.keys()
        for uuid, of_card in samples.items():
            self._clocks[uuid], seen = seen_time(self._clocks[uuid], of_card, now=self._clock())
            if seen is None:
                continue
            owners = self._owners_of(seen.ns)
            for pid, ns in seen.ns.items():
                owner = owners.get(pid)
                row = owner.container if owner else "", uuid
                self._device_ns[row] = self._device_ns.get(row, 0) + ns
            self.on_time(uuid, seen, owners)

    def _owners_of(self, pids: Iterable[int]) -> dict[int, Process]:
        """Whose they are, or were: of a process that has ended meanwhile what was last known of it."""
        if not self._owners.all_seen:  # the driver's numbers are those of other processes
            return {}
        wanted = list(pids)
        found = dict(self._owners.find(wanted, within=_AS_JUST_NOW))
        for pid in wanted:
            ended = self._owners.ended(pid) if pid not in found else None
            if ended is not None:
                found[pid] = ended
        return found

    def _sample_all(self, names: Mapping[str, frozenset[str]]) -> None:
        now = self._clock()
        granted = self._granted.by_id()
        cards, listed = self._look_at_cards(names, now)
        seen = names if self._owners.all_seen else {}
        self._device_ns = dict(use.kept(self._device_ns, granted))
        machine = self._machine()
        ports, units = use.ports_of(machine, granted), holdings.units_of(machine)
        holders, records = granted.values(), tuple(self._records())
        self._told_of &= names.keys()
        self._count_ports({port: of.device for port, of in ports.items()})
        sample = Sample(
            at=now,
            cards=cards,
            on_cards=use.on_cards(listed, names, granted=granted),
            of_containers=use.of_containers(listed, seen, granted=granted),
            device_seconds=use.device_seconds(
                self._device_ns, {uuid: names[uuid] for uuid in self._told_of}, granted=granted
            ),
            cgroups=use.cgroup_use(self._read_cgroups(granted), granted),
            ports={ports[port]: values for port, values in self._port_totals.items()},
            grants=holdings.grants_of(holders, records, units),
            held_seconds=self._held_time.seconds(holdings.held_gpus(holders, records, units), at=now),
            places={unit.nvml: unit.place for unit in units.values()},
            sizes={unit.nvml: unit.memory for unit in units.values()},
            pod_uids={each.name[:2]: each.pod_uid for each in holders if each.name != NOBODY},
        )
        self.samples.add(sample)
        self._report.show(sample)

    def _look_at_cards(
        self, names: Mapping[str, frozenset[str]], now: float
    ) -> tuple[Mapping[str, CardState], use.Listed]:
        cards: Mapping[str, CardState] = {}
        lists: dict[str, CardProcesses] = {}
        if names and not self._blind:
            fresh = {uuid: card for uuid, (at, card) in self._lists.items() if now - at < PERIOD / 2}
            try:
                self.processes(uuid for uuid in names if uuid not in fresh)
                cards = self._nvml.states(names)
            except NodeError as error:
                self._see_nothing(error)
            lists = {
                uuid: card for uuid, (at, card) in self._lists.items() if uuid in names and now - at < PERIOD
            }
        self._lists = {uuid: each for uuid, each in self._lists.items() if uuid in names}
        pids = {pid for card in lists.values() for pid in card.used}
        owners = self._owners.find(pids, within=_AS_JUST_NOW) if self._owners.all_seen else {}
        return cards, use.Listed(lists, owners)

    def _count_ports(self, ports: Mapping[Port, str]) -> None:
        read = self._read_ports(ports)
        counted = {port: values for port, values in self._port_totals.items() if port in ports}
        self._port_totals = nic_counters.totals(counted, self._ports, read)
        self._ports = {port: each for port, each in (self._ports | read).items() if port in ports}

    def _see_nothing(self, error: NodeError) -> None:
        if not self._blind:
            log.info("gpus_not_sampled", error=str(error))
        self._blind = True
        self._failures.inc()
