"""The controller with 5,000 claims on 500 nodes of eight GPUs and eight NICs (1,000 ResourceSlices).

Everything of one pass is the shipped code, with the shipped allocator; the API server is an in-memory double
in this process, so that the figures are the controller's own. Four parts of its work are timed apart:

    watch    decode an event's line and put it into the cache
    decide   everything of a pass that is not one of the others: reading the state, planning, bookkeeping
    encode   the JSON of what is written
    write    the double's answer to it (over HTTP this is the server's time and the network's)

CPU is told by what was done in it; latency, from a claim's creation to its allocation, by what its controller
did in the meantime (koordra.controller.reporting.metrics, as in `koordra_controller_stage_seconds`): the four
parts of one claim add up.

passes      a pass in which nothing has changed, and one with one new claim, on small and large clusters in
            which all other claims have their devices and their pods run: it costs what has changed
burst       all claims are there at once, as after a failover or an outage
arrivals    claims come at a steady rate
relist      1,000 slices listed anew: decoded, compared, and read by the allocator again
plain       the ratio that can be compared between machines: `plan()` over all nodes for each claim, over
            decide+encode

CPU is the process's own time, whatever else the machine does; latencies are by the wall clock, so a busy
machine shows in them.
"""

from __future__ import annotations

import gc
import json
import statistics
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from benchmarks import _results
from koordra.api import names, objects
from koordra.api.kinds import DEVICE_CLASSES, NODES, PODS, RESOURCE_CLAIMS, RESOURCE_SLICES, Kind
from koordra.api.objects import Object
from koordra.controller.allocation.writes import Writer
from koordra.controller.cache.changes import Change, ChangeQueue
from koordra.controller.reconcile.reconciler import Reconciler
from koordra.controller.reporting.metrics import PARTS, LatencyBreakdown
from koordra.kube.client import encoded
from koordra.kubelet_plugin.discovery.reading import discover
from koordra.kubelet_plugin.publish.resource_slices import build_slices
from koordra.placement import plan
from koordra.process.lifecycle import collect_seldom
from koordra.topology import presets
from tests.fakes.cluster import Cluster
from tests.fakes.model_api import ModelApi

NODES_NUMBER = 500
CLAIMS = 5000

RATES = (100, 300)
PLAIN_CLAIMS = 10
SIZES = ((500, 500), (500, 3_000), (10_000, 50_000))
"""Nodes, and claims that are allocated."""
PASSES = 15
WARM = 40
"""Claims that fill one node and begin another: from then on every state of a node is known."""
WATCHED = (NODES, RESOURCE_SLICES, DEVICE_CLASSES, RESOURCE_CLAIMS, PODS)


class Clocks:
    """Seconds of CPU by part; a part that runs inside another one is not counted twice."""

    def __init__(self) -> None:
        self.spent = dict.fromkeys(("watch", "decide", "encode", "write"), 0.0)
        self._inside: list[float] = []

    @contextmanager
    def on(self, part: str) -> Iterator[None]:
        started = time.process_time()
        self._inside.append(0.0)
        yield
        took = time.process_time() - started
        self.spent[part] += took - self._inside.pop()
        if self._inside:
            self._inside[-1] += took


