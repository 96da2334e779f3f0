"""No option of a process that runs in a cluster is lost on its way: with another value, the process is
started with something else. What each setting then does is for the tests of what has it; that it is read at
all, test_every_option_is_read.py says of every command."""

from __future__ import annotations

import dataclasses
import functools
import re
import threading
from collections.abc import Callable, Mapping
from importlib import import_module
from pathlib import Path
from typing import Final
from unittest.mock import MagicMock, Mock

import pytest

from tests.attacks.test_every_option import EVERY

STARTED: Final = (
    "koordra.cli.cluster.cluster_objects:connect",
    "koordra.cli.cluster.dashboard.live:Live",
    "koordra.cli.cluster.dashboard.live:Watches",
    "koordra.cli.cluster.dashboard.server:DashboardServer",
    "koordra.cli.cluster.use.profile.history:History",
    "koordra.cli.what_if.node_groups:settings_from_file",
    "koordra.controller.run:run",
    "koordra.controller.run:start_webhook",
    "koordra.imex.daemon:Daemon",
    "koordra.imex.supervisor:Supervisor",
    "koordra.kube.kubeconfig:new_client",
    "koordra.kube.request_limit:RequestLimit",
    "koordra.kubelet_plugin.driver:Driver",
    "koordra.kubelet_plugin.nvidia_driver.homes:HomeSource",
    "koordra.logs:configure",
    "koordra.node_state.imex:supervising",
    "koordra.nri.service:run",
    "koordra.process.lifecycle:spawn",
    "koordra.process.metrics_server:serve",
    "koordra.process.watchdog:Watchdog",
    "koordra.profiles.store:open_store",
)
"""Whom a command hands its options to: recorded, and not called."""
MODES: Final = '{"nodeconfig": [{"name": "n0", "operatingmode": "mps"}]}'
FILES: Final = {"modes": MODES, "legacy": "defaultDialect: hami\n"}

CLIENT: Final = {"--kubeconfig": "k"}
LIMITED: Final = {**CLIENT, "--kube-api-qps": "7", "--kube-api-burst": "7"}
LOGS: Final = {"--log-level": "debug", "--log-json": None}
SERVES: Final = {"--metrics-address": ":1"}
OTHERS: Final[Mapping[str, Mapping[str, str | None]]] = {
    "controller": {
        **LIMITED,
        **LOGS,
        **SERVES,
        "--leader-elect": "false",
        "--no-leader-elect": None,
        "--lease-namespace": "other",
        "--identity": "me",
        "--webhook-address": ":9443",
        "--webhook-certificates": "c",
        "--webhook-host": "h",
        "--percent-bounds": None,
        "--no-node-metrics": None,
        "--starvation-after": "1",
        "--topology-levels": "rack=a/rack",
        "--scoring-strategy": "MostAllocated:cpu=1",
        "--preemption": None,
        "--immediate-annotation": None,
        "--immediate-devices": "1",
        "--autoscale-settings": "file",
        "--elastic-gpu": None,
        "--training-jobs": None,
        "--learn-from-profiles": None,
        "--legacy-pods": None,
        "--legacy-settings": "legacy",
        "--legacy-template-grace": "5",
        "--peer-annotations": None,
    },
    "kubelet-plugin": {
        **LIMITED,
        **LOGS,
        **SERVES,
        "--node-name": "n1",
        "--root": "other",
        "--kubelet-root": "other",
        "--cdi-dir": "other",
        "--state-dir": "other",
        "--allocation-mode": "native",
        "--slots-per-gpu": "3",
        "--allowed-isolation": "mps",
        "--default-isolation": "hami-core",
        "--node-modes": "modes",
        "--mig": None,
        "--mig-on-demand": None,
        "--mig-reset": None,
        "--vfs": None,
        "--imex": None,
        "--drain-on": "all",
        "--overlay": "o",
        "--pod-network": None,
        "--host-root": "other",
        "--network-pools": "p",
        "--namespace": "other",
        "--cni-resource": "nic=a/b",
        "--roce-without-network": "refuse",
        "--driver-root": "d",
        "--driver-root-on-host": "other",
        "--dev-root": "other",
        "--limiter-context": "600Mi",
        "--limiter-strict": None,
        "--limiter-cores": None,
        "--mps-shared": None,
        "--hami-core": "other",
        "--on-overuse": "evict",
        "--hook-dir": "other",
        "--legacy-node-labels": None,
        "--pod-uid": "u",
    },
    "nri": {
        **LIMITED,
        **LOGS,
        **SERVES,
        "--node-name": "n1",
        "--state-dir": "other",
        "--socket": "other",
        "--plugin-index": "11",
        "--exempt-namespace": "other",
        "--namespace": "other",
        "--privileged": "refuse",
        "--validate": None,
        "--bundles": "other",
        "--proc": "other",
        "--cgroups": "other",
        "--verify-period": "1",
        "--on-drift": "evict",
        "--rdma-limit": "10:10",
        "--koordinator": None,
        "--koordinator-scheduler": "other",
        "--koordinator-isolation": "none",
        "--pod-network": None,
        "--root": "other",
        "--api": None,
    },
    "profiler": {**CLIENT, **LOGS, **SERVES, "--context": "c", "--store": "sqlite:///x"},
    "dashboard": {
        **CLIENT,
        **LOGS,
        **SERVES,
        "--context": "c",
        "--address": "127.0.0.1:1",
        "--certificates": "c",
        "--topology-levels": "rack=a/rack",
        "--scoring-strategy": "MostAllocated:cpu=1",
    },
    "imex": {**LOGS, "--state-dir": "other", "--root": "other", "--host-root": "other"},
}
"""Another value for each option of each process; None: a flag."""
BESIDE: Final = {
    "controller --legacy-settings": ("--legacy-pods",),
    "controller --legacy-template-grace": ("--legacy-pods",),
    "kubelet-plugin --default-isolation": ("--allowed-isolation=limiter,hami-core",),
    "kubelet-plugin --driver-root-on-host": ("--driver-root=d",),
    "kubelet-plugin --dev-root": ("--driver-root=d",),
    "nri --koordinator": ("--api",),
    "nri --koordinator-scheduler": ("--api", "--koordinator"),
    "nri --on-drift": ("--api",),
    "nri --kube-api-qps": ("--api",),
    "nri --kube-api-burst": ("--api",),
}
"""Without which an option is for nothing."""
NEEDED: Final = {"kubelet-plugin": ("--node-name=n0",), "nri": ("--node-name=n0",)}
Started = Callable[..., list[object]]


