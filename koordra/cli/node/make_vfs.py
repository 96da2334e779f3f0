"""`koordra node make-vfs`: the virtual functions of this node's NICs."""

from __future__ import annotations

from pathlib import Path

import click

from koordra.cli import options
from koordra.cli.options import say


@click.command("make-vfs")
@click.option(
    "--root",
    type=options.FOLDER,
    default="/",
    envvar="KOORDRA_HOST_ROOT",
    show_envvar=True,
    help="The node: its etc and sys are below this path.",
)
@click.option(
    "--per-nic",
    "most",
    type=click.IntRange(1, 256),
    required=True,
    help="How many functions a NIC gets, or all that it has if those are fewer.",
)
@click.option(
    "--only",
    multiple=True,
    metavar="PATTERN",
    help="NICs by interface or PCI address (ens*np0, 0000:1a:00.0); without it all. Can be repeated.",
)
@options.folder(
    "--state-dir",
    "/var/lib/kubelet/plugins/koordra.io",
    "Where the kubelet plugin keeps prepared/: what claims have is left alone.",
)
def make_vfs(root: Path, most: int, only: tuple[str, ...], state_dir: Path) -> None:
    """Make virtual functions on RDMA NICs that have none and that nobody else configures.

    Run before the kubelet plugin (an init container with a writable /sys), which offers them with --vfs. NICs
    of the SR-IOV Network Operator, parts of bonds and bridges, and NICs that claims have are left alone;
    existing functions always are.
    """
    from koordra.kubelet_plugin.discovery.pci_tree import PciTree
    from koordra.kubelet_plugin.discovery.rdma_devices import character_devices, rdma_nics
    from koordra.kubelet_plugin.network.virtual_functions import make_functions
    from koordra.node_state.layout import StateFolder

    tree = PciTree(root.absolute(), ())
    nics = [nic for nic in rdma_nics(tree, character_devices(tree)) if nic.parent is None]
    for each in make_functions(
        nics, root=root.absolute(), state=StateFolder(state_dir), most=most, only=only
    ):
        said = f"{each.made} virtual functions made" if each.made else f"left alone: {each.left_alone}"
        say(f"{each.nic.name} ({each.nic.ib_device}): {said}")
