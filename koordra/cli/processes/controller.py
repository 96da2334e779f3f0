"""`koordra controller`: allocates claims ahead of the scheduler until it is stopped."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from koordra.cli import options

if TYPE_CHECKING:
    from koordra.controller.autoscale.settings import AutoscaleSettings
    from koordra.controller.legacy.settings import LegacySettings


@click.command("controller")
@options.kubeconfig
@options.api_limit(qps=200, burst=400)
@click.option(
    "--leader-elect",
    type=click.BOOL,
    default=True,
    is_flag=False,
    flag_value="true",
    help="--leader-elect=false: no election; then this must be the only replica.",
)
@options.flag("--no-leader-elect", "The same as --leader-elect=false.")
@click.option("--lease-namespace", default="koordra-system", help="Namespace of the Lease.")
@click.option(
    "--identity",
    help="Holder name in the Lease, unique among living processes.  [default: host and a random part]",
)
@options.address("--webhook-address", "Where to serve the admission webhook, for example :9443.")
@click.option(
    "--webhook-certificates",
    type=options.FOLDER,
    help="Directory with tls.crt and tls.key that somebody else renews (cert-manager).  [default: self-signed, in a Secret]",
)
@click.option("--webhook-host", help="Name or address for the certificate besides those of the Service.")
@options.flag(
    "--percent-bounds",
    "Write into capacity.requests of claim templates the most that a memoryPercent may come to, for Kueue.",
)
@options.metrics_address
@click.option(
    "--node-metrics/--no-node-metrics",
    default=True,
    help="What is allocated and free by node in /metrics: about 20 series for each sort of GPU and NIC of a node. The "
    "sums over the cluster are there either way.",
)
@click.option(
    "--starvation-after",
    "starves_after",
    type=click.FloatRange(min=0),
    default=300.0,
    help="Seconds after which a node is kept free for a pod that fits only on an empty one; 0: never.",
)
@options.topology_levels
@options.scoring_strategy
@options.flag("--preemption", "Evict pods of lower priority where a pod fits nowhere otherwise.")
@options.flag(
    "--immediate-annotation",
    "Obey koordra.io/allocation-mode: Immediate on claims: the policy koordra-immediate is there and says who may write it.",
)
@click.option(
    "--immediate-devices",
    type=click.IntRange(min=0),
    default=8,
    help="Devices that the Immediate claims of a namespace may have, where its annotation says nothing else.",
)
@click.option(
    "--autoscale-settings",
    type=options.FILE,
    help="File with groups of nodes that an autoscaler is asked for (deploy/kustomize/autoscale).  [default: nothing is asked for]",
)
@options.flag(
    "--elastic-gpu", "Serve Elastic GPU's classes and claims (elasticgpu.io; deploy/kustomize/elastic)."
)
@options.flag(
    "--learn-from-profiles",
    "Learn placement's table from what jobs will ask for by their profiles, where their class gives it (docs/placement.md).",
)
@options.flag("--training-jobs", "Serve TrainingJobs (deploy/kustomize/training).")
@options.flag(
    "--legacy-pods",
    "Rewrite pods that ask for devices under other stacks' names (needs the webhook; deploy/kustomize/legacy).",
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
    help="Seconds for which a rewritten pod's template outlives its last use.",
)
@options.flag(
    "--peer-annotations",
    "Write on pods that came through the shim what readers of their old stack look for (device-allocated, ...).",
)
@options.logging
def command(
    kubeconfig: str | None,
    kube_api_qps: float,
    kube_api_burst: int,
    leader_elect: bool,
    no_leader_elect: bool,
    lease_namespace: str,
    identity: str | None,
    metrics_address: str,
    legacy_pods: bool,
    legacy_settings: str | None,
    legacy_template_grace: float,
    webhook_address: str,
    webhook_certificates: Path | None,
    webhook_host: str | None,
    percent_bounds: bool,
    autoscale_settings: Path | None,
    log_level: str,
    log_json: bool,
    **settings: Any,
) -> None:
    """Allocate claims ahead of the scheduler (one replica is active).

    Watches nodes, ResourceSlices, DeviceClasses, ResourceClaims and pods; writes the finalizer and the
    allocation of claims of koordra's, lifts the scheduling gate koordra.io/joint-allocation, and reports in
    Events why a claim waits.
    """
    # `settings`: the options that koordra.controller.run.Settings has as they are.
    import secrets
    import socket

    from koordra.process import lifecycle

    # Before everything else is imported: libraries start threads of their own, and signals have to be blocked
    # in those too.
    stop = lifecycle.stop_on_signals()

    from koordra import logs
    from koordra.controller.explain.questions import Questions
    from koordra.controller.run import Readiness, run, start_webhook
    from koordra.controller.settings import Settings
    from koordra.controller.webhook.cert_rotation import WebhookSettings
    from koordra.kube.kubeconfig import new_client
    from koordra.kube.request_limit import RequestLimit
    from koordra.metrics import Metrics
    from koordra.process.metrics_server import serve
    from koordra.process.watchdog import Watchdog

    legacy = read_legacy_settings(legacy_settings, grace=legacy_template_grace) if legacy_pods else None
    logs.configure(level=log_level, json=log_json, process="controller")
    mine = Settings(
        identity=identity or f"{socket.gethostname()}_{secrets.token_hex(4)}",
        leader_elect=leader_elect and not no_leader_elect,
        lease_namespace=lease_namespace,
        legacy=legacy,
        autoscale=read_autoscale_settings(autoscale_settings),
        **settings,
    )
    metrics, readiness, questions = Metrics(), Readiness(), Questions()
    watchdog = Watchdog(metrics, end=lifecycle.end_failed)
    watchdog.start(stop)
    server = serve(metrics, metrics_address, ready=readiness, well=watchdog.is_well)
    client = new_client(
        kubeconfig,
        timeout=mine.times.timeout,
        user_agent="koordra-controller",
        limit=RequestLimit(kube_api_qps, kube_api_burst),
    )
    start_webhook(
        client,
        WebhookSettings(
            webhook_address, lease_namespace, webhook_certificates, webhook_host or "", percent_bounds
        ),
        metrics=metrics,
        stop=stop,
        legacy=legacy,
        questions=questions,
        is_well=watchdog.is_well,
    )
    try:
        run(
            client,
            mine,
            stop=stop,
            metrics=metrics,
            readiness=readiness,
            questions=questions,
            is_well=watchdog.is_well,
        )
    finally:
        if server is not None:
            server.close()


def read_autoscale_settings(file: Path | None) -> AutoscaleSettings | None:
    """Raises InvalidManifest, and InvalidInput for a machine that nobody knows."""
    if file is None:
        return None
    from koordra.cli.what_if.node_groups import settings_from_file

    return settings_from_file(file)


def read_legacy_settings(place: str | None, *, grace: float) -> LegacySettings:
    """The file behind `--legacy-settings`, in the forms that `koordra convert --settings` takes, or a
    directory of them.

    A mounted ConfigMap is a directory with a file for each key; every .yaml of it is read, in the order of
    names. Raises InvalidManifest.
    """
    from koordra.cli.convert import settings_from
    from koordra.controller.legacy.settings import LegacySettings, in_a_cluster

    files = [place] if place else []
    if place and Path(place).is_dir():
        files = sorted(str(path) for path in Path(place).glob("*.yaml"))
    return LegacySettings(in_a_cluster(settings_from(files, None, ())), grace)
