"""What `plan` and `explain` say of new nodes."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
import pytest
import yaml
from click.testing import CliRunner

from koordra.cli.cluster.explain import explain
from koordra.cli.plan import plan_command
from koordra.errors import InvalidInput
from tests.unit.allocator.machines import claim, device_classes, joint, machine, request

GROUPS = ("--autoscale", "t4=t4x4-1nic:2", "--autoscale", "h100=hgx-h100:1,fabric.koordra.io/block=b")


@pytest.fixture
def files(tmp_path: Path) -> list[str]:
    """One node is there; what waits wants pairs, more GPUs than a node has, and a card that nobody has."""
    pair = [request("gpu", count=8), request("nic", "nic", count=8)]
    big = [{"cel": {"expression": "device.capacity['koordra.io'].memory.compareTo(quantity('200Gi')) > 0"}}]
    claims = [
        *(claim(f"pairs-{at}", *pair, configs=[joint("PCIeSwitch")]) for at in range(3)),
        claim("small", request("gpu")),
        claim("sixteen", request("gpu", count=16)),
        claim("big", request("gpu", selectors=big)),
    ]
    file = tmp_path / "all.yaml"
    file.write_text(yaml.safe_dump_all([*device_classes(), *machine(2, 0), *claims]))
    return ["-f", str(file)]


def run(command: click.Command, *words: str, code: int = 0) -> str:
    told = CliRunner().invoke(command, words, catch_exceptions=False)
    assert told.exit_code == code, told.output
    return told.stdout


def test_plan(files: list[str], golden: Callable[[str, str], None]) -> None:
    golden("autoscale/plan.txt", run(plan_command, *files, *GROUPS))


def test_plan_for_programs(files: list[str], golden: Callable[[str, str], None]) -> None:
    found = json.loads(run(plan_command, *files, *GROUPS, "-o", "json"))
    assert [*found] == ["allocations", "unsatisfiable", "undecided", "scores", "autoscale"]
    golden("autoscale/plan.json", json.dumps(found["autoscale"], indent=1) + "\n")
    assert "autoscale" not in json.loads(run(plan_command, *files, "-o", "json"))


def test_explain(files: list[str], golden: Callable[[str, str], None]) -> None:
    golden("autoscale/explain.txt", run(explain, *files, *GROUPS, "sixteen"))
    found = json.loads(run(explain, *files, *GROUPS, "sixteen", "-o", "json"))
    assert [*found] == ["claims", "autoscale"]


def test_waiting_fails_where_new_nodes_do_not_help(tmp_path: Path, files: list[str]) -> None:
    fails: tuple[Any, ...] = (plan_command, *files, *GROUPS, "--fail-if-waiting")
    run(*fails, code=1)
    file = tmp_path / "one.yaml"
    file.write_text(yaml.safe_dump_all([*device_classes(), claim("a", request("gpu"))]))
    run(plan_command, "-f", str(file), *GROUPS, "--fail-if-waiting")
    run(plan_command, "-f", str(file), "--fail-if-waiting", code=1)


def test_moves_are_another_question(files: list[str]) -> None:
    with pytest.raises(InvalidInput, match="--autoscale and --defragment: exclude each other"):
        run(plan_command, *files, *GROUPS, "--defragment", "gpus=1")