def values_of(given: object) -> object:
    """What can be compared: fields of values, names of functions and of other objects' types."""
    if isinstance(given, Mock):
        return "recorded"
    if dataclasses.is_dataclass(given) and not isinstance(given, type):
        return [type(given), *(values_of(getattr(given, each.name)) for each in dataclasses.fields(given))]
    if isinstance(given, functools.partial):
        return [values_of(given.func), values_of(given.args), values_of(given.keywords)]
    if isinstance(given, Mapping):
        return {key: values_of(one) for key, one in given.items()}
    if isinstance(given, (tuple, list)):
        return [values_of(one) for one in given]
    if isinstance(given, (str, int, float, frozenset, Path, type(None))):
        return given
    return re.sub(r" at 0x[0-9a-f]+", "", repr(given))


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Started:
    """A process with options: what it would have begun."""
    seen: list[object] = []

    def recorder(target: str) -> Callable[..., object]:
        def record(*given: object, **named: object) -> object:
            seen.append((target, values_of(given), values_of(named)))
            return MagicMock()

        return record

    for target in STARTED:
        module, _, name = target.partition(":")
        monkeypatch.setattr(import_module(module), name, recorder(target))
    over = threading.Event()
    over.set()
    monkeypatch.setattr("koordra.process.lifecycle.stop_on_signals", lambda: over)
    monkeypatch.setattr("koordra.process.lifecycle.collect_seldom", lambda: None)
    monkeypatch.setattr("secrets.token_hex", lambda _bytes: "random")
    for name in ("KUBECONFIG", "NODE_NAME", "POD_UID", "POD_NAMESPACE", "KOORDRA_HOST_ROOT"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.chdir(tmp_path)
    for name, text in FILES.items():
        (tmp_path / name).write_text(text)

    def start(program: str, *arguments: str) -> list[object]:
        seen.clear()
        (command, *_) = (one for words, one, _ in EVERY.values() if words == program)
        command.main([*arguments], prog_name=program, standalone_mode=False)
        assert seen
        return list(seen)

    return start


@pytest.mark.parametrize(
    ("program", "option"), [(program, option) for program, of in OTHERS.items() for option in of]
)
def test_a_process_is_started_with_something_else(started: Started, program: str, option: str) -> None:
    value = OTHERS[program][option]
    beside = BESIDE.get(f"{program} {option}", ())
    needed = () if option == "--node-name" else NEEDED.get(program, ())
    changed = [option if value is None else f"{option}={value}"]
    before = started(program, *beside, *NEEDED.get(program, ()))
    assert started(program, *beside, *needed, *changed) != before


def test_the_same_options_are_the_same_start(started: Started) -> None:
    for program in OTHERS:
        once = started(program, *NEEDED.get(program, ()))
        assert started(program, *NEEDED.get(program, ())) == once


def test_every_option_of_every_process_is_tried() -> None:
    for program, others in OTHERS.items():
        known = [parameter for words, _, parameter in EVERY.values() if words == program]
        names = {parameter.name: {*parameter.opts, *parameter.secondary_opts} for parameter in known}
        assert not [name for name, spelled in names.items() if not spelled & others.keys()]
        assert not others.keys() - set().union(*names.values())
