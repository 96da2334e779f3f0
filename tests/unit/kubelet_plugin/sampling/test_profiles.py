"""Profiles of pods, by the real sampler over a scripted load, through restarts, kills and full disks."""

from __future__ import annotations

import json
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

from koordra.kubelet_plugin.sampling.nvml_cards import CardProcesses, Utilisation
from koordra.kubelet_plugin.sampling.profiles import (
    ENDED,
    FILE,
    MOST,
    SAVED,
    ProfileRecorder,
    Recording,
    read_recording,
)
from koordra.kubelet_plugin.sampling.sample import OnCard, RecentSamples, Sample
from koordra.node_state.disk import Disk
from koordra.node_state.granted_claims import ContainerName
from koordra.nri.hook.ledger import Ledger
from koordra.profiles.profile import PodProfile
from koordra.profiles.series import MIB, Series
from koordra.profiles.summary import ERROR
from tests.fakes.disks import DyingDisk, FailingDisk, Killed
from tests.fakes.sampled_node import MINE, UID, Cards, Node, Proc, uuid
from tests.machines import catalogue

GIB = 1 << 30
WALL = 1_700_000_000.0
PHASES = (
    (240, 20, 4 * GIB, 2.0, 6 * GIB, 10_000_000),
    (360, 80, 40 * GIB, 8.0, 20 * GIB, 900_000_000),
    (120, 0, GIB, 0.25, GIB, 0),
)
"""Five seconds each: percent of the time that kernels run, GPU memory, processors, host memory, bytes a
second."""


@dataclass
class Loaded:
    """A node on which a pod does what a script says, and the recorder of one process of the plugin after
    another."""

    node: Node
    disk: Disk = field(default_factory=Disk)
    driver: int = 1_000_000
    cpu: float = 100.0
    moved: int = 0
    recorder: ProfileRecorder = field(init=False)

    def __post_init__(self) -> None:
        self.node.grant(MINE, self.node.machine.gpus[0].name, self.node.machine.nics[0].name)
        self.node.proc.add(41, MINE)
        self.cgroup = self.node.folder / f"sys/fs/cgroup/kubepods/pod{UID}"
        (self.cgroup / MINE).mkdir(parents=True)
        (self.node.folder / "sys/fs/cgroup/cgroup.controllers").write_text("cpu\n")
        nic = self.node.machine.nics[0]
        self.port = (
            self.node.folder / f"sys/class/infiniband/{nic.ib_device}/ports/{nic.ports[0].number}/counters"
        )
        self.port.mkdir(parents=True)
        self.restart()

    def restart(self) -> None:
        self.node.start(self.node.cards)
        self.recorder = ProfileRecorder(
            self.node.folder,
            node="n1",
            samples=self.node.sampler.samples,
            disk=self.disk,
            clock=lambda: self.node.cards.now,
            wall=lambda: WALL + self.node.cards.now,
        )

    def run(self, steps: int, percent: int, memory: int, cpus: float, host: int, rate: int) -> None:
        first = uuid(self.node)
        for _ in range(steps):
            self.node.cards.lists = {first: CardProcesses({41: memory})}
            seconds = [self.driver + (number + 1) * 1_000_000 for number in range(5)]
            self.node.cards.sampled = {first: tuple(Utilisation(41, at, percent) for at in seconds)}
            self.driver = seconds[-1]
            self.cpu += 5 * cpus
            self.moved += 5 * rate // 4
            for folder in (self.cgroup, self.cgroup / MINE):
                (folder / "cpu.stat").write_text(f"usage_usec {round(self.cpu * 1e6)}\n")
                (folder / "memory.current").write_text(f"{host}\n")
            (self.port / "port_rcv_data").write_text(f"{self.moved}\n")
            self.node.step()
            if round(self.node.cards.now) % 15 == 0:
                self.recorder.attempt()

    def end(self) -> None:
        Ledger(self.node.folder).remove(MINE)
        for _ in range(20):
            self.node.step()
            self.recorder.attempt()

    @property
    def profile(self) -> PodProfile:
        (found,) = read_recording(json.loads(self.recorder.text()), "n1").pods.values()
        return found


