"""Values of the wrong kind in older manifests are refused one by one; nothing at all is told too; texts stay
texts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner, Result

from koordra.cli.main import cli
from koordra.cli.output import yaml_text
from koordra.errors import InvalidManifest


def run(tmp_path: Path, *found: dict[str, Any], text: str | None = None) -> Result:
    path = tmp_path / "in.yaml"
    path.write_text(yaml.safe_dump_all(found) if text is None else text)
    return CliRunner().invoke(cli, ["convert", "-f", str(path)])


def old(kind: str, spec: Any, version: str = "v1alpha3") -> dict[str, Any]:
    return {"apiVersion": f"resource.k8s.io/{version}", "kind": kind, "metadata": {"name": "x"}, "spec": spec}


def request(**fields: Any) -> dict[str, Any]:
    return {"devices": {"requests": [{"name": "gpu", "deviceClassName": "gpu.koordra.io", **fields}]}}


@pytest.mark.parametrize(
    ("obj", "field"),
    [
        (old("ResourceClaim", request(count="two")), "spec.devices.requests[0].count"),
        (old("ResourceClaim", request(count=True)), "spec.devices.requests[0].count"),
        (old("ResourceClaim", request(adminAccess="yes")), "spec.devices.requests[0].adminAccess"),
        (old("ResourceClaim", request(selectors={"cel": 3})), "spec.devices.requests[0].selectors"),
        (old("ResourceClaim", request(selectors=[{"cel": {"expression": 3}}])), "selectors[0].cel.expression"),
        (old("ResourceClaim", {"devices": {"constraints": "none"}}, "v1beta1"), "spec.devices.constraints"),
        (old("ResourceClaimTemplate", {"spec": request(exactly=[])}, "v1beta2"), "spec.spec.devices.requests[0].exactly"),
        (old("ResourceClaimTemplate", {"metadata": {"labels": {"a": 1}}, "spec": {}}), "spec.metadata.labels[a]"),
        (old("DeviceClass", {"config": [{"opaque": {"driver": 1}}]}), "spec.config[0].opaque.driver"),
        (old("ResourceSlice", {"pool": {"generation": "1"}}, "v1beta1"), "spec.pool.generation"),
        (old("ResourceSlice", {"devices": [{"basic": {"attributes": {"n": {"int": "4"}}}}]}), "attributes[n].int"),
        (old("DeviceTaintRule", {"taint": {"key": 1}}), "spec.taint.key"),
    ],
)  # fmt: skip
def test_each_wrong_value_is_refused_with_its_field(tmp_path: Path, obj: dict[str, Any], field: str) -> None:
    result = run(tmp_path, obj)
    assert isinstance(result.exception, InvalidManifest)
    assert result.stdout.strip() == ""
    refused = [line for line in result.stderr.splitlines() if line.startswith("refused: ")]
    assert len(refused) == 1
    assert field in refused[0]


def test_all_that_is_wrong_is_told_at_once_and_the_rest_is_converted(tmp_path: Path) -> None:
    good = old("ResourceClaim", request(count=2)) | {"metadata": {"name": "good"}}
    result = run(tmp_path, old("ResourceClaim", request(count="2", allocationMode=7)), good)
    assert result.stderr.count("refused: ") == 2
    assert str(result.exception) == "1 object was refused"
    assert [entry["metadata"]["name"] for entry in yaml.safe_load_all(result.stdout)] == ["good"]


@pytest.mark.parametrize("text", ["", "---\n", "# nothing\n", "apiVersion: v1\nkind: List\nitems: []\n"])
def test_nothing_at_all_is_said_so(tmp_path: Path, text: str) -> None:
    result = run(tmp_path, text=text)
    assert isinstance(result.exception, InvalidManifest)
    assert "holds no object" in str(result.exception)


@pytest.mark.parametrize(
    "text", ["yes", "012", "1e3", "0o17", "y", "null", "1_000", "0x1F", ".5", "12:30", "2026-11-21", "on"]
)
def test_texts_stay_texts(text: str) -> None:
    """Also for readers that know more numbers than ours: whatever looks like one is in quotes."""
    shown = yaml_text({"text": text, text: ["a"]})
    assert yaml.safe_load(shown) == {"text": text, text: ["a"]}
    assert shown.startswith(("text: '", 'text: "'))
