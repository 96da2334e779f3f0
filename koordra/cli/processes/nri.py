"""`koordra nri`: the NRI hook of a node, one long-running process."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from koordra.cli import options

SYSTEM_NAMESPACES = (
    "kube-system",
    "calico-system",
    "tigera-operator",
    "gpu-operator",
    "nvidia-gpu-operator",
    "network-operator",
    "nvidia-network-operator",
)
"""Where the cluster's own pods, Calico's operator and NVIDIA's two operators are installed by their
documentation, on OpenShift too. Whoever may make a namespace of such a name may as well label it."""


@click.command("nri")
@click.option(
    "--node-name", required=True, envvar="NODE_NAME", help="Name of the Node object of this machine."
)
@options.folder(
    "--state-dir",
    "/var/lib/kubelet/plugins/koordra.io",
    "Where the kubelet plugin keeps prepared/ and guarded.json.",
)
@click.option(
    "--socket",
    "socket_path",
    type=options.FILE,
    default="/var/run/nri/nri.sock",
    help="The container runtime's NRI socket. Not dialled when the runtime launched this process.",
)
@click.option(
    "--plugin-index",
    default="90",
    help="Two digits: the place among the runtime's plugins.",
)
@click.option(
    "--exempt-namespace",
    "exempt",
    multiple=True,
    default=SYSTEM_NAMESPACES,
    help="Do not take anything away from containers of this namespace. Repeatable; replaces the defaults, with which "
    "the pods of the node's networks and of NVIDIA's operator work as shipped. Koordra's own namespace is exempt besides, "
    "and with --api those labelled koordra.io/exempt=true.",
)
@click.option(
    "--namespace",
    envvar="POD_NAMESPACE",
    default="koordra-system",
    help="Koordra's own namespace, whose kubelet plugin has to see the devices that it manages.",
)
@click.option(
    "--privileged",
    type=click.Choice(["report", "refuse"]),
    default="report",
    help="Where the runtime cannot deny devices (containerd before 2.2, CRI-O before 1.34): let privileged pods start "
    "that are static, of system-critical priority, or hold devices, and report them; or refuse them, unless their "
    "namespace is exempt or they hold every GPU of the node. Other privileged pods are refused there.",
)
@click.option(
    "--validate/--no-validate",
    "validating",
    default=False,
    help="Have the runtime ask before it applies what other NRI plugins change, and refuse their GPUs and NICs "
    "(containerd 2.2, CRI-O 1.34).",
)
@options.folder(
    "--bundles",
    "/run/containerd/io.containerd.runtime.v2.task/k8s.io",
    "Where the runtime keeps the OCI bundles of running containers, to compare what they have with what they should.",
)
@options.folder("--proc", "/proc", "The host's processes, as this process sees them.")
@options.folder("--cgroups", "/sys/fs/cgroup", "The host's cgroups, as this process sees them.")
@click.option(
    "--verify-period",
    type=click.FloatRange(min=0),
    default=60.0,
    help="Seconds between two comparisons; 0 turns them off.",
)
@click.option(
    "--on-drift",
    type=click.Choice(["report", "evict"]),
    default="report",
    help="What to do with a pod whose container has what it should not have. Both need --api.",
)
@click.option(
    "--rdma-limit",
    metavar="HANDLES:OBJECTS",
    help="The most RDMA handles and objects of one NIC per container (cgroup version 2 with the rdma controller).",
)
@options.flag(
    "--koordinator/--no-koordinator",
    "Also serve pods that Koordinator's scheduler placed. Needs --api and the policy of deploy/kustomize/nri/koordinator.",
)
@click.option(
    "--koordinator-scheduler",
    default="system:serviceaccount:koordinator-system:koord-scheduler",
    help="The only user who may write the annotation device-allocated.",
)
@click.option(
    "--koordinator-isolation",
    type=click.Choice(["hami-core", "none"]),
    default="hami-core",
    help="What keeps the parts of cards that Koordinator's scheduler gives: on every pod, whatever its label says.",
)
@options.flag(
    "--pod-network/--no-pod-network",
    "Move virtual functions and exclusive NICs into their pods' networks and back; goes with the kubelet plugin's "
    "--pod-network, and needs the host's network and CAP_NET_ADMIN.",
)
@options.machine_root
@options.flag(
    "--api/--no-api", "Write Events and conditions to the Kubernetes API, and ask there for evictions."
)
@click.option("--kubeconfig", help="Kubeconfig file; implies --api.  [default: in-cluster, else KUBECONFIG]")
@options.metrics_address
@options.api_limit(qps=50, burst=100)
@options.logging
def command(
    state_dir: Path,
    exempt: tuple[str, ...],
    namespace: str,
    bundles: Path,
    verify_period: float,
    on_drift: str,
    rdma_limit: str | None,
    privileged: str,
    koordinator: bool,
    koordinator_scheduler: str,
    pod_network: bool,
    root: Path,
    api: bool,
    kubeconfig: str | None,
    kube_api_qps: float,
    kube_api_burst: int,
    log_level: str,
    log_json: bool,
    **settings: Any,
) -> None:
    """Isolate every container of this node: only what its claims hold can be seen and opened.

    Waits for another instance on this node to end, registers with the container runtime, and registers again
    whenever the runtime comes back. Running containers are compared with what they should have, and
    differences reported.
    """
    # `settings`: the options that koordra.nri.service.Options has as they are.
    from koordra.process.lifecycle import stop_on_signals

    # Before anything is imported that starts threads (numpy does): they would not have the signals blocked.
    stop = stop_on_signals()
    from functools import partial

    from koordra import logs
    from koordra.evictions import OF_HOOK, EvictionRequests
    from koordra.kubelet_plugin.isolation.limiter.report import enforces
    from koordra.kubelet_plugin.network.patient_networks import PatientNetworks
    from koordra.kubelet_plugin.network.pod_network import PodNetworks
    from koordra.nri.hook.cgroups import RdmaLimit
    from koordra.nri.hook.privileged import PrivilegedPolicy
    from koordra.nri.service import Options, run

    talks = api or kubeconfig is not None
    if (koordinator or on_drift == "evict") and not talks:
        raise click.UsageError("--koordinator and --on-drift evict need --api")
    client = quick_client = None
    if talks:
        from koordra.kube.kubeconfig import new_client
        from koordra.kube.request_limit import RequestLimit

        limit = RequestLimit(kube_api_qps, kube_api_burst)
        client = new_client(kubeconfig, user_agent="koordra-nri", limit=limit)
        # Asked while a container waits, and the runtime waits 2 s: by one or two requests a container, which
        # is limit enough.
        quick_client = new_client(kubeconfig, user_agent="koordra-nri", timeout=1.0)
    logs.configure(level=log_level, json=log_json, process="nri")
    evictions = None
    if on_drift == "evict" and client is not None:
        evictions = EvictionRequests(client, OF_HOOK, node=settings["node_name"], namespace=namespace)
    options = Options(
        state_dir=state_dir,
        exempt=frozenset((*exempt, namespace)),
        root=root,
        bundles=bundles if verify_period else None,
        koordinator_scheduler=koordinator_scheduler if koordinator else None,
        rdma_limit=RdmaLimit.parse(rdma_limit) if rdma_limit else None,
        evictions=evictions,
        verify_period=verify_period,
        privileged=PrivilegedPolicy(privileged),
        client=client,
        quick_client=quick_client,
        enforcing=partial(enforces, state_dir / "limiter" / "claims"),
        networks=PatientNetworks(PodNetworks(state_dir, sys=root / "sys")) if pod_network else None,
        **settings,
    )
    run(options, stop)
