"""The store: one revision for everything, on disk before the answer, a history with an end."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from koordra.errors import ClusterError
from koordra_devcluster.apiserver.status import Refusal
from koordra_devcluster.apiserver.storage.store import HISTORY, Store
from tests.patience import PATIENCE

WRITER = """
import sys
from pathlib import Path
from koordra_devcluster.apiserver.storage.store import Store
store = Store(Path(sys.argv[1]))
number = 0
while True:
    number += 1
    entry = store.mutate("things", ("", f"t{number % 7}"), lambda old: {"metadata": {}, "number": number})
    print(entry.object["metadata"]["resourceVersion"], number, flush=True)
"""


def put(store: Store, name: str, value: int) -> int:
    entry = store.mutate("things", ("", name), lambda _old: {"metadata": {"name": name}, "value": value})
    return int(entry.object["metadata"]["resourceVersion"])


def test_objects_and_revision_survive_a_restart(tmp_path: Path) -> None:
    store = Store(tmp_path / "db")
    put(store, "a", 1)
    revision = put(store, "a", 2)
    store.close()
    again = Store(tmp_path / "db")
    entry = again.get("things", ("", "a"))
    assert entry is not None
    assert entry.object["value"] == 2
    assert put(again, "b", 1) == revision + 1
    again.close()


def test_a_removal_survives_a_restart_with_its_revision(tmp_path: Path) -> None:
    store = Store(tmp_path / "db")
    put(store, "a", 1)
    store.mutate("things", ("", "a"), lambda _old: None)
    revision = store.revision
    store.close()
    again = Store(tmp_path / "db")
    assert again.get("things", ("", "a")) is None
    assert again.revision == revision
    again.close()


def test_kill_9_loses_no_acknowledged_write(tmp_path: Path) -> None:
    writer = subprocess.Popen(
        [sys.executable, "-c", WRITER, str(tmp_path / "db")], stdout=subprocess.PIPE, text=True
    )
    assert writer.stdout is not None
    lines = [writer.stdout.readline() for _ in range(300)]
    writer.send_signal(signal.SIGKILL)
    lines += writer.stdout.readlines()
    writer.wait()
    writer.stdout.close()
    revision, number = map(int, [line for line in lines if line.endswith("\n")][-1].split())
    store = Store(tmp_path / "db")
    entry = store.get("things", ("", f"t{number % 7}"))
    assert entry is not None
    assert entry.object["number"] >= number
    assert store.revision >= revision
    store.close()


def test_a_change_that_raises_leaves_everything_as_it_was(tmp_path: Path) -> None:
    store = Store(tmp_path / "db")
    revision = put(store, "a", 1)

    def fail(_old: object) -> None:
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        store.mutate("things", ("", "a"), fail)
    assert store.revision == revision
    store.close()


def test_followers_get_every_change_after_their_revision(tmp_path: Path) -> None:
    store = Store(tmp_path / "db")
    first = put(store, "a", 1)
    put(store, "a", 2)
    with store.follow("things", first) as subscription:
        put(store, "b", 1)
        store.mutate("things", ("", "a"), lambda _old: None)
        changes = [
            *subscription,
            subscription.queue.get(timeout=PATIENCE),
            subscription.queue.get(timeout=PATIENCE),
        ]
    assert [change.type for change in changes if change] == ["MODIFIED", "ADDED", "DELETED"]
    assert [change.revision for change in changes if change] == [first + 1, first + 2, first + 3]
    store.close()


def test_the_history_ends(tmp_path: Path) -> None:
    store = Store(tmp_path / "db")
    first = put(store, "a", 0)
    for value in range(HISTORY):
        put(store, "a", value)
    with store.follow("things", first):
        pass
    put(store, "a", -1)
    with pytest.raises(Refusal) as refused:
        store.follow("things", first)
    assert (refused.value.code, refused.value.reason) == (410, "Expired")
    store.close()


def test_the_history_does_not_reach_behind_a_restart(tmp_path: Path) -> None:
    store = Store(tmp_path / "db")
    old = put(store, "a", 1)
    new = put(store, "a", 2)
    store.close()
    again = Store(tmp_path / "db")
    with again.follow("things", new) as subscription:
        assert list(subscription) == []
    with pytest.raises(Refusal):
        again.follow("things", old)
    again.close()


def test_two_servers_cannot_share_a_state_file(tmp_path: Path) -> None:
    store = Store(tmp_path / "db")
    with pytest.raises(ClusterError, match="cannot be opened"):
        Store(tmp_path / "db", patience=0.1)
    store.close()


def test_the_state_is_private(tmp_path: Path) -> None:
    store = Store(tmp_path / "db")
    assert (tmp_path / "db").stat().st_mode & 0o777 == 0o600
    store.close()
