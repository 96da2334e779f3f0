"""`koordra cordon-device`: nothing new on some devices of a node, until they are uncordoned.

The cordon is an annotation of the Node (koordra/kubelet_plugin/publish/node_slices.py says why), which the
node's plugin turns into a device taint within seconds. One merge patch sets or removes all devices of the
call, and nobody else's.
"""

from __future__ import annotations

import click

from koordra.api import kinds, names
from koordra.cli import options
from koordra.cli.cluster.cluster_objects import connect
from koordra.cli.options import say
from koordra.errors import InvalidInput
from koordra.kube.client import KubeClient
from koordra.kubelet_plugin.publish.node_slices import Cordon, cordons_of


@click.command("cordon-device")
@click.argument("node")
@click.argument("devices", nargs=-1)
@click.option("--reason", default="", show_default=False, help="For people; shown in the taint's value.")
@options.flag("--evict", "Also evict the pods that use the devices (taint NoExecute); by default they go on.")
@options.flag("--uncordon", "Take the cordon away again.")
@click.option("--all", "every", is_flag=True, help="With --uncordon: every cordoned device of the node.")
@options.access
def cordon_device(
    node: str,
    devices: tuple[str, ...],
    reason: str,
    evict: bool,
    uncordon: bool,
    every: bool,
    access: options.Access,
) -> None:
    """Keep new claims off DEVICES of NODE; without DEVICES, list what is cordoned.

    Needs the right to patch Nodes. Device names are those of `koordra topology --node NODE`.
    """
    client = connect(access)
    cordons = {cordon.device: cordon for cordon in cordons_of(client.get(kinds.NODES, node))}
    if uncordon and every:
        devices = tuple(cordons)
    if not devices:
        if every and not uncordon:
            raise InvalidInput("goes with --uncordon only", object="cordon-device", field="--all")
        for cordon in cordons.values():
            say(f"{cordon.device}  {cordon.effect}  {cordon.reason}".rstrip())
        if not cordons:
            say(f"no device of {node} is cordoned")
        return
    changes: dict[str, str | None] = {}
    for device in devices:
        cordon = Cordon(device, "NoExecute" if evict else "NoSchedule", reason)
        key, value = cordon.annotation
        changes[key] = None if uncordon else value
    if not uncordon:
        _require_published(client, node, devices)
    client.patch(kinds.NODES, node, {"metadata": {"annotations": changes}})
    for device in devices:
        say(f"{device} of {node} {'uncordoned' if uncordon else 'cordoned'}")


def _require_published(client: KubeClient, node: str, devices: tuple[str, ...]) -> None:
    """A misspelt name would cordon nothing, and look as if it did."""
    slices, _ = client.list(
        kinds.RESOURCE_SLICES, field_selector=f"spec.driver={names.DRIVER},spec.nodeName={node}"
    )
    known = {device["name"] for one in slices for device in one["spec"].get("devices") or ()}
    for device in devices:
        if device not in known:
            raise InvalidInput(
                f"node {node} publishes no such device",
                object="cordon-device",
                field=device,
                remedy=f"it has {', '.join(sorted(known)) or 'none'}",
            )
