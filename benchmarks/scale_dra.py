"""The full DRA path at 500 and 2,000 nodes: plain objects in, CEL, matchAttribute, AllocationResults out.

Nodes of eight Hopper GPUs and their NICs, published as the plugin publishes them. Claims ask for one GPU (by
selector) and one NIC of the same PCIe root, each with a pod. Slices are read once, as a controller does, and
`plan()` gets the rest as dicts:

    start       slices read, devices gathered, ranked for the first time
    claims      a plan of 1,000 claims on the slices read before
    start-up    of 10,000 nodes, and the memory that their slices take once read
    steady      plans of 50 claims each, one after the other; earlier ones are given as allocated claims; one
                engine is kept from plan to plan, as who plans again and again does

Times are the processor's for this thread. Objects that were read before are not looked through by the garbage
collector.
"""

from __future__ import annotations

import gc
import resource
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks._results import table, write
from koordra.allocator.features import Features
from koordra.allocator.request.classes import shipped_classes
from koordra.allocator.score import policy_of
from koordra.api import names
from koordra.kubelet_plugin.discovery.reading import discover
from koordra.kubelet_plugin.publish.resource_slices import build_slices
from koordra.placement import engine_for, plan
from koordra.placement.decide import Engine
from koordra.placement.index import NODE, SLICE, ClusterChange
from koordra.placement.policy.learned_order import Learned
from koordra.topology import presets

Object = dict[str, Any]
CLAIMS = 1000
BATCH = 50


def main() -> None:
    found = [_measured(count) for count in (500, 2000)]
    started = _started(10_000)
    text = _markdown(found) + (
        f"\n\nStart-up from the slices of {started['nodes']} nodes: {started['read_s']} s to read them, "
        f"{started['gather_s']} s to gather and rank {started['gpus']} GPUs; {started['bytes_per_node']} bytes per node."
    )
    write("scale-dra", {"clusters": found, "started": started}, text)
    print(text)


def _measured(count: int) -> dict[str, Any]:
    slices, nodes = cluster_of(count)
    began = time.thread_time()
    engine, rest = engine_for(), [*slices, *nodes, *shipped_classes()]
    plan(rest, engine=engine)
    read = time.thread_time() - began
    began = time.thread_time()
    plan([*rest, *_claim(0)], engine=engine)
    gathered = time.thread_time() - began
    # As the controller does once everything is listed; otherwise a collection of the slices falls into one of
    # the parts.
    gc.collect()
    gc.freeze()
    asked = [entry for number in range(CLAIMS) for entry in _claim(number)]
    began = time.thread_time()
    first = plan([*rest, *asked], engine=engine)
    burst = time.thread_time() - began
    assert len(first.allocations) == CLAIMS
    assert set(first.levels.values()) <= {"PIX", "PXB"}
    held: list[Object] = []
    spent = 0.0
    kept = engine_for()
    plan([*rest, *_claim(0)], engine=kept)
    for start in range(0, 10 * BATCH, BATCH):
        pending = [entry for number in range(start, start + BATCH) for entry in _claim(number)]
        began = time.thread_time()
        found = plan([*rest, *held, *pending], engine=kept)
        spent += time.thread_time() - began
        held += [
            {**entry, "status": {"allocation": found.allocations[f"d/{entry['metadata']['name']}"]}}
            if entry["kind"] == "ResourceClaim"
            else {
                **entry,
                "spec": {**entry["spec"], "nodeName": found.nodes[f"d/{entry['metadata']['name']}"]},
            }
            for entry in pending
        ]
    gc.unfreeze()
    return {
        "nodes": count,
        "slices": len(slices),
        "read_s": round(read, 2),
        "gather_s": round(gathered, 2),
        "claims_per_s": round(CLAIMS / burst),
        "steady_claims_per_s": round(10 * BATCH / spent),
    }


def _started(count: int) -> dict[str, Any]:
    """From dicts to an engine that has settled. The dicts themselves are there before."""
    slices, nodes = cluster_of(count)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    engine = Engine(policy_of("koordra"), Features.of(None), learned=Learned())
    began = time.thread_time()
    for entry in slices:
        engine.index.apply(ClusterChange(SLICE, entry["metadata"]["name"], entry))
    read = time.thread_time() - began
    began = time.thread_time()
    for entry in nodes:
        engine.index.apply(ClusterChange(NODE, entry["metadata"]["name"], entry))
    engine.settle()
    gathered = time.thread_time() - began
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    return {
        "nodes": count,
        "gpus": sum(engine.order.online.capacity.values()),
        "read_s": round(read, 1),
        "gather_s": round(gathered, 1),
        "bytes_per_node": grown * 1024 // count,
    }


def cluster_of(count: int) -> tuple[list[Object], list[Object]]:
    with tempfile.TemporaryDirectory() as folder:
        presets.write_machine(presets.load("hgx-h100"), Path(folder), serial="bench")
        machine = discover(Path(folder)).machine
    published = build_slices(machine, node_name="n", node_uid="0", mode=names.MODE_JOINT, generation=1)
    slices, nodes = [], []
    for number in range(count):
        name = f"node-{number:05}"
        nodes.append(
            {
                "kind": "Node",
                "metadata": {"name": name},
                "status": {"allocatable": {"cpu": "192", "memory": "2Ti", "pods": "250"}},
            }
        )
        for index, entry in enumerate(published):
            spec = {**entry["spec"], "nodeName": name, "pool": {**entry["spec"]["pool"], "name": name}}
            slices.append({"kind": "ResourceSlice", "metadata": {"name": f"{name}-{index}"}, "spec": spec})
    return slices, nodes


def _claim(number: int) -> list[Object]:
    name = f"c{number:05}"
    selector = {"cel": {"expression": 'device.attributes["koordra.io"].architecture == "Hopper"'}}
    gpu = {"deviceClassName": names.CLASS_GPU, "count": 1, "selectors": [selector]}
    nic = {"deviceClassName": names.CLASS_NIC, "count": 1}
    return [
        {
            "kind": "ResourceClaim",
            "metadata": {"name": name, "namespace": "d", "uid": name},
            "spec": {
                "devices": {
                    "requests": [{"name": "gpu", "exactly": gpu}, {"name": "nic", "exactly": nic}],
                    "constraints": [{"requests": ["gpu", "nic"], "matchAttribute": names.STANDARD_PCIE_ROOT}],
                }
            },
        },
        {
            "kind": "Pod",
            "metadata": {"name": name, "namespace": "d", "uid": f"p{name}"},
            "spec": {
                "containers": [{"name": "c", "resources": {"requests": {"cpu": "4", "memory": "16Gi"}}}],
                "resourceClaims": [{"name": "x", "resourceClaimName": name}],
            },
        },
    ]


def _markdown(found: list[dict[str, Any]]) -> str:
    rows = [
        (
            one["nodes"],
            one["slices"],
            one["read_s"],
            one["gather_s"],
            one["claims_per_s"],
            one["steady_claims_per_s"],
        )
        for one in found
    ]
    header = (
        "nodes",
        "slices",
        "read slices, s",
        "first plan, s",
        "claims/s, 1,000 at once",
        f"claims/s, {BATCH} at a time",
    )
    return "\n".join(
        [
            "# The full DRA path",
            "Dicts in, CEL, matchAttribute pcieRoot, AllocationResults out; one thread.",
            "Upstream's scheduler with one matchAttribute: 109-117 pods/s on six cores (its API server included).",
            "",
            table(header, rows),
        ]
    )
