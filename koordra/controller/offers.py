"""Asking the allocator, site by site, and not asking the same thing twice.

The allocator's answer for one node depends on the request and on that node alone, so

    request class   what a group asks, without names and uids: claims of one template, say
    likeness        sites with the same devices, of which the same is taken, have the same answer (sites.py): the
                    allocator is asked once per class and likeness, and its answer is written anew for other names
    book            per class: each site's score, or that it does not fit, and the site's version that holds for
    best            only sites that changed since are looked at; then the best score, where it is the leftover that differs
                    by what was learned of the workload (leftovers.py), ties by the node's name

So a claim of a known class costs no question or one to the allocator, however many nodes there are, and one that
fits nowhere costs none until a site changes. `koordra.placement.plan` over all sites would answer the same; a test
compares (as long as nothing was learned). Why a claim waits is asked for only when it is told, once for every kind of site and for MOST_TOLD
sites at most; `koordra explain` tells all.

The predicates of nodes (allocator.predicates) are judged here, pod by pod, against what the site's pods ask.

Nodes that a pod is kept off (refused by the scheduler, reserved for somebody, pod-level obstacles) are left out
of the choice with the reason given; they are no part of a class.
"""

from __future__ import annotations

import heapq
import traceback
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from koordra.allocator.devices.inventory import Inventory as InventoryOfAllocator
from koordra.allocator.predicates import requests_of, unsuitable
from koordra.allocator.reasons import Cause, Reason
from koordra.allocator.score import WORTH
from koordra.api import objects
from koordra.api.kinds import DEVICE_CLASSES
from koordra.api.objects import Object
from koordra.controller import claims as claims_of
from koordra.controller.cache.cluster_cache import ClusterCache
from koordra.controller.cache.groups import Group
from koordra.controller.leftovers import Learned, Leftovers
from koordra.controller.request_class import (
    SPEAKS_OF_ONE,
    for_other_names,
    names_of,
    renamed,
    request_class,
    with_claims,
)
from koordra.controller.site_answers import (
    Answer,
    Exemplar,
    Offered,
    Planner,
    Reasons,
    merged,
    refused,
    waits_for_others,
)
from koordra.controller.sites import Inventory, Site, Sites, add_load
from koordra.errors import KoordraError

MOST_CLASSES: Final = 128
"""Request classes that are remembered; the one that was not asked for the longest goes first."""

MOST_EXEMPLARS: Final = 50_000
MOST_TOLD: Final = 24
"""Sites that an Event is made from; it has room for fewer."""


KeptOff = Mapping[str, Reason]
"""Node -> why the group must stay off it."""


_Order = tuple[int, int, int]
"""Smaller is better."""


@dataclass(frozen=True, slots=True)
class _Entry:
    """What a book knows of a site: the answer's exemplar, or why the node itself is unsuitable."""

    version: int
    exemplar: Exemplar | None = None
    unsuitable: Reasons = ()

    @property
    def score(self) -> int | None:
        return None if self.exemplar is None else self.exemplar.answer.score


@dataclass(slots=True)
class _Book:
    """One request class. `shared`: one site's answer holds for those alike; `read`: how many of the sites' changes are
    in it; `told`: why nothing fits, with the keys that it speaks of."""

    shared: bool
    read: int = 0
    entries: dict[str, _Entry] = field(default_factory=dict)
    best: list[tuple[_Order, str, int]] = field(default_factory=list)
    epoch: int = 0
    told: tuple[tuple[Reasons, ...], tuple[str, ...]] | None = None


