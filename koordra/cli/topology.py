"""`koordra topology`: the GPUs and NICs of a machine, how near they are to each other, and who holds them."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from koordra.cli.machine_sources import Sight

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
@click.option("--kubeconfig", help="Kubeconfig file, for --node.  [default: in-cluster, else KUBECONFIG]")
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
    overlay: Path | None,
    state_dir: Path | None,
    kubeconfig: str | None,
    output: str,
) -> None:
    """A machine's GPUs and RDMA NICs, the level between each pair, and who holds what.

    Without an option it is this machine. What could not be read with certainty is reported on stderr.
    """
    from koordra.cli import machine_sources as sources
    from koordra.errors import InvalidInput

    given = [name for name, value in (("--machine", machine), ("--root", root), ("--node", node)) if value]
    if len(given) > 1:
        raise InvalidInput(
            f"{' and '.join(given)} exclude each other", object="topology", remedy="give one of them"
        )
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
        case "json":
            import json

            return json.dumps(_document(sight), indent=2) + "\n"
        case "yaml":
            import yaml

            return yaml.safe_dump(_document(sight), sort_keys=False)
        case "tree":
            from koordra.topology.outline import outline

            return outline(sight.machine, sight.usage)
        case "svg":
            from koordra.topology.svg import svg

            return svg(sight.machine, sight.usage, title=sight.title, subtitle=sight.subtitle)
        case "dot":
            from koordra.topology.dot import dot

            return dot(sight.machine, sight.usage)
        case _:
            from koordra.topology.matrix import matrix

            return matrix(sight.machine, sight.usage)


def _document(sight: Sight) -> dict[str, object]:
    from koordra.topology.document import document

    problems = [problem.to_dict() for problem in sight.problems]
    return {**document(sight.machine, sight.usage), "problems": problems}
