"""A dialect is one file and one line of the registry: a made-up one goes through everything that knows
dialects. It is the one of docs/extending.md.

It is added to a copy of the sources, since a registry that could be changed at run time would be none.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.unit.docs.worked_examples import worked_example

ROOT = Path(__file__).resolve().parents[3]

DIALECT = worked_example("A dialect", "python")

ASKED = """
import json
from types import SimpleNamespace as A

from koordra.api import names
from koordra.api.classic.notes import Notes
from koordra.compat import original_request
from koordra.compat.detection import offered_by_others, publishers
from koordra.compat.quota_charges import amounts, dialect_of
from koordra.compat.rewrite import rewrite
from koordra.compat.settings import Settings
from koordra.compat.settings_document import with_document
from koordra.controller.legacy.settings import in_a_cluster
from koordra.controller.legacy.annotations import wanted
from koordra.controller.legacy.annotations import devices_of
from koordra.kubelet_plugin.cdi.device_edits import legacy_edits
from koordra.kubelet_plugin.status.node_labels import KEYS

settings = with_document(Settings(), {"acme": {"sliceGib": 4}, "isolation": {"acme": "limiter"}}, source="s")
pod = {
    "metadata": {"name": "p", "annotations": {"acme.example/card": "7"}},
    "spec": {
        "schedulerName": "acme-scheduler",
        "containers": [{"name": "main", "resources": {"limits": {"acme.example/gpu-slices": 5}}}],
    },
}
notes = Notes("Pod p")
found = rewrite(pod, settings, notes)
left = rewrite({**pod, "metadata": {"labels": {"acme.example/leave": "yes"}}}, settings, Notes("Pod p"))
slip = Notes("Pod p")
rewrite({"spec": {"containers": [{"name": "m", "resources": {"limits": {"acme.example/gpu-slice": 1}}}]}}, settings, slip)
inner = found.template["spec"]
name = found.template["metadata"]["name"]
request = inner["spec"]["devices"]["requests"][0]["name"]
device = A(request=request, device="gpu-0", type="gpu", admin_access=False, share_id="s",
           consumed=((names.CAPACITY_MEMORY, "20Gi"),))
inventory = A(published={"gpu-0": A(capacity={names.CAPACITY_MEMORY: A(value=80 << 30)})},
              attributes=lambda _: {names.ATTR_MINOR: 3})
(edits,) = legacy_edits(A(devices=(device,)), {"metadata": {"labels": inner["metadata"]["labels"],
                        "annotations": {names.DOMAIN + "memory-unit": str(1 << 30)}}}, inventory=inventory)
slices = [{"spec": {"driver": names.DRIVER, "pool": {"name": "n"}, "devices": [{
    "name": "gpu-0", "attributes": {"type": {"string": "gpu"}, "minor": {"int": 3}}, "capacity": {"memory": {"value": "80Gi"}}}]}}]
claim = {"status": {"allocation": {"devices": {"results": [
    {"driver": names.DRIVER, "pool": "n", "device": "gpu-0", "request": request}]}}}}
bound = {"metadata": {"annotations": {names.DOMAIN + "dialect": "acme"}}, "spec": {"nodeName": "n", "containers": [{"name": "main"}]}}
node = {"status": {"allocatable": {"acme.example/gpu-slices": "8", "cpu": "4"}}}
print(json.dumps({
    "dialect": found.dialect, "pod": found.pod, "claim": inner, "left": left.template is None,
    "warnings": [str(each) for each in notes.found], "slip": [str(each) for each in slip.found],
    "quota": dict(amounts(dialect_of(name), inner["spec"], settings)), "environment": list(edits.env),
    "annotations": wanted(bound, [claim], devices_of(slices)),
    "again": original_request.rewritten_again(original_request.with_original_request(pod, found), found.entry, settings).template == found.template,
    "foreign": [offered_by_others(node), publishers(offered_by_others(node))],
    "schedulers": "acme-scheduler" in in_a_cluster(settings).schedulers, "label": "acme.example/cards" in KEYS,
}))
"""


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    copy = tmp_path_factory.mktemp("sources")
    shutil.copytree(ROOT / "koordra", copy / "koordra", ignore=shutil.ignore_patterns("__pycache__"))
    dialects = copy / "koordra" / "compat" / "dialects"
    (dialects / "acme.py").write_text(DIALECT)
    registry = dialects / "__init__.py"
    registry.write_text(registry.read_text().replace('    "tke",\n', '    "tke",\n    "acme",\n'))
    found = subprocess.run(
        [sys.executable, "-c", ASKED],
        cwd=copy,
        env={**os.environ, "PYTHONPATH": str(copy)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert found.returncode == 0, found.stderr
    answer: dict[str, Any] = json.loads(found.stdout)
    return answer


def test_a_pod_is_rewritten(told: dict[str, Any]) -> None:
    assert told["dialect"] == "acme"
    (request,) = told["claim"]["spec"]["devices"]["requests"]
    assert request["exactly"]["capacity"] == {"requests": {"memory": "20Gi"}}
    assert told["claim"]["metadata"] == {
        "labels": {"koordra.io/dialect": "acme"},
        "annotations": {"koordra.io/memory-unit": str(4 << 30)},
    }
    assert told["claim"]["spec"]["devices"]["config"][0]["opaque"]["parameters"]["isolation"] == "limiter"
    assert "schedulerName" not in told["pod"]["spec"]
    assert "annotations" not in told["pod"]["metadata"]
    assert told["left"]
    assert told["again"]


def test_what_is_lost_or_misspelt_is_told(told: dict[str, Any]) -> None:
    assert any("acme-scheduler is taken out" in each for each in told["warnings"])
    assert any("acme.example/card" in each and "does not trust" in each for each in told["warnings"])
    (slip,) = told["slip"]
    assert "did you mean acme.example/gpu-slices?" in slip


def test_quota_environment_and_annotations_speak_it(told: dict[str, Any]) -> None:
    assert told["quota"]["acme.example/gpu-slices"] == 5
    assert told["quota"]["koordra.io/gpu-memory"] == 20 << 30
    assert told["environment"] == [["ACME_SLICES", "20"]]
    assert told["annotations"] == {"acme.example/card": "3"}


def test_cluster_and_nodes_know_it(told: dict[str, Any]) -> None:
    assert told["foreign"] == [["acme.example/gpu-slices"], "Acme's agent"]
    assert told["schedulers"]
    assert told["label"]


def test_nothing_outside_of_the_files_of_dialects_names_one() -> None:
    """Their names for themselves, which their files and the table of names alone have: a branch on one would
    be a second place."""
    own = {ROOT / "koordra" / "compat" / folder for folder in ("dialects", "keys")}
    named = [
        f"{path.relative_to(ROOT)}: {dialect}"
        for path in sorted((ROOT / "koordra").rglob("*.py"))
        if not own & {*path.parents}
        for dialect in ("volcano-vgpu", "volcano-gpu", "aliyun", "alnair", "tke", "hami")
        if f'"{dialect}"' in path.read_text()
    ]
    assert named == ["koordra/cli/convert.py: hami"], (
        "the choices of an option, which has to know them before it imports"
    )
