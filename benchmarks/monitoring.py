"""What metrics, the sampler and logs cost while claims come at 100 a second: CPU of the shipped code, as
parts of one core.

controller   1,000 claims on 500 nodes, ten a pass: what it counts, how things stand once a second, and its
             log; a scrape every 15 s
node         one plugin with eight GPUs and 64 containers: its sampler every 5 s, a scrape every 15 s, and
             what Prepare and Unprepare count and log, for one claim a second and for all 100 on one node
hook         what it counts of a container's eight requests, likewise

A log line is priced by itself, as JSON into a file.
"""

from __future__ import annotations

import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stderr
from functools import partial
from pathlib import Path
from typing import Any, Final

from benchmarks import _results
from benchmarks.controller import Bench
from koordra import logs
from koordra.api.kinds import RESOURCE_CLAIMS
from koordra.controller.allocation.writes import Writer
from koordra.controller.reconcile.leader_figures import LeaderFigures
from koordra.controller.reconcile.reconcile_loop import seldom
from koordra.controller.reconcile.reconciler import Reconciler
from koordra.controller.reporting.metrics import ControllerMetrics
from koordra.kubelet_plugin.dra.plugin_metrics import PluginMetrics
from koordra.kubelet_plugin.sampling.nvml_cards import CardProcesses
from koordra.metrics import Metrics
from koordra.nri.transport.instrumentation import MetricsObserver
from koordra.process.lifecycle import collect_seldom
from tests.machines import catalogue
from tests.unit.kubelet_plugin.sampling.test_sampler import Cards, Node, Proc

RATE: Final = 100
CLAIMS: Final = 1000
A_PASS: Final = 10
SCRAPE: Final = 15.0
SAMPLE: Final = 5.0
CONTAINERS: Final = 64
REQUESTS: Final = 8
LINES: Final = 2000
NOW: Final = "2026-11-21T00:00:00Z"


class Meter:
    """CPU of this thread in what is measured, without what that itself measures."""

    def __init__(self) -> None:
        self.seconds = 0.0

    @contextmanager
    def on(self) -> Iterator[None]:
        began = time.thread_time()
        yield
        self.seconds += time.thread_time() - began


def of(work: Callable[[], Any], times: int) -> float:
    """Seconds of CPU for one."""
    meter = Meter()
    with meter.on():
        for _ in range(times):
            work()
    return meter.seconds / times


class Counted(ControllerMetrics):
    """What the controller counts, and what that takes."""

    def __init__(self, metrics: Metrics, meter: Meter) -> None:
        super().__init__(metrics)
        self._meter = meter

    def __call__(self, claim_event: Any, /) -> None:
        with self._meter.on():
            super().__call__(claim_event)

    def _observe_stages(self, seconds: Any) -> None:
        with self._meter.on():
            super()._observe_stages(seconds)


def controller() -> dict[str, float]:
    """Seconds of CPU per second."""
    meter, metrics = Meter(), Metrics()
    instruments, figures = Counted(metrics, meter), LeaderFigures(metrics, node_metrics=True)
    bench, term = Bench(), threading.Event()
    bench.reconciler = Reconciler(
        bench,
        Writer(bench, may_write=lambda: True, now=lambda: NOW),
        clock=time.monotonic,
        report=instruments,
        latency=instruments.latency,
    )
    bench.latency = instruments.latency
    bench.one_pass()
    now = 0.0
    told = seldom(partial(bench.reconciler.count, instruments, figures, term=term), clock=lambda: now)
    told()
    metrics.text()
    meter.seconds, before = 0.0, sum(bench.clocks.spent.values())
    for first in range(0, CLAIMS, A_PASS):
        for number in range(first, first + A_PASS):
            bench.arrive(number)
        bench.one_pass()
        now += A_PASS / RATE
        with meter.on():
            instruments.plan.observe(bench.reconciler.allocation.took)
            told()
    assert len(bench.allocated) == CLAIMS

    def write() -> None:
        with instruments.request("patch", RESOURCE_CLAIMS, "status"):
            pass

    writes = 3 * of(write, 2000)  # finalizer, allocation, the pod's gate
    own = sum(bench.clocks.spent.values()) - before
    return {
        "counting": meter.seconds * RATE / CLAIMS + writes * RATE,
        "its own work": own * RATE / CLAIMS,
        "scrapes": of(metrics.text, 3) / SCRAPE,
    }


