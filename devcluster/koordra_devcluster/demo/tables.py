"""The demo's report for people."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from typing import Any

from koordra.cli.cluster.claim_text import told_lines
from koordra.cli.cluster.device_text import device_lines
from koordra.cli.options import NARROW, say
from koordra.cli.output import show_table

_LAST_LINES = 3
_SHOWN_ENV = ("NCCL_IB_HCA", "NVIDIA_VISIBLE_DEVICES", "UCX_NET_DEVICES")


def show(shown: Mapping[str, Any], *, wide: bool) -> None:
    """Who has what, where and how near; what each container got; who waits and why; gangs, where there are
    any."""
    _gangs(shown, wide=wide)
    _heading("Claims")
    show_table(
        (*(("CLAIM",) if wide else ()), "POD", "NODE", "LEVEL", "DEVICES"),
        [
            (
                *((f"{claim['namespace']}/{claim['name']}",) if wide else ()),
                claim["pods"] or "-",
                claim["node"] or "-",
                claim["level"] or "-",
                device_lines(claim["devices"], wide=wide),
            )
            for claim in shown["claims"]
        ],
        empty="no claim has devices",
        wide=wide,
    )
    _heading("Containers")
    seen = ("CDI DEVICES", "ENVIRONMENT", "DEVICE NODES") if wide else ("RDMA DEVICES", "DEVICE NODES")
    show_table(
        ("POD", "CONTAINER", *seen),
        [
            (one["pod"], one["container"], *(_whole(one) if wide else _brief(one)))
            for one in shown["containers"]
        ],
        empty="none runs",
        wide=wide,
    )
    _output(shown)
    _events(shown)
    if shown["pending"]:
        _heading("Waiting")
    for claim in shown["pending"]:
        say(f"{claim['namespace']}/{claim['name']}")
        for line in told_lines(claim["told"], 2):
            say(line)


def _output(shown: Mapping[str, Any]) -> None:
    if shown["output"]:
        _heading("What was printed")
    for one in shown["output"]:
        for line in one["text"].splitlines()[-_LAST_LINES:]:
            say(f"{one['pod']}  {line}")


def _events(shown: Mapping[str, Any]) -> None:
    if shown["events"]:
        _heading("What was told")
    for event in shown["events"]:
        line = f"{event['at'][11:19]}  {event['reason']}: {event['message']}"
        say(textwrap.fill(line, NARROW, subsequent_indent="          ", break_long_words=False))


def _gangs(shown: Mapping[str, Any], *, wide: bool) -> None:
    members = [pod for pod in shown["pods"] if pod["gang"]]
    if not members:
        return
    _heading("Gangs")
    show_table(
        ("GANG", "POD", "RANK", "NODE", "BLOCK", "PHASE"),
        [
            (
                pod["gang"],
                pod["name"],
                "-" if pod["rank"] is None else str(pod["rank"]),
                pod["node"] or "-",
                pod["block"] or "-",
                pod["phase"],
            )
            for pod in members
        ],
        wide=wide,
    )


def _heading(text: str) -> None:
    say(f"\n{text}")


def _whole(container: Mapping[str, Any]) -> tuple[Sequence[str], ...]:
    env = [f"{name}={container['env'][name]}" for name in _SHOWN_ENV if name in container["env"]]
    return container["cdiDevices"], env, container["deviceNodes"]


def _brief(container: Mapping[str, Any]) -> tuple[str, ...]:
    """The devices that NCCL is told of, and the first of the device nodes."""
    told = container["env"].get("NCCL_IB_HCA", "").removeprefix("=").split(",")
    names = [name.partition(":")[0] for name in told if name]
    return _shortened(names), _shortened(container["deviceNodes"])


def _shortened(names: Sequence[str], most: int = 2) -> str:
    more = [f"and {len(names) - most} more"] if len(names) > most else []
    return " ".join([*names[:most], *more]) or "-"
