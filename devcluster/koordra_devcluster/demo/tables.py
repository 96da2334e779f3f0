"""The demo's report for people."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import click

from koordra.cli.output import show_table

MOST_REASONS = 6
"""Lines of reasons shown per waiting claim; the rest is counted."""

_SHOWN_ENV = ("NCCL_IB_HCA", "NVIDIA_VISIBLE_DEVICES", "UCX_NET_DEVICES")


def show(shown: Mapping[str, Any]) -> None:
    """Who has what, where and how near; what each container got; who waits and why; jobs, where there are
    any."""
    if "jobs" in shown:
        _jobs(shown)
    _heading("Claims")
    show_table(
        ("CLAIM", "POD", "NODE", "LEVEL", "DEVICES"),
        [
            (
                f"{claim['namespace']}/{claim['name']}",
                claim["pod"] or "-",
                claim["node"] or "-",
                claim["level"] or "-",
                [_device(device) for device in claim["devices"]],
            )
            for claim in shown["claims"]
        ],
    )
    _heading("Containers")
    show_table(
        ("POD", "CONTAINER", "CDI DEVICES", "ENVIRONMENT", "DEVICE NODES"),
        [
            (
                container["pod"],
                container["container"],
                _shortened(container["cdiDevices"]),
                [
                    f"{name}={_clipped(container['env'][name])}"
                    for name in _SHOWN_ENV
                    if name in container["env"]
                ],
                _shortened(container["deviceNodes"]),
            )
            for container in shown["containers"]
        ],
    )
    if shown["pending"]:
        _heading("Waiting")
    for claim in shown["pending"]:
        click.echo(f"{claim['namespace']}/{claim['name']}")
        for reason in claim["reasons"][:MOST_REASONS]:
            place = "/".join(part for part in (reason["node"], reason["device"]) if part) or "cluster"
            click.echo(f"  {place}: {reason['reason']}: {reason['detail']}")
        if len(claim["reasons"]) > MOST_REASONS:
            click.echo(f"  ... and {len(claim['reasons']) - MOST_REASONS} more")


def _jobs(shown: Mapping[str, Any]) -> None:
    _heading("Jobs")
    show_table(
        ("JOB", "POD", "RANK", "NODE", "BLOCK", "PHASE"),
        [
            (
                job["name"],
                pod["pod"],
                "-" if pod["rank"] is None else str(pod["rank"]),
                pod["node"] or "-",
                pod["block"] or "-",
                pod["phase"],
            )
            for job in shown["jobs"]
            for pod in job["pods"]
        ],
    )
    _heading("What was told of them")
    for event in shown["events"]:
        click.echo(f"{event['at'][11:19]}  {event['reason']}: {event['message']}")


def _heading(text: str) -> None:
    click.echo(f"\n{text}")


def _device(device: Mapping[str, Any]) -> str:
    amounts = ", ".join(f"{name} {amount}" for name, amount in sorted(device["consumedCapacity"].items()))
    return f"{device['request']}: {device['device']}" + (f" ({amounts})" if amounts else "")


def _clipped(text: str, longest: int = 44) -> str:
    return text if len(text) <= longest else f"{text[: longest - 3]}..."


def _shortened(lines: Sequence[str], most: int = 4) -> list[str]:
    return [*lines[:most], *([f"... and {len(lines) - most} more"] if len(lines) > most else [])]
