"""What the NRI hook adds to the creation of a container: round trips over a real socket, from a process of
its own.

The node has 250 running containers, which the runtime lists at registration and which the hook looks at every
second meanwhile. Then 1,000 containers are created, a third of them with a claim (two lookups, one small file
written). Times are those of the runtime's end: serialised request to parsed answer. The plain implementation
is the library's example plugin, which decides nothing. Growth is the median of the last 250 creations against
that of the first, and the process's memory.
"""

from __future__ import annotations

import re
import statistics
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Sequence
from pathlib import Path

from koordra._proto.nri import nri_pb2
from tests.fakes.nri_runtime import NEW, FakeRuntime, PluginConnection
from tests.unit.nri.node_state import (
    GPU0,
    NODE,
    NVIDIACTL,
    VERBS0,
    claim_json,
    gpu_json,
    guarded_json,
    nic_json,
    write,
)
from tests.unit.nri.verify.test_verify import spec

RUNNING = 250
CREATED = 1000
CLAIMS = 50
NONCE = "0123456789abcdef" * 2


def main() -> None:
    with tempfile.TemporaryDirectory(prefix="k") as folder:
        plain, _ = measure(Path(folder) / "plain", hook=False)
        hook, memory = measure(Path(folder) / "hook", hook=True)
    for name, times in (("example plugin", plain), ("hook", hook)):
        print(
            f"  {name:15} median {statistics.median(times):.2f} ms, p99 {percentile(times, 99):.2f} ms, "
            f"slowest {max(times):.2f} ms over {len(times)} creations beside {RUNNING} containers"
        )
    first, last = statistics.median(hook[:250]), statistics.median(hook[-250:])
    print(f"  hook against example plugin: {statistics.median(hook) / statistics.median(plain):.2f} times")
    print(
        f"  growth: first 250 {first:.2f} ms, last 250 {last:.2f} ms; memory {memory[0]} -> {memory[1]} MiB"
    )


def measure(folder: Path, *, hook: bool) -> tuple[list[float], tuple[int, int]]:
    """Milliseconds of each creation, and the process's memory before and after."""
    folder.mkdir()
    claims = [str(uuid.UUID(int=n + 1)) for n in range(CLAIMS)]
    runtime = FakeRuntime(folder / "nri.sock", version=NEW, request_timeout=10)
    prepare_node(folder, claims)
    flags = (
        [
            "koordra",
            "nri",
            "--node-name",
            NODE,
            "--state-dir",
            str(folder / "state"),
            "--bundles",
            str(folder / "bundles"),
            "--verify-period",
            "1",
            "--log-level",
            "error",
        ]
        if hook
        else ["koordra.nri.example"]
    )
    command = [sys.executable, "-m", *flags, "--socket", str(runtime.path)]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL) as process:
        try:
            connection = runtime.accept()
            connection.handshake(chunks=[[existing(n) for n in range(RUNNING)]])
            before = resident(process.pid)
            times = [creation(connection, n, claims) for n in range(CREATED)]
            return times, (before, resident(process.pid))
        finally:
            process.terminate()
            runtime.stop()


def prepare_node(folder: Path, claims: Sequence[str]) -> None:
    write(folder / "state" / "guarded.json", guarded_json())
    for uid in claims:
        record = claim_json(gpu_json(), nic_json(), uid=uid, nonce=NONCE, memlock=True)
        write(folder / "state" / "prepared" / f"{uid}.json", record)
    for n in range(RUNNING):
        document = spec(env=["NVIDIA_VISIBLE_DEVICES=void", *(f"V{k}=value" for k in range(40))])
        document["linux"]["devices"] = []
        write(folder / "bundles" / f"running-{n}" / "config.json", document)


def existing(n: int) -> nri_pb2.Container:
    return nri_pb2.Container(id=f"running-{n}", name="main", env=[f"V{k}=value" for k in range(40)], state=3)


def creation(connection: PluginConnection, n: int, claims: Sequence[str]) -> float:
    """One CreateContainer; every third container holds a card and a NIC."""
    pod = nri_pb2.PodSandbox(name=f"pod-{n}", namespace="team", uid=f"uid-{n}")
    container = nri_pb2.Container(id=f"created-{n}", name="main", env=[f"V{k}=value" for k in range(40)])
    for k in range(20):
        container.mounts.add(destination=f"/data/{k}", source=f"/srv/{k}", type="bind", options=["rbind"])
    rules = container.linux.resources.devices
    rules.add(allow=False, access="rwm")
    if n % 3 == 0:
        marker = f"KOORDRA_CLAIM_{claims[n % CLAIMS].upper().replace('-', '_')}"
        container.env.extend([f"{marker}={NONCE}", f"{marker}_0={NONCE}", f"{marker}_1={NONCE}"])
        for node in (GPU0, NVIDIACTL, VERBS0):
            container.linux.devices.add(path=node.path, type="c", major=node.major, minor=node.minor)
            rule = rules.add(allow=True, type="c", access="rw")
            rule.major.value, rule.minor.value = node.major, node.minor
    began = time.perf_counter()
    answer = connection.create(pod, container)
    taken = (time.perf_counter() - began) * 1000
    assert answer is not None
    return taken


def percentile(values: Sequence[float], percent: int) -> float:
    return statistics.quantiles(values, n=100)[percent - 1]


def resident(pid: int) -> int:
    text = Path(f"/proc/{pid}/status").read_text()
    found = re.search(r"VmRSS:\s+(\d+) kB", text)
    return int(found[1]) // 1024 if found else 0
