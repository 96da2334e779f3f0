"""The steps of a self test, one after the other, within a budget of seconds.

    environment, driver, discovery ─> nvidia-smi, topology, partitioning ─> container: which kind is there
      ─> whole card: quick programs ─> share without a limit ─> share with the limiter: all programs
      ─> whole card: the slow ones ─> what the limiter costs ─> parts of the card's time

A step that fails does not stop the next, unless that has nothing to stand on.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final

from koordra.errors import NodeError
from koordra.kubelet_plugin.nvidia_driver.driver_root import NamedRoot
from koordra.kubelet_plugin.nvidia_driver.homes import HomeSource, HostRoot
from koordra.kubelet_plugin.selftest import fabric
from koordra.kubelet_plugin.selftest.claims import LIMITER, ClaimPreparation, WantedClaim
from koordra.kubelet_plugin.selftest.machine import facts, nvidia_smi
from koordra.kubelet_plugin.selftest.machine.aside import aside
from koordra.kubelet_plugin.selftest.machine.seen_machine import SeenMachine, see
from koordra.kubelet_plugin.selftest.program_checks import IN_ORDER, LIMITED, UNLIMITED, WHOLE_CARD
from koordra.kubelet_plugin.selftest.program_runs import LEAST_SECONDS, Stopwatch
from koordra.kubelet_plugin.selftest.report import Finding, Report, Step, ok, problem, skipped
from koordra.kubelet_plugin.selftest.trials import PROGRAMS, Trials
from koordra.topology.machine import Gpu, Machine
from koordra.topology.pictures.document import document
from koordra.topology.problems import Discovery

GIB: Final = 1 << 30
_DISCOVERED_WITHIN: Final = 60.0
"""Seconds: a driver that initialises eight cards takes some for each."""


@dataclass(frozen=True, slots=True)
class Settings:
    """`folder`: the self test's own, empty; `libraries`: where the built limiter and bench-gpu may be, the
    first that has them counts; `container`: `auto`, `namespace` or `process`; `python` runs the programs;
    `memory` is the share's size, None: 8 GiB, or half of a smaller card; `only`: patterns of the names of the
    program steps that run, none: all of them; `peer`: the address of another machine, and only what is
    between the two is tried then; `own_address`: this one's, None: what the system takes towards it."""

    root: Path
    folder: Path
    libraries: tuple[Path, ...]
    container: str = "auto"
    python: str = sys.executable
    memory: int | None = None
    device: str | None = None
    only: tuple[str, ...] = ()
    peer: str | None = None
    peer_port: int = fabric.PORT
    own_address: str | None = None
    driver_root: NamedRoot | None = None

    @property
    def homes(self) -> HomeSource:
        return HomeSource(HostRoot(self.root, self.root), root=self.root, named=self.driver_root)


