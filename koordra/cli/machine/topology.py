"""`koordra topology`: the GPUs and NICs of a machine, how near they are to each other, and who holds them; or where the members of a
job are in the network."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from koordra.cli.machine.machine_sources import Sight
    from koordra.topology.pictures.job import Job

_OUTPUTS = ("table", "tree", "json", "yaml", "svg", "dot")


@click.command()
@click.option(
    "--machine",
    "--preset",
    metavar="NAME",
    help="A kind of machine: one that comes with koordra (hgx-h100, dgx-a100), a folder of tests/machines in a "
    "checkout, or the path of a machine.yaml.",
)
@click.option(
    "--root",
    type=click.Path(path_type=Path),
    help="A directory that stands for / (DIR/sys, DIR/proc, DIR/dev): a captured or made-up machine.",
)
@click.option("--node", metavar="NAME", help="A node of the cluster, from its ResourceSlices and the claims.")
@click.option(
    "--job",
    metavar="NAME",
    help="A job that koordra placed: its members with the blocks, nodes and rails they are on. NAME or namespace/NAME; "
    "'all' is every job.",
)
@click.option(
    "-f",
    "--filename",
    "files",
    multiple=True,
    metavar="FILE",
    help="With --job: YAML or JSON with the ResourceClaims ('-' is stdin). Repeatable.  [default: the cluster]",
)
@click.option(
    "--overlay",
    type=click.Path(path_type=Path, dir_okay=False),
    help="A file with what sysfs does not show: an NCCL topology XML, or YAML of schema koordra.io/overlay/v1.",
)
@click.option(
    "--state-dir",
    type=click.Path(path_type=Path, file_okay=False),
    help="State directory of the node's kubelet-plugin, for who holds what.  "
    "[default on this machine: /var/lib/kubelet/plugins/koordra.io]",
)
@click.option(
    "--kubeconfig", help="Kubeconfig file, for --node and --job.  [default: in-cluster, else KUBECONFIG]"
)
@click.option(
    "-o",
    "--output",
    type=click.Choice(_OUTPUTS),
    default="table",
    show_default=True,
    help="table: the matrix of nvidia-smi topo -m with NICs; tree: the PCI tree; json, yaml: one document; svg: a "
    "poster; dot: Graphviz.",
)
def command(
    machine: str | None,
    root: Path | None,
    node: str | None,
    job: str | None,
    files: tuple[str, ...],
    overlay: Path | None,
    state_dir: Path | None,
    kubeconfig: str | None,
    output: str,
) -> None:
    """A machine's GPUs and RDMA NICs, the level between each pair, and who holds what; with --job, where a job is.

    Without an option it is this machine. What could not be read with certainty is reported on stderr.
    """
    from koordra.cli.machine import machine_sources as sources
    from koordra.errors import InvalidInput

    sources_given = (("--machine", machine), ("--root", root), ("--node", node), ("--job", job))
    given = [name for name, value in sources_given if value]
    if len(given) > 1:
        raise InvalidInput(
            f"{' and '.join(given)} exclude each other", object="topology", remedy="give one of them"
        )
    if job is not None:
        click.echo(_render_jobs(_jobs(job, files, kubeconfig=kubeconfig), output), nl=False)
        return
    if machine is not None:
        sight = sources.of_kind(machine)
    elif node is not None:
        sight = sources.of_node(node, kubeconfig=kubeconfig)
    else:
        sight = sources.of_root(root or Path("/"), state_dir=state_dir)
    if overlay is not None:
        sight = sources.laid_over(sight, overlay)
    click.echo(_render(sight, output), nl=False)
    for problem in sight.problems:
        print(f"koordra: {problem}", file=sys.stderr)


def _render(sight: Sight, output: str) -> str:
    """Only what is asked for is imported: the pictures are not needed for a table."""
    match output:
        case "json" | "yaml":
            from koordra.cli.output import as_text

            return as_text(_document(sight), output)
        case "tree":
            from koordra.topology.pictures.text_tree import text_tree

            return text_tree(sight.machine, sight.usage)
        case "svg":
            from koordra.topology.pictures.svg import svg

            return svg(sight.machine, sight.usage, title=sight.title, subtitle=sight.subtitle)
        case "dot":
            from koordra.topology.pictures.dot import dot

            return dot(sight.machine, sight.usage)
        case _:
            from koordra.topology.pictures.matrix import matrix

            return matrix(sight.machine, sight.usage)


def _document(sight: Sight) -> dict[str, object]:
    from koordra.topology.pictures.document import document

    problems = [problem.to_dict() for problem in sight.problems]
    return {**document(sight.machine, sight.usage), "problems": problems}


def _jobs(wanted: str, files: tuple[str, ...], *, kubeconfig: str | None) -> list[Job]:
    """The jobs of that name. Raises InvalidInput where there is none."""
    from koordra.api import kinds
    from koordra.errors import InvalidInput
    from koordra.topology.pictures.job import jobs_of

    if files:
        from koordra.cli.manifests.files import read_objects

        claims = [entry for entry in read_objects(files) if entry.get("kind") == "ResourceClaim"]
    else:
        from koordra.cli.cluster.cluster_objects import connect

        claims = list(connect(kubeconfig).list(kinds.RESOURCE_CLAIMS)[0])
    found = jobs_of(claims)
    meant = [one for one in found if wanted in ("all", one.name, f"{one.namespace}/{one.name}")]
    if not meant and wanted != "all":
        known = ", ".join(f"{one.namespace}/{one.name}" for one in found) or "none"
        raise InvalidInput(
            "no allocated claim belongs to such a job",
            object=f"job {wanted}",
            remedy=f"jobs that are placed: {known}",
        )
    return meant


def _render_jobs(jobs: list[Job], output: str) -> str:
    from koordra.topology.pictures import job_picture as picture

    match output:
        case "json" | "yaml":
            from koordra.cli.output import as_text

            return as_text([picture.document(job) for job in jobs], output)
        case "svg":
            return picture.svg(jobs)
        case "dot":
            from koordra.errors import InvalidInput

            raise InvalidInput("a job has no dot picture", object="topology", remedy="use -o svg")
        case _:
            return "".join(picture.text_tree(job) for job in jobs) or "no job is placed\n"
