"""Options that several commands have in common, each said once: where the API server is, what is logged,
where on a node things lie, which files are read, and in which form the result is shown; and how a command
says a line. What differs between commands, in default or in words, stays with the command.
`koordra.cli.main` has every default shown in the help."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import wraps
from pathlib import Path
from typing import Any, Final, TypeVar

import click

from koordra.api import names
from koordra.inert import inert_lines

Command = TypeVar("Command", bound=Callable[..., Any])

LEVELS: Final = ("debug", "info", "warning", "error")
FILE: Final = click.Path(path_type=Path, dir_okay=False)
FOLDER: Final = click.Path(path_type=Path, file_okay=False)


NARROW: Final = 80
"""Columns of a terminal that nobody made larger, and of whatever is no terminal."""


def say(text: str, *, err: bool = False, nl: bool = True) -> None:
    """On stdout, or stderr; control characters are escaped, but for the ends of lines."""
    click.echo(inert_lines(text), err=err, nl=nl)


kubeconfig = click.option(
    "--kubeconfig",
    type=click.Path(dir_okay=False),
    help="Kubeconfig file.  [default: in-cluster, else KUBECONFIG]",
)

_context = click.option("--context", help="Context of the kubeconfig.  [default: its current one]")


@dataclass(frozen=True, slots=True)
class Access:
    """How a command reaches the API server: --kubeconfig and --context."""

    kubeconfig: str | None = None
    context: str | None = None


@dataclass(frozen=True, slots=True)
class Scope:
    """Which objects a command is about: -n, -A and -l, with kubectl's meanings."""

    namespace: str | None = None
    everywhere: bool = False
    selector: str = ""


def access(command: Command) -> Command:
    """--kubeconfig and --context, which the command gets as one `access`."""

    @wraps(command)
    def with_access(*given: Any, kubeconfig: str | None, context: str | None, **more: Any) -> Any:
        return command(*given, access=Access(kubeconfig, context), **more)

    return kubeconfig(_context(with_access))  # type: ignore[return-value]


def scope(command: Command) -> Command:
    """-n, -A and -l, which the command gets as one `scope`."""

    @wraps(command)
    def with_scope(*given: Any, namespace: str | None, everywhere: bool, selector: str, **more: Any) -> Any:
        return command(*given, scope=Scope(namespace, everywhere, selector), **more)

    return _namespace(_everywhere(selector(with_scope)))  # type: ignore[return-value]


_namespace = click.option("-n", "--namespace", help="Namespace.  [default: the context's]")
_everywhere = click.option(
    "-A", "--all-namespaces", "everywhere", is_flag=True, default=False, help="In all namespaces."
)
selector = click.option(
    "-l",
    "--selector",
    default="",
    show_default=False,
    help="Only with these labels: key=value,key2!=value2 ...",
)
watch = click.option(
    "-w", "--watch", is_flag=True, default=False, help="Go on, and show what changes; Ctrl-C ends it."
)

policy = click.option("--policy", default=names.DEFAULT_POLICY, help="koordra, Binpack, Spread, FirstFit ...")
features = click.option(
    "--features", metavar="GATES", help="Feature gates that are on, joined by '+'. Default: those of 1.37."
)

topology_levels = click.option(
    "--topology-levels",
    default="",
    help="Levels of the network between nodes, wide to narrow, each with the node label that names its domains: "
    "row=example.com/row,rack=example.com/rack.  [default: Topology objects, else the labels koordra knows]",
)

scoring_strategy = click.option(
    "--scoring-strategy",
    default="",
    help="Which of the nodes that are worth the same to a claim: the fullest or the emptiest by these weights, "
    "MostAllocated:koordra.io/gpu-memory=3,cpu=1,memory=1 (or LeastAllocated).  [default: nodes are not weighed]",
)

log_level = click.option("--log-level", type=click.Choice(LEVELS), default="info")


def api_limit(qps: float, burst: int) -> Callable[[Command], Command]:
    """--kube-api-qps and --kube-api-burst, as the kubelet, the scheduler and other DRA drivers call them."""
    least = click.option(
        "--kube-api-qps",
        type=click.FloatRange(min=0),
        default=qps,
        help="Requests a second to the API server in the long run; 0: no limit.",
    )
    most = click.option(
        "--kube-api-burst", type=click.IntRange(1, 1_000_000), default=burst, help="Requests at once."
    )
    return lambda command: least(most(command))


_log_json = click.option("--log-json", is_flag=True, help="One JSON object a line.")


def logging(command: Command) -> Command:
    """--log-level and --log-json."""
    return log_level(_log_json(command))


def flag(name: str, what: str) -> Callable[[Command], Command]:
    """Of the form --name or --name/--no-name, off by default."""
    return click.option(name, is_flag=True, default=False, help=what)


def folder(name: str, default: str, what: str) -> Callable[[Command], Command]:
    return click.option(name, type=FOLDER, default=default, help=what)


def address(name: str, what: str) -> Callable[[Command], Command]:
    """host:port of something that is served by choice; empty where it is not."""
    return click.option(name, default="", show_default="off", metavar="HOST:PORT", help=what)


machine_root = folder("--root", "/", "The machine: its sys, proc and dev are below this path.")
plugin_state = folder(
    "--state-dir", "/var/lib/kubelet/plugins/koordra.io", "The kubelet plugin's state directory."
)
host_root = click.option(
    "--root",
    type=FOLDER,
    default="/",
    envvar="KOORDRA_HOST_ROOT",
    show_envvar=True,
    help="The node: its proc and sys are below this path.",
)
release_timeout = click.option(
    "--timeout",
    type=click.FloatRange(min=0),
    default=300.0,
    help="Seconds to wait until nothing of koordra's uses the driver.",
)
cdi_folder = folder("--cdi-dir", "/var/run/cdi", "Where the container runtime reads dynamic CDI specs.")
prometheus = click.option(
    "--prometheus",
    "named",
    default="",
    metavar="WHERE",
    help="URL of a Prometheus that scrapes koordra, or NAMESPACE/SERVICE[:PORT], asked through the API server; none: ask the nodes "
    "themselves.  [default: the Prometheus Operator's, if there is one, else none]",
)
metrics_address = address("--metrics-address", "Where to serve /metrics, /healthz and /readyz.")


def manifests(what: str, *, required: bool = False) -> Callable[[Command], Command]:
    return click.option(
        "-f",
        "--filename",
        "files",
        multiple=True,
        required=required,
        metavar="FILE",
        help=f"{what} ('-' is stdin). Repeatable.",
    )


machines = click.option(
    "--machine",
    "--preset",
    "machines",
    multiple=True,
    metavar="NAME[:COUNT]",
    help="Nodes of this machine besides those in the files (see koordra topology): hgx-h100:100. Repeatable.",
)

autoscale = click.option(
    "--autoscale",
    "autoscale",
    multiple=True,
    metavar="NAME=MACHINE:MAX[,LABEL=VALUE]",
    help="Say which and how many new nodes of this group would make what waits fit: h100=hgx-h100:8,rack=a, or a file "
    "as the controller reads it. Repeatable; the first groups are preferred.",
)


def output(*forms: str, what: str = "") -> Callable[[Command], Command]:
    """The forms in which a command shows its result, the default first."""
    return click.option("-o", "--output", type=click.Choice(forms), default=forms[0], help=what)
