"""The commands of `koordra node`; its help imports none of them."""

from __future__ import annotations

import click

from koordra.cli.lazy_group import LazyGroup

COMMANDS = {
    "check": (
        "koordra.cli.node.check:check",
        "Is everything on this node as GPU and RDMA pods need it; what is not, with the remedy.",
    ),
    "selftest": (
        "koordra.cli.node.selftest:selftest",
        "Does what koordra gives a container work on this machine's GPU; without Kubernetes.",
    ),
    "make-vfs": (
        "koordra.cli.node.make_vfs:make_vfs",
        "Make virtual functions of NICs that have none and that nobody else configures.",
    ),
    "release-driver": (
        "koordra.cli.node.release_driver:release_driver",
        "Free NVIDIA's driver for an upgrade: evict, close NVML, and name who still holds it.",
    ),
    "mig": (
        "koordra.cli.node.mig:mig",
        "Switch the MIG mode of a card: drain, close NVML, switch, reset where needed, offer it again.",
    ),
    "top": ("koordra.cli.node.top:top", "GPU memory that the limited claims of this node use, now."),
    "await-release": (
        "koordra.cli.node.release_driver:await_release",
        "Until SIGTERM, then until an upgrade of the driver may go on; for the GPU Operator.",
    ),
}


@click.group("node", cls=LazyGroup, commands_by_name=COMMANDS)
def group() -> None:
    """The node this runs on: as root on the host, or in the kubelet plugin's pod."""
