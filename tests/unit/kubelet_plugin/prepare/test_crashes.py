"""The plugin dies between any two steps, the disk fills up, goes read-only or fails: afterwards everything is
as promised.

Each test first counts the steps of an undisturbed run, then repeats the run once per step and disturbs it
there.
"""

from __future__ import annotations

import errno
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from koordra.errors import CDIError, CheckpointError, KoordraError, PrepareError
from koordra.kubelet_plugin.claims.claim_record import State
from koordra.kubelet_plugin.isolation.none import NoIsolation
from koordra.kubelet_plugin.prepare.device_state import DeviceState
from koordra.kubelet_plugin.publish.node_inventory import NodeInventory
from koordra.node_state.locks import StateLock
from tests.fakes.disks import DyingDisk, FailingDisk, Killed, StepDisk, UnreadableDisk
from tests.fakes.node_claims import GPU_0, GPU_1, NIC_0, claim, gpu, nic, uid
from tests.long import mostly_long
from tests.unit.kubelet_plugin.conftest import PluginNode, ref_of

FIRST = claim(1, gpu("gpu", GPU_0), nic("nic", NIC_0))
SECOND = claim(2, gpu("gpu", GPU_1))
RIVAL = claim(3, gpu("gpu", GPU_0))
ROOT = Path(__file__).resolve().parents[4]


def fresh(folder: Path, inventory: NodeInventory) -> PluginNode:
    """A node on which claim 2 runs already."""
    node = PluginNode(folder, inventory)
    for obj in (FIRST, SECOND, RIVAL):
        node.claims.put(obj)
    node.plugin().prepare(ref_of(SECOND))
    return node


def prepare_first(plugin: DeviceState) -> None:
    plugin.prepare(ref_of(FIRST))


def prepare_again(plugin: DeviceState) -> None:
    """The claim is prepared, and asked for once more."""
    plugin.prepare(ref_of(FIRST))


def unprepare_first(plugin: DeviceState) -> None:
    plugin.unprepare(ref_of(FIRST))


def repair(plugin: DeviceState) -> None:
    plugin.repair()


Operation = Callable[[DeviceState], None]
PREPARED_BEFORE = (prepare_again, unprepare_first, repair)


def steps_of(operation: Operation, node: PluginNode) -> int:
    if operation in PREPARED_BEFORE:
        node.plugin().prepare(ref_of(FIRST))
    disk = StepDisk()
    operation(node.unrepaired(disk))
    return len(disk.steps)


def check_promises(node: PluginNode) -> None:
    """What must hold whenever the plugin runs: files exactly for completed claims, nothing half done, nothing
    twice."""
    records = node.checkpoint().of_boot(node.inventory.boot_id)
    assert all(record.state is State.COMPLETED for record in records)
    expected = {f"cdi/koordra.io-claim_{record.ref.uid}.json" for record in records}
    expected |= {f"state/prepared/{record.ref.uid}.json" for record in records}
    expected |= {f"state/claims/{record.ref.uid}" for record in records}
    assert node.files() == expected
    assert uid(2) in node.holders()


@pytest.mark.parametrize(
    "operation", mostly_long([prepare_first, unprepare_first, prepare_again, repair], fast=2)
)
def test_killed_between_any_two_steps(operation: Operation, tmp_path: Path, inventory: NodeInventory) -> None:
    count = steps_of(operation, fresh(tmp_path / "counted", inventory))
    assert count >= 4
    for at in range(count):
        node = fresh(tmp_path / str(at), inventory)
        if operation in PREPARED_BEFORE:
            node.plugin().prepare(ref_of(FIRST))
        with pytest.raises(Killed):
            operation(node.unrepaired(DyingDisk(at)))

        # The next start repairs, whatever the kubelet asks next.
        node.plugin()
        check_promises(node)
        if uid(1) in node.holders():
            assert operation is not prepare_first or node.record(uid(1))["devices"]
            with pytest.raises(PrepareError, match="InsufficientCapacity"):
                node.plugin().prepare(ref_of(RIVAL))

        # The kubelet repeats the call, and it ends where it would have ended.
        plugin = node.plugin()
        if operation is unprepare_first:
            plugin.unprepare(ref_of(FIRST))
            assert node.holders() == {uid(2)}
            assert node.checkpoint().get(uid(1)) is None
        else:
            assert [device.device for device in plugin.prepare(ref_of(FIRST)).devices] == [GPU_0, NIC_0]
            assert node.holders() == {uid(1), uid(2)}
        check_promises(node)


def test_unprepare_holds_the_devices_until_the_last_file_is_gone(
    tmp_path: Path, inventory: NodeInventory
) -> None:
    """Killed in between, a container that still has the claim's devices must not find them with somebody
    else."""
    node = fresh(tmp_path / "counted", inventory)
    for at in range(steps_of(unprepare_first, node)):
        node = fresh(tmp_path / str(at), inventory)
        node.plugin().prepare(ref_of(FIRST))
        with pytest.raises(Killed):
            unprepare_first(node.unrepaired(DyingDisk(at)))
        left = {file for file in node.files() if uid(1) in file}
        assert not left or uid(1) in node.holders(), (at, left)


