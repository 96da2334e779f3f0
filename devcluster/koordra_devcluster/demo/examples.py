"""The examples of deploy/examples: each a folder with manifests, a README.md and an example.yaml.

schema: koordra.io/example/v1
nodes: [hgx-h100, machine.yaml]    machines of the nodes: presets, or files of the folder [two hgx-h100]
also: [../programs.yaml]           manifests besides those of the folder [none]
commands: true                     containers' commands are run (container_runtime/commands.py) [false]
first: [pretrain]                  objects that are applied, and placed, before the others [none]
outcome: ...                       what comes of it (outcome.py)
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from koordra.api.objects import Object
from koordra.api.reader import Reader
from koordra.errors import InvalidInput, InvalidManifest
from koordra.spelling import meant
from koordra.topology import presets
from koordra.topology.presets import Preset
from koordra.yaml_text import read_yaml
from koordra_devcluster.demo import manifests
from koordra_devcluster.demo.outcome import Outcome, read_outcome

SCHEMA: Final = "koordra.io/example/v1"
FILE: Final = "example.yaml"
_MACHINES: Final = "machine*.yaml"


@dataclass(frozen=True, slots=True)
class Example:
    """`title` is the README's; `machines` those of the nodes; `first` names of objects that go before the
    others."""

    name: str
    title: str
    machines: tuple[Preset, ...]
    documents: tuple[Object, ...]
    first: frozenset[str]
    commands: bool
    outcome: Outcome


def folder() -> Path:
    return manifests.deploy_folder() / "examples"


def names() -> list[str]:
    """Every folder of deploy/examples."""
    return sorted(path.name for path in folder().iterdir() if path.is_dir())


def title(name: str) -> str:
    return (folder() / name / "README.md").read_text().partition("\n")[0].removeprefix("# ")


def load(name: str) -> Example:
    """Raises InvalidInput that lists the examples, or InvalidManifest for one that is not written right."""
    known = names()
    if name not in known:
        near = meant(name, known)
        remedy = f"write {near}" if near else f"the examples are {', '.join(known)}"
        raise InvalidInput(f"there is no example {name!r}", field="--example", remedy=remedy)
    place = folder() / name
    (read,) = _documents(place / FILE)
    if unknown := sorted(read.data.keys() - {"schema", "nodes", "also", "commands", "first", "outcome"}):
        raise read.wrong("is no field of an example", at=unknown[0])
    if read.text("schema") != SCHEMA:
        raise read.wrong(f"is not {SCHEMA}", at="schema")
    return Example(
        name,
        title(name),
        machines=tuple(_machine(place, str(one)) for one in read.data.get("nodes") or ("hgx-h100",) * 2),
        documents=tuple(
            document for file in [*files(name), *_also(place, read)] for document in manifests.read(file)
        ),
        first=frozenset(read.texts("first")),
        commands=read.flag("commands"),
        outcome=read_outcome(read.inner("outcome")),
    )


def files(name: str) -> Sequence[Path]:
    """The example's manifests."""
    place = folder() / name
    return sorted({*place.glob("*.yaml")} - {place / FILE, *place.glob(_MACHINES)})


def _also(place: Path, read: Reader) -> list[Path]:
    return [place / name for name in read.texts("also")]


def _documents(path: Path) -> list[Reader]:
    found = read_yaml(path.read_text(), source=str(path))
    return [Reader(one, object=str(path)) for one in found if isinstance(one, Mapping)]


def _machine(place: Path, name: str) -> Preset:
    if (place / name).is_file():
        return presets.load_file(place / name, name=name.removesuffix(".yaml"))
    try:
        return presets.load(name)
    except InvalidInput as error:
        raise InvalidManifest(
            error.problem, object=str(place / FILE), field="nodes", remedy=error.remedy
        ) from error
