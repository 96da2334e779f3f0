"""The whole plugin in one process: start, life and end as a kubelet sees them."""

from __future__ import annotations

import errno
import json
import os
import tempfile
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from koordra.api import kinds
from koordra.api.kinds import Kind
from koordra.api.names import UNHEALTHY_TAINT
from koordra.api.objects import Object
from koordra.errors import CheckpointError
from koordra.kubelet_plugin.discovery.reading import discover
from koordra.kubelet_plugin.dra import restoring
from koordra.kubelet_plugin.publish.drain_policy import drain_policy
from koordra.kubelet_plugin.publish.node_slices import mode_of
from koordra.kubelet_plugin.publish.offering import Offering
from koordra.process import lifecycle
from koordra.process.wakeable import Pause, Wakeable
from koordra.topology.presets.tree import MachineWriter
from koordra.topology.problems import Discovery
from tests.fakes.disks import FailingDisk
from tests.fakes.node_claims import GPU_0, NODE, claim, result, uid
from tests.machines import catalogue
from tests.patience import PATIENCE
from tests.unit.kubelet_plugin.running_plugin import RunningPlugin, wait_for


@pytest.fixture
def folder() -> Iterator[Path]:
    """Short, for the sockets."""
    with tempfile.TemporaryDirectory(prefix="k") as made:
        yield Path(made)


