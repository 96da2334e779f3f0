"""The world of the controller's model: everybody who writes, one atomic step at a time, in an order drawn
from a seed.

    two controllers   the real lease, reconciler and writer over caches that lag; each request may be lost,
                      unanswered, throttled, sent late, or be the moment at which the process is killed or
                      paused while the world goes on
    users             pods with claims of their own, from templates, or shared; deletions, also forced ones
    kube-controller-manager   makes template claims, drops consumers that are gone, frees and deletes claims
    kube-scheduler    decides, reserves and binds in separate steps; says no by a condition, or by erasing.
                      What it decided it carries out although the claim may have moved in the meantime: the
                      pod is then bound where it has no devices (`misled`), its node refuses it, and it has to
                      go
    nodes             prepare bound pods and refuse what would over-commit a card, run, end, unprepare; a pod
                      that was deleted by force goes on running for a while
    administrators    cards come, go and fall ill, classes vanish and return, nodes are cordoned or removed;
                      in some schedules their labels, taints and allocatable CPU change too, and pods choose
                      nodes and repel each other

`check_bound` holds after every step: a pod that has its node keeps its claims, allocated there and reserved
for it. `check_lifted`: a gate goes only when the pod's claims have got their devices. `check_fence`: nothing
is written by a process whose last renewal, as the world saw it sent, is too long ago. `check_claims`
holds after every step while every write arrived in its time. Once a request of a process that had lost its
lease has landed (`beyond`), claims may overlap, and what is left is that no node prepares beyond a card's
capacity, which `prepare` asserts. `become_quiet` ends all disturbance, at last the scheduler's noes that
nobody else sees: until then a pod that is refused on one node has to get to another one that takes it
(`check_noes`). `check_quiet` is what must be true then.
"""

from __future__ import annotations

import math
import random
from bisect import bisect
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

from koordra.api import names
from koordra.api.kinds import (
    DEVICE_CLASSES,
    DEVICE_HOLDS,
    DEVICE_TAINT_RULES,
    LEASES,
    NODES,
    PODS,
    RESERVATIONS,
    RESOURCE_CLAIMS,
    RESOURCE_SLICES,
    Kind,
)
from koordra.api.objects import Object
from koordra.controller.allocation.writes import Writer
from koordra.controller.cache.changes import Change, ChangeQueue
from koordra.controller.reconcile.leadership import LeaderLease, LeaseTimes, Standing
from koordra.controller.reconcile.reconciler import Reconciler
from koordra.errors import ApiUnreachable, Forbidden, KoordraError
from tests.fakes.cluster import Cluster
from tests.fakes.joint_cluster import device_class, gpu_slice, node
from tests.fakes.model_api import Killed, Knowledge, ModelApi, Request, unreachable
from tests.fakes.model_planner import CARD, amount_of, results_of
from tests.fakes.model_watch import Watch, client_over
from tests.fakes.model_wire import Faults, Wire

TIMES = LeaseTimes(lease=15.0, retry=2.0, timeout=5.0)
WATCHED: tuple[Kind, ...] = (
    NODES,
    RESOURCE_SLICES,
    DEVICE_CLASSES,
    DEVICE_TAINT_RULES,
    RESOURCE_CLAIMS,
    PODS,
)
NOES = 900.0
"""Seconds: longer than the longest patience and the longest exclusion together."""
ROUND = 20.0
ZONE = "zone"
TAINT = {"key": "maintenance", "effect": "NoSchedule"}
LOUD = {"sound": "loud"}
Fate = str
FATES: tuple[tuple[int, Fate], ...] = (
    (5, "lost"),
    (5, "unanswered"),
    (3, "throttled"),
    (4, "late"),
    (3, "killed before"),
    (4, "killed after"),
    (2, "killed, late"),
    (4, "paused before"),
    (4, "paused after"),
    (3, "slow answer"),
)


@dataclass(frozen=True)
class InFlight:
    """A request that its sender gave up for lost. It arrives before its time limit, or never."""

    sent: float
    sender: str
    request: Request
    what: str
    lag: float = 0.0
    """Seconds beyond that limit that something on the way keeps it."""
    is_beyond: bool = False
    """Whether its sender's clock had stood still for longer than its lease (`Controller.is_beyond`)."""
    takes_back: bool = False
    """`Knowledge.takes_back`."""

    @property
    def deadline(self) -> float:
        return self.sent + TIMES.timeout + self.lag


class Informers:
    """Watch caches of one term: listed at its start, then as far behind as the schedule has them. `saw` is
    told of each claim that comes in."""

    def __init__(
        self, api: ModelApi, faults: Faults, saw: Callable[[Object], None], kinds: Iterable[Kind] = WATCHED
    ) -> None:
        self._saw = saw
        self.have_news = True
        self._queue = ChangeQueue()
        self._wire = Wire(api, _never, faults)
        client = client_over(self._wire)
        self._watches = {kind: Watch(api, self._wire, client, kind, self._tell) for kind in kinds}
        for watch in self._watches.values():
            watch.begin()

    def changes(self) -> list[Change]:
        self.have_news = False
        return self._queue.changes()

    def deliver(self, kind: Kind, events: int | None = None, *, again: int = 0) -> None:
        """The next events of a kind (None: all there are); `again`: the last ones come twice."""
        self._watches[kind].deliver(events, again=again)

    def list_anew(self, kind: Kind) -> None:
        """The server's history has become too short."""
        self._wire.lose(kind, "410")
        self._watches[kind].deliver()

    def settle(self) -> None:
        for watch in self._watches.values():
            watch.settle()

    def cluster(self) -> Cluster:
        found = {kind.plural: watch.cache.objects() for kind, watch in self._watches.items()}
        return Cluster(
            nodes=found[NODES.plural],
            slices=found[RESOURCE_SLICES.plural],
            classes=found[DEVICE_CLASSES.plural],
            taint_rules=found[DEVICE_TAINT_RULES.plural],
            claims=found[RESOURCE_CLAIMS.plural],
            pods=found[PODS.plural],
            holds=found.get(DEVICE_HOLDS.plural, ()),
            reservations=found.get(RESERVATIONS.plural, ()),
        )

    def _tell(self, kind: Kind, event: str, obj: Object) -> None:
        if kind is RESOURCE_CLAIMS and event != "DELETED":
            self._saw(obj)
        self.have_news = True
        self._queue.observe(kind, event, obj)


def _never(_request: Request, what: str) -> Object:
    raise AssertionError(f"a watch cache asks for {what}")


