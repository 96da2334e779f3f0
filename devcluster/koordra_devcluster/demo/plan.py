"""What one run of the demo shows: whose manifests, on which nodes, and what has to come of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from koordra.api import objects
from koordra.api.objects import Object
from koordra.cli.output import render_table
from koordra.errors import InvalidInput, InvalidManifest
from koordra.topology import presets
from koordra.topology.presets import Preset
from koordra_devcluster.demo import examples, manifests
from koordra_devcluster.demo.examples import Example
from koordra_devcluster.demo.needs import Needs


@dataclass(frozen=True, slots=True)
class Plan:
    """`machines`: one for each node."""

    documents: tuple[Object, ...]
    machines: tuple[Preset, ...]
    needs: Needs
    example: Example | None = None

    @property
    def title(self) -> str:
        """How many nodes of what."""
        kinds = ", ".join(dict.fromkeys(machine.name for machine in self.machines))
        return f"{len(self.machines)} nodes of {kinds}" + (
            f" for example {self.example.name}" if self.example else ""
        )

    @property
    def first(self) -> list[Object]:
        """What is applied and placed before the rest."""
        names = self.example.first if self.example else frozenset()
        return [one for one in self.documents if objects.name(one) in names]


def planned(
    files: Sequence[Path], *, example: str | None, nodes: int | None, preset: str, commands: bool = False
) -> Plan:
    """`commands`: those of containers are run.

    Raises InvalidInput for what cannot be meant, InvalidManifest for files that cannot be read."""
    if files and example:
        raise InvalidInput("-f and --example exclude each other", remedy="give one of them")
    if preset not in presets.names():
        raise InvalidInput(
            f"there is no machine {preset!r}",
            field="--machine",
            remedy=f"use one of {', '.join(presets.names())}",
        )
    if example:
        if nodes is not None:
            raise InvalidInput("an example has nodes of its own", field="--nodes", remedy="leave it out")
        found = examples.load(example)
        needs = replace(Needs.of(found.documents), commands=commands or found.commands)
        return Plan(found.documents, found.machines, needs, found)
    documents = (
        tuple(document for path in files for document in manifests.read(path))
        if files
        else tuple(manifests.shipped(manifests.deploy_folder()))
    )
    if not documents:
        raise InvalidManifest(
            "holds no object", object=", ".join(map(str, files)), remedy="give it at least one"
        )
    needs = replace(Needs.of(documents), commands=commands)
    return Plan(documents, (presets.load(preset),) * (nodes or needs.nodes), needs)


def listed() -> str:
    """The examples with their titles."""
    return render_table(("EXAMPLE", "WHAT"), [(name, examples.title(name)) for name in examples.names()])
