"""Prepare and Unprepare of a node, interleaved step by step: threads of one plugin, two plugins that overlap
during an update, kills between any two steps, a kubelet that asks again, gives up and asks another plugin.

What must hold, whatever the order:

    a card          the claims whose Prepare was answered and whose Unprepare has not begun have no more of it
                    than there is
    a claim         that was answered has its CDI file and its record for the hook at every moment until its
                    Unprepare begins; asked for again it gets the same devices and the same nonce
    a file          that gives devices out stands only for a claim that the checkpoint has, and a claim that
                    it calls completed has its file
    the end         every call ends; nothing is left of a claim whose Unprepare was answered; a plugin that
                    starts finds every answered claim complete; and after all were unprepared there is no
                    record, no file, and nothing runs for them
"""

from __future__ import annotations

import itertools
import os
import random
import shutil
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache, lru_cache
from itertools import accumulate
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import patch

from koordra.api.objects import Object
from koordra.errors import CheckpointError, KoordraError, PrepareError
from koordra.kubelet_plugin.cdi import claim_spec, container_files
from koordra.kubelet_plugin.claims.checkpoint import Checkpoint, decode
from koordra.kubelet_plugin.claims.claim_record import ClaimRecord, State
from koordra.kubelet_plugin.discovery.reading import discover
from koordra.kubelet_plugin.isolation.backend import IsolationBackend
from koordra.kubelet_plugin.isolation.card_calls import CardCalls
from koordra.kubelet_plugin.isolation.packages import backends
from koordra.kubelet_plugin.prepare import calls_in_progress
from koordra.kubelet_plugin.prepare.device_state import DeviceState
from koordra.kubelet_plugin.publish.node_inventory import NodeInventory, inventory_of
from koordra.kubelet_plugin.publish.offering import Offering
from koordra.kubelet_plugin.settings import NodePaths
from koordra.node_state import locks, prepared_claim
from koordra.node_state.claim_ref import ClaimRef
from koordra.topology.presets import write_machine
from tests.fakes.disks import StepDisk
from tests.fakes.interleaving import Interleaving, Process, Task
from tests.fakes.isolation import JournalledBackend, UnjournalledBackend
from tests.fakes.model_wire import Faults
from tests.fakes.node_claims import (
    ANY_ISOLATION,
    GPU_0,
    GPU_1,
    NIC_0,
    NODE,
    FakeClaims,
    claim,
    gpu,
    nic,
    parameters,
)

CARD = 81559
HALF, MOST = f"{CARD // 2}Mi", f"{CARD * 3 // 4}Mi"
CLAIMS: tuple[Object, ...] = (
    claim(1, gpu("gpu", GPU_0), nic("nic", NIC_0)),
    claim(2, gpu("gpu", GPU_0, HALF)),
    claim(3, gpu("gpu", GPU_0, HALF), gpu("other", GPU_1, HALF)),
    claim(4, gpu("gpu", GPU_1, MOST), config=[parameters("GpuConfig", isolation="limiter")]),
)
"""Not all of them fit at once: the API server has forgotten some, and the node still has them. The backend of
the last one keeps no journal: nothing but the claim's record tells of its share."""
MOVED = claim(2, gpu("gpu", GPU_1, HALF))
"""Claim 2 as it is after its devices were given back and given out again."""
DEADLINE = 45.0
STEPS = 220


def memory() -> Path:
    """A folder that is no disk's, where there is one."""
    shm = Path("/dev/shm")
    return shm if shm.is_dir() else Path(tempfile.gettempdir())


@cache
def machine() -> NodeInventory:
    with tempfile.TemporaryDirectory(dir=memory()) as folder:
        write_machine("hgx-h100", Path(folder), serial=NODE)
        return inventory_of(discover(Path(folder)), offering=Offering(isolation=ANY_ISOLATION))


@cache
def others() -> Mapping[str, IsolationBackend]:
    """The backends of other packages: looked for once, and not at every start of a plugin."""
    return backends()


class SteppedDisk(StepDisk):
    """Pauses before each step, and before each look; `changed` is told of each step that is taken."""

    def __init__(self, pause: Callable[[str], None], changed: Callable[[Path], None]) -> None:
        super().__init__()
        self._pause, self._changed = pause, changed

    def at_step(self, step: str, path: Path) -> None:
        self._pause(f"{step} {path.name}")
        self._changed(path)

    def read(self, path: Path) -> bytes | None:
        self._pause(f"read {path.name}")
        return super().read(path)

    def names(self, directory: Path) -> list[str]:
        self._pause(f"list {directory.name}")
        return super().names(directory)


