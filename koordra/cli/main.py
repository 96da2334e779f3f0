"""The program `koordra`, also `kubectl koordra`.

Commands are loaded by name when they are used (lazy_group.py), so that `--help` imports click and nothing
else. Results go to stdout, everything else to stderr; the exit code is the error's (errors.py), 130 after
Ctrl-C.
"""

from __future__ import annotations

import io
import platform
import sys

import click

from koordra import __version__
from koordra.cli.lazy_group import LazyGroup
from koordra.cli.options import say
from koordra.errors import KoordraError

DEMO_DISTRIBUTION = "koordra_devcluster"
"""The import package of the distribution koordra-devcluster, which koordra's extra `demo` installs;
production has none of it."""

COMMANDS = {
    "claims": (
        "koordra.cli.cluster.claims:claims",
        "Which claims have which devices, and why the others wait.",
    ),
    "controller": (
        "koordra.cli.processes.controller:command",
        "Allocate claims ahead of the scheduler (one replica is active).",
    ),
    "convert": (
        "koordra.cli.convert:convert_command",
        "Older manifests (classic DRA, beta versions, legacy pods) as resource.k8s.io/v1.",
    ),
    "cordon-device": (
        "koordra.cli.cluster.cordon_device:cordon_device",
        "Keep new claims off devices of a node.",
    ),
    "dashboard": (
        "koordra.cli.cluster.dashboard.command:dashboard",
        "The cluster in a browser: every GPU, who waits and why, who has what.",
    ),
    "debug": ("koordra.cli.debug:command", "What a node's driver knows, what the controller has learned."),
    "demo": (
        f"{DEMO_DISTRIBUTION}.demo:command",
        "A whole cluster on this machine: every component, real sockets, made-up GPUs.",
    ),
    "devcluster": (f"{DEMO_DISTRIBUTION}.cli:command", "The development double of a Kubernetes cluster."),
    "devices": (
        "koordra.cli.cluster.devices:devices",
        "The devices of a cluster, what is free of them, and who has the rest.",
    ),
    "explain": (
        "koordra.cli.cluster.explain:explain",
        "Why a claim waits: per node and device, the clause that failed.",
    ),
    "imex": (
        "koordra.cli.processes.imex:command",
        "The IMEX daemon of a node: memory shared over NVLink with pods of other nodes.",
    ),
    "kubelet-plugin": (
        "koordra.cli.processes.kubelet_plugin:command",
        "The DRA driver on a node: publishes and prepares devices.",
    ),
    "node": ("koordra.cli.node.group:group", "This node: is it ready for koordra, and what is in the way."),
    "nri": ("koordra.cli.processes.nri:command", "The NRI hook on a node: isolation for every container."),
    "plan": ("koordra.cli.plan:plan_command", "What-if: which devices would these manifests get?"),
    "profile": (
        "koordra.cli.cluster.use.profile.command:profile",
        "What a job used of GPUs over its life, and the share that would have done.",
    ),
    "profiler": (
        "koordra.cli.cluster.use.profile.profiler:command",
        "Keep profiles of all jobs, for months (one replica).",
    ),
    "replay": (
        "koordra.cli.replay:command",
        "How much of a cluster can be given out: a trace, replayed with any policy.",
    ),
    "top": (
        "koordra.cli.cluster.use.top:top",
        "What claims and pods have of GPUs and NICs, and what they use, now.",
    ),
    "topology": (
        "koordra.cli.machine.topology:topology",
        "A machine's GPUs and NICs and how near they are to each other.",
    ),
    "usage": ("koordra.cli.cluster.use.usage:usage", "GPU-hours by namespace, for chargeback."),
    "version": ("koordra.cli.main:version", "Which koordra this is, and how far it has been tried."),
}


@click.group(
    cls=LazyGroup,
    commands_by_name=COMMANDS,
    installed_with={DEMO_DISTRIBUTION: "pip install 'koordra[demo]'"},
    context_settings={"help_option_names": ["-h", "--help"], "show_default": True},
)
@click.version_option(__version__, prog_name="koordra")
def cli() -> None:
    """GPUs, GPU shares and RDMA NICs, allocated together through Dynamic Resource Allocation."""


ALPHA = """\
An alpha: neither a report of `koordra node selftest` from a machine with a GPU nor one of a fabric (--fabric) is among
its results yet. What ran on real Kubernetes, containerd and which doubles stood for the rest: README.md.
"""


@click.command(short_help="Which koordra this is, and how far it has been tried.")
@click.option("--short", is_flag=True, help="The number alone.")
def version(short: bool) -> None:
    """Which koordra this is, and how far it has been tried."""
    say(__version__ if short else f"koordra {__version__}, Python {platform.python_version()}")
    if not short:
        say(ALPHA, nl=False)


def main() -> None:
    """Run the program and end with the exit code of the error, if there was one."""
    try:
        # What a command gives to ctx.exit comes back as the value.
        ended = cli.main(standalone_mode=False)
    except click.ClickException as error:
        shown = io.StringIO()
        error.show(file=shown)
        say(shown.getvalue(), err=True, nl=False)
        sys.exit(error.exit_code)
    except KoordraError as error:
        say(f"koordra: {error}", err=True)
        sys.exit(error.exit_code)
    except (click.Abort, KeyboardInterrupt):
        say("koordra: stopped", err=True)
        sys.exit(130)
    except BrokenPipeError:
        sys.exit(141)
    except OSError as error:
        # A full disk behind stdout, for one; what a command reads itself it explains itself.
        say(f"koordra: {error.filename or 'output'}: {error.strerror or error}", err=True)
        sys.exit(1)
    if isinstance(ended, int):
        sys.exit(ended)
