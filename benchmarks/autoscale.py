"""What it costs to find out which new nodes would make waiting claims fit, in the cluster of
`benchmarks.explain`, which is full: seconds of CPU, and the forecasts that it took. The controller does it in
a thread of its own, for a tenth of its time."""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import UTC, datetime
from functools import partial
from resource import RUSAGE_SELF, getrusage
from typing import Any
from unittest.mock import Mock, patch

from benchmarks import _results
from benchmarks.explain import WAITING, full_cluster, timed
from koordra.cli.what_if.machines import machine_slices
from koordra.controller.autoscale import scale_up
from koordra.controller.autoscale.node_groups import NodeGroup, new_nodes
from koordra.controller.cache.changes import tables_of
from koordra.controller.explain.forecast.intake import Terms
from koordra.process.lifecycle import collect_seldom

NODES = (1_000, 10_000)
GROUP = NodeGroup(
    "h100", "hgx-h100", machine_slices("hgx-h100"), 20_000, {"pool": "h100"}, (), {"cpu": "192"}
)


def main() -> None:
    collect_seldom()
    found = {"waiting": WAITING, "sizes": [_size(nodes) for nodes in NODES]}
    written = _markdown(found["sizes"])
    _results.write("autoscale", found, written)
    print(written)


def _size(nodes: int) -> dict[str, Any]:
    text = json.dumps(list(full_cluster(nodes)))
    read, plain = timed(partial(json.loads, text))
    cluster, terms = tables_of(read), Terms(datetime.now(UTC))
    with patch.object(scale_up, "new_nodes", Mock(wraps=new_nodes)) as with_more:
        answer, seconds = timed(lambda: scale_up.scale_up(cluster, terms, [GROUP]))
    return {
        "nodes": nodes,
        "plain_read_s": plain,
        "seconds": seconds,
        "forecasts": 1 + with_more.call_count,
        "peak_gib": round(getrusage(RUSAGE_SELF).ru_maxrss / 2**20, 1),
        "ratio": seconds / plain,
        "new_nodes": answer.counts[GROUP.name],
        "fits": len(answer.fits),
    }


def _markdown(sizes: Sequence[dict[str, Any]]) -> str:
    rows = [
        (
            one["nodes"],
            one["fits"],
            one["new_nodes"],
            one["forecasts"],
            one["seconds"],
            f"{one['ratio']:.1f}x",
            one["peak_gib"],
        )
        for one in sizes
    ]
    head = (
        "nodes that are there",
        "claims served",
        "new nodes",
        "forecasts",
        "s",
        "json.loads of the objects",
        "peak GiB",
    )
    return "\n".join(["# Which new nodes would do", "", "Seconds of CPU.", "", _results.table(head, rows)])
