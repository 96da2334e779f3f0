"""`koordra node release-driver` and `await-release`: NVIDIA's driver of this node is to be free."""

from __future__ import annotations

from pathlib import Path

import click

from koordra.cli import options
from koordra.cli.options import say


@click.command("release-driver")
@options.plugin_state
@options.host_root
@options.release_timeout
@options.flag("--resume", "Take the request back: the GPUs are offered again.")
@options.output("text", "json")
@click.pass_context
def release_driver(
    ctx: click.Context, state_dir: Path, root: Path, timeout: float, resume: bool, output: str
) -> None:
    """Free NVIDIA's driver, to upgrade or unload it: no pod uses it, and the kubelet plugin lets go of it.

    The GPUs get a taint, the controller evicts the pods that hold them (disruption budgets count, gangs go
    whole), and NVML is closed. The request stands until --resume, also over a restart. Names who still holds
    /dev/nvidia*, by process and pod; the exit code is 1 if somebody does, or if the plugin has not let go.
    """
    from koordra.cli.output import show_document
    from koordra.kubelet_plugin.nvidia_driver.release import REPORT
    from koordra.kubelet_plugin.nvidia_driver.release_request import ReleaseFolder, ask_for_driver
    from koordra.node_state.disk import Disk

    folder = ReleaseFolder(state_dir, Disk())
    if resume:
        told = "the driver may be used again" if folder.take_back() else "nothing was asked"
        say(f"koordra: {told}", err=True)
        return
    answer = ask_for_driver(folder, root.absolute(), timeout=timeout)
    if output == "json":
        show_document(
            {
                "released": answer.is_released,
                "report": REPORT.write(answer.report) if answer.report else None,
                "holders": [
                    {
                        "pid": holder.pid,
                        "command": holder.command,
                        "devices": list(holder.devices),
                        "pod": answer.pods.get(holder.pod or "", holder.pod),
                    }
                    for holder in answer.users.holders
                ],
                "modulesInUse": dict(answer.users.uncounted),
            },
            output,
        )
    else:
        for line in (answer.standing(), *answer.in_the_way()):
            say(line)
    ctx.exit(int(not answer.is_free))


@click.command("await-release")
@options.plugin_state
def await_release(state_dir: Path) -> None:
    """Run until SIGTERM, then until koordra has let go of a driver that is about to be replaced.

    NVIDIA's driver-manager waits for pods like this one (deploy/kustomize/gpu-operator) before it unloads the
    driver. Without an upgrade it ends at once.
    """
    from koordra.process.lifecycle import stop_on_signals

    stop = stop_on_signals()
    from koordra.kubelet_plugin.nvidia_driver.release_request import ReleaseFolder
    from koordra.node_state.disk import Disk

    ReleaseFolder(state_dir, Disk()).wait_at_end(stop)
