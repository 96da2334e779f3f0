"""Rules and dashboards as they are shipped, in Debian's Prometheus: every alert fires for its cause, made to
happen to the part of koordra that counts it; figures are those that were scripted; every query runs on the
metrics of a whole cluster."""

from __future__ import annotations

import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
import yaml

from koordra.kubelet_plugin.claims.claim_record import ClaimRecord, DeviceRecord, State
from koordra.kubelet_plugin.nvidia_driver.nvml_session import NvmlLibrary
from koordra.kubelet_plugin.sampling.nvml_cards import NvmlCards, Utilisation
from koordra.node_state.claim_ref import ClaimRef
from koordra.nri.hook.ledger import Granted, GrantedDevice, Ledger
from tests.e2e import prometheus
from tests.e2e.alert_causes import CAUSES, World
from tests.e2e.prometheus import DEPLOY, Question, Scrapes, alert_case, ask
from tests.fakes import nvml_library
from tests.fakes.nvml_library import FakeNvml
from tests.fakes.sampled_node import Cards, Node, Proc, uuid
from tests.machines import catalogue
from tests.patience import PATIENCE
from tests.unit.limiter.test_report import GIB

pytestmark = pytest.mark.e2e

ALERTS = {
    rule["alert"].removeprefix("Koordra"): rule
    for group in yaml.safe_load((DEPLOY / "prometheus-rules" / "alerts.yaml").read_text())["spec"]["groups"]
    for rule in group["rules"]
}


def test_every_alert_fires_for_its_cause_and_not_before(tmp_path: Path, binaries: Path) -> None:
    assert CAUSES.keys() == ALERTS.keys()
    cases = []
    for name, causes in CAUSES.items():
        for number, cause in enumerate(causes):
            folder = tmp_path / f"{name}-{number}"
            folder.mkdir()
            world = World(folder)
            steps = cause(world)
            next(steps)
            before, stands = world.texts(), [world.texts() for _ in steps]
            cases.append(
                alert_case(name, before, stands, since=world.since, goes_on=world.goes_on, number=number)
            )
    ask(tmp_path, binaries, cases)


def panels(board: str, title: str) -> list[str]:
    """The queries of a panel."""
    return prometheus.queries(prometheus.dashboards()[board], __range="1h")[title]


class ScriptedNode(Node):
    """A node whose driver is the fake one behind nvidia-ml-py, but for the utilisation of processes; its
    sampler is asked once a minute."""

    def minute(self, scrapes: Scrapes, number: int, percents: dict[int, int]) -> None:
        self.cards.now = 60.0 * number
        ends = [60_000_000 * number - 5_000_000 * back + 1 for back in reversed(range(12))]
        self.cards.sampled = {
            uuid(self): tuple(Utilisation(pid, at, each) for at in ends for pid, each in percents.items())
        }
        self.sampler.step()
        scrapes.take({"kubelet-plugin": self.metrics.text()})


@dataclass
class FakeDriver(NvmlCards):
    """The library's answers, and a table of who computed how long."""

    table: Cards
    library: NvmlLibrary

    def __post_init__(self) -> None:
        super().__init__(self.library)

    def utilisations(self, since: Mapping[str, int]) -> dict[str, tuple[Utilisation, ...]]:
        return self.table.utilisations(since)


