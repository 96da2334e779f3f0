"""A sample of a node, and the last ones: what metrics, `top` and profiles read of use, and nothing else is
kept of it.

A sample is a value: it says of whom each figure is (namespace, pod, container; the GPU's or MIG instance's
UUID), whatever becomes of the container afterwards, and nobody changes it. What counts up (device seconds,
processor seconds, what ports count) is a total, of which a reader takes the difference between two samples;
one that is smaller than before has begun anew.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from koordra.kubelet_plugin.sampling.cgroups import CgroupUse
from koordra.kubelet_plugin.sampling.holdings import Amount, GrantOf, Payer, Place
from koordra.kubelet_plugin.sampling.nvml_cards import CardState
from koordra.node_state.granted_claims import ContainerName

WHOSE: Final = ("granted", "stranger", "host", "unknown")
"""Who is on a card: processes of a container that was granted it, or a MIG instance of it (`granted`); of a
container that was not (`stranger`); of the host (`host`); and of containers of a node where no hook writes
down who was granted what (`unknown`)."""
NOBODY: Final = ContainerName("", "", "")
KEPT: Final = 60
"""Samples: five minutes, so a reader that comes once a minute misses none. One of a hundred containers on
eight GPUs is some 100 KiB."""


class OnCard(NamedTuple):
    """Processes of one kind of owner on a card; bytes without those that the driver does not report."""

    processes: int = 0
    memory: int = 0


class PortOf(NamedTuple):
    """A port of an RDMA device: the device as it is published, the port's number, and the container that has
    it alone, NOBODY where none or several do."""

    device: str
    port: int
    holder: ContainerName


@dataclass(frozen=True, slots=True)
class Sample:
    """The node at `at` (seconds of CLOCK_MONOTONIC).

    By UUID of a GPU or MIG instance: `cards`, how it is, and with one of WHOSE `on_cards`. By container that
    holds devices, and UUID: `of_containers`, what it has on the card, and `device_seconds`, how long its
    kernels ran, since counting began; NOBODY's is what no such container has had. `cgroups`: of such a
    container, and, without a container's name, of its whole pod. `ports`: what they have counted, by word of
    nic_counters. `grants`: what containers were granted; `held_seconds`: GPU time by whom it is put down to;
    `places`: where a UUID is, in dcgm-exporter's labels; `pod_uids`: by namespace and pod;
    `sizes`: bytes of memory by UUID."""

    at: float = 0.0
    cards: Mapping[str, CardState] = field(default_factory=dict)
    on_cards: Mapping[tuple[str, str], OnCard] = field(default_factory=dict)
    of_containers: Mapping[tuple[ContainerName, str], OnCard] = field(default_factory=dict)
    device_seconds: Mapping[tuple[ContainerName, str], float] = field(default_factory=dict)
    cgroups: Mapping[ContainerName, CgroupUse] = field(default_factory=dict)
    ports: Mapping[PortOf, Mapping[str, int]] = field(default_factory=dict)
    grants: Mapping[GrantOf, Amount] = field(default_factory=dict)
    held_seconds: Mapping[Payer, float] = field(default_factory=dict)
    places: Mapping[str, Place] = field(default_factory=dict)
    pod_uids: Mapping[tuple[str, str], str] = field(default_factory=dict)
    sizes: Mapping[str, int] = field(default_factory=dict)

    def place(self, uuid: str) -> Place:
        return self.places.get(uuid, Place(uuid))


class RecentSamples:
    """The last KEPT samples, oldest first. One thread adds, any may read."""

    def __init__(self) -> None:
        self._kept: tuple[Sample, ...] = ()

    def add(self, sample: Sample) -> None:
        self._kept = (*self._kept, sample)[-KEPT:]

    @property
    def last(self) -> Sample:
        """An empty one before the first."""
        kept = self._kept
        return kept[-1] if kept else Sample()

    def since(self, at: float) -> tuple[Sample, ...]:
        """Those that were taken after `at`: the last that the reader has had."""
        return tuple(each for each in self._kept if each.at > at)
