"""`koordra usage`: GPU-hours by namespace, for chargeback.

Each node's plugin counts what claims and annotated pods hold (docs/monitoring.md). A Prometheus keeps that,
and is asked for what it grew by. Without one there is what the plugins have counted since they started, and
no more: nothing of it is kept on nodes, and what an earlier plugin counted is gone. That is said, and
--since, which could only be answered wrongly, is refused.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Final

import click

from koordra.cli import options
from koordra.cli.cluster.cluster_objects import connect
from koordra.cli.cluster.use.plugin_readings import read_plugins
from koordra.cli.cluster.use.prometheus import Prometheus, prometheus
from koordra.cli.cluster.use.readings import HELD_SECONDS, Reading
from koordra.cli.options import Access, say
from koordra.cli.output import Document, show_rows
from koordra.cli.progress import progress
from koordra.errors import InvalidInput

HEADER: Final = ("NAMESPACE", "MODEL", "GPU-HOURS", "SHARE-HOURS", "MIG-HOURS", "TOTAL")
KINDS: Final = ("gpu", "share", "mig")
DEFAULT: Final = "24h"
HOUR: Final = 3600.0
LOOKS: Final = 200
"""At so many instants of the time it is looked whether Prometheus has figures of it."""
_SINCE: Final = re.compile(r"([1-9][0-9]{0,5})([mhdw])")
_SECONDS: Final = {"m": 60, "h": 3600, "d": 86400, "w": 604800}


@click.command("usage")
@options.access
@options.prometheus
@click.option("--since", metavar="TIME", help=f"Of the last 90m, 24h, 7d, 4w.  [default: {DEFAULT}]")
@click.option("-n", "--namespace", help="Of one namespace.  [default: all]")
@options.output("table", "json", "yaml")
def usage(access: Access, named: str, since: str | None, namespace: str | None, output: str) -> None:
    """GPU-hours that the claims of each namespace held, used or not, whoever allocated them.

    A share or MIG instance counts as its part of a GPU: a quarter for four hours is one SHARE-HOUR.
    """
    client = connect(access)
    server = prometheus(client, named)
    if server is not None:
        with progress("asking Prometheus", line=False):
            readings = kept(server, since or DEFAULT)
    elif since:
        raise InvalidInput(
            "needs a Prometheus, and there is none: nodes keep what they count only while their plugin runs",
            object="--since",
            remedy="name one with --prometheus, or leave --since out to see what the plugins have counted so far",
        )
    else:
        with progress("asking the nodes", line=False):
            found = read_plugins(client, [HELD_SECONDS])
        for node, why in sorted(found.silent.items()):
            say(f"koordra: node {node} is not counted: {why}", err=True)
        readings = list(found.readings)
        if found.since:
            say(
                f"koordra: no Prometheus: counted since the plugins started, between {min(found.since.values())} and "
                f"{max(found.since.values())}",
                err=True,
            )
    rows = by_namespace(readings, namespace)
    show_rows(
        [rows],
        name="usage",
        output=output,
        header=HEADER,
        cells=lambda row: (row["namespace"], row["model"] or "-", *(f"{row[key]:.2f}" for key in SHOWN)),
        empty="nothing was held",
    )


SHOWN: Final = (*(f"{kind}Hours" for kind in KINDS), "totalHours")


def kept(server: Prometheus, since: str) -> list[Reading]:
    """What the counters grew by. Raises InvalidInput, and ApiError."""
    matched = _SINCE.fullmatch(since)
    if matched is None:
        raise InvalidInput(
            f"{since[:40]!r} is no time", object="--since", remedy="a number and m, h, d or w, as in 24h"
        )
    seconds = int(matched[1]) * _SECONDS[matched[2]]
    step = max(60, seconds // LOOKS)
    grown = server.query(f"sum by (namespace, kind, model) (increase({HELD_SECONDS}[{seconds}s]))")
    first = server.query(f"min(min_over_time(timestamp(koordra_build_info)[{seconds}s:{step}s]))")
    begun = first[0].value if first else None
    if begun is None:
        say(f"koordra: {server.where} has no figures of koordra's in that time", err=True)
    elif datetime.now(UTC).timestamp() - begun < seconds - 2 * step:
        at = datetime.fromtimestamp(begun, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        say(f"koordra: {server.where} has figures since {at} alone, not of all {since}", err=True)
    return [one._replace(name=HELD_SECONDS) for one in grown]


def by_namespace(readings: Iterable[Reading], namespace: str | None = None) -> list[Document]:
    """A row for each namespace and model, in hours."""
    hours = defaultdict[tuple[str, str], dict[str, float]](lambda: dict.fromkeys(KINDS, 0.0))
    for one in readings:
        place, kind = one.labels.get("namespace", ""), one.labels.get("kind", "")
        if one.name == HELD_SECONDS and kind in KINDS and namespace in (None, place):
            hours[place, one.labels.get("model", "")][kind] += one.value / HOUR
    return [
        {
            "namespace": place,
            "model": model,
            **{f"{kind}Hours": round(of[kind], 4) for kind in KINDS},
            "totalHours": round(sum(of.values()), 4),
        }
        for (place, model), of in sorted(hours.items())
    ]
