"""What a process counts, for Prometheus.

    instruments    what there is to count: name, meaning, unit, and every label with its values
    registry       the instruments of one process, and their present values. The only importer of
                   prometheus_client

It is served by koordra/process/metrics_server.

A part that counts declares its instruments as constants of its module (`counter(...)`, `gauge(...)`,
`histogram(...)`), and takes them from the process's one `Metrics` when it is built; a test makes its own.
docs/metrics.md is made from these constants, and compared with what the installed processes serve
(tests/unit/deploy/test_metrics_page.py).

Names follow Prometheus: `koordra_<part>_<what>_<unit>`, base units, `_total` for what only grows. No label
holds what a tenant may choose without a bound that the declaration states: values that a declaration lists
are there from the start, at 0, and one that it does not list is counted as `other`.
"""

from koordra.metrics.instruments import (
    LATENCY_BUCKETS,
    Instrument,
    Label,
    bounded,
    counter,
    gauge,
    histogram,
)
from koordra.metrics.registry import (
    Counter,
    Gauge,
    Histogram,
    Metrics,
    NodeTables,
    Rows,
    Table,
    samples,
)

__all__ = [
    "LATENCY_BUCKETS",
    "Counter",
    "Gauge",
    "Histogram",
    "Instrument",
    "Label",
    "Metrics",
    "NodeTables",
    "Rows",
    "Table",
    "bounded",
    "counter",
    "gauge",
    "histogram",
    "samples",
]
