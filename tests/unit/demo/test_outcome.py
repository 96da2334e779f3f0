"""What comes of an example: what the report has to say, and every way in which it can say something else."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from koordra.api.reader import Reader
from koordra.errors import InvalidManifest
from koordra_devcluster.demo.outcome import Outcome, differences, read_outcome

GPU = {
    "request": "g",
    "device": "gpu-0",
    "type": "gpu",
    "consumedCapacity": {"memory": "20Gi", "cores": "30"},
}
NIC = {"request": "n", "device": "nic-0", "type": "nic", "consumedCapacity": {"share": "25"}}
WANTED = {
    "pods": [
        {
            "name": "p-*",
            "count": 2,
            "nodes": 2,
            "blocks": 1,
            "cards": 2,
            "devices": {"gpu": 1, "nic": 1},
            "consumed": {"gpu": {"memory": "20Gi"}, "nic": {"share": 25}},
            "level": "PXB",
            "ranks": "0-1",
            "env": {"A": 1},
            "prints": ["ranks 0-7"],
            "after": "first",
        },
        {"name": "first", "phase": "Succeeded"},
    ],
    "waiting": [{"claim": "large", "reason": "InsufficientCapacity", "says": "requested 120Gi"}],
    "events": [{"reason": "GangGrows", "says": "gang default/g"}],
}


def outcome(document: dict[str, Any]) -> Outcome:
    return read_outcome(Reader(document, object="example.yaml", field="outcome"))


def report() -> dict[str, Any]:
    def pod(number: int) -> dict[str, Any]:
        return {
            "namespace": "default",
            "name": f"p-{number}",
            "phase": "Running",
            "node": f"n{number}",
            "block": "b",
            "gang": "g",
            "rank": number,
            "ended": None,
        }

    def claim(number: int) -> dict[str, Any]:
        held = copy.deepcopy([GPU, NIC])
        return {
            "namespace": "default",
            "pods": [f"p-{number}"],
            "node": f"n{number}",
            "devices": held,
            "level": "PXB",
            "allocated": "2026-11-21T00:00:05Z",
        }

    reasons = [{"reason": "InsufficientCapacity", "detail": "memory: requested 120Gi, free 80Gi"}]
    first = {**pod(0), "name": "first", "phase": "Succeeded", "gang": None, "ended": "2026-11-21T00:00:05Z"}
    return {
        "pods": [pod(0), pod(1), first],
        "claims": [claim(0), claim(1)],
        "containers": [{"pod": f"p-{number}", "env": {"A": "1"}} for number in (0, 1)],
        "output": [
            {"pod": f"p-{number}", "container": "main", "text": "ranks 0-7 of 8\n"} for number in (0, 1)
        ],
        "pending": [{"namespace": "default", "name": "large", "reasons": reasons}],
        "events": [{"reason": "GangGrows", "message": "gang default/g: 3 members"}],
    }


def test_a_report_that_is_as_wanted() -> None:
    assert differences(outcome(WANTED), report()) == []


@pytest.mark.parametrize(
    ("path", "value", "words"),
    [
        (("pods", 0, "phase"), "Pending", "p-*: 2 should be Running; Pending, Running"),
        (("pods", 0, "name"), "q", "pod q is no part of it"),
        (("pods", 1, "node"), "n0", "p-*: nodes: 2 expected, 1 seen"),
        (("pods", 1, "block"), "c", "p-*: blocks: 1 expected, 2 seen"),
        (("pods", 1, "rank"), 0, "p-*: ranks: 0-1 expected, [0, 0] seen"),
        (("pods", 1, "rank"), None, "p-*: ranks: 0-1 expected, [-1, 0] seen"),
        (("claims", 1, "node"), "n0", "p-*: cards: 2 expected, 1 seen"),
        (("claims", 1, "devices"), [GPU], "p-1 has {'gpu': 1}; {'gpu': 1, 'nic': 1} expected"),
        (("claims", 1, "devices", 0, "consumedCapacity"), {"memory": "1Gi"}, "p-1: gpu-0 gives"),
        (("claims", 1, "devices", 1, "consumedCapacity"), {"share": "100"}, "p-1: nic-0 gives"),
        (("claims", 1, "level"), "SYS", "p-1 is at level SYS; PXB expected"),
        (("claims", 1, "namespace"), "other", "p-1 has no device"),
        (("containers", 1, "env"), {"A": "2"}, "p-1: A=1 is in none of its containers"),
        (("output", 1, "text"), "ranks", "p-1 has not printed 'ranks 0-7'; its last words: ranks"),
        (("output", 1, "pod"), "first", "p-1 has not printed 'ranks 0-7'; its last words: none"),
        (("pending", 0, "reasons"), [], "claim large should wait, InsufficientCapacity"),
        (("pending", 0, "reasons", 0, "detail"), "cores", "claim large should wait, InsufficientCapacity"),
        (("pending", 0, "name"), "other", "claim other waits, and should not"),
        (("events", 0, "message"), "gang default/h", "nothing told GangGrows gang default/g"),
        (("events", 0, "reason"), "GangWaits", "nothing told GangGrows gang default/g"),
        (("claims", 1, "allocated"), "2026-11-21T00:00:04Z", "p-*: p-1 had devices at 2026-11-21T00:00:04Z"),
        (("pods", 2, "ended"), None, "p-*: first has not ended"),
        (("events", 0, "reason"), "GangRolledBack", "p-*: they held devices for a while: gang default/g"),
    ],
)
def test_what_differs_is_said(path: tuple[Any, ...], value: Any, words: str) -> None:
    seen = report()
    place: Any = seen
    for part in path[:-1]:
        place = place[part]
    place[path[-1]] = value
    assert any(words in text for text in differences(outcome(WANTED), seen)), differences(
        outcome(WANTED), seen
    )


def test_a_pod_that_is_missing_and_one_too_many() -> None:
    seen = report()
    seen["pods"] = seen["pods"][:1]
    assert "p-*: 2 should be Running; Running" in differences(outcome(WANTED), seen)
    seen["pods"] = []
    assert "p-*: 2 should be Running; none is there" in differences(outcome(WANTED), seen)
    more = report()
    more["pods"].append({**more["pods"][0], "name": "p-2", "phase": "Pending"})
    assert "p-*: 2 should be Running; Pending, Running, Running" in differences(outcome(WANTED), more)


@pytest.mark.parametrize(
    ("document", "words"),
    [
        ({}, "names no pod"),
        ({"pods": [{"name": "p", "node": 1}]}, "outcome.pods[0].node: is none of"),
        ({"pods": [{"count": 1}]}, "missing 1 required keyword-only argument: 'name'"),
        ({"pods": [{"name": "p", "prints": "text"}]}, "outcome.pods[0].prints"),
        ({"pods": [{"name": "p"}], "wait": []}, "outcome.wait: is no field of an outcome"),
    ],
)
def test_what_is_no_outcome_is_refused(document: dict[str, Any], words: str) -> None:
    with pytest.raises(InvalidManifest) as caught:
        outcome(document)
    assert words in str(caught.value)