def test_a_figure_on_a_dashboard_is_what_was_scripted(
    tmp_path: Path, binaries: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two containers on one card, by shares of a quarter and a half, one at 40 % and one at 20 % of it; a NIC
    that one of them has receives 4,000 bytes a second. For two hours."""
    machine = catalogue.machine("hgx-h100")
    machine = replace(machine, gpus=machine.gpus[:2])
    fake = FakeNvml(tmp_path, nvml_library.build())
    fake.describe(machine)
    for name, value in fake.environment.items():
        if name.startswith("KOORDRA_FAKE"):
            monkeypatch.setenv(name, value)
    card, nic = machine.gpus[0], machine.nics[0]
    memory = card.memory_bytes or 0
    node = ScriptedNode(tmp_path, machine, Cards(), Proc(tmp_path / "proc"))
    claims = {41: ("one", "a", "25", memory // 8), 42: ("two", "b", "50", memory // 2)}
    records = []
    for pid, (namespace, share, cores, asked) in claims.items():
        uid = f"8d0c3a52-5b0e-4b57-9d2b-4a3f6f1d2c{pid}"
        held = [GrantedDevice(namespace, "claim", uid, card.name, "gpu", share)]
        held += [GrantedDevice(namespace, "claim", uid, nic.name, "nic", None)] if pid == 41 else []
        container = f"{pid:064x}"
        place = (namespace, "job-0", "train")
        Ledger(node.folder).add(container, Granted(uid, (), frozenset(), tuple(held), container=place))
        node.proc.add(pid, container)
        consumed = (("cores", cores), ("memory", str(asked)))
        device = DeviceRecord("r", card.name, "gpu", share_id=share, consumed=consumed)
        ref = ClaimRef(namespace=namespace, name="claim", uid=uid)
        records.append(ClaimRecord(ref, "node-a", "0" * 32, "boot", State.COMPLETED, (device,)))
    node.start(FakeDriver(node.cards, NvmlLibrary(lambda: fake.library / "libnvidia-ml.so.1")))
    node.sampler._records = lambda: records
    fake.processes(*((str(card.uuid), "compute", pid, GIB * (pid - 40)) for pid in claims))
    with fake.control.open("a") as control:
        control.write(f"state {card.uuid} 60 250500 0 {90 * GIB}\n")
    port = node.folder / f"sys/class/infiniband/{nic.ib_device}/ports/{nic.ports[0].number}/counters"
    port.mkdir(parents=True)
    scrapes, at = Scrapes(), 2 * 60
    for number in range(at + 1):
        (port / "port_rcv_data").write_text(f"{1000 * 60 * number}\n")  # in words of four bytes
        node.minute(scrapes, number, {41: 40, 42: 20})
    one, two = '{namespace="one", pod="job-0"}', '{namespace="two", pod="job-0"}'

    def shown(board: str, title: str, wanted: dict[str, float], *, query: int = 0) -> Question:
        return Question(f"round({panels(board, title)[query]}, 1e-6)", at, wanted)

    ask(
        tmp_path,
        binaries,
        [
            (
                "scripted",
                scrapes,
                [
                    shown("use", "GPUs in use", {"{}": 0.6}),
                    shown("use", "GPUs held", {"{}": 0.75}),
                    shown(
                        "use",
                        "GPU memory in use, of what is granted",
                        {"{}": round(3 * GIB / (memory // 8 + memory // 2), 6)},
                    ),
                    shown("use", "By pod: GPUs in use", {one: 0.4, two: 0.2}),
                    shown("use", "By pod: GPU memory", {one: GIB, two: 2 * GIB}),
                    shown("use", "By pod: Asked against used", {one: 0.25, two: 0.5}),
                    shown("use", "By pod: RDMA", {one: 4000.0}),
                    shown(
                        "use",
                        "By namespace: GPU-hours",
                        {
                            '{namespace="one", kind="share", model="H100"}': 0.25,
                            '{namespace="two", kind="share", model="H100"}': 0.5,
                        },
                    ),
                    shown("use", "By card: Busy", {f'{{instance="node-a", UUID="{card.uuid}"}}': 0.6}),
                    shown("use", "By card: Power", {f'{{instance="node-a", UUID="{card.uuid}"}}': 250.5}),
                ],
            )
        ],
    )


ABOUT_NOTHING_THERE = {
    "fleet": {
        "Capacity: MIG devices by profile",
        "Capacity: Devices of native nodes",
        "What waits: Gangs, by phase",
        "What waits: Quotas, most used",
    },
    # No driver, no webhook, nothing that goes wrong, no limited share with a process.
    "health": {
        "Devices: Faults",
        "Devices: Errors of GPUs",
        "Devices: Throttled",
        "Devices: Problems that node checks found",
        "Nodes: Containers refused, by rule",
        "Processes: Loops that fail",
        "Processes: Writes that fail",
        "Processes: Webhook, 99 %",
    },
    "use": {
        "GPUs in use",
        "GPU memory in use, of what is granted",
        "By namespace: GPUs in use",
        "By pod: GPU memory",
        "By pod: GPUs in use",
        "By pod: RDMA",
        "Shares: Memory, of the limit",
        "Shares: Requests denied",
        "Shares: Launches held back",
        "By card: Busy",
        "By card: Memory",
        "By card: Power",
        "By card: Used, but not granted",
        "By card: Granted, but not used",
        "By card: SM activity of pods, by dcgm-exporter",
    },
}


def test_every_query_of_a_dashboard_is_promql(tmp_path: Path, binaries: Path) -> None:
    """That they run on a whole cluster is shown by make e2e-long, below."""
    asked = [
        query
        for board in prometheus.dashboards().values()
        for of in prometheus.queries(board).values()
        for query in of
    ]
    rules = [{"record": f"query:{number}:x", "expr": query} for number, query in enumerate(asked)]
    (tmp_path / "rules.yml").write_text(yaml.safe_dump({"groups": [{"name": "queries", "rules": rules}]}))
    done = subprocess.run(
        [binaries / "promtool", "check", "rules", tmp_path / "rules.yml"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert f"{len(asked)} rules found" in done.stdout


def test_every_query_runs_on_a_whole_cluster(tmp_path: Path, binaries: Path) -> None:
    """The demo's, as it stays: no query is an error, those that are about something there have it, and the
    figures are the cluster's."""
    folder = Path(tempfile.mkdtemp(prefix="km-"))
    command = [
        sys.executable,
        "-m",
        "koordra",
        "demo",
        "--keep",
        "--nodes",
        "1",
        "-o",
        "json",
        "--dir",
        folder,
    ]
    with (tmp_path / "demo.log").open("w+") as log:
        demo = subprocess.Popen(command, stdout=log, stderr=log)
        try:
            ends = time.monotonic() + 3 * PATIENCE
            while "KUBECONFIG=" not in (tmp_path / "demo.log").read_text():
                assert demo.poll() is None, (tmp_path / "demo.log").read_text()
                assert time.monotonic() < ends
                time.sleep(0.2)
            configuration = folder / "prometheus.yml"
            configuration.write_text(configuration.read_text().replace('"5s"', '"1s"'))
            with prometheus.running(tmp_path, binaries, configuration) as server:
                server.wait_for("sum(up)", lambda found: bool(found) and found[0]["value"][1] == "3")
                for name, board in prometheus.dashboards().items():
                    for title, asked in prometheus.queries(board).items():
                        found = [server.query(query) for query in asked]  # an error ends the test
                        if not any(found) and title not in ABOUT_NOTHING_THERE[name]:
                            server.wait_for(asked[0], bool)
                given_out = 'sum(koordra_cluster_gpu_cores{state="allocated"}) / 100'
                server.wait_for(f"sum(namespace_pod:koordra_gpus_granted:sum) == {given_out} > 0", bool)
                server.wait_for('ALERTS{alertname=~"Koordra.*Down"}', lambda found: not found)
        finally:
            demo.send_signal(signal.SIGINT)
            demo.wait(PATIENCE)
            shutil.rmtree(folder, ignore_errors=True)
