"""What a node's cards, containers and NICs are used for, for Prometheus.

Names of containers are the hook's; without a hook nobody's. What is not known has no sample. What containers
use of processors and memory the kubelet's own metrics have, by the same names."""

from __future__ import annotations

from typing import Final

from koordra.kubelet_plugin.sampling.holdings import KINDS
from koordra.kubelet_plugin.sampling.nic_counters import EVENTS, RECEIVED, TRANSMITTED
from koordra.kubelet_plugin.sampling.nvml_cards import REASONS
from koordra.kubelet_plugin.sampling.sample import WHOSE, Sample
from koordra.metrics import Metrics, bounded, counter, gauge

_OF_GPU: Final = {
    "UUID": bounded("the node's GPUs; a MIG instance has its card's, as dcgm-exporter has it"),
    "GPU_I_ID": bounded("the number of the MIG instance on its card; empty for the card"),
}
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
    **_OF_GPU,
)
MEMORY: Final = gauge("koordra_gpu_memory_used_bytes", "Memory of the GPU in use, by whomever", **_OF_GPU)
POWER: Final = gauge("koordra_gpu_power_watts", "What the GPU draws", **_OF_GPU)
THROTTLED: Final = gauge(
    "koordra_gpu_throttled",
    "1 for each reason for which the GPU's clocks are lower than they might be now",
    **_OF_GPU,
    reason=bounded("those that the driver tells", known=sorted(REASONS.values())),
)
PROCESSES: Final = gauge(
    "koordra_gpu_processes",
    "Processes on the GPU; stranger: of a container that was granted nothing of it; unknown: no hook says whose",
    **_OF_GPU,
    whose=bounded("listed", known=WHOSE),
)
PROCESS_MEMORY: Final = gauge(
    "koordra_gpu_process_memory_bytes",
    "Memory of those processes, as far as the driver tells it",
    **_OF_GPU,
    whose=bounded("listed", known=WHOSE),
)
OF_CONTAINER: Final = gauge(
    "koordra_container_gpu_processes", "Processes of the container on the GPU", **_HOLDER, **_OF_GPU
)
CONTAINER_MEMORY: Final = gauge(
    "koordra_container_gpu_memory_bytes",
    "Memory of the GPU that processes of the container have, by the driver",
    **_HOLDER,
    **_OF_GPU,
)
CONTAINER_TIME: Final = counter(
    "koordra_container_gpu_seconds_total",
    "Time in which kernels of the container ran on the GPU, by the driver's samples; several at once count each",
    **_HOLDER,
    **_OF_GPU,
)
_GRANT: Final = {
    **_HOLDER,
    "claim": bounded("the claims of this node, by name; empty where Koordinator's annotation stands for one"),
    "device": bounded("the node's GPUs and MIG instances, as they are published"),
    **_OF_GPU,
}
GRANTED_MEMORY: Final = gauge(
    "koordra_container_gpu_granted_memory_bytes",
    "Memory of the GPU that the container was granted, whoever allocated it; what several containers have together is shown with each",
    **_GRANT,
)
GRANTED_CORES: Final = gauge(
    "koordra_container_gpu_granted_cores",
    "Cores of the GPU that the container was granted, 100 a GPU, whoever allocated it; what several containers have together is shown "
    "with each",
    **_GRANT,
)
HELD_SECONDS: Final = counter(
    "koordra_namespace_gpu_seconds_total",
    "GPU time that the claims and annotated pods of a namespace held, used or not; of a share or a MIG instance its part of the GPU",
    namespace=bounded("those that held GPUs of this node within the last hour"),
    kind=KINDS,
    model=bounded("those of the node's GPUs"),
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
        self._granted_memory, self._granted_cores, self._held = map(
            metrics.table, (GRANTED_MEMORY, GRANTED_CORES, HELD_SECONDS)
        )
        self._received, self._transmitted, self._events = map(
            metrics.table, (NIC_RECEIVED, NIC_TRANSMITTED, NIC_EVENTS)
        )

    def show(self, sample: Sample) -> None:
        cards = [(sample.place(uuid), each) for uuid, each in sample.cards.items()]
        self._busy.set({place: each.busy for place, each in cards if each.busy is not None})
        self._memory.set({place: each.memory_used for place, each in cards if each.memory_used is not None})
        self._power.set({place: each.watts for place, each in cards if each.watts is not None})
        self._throttled.set(
            {
                (*place, reason): float(reason in each.throttled)
                for place, each in cards
                if each.throttled is not None
                for reason in REASONS.values()
            }
        )
        users = [((*sample.place(uuid), whose), each) for (uuid, whose), each in sample.on_cards.items()]
        self._processes.set({row: each.processes for row, each in users})
        self._used.set({row: each.memory for row, each in users})
        containers = [
            ((*name, *sample.place(uuid)), each) for (name, uuid), each in sample.of_containers.items()
        ]
        self._of_container.set({row: each.processes for row, each in containers})
        self._container_memory.set({row: each.memory for row, each in containers})
        self._container_time.set(
            {(*name, *sample.place(uuid)): each for (name, uuid), each in sample.device_seconds.items()}
        )
        grants = [((*of.name, of.claim, of.device, *of.place), each) for of, each in sample.grants.items()]
        self._granted_memory.set({row: each.memory for row, each in grants})
        self._granted_cores.set({row: each.cores for row, each in grants})
        self._held.set({(*payer,): each for payer, each in sample.held_seconds.items()})
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
