"""What happens to gangs in a pass of the reconciler, and in which order.

    look      who belongs together, and what stage each gang is in; what is Torn is given back; what is Short for too long is
              restarted, or kept, as its policy says
    plan      in the order of planning, between the other pods:  Short gangs first within their priority, Waiting ones by
              urgency, Growing ones last
    lift      the gates of Ready gangs, and of members that joined a committed one

A gang is planned again when something could have changed for it: room was made, its pods or claims are others, or it is kept off
other nodes than before.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from koordra.allocator.reasons import Cause, Reason
from koordra.api import objects
from koordra.api.kinds import NODES
from koordra.api.objects import Object
from koordra.controller.gangs import commit, holding, telling
from koordra.controller.gangs.keeping import Keeping
from koordra.controller.gangs.lifting import Lifts
from koordra.controller.gangs.marks import GANG_TOPOLOGY
from koordra.controller.gangs.membership import Gang, Gathering
from koordra.controller.gangs.planning import Arranging, Cell, KeptOffBy, Place, question
from koordra.controller.gangs.restarting import Restarts
from koordra.controller.gangs.shrinking import victims_for
from koordra.controller.gangs.stages import Stage, Standing, standings_of, with_idle
from koordra.controller.gangs.telling import Telling
from koordra.controller.obstacles import looks_at_others
from koordra.controller.offers import Offers
from koordra.controller.order import Urgency
from koordra.controller.snapshot import Group
from koordra.controller.working import Working
from koordra.logs import get_logger
from koordra.placement import gang as asked

log = get_logger(__name__)

UNDECIDED_PAUSE: Final = 10.0
SHRINK_PAUSE: Final = 60.0
MOST_BUDGET: Final = 64

Entries = Callable[..., Mapping[str, Object]]
"""`koordra.api.opaque.gang_member.gang_members`: what containers are to know of the gang, per claim."""

_LAST: Final[Urgency] = (2**31, "", "")


@dataclass(frozen=True, slots=True)
class _Considered:
    basis: tuple[object, ...]
    until: float | None = None
    budget: int = 1


class Gangs:
    """The gangs of one cluster. Not thread-safe."""

    def __init__(
        self,
        working: Working,
        offers: Offers,
        *,
        given_out: commit.GivenOut,
        kept_off: KeptOffBy,
        starves_after: float,
        place: Place | None = None,
        entries: Entries | None = None,
        beyond_quota: Callable[[], Mapping[str, str]] = dict,
    ) -> None:
        self._working = working
        self._beyond_quota = beyond_quota
        self._given_out = given_out
        self._kept_off = kept_off
        self._entries = entries
        self._memory = asked.Remembered()
        self._arranging = Arranging(offers, place=place, memory=self._memory)
        self._remembers: tuple[object, ...] = ()
        self._offers = offers
        self.lifts = Lifts()
        self.keeping = Keeping(starves_after=starves_after)
        self._gathering = Gathering(working.cache, self.lifts)
        self._telling = Telling(working.announce.tell, clock=working.clock)
        self.restarts = Restarts(working, self._telling)
        self.all: dict[str, Gang] = {}
        self.standings: dict[str, Standing] = {}
        self._alone: dict[str, Standing] = {}
        """Standings without regard to other gangs."""
        self._turns: list[tuple[Urgency, str]] = []
        self._considered: dict[str, _Considered] = {}
        self._shrunk: dict[str, float] = {}
        self._epoch = 0
        self._members: dict[str, str] = {}
        """uid -> key of its gang."""
        self._changed_members: set[str] = set()
        self._to_look: set[str] = set()
        self._to_plan: set[str] = set()
        self._to_lift: set[str] = set()
        self._doubtful: set[str] = set()
        self._waiting: set[str] = set()
        self._next_kept: float | None = None
        self._due: list[tuple[float, str]] = []
        self._seen: tuple[object, ...] = ()
        self._seen_version = -1
        self._new_nodes = True
        working.cache.listen(NODES, self._on_node)

    def _on_node(self, _name: str, before: Object | None, now: Object | None) -> None:
        self._new_nodes = self._new_nodes or before is None or now is None

    # before planning

    def look(self) -> None:
        """Find the gangs, and take back what is held without reason."""
        working, now = self._working, self._working.clock()
        entries = working.cache.pod_index.entries
        self.lifts.look(lambda uid: entries[uid].pod if uid in entries else None)
        self._refresh()
        if self._rule_out_doubts():
            self._refresh()
        while self._due and self._due[0][0] <= now:
            key = heapq.heappop(self._due)[1]
            self._to_look.add(key)
            self._to_plan.add(key)
        self._to_look &= self.all.keys()
        for key in sorted(self._to_look, key=self._by_urgency):
            self._look_at(self.all[key], self.standings[key])
        self._refresh()
        for key in sorted(self._to_look & self.all.keys(), key=self._by_urgency):
            self._look_again(key, self.restarts.look(self.all[key], now))
            if not self.standings[key].give_back:
                self._to_look.discard(key)
        self.keeping.retain(self._waiting, now=now)
        working.wake(self._due[0][0] if self._due else None)

    def _by_urgency(self, key: str) -> tuple[Urgency, str]:
        return self.all[key].urgency, key

    def _look_at(self, gang: Gang, standing: Standing) -> None:
        if standing.give_back:
            why = f"gang {gang.key} is not complete: {standing.why}"
            if not commit.give_back(standing.give_back, why=why, working=self._working):
                return
            self._telling.say(gang, telling.ROLLED_BACK, f"devices were given back: {standing.why}")
        self._tell(gang, standing)

    def _look_again(self, key: str, at: float | None) -> None:
        if at is not None:
            heapq.heappush(self._due, (at, key))

    def _rule_out_doubts(self) -> bool:
        doubts = [member for key in sorted(self._doubtful) for member in self.standings[key].doubts]
        commit.rule_out(tuple(doubts), working=self._working, lifts=self.lifts)
        return bool(doubts)

    def _refresh(self) -> None:
        marks = self._gathering.gather()
        if not marks and not (self._new_nodes and self.all):
            return
        cache, users = self._working.cache, self._working.users()
        changed = {mark.key for mark in marks}
        for mark in marks:
            self._replace(mark.key, self._gathering.gangs.get(mark))
        if self._new_nodes:
            changed |= self.all.keys()
        self._new_nodes = False
        gangs = [self.all[key] for key in changed & self.all.keys()]
        self._alone |= standings_of(gangs, nodes=cache.nodes, users=users)
        before = self.standings
        self.standings = with_idle(self.all, self._alone, nodes=cache.nodes, users=users)
        changed |= {key for key, standing in self.standings.items() if before.get(key) is not standing}
        self._to_look |= changed
        self._to_plan |= changed
        self._to_lift = {key for key, standing in self.standings.items() if standing.lift}
        self._doubtful = {key for key, standing in self.standings.items() if standing.doubts}
        self._waiting = {key for key, standing in self.standings.items() if standing.stage is Stage.WAITING}

    def _replace(self, key: str, gang: Gang | None) -> None:
        before = self.all.pop(key, None)
        was = {member.uid for member in before.members} if before is not None else set()
        now = {member.uid for member in gang.members} if gang is not None else set()
        for uid in was - now:
            if self._members.get(uid) == key:
                del self._members[uid]
        self._members.update(dict.fromkeys(now, key))
        self._changed_members |= was ^ now
        if gang is not None:
            self.all[key] = gang
            return
        self._alone.pop(key, None)
        self._considered.pop(key, None)
        self._shrunk.pop(key, None)
        self.restarts.forget(key)
        self._telling.forget(key)

    def changed_members(self) -> set[str]:
        """Pods (by uid) that have come into a gang or left one since the last call."""
        found, self._changed_members = self._changed_members, set()
        return found

    def together(self) -> dict[str, tuple[Object, ...]]:
        """Whom each member, by uid, is evicted with: all that were let go; nobody while its gang is not started yet."""
        return {
            member.uid: tuple(each.pod for each in gang.committed) if member.is_committed else ()
            for gang in self.all.values()
            for member in gang.members
        }

    def wholes(self) -> dict[str, tuple[str, int]]:
        """Members that start together, by uid: their gang, and how many of them it can do without."""
        return holding.wholes(self.standings)

    def has(self, pod_uid: str) -> bool:
        """Whether the pod's gate is the gang's business."""
        return pod_uid in self._members

    def _tell(self, gang: Gang, standing: Standing) -> None:
        if standing.stage is Stage.GATHERING:
            self._look_again(gang.key, self._telling.say(gang, telling.GATHERING, standing.why))
        elif standing.stage is Stage.REFUSED:
            self._look_again(gang.key, self._telling.say(gang, telling.REFUSED, standing.why))

    # planning

    def begin(self, epoch: int, *, touched: Iterable[str], concerns: tuple[object, ...]) -> None:
        """The planning step begins. `epoch` as the cache's inventory has it; `touched`: pods that other nodes are left out for;
        `concerns`: what concerns everybody that waits."""
        cache, now = self._working.cache, self._working.clock()
        self._epoch = epoch
        remembers = (self._offers.sites.numbering, *cache.classes.values())
        if remembers != self._remembers:
            self._memory.forget()
            self._remembers = remembers
        seen = (concerns, self.keeping.version)
        starving = self._next_kept is not None and self._next_kept <= now
        self._next_kept = None
        if seen != self._seen or starving:
            self._to_plan |= self.all.keys()
        elif cache.version != self._seen_version:
            self._to_plan |= self._pairwise()
        self._seen, self._seen_version = seen, cache.version
        self._to_plan.update(self._members[uid] for uid in touched if uid in self._members)
        self._to_plan &= self.all.keys()
        self._turns = sorted(
            (self._turn(self.all[key], self.standings[key]), key)
            for key in self._to_plan
            if self.standings[key].plan and key not in self.restarts
        )
        self._to_plan = {key for _, key in self._turns}
        self._next_kept = self.keeping.next(now)
        self._working.wake(self._next_kept)

    def _pairwise(self) -> set[str]:
        """Gangs that wait and have members for which it matters where others are."""
        return {
            key
            for key in self._considered
            if any(looks_at_others(member.pod) for member in self.all[key].members)
        }

    def _turn(self, gang: Gang, standing: Standing) -> Urgency:
        rank, created, name = gang.urgency
        if standing.stage is Stage.SHORT:
            return (rank, "", name)
        return (_LAST[0] + rank, created, name) if standing.stage is Stage.GROWING else gang.urgency

    def until(self, urgency: Urgency | None) -> None:
        """Plan the gangs whose turn is before this one's; None: all that are left."""
        while self._turns and (urgency is None or self._turns[0][0] < urgency):
            key = self._turns.pop(0)[1]
            if self._consider(key):
                self._to_plan.discard(key)

    def _consider(self, key: str) -> bool:
        """Whether it need not be considered again before something changes, or is due."""
        gang, standing, now = self.all[key], self._within_quota(key), self._working.clock()
        if not standing.plan:
            self._considered.pop(key, None)
            return True
        whole, cells = question(gang, standing, kept_off=self._kept_off_by(gang))
        basis = self._basis(whole, standing)
        before = self._considered.pop(key, None)
        same = before is not None and before.basis == basis
        if before is not None and same and (before.until is None or before.until > now):
            self._considered[key] = before
            self._keep_for(gang, whole, cells, now)
            return True
        budget = before.budget * 2 if before is not None and same else 1
        answer = self._arrange(whole, cells, budget=budget)
        if isinstance(answer, asked.GangPlaced):
            self._write(gang, standing, whole, answer, cells)
            return False
        undecided = isinstance(answer, asked.GangUndecided)
        until = now + UNDECIDED_PAUSE if undecided else None
        self._considered[key] = _Considered(basis, until, min(budget, MOST_BUDGET))
        self._look_again(key, until)
        self._working.wake(until)
        self._tell_waiting(gang, standing, whole, answer, cells)
        if standing.stage is Stage.WAITING:
            self.keeping.waits(gang, now=now)
            if not undecided:
                self._shrink_for(gang, whole, cells, now)
            self._keep_for(gang, whole, cells, now)
        return True

    def _within_quota(self, key: str) -> Standing:
        """Without the members whom a quota holds."""
        standing, beyond_quota = self.standings[key], self._beyond_quota()
        free = holding.without_held(standing, beyond_quota)
        if free is not standing:
            why = holding.tell_held(standing, beyond_quota, working=self._working)
            stage = telling.OF_STAGE.get(standing.stage)
            if why and stage is not None and not free.plan:
                self._telling.say(self.all[key], stage, why)
        return free

    def _arrange(
        self,
        whole: asked.Gang,
        cells: Mapping[str, Cell],
        *,
        budget: int = 1,
        without: frozenset[str] = frozenset(),
    ) -> asked.GangAnswer:
        classes = self._working.cache.classes
        kept_off = self._kept_off_by(self.all[whole.name])
        return self._arranging.arrange(
            whole, cells, classes, kept_off=kept_off, budget=budget, without=without
        )

    def _kept_off_by(self, gang: Gang) -> KeptOffBy:
        of_gangs = self.keeping.kept_off(gang.urgency, gang.key)
        return lambda group: {**of_gangs, **self._kept_off(group)}

    def _basis(self, whole: asked.Gang, standing: Standing) -> tuple[object, ...]:
        members = tuple(
            (
                member.key,
                tuple(objects.uid(pod) for pod in member.pods),
                tuple(objects.uid(claim) for claim in member.claims),
                member.pinned,
                tuple((node, member.kept_off[node].detail) for node in sorted(member.kept_off)),
            )
            for member in whole.members
        )
        fixed = tuple((entry.key, entry.node) for entry in whole.fixed)
        return self._epoch, standing.stage, standing.needed, members, fixed

    def _write(
        self,
        gang: Gang,
        standing: Standing,
        whole: asked.Gang,
        answer: asked.GangPlaced,
        cells: Mapping[str, Cell],
    ) -> None:
        growing = standing.stage is Stage.GROWING
        written = commit.allocate(
            gang,
            answer,
            cells,
            working=self._working,
            given_out=self._given_out,
            config=self._config(gang, whole, answer, cells),
            undo=not growing,
        )
        if not written:
            self._working.wake(self._working.clock() + 1.0)
            return
        self.keeping.placed(gang)
        self._shrunk.pop(gang.key, None)
        nodes = len({placed.node for placed in answer.members if placed.node})
        where = f"{telling.number_of(len(answer.members), 'member')} on {telling.number_of(nodes, 'node')}"
        if growing:
            self._telling.say(gang, telling.GROWS, f"{where} more; {answer.size} are placed")
        elif standing.stage is Stage.WAITING:
            left = f", {len(answer.left)} wait for room" if answer.left else ""
            domains = "".join(f", {telling.number_of(count, level)}" for level, count in answer.score.domains)
            remark = f"; {answer.remark}" if answer.remark else ""
            self._telling.say(gang, telling.STARTS, f"{where}{domains}{left}; their gates are lifted{remark}")

    def _config(
        self, gang: Gang, whole: asked.Gang, answer: asked.GangPlaced, cells: Mapping[str, Cell]
    ) -> Mapping[str, Object]:
        if self._entries is None:
            return {}
        hosts = {member.key: _host(member.pod) for member in gang.members}
        return self._entries(gang.mark.name, answer, fixed=whole.fixed, hosts=hosts)

    # waiting

    def _tell_waiting(
        self,
        gang: Gang,
        standing: Standing,
        whole: asked.Gang,
        answer: asked.GangAnswer,
        cells: Mapping[str, Cell],
    ) -> None:
        if isinstance(answer, asked.GangPlaced):
            return
        stage = telling.OF_STAGE.get(standing.stage)
        if stage is not None:
            said = (
                f"annotation {GANG_TOPOLOGY}: " if answer.text.startswith(f"{whole.required} is no ") else ""
            )
            self._telling.say(gang, stage, f"{said}{answer.text}{telling.nearest_miss(answer)}")
        for key, cell in cells.items():
            told = answer.reasons.get(key) or ()
            text = f"waits with its gang {gang.key}: {answer.text}"
            reasons = told or (Reason(None, None, None, Cause.NODE_UNSUITABLE.value, text),)
            for claim in cell.group.pending:
                self._working.announce.waiting(claim, commit.users_in(cell.group, claim), reasons)

    def _keep_for(self, gang: Gang, whole: asked.Gang, cells: Mapping[str, Cell], now: float) -> None:
        """Nodes for a gang that starves."""
        if self.standings[gang.key].stage is not Stage.WAITING:
            return
        if self.keeping.starves(gang, now=now):
            sites = sorted(
                self._offers.sites.by_name.values(), key=lambda site: (len(site.holders), site.name)
            )
            number = max(1, len(whole.members) // 2)
            while True:
                answer = self._arrange(whole, cells, without=_all_on(sites[:number], self._working.users()))
                if isinstance(answer, asked.GangPlaced):
                    self.keeping.keep(gang, {placed.node for placed in answer.members}, now=now)
                    log.info("nodes_kept_free", gang=gang.key, nodes=len(answer.members))
                    break
                if number >= len(sites):
                    self.keeping.in_vain(gang, now=now)
                    break
                number *= 2
        self._next_kept = self.keeping.next(now)
        self._working.wake(self._next_kept)

    def _shrink_for(self, gang: Gang, whole: asked.Gang, cells: Mapping[str, Cell], now: float) -> None:
        """Members above the least of elastic gangs make room, where that is their policy and helps."""
        if self._shrunk.get(gang.key, 0.0) > now:
            return
        found = victims_for(
            gang,
            self.all.values(),
            self._working.users(),
            fits=lambda gone: self._arrange(whole, cells, without=gone),
        )
        if found is None:
            return
        self._shrunk[gang.key] = now + SHRINK_PAUSE
        for other, members in found.by_gang():
            text = f"{len(members)} members above the least were evicted for gang {gang.key}"
            self._telling.say(replace(other, members=members), telling.SHRUNK, text)
            commit.evict(members, working=self._working)
        self.keeping.keep(gang, found.nodes, now=now)

    def kept_off(self, group: Group) -> Mapping[str, Reason]:
        """Nodes that are kept free for a gang before this group."""
        return (
            {} if self.keeping.kept is None or self._is_ours(group) else self.keeping.kept_off(group.urgency)
        )

    def _is_ours(self, group: Group) -> bool:
        """A gang's own members are kept off as the gang is, not by their own urgency."""
        return any(objects.uid(pod) in self._members for pod in group.pods)

    # gates

    def lift(self) -> None:
        """Let go whoever may go, after all writes of this pass."""
        if not self.all:
            return
        self._refresh()
        for key in sorted(self._to_lift & self.all.keys(), key=self._by_urgency):
            standing = self.standings[key]
            if standing.lift and key not in self.restarts:
                commit.lift(self.all[key], standing.lift, working=self._working, lifts=self.lifts)

    def counts(self) -> dict[str, int]:
        """Gangs by stage."""
        found = dict.fromkeys((stage.value.lower() for stage in Stage), 0)
        for standing in self.standings.values():
            found[standing.stage.value.lower()] += 1
        return found


def _host(pod: Object) -> str:
    """The name by which other members resolve the pod."""
    spec = objects.spec_of(pod)
    name = str(spec.get("hostname") or objects.name(pod))
    return f"{name}.{spec['subdomain']}" if spec.get("subdomain") else name


def _all_on(sites: Iterable[Any], users: Mapping[str, Sequence[Object]]) -> frozenset[str]:
    """uids of the claims that hold devices on the sites and of the pods that use them."""
    gone: set[str] = set()
    for site in sites:
        for claim in site.holders:
            gone.add(objects.uid(claim))
            gone.update(objects.uid(pod) for pod in users.get(objects.key(claim), ()))
    return frozenset(gone)