class Course:
    """One self test."""

    def __init__(self, settings: Settings, report: Report, watch: Stopwatch) -> None:
        self._settings = settings
        self._report = report
        self._watch = watch

    def run(self) -> None:
        """Every step, until the budget ends. Raises NodeError where the report cannot be written."""
        settings = self._settings
        self._step("environment", lambda: facts.environment(settings.root, settings.python, settings.folder))
        self._step("driver", self._home)
        found = self._discover()
        if self._settings.peer is not None:
            self._try_fabric(found, self._settings.peer)
        else:
            self._try_machine(found)
        self._report.attach("kernel.txt", facts.kernel_log())
        self._report.finish()

    def _try_machine(self, found: Discovery) -> None:
        machine = found.machine
        smi = nvidia_smi.NvidiaSmi(self._settings.homes.now(), self._settings.folder)
        cards: list[nvidia_smi.Card] = []
        self._step("nvidia-smi", lambda: self._compare(smi, machine, cards))
        self._step("topology", lambda: self._compare_topology(smi, machine, cards))
        self._step("partitioning", lambda: facts.partitioning(machine, self._settings.root))
        for name, arguments in (("nvidia-smi-q.txt", ("-q",)), ("nvidia-smi.txt", ())):
            with suppress(NodeError):
                self._report.attach(name, smi.ask(*arguments))
        self._report.attach("kernel.txt", facts.kernel_log())
        gpu = self._card(machine)
        if gpu is not None:
            used = next((card.used_mib for card in cards if card.uuid == gpu.uuid), 0)
            self._try_card(found, gpu, self._share_of(gpu, used * nvidia_smi.MIB))

    def _try_fabric(self, found: Discovery, peer: str) -> None:
        """The trials with another machine, each a step; none where it does not come."""
        settings = self._settings
        nics = fabric.active(found.machine)
        with ExitStack() as held:
            met: list[tuple[fabric.Rendezvous, tuple[fabric.Trial, ...]]] = []

            def meet() -> Finding:
                own = settings.own_address or fabric.own_address(peer)
                patience = max(1.0, self._watch.left / 2)
                meeting = fabric.Rendezvous(own, peer, port=settings.peer_port, patience=patience)
                held.callback(meeting.close)
                gpu = bool(found.machine.gpus) and fabric.has_torch(settings.python)
                sides = meeting.exchange(fabric.Side(len(nics), fabric.has_write_bw(), gpu))
                met.append((meeting, fabric.trials(*sides, port=settings.peer_port)))
                return ok(f"{own}, the {'server' if meeting.server else 'client'} of {peer}")

            self._step("fabric", meet)
            for meeting, trials in met:
                program = (settings.python, "-m", f"{PROGRAMS}.nccl_all_reduce")
                side = fabric.FabricRun(meeting, nics, settings.folder, program)
                for trial in trials:
                    if self._watch.left < LEAST_SECONDS:
                        self._report.add(Step(f"fabric: {trial.name}", self._watch.used_up()))
                        continue
                    self._step(f"fabric: {trial.name}", partial(self._fabric_trial, side, trial))

    def _fabric_trial(self, side: fabric.FabricRun, trial: fabric.Trial) -> Finding:
        finding, output = side.run(trial)
        self._report.attach(f"programs/fabric-{trial.name.replace(' ', '-')}.txt", output)
        return finding

    def _step(self, name: str, act: Callable[[], Finding]) -> Finding:
        return self._report.step(name, act)

    def _home(self) -> Finding:
        home = self._settings.homes.now()
        if home.driver is None or home.problems:
            wrong = "; ".join([str(home), *map(str, home.problems)])
            return problem(wrong, "name the driver's folder with --driver-root")
        return ok(f"{home}; kernel module {home.loaded or 'unknown'}")

    def _discover(self) -> Discovery:
        seen: list[SeenMachine] = []

        def act() -> Finding:
            root, homes = self._settings.root, self._settings.homes
            seen.append(aside(partial(see, root, homes), deadline=_DISCOVERED_WITHIN))
            finding, found = _judged(seen[0]), seen[0].found
            shown = {
                "machine": document(found.machine),
                "problems": [str(each) for each in found.problems],
                "elsewhere": seen[0].elsewhere,
            }
            self._report.attach("discovery.json", json.dumps(shown, indent=1))
            return finding

        self._step("discovery", act)
        return seen[0].found if seen else Discovery(Machine())

    def _compare(self, smi: nvidia_smi.NvidiaSmi, machine: Machine, cards: list[nvidia_smi.Card]) -> Finding:
        """What nvidia-smi lists goes into `cards`."""
        if not smi.installed:
            return skipped("there is no nvidia-smi")
        text = smi.ask(*nvidia_smi.QUERY)
        cards += nvidia_smi.cards(text)
        if not cards:
            return problem(
                f"nvidia-smi lists no card: {text.strip()[:300]}", "see whether the driver is well"
            )
        wrong = nvidia_smi.differences(machine, cards)
        shown = "; ".join(
            f"{card.name}, {card.memory_mib} MiB, {card.used_mib} of them in use, driver {card.driver}"
            for card in cards
        )
        if wrong:
            return problem("; ".join(wrong), "attach this report: one of the two reads the driver wrongly")
        return ok(f"the same: {shown}")

    def _compare_topology(
        self, smi: nvidia_smi.NvidiaSmi, machine: Machine, cards: Sequence[nvidia_smi.Card]
    ) -> Finding:
        if not cards:
            return skipped("nvidia-smi lists no card")
        said = smi.ask(*nvidia_smi.TOPOLOGY)
        self._report.attach("nvidia-smi-topo.txt", said)
        seen = nvidia_smi.matrix(said)
        wrong = nvidia_smi.topology_differences(machine, cards, seen)
        if wrong:
            return problem(
                "; ".join(wrong), "give what sysfs hides with the plugin's --overlay, or attach this report"
            )
        pairs = sum(1 for one, other in seen if one < other)
        return ok(f"the same for {pairs} pairs" if pairs else "one device: there is nothing to compare")

    def _card(self, machine: Machine) -> Gpu | None:
        cards = [gpu for gpu in machine.gpus if gpu.publishable]
        wanted = self._settings.device
        chosen = next((gpu for gpu in cards if wanted in (None, gpu.uuid, gpu.name)), None)
        if chosen is None:
            known = ", ".join(f"{gpu.name} ({gpu.uuid})" for gpu in cards) or "none"
            text = f"whole cards that koordra offers are {known}"
            divided = [gpu.name for gpu in machine.gpus if gpu.mig_enabled]
            text += f"; {', '.join(divided)} in MIG mode" if divided else ""
            finding = (
                skipped(f"no card can be tried: {text}")
                if wanted is None
                else problem(f"there is no {wanted} to be tried: {text}", "name one of these with --device")
            )
            self._step("claims", lambda: finding)
        return chosen

    def _share_of(self, gpu: Gpu, used: int) -> int:
        """Bytes of the share: half of what is free at most, in whole GiB where that is one or more."""
        half = max(0, (gpu.memory_bytes or 0) - used) // 2
        return self._settings.memory or min(8 * GIB, half // GIB * GIB or GIB // 2)

    def _try_card(self, found: Discovery, gpu: Gpu, memory: int) -> None:
        settings = self._settings
        claims = ClaimPreparation(
            found,
            root=settings.root,
            folder=settings.folder,
            libraries=settings.libraries,
            homes=settings.homes,
        )
        trials = Trials(
            self._report,
            self._watch,
            folder=settings.folder,
            native=next(
                (each for each in settings.libraries if (each / "bench-gpu").exists()), settings.libraries[0]
            ),
            nvml=settings.homes.nvml(),
            python=settings.python,
            container=settings.container,
            only=settings.only,
        )
        wanted = {
            WHOLE_CARD: WantedClaim(WHOLE_CARD, gpu),
            UNLIMITED: WantedClaim(UNLIMITED, gpu, memory),
            LIMITED: WantedClaim(LIMITED, gpu, memory, LIMITER),
        }
        for name, checks in IN_ORDER:
            trials.of_claim(claims, wanted[name], checks)
        self._step("limiter-overhead", trials.overhead)
        trials.core_shares(claims, gpu, memory)


def _judged(seen: SeenMachine) -> Finding:
    machine, problems = seen.found.machine, seen.found.problems
    cards = ", ".join(f"{gpu.product_name} {gpu.uuid} at {gpu.location.bus_id}" for gpu in machine.gpus)
    driver = f"driver {machine.driver_version}" if machine.driver_version else "no driver"
    text = f"{driver}: {cards or 'no GPU'}; {len(machine.nics)} RDMA NICs"
    if seen.elsewhere:
        text += f"; {len(seen.elsewhere)} more on the PCI bus are not given to this container"
    bad = "; ".join(str(each) for each in problems if each.object.startswith(("GPU", "NVML", "machine")))
    if not machine.gpus:
        return problem(
            "; ".join(filter(None, (text, bad))), "check that the driver is loaded and /sys is mounted"
        )
    if seen.by_nvml:
        return ok(f"{text}; by NVML alone, for there is no PCI tree: no node of a cluster could offer them")
    return problem(f"{text}; {bad}", "see the problems") if bad else ok(text)
