"""The hook dies between any two steps, its disk fails or fills up: what the next one makes of it.

A container whose creation the hook did not answer is created as it was asked for, unless the runtime requires
the hook. It must be found, and nothing of its secret told.
"""

from __future__ import annotations

import contextlib
import errno
import os
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from koordra._proto.nri import nri_pb2
from koordra.errors import RemoteError
from koordra.node_state import reader
from koordra.node_state.claim_network import AttachedNetwork, encode_attached
from koordra.node_state.disk import Disk
from koordra.node_state.layout import StateFolder
from koordra.node_state.reader import StateReader
from koordra.nri.hook.ledger import Ledger
from koordra.nri.hook.oci import container_of
from koordra.nri.hook.plugin import HookPlugin
from koordra.nri.verify.bundles import Running
from koordra.nri.verify.drift import Drift, Expected, drift_of
from tests.fakes.disks import DyingDisk, FailingDisk, Killed, StepDisk, UnreadableDisk
from tests.unit.nri.hook.test_plugin import CALL, request
from tests.unit.nri.node_state import (
    GPU0,
    GUARDED,
    JOINT_CLAIM,
    MARKER,
    NODE,
    NONCE,
    NVIDIACTL,
    RDMA_CM,
    UID,
    VERBS0,
    claim_json,
    gpu_json,
    guarded_json,
    markers,
    nic_json,
    write,
)

ID = "c1"


def created() -> nri_pb2.CreateContainerRequest:
    """With what CDI brought, as the runtime asks."""
    message = request(GPU0, VERBS0, env=markers(0, 1))
    message.container.id = ID
    return message


def fresh(state: Path) -> Path:
    """A node on which a claim is prepared, whose network is in the container's pod."""
    write(state / "prepared" / f"{UID}.json", claim_json(gpu_json(), nic_json(), memlock=True))
    write(state / "guarded.json", guarded_json())
    attached = StateFolder(state).attached_file(UID)
    write(attached, encode_attached(AttachedNetwork(UID, "pod-uid")).decode())
    return state


def hook(state: Path, disk: Disk | None = None) -> HookPlugin:
    return HookPlugin(StateReader(state, node_name=NODE), ledger=Ledger(state, disk=disk))


def create(plugin: HookPlugin) -> nri_pb2.CreateContainerResponse:
    message = created()
    message.pod.uid = "pod-uid"
    return plugin.create_container(message, CALL)


def found(state: Path, *, adjusted: bool) -> list[Drift]:
    """What the next hook's verification says of the container, with or without the adjustment."""
    entry = Ledger(state).get(ID)
    env = markers(0, 1)
    if adjusted:
        assert entry is not None
        env = entry.env
    message = request(GPU0, VERBS0, NVIDIACTL, RDMA_CM, env=env)
    message.container.id = ID
    message.container.rlimits.add(type="RLIMIT_MEMLOCK", hard=1, soft=1)
    running = Running(container_of(message.pod, message.container))
    return list(drift_of(running, Expected(entry, claims={MARKER: JOINT_CLAIM}, guarded=GUARDED)))


def steps(state: Path) -> int:
    disk = StepDisk()
    create(hook(fresh(state), disk))
    return len(disk.steps)


def test_killed_between_any_two_steps_the_container_that_nobody_adjusted_is_found(tmp_path: Path) -> None:
    count = steps(tmp_path / "counted")
    assert count >= 4
    for at in range(count + 1):
        state = fresh(tmp_path / str(at))
        with pytest.raises(Killed) if at < count else contextlib.nullcontext():
            create(hook(state, DyingDisk(at)))
        # Not answered: also where all was written, and the process ended before the answer had left.
        (drift,) = found(state, adjusted=False)
        assert drift.kind == "HookMissed", at
        assert NONCE not in drift.message, "it is an Event that others read"
        # The next hook starts, nothing half written stays, and the kubelet's next try is as any other.
        plugin = hook(state)
        assert [path.name for path in (state / "nri-granted").glob("*.tmp")] == []
        assert create(plugin).adjust.env
        assert found(state, adjusted=True) == []


