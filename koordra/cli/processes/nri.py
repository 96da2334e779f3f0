"""`koordra nri`: the NRI hook of a node, one long-running process."""

from __future__ import annotations

from pathlib import Path

import click

from koordra.cli import options


@click.command("nri")
@click.option(
    "--node-name", required=True, envvar="NODE_NAME", help="Name of the Node object of this machine."
)
@click.option(
    "--state-dir",
    type=click.Path(path_type=Path, file_okay=False),
    default=Path("/var/lib/kubelet/plugins/koordra.io"),
    show_default=True,
    help="Where the kubelet plugin keeps prepared/ and guarded.json.",
)
@click.option(
    "--socket",
    "socket_path",
    type=click.Path(path_type=Path, dir_okay=False),
    default=Path("/var/run/nri/nri.sock"),
    show_default=True,
    help="The container runtime's NRI socket. Not dialled when the runtime launched this process.",
)
@click.option(
    "--plugin-index",
    default="90",
    show_default=True,
    help="Two digits: the place among the runtime's plugins.",
)
@click.option(
    "--exempt-namespace",
    "exempt_namespaces",
    multiple=True,
    default=("koordra-system", "kube-system"),
    show_default=True,
    help="Do not take anything away from containers of this namespace. Repeatable; replaces the defaults, with which "
    "koordra's own kubelet plugin sees the devices it manages and the node's privileged system pods start under any "
    "runtime.",
)
@click.option(
    "--validate/--no-validate",
    "validating",
    default=False,
    show_default=True,
    help="Have the runtime ask before it applies what other NRI plugins change, and refuse their GPUs and NICs "
    "(containerd 2.2, CRI-O 1.34).",
)
@click.option(
    "--bundles",
    type=click.Path(path_type=Path, file_okay=False),
    default=Path("/run/containerd/io.containerd.runtime.v2.task/k8s.io"),
    show_default=True,
    help="Where the runtime keeps the OCI bundles of running containers, to compare what they have with what they should.",
)
@click.option(
    "--proc",
    type=click.Path(path_type=Path, file_okay=False),
    default=Path("/proc"),
    show_default=True,
    help="The host's processes, as this process sees them.",
)
@click.option(
    "--cgroups",
    type=click.Path(path_type=Path, file_okay=False),
    default=Path("/sys/fs/cgroup"),
    show_default=True,
    help="The host's cgroups, as this process sees them.",
)
@click.option(
    "--verify-period",
    type=click.FloatRange(min=0),
    default=60.0,
    show_default=True,
    help="Seconds between two comparisons; 0 turns them off.",
)
@click.option(
    "--on-drift",
    type=click.Choice(["report", "evict"]),
    default="report",
    show_default=True,
    help="What to do with a pod whose container has what it should not have. Both need --api.",
)
@click.option(
    "--rdma-limit",
    metavar="HANDLES:OBJECTS",
    help="The most RDMA handles and objects of one NIC per container (cgroup version 2 with the rdma controller).",
)
@click.option(
    "--koordinator/--no-koordinator",
    default=False,
    show_default=True,
    help="Also serve pods that Koordinator's scheduler placed. Needs --api and the policy of deploy/kustomize/nri/koordinator.",
)
@click.option(
    "--koordinator-scheduler",
    default="system:serviceaccount:koordinator-system:koord-scheduler",
    show_default=True,
    help="The only user who may write the annotation device-allocated.",
)
@click.option(
    "--pod-network/--no-pod-network",
    default=False,
    show_default=True,
    help="Move virtual functions and exclusive NICs into their pods' networks and back; goes with the kubelet plugin's "
    "--pod-network, and needs the host's network and CAP_NET_ADMIN.",
)
@click.option(
    "--root",
    type=click.Path(path_type=Path, file_okay=False),
    default=Path("/"),
    show_default=True,
    help="The machine: its sys and proc are below this path.",
)
@click.option(
    "--api/--no-api",
    default=False,
    show_default=True,
    help="Write Events, conditions and evictions to the Kubernetes API.",
)
@click.option("--kubeconfig", help="Kubeconfig file; implies --api.  [default: in-cluster, else KUBECONFIG]")
@click.option(
    "--metrics-address",
    default="",
    help="Serve /metrics, /healthz and /readyz on host:port.  [default: off]",
)
@options.logging
def command(
    node_name: str,
    state_dir: Path,
    socket_path: Path,
    plugin_index: str,
    exempt_namespaces: tuple[str, ...],
    validating: bool,
    bundles: Path,
    proc: Path,
    cgroups: Path,
    verify_period: float,
    on_drift: str,
    rdma_limit: str | None,
    koordinator: bool,
    koordinator_scheduler: str,
    pod_network: bool,
    root: Path,
    api: bool,
    kubeconfig: str | None,
    metrics_address: str,
    log_level: str,
    log_json: bool,
) -> None:
    """Isolate every container of this node: only what its claims hold can be seen and opened.

    Waits for another instance on this node to end, registers with the container runtime, and registers again
    whenever the runtime comes back. Running containers are compared with what they should have, and differences reported.
    """
    from koordra.process import stop_on_signals

    # Before anything is imported that starts threads (numpy does): they would not have the signals blocked.
    stop = stop_on_signals()
    from functools import partial

    from koordra import logs
    from koordra.kube import KubeClient
    from koordra.kubelet_plugin.isolation.limiter.report import enforces
    from koordra.kubelet_plugin.network.pod_network import PodNetworks
    from koordra.nri.hook.cgroups import RdmaLimit
    from koordra.nri.service import Options, run

    talks = api or kubeconfig is not None
    if (koordinator or on_drift == "evict") and not talks:
        raise click.UsageError("--koordinator and --on-drift evict need --api")
    logs.configure(level=log_level, json=log_json, process="nri")
    options = Options(
        node_name=node_name,
        state_dir=state_dir,
        socket_path=socket_path,
        plugin_index=plugin_index,
        exempt=frozenset(exempt_namespaces),
        root=root,
        bundles=bundles if verify_period else None,
        proc=proc,
        cgroups=cgroups,
        validating=validating,
        koordinator_scheduler=koordinator_scheduler if koordinator else None,
        rdma_limit=RdmaLimit.parse(rdma_limit) if rdma_limit else None,
        evict=on_drift == "evict",
        verify_period=verify_period,
        metrics_address=metrics_address,
        client=KubeClient(kubeconfig, user_agent="koordra-nri") if talks else None,
        enforcing=partial(enforces, state_dir / "limiter" / "claims"),
        networks=PodNetworks(state_dir, sys=root / "sys") if pod_network else None,
    )
    run(options, stop)