class Controller:
    """One replica: a lease, and while it leads a term with caches and a reconciler of its own."""

    def __init__(self, world: World, number: int) -> None:
        self.world = world
        self.number = number
        self.busy = False
        self.skew = 1000.0 * number
        self.wall = 0.0
        """Seconds by which its wall clock is ahead."""
        self.start_process()

    def start_process(self, identity: str = "") -> None:
        """`identity`: one that has been used before."""
        self.world.processes += 1
        self.process = f"controller-{self.world.processes}"
        self.identity = identity or self.process
        self.behind = math.inf
        """Since when its clock is behind: it stood still, and nothing tells the process."""
        self.renewed = -math.inf
        """When it sent the last request for the Lease that was answered; the world's own knowledge."""
        self.knowledge = Knowledge(self.world.api)
        wire = Wire(self.world.api, self.send, self.world.faults, saw=self.knowledge.saw)
        wire.patching = self.knowledge.patching
        self.client = client_over(wire)
        self.lease = LeaderLease(
            self.client,
            namespace="default",
            name="lease",
            identity=self.identity,
            clock=self.clock,
            now=self.wall_clock,
            times=TIMES,
        )
        self.caches: Informers | None = None
        self.reconciler: Reconciler | None = None
        self.due = -math.inf
        """When the next pass is due by its own clock, even if nothing changes."""
        self.compared = -1
        """The version of the reconciler's cache whose indices were compared last."""
        self.is_known = False
        """Whether its lease has run by every clock since its term began."""

    def clock(self) -> float:
        return self.world.now + self.skew

    def wall_clock(self) -> str:
        return self.world.timestamp(self.wall)

    def lose_time(self, seconds: float) -> None:
        """The machine and all its clocks stood still for so long (a virtual machine that was paused)."""
        self.skew -= seconds
        self.behind = self.world.now

    def is_beyond(self) -> bool:
        """Whether its lease may be over although its clock says that it is not."""
        return self.world.now >= self.behind and self.world.now >= self.renewed + TIMES.lease - TIMES.timeout

    def end_in_order(self, identity: str = "") -> None:
        with suppress(Killed):
            self.lease.release()
        self.start_process(identity)

    def send(self, request: Request, what: str) -> Object:
        sent, sender = self.world.now, self.process
        self.world.check_fence(self, what)
        answer = self.world.carry(self, request, what)
        if what == LEASES.plural and sender == self.process:
            self.is_known = self.is_known and not self.is_beyond()
            self.renewed = sent
            if sent >= self.behind:
                self.behind = math.inf
        return answer

    def look_at_lease(self) -> None:
        try:
            standing = self.lease.step()
        except Killed:
            self.start_process()
            return
        if standing is Standing.LEADER and self.reconciler is None:
            self.start_term()
        if standing is Standing.CANDIDATE:
            self.reconciler = self.caches = None

    def start_term(self) -> None:
        self.caches = Informers(self.world.api, self.world.faults, self.knowledge.saw, self.world.watched)
        self.reconciler = self.world.new_reconciler(self)
        self.due, self.compared = -math.inf, -1
        self.is_known = not self.is_beyond()
        if self.is_known:
            self.world.term = (self.process, self.world.now)

    def reconcile_if_due(self) -> None:
        """As the loop of passes does: when something has changed, or when the last pass said so."""
        if self.caches is not None and (self.caches.have_news or self.clock() >= self.due):
            self.reconcile()

    def reconcile(self) -> None:
        if self.reconciler is None or self.busy:
            return
        self.busy = True
        reconciler, self.due = self.reconciler, -math.inf
        try:
            pause = reconciler.reconcile()
            self.due = math.inf if pause is None else self.clock() + pause
        except ApiUnreachable:
            pass
        except Killed:
            self.start_process()
        finally:
            self.busy = False
        self.world.check_indices(self, reconciler)