def test_killed_while_an_entry_is_removed_it_is_forgotten_by_the_next_listing(tmp_path: Path) -> None:
    create(hook(fresh(tmp_path)))
    disk = DyingDisk(0)
    dying = Ledger(tmp_path, disk=disk)
    with pytest.raises(Killed):
        dying.remove(ID)
    after = hook(tmp_path)
    assert after.ledger.get(ID) is not None
    after.synchronize((), ())
    assert after.ledger.get(ID) is None
    assert not list((tmp_path / "nri-granted").iterdir())


@pytest.mark.parametrize("error", [errno.EIO, errno.ENOSPC])
def test_any_one_write_fails(tmp_path: Path, error: int) -> None:
    """The container starts, adjusted; its entry is written with the next round of the verification."""
    for at in range(steps(tmp_path / "counted")):
        state = fresh(tmp_path / str(at))
        plugin = hook(state, FailingDisk(at, error=error))
        assert create(plugin).adjust.env
        assert plugin.ledger.get(ID) is not None
        plugin.ledger.flush()
        assert found(state, adjusted=True) == []


def test_a_full_disk_refuses_nobody_and_what_was_given_is_known_once_there_is_room(tmp_path: Path) -> None:
    disk = FailingDisk(full=True)
    plugin = hook(fresh(tmp_path), disk)
    assert create(plugin).adjust.env
    assert plugin.ledger.get(ID) is not None
    disk.full = False
    plugin.ledger.flush()
    assert found(tmp_path, adjusted=True) == []


class Unreadable:
    """`read_file`, of which one call fails."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._read = reader.read_file
        self.at: int | None = None
        self.paths: list[str] = []
        monkeypatch.setattr(reader, "read_file", self)

    def __call__(self, path: Path, **said: Any) -> Any:
        self.paths.append(path.name)
        if self.at is not None and len(self.paths) == self.at + 1:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return self._read(path, **said)


def test_any_one_read_of_a_creation_fails_closed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    disk = Unreadable(monkeypatch)
    create(hook(fresh(tmp_path)))
    read = [name for name in disk.paths if name != f"{ID}.json"]
    assert read == [f"{UID}.json", f"{UID}.json", "guarded.json"]
    for at in range(len(read)):
        state = fresh(tmp_path / str(at))
        plugin = hook(state)
        disk.at, disk.paths = at, []
        with pytest.raises(RemoteError, match="Input/output error"):
            create(plugin)
        assert Ledger(state).get(ID) is None
        assert create(plugin).adjust.env, "the next try reads again"


def test_an_entry_that_the_disk_does_not_give_makes_no_forger_of_its_container(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise a bad sector would have an innocent pod evicted."""
    create(hook(fresh(tmp_path)))
    disk = Unreadable(monkeypatch)
    disk.at = 0
    with capture_logs() as lines:
        again = Ledger(tmp_path)
    assert [line["event"] for line in lines] == ["ledger_entry_not_read"]
    assert again.get(ID) is None
    assert again.problem(ID) == f"nri-granted/{ID}.json cannot be read: Input/output error"
    assert again.problem("other") == ""
    again.flush()
    assert again.get(ID) is not None
    assert again.problem(ID) == ""


def test_a_ledger_whose_folder_cannot_be_listed_says_nothing_of_anybody(tmp_path: Path) -> None:
    create(hook(fresh(tmp_path)))
    disk = UnreadableDisk(0)
    again = Ledger(tmp_path, disk=disk)
    assert again.get(ID) is None
    assert again.problem(ID) == "nri-granted cannot be read: Input/output error"
    again.flush()
    assert again.get(ID) is not None
    assert again.problem("other") == ""