class SteppedClaims(FakeClaims):
    def __init__(self, pause: Callable[[str], None]) -> None:
        super().__init__(*CLAIMS)
        self._pause = pause

    def get(self, namespace: str, name: str) -> Object:
        self._pause("get claim")
        return super().get(namespace, name)


@dataclass(eq=False)
class Plugin:
    process: Process
    state: DeviceState


@dataclass(eq=False)
class Call:
    """The kubelet's: a Prepare or an Unprepare. It is `awaited` until the kubelet gives it up, which the
    plugin may learn later (`is_told`)."""

    task: Task
    begun: float
    awaited: bool = True
    is_told: bool = False

    @property
    def is_listed(self) -> bool:
        """Whether the plugin knows of it: before, it stands at the lock under which calls are listed."""
        return self.task.steps > 1


@dataclass(eq=False)
class Wish:
    """What the kubelet wants of one claim: nothing, `prepared` for its pods, or `unprepared`."""

    ref: ClaimRef
    use: Counter[str]
    """MiB of each card."""
    wants: str = ""
    calls: list[Call] = field(default_factory=list)
    answered: ClaimRecord | None = None


class PrepareWorld:
    def __init__(self, seed: int, folder: Path) -> None:
        self.random = random.Random(seed)
        self.faults = Faults(seed)
        self.interleaving = Interleaving()
        self.paths = NodePaths(root=Path("/"), state=folder / "state", cdi=folder / "cdi")
        self.made: dict[str, str] = {}
        """What is on the node for shares over all lives of the plugin, by claim and device: half or whole."""
        self.cards: dict[str, str] = {}
        """How the cards are set."""
        self.trace: list[str] = []
        self.plugins: list[Plugin] = []
        self._nonces = itertools.count(1)
        self._lives = itertools.count(1)
        self.wishes = [_wish(each) for each in CLAIMS]
        self._files = {
            uid: (self.paths.cdi_file(uid).name, self.paths.prepared_file(uid).name)
            for uid in (wish.ref.uid for wish in self.wishes)
        }
        """By uid of a claim: its CDI file and its record for the hook, no two of one name."""
        self.claims = SteppedClaims(self.interleaving.pause)
        self.stalled: set[Task] = set()
        """They do not get to run for a while."""
        self.given_up: list[Call] = []
        """Of which the plugin does not know it yet."""
        self._changed: set[Path] = set()
        """The folders in which something may have changed since they were looked at."""
        self._names: dict[Path, list[str]] = {self.paths.cdi: [], self.paths.prepared: []}
        self._checkpoint = Checkpoint()

    # --- the course of things

    def run(self) -> None:
        with self._stepped():
            self.start_plugin()
            moves: tuple[tuple[Callable[[], None], int], ...] = (
                (self.go_on, 40),
                (self.ask, 6),
                (self.ask_again, 2),
                (self.end_pods, 3),
                (self.give_up, 2),
                (self.kill, 1),
                (self.start_plugin, 1),
                (self.look_after, 2),
                (self.move, 1),
            )
            kinds, weights = [move for move, _ in moves], list(accumulate(weight for _, weight in moves))
            for _ in range(STEPS):
                self.random.choices(kinds, cum_weights=weights)[0]()
                self.check()
            self.come_to_rest()

    @contextmanager
    def _stepped(self) -> Iterator[None]:
        stepped = self.interleaving
        time = SimpleNamespace(monotonic=stepped.monotonic, sleep=stepped.sleep)
        threads = SimpleNamespace(Lock=stepped.Lock)
        try:
            with (
                patch.object(locks, "time", time),
                patch.object(locks, "threading", threads),
                patch.object(calls_in_progress, "threading", threads),
                patch.object(container_files, "file_contents", lambda record, _: _contents(record)),
                patch.object(claim_spec, "encode", _spec),
                patch.object(prepared_claim, "encode", _hook_record),
            ):
                yield
        finally:
            for plugin in self.plugins:
                stepped.kill(plugin.process)

    def go_on(self) -> None:
        if self.interleaving.tasks:
            tasks = [
                each for each in self.interleaving.tasks if each not in self.stalled and not each.waits()
            ]
            if not tasks or self.random.random() < 0.02:
                self.stalled.clear()
            task = self.random.choice(tasks or self.interleaving.tasks)
            for _ in range(self.random.choice((1, 1, 2, 5, 12))):
                if not task.is_over and not task.waits():
                    self.interleaving.go_on(task)
            self.trace.append(f"  {task.name} of {task.process.name} at {task.point}")
        self.hear()

    def hear(self) -> None:
        """Answers reach the kubelet, where it still waits for them."""
        for wish in self.wishes:
            for call in [each for each in wish.calls if each.task.is_over]:
                wish.calls.remove(call)
                self.take(wish, call)

    def take(self, wish: Wish, call: Call) -> None:
        task = call.task
        self.trace.append(f"{task.name}: {task.error or (task.answer and 'answered') or 'no answer'}")
        assert task.error is None or isinstance(task.error, KoordraError), task.error
        if isinstance(task.error, CheckpointError):
            self.faults.note("answer", "the lock was held too long")
        elif isinstance(task.error, PrepareError):
            given_up = "gave this call up" in str(task.error)
            self.faults.note("answer", "given up" if given_up else "refused")
        if not call.awaited or task.process.killed:
            return
        if task.name.startswith("prepare") and isinstance(task.answer, ClaimRecord):
            if wish.answered is not None:
                same = (task.answer.nonce, task.answer.devices) == (
                    wish.answered.nonce,
                    wish.answered.devices,
                )
                assert same, f"{wish.ref.name} was answered with something else"
            wish.answered = task.answer
        elif task.name.startswith("unprepare") and task.error is None:
            wish.wants = ""

    # --- the kubelet

    def ask(self) -> None:
        """The next call about a claim for which none is under way."""
        wish = self.random.choice(self.wishes)
        if wish.calls or not self.plugins:
            return
        if not wish.wants:
            wish.wants = "prepared"
        if wish.wants == "prepared":
            self.prepare(wish)
        else:
            self.unprepare(wish)

    def ask_again(self) -> None:
        """A second pod of the claim, or the same call once more."""
        wish = self.random.choice(self.wishes)
        if wish.wants == "prepared" and self.plugins:
            self.faults.note("kubelet", "asks again")
            self.prepare(wish)

    def prepare(self, wish: Wish) -> None:
        plugin, made = self.random.choice(self.plugins), list[Call]()

        def work() -> ClaimRecord:
            return plugin.state.prepare(wish.ref, awaited=lambda: not made[0].is_told)

        task = self.interleaving.start(f"prepare {wish.ref.name}", plugin.process, work)
        made.append(Call(task, self.interleaving.now))
        wish.calls.append(made[0])

    def unprepare(self, wish: Wish) -> None:
        """Calls in other plugins have learned by now that they were given up, and so have those of this one
        that it has not listed yet: on one connection the word comes before the Unprepare."""
        plugin, made = self.random.choice(self.plugins), list[Call]()
        for call in self.given_up:
            is_other = call.task.process is not plugin.process
            call.is_told = call.is_told or is_other or not call.is_listed

        def work() -> None:
            plugin.state.unprepare(wish.ref, awaited=lambda: not made[0].is_told)

        task = self.interleaving.start(f"unprepare {wish.ref.name}", plugin.process, work)
        made.append(Call(task, self.interleaving.now))
        wish.calls.append(made[0])

    def end_pods(self) -> None:
        """The claim's last pod ends; what it still waited for is given up."""
        wish = self.random.choice(self.wishes)
        if wish.wants == "prepared":
            for call in list(wish.calls):
                self.faults.note("kubelet", "ends a pod whose claim is being prepared")
                self.abandon(wish, call)
            wish.wants, wish.answered = "unprepared", None

    def give_up(self) -> None:
        """Time passes in which a task does not get to run; calls have taken too long."""
        if self.interleaving.tasks and self.random.random() < 0.7:
            self.stalled.add(self.random.choice(self.interleaving.tasks))
        self.interleaving.now += self.random.choice((1.0, DEADLINE / 2, DEADLINE + 1.0))
        for wish in self.wishes:
            for call in list(wish.calls):
                if self.interleaving.now > call.begun + DEADLINE:
                    self.faults.note("kubelet", f"gives up {call.task.name.partition(' ')[0]}")
                    self.abandon(wish, call)

    def abandon(self, wish: Wish, call: Call) -> None:
        call.awaited = False
        wish.calls.remove(call)
        # An Unprepare that comes after it does not overtake it: it learns of it at once.
        call.is_told = call.task.name.startswith("unprepare") or self.random.random() < 0.5
        self.given_up.append(call)

    def move(self) -> None:
        """The controller gives a claim other devices, while no container has them."""
        wish = self.wishes[1]
        if wish.answered is None and not wish.calls:
            self.faults.note("claim", "moved")
            obj = self.random.choice((CLAIMS[1], MOVED))
            self.claims.put(obj)
            wish.use = _wish(obj).use

    # --- plugins

    def start_plugin(self) -> None:
        """Also beside one that runs: an update."""
        if len(self.plugins) > 1:
            return
        if self.plugins:
            self.faults.note("plugin", "beside another")
        process, pause = Process(f"plugin-{next(self._lives)}"), self.interleaving.pause
        backend = JournalledBackend(self.made, self.cards, pause)
        backend.name = "none"  # type: ignore[misc]
        state = DeviceState(
            node=NODE,
            paths=self.paths,
            claims=self.claims,
            inventory=machine,
            backends={
                **others(),
                backend.name: backend,
                "limiter": UnjournalledBackend(self.made, pause),
            },
            disk=SteppedDisk(pause, lambda path: self._changed.add(path.parent)),
            new_nonce=lambda: f"{next(self._nonces):032x}",
            calls=CardCalls(locks.CardLocks(self.paths.cards), run=lambda call: call()),
        )
        self.plugins.append(Plugin(process, state))
        self.interleaving.start("repair", process, state.repair)

    def kill(self) -> None:
        if self.plugins:
            plugin = self.plugins.pop(self.random.randrange(len(self.plugins)))
            self.faults.note("plugin", "killed")
            self.trace.append(f"{plugin.process.name} is killed")
            self.interleaving.kill(plugin.process)
            self.hear()

    def look_after(self) -> None:
        """What the plugin does by itself now and then."""
        if self.plugins:
            plugin = self.random.choice(self.plugins)
            own = ("restore files", plugin.state.restore_files), ("look", plugin.state.look_at_cards)
            name, work = self.random.choice(own)
            self.interleaving.start(name, plugin.process, work)

    # --- what must hold

    def check(self) -> None:
        used: Counter[str] = Counter()
        self.look()
        checkpoint, files = self._checkpoint, set().union(*self._names.values())
        for wish in self.wishes:
            if wish.answered is not None:
                used += wish.use
                for file in self._files[wish.ref.uid]:
                    assert file in files, f"{wish.ref.name} runs and has lost {file}"
        over = {card: amount for card, amount in used.items() if amount > CARD}
        assert not over, f"prepared beyond capacity: {over}"
        for wish in self.wishes:
            known = checkpoint.get(wish.ref.uid) or self._files[wish.ref.uid][0] not in files
            assert known, f"{wish.ref.name} has a CDI file and no record"
        wanted = {wish.ref.uid for wish in self.wishes if wish.wants == "prepared"}
        for record in checkpoint.claims:
            if record.state is State.COMPLETED and record.ref.uid in wanted:
                assert self._files[record.ref.uid][0] in files, (
                    f"{record.ref.name} is completed without files"
                )

    def check_idle(self) -> None:
        """While nothing is under way: nothing is left of a claim whose Unprepare was answered."""
        for wish in self.wishes:
            if not wish.wants:
                uid, name = wish.ref.uid, wish.ref.name
                assert self.checkpoint().get(uid) is None, f"{name} was unprepared and has a record"
                files = (self.paths.cdi_file(uid), self.paths.prepared_file(uid))
                assert not any(file.exists() for file in files), f"{name} was unprepared and has files"
                left = [each for each in self.made if each.startswith(uid)]
                assert not left, f"{name} was unprepared and has {left}"

    def come_to_rest(self) -> None:
        self.finish()
        while self.plugins:
            self.kill()
        self.start_plugin()
        self.finish()
        self.interleaving.start("look", self.plugins[0].process, self.plugins[0].state.look_at_cards)
        self.finish()
        held = {record.ref.uid: record for record in self.checkpoint().of_boot(machine().boot_id)}
        for wish in self.wishes:
            if wish.answered is not None:
                record = held.get(wish.ref.uid)
                assert record is not None, f"{wish.ref.name} runs and has no record"
                assert record.state is State.COMPLETED, f"{wish.ref.name} runs and is {record.state}"
                assert record.devices == wish.answered.devices, f"{wish.ref.name} has other devices"
        for state in {record.state for record in held.values()}:
            assert state is State.COMPLETED, f"a started plugin leaves a claim {state}"
        shares = {
            uid: {f"{uid}/{each.device}" for each in record.devices if each.isolation}
            for uid, record in held.items()
        }
        orphaned = self.made.keys() - set().union(*shares.values())
        assert not orphaned, f"made for nobody: {orphaned}"
        for wish in self.wishes:
            if wish.answered is not None:
                lost = {name for name in shares[wish.ref.uid] if self.made.get(name) != "whole"}
                assert not lost, f"{wish.ref.name} runs without {lost}"
        for wish in self.wishes:
            for device in _on_cards(held[wish.ref.uid]) if wish.answered is not None else ():
                assert self.cards.get(device, "default") != "default", f"{device} is not kept"
        in_use = {device for record in held.values() for device in _on_cards(record)}
        left = {device for device, how in self.cards.items() if how != "default"} - in_use
        assert not left, f"kept for nobody: {left}"
        for wish in self.wishes:
            wish.answered, wish.wants = None, "unprepared"
            self.unprepare(wish)
        self.finish()
        assert not self.checkpoint().claims, f"records of nobody: {self.checkpoint()}"
        left = [str(path) for folder in (self.paths.cdi, self.paths.prepared) for path in folder.glob("*")]
        assert not left, f"files of nobody: {left}"
        assert not self.made, f"made for nobody: {self.made}"
        assert not self.checkpoint().cards, f"cards of nobody: {self.checkpoint().cards}"
        assert set(self.cards.values()) <= {"default"}, f"cards are not as they were: {self.cards}"

    def finish(self) -> None:
        """Whatever is under way ends."""
        while self.interleaving.tasks:
            self.go_on()
            self.check()
        self.check_idle()

    def checkpoint(self) -> Checkpoint:
        """As it stands on the disk now."""
        self.look()
        return self._checkpoint

    def look(self) -> None:
        """Look again at what a step may have changed."""
        for folder in self._names.keys() & self._changed:
            self._names[folder] = _names(folder)
        if self.paths.state in self._changed:
            try:
                self._checkpoint = decoded(self.paths.checkpoint.read_bytes())
            except FileNotFoundError:
                self._checkpoint = Checkpoint()
        self._changed.clear()