def node(folder: Path) -> dict[str, float]:
    machine = catalogue.machine("hgx-h100")
    found = Node(folder, machine, Cards(), Proc(folder / "proc"))
    names = [gpu.name for gpu in machine.gpus]
    for number in range(CONTAINERS):
        container, pid = f"{number:064x}", 1000 + number
        found.grant(container, names[number % len(names)], name=f"c{number}")
        found.proc.add(pid, container)
        uuid = str(machine.gpus[number % len(names)].uuid)
        before = found.cards.lists.get(uuid, CardProcesses())
        found.cards.lists[uuid] = CardProcesses({**before.used, pid: 1 << 30})
    found.step()
    figures = PluginMetrics(found.metrics)

    def calls() -> None:
        for call in ("prepare", "unprepare"):
            with figures.observe_call(call):
                pass
            figures.observe_claims(lambda: (), held=0)

    return {
        "sampler": of(found.step, 40) / SAMPLE,
        "scrapes": of(found.metrics.text, 20) / SCRAPE,
        "counting": of(calls, 2000),
    }


def line(folder: Path) -> float:
    """Of one line with five values."""
    with (folder / "log").open("w") as file, redirect_stderr(file):
        logs.configure(level="info", json=True)
        log = logs.get_logger("benchmarks.monitoring")
        return of(
            lambda: log.info(
                "claim_allocated",
                claim="team/train-gpu-x7k2p",
                uid="8d0c3a52",
                node="n",
                devices=2,
                took=0.01,
            ),
            LINES,
        )


def main() -> None:
    collect_seldom()
    with tempfile.TemporaryDirectory() as folder:
        of_controller, of_node = controller(), node(Path(folder))
        of_line = line(Path(folder))
    observer = MetricsObserver(Metrics())
    of_hook = REQUESTS * of(lambda: observer.answered("CreateContainer", "ok", 0.001), 5000)
    logged = {"controller": 1, "node": 2, "hook": 0}
    """Lines for a claim: at level info it says what was allocated, and the plugin what it did."""
    rows = [
        (
            "controller, 100 claims/s",
            of_controller["counting"] + of_controller["scrapes"] + RATE * logged["controller"] * of_line,
        ),
        ("node, idle", of_node["sampler"] + of_node["scrapes"]),
        *(
            (
                f"node, {rate} claims/s",
                of_node["sampler"]
                + of_node["scrapes"]
                + rate * (of_node["counting"] + logged["node"] * of_line),
            )
            for rate in (1, RATE)
        ),
        *((f"hook, {rate} containers/s", rate * of_hook) for rate in (1, RATE)),
    ]
    parts = {
        **{f"controller {name}": value for name, value in of_controller.items()},
        **{f"node {name}": value for name, value in of_node.items() if name != "counting"},
        "node counting, a claim": of_node["counting"],
        "a log line": of_line,
        "hook, a container": of_hook,
    }
    text = _results.table(("what", "of one core"), [(name, f"{100 * value:.3f} %") for name, value in rows])
    told = _results.table(
        ("part", "CPU per second, or each"),
        [(name, f"{1e6 * value:.1f} us") for name, value in parts.items()],
    )
    print(text)
    document = {"of_one_core": dict(rows), "seconds": parts}
    title = "# What metrics, the sampler and logs cost at 100 claims a second"
    _results.write("monitoring", document, f"{title}\n{text}\n\n{told}")
