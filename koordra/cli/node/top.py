"""`koordra node top`: what the limited claims of this node use of their GPUs, now. UNSEEN is the part of USED
that the node found beyond what the claim's processes were granted: modules, other interfaces, what got around
the limiter.

Read from the shared regions below the plugin's state directory, so it is for a shell on the node, or in the
plugin's pod.
"""

from __future__ import annotations

from pathlib import Path

import click

from koordra.cli import options
from koordra.cli.options import say
from koordra.cli.output import Document, show_document, show_table
from koordra.errors import NodeError
from koordra.kubelet_plugin.isolation.limiter import usage
from koordra.kubelet_plugin.isolation.limiter.usage import ClaimUse


@click.command(name="top")
@options.plugin_state
@options.flag("--processes", "One line for each process.")
@click.option("-o", "--output", type=click.Choice(["json"]), help="The document alone on stdout.")
def top(state_dir: Path, processes: bool, output: str | None) -> None:
    """GPU memory of the claims on this node that have a limit, by claim and GPU or by process."""
    uses = []
    claims = state_dir / "limiter" / "claims"
    for folder in sorted(claims.iterdir()) if claims.is_dir() else []:
        try:
            uses.append(usage.read(folder))
        except NodeError as error:
            say(f"koordra: {error}", err=True)
    if output == "json":
        show_document([document(use) for use in uses], "json")
    elif processes:
        show_table(
            ("CLAIM", "PID", "HOST PID", "NAME", "GPU", "USED", "FOR"),
            [row for use in uses for row in process_rows(use)],
        )
    else:
        show_table(
            ("CLAIM", "GPU", "USED", "UNSEEN", "LIMIT", "PROCESSES", "REFUSED", "LIMITER"),
            [row for use in uses for row in claim_rows(use)],
        )


def claim_rows(use: ClaimUse) -> list[tuple[str, ...]]:
    return [
        (
            use.claim,
            device.uuid,
            mebibytes(device.used),
            mebibytes(device.unseen),
            "-" if device.limit is None else mebibytes(device.limit),
            str(len(use.processes)),
            str(device.denied),
            use.handshake,
        )
        for device in use.devices
    ]


def process_rows(use: ClaimUse) -> list[tuple[str, ...]]:
    return [
        (
            use.claim,
            str(process.pid),
            str(process.host_pid or "-"),
            process.name,
            device.uuid,
            mebibytes(process.held[index]),
            " ".join(f"{kind}={mebibytes(held)}" for kind, held in process.kinds[index].items() if held)
            or "-",
        )
        for process in use.processes
        for index, device in enumerate(use.devices)
    ]


def mebibytes(amount: int) -> str:
    """Rounded up, so that something never shows as nothing."""
    return f"{-(-amount // (1 << 20))}Mi"


def document(use: ClaimUse) -> Document:
    return {
        "claim": use.claim,
        "limiter": use.handshake,
        "turnedAway": use.turned_away,
        "outside": use.outside,
        "devices": [
            {
                "uuid": device.uuid,
                "usedBytes": device.used,
                "limitBytes": device.limit,
                "unseenBytes": device.unseen,
                "contextBytes": device.context_bytes,
                "denied": device.denied,
                "deviceTime": {
                    "ratio": device.rate / 10_000,
                    "chargedSeconds": device.device_ns / 1e9,
                    "seenSeconds": device.seen_ns / 1e9,
                    "waitedSeconds": device.waited_ns / 1e9,
                }
                if device.rate
                else None,
            }
            for device in use.devices
        ],
        "processes": [
            {
                "pid": process.pid,
                "hostPid": process.host_pid or None,
                "name": process.name,
                "enforcing": process.enforcing,
                "heldBytes": {device.uuid: process.held[index] for index, device in enumerate(use.devices)},
            }
            for process in use.processes
        ],
    }
