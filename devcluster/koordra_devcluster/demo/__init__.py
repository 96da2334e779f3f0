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
    from collections.abc import Sequence

    from koordra.cli.progress import Progress
    from koordra_devcluster.demo.plan import Plan
    from koordra_devcluster.demo.programs import Layout
    from koordra_devcluster.demo.run import Demo

LONGEST_SOCKET = 107
"""Bytes of a unix socket's path (sun_path of unix(7), without the closing zero)."""

EARLIER_RUN = ".koordra-demo"
"""Marks a folder as the demo's own, so that the next run may clear it."""


@click.command("demo")
@click.option(
    "--nodes",
    show_default="2, or as many as gangs of the files have members",
    type=click.IntRange(1, 16),
    help="How many nodes.",
)
@click.option(
    "--machine",
    "--preset",
    "preset",
    default="hgx-h100",
    show_default=True,
    help="Which machine every node is.",
)
@click.option(
    "-f",
    "--filename",
    "--file",
    "files",
    multiple=True,
    type=click.Path(path_type=Path),
    help="Your manifests instead of ours. Repeatable.",
)
@click.option(
    "--example",
    metavar="NAME",
    help="One of deploy/examples, on the nodes that it is for; 'list' says which there are.",
)
@click.option(
    "--run-commands",
    is_flag=True,
    help="Run the containers' commands, as processes of yours with this machine's programs and files: only for "
    "manifests that you trust. Examples whose programs do something run them by themselves.",
)
@click.option("--keep", is_flag=True, help="Leave it running and print the KUBECONFIG; Ctrl-C ends it.")
@click.option("--timeout", default=140.0, show_default=True, help="Seconds after which waiting ends.")
@click.option(
    "-o",
    "--output",
    default="table",
    type=click.Choice(["table", "wide", "json"]),
    show_default=True,
    help="wide: names in full, however long the lines.",
)
@click.option(
    "--dir", "folder", type=click.Path(path_type=Path), help="Where to keep its files (default: temporary)."
)
def command(
    nodes: int | None,
    preset: str,
    files: tuple[Path, ...],
    example: str | None,
    run_commands: bool,
    keep: bool,
    timeout: float,
    output: str,
    folder: Path | None,
) -> None:
    """A whole cluster on this machine: made-up GPUs and NICs, real sockets, every koordra component.

    With -f your manifests: Pods, Deployments, StatefulSets, Jobs, claims, classes, pods of other GPU stacks,
    JobSets, PyTorchJobs, MPIJobs, Volcano Jobs, and kinds that the file defines. Programs in containers are
    not run without --run-commands. What they need (the
    webhook, an operator's double) is started by itself. They are checked first; where something is wrong,
    nothing is started.

    Ends with exit code 0 only if everything that is not annotated koordra.io/demo-expect=Pending was placed
    and prepared; with --example, if what the example says has come of it.
    """
    from koordra.process.lifecycle import stop_on_signals

    # Before anything is imported that starts threads (numpy does): they would not have the signals blocked.
    stop = stop_on_signals()
    from koordra.cli.options import say
    from koordra.cli.progress import progress

    with progress("checking the manifests", silent=output == "json"):
        from koordra_devcluster.demo import checks, limiter
        from koordra_devcluster.demo.plan import listed, planned
        from koordra_devcluster.demo.programs import installed
        from koordra_devcluster.demo.run import Demo

        if example == "list":
            say(listed())
            return
        run = planned(files, example=example, nodes=nodes, preset=preset, commands=run_commands)
        found = checks.problems(run.documents, installed=installed(run.needs), gates=run.needs.gates)
    for problem in found:
        say(f"koordra demo: {problem}", err=True)
    if found:
        say("koordra demo: nothing was started", err=True)
        sys.exit(2)
    if limiter.wants_limiter(run.documents) and not limiter.is_built():
        with progress("building the memory limiter, once", silent=output == "json"):
            limiter.build()
    names = tuple(f"node-{number}" for number in range(len(run.machines)))
    layout = _layout(folder, names)
    with progress("waiting", silent=output == "json", line=False) as told:

        def tell(text: str) -> None:
            with told.aside():
                say(text, err=True)

        demo = Demo(layout, machines=run.machines, needs=run.needs, timeout=timeout, stop=stop, say=tell)
        try:
            missing = _shown(demo, run, told, output=output)
            if keep:
                with told.aside():
                    say(f"KUBECONFIG={shlex.quote(str(layout.kubeconfig))}", err=output == "json")
                    config = shlex.quote(str(layout.prometheus))
                    say(f"a Prometheus of yours with it: prometheus --config.file={config}", err=True)
                    say("running; Ctrl-C ends it", err=True)
                    demo.stay()
            told.what = "ending the processes"
        finally:
            demo.down()
            if folder is None:
                shutil.rmtree(layout.folder, ignore_errors=True)
    if missing:
        sys.exit(1)


def _shown(demo: Demo, run: Plan, told: Progress, *, output: str) -> Sequence[str]:
    """From the first process to the report; what is missing of what was expected."""
    from koordra.cli.options import say

    demo.say(f"starting {run.title}")
    demo.say("machines and cluster are doubles, koordra is real")
    client = demo.up()
    demo.say(f"API server at {client.server}")
    ending = demo.show(client, run)
    with told.aside():
        _show(demo.document(ending.observation, ending.refused), output)
        for sentence in ending.missing:
            say(f"koordra demo: {sentence}", err=True)
    if run.example and not ending.missing:
        demo.say("all of it is as the example's README says")
    return ending.missing


def _layout(folder: Path | None, nodes: tuple[str, ...]) -> Layout:
    """A fresh folder whose sockets' paths fit; what an earlier run left in `folder` is removed, nothing else
    is."""
    from koordra.errors import InvalidInput
    from koordra_devcluster.demo.programs import Layout

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
        tables.show(shown, wide=output == "wide")
    sys.stdout.flush()
