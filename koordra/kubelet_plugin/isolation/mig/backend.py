"""Backend `mig`: the instance of a claim, made when the claim is prepared and removed with it.

Which place of which card the claim has is in its allocation; here the instance is made there (instances.py),
and the claim's containers get its two capability nodes. Its UUID, ids and nodes are not known before.

An instance that is there already and that no claim of koordra's made is handed out as it is and left when the
claim ends; one that is half made, or is in the way of the place, is left, and the claim is refused with its
name. Nothing here changes the MIG mode of a card.

While a process lives on an instance it cannot be removed. The kubelet calls again until it can, and the claim
holds the place until then; after PATIENCE the instance's device is told to be unhealthy.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Final

from koordra.api import names
from koordra.api.opaque.parameters import GpuConfig
from koordra.errors import PrepareError
from koordra.kubelet_plugin.discovery.gpus import instance_nodes
from koordra.kubelet_plugin.discovery.machine_root import MachineRoot
from koordra.kubelet_plugin.isolation.backend import (
    Capabilities,
    Card,
    IsolationBackend,
    Keep,
    Realised,
    Share,
    UndoneLater,
)
from koordra.kubelet_plugin.isolation.mig.instances import InstanceInUse, InstancesOfCard
from koordra.kubelet_plugin.isolation.mig.journal import Journal, Place
from koordra.kubelet_plugin.nvidia_driver.nvml_session import NvmlLetGo, NvmlLibrary, NvmlUnavailable
from koordra.kubelet_plugin.publish.devices import MigDevice, mig_devices
from koordra.logs import get_logger
from koordra.node_state.prepared_claim import GuardedDevice
from koordra.node_state.strict_json import Pairs
from koordra.topology.location import DeviceNode
from koordra.topology.machine import Machine

log = get_logger(__name__)

PATIENCE: Final = 120.0
"""Seconds for which the processes of a claim that ended may stay on its instance."""


class _DriverGoes(PrepareError):
    """NVML may not be used, since the driver is about to be replaced."""


class MigIsolation(IsolationBackend):
    """`machine` is the node's as it was read last; `root` where its /proc and /dev are; `guard` is told of
    each instance before a container can have it. `offered`: instances are made; otherwise those that were
    made before are kept and removed with their claims."""

    name = "mig"
    capabilities = Capabilities(memory=True, cores=True)

    def __init__(
        self,
        library: NvmlLibrary,
        *,
        machine: Callable[[], Machine],
        root: Callable[[], MachineRoot],
        guard: Callable[[GuardedDevice], None],
        offered: bool = True,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._library, self._machine, self._root, self._clock = library, machine, root, clock
        self._guard, self._offered = guard, offered
        self._used_since: dict[str, float] = {}

    @property
    def unavailable(self) -> str | None:
        return None if self._offered else "start the kubelet plugin with --mig-on-demand"

    def fits(self, share: Share, config: GpuConfig, card: Card) -> str | None:
        try:
            self._device(share.device)
        except PrepareError as error:
            return str(error)
        return None

    def prepare(self, share: Share, config: GpuConfig, keep: Keep) -> Realised:
        device = self._device(share.device)
        place = Place(str(device.gpu.uuid), device.profile.id, device.start, device.size)

        def write_down(journal: Journal) -> None:
            keep(journal.pairs())

        with self._card(place.card) as card:
            journal = self._of_this_boot(share.journal)
            if journal is None:
                card.require_mig_mode()
                journal = replace(card.existing(place) or Journal(place), boot=self._boot)
                write_down(journal)
            journal = card.make(journal, write_down)
        nodes = self._nodes(device, journal)
        self._guard(GuardedDevice(device.name, names.TYPE_GPU, nodes[1:]))
        return Realised(uuid=journal.uuid, nodes=nodes)

    def unprepare(self, share: Share) -> None:
        try:
            self._remove(share.journal)
        except _DriverGoes as error:
            # The claim's end is what the driver waits for, and the instance goes with it; or it is removed
            # then.
            raise UndoneLater(str(error)) from error
        except InstanceInUse:
            self._used_since.setdefault(share.device, self._clock())
            raise
        self._used_since.pop(share.device, None)

    def card_stop(self, card: Card) -> None:
        """What was to be removed later."""
        self._remove(card.journal)

    def _remove(self, written: Pairs) -> None:
        journal = self._of_this_boot(written)
        if journal is not None:
            with self._card(journal.place.card) as card:
                card.remove(journal)

    def stuck(self) -> dict[str, str]:
        """Devices whose instances should be gone for longer than their processes have to end, and why not."""
        now = self._clock()
        return {
            device: "InstanceInUse"
            for device, since in list(self._used_since.items())
            if now - since >= PATIENCE
        }

    @property
    def _boot(self) -> str:
        return self._machine().boot_id or ""

    def _of_this_boot(self, written: Pairs) -> Journal | None:
        """What was written down; nothing of an earlier boot, whose instances are gone: what is at that place
        now is another's."""
        journal = Journal.read(written)
        return journal if journal is not None and journal.boot == self._boot else None

    def _device(self, name: str) -> MigDevice:
        found = (part for gpu in self._machine().gpus for part in mig_devices(gpu, on_demand=True))
        device = next((part for part in found if part.name == name), None)
        if device is None or not isinstance(device.gpu.node, DeviceNode):
            raise PrepareError(f"PartitionMismatch: {name} is no place of a card in MIG mode here")
        return device

    def _nodes(self, device: MigDevice, journal: Journal) -> tuple[DeviceNode, ...]:
        """The card's node and the two of the instance."""
        card = device.gpu.node
        assert card is not None
        ids = journal.gpu_instance or 0, journal.compute_instance or 0
        found = list(instance_nodes(self._root(), device.gpu.minor, *ids))
        for node in found:
            if isinstance(node, str):
                raise PrepareError(f"DeviceUnhealthy: {device.name}: {node}; check /proc/driver/nvidia-caps")
        return (card, *(node for node in found if isinstance(node, DeviceNode)))

    @contextmanager
    def _card(self, uuid: str) -> Iterator[InstancesOfCard]:
        try:
            with self._library.session() as nvml:
                yield InstancesOfCard(nvml, uuid)
        except NvmlLetGo as error:
            raise _DriverGoes(f"Tainted: the driver is to be free: {error}") from error
        except NvmlUnavailable as error:
            raise PrepareError(f"BackendUnavailable: NVML cannot be used: {error}") from error
