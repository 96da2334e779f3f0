"""A node that is handed over between koordra and another stack, in any order of events, and what must hold.

Real are `HandOver`, the guard's file, the reading of the kubelet's records, and the rules of the hook. The
kubelet and the other stack are doubles that keep to what the real ones do:

    device plugin   registers with the kubelet, which records it, and does not record that it ends; the Node's
                    allocatable follows later. The kubelet admits a pod while devices are registered, and
                    records what it has before it makes the container; the entry stays after the pod has
                    ended, until the next admission
    DRA driver      serves a registration socket; the kubelet records a claim before it calls the driver; the
                    driver prepares while it runs, and no more than each card once, as far as it knows
    pods            their containers are made through the hook, end, and are made again while the pod lasts
    koordra         Prepare holds the state's lock: it reads whose the cards are, and writes the claim

Everything that can happen happens between any two steps of `HandOver` that touch anything: other events, an
error of the disk, and kill -9, after which a new one starts from the disk. A card has two owners when
containers of both stacks can use it, or a container of the other stack and a claim that is prepared.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

from koordra.api import names
from koordra.errors import KoordraError
from koordra.kubelet_plugin.claims.claim_record import ClaimRecord, DeviceRecord, State
from koordra.kubelet_plugin.prepare.device_guard import DeviceGuardFile
from koordra.kubelet_plugin.publish.hand_over import HandOver, Phase
from koordra.kubelet_plugin.publish.peers_on_node import (
    CHECKPOINT,
    DEVICE_PLUGINS,
    GPUS,
    DeviceKind,
    PeersOnNode,
    peers_on_node,
)
from koordra.node_state.claim_ref import ClaimRef
from koordra.node_state.disk import Disk
from koordra.node_state.prepared_claim import decode_guard
from koordra.nri.hook.adjust import NodeFacts, decide
from koordra.nri.hook.oci import Container, DeviceRule, Refusal
from koordra.topology import presets
from koordra.topology.machine import Machine
from tests.fakes.model_wire import Faults

STATE: Final = Path("/state")
RESOURCE: Final = "nvidia.com/gpu"
DRIVER: Final = "gpu.nvidia.com"
STEPS: Final = 60


class Killed(BaseException):
    """kill -9."""


def small_machine(root: Path) -> Machine:
    machine = presets.write_machine("hgx-h100", root, serial="hand-over")
    return replace(machine, gpus=machine.gpus[:2], nics=machine.nics[:1])


class WatchedDisk(Disk):
    """Files in memory; `around` is called before and after each step."""

    def __init__(self, around: Callable[[], None]) -> None:
        self.files: dict[Path, bytes] = {}
        self._around = around

    def replace(self, path: Path, data: bytes, *, mode: int, durable: bool = True) -> None:
        self._around()
        self.files[path] = data
        self._around()

    def read(self, path: Path) -> bytes | None:
        return self.files.get(path)


@dataclass
class PeerPod:
    """`card`: its number; `is_made`: its container runs. A pod that ended is `gone`, its records may stay."""

    uid: str
    card: int
    by_claim: bool
    is_made: bool = False
    is_gone: bool = False


@dataclass
class HandOverWorld:
    """`folder`: the kubelet's."""

    folder: Path
    faults: Faults
    machine: Machine
    label: str = ""
    plugin: bool = False
    """The device plugin is registered."""
    was_plugin: bool = False
    driver: bool = False
    allocatable: int = 0
    """What the Node says, which follows."""
    pods: list[PeerPod] = field(default_factory=list)
    claims: dict[int, ClaimRecord] = field(default_factory=dict)
    """Of koordra: card -> the claim that is prepared."""
    others: Mapping[str, str] = field(default_factory=dict)
    given: bool = False
    """koordra has left the cards to whom the label names, and still does: his containers are not refused."""
    seen: str = ""
    """The label as koordra saw it last."""
    number: int = 0
    inside: bool = False
    happened: list[str] = field(default_factory=list)
    prepared: int = 0
    refused: int = 0

    def __post_init__(self) -> None:
        self.disk = WatchedDisk(self.anything)
        (self.folder / DEVICE_PLUGINS).mkdir(parents=True)
        (self.folder / "plugins_registry").mkdir()
        (self.folder / "pods").mkdir()
        self.record()
        self.start()

    # koordra

    def start(self) -> None:
        """A new process: what is in memory is gone, the files stay. No claim is prepared before it is up."""
        self.others = {names.TYPE_GPU: "starting"}
        self.guard = DeviceGuardFile(STATE / "guarded.json", node="n", disk=self.disk)
        self.hand_over = HandOver(
            STATE,
            claims=self.records,
            look=self.look,
            guard=self.guard,
            leave=self.leave,
            disk=self.disk,
        )
        self.guard.update(self.machine)
        if self.faults.random.random() < 0.7:
            self.hand_over.see_node(self.node())
        self.hand_over.start()

    def node(self) -> dict[str, Any]:
        labels = {names.GPU_OWNER_LABEL: self.label} if self.label else {}
        return {
            "metadata": {"name": "n", "labels": labels},
            "status": {"allocatable": {RESOURCE: str(self.allocatable)}},
        }

    def look(self, kind: DeviceKind, node: Any) -> PeersOnNode:
        self.anything()
        found = peers_on_node(
            self.folder, kind, host=self.folder, node=node, answers=lambda _path: self.driver
        )
        self.anything()
        return found

    def records(self) -> list[ClaimRecord]:
        self.anything()
        found = list(self.claims.values())
        self.anything()
        return found

    def leave(self, others: Mapping[str, str]) -> None:
        self.anything()
        self.others = others
        self.anything()

    def step(self) -> None:
        """One step of koordra's; the process may be killed in it, or the disk full."""
        self.inside = True
        try:
            self.hand_over.step()
        except Killed:
            self.revive()
        except (OSError, KoordraError):
            self.happened.append("disk full")
        finally:
            self.inside = False
        standing = next(each for each in self.hand_over.standings if each.kind is GPUS)
        is_left = standing.phase is Phase.LEFT and standing.to == self.label == "hami"
        self.given = self.given or (is_left and self.seen == self.label)

    def revive(self) -> None:
        while True:
            self.happened.append("killed")
            with suppress(Killed, OSError, KoordraError):
                self.start()
                return

    def prepare(self) -> None:
        card = self.faults.random.randrange(len(self.machine.gpus))
        if card in self.claims:
            return
        if self.others.get(names.TYPE_GPU):
            self.refused += 1
            return
        self.number += 1
        device = DeviceRecord(request="r", device=self.machine.gpus[card].name, type=names.TYPE_GPU)
        ref = ClaimRef("d", f"c{self.number}", f"{self.number:08d}-2222-3333-4444-555555555555")
        self.claims[card] = ClaimRecord(ref, "n", "0" * 32, "boot", State.COMPLETED, (device,))
        self.prepared += 1
        self.happened.append(f"koordra gives card {card}")

    def unprepare(self) -> None:
        if self.claims:
            card = self.faults.random.choice(sorted(self.claims))
            del self.claims[card]
            self.happened.append(f"koordra's claim of card {card} ends")

    # the kubelet and the other stack

    def record(self) -> None:
        """The kubelet's files, as it writes them."""
        ids = [str(gpu.uuid) for gpu in self.machine.gpus]
        entries = [
            {
                "PodUID": pod.uid,
                "ContainerName": "c",
                "ResourceName": RESOURCE,
                "DeviceIDs": {"-1": [ids[pod.card]]},
            }
            for pod in self.pods
            if not pod.by_claim
        ]
        data = {
            "PodDeviceEntries": entries or None,
            "RegisteredDevices": {RESOURCE: ids} if self.was_plugin else {},
        }
        path = self.folder / DEVICE_PLUGINS / CHECKPOINT
        path.write_text(json.dumps({"Data": data, "Checksum": 1}))
        claims = [
            {"ClaimUID": pod.uid, "DriverState": {DRIVER: {"Devices": [{"DeviceName": f"gpu-{pod.card}"}]}}}
            for pod in self.pods
            if pod.by_claim and not pod.is_gone
        ]
        document = json.dumps({"kind": "DRACheckpoint", "Entries": claims})
        (self.folder / "dra_manager_state").write_text(json.dumps({"Data": document, "Checksum": 1}))

    def register_plugin(self) -> None:
        self.plugin = not self.plugin
        self.was_plugin = True
        self.record()
        self.happened.append(f"the device plugin is {'registered' if self.plugin else 'gone'}")

    def register_driver(self) -> None:
        self.driver = not self.driver
        path = self.folder / "plugins_registry" / f"{DRIVER}-reg.sock"
        if self.driver:
            path.touch()
        elif self.faults.random.random() < 0.5:  # one that was killed leaves it
            path.unlink(missing_ok=True)
        self.happened.append(f"the DRA driver is {'registered' if self.driver else 'gone'}")

    def update_node(self) -> None:
        """The Node is as the kubelet is by now, and koordra sees it."""
        self.allocatable = len(self.machine.gpus) if self.plugin else 0
        self.seen = self.label
        self.hand_over.see_node(self.node())

    def admit(self) -> None:
        """A pod of the other stack, bound past every scheduler if need be, gets a card that is free there."""
        by_claim = self.faults.random.random() < 0.5
        if not (self.driver if by_claim else self.plugin):
            return
        if not by_claim:  # entries of pods that ended go with the next admission
            self.pods = [pod for pod in self.pods if pod.by_claim or not pod.is_gone]
        taken = {pod.card for pod in self.pods if not pod.is_gone}
        free = [card for card in range(len(self.machine.gpus)) if card not in taken]
        if not free:
            return
        self.number += 1
        pod = PeerPod(f"uid-{self.number}", self.faults.random.choice(free), by_claim)
        (self.folder / "pods" / pod.uid).mkdir()
        self.pods.append(pod)
        self.record()
        self.happened.append(f"the other stack gives card {pod.card} to {pod.uid}")

    def make_container(self) -> None:
        waiting = [pod for pod in self.pods if not (pod.is_made or pod.is_gone)]
        if not waiting:
            return
        pod = self.faults.random.choice(waiting)
        card = self.machine.gpus[pod.card].node
        assert card is not None
        container = Container(
            "team",
            pod.uid,
            "c",
            env=(("NVIDIA_VISIBLE_DEVICES", str(self.machine.gpus[pod.card].uuid)),),
            devices=(card,),
            rules=(DeviceRule(False), DeviceRule(True, "c", card.major, card.minor)),
        )
        guarded = decode_guard(self.disk.files[STATE / "guarded.json"])
        try:
            adjustment, _ = decide(container, NodeFacts(guarded=guarded))
        except Refusal:
            assert not self.given, f"the new owner is refused: {'; '.join(self.happened[-12:])}"
            self.happened.append(f"the hook refuses {pod.uid}")
            return
        assert "NVIDIA_VISIBLE_DEVICES" not in dict(adjustment.env), "it may open a card that it is not shown"
        pod.is_made = True
        self.happened.append(f"the container of {pod.uid} runs")

    def end_container(self) -> None:
        running = [pod for pod in self.pods if pod.is_made]
        if running:
            self.faults.random.choice(running).is_made = False

    def end_pod(self) -> None:
        """Its folder goes after its containers; the device manager's entry stays."""
        living = [pod for pod in self.pods if not pod.is_gone]
        if living:
            pod = self.faults.random.choice(living)
            pod.is_made, pod.is_gone = False, True
            (self.folder / "pods" / pod.uid).rmdir()
            self.record()
            self.happened.append(f"{pod.uid} ends")

    def set_label(self) -> None:
        self.label, self.given = self.faults.random.choice(("", names.OWNER_KOORDRA, "hami")), False
        self.happened.append(f"label {self.label!r}")

    # any order

    def anything(self) -> None:
        """Between two steps of koordra's: some events, an error or the end of the process."""
        if not self.inside or self.faults.calm:
            return
        self.inside = False
        try:
            while self.faults.random.random() < 0.5:
                self.event()
        finally:
            self.inside = True
        drawn = self.faults.random.random()
        if drawn < 0.01:
            raise OSError(28, "No space left on device")
        if drawn < 0.03:
            raise Killed

    def event(self) -> None:
        events: tuple[tuple[int, Callable[[], None]], ...] = (
            (4, self.prepare),
            (3, self.unprepare),
            (4, self.admit),
            (4, self.make_container),
            (1, self.end_container),
            (3, self.end_pod),
            (2, self.register_plugin),
            (2, self.register_driver),
            (3, self.update_node),
            (1, self.set_label),
        )
        weights = [weight for weight, _ in events]
        self.faults.random.choices([what for _, what in events], weights)[0]()
        self.check()

    def check(self) -> None:
        using = [pod.card for pod in self.pods if pod.is_made]
        twice = sorted({*using} & self.claims.keys()) or [card for card in using if using.count(card) > 1]
        assert not twice, f"card {twice[0]} has two owners: {'; '.join(self.happened[-12:])}"

    @property
    def phase(self) -> Phase:
        return next(each.phase for each in self.hand_over.standings if each.kind is GPUS)

    def settle(self) -> Iterator[Phase]:
        """Nothing happens any more but koordra's steps."""
        self.faults.calm = True
        for _ in range(4):
            self.update_node()
            self.step()
            yield self.phase


def one_schedule(seed: int, folder: Path, machine: Machine) -> HandOverWorld:
    """Raises AssertionError, with what led to it."""
    world = HandOverWorld(folder, Faults(seed), machine)
    for _ in range(STEPS):
        if world.faults.random.random() < 0.4:
            world.step()
        else:
            world.event()
    _ends_as_asked(world)
    return world


def _ends_as_asked(world: HandOverWorld) -> None:
    """Once nothing fails and whoever is to go has gone, the devices are whose the label says."""
    world.faults.calm = True
    world.label, world.given, world.claims = "hami", False, {}
    *_, phase = world.settle()
    assert phase is Phase.LEFT, f"it was not left: {phase}"
    world.plugin = world.driver = False
    world.label, world.given = "", False
    for pod in [pod for pod in world.pods if not pod.is_gone]:
        pod.is_made, pod.is_gone = False, True
        (world.folder / "pods" / pod.uid).rmdir()
    world.record()
    *_, phase = world.settle()
    assert phase is Phase.OWNED, f"it was not taken: {phase}, {world.hand_over.standings}"
    world.prepare()
    assert world.claims, "no claim gets a card although koordra owns them"
    world.check()
