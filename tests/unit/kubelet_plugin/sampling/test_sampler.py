"""The node's sampler: NVML is the fake behind nvidia-ml-py, or a table; /proc and the ledger are on disk."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from koordra.kubelet_plugin.nvidia_driver.nvml_session import NvmlLibrary
from koordra.kubelet_plugin.publish.devices import mig_devices
from koordra.kubelet_plugin.sampling import use
from koordra.kubelet_plugin.sampling.cgroups import CgroupUse
from koordra.kubelet_plugin.sampling.holdings import units_of
from koordra.kubelet_plugin.sampling.host_processes import Process
from koordra.kubelet_plugin.sampling.nvml_cards import CardProcesses, CardState, NvmlCards, Utilisation
from koordra.kubelet_plugin.sampling.sample import KEPT, NOBODY, WHOSE, OnCard, PortOf, RecentSamples, Sample
from koordra.kubelet_plugin.sampling.sampler import BRISK, LOAD, LONGEST, PERIOD, WAIT
from koordra.metrics import Metrics
from koordra.node_state.granted_claims import ContainerName, GrantedContainer, HeldDevice
from koordra.nri.hook.ledger import Ledger
from koordra.process import progress
from koordra.process.lifecycle import spawn
from koordra.process.wakeable import Pause
from koordra.process.watchdog import Watchdog
from tests.fakes import nvml_library
from tests.fakes.nvml_library import FakeNvml
from tests.fakes.sampled_node import MINE, OTHERS, UID, Cards, Node, Proc, uuid
from tests.machines import catalogue
from tests.patience import PATIENCE
from tests.unit.kubelet_plugin.running_plugin import wait_for


@pytest.fixture
def node(tmp_path: Path) -> Node:
    machine = catalogue.machine("hgx-h100")
    return Node(tmp_path, replace(machine, gpus=machine.gpus[:2]), Cards(), Proc(tmp_path / "proc"))


def test_processes_are_their_containers_and_strangers_are_seen(node: Node) -> None:
    first, second = uuid(node), uuid(node, 1)
    node.grant(MINE, node.machine.gpus[0].name)
    node.proc.add(41, MINE)
    node.proc.add(42, OTHERS)
    node.proc.add(43)
    node.proc.add(44, MINE)
    node.cards.lists = {
        first: CardProcesses({41: 100, 42: 7, 43: None, 4711: 1}),
        second: CardProcesses({44: 5}),
    }
    node.step()
    assert {row: node.figure("koordra_gpu_processes", uuid=first, whose=row) for row in WHOSE} == {
        "granted": 1,
        "stranger": 1,
        "host": 1,
        "unknown": 1,
    }
    assert node.figure("koordra_gpu_process_memory_bytes", uuid=first, whose="stranger") == 7
    assert node.figure("koordra_gpu_processes", uuid=second, whose="stranger") == 1, "granted another card"
    held = {"namespace": "team", "pod": "job-0", "container": "train", "uuid": first}
    assert node.figure("koordra_container_gpu_memory_bytes", **held) == 100
    assert node.figure("koordra_container_gpu_processes", **held) == 1
    assert node.figure("koordra_gpu_busy_ratio", uuid=first) == 0.5


def test_without_a_hook_nobody_is_called_a_stranger(node: Node) -> None:
    node.proc.add(42, OTHERS)
    node.cards.lists = {uuid(node): CardProcesses({42: 7})}
    node.step()
    assert node.figure("koordra_gpu_processes", uuid=uuid(node), whose="unknown") == 1
    assert node.figure("koordra_gpu_processes", uuid=uuid(node), whose="stranger") == 0


def test_time_is_counted_for_the_container_and_kept_when_its_process_ends(node: Node) -> None:
    first = uuid(node)
    node.grant(MINE, node.machine.gpus[0].name)
    node.proc.add(41, MINE)
    second = 1_000_000
    node.cards.lists = {first: CardProcesses({41: 1})}
    node.cards.sampled = {first: (Utilisation(41, second, 100),)}
    node.step()
    node.cards.sampled = {first: (Utilisation(41, 6 * second, 40), Utilisation(42, 6 * second, 60))}
    node.proc.remove(41)
    node.step()
    held = {"namespace": "team", "pod": "job-0", "container": "train"}
    assert node.figure("koordra_container_gpu_seconds_total", **held, uuid=first) == pytest.approx(2)
    nobody = dict.fromkeys(held, "")
    assert node.figure("koordra_container_gpu_seconds_total", **nobody, uuid=first) == pytest.approx(3)
    Ledger(node.folder).remove(MINE)
    node.step()
    assert node.figure("koordra_container_gpu_seconds_total", **held, uuid=first) is None
    assert node.figure("koordra_container_gpu_seconds_total", **nobody, uuid=first) == pytest.approx(5)


def test_one_question_a_card_and_only_as_often_as_it_is_wanted(node: Node) -> None:
    both = frozenset((uuid(node), uuid(node, 1)))
    assert node.step() == Pause(BRISK, PERIOD)
    assert node.cards.asked == [("utilisations", both), ("processes", both), ("states", both)]
    node.cards.asked.clear()
    node.sampler.timed = lambda: (uuid(node),)
    for _ in range(10):
        assert node.step() == Pause(BRISK, BRISK)
    assert node.cards.asked[-9:] == [("utilisations", frozenset((uuid(node),)))] * 9


def test_lists_that_the_limiter_has_asked_for_are_not_asked_for_again(node: Node) -> None:
    node.cards.lists = {uuid(node): CardProcesses({43: 9})}
    node.proc.add(43)
    node.sampler.processes([uuid(node)])
    node.step()
    assert [cards for what, cards in node.cards.asked if what == "processes"] == [
        frozenset((uuid(node),)),
        frozenset((uuid(node, 1),)),
    ]
    assert node.figure("koordra_gpu_process_memory_bytes", uuid=uuid(node), whose="host") == 9


@pytest.mark.parametrize("takes", [0.0, 0.001, 0.05, 10.0])
@pytest.mark.parametrize("busy", [0.0, 0.001, 0.02, 5.0])
def test_sampling_takes_a_part_of_a_processor_and_of_the_time(node: Node, takes: float, busy: float) -> None:
    node.sampler.timed = lambda: (uuid(node),)
    node.cards.takes, node.busy = takes, busy
    pause = node.sampler.step()
    rest = min(max(busy / LOAD, 3 * takes / WAIT), LONGEST)
    assert pause.at_least == pytest.approx(max(BRISK, rest))


def test_without_nvml_ports_are_sampled_alone(node: Node) -> None:
    nic = node.machine.nics[0]
    port = node.folder / f"sys/class/infiniband/{nic.ib_device}/ports/{nic.ports[0].number}/counters"
    port.mkdir(parents=True)
    (port / "port_rcv_data").write_text("1000\n")
    node.cards.error = "NVML cannot be asked: the driver's libnvidia-ml.so.1 is not found"
    node.sampler.timed = lambda: (uuid(node),)
    pause = node.step()
    assert pause.at_most == PERIOD, "it is not asked ten times a second"
    assert len(node.cards.asked) == 1
    assert node.figure("koordra_sampler_failures_total") == 1
    labels = {
        "device": nic.name,
        "port": str(nic.ports[0].number),
        "namespace": "",
        "pod": "",
        "container": "",
    }
    assert node.figure("koordra_nic_received_bytes_total", **labels) == 4000
    node.grant(MINE, nic.name)
    (port / "port_rcv_data").write_text("1001\n")
    node.step()
    labels |= {"namespace": "team", "pod": "job-0", "container": "train"}
    assert node.figure("koordra_nic_received_bytes_total", **labels) == 4004, "whoever has it alone"
    node.grant(OTHERS, nic.name, name="other")
    node.step()
    assert node.figure("koordra_nic_received_bytes_total", **labels) is None
    node.cards.error = ""
    node.step()
    assert node.figure("koordra_gpu_busy_ratio", uuid=uuid(node)) == 0.5


def test_a_sample_says_all_by_container_and_stays_as_it_is(node: Node) -> None:
    first, nic = uuid(node), node.machine.nics[0]
    node.grant(MINE, node.machine.gpus[0].name, nic.name)
    node.proc.add(41, MINE)
    node.cards.lists = {first: CardProcesses({41: 100})}
    node.cards.sampled = {first: (Utilisation(41, 1_000_000, 100),)}
    cgroup = node.folder / f"sys/fs/cgroup/kubepods/pod{UID}"
    port = node.folder / f"sys/class/infiniband/{nic.ib_device}/ports/{nic.ports[0].number}/counters"
    port.mkdir(parents=True)
    (port / "port_rcv_data").write_text("1000\n")
    (cgroup / MINE).mkdir(parents=True)
    (node.folder / "sys/fs/cgroup/cgroup.controllers").write_text("cpu\n")
    (cgroup / "cpu.stat").write_text("usage_usec 9000000\n")
    (cgroup / MINE / "cpu.stat").write_text("usage_usec 7000000\n")
    (cgroup / MINE / "memory.current").write_text("4096\n")
    assert node.sampler.samples.last == Sample()
    node.step()
    before, began = node.sampler.samples.last, node.cards.now
    node.cards.sampled = {first: (Utilisation(41, 2_000_000, 50),)}
    (cgroup / MINE / "cpu.stat").write_text("usage_usec 8000000\n")
    (port / "port_rcv_data").write_text("1001\n")
    node.step()
    (taken,) = node.sampler.samples.since(before.at)
    name = ContainerName("team", "job-0", "train")
    assert taken.at == began
    assert taken.cards[first] == CardState(0.5)
    assert taken.of_containers == {(name, first): OnCard(1, 100)}
    assert taken.on_cards[first, "granted"] == OnCard(1, 100)
    assert taken.device_seconds == {(name, first): 0.5}
    assert taken.cgroups == {name: CgroupUse(8, 4096), name._replace(container=""): CgroupUse(9, None)}
    assert taken.ports[PortOf(nic.name, nic.ports[0].number, name)]["received_bytes"] == 4004
    assert before.cgroups[name] == CgroupUse(7, 4096)
    assert before.ports[PortOf(nic.name, nic.ports[0].number, name)]["received_bytes"] == 4000
    Ledger(node.folder).remove(MINE)
    node.step()
    assert taken.device_seconds == {(name, first): 0.5}
    assert node.sampler.samples.last.device_seconds == {(NOBODY, first): 0.5}
    assert node.sampler.samples.last.cgroups == {}


def test_two_containers_of_one_name_count_together(node: Node) -> None:
    for number, seconds in ((MINE, 1), (OTHERS, 2)):
        node.grant(number, node.machine.gpus[0].name)
        here = node.folder / f"sys/fs/cgroup/kubepods/pod{UID}/{number}"
        here.mkdir(parents=True)
        (here / "cpu.stat").write_text(f"usage_usec {seconds}000000\n")
    (node.folder / "sys/fs/cgroup/cgroup.controllers").write_text("cpu\n")
    node.step()
    cgroups = node.sampler.samples.last.cgroups
    assert cgroups[ContainerName("team", "job-0", "train")] == CgroupUse(3, None)


def test_the_last_samples_are_kept_and_no_more() -> None:
    samples = RecentSamples()
    for at in range(1, 3 * KEPT):
        samples.add(Sample(at))
    assert samples.last.at == 3 * KEPT - 1
    assert [each.at for each in samples.since(0)] == list(range(2 * KEPT, 3 * KEPT))
    assert [each.at for each in samples.since(3 * KEPT - 3)] == [3 * KEPT - 2, 3 * KEPT - 1]


def test_pids_of_another_namespace_are_nobodys(node: Node) -> None:
    node.grant(MINE, node.machine.gpus[0].name)
    node.proc.add(41, MINE)
    (node.proc.folder / "self" / "ns" / "pid").unlink()
    (node.proc.folder / "self" / "ns" / "pid").symlink_to("pid:[4026532000]")
    told: list[Mapping[int, Process]] = []
    node.sampler.on_time = lambda _uuid, _seen, owners: told.append(owners)
    node.cards.sampled = {uuid(node): (Utilisation(41, 1, 100),)}
    node.step()
    node.cards.sampled = {uuid(node): (Utilisation(41, 1_000_000, 100),)}
    node.step()
    assert told == [{}, {}]
    held = {"namespace": "team", "pod": "job-0", "container": "train", "uuid": uuid(node)}
    assert node.figure("koordra_container_gpu_seconds_total", **held) is None
    assert node.figure("koordra_container_gpu_memory_bytes", **held) is None, "not known, which is not none"


@pytest.mark.parametrize("name", [b"a) R 0 0", b"\xff\xfe", b"\n0::/kubepods/pod1/x", b") S " + b"9 " * 20])
def test_a_process_may_have_any_name(node: Node, name: bytes) -> None:
    node.grant(MINE, node.machine.gpus[0].name)
    node.proc.add(41, MINE, name=name[:15])
    node.cards.lists = {uuid(node): CardProcesses({41: 100})}
    node.step()
    held = {"namespace": "team", "pod": "job-0", "container": "train", "uuid": uuid(node)}
    assert node.figure("koordra_container_gpu_memory_bytes", **held) == 100


def test_a_thousand_processes_are_looked_at_once_a_period(
    tmp_path: Path, node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And read while they vanish. What is read of /proc is counted, not timed."""
    fake = FakeNvml(tmp_path, nvml_library.build())
    fake.describe(node.machine)
    for name, value in fake.environment.items():
        if name.startswith("KOORDRA_FAKE"):
            monkeypatch.setenv(name, value)
    pids = range(10_000, 11_000)
    fake.processes(*((uuid(node), "compute", pid, 1 << 20) for pid in pids))
    with fake.control.open("a") as control:
        control.write(f"state {uuid(node)} 37 250500 {0x24} {1 << 30}\n")
    node.grant(MINE, node.machine.gpus[0].name)
    for pid in pids:
        node.proc.add(pid, MINE)
    node.start(NvmlCards(NvmlLibrary(lambda: fake.library / "libnvidia-ml.so.1")))
    node.step()
    held = {"namespace": "team", "pod": "job-0", "container": "train", "uuid": uuid(node)}
    assert node.figure("koordra_container_gpu_processes", **held) == 1000
    assert node.figure("koordra_gpu_power_watts", uuid=uuid(node)) == 250.5
    assert node.figure("koordra_gpu_busy_ratio", uuid=uuid(node)) == 0.37
    assert node.figure("koordra_gpu_memory_used_bytes", uuid=uuid(node)) == 1 << 30
    assert node.figure("koordra_gpu_throttled", uuid=uuid(node), reason="power_cap") == 1
    assert node.figure("koordra_gpu_throttled", uuid=uuid(node), reason="power_brake") == 0
    for pid in pids[::2]:
        node.proc.remove(pid)
    node.step()
    assert node.figure("koordra_container_gpu_processes", **held) == 500
    assert node.figure("koordra_gpu_processes", uuid=uuid(node), whose="unknown") == 500
    fake.order("error nvmlDeviceGetComputeRunningProcesses_v3 15")
    node.step()
    assert node.figure("koordra_gpu_processes", uuid=uuid(node), whose="granted") is None, "not as of before"


