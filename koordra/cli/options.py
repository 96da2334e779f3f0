"""Options that several commands have in common, each said once: where the API server is, what is logged, and where on a
node things lie. What differs between commands, in default or in words, stays with the command."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, TypeVar

import click

Command = TypeVar("Command", bound=Callable[..., Any])

LEVELS: Final = ("debug", "info", "warning", "error")

kubeconfig = click.option(
    "--kubeconfig", type=click.Path(dir_okay=False), help="Default: in-cluster, or KUBECONFIG."
)

machine_root = click.option(
    "--root",
    type=click.Path(path_type=Path, file_okay=False),
    default=Path("/"),
    show_default=True,
    help="The machine: its sys, proc and dev are below this path.",
)

plugin_state = click.option(
    "--state-dir",
    type=click.Path(path_type=Path, file_okay=False),
    default=Path("/var/lib/kubelet/plugins/koordra.io"),
    show_default=True,
    help="The kubelet plugin's state directory.",
)

cdi_folder = click.option(
    "--cdi-dir",
    type=click.Path(path_type=Path, file_okay=False),
    default=Path("/var/run/cdi"),
    show_default=True,
    help="Where the container runtime reads dynamic CDI specs.",
)

log_level = click.option("--log-level", type=click.Choice(LEVELS), default="info", show_default=True)

_log_json = click.option("--log-json", is_flag=True, help="One JSON object a line.")


def logging(command: Command) -> Command:
    """--log-level and --log-json."""
    return log_level(_log_json(command))