class World:
    """Everything that happens, from one seed."""

    watched = WATCHED

    def __init__(self, seed: int, planner: Callable[..., Any]) -> None:
        self.random = random.Random(seed)
        self.api = ModelApi()
        self.faults = Faults(seed)
        self.now = 0.0
        self.planner = planner
        self.processes = 0
        self.depth = 0
        self.beyond = False
        self.gone: set[tuple[str, str]] = set()
        """Cards that a late write gave out twice, and which were gone before anybody saw it: what they have
        is known when they are back."""
        self.calm = False
        self.refusals = 0
        self.made = 0
        self.in_flight: list[InFlight] = []
        self.term = ("", 0.0)
        """The process that listed last, and when; not one whose lease is over by every clock but its own."""
        self.blocked: set[tuple[str, str]] = set()
        self.cycles: dict[str, tuple[str, str]] = {}
        """What the scheduler has decided and not written yet: uid of a pod -> its name and its node."""
        self.misled: set[str] = set()
        self.prepared: dict[str, dict[str, Object]] = {}
        self.running: dict[str, dict[str, Object]] = {}
        self.trace: list[str] = []
        self.api.create(DEVICE_CLASSES, device_class(names.CLASS_GPU, "gpu"))
        free = {"holderIdentity": "", "leaseDurationSeconds": 1}
        self.api.create(LEASES, {"metadata": {"name": "lease"}, "spec": free})
        for number in range(2):
            self.add_node(f"n{number}")
        self.controllers = [Controller(self, 0), Controller(self, 1)]
        self.fuse = self.random.randrange(1, 14)
        self.next_fate: Fate = ""
        self.starves_after = 20.0 if self.random.random() < 0.2 else 0.0
        self.preemption = self.random.random() < 0.15
        self.full_passes = random.Random(seed) if seed % 2 == 0 else None
        """Draws of its own: the schedules are the same with and without."""
        self.moods = random.Random(seed) if seed % 4 == 1 else None
        """Draws of its own, for what nodes and pods say against each other: the other schedules are the same
        with and without."""
        self.upheaval = random.Random(f"upheaval {seed}") if seed % 3 == 2 else None
        """Draws of its own, for clocks, replicas that end in order, silence after silence, requests that are
        kept on their way, and a server that starts."""
        self.silences = random.Random(f"silence {seed}") if seed % 5 == 1 else None
        """Draws of its own, for writes that nobody answers, and whose repetition nobody answers either, and
        for leaders that end when others have taken over."""
        self.strangers = random.Random(seed) if seed % 4 == 3 else None
        """Draws of its own, for what is done to the Lease by hand."""
        self.observes_generation = self.random.random() < 0.5
        self.actions = [action for action, _ in self.weighted()]
        self.weights = list(accumulate(weight for _, weight in self.weighted()))

    def weighted(self) -> list[tuple[Callable[[], None], int]]:
        return [
            (self.create_pod, 8),
            (self.delete_pod, 3),
            (self.force_delete_pod, 1),
            (self.lease_step, 8),
            (self.reconcile_step, 20),
            (self.deliver_step, 16),
            (self.relist_step, 1),
            (self.claim_controller, 8),
            (self.schedule_step, 10),
            (self.node_step, 8),
            (self.pass_time, 6),
            (self.neglect_lease, 1),
            (self.finish_cycle, 4),
            (self.change_card, 2),
            (self.change_class, 1),
            (self.change_node, 1),
            (self.remove_node, 1),
            (self.touch_claim, 2),
            (self.delete_claim, 1),
            (self.block, 2),
            (self.land_late, 3),
            (self.create_immediate, 1),
        ]

    def new_reconciler(self, controller: Controller) -> Reconciler:
        assert controller.caches is not None
        lease = controller.lease
        writer = Writer(
            controller.client,
            may_write=lease.may_write,
            unanswered=lease.unanswered,
            now=controller.wall_clock,
        )
        return Reconciler(
            controller.caches,
            writer,
            clock=controller.clock,
            starves_after=self.starves_after,
            preemption=self.preemption,
        )

    # --- the course of things

    def run(self, steps: int) -> None:
        for controller in self.controllers:
            controller.look_at_lease()
        for _ in range(steps):
            self.step()

    def step(self) -> None:
        action = self.actions[bisect(self.weights, self.random.random() * self.weights[-1])]
        self.trace.append(action.__name__)
        action()
        if self.moods is not None and self.moods.random() < 0.3:
            self.moods.choice((self.change_zone, self.change_taint, self.change_room, self.create_sharers))()
        if self.upheaval is not None and self.upheaval.random() < 0.1:
            upheaval = self.upheaval.choice((self.end_in_order, self.turn_clock, self.refuse_writes))
            self.faults.note("upheaval", upheaval.__name__.replace("_", " "))
            upheaval()
        if self.silences is not None and self.silences.random() < 0.1:
            self.silences.choice((self.fall_silent, self.end_late))(self.silences)
        if self.strangers is not None and self.strangers.random() < 0.15:
            self.meddle_with_lease(self.strangers)
        self.check_claims()
        self.check_bound()

    def meddle_with_lease(self, strangers: random.Random) -> None:
        """Somebody deletes the Lease, or edits what it says."""
        lease = self.api.find(LEASES, "lease")
        if lease is None:
            return
        edit = strangers.choice(
            (
                {},
                {"holderIdentity": ""},
                {"holderIdentity": strangers.choice(self.controllers).identity},
                {"leaseDurationSeconds": 10**9},
                {"renewTime": strangers.choice(("1970-01-01T00:00:00Z", "2999-01-01T00:00:00Z"))},
            )
        )
        self.trace.append(f"  a stranger: {edit or 'deletes the Lease'}")
        self.faults.note("lease", " ".join(edit) or "deleted")
        if edit:
            self.api.change(LEASES, "lease", spec={**lease["spec"], **edit})
        else:
            self.api.delete(LEASES, "lease")

    def end_in_order(self) -> None:
        """A replica ends and gives its Lease away, perhaps just after a write that nobody answered; another
        one begins, with a name of its own or the same."""
        assert self.upheaval is not None
        controller = self.upheaval.choice(self.controllers)
        if controller.busy:
            return
        if controller.caches is not None and self.upheaval.random() < 0.5:
            self.create_pod()
            self.claim_controller()
            self.deliver_all(controller)
            self.fuse, self.next_fate = self.upheaval.choice((1, 1, 2, 3)), "late"
            controller.reconcile()
        controller.end_in_order(controller.identity if self.upheaval.random() < 0.5 else "")
        for _ in range(self.upheaval.randrange(3)):
            self.upheaval.choice(self.controllers).look_at_lease()
            self.land_late()

    def fall_silent(self, silences: random.Random) -> None:
        """Nobody answers an allocation, nor its repetition; then somebody wants devices who is served first,
        and at last what was sent arrives."""
        leading = [one for one in self.controllers if one.caches is not None and not one.busy]
        if not leading or self.depth:
            return
        leader = silences.choice(leading)
        self.create_pod()
        self.claim_controller()
        for fuse in (silences.choice((1, 2, 2, 3)), 1):
            self.deliver_all(leader)
            self.fuse, self.next_fate = fuse, "late"
            leader.reconcile()
        self.create_rival(silences.choice(("one", "two")))
        self.deliver_all(leader)
        leader.reconcile()
        self.land_late()

    def end_late(self, silences: random.Random) -> None:
        """A leader stands still until its time is over, and ends: the Lease may be another's by then, and is
        not its own to give away."""
        leading = [one for one in self.controllers if one.caches is not None and not one.busy]
        if not leading or self.depth:
            return
        leader = silences.choice(leading)
        self.depth += 1
        self.others_take_over(leader)
        self.depth -= 1
        leader.end_in_order(leader.identity if silences.random() < 0.5 else "")
        leader.look_at_lease()
        self.create_pod()
        self.claim_controller()
        for controller in self.controllers:
            self.deliver_all(controller)
            controller.reconcile()

    def create_rival(self, size: str) -> None:
        self.made += 1
        name = f"r{self.made}"
        spec = {
            "priority": 10,
            "resourceClaims": [{"name": "gpu", "resourceClaimName": name}],
            "containers": [{"name": "main", "image": "busybox"}],
        }
        self.api.create(RESOURCE_CLAIMS, self.claim_body(name, size), created=self.timestamp())
        self.api.create(PODS, _pod(name, spec), created=self.timestamp())

    def deliver_all(self, controller: Controller) -> None:
        if controller.caches is not None:
            for kind in self.watched:
                controller.caches.deliver(kind)

    def turn_clock(self) -> None:
        assert self.upheaval is not None
        self.upheaval.choice(self.controllers).wall = self.upheaval.choice((-3600.0, 0.0, 3600.0))

    def refuse_writes(self) -> None:
        """The server starts, and knows no roles yet."""
        self.fuse, self.next_fate = 1, "forbidden"

    def timestamp(self, ahead: float = 0.0) -> str:
        seconds = max(0, int(self.now + ahead))
        return (
            f"2026-11-{21 + seconds // 86400}T{seconds // 3600 % 24:02d}:"
            f"{seconds // 60 % 60:02d}:{seconds % 60:02d}Z"
        )

    # --- requests of controllers

    def carry(self, sender: Controller, request: Request, what: str) -> Object:
        if self.calm:
            return self.land(sender, request, what)
        self.fuse -= 1
        if self.fuse > 0:
            return self.land(sender, request, what)
        self.fuse = self.random.randrange(2, 20)
        drawn = self.random.choices([fate for _, fate in FATES], [weight for weight, _ in FATES])[0]
        fate, self.next_fate = self.next_fate or drawn, ""
        self.trace.append(f"  {fate}: {what} of {sender.identity}")
        self.faults.note("request", fate)
        if fate == "forbidden":
            raise Forbidden("RBAC: not known yet", code=403, reason="Forbidden")
        if fate in {"lost", "throttled"}:
            raise unreachable(fate)
        if fate == "killed before":
            raise Killed
        if fate in {"late", "killed, late"}:
            if what != "read":
                self.in_flight.append(self.sent(sender, request, what))
            raise Killed if fate == "killed, late" else unreachable(fate)
        if fate == "paused before":
            self.go_on_without(sender)
            if self.upheaval is not None and self.upheaval.random() < 0.4:
                self.fuse, self.next_fate = 1, self.upheaval.choice(("late", "killed, late", "paused before"))
            return self.land(sender, request, what)
        answer = self.land(sender, request, what)
        if fate == "unanswered":
            raise unreachable(fate)
        if fate == "killed after":
            raise Killed
        self.go_on_without(sender, paused=fate == "paused after")
        return answer

    def sent(self, sender: Controller, request: Request, what: str) -> InFlight:
        return InFlight(
            self.now,
            sender.process,
            request,
            what,
            self.draw_lag(),
            is_beyond=sender.is_beyond(),
            takes_back=what == RESOURCE_CLAIMS.plural and sender.knowledge.takes_back,
        )

    def draw_lag(self) -> float:
        if self.upheaval is None:
            return 0.0
        return self.upheaval.choice((0.0, 0.0, TIMES.timeout, 2 * TIMES.lease))

    def land(self, sender: Controller, request: Request, what: str) -> Object:
        """The request reaches the server. Whether its sender still leads nobody there asks."""
        if what == RESOURCE_CLAIMS.plural:
            if not sender.lease.may_write() or sender.is_beyond():
                self.beyond = True
            else:
                self.check_alone(sender)
        gated = {pod["metadata"]["uid"] for pod in self.pods() if pod["spec"].get("schedulingGates")}
        answer = request()
        if what == PODS.plural and gated:
            self.check_lifted(gated)
        return answer

    def go_on_without(self, sender: Controller, *, paused: bool = True) -> None:
        """The world's next steps while the sender stands still (or only its request does)."""
        if self.depth:
            return
        self.depth += 1
        began = self.now
        was_busy, lease_step = sender.busy, sender.look_at_lease
        sender.busy = True
        if paused:
            sender.look_at_lease = lambda: None  # type: ignore[method-assign]
        try:
            for _ in range(self.random.randrange(1, 8)):
                self.step()
            if paused and self.random.random() < 0.6:
                self.others_take_over(sender)
        finally:
            sender.look_at_lease = lease_step  # type: ignore[method-assign]
            sender.busy = was_busy
            self.depth -= 1
        if paused and self.upheaval is not None and self.upheaval.random() < 0.4:
            self.faults.note("upheaval", "clock stood still")
            sender.lose_time(self.now - began)

    def others_take_over(self, sender: Controller) -> None:
        """The pause outlasts the lease; a successor lists and begins to work."""
        for _ in range(3):
            self.now += 11.0
            for controller in self.controllers:
                if controller is not sender:
                    controller.look_at_lease()
        for _ in range(self.random.randrange(1, 6)):
            self.random.choice((self.step, self.reconcile_step, self.schedule_step, self.node_step))()

    def land_late(self) -> None:
        """Requests that their senders gave up for lost arrive, now or later, or never do; none after its time
        limit, unless something on the way kept them: then only the nodes are left to refuse."""
        waiting, self.in_flight = self.in_flight, []
        for late in waiting:
            if self.now <= late.deadline:
                if self.random.random() < 0.5:
                    self.in_flight.append(late)
                    continue
                try:
                    late.request()
                except KoordraError as error:  # nobody is there to hear the answer
                    self.trace.append(f"  late: {error}")
                    continue
                if self.now > late.deadline - late.lag:
                    self.faults.note("upheaval", "request after its time limit")
                elif not late.is_beyond:
                    self.check_term(late)
                    continue
                self.beyond = self.beyond or late.what == RESOURCE_CLAIMS.plural

    # --- controllers

    def lease_step(self) -> None:
        self.random.choice(self.controllers).look_at_lease()

    def reconcile_step(self) -> None:
        leading = [one for one in self.controllers if one.reconciler is not None]
        if leading:
            self.random.choice(leading).reconcile()

    def deliver_step(self) -> None:
        for controller in self.controllers:
            if controller.caches is not None:
                if self.random.random() < 0.4:
                    for kind in self.watched:
                        controller.caches.deliver(kind)
                else:
                    kind = self.random.choice(self.watched)
                    controller.caches.deliver(
                        kind, self.random.choice((1, 2, None)), again=self.random.choice((0, 0, 1))
                    )

    def relist_step(self) -> None:
        """A watch broke off and the kind is listed anew: what lay between is never told."""
        for controller in self.controllers:
            if controller.caches is not None:
                controller.caches.list_anew(self.random.choice(self.watched))

    def pass_time(self) -> None:
        self.now += self.random.choice((0.5, 1.0, 2.0, 2.0, 6.0, 25.0))
        self.in_flight = [entry for entry in self.in_flight if entry.deadline >= self.now]

    def neglect_lease(self) -> None:
        """The leader works on and does not come to renew its lease, while the others look at it all the time;
        what it sends last is under way for as long as a request may be."""
        leading = [one for one in self.controllers if one.reconciler is not None and not one.busy]
        if not leading or self.depth:
            return
        leader = self.random.choice(leading)
        leader.look_at_lease()
        for _ in range(self.random.randrange(2, 6)):
            self.wait_beside(leader, self.random.choice((1.0, 2.0, 3.0)))
        self.create_pod()
        self.claim_controller()
        self.deliver_all(leader)
        self.fuse, self.next_fate = 1, self.random.choice(("late", "killed, late"))
        leader.reconcile()
        for _ in range(4):
            self.wait_beside(leader, self.random.choice((0.5, 1.0, 2.0)))
            self.land_late()
            self.check_claims()

    def wait_beside(self, leader: Controller, seconds: float) -> None:
        self.now += seconds
        for controller in self.controllers:
            if controller is not leader:
                controller.look_at_lease()

    # --- users

    def create_pod(self) -> None:
        pods = self.api.table(PODS)
        if len(pods) > 9:
            return
        self.made += 1
        name = f"p{self.made}"
        roll = self.random.random()
        claims: list[Object] = []
        entries: list[Object] = []
        free = [one for one in self.api.table(RESOURCE_CLAIMS).values() if not _owner(one)]
        if roll < 0.35:
            entries.append(
                {"name": "gpu", "resourceClaimTemplateName": self.random.choice(("one", "two", "half"))}
            )
        elif roll < 0.5 and free:
            entries.append({"name": "gpu", "resourceClaimName": self.random.choice(free)["metadata"]["name"]})
        else:
            for index in range(self.random.choice((1, 1, 2))):
                claims.append(
                    self.claim_body(
                        f"c{self.made}-{index}", self.random.choice(("one", "two", "half", "part"))
                    )
                )
                entries.append({"name": f"gpu-{index}", "resourceClaimName": f"c{self.made}-{index}"})
        spec: Object = {"resourceClaims": entries, "containers": [{"name": "main", "image": "busybox"}]}
        if self.random.random() < 0.5:
            spec["schedulingGates"] = [{"name": names.JOINT_GATE}]
        if self.random.random() < 0.2:
            spec["priority"] = 5
        if self.random.random() < 0.1:
            spec["nodeSelector"] = {"kubernetes.io/hostname": "n0"}
        for claim in claims:
            self.api.create(RESOURCE_CLAIMS, claim, created=self.timestamp())
        self.api.create(PODS, self.in_a_mood(_pod(name, spec)), created=self.timestamp())

    def create_sharers(self) -> None:
        """Pods with a claim between them, which are not free to go to the same nodes."""
        assert self.moods is not None
        if len(self.api.table(PODS)) > 7:
            return
        self.made += 1
        claim = self.claim_body(f"s{self.made}", self.moods.choice(("one", "half", "part")))
        self.api.create(RESOURCE_CLAIMS, claim, created=self.timestamp())
        for index in range(2):
            spec: Object = {
                "resourceClaims": [{"name": "gpu", "resourceClaimName": f"s{self.made}"}],
                "containers": [{"name": "main", "image": "busybox"}],
            }
            if self.moods.random() < 0.5:
                spec["schedulingGates"] = [{"name": names.JOINT_GATE}]
            body = self.in_a_mood(_pod(f"p{self.made}-{index}", spec))
            self.api.create(PODS, body, created=self.timestamp())

    def in_a_mood(self, pod: Object) -> Object:
        """With what it says of nodes and of other pods."""
        if self.moods is None:
            return pod
        moods, spec = self.moods, dict(pod["spec"])
        if moods.random() < 0.15:
            spec["nodeSelector"] = {ZONE: moods.choice("ab")}
        if moods.random() < 0.5:
            spec["tolerations"] = [{"key": TAINT["key"], "operator": "Exists"}]
        if moods.random() < 0.3:
            spec["containers"] = [{**spec["containers"][0], "resources": {"requests": {"cpu": "1"}}}]
        if moods.random() < 0.4:
            term = {"topologyKey": "kubernetes.io/hostname", "labelSelector": {"matchLabels": LOUD}}
            required = {"requiredDuringSchedulingIgnoredDuringExecution": [term]}
            spec["affinity"] = {"podAntiAffinity": required}
        labels = LOUD if moods.random() < 0.4 else {}
        return {**pod, "metadata": {**pod["metadata"], "labels": labels}, "spec": spec}

    def create_immediate(self) -> None:
        """A claim that wants its devices without a pod."""
        if self.random.random() < 0.5:
            self.made += 1
            body = self.claim_body(f"now{self.made}", self.random.choice(("one", "part")))
            body["metadata"]["annotations"] = {names.MODE_LABEL: "Immediate"}
            self.api.create(RESOURCE_CLAIMS, body, created=self.timestamp())

    def claim_body(self, name: str, size: str, owner: Object | None = None) -> Object:
        exactly: Object = {"deviceClassName": names.CLASS_GPU, "count": 2 if size == "two" else 1}
        if size in {"half", "part"}:
            exactly["capacity"] = {"requests": {"memory": "50Gi" if size == "half" else "20Gi"}}
        metadata: Object = {"name": name}
        if owner is not None:
            metadata["annotations"] = {names.POD_CLAIM_NAME: "gpu"}
            reference = {"kind": "Pod", "uid": owner["metadata"]["uid"], "controller": True}
            metadata["ownerReferences"] = [{**reference, "name": owner["metadata"]["name"]}]
        return {
            "metadata": metadata,
            "spec": {"devices": {"requests": [{"name": "gpu", "exactly": exactly}]}},
            "status": {},
        }

    def pods(self) -> list[Object]:
        return list(self.api.table(PODS).values())

    def any_pod(self, suits: Callable[[Object], bool] = lambda _pod: True) -> Object | None:
        found = [pod for pod in self.pods() if suits(pod)]
        return self.random.choice(found) if found else None

    def delete_pod(self) -> None:
        pod = self.any_pod(lambda one: not one["metadata"].get("deletionTimestamp"))
        if pod is not None:
            self.ask_to_end(pod)

    def ask_to_end(self, pod: Object) -> None:
        if pod["spec"].get("nodeName"):
            self.api.change(PODS, pod["metadata"]["name"], metadata={"deletionTimestamp": self.timestamp()})
        else:
            self.api.remove(PODS, pod["metadata"]["name"])

    def force_delete_pod(self) -> None:
        pod = self.any_pod()
        if pod is not None:
            self.api.remove(PODS, pod["metadata"]["name"])

    def touch_claim(self) -> None:
        claims = list(self.api.table(RESOURCE_CLAIMS))
        if claims:
            name = self.random.choice(claims).partition("/")[2]
            self.api.change(RESOURCE_CLAIMS, name, metadata={"labels": {"seen": str(self.random.random())}})

    def delete_claim(self) -> None:
        claims = list(self.api.table(RESOURCE_CLAIMS))
        if claims:
            self.api.delete(RESOURCE_CLAIMS, self.random.choice(claims).partition("/")[2])

    # --- administrators

    def add_node(self, name: str) -> None:
        made = node(name)
        self.api.create(NODES, made)
        self.api.create(RESOURCE_SLICES, gpu_slice(name, 2))

    def change_card(self) -> None:
        """A card appears, disappears, falls ill or recovers; the pool's generation goes up."""
        slices = list(self.api.table(RESOURCE_SLICES).values())
        if not slices:
            return
        entry = self.random.choice(slices)
        fresh = gpu_slice(entry["spec"]["nodeName"], self.random.choice((1, 2, 2, 3)))["spec"]
        if self.random.random() < 0.3:
            fresh["devices"][0]["taints"].append({"key": names.UNHEALTHY_TAINT, "effect": "NoSchedule"})
        self.publish(entry, fresh)

    def publish(self, entry: Object, spec: Object) -> None:
        generation = entry["spec"]["pool"]["generation"] + 1
        pool = {**spec["pool"], "generation": generation}
        self.api.change(RESOURCE_SLICES, entry["metadata"]["name"], spec={**spec, "pool": pool})

    def change_class(self) -> None:
        if self.api.find(DEVICE_CLASSES, names.CLASS_GPU) is None:
            self.api.create(DEVICE_CLASSES, device_class(names.CLASS_GPU, "gpu"))
        else:
            self.api.remove(DEVICE_CLASSES, names.CLASS_GPU)

    def change_node(self) -> None:
        found = self.api.find(NODES, f"n{self.random.randrange(2)}")
        if found is not None:
            cordoned = {} if found["spec"].get("unschedulable") else {"unschedulable": True}
            self.api.change(NODES, found["metadata"]["name"], spec={**_uncordoned(found), **cordoned})

    def moody_node(self) -> Object | None:
        assert self.moods is not None
        return self.api.find(NODES, f"n{self.moods.randrange(2)}")

    def change_zone(self) -> None:
        if (found := self.moody_node()) is not None and self.moods is not None:
            labels = {**found["metadata"]["labels"], ZONE: self.moods.choice("ab")}
            self.api.change(NODES, found["metadata"]["name"], metadata={"labels": labels})

    def change_taint(self) -> None:
        if (found := self.moody_node()) is not None:
            taints = [] if found["spec"].get("taints") else [TAINT]
            self.api.change(NODES, found["metadata"]["name"], spec={**found["spec"], "taints": taints})

    def change_room(self) -> None:
        if (found := self.moody_node()) is not None and self.moods is not None:
            allocatable = {**found["status"]["allocatable"], "cpu": self.moods.choice(("1", "2", "64"))}
            status = {**found["status"], "allocatable": allocatable}
            self.api.change(NODES, found["metadata"]["name"], status=status)

    def remove_node(self) -> None:
        """The machine is gone for good, and with it what ran there; or a new one of that name joins."""
        name = f"n{self.random.randrange(2)}"
        if self.api.find(NODES, name) is None:
            self.add_node(name)
            return
        self.api.remove(NODES, name)
        self.api.remove(RESOURCE_SLICES, f"{name}-koordra")
        self.prepared.pop(name, None)
        self.running.pop(name, None)
        for pod in self.pods():
            if pod["spec"].get("nodeName") == name:
                self.api.remove(PODS, pod["metadata"]["name"])

    def block(self) -> None:
        """The scheduler will find a reason against a node that nobody else sees."""
        pod = self.any_pod()
        if pod is not None:
            place = (pod["metadata"]["uid"], f"n{self.random.randrange(2)}")
            self.blocked ^= {place}

    # --- kube-controller-manager

    def claim_controller(self) -> None:
        for pod in self.pods():
            self.make_claims(pod)
        pods = {pod["metadata"]["uid"]: pod for pod in self.pods()}
        for claim in list(self.api.table(RESOURCE_CLAIMS).values()):
            self.tidy_claim(claim, pods)

    def make_claims(self, pod: Object) -> None:
        if pod["metadata"].get("deletionTimestamp") or pod["status"].get("resourceClaimStatuses"):
            return
        for entry in pod["spec"]["resourceClaims"]:
            template = entry.get("resourceClaimTemplateName")
            if template:
                self.api.uids += 1
                name = f"{pod['metadata']['name']}-gpu-{self.api.uids}"
                self.api.create(
                    RESOURCE_CLAIMS, self.claim_body(name, template, pod), created=self.timestamp()
                )
                statuses = [{"name": entry["name"], "resourceClaimName": name}]
                self.api.change(
                    PODS, pod["metadata"]["name"], status={**pod["status"], "resourceClaimStatuses": statuses}
                )

    def tidy_claim(self, claim: Object, pods: dict[str, Object]) -> None:
        name, status = claim["metadata"]["name"], claim.get("status") or {}
        reserved = status.get("reservedFor") or []
        kept = [
            entry
            for entry in reserved
            if entry["uid"] in pods
            and pods[entry["uid"]]["status"].get("phase") not in {"Succeeded", "Failed"}
        ]
        finalizers = claim["metadata"].get("finalizers") or []
        protected = names.DELETE_PROTECTION in finalizers
        deleting = bool(claim["metadata"].get("deletionTimestamp"))
        if kept != reserved:
            status = {**status, "reservedFor": kept}
            if not kept:
                status = (
                    {} if protected else {key: value for key, value in status.items() if key != "reservedFor"}
                )
            claim = self.api.change(RESOURCE_CLAIMS, name, status=status)
        elif deleting and not reserved and status.get("allocation"):
            claim = self.api.change(RESOURCE_CLAIMS, name, status={})
        if deleting and protected and not (claim.get("status") or {}).get("allocation"):
            self.api.change(RESOURCE_CLAIMS, name, metadata={"finalizers": []})
            return
        owner = _owner(claim)
        if (
            owner
            and not deleting
            and (owner not in pods or pods[owner]["status"].get("phase") == "Succeeded")
        ):
            self.api.delete(RESOURCE_CLAIMS, name)

    # --- kube-scheduler

    def schedule_step(self) -> None:
        pod = self.any_pod(lambda one: not one["spec"].get("nodeName"))
        if pod is not None:
            self.schedule(pod)

    def scheduling_queue(self) -> list[Object]:
        """Pods without a node: by priority, and else in no order that one can rely on. Of pods without gates
        that share a claim, one that has no place there could else take it from the others again and again."""
        waiting = [pod for pod in self.pods() if not pod["spec"].get("nodeName")]
        self.random.shuffle(waiting)
        return sorted(waiting, key=lambda pod: -pod["spec"].get("priority", 0))

    def schedule(self, pod: Object) -> None:
        if pod["spec"].get("schedulingGates") or pod["metadata"].get("deletionTimestamp"):
            return
        if pod["metadata"]["uid"] in self.cycles:
            return
        claims = self.claims_of(pod)
        if claims is None:
            return
        if not all(results_of(claim) for claim in claims):
            self.say_no(pod, "cannot allocate all claims")
            return
        places = {results_of(claim)[0]["pool"] for claim in claims}
        target = self.api.find(NODES, next(iter(places))) if len(places) == 1 else None
        if target is None or not self.accepts(pod, target):
            self.refuse(pod, claims)
            return
        self.cycles[pod["metadata"]["uid"]] = (pod["metadata"]["name"], target["metadata"]["name"])
        if self.calm or self.random.random() < 0.75:
            self.write_cycle(pod["metadata"]["uid"])

    def finish_cycle(self) -> None:
        """A decision that was made a while ago is written now."""
        if self.cycles:
            self.write_cycle(self.random.choice(sorted(self.cycles)))

    def write_cycle(self, uid: str) -> None:
        """Reserve and bind as was decided. The scheduler reads a claim again when it has changed, and does
        not ask then where it is allocated now; without an allocation the server refuses."""
        name, where = self.cycles.pop(uid)
        pod = self.api.find(PODS, name)
        if pod is None or pod["metadata"]["uid"] != uid or pod["metadata"].get("deletionTimestamp"):
            return
        claims = self.claims_of(pod)
        if claims is None:
            return
        for claim in claims:
            if not results_of(claim) or not self.reserve(pod, claim):
                return
            if not self.calm and self.random.random() < 0.1:
                return
        if self.api.find(NODES, where) is None or (not self.calm and self.random.random() < 0.15):
            return
        if {result["pool"] for claim in claims for result in results_of(claim)} != {where}:
            self.misled.add(uid)
        self.api.change(PODS, name, spec={**pod["spec"], "nodeName": where})

    def claims_of(self, pod: Object) -> list[Object] | None:
        statuses = {
            one["name"]: one["resourceClaimName"] for one in pod["status"].get("resourceClaimStatuses") or ()
        }
        found = []
        for entry in pod["spec"]["resourceClaims"]:
            claim = self.api.find(
                RESOURCE_CLAIMS, entry.get("resourceClaimName") or statuses.get(entry["name"]) or ""
            )
            if claim is None or claim["metadata"].get("deletionTimestamp"):
                return None
            found.append(claim)
        return found

    def accepts(self, pod: Object, target: Object, *, coming: bool = False) -> bool:
        """`coming`: beside those too that are not bound and have their devices there."""
        name = target["metadata"]["name"]
        if target["spec"].get("unschedulable") or (pod["metadata"]["uid"], name) in self.blocked:
            return False
        if target["spec"].get("taints") and not pod["spec"].get("tolerations"):
            return False
        labels = target["metadata"]["labels"]
        if any(labels.get(key) != value for key, value in (pod["spec"].get("nodeSelector") or {}).items()):
            return False
        if self.moods is None:
            return True
        guests = [one for one in self.pods() if one is not pod and self.is_guest(one, name, coming=coming)]
        room = int(target["status"]["allocatable"]["cpu"]) - sum(map(_cpus, guests))
        repelled = any(_repels(one, pod) or _repels(pod, one) for one in guests)
        # Who asks for none of it is taken by a full node too, as kube-scheduler's NodeResourcesFit has it.
        return (not _cpus(pod) or _cpus(pod) <= room) and not repelled

    def is_guest(self, pod: Object, name: str, *, coming: bool) -> bool:
        if pod["status"].get("phase") in {"Succeeded", "Failed"}:
            return False
        if pod["spec"].get("nodeName") or not coming:
            return bool(pod["spec"].get("nodeName") == name)
        claims = map(self.api.table(RESOURCE_CLAIMS).get, (f"default/{one}" for one in _claim_names(pod)))
        return any(result["pool"] == name for claim in claims if claim for result in results_of(claim))

    def reserve(self, pod: Object, claim: Object) -> bool:
        status = claim["status"]
        entry = {"resource": "pods", "name": pod["metadata"]["name"], "uid": pod["metadata"]["uid"]}
        if entry in (status.get("reservedFor") or ()):
            return True
        changed = {**status, "reservedFor": [*(status.get("reservedFor") or ()), entry]}
        self.api.change(RESOURCE_CLAIMS, claim["metadata"]["name"], status=changed)
        return True

    def refuse(self, pod: Object, claims: list[Object]) -> None:
        """Its noes come in two ways; PostFilter may erase what nobody else has reserved."""
        mine = {pod["metadata"]["uid"]}
        free = [
            claim
            for claim in claims
            if {entry["uid"] for entry in claim["status"].get("reservedFor") or ()} <= mine
        ]
        if free and self.random.random() < 0.5:
            self.api.change(RESOURCE_CLAIMS, self.random.choice(free)["metadata"]["name"], status={})
        self.say_no(pod, "node(s) didn't match")

    def say_no(self, pod: Object, message: str) -> None:
        condition = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": message}
        if self.observes_generation:
            condition["observedGeneration"] = pod["metadata"]["generation"]
        self.api.change(PODS, pod["metadata"]["name"], status={**pod["status"], "conditions": [condition]})

    # --- nodes

    def node_step(self) -> None:
        name = f"n{self.random.randrange(2)}"
        self.clean_up(name)
        for pod in self.pods():
            if pod["spec"].get("nodeName") == name:
                self.run_pod(name, pod)

    def run_pod(self, node_name: str, pod: Object) -> None:
        uid, running = pod["metadata"]["uid"], self.running.setdefault(node_name, {})
        if pod["metadata"].get("deletionTimestamp"):
            running.pop(uid, None)
            self.unprepare(node_name)
            self.api.remove(PODS, pod["metadata"]["name"])
            return
        if pod["status"].get("phase") == "Pending":
            if self.prepare(node_name, pod):
                running[uid] = pod
                self.api.change(PODS, pod["metadata"]["name"], status={**pod["status"], "phase": "Running"})
        elif pod["status"].get("phase") == "Running" and not self.calm and self.random.random() < 0.15:
            running.pop(uid, None)
            self.unprepare(node_name)
            self.api.change(PODS, pod["metadata"]["name"], status={**pod["status"], "phase": "Succeeded"})

    def prepare(self, node_name: str, pod: Object) -> bool:
        """What the kubelet and the plugin check; the last line of defence against two claims on one card."""
        claims = self.claims_of(pod)
        if claims is None:
            return False
        prepared = self.prepared.setdefault(node_name, {})
        for claim in claims:
            reserved = [entry["uid"] for entry in claim["status"].get("reservedFor") or ()]
            if pod["metadata"]["uid"] not in reserved or not results_of(claim):
                return False
            if {result["pool"] for result in results_of(claim)} != {node_name}:
                return False
        for claim in claims:
            uid = claim["metadata"]["uid"]
            if uid in prepared:
                continue
            used = use_of(prepared.values())
            asked = use_of([claim])
            if any(used.get(card, 0) + amount > CARD for card, amount in asked.items()):
                self.refusals += 1
                self.unprepare(node_name)
                return False
            prepared[uid] = claim
        over = {card: amount for card, amount in use_of(prepared.values()).items() if amount > CARD}
        assert not over, f"prepared beyond capacity: {over}"
        return True

    def unprepare(self, node_name: str) -> None:
        """Claims of which no pod runs here any more."""
        prepared, used = self.prepared.setdefault(node_name, {}), set()
        for pod in self.running.get(node_name, {}).values():
            used |= {entry["metadata"]["uid"] for entry in self.all_claims_of(pod, prepared)}
        for uid in [uid for uid in prepared if uid not in used]:
            del prepared[uid]

    def all_claims_of(self, pod: Object, prepared: dict[str, Object]) -> list[Object]:
        wanted = {one["resourceClaimName"] for one in pod["status"].get("resourceClaimStatuses") or ()}
        wanted |= {entry.get("resourceClaimName") for entry in pod["spec"]["resourceClaims"]}
        return [claim for claim in prepared.values() if claim["metadata"]["name"] in wanted]

    def clean_up(self, node_name: str) -> None:
        """The kubelet ends pods that the API no longer knows; it takes its time."""
        known = {pod["metadata"]["uid"] for pod in self.pods()}
        running = self.running.setdefault(node_name, {})
        gone = [uid for uid in running if uid not in known]
        if gone and (self.calm or self.random.random() < 0.5):
            for uid in gone:
                del running[uid]
            self.unprepare(node_name)
        entry = self.api.find(RESOURCE_SLICES, f"{node_name}-koordra")
        if entry is not None and (gone or self.calm or self.random.random() < 0.3):
            self.tell_held(node_name, entry)

    def tell_held(self, node_name: str, entry: Object) -> None:
        """Cards in use for claims that the API does not have any more carry koordra.io/held."""
        known = {
            claim["metadata"]["uid"]
            for claim in self.api.table(RESOURCE_CLAIMS).values()
            if results_of(claim)
        }
        lost = [claim for uid, claim in self.prepared.get(node_name, {}).items() if uid not in known]
        held = {card for _, card in use_of(lost)}
        devices = []
        for device in entry["spec"]["devices"]:
            taints = [taint for taint in device["taints"] if taint["key"] != names.HELD_TAINT]
            if device["name"] in held:
                taints.append({"key": names.HELD_TAINT, "effect": "NoSchedule"})
            devices.append({**device, "taints": taints})
        if devices != entry["spec"]["devices"]:
            self.publish(entry, {**entry["spec"], "devices": devices})

    # --- what must hold

    def check_indices(self, controller: Controller, reconciler: Reconciler) -> None:
        """What the controller kept by changes is what a full read makes of the same objects. In one term of
        two every few passes are full, so that both ways of going on are followed."""
        if controller.reconciler is not reconciler or self.depth:
            return
        is_same, controller.compared = (
            controller.compared == reconciler.cache.version,
            reconciler.cache.version,
        )
        if reconciler.audit.differences or (self.full_passes is not None and self.full_passes.random() < 0.2):
            reconciler.audit.run()
        elif not is_same:
            reconciler.audit.compare()
        assert not reconciler.audit.differences, f"indices differ: {dict(reconciler.audit.differences)}"

    def check_claims(self) -> None:
        """No card is given out beyond its capacity in the API."""
        if not self.beyond:
            over = self.over_committed() - self.gone
            assert not over, f"allocated beyond capacity: {over}"

    def over_committed(self) -> set[tuple[str, str]]:
        used = use_of(self.api.table(RESOURCE_CLAIMS).values())
        return {card for card, amount in used.items() if amount > CARD}

    def published(self) -> set[tuple[str, str]]:
        slices = [entry["spec"] for entry in self.api.table(RESOURCE_SLICES).values()]
        return {(spec["pool"]["name"], device["name"]) for spec in slices for device in spec["devices"]}

    def check_fence(self, sender: Controller, what: str) -> None:
        """A write ends before its sender's lease, but for one that takes back what was just given out."""
        if what in {LEASES.plural, "read"} or sender.is_beyond():
            return
        if what == RESOURCE_CLAIMS.plural and sender.knowledge.takes_back:
            return
        end = sender.renewed + TIMES.lease - TIMES.timeout
        assert self.now < end, f"{sender.identity} writes although its lease may be over"

    def check_term(self, late: InFlight) -> None:
        """Nobody changes a claim behind a successor that has listed it. Who is answered after its lease
        takes back what it has just given out: that holds for this version alone, and gives nothing out."""
        leader, since = self.term
        told = f"{late.sender} changed a claim after {leader} had listed them"
        foreign = late.what == RESOURCE_CLAIMS.plural and late.sender != leader
        assert not foreign or late.sent > since or late.takes_back, told

    def check_alone(self, sender: Controller) -> None:
        """Nobody has begun a term while its predecessor still may write."""
        leader, _ = self.term
        told = f"{sender.process} writes although {leader} has listed the claims"
        assert leader == sender.process or not sender.is_known or sender.knowledge.takes_back, told

    def check_bound(self) -> None:
        """Nobody takes from a pod that has its node what it was bound with."""
        table = self.api.table(RESOURCE_CLAIMS)
        for pod in self.pods():
            where, uid = pod["spec"].get("nodeName"), pod["metadata"]["uid"]
            if not where or pod["status"].get("phase") in {"Succeeded", "Failed"} or uid in self.misled:
                continue
            for name in _claim_names(pod):
                claim = table.get(f"default/{name}") or {}
                places = {result["pool"] for result in results_of(claim)}
                users = {entry["uid"] for entry in (claim.get("status") or {}).get("reservedFor") or ()}
                told = f"{pod['metadata']['name']} lost its claim {name}"
                assert places == {where}, f"{told}: on {places or 'no node'}"
                assert uid in users, f"{told}: reserved for others"

    def check_lifted(self, gated: set[str]) -> None:
        """`gated`: the pods that had a gate before a controller's write."""
        for pod in self.pods():
            if pod["metadata"]["uid"] in gated and not pod["spec"].get("schedulingGates"):
                had = {
                    obj["metadata"]["name"]
                    for _, _, obj in self.api.history[RESOURCE_CLAIMS.plural]
                    if results_of(obj)
                }
                lacking = _claim_names(pod) - had
                assert not lacking, f"{pod['metadata']['name']} lost its gate without {lacking}"

    def become_quiet(self) -> None:
        """No more disturbance: everybody works until nothing changes and nothing is to come."""
        self.calm = self.faults.calm = True
        self.in_flight.clear()
        while self.cycles:
            self.finish_cycle()
        if self.api.find(DEVICE_CLASSES, names.CLASS_GPU) is None:
            self.change_class()
        for name in ("n0", "n1"):
            if self.api.find(NODES, name) is None:
                self.add_node(name)
            self.api.change(NODES, name, spec=_uncordoned(self.api.get(NODES, name)))
        self.check_noes()
        self.blocked.clear()
        still = 0
        for _ in range(60):
            before = self.work_version(), self.terms()
            self.round_of_work()
            still = still + 1 if any(self.terms()) and (self.work_version(), self.terms()) == before else 0
            self.now += 7.0 if still < 2 else 310.0
            if still >= 3:
                return
        raise AssertionError("does not come to rest")

    def check_noes(self) -> None:
        """A pod that the scheduler keeps off one node does not stay there for ever while the other is free
        for it."""
        blocked = {pod["metadata"]["uid"] for pod in self.pods() if not pod["spec"].get("nodeName")} & {
            uid for uid, _ in self.blocked
        }
        if not blocked or self.starves_after or self.preemption:
            return
        ends = self.now + NOES
        while self.now < ends:
            before = self.work_version()
            self.round_of_work()
            self.now += ROUND if self.work_version() != before else self.idle_time(ends - self.now)
            if not any(self.is_refused(pod, blocked) for pod in self.pods()):
                return
        for pod in self.pods():
            own = self.claims_of(pod)
            if own is None or not self.is_refused(pod, blocked):
                continue
            name = pod["metadata"]["name"]
            for where in ("n0", "n1"):
                assert not self.would_take(where, pod, own), f"{name} is refused and not tried on {where}"

    def idle_time(self, most: float) -> float:
        """Seconds for which nothing happens, since nothing has changed and no pass is due; not long while
        nobody leads."""
        pauses = [one.due - one.clock() for one in self.controllers if one.reconciler is not None]
        return max(ROUND, min([*pauses, most])) if pauses else ROUND

    def is_refused(self, pod: Object, blocked: set[str]) -> bool:
        """Whether it still waits with claims of its own that it could take elsewhere."""
        if pod["metadata"]["uid"] not in blocked or pod["spec"].get("nodeName") or self.are_shared(pod):
            return False
        own = self.claims_of(pod) or []
        return bool(own) and not any(claim["status"].get("reservedFor") for claim in own)

    def are_shared(self, pod: Object) -> bool:
        """Whether others name the pod's claims too."""
        mine = _claim_names(pod)
        return any(mine & _claim_names(other) for other in self.pods() if other is not pod)

    def would_take(self, where: str, pod: Object, own: list[Object]) -> bool:
        """Whether the scheduler and the cards of a node have room for the pod, wherever its claims are
        now."""
        mine = {claim["metadata"]["uid"] for claim in own}
        holders = [
            claim
            for claim in self.api.table(RESOURCE_CLAIMS).values()
            if results_of(claim) and claim["metadata"]["uid"] not in mine
        ]
        waiting = [{**claim, "status": {}} for claim in own]
        return bool(self.offer([where], pod, [*holders, *waiting]).allocations)

    def offer(self, where: Iterable[str], pod: Object, claims: Iterable[Object]) -> Any:
        """What the planner says of those nodes that the scheduler would accept for the pod."""
        nodes = [one for name in where if self.accepts(pod, one := self.api.get(NODES, name), coming=True)]
        accepted = {one["metadata"]["name"] for one in nodes}
        slices = self.api.table(RESOURCE_SLICES).values()
        shown = [
            *nodes,
            *(one for one in slices if one["spec"]["nodeName"] in accepted),
            *self.api.table(DEVICE_CLASSES).values(),
        ]
        return self.planner([*shown, *claims, pod], report_errors=True)

    def terms(self) -> list[Reconciler | None]:
        """Who has just begun to lead has still to see for how long a pod is refused."""
        return [controller.reconciler for controller in self.controllers]

    def work_version(self) -> int:
        return sum(len(events) for plural, events in self.api.history.items() if plural != LEASES.plural)

    def round_of_work(self) -> None:
        for controller in self.controllers:
            controller.look_at_lease()
        self.claim_controller()
        for controller in self.controllers:
            self.deliver_all(controller)
            controller.reconcile_if_due()
            self.check_claims()
        for pod in self.scheduling_queue():
            self.schedule(pod)
            self.check_claims()
        for name in ("n0", "n1"):
            self.clean_up(name)
            for pod in self.pods():
                if pod["spec"].get("nodeName") == name:
                    self.run_pod(name, pod)
        self.evict_refused()

    def evict_refused(self) -> None:
        """A bound pod that its node cannot serve is evicted; its owner makes a new one."""
        for pod in self.pods():
            if (
                (self.beyond or pod["metadata"]["uid"] in self.misled)
                and pod["spec"].get("nodeName")
                and pod["status"].get("phase") == "Pending"
                and (self.calm or self.random.random() < 0.5)
            ):
                self.ask_to_end(pod)

    def check_quiet(self) -> None:
        """Nothing is lost: caches show what there is, who has devices runs, who has none would not fit,
        nobody holds for nobody, and what a late write gave out twice has been sorted out."""
        if self.beyond:
            self.gone = self.over_committed() - self.published()
        self.beyond = False
        self.check_claims()
        for controller in self.controllers:
            if controller.caches is not None:
                controller.caches.settle()
        pods = self.pods()
        claims = self.api.table(RESOURCE_CLAIMS)
        used = {claim["metadata"]["uid"] for pod in pods for claim in self.claims_of(pod) or ()}
        living = {pod["metadata"]["uid"] for pod in pods}
        for claim in claims.values():
            if results_of(claim) and claim["metadata"]["uid"] not in used and not _is_immediate(claim):
                reserved = {entry["uid"] for entry in claim["status"].get("reservedFor") or ()}
                assert reserved & living, f"{claim['metadata']['name']} is held for nobody"
        for pod in pods:
            self.check_pod(pod)

    def check_pod(self, pod: Object) -> None:
        name, wanted = pod["metadata"]["name"], self.claims_of(pod)
        if wanted is None:
            return
        if pod["spec"].get("nodeName"):
            assert pod["status"].get("phase") != "Pending", f"{name} is bound and does not run"
            return
        if all(results_of(claim) for claim in wanted):
            pinned = any(claim["status"].get("reservedFor") or _is_immediate(claim) for claim in wanted)
            target = self.api.get(NODES, results_of(wanted[0])[0]["pool"])
            lost = {results_of(claim)[0]["pool"] for claim in wanted} == {target["metadata"]["name"]}
            assert pinned, f"{name} has its devices and is not bound"
            assert not lost or not self.accepts(pod, target), f"{name} has its devices and is not bound"
            return
        holders = [claim for claim in self.api.table(RESOURCE_CLAIMS).values() if results_of(claim)]
        kept = {claim["metadata"]["uid"] for claim in holders}
        pending = [claim for claim in wanted if claim["metadata"]["uid"] not in kept]
        answer = self.offer(("n0", "n1"), pod, [*holders, *pending])
        assert not answer.allocations or self.is_held_back(answer), f"{name} would fit and waits"

    def is_held_back(self, answer: Any) -> bool:
        """A node may be kept free for somebody who comes first."""
        leading = [one.reconciler for one in self.controllers if one.reconciler is not None]
        held = [entry for one in leading for entry in one.allocation.reservations._held.values()]
        kept = {node for entry in held for node in entry.nodes}
        return bool(kept & set(answer.nodes.values()))


