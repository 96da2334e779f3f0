"""`koordra dashboard`: the cluster in a browser, read-only, until it is stopped."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import click

from koordra.cli import options
from koordra.cli.options import Access, say

ADDRESS: Final = "127.0.0.1:8910"


@click.command("dashboard")
@options.access
@click.option(
    "--address", default=ADDRESS, metavar="HOST:PORT", help="Where pages are served; port 0: any free one."
)
@click.option(
    "--certificates",
    type=options.FOLDER,
    help="Directory with tls.crt and tls.key; needed on an address that is not this machine's own.",
)
@options.topology_levels
@options.scoring_strategy
@options.metrics_address
@options.logging
def dashboard(
    access: Access,
    address: str,
    certificates: Path | None,
    topology_levels: str,
    scoring_strategy: str,
    metrics_address: str,
    log_level: str,
    log_json: bool,
) -> None:
    """The cluster in a browser: every GPU as a cell, who waits and why, each node's picture with who has
    what, and where in the network gangs are.

    Reads with the rights of the kubeconfig, and writes nothing. On a loopback address whoever is on this
    machine sees it; on any other each request needs a token of somebody who may list Nodes, Pods and
    ResourceClaims of the whole cluster, and HTTPS.
    """
    from koordra.process.lifecycle import collect_seldom, stop_on_signals

    # Before anything starts a thread, numpy's own included: signals have to be blocked in those too.
    stop = stop_on_signals()

    from koordra.cli.cluster.dashboard.access import is_loopback
    from koordra.controller.cache.fabrics import written_levels
    from koordra.errors import InvalidInput
    from koordra.placement.candidates.node_scoring import written_strategy
    from koordra.process.metrics_server import parse_address, serve

    levels = written_levels(topology_levels) if topology_levels else None
    scoring = written_strategy(scoring_strategy) if scoring_strategy else None
    host, port = parse_address(address)
    local = is_loopback(host)
    if not local and certificates is None:
        raise InvalidInput(
            "tokens would be sent where everybody reads along",
            object="dashboard",
            field="--address",
            remedy=f"give --certificates, or an address of this machine's own: {ADDRESS}",
        )
    from koordra import logs
    from koordra.cli.cluster.cluster_objects import connect
    from koordra.cli.cluster.dashboard.access import Tokens, require_own_name
    from koordra.cli.cluster.dashboard.live import Live, Watches
    from koordra.cli.cluster.dashboard.server import DashboardServer
    from koordra.metrics import Metrics

    logs.configure(level=log_level, json=log_json, process="dashboard")
    collect_seldom()
    client = connect(access)
    watches = Watches(client)
    watches.start(stop)
    live = Live(watches.objects, levels=levels, scoring=scoring)
    server = DashboardServer(
        (host, port),
        live,
        require=require_own_name if local else Tokens(client).require,
        certificate=(certificates / "tls.crt", certificates / "tls.key") if certificates else None,
    )
    health = serve(Metrics(), metrics_address, ready=watches.is_ready)
    server.start()
    scheme = "https" if certificates else "http"
    say(f"{scheme}://{f'[{host}]' if ':' in host else host or 'localhost'}:{server.port}/")
    stop.wait()
    server.close()
    if health is not None:
        health.close()