class Offers:
    """The allocator with a memory. Not thread-safe. `asked` counts questions to the allocator."""

    def __init__(
        self,
        planner: Planner,
        read_inventory: Callable[[Iterable[Object]], Inventory],
        *,
        learned: Learned | None = None,
    ) -> None:
        self._planner = planner
        self.leftovers = Leftovers(learned)
        self.sites = Sites(read_inventory)
        self.asked = 0
        self._kinds: dict[int, tuple[Group, str]] = {}
        self._books: dict[str, _Book] = {}
        self._exemplars: dict[tuple[str, Hashable], Exemplar] = {}
        self._classes: Mapping[str, Object] = {}
        self._cache: ClusterCache | None = None
        self._is_stale = False

    def look(self, cache: ClusterCache) -> None:
        """Everything as it is at the beginning of a pass."""
        if self._cache is not cache:
            self._cache, self._is_stale = cache, True
            cache.listen(DEVICE_CLASSES, self._on_class)
        self.sites.look(cache)
        if self._is_stale:
            self._is_stale = False
            self._forget()
        self._classes = cache.classes
        if len(self.sites.changes) > 1_000_000 or len(self._exemplars) > MOST_EXEMPLARS:
            self._forget()
            self.sites.changes.clear()
        self.leftovers.follow(self.sites)
        self.leftovers.begin(cache.claims.values(), cache.pods.values(), self._classes)

    def hear(self, groups: Iterable[Group]) -> None:
        """All that waits counts before the first of them is planned: a pass has one table, and asks no site twice for a newer
        one."""
        self._kinds.clear()
        for group in groups:
            if not group.placed and self.leftovers.is_new(group):
                kind = request_class(group)
                self._kinds[id(group)] = (group, kind)
                self.leftovers.heard(kind, group, self._classes)

    def given_out(self, claim: Object, pods: Iterable[Object]) -> None:
        self.sites.given_out(claim, pods)

    def best(self, group: Group, kept_off: KeptOff) -> Offered:
        """The group as a whole on the best node, or nowhere."""
        placed = group.placed
        if placed:
            return self._beside(placed, group, kept_off)
        heard = self._kinds.get(id(group))
        kind = heard[1] if heard is not None and heard[0] is group else request_class(group)
        self.leftovers.follow(self.sites)
        self.leftovers.heard(kind, group, self._classes)
        book = self._book(kind, group)
        self._bring_up_to_date(book, kind, group)
        found = _best_of(book, kept_off)
        if found is None:
            return self._nowhere_by_book(group, book, kept_off)
        exemplar = self._newest(book, kind, group, found)
        if exemplar.node == found and exemplar.group is group:
            return Offered(found, exemplar.answer.allocations, exemplar.answer.levels)
        return for_other_names(exemplar, group, found)

    def ask(self, group: Group, site: Site, *, without: frozenset[str] = frozenset()) -> Answer:
        """One site's answer. `without`: uids of claims and pods there as if they were gone."""
        unsuited = self._unsuitable(group, site, without)
        if unsuited:
            return Answer(reasons=tuple(unsuited for _ in group.pending))
        return self._of_allocator(group, site, without)

    def _of_allocator(self, group: Group, site: Site, without: frozenset[str] = frozenset()) -> Answer:
        keys = [objects.key(claim) for claim in group.pending]
        self.asked += 1
        try:
            shown = self._shown(group, site, without)
            inventory, cards = self.sites.inventory_of(site), self.leftovers.cards
            found = (
                self._planner(shown, report_errors=True, inventory=inventory)
                if cards is None
                else self._planner(shown, report_errors=True, inventory=inventory, cards=cards)
            )
        except KoordraError as error:
            return refused(keys, error)
        except Exception as error:  # noqa: BLE001 (a defect met by one claim must not stop the others)
            text = f"{type(error).__name__} inside the allocator: {error}; please report it"
            reason = Reason(site.name, None, None, "InternalError", text)
            return Answer(reasons=tuple((reason,) for _ in keys), broken=traceback.format_exc())
        if keys and all(key in found.allocations for key in keys):
            return Answer(
                score=found.scores[keys[0]],
                allocations={key: found.allocations[key] for key in keys},
                levels={key: found.levels.get(key) for key in keys},
            )
        unread = self._unreadable(site)
        return Answer(
            reasons=tuple(
                (*unread, *(found.unsatisfiable.get(key) or found.undecided.get(key) or ())) for key in keys
            ),
            undecided=not found.undecided.keys().isdisjoint(keys),
        )

    def _unreadable(self, site: Site) -> Reasons:
        """Slices of the node that cannot be read; its devices look as if they were not there."""
        if not isinstance(site.inventory, InventoryOfAllocator):
            return ()
        texts = [text for by_slice in site.inventory.unreadable.values() for text in by_slice.values()]
        return tuple(
            Reason(site.name, None, None, Cause.POOL_INCOMPLETE.value, text) for text in sorted(texts)
        )

    def _shown(self, group: Group, site: Site, without: frozenset[str]) -> list[Object]:
        """What the allocator is shown: one node, its holders, and the group without the claims of others."""
        inside = {objects.key(claim): claim for claim in (*group.pending, *group.placed)}
        here = {objects.uid(claim) for claim in site.holders} - without
        named = {name for claim in group.pending for name in claims_of.class_names(claim)}
        return [
            *site.shown(without=without),
            *(self._classes[name] for name in sorted(named) if name in self._classes),
            *(claim for claim in inside.values() if objects.uid(claim) not in here),
            *(with_claims(pod, shown=inside) for pod in group.pods),
        ]

    def _unsuitable(self, group: Group, site: Site, without: frozenset[str]) -> Reasons:
        """The node's predicates for all pods of the group at the same time."""
        mine = frozenset(objects.uid(pod) for pod in group.pods) if group.placed else frozenset()
        load = site.load_without(without | mine)
        found: list[str] = []
        for pod in group.pods:
            several = len(group.pods) > 1
            where = f"pod {objects.key(pod)}: " if several else ""
            found += [f"{where}{text}" for text in unsuitable(site.node, pod, taken=load)]
            if several:
                add_load(load, requests_of(pod))
        cause = Cause.NODE_UNSUITABLE.value
        return tuple(Reason(site.name, None, None, cause, text) for text in dict.fromkeys(found))

    # books

    def _on_class(self, _name: str, before: Object | None, now: Object | None) -> None:
        self._is_stale = self._is_stale or before != now

    def _forget(self) -> None:
        self._books.clear()
        self._exemplars.clear()
        self.leftovers.forget_classes()

    def _book(self, kind: str, group: Group) -> _Book:
        book = self._books.pop(kind, None) or _Book(not SPEAKS_OF_ONE.search(self._words(kind, group)))
        if len(self._books) >= MOST_CLASSES:
            del self._books[next(iter(self._books))]
        self._books[kind] = book
        return book

    def _bring_up_to_date(self, book: _Book, kind: str, group: Group) -> None:
        changes = self.sites.changes
        stale = set(changes[book.read :]) if book.entries else set(self.sites.by_name)
        book.read = len(changes)
        for name in sorted(stale):
            site = self.sites.by_name.get(name)
            known = book.entries.get(name)
            if site is None:
                book.entries.pop(name, None)
            elif known is None or known.version != site.version:
                entry = book.entries[name] = self._entry(book, kind, group, site)
                if entry.score is not None and book.epoch == self.leftovers.epoch:
                    heapq.heappush(
                        book.best, (self._order(kind, group, site, entry.score), name, site.version)
                    )
            book.told = None
        if book.epoch != self.leftovers.epoch:
            book.epoch = self.leftovers.epoch
            book.best = [
                (self._order(kind, group, self.sites.by_name[name], entry.score), name, entry.version)
                for name, entry in book.entries.items()
                if entry.score is not None
            ]
            heapq.heapify(book.best)

    def _order(self, kind: str, group: Group, site: Site, score: int) -> _Order:
        """What the site's answer is worth to the claims, then what it leaves of the cluster or, where nothing is known of that,
        the rest of the score."""
        key = self.leftovers.key(kind, group, site, self._classes)
        return -score // WORTH, key or 0, -score if key is None else 0

    def _entry(self, book: _Book, kind: str, group: Group, site: Site) -> _Entry:
        unsuited = self._unsuitable(group, site, frozenset())
        if unsuited:
            return _Entry(site.version, unsuitable=unsuited)
        shared = site.likeness is not None and book.shared
        place = (kind, site.likeness)
        exemplar = self._exemplars.get(place) if shared else None
        if exemplar is None:
            exemplar = Exemplar(self._of_allocator(group, site), group, site.name, self.leftovers.epoch)
            if shared and not exemplar.answer.broken:
                self._exemplars[place] = exemplar
        return _Entry(site.version, exemplar)

    def _newest(self, book: _Book, kind: str, group: Group, name: str) -> Exemplar:
        """The site's answer by what is known now: an older table may have chosen other devices there."""
        entry, site, epoch = book.entries[name], self.sites.by_name[name], self.leftovers.epoch
        assert entry.exemplar is not None
        if entry.exemplar.epoch == epoch:
            return entry.exemplar
        place = (kind, site.likeness)
        known = self._exemplars.get(place) if book.shared and site.likeness is not None else None
        if known is None or known.epoch != epoch:
            known = Exemplar(self._of_allocator(group, site), group, name, epoch)
            if known.answer.score is None:
                return entry.exemplar
            if book.shared and site.likeness is not None:
                self._exemplars[place] = known
        book.entries[name] = _Entry(entry.version, known)
        return known

    def _words(self, kind: str, group: Group) -> str:
        """Everything that is said in a request: the claims' own words and their classes'."""
        named = {name for claim in group.pending for name in claims_of.class_names(claim)}
        return kind + "".join(
            str(objects.spec_of(self._classes[name])) for name in sorted(named) if name in self._classes
        )

    # why not

    def _nowhere_by_book(self, group: Group, book: _Book, kept_off: KeptOff) -> Offered:
        keys, names = [objects.key(claim) for claim in group.pending], names_of(group)
        if not kept_off and book.told is not None:
            told = renamed(book.told[0], book.told[1], names)
            return Offered(reasons=waits_for_others(dict(zip(keys, told, strict=True))))
        answers = self._reasons_by_book(group, book, kept_off)
        offered = self._nowhere(group, answers, kept_off)
        if not kept_off and not offered.undecided and not offered.broken:
            book.told = (merged(answers.values(), len(keys)), names)
        return offered

    def _reasons_by_book(self, group: Group, book: _Book, kept_off: KeptOff) -> dict[str, Answer]:
        """The answers that tell most: every kind of site once."""
        answers: dict[str, Answer] = {}
        seen: set[int] = set()
        for name in sorted(book.entries):
            entry = book.entries[name]
            if name in kept_off or entry.score is not None or len(answers) >= MOST_TOLD:
                continue
            if entry.exemplar is None:
                answers[name] = Answer(reasons=tuple(entry.unsuitable for _ in group.pending))
            elif id(entry.exemplar) not in seen:
                seen.add(id(entry.exemplar))
                mine = entry.exemplar.node == name and entry.exemplar.group is group
                answers[name] = (
                    entry.exemplar.answer if mine else self._of_allocator(group, self.sites.by_name[name])
                )
        return answers

    def _beside(self, placed: Sequence[Object], group: Group, kept_off: KeptOff) -> Offered:
        """A part of the pods' claims is placed: only the node that these are on comes into question."""
        pinned = {node for claim in placed if (node := claims_of.node_of(claim)) is not None}
        names = sorted(pinned if len(pinned) == 1 else self.sites.by_name)
        answers = {
            name: self.ask(group, self.sites.by_name[name])
            for name in names
            if name in self.sites.by_name and name not in kept_off
        }
        fitting = [(-answer.score, name) for name, answer in answers.items() if answer.score is not None]
        if fitting:
            best = min(fitting)[1]
            return Offered(best, answers[best].allocations, answers[best].levels)
        if len(pinned) == 1 and not answers and not pinned & kept_off.keys():
            where = next(iter(pinned))
            keys = ", ".join(objects.key(claim) for claim in placed)
            text = f"ResourceClaim {keys} of the pod is allocated on node {where}, which is gone"
            reason = Reason(where, None, None, Cause.SHARED_CLAIM_PINNED.value, text)
            return Offered(reasons={objects.key(claim): (reason,) for claim in group.pending})
        relevant = {name: reason for name, reason in kept_off.items() if not pinned or name in pinned}
        return self._nowhere(group, answers, relevant)

    def _nowhere(self, group: Group, answers: Mapping[str, Answer], kept_off: KeptOff) -> Offered:
        keys = [objects.key(claim) for claim in group.pending]
        said = [answer for name, answer in answers.items() if name not in kept_off]
        kept = [Answer(reasons=tuple((reason,) for _ in keys)) for reason in kept_off.values()]
        told = merged([*said, *kept], len(keys))
        return Offered(
            reasons=waits_for_others(dict(zip(keys, told, strict=True))),
            undecided=any(answer.undecided for answer in said),
            broken=next((answer.broken for answer in said if answer.broken), ""),
        )


def _best_of(book: _Book, kept_off: KeptOff) -> str | None:
    """The site with the best score whose answer is still good; what is kept off stays in the book."""
    aside = []
    found = None
    while book.best:
        entry = book.best[0]
        known = book.entries.get(entry[1])
        if known is None or known.version != entry[2] or known.score is None:
            heapq.heappop(book.best)
            continue
        if entry[1] not in kept_off:
            found = entry[1]
            break
        aside.append(heapq.heappop(book.best))
    for entry in aside:
        heapq.heappush(book.best, entry)
    return found