def _claim_names(pod: Object) -> set[str]:
    made = {one["name"]: one["resourceClaimName"] for one in pod["status"].get("resourceClaimStatuses") or ()}
    return {
        entry.get("resourceClaimName") or made.get(entry["name"], "")
        for entry in pod["spec"]["resourceClaims"]
    }


def _uncordoned(found: Object) -> Object:
    return {key: value for key, value in found["spec"].items() if key != "unschedulable"}


def _cpus(pod: Object) -> int:
    return sum("resources" in container for container in pod["spec"]["containers"])


def _repels(pod: Object, other: Object) -> bool:
    return "affinity" in pod["spec"] and bool(other["metadata"].get("labels"))


def _pod(name: str, spec: Object) -> Object:
    return {"metadata": {"name": name}, "spec": spec, "status": {"phase": "Pending"}}


def _is_immediate(claim: Object) -> bool:
    return names.MODE_LABEL in (claim["metadata"].get("annotations") or {})


def _owner(claim: Object) -> str:
    return next((entry["uid"] for entry in claim["metadata"].get("ownerReferences") or ()), "")


def use_of(claims: Iterable[Object]) -> dict[tuple[str, str], int]:
    used: dict[tuple[str, str], int] = {}
    for claim in claims:
        for result in results_of(claim):
            card = (result["pool"], result["device"])
            used[card] = used.get(card, 0) + amount_of(result)
    return used
