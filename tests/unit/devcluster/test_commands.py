"""Containers' commands as processes: where their volumes are, what they are called, how they end."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from koordra_devcluster.container_runtime.commands import Commands
from koordra_devcluster.container_runtime.oci import Mount
from koordra_devcluster.container_runtime.runtime import ContainerConfig, ContainerRuntime
from tests.unit.devcluster.calling import eventually

POD = {"namespace": "team", "name": "p", "uid": "u1", "hostname": "train-0", "labels": {}, "annotations": {}}


@pytest.fixture
def box(tmp_path: Path) -> Iterator[ContainerRuntime]:
    names = tmp_path / "names"
    names.write_text("127.0.0.1 localhost\n127.20.0.9 train-1.train\n")
    commands = Commands(tmp_path, hidden=tmp_path / "machine", hosts=lambda _: names)
    made = ContainerRuntime(tmp_path, node="n1", cdi_directories=[], commands=commands)
    yield made
    made.close()


def run(box: ContainerRuntime, script: str, *mounts: tuple[Path, str], **env: str) -> dict[str, Any]:
    sandbox = box.sandbox_of("u1") or box.run_sandbox(POD)
    config = ContainerConfig(
        "main",
        "x",
        command=["sh", "-c", script],
        env=env,
        mounts=[Mount(destination, str(source)) for source, destination in mounts],
    )
    record = box.create_container(sandbox, config)
    box.start_container(record["id"])
    return record


def ended(box: ContainerRuntime) -> dict[str, Any]:
    eventually(lambda: box.containers_of("u1")[-1]["state"] == "exited")
    return box.containers_of("u1")[-1]


def said(folder: Path, record: dict[str, Any]) -> str:
    return (folder / "output" / f"{record['id']}.log").read_text()


def test_a_command_finds_its_volumes_where_the_manifest_puts_them(
    box: ContainerRuntime, tmp_path: Path
) -> None:
    volume = tmp_path / "volume"
    volume.mkdir()
    (volume / "hosts").write_text("a slots=8\n")
    (tmp_path / "machine").mkdir()
    (tmp_path / "machine" / "made-up").write_text("x")
    record = run(
        box,
        'cat /run/gang/hosts /no/such/place/hosts; uname -n; echo "$WORD"; getent hosts train-1.train; '
        "test -e /made-up && echo seen; exit 3",
        (volume, "/run/gang"),
        (volume, "/no/such/place"),
        (tmp_path / "machine" / "made-up", "/made-up"),
        WORD="told",
    )
    assert ended(box)["exitCode"] == 3
    lines = said(tmp_path, record).splitlines()
    assert lines[:4] == ["a slots=8", "a slots=8", "train-0", "told"]
    assert lines[4].split() == ["127.20.0.9", "train-1.train"]
    assert lines[5:] == [], "nothing of the made-up machine is mounted"
    assert not Path("/no/such").exists(), "this machine is as it was"


def test_a_file_that_is_replaced_is_seen(box: ContainerRuntime, tmp_path: Path) -> None:
    """What the downward API does: the link of the folder that is mounted is another one."""
    volume = tmp_path / "volume"
    for number in ("1", "2"):
        (volume / f"..{number}").mkdir(parents=True)
        (volume / f"..{number}" / "hosts").write_text(f"{number}\n")
    (volume / "..data").symlink_to("..1")
    (volume / "hosts").symlink_to("..data/hosts")
    record = run(
        box, "cat /run/gang/hosts; until grep 2 /run/gang/hosts; do sleep 0.05; done", (volume, "/run/gang")
    )
    eventually(lambda: said(tmp_path, record) == "1\n")
    (volume / "new").symlink_to("..2")
    (volume / "new").replace(volume / "..data")
    assert ended(box)["exitCode"] == 0


def alive(path: Path) -> bool:
    """Whether someone still writes there."""
    before = path.stat().st_size
    threading.Event().wait(0.3)
    return path.stat().st_size > before


@pytest.mark.parametrize("how", ["stopped", "closed"])
def test_all_that_a_command_started_ends_with_it(box: ContainerRuntime, tmp_path: Path, how: str) -> None:
    loop = "(setsid sh -c 'while :; do echo x; sleep 0.02; done') & wait"
    record = run(box, loop)
    path = tmp_path / "output" / f"{record['id']}.log"
    eventually(lambda: path.exists() and path.stat().st_size > 0 and alive(path))
    if how == "stopped":
        box.stop_container(record["id"])
        assert box.containers_of("u1")[-1]["exitCode"] == 137
    else:
        box.close()
    eventually(lambda: not alive(path))


def test_commands_end_with_a_kubelet_that_is_killed(tmp_path: Path) -> None:
    (tmp_path / "names").write_text("127.0.0.1 localhost\n")
    program = (
        "import sys, time; from pathlib import Path\n"
        "from koordra_devcluster.container_runtime.commands import Commands\n"
        "folder = Path(sys.argv[1])\n"
        "commands = Commands(folder, hidden=folder / 'machine', hosts=lambda _: folder / 'names')\n"
        "command = ['sh', '-c', 'while :; do echo x; sleep 0.02; done']\n"
        "record = {'id': 'c', 'command': command, 'env': {}, 'mounts': []}\n"
        "commands.start(record, {'namespace': 'team', 'name': 'p', 'hostname': 'p'})\n"
        "time.sleep(600)\n"
    )
    kubelet = subprocess.Popen([sys.executable, "-c", program, str(tmp_path)])
    path = tmp_path / "output" / "c.log"
    try:
        eventually(lambda: path.exists() and path.stat().st_size > 0 and alive(path))
    finally:
        kubelet.kill()
        kubelet.wait()
    eventually(lambda: not alive(path))


def test_containers_of_a_runtime_that_was_killed_are_found_exited(
    box: ContainerRuntime, tmp_path: Path
) -> None:
    run(box, "sleep 60")
    box.close()
    commands = Commands(tmp_path, hidden=tmp_path / "machine", hosts=lambda _: tmp_path / "names")
    after = ContainerRuntime(tmp_path, node="n1", cdi_directories=[], commands=commands)
    assert after.containers_of("u1")[-1]["exitCode"] == 137


def test_a_command_that_is_not_there_ends_with_its_reason(box: ContainerRuntime, tmp_path: Path) -> None:
    sandbox = box.run_sandbox(POD)
    record = box.create_container(sandbox, ContainerConfig("main", "x", command=["no-such-program"]))
    box.start_container(record["id"])
    assert ended(box)["exitCode"] == 125
    assert "no-such-program" in said(tmp_path, record) or "No such file" in said(tmp_path, record)


def test_a_signal_reaches_a_command(box: ContainerRuntime, tmp_path: Path) -> None:
    """koordra's processes block signals in their threads; what they start must not."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])
    try:
        record = run(box, "trap 'echo got it; exit 0' TERM; kill -TERM $$; sleep 60")
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
    assert ended(box)["exitCode"] == 0
    assert said(tmp_path, record) == "got it\n"
