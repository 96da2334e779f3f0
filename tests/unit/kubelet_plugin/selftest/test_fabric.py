"""Two machines together: who is the server, what is tried, what its programs say, and a whole run of two
sides."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from koordra.errors import NodeError
from koordra.kubelet_plugin.selftest import fabric
from koordra.kubelet_plugin.selftest.fabric import Side, Trial
from koordra.kubelet_plugin.selftest.program_runs import Answer
from koordra.kubelet_plugin.selftest.report import Status
from tests.fakes import gpu_machine
from tests.fakes.gpu_machine import GpuMachine
from tests.patience import PATIENCE
from tests.unit.kubelet_plugin.selftest.test_selftest import PACKAGES


def test_the_lower_address_is_the_server() -> None:
    assert fabric.server_is("10.0.0.9", "10.0.0.10")
    assert not fabric.server_is("10.0.0.10", "10.0.0.9")
    assert fabric.server_is("10.0.0.1", "fd00::1")
    with pytest.raises(NodeError, match="own address"):
        fabric.server_is("10.0.0.1", "10.0.0.1")


def test_a_peer_that_is_no_address_is_refused_in_words() -> None:
    with pytest.raises(NodeError, match="name the machines by their addresses"):
        fabric.server_is("10.0.0.1", "node-2")
    with pytest.raises(NodeError, match=r"--fabric no\.such\.host: .*; name the other machine's address"):
        fabric.own_address("no.such.host")


def test_nics_are_paired_in_order_each_with_a_port_of_its_own() -> None:
    both = fabric.trials(Side(3, True, True), Side(2, True, True), port=100)
    assert both == (Trial("ib_write_bw 0", 101, 0), Trial("ib_write_bw 1", 102, 1), Trial("nccl", 103))


def test_what_a_side_lacks_is_a_reason() -> None:
    tools, nccl = fabric.trials(Side(1, True, False), Side(1, False, True), port=100)
    assert tools.lacking == "client: no ib_write_bw"
    assert nccl.lacking == "both sides need a GPU and PyTorch"
    assert fabric.trials(Side(0, True, False), Side(1, True, True), port=1)[0].lacking.startswith("no pair")


WRITE_BW = """\
---------------------------------------------------------------------------------------
                    RDMA_Write BW Test
 Dual-port       : OFF          Device         : mlx5_0
---------------------------------------------------------------------------------------
 #bytes     #iterations    BW peak[Gb/sec]    BW average[Gb/sec]   MsgRate[Mpps]
 65536      1126500          0.00               196.87             0.375501
---------------------------------------------------------------------------------------
"""


def test_the_average_bandwidth_is_read() -> None:
    assert fabric.bandwidth(WRITE_BW) == 196.87
    assert fabric.bandwidth("Couldn't connect to 10.0.0.1:18651\n") is None


@pytest.mark.parametrize(
    ("gbps", "rate", "status"),
    [(196.9, 200, "ok"), (150.0, 200, "problem"), (10.0, None, "ok"), (None, 200, "problem")],
)
def test_four_fifths_of_the_link_are_wanted(gbps: float | None, rate: int | None, status: str) -> None:
    assert fabric.judge_bandwidth(gbps, rate, name="mlx5_0", output="").status == status


def reduced(output: str, first: float = 2.0) -> Answer:
    return Answer(document={"gbps": 300.0, "first": first}, output=output)


def test_the_way_that_nccl_takes_is_judged() -> None:
    assert (
        fabric.judge_all_reduce(reduced("via NET/IB/0/GDRDMA")).found == "300.0 Gb/s by NET/IB with GPUDirect"
    )
    assert fabric.judge_all_reduce(reduced("via NET/Socket/0")).status is Status.PROBLEM
    assert fabric.judge_all_reduce(reduced("via NET/IB/0", first=3.0)).status is Status.PROBLEM
    assert fabric.judge_all_reduce(Answer(failure="it crashed")).status is Status.PROBLEM


def test_a_listening_port_is_seen() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        port = listening.getsockname()[1]
        assert fabric.listens(port)
    assert not fabric.listens(port)


TOOL = """\
#!{python}
import socket, sys, time
port = int(sys.argv[sys.argv.index("-p") + 1])
if sys.argv[-1].startswith("127."):
    other = socket.create_connection((sys.argv[-1], port), timeout=30)
else:
    listening = socket.create_server(("0.0.0.0", port))
    listening.settimeout(30)
    other, _ = listening.accept()
other.sendall(b"x")
assert other.recv(1) == b"x"
print(" 65536      1126500          0.00               {gbps}             0.375501")
"""


def free_ports(count: int) -> int:
    """The first of so many consecutive ports that nobody listens on."""
    return next(
        first
        for first in range(21000, 60000, count)
        if not any(map(fabric.listens, range(first, first + count)))
    )


@pytest.mark.long
def test_two_machines_run_the_same_trials_in_step(tmp_path: Path) -> None:
    """The tool is a stand-in that has to be served before it is called; NCCL one that computes a sum."""
    gpu_machine.build()
    port, sides = free_ports(40), []
    for index, (own, peer) in enumerate((("127.0.0.1", "127.0.0.2"), ("127.0.0.2", "127.0.0.1"))):
        machine = GpuMachine.make(tmp_path / str(index), "t4x4-1nic")
        tool = machine.root / "usr/bin/ib_write_bw"
        tool.write_text(TOOL.format(python=sys.executable, gbps="196.87" if index else "199.00"))
        tool.chmod(0o755)
        command = [
            sys.executable,
            "-m",
            "koordra",
            "node",
            "selftest",
            "--root",
            str(machine.root),
            "-o",
            "json",
        ]
        command += ["--fabric", peer, "--fabric-own", own, "--fabric-port", str(port)]
        environment = machine.environment | {"PYTHONPATH": str(PACKAGES)}
        sides.append(subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True))
    said: list[dict[str, dict[str, Any]]] = []
    for side in sides:
        output, _ = side.communicate(timeout=3 * PATIENCE)
        said.append({step["name"]: step for step in json.loads(output)["steps"]})
    assert said[0]["fabric"]["found"] == "127.0.0.1, the server of 127.0.0.2"
    assert said[1]["fabric"]["found"] == "127.0.0.2, the client of 127.0.0.1"
    for index, steps in enumerate(said):
        names = [name for name in steps if name.startswith("fabric: ")]
        assert names == ["fabric: ib_write_bw 0", "fabric: nccl"]
        assert steps["fabric: ib_write_bw 0"]["details"]["gbps"] == (196.87 if index else 199.0)
        assert steps["fabric: nccl"]["details"]["way"] == "NET/IB"
        assert steps["fabric: nccl"]["status"] == "ok"


def test_a_machine_that_does_not_come_is_a_problem(tmp_path: Path) -> None:
    with pytest.raises(NodeError, match="did not connect within 0 s; start it there too"):
        fabric.Rendezvous("127.0.0.1", "127.0.0.2", port=free_ports(2), patience=0.2)
    with pytest.raises(NodeError, match="did not answer within 1 s"):
        fabric.Rendezvous("127.0.0.2", "127.0.0.1", port=free_ports(2), patience=0.6)
