"""`koordra kubelet-plugin`: the DRA driver of one node."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any, Literal

import click

from koordra.cli import options


@click.command(name="kubelet-plugin")
@click.option("--node-name", required=True, envvar="NODE_NAME", help="Name of the Node this plugin runs on.")
@options.machine_root
@click.option(
    "--kubelet-root",
    type=options.FOLDER,
    default="/var/lib/kubelet",
    envvar="KOORDRA_KUBELET_ROOT",
    help="The kubelet's directory, with plugins and plugins_registry.",
)
@options.cdi_folder
@click.option(
    "--state-dir",
    type=options.FOLDER,
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
    help="How many shares one card takes at most.",
)
@click.option(
    "--allowed-isolation",
    default="",
    show_default="limiter",
    metavar="WORDS",
    help="What shares of this node's cards may be kept by, comma-separated: limiter, mps, ...; or none alone, for shares without "
    "limits. Backends that the node lacks do not count.",
)
@click.option(
    "--default-isolation",
    help="Of those, what keeps a share for which nothing asks for any.  [default: the first]",
)
@click.option(
    "--node-modes",
    type=options.FILE,
    help="How the cards of single nodes, and single cards, may be kept: HAMi's list of nodes (operatingmode), with koordra's words "
    "beside HAMi's. Labels of the Node (koordra.io/isolation) come first.",
)
@options.flag(
    "--mig/--no-mig",
    "Offer the MIG instances of cards in MIG mode; without it such cards are not offered at all.",
)
@options.flag(
    "--mig-on-demand/--no-mig-on-demand",
    "Make MIG instances on cards in MIG mode when claims need them, and remove them after; every place of every profile is offered.",
)
@options.flag(
    "--mig-reset/--no-mig-reset",
    "With --mig-on-demand: cards that have to be reset for it (Ampere) are switched between whole and MIG for claims that wait, too.",
)
@options.flag(
    "--vfs/--no-vfs", "Offer the virtual functions of NICs; a NIC is then given out whole or in functions."
)
@options.flag(
    "--imex/--no-imex",
    "Offer the IMEX channels of GPUs whose NVLink fabric goes over several nodes (GB200 NVL72). Needs `koordra imex` on the node, and "
    "the host's own nvidia-imex off.",
)
@click.option(
    "--drain-on",
    "drain",
    default="",
    show_default="none",
    metavar="FAULTS",
    help="Faults of a device that end the pods which use it, comma-separated: GpuLost, Xid79, NeedsReboot, LinkFlapping, ..., or all. "
    "Without one, a faulty device only gets nothing new.",
)
@click.option(
    "--overlay",
    type=options.FILE,
    help="What this machine hides of its topology: an NCCL topology XML, or YAML of schema koordra.io/overlay/v1.",
)
@options.flag(
    "--pod-network/--no-pod-network",
    "Virtual functions and exclusive NICs move into their pods' networks, shares of RoCE NICs get a macvlan there. "
    "Needs `koordra nri --pod-network`; without it NICs stay in the host's network.",
)
@click.option(
    "--host-root",
    type=options.FOLDER,
    envvar="KOORDRA_HOST_ROOT",
    help="The host's /, as this process sees it: the GPU driver is looked for there, in every place where one may live, and the "
    "device nodes; and the node is checked at the start, as `koordra node check` does.  [default: KOORDRA_HOST_ROOT, else ROOT and "
    "no check]",
)
@click.option(
    "--network-pools",
    type=options.FILE,
    help="The pools from which interfaces in pods get addresses: YAML of schema koordra.io/network-pools/v1.",
)
@click.option(
    "--namespace", envvar="POD_NAMESPACE", default="koordra-system", help="Namespace of the plugin."
)
@click.option(
    "--cni-resource",
    "cni",
    multiple=True,
    metavar="TYPE[/RAIL]=NAME",
    help="The resource name under which Multus finds this node's NICs (nic) or virtual functions (vf) for a network that has "
    "it as k8s.v1.cni.cncf.io/resourceName. Repeatable; a name with a rail is of the NICs on that rail.",
)
@click.option(
    "--roce-without-network",
    type=click.Choice(["report", "refuse"]),
    default="report",
    help="A RoCE NIC for a pod off the host's network carries nothing without --pod-network or a Multus network: say so in "
    "the claim's condition and an Event, or refuse to prepare the claim.",
)
@click.option(
    "--driver-root",
    type=options.FOLDER,
    help="Where the GPU driver's files are instead, as this process sees it: a driver container's root, an installer's folder.",
)
@click.option(
    "--driver-root-on-host",
    type=options.FOLDER,
    help="What that folder is called on the host.  [default: as its place below HOST_ROOT says, else the same]",
)
@click.option(
    "--dev-root",
    type=options.FOLDER,
    help="With --driver-root: the folder above the `dev` that has the GPUs' device nodes, as this process sees it.  "
    "[default: DRIVER_ROOT if it has one, else HOST_ROOT]",
)
@click.option(
    "--limiter-context",
    default="auto",
    help="GPU memory that isolation `limiter` keeps for each CUDA context: a quantity (600Mi), 0 for what a process measures "
    "itself, which its first context cannot be, or auto: what the node has seen on such cards, before that what is usual.",
)
@options.flag(
    "--limiter-strict/--no-limiter-strict",
    "Isolation `limiter` hides entry points of the driver that it does not know: a newer driver's new ways to allocate.",
)
@options.flag(
    "--limiter-cores/--no-limiter-cores",
    "Isolation `limiter` holds shares that say `coresPolicy` to their part of the GPU's time, too: preview, tested on a double of the "
    "driver and not on GPUs yet. Otherwise cores are reserved and counted, and not enforced.",
)
@options.flag(
    "--mps-shared/--no-mps-shared",
    "Isolation `mps`: claims of several namespaces may share a card. A fatal fault of one program ends all that use the card by MPS.",
)
@click.option(
    "--hami-core",
    type=options.FOLDER,
    default="/usr/local/vgpu",
    help="Isolation `hami-core`: where this node has HAMi's libvgpu.so and ld.so.preload, by the host's name. koordra brings neither.",
)
@click.option(
    "--on-overuse",
    type=click.Choice(["report", "evict"]),
    default="report",
    help="What becomes of a pod that isolation `limiter` cannot keep within its share (it loads the driver past the limiter): an Event "
    "and the claim's condition, or eviction too. Needs deploy/kustomize/kubelet-plugin-evict.",
)
@click.option(
    "--hook-dir",
    "hook_folder",
    type=options.FOLDER,
    help="Where koordra-cdi-hook is written for the container runtime, under the same name here and on the host: a folder whose "
    "programs may be started, and that everybody may pass (pods with hostUsers: false).  "
    "[default: /var/lib/koordra/hook, else STATE_DIR/hook]",
)
@options.flag(
    "--legacy-node-labels",
    "Give the Node the labels of removed GPU stacks (nvidia.com/gpu.product, node.koordinator.sh/gpu-model, ...), for "
    "nodeSelectors of unchanged pods. Needs deploy/kustomize/node-labels.",
)
@options.metrics_address
@click.option(
    "--pod-uid",
    envvar="POD_UID",
    help="Uid of the plugin's own pod: gives its sockets names of their own, so that two instances overlap in an update.",
)
@options.kubeconfig
@options.api_limit(qps=50, burst=100)
@options.logging
def command(
    node_name: str,
    root: Path,
    kubelet_root: Path,
    cdi_dir: Path,
    state_dir: Path | None,
    allocation_mode: Literal["joint", "native"] | None,
    slots_per_gpu: int,
    allowed_isolation: str,
    default_isolation: str | None,
    node_modes: Path | None,
    mig: bool,
    mig_on_demand: bool,
    mig_reset: bool,
    vfs: bool,
    imex: bool,
    mps_shared: bool,
    host_root: Path | None,
    cni: tuple[str, ...],
    drain: str,
    driver_root: Path | None,
    driver_root_on_host: Path | None,
    dev_root: Path | None,
    limiter_context: str,
    metrics_address: str,
    kubeconfig: str | None,
    kube_api_qps: float,
    kube_api_burst: int,
    log_level: str,
    log_json: bool,
    **settings: Any,
) -> None:
    """Publish the node's GPUs and NICs, and prepare claims for the kubelet."""
    # `settings`: the options that koordra.kubelet_plugin.settings.Settings has as they are.
    from koordra.process.lifecycle import spawn, stop_on_signals

    # Before anything is imported that starts threads (numpy does): they would not have the signals blocked.
    stop = stop_on_signals()
    from koordra import logs
    from koordra.api import names
    from koordra.api.opaque.isolation import node_policy
    from koordra.kube.kubeconfig import new_client
    from koordra.kube.request_limit import RequestLimit
    from koordra.kube.stuck_event import StuckEvents
    from koordra.kubelet_plugin.driver import Driver
    from koordra.kubelet_plugin.node_check.at_start import NodeCheckAtStart
    from koordra.kubelet_plugin.nvidia_driver.homes import HostRoot, named_home
    from koordra.kubelet_plugin.publish.cni_resources import cni_resources
    from koordra.kubelet_plugin.publish.drain_policy import drain_policy
    from koordra.kubelet_plugin.publish.node_modes import NodeModes, read_node_modes
    from koordra.kubelet_plugin.publish.offering import Offering
    from koordra.kubelet_plugin.settings import NodePaths, Settings
    from koordra.metrics import Metrics
    from koordra.process.metrics_server import serve
    from koordra.process.watchdog import Watchdog

    logs.configure(level=log_level, json=log_json, process="kubelet-plugin")
    if driver_root is None and (driver_root_on_host or dev_root):
        raise click.BadParameter(
            "they say more about DRIVER_ROOT; name that too", param_hint="--driver-root-on-host, --dev-root"
        )
    modes = NodeModes()
    if node_modes is not None:
        from koordra.cli.manifest_files import read_text

        modes = read_node_modes(read_text(node_modes), source=str(node_modes), node=node_name)
        if modes.left_out:
            logs.get_logger(__name__).warning("node_modes_left_out", fields=modes.left_out)
    kubelet_root, root = kubelet_root.absolute(), root.absolute()
    host = HostRoot(host_root.absolute(), Path("/")) if host_root else HostRoot(root, root)
    node = Settings(
        node=node_name,
        kubelet_root=kubelet_root,
        paths=NodePaths(
            root=root,
            state=state_dir.absolute() if state_dir else kubelet_root / "plugins" / names.DRIVER,
            cdi=cdi_dir.absolute(),
        ),
        mode=allocation_mode,
        offering=Offering(
            slots_per_gpu=modes.slots or slots_per_gpu,
            mig=mig or mig_on_demand,
            mig_on_demand=mig_on_demand,
            mig_reset=mig_reset,
            vfs=vfs,
            imex=imex,
            cni=cni_resources(cni),
            drain=drain_policy(drain),
            mps_shared=mps_shared,
            isolation=node_policy(allowed_isolation.replace(",", " ").split(), default_isolation),
        ),
        modes=modes,
        host=host,
        driver_root=partial(
            named_home,
            driver_root.absolute(),
            host,
            on_host=driver_root_on_host,
            dev_root=dev_root.absolute() if dev_root else None,
        )
        if driver_root
        else None,
        limiter_context=None if limiter_context == "auto" else _bytes_of(limiter_context),
        **settings,
    )
    metrics = Metrics()
    limit = RequestLimit(kube_api_qps, kube_api_burst)
    client = new_client(kubeconfig, user_agent="koordra-kubelet-plugin", limit=limit)
    effect = (
        "koordra's kubelet plugin prepares claims that need nothing of it; its log has the stacks. Look for a card, a driver "
        "or a disk that does not answer"
    )
    # It tells, and ends nothing: NVML hangs on a broken card, and others are served.
    watchdog = Watchdog(
        metrics, told=StuckEvents(client, node=node_name, program="kubelet-plugin", effect=effect)
    )
    watchdog.start(stop)
    driver = Driver(node, client, metrics=metrics)
    if host_root is not None:
        spawn(NodeCheckAtStart(metrics, host_root.absolute(), cdi_folder=str(cdi_dir)).run, name="check-node")
    served = serve(
        metrics,
        metrics_address,
        ready=driver.answers,
        well=driver.answers,
        stuck=lambda: watchdog.stuck,
        patient=True,
        documents={"/profiles": driver.profiles},
    )
    try:
        driver.run(stop)
    finally:
        if served is not None:
            served.close()


def _bytes_of(text: str) -> int:
    from koordra import quantity
    from koordra.errors import InvalidQuantity

    try:
        found = quantity.to_int(text)
    except InvalidQuantity as error:
        raise click.BadParameter(str(error), param_hint="--limiter-context") from error
    if not 0 <= found < 1 << 40:
        raise click.BadParameter(f"{text} is not what a context takes", param_hint="--limiter-context")
    return found
