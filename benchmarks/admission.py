"""Admission of legacy pods: milliseconds of a review and reviews a second, over TLS, from a process of its
own.

`koordra controller --legacy-pods` serves as a process beside the development cluster's API server, with 200
pods of the namespace in its watch and a ResourceQuota to hold. Reviews come over kept connections, as the API
server sends them, of pods in every dialect and 180 shapes. Times are the caller's: body sent to answer read.

    plain review          of a pod that opted out: what HTTPS and JSON cost by themselves
    first of a template   the template has to be made first, so the API server's time is in it (here the
                          development cluster's)
    known, N connections  one after the other on each connection: what a pod waits for, and how many one
                          replica answers
    all different         no two pods of one workload: every one is translated anew
    500 a second          sent when they are due, on four connections; late counts from when it was due

Processor time a review is the server's alone, and hardly depends on what else the machine does.
"""

from __future__ import annotations

import http.client
import json
import os
import ssl
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from benchmarks import _results
from koordra.api import kinds
from koordra.errors import ApiError
from koordra.kube.client import KubeClient
from koordra.kube.kubeconfig import new_client
from tests.cluster.installation import Installation, free_port

REVIEWS = 1000
SHAPES = 20
BESIDE = 200
AIM_MS = 10.0
AIM_RATE = 500
Object = dict[str, Any]

ASKS: tuple[Callable[[int], Object], ...] = (
    lambda n: {"nvidia.com/gpu": 1 + n % 8},
    lambda n: {"nvidia.com/gpu": 2, "nvidia.com/gpumem": 1000 + n, "nvidia.com/gpucores": 30},
    lambda n: {"koordinator.sh/gpu": 10 + n},
    lambda n: {"aliyun.com/gpu-mem": 1 + n},
    lambda n: {"alnair/vgpu-memory": 1 + n, "alnair/vgpu-compute": 20},
    lambda n: {"elasticgpu.io/gpu-core": 10, "elasticgpu.io/gpu-memory": 100 + n},
    lambda n: {"tencent.com/vcuda-core": 20, "tencent.com/vcuda-memory": 1 + n},
    lambda n: {"volcano.sh/vgpu-number": 1, "volcano.sh/vgpu-memory": 1000 + n},
    lambda n: {"volcano.sh/gpu-memory": 1000 + n},
)


def main() -> None:
    with tempfile.TemporaryDirectory(prefix="ka-") as folder, serving(Path(folder)) as (port, server):
        found = {
            "plain review, 1 connection": measure(port, server, connections=1, how=_opted_out),
            "first of a template": measure(port, server, connections=1, number=SHAPES * len(ASKS)),
            "known, 1 connection": measure(port, server, connections=1),
            "known, 4 connections": measure(port, server, connections=4),
            "all different, 4 connections": measure(port, server, connections=4, how=_different),
            "500 a second": measure(port, server, connections=4, rate=AIM_RATE),
        }
    rows = []
    for name, (times, rate, processor) in found.items():
        median, slow = statistics.median(times), percentile(times, 99)
        rows.append([name, f"{median:.2f}", f"{slow:.2f}", f"{rate:.0f}", f"{processor:.2f}"])
        print(
            f"  {name:28} median {median:.2f} ms, p99 {slow:.2f} ms, {rate:.0f} pods/s, "
            f"{processor:.2f} ms of processor a review"
        )
    text = (
        "# Admission of legacy pods\n\n"
        + _results.table(["", "median ms", "p99 ms", "pods/s", "processor ms"], rows)
        + f"\n\nThe aim is {AIM_MS:.0f} ms at p99 and {AIM_RATE} pods/s for a replica. `python -m benchmarks admission`\n"
    )
    _results.write("admission", {"rows": rows}, text)


