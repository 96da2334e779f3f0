"""`koordra imex`: NVIDIA's IMEX daemon of a node, one long-running process."""

from __future__ import annotations

from pathlib import Path

import click

from koordra.cli import options


@click.command("imex")
@options.folder(
    "--state-dir", "/var/lib/kubelet/plugins/koordra.io", "Where the kubelet plugin keeps imex/domain.json."
)
@options.machine_root
@click.option(
    "--host-root",
    type=options.FOLDER,
    envvar="KOORDRA_HOST_ROOT",
    help="The host's /, as this process sees it: the GPU driver is looked for there.  [default: ROOT]",
)
@options.logging
def command(state_dir: Path, root: Path, host_root: Path | None, log_level: str, log_json: bool) -> None:
    """Run the IMEX daemon of the GPU driver while the node is in a domain.

    Waits for another instance on this node to end. Needs to be root, to have the host's network, and
    CAP_SYS_ADMIN: the daemon runs in the driver's root.
    """
    from koordra.process.lifecycle import stop_on_signals

    stop = stop_on_signals()
    import time

    from koordra import logs
    from koordra.errors import NodeError
    from koordra.imex.daemon import Daemon, in_root
    from koordra.imex.supervisor import Supervisor
    from koordra.kubelet_plugin.nvidia_driver.driver_files import program
    from koordra.kubelet_plugin.nvidia_driver.homes import HomeSource, HostRoot
    from koordra.node_state.disk import Disk
    from koordra.node_state.imex import ImexFolder, supervising

    logs.configure(level=log_level, json=log_json, process="imex")
    homes, folder = HomeSource(HostRoot(host_root or root, root), root=root), ImexFolder(state_dir)

    def find(name: str) -> tuple[Path, str]:
        driver = homes.now().driver
        path = program(driver, name) if driver is not None else None
        if driver is None or path is None:
            raise NodeError(
                f"{name} is not found in the root of the GPU driver ({driver.root if driver else 'there is none'}); install "
                "NVIDIA's package nvidia-imex of exactly the driver's version"
            )
        return driver.root, path

    with supervising(folder, stop) as alone:
        if alone:
            daemon = Daemon(in_root(find, folder.path), folder.path)
            Supervisor(folder, daemon, Disk(), time.monotonic).run(stop)
