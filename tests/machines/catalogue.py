"""The machines under this folder, by name."""

from __future__ import annotations

from functools import cache
from pathlib import Path

from koordra.topology import overlay, presets
from koordra.topology.machine import Machine
from koordra.topology.presets import Preset
from koordra.topology.problems import Discovery

HERE = Path(__file__).parent
NAMES = sorted(
    folder.name for folder in HERE.iterdir() if folder.is_dir() and not folder.name.startswith("__")
)
SERIAL = "node-a"


@cache
def load(name: str) -> Preset:
    """The description in the folder, or the preset of the folder's name."""
    described = HERE / name / "machine.yaml"
    return presets.load_file(described, name=name) if described.exists() else presets.load(name)


def machine(name: str) -> Machine:
    """The machine as its operator sees it: with its overlay, where the folder has one."""
    kind = load(name)
    made = kind.machine(serial=SERIAL)
    if kind.overlay is None:
        return made
    laid_over = overlay.load(kind.overlay).apply(Discovery(made))
    assert not laid_over.problems
    return laid_over.machine
