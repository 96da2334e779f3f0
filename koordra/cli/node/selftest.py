"""`koordra node selftest`: what koordra does to a container, tried on this machine's GPU without
Kubernetes."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import click

from koordra.cli import options
from koordra.cli.options import say


@click.command("selftest")
@options.machine_root
@click.option(
    "--driver-root",
    type=options.FOLDER,
    help="Where the GPU driver's files are.  [default: found on the machine]",
)
@click.option(
    "--device",
    metavar="UUID",
    help="The card to try, by UUID or koordra's name.  [default: the first whole one]",
)
@click.option(
    "--memory", metavar="QUANTITY", help="The share's memory.  [default: 8Gi, or half of a smaller card]"
)
@click.option(
    "--container",
    type=click.Choice(["auto", "namespace", "process"]),
    default="auto",
    help="How specs are applied: in namespaces of their own (needs root and mounts), to a plain process, or the first of them "
    "that works.",
)
@click.option(
    "--python",
    type=click.Path(exists=True, dir_okay=False),
    help="The interpreter that has PyTorch and the others.  [default: this one]",
)
@click.option(
    "--only",
    multiple=True,
    metavar="PATTERN",
    help="Programs to run, by the names of their steps ('share: torch*'). Repeatable.  [default: all]",
)
@click.option(
    "--fabric",
    metavar="PEER",
    help="Another machine's address, where the same is started with this one's: ib_write_bw and NCCL between the two, and nothing "
    "else.",
)
@click.option(
    "--fabric-port", type=click.IntRange(1024, 65000), default=18650, help="The first TCP port of --fabric."
)
@click.option(
    "--fabric-own",
    metavar="ADDRESS",
    help="This machine's address towards PEER.  [default: the system's choice]",
)
@click.option("--native", type=options.FOLDER, help="Where the built limiter is.  [default: as installed]")
@click.option(
    "--budget", type=click.FloatRange(min=1), default=420.0, metavar="SECONDS", help="What it takes at most."
)
@click.option(
    "--report",
    type=options.FILE,
    help="A bundle (.tar.gz) to attach to an issue, written anew after every step.",
)
@options.output("text", "json")
@click.pass_context
def selftest(
    ctx: click.Context,
    root: Path,
    driver_root: Path | None,
    device: str | None,
    memory: str | None,
    container: str,
    python: str | None,
    only: tuple[str, ...],
    fabric: str | None,
    fabric_port: int,
    fabric_own: str | None,
    native: Path | None,
    budget: float,
    report: Path | None,
    output: str,
) -> None:
    """Claims of a whole card and of shares, applied to containers made here, and programs in them.

    It needs a GPU with its driver, no Kubernetes and no network, and changes nothing on the machine. Each
    step is ok, problem or skipped; a problem has its remedy below. The exit code is 1 only if there is a
    problem."""
    import json
    import signal
    import sys
    from fnmatch import fnmatch

    from koordra import __version__, quantity
    from koordra.cli.progress import progress
    from koordra.kubelet_plugin.isolation.limiter.backend import INSTALLED
    from koordra.kubelet_plugin.nvidia_driver.homes import HostRoot, named_home
    from koordra.kubelet_plugin.selftest.course import Course, Settings
    from koordra.kubelet_plugin.selftest.machine.scratch import scratch, usual_places
    from koordra.kubelet_plugin.selftest.program_checks import STEPS
    from koordra.kubelet_plugin.selftest.program_runs import Stopwatch
    from koordra.kubelet_plugin.selftest.report import Report, Step, in_words

    for pattern in only:
        if not any(fnmatch(step, pattern) for step in STEPS):
            raise click.BadParameter(
                f"no step is named like {pattern!r}; there are {', '.join(STEPS)}", param_hint="--only"
            )
    size = quantity.to_int(memory) if memory else None
    if size is not None and size <= 0:
        raise click.BadParameter(f"{memory} is no size of a share", param_hint="--memory")
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda number, _frame: sys.exit(128 + number))

    def shown(step: Step) -> None:
        with told.aside():
            say(in_words(step), nl=False, err=output == "json")

    made = Report(version=__version__, bundle=report.absolute() if report else None, shown=shown)
    host = HostRoot(root.absolute(), root.absolute())
    with (
        progress("trying", silent=output == "json", line=False) as told,
        scratch(usual_places()) as folder,
    ):
        settings = Settings(
            root=root.absolute(),
            folder=folder,
            libraries=(native.absolute(),) if native else INSTALLED,
            container=container,
            python=python or sys.executable,
            memory=size,
            device=device,
            only=only,
            peer=fabric,
            peer_port=fabric_port,
            own_address=fabric_own,
            driver_root=partial(named_home, driver_root.absolute(), host) if driver_root else None,
        )
        Course(settings, made, Stopwatch(budget)).run()
    if output == "json":
        # Not by way of cli.output, which needs YAML: the machine may have Python and nothing else.
        say(json.dumps(made.to_dict(), indent=2))
    ctx.exit(int(bool(made.problems)))
