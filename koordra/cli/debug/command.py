"""`koordra debug`: what to attach to a bug report, and what the policy `koordra` has learned."""

from __future__ import annotations

from pathlib import Path

import click

from koordra.cli import options
from koordra.cli.debug import leftover_table


@click.group("debug")
def command() -> None:
    """Look into what runs: a node's driver, the controller's table."""


command.add_command(leftover_table.command, "leftover-table")


@command.command("dump")
@options.machine_root
@options.plugin_state
@options.cdi_folder
def dump_command(root: Path, state_dir: Path, cdi_dir: Path) -> None:
    """Print, as JSON, what this node's driver knows: machine, prepared claims, files. It holds no secrets."""
    import json

    from koordra import __version__
    from koordra.kubelet_plugin.discovery.reading import discover
    from koordra.kubelet_plugin.prepare.node_paths import NodePaths
    from koordra.kubelet_plugin.status.dump import dump

    paths = NodePaths(root=root.absolute(), state=state_dir.absolute(), cdi=cdi_dir.absolute())
    click.echo(json.dumps(dump(paths, discover(root.absolute()), version=__version__), indent=1))
