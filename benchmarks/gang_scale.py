"""A gang of 1,000 pods on 10,000 nodes: how long the decision takes.

Nodes of eight Hopper GPUs and NICs in blocks of 32 and spines of 8 blocks, in the engine's index as a
controller keeps it. On a part of the nodes devices are in use (any set of GPUs with their NICs).

    cold    no request class is known: every kind of node is asked for the first time; the median of five
    warm    the next gang, asked of the same nodes

Times are the processor's for this thread; they include the classes of members, the tables, the places of all
pods and their AllocationResults.
"""

from __future__ import annotations

import gc
import random
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks._results import table, write
from koordra.allocator.request.classes import shipped_classes
from koordra.api import names
from koordra.api.claims import ResourceClaim
from koordra.kubelet_plugin.discovery.reading import discover
from koordra.kubelet_plugin.publish.resource_slices import build_slices
from koordra.placement import engine_for
from koordra.placement.decide import Engine
from koordra.placement.gang import GangAnswer, GangPlaced, GangRequest, NewMember, place_gang
from koordra.placement.manifests import Manifests
from koordra.placement.request.claim_groups import ClaimGroup
from koordra.topology import presets

Object = dict[str, Any]
NODES, BLOCK, SPINE = 10_000, 32, 8
COLD = 5
SHAPES = (
    ("8 GPUs + 8 NICs", 1000, 8, 8),
    ("4 GPUs + 4 NICs", 1000, 4, 4),
    ("1 GPU + 1 NIC", 1000, 1, 1),
    ("8 GPUs", 1000, 8, 0),
    ("4 GPUs", 1000, 4, 0),
    ("1 GPU", 1000, 1, 0),
)
CASES = (
    *(
        (f"{count:,} x {name}", count, gpus, nics, False, used)
        for used in (0.0, 0.6, 0.9)
        for name, count, gpus, nics in SHAPES
    ),
    ("1 launcher and 999 x 8 GPUs + 8 NICs", 1000, 8, 8, True, 0.6),
    ("5,000 x 8 GPUs + 8 NICs: does not fit", 5000, 8, 8, False, 0.6),
)
"""What is asked, and on which part of the nodes devices are in use. (With 90 % about 1,000 of the nodes are
whole.)"""


def main() -> None:
    published = _published()
    found: list[dict[str, Any]] = []
    for used in sorted({case[-1] for case in CASES}):
        engine = _engine(published, used)
        gc.collect()
        gc.freeze()  # as the controller does with what was listed
        found += [_measured(engine, case) for case in CASES if case[-1] == used]
        del engine
        gc.unfreeze()
    text = _markdown(found)
    write("gang-scale", {"nodes": NODES, "cases": found}, text)
    print(text)


def _measured(engine: Engine, case: tuple[str, int, int, int, bool, float]) -> dict[str, Any]:
    """Nothing is written, so the next case finds the same engine; what is cached goes with the version."""
    name, members, gpus, nics, launcher, used = case
    times: list[float] = []
    answers: list[GangAnswer] = []
    for number in range(COLD + 1):
        gang = _gang(members, gpus, nics, number, launcher=launcher)
        if number < COLD:
            engine.index.class_version += 1  # as if a DeviceClass had changed
        began = time.thread_time()
        answers.append(place_gang(gang, engine))
        times.append(time.thread_time() - began)
    answer = answers[0]
    score = answer.score if isinstance(answer, GangPlaced) else None
    return {
        "case": name,
        "used": used,
        "kinds": len({node.state for node in engine.index.nodes.values()}),
        "cold_s": round(statistics.median(times[:COLD]), 2),
        "warm_s": round(times[COLD], 2),
        "answer": type(answer).__name__,
        "blocks": dict(score.domains)["block"] if score else None,
        "nodes": score.nodes if score else None,
        "rails": score.rails if score else None,
        "proven": answer.proven if isinstance(answer, GangPlaced) else True,
    }


def _published() -> list[Object]:
    with tempfile.TemporaryDirectory() as folder:
        presets.write_machine(presets.load("hgx-h100"), Path(folder), serial="bench")
        machine = discover(Path(folder)).machine
    return build_slices(machine, node_name="n", node_uid="0", mode=names.MODE_JOINT, generation=1)


