"""`koordra nri`: the NRI hook of a node, one long-running process."""

from __future__ import annotations

from pathlib import Path

import click


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
def command(
    node_name: str, state_dir: Path, socket_path: Path, plugin_index: str, exempt_namespaces: tuple[str, ...]
) -> None:
    """Isolate every container of this node: only what its claims hold can be seen and opened.

    Waits for another instance on this node to end, registers with the container runtime, and registers again
    whenever the runtime comes back.
    """
    from koordra import logs
    from koordra.nri.hook import open_hook
    from koordra.nri.registration import only_one
    from koordra.nri.stub import Stub
    from koordra.process import stop_on_signals

    logs.configure(process="nri")
    stop = stop_on_signals()
    hook = open_hook(state_dir, node_name=node_name, exempt_namespaces=exempt_namespaces)
    stub = Stub(hook, name="koordra", index=plugin_index, socket_path=socket_path)
    with only_one(state_dir, stop) as alone:
        if alone:
            stub.run(stop)