class Bench:
    """A cluster of `nodes` nodes, and the controller beside it."""

    def __init__(self, nodes: int = NODES_NUMBER) -> None:
        self.api = ModelApi()
        self.clocks = Clocks()
        self.at = dict.fromkeys([kind.plural for kind in WATCHED], 0)
        self.cache: dict[str, dict[str, Object]] = {kind.plural: {} for kind in WATCHED}
        self.queue = ChangeQueue()
        self.allocated: dict[str, float] = {}
        for body in device_classes():
            self.api.create(DEVICE_CLASSES, body)
        published = machine_slices()
        for number in range(nodes):
            name = f"node-{number:04d}"
            self.api.create(NODES, node(name))
            for index, entry in enumerate(published):
                self.api.create(RESOURCE_SLICES, renamed(entry, name, index))
        self.ways: list[Mapping[str, float]] = []
        """Each allocated claim's way, by part."""
        self.latency = LatencyBreakdown(clock=time.perf_counter, observe=self.ways.append)
        self.reconciler = Reconciler(
            self,
            Writer(self, may_write=lambda: True, now=lambda: "2026-11-21T00:00:00Z"),
            clock=time.monotonic,
            latency=self.latency,
        )

    # the API, as the writer sees it

    def get(self, kind: Kind, name: str, *, namespace: str | None = None) -> Object:
        del namespace
        return self.api.get(kind, name)

    def create(self, kind: Kind, body: Object, **_where: Any) -> Object:
        return self.api.create(kind, body)

    def patch(
        self,
        kind: Kind,
        name: str,
        body: Any,
        *,
        namespace: str | None = None,
        subresource: str | None = None,
        content_type: str = "application/merge-patch+json",
    ) -> Object:
        del namespace
        with self.clocks.on("encode"), self.latency.on("encode"):
            encoded(body)
        with self.clocks.on("write"), self.latency.on("write"):
            answer = self.api.patch(kind, name, body, subresource, content_type)
        if subresource == "status":
            self.allocated[name] = time.perf_counter()
        return answer

    # the watch

    def deliver(self, *, decode: bool = True) -> None:
        """What has happened since; `decode`: from JSON, as a watch has it."""
        for kind in WATCHED:
            history = self.api.history.get(kind.plural, [])
            lines = [
                (event, key, json.dumps({"type": event, "object": obj}).encode() if decode else obj)
                for event, key, obj in history[self.at[kind.plural] :]
            ]
            self.at[kind.plural] = len(history)
            table = self.cache[kind.plural]
            with self.clocks.on("watch"):
                for event, key, line in lines:
                    obj = json.loads(line)["object"] if isinstance(line, bytes) else line
                    if event == "DELETED":
                        table.pop(key, None)
                    else:
                        table[key] = obj
                    self.queue.observe(kind, event, obj)

    def changes(self) -> list[Change]:
        return self.queue.changes()

    def cluster(self) -> Cluster:
        found = {plural: [table[key] for key in sorted(table)] for plural, table in self.cache.items()}
        return Cluster(
            nodes=found[NODES.plural],
            slices=found[RESOURCE_SLICES.plural],
            classes=found[DEVICE_CLASSES.plural],
            claims=found[RESOURCE_CLAIMS.plural],
            pods=found[PODS.plural],
        )

    def one_pass(self) -> None:
        self.deliver()
        with self.clocks.on("decide"):
            self.reconciler.reconcile()

    def arrive(self, number: int) -> str:
        """One pod with one claim of one of three kinds."""
        name = f"c{number:05d}"
        self.latency.observe(RESOURCE_CLAIMS, "ADDED", self.api.create(RESOURCE_CLAIMS, claim(name, number)))
        self.latency.observe(PODS, "ADDED", self.api.create(PODS, pod(f"p{number:05d}", name)))
        return name


def running(name: str, number: int, nodes: int, devices: Sequence[str]) -> tuple[Object, Object]:
    """A claim that has its devices, shares of a GPU and of a NIC, and its pod, which runs."""
    where, card = f"node-{number % nodes:04d}", number // nodes
    gpus, nics = ([one for one in devices if one.startswith(kind)] for kind in ("gpu", "nic"))
    share = {"driver": names.DRIVER, "pool": where, "shareID": f"share-{number}"}
    taken = [
        {
            "request": "gpu",
            "device": gpus[card % len(gpus)],
            "consumedCapacity": {"memory": "20Gi", "cores": "25"},
        },
        {"request": "nic", "device": nics[card % len(nics)], "consumedCapacity": {"share": "25"}},
    ]
    pinned = {"key": "metadata.name", "operator": "In", "values": [where]}
    allocation = {
        "devices": {"results": [{**share, **device} for device in taken]},
        "nodeSelector": {"nodeSelectorTerms": [{"matchFields": [pinned]}]},
        "allocationTimestamp": "2026-11-21T00:00:00Z",
    }
    consumer, uid = pod(f"run-{name}", name), f"uid-{name}"
    consumer = {**consumer, "spec": {**consumer["spec"], "nodeName": where}, "status": {"phase": "Running"}}
    consumer["metadata"] = {"name": f"run-{name}", "uid": uid}
    made = claim(name, 0)
    reserved = [{"resource": "pods", "name": f"run-{name}", "uid": uid}]
    return {**made, "status": {"allocation": allocation, "reservedFor": reserved}}, consumer


