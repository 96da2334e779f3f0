"""`koordra profiler`: the process that keeps a history of profiles."""

from __future__ import annotations

import time
from functools import partial

import click

from koordra.cli import options
from koordra.cli.options import Access


@click.command("profiler")
@options.access
@click.option(
    "--store",
    default="sqlite:////var/lib/koordra/profiles.db",
    envvar="KOORDRA_PROFILE_STORE",
    show_envvar=True,
    metavar="URL",
    help="Where profiles are kept: sqlite:///FILE, postgresql+psycopg://USER@HOST/DATABASE, or one of another package's.",
)
@options.metrics_address
@options.logging
def command(access: Access, store: str, metrics_address: str, log_level: str, log_json: bool) -> None:
    """Collect what every node's plugin knows of what pods used, keep it for 90 days, and write the profiles
    of TrainingJobs into their status.

    One replica: nodes keep profiles for a day, so that nothing is lost while none runs. A password belongs
    into the variable, which a Secret can fill.
    """
    from koordra.process.lifecycle import collect_seldom, stop_on_signals

    # Before anything starts a thread: signals have to be blocked in those too.
    stop = stop_on_signals()

    from koordra import logs
    from koordra.cli.cluster.cluster_objects import connect
    from koordra.cli.cluster.use.profile.history import History
    from koordra.metrics import Metrics
    from koordra.process.lifecycle import spawn
    from koordra.process.metrics_server import serve
    from koordra.profiles.store import open_store

    logs.configure(level=log_level, json=log_json, process="profiler")
    collect_seldom()
    history = History(connect(access), open_store(store), time.time)
    health = serve(Metrics(), metrics_address, ready=lambda: history.was_successful)
    thread = spawn(partial(history.run, stop), name="keep-profiles", until=stop)
    stop.wait()
    history.wake()
    thread.join(timeout=10)
    if health is not None:
        health.close()
