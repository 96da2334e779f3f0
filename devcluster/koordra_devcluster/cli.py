"""`koordra devcluster`: the processes of the development cluster."""

from __future__ import annotations

import threading

import click

from koordra.cli import options
from koordra_devcluster.controllers.operators import OPERATORS


@click.group()
def command() -> None:
    """A development double of a Kubernetes cluster, for laptops, the demo and tests. Not Kubernetes: it runs
    no real containers."""


@command.command("control-plane")
@click.option(
    "--dir", "directory", required=True, type=click.Path(file_okay=False), help="Where the state is kept."
)
@click.option(
    "--port",
    default=0,
    show_default="any free port",
    type=click.IntRange(0, 65535),
    help="TCP port on 127.0.0.1.",
)
@click.option(
    "--kubeconfig",
    type=click.Path(dir_okay=False),
    default=None,
    help="Where to write the kubeconfig [default: DIR/kubeconfig].",
)
@click.option(
    "--audit-log",
    type=click.Path(dir_okay=False),
    default=None,
    help="Who asked for what, one JSON line a request.  [default: none]",
)
@click.option(
    "--feature-gate",
    "gates",
    multiple=True,
    type=click.Choice(["GenericWorkload"]),
    help="A gate that is off in Kubernetes and on here: GenericWorkload serves Workload and PodGroup "
    "(scheduling.k8s.io/v1alpha2), and claims of PodGroups are made. Repeatable.",
)
@click.option(
    "--operator",
    "operators",
    multiple=True,
    type=click.Choice(list(OPERATORS)),
    help="Also the double of this operator, with its kinds. Repeatable.",
)
@options.log_level
def control_plane(
    directory: str,
    port: int,
    kubeconfig: str | None,
    audit_log: str | None,
    gates: tuple[str, ...],
    operators: tuple[str, ...],
    log_level: str,
) -> None:
    """Double of kube-apiserver, kube-controller-manager (claims, workloads, garbage) and kube-scheduler, in
    one process."""
    from functools import partial
    from pathlib import Path

    from koordra.process import lifecycle

    # Before anything is imported that starts threads (numpy does): they would not have the signals blocked.
    stop = lifecycle.stop_on_signals()
    from koordra import logs
    from koordra.cel.selectors import admission_error
    from koordra_devcluster.control_plane import ControlPlane

    logs.configure(level=log_level, process="devcluster-control-plane")
    plane = ControlPlane(
        Path(directory),
        port=port,
        kubeconfig=Path(kubeconfig) if kubeconfig else None,
        # With the gates of 1.37.
        compile_cel=partial(admission_error, list_attributes=False),
        audit=Path(audit_log) if audit_log else None,
        gates=frozenset(gates),
        operators=operators,
    )
    plane.start(stop)
    _sleep_until(stop)
    plane.close()


@command.command("kubelet")
@click.option("--node-name", required=True, help="Name of the node.")
@click.option("--dir", "directory", required=True, type=click.Path(file_okay=False), help="The node's state.")
@click.option(
    "--kubeconfig", required=True, type=click.Path(dir_okay=False), help="How to reach the API server."
)
@click.option("--cpu", default="96", show_default=True, help="Allocatable cpu.")
@click.option("--memory", default="1Ti", show_default=True, help="Allocatable memory.")
@click.option("--label", "labels", multiple=True, help="key=value, a label of the node. Repeatable.")
@click.option("--kubelet-root", type=click.Path(file_okay=False), default=None, help="[default: DIR/kubelet]")
@click.option(
    "--cdi-dir",
    "cdi_dirs",
    multiple=True,
    type=click.Path(file_okay=False),
    help="Repeatable, later wins. [default: DIR/cdi]",
)
@click.option("--nri-socket", type=click.Path(dir_okay=False), default=None, help="[default: DIR/nri.sock]")
@click.option(
    "--required-nri-plugin",
    "required",
    multiple=True,
    help="Create no container unless this NRI plugin was asked. Repeatable.",
)
@click.option("--nri-state-change-only", is_flag=True, help="Behave like a runtime before NRI 0.12.")
@click.option(
    "--run-commands",
    is_flag=True,
    help="Run containers' commands as processes of yours, with this machine's programs, files and network.",
)
@options.log_level
def kubelet(
    node_name: str,
    directory: str,
    kubeconfig: str,
    cpu: str,
    memory: str,
    labels: tuple[str, ...],
    kubelet_root: str | None,
    cdi_dirs: tuple[str, ...],
    nri_socket: str | None,
    required: tuple[str, ...],
    nri_state_change_only: bool,
    run_commands: bool,
    log_level: str,
) -> None:
    """Double of a kubelet and its container runtime (CDI, NRI). Containers are records in DIR/containers;
    nothing is executed without --run-commands."""
    from pathlib import Path

    from koordra.process import lifecycle

    # Before anything is imported that starts threads (numpy does): they would not have the signals blocked.
    stop = lifecycle.stop_on_signals()
    from koordra import logs
    from koordra.kube.kubeconfig import new_client
    from koordra_devcluster.container_runtime.nri_runtime import NriSettings
    from koordra_devcluster.kubelet.kubelet import Kubelet, KubeletSettings
    from koordra_devcluster.kubelet.node import NodeSettings

    logs.configure(level=log_level, process=f"devcluster-kubelet-{node_name}")
    place = Path(directory).absolute()
    machine_dev = place / "machine" / "dev"
    settings = KubeletSettings(
        node=NodeSettings(node_name, cpu=cpu, memory=memory, labels=tuple(_label(one) for one in labels)),
        directory=place,
        kubelet_root=Path(kubelet_root).absolute() if kubelet_root else place / "kubelet",
        cdi_directories=[Path(one).absolute() for one in cdi_dirs] or [place / "cdi"],
        nri_socket=Path(nri_socket).absolute() if nri_socket else place / "nri.sock",
        nri=NriSettings(
            dedicated=not nri_state_change_only,
            version="" if nri_state_change_only else "v0.12.0",
            required_plugins=required,
        ),
        host_dev=machine_dev if machine_dev.is_dir() else None,
        run_commands=run_commands,
    )
    node = Kubelet(new_client(kubeconfig, user_agent=f"kubelet-{node_name}"), settings)
    node.start(stop)
    _sleep_until(stop)
    node.close()


def _sleep_until(stop: threading.Event) -> None:
    """Wakes now and then: a signal that another thread received is handled by the main thread only when it
    runs."""
    while not stop.wait(0.5):
        pass


def _label(text: str) -> tuple[str, str]:
    key, equals, value = text.partition("=")
    if not equals or not key:
        raise click.BadParameter(f"{text!r} is not key=value", param_hint="--label")
    return key, value