def _engine(published: list[Object], used: float) -> Engine:
    draw = random.Random(7)
    devices = {
        kind: [
            device["name"]
            for entry in published
            for device in entry["spec"].get("devices") or ()
            if device["name"].startswith(f"{kind}-")
        ]
        for kind in ("gpu", "nic")
    }
    found: list[Object] = list(shipped_classes())
    for number in range(NODES):
        name = f"node-{number:05}"
        block = number // BLOCK
        mask = draw.randrange(1, 256) if draw.random() < used else 0
        held = [devices[kind][at] for at in range(8) if mask >> at & 1 for kind in devices]
        labels = {
            "kubernetes.io/hostname": name,
            "network.topology.nvidia.com/leaf": f"block-{block}",
            "network.topology.nvidia.com/spine": f"spine-{block // SPINE}",
        }
        allocatable = {"cpu": "192", "memory": "2Ti", "pods": "250"}
        found.append(
            {
                "kind": "Node",
                "metadata": {"name": name, "labels": labels},
                "status": {"allocatable": allocatable},
            }
        )
        for index, entry in enumerate(published):
            spec = {**entry["spec"], "nodeName": name, "pool": {**entry["spec"]["pool"], "name": name}}
            found.append({"kind": "ResourceSlice", "metadata": {"name": f"{name}-{index}"}, "spec": spec})
        if held:
            results = {"results": [_result(name, device) for device in held]}
            found.append(
                {
                    "kind": "ResourceClaim",
                    "metadata": {"name": f"held-{name}", "namespace": "d", "uid": f"held-{name}"},
                    "status": {"allocation": {"devices": results}},
                }
            )
    engine = engine_for()
    Manifests.of(found).fill(engine.index)
    engine.settle()
    return engine


def _result(node: str, device: str) -> Object:
    return {"request": "r", "driver": names.DRIVER, "pool": node, "device": device}


def _gang(members: int, gpus: int, nics: int, number: int, *, launcher: bool) -> GangRequest:
    found = []
    for index in range(members):
        name = f"job-{number}-{index}"
        asks = 0 if launcher and index == 0 else gpus
        claims = [_claim(name, gpus, nics)] if asks else []
        pod = {
            "kind": "Pod",
            "metadata": {"name": name, "namespace": "d", "uid": f"pod-{name}"},
            "spec": {
                "containers": [{"name": "c", "resources": {"requests": {"cpu": "4", "memory": "16Gi"}}}],
                "resourceClaims": [{"name": "x", "resourceClaimName": name}] if asks else [],
            },
        }
        group = ClaimGroup(tuple(map(ResourceClaim.from_dict, claims)), (pod,))
        found.append(NewMember(f"d/{name}", group, index=index))
    return GangRequest(f"job-{number}", found, members)


def _claim(name: str, gpus: int, nics: int) -> Object:
    counts = {"gpu": (names.CLASS_GPU, gpus), "nic": (names.CLASS_NIC, nics)}
    return {
        "kind": "ResourceClaim",
        "metadata": {"name": name, "namespace": "d", "uid": name},
        "spec": {
            "devices": {
                "requests": [
                    {"name": kind, "exactly": {"deviceClassName": named, "count": count}}
                    for kind, (named, count) in counts.items()
                    if count
                ],
                "config": [
                    {
                        "opaque": {
                            "driver": names.DRIVER,
                            "parameters": {
                                "apiVersion": "koordra.io/v1alpha1",
                                "kind": "JointAllocation",
                                "scope": "PCIeRoot",
                            },
                        }
                    }
                ]
                if nics
                else [],
            }
        },
    }


def _markdown(found: list[dict[str, Any]]) -> str:
    rows = [
        (
            one["case"],
            f"{one['used']:.0%}",
            one["kinds"],
            one["cold_s"],
            one["warm_s"],
            one["answer"],
            *("" if one[key] is None else one[key] for key in ("blocks", "nodes", "rails")),
            "yes" if one["proven"] else "no",
        )
        for one in found
    ]
    header = (
        "gang",
        "nodes used",
        "kinds of node",
        "cold, s",
        "warm, s",
        "answer",
        "blocks",
        "nodes",
        "rails",
        "proven best",
    )
    return "\n".join(
        [
            "# Gangs on a large cluster",
            f"{NODES:,} nodes of 8 GPUs and 8 NICs, blocks of {BLOCK} nodes, spines of {SPINE} blocks.",
            "",
            table(header, rows),
        ]
    )
