"""What `koordra topology` shows: a machine (of the hardware, a description, or the API of a cluster) or
placed jobs, and in which form."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Final

from koordra.api import objects
from koordra.api.kinds import RESOURCE_CLAIMS, RESOURCE_SLICES
from koordra.api.names import DRIVER
from koordra.api.objects import Fields
from koordra.cli.cluster.cluster_objects import connect
from koordra.cli.manifest_files import read_objects
from koordra.cli.options import Access
from koordra.cli.output import as_text, columns
from koordra.cli.what_if.machines import discovered
from koordra.errors import DiscoveryError, Forbidden, InvalidInput
from koordra.kubelet_plugin.discovery.reading import discover_with_driver
from koordra.kubelet_plugin.nvidia_driver.homes import HomeSource
from koordra.node_state import prepared_claim
from koordra.topology import overlay
from koordra.topology.machine import Machine
from koordra.topology.pictures import job as job_pictures
from koordra.topology.pictures.document import document
from koordra.topology.pictures.dot import dot
from koordra.topology.pictures.job import Job, jobs_of
from koordra.topology.pictures.svg import svg
from koordra.topology.pictures.text import gpu_nic_matrix, matrix, text_tree
from koordra.topology.pictures.usage import NOBODY, MachineUsage, usage_of_claims
from koordra.topology.problems import Discovery, Problem
from koordra.topology.published import machine_of_slices

_STATE: Final = Path("/var/lib/kubelet/plugins/koordra.io")


@dataclass(frozen=True, slots=True)
class MachineView:
    """A machine as it is shown, with what could not be made certain about it."""

    machine: Machine
    usage: MachineUsage = NOBODY
    title: str = ""
    subtitle: str = ""
    problems: tuple[Problem, ...] = ()


def of_root(root: Path, *, state_dir: Path | None) -> MachineView:
    """What discovery finds below ``root``. Holders come from the kubelet-plugin's records where these can be
    read."""
    if not root.is_dir():
        raise DiscoveryError(f"{root} is not a directory; give the directory that stands for /")
    found = discover_with_driver(root, HomeSource.of(root))
    here = root.resolve() == Path("/")
    records = state_dir or (_STATE if here else None)
    return MachineView(
        found.machine,
        MachineUsage(holders=_prepared(records)) if records else NOBODY,
        title="this machine" if here else root.name,
        problems=found.problems,
    )


def of_kind(name: str) -> MachineView:
    """A machine of a described kind. It is written out and read back by the code that reads real ones."""
    kind, found = discovered(name)
    return MachineView(found.machine, title=kind.name, subtitle=kind.title, problems=found.problems)


def of_node(name: str, *, access: Access) -> MachineView:
    """A node as its ResourceSlices and the cluster's claims show it."""
    client = connect(access)
    slices, _ = client.list(RESOURCE_SLICES, field_selector=f"spec.nodeName={name}")
    claims, problems = [], []
    try:
        claims = client.list(RESOURCE_CLAIMS)[0]
    except Forbidden as error:
        # Who may see nodes may not be allowed to see everybody's claims; the machine is still worth a look.
        remedy = "ask for the right to list resourceclaims in all namespaces"
        problems.append(Problem(f"Node {name}", "holders", f"not shown: {error}", remedy))
    return replace(_published(name, slices, claims), problems=tuple(problems))


def of_files(files: tuple[str, ...], *, node: str | None) -> MachineView:
    """A node as the ResourceSlices and claims in files show it; of one node alone, where none is named."""
    found = read_objects(files)
    slices = [entry for entry in found if entry.get("kind") == RESOURCE_SLICES.kind]
    nodes = sorted({str(objects.spec_of(one).get("nodeName")) for one in slices if _is_ours(one)})
    if node is None and len(nodes) != 1:
        listed = (
            f"slices of {len(nodes)} nodes: {', '.join(nodes[:8])}" if nodes else "no slice of koordra.io"
        )
        raise InvalidInput(
            f"holds {listed}",
            object=", ".join(files),
            remedy="name one with --node" if nodes else "give the ResourceSlices of a node",
        )
    claims = [entry for entry in found if entry.get("kind") == RESOURCE_CLAIMS.kind]
    return _published(node or nodes[0], slices, claims)


