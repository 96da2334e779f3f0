"""What the ports of RDMA devices count, by sysfs: /sys/class/infiniband/<device>/ports/<n>/counters and
hw_counters.

`port_rcv_data` and `port_xmit_data` are in words of four bytes (ABI/stable/sysfs-class-infiniband).
Counters begin anew when a driver is loaded, and those of 32 bits at 2^32; a total that is kept here goes on.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from koordra.kubelet_plugin.discovery.machine_root import MachineRoot

_WORD: Final = 4
RECEIVED: Final = "received_bytes"
TRANSMITTED: Final = "transmitted_bytes"
_BYTES: Final = {RECEIVED: "port_rcv_data", TRANSMITTED: "port_xmit_data"}
EVENTS: Final = {
    "counters/link_error_recovery": "link_recoveries",
    "counters/port_rcv_errors": "receive_errors",
    "counters/port_xmit_discards": "transmit_discards",
    "counters/port_xmit_wait": "transmit_waits",
    "counters/symbol_error": "symbol_errors",
    "hw_counters/local_ack_timeout_err": "ack_timeouts",
    "hw_counters/np_cnp_sent": "congestion_notified",
    "hw_counters/out_of_sequence": "out_of_sequence",
    "hw_counters/packet_seq_err": "sequence_errors",
    "hw_counters/rnr_nak_retry_err": "receiver_not_ready",
    "hw_counters/rp_cnp_handled": "congestion_heeded",
}
"""By file, what it counts. mlx5 has all of them, other drivers some."""
_MOST_DIGITS: Final = 20
_NARROW: Final = 1 << 32

Port = tuple[str, int]
"""An RDMA device's name, and the port's number."""


@dataclass(frozen=True, slots=True)
class PortCounters:
    """By word of EVENTS, or RECEIVED and TRANSMITTED (in words of four bytes); those that the port has."""

    values: Mapping[str, int] = field(default_factory=dict)


def read_ports(root: Path, ports: Iterable[Port]) -> dict[Port, PortCounters]:
    """Those of the ports that there are below the machine's root."""
    machine = MachineRoot(root)
    found = {}
    for device, number in ports:
        folder = f"sys/class/infiniband/{device}/ports/{number}"
        values = {word: _number(machine, f"{folder}/{name}") for name, word in EVENTS.items()}
        values |= {word: _number(machine, f"{folder}/counters/{name}") for word, name in _BYTES.items()}
        known = {word: value for word, value in values.items() if value is not None}
        if known:
            found[device, number] = PortCounters(known)
    return found


def _number(machine: MachineRoot, path: str) -> int | None:
    text = (machine.data(path, most=64) or b"").decode("ascii", errors="replace").strip()
    return int(text) if text.isdecimal() and len(text) <= _MOST_DIGITS else None


def increase(before: int, now: int) -> int:
    """By how much a counter grew that may have begun anew, or have been at the end of its 32 bits."""
    if now >= before:
        return now - before
    wrapped = _NARROW * 3 // 4 < before < _NARROW and now < _NARROW // 4
    return now + _NARROW - before if wrapped else now


def totals(
    known: Mapping[Port, Mapping[str, int]],
    before: Mapping[Port, PortCounters],
    now: Mapping[Port, PortCounters],
) -> dict[Port, dict[str, int]]:
    """What each port has counted, in bytes and events: as the driver says it at first, and from then on what
    was added. `before` has each port as it was last seen, whenever that was."""
    found = {port: dict(values) for port, values in known.items()}
    for port, counters in now.items():
        kept = found.setdefault(port, {})
        earlier = before[port].values if port in before else {}
        for word, value in counters.values.items():
            more = increase(earlier[word], value) if word in earlier else value
            kept[word] = kept.get(word, 0) + more * (_WORD if word in _BYTES else 1)
    return found
