"""`koordra controller`: allocates claims ahead of the scheduler until it is stopped."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from koordra.cli import options

if TYPE_CHECKING:
    from koordra.controller.legacy.settings import LegacySettings


@click.command("controller")
@options.kubeconfig
@click.option(
    "--leader-elect",
    type=click.BOOL,
    default=True,
    show_default=True,
    is_flag=False,
    flag_value="true",
    help="--leader-elect=false: no election; then this must be the only replica.",
)
@click.option("--no-leader-elect", is_flag=True, help="The same as --leader-elect=false.")
@click.option(
    "--lease-namespace", default="koordra-system", show_default=True, help="Namespace of the Lease."
)
@click.option(
    "--identity",
    help="Holder name in the Lease, unique among living processes.  [default: host and a random part]",
)
@click.option(
    "--webhook-address",
    default="",
    metavar="HOST:PORT",
    help="Serve the admission webhook there, for example :9443.  [default: off]",
)
@click.option(
    "--webhook-certificates",
    type=click.Path(file_okay=False),
    help="Directory with tls.crt and tls.key that somebody else renews (cert-manager).  [default: self-signed, in a Secret]",
)
@click.option(
    "--webhook-host", default="", help="Name or address for the certificate besides those of the Service."
)
@click.option(
    "--metrics-address",
    default="",
    help="host:port for /metrics, /healthz and /readyz.  [default: none]",
)
@click.option(
    "--starvation-after",
    type=click.FloatRange(min=0),
    default=300.0,
    show_default=True,
    help="Seconds after which a node is kept free for a pod that fits only on an empty one; 0: never.",
)
@click.option(
    "--preemption",
    is_flag=True,
    help="Evict pods of lower priority where a pod fits nowhere otherwise.",
)
@click.option(
    "--elastic-gpu",
    is_flag=True,
    help="Serve Elastic GPU's classes and claims (elasticgpu.io; deploy/kustomize/elastic).",
)
@click.option(
    "--legacy-pods",
    is_flag=True,
    help="Rewrite pods that ask for devices under other stacks' names (needs the webhook; deploy/kustomize/legacy).",
)
@click.option(
    "--legacy-settings",
    type=click.Path(exists=True),
    help="File, or directory of .yaml files: what this cluster calls things, as for koordra convert --settings.",
)
@click.option(
    "--legacy-template-grace",
    type=click.FloatRange(min=1),
    default=600.0,
    show_default=True,
    help="Seconds for which a rewritten pod's template outlives its last use.",
)
@click.option(
    "--peer-annotations",
    is_flag=True,
    help="Write on pods that came through the shim what readers of their old stack look for (device-allocated, ...).",
)
@options.logging
def command(
    kubeconfig: str | None,
    leader_elect: bool,
    no_leader_elect: bool,
    lease_namespace: str,
    identity: str | None,
    metrics_address: str,
    starvation_after: float,
    preemption: bool,
    elastic_gpu: bool,
    peer_annotations: bool,
    legacy_pods: bool,
    legacy_settings: str | None,
    legacy_template_grace: float,
    webhook_address: str,
    webhook_certificates: str | None,
    webhook_host: str,
    log_level: str,
    log_json: bool,
) -> None:
    """Allocate claims ahead of the scheduler (one replica is active).

    Watches nodes, ResourceSlices, DeviceClasses, ResourceClaims and pods; writes the finalizer and the
    allocation of claims of koordra's, lifts the scheduling gate koordra.io/joint-allocation, and reports in
    Events why a claim waits.
    """
    import secrets
    import socket
    from pathlib import Path

    from koordra import process

    # Before everything else is imported: libraries start threads of their own, and signals have to be blocked in those too.
    stop = process.stop_on_signals()

    from koordra import logs, metrics
    from koordra.controller.run import Readiness, Settings, run
    from koordra.controller.webhook.run import WebhookSettings, start_webhook
    from koordra.kube import KubeClient

    legacy = read_legacy_settings(legacy_settings, grace=legacy_template_grace) if legacy_pods else None
    logs.configure(level=log_level, json=log_json, process="controller")
    settings = Settings(
        identity=identity or f"{socket.gethostname()}_{secrets.token_hex(4)}",
        leader_elect=leader_elect and not no_leader_elect,
        lease_namespace=lease_namespace,
        starves_after=starvation_after,
        preemption=preemption,
        elastic_gpu=elastic_gpu,
        peer_annotations=peer_annotations,
        legacy=legacy,
    )
    counted, readiness = metrics.Metrics(), Readiness()
    server = metrics.serve(counted, metrics_address, ready=readiness)
    client = KubeClient(kubeconfig, timeout=settings.times.timeout, user_agent="koordra-controller")
    start_webhook(
        client,
        WebhookSettings(
            webhook_address,
            namespace=lease_namespace,
            certificates=Path(webhook_certificates) if webhook_certificates else None,
            host=webhook_host,
        ),
        metrics=counted,
        stop=stop,
        legacy=legacy,
    )
    try:
        run(client, settings, stop=stop, metrics=counted, readiness=readiness)
    finally:
        if server is not None:
            server.close()


def read_legacy_settings(place: str | None, *, grace: float) -> LegacySettings:
    """The file behind `--legacy-settings`, in the forms that `koordra convert --settings` takes, or a directory of them.

    A mounted ConfigMap is a directory with a file for each key; every .yaml of it is read, in the order of names.
    Raises InvalidManifest.
    """
    from koordra.cli.convert import settings_from
    from koordra.controller.legacy.settings import LegacySettings, in_a_cluster

    files = [place] if place else []
    if place and Path(place).is_dir():
        files = sorted(str(path) for path in Path(place).glob("*.yaml"))
    return LegacySettings(in_a_cluster(settings_from(files, None, ())), grace)