def test_isolation_is_stopped_while_the_devices_are_still_held(
    tmp_path: Path, inventory: NodeInventory, monkeypatch: pytest.MonkeyPatch
) -> None:
    node = fresh(tmp_path, inventory)
    node.plugin().prepare(ref_of(FIRST))
    stopped: list[tuple[str, set[str]]] = []
    monkeypatch.setattr(
        NoIsolation, "unprepare", lambda self, share: stopped.append((share.device, node.holders()))
    )
    unprepare_first(node.unrepaired())
    assert stopped == [(GPU_0, {uid(1), uid(2)})]


@pytest.mark.parametrize("operation", [prepare_first, unprepare_first, repair])
def test_nothing_happens_while_another_instance_holds_the_state(
    operation: Operation, tmp_path: Path, inventory: NodeInventory
) -> None:
    node = fresh(tmp_path, inventory)
    if operation is not prepare_first:
        node.plugin().prepare(ref_of(FIRST))
    before, files = node.paths.checkpoint.read_bytes(), node.files()
    with (
        StateLock(node.paths.lock).held(),
        pytest.raises(CheckpointError, match=r"held for 0\.05 s by another instance"),
    ):
        operation(node.unrepaired(lock=StateLock(node.paths.lock, timeout=0.05)))
    assert (node.paths.checkpoint.read_bytes(), node.files()) == (before, files)


@pytest.mark.parametrize("operation", [prepare_first, unprepare_first])
def test_killed_and_asked_again_without_a_repair(
    operation: Operation, tmp_path: Path, inventory: NodeInventory
) -> None:
    """The other instance of an update takes over: it has long started, and meets the half-done state in a
    call."""
    for at in range(steps_of(operation, fresh(tmp_path / "counted", inventory))):
        node = fresh(tmp_path / str(at), inventory)
        if operation is unprepare_first:
            node.plugin().prepare(ref_of(FIRST))
        with pytest.raises(Killed):
            operation(node.unrepaired(DyingDisk(at)))
        operation(node.unrepaired())
        assert node.holders() == ({uid(2)} if operation is unprepare_first else {uid(1), uid(2)})
        node.plugin()
        check_promises(node)


@pytest.mark.parametrize("error", mostly_long([errno.EIO, errno.ENOSPC]))
@pytest.mark.parametrize("operation", mostly_long([prepare_first, unprepare_first, prepare_again], fast=2))
def test_any_one_step_fails(
    operation: Operation, error: int, tmp_path: Path, inventory: NodeInventory
) -> None:
    for at in range(steps_of(operation, fresh(tmp_path / "counted", inventory))):
        node = fresh(tmp_path / str(at), inventory)
        if operation in PREPARED_BEFORE:
            node.plugin().prepare(ref_of(FIRST))
        plugin = node.unrepaired(FailingDisk(at, error=error))
        with pytest.raises(KoordraError) as caught:
            operation(plugin)
        assert str(node.paths.state.parent) in str(caught.value)
        if operation is prepare_first:
            # Rolled back at once: a rival can have the card, and then the claim is refused.
            assert plugin.prepare(ref_of(RIVAL))
            with pytest.raises(PrepareError, match="InsufficientCapacity"):
                plugin.prepare(ref_of(FIRST))
            plugin.unprepare(ref_of(RIVAL))
        operation(plugin)
        assert node.holders() == ({uid(2)} if operation is unprepare_first else {uid(1), uid(2)})
        check_promises(node)


def restore_files(plugin: DeviceState) -> None:
    """What the plugin does every few seconds."""
    plugin.restore_files()


@pytest.mark.parametrize(
    "operation", mostly_long([prepare_first, unprepare_first, prepare_again, repair, restore_files], fast=2)
)
def test_any_one_read_fails(operation: Operation, tmp_path: Path, inventory: NodeInventory) -> None:
    """A disk with a bad sector: an error that names the file, nothing lost and nothing given twice."""

    def made(name: str) -> PluginNode:
        node = fresh(tmp_path / name, inventory)
        if operation is not prepare_first:
            node.plugin().prepare(ref_of(FIRST))
        return node

    counted = UnreadableDisk()
    operation(made("counted").unrepaired(counted))
    assert counted.reads
    for at, read in enumerate(counted.reads):
        node = made(str(at))
        before = node.holders()
        disk = UnreadableDisk(at)
        plugin = node.unrepaired(disk)
        try:
            operation(plugin)
        except KoordraError as error:
            assert str(node.paths.state.parent) in str(error), read
            assert "Input/output error" in str(error), read
            assert before <= node.holders(), read
            if operation is not prepare_first:
                with pytest.raises(PrepareError, match="InsufficientCapacity"):
                    node.unrepaired().prepare(ref_of(RIVAL))
        operation(plugin)
        assert node.holders() == ({uid(2)} if operation is unprepare_first else {uid(1), uid(2)})
        check_promises(node)


