"""`koordra kubelet-plugin`: the DRA driver of one node."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import click


@click.command(name="kubelet-plugin")
@click.option("--node-name", required=True, envvar="NODE_NAME", help="Name of the Node this plugin runs on.")
@click.option(
    "--root",
    type=click.Path(path_type=Path, file_okay=False),
    default=Path("/"),
    show_default=True,
    help="The machine: its sys, proc and dev are below this path.",
)
@click.option(
    "--kubelet-root",
    type=click.Path(path_type=Path, file_okay=False),
    default=Path("/var/lib/kubelet"),
    show_default=True,
    help="The kubelet's directory, with plugins and plugins_registry.",
)
@click.option(
    "--cdi-dir",
    type=click.Path(path_type=Path, file_okay=False),
    default=Path("/var/run/cdi"),
    show_default=True,
    help="Where the container runtime reads dynamic CDI specs.",
)
@click.option(
    "--state-dir",
    type=click.Path(path_type=Path, file_okay=False),
    help="Checkpoint and prepared claims.  [default: KUBELET_ROOT/plugins/koordra.io]",
)
@click.option(
    "--allocation-mode",
    type=click.Choice(["joint", "native"]),
    help="Who allocates this node's devices.  [default: the node's label koordra.io/allocation-mode, else joint]",
)
@click.option(
    "--slots-per-gpu",
    type=click.IntRange(1, 1024),
    default=16,
    show_default=True,
    help="How many shares one card takes at most.",
)
@click.option(
    "--mig/--no-mig",
    default=False,
    show_default=True,
    help="Offer the MIG instances of cards in MIG mode; without it such cards are not offered at all.",
)
@click.option(
    "--vfs/--no-vfs",
    default=False,
    show_default=True,
    help="Offer the virtual functions of NICs; a NIC is then given out whole or in functions.",
)
@click.option(
    "--overlay",
    type=click.Path(path_type=Path, dir_okay=False),
    help="What this machine hides of its topology: an NCCL topology XML, or YAML of schema koordra.io/overlay/v1.",
)
@click.option(
    "--pod-uid",
    envvar="POD_UID",
    help="Uid of the plugin's own pod: gives its sockets names of their own, so that two instances overlap in an update.",
)
@click.option("--kubeconfig", help="Kubeconfig file.  [default: in-cluster, else KUBECONFIG]")
@click.option(
    "--log-level",
    type=click.Choice(["debug", "info", "warning", "error"]),
    default="info",
    show_default=True,
)
@click.option("--log-json", is_flag=True, help="One JSON object a line.")
def command(
    node_name: str,
    root: Path,
    kubelet_root: Path,
    cdi_dir: Path,
    state_dir: Path | None,
    allocation_mode: Literal["joint", "native"] | None,
    slots_per_gpu: int,
    mig: bool,
    vfs: bool,
    overlay: Path | None,
    pod_uid: str | None,
    kubeconfig: str | None,
    log_level: str,
    log_json: bool,
) -> None:
    """Publish the node's GPUs and NICs, and prepare claims for the kubelet."""
    from koordra import logs
    from koordra.api import names
    from koordra.kube import KubeClient
    from koordra.kubelet_plugin.claim_files import NodePaths
    from koordra.kubelet_plugin.driver import Driver, Settings
    from koordra.kubelet_plugin.inventory import Offering
    from koordra.process import stop_on_signals

    logs.configure(level=log_level, json=log_json, process="kubelet-plugin")
    stop = stop_on_signals()
    kubelet_root = kubelet_root.absolute()
    state = state_dir.absolute() if state_dir else kubelet_root / "plugins" / names.DRIVER
    settings = Settings(
        node=node_name,
        kubelet_root=kubelet_root,
        paths=NodePaths(root=root.absolute(), state=state, cdi=cdi_dir.absolute()),
        mode=allocation_mode,
        offering=Offering(slots_per_gpu=slots_per_gpu, mig=mig, vfs=vfs),
        pod_uid=pod_uid,
        overlay=overlay,
    )
    Driver(settings, KubeClient(kubeconfig, user_agent="koordra-kubelet-plugin")).run(stop)
