"""The real nvidia-ml-py on the fake library: what a session loads, and that nothing of it stays."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.fakes.nvml_library import FakeNvml, build
from tests.unit.native.test_fake_nvml import MACHINE

HEAD = """
import json, os, pathlib, shutil, sys
from koordra.kubelet_plugin.discovery.nvml_gpus import nvml_facts
from koordra.kubelet_plugin.sampling.nvml_cards import NvmlCards
from koordra.kubelet_plugin.nvidia_driver.nvml_session import NvmlLibrary, NvmlUnavailable

def held():
    node = os.environ["KOORDRA_FAKE_NVML_NODE"]
    return sum(os.path.realpath(f"/proc/self/fd/{name}") == node for name in os.listdir("/proc/self/fd"))

def loaded():
    return sorted({line.split()[-1] for line in open("/proc/self/maps") if "libnvidia-ml" in line})

answers = []
"""
TAIL = "\nprint(json.dumps(answers))\n"


@pytest.fixture
def fake(tmp_path: Path) -> FakeNvml:
    made = FakeNvml(tmp_path, build())
    made.describe(MACHINE)
    return made


def test_sessions_that_overlap_share_the_library_and_the_last_lets_go(fake: FakeNvml) -> None:
    library = str(fake.library / "libnvidia-ml.so.1")
    code = """
library = NvmlLibrary(lambda: pathlib.Path(sys.argv[1]))
with library.session():
    with library.session() as nvml:
        answers.append([held(), loaded(), nvml.nvmlDeviceGetCount()])
    answers.append([held(), loaded()])
answers.append([held(), loaded()])
"""
    shared, left, over = fake.run(HEAD + code + TAIL, library)
    assert shared == [1, [library], len(MACHINE.gpus)]
    assert left == [1, [library]]
    assert over == [0, []]


def test_the_next_session_has_the_driver_that_came_meanwhile(fake: FakeNvml, tmp_path: Path) -> None:
    """An upgrade replaces the library's file: same name, other file, other folder."""
    code = """
folder, machine = pathlib.Path(sys.argv[1]), pathlib.Path(os.environ["KOORDRA_FAKE_NVML_MACHINE"])
library = NvmlLibrary(lambda: next(iter(sorted(folder.glob("*/libnvidia-ml.so.1"))), None))
for version in ("550.54.15", "580.10.01"):
    (folder / version).mkdir()
    shutil.copy(sys.argv[2], folder / version / "libnvidia-ml.so.1")
    machine.write_text(machine.read_text().replace("driver 550.54.15", f"driver {version}"))
    with library.session() as nvml:
        answers.append([loaded(), str(nvml.nvmlSystemGetDriverVersion())])
    shutil.rmtree(folder / version)
answers.append([held(), loaded(), nvml_facts(library).problems[0].problem])
"""
    homes = tmp_path / "homes"
    homes.mkdir()
    found = fake.run(HEAD + code + TAIL, str(homes), str(fake.library / "libnvidia-ml.so.1"))
    expected = [[[f"{homes}/{version}/libnvidia-ml.so.1"], version] for version in ("550.54.15", "580.10.01")]
    assert found == [*expected, [0, [], "the driver's libnvidia-ml.so.1 is not found"]]


def test_no_look_leaves_the_library_open(fake: FakeNvml) -> None:
    """Neither a reading of the machine nor the limiter's look, nor a library that does not start."""
    code = """
library = NvmlLibrary(lambda: pathlib.Path(sys.argv[1]))
during = []
nvml_facts(library)
answers.append([held(), loaded()])
answers.append(sorted(NvmlCards(library).processes([sys.argv[2]])))
answers.append([held(), loaded()])
pathlib.Path(os.environ["KOORDRA_FAKE_NVML_CONTROL"]).write_text("error nvmlInitWithFlags 9\\n")
try:
    with library.session():
        pass
except NvmlUnavailable:
    answers.append([held(), loaded()])
"""
    uuid = MACHINE.gpus[0].uuid
    found = fake.run(HEAD + code + TAIL, str(fake.library / "libnvidia-ml.so.1"), uuid or "")
    assert found == [[0, []], [uuid], [0, []], [0, []]]


