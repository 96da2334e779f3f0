"""`koordra node mig`: the MIG mode of a card of this node."""

from __future__ import annotations

import shlex
import subprocess
from pathlib import Path
from typing import Final

import click

from koordra.cli import options
from koordra.cli.options import say

RESET_WITHIN: Final = 120.0


@click.command("mig")
@click.argument("mode", type=click.Choice(["on", "off"]))
@click.argument("card")
@options.plugin_state
@options.host_root
@options.release_timeout
@click.option(
    "--reset-with",
    default="nvidia-smi --gpu-reset -i",
    show_default=True,
    metavar="COMMAND",
    help="What resets a card, whose UUID is added, where the mode needs it (Ampere); empty: no reset.",
)
def mig(mode: str, card: str, state_dir: Path, root: Path, timeout: float, reset_with: str) -> None:
    """Switch the MIG mode of CARD (its UUID, PCI address or device name) on or off.

    As for an upgrade of the driver (release-driver) all GPUs of the node get a taint, the controller evicts
    the pods that hold them, and the kubelet plugin closes NVML: who still uses a card keeps its mode from
    being switched. Then the mode is switched, with a reset where that needs one, and the node's GPUs are
    offered again as they are now. A card with MIG instances is not switched off.
    """
    from koordra.errors import NodeError
    from koordra.kubelet_plugin.discovery.nvml_gpus import nvml_facts
    from koordra.kubelet_plugin.isolation.mig.mode import switch_mode
    from koordra.kubelet_plugin.nvidia_driver.homes import HomeSource
    from koordra.kubelet_plugin.nvidia_driver.nvml_session import NvmlLibrary, NvmlUnavailable
    from koordra.kubelet_plugin.nvidia_driver.release import REQUEST_FILE
    from koordra.kubelet_plugin.nvidia_driver.release_request import ReleaseFolder, ask_for_driver
    from koordra.node_state.disk import Disk
    from koordra.topology.machine import Gpu

    library = NvmlLibrary(HomeSource.of(root.absolute()).nvml)

    def card_now() -> Gpu:
        for gpu in nvml_facts(library).gpus:
            if gpu.uuid and card.lower() in (gpu.uuid.lower(), gpu.location.bus_id, gpu.name):
                return gpu
        raise NodeError(f"NVML knows no card {card!r} here; nvidia-smi -L lists them")

    found = card_now()
    if found.mig_enabled is None:
        raise NodeError(f"{found.name} has no MIG mode")

    def reset() -> str | None:
        if not reset_with:
            return "and none was asked for (--reset-with)"
        command = [*shlex.split(reset_with), str(found.uuid)]
        try:
            done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=RESET_WITHIN)
        except (OSError, subprocess.TimeoutExpired) as error:
            return f"which failed: {error}"
        return None if not done.returncode else f"which failed: {(done.stderr or done.stdout).strip()}"

    folder = ReleaseFolder(state_dir, Disk())
    # A release that somebody else asked for stays.
    standing = folder.disk.read(state_dir / REQUEST_FILE)
    try:
        answer = ask_for_driver(folder, root.absolute(), timeout=timeout)
        if not answer.is_released or answer.users.holders:
            why = "; ".join((answer.standing(), *answer.in_the_way()))
            raise NodeError(f"{found.name} is not switched: {why}")
        found = card_now()
        if mode == "off" and (found.mig_instances or found.mig_halves or found.mig_halves is None):
            raise NodeError(
                f"{found.name} has MIG instances that koordra did not make; remove them (nvidia-smi mig -dci, -dgi)"
            )
        try:
            say(switch_mode(library.session, str(found.uuid), on=mode == "on", reset=reset))
        except NvmlUnavailable as error:
            raise NodeError(f"NVML cannot be used: {error}") from error
    finally:
        if not standing:
            folder.take_back()