def percentile(times: Sequence[float], part: int) -> float:
    return sorted(times)[min(len(times) - 1, len(times) * part // 100)]


def measure(
    port: int,
    server: int,
    *,
    connections: int,
    number: int = REVIEWS,
    rate: float = 0.0,
    how: Callable[[Object, int], None] = lambda pod, number: None,
) -> tuple[list[float], float, float]:
    """Milliseconds of each review, reviews a second, and the server's milliseconds of processor a review.
    With a `rate` reviews are sent when they are due, otherwise as soon as the one before is answered."""
    times: list[list[float]] = [[] for _ in range(connections)]
    share = number // connections
    barrier = threading.Barrier(connections + 1)
    threads = [
        threading.Thread(
            target=_call,
            args=(
                port,
                [review(place * share + index, how) for index in range(share)],
                times[place],
                barrier,
            ),
            kwargs={"every": connections / rate if rate else 0.0, "after": place / rate if rate else 0.0},
        )
        for place in range(connections)
    ]
    for thread in threads:
        thread.start()
    barrier.wait()
    began, used = time.perf_counter(), processor_seconds(server)
    for thread in threads:
        thread.join()
    took, used = time.perf_counter() - began, processor_seconds(server) - used
    done = share * connections
    return [one for each in times for one in each], done / took, used / done * 1000


def processor_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _call(
    port: int,
    reviews: Sequence[bytes],
    times: list[float],
    barrier: threading.Barrier,
    *,
    every: float,
    after: float,
) -> None:
    context = ssl.create_default_context()
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    connection = http.client.HTTPSConnection("127.0.0.1", port, context=context)
    connection.connect()
    barrier.wait()
    due = time.perf_counter() + after
    for body in reviews:
        if every:
            time.sleep(max(due - time.perf_counter(), 0.0))
        began = due if every else time.perf_counter()
        _post(connection, body)
        times.append((time.perf_counter() - began) * 1000)
        due += every
    connection.close()


def _post(connection: http.client.HTTPSConnection, body: bytes) -> None:
    connection.request("POST", "/mutate/legacy", body, {"Content-Type": "application/json"})
    answer = json.loads(connection.getresponse().read())
    assert answer["response"]["allowed"], answer


def _opted_out(pod: Object, _number: int) -> None:
    pod["metadata"]["labels"]["koordra.io/legacy-pods"] = "ignore"


def _different(pod: Object, number: int) -> None:
    pod["spec"]["containers"][0]["args"] = [f"--pod={number}"]


def review(number: int, how: Callable[[Object, int], None]) -> bytes:
    made = pod(f"web-{number}", ASKS[number % len(ASKS)](number // len(ASKS) % SHAPES))
    how(made, number)
    request = {
        "uid": f"u-{number}",
        "kind": {"group": "", "version": "v1", "kind": "Pod"},
        "namespace": "default",
        "operation": "CREATE",
        "object": made,
    }
    return json.dumps(
        {"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": request}
    ).encode()


def pod(name: str, limits: Object) -> Object:
    """A pod of the size that pods have: two containers, volumes, probes, tolerations."""
    texts = {key: str(value) for key, value in limits.items()}
    mount = {
        "name": "kube-api-access",
        "mountPath": "/var/run/secrets/kubernetes.io/serviceaccount",
        "readOnly": True,
    }
    env = [{"name": f"SETTING_{index}", "value": "x" * 20} for index in range(12)]
    probe = {
        "httpGet": {"path": "/", "port": 80, "scheme": "HTTP"},
        "periodSeconds": 10,
        "failureThreshold": 3,
    }
    containers = [
        {
            "name": "main",
            "image": "registry.example/app:1",
            "env": env,
            "livenessProbe": probe,
            "volumeMounts": [mount],
            "resources": {
                "limits": {"cpu": "4", "memory": "8Gi", **texts},
                "requests": {"cpu": "4", "memory": "8Gi", **texts},
            },
        },
        {
            "name": "side",
            "image": "registry.example/side:1",
            "env": env,
            "volumeMounts": [mount],
            "resources": {},
        },
    ]
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"generateName": f"{name}-", "labels": {"app": name}, "annotations": {"a": "b"}},
        "spec": {
            "containers": containers,
            "volumes": [{"name": "kube-api-access", "emptyDir": {}}],
            "schedulerName": "default-scheduler",
            "tolerations": [
                {"key": "node.kubernetes.io/not-ready", "operator": "Exists", "effect": "NoExecute"}
            ],
        },
    }


@contextmanager
def serving(folder: Path) -> Iterator[tuple[int, int]]:
    kubeconfig, port = folder / "kubeconfig", free_port()
    program = [sys.executable, "-m", "koordra"]
    server = subprocess.Popen(
        [*program, "devcluster", "control-plane", "--dir", str(folder), "--kubeconfig", str(kubeconfig)],
        stderr=subprocess.DEVNULL,
    )
    processes = [server]
    try:
        client = new_client(str(_wait(lambda: kubeconfig if kubeconfig.exists() else None)))
        _wait(lambda: _answers(client))
        installation = Installation(client, port, more=("legacy",))
        installation.apply()
        quota = {"requests.nvidia.com/gpu": "1000000", "requests.koordra.io/gpu": "1000000"}
        client.create(
            kinds.RESOURCE_QUOTAS,
            {"apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": "q"}, "spec": {"hard": quota}},
            namespace="default",
        )
        command = [*program, "controller", "--kubeconfig", str(kubeconfig), "--webhook-host", "127.0.0.1"]
        command += ["--webhook-address", f"127.0.0.1:{port}", "--legacy-pods", "--log-level", "error"]
        processes.append(subprocess.Popen(command, stderr=subprocess.DEVNULL))
        _wait(installation.webhook_answers)
        for number in range(BESIDE):
            made = pod(f"beside-{number}", {"nvidia.com/gpu": 1 + number % 8})
            made["spec"]["schedulingGates"] = [{"name": "example.com/stay"}]
            client.create(kinds.PODS, made, namespace="default")
        yield port, processes[-1].pid
    finally:
        for process in reversed(processes):
            process.terminate()
            process.wait(20)


def _answers(client: KubeClient) -> bool:
    try:
        return bool(client.version())
    except ApiError:
        return False


def _wait(look: Callable[[], Any]) -> Any:
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        if found := look():
            return found
        time.sleep(0.1)
    raise TimeoutError("the cluster did not come up")
