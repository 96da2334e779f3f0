"""A driver that comes after the plugin, is replaced, and goes: the watcher reads again by itself."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from koordra.kubelet_plugin.discovery.watcher import MachineWatcher, WatchTiming
from koordra.kubelet_plugin.nvidia_driver.homes import HomeSource
from koordra.kubelet_plugin.nvidia_driver.nvml_session import NvmlLibrary
from koordra.topology.presets import write_machine
from koordra.topology.problems import Discovery
from tests.fakes import driver_homes
from tests.fakes.node_claims import NODE
from tests.unit.kubelet_plugin.running_plugin import wait_for


@pytest.fixture
def host(tmp_path: Path) -> Path:
    write_machine("hgx-h100", tmp_path, serial=NODE)
    driver_homes.module(tmp_path)
    return tmp_path


@pytest.fixture
def watched(host: Path) -> Iterator[Callable[[], list[Discovery]]]:
    """The readings so far of a watcher with all that it is given on a node."""
    homes = HomeSource.of(host)
    watcher = MachineWatcher.of(host, homes, NvmlLibrary(homes.nvml))
    watcher.timing = WatchTiming(
        settle=0.02, settle_limit=0.2, probe=0.05, between_readings=0.0, recheck=60.0, stop_within=0.02
    )
    told: list[Discovery] = []
    stop = threading.Event()
    thread = threading.Thread(target=lambda: watcher.run(stop, told.append))
    thread.start()
    yield lambda: list(told)
    stop.set()
    thread.join(60)


def said(found: Discovery) -> set[str]:
    return {problem.field for problem in found.problems if problem.object == "NVIDIA driver"}


def test_every_change_of_the_driver_is_read(host: Path, watched: Callable[[], list[Discovery]]) -> None:
    assert wait_for(lambda: bool(watched()) and said(watched()[-1]) == {"libnvidia-ml.so.1"})
    driver_homes.driver_container(host)
    assert wait_for(lambda: said(watched()[-1]) == set())
    driver_homes.module(host, "590.1.2")
    assert wait_for(lambda: said(watched()[-1]) == {"version"})
    shutil.rmtree(host / "run/nvidia/driver")
    driver_homes.rhel(host)
    driver_homes.libraries(host / "usr/lib64", "590.1.2")
    assert wait_for(lambda: said(watched()[-1]) == set())