def test_full_disk(tmp_path: Path, inventory: NodeInventory) -> None:
    """Nothing can be written, so nothing more is prepared; what is prepared can be given back once there is
    space."""
    node = fresh(tmp_path, inventory)
    disk = FailingDisk(full=True)
    plugin = node.unrepaired(disk)
    before = node.paths.checkpoint.read_bytes()
    with pytest.raises(KoordraError, match="No space left on device; free space"):
        plugin.prepare(ref_of(FIRST))
    assert node.paths.checkpoint.read_bytes() == before
    assert node.holders() == {uid(2)}
    with pytest.raises(KoordraError, match="No space left"):
        plugin.unprepare(ref_of(SECOND))
    assert node.holders() == {uid(2)}
    disk.full = False
    plugin.prepare(ref_of(FIRST))
    plugin.unprepare(ref_of(SECOND))
    assert node.holders() == {uid(1)}


def test_read_only_cdi_directory(tmp_path: Path, inventory: NodeInventory) -> None:
    node = fresh(tmp_path, inventory)
    disk = FailingDisk(read_only=node.paths.cdi)
    plugin = node.plugin(disk)
    with pytest.raises(CDIError, match=r"koordra.io-claim_.*cannot be written: Read-only file system"):
        plugin.prepare(ref_of(FIRST))
    with pytest.raises(CDIError, match="cannot be removed: Read-only file system"):
        plugin.unprepare(ref_of(SECOND))
    disk.read_only = None
    plugin.unprepare(ref_of(SECOND))
    plugin.prepare(ref_of(FIRST))
    assert node.holders() == {uid(1)}


def test_roll_back_that_fails_too_keeps_the_devices(tmp_path: Path, inventory: NodeInventory) -> None:
    """The checkpoint says started, and nothing more can be written: nobody else gets the card until that is
    undone."""
    node = fresh(tmp_path, inventory)
    disk = FailingDisk()
    plugin = node.unrepaired(disk)
    steps = steps_of(prepare_first, fresh(tmp_path / "counted", inventory))
    started = StepDisk()
    fresh(tmp_path / "steps", inventory).unrepaired(started).prepare(ref_of(FIRST))
    first_fsync = next(index for index, (step, _) in enumerate(started.steps) if step == "fsync")
    assert first_fsync < steps
    # From the CDI file on, everything is full.
    original = disk.at_step

    def full_after_checkpoint(step: str, path: Path) -> None:
        if step == "create" and path.name.startswith("koordra.io-claim_"):
            disk.full = True
        original(step, path)

    disk.at_step = full_after_checkpoint  # type: ignore[method-assign]
    with pytest.raises(CDIError, match="No space left"):
        plugin.prepare(ref_of(FIRST))
    assert node.checkpoint().get(uid(1)).state is State.STARTED  # type: ignore[union-attr]
    disk.at_step = original  # type: ignore[method-assign]
    disk.full = False
    with pytest.raises(PrepareError, match="InsufficientCapacity"):
        plugin.prepare(ref_of(RIVAL))
    node.plugin()
    node.unrepaired().prepare(ref_of(RIVAL))
    assert node.holders() == {uid(2), uid(3)}


KILLED_PROCESS = """
import sys
from pathlib import Path
from koordra.kubelet_plugin.discovery.reading import discover
from koordra.kubelet_plugin.publish.node_inventory import inventory_of
from koordra.kubelet_plugin.publish.offering import Offering
from tests.fakes.disks import DyingDisk, kill_process
from tests.fakes.node_claims import ANY_ISOLATION
from tests.unit.kubelet_plugin.conftest import PluginNode, ref_of
from tests.unit.kubelet_plugin.prepare.test_crashes import FIRST
offering = Offering(isolation=ANY_ISOLATION)
node = PluginNode(Path(sys.argv[1]), inventory_of(discover(Path(sys.argv[2])), offering=offering))
node.claims.put(FIRST)
node.unrepaired(DyingDisk(int(sys.argv[3]), kill_process)).prepare(ref_of(FIRST))
"""


@pytest.mark.parametrize("at", [3, 8])
def test_a_process_that_is_really_killed(
    at: int, tmp_path: Path, inventory: NodeInventory, machine_root: Path
) -> None:
    """SIGKILL in the middle, holding the state lock: the kernel drops the lock, and the next process
    repairs."""
    node = fresh(tmp_path, inventory)
    killed = subprocess.run(
        [sys.executable, "-c", KILLED_PROCESS, str(tmp_path), str(machine_root), str(at)],
        check=False,
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    assert killed.returncode == -9, killed.stderr
    node.plugin()
    check_promises(node)
    node.plugin().prepare(ref_of(FIRST))
    assert node.holders() == {uid(1), uid(2)}
