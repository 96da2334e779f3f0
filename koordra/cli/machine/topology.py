"""`koordra topology`: the GPUs and NICs of a machine, how near they are to each other, and who holds them; or
where the members of a job are in the network."""

from __future__ import annotations

from pathlib import Path

import click

from koordra.cli import options
from koordra.cli.options import say


@click.command("topology")
@click.option(
    "--machine",
    "--preset",
    metavar="NAME",
    help="A kind of machine: one that comes with koordra (hgx-h100, aws-p4d-24xlarge, ...; an unknown "
    "name lists them), or the path of a machine.yaml.",
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
@options.manifests("YAML or JSON with ResourceSlices and ResourceClaims, in place of the cluster's")
@click.option(
    "--overlay",
    type=options.FILE,
    help="A file with what sysfs does not show: an NCCL topology XML, or YAML of schema koordra.io/overlay/v1.",
)
@click.option(
    "--state-dir",
    type=options.FOLDER,
    help="State directory of the node's kubelet-plugin, for who holds what.  "
    "[default on this machine: /var/lib/kubelet/plugins/koordra.io]",
)
@options.access
@options.output(
    "table",
    "wide",
    "tree",
    "json",
    "yaml",
    "svg",
    "dot",
    what="table: how near NICs and GPUs are to each GPU; wide: the whole matrix of nvidia-smi topo -m with NICs; tree: the PCI tree; json, yaml: one document; svg: a "
    "poster; dot: Graphviz.",
)
def topology(
    machine: str | None,
    root: Path | None,
    node: str | None,
    job: str | None,
    files: tuple[str, ...],
    overlay: Path | None,
    state_dir: Path | None,
    access: options.Access,
    output: str,
) -> None:
    """A machine's GPUs and RDMA NICs, the level between each pair, and who holds what; with --job, where a
    job is.

    Without an option it is this machine. What could not be read with certainty is reported on stderr.
    """
    from koordra.cli.machine import machine_view as view
    from koordra.errors import InvalidInput

    sources = (("--machine", machine), ("--root", root), ("--node", node), ("--job", job))
    given = [name for name, value in sources if value]
    if files and (machine or root):
        given.append("-f")
    if len(given) > 1:
        raise InvalidInput(
            f"{' and '.join(given)} exclude each other", object="topology", remedy="give one of them"
        )
    if job is not None:
        say(view.render_jobs(view.placed_jobs(job, files, access=access), output), nl=False)
        return
    if machine is not None:
        shown = view.of_kind(machine)
    elif files:
        shown = view.of_files(files, node=node)
    elif node is not None:
        shown = view.of_node(node, access=access)
    else:
        shown = view.of_root(root or Path("/"), state_dir=state_dir)
    if overlay is not None:
        shown = view.with_overlay(shown, overlay)
    say(view.render(shown, output), nl=False)
    for problem in shown.problems:
        say(f"koordra: {problem}", err=True)
