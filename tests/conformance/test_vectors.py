"""The allocator against upstream's own answers (data/dra) and against exhaustive search.

Every case runs under every policy: FirstFit has to give upstream's results, the others have to agree on what
is feasible and to pass the checker, which shares no code with the allocator.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from koordra.placement import PlanError, plan
from tests.conformance import checker, vectors
from tests.long import mostly_long

Dict = dict[str, Any]

SCORED = ["koordra", "Binpack", "Spread"]

KNOWN_UPSTREAM_DEFECTS = {
    "rand-0546": "upstream leaks counters when it backtracks (kubernetes#140431) and misses a placement",
}
"""Random cases where upstream's answer differs from exhaustive search, with why."""


def run(case: Dict, policy: str) -> tuple[str, dict[str, Dict]]:
    """(status, allocations) in the vectors' words."""
    try:
        found = plan(vectors.objects(case), policy=policy, features=case["features"])
    except PlanError:
        return "error", {}
    if found.undecided:
        return "undecided", {}
    return ("nofit" if found.unsatisfiable else "ok"), found.allocations


def expected_status(case: Dict) -> str:
    if "changedAfterSnapshot" in str(case):
        # PR 140769: an All request over an exhausted device does not fit, as in 1.37.
        return "nofit"
    return str(case["expect"]["status"])


def gates(case: Dict) -> set[str]:
    return {part for name in case["features"] for part in name.split("+")}


def test_upstreams_table_first_fit(shared_data: Path) -> None:
    """223 of 223 in status and results."""
    wrong = []
    cases = vectors.cases(shared_data, "allocator-cases.json")
    for case in cases:
        status, allocations = run(case, "FirstFit")
        got = (
            [vectors.comparable(allocations[vectors.key(claim)]) for claim in vectors.pending(case)]
            if status == "ok"
            else None
        )
        want = (
            [vectors.comparable(result) for result in case["expect"]["results"]] if status == "ok" else None
        )
        if status != expected_status(case) or got != want:
            wrong.append((case["name"], expected_status(case), status))
    assert not wrong
    assert len(cases) == 223


@pytest.mark.parametrize("policy", SCORED)
def test_upstreams_table_other_policies(shared_data: Path, policy: str) -> None:
    wrong = []
    for case in vectors.cases(shared_data, "allocator-cases.json"):
        status, allocations = run(case, policy)
        complaints = (
            []
            if _spans_generations(case)
            else checker.violations(vectors.objects(case), allocations, features=gates(case))
        )
        if status != expected_status(case) or complaints:
            wrong.append((case["name"], expected_status(case), status, complaints))
    assert not wrong


@pytest.mark.long
def test_random_cases_first_fit(shared_data: Path) -> None:
    """Feasibility is the exhaustive answer's; results are upstream's wherever upstream is right."""
    wrong = []
    for case in vectors.cases(shared_data, "random-joint-cases.json"):
        status, allocations = run(case, "FirstFit")
        truth = case["bruteForce"] or "error"
        if status != truth:
            wrong.append((case["name"], truth, status))
        elif status == "ok" and case["expect"]["status"] == "ok":
            got = [vectors.comparable(allocations[vectors.key(claim)]) for claim in vectors.pending(case)]
            if got != [vectors.comparable(result) for result in case["expect"]["results"]]:
                wrong.append((case["name"], "upstream's results", "others"))
    assert not wrong


def test_upstreams_known_defects_are_all_named(shared_data: Path) -> None:
    differing = {
        case["name"]
        for case in vectors.cases(shared_data, "random-joint-cases.json")
        if case["bruteForce"] and case["bruteForce"] != case["expect"]["status"]
    }
    assert differing == set(KNOWN_UPSTREAM_DEFECTS)


@pytest.mark.parametrize("policy", mostly_long(["FirstFit", *SCORED]))
def test_random_cases_are_legal(shared_data: Path, policy: str) -> None:
    wrong = []
    for case in vectors.cases(shared_data, "random-joint-cases.json"):
        status, allocations = run(case, policy)
        truth = case["bruteForce"] or "error"
        complaints = checker.violations(vectors.objects(case), allocations, features=gates(case))
        if status != truth or complaints:
            wrong.append((case["name"], truth, status, complaints))
    assert not wrong


def _spans_generations(case: Dict) -> bool:
    """Pools whose slices of several generations are for several nodes: the checker knows one generation per
    pool."""
    return "multi-host-resource-pool" in case["name"] or "obsolete" in case["name"]
