"""The steps of a self test, one after the other, within a budget of seconds.

    environment, driver, discovery ─> nvidia-smi, topology, partitioning ─> container: which kind is there
      ─> whole card: quick programs ─> share without a limit ─> share with the limiter: all programs
      ─> whole card: the slow ones ─> what the limiter costs

A step that fails does not stop the next, unless that has nothing to stand on.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final

from koordra.kubelet_plugin.discovery.nvml_gpus import LastFacts
from koordra.kubelet_plugin.discovery.reading import discover_with_driver
from koordra.kubelet_plugin.nvidia_driver.driver_root import DriverRoot
from koordra.kubelet_plugin.nvidia_driver.homes import HomeSource, HostRoot
from koordra.kubelet_plugin.nvidia_driver.nvml_session import NvmlLibrary
from koordra.kubelet_plugin.selftest import fabric, facts, nvidia_smi
from koordra.kubelet_plugin.selftest.claims import LIMITER, ClaimPreparation, WantedClaim
from koordra.kubelet_plugin.selftest.program_checks import (
    SHARE,
    UNLIMITED_SHARE,
    WHOLE,
    WHOLE_LATER,
)
from koordra.kubelet_plugin.selftest.program_runs import Stopwatch
from koordra.kubelet_plugin.selftest.report import Finding, Report, ok, problem, skipped
from koordra.kubelet_plugin.selftest.trials import PROGRAMS, Trials
from koordra.topology.machine import Gpu, Machine
from koordra.topology.pictures.document import document
from koordra.topology.problems import Discovery

GIB: Final = 1 << 30


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
    driver_root: DriverRoot | None = None

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
        self._step("environment", lambda: facts.environment(self._settings.root))
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
        self._step("nvidia-smi", lambda: self._compare(found))
        self._step("topology", lambda: self._compare_topology(found))
        self._step("partitioning", lambda: facts.partitioning(machine, self._settings.root))
        self._attach_logs()
        gpu = self._card(found)
        if gpu is not None:
            self._try_card(found, gpu)

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
                program = (settings.python, "-P", "-m", f"{PROGRAMS}.nccl_all_reduce")
                side = fabric.FabricRun(meeting, nics, settings.folder, program)
                for trial in trials:
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
        found: list[Discovery] = []

        def act() -> Finding:
            found.append(self._read())
            machine = found[0].machine
            shown = {
                "machine": document(machine),
                "problems": [str(each) for each in found[0].problems],
            }
            self._report.attach("discovery.json", json.dumps(shown, indent=1))
            text = ", ".join(
                f"{gpu.product_name} {gpu.uuid} at {gpu.location.bus_id}" for gpu in machine.gpus
            )
            text = f"driver {machine.driver_version}: {text or 'no GPU'}; {len(machine.nics)} RDMA NICs"
            bad = [
                str(each) for each in found[0].problems if each.object.startswith(("GPU", "NVML", "machine"))
            ]
            if not machine.gpus:
                return problem(
                    f"{text}; {'; '.join(bad)}", "check that the driver is loaded and /sys is mounted"
                )
            return problem(f"{text}; {'; '.join(bad)}", "see the problems") if bad else ok(text)

        self._step("discovery", act)
        return found[0] if found else Discovery(Machine())

    def _read(self) -> Discovery:
        homes = self._settings.homes
        library = LastFacts(NvmlLibrary(homes.nvml))
        return discover_with_driver(self._settings.root, homes, library=library)

    def _compare(self, found: Discovery) -> Finding:
        said = facts.told("nvidia-smi", *nvidia_smi.QUERY)
        if said is None:
            return skipped("there is no nvidia-smi that answers")
        listed = nvidia_smi.cards(said)
        wrong = nvidia_smi.differences(found.machine, listed)
        shown = "; ".join(f"{card.name}, {card.memory_mib} MiB, driver {card.driver}" for card in listed)
        if wrong:
            return problem("; ".join(wrong), "attach this report: one of the two reads the driver wrongly")
        return ok(f"the same: {shown}")

    def _compare_topology(self, found: Discovery) -> Finding:
        said, query = (
            facts.told("nvidia-smi", *nvidia_smi.TOPOLOGY),
            facts.told("nvidia-smi", *nvidia_smi.QUERY),
        )
        if said is None or query is None:
            return skipped("nvidia-smi topo -m does not answer")
        self._report.attach("nvidia-smi-topo.txt", said)
        seen = nvidia_smi.matrix(said)
        wrong = nvidia_smi.topology_differences(found.machine, nvidia_smi.cards(query), seen)
        if wrong:
            return problem(
                "; ".join(wrong), "give what sysfs hides with the plugin's --overlay, or attach this report"
            )
        pairs = sum(1 for one, other in seen if one < other)
        return ok(f"the same for {pairs} pairs" if pairs else "one device: there is nothing to compare")

    def _card(self, found: Discovery) -> Gpu | None:
        cards = [gpu for gpu in found.machine.gpus if gpu.publishable]
        wanted = self._settings.device
        chosen = next((gpu for gpu in cards if wanted in (None, gpu.uuid, gpu.name)), None)
        if chosen is None:
            known = ", ".join(gpu.name for gpu in cards) or "none"
            self._step(
                "claims",
                lambda: skipped(f"no card can be tried: whole cards that koordra offers are {known}"),
            )
        return chosen

    def _attach_logs(self) -> None:
        for name, arguments in (("nvidia-smi-q.txt", ("-q",)), ("nvidia-smi.txt", ())):
            self._report.attach(name, facts.told("nvidia-smi", *arguments) or "")
        self._report.attach("kernel.txt", facts.kernel_log())

    def _try_card(self, found: Discovery, gpu: Gpu) -> None:
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
            python=settings.python,
            container=settings.container,
            only=settings.only,
        )
        memory = settings.memory or min(8 * GIB, (gpu.memory_bytes or 0) // 2 // GIB * GIB or GIB // 2)
        share = WantedClaim("share", gpu, memory, LIMITER)
        trials.of_claim(claims, WantedClaim("whole", gpu), WHOLE)
        trials.of_claim(claims, WantedClaim("unlimited-share", gpu, memory), UNLIMITED_SHARE)
        trials.of_claim(claims, share, SHARE)
        trials.of_claim(claims, WantedClaim("whole", gpu), WHOLE_LATER)
        self._step("limiter-overhead", trials.overhead)
