"""Xids through the NVML event set of the fake library, up to the taint and its end."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.fakes.nvml_library import FakeNvml, build, nvml_bus_id
from tests.unit.native.test_fake_nvml import FIRST, MACHINE, SECOND, with_links

WATCH = """
import json, pathlib, sys, threading, time
from koordra.kubelet_plugin.discovery.reading import discover
from koordra.kubelet_plugin.discovery.nvml_gpus import nvml_facts
from koordra.kubelet_plugin.discovery.events.xid_events import XidEvents
from koordra.kubelet_plugin.discovery.reading import probe
from koordra.kubelet_plugin.discovery.watcher import MachineWatcher, WatchTiming
from koordra.kubelet_plugin.discovery import gpu_faults
from koordra.kubelet_plugin.discovery.events import xid_events

PATIENCE = 60.0
wait_for_event, waits = xid_events._next, []

def waiting(*arguments):
    waits.append(None)
    return wait_for_event(*arguments)

xid_events._next, xid_events._RELEASE_WITHIN = waiting, PATIENCE
root, control, machine = (pathlib.Path(argument) for argument in sys.argv[1:4])
steps = json.loads(sys.argv[4])
gpu_faults.RECOVERY_TRUSTED_AFTER = 0.2
xids = XidEvents(try_again=0.1, wait_ms=100)
xids.start()
told, stop = [], threading.Event()

def read():
    with xids.paused():
        return discover(root, nvml=nvml_facts)

def hear(found):
    told.append([[*gpu.faults] if gpu.publishable else None for gpu in found.machine.gpus])

watcher = MachineWatcher(read=read, probe=lambda: probe(root), sources=[xids],
                         timing=WatchTiming(settle=0.05, settle_limit=0.5, probe=0.2,
                                            between_readings=0.0, recheck=0.2, stop_within=0.05))
thread = threading.Thread(target=lambda: watcher.run(stop, hear))
thread.start()
reached = []
for step in steps:
    for file, mode, text in step["write"]:
        # An event set that is waited at comes before an Xid: what happened before it was made is not delivered.
        before, deadline = len(waits), time.monotonic() + PATIENCE
        while len(waits) == before and time.monotonic() < deadline:
            time.sleep(0.01)
        with open({"control": control, "machine": machine}[file], mode) as out:
            out.write(text)
    deadline = time.monotonic() + PATIENCE
    while (not told or told[-1] != step["expect"]) and time.monotonic() < deadline:
        time.sleep(0.01)
    reached.append(told[-1] if told else None)
stop.set()
thread.join(PATIENCE)
print(json.dumps({"reached": reached, "ended": not thread.is_alive()}))
"""


@pytest.fixture
def fake(tmp_path: Path) -> FakeNvml:
    made = FakeNvml(tmp_path, build())
    made.describe(with_links(MACHINE))
    made.order()
    return made


@pytest.fixture
def root(tmp_path: Path) -> Path:
    from koordra.topology.presets.tree import MachineWriter

    folder = tmp_path / "root"
    MachineWriter(folder).write(MACHINE)
    (folder / "nvml.json").unlink()
    return folder


def watched(fake: FakeNvml, root: Path, steps: list[dict[str, Any]]) -> None:
    import json

    machine = fake.folder / "machine"
    done = fake.run(WATCH, str(root), str(fake.control), str(machine), json.dumps(steps))
    assert done == {"reached": [step["expect"] for step in steps], "ended": True}


WELL: list[Any] = [[], [], None]


def test_an_xid_becomes_a_fault_and_an_applications_own_does_not(fake: FakeNvml, root: Path) -> None:
    mine, theirs = f"xid {nvml_bus_id(SECOND)} 48\n", f"xid {nvml_bus_id(FIRST)} 31\n"
    watched(
        fake,
        root,
        [
            {"write": [], "expect": WELL},
            {"write": [("control", "a", theirs), ("control", "a", mine)], "expect": [[], ["Xid48"], None]},
        ],
    )


def test_the_driver_says_that_the_card_has_recovered(fake: FakeNvml, root: Path) -> None:
    machine = (fake.folder / "machine").read_text()
    asks = machine.replace("minor 0\n", "minor 0\nfields 230 1\n")
    well = machine.replace("minor 0\n", "minor 0\nfields 230 0\n")
    watched(
        fake,
        root,
        [
            {"write": [], "expect": WELL},
            {
                "write": [("control", "a", f"xid {nvml_bus_id(FIRST)} 95\n")],
                "expect": [["Xid95"], [], None],
            },
            {"write": [("machine", "w", asks)], "expect": [["NeedsReset", "Xid95"], [], None]},
            {"write": [("machine", "w", well)], "expect": WELL},
        ],
    )


def test_a_card_that_is_lost_leaves_and_comes_back(fake: FakeNvml, root: Path) -> None:
    lost = f"lost {nvml_bus_id(FIRST)}\nxid {nvml_bus_id(FIRST)} 79\n"
    watched(
        fake,
        root,
        [
            {"write": [], "expect": WELL},
            {"write": [("control", "w", lost)], "expect": [None, [], None]},
            {"write": [("control", "w", f"xid {nvml_bus_id(FIRST)} 79\n")], "expect": WELL},
        ],
    )


LIBRARY_ERRORS = """
import json, pathlib, select, sys, threading, time
from koordra.kubelet_plugin.discovery.events import xid_events
from koordra.kubelet_plugin.discovery.events.xid_events import XidEvents
PATIENCE = xid_events._RELEASE_WITHIN = 60.0
control = pathlib.Path(sys.argv[1])
answers = {}
for call in ("nvmlInitWithFlags", "nvmlEventSetCreate", "nvmlDeviceGetCount_v2", "nvmlDeviceGetHandleByIndex_v2",
             "nvmlDeviceGetPciInfo_v3", "nvmlDeviceRegisterEvents", "nvmlEventSetWait_v2", "nvmlEventSetFree"):
    for code in (3, 13, 15, 17, 999):
        control.write_text(f"error {call} {code}\\n")
        source = XidEvents(try_again=0.02, wait_ms=40)
        source.start()
        time.sleep(0.05)
        control.write_text("")
        deadline = time.monotonic() + PATIENCE
        while not source._session.locked() and time.monotonic() < deadline:
            time.sleep(0.01)
        taken = [type(event).__name__ for event in source.take()]
        recovered = source._session.locked()
        source.close()
        answers[f"{call} {code}"] = [recovered, source._thread.is_alive(), "XidReported" in taken]
print(json.dumps(answers))
"""


@pytest.mark.long
def test_no_error_of_the_library_ends_the_listening(fake: FakeNvml) -> None:
    answers = fake.run(LIBRARY_ERRORS, str(fake.control))
    assert {key: value for key, value in answers.items() if value != [True, False, False]} == {}
