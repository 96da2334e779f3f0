"""Two machines together: ib_write_bw between their RDMA NICs, and an all-reduce of NCCL between their first
GPUs.

Both run `koordra node selftest --fabric OTHER`. Who has the lower address towards the other is the server:
it listens on a TCP port, the other connects until it answers. They tell each other in one line of JSON what
they have; from the two both work out the same list of trials. In each trial the server starts its program
and says so, then the client starts its own, and the end of both is told before the next:

    server  hello ─────────── start program, "started" ─────────────── result ───> next
    client  ─────── hello ─────────────────────────── start program ── result ───> next

The connection is neither secret nor authenticated, as those of ib_write_bw and NCCL are not. So nothing of
what the other says becomes a part of a command: the server's and the client's devices, ports and sizes are
each side's own reading, and of the other only counts and figures are taken."""

from __future__ import annotations

import ipaddress
import json
import re
import shutil
import socket
import subprocess
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from koordra.errors import NodeError
from koordra.kubelet_plugin.selftest.container import Command, without_spec
from koordra.kubelet_plugin.selftest.program_runs import Answer, run
from koordra.kubelet_plugin.selftest.report import Finding, ok, problem, skipped
from koordra.topology.machine import Machine, Nic

PORT: Final = 18650
NCCL_BYTES: Final = 256 << 20
LEAST_OF_LINK: Final = 0.8
"""What of a link's rate ib_write_bw has to reach."""
_MOST_LINE: Final = 64 << 10
_WRITE_BW: Final = "ib_write_bw"
_TRIAL_SECONDS: Final = 60.0
_LISTENS_WITHIN: Final = 30.0
_ROW: Final = re.compile(r"^\s*\d+\s+\d+\s+([0-9.]+)\s+([0-9.]+)\s+[0-9.]+\s*$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Side:
    """What one machine has: how many NICs with an active port, whether ib_write_bw, and whether a GPU with
    PyTorch."""

    nics: int
    write_bw: bool
    gpu: bool


def server_is(own: str, peer: str) -> bool:
    """Whether the machine with address `own` is the server. Raises NodeError for two equal addresses, and for
    what is none."""
    try:
        ours, theirs = ipaddress.ip_address(own), ipaddress.ip_address(peer)
    except ValueError as error:
        raise NodeError(f"{error}; name the machines by their addresses") from error
    if ours == theirs:
        raise NodeError(f"--fabric {peer} is this machine's own address; name the other's")
    return (ours.version, int(ours)) < (theirs.version, int(theirs))


def own_address(peer: str) -> str:
    """The address from which this machine reaches the peer; nothing is sent. Raises NodeError."""
    family = socket.AF_INET6 if ":" in peer else socket.AF_INET
    with socket.socket(family, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect((peer, 9))
        except OSError as error:
            raise NodeError(f"--fabric {peer}: {error.strerror}; name the other machine's address") from error
        return str(probe.getsockname()[0])


def active(machine: Machine) -> tuple[Nic, ...]:
    return tuple(nic for nic in machine.nics if nic.port and nic.port.active)


@dataclass(frozen=True, slots=True)
class Trial:
    """`index` counts the NICs of a side, `port` is the one on which the server's program listens;
    `lacking`: why there is nothing to run."""

    name: str
    port: int = 0
    index: int = 0
    lacking: str = ""


def trials(server: Side, client: Side, *, port: int) -> tuple[Trial, ...]:
    """The same list on both sides: each pair of NICs in the order of their addresses, then NCCL."""
    found = []
    pairs = min(server.nics, client.nics)
    without = [name for name, side in (("server", server), ("client", client)) if not side.write_bw]
    if without or not pairs:
        reason = (
            f"{' and '.join(without)}: no {_WRITE_BW}" if without else "no pair of NICs with active ports"
        )
        found.append(Trial(_WRITE_BW, lacking=reason))
    else:
        found += [Trial(f"{_WRITE_BW} {index}", port + 1 + index, index) for index in range(pairs)]
    if server.gpu and client.gpu:
        found.append(Trial("nccl", port + 1 + pairs))
    else:
        found.append(Trial("nccl", lacking="both sides need a GPU and PyTorch"))
    return tuple(found)


def bandwidth(text: str) -> float | None:
    """Gb/s, the average, in what `ib_write_bw --report_gbits` prints."""
    rows = _ROW.findall(text)
    return float(rows[-1][1]) if rows else None


def judge_bandwidth(gbps: float | None, rate: int | None, *, name: str, output: str) -> Finding:
    if gbps is None:
        last = [line for line in output.splitlines() if line.strip()][-1:]
        return problem(
            f"{name}: no result: {''.join(last)}", "see programs/ of the report; check GIDs and MTU"
        )
    found = f"{name}: {gbps:.1f} Gb/s of {rate or 'unknown'}"
    if rate and gbps < LEAST_OF_LINK * rate:
        return problem(found, "check flow control (PFC), MTU and the PCIe link of both NICs", gbps=gbps)
    return ok(found, gbps=gbps)


def judge_all_reduce(answer: Answer) -> Finding:
    """What NCCL_DEBUG=INFO says of the way: NET/IB and GDRDMA, or the sockets of the host's network."""
    if answer.lacking:
        return skipped(answer.lacking)
    if answer.document is None:
        return problem(answer.failure, "see programs/ of the report")
    way = (
        "NET/IB"
        if "NET/IB" in answer.output
        else "NET/Socket"
        if "NET/Socket" in answer.output
        else "unknown"
    )
    direct = way == "NET/IB" and "GDRDMA" in answer.output
    found = f"{answer.document['gbps']} Gb/s by {way}{' with GPUDirect' if direct else ''}"
    details = {**answer.document, "way": way, "gpuDirect": direct}
    if answer.document["first"] % 2:
        return problem(f"{found}; the sum is {answer.document['first']}", "attach this report", **details)
    if way == "NET/Socket":
        return problem(
            found, "give NCCL the NICs (NCCL_IB_HCA) and check that their ports are active", **details
        )
    return ok(found, **details)


class Rendezvous:
    """The connection to the other machine: lines of JSON, each awaited for so many seconds."""

    def __init__(self, own: str, peer: str, *, port: int, patience: float) -> None:
        self.server = server_is(own, peer)
        self.host = own if self.server else peer
        self._patience = patience
        self._connection = self._accept(own, peer, port) if self.server else self._connect(own, peer, port)
        self._connection.settimeout(_TRIAL_SECONDS * 2)
        self._lines = self._connection.makefile("rb")

    def _accept(self, own: str, peer: str, port: int) -> socket.socket:
        with socket.create_server((own, port), family=_family(own)) as listening:
            until = time.monotonic() + self._patience
            while (left := until - time.monotonic()) > 0:
                listening.settimeout(left)
                with suppress(TimeoutError):
                    connection, address = listening.accept()
                    if address[0] == peer:
                        return connection
                    connection.close()
        raise NodeError(f"{peer} did not connect within {self._patience:.0f} s; start it there too")

    def _connect(self, own: str, peer: str, port: int) -> socket.socket:
        until = time.monotonic() + self._patience
        while time.monotonic() < until:
            try:
                return socket.create_connection((peer, port), timeout=5.0, source_address=(own, 0))
            except OSError:
                time.sleep(0.5)
        raise NodeError(
            f"{peer} port {port} did not answer within {self._patience:.0f} s; start it there too"
        )

    def tell(self, document: Mapping[str, Any]) -> None:
        self._connection.sendall(json.dumps(document).encode() + b"\n")

    def hear(self) -> dict[str, Any]:
        """Raises NodeError where the other is gone, or says what cannot be read."""
        try:
            said = json.loads(self._lines.readline(_MOST_LINE))
        except (OSError, ValueError) as error:
            raise NodeError(f"the other machine has gone: {error}") from error
        if not isinstance(said, dict):
            raise NodeError("the other machine does not speak as koordra does")
        return said

    def exchange(self, side: Side) -> tuple[Side, Side]:
        """Both sides, the server's first."""
        self.tell({"nics": side.nics, "writeBw": side.write_bw, "gpu": side.gpu})
        said = self.hear()
        other = Side(min(int(said.get("nics", 0)), 64), said.get("writeBw") is True, said.get("gpu") is True)
        return (side, other) if self.server else (other, side)

    def close(self) -> None:
        self._lines.close()
        self._connection.close()


def _family(address: str) -> socket.AddressFamily:
    return socket.AF_INET6 if ":" in address else socket.AF_INET


@dataclass(frozen=True, slots=True)
class FabricRun:
    """The programs of one side. `all_reduce` is the command of NCCL's program, without its arguments."""

    meeting: Rendezvous
    nics: Sequence[Nic]
    folder: Path
    all_reduce: tuple[str, ...]

    def run(self, trial: Trial) -> tuple[Finding, str]:
        """The finding, and what the program printed."""
        if trial.lacking:
            return skipped(trial.lacking), ""
        if trial.name == "nccl":
            answer = self._together(self._nccl(trial), trial.port)
            return judge_all_reduce(answer), answer.output
        nic = self.nics[trial.index]
        answer = self._together(self._write_bw(nic, trial), trial.port)
        rate = nic.port.rate_gbps if nic.port else None
        return (
            judge_bandwidth(bandwidth(answer.output), rate, name=nic.ib_device, output=answer.output),
            answer.output,
        )

    def _together(self, command: Command, port: int) -> Answer:
        """The server's program listens before the client's is started."""
        if not self.meeting.server:
            self.meeting.hear()
            answer = run(command, folder=self.folder, deadline=_TRIAL_SECONDS)
            self.meeting.tell({"done": True})
            self.meeting.hear()
            return answer
        with ThreadPoolExecutor(max_workers=1) as executor:
            running = executor.submit(run, command, folder=self.folder, deadline=_TRIAL_SECONDS)
            until = time.monotonic() + _LISTENS_WITHIN
            while not running.done() and time.monotonic() < until and not listens(port):
                time.sleep(0.1)
            self.meeting.tell({"started": True})
            answer = running.result()
        self.meeting.hear()
        self.meeting.tell({"done": True})
        return answer

    def _write_bw(self, nic: Nic, trial: Trial) -> Command:
        port = str(nic.port.number if nic.port else 1)
        arguments = [
            "-d",
            nic.ib_device,
            "-i",
            port,
            "-p",
            str(trial.port),
            "--report_gbits",
            "-F",
            "-D",
            "3",
        ]
        if not self.meeting.server:
            arguments.append(self.meeting.host)
        path = shutil.which(_WRITE_BW) or _WRITE_BW
        return without_spec(self.folder, (path, *arguments), {})

    def _nccl(self, trial: Trial) -> Command:
        rank = "0" if self.meeting.server else "1"
        argv = (*self.all_reduce, rank, f"{self.meeting.host}:{trial.port}", str(NCCL_BYTES))
        return without_spec(self.folder, argv, {"NCCL_DEBUG": "INFO"})


def listens(port: int, proc: Path = Path("/proc/net")) -> bool:
    """Whether a program of this machine listens on the TCP port (Documentation/networking/proc_net_tcp)."""
    for name in ("tcp", "tcp6"):
        with suppress(OSError):
            for line in (proc / name).read_text().splitlines()[1:]:
                fields = line.split()
                if fields[3] == "0A" and int(fields[1].rpartition(":")[2], 16) == port:
                    return True
    return False


def has_write_bw() -> bool:
    return shutil.which(_WRITE_BW) is not None


def has_torch(python: str) -> bool:
    """Whether that interpreter has PyTorch; it is not imported."""
    code = "import importlib.util, sys; sys.exit(importlib.util.find_spec('torch') is None)"
    try:
        return (
            subprocess.run([python, "-c", code], check=False, capture_output=True, timeout=60).returncode == 0
        )
    except (OSError, subprocess.TimeoutExpired):
        return False
