"""Upstream's vectors as objects for `plan()`: what upstream's tests pass as allocator state becomes a claim
that holds it."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

Dict = dict[str, Any]

SHARE = "aaaaaaaa-aaaa-aaaa-aaaa-aaaaaaaaaaaa"


def cases(folder: Path, name: str) -> list[Dict]:
    found: list[Dict] = json.loads((folder / "dra" / name).read_text())["cases"]
    return found


def objects(case: Dict) -> list[Dict]:
    """The case's objects. Two table cases name both claims alike; there the second gets a name of its own."""
    claims = copy.deepcopy(case["claims"])
    seen: set[str] = set()
    for claim in claims:
        while claim["metadata"]["name"] in seen:
            claim["metadata"]["name"] += "-again"
        seen.add(claim["metadata"]["name"])
    return [case["node"], *case["classes"], *case["slices"], *claims, *_holder(case)]


def pending(case: Dict) -> list[Dict]:
    """The claims to allocate, in the case's order, as `objects` names them."""
    return [o for o in objects(case) if o["kind"] == "ResourceClaim" and "status" not in o]


def key(claim: Dict) -> str:
    return f"{claim['metadata'].get('namespace', 'default')}/{claim['metadata']['name']}"


def comparable(allocation: Dict) -> Dict:
    """With every share id replaced as the vectors do."""
    found = copy.deepcopy(allocation)
    for result in found["devices"].get("results", []):
        if "shareID" in result:
            result["shareID"] = SHARE
    return found


def _holder(case: Dict) -> list[Dict]:
    consumed = {_where(entry): entry["consumedCapacity"] for entry in case["aggregatedCapacity"]}
    shares: dict[tuple[str, str, str], list[str]] = {}
    for entry in case["allocatedSharedDeviceIDs"]:
        shares.setdefault(_where(entry), []).append(entry["shareID"])
    results = [_result(_where(entry)) for entry in case["allocatedDevices"]]
    for where in sorted({*consumed, *shares}):
        for number, share in enumerate(shares.get(where) or [SHARE]):
            # The vectors give the sum over all shares; it is put on the first.
            amounts = {"consumedCapacity": consumed[where]} if number == 0 and where in consumed else {}
            results.append({**_result(where), "shareID": share, **amounts})
    if not results:
        return []
    return [
        {
            "apiVersion": "resource.k8s.io/v1",
            "kind": "ResourceClaim",
            "metadata": {"name": "holder", "namespace": "elsewhere"},
            "status": {"allocation": {"devices": {"results": results}}},
        }
    ]


def _where(entry: Dict) -> tuple[str, str, str]:
    return entry["driver"], entry["pool"], entry["device"]


def _result(where: tuple[str, str, str]) -> Dict:
    return {"request": "held", "driver": where[0], "pool": where[1], "device": where[2]}