def _published(name: str, slices: Sequence[Fields], claims: Sequence[Fields]) -> MachineView:
    own = [one for one in slices if objects.spec_of(one).get("nodeName") == name]
    machine, capacities = machine_of_slices(own)
    if not capacities and not any(map(_is_ours, own)):
        raise InvalidInput(
            "publishes no ResourceSlice of koordra.io",
            object=f"Node {name}",
            remedy="check the name, and that koordra kubelet-plugin runs there",
        )
    return MachineView(
        machine,
        usage_of_claims(claims, pool=name, capacities=capacities),
        title=name,
        subtitle="as published in ResourceSlices",
    )


def _is_ours(one: Fields) -> bool:
    return objects.spec_of(one).get("driver") == DRIVER


def with_overlay(view: MachineView, file: Path) -> MachineView:
    """The view with an overlay applied; contradictions join the problems."""
    over = overlay.load(file).apply(Discovery(view.machine, view.problems))
    return replace(view, machine=over.machine, problems=over.problems)


def render(view: MachineView, output: str) -> str:
    """The view as a matrix, or in the form `wide` (that of all pairs), `tree`, `svg`, `dot`, `json` or
    `yaml`."""
    match output:
        case "json" | "yaml":
            return as_text(
                {
                    **document(view.machine, view.usage),
                    "problems": [asdict(problem) for problem in view.problems],
                },
                output,
            )
        case "tree":
            return text_tree(view.machine, view.usage)
        case "svg":
            return svg(view.machine, view.usage, title=view.title, subtitle=view.subtitle)
        case "dot":
            return dot(view.machine, view.usage)
        case "wide":
            return matrix(view.machine, view.usage)
        case _:
            return gpu_nic_matrix(view.machine, view.usage, width=columns())


def placed_jobs(wanted: str, files: tuple[str, ...], *, access: Access) -> list[Job]:
    """The jobs of that name, of the files or of the cluster. Raises InvalidInput where there is none."""
    listed = read_objects(files) if files else connect(access).list(RESOURCE_CLAIMS)[0]
    found = jobs_of(entry for entry in listed if entry.get("kind") == RESOURCE_CLAIMS.kind)
    meant = [one for one in found if wanted in ("all", one.name, f"{one.namespace}/{one.name}")]
    if not meant and wanted != "all":
        known = ", ".join(f"{one.namespace}/{one.name}" for one in found) or "none"
        raise InvalidInput(
            "no allocated claim belongs to such a job",
            object=f"job {wanted}",
            remedy=f"jobs that are placed: {known}",
        )
    return meant


def render_jobs(jobs: list[Job], output: str) -> str:
    """The jobs as text, or in the form `svg`, `json` or `yaml`. Raises InvalidInput for `dot`."""
    match output:
        case "json" | "yaml":
            return as_text([job_pictures.document(job) for job in jobs], output)
        case "svg":
            return job_pictures.svg(jobs)
        case "dot":
            raise InvalidInput("a job has no dot picture", object="topology", remedy="use -o svg")
        case _:
            return "".join(job_pictures.text_tree(job) for job in jobs) or "no job is placed\n"


def _prepared(state_dir: Path) -> dict[str, tuple[str, ...]]:
    """Device -> claims, from ``prepared/<claim uid>.json``. What cannot be read is left out: this is only a
    picture."""
    held: dict[str, set[str]] = {}
    for file in sorted((state_dir / "prepared").glob("*.json")):
        with suppress(OSError, ValueError):
            claim = prepared_claim.decode(file.read_bytes())
            for device in claim.devices:
                held.setdefault(device.device, set()).add(str(claim))
    return {device: tuple(sorted(claims)) for device, claims in held.items()}