def device_classes() -> list[Object]:
    guard = '&& device.attributes["koordra.io"].allocator == "scheduler"'
    return [
        {
            "metadata": {"name": f"{kind}.koordra.io"},
            "spec": {
                "selectors": [
                    {
                        "cel": {
                            "expression": 'device.driver == "koordra.io" && '
                            f'device.attributes["koordra.io"].type == "{kind}" {guard}'
                        }
                    }
                ]
            },
        }
        for kind in ("gpu", "nic")
    ]


def machine_slices() -> list[Object]:
    """An H100 machine as its plugin publishes it, in two slices, so that there are a thousand of them."""
    with tempfile.TemporaryDirectory() as folder:
        presets.write_machine(presets.load("hgx-h100"), Path(folder), serial="bench")
        machine = discover(Path(folder)).machine
    (whole,) = build_slices(machine, node_name="bench", node_uid="0", mode=names.MODE_JOINT, generation=1)
    devices = whole["spec"]["devices"]
    pool = {**whole["spec"]["pool"], "resourceSliceCount": 2}
    halves = (devices[: len(devices) // 2], devices[len(devices) // 2 :])
    return [{**whole, "spec": {**whole["spec"], "pool": pool, "devices": half}} for half in halves]


def renamed(entry: Object, name: str, index: int) -> Object:
    spec = {**entry["spec"], "nodeName": name, "pool": {**entry["spec"]["pool"], "name": name}}
    return {"metadata": {"name": f"{name}-{index}"}, "spec": spec}


def node(name: str) -> Object:
    amounts = {"cpu": "192", "memory": "2Ti", "pods": "250"}
    return {
        "metadata": {"name": name, "labels": {"kubernetes.io/hostname": name}},
        "spec": {},
        "status": {"allocatable": amounts, "conditions": [{"type": "Ready", "status": "True"}]},
    }


def claim(name: str, number: int) -> Object:
    """Of ten claims six are a share of a GPU with a share of a NIC, three a GPU, one two GPUs with two
    NICs."""
    kind = number % 10
    gpu: Object = {"deviceClassName": names.CLASS_GPU, "count": 1}
    nic: Object = {"deviceClassName": names.CLASS_NIC, "count": 1}
    requests = [{"name": "gpu", "exactly": gpu}]
    config: list[Object] = []
    if kind < 6:
        gpu["capacity"] = {"requests": {"memory": "20Gi", "cores": "25"}}
        nic["capacity"] = {"requests": {"share": "25"}}
    elif kind == 9:
        gpu["count"] = nic["count"] = 2
    if kind < 6 or kind == 9:
        requests.append({"name": "nic", "exactly": nic})
        joint = {"apiVersion": "koordra.io/v1alpha1", "kind": "JointAllocation", "scope": "PCIeSwitch"}
        joint |= {"enforcement": "Preferred", "pairing": "PerDevice"}
        config = [{"requests": ["gpu", "nic"], "opaque": {"driver": names.DRIVER, "parameters": joint}}]
    devices: Object = {"requests": requests, "config": config} if config else {"requests": requests}
    return {"metadata": {"name": name}, "spec": {"devices": devices}, "status": {}}


def pod(name: str, claim_name: str) -> Object:
    resources = {"requests": {"cpu": "2", "memory": "8Gi"}}
    return {
        "metadata": {"name": name},
        "spec": {
            "resourceClaims": [{"name": "gpu", "resourceClaimName": claim_name}],
            "containers": [{"name": "main", "image": "busybox", "resources": resources}],
        },
        "status": {"phase": "Pending"},
    }


@dataclass(frozen=True)
class Measured:
    """Milliseconds of CPU per claim, and seconds from arrival to allocation, p50 and p99, by part."""

    claims: int
    cpu: dict[str, float]
    latency: dict[str, tuple[float, float]]

    @classmethod
    def of(cls, bench: Bench, claims: int) -> Measured:
        told = {"all": [sum(way.values()) for way in bench.ways]}
        told |= {part: [way[part] for way in bench.ways] for part in PARTS}
        return cls(
            claims,
            {part: round(1000 * spent / claims, 3) for part, spent in bench.clocks.spent.items()},
            {part: (_percentile(found, 50), _percentile(found, 99)) for part, found in told.items()},
        )

    @property
    def rate(self) -> float:
        """Claims that decide+encode take on in a second of CPU."""
        return 1000 / (self.cpu["decide"] + self.cpu["encode"])

    def split(self, scale: float, form: str) -> str:
        """p50 and p99 of the whole way and of each part; those of the parts need not add up."""
        return ", ".join(
            f"{part} p50 {scale * usual:{form}} p99 {scale * slow:{form}}"
            for part, (usual, slow) in self.latency.items()
        )


def burst() -> Bench:
    bench = Bench()
    bench.one_pass()
    bench.clocks.spent = dict.fromkeys(bench.clocks.spent, 0.0)
    for number in range(CLAIMS):
        bench.arrive(number)
    cpu, passes = time.process_time(), 0
    while len(bench.allocated) < CLAIMS and passes < 20:
        bench.one_pass()
        passes += 1
    cpu = time.process_time() - cpu
    found = Measured.of(bench, len(bench.allocated))
    print(
        f"  burst: {found.claims} of {CLAIMS} claims on {NODES_NUMBER} nodes in {passes} passes, {cpu:.1f} s of CPU"
    )
    print("    per claim: " + ", ".join(f"{part} {spent:.3f} ms" for part, spent in found.cpu.items()))
    print(f"    decide+encode: {found.rate:.0f} claims/s")
    print(f"    latency in s: {found.split(1.0, '.2f')}")
    return bench


def arrivals(rate: int, number: int) -> Measured:
    bench = Bench()
    for warm in range(20):
        bench.arrive(90_000 + warm)
    bench.one_pass()
    bench.clocks.spent = dict.fromkeys(bench.clocks.spent, 0.0)
    bench.ways.clear()
    created: list[str] = []
    started = time.perf_counter()
    while len(created) < number or any(name not in bench.allocated for name in created):
        due = min(number, int((time.perf_counter() - started) * rate))
        created += [bench.arrive(index) for index in range(len(created), due)]
        bench.one_pass()
        time.sleep(0.001)
    assert len(bench.ways) == number
    found = Measured.of(bench, number)
    parts = ", ".join(f"{part} {spent:.2f}" for part, spent in found.cpu.items())
    print(f"  arrivals at {rate}/s ({number} claims): ms of CPU per claim: {parts}")
    print(f"    latency in ms: {found.split(1000.0, '.0f')}")
    return found


def relist(bench: Bench) -> str:
    entries = list(bench.api.objects[RESOURCE_SLICES.plural].values())
    text = json.dumps({"items": entries}).encode()
    started = time.process_time()
    fresh = {str(item["metadata"]["name"]): item for item in json.loads(text)["items"]}
    decoded = time.process_time()
    bench.cache[RESOURCE_SLICES.plural] = fresh
    bench.reconciler.cache.adopt(bench.cluster())
    bench.reconciler.allocation.placer.sync(bench.reconciler.cache)
    synced = time.process_time()
    told = (
        f"relist of {len(entries)} slices ({len(text) / 1e6:.1f} MB): decode {decoded - started:.2f} s, "
        f"take over {synced - decoded:.2f} s"
    )
    print(f"  {told}")
    return told


def plain(bench: Bench) -> float:
    """What the same decisions cost without remembering anything: all slices read, all nodes asked."""
    cluster = bench.cluster()
    holders = [entry for entry in cluster.claims if (entry.get("status") or {}).get("allocation")]
    shown = [*cluster.nodes, *cluster.classes, *cluster.slices, *holders]
    times = []
    for number in range(PLAIN_CLAIMS):
        name = f"plain-{number}"
        mine = bench.api.create(RESOURCE_CLAIMS, claim(name, number))
        waiting = bench.api.create(PODS, pod(f"plain-{number}", name))
        started = time.process_time()
        found = plan([*shown, mine, waiting], report_errors=True)
        times.append(time.process_time() - started)
        assert objects.key(mine) in {**found.allocations, **found.unsatisfiable}
    spent = bench.clocks.spent
    own = (spent["decide"] + spent["encode"]) / max(1, len(bench.allocated))
    usual = statistics.median(times)
    print(f"  plain plan() over everything: {usual:.2f} s a claim, {usual / own:.0f} times as long")
    return usual / own


@dataclass(frozen=True)
class Passes:
    """Milliseconds of CPU: medians of PASSES passes; and seconds of the first pass, which takes over
    everything."""

    nodes: int
    claims: int
    idle: float
    one_claim: float
    first: float


def passes(nodes: int, claims: int) -> Passes:
    """An idle pass and one with one new claim, of a class and on nodes in a state that were met before: what
    a search costs that the allocator has not made yet is told by `burst`."""
    bench = Bench(nodes)
    devices = [device["name"] for entry in machine_slices() for device in entry["spec"]["devices"]]
    for number in range(claims):
        held, consumer = running(f"held-{number:05d}", number, nodes, devices)
        bench.api.create(RESOURCE_CLAIMS, held)
        bench.api.create(PODS, consumer)
    bench.deliver(decode=False)
    first = _cpu_of(bench)
    gc.collect()
    gc.freeze()
    for number in range(WARM):
        bench.arrive(10 * number)
        bench.one_pass()
    bench.one_pass()
    idle, one_claim = [], []
    for number in range(PASSES):
        bench.deliver()
        idle.append(_cpu_of(bench))
        before = len(bench.allocated)
        bench.arrive(1000 + 10 * number)
        bench.deliver()
        one_claim.append(_cpu_of(bench))
        assert len(bench.allocated) == before + 1
        bench.one_pass()
    found = Passes(nodes, claims, 1000 * statistics.median(idle), 1000 * statistics.median(one_claim), first)
    print(
        f"  passes on {nodes} nodes with {claims} allocated claims: idle {found.idle:.2f} ms, one new claim "
        f"{found.one_claim:.2f} ms of CPU; the first pass {first:.1f} s"
    )
    return found


def _cpu_of(bench: Bench) -> float:
    """Seconds of CPU of one pass, without the double's answers."""
    answered = bench.clocks.spent["write"]
    started = time.process_time()
    bench.reconciler.reconcile()
    spent = time.process_time() - started
    return spent - (bench.clocks.spent["write"] - answered)


def _percentile(found: list[float], percent: int) -> float:
    return sorted(found)[min(len(found) - 1, len(found) * percent // 100)]


def main() -> None:
    collect_seldom()
    sizes = [passes(nodes, claims) for nodes, claims in SIZES]
    gc.unfreeze()
    bench = burst()
    found = {f"{CLAIMS} at once": Measured.of(bench, len(bench.allocated))}
    ratio, listed = plain(bench), relist(bench)
    for rate in RATES:
        found[f"{rate} a second"] = arrivals(rate, rate * 5)
    rows = [
        [
            name,
            one.claims,
            *(f"{one.cpu[part]:.2f}" for part in PARTS),
            f"{one.rate:.0f}",
            *(f"{1000 * usual:.0f} / {1000 * slow:.0f}" for usual, slow in one.latency.values()),
        ]
        for name, one in found.items()
    ]
    of_passes = [
        [f"{one.nodes:,}", f"{one.claims:,}", f"{one.idle:.2f}", f"{one.one_claim:.2f}", f"{one.first:.1f}"]
        for one in sizes
    ]
    titles = [
        "nodes",
        "allocated claims",
        "idle pass, ms of CPU",
        "one new claim, ms of CPU",
        "first pass, s of CPU",
    ]
    header = ["arrival", "claims", *(f"{part}, ms of CPU" for part in PARTS), "decide+encode, claims/s"]
    header += [f"{part}, p50 / p99 ms" for part in ("all", *PARTS)]
    text = (
        f"# The controller: claims on {NODES_NUMBER} nodes\n\n{_results.table(header, rows)}\n\n"
        f"{_results.table(titles, of_passes)}\n\n"
        f"CPU and latency are per claim. A claim that comes at once with all others waits for them. {listed[0].upper()}{listed[1:]} "
        f"(CPU). plan() over everything for each claim costs {ratio:.0f} times as much.\n\n`python -m benchmarks controller`"
    )
    figures = {name: {**asdict(one), "claims_per_second": round(one.rate)} for name, one in found.items()}
    figures["passes"] = [asdict(one) for one in sizes]  # type: ignore[assignment]
    _results.write("controller", {"found": figures, "relist": listed, "times_of_plain": round(ratio)}, text)
