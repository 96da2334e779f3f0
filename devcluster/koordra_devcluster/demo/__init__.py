"""`koordra demo`: a whole cluster on this machine, from manifest to container.

Every koordra component runs as its own process over real sockets. What stands in for the rest is the
development double (`koordra devcluster`): API server, scheduler, kubelet, container runtime, and machines
that exist only as files.
"""

from __future__ import annotations

import json
import shlex
import shutil
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from koordra_devcluster.demo.run import Layout

LONGEST_SOCKET = 107
"""Bytes of a unix socket's path (sun_path of unix(7), without the closing zero)."""

EARLIER_RUN = ".koordra-demo"
"""Marks a folder as the demo's own, so that the next run may clear it."""


@click.command("demo")
@click.option("--nodes", default=2, show_default=True, type=click.IntRange(1, 16), help="How many nodes.")
@click.option("--preset", default="hgx-h100", show_default=True, help="Which machine every node is.")
@click.option(
    "-f",
    "--file",
    "files",
    multiple=True,
    type=click.Path(path_type=Path),
    help="Your manifests instead of ours.",
)
@click.option("--jobs", is_flag=True, help="Three gangs on six nodes in two blocks: one waits, one grows.")
@click.option("--keep", is_flag=True, help="Leave it running and print the KUBECONFIG; Ctrl-C ends it.")
@click.option("--timeout", default=140.0, show_default=True, help="Seconds after which waiting ends.")
@click.option("-o", "--output", default="table", type=click.Choice(["table", "json"]), show_default=True)
@click.option(
    "--dir", "folder", type=click.Path(path_type=Path), help="Where to keep its files (default: temporary)."
)
def command(
    nodes: int,
    preset: str,
    files: tuple[Path, ...],
    jobs: bool,
    keep: bool,
    timeout: float,
    output: str,
    folder: Path | None,
) -> None:
    """A whole cluster on this machine: made-up GPUs and NICs, real sockets, every koordra component.

    With --jobs the nodes, manifests and what has to happen are those of deploy/examples/three-jobs.
    Ends with exit code 0 only if everything that is not annotated koordra.io/demo-expect=Pending was placed
    and prepared.
    """
    from koordra.process.lifecycle import stop_on_signals

    # Before anything is imported that starts threads (numpy does): they would not have the signals blocked.
    stop = stop_on_signals()
    from dataclasses import replace

    from koordra.errors import InvalidInput
    from koordra.topology import presets
    from koordra_devcluster.demo import manifests, report
    from koordra_devcluster.demo.jobs import NODES, node_labels
    from koordra_devcluster.demo.jobs_run import run_jobs, seen_of_jobs, shipped_jobs
    from koordra_devcluster.demo.run import Demo

    if preset not in presets.names():
        raise InvalidInput(
            f"there is no machine {preset!r}",
            field="--preset",
            remedy=f"use one of {', '.join(presets.names())}",
        )
    documents = (
        [document for path in files for document in manifests.read(path)]
        if files
        else manifests.shipped(manifests.deploy_folder())
    )
    if jobs:
        documents, nodes = shipped_jobs(), NODES
    names = tuple(f"node-{number}" for number in range(nodes))
    layout = replace(_layout(folder, names), labels=node_labels(names) if jobs else {})
    demo = Demo(
        layout, preset=preset, timeout=timeout, stop=stop, say=lambda text: click.echo(text, err=True)
    )
    try:
        demo.say(
            f"starting {nodes} nodes of preset {preset}; machines and cluster are doubles, koordra is real"
        )
        client = demo.up()
        demo.say(f"API server at {client.server}")
        outcome = (
            run_jobs(demo, client, documents) if jobs else demo.wait(client, demo.apply(client, documents))
        )
        shown = report.document(
            outcome.observation,
            outcome.refused,
            nodes=dict.fromkeys(layout.nodes, preset),
            folders=[layout.node(name) for name in layout.nodes],
        )
        if jobs:
            shown |= seen_of_jobs(client, outcome.observation)
        _show(shown, output)
        for sentence in outcome.missing:
            click.echo(f"koordra demo: {sentence}", err=True)
        if keep:
            click.echo(f"KUBECONFIG={shlex.quote(str(layout.kubeconfig))}", err=output == "json")
            click.echo("running; Ctrl-C ends it", err=True)
            demo.stay()
    finally:
        demo.down()
        if folder is None:
            shutil.rmtree(layout.folder, ignore_errors=True)
    if outcome.missing:
        sys.exit(1)


def _layout(folder: Path | None, nodes: tuple[str, ...]) -> Layout:
    """A fresh folder whose sockets' paths fit; what an earlier run left in `folder` is removed, nothing else
    is."""
    from koordra.errors import InvalidInput
    from koordra_devcluster.demo.run import Layout

    if folder is None:
        layout = Layout(Path(tempfile.mkdtemp(prefix="koordra-")), nodes)
        if layout.longest_socket > LONGEST_SOCKET:
            layout.folder.rmdir()
            layout = Layout(Path(tempfile.mkdtemp(prefix="koordra-", dir="/tmp")), nodes)
        return layout
    layout = Layout(folder.resolve(), nodes)
    if layout.longest_socket > LONGEST_SOCKET:
        longer = layout.longest_socket - LONGEST_SOCKET
        raise InvalidInput(
            f"unix sockets below {layout.folder} would have a path that is {longer} bytes too long",
            field="--dir",
            remedy="name a folder with a shorter path",
        )
    layout.folder.mkdir(parents=True, exist_ok=True)
    found = {path.name for path in layout.folder.iterdir()}
    if found and not (layout.folder / EARLIER_RUN).exists():
        raise InvalidInput(
            f"{layout.folder} holds files that are not the demo's",
            field="--dir",
            remedy="name an empty or new folder",
        )
    for name in found:
        path = layout.folder / name
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    (layout.folder / EARLIER_RUN).touch()
    return layout


def _show(shown: dict[str, Any], output: str) -> None:
    from koordra_devcluster.demo import tables

    if output == "json":
        click.echo(json.dumps(shown, indent=2))
    else:
        tables.show(shown)
    sys.stdout.flush()
