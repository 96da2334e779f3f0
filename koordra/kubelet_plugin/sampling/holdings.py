"""Who has how much of the node's GPUs: what containers and claims were granted, whoever allocated it. Pure.

A part of a card is counted by the larger of its part of the memory and of the cores, which nobody else can
have: a quarter of the memory and a tenth of the cores are a quarter of a GPU.

Claims are known by the plugin's records, from Prepare to Unprepare; a pod that Koordinator's annotation gave
devices has none, and is known by the hook's word (node_state/granted_claims).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final, NamedTuple

from koordra.api import names
from koordra.kubelet_plugin.claims.claim_record import ClaimRecord, DeviceRecord
from koordra.kubelet_plugin.publish.devices import MIB, mig_devices
from koordra.node_state.granted_claims import ContainerName, GrantedContainer, HeldDevice
from koordra.quantity import parse
from koordra.topology.machine import Gpu, Machine
from koordra.topology.product_names import gpu_model

WHOLE: Final = "gpu"
SHARE: Final = "share"
MIG: Final = "mig"
KINDS: Final = (WHOLE, SHARE, MIG)
ALL_CORES: Final = 100
FORGOTTEN: Final = 3600.0
"""Seconds, many times as long as between two scrapes."""


class Place(NamedTuple):
    """A GPU or MIG instance as dcgm-exporter's labels have it: the card's UUID, and the number of the GPU
    instance, empty for the card itself."""

    uuid: str
    instance: str = ""


@dataclass(frozen=True, slots=True)
class Unit:
    """What can be held: a card or a MIG instance. `nvml`: the UUID that NVML knows it by; `memory` in bytes
    and `cores` are all of it, `of_card` the bytes of the whole card."""

    place: Place
    nvml: str
    kind: str
    model: str
    memory: int
    cores: int
    of_card: int

    def part(self, amount: Amount) -> float:
        """Of one GPU."""
        memory = amount.memory / self.of_card if self.of_card else 0.0
        return min(1.0, max(memory, amount.cores / ALL_CORES))


class Amount(NamedTuple):
    """Of a GPU: bytes, and cores, of which a card has 100."""

    memory: int
    cores: int


class GrantOf(NamedTuple):
    """Whose a grant is, and of what; without a claim's name where Koordinator's annotation stands for it."""

    name: ContainerName
    claim: str
    device: str
    place: Place


class Payer(NamedTuple):
    """Whom a GPU's time is put down to: a namespace, one of KINDS, and the model of the card."""

    namespace: str
    kind: str
    model: str


def units_of(machine: Machine) -> dict[str, Unit]:
    """By the device's name on this node. A card in MIG mode is held through its instances alone."""
    found: dict[str, Unit] = {}
    for gpu in machine.gpus:
        if gpu.uuid and not gpu.mig_enabled:
            memory, model = (gpu.memory_bytes or 0) // MIB * MIB, _model(gpu)
            found[gpu.name] = Unit(Place(gpu.uuid), gpu.uuid, WHOLE, model, memory, ALL_CORES, memory)
        for each in mig_devices(gpu):
            if each.instance is not None and each.instance.uuid:
                found[each.name] = Unit(
                    Place(gpu.uuid or "", str(each.instance.gpu_instance)),
                    each.instance.uuid,
                    MIG,
                    _model(gpu),
                    each.profile.memory_bytes,
                    each.cores,
                    gpu.memory_bytes or 0,
                )
    return found


def _model(gpu: Gpu) -> str:
    return gpu_model(gpu.product_name) if gpu.product_name else ""


def amount_of(unit: Unit, device: DeviceRecord | None) -> Amount:
    """What a claim has of it; all, where the record does not say how much. Who has all of the memory and asks
    for no number of cores has the card, and so all of them; a share that asks for none has none."""
    if device is None or device.share_id is None or not device.consumed:
        return Amount(unit.memory, unit.cores)
    consumed = {name: int(parse(amount)) for name, amount in device.consumed}
    memory = min(consumed.get(names.CAPACITY_MEMORY, unit.memory), unit.memory)
    cores = consumed.get(names.CAPACITY_CORES, 0) or (unit.cores if memory == unit.memory else 0)
    return Amount(memory, min(cores, unit.cores))


