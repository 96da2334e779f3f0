"""`koordra controller`: allocates claims ahead of the scheduler until it is told to stop."""

from __future__ import annotations

import click

LEVELS = ("debug", "info", "warning", "error")


@click.command("controller")
@click.option("--kubeconfig", type=click.Path(dir_okay=False), help="Default: in-cluster, or KUBECONFIG.")
@click.option(
    "--leader-elect/--no-leader-elect",
    default=True,
    show_default=True,
    help="Without election this must be the only replica.",
)
@click.option(
    "--lease-namespace", default="koordra-system", show_default=True, help="Namespace of the Lease."
)
@click.option(
    "--identity",
    help="Holder name in the Lease, unique among living processes.  [default: host and a random part]",
)
@click.option("--log-level", type=click.Choice(LEVELS), default="info", show_default=True)
@click.option("--log-json", is_flag=True, help="One JSON object a line.")
def command(
    kubeconfig: str | None,
    leader_elect: bool,
    lease_namespace: str,
    identity: str | None,
    log_level: str,
    log_json: bool,
) -> None:
    """Allocate claims ahead of the scheduler (one replica is active).

    Watches nodes, ResourceSlices, DeviceClasses, ResourceClaims and pods; writes the finalizer and the
    allocation of claims of koordra's, lifts the scheduling gate koordra.io/joint-allocation, and tells in
    Events why a claim waits.
    """
    import secrets
    import socket

    from koordra import logs, process
    from koordra.allocator import plan
    from koordra.controller.run import Settings, run
    from koordra.kube import KubeClient

    logs.configure(level=log_level, json=log_json, process="controller")
    settings = Settings(
        identity=identity or f"{socket.gethostname()}_{secrets.token_hex(4)}",
        leader_elect=leader_elect,
        lease_namespace=lease_namespace,
    )
    client = KubeClient(kubeconfig, timeout=settings.times.timeout, user_agent="koordra-controller")
    run(client, settings, planner=plan, stop=process.stop_on_signals())
