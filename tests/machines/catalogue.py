"""The machines that come with koordra, by name; this folder has what is expected of each."""

from __future__ import annotations

from functools import cache
from pathlib import Path

from koordra.topology import overlay, presets
from koordra.topology.machine import Machine
from koordra.topology.presets import Preset
from koordra.topology.problems import Discovery

HERE = Path(__file__).parent
NAMES = presets.names()
SERIAL = "node-a"


@cache
def load(name: str) -> Preset:
    return presets.load(name)


def machine(name: str) -> Machine:
    """The machine as its operator sees it: with its overlay, where the folder has one."""
    kind = load(name)
    made = kind.machine(serial=SERIAL)
    if kind.overlay is None:
        return made
    laid_over = overlay.load(kind.overlay).apply(Discovery(made))
    assert not laid_over.problems
    return laid_over.machine