@pytest.fixture
def loaded(tmp_path: Path) -> Loaded:
    machine = catalogue.machine("hgx-h100")
    return Loaded(Node(tmp_path, replace(machine, gpus=machine.gpus[:1]), Cards(), Proc(tmp_path / "proc")))


Script = tuple[tuple[int, int, int, float, int, int], ...]


def scripted(script: Script, column: int, *, scale: float) -> list[float]:
    """Every five seconds' value."""
    return [phase[column] * scale for phase in script for _ in range(phase[0])]


@pytest.mark.parametrize(
    ("length", "killed"),
    [(1 / 6, False), pytest.param(1, True, marks=pytest.mark.long)],
    ids=["ten minutes", "an hour, killed thrice"],
)
def test_a_profile_is_what_was_scripted(loaded: Loaded, length: float, killed: bool) -> None:
    script = tuple((round(phase[0] * length), *phase[1:]) for phase in PHASES)
    for phase in script:
        loaded.run(*phase)
        if killed:  # what was since the last write is lost
            loaded.restart()
    loaded.end()
    profile, seconds = loaded.profile, round(3600 * length)
    assert (profile.namespace, profile.pod, profile.uid, profile.node) == ("team", "job-0", UID, "n1")
    assert profile.card == loaded.node.machine.gpus[0].memory_bytes
    lost = 3 * (SAVED + 15) if killed else 10.0
    assert abs(profile.until - profile.began - seconds) <= lost
    for series, column, scale in (
        (Series.SM, 1, 10),
        (Series.GPU_MEMORY, 2, 1),
        (Series.CPU, 3, 1000),
        (Series.MEMORY, 4, 1),
        (Series.RDMA, 5, 1),
    ):
        check(profile, series, scripted(script, column, scale=scale), lost=lost)


def check(profile: PodProfile, series: Series, played: list[float], *, lost: float) -> None:
    """Within the error that is stated, and the samples that are lost or shared by two phases."""
    found, ordered, some = profile.use[series], sorted(played), round(lost / 5) + 2
    assert found.peak == ordered[-1], series
    assert abs(found.seconds - 5 * len(played)) <= lost, series
    rank = len(ordered) // 10
    for number, value in enumerate((*found.deciles, found.p99)):
        near = ordered[max(0, (number + 1) * rank - some) : (number + 1) * rank + some] or ordered[-some:]
        least, most = near[0] * (1 - ERROR) - 1, near[-1] * (1 + ERROR) + 1
        assert least - series.resolution <= value <= most + series.resolution, (series, number)
    for part in (3, 8):  # in the middle of a phase
        wanted = pytest.approx(ordered[part * rank - 1], rel=ERROR, abs=series.resolution)
        assert found.deciles[part - 1] == wanted, series
    points = [point for point in found.points if point is not None]
    assert len(points) == 10
    for number, point in enumerate(points):
        part = played[max(0, number * rank - some) : (number + 1) * rank + some]
        assert min(part) * 0.99 - 1 <= point <= max(part) * 1.01 + 1, (series, number)
    assert sum(points) / 10 == pytest.approx(sum(played) / len(played), rel=0.05), series