@pytest.fixture
def running(folder: Path, machine_root: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[RunningPlugin]:
    monkeypatch.setattr(restoring, "CHECK_INTERVAL", 0.1)
    monkeypatch.setattr(restoring, "FILE_CHECK_INTERVAL", 0.5)
    with RunningPlugin(folder, machine_root).serving() as plugin:
        yield plugin


def test_start_life_and_end(running: RunningPlugin) -> None:
    # The hook knows what to guard before anybody can call.
    guarded = json.loads(running.paths.guarded.read_text())
    assert guarded["node"] == NODE
    assert len(guarded["devices"]) == 24
    assert wait_for(lambda: running.api.generations() == {1})

    answer = running.prepare()
    assert answer.error == ""
    assert [device.device_name for device in answer.devices] == [GPU_0]
    spec = json.loads(running.paths.cdi_file(uid(1)).read_text())
    node = spec["devices"][0]["containerEdits"]["deviceNodes"][0]
    assert node["hostPath"] == str(running.paths.root / "dev" / "nvidia0")

    # A kubelet starts: our slices go, and come back by themselves.
    running.api.kubelet_deletes_all()
    assert wait_for(lambda: running.api.generations() == {2})

    # Somebody tidies up.
    running.registration.unlink()
    Path(running.kubelet_root / "plugins" / "koordra.io" / "dra.sock").unlink()
    assert wait_for(running.registration.exists)
    assert running.prepare().error == ""

    running.stop.set()
    running.thread.join(PATIENCE)
    assert not running.registration.exists()
    assert not Path(running.kubelet_root / "plugins" / "koordra.io" / "dra.sock").exists()
    # Containers go on, so what they need stays; the slices are the kubelet's to remove.
    assert running.paths.cdi_file(uid(1)).exists()
    assert running.api.slices


def test_the_order_of_the_end(running: RunningPlugin, monkeypatch: pytest.MonkeyPatch) -> None:
    """Registration first, then the calls in progress, which get their answer."""
    order: list[str] = []
    arrived, go_on = threading.Event(), threading.Event()
    original = running.api.get

    def slow(kind: Kind, name: str, *, namespace: str | None = None) -> Object:
        if kind is kinds.RESOURCE_CLAIMS:
            arrived.set()
            assert go_on.wait(PATIENCE)
        return original(kind, name, namespace=namespace)

    monkeypatch.setattr(running.api, "get", slow)
    call = threading.Thread(target=lambda: order.append(f"answered {running.prepare().error!r}"))
    call.start()
    assert arrived.wait(PATIENCE)
    running.stop.set()
    assert wait_for(lambda: not running.registration.exists())
    order.append("registration is gone")
    assert running.thread.is_alive()
    go_on.set()
    call.join(PATIENCE)
    running.thread.join(PATIENCE)
    assert order == ["registration is gone", "answered ''"]


@pytest.mark.parametrize(
    ("label", "mode"), [(None, "joint"), ("joint", "joint"), ("native", "native"), ("both", "joint")]
)
def test_the_nodes_label_picks_the_mode(label: str | None, mode: str) -> None:
    labels = {} if label is None else {"koordra.io/allocation-mode": label}
    assert mode_of({"metadata": {"name": NODE, "labels": labels}}) == mode


def test_a_lost_list_of_guarded_nodes_is_written_again(running: RunningPlugin) -> None:
    before = running.guarded()
    running.paths.guarded.unlink()
    assert wait_for(running.paths.guarded.exists)
    assert running.guarded() == before


def test_lost_files_of_a_prepared_claim_are_written_again(
    running: RunningPlugin,
) -> None:
    """A container that is started again needs them, and the kubelet does not ask for them again."""
    assert running.prepare().error == ""
    file = running.paths.cdi_file(uid(1))
    before = file.read_bytes()
    file.unlink()
    assert wait_for(file.exists)
    assert file.read_bytes() == before


def test_a_failed_check_does_not_stop_the_others(
    running: RunningPlugin, monkeypatch: pytest.MonkeyPatch
) -> None:
    """guarded.json cannot be written: the claims' files come back all the same."""
    assert running.prepare().error == ""

    def unwritable() -> None:
        raise CheckpointError("guarded.json cannot be written")

    monkeypatch.setattr(running.driver._guarded, "ensure", unwritable)
    file = running.paths.cdi_file(uid(1))
    file.unlink()
    assert wait_for(file.exists)


def test_a_node_that_offers_mig_instances(folder: Path, tmp_path: Path) -> None:
    MachineWriter(tmp_path).write(catalogue.load("mig-a100").machine(serial=NODE))
    plugin = RunningPlugin(folder, tmp_path, offering=Offering(mig=True))
    name = "gpu-0000-1a-00-0-mig-3g20gb-0"
    plugin.api.claims = {"claim-1": claim(1, result("gpu", name, share=None))}
    with plugin.serving():
        assert wait_for(lambda: len(plugin.api.slices) == 2)
        assert name in plugin.api.devices()
        assert [name for one in plugin.api.slices.values() for name in one["spec"] if "Counters" in name] == [
            "sharedCounters"
        ]
        answer = plugin.prepare()
        assert (answer.error, [device.device_name for device in answer.devices]) == ("", [name])

        # A reset, say: nobody is to get it, and its claim's holders are to see why it does not work.
        found = discover(tmp_path)
        gpus = tuple(replace(card, mig_instances=()) for card in found.machine.gpus)
        plugin.driver._readings.take(replace(found, machine=replace(found.machine, gpus=gpus)))
        gone = {"key": UNHEALTHY_TAINT, "value": "InstanceGone", "effect": "NoSchedule"}
        assert wait_for(lambda: gone in plugin.api.devices().get(name, {}).get("taints", ()))


@pytest.mark.parametrize(("word", "effect"), [("GpuLost", "NoExecute"), ("Xid48", "NoSchedule")])
def test_a_lost_card_that_a_claim_holds_ends_its_pods_where_the_operator_says_so(
    folder: Path, machine_root: Path, word: str, effect: str
) -> None:
    """It does not answer any more, so that nothing else is known of it to be published."""
    plugin = RunningPlugin(folder, machine_root, offering=Offering(drain=drain_policy(word)))
    with plugin.serving():
        assert plugin.prepare().error == ""
        found = discover(machine_root)
        first, *others = found.machine.gpus
        lost = replace(first, uuid=None, faults=("GpuLost", "Xid79"))
        gone = {"key": UNHEALTHY_TAINT, "value": "GpuLost.Xid79", "effect": effect}

        def taints() -> list[Object]:
            return list(plugin.api.devices().get(GPU_0, {}).get("taints", ()))

        plugin.driver._readings.take(replace(found, machine=replace(found.machine, gpus=(lost, *others))))
        assert wait_for(lambda: gone in taints())
        assert plugin.unprepare().error == ""
        plugin.driver._readings.take(replace(found, machine=replace(found.machine, gpus=(lost, *others))))
        assert wait_for(lambda: GPU_0 not in plugin.api.devices())


def test_without_a_place_for_its_state_it_does_not_start(folder: Path, machine_root: Path) -> None:
    plugin = RunningPlugin(folder, machine_root, disk=FailingDisk(full=True))
    plugin.thread.start()
    plugin.thread.join(PATIENCE)
    assert not plugin.thread.is_alive()
    assert isinstance(plugin.error, CheckpointError)
    assert "guarded.json cannot be written" in str(plugin.error)
    assert not plugin.registration.exists()


class WatcherThatEnds:
    """Tells one reading, and ends on its own when it is told to."""

    def __init__(self, root: Path, end: threading.Event) -> None:
        self._root = root
        self._end = end

    def run(self, stop: threading.Event, on_change: Callable[[Discovery], None]) -> None:
        del stop
        on_change(discover(self._root))
        assert self._end.wait(PATIENCE)


def test_a_plugin_that_no_longer_sees_its_machine_ends(
    folder: Path, machine_root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(restoring, "CHECK_INTERVAL", 0.1)
    end = threading.Event()
    made = WatcherThatEnds(machine_root, end)
    plugin = RunningPlugin(folder, machine_root, watcher=lambda *_: made)  # type: ignore[arg-type, return-value]
    monkeypatch.setattr(lifecycle, "_running", [plugin.stop])
    monkeypatch.setattr(lifecycle, "end_failed", plugin.stop.set)
    with plugin.serving():
        end.set()
        plugin.thread.join(PATIENCE)
        assert not plugin.thread.is_alive(), "in good order"
    assert not plugin.registration.exists()


def test_a_part_that_meets_a_defect_is_tried_again_later_and_later_and_told_once(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    class Part(Wakeable):
        failed = "part_failed"

        def step(self) -> Pause:
            raise ValueError("a defect")

    monkeypatch.setattr("koordra.process.backoff.random.random", lambda: 0.5)
    part, before = Part(), lifecycle.failures.total()
    assert [part.attempt(), part.attempt()] == [Pause(0.2, 0.2), Pause(0.4, 0.4)]
    told = capsys.readouterr().err
    assert (told.count("part_failed"), told.count("Traceback")) == (1, 1)
    assert lifecycle.failures.total() == before + 2


def test_a_stop_before_the_first_reading_is_an_end_without_error(folder: Path, machine_root: Path) -> None:
    plugin = RunningPlugin(folder, machine_root)
    plugin.stop.set()
    plugin.thread.start()
    plugin.thread.join(PATIENCE)
    assert not plugin.thread.is_alive()
    assert plugin.error is None
    assert not plugin.registration.exists()


def test_a_disk_that_gives_nothing_ends_none_of_the_checks(monkeypatch: pytest.MonkeyPatch) -> None:
    """The main thread makes them: an error that it lets through ends the plugin, again and again."""
    monkeypatch.setattr(restoring, "FILE_CHECK_INTERVAL", 0.0)
    called: list[str] = []

    def fails(name: str) -> Any:
        def check() -> None:
            called.append(name)
            raise OSError(errno.EIO, os.strerror(errno.EIO))

        return check

    rounds = iter((False, False, True))
    stop: Any = SimpleNamespace(wait=lambda _seconds: next(rounds))
    parts: dict[str, Any] = {
        "servers": SimpleNamespace(checks=[fails("dra"), fails("registration")]),
        "guarded": SimpleNamespace(ensure=fails("guarded")),
        "state": SimpleNamespace(restore_files=fails("files")),
    }
    restoring.keep_restoring(stop, **parts, checked=lambda: None)
    assert called == ["dra", "registration", "guarded", "files"] * 2
