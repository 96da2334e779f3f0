"""The IMEX daemon of a node runs for the domain that the plugin named, and for no other."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

from koordra.api.opaque.imex import MOST_NODES
from koordra.errors import NodeError
from koordra.imex import supervisor as supervision
from koordra.imex.config_files import CONFIG, HOSTS, NODES, RUN, config_file, hosts_file, nodes_file
from koordra.imex.daemon import DAEMON, Daemon, in_root
from koordra.imex.supervisor import BETWEEN_SIGNALS, Supervisor, reaches
from koordra.node_state.disk import Disk
from koordra.node_state.imex import (
    DomainNode,
    DomainStatus,
    ImexFolder,
    NodeDomain,
    decode_status,
    encode_domain,
    is_supervised,
    supervising,
)
from tests.patience import PATIENCE

DOUBLE = Path(__file__).parents[2] / "fakes" / "imex_daemon.py"
CLIQUE = "00112233-4455-6677-8899-aabbccddeeff.1"
NET = f"127.{os.getpid() % 200 + 20}"
"""Of this run alone: the daemons have one port, each at an address of its own."""


def nodes(*numbers: int, net: str = NET) -> tuple[DomainNode, ...]:
    return tuple(DomainNode(number, f"tray-{number}", f"{net}.0.{number + 1}") for number in numbers)


def domain(own: int, *numbers: int, name: str = "gang default/train") -> NodeDomain:
    return NodeDomain(name, CLIQUE, own, nodes(own, *numbers))


class Tray:
    """One node: its folder, and the supervisor on a clock that the test turns."""

    def __init__(self, root: Path, number: int) -> None:
        self.number, self.now, self.delay = number, 1000.0, 0.0
        self.folder = ImexFolder(root / f"tray-{number}")
        self.folder.path.mkdir(parents=True)
        self.start_again()

    def start_again(self) -> None:
        self.daemon = Daemon(self.command, self.folder.path)
        self.supervisor = Supervisor(self.folder, self.daemon, Disk(), lambda: self.now)

    def command(self, name: str, arguments: Sequence[str]) -> list[str]:
        own = [f"IMEX_ADDRESS={NET}.0.{self.number + 1}", f"IMEX_DELAY={self.delay}"]
        return ["env", *own, sys.executable, str(DOUBLE), str(self.folder.path), name, *arguments]

    def put(self, wanted: NodeDomain | None) -> None:
        Disk().remove(self.folder.domain)
        if wanted is not None:
            Disk().replace(self.folder.domain, encode_domain(wanted), mode=0o600)

    def status(self) -> DomainStatus | None:
        data = Disk().read(self.folder.status)
        return decode_status(data) if data is not None else None

    def is_ready(self) -> bool:
        status = self.status()
        return status is not None and status.ready

    def reaches_both(self) -> bool:
        status = self.status()
        return status is not None and sorted(status.reached) == [0, 1]

    def until(self, holds: Callable[[], bool]) -> None:
        for _ in range(int(PATIENCE * 20)):
            self.supervisor.step()
            if holds():
                return
            time.sleep(0.05)
        raise AssertionError(f"{self.status()}, {self.daemon.ended}")


@pytest.fixture
def trays(tmp_path: Path) -> Iterator[list[Tray]]:
    found = [Tray(tmp_path, number) for number in range(3)]
    yield found
    for tray in found:
        tray.daemon.stop()


def test_without_a_domain_nothing_runs(trays: list[Tray]) -> None:
    trays[0].supervisor.step()
    assert not trays[0].daemon.runs
    assert trays[0].status() is None
    assert [path.name for path in trays[0].folder.path.iterdir()] == []


def test_a_node_is_ready_when_its_daemon_is_and_reaches_whom_it_can(trays: list[Tray]) -> None:
    one, two, _ = trays
    one.put(domain(0, 1))
    two.delay = 0.5
    two.put(domain(1, 0))
    one.until(lambda: one.status() == DomainStatus("gang default/train", CLIQUE, True, (0,)))
    two.supervisor.step()
    status = two.status()
    assert status is not None
    assert not status.ready
    assert "not ready" in status.detail
    for tray in (one, two):
        tray.until(tray.reaches_both)
    assert one.daemon.runs, "both have the same list of nodes"


def test_a_node_that_comes_is_told_to_the_daemon_that_runs(trays: list[Tray]) -> None:
    one = trays[0]
    one.put(domain(0))
    one.until(one.is_ready)
    first, resolved = one.daemon._process, one.folder.path / "resolved"
    one.put(domain(0, 1))
    one.until(lambda: resolved.read_text().split() == [f"{NET}.0.1", f"{NET}.0.2"])
    one.put(domain(0, 2))
    one.supervisor.step()
    one.supervisor.step()
    assert resolved.read_text().split() == [f"{NET}.0.1", f"{NET}.0.2"], "it ignores signals for 5 s"
    one.now += BETWEEN_SIGNALS
    one.until(lambda: resolved.read_text().split() == [f"{NET}.0.1", f"{NET}.0.3"])
    assert one.daemon._process is first, "the memory that is shared stays"


def test_the_daemon_ends_with_its_domain_and_another_one_has_its_own(trays: list[Tray]) -> None:
    one = trays[0]
    one.put(domain(0))
    one.until(one.is_ready)
    first = one.daemon._process
    one.put(domain(0, name="gang default/other"))
    one.until(
        lambda: (
            one.is_ready() and decode_status(one.folder.status.read_bytes()).domain == "gang default/other"
        )
    )
    assert first is not None
    assert first.poll() == 0, "by SIGTERM, so that it tells its peers"
    one.put(None)
    one.supervisor.step()
    assert not one.daemon.runs
    assert one.status() is None
    left = {path.name for path in one.folder.path.iterdir()}
    assert not {CONFIG, NODES, HOSTS, RUN} & left


def test_one_that_ends_by_itself_is_started_again_after_pauses_that_grow(trays: list[Tray]) -> None:
    one = trays[0]
    one.put(NodeDomain("gang default/train", CLIQUE, 5, nodes(5)))  # no name is its own: it ends
    one.supervisor.step()
    starts = 1
    for _ in range(4):
        process = one.daemon._process
        assert process is not None
        process.wait(PATIENCE)
        one.supervisor.step()
        assert one.daemon._process is None, "not at once"
        status = one.status()
        assert status is not None
        assert "it ended with code 2" in status.detail
        before, one.now = one.now, one.now + 60
        one.supervisor.step()
        starts += one.daemon._process is not None
        assert one.now > before
    assert starts == 5


def test_a_supervisor_that_starts_anew_serves_the_domain_that_is_there(trays: list[Tray]) -> None:
    one = trays[0]
    one.put(domain(0))
    one.until(one.is_ready)
    one.daemon.stop()  # as the kernel ends it when its supervisor dies
    one.start_again()
    one.until(one.is_ready)
    assert one.daemon.runs


def test_what_an_earlier_supervisor_said_does_not_outlive_its_domain(trays: list[Tray]) -> None:
    one = trays[0]
    one.folder.status.write_bytes(b"whatever")
    one.supervisor.step()
    assert not one.folder.status.exists()


def test_a_domain_that_cannot_be_read_is_no_domain_to_run(trays: list[Tray]) -> None:
    one = trays[0]
    one.folder.domain.write_bytes(b'{"schema": "other"}')
    with pytest.raises(NodeError, match=r"domain\.json"):
        one.supervisor.step()
    assert not one.daemon.runs


def test_a_daemon_that_is_not_there_is_told(trays: list[Tray]) -> None:
    one = trays[0]

    def nothing(name: str, arguments: Sequence[str]) -> list[str]:
        raise NodeError(f"{name} is not found")

    one.daemon = one.supervisor.daemon = Daemon(nothing, one.folder.path)
    one.put(domain(0))
    one.supervisor.step()
    status = one.status()
    assert status is not None
    assert not status.ready
    assert status.detail == "the IMEX daemon is not ready: nvidia-imex is not found"


def test_nobody_is_reached_where_nobody_listens() -> None:
    assert reaches(nodes(7, 8)) == ()


def test_there_is_one_supervisor(tmp_path: Path) -> None:
    folder, stop = ImexFolder(tmp_path), threading.Event()
    assert not is_supervised(folder)
    with supervising(folder, stop) as alone:
        assert alone
        assert is_supervised(folder)
        stop.set()
        with supervising(folder, stop) as second:
            assert not second
    assert not is_supervised(folder)


def test_the_daemon_is_stopped_at_the_end(trays: list[Tray], monkeypatch: pytest.MonkeyPatch) -> None:
    one, stop = trays[0], threading.Event()
    monkeypatch.setattr(supervision, "STEP", 0.02)
    one.put(domain(0))
    running = threading.Thread(target=one.supervisor.run, args=(stop,))
    running.start()
    for _ in range(int(PATIENCE * 20)):
        if one.daemon.runs:
            break
        time.sleep(0.05)
    process = one.daemon._process
    stop.set()
    running.join(PATIENCE)
    assert process is not None
    assert process.poll() is not None


# the files


def test_files_of_the_daemon(golden: Callable[[str, str], None]) -> None:
    golden("imex/imexd.cfg", config_file())
    golden("imex/nodes.cfg", nodes_file())
    golden("imex/hosts", hosts_file(NodeDomain("d", CLIQUE, 0, nodes(3, 0, net="10.0"))))
    assert len(nodes_file().split()) == MOST_NODES


# in the driver's root


def _may_mount() -> bool:
    return subprocess.run(["unshare", "--mount", "true"], check=False, capture_output=True).returncode == 0


@pytest.mark.skipif(not _may_mount(), reason="no mount namespaces here")
def test_the_program_runs_in_the_drivers_root_with_hosts_of_its_own(tmp_path: Path) -> None:
    (tmp_path / HOSTS).write_text("10.0.0.1\tkoordra-imex-0000\n")
    (tmp_path / RUN).mkdir()
    (tmp_path / RUN / "persist.dat").write_text("0: 10.0.0.1\n")
    before = Path("/etc/hosts").read_bytes()
    command = in_root(lambda name: (Path("/"), f"/bin/{name}"), tmp_path)
    words = command("cat", ["/etc/hosts", f"/mnt/{HOSTS}", "/var/run/nvidia-imex/persist.dat"])
    said = subprocess.run(words, capture_output=True, check=True).stdout
    assert said == (tmp_path / HOSTS).read_bytes() * 2 + b"0: 10.0.0.1\n"
    assert Path("/etc/hosts").read_bytes() == before


@pytest.mark.skipif(not _may_mount(), reason="no mount namespaces here")
def test_no_daemon_outlives_its_supervisor(tmp_path: Path) -> None:
    (tmp_path / HOSTS).write_text("")
    (tmp_path / RUN).mkdir()
    command = in_root(lambda name: (Path("/"), "/bin/sleep"), tmp_path)
    program = (
        f"import os, subprocess, time\np = subprocess.Popen({command(DAEMON, ['600'])!r})\n"
        "print(p.pid, flush=True)\ntime.sleep(600)\n"
    )
    parent = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    with parent.stdout:
        child = int(parent.stdout.readline())
    for _ in range(int(PATIENCE * 20)):
        if Path(f"/proc/{child}/comm").read_text().strip() == "sleep":
            break
        time.sleep(0.05)
    parent.send_signal(signal.SIGKILL)
    parent.wait()
    for _ in range(int(PATIENCE * 20)):
        try:
            state = Path(f"/proc/{child}/stat").read_text().rpartition(")")[2].split()[0]
        except FileNotFoundError:
            return
        if state == "Z":
            return
        time.sleep(0.05)
    raise AssertionError("it runs on")
