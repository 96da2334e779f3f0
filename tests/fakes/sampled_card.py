"""A node in virtual time whose sampler asks the fake NVML of a card that real processes behind the real
limiter share, and the shares that are asked for."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

from koordra.kubelet_plugin.isolation.limiter.device_time import TimeLender
from koordra.kubelet_plugin.isolation.limiter.report import LimiterMetrics, read_all, verdicts
from koordra.kubelet_plugin.isolation.limiter.seen_time import SeenTimes
from koordra.kubelet_plugin.isolation.limiter.usage import read_policy
from koordra.kubelet_plugin.nvidia_driver.nvml_session import NvmlLibrary
from koordra.kubelet_plugin.sampling.cgroups import CgroupReader
from koordra.kubelet_plugin.sampling.host_processes import HostProcesses
from koordra.kubelet_plugin.sampling.nvml_cards import NvmlCards
from koordra.kubelet_plugin.sampling.port_reader import PortReader
from koordra.kubelet_plugin.sampling.sampler import NodeSampler
from koordra.metrics import Metrics
from koordra.node_state.granted_claims import GrantedContainers
from tests.fakes.metric_samples import sample
from tests.fakes.nvml_library import FakeNvml
from tests.fakes.shared_card import MS, UUID, SharedCard, shared_card
from tests.machines import catalogue

LONG_BESIDE_BUSY = [(10, "LONG"), (90, "LONG")]
SHARES = {
    "thirty and seventy": [(30, "PLAIN"), (70, "HALF")],
    "thirty and seventy, bursts": [(30, "BURST"), (70, "BURST")],
    "thirty and seventy, long and short": [(30, "LONG"), (70, "SHORT")],
    "thirty and seventy, short and long": [(30, "SHORT"), (70, "LONG")],
    "ten and ninety": [(10, "GRAPH"), (90, "PLAIN")],
    "ten and ninety, long": LONG_BESIDE_BUSY,
    "ten and ninety, long and short": [(10, "LONG"), (90, "SHORT")],
    "ten and ninety, short and long": [(10, "SHORT"), (90, "LONG")],
    "four quarters": [(25, "SHORT"), (25, "LONG"), (25, "GRAPH"), (25, "BURST")],
    "four quarters, long": [(25, "LONG")] * 4,
    "one alone": [(30, "PLAIN")],
    "one alone, long": [(30, "LONG")],
    "one alone, short": [(30, "SHORT")],
    "one alone, graphs": [(30, "GRAPH")],
    "one alone, in several streams": [(30, "BESIDE")],
}


SECOND = 1000 * MS
DEVICE_TIME, SEEN_UNTIL = 9, 10
"""Of an unpacked DEVICE."""


@dataclass
class Node:
    """The plugin's part of a node in virtual time, whose sampler works when it is due."""

    card: SharedCard
    nvml: FakeNvml
    due: int = 0
    sampler: NodeSampler = field(init=False)
    times: SeenTimes = field(init=False)

    def __post_init__(self) -> None:
        self.start()

    def start(self) -> None:
        """A new process of the plugin, which knows nothing of one before it."""
        machine = catalogue.machine("h200-vm")
        machine = replace(machine, gpus=(replace(machine.gpus[0], uuid=UUID),))
        self.nvml.describe(machine)
        self.due = self.card.now
        processes = HostProcesses(
            self.card.claims, claim_of=lambda pid, _started: self.card.claim_of(pid), clock=self.clock
        )
        self.sampler = NodeSampler(
            NvmlCards(NvmlLibrary(lambda: self.nvml.library / "libnvidia-ml.so.1")),
            processes,
            machine=lambda: machine,
            granted=GrantedContainers(self.nvml.folder),
            metrics=Metrics(),
            ports=PortReader(self.nvml.folder),
            cgroups=CgroupReader(self.nvml.folder),
            clock=self.clock,
            spent=lambda: 0.0,
        )
        self.times = SeenTimes(self.card.claims, clock=self.clock)
        self.sampler.timed, self.sampler.on_time = self.times.cards, self.times.tell
        TimeLender(self.card.claims).step()  # of which the shares here need only that they have neighbours

    def clock(self) -> float:
        return self.card.now / 1e9

    def look(self) -> None:
        if self.card.now >= self.due:
            pause = self.sampler.step()
            assert pause.at_most is not None
            self.due = self.card.now + int(pause.at_most * 1e9)

    def run(self, ns: int, *, step: int = 50 * MS, look: Callable[[], None] | None = None) -> None:
        until = self.card.now + ns
        while self.card.now < until:
            self.card.pass_time(step)
            (look or self.look)()

    def metrics(self) -> dict[str, float]:
        """What is shown of each claim's time."""
        shown, read = Metrics(), read_all(self.card.claims)
        LimiterMetrics(shown).observe(read, verdicts(read).values())
        labels = {"namespace": "", "pod": "", "container": "", "UUID": UUID}
        name = "koordra_limiter_seen_device_seconds_total"
        return {uid: sample(shown, name, {**labels, "claim": uid}) or 0.0 for uid in read}

    def seen(self, number: int) -> tuple[int, int]:
        (device,) = read_policy(self.card.claims / f"claim-{number}")
        return device[DEVICE_TIME], device[SEEN_UNTIL]


@contextmanager
def node_with(
    built: Path, nvml: FakeNvml, tenants: Sequence[tuple[int, str]], *, sms: int = 132
) -> Iterator[Node]:
    with shared_card(built, nvml.folder, tenants, sms=sms) as card:
        yield Node(card, nvml)
