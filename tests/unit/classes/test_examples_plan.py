"""`koordra plan` of the examples of ResourceClasses says what comes of them in a cluster (their
example.yaml), on machines that nobody has yet."""

from __future__ import annotations

import json
from fnmatch import fnmatchcase
from typing import Any

import pytest
from click.testing import CliRunner

from koordra.cli.plan import plan_command
from koordra_devcluster.demo import examples

ELSE = {"resource-class-nodes", "resource-class-mig"}
"""Of nodes of the demo's names, and of cards that somebody has cut."""
NAMES = [name for name in examples.names() if name.startswith("resource-class") and name not in ELSE]


def planned(*arguments: str) -> dict[str, dict[str, Any]]:
    done = CliRunner().invoke(plan_command, [*arguments, "-o", "json"], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    found: dict[str, dict[str, Any]] = json.loads(done.stdout)
    return found


@pytest.mark.parametrize("name", NAMES)
def test_a_plan_says_what_comes_of_it(name: str) -> None:
    example, (path,) = examples.load(name), examples.files(name)
    found = planned("-f", str(path), "--machine", "hgx-h100:2")
    waiting = {claim.partition("/")[2]: reasons for claim, reasons in found["unsatisfiable"].items()}
    assert found["undecided"] == {}
    assert len(waiting) == len(example.outcome.waiting)
    for wanted in example.outcome.waiting:
        (reasons,) = [told for claim, told in waiting.items() if fnmatchcase(claim, wanted.claim)]
        assert any(one["reason"] == wanted.reason and wanted.says in str(one["detail"]) for one in reasons)
    assert found["allocations"]
    nodes = {
        one["nodeSelector"]["nodeSelectorTerms"][0]["matchFields"][0]["values"][0]
        for one in found["allocations"].values()
    }
    most = max(pods.nodes or 1 for pods in example.outcome.pods)
    assert len(nodes) == most


def test_nodes_that_a_class_is_for_are_asked_for() -> None:
    """Those of `koordra demo` are called otherwise."""
    (path,) = examples.files("resource-class-nodes")
    found = planned("-f", str(path), "--machine", "hgx-h100:2")
    assert list(found["allocations"]) == ["default/kept"]
    for reasons in found["unsatisfiable"].values():
        assert "node node-1, where the pod has to run" in str(reasons)


def test_slices_that_no_card_is_cut_into_are_asked_for() -> None:
    (path,) = examples.files("resource-class-mig")
    found = planned("-f", str(path), "--machine", "hgx-h100:2")
    assert found["allocations"] == {}
    assert len(found["unsatisfiable"]) == 2
    assert "requested 1 of class slice-3g" in str(found["unsatisfiable"])
