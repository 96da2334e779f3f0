"""Samples of koordra's series, wherever they were read. Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final, NamedTuple

CORES: Final = "koordra_container_gpu_granted_cores"
MEMORY: Final = "koordra_container_gpu_granted_memory_bytes"
MEMORY_USED: Final = "koordra_container_gpu_memory_bytes"
GPU_SECONDS: Final = "koordra_container_gpu_seconds_total"
RECEIVED: Final = "koordra_nic_received_bytes_total"
TRANSMITTED: Final = "koordra_nic_transmitted_bytes_total"
HELD_SECONDS: Final = "koordra_namespace_gpu_seconds_total"
GAUGES: Final = (CORES, MEMORY, MEMORY_USED)
COUNTERS: Final = (GPU_SECONDS, RECEIVED, TRANSMITTED)


class Reading(NamedTuple):
    """One sample, of a node where that is known."""

    name: str
    labels: Mapping[str, str]
    value: float
    node: str = ""


class Device(NamedTuple):
    """A GPU or MIG instance in dcgm-exporter's labels."""

    uuid: str
    instance: str


class Holder(NamedTuple):
    """Of a grant; `claim` is empty where Koordinator's annotation stands for it."""

    namespace: str
    pod: str
    claim: str


@dataclass(slots=True)
class Use:
    """What one pod has by one claim, in GPUs and bytes; a rate is per second. None: not known."""

    node: str = ""
    gpus: float = 0.0
    memory: float = 0.0
    gpus_used: float | None = None
    memory_used: float | None = None
    received: float | None = None
    transmitted: float | None = None
    devices: set[Device] = field(default_factory=set)


def rates(before: Iterable[Reading], after: Iterable[Reading], *, seconds: float) -> list[Reading]:
    """Of what is in both; what counts anew since is rated from 0."""
    old = {(one.node, one.name, frozenset(one.labels.items())): one.value for one in before}
    found = []
    for one in after:
        key = one.node, one.name, frozenset(one.labels.items())
        if one.name in COUNTERS and key in old:
            grown = one.value - old[key] if one.value >= old[key] else one.value
            found.append(one._replace(value=grown / seconds))
    return found


def uses(
    readings: Iterable[Reading], rated: Iterable[Reading], nics: Mapping[tuple[str, str], frozenset[str]]
) -> dict[Holder, Use]:
    """By holder. `rated`: counters as rates; `nics`: by namespace and name of a claim the names of its NICs.

    What several containers of a pod have by one claim is granted once. Where a pod has two claims on one
    card its use is shown with both: the driver does not tell them apart."""
    found = defaultdict[Holder, Use](Use)
    granted = dict[tuple[str, Holder, str, Device], float]()
    for one in readings:
        if one.name in (CORES, MEMORY):
            key = one.name, _holder(one), one.labels.get("device", ""), _device(one)
            granted[key] = max(one.value, granted.get(key, 0.0))
            found[_holder(one)].node = one.node
    for (name, holder, _, device), value in granted.items():
        use = found[holder]
        use.devices.add(device)
        if name == CORES:
            use.gpus += value / 100
        else:
            use.memory += value
    used = _by_pod(one for one in readings if one.name == MEMORY_USED)
    ran = _by_pod(one for one in rated if one.name == GPU_SECONDS)
    for holder, use in found.items():
        pod = holder[:2]
        use.memory_used = _sum(used.get(pod, {}), use.devices)
        use.gpus_used = _sum(ran.get(pod, {}), use.devices)
    _add_ports(found, rated, nics)
    return dict(found)


def _holder(one: Reading) -> Holder:
    return Holder(*(one.labels.get(name, "") for name in Holder._fields))


def _device(one: Reading) -> Device:
    return Device(one.labels.get("UUID", ""), one.labels.get("GPU_I_ID", ""))


def _by_pod(readings: Iterable[Reading]) -> dict[tuple[str, str], dict[Device, float]]:
    """By device, its containers together."""
    found = defaultdict[tuple[str, str], dict[Device, float]](dict)
    for one in readings:
        if pod := one.labels.get("pod"):
            of = found[one.labels.get("namespace", ""), pod]
            of[_device(one)] = of.get(_device(one), 0.0) + one.value
    return found


def _sum(of: Mapping[Device, float], devices: Iterable[Device]) -> float | None:
    known = [of[device] for device in devices if device in of]
    return sum(known) if known else None


def _add_ports(
    found: Mapping[Holder, Use], rated: Iterable[Reading], nics: Mapping[tuple[str, str], frozenset[str]]
) -> None:
    for one in rated:
        if one.name not in (RECEIVED, TRANSMITTED) or not one.labels.get("pod"):
            continue
        pod, device = (one.labels.get("namespace", ""), one.labels["pod"]), one.labels.get("device", "")
        for holder, use in found.items():
            mine = nics.get((holder.namespace, holder.claim), frozenset())
            if holder[:2] == pod and (device in mine or not holder.claim):
                if one.name == RECEIVED:
                    use.received = (use.received or 0.0) + one.value
                else:
                    use.transmitted = (use.transmitted or 0.0) + one.value
