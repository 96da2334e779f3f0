"""An overlay fills what a virtual machine hides, and its mistakes are problems, not facts."""

from __future__ import annotations

from pathlib import Path

from koordra.kubelet_plugin.discovery.reading import discover
from koordra.kubelet_plugin.publish.resource_slices import build_slices
from koordra.topology import overlay, presets
from tests.machines import catalogue


def test_the_slices_of_a_flat_vm_have_what_the_overlay_says(tmp_path: Path) -> None:
    kind = catalogue.load("vm-flat")
    assert kind.overlay is not None
    presets.write_machine(kind, tmp_path, serial=catalogue.SERIAL)
    bare = discover(tmp_path)
    assert any(problem.field == "numaNode" for problem in bare.problems)
    found = overlay.load(kind.overlay).apply(bare)
    assert found.machine == catalogue.machine("vm-flat")
    assert not any(problem.field == "numaNode" for problem in found.problems)
    slices = build_slices(found.machine, node_name="n", node_uid=None, mode="joint", generation=1)
    gpus = [device for device in slices[0]["spec"]["devices"] if device["name"].startswith("gpu-")]
    assert all("koordra.io/numaNode" in device["attributes"] for device in gpus)
    assert all("numaNode" in device["attributes"]["koordra.io/inferred"]["string"] for device in gpus)


def test_what_the_overlay_gets_wrong_is_a_problem_and_changes_nothing(tmp_path: Path) -> None:
    presets.write_machine("hgx-h100", tmp_path / "root", serial="n")
    found = discover(tmp_path / "root")
    bus_id = found.machine.gpus[0].location.bus_id
    file = tmp_path / "wrong.yaml"
    file.write_text(f"schema: koordra.io/overlay/v1\ngroups:\n  - {{numa: 1, devices: ['{bus_id}']}}\n")
    over = overlay.load(file).apply(found)
    assert over.machine == found.machine
    (problem,) = set(over.problems) - set(found.problems)
    assert "wrong.yaml" in problem.remedy
    assert bus_id in problem.object or "gpu-0000-0f-00-0" in problem.object
