"""The jobs under deploy/examples: their pods are a gang, gated, and ask for claims that there are."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from koordra.api import names
from koordra.api.opaque.parameters import decode
from koordra.controller.gangs.declared.gang_ref import gang_of

EXAMPLES = Path(__file__).parents[3] / "deploy" / "examples"
JOBS = sorted(path for path in EXAMPLES.glob("job-*/*.yaml") if path.name != "example.yaml")


def templates(value: Any) -> Iterator[dict[str, Any]]:
    """Every pod template in a document, however deep."""
    if isinstance(value, dict):
        if "containers" in (value.get("spec") or {}):
            yield value
        else:
            for entry in value.values():
                yield from templates(entry)
    elif isinstance(value, list):
        for entry in value:
            yield from templates(entry)


@pytest.mark.parametrize("file", JOBS, ids=lambda file: file.stem)
def test_every_pod_is_a_gated_member_of_a_gang_with_claims_that_exist(file: Path) -> None:
    documents = list(yaml.safe_load_all(file.read_text()))
    claims = {
        entry["metadata"]["name"]: entry for entry in documents if entry["kind"] == "ResourceClaimTemplate"
    }
    found = [
        template
        for document in documents
        if document not in claims.values()
        for template in templates(document)
    ]
    members = [one for one in found if "koordra.io/gang" in (one["metadata"].get("annotations") or {})]
    assert members
    for template in found:
        if template not in members:
            assert "schedulingGates" not in template["spec"]
            continue
        spec = template["spec"]
        assert {"name": names.JOINT_GATE} in spec["schedulingGates"]
        pod = {"metadata": {"name": "p", "namespace": "d", **template["metadata"]}, "spec": spec}
        mark = gang_of(pod)
        assert mark is not None
        assert mark.name.partition(":")[0] == template["metadata"]["annotations"]["koordra.io/gang"]
        known = {entry["name"] for entry in spec.get("resourceClaims", ())}
        for entry in spec.get("resourceClaims", ()):
            assert entry["resourceClaimTemplateName"] in claims
        for container in spec["containers"]:
            assert {used["name"] for used in container.get("resources", {}).get("claims", ())} <= known
    for template in claims.values():
        for entry in template["spec"]["spec"]["devices"].get("config", ()):
            decode(entry["opaque"]["parameters"], object=file.name, field="config")


def test_every_example_says_what_it_is() -> None:
    assert len(JOBS) == 9
    for file in JOBS:
        assert (file.parent / "README.md").read_text().startswith("# ")
