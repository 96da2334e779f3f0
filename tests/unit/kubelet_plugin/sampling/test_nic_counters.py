"""Counters of ports: read below a root, and summed up."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from koordra.kubelet_plugin.sampling.nic_counters import (
    EVENTS,
    RECEIVED,
    TRANSMITTED,
    PortCounters,
    increase,
    read_ports,
    totals,
)


def write(root: Path, name: str, text: str, *, device: str = "mlx5_0", port: int = 1) -> None:
    path = root / "sys/class/infiniband" / device / "ports" / str(port) / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def test_what_a_port_has_is_read(tmp_path: Path) -> None:
    for name, text in {
        "counters/port_rcv_data": "1000\n",
        "counters/port_xmit_data": "2000\n",
        "counters/symbol_error": "3\n",
        "hw_counters/np_cnp_sent": "4\n",
        "hw_counters/lifespan": "10\n",
        "hw_counters/out_of_sequence": "N/A (no PMA)\n",
        "counters/port_rcv_errors": "-1\n",
        "counters/port_xmit_discards": "9" * 4000,
    }.items():
        write(tmp_path, name, text)
    read = read_ports(tmp_path, [("mlx5_0", 1), ("mlx5_0", 2), ("gone", 1)])
    values = {RECEIVED: 1000, TRANSMITTED: 2000, "symbol_errors": 3, "congestion_notified": 4}
    assert read == {("mlx5_0", 1): PortCounters(values)}
    summed = totals({}, {}, read)
    assert summed["mlx5_0", 1] == values | {RECEIVED: 4000, TRANSMITTED: 8000}, "words are of four bytes"


@pytest.mark.parametrize(
    ("before", "now", "wanted"),
    [
        (5, 5, 0),
        (5, 9, 4),
        (9, 4, 4),
        (2**32 - 10, 20, 30),
        (2**33, 20, 20),
        (2**32 - 10, 2**31, 2**31),
    ],
)
def test_a_counter_that_fell_began_anew_or_was_at_its_end(before: int, now: int, wanted: int) -> None:
    assert increase(before, now) == wanted


@given(
    st.lists(
        st.one_of(
            st.none(),
            st.dictionaries(st.sampled_from([RECEIVED, *EVENTS.values()]), st.integers(0, 2**64 - 1)),
        ),
        max_size=20,
    )
)
def test_a_total_never_falls(readings: list[dict[str, int] | None]) -> None:
    port = "mlx5_0", 1
    known: dict[tuple[str, int], dict[str, int]] = {}
    last: dict[tuple[str, int], PortCounters] = {}
    for reading in readings:
        now = {} if reading is None else {port: PortCounters(reading)}
        after = totals(known, last, now)
        for word, value in known.get(port, {}).items():
            assert after[port][word] >= value
        known, last = after, last | now
