"""`koordra node check`: a preflight of the node."""

from __future__ import annotations

from pathlib import Path

import click

from koordra.cli import options
from koordra.cli.options import say


@click.command("check")
@click.option(
    "--root",
    type=click.Path(path_type=Path, file_okay=False, exists=True),
    default="/",
    envvar="KOORDRA_HOST_ROOT",
    show_envvar=True,
    help="The node: its etc, proc, sys, dev and run are below this path. In the plugin's pod the variable names it.",
)
@options.cdi_folder
@options.output("text", "json")
@click.pass_context
def check(ctx: click.Context, root: Path, cdi_dir: Path, output: str) -> None:
    """Whether everything on this node is as GPU and RDMA pods need it.

    Each line is ok, problem or not-applicable with what was found; a problem has its remedy below. The exit
    code is 1 only if there is a problem. Nothing is changed on the node.
    """
    import os

    from koordra.cli.output import show_document
    from koordra.cli.progress import progress
    from koordra.kubelet_plugin.node_check.check_node import check_node
    from koordra.kubelet_plugin.node_check.readings.node import read_node
    from koordra.kubelet_plugin.node_check.report import document, in_words

    with progress("looking at the node", line=False):
        results = check_node(read_node(root.absolute(), cdi_folder=str(cdi_dir)))
    if os.geteuid() != 0:
        say("koordra: you are not root: what only root may read counts as missing", err=True)
    if output == "json":
        show_document(document(results), output)
    else:
        say(in_words(results), nl=False)
    ctx.exit(int(any(result.status == "problem" for result in results)))
