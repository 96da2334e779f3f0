"""A node that is handed over between koordra and other stacks, in any order of events, and what must hold.

Real are `HandOver`, the guard's file, the reading of the kubelet's records, and the rules of the hook. The
stacks (hand_over_peers) and the kubelet are doubles:

    kubelet   records who is registered and who has what before a container is made; starts anew at times, and
              knows then of no device plugin until that registers again
    pods      their containers are made through the hook, end, and are made again while the pod lasts
    koordra   Prepare holds the state's lock: it reads whose the devices are, and writes the claim

Everything that can happen happens between any two steps of `HandOver` that touch anything: other events, an
error of the disk, and kill -9, after which a new one starts from the disk. A device has two owners when
containers of another stack and a claim that is prepared have it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from random import Random
from typing import Any, Final

from koordra.api import names
from koordra.errors import KoordraError
from koordra.kubelet_plugin.claims.claim_record import ClaimRecord, DeviceRecord, State
from koordra.kubelet_plugin.prepare.device_guard import DeviceGuardFile
from koordra.kubelet_plugin.publish.hand_over import HandOver, Phase
from koordra.kubelet_plugin.publish.peers_on_node import (
    DEVICE_PLUGINS,
    GPUS,
    KINDS,
    NICS,
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
from tests.fakes.hand_over_kubelet import write_records
from tests.fakes.hand_over_peers import STACKS, Event, Peer, PeerPod, stacks
from tests.fakes.model_wire import Faults

STATE: Final = Path("/state")
OTHER: Final = "another-stack"
STEPS: Final = 60


class Killed(BaseException):
    """kill -9."""


def small_machine(root: Path) -> Machine:
    machine = presets.write_machine("hgx-h100", root, serial="hand-over")
    return replace(machine, gpus=machine.gpus[:2], nics=machine.nics[:2])


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
class HandOverWorld:
    """`folder`: the kubelet's; `stack`: which other stacks there are."""

    folder: Path
    faults: Faults
    machine: Machine
    stack: int = 0
    labels: dict[str, str] = field(default_factory=dict)
    """The operator's."""
    claims: dict[tuple[str, int], ClaimRecord] = field(default_factory=dict)
    """Of koordra: type and number of the device -> the claim that is prepared."""
    others: Mapping[str, str] = field(default_factory=dict)
    given: set[str] = field(default_factory=set)
    """Types that koordra has left to whom the label names, and still does: his containers are not refused."""
    seen: dict[str, str] = field(default_factory=dict)
    """The labels as koordra saw them last."""
    number: int = 0
    inside: bool = False
    happened: list[str] = field(default_factory=list)
    prepared: int = 0
    refused: int = 0

    def __post_init__(self) -> None:
        self.disk = WatchedDisk(self.anything)
        self.node_object: dict[str, Any] = {
            "metadata": {"name": "n", "annotations": {}},
            "status": {"allocatable": {}},
        }
        (self.folder / DEVICE_PLUGINS).mkdir(parents=True)
        (self.folder / "plugins_registry").mkdir()
        (self.folder / "pods").mkdir()
        self.peers = stacks(self, self.stack)
        self.kinds = sorted({peer.kind for peer in self.peers}, key=KINDS.index)
        self.record()
        if self.random.random() < 0.7:  # koordra comes to a node that is another's
            for peer in self.peers:
                peer.programs(True)
                peer.update_node()
        self.start()

    @property
    def random(self) -> Random:
        return self.faults.random

    def devices(self, kind: DeviceKind) -> int:
        return len(self.machine.nics if kind is NICS else self.machine.gpus)

    def new_uid(self) -> str:
        self.number += 1
        return f"uid-{self.number}"

    def happens(self, what: str) -> None:
        self.happened.append(what)

    # koordra

    def start(self) -> None:
        """A new process: what is in memory is gone, the files stay. No claim is prepared before it is up."""
        self.others = {kind.type: "starting" for kind in KINDS}
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
        if self.random.random() < 0.7:
            self.hand_over.see_node(self.node())
        self.hand_over.start()

    def node(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(json.dumps(self.node_object))
        found["metadata"]["labels"] = {key: value for key, value in self.labels.items() if value}
        return found

    def look(self, kind: DeviceKind, node: Any) -> PeersOnNode:
        self.anything()
        answering = {peer.driver for peer in self.peers if peer.answers}
        found = peers_on_node(
            self.folder,
            kind,
            host=self.folder,
            node=node,
            answers=lambda path: path.name.removesuffix("-reg.sock") in answering,
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
            self.happens("disk full")
        finally:
            self.inside = False
        for each in self.hand_over.standings:
            label = self.labels.get(each.kind.label, "")
            is_left = each.phase is Phase.LEFT and each.to == label == OTHER
            if is_left and self.seen.get(each.kind.label) == label:
                self.given.add(each.kind.type)

    def revive(self) -> None:
        while True:
            self.happens("killed")
            with suppress(Killed, OSError, KoordraError):
                self.start()
                return

    def prepare(self, kind: DeviceKind | None = None) -> None:
        kind = kind or self.random.choice(self.kinds)
        at = self.random.randrange(self.devices(kind))
        if (kind.type, at) in self.claims:
            return
        if self.others.get(kind.type):
            self.refused += 1
            return
        uid = self.new_uid()
        name = (self.machine.nics if kind is NICS else self.machine.gpus)[at].name
        device = DeviceRecord(request="r", device=name, type=kind.type)
        ref = ClaimRef("d", uid, f"{self.number:08d}-2222-3333-4444-555555555555")
        self.claims[kind.type, at] = ClaimRecord(ref, "n", "0" * 32, "boot", State.COMPLETED, (device,))
        self.prepared += 1
        self.happens(f"koordra gives {kind.type} {at}")

    def unprepare(self) -> None:
        if self.claims:
            kind, at = self.random.choice(sorted(self.claims))
            del self.claims[kind, at]
            self.happens(f"koordra's claim of {kind} {at} ends")

    # the kubelet

    def record(self) -> None:
        write_records(self.folder, self.folder, self.peers, leaves=self._leaves)

    def _leaves(self, socket: Path) -> None:
        if self.random.random() < 0.5:  # else it was killed
            socket.unlink(missing_ok=True)

    def restart_kubelet(self) -> None:
        for peer in self.peers:
            peer.restart_kubelet()
        self.record()
        self.happens("the kubelet is started anew")

    def update_node(self) -> None:
        """The Node is as the kubelet is by now, and koordra sees it."""
        for peer in self.peers:
            peer.update_node()
        self.seen = dict(self.labels)
        self.hand_over.see_node(self.node())

    def make_container(self) -> None:
        waiting = [
            (peer, pod) for peer in self.peers for pod in peer.pods if peer.gives(pod) and not pod.is_made
        ]
        if not waiting:
            return
        peer, pod = self.random.choice(waiting)
        container = self._container(peer, pod)
        guarded = decode_guard(self.disk.files[STATE / "guarded.json"])
        try:
            adjustment, _ = decide(container, NodeFacts(guarded=guarded))
        except Refusal:
            assert peer.kind.type not in self.given, (
                f"the new owner is refused: {'; '.join(self.happened[-12:])}"
            )
            self.happens(f"the hook refuses {pod.uid}")
            return
        hidden = peer.kind is GPUS and dict(adjustment.env).get("NVIDIA_VISIBLE_DEVICES") == "void"
        assert not (hidden and container.devices), "it may open a card that it is not shown"
        assert not (hidden and peer.kind.type in self.given), "the new owner's container is given no card"
        pod.is_made = not hidden
        self.happens(f"the container of {pod.uid} {'lacks its card' if hidden else 'runs'}")

    def _container(self, peer: Peer, pod: PeerPod) -> Container:
        env: tuple[tuple[str, str], ...] = ()
        if peer.kind is NICS:
            node = self.machine.nics[pod.device].verbs
        else:
            gpu = self.machine.gpus[pod.device]
            node, env = gpu.node, (("NVIDIA_VISIBLE_DEVICES", str(gpu.uuid)),)
        assert node is not None
        allowed = () if peer.by_environment else (DeviceRule(True, "c", node.major, node.minor),)
        return Container(
            "team",
            pod.uid,
            "c",
            env=env,
            devices=() if peer.by_environment else (node,),
            rules=(DeviceRule(False), *allowed),
        )

    def end_container(self) -> None:
        running = [pod for peer in self.peers for pod in peer.pods if pod.is_made]
        if running:
            self.random.choice(running).is_made = False

    def set_label(self) -> None:
        kind = self.random.choice(self.kinds)
        self.labels[kind.label] = self.random.choice(("", names.OWNER_KOORDRA, OTHER))
        self.given.discard(kind.type)
        self.happens(f"label {kind.label}={self.labels[kind.label]}")

    # any order

    def anything(self) -> None:
        """Between two steps of koordra's: some events, an error or the end of the process."""
        if not self.inside or self.faults.calm:
            return
        self.inside = False
        try:
            while self.random.random() < 0.5:
                self.event()
        finally:
            self.inside = True
        drawn = self.random.random()
        if drawn < 0.01:
            raise OSError(28, "No space left on device")
        if drawn < 0.03:
            raise Killed

    def event(self) -> None:
        events: tuple[Event, ...] = (
            (4, self.prepare),
            (3, self.unprepare),
            (4, self.make_container),
            (1, self.end_container),
            (3, self.update_node),
            (1, self.set_label),
            *(each for peer in self.peers for each in peer.events()),
        )
        if self.random.random() < 0.01:
            self.restart_kubelet()
        self.random.choices([what for _, what in events], [weight for weight, _ in events])[0]()
        self.check()

    def check(self) -> None:
        """What two other stacks give out beside each other is not koordra's to keep apart."""
        twice = [
            (peer.kind.type, pod.device)
            for peer in self.peers
            for pod in peer.pods
            if pod.is_made and (peer.kind.type, pod.device) in self.claims
        ]
        assert not twice, f"{twice[0]} has two owners: {'; '.join(self.happened[-12:])}"

    def phase(self, kind: DeviceKind) -> Phase:
        return next(each.phase for each in self.hand_over.standings if each.kind is kind)

    def settle(self) -> Iterator[tuple[Phase, ...]]:
        """Nothing happens any more but koordra's steps."""
        self.faults.calm = True
        for _ in range(4):
            self.update_node()
            self.step()
            yield tuple(map(self.phase, KINDS))


def one_schedule(seed: int, folder: Path, machine: Machine) -> HandOverWorld:
    """Raises AssertionError, with what led to it. Mostly with one device of each kind, which all want."""
    if seed // STACKS % 3:
        machine = replace(machine, gpus=machine.gpus[:1], nics=machine.nics[:1])
    world = HandOverWorld(folder, Faults(seed), machine, seed)
    for _ in range(STEPS):
        if world.random.random() < 0.4:
            world.step()
        else:
            world.event()
    _ends_as_asked(world)
    return world


def _ends_as_asked(world: HandOverWorld) -> None:
    """Once nothing fails and whoever is to go has gone, the devices are whose the label says."""
    world.faults.calm = True
    world.labels, world.given, world.claims = {kind.label: OTHER for kind in KINDS}, set(), {}
    *_, phases = world.settle()
    assert set(phases) == {Phase.LEFT}, f"it was not left: {phases}"
    for peer in world.peers:
        peer.leave()
    world.labels, world.given = {}, set()
    *_, phases = world.settle()
    assert set(phases) == {Phase.OWNED}, f"it was not taken: {phases}, {world.hand_over.standings}"
    for kind in KINDS:
        world.prepare(kind)
    assert len(world.claims) == len(KINDS), "no claim gets a device although koordra owns them"
    world.check()