def _annotated(unit: Unit, held: HeldDevice) -> Amount:
    return Amount(unit.memory * held.memory // 100, unit.cores * held.cores // 100)


def grants_of(
    containers: Iterable[GrantedContainer], records: Iterable[ClaimRecord], units: Mapping[str, Unit]
) -> dict[GrantOf, Amount]:
    """What each container was granted, by each claim. A claim that several containers hold is shown with
    each, as all of it: they have it together."""
    known = {
        (record.ref.uid, device.device, device.share_id): device
        for record in records
        for device in record.devices
    }
    found = dict[GrantOf, Amount]()
    for container in containers:
        mine = defaultdict[GrantOf, list[Amount]](list)
        for held in container.held:
            unit = units.get(held.device)
            if unit is None:
                continue
            row = GrantOf(container.name, held.claim_name, held.device, unit.place)
            if held.claim_name:
                device = known.get((held.claim_uid, held.device, held.share_id))
                mine[row].append(amount_of(unit, device))
            else:
                mine[row].append(_annotated(unit, held))
        for row, amounts in mine.items():
            found[row] = Amount(sum(each.memory for each in amounts), sum(each.cores for each in amounts))
    return found


def held_gpus(
    containers: Iterable[GrantedContainer], records: Iterable[ClaimRecord], units: Mapping[str, Unit]
) -> dict[Payer, float]:
    """GPUs that are held now, parts as parts: each claim once, however many containers have it, and each
    annotated pod once. Administrators' access to what others hold is nobody's."""
    found = defaultdict[Payer, float](float)
    for payer, part in (*_of_claims(records, units), *_of_annotations(containers, units)):
        found[payer] += part
    return dict(found)


def _of_claims(records: Iterable[ClaimRecord], units: Mapping[str, Unit]) -> Iterator[tuple[Payer, float]]:
    for record in records:
        for device in record.devices:
            unit = units.get(device.device)
            if unit is not None and not device.admin_access:
                yield _paid(record.ref.namespace, unit, amount_of(unit, device))


def _of_annotations(
    containers: Iterable[GrantedContainer], units: Mapping[str, Unit]
) -> Iterator[tuple[Payer, float]]:
    seen = {
        (container.name.namespace, container.name.pod, held)
        for container in containers
        for held in container.held
        if not held.claim_name
    }
    for namespace, _pod, held in sorted(seen, key=repr):
        if unit := units.get(held.device):
            yield _paid(namespace, unit, _annotated(unit, held))


def _paid(namespace: str, unit: Unit, amount: Amount) -> tuple[Payer, float]:
    part = unit.part(amount)
    kind = SHARE if unit.kind == WHOLE and part < 1 else unit.kind
    return Payer(namespace, kind, unit.model), part


class HeldTime:
    """GPU seconds by payer, since this began: what was held at one look is charged until the next. A payer
    who has held nothing for FORGOTTEN goes, so that namespaces that come and go leave nothing behind."""

    def __init__(self) -> None:
        self._seconds: dict[Payer, float] = {}
        self._held: Mapping[Payer, float] = {}
        self._at = 0.0
        self._last: dict[Payer, float] = {}

    def seconds(self, held: Mapping[Payer, float], *, at: float) -> Mapping[Payer, float]:
        """`at`: seconds of a clock that does not go back."""
        for payer, gpus in self._held.items():
            self._seconds[payer] += gpus * (at - self._at)
        for payer in (*self._held, *held):
            self._seconds.setdefault(payer, 0.0)
            self._last[payer] = at
        self._held, self._at = held, at
        for payer in [each for each, last in self._last.items() if at - last > FORGOTTEN]:
            del self._last[payer], self._seconds[payer]
        return dict(self._seconds)
