"""`koordra plan` and `koordra explain` on files, as a user runs them."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner, Result

from koordra.allocator.request.classes import shipped_classes
from koordra.cli.cluster.explain import explain
from koordra.cli.plan import plan_command
from koordra.errors import InvalidManifest, NotFound, PlanError
from tests.unit.allocator.machines import claim, joint, machine, pod, request

Dict = dict[str, Any]

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture
def files(tmp_path: Path) -> list[str]:
    """A machine and three claims: one fits, one is too large, one names a class that does not exist."""
    cluster = tmp_path / "cluster.yaml"
    cluster.write_text(yaml.safe_dump_all(machine(2, 2)))
    claims = tmp_path / "claims.yaml"
    claims.write_text(
        yaml.safe_dump_all(
            [
                claim("pair", request("gpu"), request("nic", "nic"), configs=[joint("PCIeSwitch")]),
                claim("large", request("gpu", capacity={"memory": "90Gi"})),
                claim("odd", {"name": "gpu", "exactly": {"deviceClassName": "gpus"}}),
            ]
        )
    )
    return ["-f", str(cluster), "-f", str(claims)]


def run(command: Any, *arguments: str, stdin: str | None = None) -> Result:
    return CliRunner().invoke(command, list(arguments), input=stdin, catch_exceptions=False)


def test_plan_as_a_table(files: list[str], golden: Callable[[str, str], None]) -> None:
    found = run(plan_command, *files)
    assert found.exit_code == 0
    golden("allocator/plan.txt", found.stdout)


@pytest.mark.parametrize(("output", "read"), [("json", json.loads), ("yaml", yaml.safe_load)])
def test_plan_as_one_document(files: list[str], output: str, read: Callable[[str], Dict]) -> None:
    found = read(run(plan_command, *files, "-o", output).stdout)
    assert list(found) == ["allocations", "unsatisfiable", "undecided", "scores"]
    assert set(found["allocations"]) == set(found["scores"]) == {"default/pair"}
    assert set(found["unsatisfiable"]) == {"default/large", "default/odd"}
    assert set(found["unsatisfiable"]["default/large"][0]) == {
        "node",
        "device",
        "request",
        "reason",
        "detail",
        "nodes",
        "devices",
        "examples",
    }


def test_explain_in_words(files: list[str], golden: Callable[[str, str], None]) -> None:
    golden("allocator/explain.txt", run(explain, *files).stdout)


def test_explain_one_claim_as_json(files: list[str]) -> None:
    told = json.loads(run(explain, *files, "-o", "json", "large").stdout)["claims"]
    assert [(entry["name"], entry["status"]) for entry in told] == [("large", "DoesNotFit")]
    assert told[0]["reasons"][0]["detail"]


def test_explain_of_a_claim_that_is_not_there(files: list[str]) -> None:
    with pytest.raises(NotFound, match=r"claim nobody is not there$"):
        run(explain, *files, "nobody")
    with pytest.raises(NotFound, match=r"claim default/larg is not there; did you mean large\?"):
        run(explain, *files, "claim/larg")


def test_claims_are_made_from_templates(tmp_path: Path) -> None:
    template = {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaimTemplate",
        "metadata": {"name": "one-gpu", "namespace": "default"},
        "spec": {"spec": claim("x", request("gpu"))["spec"]},
    }
    user = pod("train")
    user["spec"]["resourceClaims"] = [{"name": "gpu", "resourceClaimTemplateName": "one-gpu"}]
    listed = {"apiVersion": "v1", "kind": "List", "items": [*machine(), template, user]}
    found = json.loads(run(plan_command, "-f", "-", "-o", "json", stdin=json.dumps(listed)).stdout)
    assert set(found["allocations"]) == {"default/train-gpu"}


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("a: [", "is not YAML"),
        ("just words", "is not a Kubernetes object"),
        ("kind: Pod", "has no metadata"),
        ("", "holds no object"),
    ],
)
def test_files_that_cannot_be_read(tmp_path: Path, text: str, problem: str) -> None:
    file = tmp_path / "bad.yaml"
    file.write_text(text)
    with pytest.raises(InvalidManifest, match=problem):
        run(plan_command, "-f", str(file))
    with pytest.raises(InvalidManifest, match="cannot be read"):
        run(plan_command, "-f", str(tmp_path / "absent.yaml"))
    with pytest.raises(InvalidManifest, match="Is a directory; name the files in it"):
        run(plan_command, "-f", str(tmp_path))


@pytest.mark.parametrize(
    ("manifest", "problem"),
    [
        (
            "kind: Node\nmetadata: {name: n, labels: {rack: 5}}",
            r"metadata.labels\[rack\]: 5 is not a text; quote it",
        ),
        ("kind: Node\nmetadata: {name: [n]}", r"metadata.name: \['n'\] is not a text"),
        ("kind: Node\nmetadata: {name: n}\nstatus: []", r"status: \[\] is not an object"),
        (
            "kind: Pod\nmetadata: {name: p}\nspec: {resourceClaims: gpu}",
            "spec.resourceClaims: 'gpu' is not a list",
        ),
        (
            "kind: Pod\nmetadata: {name: p}\nspec: {containers: [{}, {resources: {requests: 1}}]}",
            r"spec.containers\[1\].resources.requests: 1 is not an object",
        ),
        (
            "kind: Pod\nmetadata: {name: p}\nspec: {containers: [null]}",
            r"spec.containers\[0\]: None is not an object",
        ),
        (
            "kind: Deployment\nmetadata: {name: d}\nspec: {template: {spec: {containers: [{}], resourceClaims: [null]}}}",
            r"Deployment d: pod template: spec.resourceClaims\[0\]: None is not an object",
        ),
        (
            "kind: Node\nmetadata: {name: n, labels: {rack: null}}",
            r"metadata.labels\[rack\]: None is not a text; quote it",
        ),
        (
            "kind: List\nitems: [{kind: Node, metadata: {name: n}, spec: 3}]",
            r"items\[0\]: spec: 3 is not an object",
        ),
    ],
)
def test_wrong_shapes_are_told_with_their_place(tmp_path: Path, manifest: str, problem: str) -> None:
    file = tmp_path / "wrong.yaml"
    file.write_text(manifest)
    with pytest.raises(InvalidManifest, match=problem):
        run(plan_command, "-f", str(file))


def test_json_lines_are_as_good_as_yaml_and_twice_is_once(files: list[str], tmp_path: Path) -> None:
    entries = [entry for name in files[1::2] for entry in yaml.safe_load_all(Path(name).read_text())]
    lines = tmp_path / "all.json"
    lines.write_text("\n".join(json.dumps(entry) for entry in entries))
    expected = run(plan_command, *files).stdout
    assert run(plan_command, "-f", str(lines)).stdout == expected
    assert run(plan_command, *files, "-f", str(lines), *files).stdout == expected


def test_dates_are_texts(tmp_path: Path) -> None:
    """An unquoted date in opaque parameters comes out as it went in, as from the API server."""
    dated = claim("a", request("gpu"))
    dated["spec"]["devices"]["config"] = [
        {"opaque": {"driver": "other.example.com", "parameters": {"since": "DATE"}}}
    ]
    file = tmp_path / "dated.yaml"
    file.write_text(yaml.safe_dump_all([*machine(1, 0), dated]).replace("DATE", "2026-01-02"))
    found = json.loads(run(plan_command, "-f", str(file), "-o", "json").stdout)
    (config,) = found["allocations"]["default/a"]["devices"]["config"]
    assert config["opaque"]["parameters"] == {"since": "2026-01-02"}


def test_explain_under_other_gates(files: list[str]) -> None:
    told = json.loads(run(explain, *files, "--features", "DRAAdminAccess", "-o", "json", "large").stdout)[
        "claims"
    ]
    assert [reason["reason"] for reason in told[0]["reasons"]] == ["FeatureDisabled"]


def test_claims_are_packed_or_spread_by_the_policy(tmp_path: Path) -> None:
    """Two shares: of one card or of two, which are of one node or of two."""
    shares = [claim(name, request("gpu", capacity={"memory": "10Gi"})) for name in "ab"]
    users, file = [pod(name, name) for name in "ab"], tmp_path / "objects.yaml"

    def devices(policy: str, *nodes: Dict) -> set[str]:
        file.write_text(yaml.safe_dump_all([*nodes, *shares, *users]))
        shown = run(plan_command, "-f", str(file), "--policy", policy, "-o", "json").stdout
        found = json.loads(shown)["allocations"].values()
        return {one["device"] for each in found for one in each["devices"]["results"]}

    def nodes(policy: str, *nodes: Dict) -> set[str]:
        file.write_text(yaml.safe_dump_all([*nodes, *shares, *users]))
        shown = run(explain, "-f", str(file), "--policy", policy, "-o", "json").stdout
        return {one["node"] for one in json.loads(shown)["claims"]}

    assert devices("Binpack", *machine(2, 0)) == {"gpu-0"}
    assert devices("Spread", *machine(2, 0)) == {"gpu-0", "gpu-1"}
    both = [*machine(1, 0), *machine(1, 0, name="node-2")]
    assert nodes("Binpack", *both) == {"node-1"}
    assert nodes("Spread", *both) == {"node-1", "node-2"}


def test_an_unknown_policy(files: list[str]) -> None:
    with pytest.raises(PlanError, match="policies are koordra"):
        run(plan_command, *files, "--policy", "Best")


def test_the_built_in_classes_are_the_deployed_ones() -> None:
    deployed = yaml.safe_load_all((ROOT / "deploy/kustomize/base/deviceclasses.yaml").read_text())
    assert {entry["metadata"]["name"]: entry["spec"] for entry in deployed} == {
        entry["metadata"]["name"]: entry["spec"] for entry in shipped_classes()
    }


@pytest.mark.parametrize("command", [plan_command, explain])
def test_files_without_nodes_and_kinds_without_a_part_are_told(
    command: Any, files: list[str], tmp_path: Path
) -> None:
    wanted = tmp_path / "wanted.yaml"
    service = {"apiVersion": "v1", "kind": "Service", "metadata": {"name": "web"}}
    misspelt = {**claim("more", request("gpu")), "kind": "ResourceClam"}
    wanted.write_text(yaml.safe_dump_all([claim("one", request("gpu")), service, misspelt]))
    alone = run(command, "-f", str(wanted))
    kinds, nodes = alone.stderr.splitlines()
    assert kinds == "koordra: no part in this have 1 ResourceClam (did you mean ResourceClaim?), 1 Service"
    assert nodes.startswith(
        "koordra: there are no nodes in the files: add those of a cluster (kubectl get nodes,"
    )
    assert nodes.endswith(" > cluster.yaml) with -f cluster.yaml")
    assert not run(command, *files).stderr


@pytest.mark.parametrize(("spec", "code"), [({}, 1), ({"memory": "10Gi"}, 0)])
def test_ci_is_told_what_waits(spec: Dict, code: int, tmp_path: Path) -> None:
    wanted = tmp_path / "all.yaml"
    asked = request("gpu", capacity=spec) if spec else request("gpu", count=9)
    wanted.write_text(yaml.safe_dump_all([*machine(1, 1), claim("c", asked)]))
    assert run(plan_command, "-f", str(wanted)).exit_code == 0
    assert run(plan_command, "-f", str(wanted), "--fail-if-waiting").exit_code == code


@pytest.mark.parametrize(("together", "nodes"), [([], {"node-1", "node-2"}), (["--together"], set())])
def test_claims_that_no_pod_uses_are_planned_one_by_one(
    together: list[str], nodes: set[str], tmp_path: Path
) -> None:
    """Each fits on a node, both on none."""
    wanted = tmp_path / "all.yaml"
    claims = [claim(name, request("gpu", count=2)) for name in ("a", "b")]
    wanted.write_text(yaml.safe_dump_all([*machine(2, 1), *machine(2, 1, name="node-2"), *claims]))
    found = json.loads(run(plan_command, "-f", str(wanted), *together, "-o", "json").stdout)
    given = [one["devices"]["results"] for one in found["allocations"].values()]
    assert {result["pool"] for results in given for result in results} == nodes
