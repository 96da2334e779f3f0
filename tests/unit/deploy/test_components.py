"""What goes on top of base can be combined: components, each for itself, and `migration` with all of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).resolve().parents[3] / "deploy" / "kustomize"
COMPONENTS = ("legacy", "elastic", "node-labels")
"""What moving from another stack takes."""
ALL = (*COMPONENTS, "autoscale")


def kustomization(folder: str) -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load((ROOT / folder / "kustomization.yaml").read_text())
    return found


def test_components_bring_nothing_of_base_so_that_they_combine() -> None:
    for name in ALL:
        found = kustomization(name)
        assert (found["apiVersion"], found["kind"]) == ("kustomize.config.k8s.io/v1alpha1", "Component")
        assert not [entry for entry in found["resources"] if entry.startswith("..")]


def test_a_component_lists_every_file_of_its_folder() -> None:
    for name in ALL:
        files = {path.name for path in (ROOT / name).glob("*.yaml")} - {"kustomization.yaml"}
        assert files == set(kustomization(name)["resources"])


def test_migration_is_base_with_all_of_them() -> None:
    found = kustomization("migration")
    assert found["resources"] == ["../base"]
    assert found["components"] == [f"../{name}" for name in COMPONENTS]