# The node and its folder are the same in all schedules, which repeat each other's bytes. What follows makes
# them of values alone.
decoded = lru_cache(maxsize=4000)(decode)
_spec = lru_cache(maxsize=4000)(claim_spec.encode)
_hook_record = lru_cache(maxsize=4000)(prepared_claim.encode)
_contents_of = container_files.file_contents


@lru_cache(maxsize=4000)
def _contents(record: ClaimRecord) -> dict[str, bytes]:
    return _contents_of(record, machine())


def _names(folder: Path) -> list[str]:
    try:
        return os.listdir(folder)  # noqa: PTH208  made of strings, after every step
    except FileNotFoundError:
        return []


def _on_cards(record: ClaimRecord) -> list[str]:
    """Its devices that are shares of the backend that does something to cards."""
    return [each.device for each in record.devices if each.isolation == "none"]


def _wish(obj: Object) -> Wish:
    metadata = obj["metadata"]
    use: Counter[str] = Counter()
    for each in obj["status"]["allocation"]["devices"]["results"]:
        if memory := each["consumedCapacity"].get("memory"):
            use[each["device"]] += int(memory.removesuffix("Mi"))
    return Wish(ClaimRef(metadata["namespace"], metadata["name"], metadata["uid"]), use)


def one_schedule(seed: int) -> PrepareWorld:
    """AssertionError tells the seed, what was wrong, and what had happened."""
    folder = memory() / f"koordra-prepare-{os.getpid()}"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(mode=0o700)
    world = PrepareWorld(seed, folder)
    try:
        world.run()
    except Exception as error:
        story = "\n".join(world.trace[-30:])
        raise AssertionError(f"schedule {seed}: {error}\n{story}") from error
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return world