def test_the_double_shows_who_has_it_open(fake: FakeNvml) -> None:
    """As the kernel counts: by process, also of one that is gone without a word."""
    code = """
library = NvmlLibrary(lambda: pathlib.Path(sys.argv[1]))
with library.session():
    print("open", flush=True)
    sys.stdin.read()
"""
    assert fake.holders() == []
    arguments = [sys.executable, "-c", HEAD + code, str(fake.library / "libnvidia-ml.so.1")]
    pipe = subprocess.PIPE
    with subprocess.Popen(arguments, env=fake.environment, stdin=pipe, stdout=pipe) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"open\n"
        assert fake.holders() == [process.pid]
        process.kill()
    assert fake.holders() == []


def test_a_library_that_is_let_go_opens_nothing_and_readings_keep_what_it_said(fake: FakeNvml) -> None:
    """Neither a reading nor the limiter's look; only the word that a card needs no reset is not kept."""
    code = """
from koordra.errors import NodeError
from koordra.kubelet_plugin.discovery.nvml_gpus import LastFacts
library = NvmlLibrary(lambda: pathlib.Path(sys.argv[1]))
facts = LastFacts(library)
answers.append(len(facts().problems))
library.let_go(within=0.0)
before = LastFacts(library)()
kept = facts()
answers.append([held(), loaded(), len(kept.gpus), len(before.gpus), {gpu.recovered for gpu in kept.gpus} == {None}])
try:
    NvmlCards(library).processes([sys.argv[2]])
except NodeError as error:
    answers.append("let go" in str(error))
library.take_up()
answers.append([sorted(NvmlCards(library).processes([sys.argv[2]])), len(facts().gpus)])
"""
    uuid = MACHINE.gpus[0].uuid or ""
    found = fake.run(HEAD + code + TAIL, str(fake.library / "libnvidia-ml.so.1"), uuid)
    count = len(MACHINE.gpus)
    assert found == [0, [0, [], count, 0, True], True, [[uuid], count]]


def test_letting_go_waits_for_sessions_and_says_when_one_does_not_end(fake: FakeNvml) -> None:
    code = """
import threading
library = NvmlLibrary(lambda: pathlib.Path(sys.argv[1]))
opened, end = threading.Event(), threading.Event()

def use():
    with library.session():
        opened.set()
        end.wait()

thread = threading.Thread(target=use)
thread.start()
opened.wait()
answers.append([library.let_go(within=0.05), held()])
end.set()
answers.append([library.let_go(within=60.0), held()])
thread.join()
"""
    found = fake.run(HEAD + code + TAIL, str(fake.library / "libnvidia-ml.so.1"))
    assert found == [[False, 1], [True, 0]]


def test_a_reading_that_is_in_progress_ends_at_the_next_card_and_changes_nothing(fake: FakeNvml) -> None:
    code = """
from koordra.kubelet_plugin.discovery.nvml_gpus import LastFacts
class Library(NvmlLibrary):
    looks = 0
    def require(self):
        self.looks += 1
        if self.looks == 7:  # 4 of the first reading: the session, 3 cards
            self.let_go(within=0.0)
        super().require()
library = Library(lambda: pathlib.Path(sys.argv[1]))
facts = LastFacts(library)
whole = facts()
answers.append([facts().gpus == whole.gpus, len(facts().gpus), library.looks, held(), loaded()])
"""
    found = fake.run(HEAD + code + TAIL, str(fake.library / "libnvidia-ml.so.1"))
    assert len(MACHINE.gpus) == 3
    assert found == [[True, 3, 8, 0, []]]


def test_a_library_that_does_not_shut_down_is_unloaded_all_the_same(fake: FakeNvml, tmp_path: Path) -> None:
    """Or the calls of the next session would go to the driver of the last one."""
    code = """
folder, control = pathlib.Path(sys.argv[1]), pathlib.Path(os.environ["KOORDRA_FAKE_NVML_CONTROL"])
library = NvmlLibrary(lambda: next(iter(sorted(folder.glob("*/libnvidia-ml.so.1"))), None))
for name in ("b", "a"):
    (folder / name).mkdir()
    shutil.copy(sys.argv[2], folder / name / "libnvidia-ml.so.1")
    with library.session():
        answers.append(loaded())
        control.write_text("error nvmlShutdown 999\\n")
    answers.append(loaded())
"""
    found = fake.run(HEAD + code + TAIL, str(tmp_path), str(fake.library / "libnvidia-ml.so.1"))
    assert found == [[f"{tmp_path}/b/libnvidia-ml.so.1"], [], [f"{tmp_path}/a/libnvidia-ml.so.1"], []]