def test_killed_anywhere_in_a_write_nothing_older_is_lost(loaded: Loaded) -> None:
    loaded.run(24, *PHASES[0][1:])
    loaded.recorder.attempt()
    kept = json.loads((loaded.node.folder / FILE).read_text())
    for at in range(20):
        dying = DyingDisk(at)
        loaded.disk = dying
        loaded.restart()
        with suppress(Killed):
            loaded.run(3, *PHASES[1][1:])
        found = read_recording(json.loads((loaded.node.folder / FILE).read_text()), "n1")
        assert next(iter(found.pods.values())).until >= kept["pods"][0]["until"]
        if not dying.died:
            return
    pytest.fail("it was killed at every step")


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{",
        b"[]",
        b'{"schema": "other", "pods": []}',
        b'{"schema": "koordra.io/profiles/v1", "pods": [7]}',
        b"\xff" * 9,
    ],
)
def test_a_file_that_says_nothing_is_begun_anew(loaded: Loaded, content: bytes) -> None:
    (loaded.node.folder / FILE).write_bytes(content)
    loaded.run(24, *PHASES[0][1:])
    assert loaded.profile.use[Series.GPU_MEMORY].peak == 4 * GIB
    assert read_recording(json.loads((loaded.node.folder / FILE).read_text()), "n1").pods


def test_on_a_full_disk_profiles_go_on_and_are_written_later(loaded: Loaded) -> None:
    loaded.disk = full = FailingDisk(full=True)
    loaded.restart()
    loaded.run(48, *PHASES[0][1:])
    assert loaded.profile.use[Series.GPU_MEMORY].peak == 4 * GIB, "it is served all the same"
    assert not (loaded.node.folder / FILE).exists()
    full.full = False
    loaded.recorder.attempt()
    assert (loaded.node.folder / FILE).read_text() == loaded.recorder.text()


def played(recording: Recording, at: float, *pods: tuple[str, str]) -> None:
    """Two samples, five seconds apart, of pods on one card."""
    names = [ContainerName(*pod, "main") for pod in pods]
    for moment in (at, at + 5):
        holders = {(name, "GPU-1"): OnCard(1, 3 * MIB) for name in names}
        taken = Sample(
            at=moment, of_containers=holders, pod_uids={name[:2]: f"uid-{name.pod}" for name in names}
        )
        recording.take(taken, at=round((WALL + moment) * 1000))


def test_short_pods_of_one_namespace_drive_out_none_of_another() -> None:
    recording = Recording("n1")
    played(recording, 0, ("quiet", "once"))
    for number in range(MOST + 50):
        played(recording, 100 + number * 10, ("loud", f"pod-{number}"))
    assert len(recording.pods) == MOST
    kept = {key.pod for key in recording.pods}
    assert "once" in kept
    assert f"pod-{MOST + 49}" in kept
    assert "pod-0" not in kept


def test_pods_are_forgotten_a_day_after_their_end() -> None:
    recording = Recording("n1")
    played(recording, 0, ("team", "first"))
    played(recording, ENDED - 10, ("team", "second"))
    assert {key.pod for key in recording.pods} == {"first", "second"}
    played(recording, ENDED + 10, ("team", "third"))
    assert {key.pod for key in recording.pods} == {"second", "third"}


def test_a_pod_that_comes_again_by_the_same_name_is_another() -> None:
    recording = Recording("n1")
    name = ContainerName("team", "job-0", "main")
    for number, uid in enumerate(("first", "first", "second", "second")):
        taken = Sample(
            at=5.0 * number, of_containers={(name, "GPU-1"): OnCard(1, 1)}, pod_uids={name[:2]: uid}
        )
        recording.take(taken, at=round(WALL * 1000) + 5000 * number)
    assert {key.uid: each.use[Series.GPU_MEMORY].seconds for key, each in recording.pods.items()} == {
        "first": 5,
        "second": 10,
    }


def test_nothing_is_written_while_nothing_changes(tmp_path: Path) -> None:
    disk, now = FailingDisk(), [0.0]
    recorder = ProfileRecorder(
        tmp_path, node="n1", samples=RecentSamples(), disk=disk, clock=lambda: now[0], wall=lambda: WALL
    )
    for _ in range(4):
        recorder.attempt()
        now[0] += SAVED
    assert [step for step, _ in disk.steps].count("rename") == 1
