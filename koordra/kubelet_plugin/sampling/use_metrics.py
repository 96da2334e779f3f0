"""What a node's cards, containers and NICs are used for, for Prometheus.

Names of containers are the hook's; without a hook nobody's. What is not known has no sample. What containers
use of processors and memory the kubelet's own metrics have, by the same names."""

from __future__ import annotations

from typing import Final

from koordra.kubelet_plugin.sampling.nic_counters import EVENTS, RECEIVED, TRANSMITTED
from koordra.kubelet_plugin.sampling.nvml_cards import REASONS
from koordra.kubelet_plugin.sampling.sample import WHOSE, Sample
from koordra.metrics import Metrics, bounded, counter, gauge

_UUID: Final = bounded("the node's GPUs and MIG instances, as NVML and dcgm-exporter name them")
_HOLDER: Final = {
    "namespace": bounded("those of containers that hold devices of this node; empty: of none of them"),
    "pod": bounded("pods that hold devices of this node; empty: none of them"),
    "container": bounded("containers that hold devices of this node; empty: none of them"),
}
_PORT: Final = {
    "device": bounded("the node's RDMA devices"),
    "port": bounded("the device's ports"),
    "namespace": bounded("that of the one container that has the device; empty for none, or several"),
    "pod": bounded("that of the one container that has the device; empty for none, or several"),
    "container": bounded("the one container that has the device; empty for none, or several"),
}

BUSY: Final = gauge(
    "koordra_gpu_busy_ratio",
    "Part of the driver's last period in which any kernel ran on the GPU; none for a MIG instance",
    uuid=_UUID,
)
MEMORY: Final = gauge("koordra_gpu_memory_used_bytes", "Memory of the GPU in use, by whomever", uuid=_UUID)
POWER: Final = gauge("koordra_gpu_power_watts", "What the GPU draws", uuid=_UUID)
THROTTLED: Final = gauge(
    "koordra_gpu_throttled",
    "1 for each reason for which the GPU's clocks are lower than they might be now",
    uuid=_UUID,
    reason=bounded("those that the driver tells", known=sorted(REASONS.values())),
)
PROCESSES: Final = gauge(
    "koordra_gpu_processes",
    "Processes on the GPU; stranger: of a container that was granted nothing of it; unknown: no hook says whose",
    uuid=_UUID,
    whose=bounded("listed", known=WHOSE),
)
PROCESS_MEMORY: Final = gauge(
    "koordra_gpu_process_memory_bytes",
    "Memory of those processes, as far as the driver tells it",
    uuid=_UUID,
    whose=bounded("listed", known=WHOSE),
)
OF_CONTAINER: Final = gauge(
    "koordra_container_gpu_processes", "Processes of the container on the GPU", **_HOLDER, uuid=_UUID
)
CONTAINER_MEMORY: Final = gauge(
    "koordra_container_gpu_memory_bytes",
    "Memory of the GPU that processes of the container have, by the driver",
    **_HOLDER,
    uuid=_UUID,
)
CONTAINER_TIME: Final = counter(
    "koordra_container_gpu_seconds_total",
    "Time in which kernels of the container ran on the GPU, by the driver's samples; several at once count each",
    **_HOLDER,
    uuid=_UUID,
)
NIC_RECEIVED: Final = counter(
    "koordra_nic_received_bytes_total", "What a port of an RDMA device received", **_PORT
)
NIC_TRANSMITTED: Final = counter(
    "koordra_nic_transmitted_bytes_total", "What a port of an RDMA device transmitted", **_PORT
)
NIC_EVENTS: Final = counter(
    "koordra_nic_events_total",
    "What a port of an RDMA device counts besides: errors, waits, congestion",
    **_PORT,
    kind=bounded("listed", known=sorted(EVENTS.values())),
)


class UseMetrics:
    def __init__(self, metrics: Metrics) -> None:
        self._busy, self._memory, self._power = map(metrics.table, (BUSY, MEMORY, POWER))
        self._throttled, self._processes, self._used = map(
            metrics.table, (THROTTLED, PROCESSES, PROCESS_MEMORY)
        )
        self._of_container, self._container_memory, self._container_time = map(
            metrics.table, (OF_CONTAINER, CONTAINER_MEMORY, CONTAINER_TIME)
        )
        self._received, self._transmitted, self._events = map(
            metrics.table, (NIC_RECEIVED, NIC_TRANSMITTED, NIC_EVENTS)
        )

    def show(self, sample: Sample) -> None:
        cards = sample.cards.items()
        self._busy.set({(uuid,): each.busy for uuid, each in cards if each.busy is not None})
        self._memory.set({(uuid,): each.memory_used for uuid, each in cards if each.memory_used is not None})
        self._power.set({(uuid,): each.watts for uuid, each in cards if each.watts is not None})
        self._throttled.set(
            {
                (uuid, reason): float(reason in each.throttled)
                for uuid, each in cards
                if each.throttled is not None
                for reason in REASONS.values()
            }
        )
        self._processes.set({row: each.processes for row, each in sample.on_cards.items()})
        self._used.set({row: each.memory for row, each in sample.on_cards.items()})
        containers = [((*name, uuid), each) for (name, uuid), each in sample.of_containers.items()]
        self._of_container.set({row: each.processes for row, each in containers})
        self._container_memory.set({row: each.memory for row, each in containers})
        self._container_time.set(
            {(*name, uuid): each for (name, uuid), each in sample.device_seconds.items()}
        )
        ports = [((of.device, str(of.port), *of.holder), values) for of, values in sample.ports.items()]
        self._received.set({row: values[RECEIVED] for row, values in ports if RECEIVED in values})
        self._transmitted.set({row: values[TRANSMITTED] for row, values in ports if TRANSMITTED in values})
        self._events.set(
            {
                (*row, kind): values[kind]
                for row, values in ports
                for kind in EVENTS.values()
                if kind in values
            }
        )
