"""`koordra topology --job`, from documents."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from koordra.cli.machine.topology import topology as command
from koordra.errors import InvalidInput
from tests.unit.gang_placement.clusters import GangRequest, cluster, placed, workers, written


@pytest.fixture
def file(tmp_path: Path) -> str:
    members = workers(2, 8)
    answer = placed(cluster(a=1, b=1), GangRequest("job", members, 2))
    found = tmp_path / "claims.json"
    items = written(answer, members, gang="llama")
    found.write_text(json.dumps({"apiVersion": "v1", "kind": "List", "items": items}))
    return str(found)


@pytest.mark.parametrize("name", ["llama", "default/llama", "all"])
def test_a_job_is_shown(file: str, name: str) -> None:
    shown = CliRunner().invoke(command, ["--job", name, "-f", file], catch_exceptions=False).output
    assert "job default/llama: 2 of 2 members, 2 nodes, 2 blocks" in shown
    assert "rank 1  w1  8 GPUs, 8 NICs, rails 0,1,2,3,4,5,6,7" in shown


def test_output_for_programs_and_pictures(file: str) -> None:
    found = json.loads(CliRunner().invoke(command, ["--job", "all", "-f", file, "-o", "json"]).output)
    assert [(member["rank"], member["node"]) for member in found[0]["members"]] == [(0, "a-0"), (1, "b-0")]
    assert found[0]["sameRails"]
    assert CliRunner().invoke(command, ["--job", "all", "-f", file, "-o", "svg"]).output.startswith("<svg")


def test_a_job_that_is_not_there_is_told_with_those_that_are(file: str) -> None:
    result = CliRunner().invoke(command, ["--job", "other", "-f", file])
    assert isinstance(result.exception, InvalidInput)
    assert "default/llama" in str(result.exception)
