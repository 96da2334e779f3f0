"""A node whose sampler reads a /proc, cgroups, ports and a ledger on disk, and NVML as a table; its clock is
a number."""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from koordra.errors import NodeError
from koordra.kubelet_plugin.sampling.cgroups import CgroupReader
from koordra.kubelet_plugin.sampling.host_processes import HostProcesses
from koordra.kubelet_plugin.sampling.nvml_cards import CardProcesses, CardState, NvmlCards, Utilisation
from koordra.kubelet_plugin.sampling.port_reader import PortReader
from koordra.kubelet_plugin.sampling.sampler import NodeSampler
from koordra.metrics import Metrics
from koordra.node_state.granted_claims import GrantedContainers
from koordra.nri.hook.ledger import Granted, GrantedDevice, Ledger
from koordra.process.wakeable import Pause
from koordra.topology.machine import Machine
from tests.fakes.metric_samples import sample

UID = "8d0c3a52-5b0e-4b57-9d2b-4a3f6f1d2c11"
MINE, OTHERS = "ab" * 32, "cd" * 32
HOSTS = "pid:[4026531836]"


@dataclass
class Proc:
    """A /proc in which processes come and go."""

    folder: Path

    def __post_init__(self) -> None:
        (self.folder / "self" / "ns").mkdir(parents=True)
        (self.folder / "self" / "ns" / "pid").symlink_to(HOSTS)
        (self.folder / "self" / "mountinfo").write_text("20 1 8:1 / / rw - ext4 /dev/sda1 rw\n")

    def add(self, pid: int, container: str = "", *, name: bytes = b"python", started: int = 100) -> None:
        here = self.folder / str(pid)
        shutil.rmtree(here, ignore_errors=True)
        (here / "ns").mkdir(parents=True)
        (here / "ns" / "pid").symlink_to(f"pid:[{4026540000 + pid}]")
        (here / "stat").write_bytes(b"%d (%b) S %b %d 4096 0\n" % (pid, name, b"0 " * 18, started))
        (here / "status").write_bytes(b"Name:\t%b\nNSpid:\t%d\t1\n" % (name.replace(b"\n", b"\\n"), pid))
        (here / "mountinfo").write_text("30 20 8:1 /x / rw - ext4 /dev/sda1 rw\n")
        inside = f"kubepods.slice/kubepods-pod{UID}.slice/cri-containerd-{container}.scope"
        (here / "cgroup").write_text(f"0::/{inside if container else 'system.slice/dcgm.service'}\n")

    def remove(self, pid: int) -> None:
        shutil.rmtree(self.folder / str(pid))


@dataclass
class Cards(NvmlCards):
    """NVML as a table. `asked`: what was asked, in order; `takes`: seconds that a question takes."""

    lists: dict[str, CardProcesses] = field(default_factory=dict)
    sampled: dict[str, tuple[Utilisation, ...]] = field(default_factory=dict)
    error: str = ""
    asked: list[tuple[str, frozenset[str]]] = field(default_factory=list)
    takes: float = 0.0
    now: float = 0.0

    def _ask(self, what: str, uuids: Iterable[str]) -> frozenset[str]:
        cards = frozenset(uuids)
        self.asked.append((what, cards))
        self.now += self.takes
        if self.error:
            raise NodeError(self.error)
        return cards

    def processes(self, uuids: Iterable[str]) -> dict[str, CardProcesses]:
        return {uuid: self.lists.get(uuid, CardProcesses()) for uuid in self._ask("processes", uuids)}

    def states(self, uuids: Iterable[str]) -> dict[str, CardState]:
        return {uuid: CardState(0.5) for uuid in self._ask("states", uuids)}

    def utilisations(self, since: Mapping[str, int]) -> dict[str, tuple[Utilisation, ...]]:
        asked = self._ask("utilisations", since)
        return {
            uuid: tuple(each for each in self.sampled.get(uuid, ()) if each.at > since[uuid])
            for uuid in asked
        }


@dataclass
class Node:
    folder: Path
    machine: Machine
    cards: Cards
    proc: Proc
    metrics: Metrics = field(default_factory=Metrics)
    busy: float = 0.0
    """Seconds of a processor that pass between two questions for them."""
    spent: float = 0.0
    sampler: NodeSampler = field(init=False)

    def __post_init__(self) -> None:
        self.start(self.cards)

    def start(self, nvml: NvmlCards) -> None:
        self.metrics, granted = Metrics(), GrantedContainers(self.folder)
        (self.folder / "claims").mkdir(exist_ok=True)
        processes = HostProcesses(
            self.folder / "claims",
            proc=self.proc.folder,
            held_by=granted.claims_of,
            clock=lambda: self.cards.now,
        )
        self.sampler = NodeSampler(
            nvml,
            processes,
            machine=lambda: self.machine,
            granted=granted,
            metrics=self.metrics,
            ports=PortReader(self.folder),
            cgroups=CgroupReader(self.folder, clock=lambda: self.cards.now),
            clock=lambda: self.cards.now,
            spent=self._spend,
        )

    def _spend(self) -> float:
        self.spent += self.busy
        return self.spent

    def grant(self, container: str, *devices: str, name: str = "train") -> None:
        held = tuple(GrantedDevice("team", "claim", UID, device, "gpu", None) for device in devices)
        Ledger(self.folder).add(
            container, Granted(UID, (), frozenset(), held, container=("team", "job-0", name))
        )

    def step(self) -> Pause:
        """The next one, when it is due."""
        pause = self.sampler.step()
        assert pause.at_most is not None
        self.cards.now += pause.at_most
        return pause

    def figure(self, name: str, **labels: str) -> float | None:
        """`uuid`: of a card, as dcgm-exporter's labels have it."""
        place = {"UUID": labels.pop("uuid"), "GPU_I_ID": ""} if "uuid" in labels else {}
        return sample(self.metrics, name, {**labels, **place})


def uuid(node: Node, number: int = 0) -> str:
    return str(node.machine.gpus[number].uuid)
