"""Made-up machines that discovery reads like real ones.

``names()`` lists the kinds that come with koordra, ``load`` reads one, ``write_machine`` makes a machine of
that kind below a directory: the demo, the tests and people without a GPU run koordra on those. The format of
a description is in ``facts``, the layout of a written machine in ``tree``.
"""

from __future__ import annotations

from pathlib import Path

from koordra.errors import InvalidInput
from koordra.topology.machine import Machine
from koordra.topology.presets.facts import Majors, Preset
from koordra.topology.presets.facts import load as load_file
from koordra.topology.presets.tree import MachineWriter

__all__ = ["Majors", "Preset", "load", "load_file", "names", "write_machine"]

_HERE = Path(__file__).parent


def names() -> tuple[str, ...]:
    """The presets there are."""
    return tuple(sorted(file.stem for file in _HERE.glob("*.yaml")))


def load(name: str) -> Preset:
    """One preset; InvalidInput names those there are."""
    if name not in names():
        raise InvalidInput(
            f"there is no machine preset {name!r}",
            object="preset",
            remedy=f"the presets are {', '.join(names())}",
        )
    return load_file(_HERE / f"{name}.yaml")


def write_machine(
    preset: Preset | str, root: Path, *, serial: str, device_major: int | None = None
) -> Machine:
    """Write the machine of this kind that bears ``serial`` below ``root``, and return it.

    Device nodes are real where mknod is allowed, otherwise files that stand for them. ``device_major`` gives
    all nodes five consecutive majors from there on: driverless ones (240-254 are free for local use) make
    nodes that can be handed to real containers. Raises InvalidInput for an unknown preset, DiscoveryError
    when it cannot be written.
    """
    kind = load(preset) if isinstance(preset, str) else preset
    majors = Majors() if device_major is None else Majors.driverless(device_major)
    machine = kind.machine(serial=serial, majors=majors)
    MachineWriter(root).write(machine, other_functions=kind.other_functions)
    return machine
