"""Switches the MIG mode of cards for claims that wait, beside Prepare and never in it: what the controller
asks for on the Node (koordra.api.opaque.mode_request).

    asked ─> nobody is given the cards (Prepare, then the slices) ─> clear ─> switched ─> read again ─> over

A card is switched where its policy lets it be cut (`mig`) or be either (`any`), no claim has anything of it,
no process holds it, and its mode was not switched within the last SETTLES seconds. While the driver switches,
no session of NVML is open in this process but this one: a listener for Xids counts as a client. A request of
which the cards were once withheld, and then given back, is over: the controller may have cleared it
meanwhile.

Each step is in the journal before it is done (mode_journal). Killed between any two, the next plugin goes on
with the request that stands on the Node, and switching once more what is switched changes nothing; where the
request is gone, a change that is pending is taken back. What the driver refuses, or a process prevents for
HOLDERS_FOR seconds, is not tried again for REFUSED_FOR seconds: the card stays what it is, and what it would
have in the other mode is unhealthy (MigModeRefused). A change that cannot be taken back taints the card
itself (MigModePending, discovery).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Final

from koordra.api.objects import Fields
from koordra.api.opaque.mode_request import ModeRequest, mode_request
from koordra.errors import NodeError, PrepareError
from koordra.kubelet_plugin.claims.claim_record import ClaimRecord
from koordra.kubelet_plugin.isolation.mig.mode import settle_mode, switch_mode
from koordra.kubelet_plugin.isolation.mig.mode_journal import CardMode, JournalFile
from koordra.kubelet_plugin.nvidia_driver.card_settings import SMI
from koordra.kubelet_plugin.nvidia_driver.device_holders import DriverUsers, Holder, driver_users
from koordra.kubelet_plugin.nvidia_driver.driver_programs import DriverPrograms, on_host
from koordra.kubelet_plugin.nvidia_driver.nvml_session import NvmlLibrary, NvmlUnavailable
from koordra.kubelet_plugin.publish.devices import whole_of
from koordra.kubelet_plugin.publish.node_inventory import InventorySource
from koordra.kubelet_plugin.publish.offering import ModeSwitches
from koordra.kubelet_plugin.settings import Settings
from koordra.logs import get_logger
from koordra.node_state.disk import Disk
from koordra.process.wakeable import Pause, Wakeable
from koordra.topology.machine import Gpu

log = get_logger(__name__)

SETTLES: Final = 300
"""Seconds between two switches of one card: what waits for it has its turn before the next one does."""
REFUSED_FOR: Final = 3600
HOLDERS_FOR: Final = 30
LOOK_EVERY: Final = 1.0
"""Seconds between two looks while something is asked for."""
AT_REST: Final = 30.0
ALONE_WITHIN: Final = 5.0
RESET_WITHIN: Final = 120.0
LONGEST_REFUSAL: Final = 500
_CONTROL: Final = "/dev/nvidiactl", "/dev/nvidia-uvm", "/dev/nvidia-uvm-tools", "/dev/nvidia-modeset"
"""Nodes that no card is behind."""


class ModeSwitcher(Wakeable):
    """Of one node. `see_node` may be called from any thread. `clock`: seconds of the wall clock."""

    failed = "mig_modes_not_switched"
    longest = AT_REST

    def __init__(
        self,
        state: Path,
        root: Path,
        *,
        nvml: NvmlLibrary,
        inventory: InventorySource,
        claims: Callable[[], Iterable[ClaimRecord]],
        programs: DriverPrograms,
        changed: Callable[[], None],
        disk: Disk,
        users: Callable[[Path], DriverUsers] = driver_users,
        clock: Callable[[], float] = time.time,
    ) -> None:
        super().__init__()
        self._root, self._nvml, self._inventory = root, nvml, inventory
        self._claims, self._programs, self._changed = claims, programs, changed
        self._users, self._clock = users, clock
        self._file = JournalFile(state, disk)
        self._request: ModeRequest | None = None
        self._seen = False
        self._told = ""
        self._switched: dict[str, bool] = {}
        """Cards whose mode was switched, until a reading of the machine shows it."""
        self._held_since: float | None = None

    @classmethod
    def of(
        cls,
        settings: Settings,
        nvml: NvmlLibrary,
        inventory: InventorySource,
        *,
        claims: Callable[[], Iterable[ClaimRecord]],
        changed: Callable[[], None],
        disk: Disk,
    ) -> ModeSwitcher:
        programs = DriverPrograms(on_host(settings.homes))
        paths = settings.paths
        return cls(
            paths.state,
            paths.root,
            nvml=nvml,
            inventory=inventory,
            claims=claims,
            programs=programs,
            changed=changed,
            disk=disk,
        )

    def see_node(self, node: Fields) -> None:
        """What is asked for is given to nobody from now on, before the next slices are written."""
        found = mode_request(node)
        if found != self._request or not self._seen:
            self._request, self._seen = found, True
            if found is not None and found.is_clear and found.token != self._file.journal.over:
                self._withhold(found)
            self.wake()

    def step(self) -> Pause:
        """Raises KoordraError."""
        if not self._seen or not self._inventory.known:
            return Pause(0.0, LOOK_EVERY)
        request = self._request
        if request is None or request.token == self._file.journal.over:
            self._settle()
            if self._is_read():
                self._withhold(None)
                return Pause(0.0, AT_REST)
            return Pause(LOOK_EVERY / 2, LOOK_EVERY)
        why_not = "" if self._switched else self._why_not(request)
        if why_not and (request.is_clear or self._withholds):
            self._give_up(request, why_not)
        elif why_not:
            self._tell("mig_mode_waits", why_not)
        elif self._is_done(request):
            self._end(request)
        else:
            self._withhold(request)
            # Only claims that are read after Prepare began to refuse are all that there will be.
            if request.is_clear and not self._switched and not self._held(request):
                self._switch(request)
        return Pause(LOOK_EVERY / 2, LOOK_EVERY)

    # what is asked

    def _cards(self, request: ModeRequest) -> list[tuple[Gpu, bool]]:
        """Those that the machine has."""
        found = {gpu.name: gpu for gpu in self._inventory.current().machine.gpus}
        return [(found[name], on) for name, on in request.cards if name in found]

    def _why_not(self, request: ModeRequest) -> str:
        """Why the request is not taken up, now or at all; empty where it is. What is begun is carried on."""
        inventory, cards, now = self._inventory.current(), self._cards(request), self._clock()
        if inventory.withheld:
            return inventory.withheld
        if len(cards) != len(request.cards):
            return "the node does not have all of these cards"
        for gpu, on in cards:
            of = self._file.journal.of(str(gpu.uuid))
            if gpu.mig_enabled == on or of.begun:
                continue
            if not inventory.offering.of_card(gpu).switched or not gpu.certain:
                return f"the policy of {gpu.name} does not let its mode be switched"
            if gpu.faults:
                return f"{gpu.name} is unhealthy: {', '.join(gpu.faults)}"
            if of.refused and 0 <= now - of.at < REFUSED_FOR:
                return f"the driver refused it: {of.refused}"
            if 0 <= now - of.at < SETTLES:
                return f"the mode of {gpu.name} was switched less than {SETTLES} s ago"
        return self._held(request)

    def _held(self, request: ModeRequest) -> str:
        """By which claim or process."""
        asked = {name for name, _ in request.cards}
        for record in self._claims():
            for device in record.devices:
                if whole_of(device.device) in asked:
                    return f"claim {record.ref} has {device.device}"
        return ""

    def _in_the_way(self, cards: Iterable[Gpu]) -> str:
        """Processes that hold a card, or something of the driver of which it is not known what it is."""
        of_cards = {f"/dev/nvidia{gpu.minor}": gpu for gpu in self._inventory.current().machine.gpus}
        asked = {gpu.name for gpu in cards}

        def holds(holder: Holder) -> bool:
            nodes = [node for node in holder.devices if node not in _CONTROL]
            return any(node not in of_cards or of_cards[node].name in asked for node in nodes)

        found = [holder.line({}) for holder in self._users(self._root).holders if holds(holder)]
        return "; ".join(found)

    # what is done

    def _withhold(self, request: ModeRequest | None) -> None:
        token = "" if request is None else request.token
        switching = {} if request is None else {name: token for name, _ in request.cards}
        now = self._clock()
        refused = frozenset(
            gpu.name
            for gpu in self._inventory.current().machine.gpus
            if (of := self._file.journal.of(str(gpu.uuid))).refused and 0 <= now - of.at < REFUSED_FOR
        )
        modes = ModeSwitches(switching, refused)
        if modes != self._inventory.current().modes:
            self._inventory.switch(modes)
            self._changed()

    @property
    def _withholds(self) -> bool:
        return bool(self._inventory.current().modes.switching)

    def _tell(self, event: str, why: str) -> None:
        if why != self._told:
            log.info(event, why=why)
        self._told = why

    def _give_up(self, request: ModeRequest, why: str) -> None:
        log.warning("mig_mode_given_up", why=why, asked_for=request.waiting)
        self._end(request)

    def _end(self, request: ModeRequest) -> None:
        """On the disk before the cards are everybody's again: what the controller cleared holds no longer."""
        journal = replace(self._file.journal, over=request.token)
        for entry in journal.cards:
            journal = journal.with_card(replace(entry, begun=False))
        self._file.keep(journal)
        self._told, self._held_since = "", None
        if self._is_read():
            self._withhold(None)

    def _is_done(self, request: ModeRequest) -> bool:
        """Whether the machine, as it was read last, is as it was asked for."""
        cards = self._cards(request)
        return self._is_read() and all(gpu.mig_enabled == on and not gpu.faults for gpu, on in cards)

    def _is_read(self) -> bool:
        """Whether the machine was read since cards were switched."""
        modes = {gpu.name: gpu.mig_enabled for gpu in self._inventory.current().machine.gpus}
        self._switched = {name: on for name, on in self._switched.items() if modes.get(name, on) != on}
        return not self._switched

    def _switch(self, request: ModeRequest) -> None:
        try:
            with self._nvml.alone(within=ALONE_WITHIN) as session:
                if holders := self._in_the_way(gpu for gpu, _ in self._cards(request)):
                    self._prevented(request, holders)
                    return
                for gpu, on in self._cards(request):
                    self._keep(gpu, begun=True)
                    try:
                        done = switch_mode(session, str(gpu.uuid), on=on, reset=partial(self._reset, gpu))
                    except NodeError as error:
                        self._refuse(request, gpu, str(error))
                        return
                    log.info("mig_mode_switched", device=gpu.name, done=done, asked_for=request.waiting)
                    self._switched[gpu.name] = on
        except NvmlUnavailable as error:
            raise NodeError(f"NVML cannot be used: {error}") from error

    def _prevented(self, request: ModeRequest, holders: str) -> None:
        now = self._clock()
        self._held_since = now if self._held_since is None else min(self._held_since, now)
        self._tell("mig_mode_waits_for_processes", holders)
        if now - self._held_since >= HOLDERS_FOR:
            for gpu, _ in self._cards(request):
                self._refuse(request, gpu, holders)

    def _refuse(self, request: ModeRequest, gpu: Gpu, why: str) -> None:
        log.error("mig_mode_refused", device=gpu.name, error=why)
        self._keep(gpu, refused=why)
        self._give_up(request, why)

    def _keep(self, gpu: Gpu, *, refused: str = "", begun: bool = False) -> None:
        entry = CardMode(str(gpu.uuid), int(self._clock()), refused[:LONGEST_REFUSAL], begun)
        self._file.keep(self._file.journal.with_card(entry))

    def _settle(self) -> None:
        """Nobody asks any more, and a plugin was killed while it switched."""
        for entry in self._file.journal.cards:
            if entry.begun:
                try:
                    with self._nvml.alone(within=ALONE_WITHIN) as session:
                        settle_mode(session, entry.uuid)
                except NvmlUnavailable as error:
                    raise NodeError(f"NVML cannot be used: {error}") from error
                self._file.keep(self._file.journal.with_card(replace(entry, begun=False)))

    def _reset(self, gpu: Gpu) -> str | None:
        try:
            self._programs.run(SMI, "--gpu-reset", "-i", str(gpu.uuid), within=RESET_WITHIN)
        except PrepareError as error:
            return f"which failed: {error}"
        return None
