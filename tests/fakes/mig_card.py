"""A card in MIG mode that the fake NVML has, for processes that may be killed at any of their calls."""

from __future__ import annotations

import json
import os
import signal
import traceback
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from koordra.kubelet_plugin.isolation.mig.instances import InstancesOfCard
from koordra.kubelet_plugin.isolation.mig.journal import Journal, Place
from koordra.kubelet_plugin.nvidia_driver.nvml_session import NvmlLibrary
from koordra.topology import presets
from koordra.topology.presets.mig import mig_profiles
from tests.fakes.nvml_library import FakeNvml

Instance = tuple[Place, int]
"""A GPU instance, and how many compute instances it has."""


class MigCard:
    """What is written down outlives a killed process as the card's instances do."""

    def __init__(
        self,
        folder: Path,
        library: Path,
        card: str = "H100-SXM5-80GB",
        *,
        enabled: bool = True,
        architecture: str = "Hopper",
    ) -> None:
        machine = presets.load("hgx-h100").machine(serial="a")
        gpu = replace(
            machine.gpus[0],
            mig_enabled=enabled,
            architecture=architecture,
            mig_profiles=mig_profiles({"mig_profiles": card}),
            mig_instances=(),
        )
        self.machine, self.gpu, self.uuid = machine, gpu, str(gpu.uuid)
        self.fake = FakeNvml(folder, library)
        self.fake.describe(replace(machine, gpus=(gpu,)))
        self._written = folder / "written"

    def place(self, profile: str, start: int) -> Place:
        known = next(one for one in self.gpu.mig_profiles if one.name == profile)
        return Place(self.uuid, known.id, start, dict(known.placements)[start])

    def keep(self, journal: Journal | None, name: str = "claim") -> None:
        found = self.written()
        found.pop(name, None)
        if journal is not None:
            found[name] = journal
        new = self._written.with_suffix(".new")
        new.write_text(json.dumps({each: journal.pairs() for each, journal in found.items()}))
        new.replace(self._written)

    def written(self) -> dict[str, Journal]:
        if not self._written.exists():
            return {}
        found = json.loads(self._written.read_text())
        journals = {
            name: Journal.read(tuple((key, value) for key, value in pairs)) for name, pairs in found.items()
        }
        return {name: journal for name, journal in journals.items() if journal is not None}

    def make(self, place: Place, name: str = "claim") -> str:
        """The UUID, or the error's text; what a process of the plugin does."""
        return str(self.call(lambda card: self.make_on(card, place, name)))

    def remove(self, name: str = "claim") -> str:
        """Empty, or the error's text."""
        return str(self.call(lambda card: self.remove_from(card, name)))

    def instances(self) -> list[Instance]:
        """What is on the card, read anew."""
        found = self.call(self.listed)
        return sorted((Place(self.uuid, *one[:3]), one[3]) for one in found)

    # --- within one process ---------------------------------------------------------------------------------

    def make_on(self, card: InstancesOfCard, place: Place, name: str = "claim") -> str:
        journal = self.written().get(name)
        if journal is None:
            card.require_mig_mode()
            journal = card.existing(place) or Journal(place)
            self.keep(journal, name)
        return card.make(journal, lambda found: self.keep(found, name)).uuid

    def remove_from(self, card: InstancesOfCard, name: str = "claim") -> str:
        journal = self.written().get(name)
        if journal is not None:
            card.remove(journal)
            self.keep(None, name)
        return ""

    def listed(self, card: InstancesOfCard) -> list[list[int]]:
        return [[one.profile, one.start, one.size, len(card._parts(one))] for one in card._wholes()]

    def call(self, run: Callable[[InstancesOfCard], Any]) -> Any:
        """What a process of its own finds; ``"killed"`` where an order killed it, "error: ..." for a
        PrepareError."""
        reading, writing = os.pipe()
        child = os.fork()
        if not child:
            os.close(reading)
            os.environ |= self.fake.environment
            with os.fdopen(writing, "w") as answer:
                try:
                    library = NvmlLibrary(lambda: self.fake.library / "libnvidia-ml.so.1")
                    with library.session() as nvml:
                        json.dump(run(InstancesOfCard(nvml, self.uuid)), answer)
                except Exception as error:  # noqa: BLE001  (the child must not return into the test)
                    wanted = type(error).__name__ in ("PrepareError", "InstanceInUse", "NvmlUnavailable")
                    json.dump(f"error: {error}" if wanted else f"broken: {traceback.format_exc()}", answer)
            os._exit(0)
        os.close(writing)
        with os.fdopen(reading) as answer:
            said = answer.read()
        _, status = os.waitpid(child, 0)
        if os.WIFSIGNALED(status):
            assert os.WTERMSIG(status) == signal.SIGKILL
            return "killed"
        found = json.loads(said)
        assert not str(found).startswith("broken: "), found
        return found