def test_a_driver_that_hangs_holds_one_thread_and_nobody_else(
    tmp_path: Path, node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake = FakeNvml(tmp_path, nvml_library.build())
    fake.describe(node.machine)
    for name, value in fake.environment.items():
        if name.startswith("KOORDRA_FAKE"):
            monkeypatch.setenv(name, value)
    fake.order("hang nvmlDeviceGetUtilizationRates")
    node.start(NvmlCards(NvmlLibrary(lambda: fake.library / "libnvidia-ml.so.1")))
    thread = spawn(node.sampler.step, name="sampler")
    thread.join(0.2)
    assert thread.is_alive()
    assert set(node.sampler.processes([uuid(node)])) == {uuid(node)}, "the limiter's comparison goes on"
    assert node.metrics.text(), "and so does a scrape"
    fake.order()
    thread.join(PATIENCE)
    assert not thread.is_alive()


def test_a_driver_that_hangs_is_told_of_by_the_name_of_the_thread_until_it_answers(
    tmp_path: Path, node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As the plugin's watchdog does it, which ends nothing; one that may end its process would."""
    monkeypatch.setattr(progress, "threads", {})
    fake = FakeNvml(tmp_path, nvml_library.build())
    fake.describe(node.machine)
    for name, value in fake.environment.items():
        if name.startswith("KOORDRA_FAKE"):
            monkeypatch.setenv(name, value)
    fake.order("hang nvmlDeviceGetUtilizationRates")
    node.start(NvmlCards(NvmlLibrary(lambda: fake.library / "libnvidia-ml.so.1")))
    told, ended, stop = list[set[str]](), list[str](), threading.Event()
    plugins = Watchdog(Metrics(), told=lambda stuck: told.append(set(stuck)), write_stacks=lambda: None)
    others = Watchdog(Metrics(), end=lambda: ended.append("ended"), write_stacks=lambda: None)
    thread = spawn(partial(node.sampler.run, stop), name="sample-node", until=stop)
    try:
        assert wait_for(lambda: (plugins.look(), others.look(), bool(ended))[2], PATIENCE)
        assert (plugins.stuck, told) == ({"sample-node"}, [{"sample-node"}])
        assert node.sampler.samples.last == Sample()
        fake.order()
        assert wait_for(lambda: (plugins.look(), plugins.is_well())[1], PATIENCE)
        assert wait_for(lambda: uuid(node) in node.sampler.samples.last.cards, PATIENCE)
    finally:
        fake.order()
        stop.set()
        node.sampler.wake()
        thread.join(PATIENCE)


def test_a_mig_instance_is_a_card_of_its_own() -> None:
    machine = catalogue.machine("mig-a100")
    card = next(gpu for gpu in machine.gpus if len(gpu.mig_instances) > 1)
    names = use.device_names(machine)
    assert card.uuid not in names
    one, other = list(mig_devices(card))[:2]
    granted = {
        MINE: GrantedContainer(ContainerName("team", "p", "c"), (UID,), (HeldDevice(one.name, UID),)),
        OTHERS: GrantedContainer(ContainerName("team", "q", "c"), (UID,), (HeldDevice(other.name, UID),)),
    }
    process = Process(7, 1, (), 7, 0, container=MINE)
    found = [use.whose(process, names[str(each.instance.uuid)], granted) for each in (one, other)]
    assert found == ["granted", "stranger"]
    assert one.instance is not None
    unit = units_of(machine)[one.name]
    assert unit.place == (card.uuid, str(one.instance.gpu_instance)), "as dcgm-exporter's labels have it"
    assert unit.nvml == one.instance.uuid


PROCESSES = st.dictionaries(st.integers(1, 9), st.one_of(st.none(), st.integers(0, 1 << 40)), max_size=9)
CONTAINERS = st.sampled_from(["", MINE, OTHERS])


@given(PROCESSES, st.dictionaries(st.integers(1, 9), CONTAINERS), st.sets(st.sampled_from([MINE, OTHERS])))
def test_no_byte_and_no_process_is_lost_or_counted_twice(
    used: dict[int, int | None], places: dict[int, str], entries: set[str]
) -> None:
    owners = {pid: Process(pid, 1, (), pid, 0, container=container) for pid, container in places.items()}
    granted = {
        each: GrantedContainer(ContainerName("n", each[:2], "c"), (), (HeldDevice("gpu-0", ""),))
        for each in entries
    }
    taken = use.Listed({"GPU-1": CardProcesses(used)}, owners)
    rows = use.on_cards(taken, {"GPU-1": frozenset(("gpu-0",))}, granted=granted)
    assert sum(row.processes for row in rows.values()) == len(used)
    assert sum(row.memory for row in rows.values()) == sum(each or 0 for each in used.values())
    of = use.of_containers(taken, {}, granted=granted)
    assert sum(row.processes for row in of.values()) == rows["GPU-1", "granted"].processes
