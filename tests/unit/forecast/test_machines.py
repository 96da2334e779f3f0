"""`--machine NAME[:COUNT]`: would it fit on a cluster of those?"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner

from koordra.api import objects
from koordra.cli.cluster.explain import explain
from koordra.cli.plan import plan_command
from koordra.cli.what_if.machines import machine_nodes
from koordra.errors import InvalidInput
from koordra.topology import presets
from tests.unit.allocator.machines import claim, joint, request

Dict = dict[str, Any]


def wanted(tmp_path: Path, number: int, **asked: Any) -> str:
    file = tmp_path / "claims.yaml"
    pair = [request("gpu", count=8), request("nic", "nic", count=8)]
    claims = [claim(f"c{at}", *pair, configs=[joint("PCIeSwitch")], **asked) for at in range(number)]
    file.write_text(yaml.safe_dump_all(claims))
    return str(file)


def test_claims_are_planned_on_machines_that_nobody_has(tmp_path: Path) -> None:
    file = wanted(tmp_path, 4)
    told = CliRunner().invoke(
        plan_command, ["--machine", "hgx-h100:3", "-f", file, "-o", "json"], catch_exceptions=False
    )
    found = json.loads(told.stdout)
    pools = {one["devices"]["results"][0]["pool"] for one in found["allocations"].values()}
    assert pools == {"hgx-h100-0000", "hgx-h100-0001", "hgx-h100-0002"}
    assert [*found["unsatisfiable"]] == ["default/c3"]
    assert not told.stderr


def test_a_claim_is_explained_on_them(tmp_path: Path) -> None:
    words = ["--preset", "t4x4-1nic", "-f", wanted(tmp_path, 1), "default/c0"]
    told = CliRunner().invoke(explain, words, catch_exceptions=False).stdout
    assert told.startswith("default/c0 does not fit")
    assert "requested 8 of class gpu.koordra.io" in " ".join(told.split())


def test_machines_of_one_kind_may_be_asked_for_twice(tmp_path: Path) -> None:
    nodes = [one for one in machine_nodes(["hgx-h100:2", "hgx-h100"]) if one["kind"] == "Node"]
    assert [*map(objects.name, nodes)] == ["hgx-h100-0000", "hgx-h100-0001", "hgx-h100-2-0000"]
    slices = [one for one in machine_nodes(["hgx-h100:2"]) if one["kind"] == "ResourceSlice"]
    assert {one["spec"]["nodeName"] for one in slices} == {one["spec"]["pool"]["name"] for one in slices}


def test_a_description_of_a_machine_does_as_well(tmp_path: Path) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text((Path(presets.__file__).parent / "t4x4-1nic.yaml").read_text())
    (name,) = [objects.name(one) for one in machine_nodes([str(file)]) if one["kind"] == "Node"]
    assert name.endswith("-mine-0000")


@pytest.mark.parametrize(
    ("text", "problem"),
    [("nobodys", "there is no machine 'nobodys'"), ("hgx-h100:20001", "more than 20,000")],
)
def test_what_cannot_be_meant_is_told(text: str, problem: str) -> None:
    with pytest.raises(InvalidInput, match=problem):
        machine_nodes([text])


def test_a_cluster_has_nodes_of_its_own() -> None:
    with pytest.raises(InvalidInput, match="--machine: go with -f"):
        CliRunner().invoke(explain, ["--machine", "hgx-h100", "pod/x"], catch_exceptions=False)
